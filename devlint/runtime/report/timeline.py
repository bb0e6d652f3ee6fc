"""A picture of a few steps, as SVG: what the host waited for and copied, one lane for each kind of event and thread.

Drawn over time where time was measured. Imaginary devices take none, so there the order alone is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from devlint.runtime.events import Event, Report
from devlint.runtime.report import HOST, amount, code, duration, how, places, rules, same

STEPS = 4  # drawn
MOST_EVENTS = 1500  # drawn: more make a page slow
_WIDTH, _LEFT, _TOP, _LANE, _BAR = 1000.0, 150.0, 34.0, 26.0, 14.0

_KINDS = {"wait": "waits", "up": "to the device", "down": "to the host", "other": "other"}


Band = tuple[int, float, float, float | None]


@dataclass(frozen=True)
class Window:
    """What is drawn.

    Attributes:
        events: with where they begin and end, from 0 to 1. steps: number from 0, begin, end, seconds.
        seconds: how long it is in all; ``None`` where the order is drawn. left_out: events that were too many.
    """

    events: list[tuple[Event, float, float]]
    steps: list[Band]
    seconds: float | None
    left_out: int


def window(report: Report) -> Window | None:
    """A few steps after warming up, or all there is where nobody marked a step; ``None`` where nothing happened."""
    last = max((event.step for event in report.timeline), default=0)
    first = min(max(1, report.warmup_steps), last)  # the first step has what came before the loop, too
    chosen = [event for event in report.timeline if first <= event.step < first + STEPS]
    if not chosen:
        return None
    events = chosen[:MOST_EVENTS]
    numbers = sorted({event.step for event in events})
    if report.simulated:
        unit = 1 / len(events)
        drawn = [(event, index * unit, (index + 1) * unit) for index, event in enumerate(events)]
        bands: list[Band] = []
        for number in numbers:
            at = [index for index, event in enumerate(events) if event.step == number]
            bands.append((number, at[0] * unit, (at[-1] + 1) * unit, None))
        return Window(drawn, bands, None, len(chosen) - len(events))
    bounds = [0.0, *report.step_starts]  # step n runs from bounds[n] to bounds[n + 1]
    ends = [event.start + (event.seconds or 0.0) for event in events]
    begin = bounds[numbers[0]] if numbers[0] < len(bounds) else events[0].start
    end = max(ends) if len(chosen) > len(events) or numbers[-1] + 1 >= len(bounds) else bounds[numbers[-1] + 1]
    begin, end = min(begin, events[0].start), max(end, *ends)
    span = (end - begin) or 1e-9
    drawn = [
        (event, (event.start - begin) / span, (stop - begin) / span) for event, stop in zip(events, ends, strict=True)
    ]
    bands = []
    for number in numbers:
        start = max(bounds[number] if number < len(bounds) else begin, begin)
        stop = min(bounds[number + 1] if number + 1 < len(bounds) else end, end)
        bands.append((number, (start - begin) / span, (stop - begin) / span, stop - start))
    return Window(drawn, bands, span, len(chosen) - len(events))


def kind(event: Event) -> str:
    """The lane an event is drawn in: a key of `_KINDS`."""
    if event.kind == "waited":
        return "wait"
    if event.kind == "moved":
        return "down" if (event.target or "").startswith(HOST) else "up"
    return "other"


def said(event: Event, rule: str | None, report: Report) -> str:
    """An event in a few words, for a tooltip."""
    parts = [f"{places(event.site, report)}: {event.message}", code(event.site, report)]
    facts = [how(event), amount(event.bytes) if event.bytes else ""]
    if event.seconds is not None:
        facts.append(duration(event.seconds))
    parts.append(", ".join(filter(None, facts)))
    if rule:
        parts.append(rule)
    return "\n".join(filter(None, parts))


def svg(report: Report) -> str:
    """The picture; empty where nothing happened. Its colours are those of the page's style sheet."""
    shown = window(report)
    return "\n".join(_drawn(shown, report)) if shown else ""


def _drawn(shown: Window, report: Report) -> Iterator[str]:
    lanes, known = _lanes(shown), rules(report)
    height = _TOP + _LANE * len(lanes) + 22

    def x(share: float) -> float:
        return _LEFT + share * (_WIDTH - _LEFT - 8)

    label = "order of events" if shown.seconds is None else "timeline"
    yield (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{label} of {len(shown.steps)} steps" '
        'xmlns="http://www.w3.org/2000/svg">'
    )
    for index, (number, start, stop, seconds) in enumerate(shown.steps):
        width = x(stop) - x(start)
        yield f'<rect class="step{index % 2}" x="{x(start):.2f}" y="20" width="{width:.2f}" height="{height - 40:g}"/>'
        name = f"step {number + 1}" if report.steps else "the run"
        if seconds is not None and width > 130:
            name += f" ({duration(seconds)})"
        if width > 7 * len(name):
            yield f'<text class="head" x="{x(start) + 4:.2f}" y="14">{escape(name)}</text>'
    for row, (thread, lane) in enumerate(lanes):
        middle = _TOP + _LANE * row + _LANE / 2 - 6
        name = _KINDS[lane] if thread == "MainThread" else f"{_KINDS[lane]}, {thread}"
        text = name if len(name) <= 24 else f"{name[:21]}..."
        yield f'<text class="lane" x="0" y="{middle + 4:g}">{escape(text)}</text>'
        yield f'<line class="rule" x1="{_LEFT:g}" x2="{_WIDTH - 8:g}" y1="{middle:g}" y2="{middle:g}"/>'
    for event, start, stop in shown.events:
        row = lanes.index((event.thread, kind(event)))
        top = _TOP + _LANE * row + _LANE / 2 - 6 - _BAR / 2
        gap = 0.0 if shown.seconds is not None else min(1.0, (x(stop) - x(start)) / 4)
        width = max(1.5, x(stop) - x(start) - gap)
        rule = event.rule or known.get(same(event))
        fault = " fault" if rule and event.allowed is None else ""
        yield (
            f'<rect class="{kind(event)}{fault}" x="{x(start):.2f}" y="{top:g}" width="{width:.2f}" '
            f'height="{_BAR:g}"><title>{escape(said(event, rule, report))}</title></rect>'
        )
    if shown.seconds is not None:
        for tick in _ticks(shown.seconds):
            at = x(tick / shown.seconds)
            yield f'<line class="tick" x1="{at:.2f}" x2="{at:.2f}" y1="20" y2="{height - 18:g}"/>'
            yield f'<text class="axis" x="{at + 2:.2f}" y="{height - 6:g}">{duration(tick) if tick else "0"}</text>'
    yield "</svg>"


def _lanes(shown: Window) -> list[tuple[str, str]]:
    """Thread and kind of each lane, the main thread's first."""
    used = {(event.thread, kind(event)) for event, _, _ in shown.events}
    order = list(_KINDS)
    return sorted(used, key=lambda lane: (lane[0] != "MainThread", lane[0], order.index(lane[1])))


def _ticks(seconds: float) -> Iterator[float]:
    """Four to ten round times from 0."""
    unit = 1e-9
    while seconds / unit > 10:
        unit *= 10
    unit = next(unit / part for part in (5, 2, 1) if seconds / unit * part <= 10)
    return (index * unit for index in range(int(seconds / unit) + 1))
