"""What ``torch.save`` writes of a pretended device, and where ``torch.load`` puts it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from devlint.runtime.placement import ATTRIBUTE
from devlint.runtime.simulator import Simulator

_BEFORE_THE_HOST = 5  # torch's own tagger of host storages, which answers for any real memory here, has priority 10


@contextmanager
def registered(simulator: Simulator) -> Iterator[None]:
    """Lets ``torch.save`` and ``torch.load`` know the imaginary devices."""
    machine = simulator.machine

    def tag(storage: Any) -> str | None:
        record = getattr(storage, ATTRIBUTE, None)
        if record is None or not machine.is_device(record.place):
            return None
        return "mps" if machine.kind == "mps" else str(record.place)

    def restore(storage: Any, location: str) -> Any:
        if location.partition(":")[0] != machine.kind:
            return None
        _, _, index = location.partition(":")
        place = torch.device(machine.kind, int(index) if index else machine.current)
        if place.index >= machine.count:
            raise RuntimeError(
                f"Attempting to deserialize object on {machine.kind.upper()} device {place.index} but "
                f"torch.{machine.kind}.device_count() is {machine.count}. "
                "Please use torch.load with map_location to map your storages to an existing device."
            )
        simulator.put_storage(storage, machine.device(place))
        return storage

    registry = torch.serialization._package_registry
    before = list(registry)
    torch.serialization.register_package(_BEFORE_THE_HOST, tag, restore)
    try:
        yield
    finally:
        registry[:] = [entry for entry in registry if entry in before]
