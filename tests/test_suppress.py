"""Ignore comments, with three toy rules about names: `poor`, `fatal` and (in the nursery, so not on) `trial`."""

from __future__ import annotations

import ast
import codecs
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devlint import engine, suppress
from devlint.config import Selection, Settings
from devlint.finding import Finding
from devlint.fix import fix
from devlint.source import Source

pytestmark = pytest.mark.usefixtures("toy_rules")

ALL = Settings(command_line=Selection(select=("ALL",)))


def check(text: str, settings: Settings = ALL) -> list[Finding]:
    return engine.check(f"{text}\n# devlint is at work: torch\n".encode(), "x.py", settings)


def left(text: str) -> list[tuple[int, str]]:
    """Row and rule of what is not silenced."""
    return [(f.span.row, f.rule) for f in check(text)]


def messages(text: str, settings: Settings = ALL) -> list[str]:
    return [f.message for f in check(text, settings) if f.rule == "unused-ignore"]


def fixed(text: str) -> str:
    return fix(text.encode(), "x.py", ALL, unsafe=False).raw.decode()


# what is silenced ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "comment",
    [
        "# devlint: ignore[fatal-name]",
        "# devlint: ignore[fatal-name] because it must be so",
        "# devlint: ignore[fatal-name]: because",
        "# devlint: ignore [ fatal-name ]",
        "#devlint:ignore[fatal-name,]",
        "# devlint: ignore[correctness]",
        "# devlint: ignore",
        "# devlint: ignore because it must be so",
        "# noqa: E501  # devlint: ignore[fatal-name]",
        "# devlint: ignore[fatal-name]  # type: ignore",
        "# why (#12) # devlint: ignore[fatal-name] see #123",
    ],
)
def test_a_comment_at_the_end_of_a_line_silences_the_line(comment: str) -> None:
    assert left(f"x = fatal  {comment}\ny = fatal") == [(2, "fatal-name")]


def test_only_the_named_rules_are_silenced() -> None:
    assert left("x = fatal + poor  # devlint: ignore[fatal-name]") == [(1, "poor-name")]
    assert left("x = fatal + poor  # devlint: ignore[fatal-name, poor-name]") == []
    assert left("x = fatal + poor  # devlint: ignore[fatal-name] # devlint: ignore[poor-name]") == []


def test_a_comment_silences_what_starts_on_its_line_or_crosses_it() -> None:
    text = "# devlint:\nx = f(\n    1,  # devlint: ignore[fatal-name]\n    2,\n)\n"
    source = Source(text.encode(), "x.py")
    call = source.span(source.nodes_named("Call")[0])
    assert (call.row, call.end_row) == (2, 5)
    spanning = Finding("fatal-name", "correctness", "error", "m", call)
    assert suppress.apply(source, [spanning], frozenset({"fatal-name"}), unused=False) == []


def test_a_comment_inside_a_statement_leaves_its_other_lines_alone() -> None:
    assert left("x = [fatal,\n     fatal,  # devlint: ignore[fatal-name]\n     fatal,\n]") == [
        (1, "fatal-name"),
        (3, "fatal-name"),
    ]
    assert left("x = [fatal,  # devlint: ignore[fatal-name]\n     fatal]") == [(2, "fatal-name")]


