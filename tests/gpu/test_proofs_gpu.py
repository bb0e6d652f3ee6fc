"""What the rules claim is true of torch, on a real GPU; on a simulated one: ``test_proofs.py``."""

from __future__ import annotations

import pytest
import torch

from harness import Fixture
from proofs import REAL, needs, proofs, prove

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
]


@pytest.mark.parametrize("fixture", proofs(), ids=lambda fixture: fixture.id)
def test_what_is_reported_happens_and_is_gone_once_fixed(fixture: Fixture) -> None:
    need = needs(fixture)
    if need is not None and not (need == "two GPUs" and torch.cuda.device_count() > 1):
        pytest.skip(f"needs {need}")
    if wrong := prove(fixture, REAL):
        pytest.fail(wrong, pytrace=False)
