"""Source: one file's bytes, text, tree, comments and positions.

Bytes are decoded by devlint, not by LibCST, so that a byte-order mark, an encoding cookie and line
endings survive a rewrite exactly. Positions are offsets in code points into ``text``; they are
computed for one function or statement of the top level at a time, or for the whole file where that does not show
where it stands.
"""

from __future__ import annotations

import ast
import bisect
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar, cast

import libcst as cst
from libcst._nodes.internal import CodegenState

from devlint import nesting, nodes, tree
from devlint.decoding import NEWLINE, SourceError, decode, line_starts, place
from devlint.finding import Span
from devlint.trees import Tree

# LibCST generates code recursively, a few frames for each level of nesting: 350 terms of a sum are 350 levels.
_RECURSION_LIMIT = 20_000

Node = TypeVar("Node", bound=cst.CSTNode)
Definition = cst.FunctionDef | cst.ClassDef

# Nodes whose code is the same without what is around them (not that of an `If`, which may be an `elif`).
_WITH_CODE = (cst.BaseExpression, cst.BaseSmallStatement, cst.SimpleStatementLine, cst.FunctionDef)

_FORM_FEED = "\f"

# What only code begins a line with.
_FIRST_CODE = re.compile(r"^(?:import|from|def|class|async|@\w|if|try)\b", re.MULTILINE)


