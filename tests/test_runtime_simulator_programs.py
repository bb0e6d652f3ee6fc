"""Programs by chance, on two imaginary devices and on the plain CPU: what runs on both gives the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from devlint.runtime.placement import device_of
from devlint.runtime.simulator import simulate
from imaginary import CPU

PLACES = (CPU, torch.device("cuda", 0), torch.device("cuda", 1))
REFUSED, SAME, NEW = "refused", "same", "new"  # what became of a step


def _index_put(a: Tensor, b: Tensor) -> Tensor:
    a[torch.tensor(0)] = b
    return a


def _small(values: Tensor) -> Tensor:
    """Keeps numbers whole and small: double precision holds their sums and products exactly, in any order."""
    return values.clamp(-4, 4)


FUNCTIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda a, b: _small(a + b),
    lambda a, b: _small(a * b),
    lambda a, b: _small(a - 2 * b),
    lambda a, b: torch.maximum(a, b),
    lambda a, b: torch.where(a > b, a, b),
    lambda a, b: _small(a @ b),
    lambda a, b: torch.cat([a, b]),
    lambda a, b: _small(torch.stack([a, b]).sum(0)),
    lambda a, b: _small(a.sum()),
    lambda a, b: a.t().contiguous(),
    lambda a, b: a.reshape(-1)[:2].clone(),
    lambda a, b: torch.zeros_like(a) + b,
    lambda a, b: a.new_ones(2, 2),
    lambda a, b: a.masked_fill(b > 0, 1.0),
    lambda a, b: _small(a.cumsum(-1)),
    lambda a, b: a[b.long().abs().clamp(max=0)],
    lambda a, b: torch.lerp(a, b, 0.5).round(),
    lambda a, b: _small(torch.addcmul(a, b, b)),
    lambda a, b: torch.nn.functional.pad(a, (0, 1)).narrow(-1, 0, 1),
)
IN_PLACE: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda a, b: a.add_(b).clamp_(-4, 4),
    lambda a, b: a.copy_(b),
    lambda a, b: a.mul_(-1),
    lambda a, b: a.view(-1).zero_(),
    lambda a, b: torch.sub(a, b, out=torch.empty(0, dtype=a.dtype, device=a.device)).sign_(),
    _index_put,
)


def _beginning(places: bool) -> list[Tensor]:
    pool = []
    for i, place in enumerate(PLACES):
        values = torch.arange(i, i + 4, dtype=torch.float64)
        pool += [
            values.view(2, 2).to(place if places else CPU),
            (values[1] - 2).to(place if places else CPU, copy=True),
        ]
    return pool


def _moved(tensor: Tensor, place: torch.device) -> Tensor:
    return tensor.to(place)


Step = tuple[int, int, int, int]  # which function (or a move), of which two tensors, to which place
WHICH = st.integers(-4, len(FUNCTIONS) + len(IN_PLACE) - 1)
STEPS = st.lists(
    st.tuples(WHICH, st.integers(0, 30), st.integers(0, 30), st.integers(0, 2)),
    max_size=14,
)


def _run_imaginary(steps: list[Step], functions: Any, pool: list[Tensor]) -> Iterator[str]:
    for which, i, j, place in steps:
        a, b = pool[i % len(pool)], pool[j % len(pool)]
        try:
            result = _moved(a, PLACES[place]) if which < 0 else functions[which % len(functions)](a, b)
        except (RuntimeError, IndexError):  # devices, or shapes
            yield REFUSED
            continue
        pool.append(result)
        yield SAME if result is a else NEW
        if which < 0:
            assert result.device == PLACES[place]
        else:
            operands = {a.device, b.device}
            assert result.device in operands
            assert len(operands - {result.device}) == 0 or a.dim() == 0 or b.dim() == 0 or result.device == a.device


def _run_plain(steps: list[Step], functions: Any, pool: list[Tensor], fates: list[str]) -> None:
    for (which, i, j, _), fate in zip(steps, fates, strict=True):
        a, b = pool[i % len(pool)], pool[j % len(pool)]
        if fate == REFUSED:
            continue
        if which < 0:
            pool.append(a if fate == SAME else a.clone())
        else:
            pool.append(functions[which % len(functions)](a, b))


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_whatever_runs_gives_the_same_bits_as_on_the_cpu(steps: list[Step]) -> None:
    functions = FUNCTIONS + IN_PLACE
    with simulate(2):
        pool = _beginning(places=True)
        fates = list(_run_imaginary(steps, functions, pool))
        results = [tensor.cpu() for tensor in pool]
    expected = _beginning(places=False)
    _run_plain(steps, functions, expected, fates)
    assert [tensor.tolist() for tensor in results] == [tensor.tolist() for tensor in expected]


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, place=st.sampled_from(PLACES))
def test_on_one_device_nothing_is_refused_that_the_cpu_takes(steps: list[Step], place: torch.device) -> None:
    functions = FUNCTIONS + IN_PLACE
    steps = [(max(which, 0), i, j, 0) for which, i, j, _ in steps]
    on_host = _beginning(places=False)
    fates = list(_run_on(steps, functions, on_host))
    with simulate(2):
        pool = [tensor.to(place) for tensor in _beginning(places=False)]
        assert list(_run_on(steps, functions, pool)) == fates
        assert {device_of(tensor) for tensor in pool} == {place}
        assert [tensor.tolist() for tensor in pool] == [tensor.tolist() for tensor in on_host]


def _run_on(steps: list[Step], functions: Any, pool: list[Tensor]) -> Iterator[str]:
    for which, i, j, _ in steps:
        a, b = pool[i % len(pool)], pool[j % len(pool)]
        try:
            pool.append(functions[which % len(functions)](a, b))
        except (RuntimeError, IndexError) as problem:
            yield type(problem).__name__
        else:
            yield NEW


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_gradients_are_the_same_bits_and_where_their_leaves_are(steps: list[Step]) -> None:
    with simulate(2):
        leaves = [leaf.requires_grad_() for leaf in _beginning(places=True)]
        pool = list(leaves)
        fates = list(_run_imaginary(steps, FUNCTIONS, pool))
        _loss(pool).backward()
        assert [device_of(leaf.grad) for leaf in leaves] == [device_of(leaf) for leaf in leaves]
        gradients = [leaf.grad.tolist() for leaf in leaves]
    expected = [leaf.requires_grad_() for leaf in _beginning(places=False)]
    pool = list(expected)
    _run_plain(steps, FUNCTIONS, pool, fates)
    _loss(pool).backward()
    assert gradients == [leaf.grad.tolist() for leaf in expected]


def _loss(pool: list[Tensor]) -> Tensor:
    """All of the pool, brought to the host; whole numbers in double precision, so that no order of sums matters."""
    return torch.stack([tensor.to(CPU).sum() for tensor in pool]).sum()


@pytest.mark.parametrize("first", PLACES, ids=str)
@pytest.mark.parametrize("second", PLACES, ids=str)
@pytest.mark.parametrize("scalar", [True, False])
def test_two_tensors_meet_as_torch_lets_them(first: torch.device, second: torch.device, scalar: bool) -> None:
    with simulate(2):
        a = torch.ones(2, device=first)
        b = torch.ones((), device=second) if scalar else torch.ones(2, device=second)
        legal = first == second or (scalar and second == CPU)
        if legal:
            assert (a + b).device == (b + a).device == first
        else:
            with pytest.raises(RuntimeError, match="same device"):
                a + b
            with pytest.raises(RuntimeError, match="same device"):
                b + a