@pytest.mark.parametrize(
    "text",
    [
        "x = [\n    fatal,\n    fatal\n]  # devlint: ignore[fatal-name]",
        "x = fatal + '''\n# devlint: ignore\n'''  # devlint: ignore[fatal-name]",
        "x = fatal \\\n    + 1  # devlint: ignore[fatal-name]",
        "if (fatal\n        or x):  # devlint: ignore[fatal-name]\n    pass",
        "def f(\n    a=fatal,\n):  # devlint: ignore[fatal-name]\n    pass",
        "if x: y = [\n    fatal,\n]  # devlint: ignore[fatal-name]",
        "a = fatal; b = [\n]  # devlint: ignore[fatal-name]",
        "match [\n    fatal\n]:  # devlint: ignore[fatal-name]\n    case _: pass",
    ],
)
def test_on_the_last_line_of_a_statement_or_header_it_silences_the_whole(text: str) -> None:
    assert left(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "# devlint: ignore[fatal-name]\nx = fatal",
        "# devlint: ignore[fatal-name]\nx = [\n    1,\n    fatal,\n]",
        "# devlint: ignore[fatal-name] since\n# this is so\n\nx = fatal",
        "# why\n# devlint: ignore[fatal-name]\n@deco(fatal)\n@other(\n    fatal)\ndef f(\n        x=fatal):\n    pass",
        "def f():\n    # devlint: ignore[fatal-name]\n    x = fatal",
        "def f():\n# devlint: ignore[fatal-name]\n    x = fatal",
        "if x:\n    y\n# devlint: ignore[fatal-name]\nelif fatal:\n    pass",
        "if x:\n    # devlint: ignore[fatal-name]\n    for i in fatal:\n        pass",
        "# devlint: ignore[fatal-name]\nif x: y = fatal",
        "x = [\n    # devlint: ignore[fatal-name]\n    # since\n\n    fatal,\n]",
        "@deco\n# devlint: ignore[fatal-name]\nclass A(fatal): pass",
    ],
)
def test_on_a_line_of_its_own_it_silences_the_statement_or_header_below(text: str) -> None:
    assert left(text) == []


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("# devlint: ignore[fatal-name]\nx = 1\ny = fatal", 3),
        ("# devlint: ignore[fatal-name]\ndef f():\n    x = fatal", 3),
        ("# devlint: ignore[fatal-name]\nfor x in y:\n    fatal", 3),
        ("x = [\n    # devlint: ignore[fatal-name]\n    1,\n    fatal,\n]", 4),
        ("if x:\n    y\n    # devlint: ignore[fatal-name]\nfatal", 4),
        ("x = fatal\n# devlint: ignore[fatal-name]", 1),
        ("x = '''# devlint: ignore[fatal-name]''' + fatal", 1),
        ("x = fatal + '''\n# devlint: ignore-file\n'''", 1),
        ("x = f'{y}# devlint: ignore' + fatal", 1),
    ],
)
def test_what_is_not_below_the_comment_or_not_a_comment_stays(text: str, row: int) -> None:
    assert (row, "fatal-name") in left(text)


@pytest.mark.parametrize(
    "place", ["{}\nx = fatal\ny = poor", "x = fatal\nif x:\n    {}\n    y = poor", "x = [fatal,\n    {}\npoor]"]
)
def test_ignore_file_silences_the_file_from_anywhere(place: str) -> None:
    assert left(place.format("# devlint: ignore-file")) == []
    assert left(place.format("# devlint: ignore-file[correctness, poor-name] generated")) == []
    assert {rule for _, rule in left(place.format("# devlint: ignore-file[fatal-name]"))} == {"poor-name"}


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_other_line_ends_change_nothing(newline: str) -> None:
    text = "# devlint: ignore[fatal-name]\nx = fatal\ny = [\n    fatal,\n]  # devlint: ignore[fatal-name]\nz = fatal\n"
    found = engine.check(codecs.BOM_UTF8 + ("import torch\n" + text).replace("\n", newline).encode(), "x.py", ALL)
    assert [f.span.row for f in found] == [7]


def test_a_file_without_the_word_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(b"x = 1  # dev lint\n", "x.py")
    monkeypatch.setattr(Source, "comments", property(lambda self: pytest.fail("comments were looked for")))
    assert suppress.apply(source, [], frozenset(), unused=True) == []


