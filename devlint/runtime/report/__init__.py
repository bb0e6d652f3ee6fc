"""Reports of a guarded run, for people and for other tools.

One module a format, imported when asked for; each defines ``render(report, color, width) -> str``. Nothing here needs
torch, so that a report written on one machine can be shown on another.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from devlint.runtime.events import Event, Line, Report
from devlint.runtime.site import Site

FORMATS: Final = ("text", "json", "sarif", "html", "perfetto")
HOST: Final = "cpu"
_MOST_DEVICES: Final = 4  # named one by one


def render(report: Report, output_format: str, *, color: bool = False, width: int = 120) -> str:
    """The report in one of `FORMATS`, ending with a newline."""
    text: str = load(output_format).render(report, color, width)
    return text


def load(output_format: str) -> Any:
    """The module that writes a format, imported with all that it needs."""
    return importlib.import_module(f"{__name__}.{output_format}")


@dataclass
class Tally:
    """What a number of events come to.

    Attributes:
        waits: how often the host waited for a device. seconds: for how long; ``None`` where that was not measured.
        copies, to_device, to_host: copies between places, and their bytes in each direction (those between two
            devices count as `to_device`).
    """

    waits: int = 0
    seconds: float | None = None
    copies: int = 0
    to_device: int = 0
    to_host: int = 0

    def add(self, line: Line) -> None:
        """Adds all events of one line of a report."""
        if line.first.kind == "waited":
            self.waits += line.count
            if line.seconds is not None:
                self.seconds = (self.seconds or 0.0) + line.seconds
        elif line.first.kind == "moved":
            self.copies += line.count
            if line.first.target is not None and line.first.target.startswith(HOST):
                self.to_host += line.bytes
            else:
                self.to_device += line.bytes


@dataclass
class Spot:
    """One line of somebody's code, or of a library's that it called, with all that was seen there.

    Attributes:
        site: that line; ``None``: torch's own threads, with none of the user's.
        lines: what was seen, as the report has it. tally: what it comes to.
    """

    site: Site | None
    lines: list[Line] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    @property
    def steps(self) -> int:
        """In how many steps something was seen here: at least, where that was in several ways."""
        return max(line.steps for line in self.lines)

    @property
    def allowed(self) -> list[str]:
        """The reasons given to `devlint.allow_sync` here."""
        return list(dict.fromkeys(line.first.allowed for line in self.lines if line.first.allowed is not None))

    @property
    def findings(self) -> dict[str, list[Line]]:
        """Rule -> what counts under it here, errors first."""
        found: dict[str, list[Line]] = {}
        for line in sorted(self.lines, key=lambda line: not line.first.error):
            if line.first.rule is not None and line.first.allowed is None:
                found.setdefault(line.first.rule, []).append(line)
        return found


def spots(report: Report) -> list[Spot]:
    """The lines of code of a report, the worst first: errors, then by time lost, waits and bytes."""
    found: dict[tuple[str, ...], Spot] = {}
    for line in report.lines.values():
        site = line.first.site
        spot = found.setdefault((place(site, report), place(site and site.inside, report)), Spot(site))
        spot.lines.append(line)
        spot.tally.add(line)

    def cost(spot: Spot) -> tuple[float, ...]:
        errors = any(line.first.error for lines in spot.findings.values() for line in lines)
        tally = spot.tally
        return -errors, -(tally.seconds or 0.0), -tally.waits, -(tally.to_device + tally.to_host), -len(spot.findings)

    return sorted(found.values(), key=cost)


def figures(report: Report, found: list[Spot], each: str) -> tuple[list[str], list[list[str]]]:
    """A table's heads and rows: what each spot costs in a step (of those in which it did), else in all.

    `each` stands behind the heads of what is given by step. A figure is empty where there is none.
    """
    each = each if report.steps else ""
    timed = any(spot.tally.seconds is not None for spot in found)
    heads = [
        *(["steps"] if report.steps else []),
        f"waits{each}",
        *([f"waited{each}"] if timed else []),
        f"to device{each}",
        f"to host{each}",
    ]
    rows = []
    for spot in found:
        tally, steps = spot.tally, spot.steps if report.steps else 1
        cells = [f"{steps:,}"] if report.steps else []
        cells += [f"{tally.waits / steps:.3g}" if tally.waits else ""]
        if timed:
            cells.append("" if tally.seconds is None else duration(tally.seconds / steps))
        cells += [amount(size / steps) if size else "" for size in (tally.to_device, tally.to_host)]
        rows.append(cells)
    return heads, rows


Same = tuple[str, str, Site | None, bool]


def rules(report: Report) -> dict[Same, str]:
    """The rules of what became a fault by coming back, which its single events do not know; by `same`."""
    return {same(line.first): line.first.rule for line in report.lines.values() if line.first.rule is not None}


def same(event: Event) -> Same:
    """What single events of one line have in common."""
    return event.kind, event.operation, event.site, event.allowed is not None


def level(lines: Iterable[Line]) -> str:
    """``"error"`` where one of the events cannot work, else ``"warning"``."""
    return "error" if any(line.first.error for line in lines) else "warning"


def path(site: Site, report: Report) -> str:
    """The site's file as one writes it in the folder where the program ran."""
    if not os.path.isabs(site.file) or os.path.splitdrive(site.file)[0] != os.path.splitdrive(report.folder)[0]:
        return site.file
    relative = os.path.relpath(site.file, report.folder)
    return site.file if relative.startswith(os.pardir) else relative


