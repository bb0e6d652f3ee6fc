"""The simulator's tensors: made, moved, met, asked about as torch's own, and refused where torch refuses."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from devlint.runtime.placement import device_of, tensors_in
from devlint.runtime.simulator import Simulator, simulate
from imaginary import CPU, ONE, machine, on_both

__all__ = ["machine"]  # the fixture


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
@pytest.mark.filterwarnings("ignore")
def test_a_factory_makes_its_tensor_where_device_says(make: Callable[..., Any]) -> None:
    on_both(lambda device: make(device=device))


REDIRECTED = {name: make for name, make in FACTORIES.items() if name not in ("normal", "nested_tensor")}


@pytest.mark.parametrize("make", REDIRECTED.values(), ids=REDIRECTED)
@pytest.mark.filterwarnings("ignore")
def test_a_factory_follows_the_device_context(make: Callable[..., Any]) -> None:
    def compute(device: torch.device) -> Any:
        with torch.device(device):
            return make()

    on_both(compute)


def test_normal_follows_no_device_context(machine: Simulator) -> None:
    with torch.device("cuda"):
        assert torch.normal(0.0, 1.0, (3,)).device == CPU


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
@pytest.mark.filterwarnings("ignore")
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


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
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


def test_numbers_read_from_a_device_make_tensors_of_the_host(machine: Simulator) -> None:
    two = torch.tensor(2, device=ONE)
    for made in (torch.full((2,), two), torch.arange(two), torch.linspace(two, 5, 3), torch.zeros(two), torch.eye(two)):
        assert made.device == CPU
    assert torch.full((2,), two, device="cuda:0").device == torch.device("cuda", 0)


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


def test_what_follows_its_first_tensor_stays_where_that_is(machine: Simulator) -> None:
    host, there, index = torch.zeros(3), torch.ones(3, device=ONE), torch.tensor([0], device=ONE)
    assert host.index_put((index,), torch.ones(1)).device == CPU
    assert host.slice_scatter(there[:2], 0, 0, 2).device == CPU
    assert there.select_scatter(torch.zeros(()), 0, 0).device == ONE
    assert torch.fill(host, there[0]).device == CPU


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


LAYOUTS: dict[str, Callable[[Tensor], list[Tensor]]] = {  # of a 3x3 tensor: parts, and what comes of it
    "sparse": lambda x: [x.to_sparse(), x.to_sparse().indices(), x.to_sparse().values(), x.to_sparse().to_dense()],
    "sparse product": lambda x: [x.to_sparse() @ x, x.to_sparse() * 2, torch.sparse.softmax(x.to_sparse(), 1)],
    "sparse rows": lambda x: [x.to_sparse_csr(), x.to_sparse_csr().crow_indices(), x.to_sparse_csr().values()],
    "quantised": lambda x: _quantised(x),
    "jagged": lambda x: [_jagged(x), _jagged(x) * 2, _jagged(x).values(), nn.Linear(3, 3, device=x.device)(_jagged(x))],
    "complex": lambda x: [torch.complex(x, x), torch.complex(x, x).real, torch.complex(x, x).conj().resolve_conj()],
}


def _quantised(x: Tensor) -> list[Tensor]:
    tensor = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    return [tensor, tensor.int_repr(), tensor.dequantize()]


def _jagged(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged)


@pytest.mark.parametrize("parts", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_every_layout_have_a_place(parts: Callable[[Tensor], list[Tensor]], machine: Simulator) -> None:
    here, there = torch.eye(3), torch.eye(3, device=ONE)
    for tensor in parts(there):
        assert tensor.device == ONE
        assert tensor.is_cuda
        assert tensor.detach().cpu().device == CPU
    for tensor in parts(here):
        assert tensor.device == CPU
        assert tensor.detach().to(ONE).device == ONE
    with pytest.raises(RuntimeError, match="device"):
        here.to_sparse() @ there


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
        lambda: np.sin(there),
        lambda: there.requires_grad_().numpy(),
    ):
        with pytest.raises(TypeError, match="can't convert cuda:1 device type tensor to numpy"):
            read()
    assert there.detach().cpu().numpy().tolist() == [1.0, 1.0]
    array = there.numpy(force=True)
    array[0] = 5.0
    assert there.tolist() == [1.0, 1.0]  # on a device it is a copy
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
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError)):
            torch.zeros(1).cuda()
    assert len(torch.overrides._get_current_function_mode_stack()) == 0
