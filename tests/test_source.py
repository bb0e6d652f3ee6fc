"""Bytes to text to positions, and back."""

import codecs
import subprocess
import sys
import textwrap
from pathlib import Path

import libcst as cst
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libcst.metadata import MetadataWrapper, PositionProvider
from test_tree import SAMPLE

from devlint.decoding import SourceError, decode, line_starts
from devlint.finding import Span
from devlint.source import Source

PIECES = [
    "x = 1",
    "y = f(a, b=2)  # why é",
    "if x:\n    y = (1)\n    # below\nelse:\n    z",
    "def f(a,\n      b):\n    '''doc\n\n    more'''\n    return [a,\n            b]  # end",
    "class A:\n\n    x: int = 1  # note\n\n    @property\n    def y(self): return self.x",
    "s = '''é\n# no comment\n'''",
    "z = x \\\n    + y",
    "for i in range(3): print(i); print(x)",
    "# a comment",
    "",
    "t = f'{x!r:>{y}} {f(1)}' 'more'",
    "with a as b, c: pass  ",
]


def text_at(source: Source, span: Span) -> str:
    return source.text[source.offset(span.row, span.column) : source.offset(span.end_row, span.end_column)]


def reason(raw: bytes) -> tuple[str, int, int]:
    with pytest.raises(SourceError) as caught:
        Source(raw, "x.py")
    return caught.value.reason, caught.value.row, caught.value.column


# bytes and text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="an empty file"),
        pytest.param(b"\n", id="an empty line"),
        pytest.param(b"# only a comment", id="a comment without a line end"),
        pytest.param(b"x = 1", id="no line end at the end"),
        pytest.param(b"x = 1\n\n\n   ", id="blanks at the end"),
        pytest.param(b"x = 1\r\nif x:\r\n    y\r\n", id="CRLF"),
        pytest.param(b"x = 1\rif x:\r    y\r", id="lone carriage returns"),
        pytest.param(b"x = 1\r\ny = 2\nz = 3\r", id="mixed line ends"),
        pytest.param(b"x = 1\n\x0cdef f():\n    pass\n\x0c\n\x0cy = 2\n", id="form feeds"),
        pytest.param(b"if x:\n\ty\n\tif y:\n\t\tz\n", id="tabs"),
        pytest.param(b"if x:\n  y   \n  # c   \n\n\n", id="trailing blanks"),
        pytest.param(codecs.BOM_UTF8 + "x = 'é'\n".encode(), id="a byte-order mark"),
        pytest.param(codecs.BOM_UTF8, id="nothing but a byte-order mark"),
        pytest.param("# coding: latin-1\nx = 'é'\n".encode("latin-1"), id="latin-1"),
        pytest.param(
            "#!/usr/bin/python\n# -*- coding: cp1252 -*-\nx = '€'\n".encode("cp1252"), id="cp1252 on line two"
        ),
        pytest.param("# coding: shift_jis\nx = '日本'\n".encode("shift_jis"), id="a multi-byte encoding"),
        pytest.param("x = '\N{GRINNING FACE}'\ny = 1\n".encode(), id="beyond the basic plane"),
        pytest.param("x = 'a\u2028b\x85c\x1cd'\ny = 1\n".encode(), id="what str.splitlines takes for a line end"),
        pytest.param(b"\\\nx = 1\n", id="a line continuation before everything"),
    ],
)
def test_every_way_to_write_a_file_survives_and_is_writable(raw: bytes) -> None:
    source = Source(raw, "x.py")
    assert source.encode(source.text) == raw
    assert source.writable


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"x = '\xe9'\n", ("byte 0xe9 is not valid utf-8; save the file as UTF-8 or declare its encoding", 1, 6)),
        ("y = 'é'\r\nx = 1\rz = '".encode() + b"\xff'", ("byte 0xff is not valid utf-8;", 3, 6)),
        ("x = 1\n".encode("utf-16"), ("the file is UTF-16, which Python does not read; save it as UTF-8", 1, 1)),
        (b"x = 1\n\xe9\n", ("byte 0xe9 is not valid utf-8", 2, 1)),
        (b"# coding: no-such\n", ("unknown encoding: no-such", 1, 1)),
        (b"# coding: rot13\nk = 1\n", ("cannot decode the file as rot13", 1, 1)),
        (b"# coding: undefined\nk = 1\n", ("cannot decode the file as undefined", 1, 1)),
        (codecs.BOM_UTF8 + b"# coding: latin-1\n", ("encoding problem: utf-8", 1, 1)),
        (b"x = 1\ny = '\0'\n", ("source code cannot contain null bytes", 2, 6)),
        (b"# coding: unicode_escape\nx = '\\ud800'\n", ("a lone surrogate is not text", 2, 6)),
        (b"x = (\n1\n", ("'(' was never closed", 1, 5)),
        ("é = 1\né = = 2\n".encode(), ("invalid syntax", 2, 5)),
        (b"if x:\ny\n", ("expected an indented block after 'if' statement on line 1", 2, 1)),
        (b"a\n\x0cb = = 1\n", ("invalid syntax", 2, None)),
    ],
)
def test_what_is_not_python_says_why_and_where(raw: bytes, expected: tuple[str, int, int | None]) -> None:
    message, row, column = reason(raw)
    assert message.startswith(expected[0])
    assert row == expected[1]
    assert expected[2] in (None, column)


