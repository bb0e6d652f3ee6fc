"""The rules themselves: documented, proved by fixtures, and as their group promises."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from devlint import docs, engine
from devlint.finding import DEFAULT_GROUPS, GROUPS, INTERNAL_ERROR, Finding
from devlint.rule import discover, rule_files
from harness import FIXTURES, FLOW, ROOT, check, fixtures, only

NAMES = list(rule_files())
each_rule = pytest.mark.parametrize("name", NAMES)

REPORTED, SILENT = 8, 20

# what only a person can decide is not in a message that promises a crash
HEDGES = re.compile(r"\b(may|might|maybe|possibly|probably|could|perhaps|likely|seems?)\b")


def _findings(name: str) -> list[Finding]:
    return [finding for fixture in fixtures(name) for finding in check(fixture) if finding.rule == name]


# fixtures -------------------------------------------------------------------------------------------


@each_rule
def test_every_rule_gets_through_the_fixtures_of_the_others(name: str) -> None:
    broken = {
        f"{fixture.file.name}: {finding.message}"
        for fixture in fixtures(name)
        for finding in check(fixture, rules=NAMES)
        if finding.rule == INTERNAL_ERROR
    }
    assert broken == set()


@each_rule
def test_a_rule_has_enough_reported_and_enough_silent_lines(name: str) -> None:
    """A silent line is one on which a call or an assignment starts and which no marker points at."""
    reported = silent = 0
    for fixture in fixtures(name):
        marked = {marker.row for marker in fixture.markers if marker.rule == name}
        statements = (ast.Call, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
        code = {node.lineno for node in ast.walk(ast.parse(fixture.raw)) if isinstance(node, statements)}
        reported += len(marked)
        silent += len(code - marked)
    assert reported >= REPORTED and silent >= SILENT, f"{reported} reported and {silent} silent lines"


def test_every_fixture_folder_is_that_of_a_rule() -> None:
    folders = {path.name for path in FIXTURES.iterdir() if path.is_dir()}
    assert folders <= {FLOW, *NAMES, *engine.BUILT_IN}


def test_every_fixed_file_belongs_to_a_fixture() -> None:
    fixed = set(FIXTURES.rglob("*.fixed.py"))
    assert fixed <= {fixture.fixed_file for fixture in fixtures()}


@each_rule
def test_a_rule_offers_the_fixes_that_it_claims(name: str) -> None:
    offered = {finding.fix is not None for finding in _findings(name)}
    assert offered == {"always": {True}, "sometimes": {True, False}, "never": {False}}[discover()[name].fixable]


# documentation --------------------------------------------------------------------------------------


@each_rule
def test_a_rule_explains_itself_in_all_sections(name: str) -> None:
    assert docs.page(name)["Fix safety"] if discover()[name].fixable != "never" else docs.page(name)


@each_rule
def test_the_example_is_reported_and_its_cure_is_not(name: str) -> None:
    example, instead = docs.examples(name)

    def found(code: str) -> list[str]:
        return [finding.rule for finding in engine.check(code.encode(), "example.py", only({name}))]

    assert set(found(example)) == {name}
    assert found(instead) == []


@each_rule
def test_what_is_read_of_a_rule_without_importing_it_is_what_it_is(name: str) -> None:
    rule, info = discover()[name], docs.rules()[name]
    assert (rule.name, rule.group, rule.fixable) == (info.name, info.group, info.fixable)


# messages and groups --------------------------------------------------------------------------------


@each_rule
def test_messages_and_notes_start_in_lower_case_and_have_no_full_stop(name: str) -> None:
    said = {text for finding in _findings(name) for text in (finding.message, *(n.message for n in finding.notes))}
    assert said
    for text in said:
        # code and names in backticks keep their case
        assert re.match(r"[`a-z0-9]", text), text
        assert not text.endswith((".", "!", ":")), text
        assert "\n" not in text and text.count("`") % 2 == 0, text


@each_rule
def test_a_rule_keeps_its_groups_promise(name: str) -> None:
    group = discover()[name].group
    assert group in GROUPS and docs.rules()[name].default == (group in DEFAULT_GROUPS)
    for finding in _findings(name):
        assert finding.group in (group, "nursery")  # the nursery has the tentative ones
        assert finding.level == GROUPS[finding.group]
        if group == "correctness":
            assert not HEDGES.search(re.sub(r"`[^`]*`", "", finding.message)), finding.message


# imports --------------------------------------------------------------------------------------------


def test_rules_are_loaded_once_under_their_installed_name() -> None:
    discover()
    assert "rules" not in sys.modules


@pytest.mark.parametrize(
    "file",
    [file for folder in ("devlint", "rules") for file in sorted((ROOT / folder).rglob("*.py"))],
    ids=lambda file: file.relative_to(ROOT).as_posix(),
)
def test_only_the_runtime_companion_imports_torch(file: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.add((node.module or "").partition(".")[0])
    if ROOT / "devlint" / "runtime" not in file.parents:
        assert not imported & {"torch", "numpy"}
    if file.parent == ROOT / "rules":
        assert "rules" not in imported, "import devlint.rules, or the rule exists twice"


FAULTY = "import torch\n\n\ndef step(x: torch.Tensor, device):\n    return (\n"
CLEAN = "import torch\n\n\ndef step(x: torch.Tensor, device):\n    return x.to(device)\n"


def _modules_after(arguments: list[str], folder: Path) -> set[str]:
    """The modules that a run of the command line has imported when it ends."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('\\n'.join(sys.modules), file=open('modules', 'w')))\n"
        "from devlint.cli import main\n"
        "main()\n"
    )
    environment = {**os.environ, "NO_COLOR": "1"}
    subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, env=environment, capture_output=True)
    return set((folder / "modules").read_text().split())


def test_checking_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(CLEAN)
    modules = _modules_after(["check", "--isolated", "--no-cache", "--jobs", "1", "a.py"], tmp_path)
    assert "libcst" in modules and not modules & {"torch", "numpy"}


def test_the_version_is_printed_without_the_parser(tmp_path: Path) -> None:
    assert not _modules_after(["--version"], tmp_path) & {"libcst", "rich", "torch", "multiprocessing"}


@pytest.mark.parametrize("text", [CLEAN, FAULTY], ids=["nothing found", "something found"])
def test_a_run_from_the_cache_needs_neither_parser_nor_rich(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(text)
    arguments = ["check", "--isolated", "--cache-dir", str(tmp_path / "cache"), "--output-format", "concise", "a.py"]
    assert "libcst" in _modules_after(arguments, tmp_path)
    assert not _modules_after(arguments, tmp_path) & {"libcst", "rich", "torch", "multiprocessing"}


def test_the_readme_lists_every_rule_with_its_group_and_summary() -> None:
    readme = (ROOT / "README.md").read_text()
    for name, rule in docs.rules().items():
        if name not in engine.BUILT_IN:
            assert f"| `{name}` | {rule.group} | {rule.summary.rstrip('.')} |" in readme
