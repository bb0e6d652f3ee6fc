"""Copies between devices: how many bytes, from what memory, whether the host waits, and whether they need be."""

from __future__ import annotations

import sys
import time
import weakref
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

import torch

from devlint.runtime.calls import Calls, handles
from devlint.runtime.events import Event
from devlint.runtime.mismatch import FACTORIES, FROM_DATA
from devlint.runtime.placement import (
    HOST,
    META,
    Record,
    device_of,
    is_pinned,
    record_for,
    record_of,
    storage_of,
    tensors_in,
)
from devlint.runtime.provenance import name_of
from devlint.runtime.site import Site, calling_frame, here, is_torchs_own, own_frame, running_frame, site_of
from devlint.runtime.waits import IN_LOOP, is_device, waited

if TYPE_CHECKING:
    from devlint.runtime.guard import Guard

Tensor = torch.Tensor
_MOST_AWAITED: Final = 1000
REPEATS: Final = 3  # what happens so often in a row comes back
_TRIP: Final = "_devlint_trip"
_MODULE_FILE: Final = torch.nn.Module._apply.__code__.co_filename

Spot = tuple[CodeType, int]  # an instruction of somebody's code


class Arrivals:
    """Copies to the host that were started and that nothing has waited for yet."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.awaited: list[Record] = []

    def send(self, record: Record, frame: tuple[CodeType, int] | None) -> None:
        """A copy into this memory begins."""
        if frame is not None and record.pending is None:
            self.awaited.append(record)
            if len(self.awaited) > _MOST_AWAITED:
                self.awaited.pop(0).pending = None
        record.pending = frame

    def arrived(self) -> None:
        """The host has waited for a device: what was started before is taken to be there."""
        for record in self.awaited:
            record.pending = None
        self.awaited.clear()

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The host works on these.

        Raises:
            DevicePlacementError: one has not arrived, and the guard raises.
        """
        for tensor in tensors_in([*args, *kwargs.values()]):
            record = record_of(tensor)
            if record is not None and record.pending is not None:
                sent = site_of(record.pending)
                record.pending = None
                self.awaited.remove(record)
                self._guard.emit(
                    Event(
                        "read",
                        "unsynchronized-host-copy",
                        "a copy to the host is read before it has arrived",
                        "Tensor.to",
                        here(),
                        notes=((sent, "the copy was started, without waiting for it"),),
                        error=True,
                    )
                )


class _Trip:
    """What came to the host from a device: of which tensor it is the copy, and the versions of both."""

    __slots__ = ("origin", "origin_version", "version")

    def __init__(self, origin: Tensor, copy: Tensor) -> None:
        self.origin = weakref.ref(origin)
        self.origin_version = version_of(origin)
        self.version = version_of(copy)

    def is_unchanged(self, copy: Tensor, target: torch.device) -> bool:
        """Whether `target` still has what `copy` holds."""
        origin = self.origin()
        if origin is None or self.version is None or self.origin_version is None:
            return False
        unchanged = version_of(origin) == self.origin_version and version_of(copy) == self.version
        return unchanged and device_of(origin) == target


def version_of(tensor: Tensor) -> int | None:
    """How often the tensor was changed in place; ``None`` for one that does not count (``inference_mode``)."""
    return None if tensor.is_inference() else tensor._version


# What copies ----------------------------------------------------------------------------------------------------------


