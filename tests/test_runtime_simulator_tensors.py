"""The simulator's tensors: what a program computes on an imaginary device is what it computes on the CPU, bit for bit,
and every result is where torch would have it. Where torch refuses, so does the simulator, with the same type of error.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

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


# Factories ------------------------------------------------------------------------------------------------------------

FACTORIES: dict[str, Callable[..., Any]] = {
    "zeros": lambda **k: torch.zeros(2, 3, **k),
    "ones": lambda **k: torch.ones([2, 3], **k),
    "full": lambda **k: torch.full((2, 3), 7.5, **k),
    "arange": lambda **k: torch.arange(1, 9, 2, **k),
    "range": lambda **k: torch.linspace(0, 1, 5, **k),
    "logspace": lambda **k: torch.logspace(0, 1, 5, **k),
    "eye": lambda **k: torch.eye(3, **k),
    "rand": lambda **k: torch.rand(3, **k),
    "randn": lambda **k: torch.randn(3, dtype=torch.float64, **k),
    "randint": lambda **k: torch.randint(0, 10, (3,), **k),
    "randperm": lambda **k: torch.randperm(5, **k),
    "normal": lambda **k: torch.normal(0.0, 1.0, (3,), **k),
    "tensor": lambda **k: torch.tensor([[1, 2], [3, 4]], **k),
    "tensor of a float": lambda **k: torch.tensor(1.5, **k),
    "as_tensor of a list": lambda **k: torch.as_tensor([1.0, 2.0], **k),
    "as_tensor of an array": lambda **k: torch.as_tensor(np.arange(3), **k),
    "asarray": lambda **k: torch.asarray([1, 2], **k),
    "scalar_tensor": lambda **k: torch.scalar_tensor(3.0, **k),
    "tril_indices": lambda **k: torch.tril_indices(3, 3, **k),
    "triu_indices": lambda **k: torch.triu_indices(3, 3, **k),
    "hann_window": lambda **k: torch.hann_window(5, **k),
    "hamming_window": lambda **k: torch.hamming_window(5, **k),
    "kaiser_window": lambda **k: torch.kaiser_window(5, **k),
    "blackman_window": lambda **k: torch.blackman_window(5, **k),
    "bartlett_window": lambda **k: torch.bartlett_window(5, **k),
    "signal.windows.gaussian": lambda **k: torch.signal.windows.gaussian(5, std=1.0, **k),
    "fftfreq": lambda **k: torch.fft.fftfreq(5, **k),
    "rfftfreq": lambda **k: torch.fft.rfftfreq(5, **k),
    "zeros complex": lambda **k: torch.zeros(2, dtype=torch.complex64, **k),
    "empty of nothing": lambda **k: torch.empty(0, 3, **k),
    "empty_strided": lambda **k: torch.empty_strided((2, 2), (1, 2), **k).fill_(3),
    "empty_permuted": lambda **k: torch.empty_permuted((2, 2), (1, 0), **k).fill_(3),
    "sparse_coo_tensor": lambda **k: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), **k),
    "sparse_csr_tensor": lambda **k: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), **k),
    "nested_tensor": lambda **k: torch.nested.nested_tensor([[1.0], [2.0, 3.0]], **k).to_padded_tensor(0.0),
    "requires_grad": lambda **k: torch.ones(2, requires_grad=True, **k),
    "Linear": lambda **k: list(nn.Linear(2, 3, **k).parameters()),
    "LSTM": lambda **k: list(nn.LSTM(2, 3, **k).parameters()),
    "BatchNorm": lambda **k: list(nn.BatchNorm1d(3, **k).state_dict().values()),
}


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
def test_a_factory_makes_its_tensor_where_device_says(make: Callable[..., Any]) -> None:
    on_both(lambda device: make(device=device))


REDIRECTED = {name: make for name, make in FACTORIES.items() if name not in ("normal", "nested_tensor")}


@pytest.mark.parametrize("make", REDIRECTED.values(), ids=REDIRECTED)
def test_a_factory_follows_the_device_context(make: Callable[..., Any]) -> None:
    def compute(device: torch.device) -> Any:
        with torch.device(device):
            return make()

    on_both(compute)


def test_normal_follows_no_device_context(machine: Simulator) -> None:
    with torch.device("cuda"):
        assert torch.normal(0.0, 1.0, (3,)).device == CPU


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
def test_a_factory_without_device_stays_on_the_host(make: Callable[..., Any], machine: Simulator) -> None:
    assert all(device_of(tensor) == CPU for tensor in tensors_in([make()]))


@pytest.mark.parametrize("device", ["cuda:1", torch.device("cuda", 1), 1], ids=repr)
def test_every_spelling_of_a_device_is_understood(device: Any, machine: Simulator) -> None:
    assert torch.zeros(2, device=device).device == ONE
    assert torch.zeros(2).to(device).device == ONE
    assert torch.zeros(2).cuda(1).device == ONE
    assert nn.Linear(2, 2).to(device).weight.device == ONE


def test_torch_device_counts_imaginary_devices(machine: Simulator) -> None:
    assert torch.device(1) == ONE


def test_a_device_that_is_not_there_is_refused_as_by_torch(machine: Simulator) -> None:
    for make in (
        lambda: torch.zeros(2, device="cuda:5"),
        lambda: torch.zeros(2).to("cuda:2"),
        lambda: torch.zeros(2).cuda(7),
        lambda: nn.Linear(2, 2).to("cuda:5"),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            make()


LIKE: dict[str, Callable[..., Tensor]] = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "empty_like": lambda x, **k: torch.empty_like(x, **k).zero_(),
    "full_like": lambda x, **k: torch.full_like(x, 2.0, **k),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x, **k: torch.randint_like(x, 5, **k),
    "new_zeros": lambda x, **k: x.new_zeros(2, **k),
    "new_ones": lambda x, **k: x.new_ones((2, 2), **k),
    "new_full": lambda x, **k: x.new_full((2,), 3, **k),
    "new_empty": lambda x, **k: x.new_empty(2, **k).zero_(),
    "new_empty_strided": lambda x, **k: x.new_empty_strided((2,), (1,), **k).zero_(),
    "new_tensor": lambda x, **k: x.new_tensor([1, 2], **k),
}


@pytest.mark.parametrize("make", LIKE.values(), ids=LIKE)
def test_a_factory_with_a_prototype_follows_it_unless_told(make: Callable[..., Tensor], machine: Simulator) -> None:
    on_device = torch.ones(2, device=ONE)
    assert make(on_device).device == ONE
    assert make(on_device, device="cuda:0").device == torch.device("cuda", 0)
    assert make(on_device, device="cpu").device == CPU
    assert make(torch.ones(2), device=ONE).device == ONE
    assert make(on_device, device="meta").device.type == "meta"
    with torch.device("cuda:0"):
        assert make(on_device).device == ONE


def test_legacy_new_follows_its_tensor(machine: Simulator) -> None:
    on_device = torch.ones(2, device=ONE)
    for made in (on_device.new(3), on_device.new([1, 2]), on_device.new(), on_device.new(2, 2)):
        assert made.device == ONE
        assert made.dtype == torch.float32
    assert torch.ones(1).new(3).device == CPU


def test_legacy_types_of_cuda_make_tensors_there(machine: Simulator) -> None:
    assert torch.cuda.FloatTensor(3).device == torch.device("cuda", 0)
    assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2]
    assert torch.cuda.LongTensor([1, 2]).dtype == torch.int64
    assert torch.FloatTensor([1.0]).cuda().is_cuda
    assert isinstance(torch.ones(1, device="cuda"), torch.cuda.FloatTensor)
    assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)
    assert torch.FloatTensor([1.0]).device == CPU
    assert torch.Tensor([1.0]).device == CPU


def test_the_default_device_can_be_set_and_put_back(machine: Simulator) -> None:
    torch.set_default_device("cuda:1")
    try:
        assert torch.zeros(2).device == ONE
        assert torch.get_default_device() == ONE
        assert nn.Linear(2, 2).weight.device == ONE
        assert torch.zeros(2, device="cpu").device == CPU
        assert torch.as_tensor(np.ones(2)).device == ONE
        assert torch.from_numpy(np.ones(2)).device == CPU
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device == CPU


def test_the_default_tensor_type_can_be_one_of_cuda(machine: Simulator) -> None:
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    try:
        assert torch.zeros(2).device == torch.device("cuda", 0)
        assert torch.zeros(2).dtype == torch.float64
        assert torch.Tensor(2).is_cuda
        assert torch.tensor([1.0]).is_cuda
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.zeros(2).device == CPU


def test_memory_of_the_host_stays_there(machine: Simulator) -> None:
    with torch.device("cuda"):
        assert torch.from_numpy(np.ones(2)).device == CPU
        assert torch.frombuffer(bytearray(8), dtype=torch.float32).device == CPU
        assert torch.Tensor([1]).device == CPU


def test_tensors_of_tensors_follow_them(machine: Simulator) -> None:
    real, imaginary = torch.ones(2, device=ONE), torch.zeros(2, device=ONE)
    assert torch.complex(real, imaginary).device == ONE
    assert torch.polar(real, imaginary).device == ONE
    assert torch.normal(real, 1.0).device == ONE
    assert torch.as_tensor(real) is real
    assert torch.asarray(real) is real
    assert torch.as_tensor(real, device="cpu").device == CPU
    assert torch.asarray(real, device="cuda:0").device == torch.device("cuda", 0)
    with pytest.warns(UserWarning, match="clone"):
        assert torch.tensor(real).device == ONE
    with pytest.warns(UserWarning, match="clone"):
        assert torch.tensor(real, device="cpu").device == CPU
    assert torch.tensor([real[0], 2.0]).device == CPU
    assert torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.long, device=ONE), real).device == ONE


def test_a_context_moves_what_as_tensor_is_given(machine: Simulator) -> None:
    with torch.device(ONE):
        assert torch.as_tensor(torch.ones(2, device="cpu")).device == ONE


def test_dlpack_keeps_the_place_and_the_memory(machine: Simulator) -> None:
    source = torch.ones(2, device=ONE)
    shared = torch.from_dlpack(source)
    shared += 1
    assert shared.device == ONE
    assert source.tolist() == [2.0, 2.0]
    assert torch.utils.dlpack.from_dlpack(torch.ones(2)).device == CPU
    assert tuple(source.__dlpack_device__()) == (2, 1)
    with pytest.raises((RuntimeError, BufferError)):
        np.from_dlpack(source)


# Moves ----------------------------------------------------------------------------------------------------------------

MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "to(str)": lambda x: x.to("cuda:1"),
    "to(device)": lambda x: x.to(torch.device("cuda:1")),
    "to(device=)": lambda x: x.to(device="cuda:1"),
    "to(device, dtype)": lambda x: x.to("cuda:1", torch.float64),
    "to(device, dtype, non_blocking)": lambda x: x.to("cuda:1", torch.float64, True),
    "to(device, dtype, non_blocking, copy)": lambda x: x.to("cuda:1", None, True, True),
    "to(device=, dtype=)": lambda x: x.to(device="cuda:1", dtype=torch.float16),
    "to(dtype=, device)": lambda x: x.to(dtype=torch.float64, device=ONE, non_blocking=True),
    "to(other)": lambda x: x.to(torch.ones(1, device=ONE, dtype=torch.float64)),
    "to(other, non_blocking)": lambda x: x.to(torch.ones(1, device=ONE), True),
    "to(tensor=)": lambda x: x.to(tensor=torch.ones(1, device=ONE)),
    "to(index)": lambda x: x.to(1),
    "to(memory_format)": lambda x: x.to("cuda:1", memory_format=torch.channels_last),
    "to(non_blocking)": lambda x: x.to("cuda:1", non_blocking=True),
    "to().to(dtype)": lambda x: x.to(ONE).to(torch.float64),
    "cuda(index)": lambda x: x.cuda(1),
    "cuda(device=)": lambda x: x.cuda(device="cuda:1"),
    "cuda(index, non_blocking)": lambda x: x.cuda(1, non_blocking=True),
    "cuda(memory_format)": lambda x: x.cuda(1, memory_format=torch.channels_last),
    "type(str)": lambda x: x.to("cuda:1").type("torch.cuda.DoubleTensor"),
    "type(class)": lambda x: x.to("cuda:1").type(torch.cuda.HalfTensor),
    "type(dtype)": lambda x: x.to("cuda:1").type(torch.float64),
    "type_as": lambda x: x.type_as(torch.ones(1, device=ONE, dtype=torch.float64)),
    "between devices": lambda x: x.to("cuda:0").to("cuda:1"),
    "to in inference": lambda x: torch.inference_mode()(lambda: x.to(ONE))().clone(),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_move_gives_a_copy_there(move: Callable[[Tensor], Tensor], machine: Simulator) -> None:
    source = torch.randn(2, 3, 4, 5)
    moved = move(source)
    assert moved.device == ONE
    assert source.device == CPU
    assert torch.equal(moved.cpu(), source.to(moved.dtype))
    moved.zero_()
    assert source.abs().sum() > 0


def test_a_move_keeps_or_changes_the_memory_format(machine: Simulator) -> None:
    image = torch.randn(2, 3, 4, 5)
    last = {"memory_format": torch.channels_last}
    assert image.to(ONE, **last).is_contiguous(**last)
    assert image.contiguous(**last).to(ONE).is_contiguous(**last)
    assert image.to(ONE).contiguous(**last).device == ONE
    assert image.t_().to(ONE).stride() == image.stride() if image.dim() == 2 else True
    assert image[0, 0].t().to(ONE).stride() == image[0, 0].t().stride()


STAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "to(same)": lambda x: x.to("cuda:1"),
    "to(same, dtype)": lambda x: x.to("cuda:1", x.dtype),
    "to(dtype)": lambda x: x.to(x.dtype),
    "to()": lambda x: x.to(device=None),
    "to(other)": lambda x: x.to(torch.zeros(1, device=ONE)),
    "cuda(1)": lambda x: x.cuda(1),
    "type": lambda x: x.type("torch.cuda.FloatTensor"),
    "type_as": lambda x: x.type_as(torch.zeros(1, device=ONE)),
    "contiguous": lambda x: x.contiguous(),
}


@pytest.mark.parametrize("move", STAYS.values(), ids=STAYS)
def test_a_move_to_where_a_tensor_is_returns_it(move: Callable[[Tensor], Tensor], machine: Simulator) -> None:
    tensor = torch.ones(2, device=ONE)
    assert move(tensor) is tensor


def test_copy_true_copies_even_in_place(machine: Simulator) -> None:
    tensor = torch.ones(2, device=ONE)
    assert tensor.to(ONE, copy=True) is not tensor
    assert tensor.to(ONE, copy=True).device == ONE
    assert tensor.cpu().cpu().device == CPU
    host = torch.ones(2)
    assert host.cpu() is host
    assert host.to("cpu") is host


def test_an_index_alone_is_the_current_device(machine: Simulator) -> None:
    machine.machine.current = 1
    assert torch.zeros(2, device="cuda").device == ONE
    assert torch.zeros(2).cuda().device == ONE
    assert torch.zeros(2, device="cuda:0").cuda().device == ONE
    machine.machine.current = 0


def test_the_gradient_travels_back_with_a_move(machine: Simulator) -> None:
    leaf = torch.randn(3, requires_grad=True)
    weight = torch.randn(3, device=ONE, requires_grad=True)
    seen: list[torch.device] = []
    moved = leaf.to(ONE)
    moved.register_hook(lambda gradient: seen.append(gradient.device))
    loss = (moved * weight).sum().cpu() + (leaf * 2).sum()
    assert loss.device == CPU
    loss.backward()
    assert leaf.grad is not None and weight.grad is not None
    assert leaf.grad.device == CPU
    assert weight.grad.device == ONE
    assert seen == [ONE]
    assert torch.equal(leaf.grad, weight.detach().cpu() + 2)
    assert type(moved.grad_fn).__name__ == "ToCopyBackward0"


def test_the_second_derivative_travels_too(machine: Simulator) -> None:
    leaf = torch.tensor([2.0, 3.0], requires_grad=True)
    (first,) = torch.autograd.grad((leaf.to(ONE) ** 3).sum(), leaf, create_graph=True)
    assert first.device == CPU
    first.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.device == CPU
    assert leaf.grad.tolist() == [12.0, 18.0]


def test_data_may_be_replaced_across_devices(machine: Simulator) -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.data = torch.zeros(2, device=ONE)
    assert parameter.device == ONE
    assert parameter.data.device == ONE
    assert parameter.detach().device == ONE
    parameter.data = parameter.data.cpu()
    assert parameter.device == CPU


def test_set_shares_memory_and_place(machine: Simulator) -> None:
    source = torch.arange(4.0, device=ONE)
    target = torch.empty(0, device=ONE)
    target.set_(source)
    assert target.device == ONE
    assert target.data_ptr() == source.data_ptr()
    target.set_(source.untyped_storage(), 1, (2,), (1,))
    assert target.tolist() == [1.0, 2.0]
    target.resize_(3, 3)
    assert target.device == ONE
    with pytest.raises(RuntimeError):
        torch.empty(0).set_(source)


VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "view": lambda x: x.view(-1),
    "slice": lambda x: x[1:, ::2],
    "transpose": lambda x: x.t(),
    "expand": lambda x: x[None].expand(3, -1, -1),
    "unbind": lambda x: x.unbind(0),
    "split": lambda x: x.split(2, 1),
    "chunk": lambda x: x.chunk(2),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 1)),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "view as real": lambda x: torch.view_as_real(x.to(torch.complex64)),
    "view dtype": lambda x: x.view(torch.int32),
    "mT": lambda x: x.mT,
    "iteration": lambda x: list(x),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_view_is_where_its_memory_is(view: Callable[[Tensor], Any]) -> None:
    on_both(lambda device: view(torch.arange(12.0, device=device).view(3, 4)))


# Meetings that are legal, and that are not ----------------------------------------------------------------------------

LEGAL: dict[str, Callable[[Tensor, Tensor], Any]] = {  # given a device tensor of 2x3 and a host scalar
    "host scalar first": lambda x, s: s * x,
    "host scalar last": lambda x, s: x + s,
    "comparison": lambda x, s: x > s,
    "power": lambda x, s: x**s,
    "division": lambda x, s: x / s,
    "in-place": lambda x, s: x.mul_(s),
    "where": lambda x, s: torch.where(x > 0, x, s),
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s),
    "maximum": lambda x, s: torch.maximum(x, s),
    "addcmul": lambda x, s: torch.addcmul(x, x, s),
    "lerp weight": lambda x, s: torch.lerp(x, x * 2, s),
    "item assignment": lambda x, s: _assigned(x, 0, s),
    "mask assignment": lambda x, s: _assigned(x, x > 0, s),
    "slice assignment of a host tensor": lambda x, s: _assigned(x, slice(0, 1), torch.ones(1, 3)),
    "host index": lambda x, s: x[torch.tensor([1, 0])],
    "host mask": lambda x, s: x[torch.tensor([True, False])],
    "host index in one dimension": lambda x, s: x[:, torch.tensor([2, 0])],
    "list index": lambda x, s: x[[1, 0]],
    "numpy index": lambda x, s: x[np.array([1, 0])],
    "device index": lambda x, s: x[torch.tensor([1], device=x.device)],
    "host and device indices": lambda x, s: x[torch.tensor([1]), torch.tensor([1], device=x.device)],
    "host scalar index": lambda x, s: x[torch.tensor(1)],
    "host index assignment": lambda x, s: _assigned(x, torch.tensor([0]), 3.0),
    "host index and device value": lambda x, s: _assigned(x, torch.tensor([0]), torch.ones(1, 3, device=x.device)),
    "copy_ from the host": lambda x, s: x.copy_(torch.full((2, 3), 4.0)),
    "copy_ to itself": lambda x, s: x.copy_(x.clone()),
    "fill_": lambda x, s: x.fill_(s),
    "full_like": lambda x, s: torch.full_like(x, s.item()),
    "foreach": lambda x, s: torch._foreach_mul([x, x + 1], s),
}


def _assigned(tensor: Tensor, index: Any, value: Any) -> Tensor:
    tensor[index] = value
    return tensor


@pytest.mark.parametrize("mix", LEGAL.values(), ids=LEGAL)
def test_a_legal_mix_is_silent_and_right(mix: Callable[[Tensor, Tensor], Any]) -> None:
    on_both(lambda device: mix(torch.tensor([[1.0, -2.0, 3.0], [0.5, 2.0, -1.0]], device=device), torch.tensor(2.0)))


ILLEGAL: dict[str, Callable[[Tensor, Tensor], Any]] = {  # given a device tensor and a host tensor, both 2x2
    "add": lambda x, h: x + h,
    "radd": lambda x, h: h + x,
    "matmul": lambda x, h: x @ h,
    "cat": lambda x, h: torch.cat([x, h]),
    "stack": lambda x, h: torch.stack([x, h]),
    "where": lambda x, h: torch.where(x > 0, x, h),
    "mask": lambda x, h: x.masked_fill(h > 0, 0.0),
    "linear": lambda x, h: F.linear(x, h),
    "mse_loss": lambda x, h: F.mse_loss(x, h),
    "cross_entropy": lambda x, h: F.cross_entropy(x, torch.tensor([0, 1])),
    "cross_entropy weight": lambda x, h: F.cross_entropy(x, torch.tensor([0, 1], device=x.device), weight=h[0]),
    "embedding": lambda x, h: F.embedding(torch.tensor([0, 1]), x),
    "layer_norm": lambda x, h: F.layer_norm(x, (2,), h[0]),
    "batch_norm": lambda x, h: F.batch_norm(x, h[0], h[1]),
    "in-place": lambda x, h: x.add_(h),
    "in-place on the host": lambda x, h: h.add_(x),
    "out": lambda x, h: torch.add(x, x, out=h),
    "gather": lambda x, h: x.gather(0, torch.zeros(2, 2, dtype=torch.long)),
    "index_select": lambda x, h: x.index_select(0, torch.tensor([0])),
    "scatter": lambda x, h: x.scatter(0, torch.zeros(2, 2, dtype=torch.long), 1.0),
    "device index into a host tensor": lambda x, h: h[torch.tensor([0], device=x.device)],
    "host value assigned at an index": lambda x, h: _assigned(x, torch.tensor([0]), h[:1]),
    "device scalar with host tensor": lambda x, h: h + x.sum(),
    "other device": lambda x, h: x + torch.ones(2, 2, device="cuda:0"),
    "scalar of another device": lambda x, h: x + torch.ones((), device="cuda:0"),
    "einsum": lambda x, h: torch.einsum("ij,jk->ik", x, h),
    "bmm": lambda x, h: torch.bmm(x[None], h[None]),
    "equal": lambda x, h: torch.equal(x, h),
    "allclose": lambda x, h: torch.allclose(x, h),
    "conv": lambda x, h: F.conv2d(x[None, None], h[None, None]),
    "lstm": lambda x, h: nn.LSTM(2, 2)(x),
    "module": lambda x, h: nn.Linear(2, 2)(x),
    "attention": lambda x, h: F.scaled_dot_product_attention(x[None], h[None], h[None]),
    "foreach": lambda x, h: torch._foreach_add([x], [h]),
    "inference": lambda x, h: torch.inference_mode()(lambda: F.linear(x, h))(),
    "to_padded": lambda x, h: torch.nested.as_nested_tensor([x, h]),
}


@pytest.mark.parametrize("mix", ILLEGAL.values(), ids=ILLEGAL)
def test_an_illegal_mix_is_refused_as_by_torch(mix: Callable[[Tensor, Tensor], Any], machine: Simulator) -> None:
    with pytest.raises(RuntimeError, match=r"device|type|cpu"):
        mix(torch.ones(2, 2, device=ONE), torch.ones(2, 2))


# Autograd -------------------------------------------------------------------------------------------------------------


def test_a_host_scalar_gets_its_gradient_on_the_host(machine: Simulator) -> None:
    scale = torch.tensor(3.0, requires_grad=True)
    values = torch.tensor([1.0, 2.0], device=ONE, requires_grad=True)
    for _ in range(2):
        ((values * scale).sum() + scale.sum() * 2).backward()
    assert scale.grad is not None and values.grad is not None
    assert scale.grad.device == CPU
    assert scale.grad.item() == 10.0
    assert values.grad.device == ONE
    (again,) = torch.autograd.grad((values * scale).sum(), scale)
    assert again.device == CPU


def test_what_a_host_scalar_was_computed_from_stays_on_the_host(machine: Simulator) -> None:
    vector = torch.tensor([1.0, 2.0], requires_grad=True)
    weight = torch.tensor([3.0, 4.0])
    inner = (vector * weight).sum()
    seen: list[torch.device] = []
    inner.register_hook(lambda gradient: seen.append(gradient.device))
    (torch.ones(3, device=ONE) * inner).sum().backward()
    assert vector.grad is not None
    assert vector.grad.device == CPU
    assert vector.grad.tolist() == [9.0, 12.0]
    assert seen == [CPU]


def test_hooks_see_gradients_where_they_are(machine: Simulator) -> None:
    seen: list[tuple[str, torch.device]] = []
    layer = nn.Linear(2, 2).to(ONE)
    layer.weight.register_hook(lambda gradient: seen.append(("leaf", gradient.device)))
    layer.weight.register_post_accumulate_grad_hook(lambda leaf: seen.append(("accumulated", leaf.grad.device)))
    layer.register_forward_hook(lambda module, args, result: seen.append(("forward", result.device)))
    layer.register_full_backward_hook(lambda module, inputs, outputs: seen.append(("backward", outputs[0].device)))
    inner = layer(torch.ones(1, 2, device=ONE, requires_grad=True))
    inner.retain_grad()
    inner.sum().backward()
    assert {name for name, _ in seen} == {"leaf", "accumulated", "forward", "backward"}
    assert {place for _, place in seen} == {ONE}
    assert inner.grad.device == ONE


class Scaled(torch.autograd.Function):
    """Multiplies by 2, with memory of its own in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        factor = torch.full((1,), 2.0, device=x.device)
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (factor,) = ctx.saved_tensors
        return gradient * factor + torch.zeros(gradient.shape, device=gradient.device)


