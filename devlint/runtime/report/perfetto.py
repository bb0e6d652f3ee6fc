"""``perfetto``: the JSON of Chrome's trace events, which Perfetto and ``chrome://tracing`` open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (``M`` names processes and
threads, ``X`` is something with a duration, ``i`` an instant, ``C`` a counter; times are microseconds).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from itertools import pairwise
from typing import Any

from devlint import __version__
from devlint.runtime.events import TIMELINE_LIMIT, Event, Report
from devlint.runtime.report import HOST, code, how, place, places, rules, same

_PID = 1
_STEPS = 0  # the track of the steps; threads have the others


def render(report: Report, color: bool, width: int) -> str:
    threads = ["steps", *dict.fromkeys(["MainThread", *(event.thread for event in report.timeline)])]
    events = [_meta("process_name", _STEPS, "devlint run")]
    for number, name in enumerate(threads):
        events += [_meta("thread_name", number, name), _meta("thread_sort_index", number, number)]
    for number, (start, end) in enumerate(pairwise([0.0, *report.step_starts]), 1):
        warm = {"warmup": number <= report.warmup_steps}
        events.append(_span(f"step {number}", "step", _STEPS, start, end - start, warm))
    copied: Counter[str] = Counter()
    known = rules(report)
    for event in sorted(report.timeline, key=lambda event: event.start):
        events.append(_event(event, event.rule or known.get(same(event)), threads.index(event.thread), report))
        if event.bytes:
            copied["to host" if (event.target or "").startswith(HOST) else "to device"] += event.bytes
            figures = {name: copied[name] for name in ("to device", "to host")}
            events.append(
                {"name": "bytes copied", "ph": "C", "ts": _micro(event.start), "pid": _PID, "tid": 0, "args": figures}
            )
    told = {
        "tool": f"devlint {__version__}",
        "torch": report.torch,
        "devices": report.devices,
        "simulated": report.simulated,
        "events": "all" if len(report.timeline) < TIMELINE_LIMIT else f"the first {TIMELINE_LIMIT}",
    }
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": told}) + "\n"


def _meta(name: str, thread: int, value: str | int) -> dict[str, Any]:
    key = "sort_index" if name == "thread_sort_index" else "name"
    return {"name": name, "ph": "M", "pid": _PID, "tid": thread, "args": {key: value}}


def _span(name: str, category: str, thread: int, start: float, seconds: float, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": _micro(start),
        "dur": _micro(seconds),
        "pid": _PID,
        "tid": thread,
        "args": args,
    }


def _event(event: Event, rule: str | None, thread: int, report: Report) -> dict[str, Any]:
    """Something with a duration where one was measured, else an instant."""
    args: dict[str, Any] = {"line": places(event.site, report), "message": event.message, "step": event.step}
    args["code"] = code(event.site, report)
    args |= {"rule": rule, "copy": how(event), "bytes": event.bytes, "allowed": event.allowed}
    shown = {name: value for name, value in args.items() if value not in (None, "", 0)}
    name = f"{event.operation} {os.path.basename(place(event.site, report))}"
    if event.seconds is not None:
        return _span(name, event.kind, thread, event.start, event.seconds, shown)
    instant = {"name": name, "cat": event.kind, "ph": "i", "s": "t", "ts": _micro(event.start)}
    return {**instant, "pid": _PID, "tid": thread, "args": shown}


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)
