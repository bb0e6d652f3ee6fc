"""What is not a tensor's: ``torch.cuda``, autocast, threads, processes. Replaced in a simulation, then put back.

``torch.cuda``, ``torch.mps`` and ``torch.accelerator`` are Python over functions of ``torch._C``. It is these that are
replaced, so that torch's own Python above them reads arguments, raises errors and adds up statistics as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import _lru_cache_wrapper
from typing import Any

import torch

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

Replacement = tuple[Any, Any, Any]  # a module, class or dict; the name or key in it; what stands there in a simulation
_MISSING = object()


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Sets attributes and items, and puts back what was there, in the reverse order."""
    done: list[Replacement] = []
    try:
        for owner, name, new in replacements:
            done.append((owner, name, (owner if isinstance(owner, dict) else vars(owner)).get(name, _MISSING)))
            _set(owner, name, new)
        yield
    finally:
        for owner, name, before in reversed(done):
            _set(owner, name, before)


def _set(owner: Any, name: Any, value: Any) -> None:
    if isinstance(owner, dict):
        if value is _MISSING:
            del owner[name]
        else:
            owner[name] = value
    elif value is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


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
