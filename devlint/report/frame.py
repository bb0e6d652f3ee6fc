"""Code frames: lines of a file with a stretch of them underlined.

Columns of a file are code points; columns of a terminal are cells. A tab takes several cells, a wide
character two, a combining one none, a control character as many as its escape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from devlint.finding import Span
from devlint.report.style import visible

TAB = 4
CUT = "..."
CONTEXT = 2
MOST_LINES = 8  # of one span; what is between its first and last lines is left out

_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Row:
    """One line of a frame: number (``None`` where lines are left out), code, underline as start and length in cells."""

    number: int | None
    code: str
    mark: tuple[int, int] | None = None


def split_lines(text: str) -> list[str]:
    """The lines as Python counts them, without their ends; a final line end opens one more, empty, line."""
    return _LINE_END.split(text)


def frame(lines: Sequence[str], span: Span, room: int, *, context: int = CONTEXT) -> Iterator[Row]:
    """The rows that show ``span``, at most ``room`` cells wide; none where the file has no such line."""
    if not 1 <= span.row <= len(lines):
        return
    last = max(span.row, min(span.end_row, len(lines)))
    if last > span.row and span.end_row == last and span.end_column <= 1:
        last -= 1  # the span ends before that line's first character
    above = list(range(max(1, span.row - context), span.row))
    while above and not lines[above[0] - 1].strip():
        del above[0]
    below = list(range(last + 1, min(len(lines), last + context) + 1))
    while below and not lines[below[-1] - 1].strip():
        del below[-1]
    inside: list[int | None] = [*range(span.row, last + 1)]
    if len(inside) > MOST_LINES:
        inside = [*inside[: MOST_LINES - 3], None, *inside[-2:]]
    for row in [*above, *inside, *below]:
        yield Row(None, CUT) if row is None else _row(lines[row - 1], row, span, room)


def _row(line: str, row: int, span: Span, room: int) -> Row:
    """A line as shown; what the span covers of it is underlined, but for the indentation of its further lines."""
    start = span.column - 1 if row == span.row else len(line) - len(line.lstrip())
    end = span.end_column - 1 if row == span.end_row else len(line)
    if not span.row <= row <= span.end_row or (row > span.row and start >= end):
        return Row(row, clip(line, 0, 0, room)[0])
    code, first, after = clip(line, start, end, room)
    return Row(row, code, (first, max(1, after - first)))


def clip(line: str, start: int, end: int, room: int) -> tuple[str, int, int]:
    """``line`` as shown in ``room`` cells, and the cells at which characters ``start`` and ``end`` of it begin.

    A line that is too long is cut around ``start``; what is cut away is marked by dots.
    """
    start = max(0, min(start, len(line)))
    end = max(start, min(end, len(line)))
    if line.isascii() and line.isprintable() and len(line) <= room:
        return line, start, end
    # A very long line is cut roughly first, so that a frame costs the same wherever it is.
    lead = max(0, start - 2 * room)
    tail = min(len(line), start + 4 * room)
    cells = _cells(line[lead:tail])
    at = [0]
    for _, width in cells:
        at.append(at[-1] + width)
    first, after = at[start - lead], at[min(end, tail) - lead]
    if lead == 0 and tail == len(line) and at[-1] <= room:
        return "".join(shown for shown, _ in cells), first, after
    # The window: the line's start where the span fits there, else the span in the middle; nothing wasted at the end.
    room = max(room, 4 * len(CUT))
    inner = room - 2 * len(CUT)
    left = 0
    if lead or after > room - len(CUT):
        left = max(0, first - max(0, (inner - (after - first)) // 2))
        if tail == len(line):
            left = min(left, max(0, at[-1] - room + len(CUT)))
    begin = next(i for i, cell in enumerate(at) if cell >= left)
    prefix = CUT if begin or lead else ""
    limit = at[begin] + room - len(prefix)
    stop = begin
    while stop < len(cells) and at[stop + 1] <= limit:
        stop += 1
    suffix = ""
    if stop < len(cells) or tail < len(line):
        suffix = CUT
        while stop > begin and at[stop] > limit - len(CUT):
            stop -= 1
    code = prefix + "".join(shown for shown, _ in cells[begin:stop]) + suffix
    shift = len(prefix) - at[begin]
    return code, min(first, at[stop]) + shift, min(after, at[stop]) + shift


def _cells(line: str) -> list[tuple[str, int]]:
    """Each character as shown, with the number of cells it takes."""
    if line.isascii() and line.isprintable():
        return [(character, 1) for character in line]
    from rich.cells import get_character_cell_size

    cells = []
    column = 0
    for character in line:
        if character == "\t":
            shown, width = " " * (TAB - column % TAB), TAB - column % TAB
        else:
            shown = visible(character)
            width = get_character_cell_size(character) if shown == character else len(shown)
        cells.append((shown, width))
        column += width
    return cells