class HostGradient(torch.autograd.Function):
    """A backward pass that forgets the device."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.full(gradient.shape, 2.0)


class SecondUnused(torch.autograd.Function):
    """Two results, of which autograd gives zeros for the one nobody used."""

    seen: torch.device | None = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        SecondUnused.seen = second.device
        return first * 2 + second * 3


def test_a_custom_function_runs_forward_and_backward() -> None:
    def compute(device: torch.device) -> Any:
        x = torch.arange(3.0, device=device, requires_grad=True)
        y = Scaled.apply(x)
        y.sum().backward()
        return y, x.grad

    on_both(compute)


def test_a_custom_function_that_returns_a_gradient_elsewhere_is_refused(machine: Simulator) -> None:
    x = torch.ones(3, device=ONE, requires_grad=True)
    with pytest.raises(RuntimeError, match="HostGradientBackward returned an invalid gradient at index 0 - expected"):
        HostGradient.apply(x).sum().backward()
    scalar = torch.ones((), device=ONE, requires_grad=True)
    HostGradient.apply(scalar).backward()  # zero-dimensional gradients are moved
    assert scalar.grad is not None
    assert scalar.grad.device == ONE


def test_zeros_made_for_an_unused_result_are_where_the_result_was(machine: Simulator) -> None:
    x = torch.ones(3, device=ONE, requires_grad=True)
    SecondUnused.apply(x)[0].sum().backward()
    assert SecondUnused.seen == ONE
    assert x.grad is not None
    assert x.grad.device == ONE


def test_gradients_of_another_device_are_refused(machine: Simulator) -> None:
    leaf = torch.ones(2, device=ONE, requires_grad=True)
    with pytest.raises(RuntimeError, match="device"):
        leaf.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="device"):
        leaf.grad = torch.ones(2, device="cuda:0")
    leaf.grad = torch.ones(2, device=ONE)
    leaf.grad = None
    with pytest.raises(RuntimeError, match="invalid gradient at index 0 - expected device cuda:1 but got cpu"):
        (leaf * 2).backward(torch.ones(2))
    (leaf * 2).backward(torch.ones(2, device=ONE))


def test_a_gradient_that_nothing_computed_is_where_its_tensor_is(machine: Simulator) -> None:
    leaf = torch.ones(2, device=ONE, requires_grad=True)
    (zeros,) = torch.autograd.grad(
        torch.ones((), device=ONE, requires_grad=True) * 1, leaf, allow_unused=True, materialize_grads=True
    )
    assert zeros.device == ONE
    first, _ = torch.stack([leaf, leaf * 2]).unbind(0)
    first.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.device == ONE


AUTOGRAD: dict[str, Callable[[torch.device], Any]] = {}


def autograd(case: Callable[[torch.device], Any]) -> Callable[[torch.device], Any]:
    AUTOGRAD[case.__name__] = case
    return case


@autograd
def checkpoint_without_reentrance(device: torch.device) -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)).to(device)
    checkpoint(net, torch.ones(3, 4, device=device, requires_grad=True), use_reentrant=False).sum().backward()
    return [parameter.grad for parameter in net.parameters()]


@autograd
def checkpoint_with_reentrance(device: torch.device) -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)).to(device)
    checkpoint(net, torch.ones(3, 4, device=device, requires_grad=True), use_reentrant=True).sum().backward()
    return [parameter.grad for parameter in net.parameters()]


@autograd
def double_backward(device: torch.device) -> Any:
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (first**2).sum().backward()
    return first, x.grad


@autograd
def gradient_penalty(device: torch.device) -> Any:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
    x = torch.ones(2, 3, device=device, requires_grad=True)
    (inner,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    (inner.norm(dim=1) - 1).pow(2).mean().backward()
    return x.grad, [parameter.grad for parameter in net.parameters()]


@autograd
def jacobian(device: torch.device) -> Any:
    return torch.autograd.functional.jacobian(lambda x: x**2, torch.arange(3.0, device=device))


@autograd
def hessian(device: torch.device) -> Any:
    return torch.autograd.functional.hessian(lambda x: (x**3).sum(), torch.arange(3.0, device=device))


@autograd
def func_grad(device: torch.device) -> Any:
    return torch.func.grad(lambda x: (x.sin() * torch.ones(3, device=x.device)).sum())(torch.arange(3.0, device=device))


@autograd
def vmap(device: torch.device) -> Any:
    return torch.vmap(lambda x: x * torch.arange(2.0, device=x.device))(torch.ones(3, 2, device=device))


@autograd
def jacrev_and_jacfwd(device: torch.device) -> Any:
    x = torch.arange(3.0, device=device)
    return torch.func.jacrev(torch.sin)(x), torch.func.jacfwd(torch.cos)(x), torch.func.hessian(lambda y: y.prod())(x)


@autograd
def functional_call(device: torch.device) -> Any:
    net = nn.Linear(2, 2).to(device)
    parameters = {name: parameter.detach() * 2 for name, parameter in net.named_parameters()}
    per_sample = torch.func.grad(lambda p, x: torch.func.functional_call(net, p, (x,)).sum())
    return torch.vmap(per_sample, in_dims=(None, 0))(parameters, torch.ones(3, 2, device=device))


@autograd
def forward_mode(device: torch.device) -> Any:
    return torch.func.jvp(torch.sin, (torch.ones(2, device=device),), (torch.ones(2, device=device),))


@autograd
def saved_tensor_hooks(device: torch.device) -> Any:
    x = torch.arange(3.0, device=device, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = x.exp()
    y.sum().backward()
    return x.grad


@autograd
def accumulated_in_the_tensor(device: torch.device) -> Any:
    x = torch.arange(3.0, device=device, requires_grad=True)
    for _ in range(3):
        (x[1:] ** 2).sum().backward()
    return x.grad


@autograd
def assigned_in_place(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device, requires_grad=True)
    host = torch.ones(2, requires_grad=True)
    y = torch.zeros(4, device=device)
    y[:2] = host
    y[2:].copy_(x[:2])
    (y * 2).sum().backward()
    assert host.grad is not None and device_of(host.grad) == CPU
    return x.grad, y


@autograd
def no_grad_and_inference(device: torch.device) -> Any:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.GELU()).to(device).eval()
    x = torch.ones(2, 2, device=device)
    with torch.no_grad():
        first = net(x)
    with torch.inference_mode():
        second = net(x.reshape(2, 2)).flatten().to(torch.float64)
    return first, second


@pytest.mark.parametrize("case", AUTOGRAD.values(), ids=AUTOGRAD)
@pytest.mark.filterwarnings("ignore")
def test_autograd_computes_the_same_there(case: Callable[[torch.device], Any]) -> None:
    on_both(case)


# Functions and modules ------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {  # of a 2x4x6x6 tensor
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "interpolate nearest": lambda x: F.interpolate(x, size=(3, 4)),
    "grid_sample": lambda x: F.grid_sample(
        x, F.affine_grid(x.new_ones(2, 2, 3), [2, 4, 6, 6], False), align_corners=False
    ),
    "pad": lambda x: F.pad(x, (1, 1, 2, 2), mode="reflect"),
    "unfold and fold": lambda x: F.fold(F.unfold(x, 3), (6, 6), 3),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "max_pool with indices": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool2d(x, 2),
    "fractional_max_pool": lambda x: F.fractional_max_pool2d(x, 2, output_ratio=(0.5, 0.5)),
    "lp_pool": lambda x: F.lp_pool2d(x, 2.0, 2),
    "dropout": lambda x: F.dropout(x),
    "dropout2d": lambda x: F.dropout2d(x),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x[0, 0], hard=True),
    "one_hot": lambda x: F.one_hot(x[0, 0, 0].long().abs(), 5),
    "embedding_bag": lambda x: F.embedding_bag(
        x.new_tensor([0, 1, 1], dtype=torch.long), x[0, 0], x.new_tensor([0, 2], dtype=torch.long)
    ),
    "embedding with max_norm": lambda x: F.embedding(
        x.new_tensor([0, 1], dtype=torch.long), x[0, 0].clone(), max_norm=1.0
    ),
    "normalize": lambda x: F.normalize(x),
    "group_norm": lambda x: F.group_norm(x, 2),
    "instance_norm": lambda x: F.instance_norm(x),
    "local_response_norm": lambda x: F.local_response_norm(x, 2),
    "rms_norm": lambda x: F.rms_norm(x, (6,)),
    "attention with a mask": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=x.new_ones(6, 6).tril().bool()
    ),
    "causal attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x + 1),
    "pairwise_distance": lambda x: F.pairwise_distance(x, x + 1),
    "pdist": lambda x: F.pdist(x[0, 0]),
    "cdist": lambda x: torch.cdist(x, x),
    "ctc_loss": lambda x: F.ctc_loss(
        x[0].log_softmax(-1), x.new_ones(6, 1, dtype=torch.long), torch.full((6,), 4), torch.full((6,), 1)
    ),
    "triplet with a distance": lambda x: F.triplet_margin_with_distance_loss(
        x[0, 0],
        x[0, 1],
        x[0, 2],
        distance_function=lambda a, b: (a - b).abs().sum(-1) + torch.zeros(6, device=a.device),
    ),
    "kl_div": lambda x: F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
    "gaussian_nll": lambda x: F.gaussian_nll_loss(x, x + 1, x.abs() + 1),
    "multi_margin": lambda x: F.multi_margin_loss(x[0, 0], x.new_zeros(6, dtype=torch.long)),
    "bce_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid(), pos_weight=torch.tensor(2.0)),
    "stft": lambda x: torch.stft(
        x.flatten()[:64], 16, window=torch.hann_window(16, device=x.device), return_complex=True
    ),
    "stft without a window": lambda x: torch.stft(x.flatten()[:64], 16, return_complex=True),
    "istft": lambda x: torch.istft(
        torch.stft(x.flatten()[:64], 16, window=x.new_ones(16), return_complex=True), 16, window=x.new_ones(16)
    ),
    "fft": lambda x: torch.fft.rfft2(x),
    "einsum": lambda x: torch.einsum("bchw,bchv->bwv", x, x),
    "tensordot": lambda x: torch.tensordot(x, x, dims=([1, 2], [1, 2])),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0, 0], x[0, 0, 1], indexing="ij"),
    "cartesian_prod": lambda x: torch.cartesian_prod(x[0, 0, 0], x[0, 0, 1]),
    "block_diag": lambda x: torch.block_diag(x[0, 0], x[0, 1]),
    "unique": lambda x: torch.unique(x.round(), return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive(x.round()),
    "nonzero": lambda x: (x > 0).nonzero(),
    "nonzero as tuple": lambda x: (x > 0).nonzero(as_tuple=True),
    "where of one": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "mask index": lambda x: x[x > 0],
    "sort": lambda x: x.sort(),
    "topk": lambda x: x.topk(2),
    "multinomial": lambda x: x[0, 0].softmax(-1).multinomial(3),
    "bernoulli": lambda x: x.sigmoid().bernoulli(),
    "bincount": lambda x: x.abs().long().flatten().bincount(),
    "histc": lambda x: x.histc(5),
    "bucketize": lambda x: torch.bucketize(x, x.new_tensor([-1.0, 0.0, 1.0])),
    "repeat_interleave": lambda x: x[0, 0].repeat_interleave(x.new_tensor([1, 2, 0, 1, 1, 1], dtype=torch.long), 0),
    "tensor_split": lambda x: x.tensor_split(torch.tensor([1, 3]), dim=2),
    "norm": lambda x: (x.norm(), torch.norm(x, dim=1), torch.linalg.vector_norm(x)),
    "linalg.solve": lambda x: torch.linalg.solve(x @ x.mT + torch.eye(6, device=x.device), x),
    "linalg.inv": lambda x: torch.linalg.inv(x @ x.mT + torch.eye(6, device=x.device)),
    "linalg.qr": lambda x: torch.linalg.qr(x).R.abs(),
    "linalg.matrix_power": lambda x: torch.linalg.matrix_power(x, 3),
    "linalg.multi_dot": lambda x: torch.linalg.multi_dot([x[0, 0], x[0, 1], x[0, 2]]),
    "lu": lambda x: torch.linalg.lu(x),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(6, device=x.device)),
    "matrix_exp": lambda x: torch.matrix_exp(x * 0.1),
    "trapezoid": lambda x: torch.trapezoid(x),
    "cov": lambda x: (x[0, 0].cov(), x[0, 0].corrcoef()),
    "quantile": lambda x: x.quantile(torch.tensor([0.25, 0.5], device=x.device)),
    "searchsorted": lambda x: torch.searchsorted(x[0, 0].sort().values, x[0, 0]),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(0, x.abs().long().clamp(max=1), x),
    "index_add": lambda x: x.index_add(0, x.new_tensor([0, 1], dtype=torch.long), x),
    "cumulative": lambda x: (x.cumsum(0), x.cummax(1), x.logcumsumexp(2), x.diff()),
    "reductions": lambda x: (
        x.sum(),
        x.mean(1),
        x.var(),
        x.std(0),
        x.median(),
        x.max(1),
        x.aminmax(),
        x.all(),
        x.any(),
    ),
    "complex": lambda x: torch.view_as_complex(x.view(2, 4, 6, 3, 2).contiguous()).conj().angle(),
    "roll and flip": lambda x: (x.roll(1, 2), x.flip(3), x.rot90(1, (2, 3))),
    "tril": lambda x: (x.tril(), x.triu(1), torch.diag_embed(x[0])),
    "combinations": lambda x: torch.combinations(x[0, 0, 0]),
    "vander": lambda x: torch.vander(x[0, 0, 0]),
    "lobpcg": lambda x: torch.lobpcg((x @ x.mT)[0, 0] + torch.eye(6, device=x.device), k=1, niter=2)[0].shape[0],
    "special": lambda x: (torch.special.erf(x), torch.special.i0(x), torch.special.logit(x.sigmoid())),
    "kthvalue": lambda x: x.kthvalue(2),
    "isin": lambda x: torch.isin(x.long(), x.new_tensor([0, 1], dtype=torch.long)),
    "quantised": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "quantised per channel": lambda x: torch.quantize_per_channel(
        x, x.new_ones(4), x.new_zeros(4), 1, torch.qint8
    ).dequantize(),
    "fake_quantize": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
    "sparse": lambda x: torch.sparse.mm(x[0, 0].to_sparse(), x[0, 1]),
    "sparse sum": lambda x: (x[0, 0].to_sparse() + x[0, 1].to_sparse()).coalesce(),
    "sparse csr": lambda x: x[0, 0].to_sparse_csr() @ x[0, 1],
    "nested": lambda x: torch.nested.nested_tensor([x[0, 0], x[0, 1, :3]]).to_padded_tensor(0.0),
    "nested jagged": lambda x: (
        torch.nested.nested_tensor([x[0, 0], x[0, 1, :3]], layout=torch.jagged) * 2
    ).to_padded_tensor(0.0),
    "init": lambda x: nn.init.orthogonal_(nn.init.kaiming_normal_(nn.init.trunc_normal_(torch.empty_like(x)))),
    "in-place chain": lambda x: x.clone().mul_(2).add_(1).clamp_(-1, 1).relu_().sqrt_(),
    "out": lambda x: torch.add(x, x, out=torch.empty(0, device=x.device)),
    "python numbers": lambda x: [
        x.sum().item(),
        float(x.mean()),
        int(x.max()),
        bool((x > 0).any()),
        x[0, 0, 0].tolist(),
        len(x),
    ],
    "apply_along": lambda x: torch.stack([row * 2 for row in x]),
    "batch of mixed lists": lambda x: torch.cat([x[0], x[1]]).chunk(2),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.filterwarnings("ignore")
def test_a_function_computes_the_same_there(function: Callable[[Tensor], Any]) -> None:
    on_both(lambda device: function(torch.randn(2, 4, 6, 6).to(device)))


CLOSE: dict[str, Callable[[Tensor], Any]] = {  # torch takes another path of LAPACK under any dispatch mode
    "svd": lambda x: torch.linalg.svdvals(x),
    "eigh": lambda x: torch.linalg.eigvalsh(x @ x.mT),
    "lstsq": lambda x: torch.linalg.lstsq(x[0], x[1]).solution,
}


@pytest.mark.parametrize("function", CLOSE.values(), ids=CLOSE)
def test_a_decomposition_computes_nearly_the_same_there(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    expected = function(x)
    with simulate(2):
        result = function(x.to(ONE))
        assert result.device == ONE
        assert torch.allclose(result.cpu(), expected, rtol=1e-3, atol=1e-3)


MODULES: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "cnn": lambda: (
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
        ),
        (torch.randn(2, 1, 6, 6),),
    ),
    "transposed convolution": lambda: (nn.ConvTranspose2d(2, 3, 3, stride=2), (torch.randn(1, 2, 4, 4),)),
    "lstm": lambda: (
        nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2),
        (torch.randn(2, 5, 3),),
    ),
    "gru with a state": lambda: (nn.GRU(3, 4), (torch.randn(5, 2, 3), torch.randn(1, 2, 4))),
    "rnn": lambda: (nn.RNN(3, 4), (torch.randn(5, 2, 3),)),
    "lstm cell": lambda: (nn.LSTMCell(3, 4), (torch.randn(2, 3),)),
    "attention": lambda: (
        nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True),
        (torch.randn(3, 2, 4),) * 3,
    ),
    "encoder": lambda: (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (torch.randn(2, 3, 4),)),
    "transformer": lambda: (nn.Transformer(4, 2, 1, 1, 8), (torch.randn(3, 2, 4), torch.randn(2, 2, 4))),
    "embedding": lambda: (nn.Embedding(5, 3, padding_idx=0), (torch.tensor([[0, 1], [4, 2]]),)),
    "sparse embedding": lambda: (nn.Embedding(5, 3, sparse=True), (torch.tensor([[0, 1], [4, 2]]),)),
    "embedding bag": lambda: (nn.EmbeddingBag(5, 3, mode="mean"), (torch.tensor([[0, 1], [4, 2]]),)),
    "bilinear": lambda: (nn.Bilinear(2, 3, 4), (torch.randn(2, 2), torch.randn(2, 3))),
    "norms": lambda: (
        nn.Sequential(nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.SyncBatchNorm(4).eval()),
        (torch.randn(2, 4, 4),),
    ),
    "activations": lambda: (
        nn.Sequential(nn.PReLU(), nn.GLU(), nn.Hardswish(), nn.Softplus(), nn.RReLU()),
        (torch.randn(2, 4),),
    ),
    "upsampling": lambda: (nn.Upsample(scale_factor=2, mode="bicubic"), (torch.randn(1, 1, 3, 3, requires_grad=True),)),
    "adaptive softmax": lambda: (
        nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2, 4]),
        (torch.randn(3, 4), torch.tensor([0, 3, 5])),
    ),
    "weight norm": lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), (torch.randn(2, 3),)),
    "old weight norm": lambda: (nn.utils.weight_norm(nn.Linear(3, 2)), (torch.randn(2, 3),)),
    "spectral norm": lambda: (nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)), (torch.randn(2, 3),)),
    "old spectral norm": lambda: (nn.utils.spectral_norm(nn.Linear(3, 2)), (torch.randn(2, 3),)),
    "orthogonal": lambda: (nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)), (torch.randn(2, 3),)),
    "pruned": lambda: (_pruned(), (torch.randn(2, 3),)),
}


def _pruned() -> nn.Module:
    layer = nn.Linear(3, 2)
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
@pytest.mark.filterwarnings("ignore")
def test_a_module_computes_the_same_there(make: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]) -> None:
    def compute(device: torch.device) -> Any:
        module, inputs = make()
        module = module.to(device)
        moved = {id(one): one.to(device) for one in inputs}  # one tensor given twice stays one
        result = module(*(moved[id(one)] for one in inputs))
        tensors = [tensor for tensor in tensors_in([result]) if tensor.requires_grad]
        sum(tensor.sum() for tensor in tensors).backward()
        return tensors, [parameter.grad for parameter in module.parameters()], list(module.buffers())

    on_both(compute)


@pytest.mark.filterwarnings("ignore")
def test_a_transformer_takes_masks_made_anywhere_it_says() -> None:
    def compute(device: torch.device) -> Any:
        layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2).to(device)
        x = torch.randn(3, 2, 4).to(device)
        mask = nn.Transformer.generate_square_subsequent_mask(3, device=device)
        padding = torch.tensor([[False, False, True], [False, True, True]], device=device)
        trained = layer(x, mask=mask, src_key_padding_mask=padding)
        trained.sum().backward()
        with torch.no_grad():
            return trained, layer.eval()(x, mask=mask, src_key_padding_mask=padding)

    on_both(compute)


def test_packed_sequences_keep_their_lengths_on_the_host() -> None:
    def compute(device: torch.device) -> Any:
        batch, lengths = torch.randn(3, 4, 2).to(device).requires_grad_(), torch.tensor([2, 4, 1])
        packed = nn.utils.rnn.pack_padded_sequence(batch, lengths, batch_first=True, enforce_sorted=False)
        assert device_of(packed.batch_sizes) == CPU
        out, (hidden, _) = nn.LSTM(2, 3, batch_first=True).to(device)(packed)
        assert device_of(out.batch_sizes) == CPU
        padded, back = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        assert device_of(back) == CPU
        assert back.tolist() == [2, 4, 1]
        (padded.sum() + hidden.sum()).backward()
        return padded, hidden, batch.grad

    on_both(compute)


def test_lengths_on_a_device_are_refused(machine: Simulator) -> None:
    with pytest.raises(RuntimeError, match="lengths"):
        nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 1, device=ONE), torch.tensor([3, 2], device=ONE))


def test_modules_move_whole_and_in_place(machine: Simulator) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight = net[0].weight
    for moved in (net.to("cuda:1"), net.cuda(1), net.to(torch.ones(1, device=ONE)), net.to(1)):
        assert moved is net
        assert net[0].weight is weight
        assert {tensor.device for tensor in net.state_dict().values()} == {ONE}
    assert net.half()[0].weight.device == ONE
    assert net.to(torch.float64)[0].weight.dtype == torch.float64
    assert net.to("cuda:0", torch.float32, non_blocking=True)[0].weight.device == torch.device("cuda", 0)
    assert net.cpu()[0].weight.device == CPU
    assert net.to(ONE, memory_format=torch.channels_last)[0].weight.device == ONE
    assert net[0].weight is weight


def test_gradients_move_with_their_parameters(machine: Simulator) -> None:
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    layer.to(ONE)
    assert layer.weight.grad is not None
    assert layer.weight.grad.device == ONE


def test_modules_of_the_meta_device_are_made_empty_elsewhere(machine: Simulator) -> None:
    with torch.device("meta"):
        layer = nn.Linear(2, 2)
    with pytest.raises(NotImplementedError, match="meta"):
        layer.to(ONE)
    assert layer.to_empty(device=ONE).weight.device == ONE
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        torch.ones(2, device="meta").to("cuda")
    assert torch.ones(2, device=ONE).to("meta").device.type == "meta"


@pytest.mark.filterwarnings("ignore:Lazy")
def test_lazy_modules_are_made_where_their_input_is() -> None:
    def compute(device: torch.device) -> Any:
        layer = nn.LazyLinear(2).to(device)
        return layer(torch.ones(1, 3, device=device)), layer.weight

    on_both(compute)


def test_weights_can_be_shared_and_swapped(machine: Simulator) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    nn.ModuleList([first, second]).to(ONE)
    assert second.weight is first.weight
    assert second.weight.device == ONE
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        assert nn.Linear(2, 2).to(ONE).weight.device == ONE
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


# Optimizers -----------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.1),
    "SGD without foreach": lambda p: torch.optim.SGD(p, 0.1, foreach=False),
    "Adam without foreach": lambda p: torch.optim.Adam(p, 0.1, foreach=False),
    "Adam foreach": lambda p: torch.optim.Adam(p, 0.1, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, 0.1, fused=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    "SGD fused": lambda p: torch.optim.SGD(p, 0.1, fused=True),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, 0.1, fused=True),
    "Adam of a tensor learning rate": lambda p: torch.optim.Adam(p, torch.tensor(0.1), foreach=False),
    "maximize": lambda p: torch.optim.Adam(p, 0.1, maximize=True),
}


def _trained(make: Callable[[Any], torch.optim.Optimizer], device: torch.device) -> Any:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
    optimizer = make(net.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    data = torch.randn(5, 3)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(data.to(device)).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    state = [
        value
        for entry in optimizer.state.values()
        for name, value in entry.items()
        if name not in ("step", "mu_product")
    ]
    return losses, list(net.parameters()), state


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_trains_to_the_same_weights_there(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    expected = _trained(make, CPU)
    with simulate(2):
        torch.manual_seed(0)
        losses, weights, state = _trained(make, ONE)
        for tensor in tensors_in([weights, state]):
            assert device_of(tensor) == ONE
        for one, other in zip(weights, expected[1], strict=True):
            assert torch.allclose(one.cpu(), other, rtol=1e-5, atol=1e-7)
    assert losses == pytest.approx(expected[0], rel=1e-5)


def test_step_counters_are_the_hosts_unless_fused_or_capturable(machine: Simulator) -> None:
    for arguments, place in (({}, CPU), ({"fused": True}, ONE), ({"capturable": True}, ONE), ({"foreach": False}, CPU)):
        weight = nn.Parameter(torch.ones(2, device=ONE))
        optimizer = torch.optim.Adam([weight], 0.1, **arguments)
        for _ in range(2):
            weight.grad = torch.ones(2, device=ONE)
            optimizer.step()
        assert optimizer.state[weight]["step"].device == place
        assert optimizer.state[weight]["exp_avg"].device == ONE
        assert optimizer.state[weight]["step"].item() == 2


def test_one_optimizer_serves_parameters_on_several_devices(machine: Simulator) -> None:
    places = [CPU, torch.device("cuda", 0), ONE]
    weights = [nn.Parameter(torch.ones(2, device=place)) for place in places]
    optimizer = torch.optim.Adam(weights, 0.1, foreach=True)
    for weight in weights:
        weight.grad = torch.full_like(weight, 2.0)
    total = nn.utils.clip_grad_norm_(weights, 1.0)
    assert total.device == CPU
    optimizer.step()
    assert [weight.device for weight in weights] == places
    assert [optimizer.state[weight]["exp_avg"].device for weight in weights] == places
    assert len({tuple(weight.tolist()) for weight in weights}) == 1


def test_sparse_adam_and_lbfgs() -> None:
    def compute(device: torch.device) -> Any:
        table = nn.Embedding(4, 2, sparse=True).to(device)
        optimizer: torch.optim.Optimizer = torch.optim.SparseAdam(table.parameters(), 0.1)
        table(torch.tensor([1, 2], device=device)).sum().backward()
        optimizer.step()
        weight = nn.Parameter(torch.ones(2, device=device))
        optimizer = torch.optim.LBFGS([weight], line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = ((weight - 3) ** 2).sum()
            value.backward()
            return value

        optimizer.step(loss)
        return table.weight, weight

    on_both(compute)


def test_averaged_weights_follow_their_model(machine: Simulator) -> None:
    def compute(device: torch.device) -> Any:
        torch.manual_seed(0)
        net = nn.Linear(2, 2).to(device)
        average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        mean = torch.optim.swa_utils.AveragedModel(net)
        for _ in range(3):
            with torch.no_grad():
                net.weight += 1
            average.update_parameters(net)
            mean.update_parameters(net)
        return [*average.module.parameters(), *mean.module.parameters()]

    for here, there in zip(compute(CPU), compute(ONE), strict=True):
        assert there.device == ONE
        assert torch.allclose(here, there.cpu())


def test_vectors_of_parameters(machine: Simulator) -> None:
    net = nn.Linear(2, 2).to(ONE)
    vector = nn.utils.parameters_to_vector(net.parameters())
    assert vector.device == ONE
    nn.utils.vector_to_parameters(vector * 2, net.parameters())
    assert net.weight.device == ONE
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    nn.utils.clip_grad_value_(net.parameters(), 0.5)
    assert nn.utils.get_total_norm([parameter.grad for parameter in net.parameters()]).device == ONE


# Copies, files, processes ---------------------------------------------------------------------------------------------


def _saved(value: Any, **arguments: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **arguments)
    file.seek(0)
    return file


@pytest.mark.parametrize("zipped", [True, False])
def test_what_is_saved_from_a_device_comes_back_to_it(zipped: bool, machine: Simulator) -> None:
    net = nn.Linear(2, 2).to(ONE)
    file = _saved({"net": net.state_dict(), "host": torch.ones(1)}, _use_new_zipfile_serialization=zipped)
    loaded = torch.load(file, weights_only=True)
    assert loaded["net"]["weight"].device == ONE
    assert loaded["host"].device == CPU
    assert torch.equal(loaded["net"]["weight"], net.weight)


MAPS: dict[str, tuple[Any, str]] = {
    "cpu": ("cpu", "cpu"),
    "device": (torch.device("cpu"), "cpu"),
    "other device": ("cuda:0", "cuda:0"),
    "current device": ("cuda", "cuda:0"),
    "function to the host": (lambda storage, location: storage, "cpu"),
    "function to a device": (lambda storage, location: storage.cuda(0), "cuda:0"),
    "function that declines": (lambda storage, location: None, "cuda:1"),
    "dict": ({"cuda:1": "cuda:0"}, "cuda:0"),
    "dict to the host": ({"cuda:1": "cpu"}, "cpu"),
    "dict of others": ({"cuda:0": "cpu"}, "cuda:1"),
    "meta": ("meta", "meta"),
}


@pytest.mark.parametrize(("where", "expected"), MAPS.values(), ids=MAPS)
@pytest.mark.parametrize("zipped", [True, False])
def test_every_map_location_is_obeyed(where: Any, expected: str, zipped: bool, machine: Simulator) -> None:
    if expected == "meta" and not zipped:
        pytest.skip("torch refuses it for the old format")
    file = _saved(torch.arange(3.0, device=ONE), _use_new_zipfile_serialization=zipped)
    loaded = torch.load(file, map_location=where)
    assert str(loaded.device) == expected


def test_a_file_from_two_devices_is_refused_on_a_machine_with_one() -> None:
    with simulate(2):
        file = _saved(torch.ones(2, device=ONE))
    with simulate(1):
        with pytest.raises(RuntimeError, match=r"on CUDA device 1 but torch.cuda.device_count\(\) is 1"):
            torch.load(file)
        file.seek(0)
        assert torch.load(file, map_location="cuda:0").device == torch.device("cuda", 0)
    file.seek(0)
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
        torch.load(file)
    file.seek(0)
    assert torch.load(file, map_location="cpu").tolist() == [1.0, 1.0]


def test_files_of_the_host_stay_files_of_the_host() -> None:
    plain_file = _saved(torch.arange(3.0)).getvalue()
    with simulate(2):
        assert torch.load(io.BytesIO(plain_file)).device == CPU
        assert torch.load(io.BytesIO(plain_file), map_location="cuda:1").device == ONE
        assert _saved(torch.arange(3.0)).getvalue() == plain_file


def test_tensors_that_share_memory_share_it_after_loading_and_copying(machine: Simulator) -> None:
    whole = torch.zeros(4, device=ONE)
    for part, all_of_it in (
        torch.load(_saved([whole[1:], whole])),
        copy.deepcopy([whole[1:], whole]),
        pickle.loads(pickle.dumps([whole[1:], whole])),
    ):
        assert part.device == all_of_it.device == ONE
        part += 1
        if not isinstance(part.untyped_storage(), bytes) and part.data_ptr() - 4 == all_of_it.data_ptr():
            assert all_of_it.tolist() == [0.0, 1.0, 1.0, 1.0]
    assert whole.tolist() == [0.0] * 4


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=repr)
def test_a_copy_is_where_its_original_is(duplicate: Callable[[Any], Any], machine: Simulator) -> None:
    tensor = torch.arange(3.0, device=ONE)
    assert duplicate(tensor).device == ONE
    assert torch.equal(duplicate(tensor), tensor)
    parameter = nn.Parameter(tensor)
    assert duplicate(parameter).device == ONE
    net = duplicate(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to(ONE))
    assert {tensor.device for tensor in net.state_dict().values()} == {ONE}
    assert duplicate(torch.ones(2)).device == CPU
    leaf = torch.ones(1, device=ONE, requires_grad=True)
    leaf.sum().backward()
    assert copy.deepcopy(leaf).grad.device == ONE


def test_state_dicts_are_copied_into_modules_or_assigned(machine: Simulator) -> None:
    source, target = nn.Linear(2, 2), nn.Linear(2, 2).to(ONE)
    target.load_state_dict(source.state_dict())
    assert target.weight.device == ONE
    assert torch.equal(target.weight.cpu(), source.weight)
    target.load_state_dict(source.state_dict(), assign=True)
    assert target.weight.device == CPU
    state = OrderedDict((name, value.to(ONE)) for name, value in source.state_dict().items())
    source.load_state_dict(state)
    assert source.weight.device == CPU
    source.load_state_dict(state, assign=True)
    assert source.weight.device == ONE


def test_an_optimizer_loads_its_state_to_its_parameters(machine: Simulator) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], 0.1)
    weight.grad = torch.ones(2)
    optimizer.step()
    state = optimizer.state_dict()
    moved = nn.Parameter(weight.detach().to(ONE))
    other = torch.optim.Adam([moved], 0.1)
    other.load_state_dict(state)
    assert other.state[moved]["exp_avg"].device == ONE
    assert other.state[moved]["step"].device == CPU
    moved.grad = torch.ones(2, device=ONE)
    other.step()


def test_storages_know_their_device(machine: Simulator) -> None:
    storage = torch.arange(3.0, device=ONE).untyped_storage()
    assert storage.device == ONE
    assert storage.is_cuda
    assert storage.get_device() == 1
    assert storage.cpu().device == CPU
    assert storage.clone().device == ONE
    assert storage.cuda(0).device == torch.device("cuda", 0)
    assert storage.cuda(1) is storage
    assert torch.ones(2).untyped_storage().device == CPU
    assert not torch.ones(2).untyped_storage().is_cuda
    with pytest.warns(UserWarning, match="TypedStorage"):
        assert torch.ones(2, device=ONE).storage().device == ONE
    assert torch.ones(2, device=ONE).is_shared()
    shared = torch.ones(2, device=ONE)
    assert shared.share_memory_() is shared
    assert torch.ones(2).share_memory_().is_shared()


# What a tensor says of itself -----------------------------------------------------------------------------------------


def test_a_tensor_says_where_it_is(machine: Simulator) -> None:
    there, here = torch.ones(2, device=ONE), torch.ones(2)
    assert (there.is_cuda, there.is_cpu, there.get_device(), there.type()) == (True, False, 1, "torch.cuda.FloatTensor")
    assert (here.is_cuda, here.is_cpu, here.get_device(), here.type()) == (False, True, -1, "torch.FloatTensor")
    assert there.device == ONE
    assert there.device.type == "cuda"
    assert there.half().type() == "torch.cuda.HalfTensor"
    assert not there.is_mps
    assert not there.is_meta


def test_text_names_the_device_as_torch_does(machine: Simulator) -> None:
    assert str(torch.ones(2, device=ONE)) == "tensor([1., 1.], device='cuda:1')"
    assert repr(torch.ones((), device="cuda")) == "tensor(1., device='cuda:0')"
    assert f"{torch.ones(2, device=ONE)}" == "tensor([1., 1.], device='cuda:1')"
    assert f"{torch.tensor(1.5, device=ONE):.2f}" == "1.50"
    assert "device='cuda:1', requires_grad=True" in repr(nn.Parameter(torch.ones(1, device=ONE)))
    assert "device" not in str(torch.ones(2))
    assert "device='cuda:1'" in str({"x": torch.ones(1, device=ONE)})
    assert "device='cuda:1'" in str(torch.ones(2, device=ONE).to_sparse())


def test_values_must_be_on_the_host_for_numpy(machine: Simulator) -> None:
    there = torch.ones(2, device=ONE)
    for read in (
        lambda: there.numpy(),
        lambda: np.asarray(there),
        lambda: np.array(there),
        lambda: np.sin(there),
        lambda: there.requires_grad_().numpy(),
    ):
        with pytest.raises(TypeError, match="can't convert cuda:1 device type tensor to numpy"):
            read()
    assert there.detach().cpu().numpy().tolist() == [1.0, 1.0]
    assert there.numpy(force=True).tolist() == [1.0, 1.0]
    assert np.asarray(torch.ones(2)).tolist() == [1.0, 1.0]
    for read in (lambda: there.detach().apply_(abs), lambda: there.detach().map_(there.detach(), max)):
        with pytest.raises(TypeError, match="only implemented on CPU tensors"):
            read()
    with pytest.raises(TypeError):
        torch.from_numpy(there)


def test_only_host_memory_can_be_pinned(machine: Simulator) -> None:
    pinned = torch.ones(2).pin_memory()
    assert pinned.is_pinned()
    assert pinned.device == CPU
    assert pinned.pin_memory() is pinned
    assert not torch.ones(2).is_pinned()
    assert not pinned.to(ONE).is_pinned()
    assert not pinned.clone().is_pinned()
    assert torch.zeros(2, pin_memory=True).is_pinned()
    assert torch.empty_like(pinned, pin_memory=True).is_pinned()
    assert pinned[1:].is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device=ONE).pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.zeros(2, device=ONE, pin_memory=True)


def test_memory_is_counted_by_device_while_tensors_live(machine: Simulator) -> None:
    gc.collect()
    before = torch.cuda.memory_allocated(1)
    first = torch.zeros(1024, device=ONE)
    view = first[1:]
    assert torch.cuda.memory_allocated(1) - before == 4096
    other = first + 1
    assert torch.cuda.memory_allocated(1) - before == 8192
    del first, other
    assert torch.cuda.memory_allocated(1) - before == 4096
    del view
    assert torch.cuda.memory_allocated(1) == before
    assert torch.cuda.memory_allocated(0) == 0
    peak = torch.cuda.max_memory_allocated(1)
    host = torch.zeros(1 << 16)
    del host
    assert torch.cuda.max_memory_allocated(1) == peak


# Subclasses, threads, modes -------------------------------------------------------------------------------------------


class Named(torch.Tensor):
    """A subclass that keeps torch's own handling."""


