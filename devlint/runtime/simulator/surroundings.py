"""What is not a tensor's: ``torch.cuda``, autograd's engine, threads. Replaced while the simulator runs, then put back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from devlint.runtime.simulator import Simulator


@contextmanager
def patched(simulator: Simulator) -> Iterator[None]:
    """Puts the imaginary machine in place of the real one."""
    machine = simulator.machine
    engine = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        with simulator.in_backward():
            return engine(*args, **kwargs)

    start = threading.Thread.start

    def start_thread(thread: threading.Thread) -> None:
        run = thread.run

        def run_with_modes() -> None:
            with simulator.running():
                run()

        thread.run = run_with_modes  # type: ignore[method-assign]
        start(thread)

    replacements = {
        (torch.autograd, "_engine_run_backward"): run_backward,
        (torch.cuda, "is_available"): lambda: machine.kind == "cuda",
        (torch.cuda, "device_count"): lambda: machine.count if machine.kind == "cuda" else 0,
        (torch.cuda, "current_device"): lambda: machine.current,
        (torch.cuda, "synchronize"): lambda device=None: None,
        (torch.cuda, "memory_allocated"): lambda device=None: machine.allocated[machine.device(device or 0).index],
        (threading.Thread, "start"): start_thread,
    }
    patches = [patch.object(owner, name, new) for (owner, name), new in replacements.items()]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in reversed(patches):
            one.stop()