# what silences nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1  # devlint: ignore[fatal-name]", "`fatal-name` is not reported here, so ignoring silences nothing"),
        ("x = 1  # devlint: ignore[performance]", "`performance` is not reported here, so ignoring silences nothing"),
        (
            "x = poor  # devlint: ignore[fatal-name, poor-name, trial-name]",
            "`fatal-name`, `trial-name` are not reported here, so ignoring silences nothing",
        ),
        (
            "# devlint: ignore-file[fatal-name]",
            "`fatal-name` is not reported in this file, so ignoring silences nothing",
        ),
        ("x = 1  # devlint: ignore", "`ignore` silences nothing: nothing is reported here"),
        ("# devlint: ignore-file", "`ignore-file` silences nothing: nothing is reported in this file"),
        ("x = 1  # devlint: ignore[]", "`ignore[]` names no rule"),
        (
            "x = fatal  # devlint: ignore[fatal-nam]",
            "there is no rule or group `fatal-nam`; did you mean `fatal-name`?",
        ),
        ("x = 1  # devlint: ignore[fatal_name]", "there is no rule or group `fatal_name`; did you mean `fatal-name`?"),
        (
            "x = 1  # devlint: ignore[ALL]",
            "there is no rule or group `ALL`; `ignore` without brackets silences every rule",
        ),
        (
            "x = 1  # devlint: ignore-next-line[fatal-name]",
            "`# devlint: ignore-next-line` is not understood; expected `ignore[...]` or `ignore-file[...]`",
        ),
        ("x = 1  # devlint: ignore[zzz]", "there is no rule or group `zzz`; `devlint rules` lists them"),
        ("x = 1  # devlint: ignroe[fatal-name]", "`# devlint: ignroe` is not understood; did you mean `ignore`?"),
        ("x = 1  # devlint: ignorefile", "`# devlint: ignorefile` is not understood; did you mean `ignore-file`?"),
        (
            "x = 1  # devlint: hello",
            "`# devlint: hello` is not understood; expected `ignore[...]` or `ignore-file[...]`",
        ),
        ("x = 1  # devlint:", "`# devlint:` is not understood; expected `ignore[...]` or `ignore-file[...]`"),
        (
            "x = fatal  # devlint: ignore[fatal-name",
            "`ignore[` is not closed, so it silences nothing; add `]` after the last name",
        ),
        (
            "x = fatal  # devlint: ignore fatal-name",
            "names go in brackets, so this silences nothing; did you mean `ignore[fatal-name]`?",
        ),
        (
            "x = fatal  # devlint: ignore-file[fatal-name]",
            "`ignore-file` silences nothing at the end of a line; put it on a line of its own",
        ),
    ],
)
def test_a_comment_that_silences_nothing_is_reported(text: str, message: str) -> None:
    assert messages(text) == [message]


@pytest.mark.parametrize(
    "comment", ["ignroe[fatal-name]", "ignore[fatal-name", "ignore fatal-name", "ignore[fatal_name]"]
)
def test_a_comment_that_is_not_understood_silences_nothing(comment: str) -> None:
    assert (1, "fatal-name") in left(f"x = fatal  # devlint: {comment}")


def test_the_report_points_at_the_comment_or_at_the_name() -> None:
    (found,) = check("x = 1  # noqa  # devlint: ignore[fatal-name] why")
    assert (found.span.row, found.span.column, found.span.end_column) == (1, 16, 49)
    (found,) = check("x = fatal  # devlint: ignore[fatal-name, no-rule]")
    assert (found.span.column, found.span.end_column) == (42, 49)


def test_names_of_rules_that_are_not_enabled_are_not_reported() -> None:
    text = "x = 1  # devlint: ignore[trial-name, nursery]"
    assert messages(text, Settings()) == []
    assert len(messages(text)) == 1
    some = Settings(command_line=Selection(ignore=("fatal-name",)))
    assert messages("x = 1  # devlint: ignore[fatal-name, correctness]", some) == []


def test_nothing_is_reported_where_unused_ignore_is_not_enabled() -> None:
    assert check("x = 1  # devlint: ignroe  # devlint: ignore", Settings(ignore=("unused-ignore",))) == []


def test_a_tentative_finding_is_kept_back_and_a_comment_for_it_is_of_use() -> None:
    assert [(f.rule, f.group, f.level) for f in check("x = perhaps_fatal")] == [("fatal-name", "nursery", "warning")]
    for text in ("x = perhaps_fatal", "x = perhaps_fatal  # devlint: ignore[fatal-name]"):
        assert check(text, Settings()) == []
    for name in ("fatal-name", "correctness", "nursery"):
        assert left(f"x = perhaps_fatal  # devlint: ignore[{name}]") == []


def test_a_rule_of_the_nursery_that_is_selected_by_its_name_keeps_back_what_is_tentative() -> None:
    named = Settings(extend_select=("trial-name",))
    said = "x = perhaps_trial + trial"
    assert [f.message for f in check(said, named)] == ["`trial` is on trial"]
    both = Settings(extend_select=("trial-name", "tentative"))
    assert [f.message for f in check(said, both)] == ["`perhaps_trial` is on trial", "`trial` is on trial"]


def test_the_comment_closest_to_the_line_is_the_one_that_is_used() -> None:
    text = "# devlint: ignore-file[fatal-name]\nx = fatal  # devlint: ignore[fatal-name]"
    assert left(text) == [(1, "unused-ignore")]


def test_unused_ignore_can_be_ignored_by_name() -> None:
    assert left("x = 1  # devlint: ignore[fatal-name, unused-ignore]") == []
    assert left("x = 1  # devlint: ignroe[y]  # devlint: ignore[unused-ignore]") == []
    assert left("# devlint: ignore[unused-ignore]\nx = 1  # devlint: ignore[fatal-name]") == []
    assert left("# devlint: ignore-file[unused-ignore]\nx = 1  # devlint: ignore[fatal-name]") == []


