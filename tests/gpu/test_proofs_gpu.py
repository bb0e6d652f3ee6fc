"""What the rules claim is true of torch, on a real GPU; on a simulated one: ``test_proofs.py``.

The simulator has no time. What only time can show, whether the host waits for a device that is busy, is shown here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness import Fixture
from proofs import REAL, needs, proofs, prove

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
]

CYCLES = 500_000_000  # a quarter of a second, on the clocks of today's GPUs
LARGE = 1 << 20


@pytest.mark.parametrize("fixture", proofs(), ids=lambda fixture: fixture.id)
def test_what_is_reported_happens_and_is_gone_once_fixed(fixture: Fixture) -> None:
    need = needs(fixture)
    if need is not None and not (need == "two GPUs" and torch.cuda.device_count() > 1):
        pytest.skip(f"needs {need}")
    if wrong := prove(fixture, REAL):
        pytest.fail(wrong, pytrace=False)


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


READS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool(x.sum()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "print": repr,
    "format": lambda x: f"{x.sum():.3f}",
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reading_a_value_waits_for_the_device(read: Callable[[Any], Any]) -> None:
    assert _waits(read, torch.ones(3, device="cuda"))


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
