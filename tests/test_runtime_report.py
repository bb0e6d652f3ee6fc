"""Reports of guarded runs, of hand-made events: what they say, and that other tools can read them."""

from __future__ import annotations

import json
import linecache
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from textwrap import dedent

import jsonschema
import pytest

from devlint.rule import rule_files
from devlint.runtime.advice import ADVICE
from devlint.runtime.events import Event, Report
from devlint.runtime.report import FORMATS, amount, duration, headline, render, spots
from devlint.runtime.site import Site

SOURCE = """\
import torch
def train(loader, model, device):
    for x, y in loader:
        x = x.to(device)
        loss = model(x, y)
        total += loss.item()
    h = model.project(x) + model.positions
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "train.py"
    file.write_text(SOURCE)
    return str(file)


def run(script: str, *, simulated: bool = False, steps: int = 10) -> Report:
    """A run that moves a batch and waits 11 ms in each step, and fails in the end."""
    report = Report({"cuda:0": "NVIDIA H200"}, simulated, "2.13.0", folder=str(Path(script).parent))
    for step in range(1, steps + 1):
        start = (step - 1) * 0.02
        report.add(moved(script, step - 1, start, None))
        report.add(waited(script, step - 1, start + 0.005, None if simulated else 0.011))
        report.step_starts.append(start + 0.02)
        report.steps = step
    report.duration = steps * 0.02
    return report


def moved(script: str, step: int, start: float, seconds: float | None) -> Event:
    return Event(
        "moved", None, "copy to the device", "Tensor.to", Site(script, 4, "train"), step, start, seconds,
        65536, "cpu", "cuda:0", pinned=False, blocking=True,
    )  # fmt: skip


def waited(script: str, step: int, start: float, seconds: float | None, **more) -> Event:
    said = "`loss.item()` makes the host wait"
    rule = "host-sync-in-loop"
    return Event("waited", rule, said, "Tensor.item", Site(script, 6, "train"), step, start, seconds, **more)


def met(script: str) -> Event:
    said = "`model.positions` is on cpu and meets `h` on cuda:0"
    note = (Site(script, 1, "<module>"), "`model.positions` was made here")
    return Event("met", "unregistered-tensor", said, "add", Site(script, 7, "train"), notes=(note,), error=True)


# figures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 us"), (1.5e-6, "1.5 us"), (0.0112, "11.2 ms"), (0.9999, "1e+03 ms"), (2.0, "2 s"), (5400, "5,400 s")],
)
def test_times_have_three_digits(seconds, text):
    assert duration(seconds) == text.replace("1e+03 ms", "1,000 ms")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (4, "4 B"), (1000, "1,000 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1023 * 1024, "1,023 KiB"),
     (2**20, "1 MiB"), (3 * 2**40, "3,072 GiB")],
)  # fmt: skip
def test_bytes_have_three_digits(size, text):
    assert amount(size) == text


def test_errors_come_first_then_what_cost_the_most_time(script):
    report = run(script)
    report.add(met(script))
    assert [spot.site.line for spot in spots(report)] == [7, 6, 4]


# text ---------------------------------------------------------------------------------------------------


def test_the_text_says_per_line_what_was_found_and_what_it_cost(script):
    report = run(script)
    report.add(met(script))
    report.failures.append("10 waits, and 0 are allowed")
    report.stepped_aside["torch.compile"] = "compiled functions run as they are"
    assert render(report, "text", width=100) == dedent(
        """\
        devlint run: 10 steps in 200 ms on cuda:0 (NVIDIA H200), torch 2.13.0

        train.py:7: error[unregistered-tensor] `model.positions` is on cpu and meets `h` on cuda:0
            7 | h = model.project(x) + model.positions
          = note: `model.positions` was made here (train.py:1)
            1 | import torch
          = advice: register it: `self.register_buffer(name, tensor, persistent=False)`

        train.py:6: warning[host-sync-in-loop] `loss.item()` makes the host wait
            6 | total += loss.item()
          = 10 waits in 10 steps, 11 ms each, 110 ms in all
          = advice: keep the value on the device and read it after the loop, or once every n steps

        steps  waits/step  waited/step  to device/step  to host/step  line
           10           1        11 ms               -             -  train.py:6  total += loss.item()
           10           -            -          64 KiB             -  train.py:4  x = x.to(device)

        error: 10 waits, and 0 are allowed

        not looked into: torch.compile: compiled functions run as they are

        Found 1 error and 1 warning, 1 budget not kept; 1 wait and 64 KiB to the device a step, over 10 steps.
        """
    )


def test_a_simulated_run_tells_no_times(script):
    text = render(run(script, simulated=True), "text")
    assert "The devices are imaginary" in text
    assert "waited/step" not in text
    assert " each, " not in text
    assert "10 waits in 10 steps" in text


def test_a_run_that_did_nothing_is_said_to_be_so():
    text = render(Report(), "text")
    assert text.endswith("Nothing found; 0 waits, 0 B to the device, 0 B back.\n")


def test_a_wait_that_is_allowed_is_no_finding_but_counts(script):
    report = Report(folder=str(Path(script).parent))
    report.add(waited(script, 0, 0.0, 0.5, allowed="logged once"))
    text = render(report, "text")
    assert "warning" not in text
    assert "train.py:6  total += loss.item()  (allowed: logged once)" in text
    assert text.endswith("Nothing found; 1 wait, 0 B to the device, 0 B back.\n")


def test_a_fault_in_a_library_shows_both_lines(script, tmp_path):
    library = tmp_path / "library.py"
    library.write_text("def log(t):\n    print(t.item())\n")
    report = Report(folder=str(tmp_path))
    site = Site(script, 6, "train", inside=Site(str(library), 2, "log"))
    report.add(Event("waited", "host-sync-in-loop", "a wait", "Tensor.item", site))
    assert "called from there: library.py:2\n    2 | print(t.item())" in render(report, "text")


def test_what_has_no_line_of_the_users_is_shown_too():
    report = Report()
    report.add(Event("waited", None, "a wait", "backward", None))
    report.add(Event("kept", "retained-graph", "`loss` is kept", "backward", None))
    assert "inside torch" in render(report, "text")
    for form in FORMATS:
        render(report, form)


def test_what_came_from_a_file_cannot_move_the_cursor(tmp_path):
    report = Report({"cuda:0": "\x1b[31m"}, folder=str(tmp_path))
    file = tmp_path / "bad\x1b[2J.py"
    file.write_text("x\x1b[2J = t.item()\n")
    report.add(Event("waited", "host-sync-in-loop", "\x1b[2J", "item", Site(str(file), 1, "f"), allowed=None))
    report.stepped_aside["\x1b"] = "\x1b"
    assert "\x1b" not in render(report, "text", color=False)


def test_many_lines_are_cut_and_counted(script):
    report = Report()
    for line in range(1, 30):
        report.add(Event("waited", None, "a wait", "item", Site(script, line, "f")))
    assert "and 9 more\n" in render(report, "text")


# html ---------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The tags of a page, balanced or not, with their attributes."""

    VOID = ("meta", "br", "rect", "line")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("simulated", [False, True])