def test_where_only_the_parser_gives_up_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(text: str) -> None:
        raise cst.ParserSyntaxError("parser error", lines=[text], raw_line=1, raw_column=2)

    monkeypatch.setattr(cst, "parse_module", parse)
    message, row, column = reason(b"x = 1\n")
    assert message.startswith("LibCST, which devlint reads Python with, cannot parse this, though Python 3.")
    assert (row, column) == (1, 3)


@pytest.mark.parametrize(
    "raw",
    [b"if x:\n" + b" " * 120 + b"y = $\n", b"(" * 300 + b"\n", b"x = '" + b"a" * 10_000, b"\x1a", b"\xff\xfe\x00"],
)
def test_what_is_not_python_always_ends_in_a_source_error(raw: bytes) -> None:
    assert reason(raw)[0]


@given(st.binary(max_size=60))
def test_any_bytes_are_either_source_or_a_source_error(raw: bytes) -> None:
    try:
        source = Source(raw, "x.py")
    except SourceError as error:
        assert error.row >= 1 and error.column >= 1
    else:
        assert not source.writable or source.encode(source.text) == raw


def test_decode_leaves_the_mark_out_of_the_text() -> None:
    assert decode(codecs.BOM_UTF8 + b"x") == (codecs.BOM_UTF8, "utf-8", "x")


def test_only_what_python_takes_for_a_line_end_starts_a_line() -> None:
    assert line_starts("a\nb\r\nc\rd\x0ce\x85f\u2028g\n") == [0, 2, 5, 7, 15]


@pytest.mark.parametrize(
    ("raw", "offset", "newline"),
    [
        (b"a\r\nb\nc", 0, "\r\n"),
        (b"a\r\nb\nc", 3, "\n"),
        (b"a\r\nb\nc", 5, "\r\n"),  # the last line has none: the first of the file
        (b"a\rb\r", 2, "\r"),
        (b"a", 1, "\n"),
    ],
)
def test_the_line_end_in_use_is_that_of_the_line(raw: bytes, offset: int, newline: str) -> None:
    assert Source(raw, "x.py").newline(offset) == newline


# positions ----------------------------------------------------------------------------------------


def test_positions_are_those_of_libcst() -> None:
    source = Source(SAMPLE, "sample.py")
    wrapper = MetadataWrapper(source.module, unsafe_skip_copy=True)
    theirs = wrapper.resolve(PositionProvider)
    for nodes in source.nodes.values():
        for node in nodes:
            start, end = source.offsets(node)
            at = theirs[node]
            assert (*source.place(start), *source.place(end)) == (
                at.start.line, at.start.column + 1, at.end.line, at.end.column + 1,
            ), type(node).__name__  # fmt: skip


@given(
    st.lists(st.sampled_from(PIECES), max_size=8),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(["", "\x0c", "\x0c\n"]),
    st.sampled_from(["", "\n", "\n\n", "   ", "\n  "]),
    st.sampled_from(["utf-8", "utf-8-sig", "latin-1"]),
)
def test_a_node_lies_where_its_code_is(pieces: list[str], newline: str, feed: str, last: str, encoding: str) -> None:
    cookie = f"# coding: {encoding}\n" if encoding == "latin-1" else ""
    text = (cookie + "\n".join(feed + piece for piece in pieces) + last).replace("\n", newline)
    source = Source(text.encode(encoding), "x.py")
    assert source.text == text
    if not source.writable:  # LibCST forgets a last comment behind a form feed
        assert "\x0c#" in text
        return
    for nodes in source.nodes.values():
        for node in nodes:
            start, end = source.offsets(node)
            assert 0 <= start <= end <= len(text)
            assert source.offset(*source.place(start)) == start
            if isinstance(node, (cst.BaseExpression, cst.BaseSmallStatement)):
                outer = source.offsets(node, outer=True)
                # code_for_node leaves out the indentation of continued lines
                assert text[slice(*outer)].split() == source.module.code_for_node(node).split()
                assert outer[0] <= start <= end <= outer[1]
            if isinstance(node, cst.BaseExpression):
                assert text[start:end] == text[start:end].strip()


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("for x in y:  # note\n    pass\n", "For", "for x in y:"),
        ("if (a and\n        b):\n    pass\n", "If", "if (a and"),
        ("if (a and\r        b):\r    pass\r", "If", "if (a and"),
        ("@d\nasync def f(x): return x\n", "FunctionDef", "async def f(x):"),
        ("class A(B) :\n    pass\n", "ClassDef", "class A(B) :"),
        ("match x:\n    case 1: pass\n", "Match", "match x:"),
        ("match x:\n    case 1: pass\n", "MatchCase", "case 1:"),
        ("try:\n    pass\nfinally:\n    pass\n", "Finally", "finally:"),
        ("x = (1 +\n     2)\n", "SimpleStatementLine", "x = (1 +\n     2)"),
        ("f(lambda: {1: 2})\n", "Lambda", "lambda: {1: 2}"),
    ],
)
def test_the_span_of_a_compound_statement_is_the_first_line_of_its_header(text: str, kind: str, code: str) -> None:
    source = Source(text.encode(), "x.py")
    assert text_at(source, source.span(source.nodes_named(kind)[0])) == code


