"""Fixing: rounds, refusals, exact text, diffs, writing, and the edits and imports that rules ask for."""

from __future__ import annotations

import codecs
import io
import os
import shutil
import stat
import subprocess
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import libcst as cst
import pytest
from compositions import Composition, compositions
from hypothesis import HealthCheck, given, settings

from devlint import config, docs, engine, imports, rule
from devlint import fix as fixing
from devlint.config import Selection, Settings
from devlint.finding import Edit, Finding, Span
from devlint.fix import Fixed, diff, fix, write
from devlint.rule import Rule
from devlint.source import Source
from harness import only

ALL = Settings(command_line=Selection(select=("ALL",)))


class OldCall(Rule):
    """`old(...)` becomes `new(...)`, by a rewrite of the whole call: nested ones overlap."""

    group = "correctness"
    fixable = "always"

    def visit_Call(self, node: cst.Call) -> None:
        if isinstance(node.func, cst.Name) and node.func.value == "old":
            inside = self.source.text[self.source.offsets(node)[0] + len("old") : self.source.offsets(node)[1]]
            self.report(
                node, "`old` is called", fix=self.fix("call `new`", self.replace(node, f"new{inside}"), safe=True)
            )


class TidyCall(Rule):
    """`tidy(a, b)` is written anew from its arguments: comments between them would go, and `tidy(**bad)` breaks."""

    group = "performance"
    fixable = "always"

    def visit_Call(self, node: cst.Call) -> None:
        if isinstance(node.func, cst.Name) and node.func.value == "tidy":
            inside = ", ".join(self.source.code(arg) for arg in node.args)
            code = "clean(" if "bad" in inside else f"clean({inside})"
            self.report(node, "`tidy` is called", fix=self.fix("call `clean`", self.replace(node, code), safe=True))


class BareSqrt(Rule):
    """`sqrt(x)` becomes `math.sqrt(x)`, with the import that it needs, and is hoisted where it says `hoisted`."""

    group = "performance"
    fixable = "always"

    def visit_Call(self, node: cst.Call) -> None:
        if not isinstance(node.func, cst.Name):
            return
        if node.func.value == "sqrt":
            needed = imports.needed(self.source, "math")
            edits = [self.insert_before(node, "math."), *([needed] if needed else [])]
            self.report(node, "`sqrt` is bare", fix=self.fix("use `math.sqrt`", *edits, safe=True))
        if node.func.value == "hoisted":
            name = self.source.code(node.args[0])
            above = self.insert_statement(node, f"{name}_once = {self.source.code(node.args[1])}", "if x:", "    pass")
            if above is not None:
                fix = self.fix("hoist it", above, self.replace(node, f"{name}_once"), safe=False)
                self.report(node, "`hoisted` is called", fix=fix)


class Swing(Rule):
    """`tick` becomes `tock` and `tock` becomes `tick`: fixes that never end."""

    group = "suspicious"
    fixable = "always"

    def visit_Name(self, node: cst.Name) -> None:
        other = {"tick": "tock", "tock": "tick"}.get(node.value)
        if other:
            self.report(node, f"`{node.value}`", fix=self.fix(other, self.replace(node, other), safe=True))
        if node.value.startswith("grow"):
            self.report(node, "it grows", fix=self.fix("grow", self.insert_after(node, "w"), safe=True))
        if node.value == "same":
            self.report(node, "the same", fix=self.fix("same", self.replace(node, "same"), safe=True))
        if node.value == "accent":
            self.report(node, "no accent", fix=self.fix("write it", self.replace(node, "\u0101ccent"), safe=True))
        if node.value == "first":
            self.report(node, "first", fix=self.fix("above all", Edit(Span(1, 1, 1, 1), "# a\n# b\n"), safe=True))
        if node.value == "torn":
            self.report(node, "torn", fix=self.fix("tear", self.replace(node, "a"), self.replace(node, "b"), safe=True))


TOYS = {kind.name: kind for kind in (BareSqrt, OldCall, Swing, TidyCall)}


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    with_toys(monkeypatch, TOYS)


def with_toys(monkeypatch: pytest.MonkeyPatch, kinds: dict[str, type[Rule]]) -> None:
    built_in = {name: info for name, info in docs.rules().items() if info.path is None}
    toys = {name: docs.RuleInfo(name, kind.group, kind.fixable, "A toy.", "") for name, kind in kinds.items()}
    monkeypatch.setattr(rule, "discover", lambda: kinds)
    monkeypatch.setattr(docs, "rules", lambda: {**toys, **built_in})
    forget_names()


