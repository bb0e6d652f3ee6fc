"""Source: one file's bytes, text, tree and positions.

Bytes are decoded here, not by LibCST, so that a byte-order mark, an encoding cookie and line
endings survive a rewrite exactly. Positions are offsets in code points into ``text``; they are
computed for the whole file the first time one is asked for.
"""

from __future__ import annotations

import bisect
import codecs
import io
import re
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager

import libcst as cst
from libcst._nodes.internal import CodegenState

from devlint import tree
from devlint.finding import Span


class SourceError(Exception):
    """The bytes are not Python source: the reason, and the place where they stop being it."""

    def __init__(self, reason: str, row: int, column: int) -> None:
        super().__init__(reason)
        self.reason, self.row, self.column = reason, row, column


class Source:
    """A parsed file.

    ``writable`` is false where writing ``text`` back would not give ``raw``: such a file is
    checked but never fixed.
    """

    def __init__(self, raw: bytes, path: str) -> None:
        self.raw, self.path = raw, path
        self.bom, self.encoding, self.text = decode(raw)
        try:
            self.module = cst.parse_module(self.text)
        except cst.ParserSyntaxError as error:
            # LibCST's own line and column; its message repeats the whole context
            raise SourceError(_reason(error), error.raw_line, error.raw_column + 1) from error
        self.parents, self.nodes = tree.index(self.module)
        self._spans: dict[cst.CSTNode, tuple[int, int, int, int]] | None = None
        self._lines: list[int] | None = None

    @property
    def writable(self) -> bool:
        return self.module.code == self.text and self.encode(self.text) == self.raw

    def encode(self, text: str) -> bytes:
        """``text`` as bytes of this file: its byte-order mark and its encoding."""
        return self.bom + text.encode(self.encoding)

    def nodes_named(self, name: str) -> list[cst.CSTNode]:
        """All nodes of the LibCST class of that name, in source order."""
        return self.nodes.get(getattr(cst, name), [])

    def code(self, node: cst.CSTNode) -> str:
        """The node's source text without its own outer parentheses."""
        start, end = self.offsets(node)
        return self.text[start:end]

    def offsets(self, node: cst.CSTNode, *, outer: bool = False) -> tuple[int, int]:
        """Start and end of the node in ``text``; with ``outer``, its own parentheses included."""
        if self._spans is None:
            self._spans = _record(self.module)
        first, last, inner_first, inner_last = self._spans[node]
        return (first, last) if outer else (inner_first, inner_last)

    def span(self, node: cst.CSTNode) -> Span:
        """The node's rows and columns. A compound statement's span is its header line."""
        start, end = self.offsets(node)
        body = getattr(node, "body", None)
        if isinstance(body, cst.BaseSuite):
            header_end = self.text.find("\n", start)
            end = min(end, header_end) if header_end >= 0 else end
            end = start + len(self.text[start:end].rstrip())
        return self.span_at(start, end)

    def span_at(self, start: int, end: int) -> Span:
        return Span(*self.place(start), *self.place(end))

    def place(self, offset: int) -> tuple[int, int]:
        """Row and column, from 1, of an offset."""
        row = bisect.bisect_right(self.lines, offset)
        return row, offset - self.lines[row - 1] + 1

    @property
    def lines(self) -> list[int]:
        """Offsets at which lines start; only what Python calls a line end counts as one."""
        if self._lines is None:
            self._lines = line_starts(self.text)
        return self._lines

    def offset(self, row: int, column: int) -> int:
        return self.lines[row - 1] + column - 1


def line_starts(text: str) -> list[int]:
    """Offsets at which the lines of ``text`` start (``\\n``, ``\\r\\n`` and a lone ``\\r`` end one)."""
    return [0, *(m.end() for m in re.finditer(r"\r\n|\r|\n", text))]


def decode(raw: bytes) -> tuple[bytes, str, str]:
    """Byte-order mark, encoding and text of a Python file.

    Raises :class:`SourceError` for an unknown encoding, undecodable bytes and null bytes.
    """
    bom = codecs.BOM_UTF8 if raw.startswith(codecs.BOM_UTF8) else b""
    body = raw[len(bom) :]
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    except SyntaxError as error:
        # detect_encoding reads two lines only: a bad byte there is located below
        if "invalid or missing encoding declaration" not in str(error):
            raise SourceError(str(error), 1, 1) from error
        encoding = "utf-8"
    if encoding == "utf-8-sig":
        encoding = "utf-8"
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as error:
        before = body[: error.start].decode(encoding, "replace")
        starts = line_starts(before)
        raise SourceError(
            f"byte 0x{body[error.start]:02x} is not valid {encoding}; save the file as UTF-8 or declare its encoding",
            len(starts),
            len(before) - starts[-1] + 1,
        ) from error
    except LookupError as error:
        raise SourceError(str(error), 1, 1) from error
    null = text.find("\0")
    if null >= 0:
        starts = line_starts(text[:null])
        raise SourceError("source code cannot contain null bytes", len(starts), null - starts[-1] + 1)
    return bom, encoding, text


def _reason(error: cst.ParserSyntaxError) -> str:
    reason = error.message.splitlines()[0] if error.message else "invalid syntax"
    return reason.removeprefix("Syntax Error @ ").strip() or "invalid syntax"


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

    @contextmanager
    def record_syntactic_position(
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> Iterator[None]:
        start = self.offset
        yield
        first = self.spans[start_node][2] if start_node is not None else start
        last = self.spans[end_node][3] if end_node is not None else self.offset
        self.inner[node] = (first, last)


def _record(module: cst.Module) -> dict[cst.CSTNode, tuple[int, int, int, int]]:
    recorder = _Recorder(module)
    module._codegen(recorder)
    return recorder.spans
