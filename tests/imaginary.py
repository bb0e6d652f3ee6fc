"""Computing on the CPU and on an imaginary device, and comparing bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from devlint.runtime.placement import device_of, tensors_in
from devlint.runtime.simulator import Simulator, simulate

CPU = torch.device("cpu")
ONE = torch.device("cuda", 1)


@pytest.fixture
def machine() -> Iterator[Simulator]:
    torch.manual_seed(0)
    with simulate(2) as simulator:
        yield simulator


def plain(value: Any) -> list[Any]:
    """Everything in `value`, tensors as (dtype, shape, values) on the host."""
    if isinstance(value, Tensor):
        value = value.detach()
        if value.is_quantized:
            value = value.int_repr()
        dense = value.to_dense() if value.layout is not torch.strided else value
        return [(str(dense.dtype), tuple(dense.shape), dense.cpu().contiguous().view(-1).tolist())]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [one for item in value for one in plain(item)]
    return [value]


def on_both(compute: Callable[[torch.device], Any]) -> tuple[list[Any], Any]:
    """What `compute` gives on the CPU, as plain values; and on an imaginary device, which must be equal to it."""
    torch.manual_seed(0)
    expected = plain(compute(CPU))
    with simulate(2):
        torch.manual_seed(0)
        result = compute(ONE)
        assert repr(plain(result)) == repr(expected)
        for tensor in tensors_in([result]):
            assert device_of(tensor) == ONE
    return expected, result
