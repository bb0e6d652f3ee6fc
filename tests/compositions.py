"""Random compositions of snippets: top-level statements of the fixtures, and others, written in every way.

Used by the property tests of fixing. Real fixtures are picked up where they are there.
"""

from __future__ import annotations

import ast
import codecs
import textwrap
from dataclasses import dataclass
from functools import lru_cache

from hypothesis import strategies as st

from harness import Fixture, fixtures, split_lines


@dataclass(frozen=True)
class Composition:
    """A file made of snippets, and the rules that its snippets are about."""

    raw: bytes
    rules: frozenset[str]


@lru_cache(maxsize=1)
def _snippets() -> tuple[tuple[frozenset[str], tuple[str, ...], tuple[str, ...]], ...]:
    """For each fixture its rules, its imports, and its other top-level statements with the comments above them."""
    found = []
    for fixture in fixtures():
        if fixture.file.parent.parent.name == "fixtures":  # a single file, not a project of several
            found.append((fixture.rules, *_split(fixture)))
    return tuple(found)


def _split(fixture: Fixture) -> tuple[tuple[str, ...], tuple[str, ...]]:
    lines = split_lines(fixture.raw.decode("utf-8"))
    imports, others = [], []
    above = 0
    for statement in ast.parse(fixture.raw).body:
        last = statement.end_lineno or statement.lineno
        while last < len(lines) and lines[last].lstrip().startswith("#~^"):  # a marker that points up belongs to it
            last += 1
        text = "".join(lines[above:last]).rstrip("\n")
        above = last
        if text:  # a statement behind a semicolon came with the one before it
            (imports if isinstance(statement, (ast.Import, ast.ImportFrom)) else others).append(text)
    return tuple(imports), tuple(others)


@st.composite
def compositions(draw: st.DrawFn, own: tuple[str, ...] = (), most: int = 3) -> Composition:
    """Snippets of up to ``most`` fixtures, and of ``own``, in random order, some inside a block.

    With any line ends, byte-order mark or encoding, trailing blanks, and with or without a line end at the end.
    """
    imports: list[str] = ["import torch"]
    pieces: list[str] = []
    about: set[str] = set()
    available = _snippets()
    for _ in range(draw(st.integers(0 if own else 1, most)) if available else 0):
        names, wanted, others = draw(st.sampled_from(available))
        about |= names
        imports += wanted
        if others:
            pieces += draw(st.lists(st.sampled_from(others), min_size=1, max_size=4))
    if own:
        pieces += draw(st.lists(st.sampled_from(own), max_size=5))
    pieces = draw(st.permutations(pieces))
    future = [line for line in imports if "__future__" in line]
    text = "\n".join([*dict.fromkeys([*future, *imports]), *(_placed(draw, piece) for piece in pieces)])
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "latin-1"]))
    if encoding == "latin-1":
        text = f"# coding: latin-1\n{text}".encode("latin-1", "replace").decode("latin-1")
    text += draw(st.sampled_from(["\n", "", "  \n", "\n\n", "  # a last comment é"]))
    raw = text.replace("\n", draw(st.sampled_from(["\n", "\n", "\r\n"]))).encode(encoding.removesuffix("-sig"))
    return Composition(codecs.BOM_UTF8 * encoding.endswith("-sig") + raw, frozenset(about))


def _placed(draw: st.DrawFn, piece: str) -> str:
    where = draw(st.sampled_from(["as it is", "as it is", "in a block", "by tabs"]))
    if where == "as it is" or '"""' in piece or "'''" in piece:
        return piece
    return "if condition:\n" + textwrap.indent(piece, "    " if where == "in a block" else "\t")