class Logged(torch.Tensor):
    """A subclass that sees the calls of the API."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Logged.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs)


def test_subclasses_of_tensor_have_places(machine: Simulator) -> None:
    for cls in (Named, Logged):
        tensor = torch.ones(2).as_subclass(cls).to(ONE)
        assert type(tensor) is cls
        assert tensor.device == ONE
        assert (tensor + tensor).device == ONE
        with pytest.raises(RuntimeError, match="same device"):
            tensor + torch.ones(2)
    assert "to" in Logged.calls


def test_subclasses_that_wrap_tensors_have_the_place_of_what_is_inside(machine: Simulator) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    pair = TwoTensor(torch.ones(2, device=ONE), torch.zeros(2, device=ONE))
    assert pair.device == ONE
    double = pair * 2
    assert double.a.device == double.b.device == double.device == ONE
    with pytest.raises(RuntimeError, match="same device"):
        pair + torch.ones(2)


def test_a_function_mode_of_the_users_sees_the_calls(machine: Simulator) -> None:
    seen: list[Any] = []

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watching():
        assert torch.ones(2, device=ONE).device == ONE
    assert torch.ones in seen


def test_threads_have_devices_of_their_own_program(machine: Simulator) -> None:
    results: list[Any] = []

    def work() -> None:
        net = nn.Linear(2, 2).to(ONE)
        net(torch.ones(1, 2, device=ONE)).sum().backward()
        results.append((net.weight.device, net.weight.grad.device, threading.current_thread().name))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result[:2] for result in results] == [(ONE, ONE)] * 4


def test_an_error_inside_leaves_no_trace(machine: Simulator) -> None:
    there = torch.ones(2, device=ONE)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            there + torch.ones(2)
        with pytest.raises(RuntimeError):
            F.layer_norm(there, (2,), torch.ones(2))
        with pytest.raises(RuntimeError), torch.device(ONE):
            raise RuntimeError
    assert torch.zeros(1).device == CPU
    assert (there + 1).device == ONE
    assert (torch.ones(1) + 1).device == CPU


def test_everything_is_as_before_afterwards() -> None:
    kept: list[Tensor] = []
    with simulate(1):
        kept.append(torch.ones(2, device="cuda"))
        assert kept[0].is_cuda
    assert kept[0].device == CPU  # the values were on the host all along
    assert not hasattr(torch.UntypedStorage, "__torch_function__")
    assert torch.UntypedStorage.device is torch._C.StorageBase.device
    assert torch.ones(2).untyped_storage().device == CPU
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1).cuda()
    assert len(torch.overrides._get_current_function_mode_stack()) == 0
