"""Profilers: they see what the host does, and no device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import profiler

from devlint.runtime.simulator import Simulator


class Ranges:
    """NVTX ranges, which nobody reads: only their depth is kept."""

    def __init__(self) -> None:
        self._depth = 0

    def rangePushA(self, message: str) -> int:
        """Begins a nested range."""
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:
        """Ends a nested range."""
        self._depth -= 1
        return self._depth

    def rangeStartA(self, message: str) -> int:
        """Begins a range; any number names it."""
        return 0

    def rangeEnd(self, number: int) -> None:
        """Ends a range."""

    def markA(self, message: str) -> None:
        """Marks a moment."""


def replacements(simulator: Simulator) -> Iterator[tuple[Any, Any, Any]]:
    """Profilers that leave the device out, where torch's C++ would warn at each operation that there is none."""
    machine = simulator.machine
    begin, enter = profiler.profile.__init__, profiler.emit_nvtx.__enter__

    def host_only(profile: Any, *args: Any, use_cuda: bool = False, use_device: Any = None, **options: Any) -> None:
        if use_cuda or use_device == "cuda":
            machine.step_aside("torch.profiler", "sees what the host does here, and no device")
            use_device, options["use_cpu"] = None, True
        begin(profile, *args, use_device=use_device, **options)

    def without_ranges(emit_nvtx: Any) -> Any:
        emit_nvtx.enabled = False
        enter(emit_nvtx)
        return emit_nvtx

    if machine.kind == "cuda":
        yield torch.cuda.nvtx, "_nvtx", Ranges()
        yield profiler.profile, "__init__", host_only
        yield profiler.emit_nvtx, "__enter__", without_ranges