def test_the_page_is_whole_and_needs_nothing_else(script, simulated):
    report = run(script, simulated=simulated)
    report.add(met(script))
    text = render(report, "html")
    page = Page(text)
    assert page.open == []
    assert page.links == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "url(" not in text and "@import" not in text
    assert {"table", "svg", "article"} <= set(page.tags)
    assert "prefers-color-scheme: dark" in text


def test_the_page_shows_nothing_as_markup(tmp_path):
    evil = "<script>alert('1')</script>"
    file = tmp_path / "x.py"
    file.write_text(f'print("{evil}")\n')
    report = Report({evil: evil}, torch=evil, folder=str(tmp_path), steps=1, step_starts=[0.0])
    event = Event(
        "waited", evil, f"{evil} `{evil}", evil, Site(str(file), 1, evil), 1, thread=evil, notes=((None, evil),)
    )
    report.add(event)
    report.add(Event("moved", None, evil, evil, Site(str(file), 1, evil), 1, source=evil, target=evil, allowed=evil))
    report.failures.append(evil)
    report.stepped_aside[evil] = evil
    text = render(report, "html")
    assert "<script" not in text
    assert Page(text).open == []


def test_the_timeline_shows_a_few_steps_after_warming_up(script):
    report = run(script)
    report.warmup_steps = 3
    text = render(report, "html")
    assert re.findall(r'<text class="head"[^>]*>(step \d+)', text) == ["step 4", "step 5", "step 6", "step 7"]
    assert text.count("<title>train.py:6: ") == 4
    assert "4 steps over time" in text


