"""Events: what the companion saw, each with the user's own line, judged under the names of the static rules."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from devlint.runtime.site import Site

FORMAT: Final = 1  # of the JSON that `Report.to_dict` writes
TIMELINE_LIMIT: Final = 50_000  # events kept one by one; all others are only counted

Kind = Literal["moved", "waited", "read", "met", "module", "optimizer", "loader", "kept", "grew"]


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        kind: ``moved``: a copy between devices; ``waited``: the host waited for a device (a copy that it waits for is
            both); ``read``: a copy to the host used before it has arrived; ``met``: operands of one operation on
            several devices; ``module``: a module's parameters, buffers or attributes out of place; ``optimizer``: an
            optimizer away from its model; ``loader``: a loader's settings or data; ``kept``: autograd history that
            outlives its step; ``grew``: memory that grows by step.
        rule: the static rule's name under which it counts; ``None`` for what is no fault (an inevitable copy).
        message: what happened here, lower case, without full stop.
        operation: as the user calls it, ``Tensor.item``.
        site: the user's line; ``None`` where no frame of the user's is on the stack (autograd's own threads).
        step: 0 before the first `devlint.step()`.
        start: seconds since the guard began. seconds: how long it took; ``None`` where time says nothing (simulated).
        bytes: copied. source, target: device names of a copy. pinned: the host's side is page-locked.
        blocking: the host waits for the copy.
        notes: further places with their words, (site, text).
        allowed: the reason given to `allow_sync`, if it happened inside one.
        error: the operation cannot work.
    """

    kind: Kind
    rule: str | None
    message: str
    operation: str
    site: Site | None
    step: int = 0
    start: float = 0.0
    seconds: float | None = None
    bytes: int = 0
    source: str | None = None
    target: str | None = None
    pinned: bool | None = None
    blocking: bool | None = None
    thread: str = "MainThread"
    notes: tuple[tuple[Site | None, str], ...] = ()
    allowed: str | None = None
    error: bool = False