def forget_names() -> None:
    for cached in (config.selectable, config._enabled):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def fresh_names() -> Iterator[None]:
    yield
    forget_names()


def fixed(text: str, *, unsafe: bool = False) -> Fixed:
    return fix(text.encode(), "x.py", ALL, unsafe=unsafe)


def after(text: str, *, unsafe: bool = False) -> str:
    """The settled text of a file that names torch."""
    mark = "torch\n"
    result = fixed(f"{mark}{text}", unsafe=unsafe).raw.decode()
    return result.removeprefix(mark)


# rounds -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toys")
class TestRounds:
    def test_nested_fixes_settle_and_none_is_lost(self) -> None:
        result = fixed("torch\nx = old(old(old(1), old(2)), y)\n")
        assert result.raw == b"torch\nx = new(new(new(1), new(2)), y)\n"
        assert [f.rule for f in result.applied] == ["old-call"] * 4
        assert result.remaining == result.refused == ()

    def test_a_fix_is_compared_with_the_fixes_near_it_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compared = []
        touch = fixing._touch
        monkeypatch.setattr(fixing, "_touch", lambda *edits: compared.append(edits) or touch(*edits))
        assert len(fixed("torch\n" + "old(a)\n" * 300).applied) == 300
        assert len(compared) <= 600

    def test_fixes_of_different_rules_that_overlap_settle(self) -> None:
        wanted = "import math\nx = new(clean(math.sqrt(1), new(2)))\n"
        assert fixed("import torch\nx = old(tidy(sqrt(1), old(2)))\n").raw.decode() == f"import torch\n{wanted}"

    def test_an_import_that_several_fixes_need_goes_in_once(self) -> None:
        result = fixed("import torch\n\nx = sqrt(1) + sqrt(2)\ny = sqrt(3)\n")
        assert result.raw == b"import torch\nimport math\n\nx = math.sqrt(1) + math.sqrt(2)\ny = math.sqrt(3)\n"
        assert len(result.applied) == 3

    def test_statements_put_above_the_same_line_go_in_together(self) -> None:
        lines = "".join(f"f(hoisted(v{i}, {i}), hoisted(w{i}, {i}))\n" for i in range(3))
        many = "f(" + ", ".join(f"hoisted(a{i}, {i})" for i in range(15)) + ")\n"
        result = fixed(f"torch\n{lines}{many}", unsafe=True)
        assert b"hoisted" not in result.raw
        assert len(result.applied) == 21

    def test_equal_statements_of_two_fixes_are_two(self) -> None:
        result = fixed("torch\nf(hoisted(a, b.pop()), hoisted(a, b.pop()))\n", unsafe=True)
        assert result.raw.count(b"a_once = b.pop()") == 2

    def test_safe_fixes_alone_unless_told_otherwise(self) -> None:
        text = "torch\nx = hoisted(a, 1) + old(1)\n"
        safe = fixed(text)
        assert safe.raw == b"torch\nx = hoisted(a, 1) + new(1)\n"
        assert [f.rule for f in safe.remaining] == ["bare-sqrt"]
        assert fixed(text, unsafe=True).raw == b"torch\na_once = 1\nif x:\n    pass\nx = a_once + new(1)\n"

    def test_applied_findings_keep_their_order_and_titles(self) -> None:
        result = fixed("torch\nx = old(old(1))\ny = tidy(1)\n")
        assert [(f.span.row, f.fix.title) for f in result.applied if f.fix] == [
            (2, "call `new`"), (3, "call `clean`"), (2, "call `new`"),
        ]  # fmt: skip

    def test_an_ignored_finding_is_not_fixed(self) -> None:
        text = "x = old(1)  # devlint: ignore[old-call]\n"
        assert after(text) == text

    def test_fixes_that_lead_back_are_left_out_and_named(self) -> None:
        result = fixed("torch\nx = tick\n")
        assert result.raw == b"torch\nx = tick\n"
        assert result.applied == ()
        assert result.refused == ("the fixes of `swing` undo each other and were left out; please report it",)
        assert [f.rule for f in result.remaining] == ["swing"]

    def test_fixes_that_never_settle_end_after_ten_rounds_and_are_named(self) -> None:
        result = fixed("torch\ngrow\n")
        assert result.raw == b"torch\ngrow" + b"w" * 10 + b"\n"
        assert result.refused == ("after 10 rounds the fixes of `swing` had not settled; run devlint again",)

    def test_a_file_with_nothing_to_fix_comes_back_as_it_is(self) -> None:
        assert fixed("torch\nx = 1\n") == Fixed(b"torch\nx = 1\n", (), (), ())

    def test_a_file_that_is_not_python_comes_back_with_its_finding(self) -> None:
        result = fixed("torch = = old(1)\n")
        assert result.raw == b"torch = = old(1)\n"
        assert [f.rule for f in result.remaining] == ["syntax-error"]