def test_the_timeline_of_imaginary_devices_is_an_order(script):
    text = render(run(script, simulated=True), "html")
    assert "4 steps in order" in text
    assert 'class="axis"' not in text


def test_bars_of_the_timeline_lie_inside_it(script):
    report = run(script)
    report.add(Event("waited", None, "late", "item", Site(script, 6, "f"), step=2, start=0.05, seconds=9.0))
    text = render(report, "html")
    bars = re.findall(r'<rect class="(?:wait|up)[^>]* x="([\d.]+)"[^>]* width="([\d.]+)"', text)
    assert bars
    assert all(float(x) >= 150 and float(x) + float(width) <= 994 for x, width in bars)


def test_a_page_without_steps_shows_the_run(script):
    report = Report()
    report.add(waited(script, 0, 0.1, 0.2))
    assert "The run over time" in render(report, "html")


# perfetto -----------------------------------------------------------------------------------------------

TRACE = {
    "type": "object",
    "required": ["traceEvents", "displayTimeUnit"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "ph", "pid", "tid", "args"],
                "properties": {
                    "name": {"type": "string"},
                    "cat": {"type": "string"},
                    "ph": {"enum": ["X", "M", "i", "C"]},
                    "ts": {"type": "number", "minimum": 0},
                    "pid": {"type": "integer"},
                    "tid": {"type": "integer"},
                    "args": {"type": "object"},
                },
                "allOf": [
                    {
                        "if": {"properties": {"ph": {"const": "X"}}},
                        "then": {"required": ["ts", "dur"], "properties": {"dur": {"type": "number", "minimum": 0}}},
                    },
                    {
                        "if": {"properties": {"ph": {"const": "i"}}},
                        "then": {"required": ["ts", "s"], "properties": {"s": {"enum": ["g", "p", "t"]}}},
                    },
                    {
                        "if": {"properties": {"ph": {"const": "M"}}},
                        "then": {
                            "properties": {"name": {"enum": ["process_name", "thread_name", "thread_sort_index"]}}
                        },
                    },
                    {
                        "if": {"properties": {"ph": {"const": "C"}}},
                        "then": {
                            "required": ["ts"],
                            "properties": {"args": {"additionalProperties": {"type": "number"}}},
                        },
                    },
                ],
            },
        },
    },
}


def trace(report: Report) -> list[dict]:
    data = json.loads(render(report, "perfetto"))
    jsonschema.validate(data, TRACE)
    return data["traceEvents"]


def test_a_trace_has_steps_waits_and_copies_with_their_lines(script):
    report = run(script)
    report.add(waited(script, 10, 0.21, 0.001, thread="pin"))
    report.add(met(script))
    events = trace(report)
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in spans if event["cat"] == "step"] == [f"step {n}" for n in range(1, 11)]
    wait = next(event for event in spans if event["cat"] == "waited")
    assert (wait["name"], wait["dur"], wait["args"]["code"]) == (
        "Tensor.item train.py:6",
        11000,
        "total += loss.item()",
    )
    copy = next(event for event in events if event.get("cat") == "moved")
    assert (copy["args"]["bytes"], copy["args"]["copy"]) == (65536, "cpu to cuda:0, pageable, blocking")
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(names.values()) == ["steps", "MainThread", "pin"]
    assert {event["tid"] for event in spans} == set(names)
    assert [event["args"]["rule"] for event in events if event.get("cat") == "met"] == ["unregistered-tensor"]
    counters = [event["args"]["to device"] for event in events if event["ph"] == "C"]
    assert counters == sorted(counters) and counters[-1] == 655360


def test_a_trace_of_imaginary_devices_has_no_durations_but_those_of_steps(script):
    events = trace(run(script, simulated=True))
    assert {event["cat"] for event in events if event["ph"] == "X"} == {"step"}


def test_a_trace_of_nothing_is_one(script):
    trace(Report())


# sarif --------------------------------------------------------------------------------------------------


SARIF = jsonschema.Draft4Validator(
    json.loads((Path(__file__).parent / "data" / "sarif-schema-2.1.0.json").read_text("utf-8"))
)


