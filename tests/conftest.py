from collections.abc import Iterator
from pathlib import Path

import pytest

try:
    from hypothesis import settings
except ImportError:  # the fixtures are tested against the wheel without it
    pass
else:
    settings.register_profile("untimed", deadline=None)  # a busy machine is no fault of the code
    settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite fixtures/**/*.fixed.py as the fixes settle now")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, with no settings and no repository above it."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def toy_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three rules about names stand for all others: the habits of the command line do not depend on which rules exist.

    ``poor-name`` (performance): `poor` has a safe fix, `poorer` an unsafe one. ``fatal-name`` (correctness): `fatal`,
    and tentatively `perhaps_fatal`. ``trial-name`` (nursery): `trial`, and tentatively `perhaps_trial`.
    """
    import libcst as cst

    from devlint import config, docs, rule

    class PoorName(rule.Rule):
        group = "performance"
        fixable = "sometimes"

        def visit_Name(self, node: cst.Name) -> None:
            if node.value in ("poor", "poorer"):
                fix = self.fix("call it `good`", self.replace(node, "good"), safe=node.value == "poor")
                self.report(node, f"`{node.value}` is a poor name", fix=fix)

    class FatalName(rule.Rule):
        group = "correctness"

        def visit_Name(self, node: cst.Name) -> None:
            if node.value in ("fatal", "perhaps_fatal"):
                self.report(node, f"`{node.value}` is a fatal name", tentative=node.value != "fatal")

    class TrialName(rule.Rule):
        group = "nursery"

        def visit_Name(self, node: cst.Name) -> None:
            if node.value in ("trial", "perhaps_trial"):
                self.report(node, f"`{node.value}` is on trial", tentative=node.value != "trial")

    kinds: dict[str, type[rule.Rule]] = {kind.name: kind for kind in (FatalName, PoorName, TrialName)}
    built_in = {name: info for name, info in docs.rules().items() if info.path is None}
    toys = {name: docs.RuleInfo(name, kind.group, kind.fixable, "A toy.", "") for name, kind in kinds.items()}
    monkeypatch.setattr(rule, "discover", lambda: kinds)
    monkeypatch.setattr(rule, "rule_files", lambda: dict.fromkeys(kinds, ""))
    monkeypatch.setattr(docs, "rules", lambda: {**toys, **built_in})
    for cached in (config.selectable, config._enabled):
        cached.cache_clear()
    yield
    for cached in (config.selectable, config._enabled):
        cached.cache_clear()
