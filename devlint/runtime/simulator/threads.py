"""Threads: the modes are a thread's own, so each new one enters them.

Not faithful: a thread that ran before the simulation began, or that ``_thread`` starts, sees no devices; one that
outlives the simulation still does. Backward runs in the calling thread, where a GPU's runs in one of the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator

from devlint.runtime.replacing import Replacement, new_threads_inside
from devlint.runtime.simulator import Simulator


def replacements(simulator: Simulator) -> Iterator[Replacement]:
    """Threads that start with the modes."""
    yield new_threads_inside(simulator.running)