# refusals -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toys")
class TestRefusals:
    def test_a_fix_that_breaks_the_syntax_is_left_out_and_named_and_the_others_go_in(self) -> None:
        result = fixed("torch\nx = old(1)\ny = tidy(bad)\nz = tidy(2)\nw = old(3)\n")
        assert result.raw == b"torch\nx = new(1)\ny = tidy(bad)\nz = clean(2)\nw = new(3)\n"
        (message,) = result.refused
        assert message.startswith("the fix of `tidy-call` in line 3 was left out: the result would not compile (")
        assert [f.rule for f in result.applied] == ["old-call", "tidy-call", "old-call"]
        assert [f.rule for f in result.remaining] == ["tidy-call"]

    def test_a_fix_that_would_lose_a_comment_is_left_out(self) -> None:
        result = fixed("torch\ny = tidy(1,  # one\n         2)\nz = tidy(1, 2)  # two\n")
        assert result.raw == b"torch\ny = tidy(1,  # one\n         2)\nz = clean(1, 2)  # two\n"
        assert result.refused == ("the fix of `tidy-call` in line 2 was left out: the comment `# one` would be lost",)

    def test_a_comment_that_stands_twice_must_stand_twice_afterwards(self) -> None:
        text = "x = 1  # one\ny = tidy(1,  # one\n         2)\n"
        assert after(text) == text

    def test_a_fix_that_changes_nothing_is_left_out(self) -> None:
        result = fixed("torch\nsame\nx = old(1)\n")
        assert result.raw == b"torch\nsame\nx = new(1)\n"
        assert result.refused == ("the fix of `swing` in line 2 was left out: it changes nothing",)

    def test_a_fix_whose_edits_overlap_is_left_out(self) -> None:
        assert fixed("torch\ntorn\n").refused == ("the fix of `swing` in line 2 was left out: its edits overlap",)

    def test_a_fix_that_would_change_how_the_file_is_decoded_is_left_out(self) -> None:
        raw = "# coding: latin-1\n'\u00c3\u00a9', torch, first\n".encode("latin-1")  # valid as UTF-8 too
        result = fix(raw, "x.py", ALL, unsafe=False)
        assert result.raw == raw
        assert result.refused == (
            "the fix of `swing` in line 2 was left out: the result would not be read back as it was written",
        )

    def test_a_fix_that_the_encoding_cannot_write_is_left_out(self) -> None:
        raw = "# coding: latin-1\n'\u00e9', torch\naccent\nx = old(1)\n".encode("latin-1")
        result = fix(raw, "x.py", ALL, unsafe=False)
        assert result.raw == raw.replace(b"old", b"new")
        assert result.refused == (
            "the fix of `swing` in line 3 was left out: `\u0101` cannot be written in iso-8859-1",
        )

    def test_an_import_that_one_fix_shares_with_a_refused_one_goes_in(self) -> None:
        result = fixed("import torch\nx = tidy(bad, sqrt(1))\ny = sqrt(2)\n")
        assert result.raw == b"import torch\nimport math\nx = tidy(bad, math.sqrt(1))\ny = math.sqrt(2)\n"
        assert [f.rule for f in result.remaining] == ["tidy-call"]

    def test_code_in_newer_syntax_than_the_running_python_is_still_fixed(self) -> None:
        text = "def f[T](x: T): return old(x)\ntype A = int\n"
        assert after(text) == text.replace("old", "new")

    def test_a_file_that_cannot_be_written_back_is_never_changed(self) -> None:
        raw = b"# coding: utf-7\nx = ['torch', '+AEE-']\nx = old(1)\n"
        assert not Source(raw, "x.py").writable
        result = fix(raw, "x.py", ALL, unsafe=True)
        assert result.raw == raw
        assert [f.rule for f in result.remaining] == ["old-call"]

    def test_code_is_compiled_and_never_run(self, tmp_path: Path) -> None:
        made = tmp_path / "made"
        text = f"torch = open({str(made)!r}, 'w')\nx = old(1)\n"
        assert fixed(text).raw == text.replace("old", "new").encode()
        assert not made.exists()


