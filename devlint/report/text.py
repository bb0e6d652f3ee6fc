"""``text``: findings for people, with code frames, notes and fixes, and lines that sum up."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

from devlint.finding import Edit, Finding, Fix, Note, Span
from devlint.report import Report, fixable, held_back
from devlint.report.frame import CONTEXT, Row, clip, frame, split_lines
from devlint.report.style import Style, printable

_LEAST_ROOM = 40
_MOST_DIFF_LINES = 20
_UNKNOWN_PLACE = Span(1, 1, 1, 1)

Lines = Callable[[str], "list[str] | None"]


def render(report: Report) -> str:
    style = Style(report.color)

    @lru_cache(maxsize=16)  # findings come sorted by path; notes may lead elsewhere
    def lines(path: str) -> list[str] | None:
        text = report.sources(path)
        return None if text is None else split_lines(text)

    blocks = ["\n".join(_block(style, report.width, lines, path, finding)) for path, finding in report.findings]
    if not report.quiet:
        blocks.append(summary(report, style))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def summary(report: Report, style: Style) -> str:
    """The last lines: what was found, where, what the fix options would do about it, and what was held back."""
    files = "1 file" if report.files_checked == 1 else f"{report.files_checked} files"
    fixed = f"Fixed {_count(report.fixed, 'fault')}. " if report.fixed else ""
    if not report.findings and not report.files_checked:
        return "Nothing was checked."
    more = held_back(report.held)
    after = f"\n{more}." if more else ""
    if not report.findings:
        return fixed + style.good("All clear:") + f" {files} checked.{after}"
    levels = [finding.level for _, finding in report.findings]
    counts = [
        style.level(level, _count(levels.count(level), level)) for level in ("error", "warning") if level in levels
    ]
    affected = len({path for path, _ in report.findings})
    text = f"{fixed}Found {' and '.join(counts)} in {affected} of {files}"
    hint = fixable(report.findings, report.unsafe_fixes)
    return (f"{text}; {hint}." if hint else f"{text}.") + after


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _block(style: Style, width: int, lines: Lines, path: str, finding: Finding) -> Iterator[str]:
    """One finding: the headline, its frame, its notes with theirs, its fix as a diff, all in one gutter."""
    spans = [finding.span, *(note.span for note in finding.notes), *(edit.span for edit in _edits(finding.fix))]
    gutter = len(str(max(span.end_row for span in spans) + CONTEXT))
    room = max(_LEAST_ROOM, width - gutter - 3)
    rule = style.level(finding.level, f"{finding.level}[{finding.rule}]")
    yield f"{style.path(printable(path))}:{finding.span.row}:{finding.span.column}: {rule} {printable(finding.told)}"
    bar = " " * gutter + " " + style.gutter("|")
    own = lines(path)
    if own is not None:
        paint = partial(style.level, finding.level)
        rows = [line for row in frame(own, finding.span, room) for line in _draw(style, gutter, row, "^", paint)]
        yield from [bar, *rows] if rows else ()
    for note in finding.notes:
        yield bar
        yield from _note(style, gutter, room, lines, path, note)
    if finding.fix is not None:
        yield bar
        yield _attached(style, gutter, style.note(f"fix ({finding.fix.safety})"), printable(finding.fix.title))
        if own is not None:
            yield from _diff(style, gutter, room, own, finding.fix)


def _note(style: Style, gutter: int, room: int, lines: Lines, path: str, note: Note) -> Iterator[str]:
    yield _attached(style, gutter, style.note("note"), printable(note.message))
    place = f"{note.span.row}:{note.span.column}"
    if note.path is not None and note.path != path:
        yield " " * gutter + style.gutter(" -> ") + style.path(printable(note.path)) + f":{place}"
    elif note.span == _UNKNOWN_PLACE:
        return
    text = lines(note.path or path)
    if text is not None:
        for row in frame(text, note.span, room, context=0):
            yield from _draw(style, gutter, row, "-", style.note)


def _attached(style: Style, gutter: int, label: str, message: str) -> str:
    return f"{' ' * gutter} {style.gutter('=')} {label}: {message}"


def _draw(style: Style, gutter: int, row: Row, mark: str, paint: Callable[[str], str]) -> Iterator[str]:
    if row.number is None:
        yield style.gutter(row.code)
        return
    yield f"{style.gutter(f'{row.number:>{gutter}} |')} {row.code}".rstrip()
    if row.mark is not None:
        start, length = row.mark
        yield f"{style.gutter(' ' * gutter + ' |')} {' ' * start}{paint(mark * length)}"


# the fix as a diff ------------------------------------------------------------------------------


def _edits(fix: Fix | None) -> list[Edit]:
    return [] if fix is None else sorted(fix.edits)


def _diff(style: Style, gutter: int, room: int, lines: list[str], fix: Fix) -> Iterator[str]:
    changed = [change for first, old, new in _hunks(lines, fix) for change in _changes(first, old, new)]
    for number, sign, line, focus in changed[:_MOST_DIFF_LINES]:
        paint = style.removed if sign == "-" else style.added if sign == "+" else str
        head = style.gutter(f"{number:>{gutter}}")
        yield f"{head} {paint(f'{sign} {clip(line, focus, focus, room)[0]}'.rstrip())}"
    if len(changed) > _MOST_DIFF_LINES:
        yield style.gutter(f"... {_count(len(changed) - _MOST_DIFF_LINES, 'more line')}")


def _hunks(lines: list[str], fix: Fix) -> Iterator[tuple[int, list[str], list[str]]]:
    """Groups of edits that lie close together: the first line's number, the lines before, the lines after."""
    group: list[Edit] = []
    for edit in _edits(fix):
        if edit.span.end_row > len(lines):
            return  # the file has changed since
        if group and edit.span.row > max(e.span.end_row for e in group) + CONTEXT:
            yield _applied(lines, group)
            group = []
        group.append(edit)
    if group:
        yield _applied(lines, group)


def _applied(lines: list[str], edits: list[Edit]) -> tuple[int, list[str], list[str]]:
    first, last = edits[0].span.row, max(edit.span.end_row for edit in edits)
    pieces: list[str] = []
    row, column = first, 1
    for edit in edits:
        pieces += [_between(lines, row, column, edit.span.row, edit.span.column), edit.content]
        row, column = edit.span.end_row, edit.span.end_column
    pieces.append(_between(lines, row, column, last, len(lines[last - 1]) + 1))
    return first, lines[first - 1 : last], split_lines("".join(pieces))


def _between(lines: list[str], row: int, column: int, end_row: int, end_column: int) -> str:
    if row == end_row:
        return lines[row - 1][column - 1 : end_column - 1]
    middle = lines[row : end_row - 1]
    return "\n".join([lines[row - 1][column - 1 :], *middle, lines[end_row - 1][: end_column - 1]])


def _changes(first: int, old: list[str], new: list[str]) -> Iterator[tuple[int, str, str, int]]:
    """The lines that differ, and those between them: number, sign, line, and the column a cut should keep in view."""
    steps = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for at, (tag, i1, i2, j1, j2) in enumerate(steps):
        if tag == "equal":
            if 0 < at < len(steps) - 1:
                yield from ((first + i, " ", old[i], 0) for i in range(i1, i2))
            continue
        focus = _first_difference(old[i1], new[j1]) if i1 < i2 and j1 < j2 else 0
        for i in range(i1, i2):
            yield first + i, "-", old[i], focus
        for j in range(j1, j2):
            yield first + j, "+", new[j], focus


def _first_difference(old: str, new: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
