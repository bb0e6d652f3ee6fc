"""The fixtures' own machinery: a marker that is not met, or cannot be read, must never pass."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness
from devlint.finding import Edit, Finding, Fix, Span
from harness import Fixture, FixtureError, Marker, Reveal, compare, compare_reveals


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setattr(harness, "FIXTURES", tmp_path)

    def write(text: str, rule: str = "lost-tensor") -> Fixture:
        file = tmp_path / rule / "case.py"
        file.parent.mkdir()
        file.write_text(text)
        return Fixture(file)

    return write


def found(row: int, rule: str = "lost-tensor", message: str = "it is lost", safe: bool | None = None) -> Finding:
    fix = None if safe is None else Fix("find it", safe, (Edit(Span(row, 1, row, 1), "x"),))
    return Finding(rule, "correctness", "error", message, Span(row, 1, row, 5), (), fix)


def test_markers_are_read_with_safety_text_and_line(write) -> None:
    fixture = write(
        "x  #~ lost-tensor\n"
        'y  #~ lost-tensor [none] "the "text"" #~ lost-tensor? [safe]\n'
        "#~^^ lost-tensor [unsafe]\n"
        "#~^ reveals module on x.device\n"
    )
    assert fixture.markers == [
        Marker(1, "lost-tensor", False, None, None),
        Marker(2, "lost-tensor", False, "none", 'the "text"'),
        Marker(2, "lost-tensor", True, "safe", None),
        Marker(1, "lost-tensor", False, "unsafe", None),
    ]
    assert fixture.reveals == [Reveal(3, "module on x.device")]


@pytest.mark.parametrize(
    "comment",
    [
        "lost-tensor [maybe]",
        "lost-tensor text",
        "lost-tensor [safe] text",
        "^^ lost-tensor",
        "",
        "other-rule",
        "reveals",
    ],
)
def test_a_marker_that_cannot_be_read_is_an_error_with_its_line(write, comment: str) -> None:
    with pytest.raises(FixtureError, match=r"lost-tensor/case\.py:2: "):
        _ = write(f"x\ny  #~ {comment}\n").markers


def test_the_first_line_selects_more_rules(write) -> None:
    fixture = write("#~ with: other-rule, third-rule\nx  #~ other-rule\n")
    assert fixture.rules == {"lost-tensor", "other-rule", "third-rule"}
    assert fixture.markers == [Marker(2, "other-rule", False, None, None)]


def test_findings_that_meet_their_markers_differ_in_nothing(write) -> None:
    # the marker that says least comes first and must leave the other its finding
    fixture = write('x  #~ lost-tensor #~ lost-tensor [safe] "is lost"\n')
    assert compare(fixture, [found(1, safe=True), found(1, message="other")]) == ""


@pytest.mark.parametrize(
    "findings",
    [
        [],
        [found(2, safe=True)],
        [found(1, safe=False)],
        [found(1)],
        [found(1, "other-rule", safe=True)],
        [found(1, message="other", safe=True)],
        [found(1, safe=True), found(1, safe=True)],
    ],
    ids=["none", "other line", "other safety", "no fix", "other rule", "other message", "twice"],
)
def test_anything_else_is_a_difference_that_shows_the_line(write, findings: list[Finding]) -> None:
    fixture = write('code()  #~ lost-tensor [safe] "is lost"\nmore()\n')
    difference = compare(fixture, findings)
    assert "missing" in difference or "unexpected" in difference
    assert "code()" in difference


@pytest.mark.parametrize("line", ["reveal_device(x)", "y  #~ reveals host", "reveal_device(x)  #~ reveals cuda:7"])
def test_a_reveal_without_marker_or_call_or_with_another_answer_is_a_difference(write, line: str) -> None:
    fixture = write(f"import torch\nx = torch.zeros(3)\n{line}\n", "flow")
    assert line in compare_reveals(fixture)


def test_a_true_reveal_is_no_difference(write) -> None:
    assert compare_reveals(write("import torch\nreveal_device(torch.zeros(3))  #~ reveals host\n", "flow")) == ""
