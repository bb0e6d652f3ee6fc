"""What the guard counts as a wait on a simulated GPU; that a real one waits there, too: ``gpu/test_waits_gpu.py``."""

from __future__ import annotations

import pytest

import devlint
from devlint.runtime.simulator import simulate
from waiting_calls import KNOWN, numbers


@pytest.mark.parametrize("name", KNOWN)
def test_the_guard_counts_a_wait_on_a_simulated_gpu_where_a_real_one_waits(name: str) -> None:
    call, waits = KNOWN[name]
    with simulate():
        given = numbers()
        with devlint.guard() as report:
            call(given)
    assert bool(list(report.of("waited"))) == waits
