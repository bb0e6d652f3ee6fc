"""`devlint check --profile`: what a run measured, beside the findings of its lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from devlint.cli import main
from devlint.runtime.events import Event, Report
from devlint.runtime.site import Site

TRAIN = """\
import torch


def train(loader: torch.utils.data.DataLoader, optimizer, device):
    total = 0.0
    model = torch.nn.Linear(4, 4).to(device)
    for x, y in loader:
        noise = torch.zeros(len(x), x.size(1), x.size(2)).to(device)
        loss = model(x.to(device)).sum()
        optimizer.zero_grad()
        total += loss.item()
        (loss + noise.sum()).backward()
        optimizer.step()
    return total
"""
MADE, WAITED = 8, 11  # the lines with a finding
#: A program with one finding, of a rule that waits in the nursery.
STOPS = """\
import torch


def train(loader, model, optimizer, device):
    for x in loader:
        loss = model(x.to(device)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
"""


@pytest.fixture
def train(project: Path) -> Path:
    file = project / "train.py"
    file.write_text(TRAIN)
    return file


@pytest.fixture
def stops(project: Path) -> Path:
    file = project / "train.py"
    file.write_text(STOPS)
    return file


def profile(file: Path, *events: Event, steps: int = 200, simulated: bool = False, folder: str | None = None) -> str:
    report = Report(simulated=simulated, steps=steps, folder=folder or str(file.parent))
    for event in events:
        report.add(event)
    (file.parent / "run.json").write_text(json.dumps(report.to_dict()))
    return "run.json"


def waits(
    file: Path, steps: int = 200, seconds: float | None = 0.011, line: int = WAITED, times: int = 1
) -> list[Event]:
    site = Site(str(file), line, "train")
    one = [
        Event("waited", "host-sync-in-loop", "a wait", "Tensor.item", site, step, 0.0, seconds) for step in range(steps)
    ]
    return [event for event in one for _ in range(times)]


def stopped(file: Path) -> list[Event]:
    return [replace(event, rule="synchronize-in-loop") for event in waits(file, line=10)]


def copies(file: Path, steps: int = 200) -> list[Event]:
    site = Site(str(file), MADE, "train")
    return [
        Event("moved", None, "a copy", "Tensor.to", site, step, bytes=65536, source="cpu", target="cuda:0")
        for step in range(steps)
    ]


def check(*args: str, stdin: str | None = None) -> Result:
    return plain_check("--select", "create-then-move,host-sync-in-loop", *args, stdin=stdin)


def plain_check(*args: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(main, ["check", "--no-cache", *args], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def concise(*args: str) -> list[str]:
    result = check("--output-format", "concise", *args)
    assert result.exit_code == 1
    return result.stdout.splitlines()


# which rules ----------------------------------------------------------------------------------------------


def of_rules(*args: str) -> list[str]:
    result = plain_check("--output-format", "json", *args)
    return [finding["rule"] for finding in json.loads(result.stdout)]


def test_rules_that_the_run_counted_something_under_are_on(stops):
    assert of_rules("train.py") == []
    assert of_rules("--profile", profile(stops, *stopped(stops)), "train.py") == ["synchronize-in-loop"]


@pytest.mark.parametrize("option", ["--ignore=synchronize-in-loop", "--select=correctness", "--ignore=ALL"])
def test_what_is_selected_and_ignored_goes_before_what_was_measured(stops, option):
    assert of_rules(option, "--profile", profile(stops, *stopped(stops)), "train.py") == []


def test_a_configuration_may_ignore_what_was_measured(stops):
    (stops.parent / "devlint.toml").write_text('per-file-ignores = { "train.py" = ["synchronize-in-loop"] }\n')
    assert of_rules("--profile", profile(stops, *stopped(stops)), "train.py") == []


@pytest.mark.parametrize("changed", [{"rule": None}, {"rule": "no-such-rule"}, {"rule": "ALL"}, {"allowed": "logged"}])
def test_no_rule_is_on_for_what_was_allowed_or_counts_under_none(stops, changed):
    events = [replace(event, **changed) for event in stopped(stops)]
    assert of_rules("--profile", profile(stops, *events), "train.py") == []


# words ----------------------------------------------------------------------------------------------------


def test_findings_say_what_was_measured_and_the_costliest_comes_first(train):
    before = [line.split(":")[1] for line in concise("train.py")]
    assert before == [str(MADE), str(WAITED)]
    first, second = concise("--profile", profile(train, *waits(train), *copies(train)), "train.py")
    assert f"train.py:{WAITED}:" in first
    assert "(waited 11 ms in each of 200 steps)" in first
    assert "(copied 64 KiB to the device in each of 200 steps)" in second


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (lambda file: waits(file, 1), "waited once, 11 ms in all"),
        (lambda file: waits(file, 1, times=3), "waited 3 times, 33 ms in all"),
        (lambda file: waits(file, times=3), "waited 3 times, 33 ms in each of 200 steps"),
        (lambda file: waits(file, 20), "waited 11 ms in each of 20 steps"),
        (lambda file: waits(file, seconds=None), "waited once in each of 200 steps"),
        (
            lambda file: [Event("met", "mixed-devices", "m", "add", Site(str(file), WAITED, "f"), error=True)],
            "a run failed here",
        ),
        (
            lambda file: [Event("kept", "retained-graph", "m", "add", Site(str(file), WAITED, "f"))] * 3,
            "seen 3 times in a run",
        ),
    ],
)
def test_measurements_are_told_in_words(train, events, said):
    lines = concise("--profile", profile(train, *events(train)), "train.py")
    assert lines[0].endswith(f"({said})")


def test_a_simulated_run_is_said_to_be_one(train):
    lines = concise("--profile", profile(train, *waits(train, seconds=None), simulated=True), "train.py")
    assert lines[0].endswith("(waited once in each of 200 steps, on an imaginary device)")


def test_a_run_without_steps_is_told_in_all(train):
    lines = concise("--profile", profile(train, *waits(train, 1, times=9), steps=0), "train.py")
    assert lines[0].endswith("(waited 9 times, 99 ms in all)")


# which lines ------------------------------------------------------------------------------------------------


def test_lines_that_have_changed_are_told_and_not_guessed(train):
    file = profile(train, *waits(train), *copies(train))
    train.write_text(TRAIN.replace("loss.item()", "float(loss.item())"))
    result = check("--output-format", "concise", "--profile", file, "train.py")
    assert "waited" not in result.stdout
    assert "copied 64" in result.stdout
    assert result.stderr.splitlines()[0] == (
        "warning: train.py: 1 of 2 measured lines reads differently now; run it again to measure them"
    )
    train.write_text("import os\n" + TRAIN)
    result = check("--output-format", "concise", "--profile", file, "train.py")
    assert "copied 64" not in result.stdout and "waited" not in result.stdout
    assert "2 of 2 measured lines read differently now" in result.stderr


def test_a_run_on_another_machine_is_matched_below_its_folder(train):
    file = profile(train, *waits(train))
    data = (train.parent / file).read_text().replace(str(train.parent), "/somewhere/else")
    (train.parent / file).write_text(data)
    assert concise("--profile", file, "train.py")[0].endswith("(waited 11 ms in each of 200 steps)")


def test_another_file_with_the_same_lines_has_nothing(train):
    other = train.parent / "other.py"
    other.write_text(TRAIN)
    lines = concise("--profile", profile(train, *waits(train)), "other.py")
    assert not [line for line in lines if "waited" in line]


def test_statements_of_several_lines_have_all_of_them(train):
    train.write_text(
        TRAIN.replace(
            "torch.zeros(len(x), x.size(1), x.size(2))",
            "torch.zeros(\n            len(x), x.size(1), x.size(2),\n        )",
        )
    )
    site = Site(str(train), MADE + 2, "train")
    event = Event("moved", None, "a copy", "Tensor.to", site, bytes=32, source="cpu", target="cuda:0")
    [line] = [line for line in concise("--profile", profile(train, event), "train.py") if f":{MADE}:" in line]
    assert "copied 32 B to the device in all" in line


def test_stdin_is_compared_under_its_name(train):
    file = profile(train, *waits(train))
    result = check("--profile", file, "--output-format", "concise", "--stdin-filename", "train.py", "-", stdin=TRAIN)
    assert "waited 11 ms" in result.stdout


# formats ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "concise", "github", "gitlab", "junit", "sarif"])
def test_every_format_says_what_was_measured(train, form):
    result = check("--output-format", form, "--profile", profile(train, *waits(train)), "train.py")
    assert "waited 11 ms in each of 200 steps" in result.stdout


@pytest.mark.parametrize("form", ["json", "json-lines"])
def test_json_has_the_figures(train, form):
    file = profile(train, *waits(train), *copies(train))
    text = check("--output-format", form, "--profile", file, "train.py").stdout
    first, second = json.loads(text) if form == "json" else map(json.loads, text.splitlines())
    assert first["message"].endswith("before its end")
    assert first["measured"] == {
        "waits": 200, "seconds": pytest.approx(2.2), "copies": 0, "bytes_to_device": 0, "bytes_to_host": 0,
        "steps": 200, "simulated": False, "failed": False,
    }  # fmt: skip
    assert second["measured"]["bytes_to_device"] == 200 * 65536
    assert "measured" not in json.loads(check("--output-format", "json", "train.py").stdout)[0]


def test_sarif_has_the_figures_and_what_services_compare_stays_as_it_was(train):
    file = profile(train, *waits(train))
    plain = json.loads(check("--output-format", "sarif", "train.py").stdout)["runs"][0]["results"]
    log = json.loads(check("--output-format", "sarif", "--profile", file, "train.py").stdout)
    schema = json.loads((Path(__file__).parent / "data" / "sarif-schema-2.1.0.json").read_text("utf-8"))
    jsonschema.Draft4Validator(schema).validate(log)
    results = log["runs"][0]["results"]
    assert [result.get("properties", {}).get("measured", {}).get("waits") for result in results] == [None, 200]
    assert [r["partialFingerprints"] for r in results] == [r["partialFingerprints"] for r in plain]


def test_junit_keeps_one_suite_for_a_file(train):
    (train.parent / "another.py").write_text(TRAIN)
    text = check("--output-format", "junit", "--profile", profile(train, *waits(train)), ".").stdout
    assert [suite.get("name") for suite in ET.fromstring(text)] == ["another.py", "train.py"]


# bad files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b"[]", "not a report of `devlint run`"),
        (b"null", "not a report of `devlint run`"),
        (b"{}", "not a report of `devlint run`"),
        (b'{"format": 99}', "a report of format 99"),
        (b'{"traceEvents": []}', "not a report of `devlint run`"),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_what_is_no_profile_is_said_and_gives_2(project, content, said):
    if content is not None:
        (project / "run.json").write_bytes(content)
    result = check("--profile", "run.json", ".")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: run.json: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"steps": "many"},
        {"lines": [1]},
        {"lines": {"a": 1}},
        {"lines": [{"event": {}, "count": 1, "steps": 1, "seconds": None, "bytes": 0}]},
        {"code": []},
        {"code": {"a": 1}},
        {"folder": None},
        {"folder": "a\0b"},
        {"timeline": None},
    ],
)
def test_a_damaged_profile_is_said_and_gives_2(train, damage):
    file = train.parent / profile(train, *waits(train))
    file.write_text(json.dumps({**json.loads(file.read_text()), **damage}))
    result = check("--profile", "run.json", "train.py")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: run.json: not a report of `devlint run`")


def test_a_damaged_name_of_a_rule_is_said_and_gives_2(train):
    file = train.parent / profile(train, *waits(train))
    data = json.loads(file.read_text())
    data["lines"][0]["event"]["rule"] = ["host-sync-in-loop"]
    file.write_text(json.dumps(data))
    assert plain_check("--profile", "run.json", "train.py").exit_code == 2


@pytest.mark.parametrize(
    ("key", "value"), [("count", "x"), ("seconds", "x"), ("bytes", -1), ("steps", None), ("count", True)]
)
def test_damaged_figures_are_said_and_give_2(train, key, value):
    file = train.parent / profile(train, *waits(train))
    data = json.loads(file.read_text())
    data["lines"][0][key] = value
    file.write_text(json.dumps(data))
    result = check("--profile", "run.json", "train.py")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: run.json: not a report of `devlint run`: its values are of other types\n"


def test_a_folder_is_no_profile(project):
    os.mkdir("run.json")
    assert check("--profile", "run.json", ".").exit_code == 2


def test_a_profile_needs_no_torch(train):
    file = profile(train, *waits(train))
    code = (
        "import sys\n"
        "from devlint.cli import main\n"
        f"sys.argv = ['devlint', 'check', '-q', '--no-cache', '--profile', {file!r}, 'train.py']\n"
        "try: main()\n"
        "except SystemExit: sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
