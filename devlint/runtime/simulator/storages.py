"""Untyped storages, which carry the places: their own device, their copies."""

from __future__ import annotations

from typing import Any

import torch

from devlint.runtime.placement import ATTRIBUTE, HOST, device_of, unhooked
from devlint.runtime.simulator import Simulator

Storage = torch.UntypedStorage


def replacements(simulator: Simulator) -> list[tuple[Any, str, Any]]:
    """What of storages is replaced while the simulator runs: (owner, name, what stands there)."""
    real_device = getattr(torch._C.StorageBase, "device").__get__  # noqa: B009 - the annotations leave it out
    real_dlpack = torch.utils.dlpack.from_dlpack

    def device(storage: Any) -> torch.device:
        record = getattr(storage, ATTRIBUTE, None)
        place = record.place if record is not None else None
        return place if isinstance(place, torch.device) else real_device(storage)

    def clone(storage: Any) -> Any:
        return copied(storage, device(storage))

    def copied(storage: Any, place: torch.device) -> Any:
        if not simulator.machine.is_device(place) and place != HOST:
            return Storage(storage.nbytes(), device=place).copy_(storage)
        copy = Storage(storage.nbytes())
        if place != HOST:
            simulator.put_storage(copy, place)
        # Torch's C++ copies through empty tensors that it sets on both storages. What is made inside a call of the API
        # may be anywhere, and so would both host storages of `copy.deepcopy([on_device, on_host])`: in the end they
        # would be where the call's other tensors are, those in the memo.
        with simulator.making(HOST):
            return copy.copy_(storage)

    def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
        place = simulator.machine.device(device) or HOST
        return storage if place == storage.device else copied(storage, place)

    def cuda(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
        return to(storage, device="cuda" if device is None else device)

    def cpu(storage: Any) -> Any:
        return to(storage, device=HOST)

    def mps(storage: Any) -> Any:
        return to(storage, device="mps")

    def from_dlpack(source: Any, *args: Any, **kwargs: Any) -> Any:
        """The same memory, hence the same place: a capsule knows none that is pretended."""
        place = device_of(source) if isinstance(source, torch.Tensor) else None
        if not simulator.machine.is_device(place):
            return real_dlpack(source, *args, **kwargs)
        with unhooked():
            shared = real_dlpack(source, *args, **kwargs)
        simulator.put(shared, place)
        return shared

    return [
        (Storage, "device", property(device)),
        (Storage, "clone", clone),
        (Storage, "to", to),
        (Storage, "cuda", cuda),
        (Storage, "cpu", cpu),
        (Storage, "mps", mps),
        (torch, "from_dlpack", from_dlpack),
        (torch.utils.dlpack, "from_dlpack", from_dlpack),
    ]