# exact text ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toys")
class TestExactText:
    @pytest.mark.parametrize(
        "text",
        [
            "x = old(1)\r\ny = (  old( 2 ) )  \r\n\r\n",
            "x = old(1)\ry = 2\r",
            "x = old(1)\r\ny = 2\nz = old(3)\r",
            "\ufeffx = old(1)  \n\n\n",
            "x = old(1)",
            "x = 1\n\x0cdef f():\n\treturn old(1)\t\n\x0c\n",
            "if x:\n\told(1)  # \u00e9 \n\n   \n",
            "s = '''\r\n  old(1)  \r\n''', old(2)\r\n",
            "x = ((old(1)))  # old(1)\n",
            "x = old(1) \\\n    + 1 \n",
            "s = '\x0c\x85\u2028', old(1)\n",
        ],
    )
    def test_everything_but_the_fix_survives(self, text: str) -> None:
        raw = text.replace("x = 1", "torch").encode() + b"# torch"
        result = fix(raw, "x.py", ALL, unsafe=False)
        spans = [f.span for f in result.applied]
        assert spans and not result.refused
        source = Source(raw, "x.py")
        out = source.text
        for span in reversed(spans):
            at = source.offset(span.row, span.column)
            assert out[at : at + 3] == "old"
            out = f"{out[:at]}new{out[at + 3 :]}"
        assert result.raw == source.encode(out)

    @pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "shift_jis", "utf-8"])
    def test_the_encoding_survives(self, encoding: str) -> None:
        letter = "\u3042" if encoding == "shift_jis" else "\u00e9"
        raw = f"#!/usr/bin/python\n# vim: fileencoding={encoding}\nx = '{letter} torch', old('{letter}')\n".encode(
            encoding
        )
        assert fix(raw, "x.py", ALL, unsafe=False).raw == raw.replace(b"old", b"new")

    @pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
    def test_plain_line_ends_in_an_edit_become_the_files_own(
        self, newline: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def visit_name(self: Rule, node: cst.Name) -> None:
            if node.value == "wide":
                self.report(node, "wide", fix=self.fix("narrow", self.replace(node, "[\n    1,\n]"), safe=True))

        kind = type("WideName", (Rule,), {"group": "nursery", "visit_Name": visit_name})
        with_toys(monkeypatch, {"wide-name": kind})
        raw = f"torch{newline}x = wide{newline}".encode()
        expected = "torch\nx = [\n    1,\n]\n".replace("\n", newline).encode()
        assert fix(raw, "x.py", ALL, unsafe=False).raw == expected

    @pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
    def test_inserted_lines_take_the_files_own_line_end_and_indentation(self, newline: str) -> None:
        text = "import torch\nif y:\n\tif z:\n\t\tf(hoisted(a, [1,\n  2]))\n".replace("\n", newline)
        wanted = "import torch\nif y:\n\tif z:\n\t\ta_once = [1,\n  2]\n\t\tif x:\n\t\t\tpass\n\t\tf(a_once)\n"
        assert fix(text.encode(), "x.py", ALL, unsafe=True).raw == wanted.replace("\n", newline).encode()


# the edits that rules ask for ---------------------------------------------------------------------


class Nothing(Rule):
    group = "nursery"


def edited(text: str, edit: Callable[[Rule, cst.Call], Edit | None]) -> str | None:
    """The text after an edit made for its first call of ``f``."""
    source = Source(text.encode(), "x.py")
    call = next(
        node for node in source.nodes_named("Call") if isinstance(node, cst.Call) and source.code(node.func) == "f"
    )
    made = edit(Nothing(source, None), call)  # type: ignore[arg-type]
    if made is None:
        return None
    start, end = source.offset(made.span.row, made.span.column), source.offset(made.span.end_row, made.span.end_column)
    out = text[:start] + made.content + text[end:]
    cst.parse_module(out)
    return out


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()", "f(k=1)"),
        ("f( )", "f( k=1)"),
        ("(f)()", None),
        ("f(a)", "f(a, k=1)"),
        ("(f(a))", "(f(a, k=1))"),
        ("f((a))", "f((a), k=1)"),
        ("f(a, )", "f(a, k=1 )"),
        ("f(a,)", "f(a, k=1)"),
        ("f(*a)", "f(*a, k=1)"),
        ("f(a, **b)", "f(a, **b, k=1)"),
        ("f(a, j=(2))", "f(a, j=(2), k=1)"),
        ("f(x for x in y)", None),
        ("f((x for x in y))", "f((x for x in y), k=1)"),
        ("f(k=2)", None),
        ("f(a, k = 2)", None),
        ("f(\n    a,\n    b\n)", "f(\n    a,\n    b, k=1\n)"),
        ("f(\n    a,\n    b,\n)", "f(\n    a,\n    b,\n    k=1,\n)"),
        ("f(\n    a,\n    b,  # why, this\n)", "f(\n    a,\n    b,  # why, this\n    k=1,\n)"),
        ("f(\r\n\ta,\r\n)\r\n", "f(\r\n\ta,\r\n\tk=1,\r\n)\r\n"),
        ("f(a,\n  b,\n)", "f(a,\n  b,\n  k=1,\n)"),
        ("f(a,\n)", "f(a, k=1,\n)"),
        ("f(  # why\n)", "f(  # why\nk=1)"),
        ("f(\n    a  # why, this\n    ,\n)", "f(\n    a  # why, this\n    ,\n    k=1,\n)"),
        ("f(\n    a  # why\n)", "f(\n    a, k=1  # why\n)"),
        ("f(\n    [\n        a,\n    ],\n)", "f(\n    [\n        a,\n    ],\n    k=1,\n)"),
        ("f(a)(b)", "f(a, k=1)(b)"),
        ("f(\n    '''a\n''',\n)", "f(\n    '''a\n''',\n    k=1,\n)"),
    ],
)
def test_an_argument_is_added_last(before: str, after: str | None) -> None:
    if before == "(f)()":
        after = "(f)(k=1)"
    assert edited(before, lambda r, call: r.add_argument(call, "k=1")) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(k=1)", "f()"),
        ("f( k = (1), )", "f(  )"),
        ("f(k=1,)", "f()"),
        ("f(a, k=1)", "f(a)"),
        ("f((a) , k=1)", "f((a))"),
        ("f(a, k=1,)", "f(a,)"),
        ("f(k=1, j=2)", "f(j=2)"),
        ("f(a, k='#', **b)", "f(a, **b)"),
        ("f(k=1, *b)", "f(*b)"),
        ("f(a, j=1)", None),
        ("f(\n    a,\n    k=1,\n    b=2,\n)", "f(\n    a,\n    b=2,\n)"),
        ("f(\n    a,\n    k=1,\n)", "f(\n    a,\n)"),
        ("f(\n    a,\n    k=1\n)", "f(\n    a\n)"),
        ("f(\n    a,  # why\n    k=1,\n)", "f(\n    a,  # why\n)"),
        ("f(\n    a,  # why\n    k=1\n)", "f(\n    a,  # why\n)"),
        ("f(\n    a,  # why\n    k=g(\n        1),\n    # end\n)", "f(\n    a,  # why\n    # end\n)"),
        ("f(\n    k=1,  # why\n    b=2,\n)", None),
        ("f(\n    k=[1,  # why\n    ],\n    b=2,\n)", None),
        ("f(a, k=1  # why\n)", "f(a  # why\n)"),
    ],
)
def test_an_argument_is_removed_with_its_comma_and_never_with_a_comment(before: str, after: str | None) -> None:
    assert edited(before, lambda r, call: r.remove_argument(call, "k")) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()\n", "a\nf()\n"),
        ("x; y\nif z:\n  g(f())\n", "x; y\nif z:\n  a\n  g(f())\n"),
        ("for i in f(): pass\n", "a\nfor i in f(): pass\n"),
        ("if f():\n    pass\n", "a\nif f():\n    pass\n"),
        ("if x:\n    pass\nelif f():\n    pass\n", None),
        ("x = 1; y = f()\n", None),
        ("y = f(); x = 1\n", "a\ny = f(); x = 1\n"),
        ("if x: f()\n", None),
        ("@f()\ndef g(): pass\n", None),
        ("def g(x=f()): pass\n", None),
        ("class A(f()): pass\n", None),
        ("# c\nf()\n", "# c\na\nf()\n"),
        ("try:\n    f()\nfinally:\n    pass\n", "try:\n    a\n    f()\nfinally:\n    pass\n"),
        ("with f() as x:\r\n    pass\r\n", "a\r\nwith f() as x:\r\n    pass\r\n"),
    ],
)
def test_a_statement_is_inserted_on_a_line_of_its_own_or_not_at_all(before: str, after: str | None) -> None:
    assert edited(before, lambda r, call: r.insert_statement(call, "a")) == after