def place(site: Site | None, report: Report) -> str:
    """``train.py:53``, ``accelerate/hooks.py:170`` for an installed library's, or what stands for no line at all."""
    if site is None:
        return "inside torch"
    file = path(site, report)
    for packages in ("site-packages", "dist-packages"):
        file = file.rpartition(f"{os.sep}{packages}{os.sep}")[2]
    return f"{file}:{site.line}"


def places(site: Site | None, report: Report) -> str:
    """The same, with the line of the library that it called, if any: ``train.py:53 > accelerate/hooks.py:170``."""
    inside = f" > {place(site.inside, report)}" if site and site.inside else ""
    return place(site, report) + inside


def code(site: Site | None, report: Report) -> str:
    """The source of what ran there; that of the library's line, if any."""
    return report.text_of(site.inside or site) if site else ""


def times(lines: list[Line], report: Report) -> str:
    """What happened how often: ``200 waits, 1 in each of 200 steps, 11.2 ms each``."""
    tally = Tally()
    for line in lines:
        tally.add(line)
    events = sum(line.count for line in lines)
    words = [f"{_count(number, what)}" for number, what in ((tally.waits, "wait"), (tally.copies, "copy")) if number]
    if not words:
        words = [f"{events} times" if events > 1 else "once"]
    steps = max(line.steps for line in lines)
    if report.steps and steps > 1 and tally.waits + tally.copies:
        words[-1] += f" in {steps} of {report.steps} steps" if steps < report.steps else f" in {steps} steps"
    if tally.seconds is not None and tally.waits:
        words.append(f"{duration(tally.seconds / tally.waits)} each, {duration(tally.seconds)} in all")
    for size, direction in ((tally.to_device, "to the device"), (tally.to_host, "to the host")):
        if size:
            words.append(f"{amount(size)} {direction}")
    return ", ".join(words)


def how(event: Event) -> str:
    """How a copy was made: ``cpu to cuda:0, pageable, blocking``; empty for what is no copy."""
    if event.kind != "moved":
        return ""
    words = [f"{event.source or '?'} to {event.target or '?'}"]
    if event.pinned is not None:
        words.append("pinned" if event.pinned else "pageable")
    if event.blocking is not None:
        words.append("blocking" if event.blocking else "not blocking")
    return ", ".join(words)


def duration(seconds: float) -> str:
    """A time with three digits: ``11.2 ms``."""
    factor, unit = next((each for each in ((1.0, "s"), (1e-3, "ms")) if seconds >= each[0]), (1e-6, "us"))
    return f"{_digits(seconds / factor)} {unit}"


def amount(size: float) -> str:
    """Bytes with three digits: ``1.5 KiB``."""
    units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    factor, unit = next((each for each in units if size >= each[0]), (1, "B"))
    return f"{_digits(size / factor)} {unit}"


def _digits(number: float) -> str:
    return f"{number:.3g}" if number < 99.95 else f"{number:,.0f}"


def headline(report: Report) -> str:
    """What ran where: ``200 steps in 12.3 s on cuda:0 (NVIDIA H200)``. Imaginary devices make no time."""
    ran = [_count(report.steps, "step")] if report.steps else []
    if not report.simulated:
        ran.append(f"in {duration(report.duration)}" if ran else duration(report.duration))
    where = ", ".join(_devices(report.devices))
    version = f", torch {report.torch}" if report.torch else ""
    return " ".join([*ran, f"on {where or 'the host alone'}{version}"])


def _devices(devices: dict[str, str]) -> Iterable[str]:
    """``cuda:0 (imaginary)``; more than `_MOST_DEVICES` of one sort in short: ``cuda:0 ... cuda:7 (NVIDIA H200)``."""
    sorts: dict[str, list[str]] = {}
    for name, what in devices.items():
        sorts.setdefault(what, []).append(name)
    for what, names in sorts.items():
        after = f" ({what})" if what else ""
        if len(names) > _MOST_DEVICES:
            yield f"{names[0]} ... {names[-1]}{after}"
        else:
            yield from (f"{name}{after}" for name in names)


def verdict(report: Report) -> str:
    """One sentence that sums the run up."""
    counted = [lines for spot in spots(report) for lines in spot.findings.values()]
    errors = sum(level(lines) == "error" for lines in counted)
    parts = [_count(number, what) for number, what in ((errors, "error"), (len(counted) - errors, "warning")) if number]
    found = "Found " + " and ".join(parts) if parts else "Nothing found"
    if report.failures:
        found += f", {_count(len(report.failures), 'budget')} not kept"
    total = Tally()
    for line in report.lines.values():
        total.add(line)
    if not report.steps:
        rest = f"{_count(total.waits, 'wait')}, {amount(total.to_device)} to the device, {amount(total.to_host)} back"
        return f"{found}; {rest}."
    waits, size = total.waits / report.steps, amount(total.to_device / report.steps)
    each = f"{_digits(waits)} {'wait' if waits == 1 else 'waits'} and {size} to the device a step"
    return f"{found}; {each}, over {_count(report.steps, 'step')}."


def _count(number: int, what: str) -> str:
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"
