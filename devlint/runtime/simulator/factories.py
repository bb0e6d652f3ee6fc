"""Tensors made anew: where a factory's device argument, its prototype or the default device puts them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._device import DeviceContext, _device_constructors

from devlint.runtime.placement import HOST, device_of, pretend, tensors_in
from devlint.runtime.simulator import Simulator
from devlint.runtime.simulator.functions import handles
from devlint.runtime.simulator.machine import META
from devlint.runtime.simulator.transfers import move

Tensor = torch.Tensor
_LIKE = (
    torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like,
    torch.rand_like, torch.randn_like, torch.randint_like,
)  # fmt: skip
_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor)


def default_device() -> torch.device:
    """What ``torch.set_default_device`` and ``with torch.device(...)`` ask for, innermost first."""
    for mode in reversed(torch.overrides._get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return mode.device
    return HOST


def _made(simulator: Simulator, func: Any, args: Any, kwargs: Any, place: torch.device) -> Any:
    if place == META:
        return func(*args, **{**kwargs, "device": META})
    kwargs = {**kwargs, "device": HOST}
    pinned = kwargs.pop("pin_memory", False)
    with simulator.making(place):
        result = func(*args, **kwargs)
    if simulator.machine.is_device(place):
        for tensor in tensors_in([result]):
            pretend(tensor, place)
    return result.pin_memory() if pinned else result


@handles(*(_device_constructors() - set(_LIKE) - set(_FROM_DATA)))
def factory(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    asked = kwargs.get("device")
    return _made(simulator, func, args, kwargs, simulator.machine.device(default_device() if asked is None else asked))


@handles(*_LIKE, Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full, Tensor.new_tensor)
def like(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    place = simulator.machine.device(kwargs.get("device")) or device_of(args[0]) or HOST
    return _made(simulator, func, args, kwargs, place)


@handles(*_FROM_DATA)
def from_data(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    data = args[0] if args else kwargs.get("data", kwargs.get("obj", kwargs.get("s")))
    asked = simulator.machine.device(kwargs.get("device"))
    if isinstance(data, Tensor):
        place = device_of(data) or HOST
        target = asked or place
        if target == place:
            return (
                _made(simulator, func, args, kwargs, place)
                if func is torch.tensor
                else func(*args, **{**kwargs, "device": None})
            )
        return move(data if func is not torch.tensor else data.detach(), target, dtype=kwargs.get("dtype"))
    return _made(simulator, func, args, kwargs, asked or default_device())
