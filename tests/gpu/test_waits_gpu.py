"""Where the host waits for a real GPU: by time, which the simulator has none of, and by what the guard counts there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import devlint
from waiting_calls import KNOWN, numbers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
]

CYCLES = 500_000_000  # a quarter of a second, on the clocks of today's GPUs
LARGE = 1 << 20


def _waits(work: Callable[[Any], Any], given: Any) -> bool:
    """Whether `work` comes back only when the device is done with what was queued before."""
    work(given)  # what is loaded and allocated on first use
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(CYCLES)
    done.record()
    assert not done.query()
    result = work(given)
    waited = done.query()
    torch.cuda.synchronize()
    del result
    return waited


@pytest.mark.parametrize("name", KNOWN)
def test_a_call_waits_for_the_device_where_it_is_known_to(name: str) -> None:
    call, waits = KNOWN[name]
    assert _waits(call, numbers()) == waits


@pytest.mark.parametrize("name", KNOWN)
def test_the_guard_counts_a_wait_where_there_is_one(name: str) -> None:
    call, waits = KNOWN[name]
    given = numbers()
    call(given)  # what is loaded and allocated on first use
    with devlint.guard() as report:
        call(given)
    assert bool(list(report.of("waited"))) == waits


COPIES = {
    "pinned, blocking": (lambda: torch.ones(LARGE).pin_memory(), lambda x: x.to("cuda"), True),
    "pinned, asynchronous": (lambda: torch.ones(LARGE).pin_memory(), lambda x: x.to("cuda", non_blocking=True), False),
    "pageable, blocking": (lambda: torch.ones(LARGE), lambda x: x.to("cuda"), True),
    "small and pageable, asynchronous": (lambda: torch.ones(16), lambda x: x.to("cuda", non_blocking=True), False),
    "made on the host and moved": (lambda: LARGE, lambda n: torch.zeros(n).to("cuda"), True),
    "made on the device": (lambda: LARGE, lambda n: torch.zeros(n, device="cuda"), False),
    "constants, on the device": (lambda: [0.5, 0.4], lambda xs: torch.tensor(xs, device="cuda"), True),
    "back, asynchronous": (lambda: torch.ones(LARGE, device="cuda"), lambda x: x.to("cpu", non_blocking=True), False),
}


@pytest.mark.parametrize(("make", "copy", "waits"), COPIES.values(), ids=COPIES.keys())
def test_a_copy_waits_where_the_rules_say_so(make: Callable[[], Any], copy: Callable[[Any], Any], waits: bool) -> None:
    assert _waits(copy, make()) == waits


def test_a_copy_to_the_host_that_nobody_waits_for_is_read_too_early() -> None:
    x, buffer = torch.ones(LARGE, device="cuda"), torch.zeros(LARGE, pin_memory=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(CYCLES)
    buffer.copy_(x, non_blocking=True)
    early = buffer.sum().item()
    torch.cuda.synchronize()
    assert (early, buffer.sum().item()) == (0, LARGE)