@handles(*FACTORIES)
def factory(calls: Calls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor made anew: if it is on the host, its move would be a copy for nothing."""
    fresh = calls.fresh[:]
    result = calls.look(func, args, kwargs)
    calls.fresh = fresh
    if isinstance(result, Tensor) and device_of(result) == HOST:
        calls.fresh.append(record_for(result))
    return result


@handles(Tensor.pin_memory)
def pinning(calls: Calls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A copy into page-locked memory."""
    result = calls.look(func, args, kwargs)
    if result is not args[0]:
        calls.fresh.append(record_for(result))
    return result


@handles(Tensor.to, Tensor.cuda, Tensor.cpu, Tensor.type, Tensor.type_as)
def moving(calls: Calls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that copies if its tensor is elsewhere."""
    tensor, fresh = args[0], calls.fresh
    source = device_of(tensor)
    with calls.guard.quiet():
        started = time.perf_counter()
        result = calls.run(func, args, kwargs, mixed=False)
        seconds = time.perf_counter() - started
    target = device_of(result) if isinstance(result, Tensor) else source
    if source is None or target is None or source == target or META in (source, target):
        if result is not tensor:
            if source == HOST and calls.guard.arrivals.awaited:
                calls.guard.arrivals.read(args, kwargs)
            calls.fresh = []
            calls.made(result, func)
        return result
    _copied(calls, func, tensor, result, _is_asynchronous(func, args, kwargs), seconds)
    calls.fresh = [record for record in fresh if record is not record_of(tensor)]
    return result


@handles(Tensor.copy_)
def copying(calls: Calls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``target.copy_(source)`` goes between any two places."""
    target, source = args[0], args[1] if len(args) > 1 else kwargs.get("src", kwargs.get("other"))
    if not isinstance(source, Tensor) or device_of(target) == device_of(source):
        return calls.look(func, args, kwargs)
    with calls.guard.quiet():
        started = time.perf_counter()
        result = calls.run(func, args, kwargs, mixed=False)
        seconds = time.perf_counter() - started
    asked = bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
    if None not in (device_of(target), device_of(source)) and META not in (device_of(target), device_of(source)):
        _copied(calls, func, source, target, asked, seconds)
    return result


@handles(*FROM_DATA, Tensor.new_tensor)
def from_data(calls: Calls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.tensor(values, device=...)`` copies from pageable memory, and waits for each device scalar in a list."""
    data = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple))]
    scalars = sum(is_device(device_of(tensor)) for tensor in tensors_in(data))  # torch goes over it too
    with calls.guard.quiet():
        started = time.perf_counter()
        result = _made_from_data(calls, func, args, kwargs)
        seconds = time.perf_counter() - started
    if scalars:
        message = f"`{name_of(func)}` waits for each of {scalars} device scalars"
        waited(calls.guard, name_of(func), seconds, rule="tensor-from-device-scalars", message=message)
    return result


def _made_from_data(calls: Calls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    position, name = (1, "data") if func is Tensor.new_tensor else (0, next(iter(kwargs), ""))
    data = args[position] if len(args) > position else kwargs.get(name)
    if calls.guard.arrivals.awaited:
        calls.guard.arrivals.read(args, kwargs)
    started = time.perf_counter()
    result = calls.run(func, args, kwargs, mixed=False)  # a list is not looked through: it may be long
    seconds = time.perf_counter() - started
    calls.made(result, func)
    source, target = device_of(data) if isinstance(data, Tensor) else HOST, device_of(result)
    if source is not None and target is not None and source != target and META not in (source, target):
        _copied(calls, func, data if isinstance(data, Tensor) else None, result, False, seconds)
    return result


def _is_asynchronous(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether ``non_blocking`` was asked for: by name, or as the first bool after what is asked for."""
    if "non_blocking" in kwargs:
        return bool(kwargs["non_blocking"])
    positional = args[2:] if func in (Tensor.cuda, Tensor.type) else args[1:]  # cuda(True) means device 1
    return next((value for value in positional if isinstance(value, bool)), False)


# What is said of a copy -----------------------------------------------------------------------------------------------


def _copied(calls: Calls, func: Any, tensor: Tensor | None, copy: Tensor, asynchronous: bool, seconds: float) -> None:
    """A copy of `tensor` was made (``None``: of values of Python's)."""
    guard = calls.guard
    caller = calling_frame()
    by_module = caller is not None and caller.f_code.co_filename == _MODULE_FILE
    operation = "Module.to" if by_module else name_of(func)
    source = (device_of(tensor) if tensor is not None else HOST) or HOST
    target = device_of(copy) or HOST
    pinned, blocking = _memory(func, tensor, copy, source, target, asynchronous)
    found = own_frame(caller)
    known, before = record_for(copy), record_of(tensor) if tensor is not None else None
    message, rule = f"a copy from {source} to {target}", None
    notes: tuple[tuple[Site | None, str], ...] = ()
    if caller is not None and not is_torchs_own(caller):
        rule, words = _judge(calls, func, tensor, before, source, target, pinned, blocking, asynchronous)
        message = words or message
        if rule is not None and before is not None and before.made is not None:
            notes = ((site_of(before.made), "the tensor was made"),)
    if before is not None and func is not Tensor.copy_:
        known.made, known.by = before.made, before.by
        known.source = before.origin()
    elif known.made is None:
        known.made, known.by = (found[0] if found else None), func
    known.moved = found[0] if found else None
    site = site_of(*found) if found else None
    guard.emit(
        Event(
            "moved",
            rule,
            message,
            operation,
            site,
            seconds=None,
            bytes=_size(copy),
            source=str(source),
            target=str(target),
            pinned=pinned,
            blocking=blocking,
            notes=notes,
        )
    )
    if blocking and is_device(source) | is_device(target):
        waited(guard, operation, seconds, repeated=IN_LOOP if target == HOST and not by_module else None)
    elif target == HOST and is_device(source):
        guard.arrivals.send(known, found[0] if found else None)
    if target == HOST and tensor is not None and func is not Tensor.copy_:
        setattr(storage_of(copy), _TRIP, _Trip(tensor, copy))


def _memory(
    func: Any, tensor: Tensor | None, copy: Tensor, source: torch.device, target: torch.device, asynchronous: bool
) -> tuple[bool | None, bool]:
    """Whether the host's side is pinned (``None``: it has none), and whether the host waits.

    ``to("cpu", non_blocking=True)`` makes its result in pinned memory and does not wait; ``copy_`` to pageable memory
    does (``_to_copy`` in ATen's TensorConversion.cpp; the CUDA runtime's page on synchronization behaviour).
    """
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return None if HOST not in (source, target) else True, False  # no other copy can be captured in a graph
    if source == HOST:
        return tensor is not None and is_pinned(tensor), not asynchronous
    if target == HOST:
        pinned = is_pinned(copy) or (asynchronous and func is not Tensor.copy_)
        return pinned, not (asynchronous and pinned)
    return None, False


def _judge(
    calls: Calls,
    func: Any,
    tensor: Tensor | None,
    before: Record | None,
    source: torch.device,
    target: torch.device,
    pinned: bool | None,
    blocking: bool,
    asynchronous: bool,
) -> tuple[str | None, str]:
    """The rule that a copy to a device counts under, and what is wrong; ``None`` for what need be."""
    if source != HOST or not is_device(target) or tensor is None:
        return None, ""
    if func is not Tensor.copy_ and before is not None and any(before is record for record in calls.fresh):
        if before.by is Tensor.pin_memory:
            return "pinned-then-copied", "pinned and copied at once: pinning is a copy too, and the host waits for it"
        return "create-then-move", f"made on the host by `{name_of(before.by)}` and moved to {target} at once"
    trip: _Trip | None = getattr(storage_of(tensor), _TRIP, None)
    if trip is not None and trip.is_unchanged(tensor, target):
        return "round-trip-copy", f"copied from {target} to the host and back, and {target} still has it unchanged"
    if _comes_back(calls.guard, tensor, target):
        return "invariant-move-in-loop", f"the same tensor is copied to {target} each time, and has not changed"
    if asynchronous and not pinned:
        return (
            "pageable-non-blocking",
            "`non_blocking=True`, but the source is pageable: the copy goes through a buffer",
        )
    if blocking and pinned:
        return "blocking-copy-from-pinned", "the host waits for a copy from pinned memory, which could run beside it"
    return None, ""


def _comes_back(guard: Guard, tensor: Tensor, target: torch.device) -> bool:
    """Whether this instruction has copied nothing but this tensor the last few times, unchanged."""
    frame, inner = running_frame(sys._getframe(1))
    frame = inner or frame
    if frame is None:
        return False
    spot = (frame.f_code, frame.f_lasti)
    last = guard.last_moves.get(spot)
    now = version_of(tensor)
    count = 1
    if last is not None and now is not None and last[0]() is tensor and last[1:3] == (now, target):
        count += last[3]
    guard.last_moves[spot] = (weakref.ref(tensor), now, target, count)
    return count >= REPEATS


def _size(tensor: Tensor) -> int:
    """Bytes that a copy of the tensor takes."""
    if tensor.layout is torch.strided:
        return tensor.numel() * tensor.element_size()
    storage = storage_of(tensor)
    return 0 if storage is None else int(storage.nbytes())
