"""Every fixture, checked in every way that costs its author nothing. The format is in ``harness.py``."""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter

import pytest

from devlint import engine
from devlint.finding import Finding
from devlint.fix import fix
from devlint.rule import discover
from harness import FLOW, Fixture, check, compare, compare_reveals, fixtures, only, safety

ALL = fixtures()
OF_RULES = [fixture for fixture in ALL if fixture.rule != FLOW]


def each(some: list[Fixture]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fixture", some, ids=lambda fixture: fixture.id)


@each(OF_RULES)
def test_findings_are_where_the_markers_say(fixture: Fixture) -> None:
    _agree(fixture, check(fixture))


@each(OF_RULES)
def test_findings_are_the_same_with_windows_line_ends(fixture: Fixture) -> None:
    _agree(fixture, check(fixture, _crlf(fixture.raw)))


@each(OF_RULES)
def test_findings_are_the_same_after_a_byte_order_mark(fixture: Fixture) -> None:
    _agree(fixture, check(fixture, b"\xef\xbb\xbf" + fixture.raw))


@each(OF_RULES)
def test_findings_do_not_depend_on_the_order_of_the_rules(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = discover()
    forwards = check(fixture, rules=rules)
    monkeypatch.setattr("devlint.rule.discover", lambda: dict(reversed(rules.items())))
    assert check(fixture, rules=rules) == forwards


@each([fixture for fixture in ALL if b"reveal_device" in fixture.raw or fixture.rule == FLOW])
def test_the_flow_says_what_the_markers_reveal(fixture: Fixture) -> None:
    if difference := compare_reveals(fixture):
        pytest.fail(difference, pytrace=False)


@each(OF_RULES)
def test_fixes_settle_on_the_fixed_file(fixture: Fixture, pytestconfig: pytest.Config) -> None:
    offered = any(finding.fix for finding in check(fixture))
    fixed, settled = _fix(fixture, fixture.raw)
    if pytestconfig.getoption("bless"):
        if offered:
            fixture.fixed_file.write_bytes(fixed)
        else:
            fixture.fixed_file.unlink(missing_ok=True)
    assert fixture.fixed_file.exists() == offered, (
        f"no finding of {fixture.id} offers a fix, so {fixture.fixed_file.name} must not exist"
        if not offered
        else f"{fixture.fixed_file.name} is missing: `pytest --bless` writes it; then read it"
    )
    assert settled, "fixing what was fixed changes it again"
    if offered:
        ast.parse(fixed)
        _same(fixture, fixture.fixed_file.read_bytes(), fixed)


@each([fixture for fixture in OF_RULES if fixture.fixed_file.exists()])
def test_fixes_keep_windows_line_ends_and_a_byte_order_mark(fixture: Fixture) -> None:
    fixed, _ = _fix(fixture, b"\xef\xbb\xbf" + _crlf(fixture.raw))
    _same(fixture, b"\xef\xbb\xbf" + _crlf(fixture.fixed_file.read_bytes()), fixed)


@each(OF_RULES)
def test_an_ignore_comment_silences_its_rule_in_its_statement_and_nothing_else(fixture: Fixture) -> None:
    rules = {*fixture.rules, engine.UNUSED_IGNORE}
    before = check(fixture, rules=rules)
    for row, rule in sorted({(finding.span.row, finding.rule) for finding in before if finding.rule in fixture.rules}):
        ignored = _append_comment(fixture, row, f"devlint: ignore[{rule}] for the test")
        if ignored is None:
            continue
        left = Counter(map(_key, check(fixture, ignored, rules)))
        silenced = Counter(map(_key, before)) - left
        assert not left - Counter(map(_key, before)), f"an ignore[{rule}] on line {row} brings new findings"
        assert {(row, rule)} <= {(there, which) for there, which, *_ in silenced}
        # the comment may end a statement of several lines, which it silences as a whole
        here = _statement(fixture, row)
        assert {(_statement(fixture, there), which) for there, which, *_ in silenced} == {(here, rule)}


def _agree(fixture: Fixture, findings: list[Finding]) -> None:
    if difference := compare(fixture, findings):
        pytest.fail(difference, pytrace=False)


def _same(fixture: Fixture, expected: bytes, fixed: bytes) -> None:
    if fixed != expected:
        files = f"{fixture.fixed_file.name} as it is", f"{fixture.file.name} as fixed now"
        # lines with their ends, shown as Python would write them: a difference may be in the ends alone
        before, after = ([repr(line) for line in raw.splitlines(keepends=True)] for raw in (expected, fixed))
        pytest.fail("\n".join(difflib.unified_diff(before, after, *files, lineterm="", n=1)), pytrace=False)


def _crlf(raw: bytes) -> bytes:
    return re.sub(rb"\r?\n", b"\r\n", raw)


def _fix(fixture: Fixture, raw: bytes) -> tuple[bytes, bool]:
    """The fixture after all its fixes, and whether fixing again leaves it alone."""
    settings = only(fixture.rules)
    fixed = fix(raw, str(fixture.file), settings, unsafe=True, project=fixture.project).raw
    again = fix(fixed, str(fixture.file), settings, unsafe=True, project=fixture.project).raw
    return fixed, again == fixed


def _append_comment(fixture: Fixture, row: int, comment: str) -> bytes | None:
    """The fixture with ``comment`` at the end of the line; ``None`` where that would not be a comment."""
    lines = list(fixture.lines)
    line = lines[row - 1]
    code, _, _ = line.partition("#")
    end = "\n" if line.endswith("\n") else ""
    lines[row - 1] = f"{code.rstrip()}  # {comment}{end}"
    changed = "".join(lines)
    try:
        same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse("".join(fixture.lines)))
    except SyntaxError:  # after a backslash
        return None
    return changed.encode() if same else None  # otherwise it landed in a string


def _statement(fixture: Fixture, row: int) -> tuple[int, int]:
    """First and last row of the innermost statement on the row."""
    statements = (node for node in ast.walk(ast.parse(fixture.raw)) if isinstance(node, ast.stmt))
    rows = [(_first_row(node), node.end_lineno or node.lineno) for node in statements]
    return min((r for r in rows if r[0] <= row <= r[1]), key=lambda r: r[1] - r[0])


def _first_row(statement: ast.stmt) -> int:
    """Where it starts, its decorators included."""
    return min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])


def _key(finding: Finding) -> tuple[int, str, str, str]:
    return finding.span.row, finding.rule, finding.message, safety(finding)
