"""Several devices, several processes, compiled code: what torch has C++ and NCCL for.

Not faithful: NCCL is refused, and ``torch.compile`` returns what it was given. TorchScript runs as it is: inside it,
``x.device`` is the host and naming ``"cuda"`` fails. Tracing with fake tensors is refused. An operator of the program
that has a kernel for CUDA alone finds none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorConverter

from devlint.runtime.placement import HOST, device_of
from devlint.runtime.simulator import Simulator


def _device(index: int) -> torch.device:
    return torch.device("cpu") if index == -1 else torch.device("cuda", index)


def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """``torch._C._broadcast``: a copy on each device; on the tensor's own, the tensor."""
    if tensor.is_cuda and tensor.get_device() != devices[0]:
        raise RuntimeError("device of broadcasted tensor must appear as the first on devices list")
    return [tensor.to(_device(index), non_blocking=True) for index in devices]


def broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """``torch._C._broadcast_out``."""
    for target in out:
        target.copy_(tensor, non_blocking=True)
    return out


def broadcast_coalesced(tensors: Sequence[torch.Tensor], devices: Sequence[int], size: int) -> list[list[torch.Tensor]]:
    """``torch._C._broadcast_coalesced``, tensor by tensor."""
    if any(tensor.get_device() != devices[0] for tensor in tensors):
        raise RuntimeError("all tensors must be on devices[0]")
    return [[tensor.to(_device(index), non_blocking=True) for tensor in tensors] for index in devices]


def scatter(
    tensor: torch.Tensor, devices: Sequence[int], sizes: Sequence[int] | None = None, dim: int = 0, streams: Any = None
) -> list[torch.Tensor]:
    """``torch._C._scatter``: chunks, each on its device."""
    if sizes is not None and sum(sizes) != tensor.size(dim):
        raise RuntimeError(
            "given chunk sizes don't sum up to the tensor's size (sum(chunk_sizes) == "
            f"{sum(sizes)}, but expected {tensor.size(dim)})"
        )
    chunks = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(list(sizes), dim)
    return [chunk.to(_device(index), non_blocking=True) for chunk, index in zip(chunks, devices, strict=False)]


def scatter_out(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int = 0, streams: Any = None) -> Any:
    """``torch._C._scatter_out``."""
    for target, chunk in zip(out, tensor.split([target.size(dim) for target in out], dim), strict=True):
        target.copy_(chunk, non_blocking=True)
    return out


def gather(tensors: Sequence[torch.Tensor], dim: int = 0, destination: int | None = None) -> torch.Tensor:
    """``torch._C._gather``: all in one, on the destination (-1: the host; ``None``: the current device)."""
    if not all(tensor.is_cuda for tensor in tensors):
        raise RuntimeError("Gather expects all inputs to have CUDA type")
    target = torch.device("cuda") if destination is None else _device(destination)
    return torch.cat([tensor.to(target, non_blocking=True) for tensor in tensors], dim)


def gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """``torch._C._gather_out``."""
    for target, tensor in zip(out.split([tensor.size(dim) for tensor in tensors], dim), tensors, strict=True):
        target.copy_(tensor, non_blocking=True)
    return out


def replacements(simulator: Simulator) -> Iterator[tuple[Any, Any, Any]]:
    """Copies between devices in Python, a plain no to NCCL, and eager code in place of compiled."""
    machine = simulator.machine

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda model: compile(model, **options)
        machine.step_aside("torch.compile", "compiles nothing here: the code runs eagerly")
        return model

    make_fake = FakeTensorConverter.from_real_tensor

    def no_fake(converter: Any, mode: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Autograd ends the process at a fake parameter on a device that torch has no code for."""
        if machine.is_device(device_of(tensor)):
            machine.not_simulated("FakeTensorMode (torch.export, torch.onnx) with tensors on a device")()
        return make_fake(converter, mode, tensor, *args, **kwargs)

    yield torch, "compile", compile
    yield FakeTensorConverter, "from_real_tensor", no_fake
    if machine.kind == "cuda":
        for function in (
            broadcast, broadcast_out, broadcast_coalesced, scatter, scatter_out, gather, gather_out,
        ):  # fmt: skip
            yield torch._C, f"_{function.__name__}", function
    if torch.distributed.is_available():
        yield from _distributed(simulator)


def _distributed(simulator: Simulator) -> Iterator[tuple[Any, Any, Any]]:
    from torch.distributed import distributed_c10d as c10d

    init = c10d.init_process_group
    new_group = c10d.new_group

    def refuse(backend: Any) -> None:
        if backend is not None and "nccl" in str(backend).lower():
            raise RuntimeError('the simulator has no NCCL: use the backend "gloo", which works with imaginary devices')

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        refuse(backend)
        if backend is None:  # torch's choice would be gloo for the host and NCCL for CUDA
            simulator.machine.step_aside("torch.distributed.init_process_group", "uses gloo here, for want of NCCL")
            backend = "gloo"
        init(backend, *args, **kwargs)

    def make_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        refuse(backend)
        return new_group(ranks, timeout, backend, *args, **kwargs)

    class Reducer(torch.distributed.Reducer):
        """Its buckets, which C++ makes, are where the gradients will be."""

        def __init__(self, parameters: Any, *args: Any, **kwargs: Any) -> None:
            self._place = device_of(parameters[0]) or HOST
            with simulator.making(self._place):
                super().__init__(parameters, *args, **kwargs)

        def _rebuild_buckets(self) -> bool:
            with simulator.making(self._place):
                return super()._rebuild_buckets()

    yield torch.distributed, "Reducer", Reducer
    for module in (torch.distributed, c10d):
        yield module, "init_process_group", init_process_group
        yield module, "new_group", make_group
