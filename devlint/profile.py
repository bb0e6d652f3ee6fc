"""What a run measured, beside what devlint finds in the code: `devlint run --report json` writes it.

A measurement belongs to a finding when it was made on one of the finding's lines and that line still reads as it did
then; nothing is guessed about lines that have moved or changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from devlint.files import File
from devlint.finding import Finding, Measured
from devlint.report.frame import split_lines
from devlint.runtime.events import Line, Report
from devlint.runtime.report import Tally, amount, duration, path

Found = tuple[File, Finding]


class ProfileError(Exception):
    """A file is no report of a run; the message says why."""


class Profile:
    """A report of `devlint run`, by file and line.

    Raises:
        ProfileError: `file` cannot be read, or holds something else.
    """

    def __init__(self, file: str) -> None:
        self.report = _load(file)
        self._lines: dict[str, dict[int, list[Line]]] = {}  # real path, or path below the folder of the run
        for line in self.report.lines.values():
            site = line.first.site
            if site is not None:
                for name in {os.path.realpath(site.file), path(site, self.report)}:
                    self._lines.setdefault(name, {}).setdefault(site.line, []).append(line)

    @property
    def rules(self) -> frozenset[str]:
        """The rules that the run counted something under, but for what was allowed."""
        firsts = [line.first for line in self.report.lines.values()]
        return frozenset(first.rule for first in firsts if first.rule is not None and first.allowed is None)

    def beside(self, found: Sequence[Found], sources: Callable[[str], str | None]) -> tuple[list[Found], list[str]]:
        """The findings with what was measured on their lines, and what cannot be used.

        `sources` gives the text of a file by its path as shown. The second list says in which files measured lines
        read differently now.
        """
        told: list[str] = []
        result: list[Found] = []
        current: tuple[File, dict[int, list[Line]]] | None = None
        for file, finding in found:
            if current is None or current[0] is not file:
                current = file, self._unchanged(file, sources(file.name), told)
            rows = range(finding.span.row, finding.span.end_row + 1)
            lines = [line for row in rows for line in current[1].get(row, ())]
            result.append((file, replace(finding, measured=_measured(lines, self.report)) if lines else finding))
        return result, told

    def _unchanged(self, file: File, text: str | None, told: list[str]) -> dict[int, list[Line]]:
        """What was measured in a file, on the lines that still read as they did."""
        measured = self._lines.get(os.path.realpath(file.path)) or self._lines.get(os.path.relpath(file.path)) or {}
        now = split_lines(text or "")
        kept = {}
        for row, lines in measured.items():
            site = lines[0].first.site
            then = self.report.code.get(site.file, {}).get(str(row), "") if site else ""
            if then and row <= len(now) and now[row - 1].strip() == then:
                kept[row] = lines
        changed = len(measured) - len(kept)
        if changed:
            lines_read = f"{changed} of {len(measured)} measured lines {'reads' if changed == 1 else 'read'}"
            told.append(f"{file.name}: {lines_read} differently now; run it again to measure them")
        return kept


def costliest_first(found: Sequence[Found]) -> list[Found]:
    """What failed, then what cost the most time, waits and bytes, then what was not measured, as it stood."""
    return sorted(found, key=lambda each: each[1].measured.cost if each[1].measured else (1,))


def _load(file: str) -> Report:
    try:
        with open(file, encoding="utf-8") as opened:
            report = Report.from_dict(json.load(opened))
    except OSError as error:
        raise ProfileError(f"{file}: cannot be read: {error.strerror or error}") from error
    except RecursionError as error:
        raise ProfileError(f"{file}: not a report of `devlint run`: it is nested too deeply") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{file}: not a report of `devlint run`: it is not JSON: {error}") from error
    except ValueError as error:
        raise ProfileError(f"{file}: {error}") from error
    if not _is_sound(report):
        raise ProfileError(f"{file}: not a report of `devlint run`: its values are of other types")
    return report


def _is_sound(report: Report) -> bool:
    """Whether what is used here is of the types that it should be."""
    lines = list(report.lines.values())
    sites = [line.first.site for line in lines if line.first.site is not None]
    numbers = [report.steps, *(number for line in lines for number in (line.count, line.steps, line.bytes))]
    numbers += [site.line for site in sites]
    return (
        all(type(number) is int and number >= 0 for number in numbers)
        and all(isinstance(name, str) and "\0" not in name for name in (report.folder, *(site.file for site in sites)))
        and all(isinstance(line.seconds or 0.0, (int, float)) for line in lines)
        and all(isinstance(line.first.rule or "", str) for line in lines)
        and isinstance(report.code, dict)
        and all(isinstance(texts, dict) for texts in report.code.values())
    )


def _measured(lines: Sequence[Line], report: Report) -> Measured:
    tally = Tally()
    for line in lines:
        tally.add(line)
    steps = max(line.steps for line in lines) if report.steps else 0
    failed = any(line.first.error for line in lines)
    words = []
    if failed:
        words.append("a run failed here")
    if tally.waits:
        words.append(_waits(tally, steps))
    for size, direction in ((tally.to_device, "to the device"), (tally.to_host, "to the host")):
        if size:
            each = f"in each of {steps} steps" if steps > 1 else "in all"
            words.append(f"copied {amount(size / max(1, steps))} {direction} {each}")
    if not words:
        count = sum(line.count for line in lines)
        words.append(f"seen {'once' if count == 1 else f'{count} times'} in a run")
    if report.simulated:
        words.append("on an imaginary device")
    figures: dict[str, int | float | None] = {
        "waits": tally.waits,
        "seconds": tally.seconds,
        "copies": tally.copies,
        "bytes_to_device": tally.to_device,
        "bytes_to_host": tally.to_host,
        "steps": steps,
    }
    cost = (-int(failed), -(tally.seconds or 0.0), -tally.waits, -tally.to_device - tally.to_host)
    return Measured(", ".join(words), {**figures, "simulated": report.simulated, "failed": failed}, cost)


def _waits(tally: Tally, steps: int) -> str:
    """``waited 11 ms in each of 200 steps``."""
    if steps < 2:
        each = f"{tally.waits} times" if tally.waits > 1 else "once"
        return f"waited {each}" + (f", {duration(tally.seconds)} in all" if tally.seconds is not None else "")
    often = tally.waits / steps
    each = "once" if often == 1 else f"{often:.3g} times"
    if tally.seconds is not None:
        spent = duration(tally.seconds / steps)
        each = spent if often == 1 else f"{each}, {spent}"
    return f"waited {each} in each of {steps} steps"
