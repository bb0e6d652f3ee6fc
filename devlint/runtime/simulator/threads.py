"""Threads: the modes are a thread's own, so each new one enters them.

Not faithful: a thread that ran before the simulation began, or that ``_thread`` starts, sees no devices; one that
outlives the simulation still does. Backward runs in the calling thread, where a GPU's runs in one of the engine's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from devlint.runtime.simulator import Simulator


def replacements(simulator: Simulator) -> Iterator[tuple[Any, Any, Any]]:
    """Threads that start with the modes."""
    start = threading.Thread.start

    def start_thread(thread: threading.Thread) -> None:
        run = thread.run

        def run_with_modes() -> None:
            with simulator.running():
                run()

        thread.run = run_with_modes  # type: ignore[method-assign]
        start(thread)

    yield threading.Thread, "start", start_thread
