"""Reports: exact outputs for small cases, and what must hold for any text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import get_character_cell_size

from devlint import report
from devlint.finding import BUILT_IN, Edit, Finding, Fix, Note, Span
from devlint.report.frame import clip, frame, split_lines
from devlint.report.github import escape_message, escape_property
from devlint.report.gitlab import relative
from devlint.report.junit import legal
from devlint.report.sarif import uri
from devlint.report.style import printable, visible

SOURCE = dedent(
    """\
    import torch


    def step(x, model, device):
        model.train()
        x.to(device)
        return model(x)
    """
)
MOVED = Finding(
    "discarded-move",
    "correctness",
    "error",
    "`x` is moved to `device` but the moved copy is discarded",
    Span(6, 5, 6, 17),
    (Note("`x` is a tensor on the host", Span(4, 10, 4, 11)),),
    Fix("assign the result to `x`", True, (Edit(Span(6, 5, 6, 5), "x = "),)),
)
# A rule built in, so that reports which look rules up find its documentation.
UNUSED = Finding(
    "unused-ignore",
    "suspicious",
    "warning",
    "nothing here is silenced",
    Span(7, 5, 7, 20),
    (),
    Fix("drop it", False, (Edit(Span(7, 5, 7, 20), "pass"),)),
)


def render(
    output_format: str, *findings: Finding, path: str = "train.py", source: str | None = SOURCE, **options
) -> str:
    settings = {"color": False, "width": 100, "files_checked": 14, **options}
    return report.render(output_format, [(path, f) for f in findings], sources=lambda _: source, **settings)


# text -------------------------------------------------------------------------------------------


def test_text_shows_place_frame_note_fix_and_summary():
    assert render("text", MOVED) == dedent(
        """\
        train.py:6:5: error[discarded-move] `x` is moved to `device` but the moved copy is discarded
          |
        4 | def step(x, model, device):
        5 |     model.train()
        6 |     x.to(device)
          |     ^^^^^^^^^^^^
        7 |     return model(x)
          |
          = note: `x` is a tensor on the host
        4 | def step(x, model, device):
          |          -
          |
          = fix (safe): assign the result to `x`
        6 -     x.to(device)
        6 +     x = x.to(device)

        Found 1 error in 1 of 14 files; 1 fixable with `--fix`.
        """
    )


def test_text_separates_findings_by_a_blank_line_and_counts_levels():
    text = render("text", MOVED, UNUSED)
    assert "\n\ntrain.py:7:5: warning[unused-ignore] nothing here is silenced\n" in text
    assert text.endswith(
        "\nFound 1 error and 1 warning in 1 of 14 files; 1 fixable with `--fix`, 1 more with `--unsafe-fixes`.\n"
    )


@pytest.mark.parametrize(
    ("findings", "options", "summary"),
    [
        ((), {}, "All clear: 14 files checked.\n"),
        ((), {"files_checked": 1}, "All clear: 1 file checked.\n"),
        ((), {"fixed": 2}, "Fixed 2 faults. All clear: 14 files checked.\n"),
        (
            (),
            {"held": 1},
            "All clear: 14 files checked.\n1 tentative finding held back; `--extend-select tentative` shows it.\n",
        ),
        (
            (UNUSED,),
            {"held": 2},
            "Found 1 warning in 1 of 14 files; 1 fixable with `--fix --unsafe-fixes`.\n"
            "2 tentative findings held back; `--extend-select tentative` shows them.\n",
        ),
        ((UNUSED,), {}, "Found 1 warning in 1 of 14 files; 1 fixable with `--fix --unsafe-fixes`.\n"),
        (
            (UNUSED,),
            {"fixed": 1},
            "Fixed 1 fault. Found 1 warning in 1 of 14 files; 1 fixable with `--fix --unsafe-fixes`.\n",
        ),
        ((Finding("r", "memory", "warning", "m", Span(1, 1, 1, 2)),) * 2, {}, "Found 2 warnings in 1 of 14 files.\n"),
    ],
)
def test_the_summary_says_what_was_found_what_can_be_fixed_and_what_was_held_back(findings, options, summary):
    assert render("text", *findings, **options).rpartition("\n\n")[2] == summary


def test_text_has_no_frame_where_the_source_is_gone():
    assert render("text", MOVED, source=None) == dedent(
        """\
        train.py:6:5: error[discarded-move] `x` is moved to `device` but the moved copy is discarded
          |
          = note: `x` is a tensor on the host
          |
          = fix (safe): assign the result to `x`

        Found 1 error in 1 of 14 files; 1 fixable with `--fix`.
        """
    )


def test_a_note_in_another_file_shows_that_file():
    finding = Finding(
        "r", "memory", "warning", "m", Span(1, 1, 1, 2), (Note("made here", Span(2, 1, 2, 2), "other.py"),)
    )
    sources = {"a.py": "x\n", "other.py": "one\ntwo\n"}
    text = report.render("text", [("a.py", finding)], sources=sources.get, color=False, width=80, files_checked=1)
    assert "  = note: made here\n  -> other.py:2:1\n2 | two\n  | -\n" in text


def test_a_note_of_unknown_place_has_no_frame():
    finding = Finding("r", "memory", "warning", "m", Span(2, 1, 2, 2), (Note("somewhere", Span(1, 1, 1, 1)),))
    assert "= note: somewhere\n\nFound" in render("text", finding, source="a\nb\n")


def test_a_span_of_several_lines_is_underlined_on_each_without_indentation():
    source = "x = f(\n    a,\n\n    b,\n)\n"
    finding = Finding("r", "memory", "warning", "m", Span(1, 5, 5, 2))
    assert dedent(
        """\
        1 | x = f(
          |     ^^
        2 |     a,
          |     ^^
        3 |
        4 |     b,
          |     ^^
        5 | )
          | ^
        """
    ) in render("text", finding, source=source)


def test_the_middle_of_a_long_span_is_left_out():
    source = "".join(f"line{n}\n" for n in range(1, 31))
    rows = list(frame(split_lines(source), Span(3, 1, 25, 3), 80))
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6, 7, None, 24, 25, 26, 27]


def test_a_span_that_ends_at_the_start_of_a_line_does_not_show_that_line_as_part_of_it():
    rows = list(frame(split_lines("one\ntwo\nthree\n"), Span(1, 1, 2, 1), 80, context=0))
    assert [(row.code, row.mark) for row in rows] == [("one", (0, 3))]


def test_wide_characters_and_tabs_keep_the_underline_in_place():
    source = "\tx = '日本', z\n"
    column = source.index("z") + 1
    (row,) = frame(split_lines(source), Span(1, column, 1, column + 1), 80)
    assert (row.code, row.mark) == ("    x = '日本', z", (16, 1))


def test_a_last_line_without_line_end_and_lines_ended_by_carriage_returns_are_framed():
    assert [r.code for r in frame(split_lines("a\r\nb\rc"), Span(3, 1, 3, 2), 80)] == ["a", "b", "c"]


def test_a_long_line_is_cut_around_the_span_and_never_wrapped():
    line = "start" + "a" * 300 + "TARGET" + "b" * 300
    finding = Finding("r", "memory", "warning", "m", Span(1, 306, 1, 312))
    code, marks = render("text", finding, source=line, width=60).splitlines()[2:4]
    assert len(code) <= 60
    assert code.startswith("1 | ...aaa") and code.endswith("bbb...")
    assert code[marks.index("^") : marks.rindex("^") + 1] == "TARGET"


@pytest.mark.parametrize("after", [0, 3, 40, 500])
def test_a_span_that_fits_is_seen_whole_wherever_it_is_in_a_long_line(after):
    for before in range(200):
        code, start, end = clip("b" * before + "TARGET" + "a" * after, before, before + 6, 40)
        assert code[start:end] == "TARGET" and len(code) <= 40
        assert len(code) == min(40, before + 6 + after), "room is not wasted"


def test_control_characters_of_the_file_never_reach_the_terminal():
    finding = Finding("r", "memory", "warning", "m\x1b[2J", Span(1, 1, 1, 2))
    text = render("text", finding, source="x = '\x1b[31m\u202e'\n", path="bad\udcff\x07.py")
    assert "\x1b" not in text and "\u202e" not in text and "\x07" not in text
    assert text.startswith("bad\\xff\\x07.py:1:1:")
    assert "1 | x = '\\x1b[31m\\u202e'" in text


def test_colours_appear_only_when_asked_for_and_change_nothing_else():
    colored = render("text", MOVED, UNUSED, color=True)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == render("text", MOVED, UNUSED)


def test_the_diff_of_a_fix_shows_edits_far_apart_and_inserted_lines():
    edits = (Edit(Span(1, 1, 1, 1), "import os\n"), Edit(Span(7, 12, 7, 17), "net"), Edit(Span(7, 18, 7, 19), "y"))
    finding = Finding("r", "memory", "warning", "m", Span(7, 5, 7, 20), (), Fix("t", False, edits))
    assert dedent(
        """\
          = fix (unsafe): t
        1 + import os
        7 -     return model(x)
        7 +     return net(y)
        """
    ) in render("text", finding)


def test_the_diff_of_a_fix_shows_what_a_line_moves_past():
    moved = (Edit(Span(1, 1, 1, 1), "b\n"), Edit(Span(2, 1, 3, 1), ""))
    finding = Finding("r", "memory", "warning", "m", Span(1, 1, 1, 2), (), Fix("t", True, moved))
    assert "= fix (safe): t\n1 + b\n1   a\n2 - b\n\n" in render("text", finding, source="a\nb\nc\n")


def test_the_diff_of_a_fix_that_removes_lines_shows_only_those():
    finding = Finding(
        "r", "memory", "warning", "m", Span(2, 1, 2, 2), (), Fix("t", True, (Edit(Span(2, 1, 3, 1), ""),))
    )
    assert "= fix (safe): t\n2 - b\n\n" in render("text", finding, source="a\r\nb\r\nc\r\n")


def test_a_long_diff_is_shortened():
    content = "".join(f"line{n}\n" for n in range(50))
    finding = Finding(
        "r", "memory", "warning", "m", Span(1, 1, 1, 2), (), Fix("t", True, (Edit(Span(1, 1, 1, 1), content),))
    )
    text = render("text", finding, source="x\n")
    assert "20 + line19\n... 30 more lines\n" in text and "line20" not in text


# Anything a file may hold: letters, tabs, wide, combining and control characters, every line end, bytes of no encoding.
CHARACTERS = st.sampled_from(
    [*"ab _(", "\t", "日", "é", "\u0301", "😀", "\x1b", "\x00", "\x0c", "\u202e", "\u2028", "\x85"]
)
LINES = st.lists(CHARACTERS).map("".join)
TEXTS = st.lists(st.one_of(CHARACTERS, st.sampled_from(["\n", "\r\n", "\r", "\udcff"])), max_size=60).map("".join)
NUMBERS = st.integers(min_value=1, max_value=30)
SPANS = st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS).map(lambda t: Span(*min(t[:2], t[2:]), *max(t[:2], t[2:])))
EDITS = st.lists(NUMBERS, min_size=4, max_size=4, unique=True).map(sorted)


def spelled(text: str) -> str:
    """As shown, without what has no width of its own or a width that depends on its place."""
    shown = "".join(map(visible, text.replace("\t", "")))
    return "".join(c for c in shown if c != " " and get_character_cell_size(c))


def underlined(code: str, mark: tuple[int, int]) -> str:
    """The characters of ``code`` that lie above the underline."""
    start, length = mark
    cell, found = 0, []
    for character in code:
        if start <= cell < start + length:
            found.append(character)
        cell += get_character_cell_size(character)
    return spelled("".join(found))


@st.composite
def lines_and_stretches(draw) -> tuple[str, int, int]:
    line = draw(LINES)
    start = draw(st.integers(0, len(line)))
    return line, start, draw(st.integers(start, len(line)))


@given(lines_and_stretches())
def test_a_frame_underlines_exactly_the_span(case):
    line, start, end = case
    (row,) = frame([line], Span(1, start + 1, 1, end + 1), 1000)
    assert row.mark is not None
    assert row.code.isprintable() and spelled(row.code) == spelled(line)
    if spelled(line[start:end]):
        assert underlined(row.code, row.mark) == spelled(line[start:end])
    else:
        assert row.mark[1] >= 1


@given(lines_and_stretches(), st.integers(40, 60), st.integers(0, 400), st.integers(0, 400))
def test_a_cut_line_fits_and_keeps_the_start_of_the_span_in_view(case, room, before, after):
    line, start, end = case
    line, start, end = "b" * before + line + "a" * after, start + before, end + before
    code, first, last = clip(line, start, end, room)
    assert sum(map(get_character_cell_size, code)) <= room
    whole = spelled(line[start:end])
    seen = underlined(code, (first, last - first))
    assert whole.startswith(seen)
    assert seen or not whole
    if sum(8 if c < " " else get_character_cell_size(c) or 6 for c in line[start:end]) <= room - 6:
        assert seen == whole


@given(TEXTS, SPANS, SPANS, EDITS, TEXTS)
def test_every_format_renders_any_text_and_any_place(source, span, place, columns, content):
    edits = (Edit(Span(2, columns[0], 2, columns[1]), content), Edit(Span(2, columns[2], 3, columns[3]), content))
    finding = Finding(
        "unused-ignore",
        "suspicious",
        "warning",
        source,
        span,
        (Note(content, place), Note(content, place, "other.py")),
        Fix(content, True, edits),
    )
    for output_format in report.FORMATS:
        text = render(output_format, finding, source=source, path="a\udcff b.py")
        text.encode()
        assert text.endswith("\n")
    assert render("text", finding, source=source).isprintable() is False  # only because of its line ends
    assert all(line.isprintable() for line in render("text", finding, source=source).split("\n"))


def test_two_thousand_findings_in_one_file_cost_one_read_of_it():
    reads: list[str] = []

    def source(path: str) -> str:
        reads.append(path)
        return "x = 1\n" * 2000

    findings = [("a.py", Finding("r", "memory", "warning", "m", Span(n, 1, n, 2))) for n in range(1, 2001)]
    report.render(
        "text",
        findings,
        sources=source,
        color=False,
        width=80,
        files_checked=1,
    )
    assert reads == ["a.py"]


# concise, json, statistics -------------------------------------------------------------------------


def test_concise_is_one_line_each_and_marks_what_fix_repairs():
    assert render("concise", MOVED, UNUSED) == (
        "train.py:6:5: error[discarded-move] `x` is moved to `device` but the moved copy is discarded [*]\n"
        "train.py:7:5: warning[unused-ignore] nothing here is silenced\n"
    )
    assert render("concise") == ""


MOVED_OBJECT = {
    "rule": "discarded-move",
    "group": "correctness",
    "level": "error",
    "message": "`x` is moved to `device` but the moved copy is discarded",
    "filename": "train.py",
    "location": {"row": 6, "column": 5},
    "end_location": {"row": 6, "column": 17},
    "notes": [
        {
            "message": "`x` is a tensor on the host",
            "filename": "train.py",
            "location": {"row": 4, "column": 10},
            "end_location": {"row": 4, "column": 11},
        }
    ],
    "fix": {
        "title": "assign the result to `x`",
        "safety": "safe",
        "edits": [
            {"location": {"row": 6, "column": 5}, "end_location": {"row": 6, "column": 5}, "content": "x = "},
        ],
    },
}


def test_json_is_a_list_of_objects():
    assert json.loads(render("json", MOVED)) == [MOVED_OBJECT]
    assert json.loads(render("json")) == []


def test_json_says_null_where_there_is_no_fix():
    (found,) = json.loads(render("json", Finding("r", "memory", "warning", "m", Span(1, 1, 1, 2))))
    assert found["fix"] is None and found["notes"] == []


def test_json_lines_is_one_object_a_line():
    lines = render("json-lines", MOVED, UNUSED).splitlines()
    assert [json.loads(line)["rule"] for line in lines] == ["discarded-move", "unused-ignore"]
    assert json.loads(lines[0]) == MOVED_OBJECT
    assert render("json-lines") == ""


def test_statistics_count_rules_with_the_most_frequent_first():
    findings = [("a.py", UNUSED), ("a.py", MOVED), ("b.py", MOVED)]
    assert report.statistics(findings, "text", False) == (
        "2  discarded-move  correctness  fixable: 2 safe\n1  unused-ignore   suspicious   fixable: 1 unsafe\n"
    )
    rows = json.loads(report.statistics(findings, "json", False))
    assert rows[0] == {
        "rule": "discarded-move",
        "group": "correctness",
        "count": 2,
        "fixable": 2,
        "fixable_unsafe": 0,
    }
    assert [json.loads(row) for row in report.statistics(findings, "json-lines", False).splitlines()] == rows
    assert report.statistics([], "text", False) == ""


def test_a_report_imports_neither_libcst_nor_rich_nor_other_formats():
    code = (
        "import sys; from devlint import report\n"
        "report.render('text', [], sources=str, color=True, width=80, files_checked=1)\n"
        "print([m for m in ('libcst', 'rich', 'json', 'devlint.report.sarif', 'devlint.docs') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# github, gitlab, junit ------------------------------------------------------------------------------


def test_github_writes_workflow_commands():
    assert render("github", MOVED, path="a,b:c.py") == (
        "::error file=a%2Cb%3Ac.py,line=6,col=5,endLine=6,endColumn=17,title=devlint (discarded-move)"
        "::a,b:c.py:6:5: `x` is moved to `device` but the moved copy is discarded\n"
    )


def test_github_gives_no_columns_for_several_lines():
    finding = Finding("r", "memory", "warning", "100%\nsure", Span(1, 2, 3, 4))
    assert render("github", finding) == (
        "::warning file=train.py,line=1,endLine=3,title=devlint (r)::train.py:1:2: 100%25%0Asure\n"
    )


@given(TEXTS)
def test_what_github_reads_back_is_what_was_meant(text):
    """The runner undoes the escapes in this order, after cutting at the separators."""
    meant = "".join(c if c in "\r\n" else printable(c) for c in text)
    message = escape_message(text)
    assert "\n" not in message and "\r" not in message
    assert message.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%") == meant
    value = escape_property(text)
    assert not set(value) & set("\r\n,:")
    for escaped, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        value = value.replace(escaped, character)
    assert value == meant


def test_gitlab_writes_code_quality_issues():
    (issue,) = json.loads(render("gitlab", MOVED))
    fingerprint = issue.pop("fingerprint")
    assert re.fullmatch("[0-9a-f]{32}", fingerprint)
    assert issue == {
        "description": "`x` is moved to `device` but the moved copy is discarded",
        "check_name": "discarded-move",
        "severity": "major",
        "location": {"path": "train.py", "lines": {"begin": 6, "end": 6}},
    }


def test_gitlab_paths_start_at_the_project(monkeypatch, tmp_path):
    monkeypatch.setenv("CI_PROJECT_DIR", str(tmp_path))
    assert relative(str(tmp_path / "src" / "a.py")) == "src/a.py"
    assert relative("./src/a.py") == "src/a.py"
    assert relative("/elsewhere/a.py") == "/elsewhere/a.py"


def fingerprints(source: str, *findings: Finding) -> list[str]:
    return [issue["fingerprint"] for issue in json.loads(render("gitlab", *findings, source=source))]


def test_fingerprints_survive_lines_that_move_and_messages_that_change():
    moved = Finding("discarded-move", "correctness", "error", "other words", Span(8, 5, 8, 17))
    assert fingerprints(SOURCE, MOVED) == fingerprints("# one\n# two\n" + SOURCE, moved)


def test_fingerprints_differ_for_other_code_other_rules_and_repeated_lines():
    other = Finding("other-rule", "correctness", "error", "m", Span(6, 5, 6, 17))
    found = fingerprints(SOURCE, MOVED, MOVED, other, UNUSED)
    assert len(set(found)) == 4


def test_junit_writes_a_suite_for_each_file_and_a_failure_for_each_finding():
    root = ET.fromstring(render("junit", MOVED, UNUSED))
    assert root.attrib == {"name": "devlint", "tests": "2", "failures": "2", "errors": "0"}
    (suite,) = root
    assert suite.attrib == {"name": "train.py", "tests": "2", "failures": "2", "errors": "0"}
    case = suite[0]
    assert case.attrib == {
        "classname": "train.py",
        "name": "discarded-move at 6:5",
        "file": "train.py",
        "line": "6",
    }
    assert case[0].attrib == {"type": "error", "message": MOVED.message}
    assert case[0].text == (
        f"train.py:6:5: discarded-move: {MOVED.message}\nnote: `x` is a tensor on the host (train.py:4)"
    )


def test_junit_of_clean_code_holds_one_passed_test():
    root = ET.fromstring(render("junit"))
    assert root.attrib == {"name": "devlint", "tests": "1", "failures": "0", "errors": "0"}
    assert [case.tag for case in root.iter("testcase")] == ["testcase"]
    assert not list(root.iter("failure"))


@given(st.text(), st.text(min_size=1))
def test_what_xml_reads_back_is_what_was_meant(message, path):
    finding = Finding("r", "memory", "warning", message, Span(1, 1, 1, 2))
    root = ET.fromstring(render("junit", finding, path=path).encode())
    failure = root[0][0][0]
    assert failure.get("message") == legal(message)
    assert failure.text == legal(f"{path}:1:1: r: {message}")
    assert root[0].get("name") == legal(path)


def test_characters_that_xml_cannot_hold_are_escaped():
    assert legal("a\x00\x1b\r\udcff\ufffe<&日") == "a\\x00\\x1b\\x0d\\xff\\ufffe<&日"


# sarif ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft4Validator:
    text = (Path(__file__).parent / "data" / "sarif-schema-2.1.0.json").read_text("utf-8")
    return jsonschema.Draft4Validator(json.loads(text))


@pytest.mark.parametrize("path", ["src/a b.py", "/abs/a#b.py", "bad\udcff.py", "c:d.py", "<stdin>"])
def test_sarif_fits_the_published_schema(schema, path):
    notes = (Note("here", Span(1, 1, 1, 2)), Note("there", Span(2, 1, 2, 2), "other.py"))
    found = [
        Finding(name, group, level, "m", Span(1, 1, 2, 3), notes, Fix("t", True, (Edit(Span(1, 1, 1, 1), "x"),)))
        for name, (group, level) in BUILT_IN.items()
    ]
    schema.validate(json.loads(render("sarif", *found, path=path)))
    schema.validate(json.loads(render("sarif")))


def test_the_schema_refuses_what_is_not_sarif(schema):
    log = json.loads(render("sarif", UNUSED))
    log["runs"][0]["results"][0]["levle"] = "warning"
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(log)


def test_sarif_says_what_was_found_where_and_how_to_fix_it():
    note = Note("made here", Span(4, 10, 4, 11), "other file.py")
    finding = Finding("unused-ignore", "suspicious", "warning", "m", Span(7, 5, 7, 20), (note,), UNUSED.fix)
    log = json.loads(render("sarif", finding, path="src/a b.py"))
    (run,) = log["runs"]
    assert log["version"] == "2.1.0" and run["columnKind"] == "unicodeCodePoints"
    (result,) = run["results"]
    assert list(result.pop("partialFingerprints")) == ["devlintFingerprint/v1"]
    here = {"uri": "src/a%20b.py", "uriBaseId": "%SRCROOT%"}
    region = {"startLine": 7, "startColumn": 5, "endLine": 7, "endColumn": 20}
    assert result == {
        "ruleId": "unused-ignore",
        "ruleIndex": 0,
        "level": "warning",
        "message": {"text": "m"},
        "locations": [{"physicalLocation": {"artifactLocation": here, "region": region}}],
        "relatedLocations": [
            {
                "id": 1,
                "message": {"text": "made here"},
                "physicalLocation": {
                    "artifactLocation": {"uri": "other%20file.py", "uriBaseId": "%SRCROOT%"},
                    "region": {"startLine": 4, "startColumn": 10, "endLine": 4, "endColumn": 11},
                },
            }
        ],
        "fixes": [
            {
                "description": {"text": "drop it"},
                "artifactChanges": [
                    {
                        "artifactLocation": here,
                        "replacements": [{"deletedRegion": region, "insertedContent": {"text": "pass"}}],
                    }
                ],
                "properties": {"safety": "unsafe"},
            }
        ],
    }


def test_sarif_describes_the_rules_that_spoke():
    (run,) = json.loads(render("sarif", UNUSED))["runs"]
    (rule,) = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] == "devlint" and run["tool"]["driver"]["version"]
    assert rule["id"] == "unused-ignore" and rule["name"] == "UnusedIgnore"
    assert rule["shortDescription"]["text"] == "A `# devlint: ignore[...]` comment silences nothing."
    assert rule["fullDescription"]["text"].startswith("Reports ignore comments")
    assert "## Why is this bad" in rule["help"]["markdown"] and "Why is this bad" in rule["help"]["text"]
    assert rule["defaultConfiguration"] == {"enabled": True, "level": "warning"}
    assert rule["properties"]["tags"] == ["pytorch", "suspicious"]


@pytest.mark.parametrize(
    ("path", "windows", "expected"),
    [
        ("a b/c.py", False, "a%20b/c.py"),
        ("./a.py", False, "a.py"),
        ("../a.py", False, "../a.py"),
        ("c:d.py", False, "c%3Ad.py"),
        ("a\\b.py", False, "a%5Cb.py"),
        ("a%20#?.py", False, "a%2520%23%3F.py"),
        ("日.py", False, "%E6%97%A5.py"),
        ("bad\udcff.py", False, "bad%FF.py"),
        ("/x/a b.py", False, "file:///x/a%20b.py"),
        ("a\\b c.py", True, "a/b%20c.py"),
        ("C:\\x\\a b.py", True, "file:///C:/x/a%20b.py"),
        ("\\\\server\\share\\a.py", True, "file://server/share/a.py"),
    ],
)
def test_paths_become_uris(path, windows, expected):
    assert uri(path, windows=windows) == expected
