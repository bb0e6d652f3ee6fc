"""``torch.mps``, from the functions of ``torch._C`` that it calls.

Not faithful: every operation runs, also those that MPS has no kernel for, and dtypes other than float64 are not
checked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from devlint.runtime.simulator import Simulator
from devlint.runtime.simulator.cuda import everywhere
from devlint.runtime.simulator.machine import TOTAL_MEMORY


def replacements(simulator: Simulator) -> Iterator[tuple[Any, Any, Any]]:
    """The imaginary device as Apple's, on a machine without CUDA."""
    machine = simulator.machine
    memory = machine.memory[0]
    events: dict[int, tuple[bool, float | None]] = {}  # by number: whether it keeps time, and when it was recorded

    def acquire(timing: bool) -> int:
        number = len(events) + 1
        events[number] = (timing, None)
        return number

    def record(number: int) -> None:
        events[number] = (events[number][0], time.perf_counter())

    def elapsed(start: int, end: int) -> float:
        (timed, begun), (also, ended) = events[start], events[end]
        if not (timed and also) or begun is None or ended is None:
            raise RuntimeError("Both events must be created with enable_timing=True and recorded")
        return (ended - begun) * 1000

    def no_cuda() -> None:
        raise AssertionError("Torch not compiled with CUDA enabled")

    def nothing(*args: Any) -> None: ...

    functions = {
        "_mps_is_available": lambda: True,
        "_mps_is_on_macos_or_newer": lambda major, minor: True,
        "_mps_is_in_bad_fork": lambda: machine.in_bad_fork,
        "_mps_get_name": lambda: "devlint imaginary GPU",
        "_mps_get_core_count": lambda: 10,
        "_mps_deviceSynchronize": nothing,
        "_mps_emptyCache": memory.empty_cache,
        "_mps_setMemoryFraction": nothing,
        "_mps_currentAllocatedMemory": lambda: memory.all.bytes,
        "_mps_driverAllocatedMemory": lambda: memory.reserved,
        "_mps_recommendedMaxMemory": lambda: TOTAL_MEMORY,
        "_mps_maxBufferLength": lambda: TOTAL_MEMORY,
        "_mps_acquireEvent": acquire,
        "_mps_releaseEvent": nothing,
        "_mps_recordEvent": record,
        "_mps_waitForEvent": nothing,
        "_mps_synchronizeEvent": nothing,
        "_mps_queryEvent": lambda number: True,
        "_mps_elapsedTimeOfEvents": elapsed,
        "_mps_profilerStartTrace": nothing,
        "_mps_profilerStopTrace": nothing,
        "_mps_isCapturing": lambda: False,
        "_mps_isCaptureEnabled": lambda: False,
    }
    yield from ((torch._C, name, function) for name, function in functions.items())
    yield torch._C, "_has_mps", True
    for name in ("compile_shader", "load_metallib"):
        if hasattr(torch.mps, name):
            yield torch.mps, name, machine.not_simulated(f"torch.mps.{name}")
    # A machine with MPS has no CUDA, not even where this one does.
    yield torch._C, "_has_cuda", False
    yield torch._C, "_has_cudnn", False
    yield torch.version, "cuda", None
    yield from everywhere(_lazy_init=no_cuda, is_available=lambda: False, device_count=lambda: 0)