def test_sarif_names_lines_rules_and_figures(script):
    report = run(script)
    report.add(met(script))
    report.add(Event("kept", "no-such-rule", "m", "o", Site(script, 5, "f")))
    report.failures.append("10 waits, and 0 are allowed")
    log = json.loads(render(report, "sarif"))
    SARIF.validate(log)
    SARIF.validate(json.loads(render(Report(stepped_aside={"a": "b"}), "sarif")))
    [found] = log["runs"]
    rules = [rule["id"] for rule in found["tool"]["driver"]["rules"]]
    assert rules == ["host-sync-in-loop", "no-such-rule", "unregistered-tensor"]
    error, wait, _ = found["results"]
    assert (error["level"], error["ruleId"], rules[error["ruleIndex"]]) == (
        "error",
        "unregistered-tensor",
        "unregistered-tensor",
    )
    place = wait["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "train.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 6, "snippet": {"text": "total += loss.item()"}}
    assert (wait["occurrenceCount"], wait["properties"]["seconds"]) == (10, pytest.approx(0.11))
    assert error["relatedLocations"][0]["physicalLocation"]["region"]["startLine"] == 1
    [invocation] = found["invocations"]
    assert not invocation["executionSuccessful"]
    assert invocation["toolExecutionNotifications"][0]["message"]["text"] == "10 waits, and 0 are allowed"


def test_sarif_fingerprints_outlive_lines_above(script, tmp_path):
    def fingerprints(report: Report) -> list[str]:
        results = json.loads(render(report, "sarif"))["runs"][0]["results"]
        return [result["partialFingerprints"]["devlintRunFingerprint/v1"] for result in results]

    def report_of(line: int, name: str) -> Report:
        report = Report(folder=str(tmp_path))
        for place in (line, line + 1):
            site = Site(str(tmp_path / name), place, "f")
            report.add(Event("waited", "host-sync-in-loop", "m", "item", site))
        return report

    (tmp_path / "a").mkdir()
    (tmp_path / "x.py").write_text("t.item()\nt.item()\n")
    before = fingerprints(report_of(1, "x.py"))
    assert len(set(before)) == 2
    (tmp_path / "x.py").write_text("\n\nt.item()\nt.item()\n")
    linecache.checkcache()
    assert fingerprints(report_of(3, "x.py")) == before


# json ---------------------------------------------------------------------------------------------------


def test_a_report_comes_back_from_json_as_it_was(script):
    report = run(script)
    report.add(met(script))
    again = Report.from_dict(json.loads(render(report, "json")))
    assert again.to_dict() == report.to_dict()
    for form in FORMATS:
        assert render(again, form) == render(report, form)


def test_a_report_is_shown_where_the_files_are_not(script):
    data = json.loads(render(run(script), "json"))
    Path(script).unlink()
    linecache.clearcache()
    assert "6 | total += loss.item()" in render(Report.from_dict(data), "text")


# what it costs ------------------------------------------------------------------------------------------


def test_reports_need_neither_torch_nor_libcst():
    code = (
        "import sys; from devlint.runtime.events import Report; from devlint.runtime.report import FORMATS, render;"
        "[render(Report(), form) for form in FORMATS];"
        "sys.exit(bool({'torch', 'libcst', 'click'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_rule_has_advice():
    known = set(rule_files())
    assert known - set(ADVICE) <= {  # nothing that a run would see
        "device-compared-to-string",
        "discarded-move",
        "dtype-for-device",
        "ignored-device-argument",
        "invalid-device-argument",
        "load-without-map-location",
        "availability-instead-of-device",
        "clipped-while-scaled",
        "cuda-only-amp",
        "cuda-or-cpu-only",
        "current-device-assumed",
        "float64-on-mps",
        "half-moved-object",
        "hard-coded-device",
        "layer-without-device",
        "legacy-tensor-type",
        "minus-one-as-device",
        "move-of-immovable",
        "move-override-skipped",
        "move-returns-nothing",
        "move-taken-for-copy",
        "mps-fallback-set-late",
        "tuple-not-moved",
        "uncalled-function",
        "unentered-context",
        "unguarded-accelerator-call",
        "unknown-device-function",
        "unread-device-option",
        "unused-move",
        "visible-device-renumbered",
        "visible-devices-set-late",
        "zero-device-count",
    }


def test_many_devices_of_one_sort_are_named_in_short() -> None:
    report = Report(devices={f"cuda:{index}": "imaginary" for index in range(8)} | {"mps:0": ""}, simulated=True)
    assert headline(report) == "on cuda:0 ... cuda:7 (imaginary), mps:0"
