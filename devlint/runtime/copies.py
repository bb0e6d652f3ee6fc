"""Copies between devices: how many bytes, from what memory, whether the host waits, and whether they need be."""

from __future__ import annotations

import hashlib
import sys
import time
import weakref
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

import torch

from devlint.runtime.calls import Calls, handles
from devlint.runtime.events import Event
from devlint.runtime.mismatch import FACTORIES, FROM_DATA, refuse_numpy
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
    unhooked,
)
from devlint.runtime.provenance import name_of
from devlint.runtime.site import Site, calling_frame, here, is_torchs_own, own_frame, running_frame, site_of
from devlint.runtime.waits import IN_LOOP, is_device, waited, waiting

if TYPE_CHECKING:
    from typing import TypeGuard

    from devlint.runtime.guard import Guard
    from devlint.runtime.site import Frame

Tensor = torch.Tensor
_MOST_AWAITED: Final = 1000
REPEATS: Final = 3  # what happens so often in a row comes back
_TRIP: Final = "_devlint_trip"
_MODULE_FILE: Final = torch.nn.Module._apply.__code__.co_filename

Spot = tuple[CodeType, int]  # an instruction of somebody's code


class Arrivals:
    """Copies to the host that were started and that nothing has waited for yet.

    Attributes:
        awaited: their memory, with the frame that started the copy.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.awaited: dict[Record, Frame] = {}

    def send(self, record: Record, frame: Frame | None) -> None:
        """A copy into this memory begins."""
        if frame is not None:
            self.awaited[record] = frame
            if len(self.awaited) > _MOST_AWAITED:
                del self.awaited[next(iter(self.awaited))]

    def arrived(self) -> None:
        """The host has waited for a device: what was started before is taken to be there."""
        self.awaited.clear()

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The host works on these.

        Raises:
            DevicePlacementError: one has not arrived, and the guard raises.
        """
        for tensor in tensors_in([*args, *kwargs.values()]):
            record = record_of(tensor)
            sent = self.awaited.pop(record, None) if record is not None else None
            if sent is not None:
                self._guard.emit(
                    Event(
                        "read",
                        "unsynchronized-host-copy",
                        "a copy to the host is read before it has arrived",
                        "Tensor.to",
                        here(),
                        notes=((site_of(sent), "the copy was started, without waiting for it"),),
                        error=True,
                    )
                )


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