def test_a_statement_goes_above_the_decorators_of_a_definition() -> None:
    source = Source(b"if x:\n    @d\n    @e\n    def g():\n        pass\n", "x.py")
    edit = Nothing(source, None).insert_statement(source.nodes_named("FunctionDef")[0], "a")  # type: ignore[arg-type]
    assert edit == Edit(Span(2, 5, 2, 5), "a\n    ")


def test_text_inserted_beside_a_node_stays_outside_its_parentheses() -> None:
    assert edited("x = (f(1))", lambda r, call: r.insert_before(call, "-")) == "x = -(f(1))"
    assert edited("x = (f(1))", lambda r, call: r.insert_after(call, ".y")) == "x = (f(1)).y"
    assert edited("x = (f(1))", lambda r, call: r.replace(call, "y")) == "x = (y)"
    assert edited("x = (f(1))", lambda r, call: r.replace(call, "y", outer=True)) == "x = y"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "import torch\n"),
        ("x = 1\n", "import torch\nx = 1\n"),
        ("import os\nx = 1\n", "import os\nimport torch\nx = 1\n"),
        ("import os\r\n\r\nx = 1\r\n", "import os\r\nimport torch\r\n\r\nx = 1\r\n"),
        ("import os", "import os\nimport torch"),
        ("import os; import re  # c\nx\n", "import os; import re  # c\nimport torch\nx\n"),
        ("from os import (\n    path,\n)  # c\nx\n", "from os import (\n    path,\n)  # c\nimport torch\nx\n"),
        ('"""doc"""\n\nimport os\n', '"""doc"""\n\nimport os\nimport torch\n'),
        ('"""doc\n\nmore"""\nx = 1\n', '"""doc\n\nmore"""\n\nimport torch\nx = 1\n'),
        ('"""doc"""', '"""doc"""\n\nimport torch'),
        ("from __future__ import annotations\n\nx\n", "from __future__ import annotations\n\nimport torch\n\nx\n"),
        (
            '"""doc"""\nfrom __future__ import annotations\nimport os\n',
            '"""doc"""\nfrom __future__ import annotations\nimport os\nimport torch\n',
        ),
        (
            "import os\nfrom torch import nn\nimport sys\n",
            "import os\nimport torch\nfrom torch import nn\nimport sys\n",
        ),
        ("import os\n# c\nfrom torch.nn import F\n", "import os\n# c\nimport torch\nfrom torch.nn import F\n"),
        ("#!/usr/bin/python\n# coding: utf-8\nx = 1\n", "#!/usr/bin/python\n# coding: utf-8\nimport torch\nx = 1\n"),
        ("# licence\n\n# about x\nx = 1\n", "# licence\n\nimport torch\n# about x\nx = 1\n"),
        ("# licence\n\n@d\ndef f(): pass\n", "# licence\n\nimport torch\n@d\ndef f(): pass\n"),
        ("# only\n", "# only\nimport torch\n"),
        ("import sys\nsys.path.append('')\nimport os\n", "import sys\nimport torch\nsys.path.append('')\nimport os\n"),
        (
            "if TYPE_CHECKING:\n    import torch\n",
            "import torch\nif TYPE_CHECKING:\n    import torch\n",
        ),
        ("import typing\nif typing.TYPE_CHECKING:\n    import torch\nelse:\n    torch = None\n", None),
        ("def f():\n    import torch\n", "import torch\ndef f():\n    import torch\n"),
        ("from torch import *\n", "import torch\nfrom torch import *\n"),
        ("import torch as t\n", "import torch\nimport torch as t\n"),
        ("import torch\n", None),
        ("import torch.nn\n", None),
        ("x = 1; import os, torch\n", None),
        ("from lib import torch\n", None),
        ("from lib import shim as torch\n", None),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None\n", None),
        ("try:\n    pass\nexcept ImportError:\n    torch = None\n", None),
        ("if x:\n    pass\nelif y: import torch\n", None),
        ("with x:\n    for y in z:\n        import torch\n", None),
        ("a, (b, torch) = x\n", None),
        ("torch: Any = x\n", None),
        ("torch: Any\n", "import torch\ntorch: Any\n"),
        ("class torch: pass\n", None),
    ],
)
def test_an_import_goes_beside_the_others_unless_the_name_is_bound(before: str, after: str | None) -> None:
    source = Source(before.encode(), "x.py")
    edit = imports.needed(source, "torch")
    if edit is None:
        assert after is None
        return
    at = source.offset(edit.span.row, edit.span.column)
    assert before[:at] + edit.content + before[at:] == after
    compile(after, "x.py", "exec")


