"""What is not a tensor's: ``torch.cuda``, autocast, threads, processes. Replaced in a simulation, then put back.

``torch.cuda``, ``torch.mps`` and ``torch.accelerator`` are Python over functions of ``torch._C``. It is these that are
replaced, so that torch's own Python above them reads arguments, raises errors and adds up statistics as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import _lru_cache_wrapper

import torch

from devlint.runtime.replacing import replaced
from devlint.runtime.simulator import (
    Simulator,
    accelerator,
    amp,
    cuda,
    generators,
    mps,
    parallel,
    processes,
    profiling,
    streams,
    threads,
)


@contextmanager
def patched(simulator: Simulator) -> Iterator[None]:
    """Puts the imaginary machine in place of the real one."""
    device = cuda if simulator.machine.kind == "cuda" else mps
    parts = (device, accelerator, streams, generators, amp, parallel, profiling, threads, processes)
    with ExitStack() as stack:
        stack.enter_context(amp.restored())
        for part in parts:
            stack.enter_context(replaced(part.replacements(simulator)))
        stack.callback(_forget)
        _forget()
        yield


def _forget() -> None:
    """Drops what torch remembers of the machine that it runs on: before and after a simulation it is another."""
    for module in (torch, torch.cuda, torch.backends.mps, getattr(torch, "accelerator", None)):  # 2.6 brought the last
        for function in vars(module).values() if module else ():
            if isinstance(function, _lru_cache_wrapper):
                function.cache_clear()
