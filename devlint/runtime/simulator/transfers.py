"""Moves as the API spells them: ``to``, ``cuda``, ``cpu``, ``copy_``, assignment, pinning."""

from __future__ import annotations

from typing import Any

import torch

from devlint.runtime.placement import HOST, device_of, is_pinned, record_for
from devlint.runtime.simulator import Simulator
from devlint.runtime.simulator.functions import handles
from devlint.runtime.simulator.machine import META
from devlint.runtime.simulator.moves import move

Tensor = torch.Tensor
__all__ = ["move"]


def _asks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The device that ``Tensor.to`` is asked for (``None``: stay), and its other arguments by name."""
    others = {name: value for name, value in kwargs.items() if name not in ("device", "other")}
    device, rest = kwargs.get("device"), list(args)
    if (rest and isinstance(rest[0], Tensor)) or "other" in kwargs:
        other = rest.pop(0) if rest else kwargs["other"]
        device, others["dtype"] = device_of(other), other.dtype
    elif rest and (isinstance(rest[0], (str, int, torch.device)) or rest[0] is None):
        device = rest.pop(0)
        if rest:
            others["dtype"] = rest.pop(0)
    elif rest:
        others["dtype"] = rest.pop(0)
    others.update(zip(("non_blocking", "copy"), rest, strict=False))
    return device, others


@handles(Tensor.to)
def to(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    asked, others = _asks(args[1:], kwargs)
    device = simulator.machine.device(asked)
    place = device_of(tensor) or device or HOST
    if META in (place, device):
        return func(*args, **kwargs)
    target = device or place
    copy = others.pop("copy", False)
    if target == place:
        return func(tensor, copy=copy, **others)
    others.pop("non_blocking", None)
    return move(tensor, target, **others)


@handles(Tensor.cuda)
def cuda(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    device = args[1] if len(args) > 1 else kwargs.get("device")
    return to(simulator, Tensor.to, (args[0], "cuda" if device is None else device), {})


@handles(Tensor.cpu)
def cpu(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return to(simulator, Tensor.to, (args[0], HOST), kwargs)


@handles(Tensor.copy_)
def copy_(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """A copy of another device's tensor is a move and a copy: the gradient must travel back."""
    target, source = args[0], args[1] if len(args) > 1 else kwargs["src"]
    here, there = device_of(target), device_of(source)
    if here is not None and there is not None and here != there and META not in (here, there):
        return func(target, move(source, here))
    return func(*args, **kwargs)


@handles(Tensor.pin_memory)
def pin_memory(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    place = device_of(args[0]) or HOST
    if place != HOST:
        raise RuntimeError(f"cannot pin '{args[0].type()}' only dense CPU tensors can be pinned")
    if is_pinned(args[0]):
        return args[0]
    pinned = move(args[0], HOST)
    record_for(pinned).pinned = True
    return pinned


@handles(Tensor.is_pinned)
def pinned(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return is_pinned(args[0])