@handles(Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)
def to_numpy(calls: Calls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A device tensor has no memory that NumPy could read: torch refuses, but for ``numpy(force=True)``."""
    if func is Tensor.__dlpack__ or not is_device(device_of(args[0])):
        aliased(args[0])
        return calls.look(func, args, kwargs)
    if not kwargs.get("force"):
        refuse_numpy(calls.guard, args[0], name_of(func))
    return waiting(calls, func, args, kwargs)


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


class _Copy:
    """One copy: where from, where to, from what memory, and whether the host waits for it."""

    def __init__(self, func: Any, tensor: Tensor | None, copy: Tensor, asynchronous: bool) -> None:
        """`tensor` was copied (``None``: values of Python's), and `asynchronous` is what was asked for."""
        self.func, self.tensor, self.copy, self.asynchronous = func, tensor, copy, asynchronous
        self.source = (device_of(tensor) if tensor is not None else HOST) or HOST
        self.target = device_of(copy) or HOST
        self.before = record_of(tensor) if tensor is not None else None
        self.pinned, self.blocking = self._memory()

    def _memory(self) -> tuple[bool | None, bool]:
        """Whether the host's side is pinned (``None``: it has none), and whether the host waits.

        ``to("cpu", non_blocking=True)`` makes its result in pinned memory and does not wait; ``copy_`` to pageable
        memory does (``_to_copy`` in ATen's TensorConversion.cpp; the CUDA runtime on synchronization behaviour).
        """
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return (True if HOST in (self.source, self.target) else None), False  # a graph captures no other copy
        if self.source == HOST:
            return self.tensor is not None and is_pinned(self.tensor), not self.asynchronous
        if self.target == HOST:
            pinned = is_pinned(self.copy) or (self.asynchronous and self.func is not Tensor.copy_)
            return pinned, not (self.asynchronous and pinned)
        return None, False

    def fault(self, calls: Calls) -> tuple[str | None, str]:
        """The rule that it counts under, and what is wrong; ``None`` for a copy that need be."""
        tensor, before, target = self.tensor, self.before, self.target
        if self.source != HOST or not is_device(target) or tensor is None:
            return None, ""
        if self.func is not Tensor.copy_ and before is not None and any(before is record for record in calls.fresh):
            if before.by is Tensor.pin_memory:
                return "pinned-then-copied", "pinned and copied at once: pinning is a copy too, and the host waits"
            return "create-then-move", f"made on the host by `{name_of(before.by)}` and moved to {target} at once"
        trip: _Trip | None = getattr(storage_of(tensor), _TRIP, None)
        if trip is not None and trip.is_unchanged(tensor, target):
            return "round-trip-copy", f"copied from {target} to the host and back, and {target} still has it unchanged"
        if _comes_back(calls.guard, tensor, target):
            return "invariant-move-in-loop", f"the same tensor is copied to {target} each time, and has not changed"
        if self.asynchronous and not self.pinned:
            words = "`non_blocking=True`, but the source is pageable: the copy goes through a buffer"
            return "pageable-non-blocking", words
        if self.blocking and self.pinned:
            return (
                "blocking-copy-from-pinned",
                "the host waits for a copy from pinned memory, which could run beside it",
            )
        return None, ""

    def inherit(self, frame: Frame | None) -> None:
        """What is known of the source is known of the copy, which was made at `frame`."""
        known = record_for(self.copy)
        if self.before is not None and self.func is not Tensor.copy_:
            known.made, known.by, known.source = self.before.made, self.before.by, self.before.origin()
        elif known.made is None:
            known.made, known.by = frame, self.func
        known.moved = frame
        storage = storage_of(self.copy)
        if storage is not None and self.target == HOST and self.func is not Tensor.copy_:
            setattr(storage, _TRIP, _Trip(self.tensor, self.copy) if _counts_changes(self.tensor) else None)


def _copied(calls: Calls, func: Any, tensor: Tensor | None, copy: Tensor, asynchronous: bool, seconds: float) -> None:
    """Tells the guard of a copy that was made."""
    guard, caller = calls.guard, calling_frame()
    by_module = caller is not None and caller.f_code.co_filename == _MODULE_FILE
    operation = "Module.to" if by_module else name_of(func)
    made = _Copy(func, tensor, copy, asynchronous)
    rule, message = made.fault(calls) if caller is not None and not is_torchs_own(caller) else (None, "")
    notes: tuple[tuple[Site | None, str], ...] = ()
    found = own_frame(caller)
    frame = found[0] if found else None
    if rule is not None and made.before is not None and made.before.made not in (None, frame):
        notes = ((site_of(made.before.made), "the tensor was made"),)
    made.inherit(frame)
    guard.emit(
        Event(
            "moved",
            rule,
            message or f"a copy from {made.source} to {made.target}",
            operation,
            site_of(*found) if found else None,
            bytes=_size(copy),
            source=str(made.source),
            target=str(made.target),
            pinned=made.pinned,
            blocking=made.blocking,
            notes=notes,
        )
    )
    if made.blocking and (is_device(made.source) or is_device(made.target)):
        waited(guard, operation, seconds, repeated=IN_LOOP if made.target == HOST and not by_module else None)
    elif made.target == HOST and is_device(made.source):
        guard.arrivals.send(record_for(copy), frame)


# What has not changed -------------------------------------------------------------------------------------------------


class _Trip:
    """What came to the host from a device: of which tensor it is the copy, and the versions of both."""

    __slots__ = ("origin", "origin_version", "version")

    def __init__(self, origin: Tensor, copy: Tensor) -> None:
        self.origin = weakref.ref(origin)
        self.origin_version = origin._version
        self.version = copy._version

    def is_unchanged(self, copy: Tensor, target: torch.device) -> bool:
        """Whether `target` still has what `copy` holds."""
        origin = self.origin()
        if origin is None or (origin._version, copy._version) != (self.origin_version, self.version):
            return False
        return device_of(origin) == target


def _counts_changes(tensor: Tensor | None) -> TypeGuard[Tensor]:
    """Whether ``_version`` tells of every change: not under ``inference_mode``, not of parameters (``.data``)."""
    return tensor is not None and not tensor.is_inference() and not isinstance(tensor, torch.nn.Parameter)


def aliased(tensor: Tensor) -> None:
    """NumPy shares the tensor's memory from now on, and changes it without telling."""
    storage = storage_of(tensor)
    if storage is not None:
        setattr(storage, _TRIP, None)


@dataclass
class Last:
    """What an instruction has copied last: which tensor in which version, where to, how often on end.

    Attributes:
        digest: of the values, from the second time on: versions do not tell what NumPy changes in shared memory.
    """

    tensor: weakref.ref[Tensor]
    version: int
    target: torch.device
    count: int = 1
    digest: bytes = b""


def _comes_back(guard: Guard, tensor: Tensor, target: torch.device) -> bool:
    """Whether this instruction has copied nothing but this tensor the last few times, unchanged."""
    frame, inner = running_frame(sys._getframe(1))
    frame = inner or frame
    if frame is None or not _counts_changes(tensor) or tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    spot = (frame.f_code, frame.f_lasti)
    last = guard.last_copies.get(spot)
    if last is None or last.tensor() is not tensor or (last.version, last.target) != (tensor._version, target):
        guard.last_copies[spot] = Last(weakref.ref(tensor), tensor._version, target)
        return False
    last.count += 1
    if last.count < REPEATS:
        last.digest = _digest(tensor)
    elif last.count == REPEATS and last.digest != _digest(tensor):
        last.count = -sys.maxsize  # not to be asked again
    return last.count >= REPEATS


def _digest(tensor: Tensor) -> bytes:
    with unhooked():
        values = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return hashlib.blake2b(values.numpy().data, digest_size=16).digest()


def _size(tensor: Tensor) -> int:
    """Bytes that a copy of the tensor takes."""
    if tensor.layout is torch.strided:
        return tensor.numel() * tensor.element_size()
    storage = storage_of(tensor)
    return 0 if storage is None else int(storage.nbytes())
