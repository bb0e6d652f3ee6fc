"""Other processes: spawned ones get a simulated machine of their own, and tensors find their place there.

Not faithful: a tensor on a device is sent as a copy, where CUDA shares the memory. Programs that a process starts by
other means than multiprocessing (``torchrun``, ``accelerate launch``) have no imaginary devices.
"""

from __future__ import annotations

import atexit
import multiprocessing.spawn
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from devlint.runtime.placement import HOST, device_of
from devlint.runtime.simulator import Simulator, active, simulate
from devlint.runtime.simulator.moves import move


class Beginning:
    """Unpickled, it begins a simulation that lasts as long as its process."""

    def __init__(self, devices: int, kind: str) -> None:
        self.devices, self.kind = devices, kind

    def __reduce__(self) -> Any:
        return begin, (self.devices, self.kind)


def begin(devices: int, kind: str) -> None:
    """Begins a simulation for the rest of this process, unless one runs."""
    if active() is None:
        stack = ExitStack()
        stack.enter_context(simulate(devices, kind))
        atexit.register(stack.close)


def received(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    """A tensor that another process sent, on its device here.

    Raises:
        RuntimeError: no simulation runs here.
    """
    simulator = active()
    if simulator is None:
        raise RuntimeError(f"a tensor on the simulated {place} came to a process that simulates no devices")
    copy = move(simulator, tensor.detach(), simulator.machine.device(place))
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(copy, tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad)


def replacements(simulator: Simulator) -> Iterator[tuple[Any, Any, Any]]:
    """What multiprocessing sends to a process that it spawns, and how tensors travel."""
    machine = simulator.machine
    prepare = multiprocessing.spawn.get_preparation_data
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    copies: Any = WeakTensorKeyDictionary()
    sent = {cls: reducers[cls] for cls in (torch.Tensor, torch.nn.Parameter)}  # torch.multiprocessing's

    def preparation_data(name: str) -> dict[str, Any]:
        # Read in the new process before its main module is imported; keys that Python does not know are passed over.
        return {"devlint": Beginning(machine.count, machine.kind), **prepare(name)}

    def reduce_tensor(tensor: torch.Tensor) -> Any:
        place = device_of(tensor)
        if place is None or not machine.is_device(place):
            return sent[type(tensor)](tensor)
        copy = move(simulator, tensor.detach(), HOST).requires_grad_(tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, tensor.requires_grad)
        copies[tensor] = copy  # a process that is being spawned opens the copy's memory later
        return received, (copy, place)

    new_shared = vars(torch.storage._StorageBase)["_new_shared"].__func__

    def storage_to_share(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        """What a loader's worker collates into; a device's memory needs no file to be shared."""
        place = machine.device(device)
        if not machine.is_device(place):
            return new_shared(cls, size, device=device)
        storage = cls(size)
        simulator.put_storage(storage, place)
        return storage

    yield torch.storage._StorageBase, "_new_shared", classmethod(storage_to_share)
    yield multiprocessing.spawn, "get_preparation_data", preparation_data
    for cls in sent:
        yield reducers, cls, reduce_tensor