# diffs --------------------------------------------------------------------------------------------


def test_a_diff_names_the_file_and_shows_the_change() -> None:
    assert diff("src/x.py", b"a\nb\nc\n", b"a\nB\nc\n") == (
        "--- a/src/x.py\n+++ b/src/x.py\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
    )


def test_no_change_is_no_diff() -> None:
    assert diff("x.py", b"a\n", b"a\n") == ""


def test_a_diff_marks_a_missing_last_line_end() -> None:
    assert diff("x.py", b"a", b"b") == (
        "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n"
    )


def test_a_diff_shows_text_in_its_own_encoding() -> None:
    before = "# coding: latin-1\nx = '\u00e9'\n".encode("latin-1")
    assert "-x = '\u00e9'\n+y = '\u00e9'\n" in diff("x.py", before, before.replace(b"x =", b"y ="))
    assert "-\u00ff\n" in diff("x.py", b"\xff\n", b"a\n")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(b"a\nb\n", b"a\nc\n", id="LF"),
        pytest.param(b"a\r\nb\r\n", b"a\r\nc\r\n", id="CRLF"),
        pytest.param(b"a\rb\r", b"a\rc\r", id="lone carriage returns"),
        pytest.param(b"a\nb", b"a\nc", id="no line end at the end"),
        pytest.param(b"a\n\x0cb\x1c\n", b"a\n\x0cc\x1c\n", id="what str.splitlines takes for a line end"),
        pytest.param(codecs.BOM_UTF8 + b"a\n", codecs.BOM_UTF8 + b"b\n", id="a byte-order mark"),
        pytest.param("x = '\u00e9\u2028'\n".encode(), "y = '\u00e9\u2028'\n".encode(), id="UTF-8"),
    ],
)
def test_git_applies_the_diff(tmp_path: Path, before: bytes, after: bytes) -> None:
    (tmp_path / "a b.py").write_bytes(before)
    patch = diff("a b.py", before, after).encode()
    run = ["git", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", "-"]
    subprocess.run(run, input=patch, cwd=tmp_path, check=True)
    assert (tmp_path / "a b.py").read_bytes() == after


# writing ------------------------------------------------------------------------------------------


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writing_keeps_the_mode_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(b"old")
    file.chmod(0o751)
    write(str(file), b"new\r\n\xff")
    assert file.read_bytes() == b"new\r\n\xff"
    assert stat.S_IMODE(file.stat().st_mode) == 0o751
    assert names(tmp_path) == ["x.py"]


def test_writing_replaces_the_file_in_one_step(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(b"old")
    with file.open("rb") as reader:
        write(str(file), b"new")
        assert reader.read() == b"old"


def test_writing_follows_symbolic_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    file = tmp_path / "real" / "x.py"
    file.write_bytes(b"old")
    (tmp_path / "link.py").symlink_to("hop.py")
    (tmp_path / "hop.py").symlink_to(file)
    write(str(tmp_path / "link.py"), b"new")
    assert file.read_bytes() == b"new"
    assert (tmp_path / "link.py").is_symlink() and (tmp_path / "hop.py").is_symlink()
    assert names(tmp_path / "real") == ["x.py"]


def test_writing_makes_a_file_that_is_not_there(tmp_path: Path) -> None:
    write(str(tmp_path / "new.txt"), b"new")
    os.umask(mask := os.umask(0))
    assert (tmp_path / "new.txt").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("step", ["replace", "chmod", "stat"])
def test_a_failure_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, step: str
) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(b"old")

    def fail(name: object, *args: object, **kwargs: object) -> object:
        if ".devlint-" in str(name):
            raise failure
        return original(name, *args, **kwargs)

    original = getattr(os, step)
    with monkeypatch.context() as patched, pytest.raises(type(failure)):
        patched.setattr(os, step, fail)
        write(str(file), b"new")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["x.py"]


def test_a_read_only_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(b"old")
    # root may write anywhere, so the answer is pretended
    monkeypatch.setattr(os, "access", lambda path, mode: path != os.path.realpath(file))
    with pytest.raises(PermissionError, match="the file is read-only"):
        write(str(file), b"new")
    assert file.read_bytes() == b"old"


def test_a_file_in_a_read_only_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda path, mode: path != os.path.realpath(tmp_path))
    with pytest.raises(PermissionError, match="its folder is read-only"):
        write(str(file), b"new")
    assert file.read_bytes() == b"old"


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        write(str(tmp_path), b"new")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        write(str(tmp_path / "none" / "x.py"), b"new")