class Unsaid:
    """Leaves out what was said before: the same rule of the same thing in the same words."""

    def __init__(self) -> None:
        self._said: set[tuple[str | None, str, str]] = set()

    def __call__(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            key = (event.rule, event.operation, event.message)
            if key not in self._said:
                self._said.add(key)
                yield event


@dataclass
class Line:
    """All events of one kind at one line of the user's code.

    Attributes:
        first: the first of them, or the first that counts under a rule. count: how many. steps: in how many different
            steps. run: in how many steps or rounds on end, up to the last of them. seconds, bytes: their sums.
    """

    first: Event
    count: int = 0
    steps: int = 0
    seconds: float | None = None
    bytes: int = 0
    run: int = field(default=0, repr=False)
    last_step: int = field(default=-1, repr=False)
    last_round: int = field(default=0, repr=False)


@dataclass
class Report:
    """What a guarded stretch of code did.

    Attributes:
        devices: names of the devices there were, with what they are. simulated: they were imaginary.
        steps: how many `devlint.step()` marked. step_starts: seconds since the guard began.
        timeline: single events, the first `TIMELINE_LIMIT`.
        failures: budgets that were not kept, each a sentence.
        stepped_aside: what the companion did not look into, and why.
        folder: the working directory when it began; paths are shown relative to it.
        code: file -> line (as text) -> its source, for the files and lines of a report read back; see `text_of`.
    """

    devices: dict[str, str] = field(default_factory=dict)
    simulated: bool = False
    torch: str = ""
    steps: int = 0
    warmup_steps: int = 0
    step_starts: list[float] = field(default_factory=list)
    duration: float = 0.0
    lines: dict[tuple[Any, ...], Line] = field(default_factory=dict, repr=False)
    timeline: list[Event] = field(default_factory=list, repr=False)
    failures: list[str] = field(default_factory=list)
    stepped_aside: dict[str, str] = field(default_factory=dict)
    folder: str = field(default_factory=os.getcwd)
    code: dict[str, dict[str, str]] = field(default_factory=dict, repr=False)

    def add(self, event: Event, turn: int = 0) -> Line:
        """Counts an event, and returns the line it belongs to.

        `turn` is the number of the round that it belongs to, where a loop has rounds that nobody marks as steps.
        """
        rule = None if event.kind == "waited" else event.rule  # it may become a fault by coming back
        key = (event.kind, rule, event.operation, event.site, event.source, event.target,
               event.pinned, event.blocking, event.allowed)  # fmt: skip
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line(event)
        elif event.rule is not None and line.first.rule is None:
            line.first = event
        line.count += 1
        line.bytes += event.bytes
        if event.seconds is not None:
            line.seconds = (line.seconds or 0.0) + event.seconds
        steps, rounds = event.step - line.last_step, turn - line.last_round
        if steps or rounds:
            line.steps += steps != 0
            line.run = line.run + 1 if steps == 1 or (steps == 0 and rounds == 1) else 1
            line.last_step, line.last_round = event.step, turn
        if len(self.timeline) < TIMELINE_LIMIT:
            self.timeline.append(event)
        return line

    def restart(self) -> None:
        """All that was seen so far was before the first step."""
        self.steps = 0
        self.step_starts.clear()
        for line in self.lines.values():
            line.steps, line.run, line.last_step = 1, 1, 0
            line.first = replace(line.first, step=0)
        self.timeline = [replace(event, step=0) for event in self.timeline]

    def of(self, kind: Kind) -> Iterator[Line]:
        """The lines of one kind."""
        return (line for line in self.lines.values() if line.first.kind == kind)

    @property
    def findings(self) -> list[Line]:
        """Lines that count under a rule and were not allowed: errors first, then by time, count and bytes."""
        found = [line for line in self.lines.values() if line.first.rule and line.first.allowed is None]
        return sorted(found, key=lambda line: (not line.first.error, -(line.seconds or 0.0), -line.count, -line.bytes))

    @property
    def ok(self) -> bool:
        """No error and no budget broken."""
        return not self.failures and not any(line.first.error for line in self.findings)

    def text_of(self, site: Site) -> str:
        """The source of a line as it was when it ran, without indentation; empty where it cannot be had."""
        return self.code.get(site.file, {}).get(str(site.line), "") or site.code

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like data; `from_dict` reads it back."""
        data = {name: getattr(self, name) for name in _PLAIN}
        return {
            "format": FORMAT,
            **data,
            "lines": [{"event": asdict(line.first), "count": line.count, "steps": line.steps,
                       "seconds": line.seconds, "bytes": line.bytes} for line in self.lines.values()],
            "timeline": [asdict(event) for event in self.timeline],
            "code": self._sources(),
        }  # fmt: skip

    def _sources(self) -> dict[str, dict[str, str]]:
        sources: dict[str, dict[str, str]] = {}
        for line in self.lines.values():
            site = line.first.site
            for place in (site, site and site.inside, *(note for note, _ in line.first.notes)):
                if place is not None:
                    sources.setdefault(place.file, {})[str(place.line)] = self.text_of(place)
        return sources

    @classmethod
    def from_dict(cls, data: Any) -> Report:
        """Reads what `to_dict` wrote.

        Raises:
            ValueError: it is not such data, or of a later format.
        """
        try:
            if data["format"] != FORMAT:
                raise ValueError(f"a report of format {data['format']}: this devlint reads format {FORMAT}")
            report = cls(**{name: data[name] for name in _PLAIN})
            for item in data["lines"]:
                first = _event(item["event"])
                line = Line(first, item["count"], item["steps"], item["seconds"], item["bytes"])
                report.lines[(len(report.lines),)] = line
            report.timeline = [_event(item) for item in data["timeline"]]
            report.code = data["code"]
        except (KeyError, TypeError) as problem:
            raise ValueError(f"not a report of `devlint run`: {problem}") from problem
        return report


_PLAIN: Final = (
    "devices", "simulated", "torch", "steps", "warmup_steps", "step_starts", "duration", "failures", "stepped_aside",
    "folder",
)  # fmt: skip


def _event(data: dict[str, Any]) -> Event:
    notes = tuple((_site(site), text) for site, text in data["notes"])
    return Event(**{**data, "site": _site(data["site"]), "notes": notes})


def _site(data: dict[str, Any] | None) -> Site | None:
    return Site(data["file"], data["line"], data["function"], _site(data["inside"])) if data else None
