"""``text``: what was found, line by line with its cost, and a table of all waits and copies."""

from __future__ import annotations

from collections.abc import Iterator

from devlint.report.frame import clip
from devlint.report.style import Style, printable
from devlint.runtime.advice import advice
from devlint.runtime.events import Line, Report
from devlint.runtime.report import (
    Spot,
    code,
    figures,
    headline,
    how,
    level,
    place,
    places,
    spots,
    times,
    verdict,
)
from devlint.runtime.site import Site

MOST_ROWS = 20  # of the table
_LEAST_ROOM = 30
_LEAST_CODE = 12  # in a row of the table
_MOST_KINDS = 3  # of one rule at one line: operations, or pairs of places


def render(report: Report, color: bool, width: int) -> str:
    style = Style(color)
    found = spots(report)
    blocks = [f"{style.bold('devlint run:')} {printable(headline(report))}{_caution(report)}"]
    for spot in found:
        for rule, lines in spot.findings.items():
            blocks.append("\n".join(_finding(style, width, report, spot, rule, lines)))
    table = list(_table(style, width, report, [spot for spot in found if spot.tally.waits or spot.tally.copies]))
    if table:
        blocks.append("\n".join(table))
    if report.failures:
        blocks.append(
            "\n".join(f"{style.level('error', 'error')}: {printable(failure)}" for failure in report.failures)
        )
    if report.stepped_aside:
        aside = (f"not looked into: {printable(what)}: {printable(why)}" for what, why in report.stepped_aside.items())
        blocks.append("\n".join(aside))
    blocks.append(verdict(report) if not report.ok or report.findings else style.good(verdict(report)))
    return "\n\n".join(blocks) + "\n"


def _caution(report: Report) -> str:
    return "\nThe devices are imaginary: counts and bytes are real, times are not given." if report.simulated else ""


def _finding(style: Style, width: int, report: Report, spot: Spot, rule: str, lines: list[Line]) -> Iterator[str]:
    label = style.level(level(lines), f"{level(lines)}[{rule}]")
    yield f"{style.path(printable(place(spot.site, report)))}: {label} {printable(lines[0].first.message)}"
    yield from _code(style, width, report, spot.site)
    if spot.site is not None and spot.site.inside is not None:
        yield f"  {style.gutter('=')} called from there: {printable(place(spot.site.inside, report))}"
        yield from _code(style, width, report, spot.site.inside)
    if times(lines, report) != "once":
        yield f"  {style.gutter('=')} {times(lines, report)}"
    copies = list(dict.fromkeys(filter(None, (how(line.first) for line in lines))))
    for copy in copies[:_MOST_KINDS]:
        yield f"  {style.gutter('=')} {printable(copy)}"
    for site, text in dict.fromkeys(note for line in lines[:_MOST_KINDS] for note in line.first.notes):
        here = place(site, report) == place(spot.site, report)
        where = "" if site is None else " here" if here else f" ({place(site, report)})"
        yield f"  {style.gutter('=')} {style.note('note')}: {printable(text + where)}"
        if not here:
            yield from _code(style, width, report, site)
    if advice(rule):
        yield f"  {style.gutter('=')} {style.note('advice')}: {advice(rule)}"


def _code(style: Style, width: int, report: Report, site: Site | None) -> Iterator[str]:
    text = report.text_of(site) if site else ""
    if site and text:
        number = f"{site.line:>5} |"
        yield f"{style.gutter(number)} {clip(text, 0, 0, max(_LEAST_ROOM, width - len(number) - 1))[0]}"


def _table(style: Style, width: int, report: Report, found: list[Spot]) -> Iterator[str]:
    """A row for each line that waits or copies."""
    if not found:
        return
    heads, all_rows = figures(report, found, "/step")
    rows = [[cell or "-" for cell in cells] for cells in all_rows[:MOST_ROWS]]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    yield style.bold("  ".join(head.rjust(size) for head, size in zip(heads, widths, strict=True)) + "  line")
    for spot, cells in zip(found, rows, strict=False):
        row = "  ".join(cell.rjust(size) for cell, size in zip(cells, widths, strict=True))
        where = printable(places(spot.site, report))
        allowed = f"  (allowed: {printable(', '.join(spot.allowed))})" if spot.allowed else ""
        source = code(spot.site, report)
        room = width - len(row) - len(where) - len(allowed) - 4
        shown = f"  {clip(source, 0, 0, room)[0]}" if source and room >= _LEAST_CODE else ""
        yield f"{row}  {style.path(where)}{shown}{allowed}"
    if len(found) > MOST_ROWS:
        yield f"and {len(found) - MOST_ROWS} more"
