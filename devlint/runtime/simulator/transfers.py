"""Moves as the API spells them: ``to``, ``cuda``, ``cpu``, ``type``, ``copy_``, assignment, pinning, sharing."""

from __future__ import annotations

from typing import Any

import torch

from devlint.runtime.placement import HOST, META, device_of, is_pinned, record_for, unhooked
from devlint.runtime.simulator import Simulator
from devlint.runtime.simulator.functions import handles
from devlint.runtime.simulator.moves import brought, move

Tensor = torch.Tensor


def _asks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The device that ``Tensor.to`` is asked for (``None``: stay), and its other arguments by name."""
    others = {name: value for name, value in kwargs.items() if name not in ("device", "tensor")}
    device, rest = kwargs.get("device"), list(args)
    if (rest and isinstance(rest[0], Tensor)) or "tensor" in kwargs:
        other = rest.pop(0) if rest else kwargs["tensor"]
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
    if simulator.destination() is not None:  # the copy itself, of a move that is being made
        return func(*args, **kwargs)
    tensor = args[0]
    asked, others = _asks(args[1:], kwargs)
    return _to(simulator, tensor, simulator.machine.device(asked), others)


def _to(simulator: Simulator, tensor: Tensor, device: torch.device | None, others: dict[str, Any]) -> Tensor:
    place = device_of(tensor) or device or HOST
    target = device or place
    if META in (place, target) or not (target == HOST or simulator.machine.is_device(target)):
        real = HOST if simulator.machine.is_device(target) else target  # torch's own answer, mostly an error
        return Tensor.to(tensor, real, others.pop("dtype", None), **others)
    if target == place:
        return Tensor.to(tensor, HOST, others.pop("dtype", None), **others)
    return move(simulator, tensor, target, others.get("dtype"), others.get("memory_format"))


@handles(Tensor.type_as)
def type_as(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return to(simulator, Tensor.to, (args[0], args[1] if len(args) > 1 else kwargs["other"]), {})


@handles(Tensor.cuda)
def cuda(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """``Tensor.cuda(device=None, non_blocking=False, memory_format=...)``."""
    if simulator.machine.kind != "cuda":
        return func(*args, **kwargs)  # torch's error
    others = dict(kwargs)
    device = args[1] if len(args) > 1 else others.pop("device", None)
    if len(args) > 2:
        others["non_blocking"] = args[2]
    return _to(simulator, args[0], simulator.machine.device("cuda" if device is None else device), others)


@handles(Tensor.cpu)
def cpu(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    if not simulator.machine.is_device(device_of(args[0])):
        return func(*args, **kwargs)
    return _to(simulator, args[0], HOST, dict(kwargs))


@handles(Tensor.copy_)
def copy_(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """A copy from another device with history is a move and a copy: the gradient must travel back."""
    source = args[1] if len(args) > 1 else kwargs["src"]
    return func(args[0], _near(simulator, args[0], source))


@handles(Tensor.__setitem__)
def set_item(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    target, index, value = args
    return func(target, index, _near(simulator, target, value))


def _near(simulator: Simulator, target: Tensor, source: Any) -> Any:
    if not isinstance(source, Tensor):
        return source
    with unhooked():
        if not (torch.is_grad_enabled() and source.requires_grad):
            return source
    here, there = device_of(target), device_of(source)
    if here is None or there is None or here == there or META in (here, there):
        return source
    return move(simulator, source, here)


@handles(Tensor.pin_memory)
def pin_memory(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    place = device_of(tensor) or HOST
    if simulator.machine.is_device(place):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    if place == META:
        return func(tensor)  # torch's error
    if is_pinned(tensor):
        return tensor
    pinned = move(simulator, tensor, HOST)
    record_for(pinned).pinned = True
    return pinned


@handles(Tensor.is_pinned)
def pinned(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return is_pinned(args[0])


@handles(Tensor.share_memory_)
def share_memory_(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """Device memory is shared as it is."""
    return args[0] if simulator.machine.is_device(device_of(args[0])) else func(*args, **kwargs)


@handles(Tensor.is_shared)
def is_shared(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return simulator.machine.is_device(device_of(args[0])) or func(*args, **kwargs)


@handles(torch._C._nn._parse_to)
def parse_to(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """``Module.to`` reads its arguments with this; a bare index asks torch for the accelerator it was built with."""
    if args and isinstance(args[0], int):
        args = (torch.device(simulator.machine.kind, args[0]), *args[1:])
    if isinstance(kwargs.get("device"), int):
        kwargs = {**kwargs, "device": torch.device(simulator.machine.kind, kwargs["device"])}
    return func(*args, **kwargs)


@handles(torch._VF._pad_packed_sequence)
def pad_packed_sequence(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """The lengths that it makes anew are the host's, as the batch sizes they come from."""
    padded, lengths = func(*args, **kwargs)
    simulator.put(lengths, HOST)
    return padded, lengths


@handles(torch.ctc_loss, torch.nn.functional.ctc_loss)
def ctc_loss(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """Targets and lengths may be anywhere: torch's C++ moves them, out of sight."""
    scores = args[0] if args else kwargs["log_probs"]
    place = device_of(scores)
    if place is None or not simulator.machine.is_device(place):
        return func(*args, **kwargs)
    given = (brought(simulator, one, place) if isinstance(one, Tensor) else one for one in args[1:])
    named = {name: brought(simulator, one, place) if isinstance(one, Tensor) else one for name, one in kwargs.items()}
    return func(*args[:1], *given, **named)