def test_columns_count_code_points_and_not_bytes() -> None:
    source = Source("# coding: latin-1\né = 'é' + naïve\n".encode("latin-1"), "x.py")
    last = source.nodes_named("Name")[-1]
    assert source.span(last) == Span(2, 11, 2, 16)
    marked = Source(codecs.BOM_UTF8 + "\N{GRINNING FACE}".join(["x = '", "' + y\n"]).encode(), "x.py")
    assert marked.span(marked.nodes_named("Name")[-1]) == Span(1, 11, 1, 12)


def test_form_feeds_do_not_shift_what_follows() -> None:
    source = Source(b"a = 1\n\x0cb = c\n\x0cif d:\n    e = f\n", "x.py")
    assert [source.code(n) for n in source.nodes_named("Name")] == ["a", "b", "c", "d", "e", "f"]
    assert source.span(source.nodes_named("Name")[1]) == Span(2, 2, 2, 3)


def test_a_nodes_code_leaves_out_its_own_parentheses() -> None:
    source = Source(b"x = ((a) + b)\n", "x.py")
    assert source.code(source.nodes_named("BinaryOperation")[0]) == "(a) + b"
    assert source.text[slice(*source.offsets(source.nodes_named("BinaryOperation")[0], outer=True))] == "((a) + b)"


def test_comments_are_found_with_their_offsets_and_text_in_strings_is_none() -> None:
    text = "# a\nx = '# no'  # b\n\x0cf(  # c\n    1,\n    # d\n)\nif x:\n    y\n    # e\n# f"
    source = Source(text.encode(), "x.py")
    assert [comment for _, comment in source.comments] == ["# a", "# b", "# c", "# d", "# e", "# f"]
    assert all(text.startswith(comment, offset) for offset, comment in source.comments)


def test_a_sum_of_many_terms_has_positions() -> None:
    source = Source(b"x = " + b" + ".join([b"y"] * 1000) + b"\n", "deep.py")
    assert source.code(source.nodes_named("Name")[-1]) == "y"
    assert source.writable


def test_a_file_that_does_not_encode_back_is_not_writable() -> None:
    # two byte sequences of this encoding decode to one character
    raw = b"# coding: utf-7\nx = ['A', '+AEE-']\n"
    source = Source(raw, "x.py")
    assert "['A', 'A']" in source.text
    assert not source.writable


def test_nodes_of_a_class_that_this_libcst_lacks_are_none() -> None:
    assert Source(b"x = 1\n", "x.py").nodes_named("NoSuchNode") == []


CHECKOUT = Path(__file__).parent.parent


@pytest.mark.parametrize("path", sorted((CHECKOUT / "devlint").rglob("*.py")), ids=lambda path: path.stem)
def test_trees_are_what_libcst_itself_makes_of_the_code(path: Path) -> None:
    source = Source(path.read_bytes(), str(path))
    assert source.module.deep_equals(cst.parse_module(source.text))
    assert source.module.code == source.text


def test_nodes_made_by_others_are_checked_as_ever() -> None:
    Source(b"x = 1\n", "x.py")
    with pytest.raises(cst.CSTValidationError):
        cst.Name("")
    with pytest.raises(AttributeError):
        cst.Name("x").value = "y"  # type: ignore[misc]
    assert len({cst.Name("x"), cst.Name("x")}) == 2