def test_a_comment_for_everything_covers_other_comments_but_not_itself() -> None:
    assert left("# devlint: ignore-file\nx = 1  # devlint: ignore[fatal-name]") == []
    assert left("x = 1  # devlint: ignore") == [(1, "unused-ignore")]
    assert left("x = 1  # devlint: ignore[suspicious]") == [(1, "unused-ignore")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1  # devlint: ignore[fatal-name] why\n", "x = 1\n"),
        ("x = 1\t# devlint: ignore\r\ny = 2  \r\n", "x = 1\r\ny = 2  \r\n"),
        ("x = 1  # devlint: ignore", "x = 1"),
        ("x = 1  # noqa  # devlint: ignore[fatal-name]  \n", "x = 1  # noqa\n"),
        ("x = 1  # devlint: ignore[fatal-name] why  # noqa \n", "x = 1  # noqa \n"),
        ("x = 1  # a # devlint: ignore[fatal-name] # b\n", "x = 1  # a # b\n"),
        ("if x:\n    # devlint: ignore[fatal-name]\n    y\n", "if x:\n    y\n"),
        ("if x:\n    # a # devlint: ignore[fatal-name]\n    y\n", "if x:\n    # a\n    y\n"),
        ("if x:\n    # devlint: ignore[fatal-name] # a\n    y\n", "if x:\n    # a\n    y\n"),
        ("x = 1\n# devlint: ignore-file", "x = 1\n"),
        ("x = poor  # devlint: ignore[fatal-name,  poor-name] why\n", "x = poor  # devlint: ignore[poor-name] why\n"),
        (
            "x = fatal + trial  # devlint: ignore[fatal-name, poor-name, trial-name]\n",
            "x = fatal + trial  # devlint: ignore[fatal-name, trial-name]\n",
        ),
        ("x = 1  # devlint: ignore[]\n", "x = 1\n"),
        ("x = 1  # devlint: ignore[fatal-name]  # devlint: ignore[poor-name]\n", "x = 1\n"),
    ],
)
def test_the_fix_removes_the_comment_or_the_names_that_silence_nothing(before: str, after: str) -> None:
    assert fixed(before) == after
    assert fixed(after) == after


def test_a_name_that_does_not_exist_is_not_removed_by_a_fix() -> None:
    text = "x = fatal  # devlint: ignore[fatal-nam]\n"
    assert fixed(text) == text
    assert fixed("x = fatal  # devlint: ignore[fatal-nam, poor-name]\n") == text


# adding them --------------------------------------------------------------------------------------


def added(text: str, encoding: str = "utf-8") -> str:
    raw = suppress.add_ignores(text.encode(encoding), "x.py", ALL)
    assert engine.check(raw, "x.py", ALL) == []
    assert suppress.add_ignores(raw, "x.py", ALL) == raw
    return raw.decode(encoding)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = fatal\n", "x = fatal  # devlint: ignore[fatal-name]\n"),
        ("x = fatal + poor + fatal \n", "x = fatal + poor + fatal  # devlint: ignore[fatal-name, poor-name] \n"),
        ("x = fatal # why \n", "x = fatal # why  # devlint: ignore[fatal-name] \n"),
        (
            "x = poor + fatal  # devlint: ignore[poor-name] why\n",
            "x = poor + fatal  # devlint: ignore[poor-name, fatal-name] why\n",
        ),
        ("x = [\r\n    fatal,\r\n]\r\n", "x = [\r\n    fatal,  # devlint: ignore[fatal-name]\r\n]\r\n"),
        ("x = fatal + '''\n'''\n", "x = fatal + '''\n'''  # devlint: ignore[fatal-name]\n"),
        ("x = f'''\n{fatal}\n'''\n", "x = f'''\n{fatal}\n'''  # devlint: ignore[fatal-name]\n"),
        ("x = fatal \\\n    + poor\n", "x = fatal \\\n    + poor  # devlint: ignore[fatal-name, poor-name]\n"),
        ("x = '\\\\' + fatal # \\\n", "x = '\\\\' + fatal # \\  # devlint: ignore[fatal-name]\n"),
        ("if fatal:\n    pass\n", "if fatal:  # devlint: ignore[fatal-name]\n    pass\n"),
        ("if x: fatal\n", "if x: fatal  # devlint: ignore[fatal-name]\n"),
        ("x = 1  # devlint: ignore[poor-name]\n", "x = 1  # devlint: ignore[poor-name, unused-ignore]\n"),
        ("x = 1  # devlint: ignore\n", "x = 1  # devlint: ignore  # devlint: ignore[unused-ignore]\n"),
        (
            "# devlint: ignroe[x]\nx = 1\n",
            "# devlint: ignroe[x]  # devlint: ignore[unused-ignore]\nx = 1\n",
        ),
        (
            "# devlint: ignore-file[fatal-name]\nx = 1\n",
            "# devlint: ignore-file[fatal-name]  # devlint: ignore[unused-ignore]\nx = 1\n",
        ),
        ("\ufeffx = fatal\r", "\ufeffx = fatal  # devlint: ignore[fatal-name]\r"),
        ("x = 1\n", "x = 1\n"),
    ],
)
def test_added_comments_make_the_next_check_clean(before: str, after: str) -> None:
    assert added(f"{before}import torch") == f"{after}import torch"


