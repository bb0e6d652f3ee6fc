"""The pytest plugin: tests under a guard, and on imaginary devices.

- ``pytest --device-guard`` runs each test under `devlint.guard`; ``--simulate-gpus N`` runs the whole session, from the
  import of its first conftest on, as if there were N GPUs.
- ``@pytest.mark.device_guard(max_syncs=0)`` guards one test, class or module, with or without the option. Its arguments
  are those of `devlint.guard`; the nearest marker counts.
- The fixture ``device_guard`` is the `Report` of the test that asks for it.

The guard lasts as long as the test's own function: what fixtures do before and after is not looked at. A plugin that
nobody asks anything imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from devlint.runtime import require_torch
from devlint.runtime.errors import BudgetExceeded

if TYPE_CHECKING:
    from devlint.runtime.events import Report
    from devlint.runtime.guard import Guard

_MARKER = "device_guard"
_guard_key: pytest.StashKey[Guard] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("devlint", "device placement (devlint)")
    group.addoption("--device-guard", action="store_true", help="run each test under devlint's guard")
    group.addoption("--simulate-gpus", metavar="N|mps", help="run all tests as if there were N CUDA devices")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    asked = early_config.known_args_namespace
    if asked.simulate_gpus is not None:
        kind, count = _devices(asked.simulate_gpus)
        if not _only_hands_out(early_config):
            _require_torch_for_all()
            from devlint.runtime.simulator import simulate

            machine = ExitStack()
            machine.enter_context(simulate(count, kind))
            early_config.add_cleanup(machine.close)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "device_guard(max_syncs=..., on=..., ...): run the test under devlint.guard with these arguments"
    )
    if config.getoption("device_guard") and not _only_hands_out(config):
        _require_torch_for_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    guard = _guard_of(item)
    if guard is None:
        return (yield)
    try:
        with guard:
            return (yield)
    except BudgetExceeded as error:
        if not guard.report.failures:  # of another guard, in the test
            raise
        pytest.fail(str(error), pytrace=False)
    finally:
        if guard.report.lines or guard.report.failures:
            from devlint.runtime.report import render

            item.add_report_section("call", "device guard", render(guard.report, "text"))


@pytest.fixture
def device_guard(request: pytest.FixtureRequest) -> Report:
    """What the guard sees in this test; all of it is there when the test's function has ended."""
    guard = _guard_of(request.node, asked=True)
    assert guard is not None
    return guard.report


def _guard_of(item: pytest.Item, asked: bool = False) -> Guard | None:
    """The guard that a test runs under, made on first use; ``None`` where nobody asks for one."""
    marker = item.get_closest_marker(_MARKER)
    if marker is None and not asked and not item.config.getoption("device_guard") and _guard_key not in item.stash:
        return None
    if _guard_key not in item.stash:
        try:
            require_torch()
        except ImportError as error:
            pytest.fail(f"devlint: {error}", pytrace=False)
        from devlint.runtime.guard import guard

        if marker is not None and marker.args:
            pytest.fail("`device_guard` takes its arguments by name", pytrace=False)
        try:
            item.stash[_guard_key] = guard(**(marker.kwargs if marker is not None else {}))
        except (TypeError, ValueError) as error:
            pytest.fail(f"`device_guard`: {error}", pytrace=False)
    return item.stash[_guard_key]


def _devices(text: str) -> tuple[str, int]:
    if text == "mps":
        return "mps", 1
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise pytest.UsageError(f"--simulate-gpus: `{text}` is neither a number of devices nor `mps`")
    return "cuda", int(text)


def _only_hands_out(config: pytest.Config) -> bool:
    """Whether this process leaves the tests to workers of pytest-xdist, which have the same options."""
    asked = config.known_args_namespace
    handed_out = getattr(asked, "numprocesses", None) or getattr(asked, "tx", None)
    return bool(handed_out) and "PYTEST_XDIST_WORKER" not in os.environ


def _require_torch_for_all() -> None:
    try:
        require_torch()
    except ImportError as error:
        raise pytest.UsageError(f"devlint: {error}") from error