class Source:
    """A parsed file.

    Raises :class:`SourceError` where the bytes are not Python. ``known``: its tree, where there is one already.
    """

    def __init__(self, raw: bytes, path: str, known: Tree | None = None) -> None:
        self.raw, self.path = raw, path
        self.bom, self.encoding, self.text = decode(raw)
        self.module = known.module if known is not None and known.text == self.text else parse(self.text)
        self.parents, self.nodes = tree.index(self.module)
        # characters of code that may be made of single nodes: from there on, that of the whole file once is quicker
        self._codes = len(self.text) // 2
        self._parts = _Parts(self.text)

    @property
    def writable(self) -> bool:
        """Whether positions are exact and ``text`` encodes to ``raw`` again; if not, the file is never fixed."""
        # those of a part are exact, or are not taken
        return self._encodes and (
            (_FORM_FEED not in self.text and "_positions" not in vars(self)) or self._positions.exact
        )

    @cached_property
    def _encodes(self) -> bool:
        try:
            return self.encode(self.text) == self.raw
        except UnicodeEncodeError:
            return False

    def forget(self) -> None:
        """Let go of the tree."""
        self.module = cst.Module(())
        self.parents, self.nodes = {}, {}
        self._parts.spans.clear()

    def encode(self, text: str) -> bytes:
        """``text`` as bytes of this file: its byte-order mark and its encoding."""
        return self.bom + text.encode(self.encoding)

    def nodes_named(self, name: str) -> list[cst.CSTNode]:
        """All nodes of the LibCST class of that name, in source order; none where this LibCST lacks the class."""
        return self.nodes.get(getattr(cst, name, type(None)), [])

    def nodes_of(self, kind: type[Node]) -> list[Node]:
        """All nodes of exactly that LibCST class, in source order."""
        return cast("list[Node]", self.nodes.get(kind, []))

    def definitions(self, node: cst.CSTNode) -> Iterator[Definition]:
        """The functions and classes that a node stands in, or is, the innermost first."""
        current: cst.CSTNode | None = node
        while current is not None:
            if isinstance(current, Definition):
                yield current
            current = self.parents.get(current)

    def code(self, node: cst.CSTNode) -> str:
        """The node's source text without its own outer parentheses."""
        if type(node) is cst.Name or type(node) is cst.SimpleString:
            return node.value
        if type(node) is cst.Attribute:
            path = _path(node)
            if path is not None and path in self.text:
                return path
        if self._codes > 0 and isinstance(node, _WITH_CODE) and "_positions" not in vars(self):
            code = _Positions.code(self.module, node, self.indentation(node))
            self._codes -= len(code)
            if code in self.text:  # LibCST has dropped nothing of it
                return code
        start, end = self.offsets(node)
        return self.text[start:end]

    def indentation(self, node: cst.CSTNode) -> list[str]:
        """What lines inside of a node start with, the outermost block's part first."""
        found: list[str] = []
        current = self.parents.get(node)
        while current is not None:
            if isinstance(current, cst.IndentedBlock):
                found.append(self.module.default_indent if current.indent is None else current.indent)
            current = self.parents.get(current)
        return found[::-1]

    @cached_property
    def head(self) -> str:
        """What stands above the code: what the file says of itself."""
        first = _FIRST_CODE.search(self.text)
        return self.text[: first.start()] if first is not None else self.text

    def comes_before(self, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        """Whether a node starts before another one, or holds it: quicker to say than where they are."""
        order = self._order
        return order[first] < order[second]

    @cached_property
    def _order(self) -> dict[cst.CSTNode, int]:
        return {node: number for number, node in enumerate(tree.walk(self.module))}

    def offsets(self, node: cst.CSTNode, *, outer: bool = False) -> tuple[int, int]:
        """Start and end of the node in ``text``; with ``outer``, its own parentheses included."""
        if "_positions" not in vars(self):
            found = self._parts.offsets(self, node, outer)
            if found is not None:
                return found
        return self._positions.offsets(node, outer)

    def is_placed(self, node: cst.CSTNode) -> bool:
        """Whether anybody has asked where the node stands, or where something stands that is near it or holds it."""
        return "_positions" in vars(self) or node in self._parts.spans

    def span(self, node: cst.CSTNode) -> Span:
        """The node's rows and columns. A compound statement's span is the first line of its header."""
        start, end = self.offsets(node)
        colon = self.colon(node)
        if colon is not None:
            row = bisect.bisect_right(self.lines, start)
            line_end = self.lines[row] if row < len(self.lines) else len(self.text)
            end = start + len(self.text[start : min(colon + 1, line_end)].rstrip())
        return self.span_at(start, end)

    def colon(self, node: cst.CSTNode) -> int | None:
        """The offset of the colon that ends a compound statement's header; ``None`` for any other node."""
        if isinstance(node, cst.Match):
            return self.offsets(node.whitespace_after_colon)[0] - 1
        body = getattr(node, "body", None)
        if isinstance(body, cst.IndentedBlock):
            return self.offsets(body.header)[0] - 1
        if isinstance(body, cst.SimpleStatementSuite):
            return self.offsets(body.leading_whitespace)[0] - 1
        return None

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """Offset and text of every comment, in source order. Text in strings is none."""
        found = [(self.offsets(node)[0], node.value) for node in self._positions.spans if isinstance(node, cst.Comment)]
        return sorted(found)

    def span_at(self, start: int, end: int) -> Span:
        return Span(*self.place(start), *self.place(end))

    def place(self, offset: int) -> tuple[int, int]:
        """Row and column, from 1, of an offset."""
        row = bisect.bisect_right(self.lines, offset)
        return row, offset - self.lines[row - 1] + 1

    @cached_property
    def lines(self) -> list[int]:
        """Offsets at which lines start; only what Python calls a line end counts as one."""
        return line_starts(self.text)

    @cached_property
    def _positions(self) -> _Positions:
        return _Positions(self.module, self.text)

    def offset(self, row: int, column: int) -> int:
        return self.lines[row - 1] + column - 1

    def newline(self, offset: int) -> str:
        """The line end to use at an offset: that of its line, or where it has none the first of the file."""
        found = NEWLINE.search(self.text, offset) or NEWLINE.search(self.text)
        return found[0] if found else "\n"


def _path(node: cst.BaseExpression) -> str | None:
    """``a.b.c`` of plain names without parentheses: quicker than to have LibCST make the code."""
    parts: list[str] = []
    while type(node) is cst.Attribute:
        parts.append(node.attr.value)
        node = node.value
        if node.lpar:
            return None
    return ".".join([node.value, *reversed(parts)]) if type(node) is cst.Name else None


def parse(text: str) -> cst.Module:
    """The tree of some code. Raises :class:`SourceError` where it is not Python."""
    deep = nesting.too_deep(text)
    if deep is not None:
        raise SourceError(*deep)
    try:
        return nodes.parse(text)
    except cst.ParserSyntaxError as error:
        raise _syntax_error(text, error) from error
    except UnicodeEncodeError as error:
        raise SourceError("a lone surrogate is not text", *place(text, error.start)) from error


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Lets code that recurses over a tree go as deep as real files need."""
    limit = sys.getrecursionlimit()
    if limit < _RECURSION_LIMIT:
        sys.setrecursionlimit(_RECURSION_LIMIT)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _syntax_error(text: str, error: cst.ParserSyntaxError) -> SourceError:
    # CPython says better what is wrong, and where: LibCST names the token after the culprit.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as better:
        return SourceError(better.msg, better.lineno or 1, max(better.offset or 1, 1))
    except (ValueError, RecursionError, MemoryError):
        pass  # no verdict
    version = ".".join(map(str, sys.version_info[:2]))
    reason = f"LibCST, which devlint reads Python with, cannot parse this, though Python {version} can"
    return SourceError(reason, error.raw_line, error.raw_column + 1)


class _Recorder(CodegenState):
    """Generates code and notes the offsets at which each node starts and ends."""

    def __init__(self, module: cst.Module) -> None:
        super().__init__(default_indent=module.default_indent, default_newline=module.default_newline)
        self.offset = 0
        self.starts: list[int] = []
        self.spans: dict[cst.CSTNode, tuple[int, int, int, int]] = {}
        self.inner: dict[cst.CSTNode, tuple[int, int]] = {}

    def add_indent_tokens(self) -> None:
        for token in self.indent_tokens:
            self.add_token(token)

    def add_token(self, value: str) -> None:
        self.tokens.append(value)
        self.offset += len(value)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.starts.append(self.offset)

    def after_codegen(self, node: cst.CSTNode) -> None:
        start = self.starts.pop()
        self.spans[node] = (start, self.offset, *self.inner.pop(node, (start, self.offset)))

    def record_syntactic_position(  # type: ignore[override]  # a class is quicker than a generator
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> _Recording:
        return _Recording(self, node, start_node, end_node)


class _Recording:
    """Notes where a node starts and ends without its parentheses."""

    __slots__ = ("end_node", "node", "recorder", "start", "start_node")

    def __init__(
        self, recorder: _Recorder, node: cst.CSTNode, start_node: cst.CSTNode | None, end_node: cst.CSTNode | None
    ) -> None:
        self.recorder, self.node, self.start_node, self.end_node = recorder, node, start_node, end_node

    def __enter__(self) -> None:
        self.start = self.recorder.offset

    def __exit__(self, *_: object) -> None:
        recorder = self.recorder
        first = recorder.spans[self.start_node][2] if self.start_node is not None else self.start
        last = recorder.spans[self.end_node][3] if self.end_node is not None else recorder.offset
        recorder.inner[self.node] = (first, last)


class _Positions:
    """Where each node lies in ``text``.

    LibCST drops a few characters: form feeds at the start of a line, a last line end that is a lone
    carriage return, blank space on a last line. Where only such are missing from the code it
    generates, its offsets are mapped to ``text`` and stay exact.
    """

    def __init__(self, module: cst.Module, text: str) -> None:
        recorder = _Recorder(module)
        with deep_recursion():
            module._codegen(recorder)
        self.spans = recorder.spans
        self.end = len(text)
        generated = "".join(recorder.tokens)
        self.dropped = [] if generated == text else _dropped(generated, text)
        self.exact = self.dropped is not None

    @staticmethod
    def code(module: cst.Module, node: cst.CSTNode, indentation: list[str]) -> str:
        """The code of a node alone, without its own parentheses."""
        recorder = _Recorder(module)
        recorder.indent_tokens += indentation
        with deep_recursion():
            node._codegen(recorder)
        _, _, first, last = recorder.spans[node]
        return "".join(recorder.tokens)[first:last]

    def offsets(self, node: cst.CSTNode, outer: bool) -> tuple[int, int]:
        first, last, inner_first, inner_last = self.spans[node]
        start, end = (first, last) if outer else (inner_first, inner_last)
        if self.dropped:
            # what was dropped before a character counts for a start; what was dropped after one not for an end
            start, end = start + bisect.bisect_right(self.dropped, start), end + bisect.bisect_left(self.dropped, end)
        return min(start, self.end), min(max(start, end), self.end)


class _Parts:
    """Where each node of some parts of a file lies: of functions, and of statements of the top level.

    Most files have little said of them, and code that is made of all of a tree takes a third of the time of its parse.
    """

    def __init__(self, text: str) -> None:
        self.spans: dict[cst.CSTNode, tuple[int, int, int, int]] = {}
        # so much code is made of parts; LibCST drops form feeds, and what is left may be found where it does not stand
        self._left = 0 if _FORM_FEED in text else len(text) // 2

    def offsets(self, source: Source, node: cst.CSTNode, outer: bool) -> tuple[int, int] | None:
        """Start and end of a node; ``None`` where the code of its part does not show where that stands."""
        if node not in self.spans and not any(self._read(source, part) for part in self._around(source, node)):
            return None
        first, last, inner_first, inner_last = self.spans[node]
        return (first, last) if outer else (inner_first, inner_last)

    def _around(self, source: Source, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The outermost function around a node of code, and the statement of the top level: one of them may look like
        another."""
        function: cst.CSTNode | None = None
        above = source.parents.get(node)
        while above is not None and type(above) is not cst.Module:
            if type(node) is cst.FunctionDef:
                function = node
            node, above = above, source.parents.get(above)
        if function is not None:
            yield function
        if above is not None:
            yield node

    def _read(self, source: Source, part: cst.CSTNode) -> bool:
        """Whether the code of a part stands in one place of the text."""
        if self._left <= 0:
            return False
        recorder = _Recorder(source.module)
        recorder.indent_tokens += source.indentation(part)
        with deep_recursion():
            part._codegen(recorder)
        code = "".join(recorder.tokens)
        self._left -= len(code)
        at = source.text.find(code)
        if at < 0 or source.text.find(code, at + 1) >= 0:
            return False
        for each, (first, last, inner_first, inner_last) in recorder.spans.items():
            self.spans[each] = first + at, last + at, inner_first + at, inner_last + at
        return True


def _dropped(generated: str, text: str) -> list[int] | None:
    """For each character of ``text`` missing from ``generated``, the offset there before which it belongs.

    ``None`` where more differs than blank space and line continuations.
    """
    missing: list[int] = []
    at = 0
    for char in text:
        if at < len(generated) and generated[at] == char:
            at += 1
        elif char in " \t\f\r\n\\":
            missing.append(at)
        else:
            return None
    return missing if at == len(generated) else None