def test_a_comment_is_added_to_a_last_line_without_an_end() -> None:
    assert added("import torch\nx = fatal") == "import torch\nx = fatal  # devlint: ignore[fatal-name]"


def test_added_comments_keep_the_encoding() -> None:
    assert added("# coding: latin-1\nx = 'é' + fatal  # é torch\n", "latin-1").splitlines()[1] == (
        "x = 'é' + fatal  # é torch  # devlint: ignore[fatal-name]"
    )


@pytest.mark.parametrize("raw", [b"torch = = 1\n", b"# torch\nx = '\xe9' + fatal\n", b"", b"x = 1\n"])
def test_a_file_that_cannot_be_annotated_comes_back_as_it_is(raw: bytes) -> None:
    assert suppress.add_ignores(raw, "x.py", ALL) == raw


PIECES = st.sampled_from(
    [
        "x = fatal",
        "x = poor  # a",
        "y = [poor,\n    fatal,  # b\n    # c\n    trial\n]",
        "y = [  # devlint: ignore[poor-name]\n    poor, fatal]",
        "z = '''fatal\n# devlint: ignore\n''' + poor + f'''{fatal}\n{poor}'''",
        "if poor:\n    trial\nelif fatal: fatal\nelse:\n    # devlint: ignore[fatal-name]\n    fatal",
        "x = fatal \\\n    + poor",
        "@fatal\n# devlint: ignore[poor-name]\n@poor(\n    trial)\ndef f(\n    a=poor,\n): return poor",
        "",
        "# devlint: ignore",
        "# devlint: ignore[fatal-name, poor-name] why",
        "# devlint: ignore-file[poor-name]",
        "# devlint: ignroe",
        "x = poor  # devlint: ignore[poor-name, fatal-name, no-name]",
        "f(1,  # devlint: ignore\n  fatal)",
        "for i in [\n    poor\n]: trial; fatal",
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=8), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_adding_comments_always_ends_clean_and_changes_no_code(pieces: list[str], newline: str, indented: bool) -> None:
    text = "\n".join([*pieces, "import torch"])
    if indented:
        text = "if x:\n" + textwrap.indent(text, "\t")
    raw = text.replace("\n", newline).encode()
    after = suppress.add_ignores(raw, "x.py", ALL)
    assert ast.dump(ast.parse(after)) == ast.dump(ast.parse(raw))
    assert engine.check(after, "x.py", ALL) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=8))
def test_removing_unused_comments_brings_no_finding_back(pieces: list[str]) -> None:
    raw = "\n".join([*pieces, "import torch"]).encode()
    kept = [(f.rule, f.message) for f in engine.check(raw, "x.py", ALL) if f.rule != "unused-ignore"]
    cleaned = fix(raw, "x.py", ALL, unsafe=False).raw
    assert not [f for f in engine.check(cleaned, "x.py", ALL) if f.rule == "unused-ignore" and f.fix]
    before = [f for f in kept if "`poor`" not in f[1]]  # a fix mends those
    assert [(f.rule, f.message) for f in engine.check(cleaned, "x.py", ALL) if f.rule != "unused-ignore"] == before


def test_a_finding_is_compared_with_the_comments_near_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    silences = suppress._Ignore.silences
    monkeypatch.setattr(
        suppress._Ignore, "silences", lambda *args, **kinds: asked.append(args) or silences(*args, **kinds)
    )
    assert messages("x = fatal  # devlint: ignore[fatal-name]\n" * 300) == []
    assert len(asked) == 300
