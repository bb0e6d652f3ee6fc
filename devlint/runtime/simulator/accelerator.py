"""``torch.accelerator``, from the functions of ``torch._C`` that it calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from devlint.runtime.simulator import Simulator
from devlint.runtime.simulator.cuda import statistics
from devlint.runtime.simulator.machine import TOTAL_MEMORY
from devlint.runtime.simulator.streams import current, select

_FLOATS = {torch.float16, torch.bfloat16, torch.float32}
_OTHERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64}
_CUDA_ONLY = {torch.float64, torch.complex128, torch.complex32}


def replacements(simulator: Simulator) -> Iterator[tuple[Any, Any, Any]]:
    """The imaginary devices as the current accelerator's."""
    machine = simulator.machine
    kind = torch.device(machine.kind)

    def set_device(index: int) -> None:
        if index >= 0:
            machine.current = index

    def exchange(index: int) -> int:
        before = machine.current
        set_device(index)
        return before

    def nothing(*args: Any) -> None: ...

    functions = {
        "_get_accelerator": lambda check=None: kind,
        "_accelerator_getAccelerator": lambda: kind,
        "_accelerator_getDeviceIndex": lambda: machine.device(kind).index,
        "_accelerator_setDeviceIndex": set_device,
        "_accelerator_exchangeDevice": exchange,
        "_accelerator_maybeExchangeDevice": exchange,
        "_accelerator_getStream": lambda index: current(machine, index),
        "_accelerator_setStream": lambda stream: select(machine, stream),
        "_accelerator_synchronizeDevice": nothing,
        "_accelerator_isAllocatorInitialized": lambda: machine.initialized,
        "_accelerator_emptyCache": machine.empty_cache,
        "_accelerator_emptyHostCache": nothing,
        "_accelerator_getDeviceStats": lambda index: statistics(machine, index),
        "_accelerator_resetPeakStats": lambda index: machine.memory_of(index).reset_peaks(),
        "_accelerator_resetAccumulatedStats": lambda index: machine.memory_of(index).reset_sums(),
        "_accelerator_getMemoryInfo": lambda index: (TOTAL_MEMORY - machine.memory_of(index).reserved, TOTAL_MEMORY),
        "_accelerator_getDeviceCapability": lambda index: {
            "supported_dtypes": _FLOATS | _OTHERS | (_CUDA_ONLY if machine.kind == "cuda" else set())
        },
    }
    yield from ((torch._C, name, function) for name, function in functions.items())
