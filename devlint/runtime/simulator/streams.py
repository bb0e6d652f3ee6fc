"""Streams and events: kept in order, with nothing to wait for, since every operation is done when it returns.

Not faithful: no work is ever pending, so that a missing wait shows no race; times between events are the host's; events
are not shared with other processes. Classes that were imported by name before the simulation began are torch's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from devlint.runtime.placement import device_of
from devlint.runtime.simulator import Simulator, active
from devlint.runtime.simulator.functions import handles
from devlint.runtime.simulator.machine import Machine

_DEVICE_TYPES = {"cuda": 1, "mps": 13}  # c10/core/DeviceType.h


def _machine() -> Machine:
    simulator = active()
    if simulator is None:
        raise RuntimeError("this stream or event belongs to a simulated machine, and no simulation runs")
    return simulator.machine


class Stream(torch.Stream):
    """In place of ``torch.Stream``: a number on a device.

    ``torch.Stream(device=None, *, priority=0)``; the default stream of a device is number 0.
    """

    _made = 0

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        machine = _machine()
        if "stream_id" in kwargs:
            number, index = kwargs["stream_id"], kwargs["device_index"]
        else:
            Stream._made += 1
            anywhere = device is None or (isinstance(device, int) and device < 0)
            number, index = Stream._made, machine.device(machine.kind if anywhere else device).index
        kind = _DEVICE_TYPES[machine.kind]
        stream = super().__new__(cls, stream_id=number, device_index=index, device_type=kind)
        stream.__dict__["priority"] = priority
        return stream

    @property
    def cuda_stream(self) -> int:
        """In place of the handle: the number."""
        return self.stream_id

    native_handle = cuda_stream

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority, of an A100."""
        return 0, -5

    def query(self) -> bool:
        """All is done."""
        return True

    def is_capturing(self) -> bool:
        """No graph is captured: optimizers ask in every step."""
        return False

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """There is nothing to wait for."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """There is nothing to wait for."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        """Records `event`, or a new one, now."""
        event = (torch.cuda.Event if self.device.type == "cuda" else torch.Event)() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        machine = _machine()
        self.__dict__.setdefault("_before", []).append((machine.current, current(machine, self.device_index)))
        select(machine, self)
        return self

    def __exit__(self, *exception: Any) -> None:
        machine = _machine()
        index, stream = self.__dict__["_before"].pop()
        select(machine, stream)
        machine.current = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.stream_id, self.device) == (other.stream_id, other.device)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device))

    def __repr__(self) -> str:
        if self.device.type != "cuda":
            return super().__repr__()
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """In place of ``torch.cuda.ExternalStream(stream_ptr, device=None)``."""

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> Any:
        machine = _machine()
        index = machine.device(machine.kind if device is None else device).index
        return super().__new__(cls, stream_id=stream_ptr, device_index=index)


class Event(torch.Event):
    """In place of ``torch.cuda.Event`` and ``torch.Event``: a moment on the host's clock."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls, device="cpu")

    def __init__(
        self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False,
        external: bool = False,
    ) -> None:  # fmt: skip
        machine = _machine()
        self.enable_timing = enable_timing
        self._device = torch.device(machine.kind) if device is None else machine.device(device)
        self._moment: float | None = None

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it was recorded."""
        return self._device

    def record(self, stream: Any = None) -> None:
        """Takes the time: all that came before is done."""
        machine = _machine()
        self._device = current(machine, machine.current).device if stream is None else stream.device
        machine.use()
        self._moment = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """There is nothing to wait for."""

    def query(self) -> bool:
        """All is done."""
        return True

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds between two records, by the host's clock.

        Raises:
            ValueError: torch's own, for events that keep no time or were not recorded.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._moment is None or end_event._moment is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._moment - self._moment) * 1000

    @property
    def cuda_event(self) -> int:
        """In place of the handle."""
        return 0 if self._moment is None else id(self)

    def ipc_handle(self) -> bytes:
        """Refused: there is no device whose event another process could open."""
        result: bytes = _machine().not_simulated("torch.cuda.Event.ipc_handle")()
        return result

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: Any) -> Event:
        """Refused: see `ipc_handle`."""
        result: Event = _machine().not_simulated("torch.cuda.Event.from_ipc_handle")()
        return result

    def __repr__(self) -> str:
        return f"<torch.{self._device.type}.Event {self.cuda_event:#x}>"


class CudaEvent(Event):
    """In place of ``torch.cuda.Event``, whose arguments may come by position."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        super().__init__(enable_timing=enable_timing)


def current(machine: Machine, index: int) -> Stream:
    """This thread's current stream on a device."""
    stream = getattr(machine.local, "streams", {}).get(index)
    return default(machine, index) if stream is None else stream


def default(machine: Machine, index: int) -> Stream:
    """A device's default stream."""
    cls = torch.cuda.Stream if machine.kind == "cuda" else Stream
    stream: Stream = cls(stream_id=0, device_index=index)  # type: ignore[assignment]
    return stream


def select(machine: Machine, stream: Any) -> None:
    """Makes `stream` this thread's current one on its device, and that the current device, as torch does."""
    machine.local.__dict__.setdefault("streams", {})[stream.device_index] = stream
    machine.current = stream.device_index


@handles(torch.Tensor.record_stream)
def record_stream(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> None:
    """Memory lives as long as its tensor here; only a tensor of the host is refused, by torch itself."""
    if not simulator.machine.is_device(device_of(args[0])):
        func(*args, **kwargs)


def replacements(simulator: Simulator) -> Iterator[tuple[Any, Any, Any]]:
    """Streams and events of the imaginary devices."""
    machine = simulator.machine

    def data(stream: Stream) -> tuple[int, int, int]:
        return stream.stream_id, stream.device_index, stream.device_type

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        select(machine, torch.cuda.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

    yield torch, "Stream", Stream
    yield torch, "Event", Event
    if machine.kind == "cuda":
        yield torch._C, "_cuda_getCurrentStream", lambda index: data(current(machine, machine.device(index).index))
        yield torch._C, "_cuda_getDefaultStream", lambda index: data(default(machine, machine.device(index).index))
        yield torch._C, "_cuda_getStreamFromExternal", lambda pointer, index: (pointer, index, _DEVICE_TYPES["cuda"])
        yield torch._C, "_cuda_setStream", set_stream
        for module in (torch.cuda, torch.cuda.streams):
            yield module, "Stream", Stream
            yield module, "ExternalStream", ExternalStream
            yield module, "Event", CudaEvent
        # Where torch keeps one stream for each device of the data that it scatters.
        yield torch.nn.parallel._functions, "_streams", None
