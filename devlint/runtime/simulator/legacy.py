"""``torch.cuda.FloatTensor`` and its kind, and the default tensor type: devices named by types."""

from __future__ import annotations

from typing import Any

import torch

from devlint.runtime.placement import device_of
from devlint.runtime.simulator import Simulator

_NAMES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")


class _DeviceType(type):
    """The type of ``torch.cuda.FloatTensor``: its instances are ordinary tensors of that dtype on a device."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: Any) -> bool:
        if not isinstance(instance, torch.Tensor) or instance.dtype != cls.dtype:
            return False
        place = device_of(instance)
        return place is not None and place.type == "cuda"


def replacements(simulator: Simulator) -> list[tuple[Any, str, Any]]:
    """What is replaced while the simulator runs: (owner, name, what stands there)."""
    machine = simulator.machine
    set_default_tensor_type = torch.set_default_tensor_type

    def set_default(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        set_default_tensor_type(name.replace("torch.cuda.", "torch.", 1))
        simulator.default = machine.device("cuda") if name.startswith("torch.cuda.") else None

    replaced: list[tuple[Any, str, Any]] = [(torch, "set_default_tensor_type", set_default)]
    for name in (f"{name}Tensor" for name in _NAMES):
        there = _made_on_device(simulator, getattr(torch, name)) if machine.kind == "cuda" else _not_available(name)
        replaced.append((torch.cuda, name, there))
    return replaced


def _not_available(name: str) -> Any:
    """What a torch without CUDA has under the name, for where this one has a GPU."""

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"type torch.cuda.{name} not available. Torch not compiled with CUDA enabled.")

    return type(name, (), {"__new__": new, "__module__": "torch.cuda"})


def _made_on_device(simulator: Simulator, host_type: Any) -> Any:
    def new(cls: Any, *args: Any, device: Any = None) -> torch.Tensor:
        place = simulator.machine.device("cuda" if device is None else device)
        if place is None or not simulator.machine.is_device(place):
            raise RuntimeError(f"legacy constructor expects device type: cuda but device type: {place} was passed")
        with simulator.making(place):
            made = host_type(*args)
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return made  # the very same tensor, under another name
        simulator.put(made, place)
        return made

    dtype = host_type.dtype
    return _DeviceType(host_type.__name__, (), {"__new__": new, "__module__": "torch.cuda", "dtype": dtype})