@pytest.mark.parametrize(
    "text",
    [
        (CHECKOUT / "devlint/source.py").read_text(encoding="utf-8"),
        "x = ((a,\n  # b\n  c) )\ny = 'a\\nb' 'c'\nz = [\n  1,\n\n]\n",
        "def f():\n\tif a:\n\t\treturn g(\n\t\t\t1,\n\t\t)\n\telif b: c; d\n",
        "if a:\r\n  x = (1,\r\n    2)\r\n",
        "x = a + \\\n    b\nassert a, \\\n  b\n\x0cy = f(\x0c1)\n",
        "try:\n    a()\nexcept* E: b()\nwith (a as b,\n  c):\n    '''d\ne'''\n",
    ],
)
def test_the_code_of_a_node_is_the_same_before_and_after_positions_are_known(text: str) -> None:
    asked, told = Source(text.encode(), "x.py"), Source(text.encode(), "x.py")
    told.offsets(told.module)
    with_code = cst.BaseExpression | cst.BaseSmallStatement | cst.BaseStatement
    kinds = [kind for kind in told.nodes if issubclass(kind, with_code)]
    assert kinds
    for kind in kinds:
        codes = []
        for node in asked.nodes_of(kind):
            asked._codes = 1
            vars(asked).pop("_positions", None)
            codes.append(asked.code(node))
        assert codes == [told.code(node) for node in told.nodes_of(kind)]


def test_few_codes_are_made_without_working_out_the_positions_of_the_whole_file() -> None:
    source = Source((CHECKOUT / "devlint/source.py").read_bytes(), "x.py")
    for node in source.nodes_of(cst.SimpleStatementLine)[:20]:
        assert source.code(node) in source.text
    assert "_positions" not in vars(source)


@pytest.mark.parametrize("path", ["devlint/source.py", "devlint/flow/scope.py", "tests/test_source.py"])
def test_what_lies_in_a_part_of_a_file_lies_in_the_same_place_of_the_whole(path: str) -> None:
    raw = (CHECKOUT / path).read_bytes()
    whole = Source(raw, "x.py")
    places = whole._positions.spans
    for number in range(0, len(whole.nodes_of(cst.Name)), 40):
        source = Source(raw, "x.py")  # each has the names of a few parts to tell
        for node, same in list(zip(source.nodes_of(cst.Name), whole.nodes_of(cst.Name), strict=True))[number:][:3]:
            assert source.offsets(node) == whole.offsets(same), node.value
        assert source._parts.spans
        assert set(source._parts.spans.values()) <= set(places.values())
        assert "_positions" not in vars(source)


def test_the_whole_file_says_where_a_function_lies_that_is_there_twice() -> None:
    twin = "    def forward(self, x):\n        return self.act(x)\n"
    source = Source(f"import torch\n\nclass A:\n{twin}\nclass B:\n{twin}".encode(), "x.py")
    rows = [source.span(node).row for node in source.nodes_of(cst.FunctionDef)]
    assert rows == [4, 8]


def test_a_form_feed_that_is_dropped_leaves_each_node_in_its_place() -> None:
    text = 'import torch\n\x0cx = 1\ny = "x = 1"\n'
    source = Source(text.encode(), "x.py")
    assert [source.offsets(node) for node in source.nodes_of(cst.Assign)] == [(14, 19), (20, 31)]


def test_what_stands_first_is_the_same_before_and_after_positions_are_known() -> None:
    source = Source((CHECKOUT / "devlint/source.py").read_bytes(), "x.py")
    nodes = source.nodes_of(cst.SimpleStatementLine)
    pairs = list(zip(nodes, reversed(nodes), strict=True))
    before = [source.comes_before(*pair) for pair in pairs]
    source.offsets(source.module)
    assert before == [source.comes_before(*pair) for pair in pairs]


def test_nodes_are_made_with_fewer_methods_and_all_else_as_libcst_has_it() -> None:
    script = """
        import dataclasses
        usual = dataclasses.dataclass
        import devlint.nodes
        import libcst as cst
        from libcst.metadata import CodePosition

        assert dataclasses.dataclass is usual
        assert CodePosition(1, 2) == CodePosition(1, 2) and hash(CodePosition(1, 2)) == hash(CodePosition(1, 2))
        name = cst.Name("x")
        assert name != cst.Name("x") and name in {name} and name.deep_equals(cst.Name("x"))
        assert "value='x'" in repr(name)
        assert name.with_changes(value="y").value == "y" and name.value == "x"
        try:
            cst.Name("")
        except cst.CSTValidationError:
            print("told")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("told\n", "")


def test_nodes_made_by_hand_are_checked_though_parsed_ones_are_not() -> None:
    assert Source(b"a = 1\n", "a.py").nodes_named("Name")
    with pytest.raises(cst.CSTValidationError):
        cst.Name("")
    name = cst.Name("a").with_changes(value="b")
    assert name.value == "b" and name.lpar == ()