# properties ---------------------------------------------------------------------------------------

TOY_SNIPPETS = (
    "x = old(old(1), tidy(2))  # c",
    "y = tidy(1,  # c\n         2)",
    "z = (sqrt(4))  ",
    "@deco\ndef f(a=old(1)):\n    '''old(1)'''\n    # c\n    return tidy(a, old(a))",
    "class A:\n\n    x = sqrt(old(2))\n\n    def m(self): return tidy(bad)",
    "for i in hoisted(it, [1,\n        2]):\n    print(hoisted(a, i), hoisted(b, i))",
    "s = f'''{old(1)}\n  old(1)  ''' + '\u00e9'",
    "w = old(  # devlint: ignore[old-call]\n    1)",
    "v = 1  # devlint: ignore[old-call, no-such-rule]  # noqa",
    "# devlint: ignore[tidy-call]\nu = tidy(1); t = old(2)",
)


def comments(raw: bytes) -> Counter[str]:
    return Counter(
        token.string.rstrip()
        for token in tokenize.tokenize(io.BytesIO(raw).readline)
        if token.type == tokenize.COMMENT and "devlint:" not in token.string
    )


def fixing_is_sound(raw: bytes, chosen: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What must hold of fixing any file: it compiles, is settled, keeps its comments, differs where reported only."""
    whole = fix(raw, "x.py", chosen, unsafe=True)
    compile(whole.raw, "x.py", "exec", dont_inherit=True)
    settled = not any("settled" in message for message in whole.refused)
    if settled:
        again = fix(whole.raw, "x.py", chosen, unsafe=True)
        assert (again.raw, again.applied) == (whole.raw, ())
        assert again.remaining == whole.remaining
    assert comments(raw) <= comments(whole.raw)
    assert whole.raw.startswith(codecs.BOM_UTF8) == raw.startswith(codecs.BOM_UTF8)
    assert (b"\r\n" in whole.raw) == (b"\r\n" in raw)
    assert whole.raw.count(b"\n") == whole.raw.count(b"\r\n") or b"\r\n" not in raw

    text = raw
    with monkeypatch.context() as patched:
        patched.setattr(fixing, "_ROUNDS", 1)
        for _ in range(10):
            reported = engine.check(text, "x.py", chosen)
            one = fix(text, "x.py", chosen, unsafe=True)
            assert set(one.applied) <= set(reported)
            assert differs_only_at(text, one.raw, one.applied)
            if one.raw == text:
                break
            text = one.raw
    if not whole.refused:
        assert text == whole.raw


def differs_only_at(before: bytes, after: bytes, applied: tuple[Finding, ...]) -> bool:
    """Whether what lies between the edits of these findings stands unchanged, in order, from start to end."""
    source, rest = Source(before, "x.py"), Source(after, "x.py").text
    edits = sorted({edit.span for finding in applied if finding.fix for edit in finding.fix.edits})
    at, kept = 0, []
    for span in edits:
        kept.append(source.text[at : source.offset(span.row, span.column)])
        at = source.offset(span.end_row, span.end_column)
    kept.append(source.text[at:])
    if not edits:
        return kept == [rest]
    if not (rest.startswith(kept[0]) and rest.endswith(kept[-1])):
        return False
    position = 0
    for piece in kept[:-1]:
        position = rest.index(piece, position) + len(piece)
    return position <= len(rest) - len(kept[-1])


sound = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)


class TestProperties:
    @settings(sound, max_examples=50)
    @given(composition=compositions(own=TOY_SNIPPETS, most=1))
    def test_fixing_any_composition_with_toy_rules_is_sound(
        self, composition: Composition, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patched:
            with_toys(patched, TOYS)
            fixing_is_sound(composition.raw, ALL, patched)
        forget_names()

    @settings(sound, max_examples=25)
    @given(composition=compositions())
    def test_fixing_any_composition_of_fixtures_with_the_rules_is_sound(
        self, composition: Composition, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = rule.rule_files().keys()
        fixing_is_sound(composition.raw, only(composition.rules & known | {engine.UNUSED_IGNORE}), monkeypatch)
