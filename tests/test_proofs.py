"""What the rules claim is true of torch, on a simulated GPU: see ``proofs.py``. On a real one: ``gpu/``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import harness
from devlint import docs
from devlint.rule import discover, rule_files
from devlint.runtime.events import Report
from harness import ROOT, Fixture, FixtureError
from proofs import SIMULATED, claims, proofs, prove, run, same, simulated

NO_PROOF = "Not proved by running"  # a sentence in a rule's Limits that starts so says why


@pytest.mark.filterwarnings("ignore:.pin_memory. argument is set:UserWarning")  # on the host
@pytest.mark.parametrize("fixture", proofs(), ids=lambda fixture: fixture.id)
def test_what_is_reported_happens_and_is_gone_once_fixed(fixture: Fixture) -> None:
    if wrong := prove(fixture, simulated(fixture)):
        pytest.fail(wrong, pytrace=False)


CRASHES = [fixture for fixture in proofs() if any(claim.what == "raises" for claim in claims(fixture.file))]


@pytest.mark.parametrize("fixture", CRASHES, ids=lambda fixture: fixture.id)
def test_a_guard_that_raises_stops_a_program_where_torch_would(fixture: Fixture) -> None:
    (claim,) = (claim for claim in claims(fixture.file) if claim.what == "raises")
    outcome = run(fixture.file, simulated(fixture), on="raise")
    assert outcome.error_row() == claim.row, outcome.error
    assert claim.error in [kind.__name__ for kind in type(outcome.error).__mro__]


@pytest.mark.parametrize("name", rule_files())
def test_a_rule_has_proofs_or_says_why_it_has_none(name: str) -> None:
    found = proofs(name)
    assert len(found) >= 2 or NO_PROOF in docs.page(name)["Limits"]
    assert any(proof.fixed_file.exists() for proof in found) or not found or discover()[name].fixable == "never"


# a proof can fail -----------------------------------------------------------------------------------------------------

FAULTY = """\
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            steps = torch.arange(3)            #~ tensor-without-device
            return x * self.scale + steps      #! raises RuntimeError "same device"

    def main(device="cuda"):
        return Net().to(device)(torch.ones(3).to(device)).tolist()
    """
FIXED = FAULTY.replace("arange(3)", "arange(3, device=x.device)")

SLOW = """\
    import torch

    def main(device="cuda"):
        weight = torch.tensor([1.0, 2.0, 0.5])
        x = torch.ones(3, device=device)
        for _ in range(3):
            w = weight.to(device)              #! moved x3 to x1  #~ invariant-move-in-loop
            x = x * w
        return x.tolist()
    """
FAST = """\
    import torch

    def main(device="cuda"):
        weight = torch.tensor([1.0, 2.0, 0.5])
        x = torch.ones(3, device=device)
        w = weight.to(device)                  #! moved x3 to x1  #~ invariant-move-in-loop
        for _ in range(3):
            x = x * w
        return x.tolist()
    """


@pytest.fixture
def proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setattr(harness, "FIXTURES", tmp_path)

    def proved(faulty: str, fixed: str | None, rule: str = "tensor-without-device") -> str:
        (tmp_path / rule).mkdir(exist_ok=True)
        fixture = Fixture(tmp_path / rule / "proof_case.py")
        fixture.file.write_text(dedent(faulty))
        if fixed is not None:
            fixture.fixed_file.write_text(dedent(fixed))
        return prove(fixture, SIMULATED)

    return proved


def test_a_true_proof_holds(proved) -> None:  # type: ignore[no-untyped-def]
    assert proved(FAULTY, FIXED) == ""
    assert proved(SLOW, FAST, "invariant-move-in-loop") == ""


@pytest.mark.parametrize(
    ("faulty", "fixed", "complaint"),
    [
        (FIXED, FIXED, 'as written: raises RuntimeError "same device": came true 0 times'),
        (FAULTY, FAULTY, 'as fixed: raises RuntimeError "same device": came true 1 times'),
        (FAULTY, FIXED.replace("arange(3,", "arange(1, 4,"), "as fixed on the host: [2.0, 3.0, 4.0]"),
        (FAULTY.replace("same device", "out of memory"), FIXED, 'out of memory": came true 0 times'),
        (FAULTY.replace("RuntimeError", "TypeError"), FIXED, "came true 0 times"),
        (FAULTY.replace("#! raises", "# raises"), FIXED, "each fault needs its proof"),
        (FAULTY.replace("#! raises", "# raises"), FIXED, "as written: RuntimeError: "),
        (FAULTY.replace("#~", "#"), FIXED, "each fault needs its proof"),
        (FAULTY.replace("super()", "1 / 0; super()"), FIXED, "ZeroDivisionError"),
        (FAULTY, FIXED.replace("super()", "1 / 0; super()"), "as fixed: ZeroDivisionError"),
        (FAULTY, FIXED.replace("super()", "1 / 0; super()"), "as fixed, on the host: ZeroDivisionError"),
        (FAULTY, FIXED.replace("#! raises", "# raises"), "the fix has lost a `#!`"),
        (FAULTY.replace("#! ", "#! unnamed: why  #! "), FIXED.replace("#! ", "#! unnamed: why  #! "), "after all"),
        (FAULTY.replace("torch.arange(3) ", "torch.arange(3) + 0 "), FIXED, "the guard does not say tensor-without-"),
    ],
)
def test_a_proof_that_does_not_hold_says_what_is_wrong(faulty, fixed, complaint, proved) -> None:  # type: ignore[no-untyped-def]
    assert complaint in proved(faulty, fixed)


@pytest.mark.parametrize(
    ("faulty", "fixed", "complaint"),
    [
        (SLOW.replace("range(3)", "range(2)"), FAST, "as written: moved x3 to x1: came true 2 times"),
        (SLOW.replace("weight.to", "w = weight.to").replace("#!", "\n                #!"), FAST, "came true 0 times"),
        (SLOW, SLOW, "as fixed: moved x3 to x1: came true 3 times"),
        (SLOW, FAST.replace("weight.to(device)     ", "torch.ones(3, device=device)"), "came true 0 times"),
        (
            SLOW.replace("x1 ", "x1 pinned "),
            FAST.replace("x1 ", "x1 pinned "),
            "as written: moved x3 to x1 pinned: came",
        ),
        (SLOW.replace("range(3)", "range(3 + (x.device.type == 'cuda'))"), FAST, "came true 4 times"),
    ],
)
def test_copies_are_counted_where_they_happen(faulty, fixed, complaint, proved) -> None:  # type: ignore[no-untyped-def]
    assert complaint in proved(faulty, fixed, "invariant-move-in-loop")


SKIPS = """\
    import torch

    def main(device="cuda"):
        x = torch.ones(3, device=device)
        #! {permission}
        if x.device == "cuda":  #~ device-compared-to-string
            x = x + {added}     #! skipped
        return x.tolist()
    """


@pytest.mark.parametrize(
    ("added", "permission", "complaint"),
    [
        ("0", "differs", "as written, the result does not differ"),
        ("1e-7", "rounds: more or less", ""),
        ("1e-7", "skipped", "as fixed: [1.0000001192092896, "),
        ("1", "rounds: more or less", "as fixed: [2.0, 2.0, 2.0]"),
        ("1", "redraws: at random", ""),
    ],
)
def test_results_may_differ_where_a_marker_permits_it(added, permission, complaint, proved) -> None:  # type: ignore[no-untyped-def]
    faulty = SKIPS.format(added=added, permission=permission)
    assert complaint in proved(faulty, faulty.replace(".device ==", ".device.type =="), "device-compared-to-string")


def test_a_proof_may_need_another_machine(proved, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    both = FAULTY.replace('"cuda"', '"cuda:1"'), FIXED.replace('"cuda"', '"cuda:1"')
    assert "invalid device ordinal" in proved(*both)
    assert proved(*(f"#! needs: two GPUs\n{dedent(text)}" for text in both)) != ""
    fixture = Fixture(tmp_path / "tensor-without-device" / "proof_case.py")
    assert prove(fixture, simulated(fixture)) == ""
    fixture.file.write_text("#! needs: a quantum computer\n")
    with pytest.raises(FixtureError, match="there is no machine `a quantum computer`"):
        simulated(fixture)


def test_lines_are_counted_in_functions_and_loops(tmp_path: Path) -> None:
    file = tmp_path / "lines.py"
    file.write_text("def main(device='cuda'):\n    for i in range(3):\n        if i > 5:\n            return i\n")
    assert run(file, SIMULATED).ran == run(file, None).ran == {1: 1, 2: 4, 3: 3}


@pytest.mark.parametrize(
    "marker",
    ["", "crashes", "raises", "moved RuntimeError", "rounds", "differs: oh", "moved quickly", "moved 3", "moved x"],
)
def test_a_marker_that_cannot_be_read_is_an_error(marker: str, tmp_path: Path) -> None:
    file = tmp_path / "proof_case.py"
    file.write_text(f"x = 1\ny = 2  #! {marker}\n")
    with pytest.raises(FixtureError, match=r"proof_case.py:2: "):
        claims(file)


def test_results_are_compared_by_type_and_bit() -> None:
    one = {"a": [1, 0.1, "x", None], "b": torch.ones(2), "c": (True,)}
    assert same(one, {**one, "b": torch.ones(2)})
    for name, other in (("a", [1, 0.1 + 1e-12, "x", None]), ("a", [1, 0.1, "x"]), ("b", torch.ones(2).double()),
                        ("b", torch.ones(1, 2)), ("c", (1,)), ("c", [True])):  # fmt: skip
        assert not same(one, {**one, name: other})
    assert same(0.1, 0.1 + 1e-12, rounds=True) and not same(0.1, 0.11, rounds=True)
    assert same(float("nan"), float("nan")) and not same(0.0, -0.0)


def test_a_result_on_a_device_is_refused(proved) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError, match="on the host, please"):
        proved(FAULTY.replace(".tolist()", ""), FIXED.replace(".tolist()", ""))


def test_a_run_leaves_torch_as_it_was() -> None:
    available, before = torch.cuda.is_available(), (torch.get_rng_state(), torch.rand(1))
    torch.set_rng_state(before[0])
    for proof in (*proofs("tensor-without-device"), *proofs("optimizer-before-move")):
        run(proof.file, SIMULATED)
    assert torch.equal(torch.rand(1), before[1])
    assert torch.cuda.is_available() == available and torch.ones(1).device.type == "cpu"
    assert not torch.__future__.get_overwrite_module_params_on_conversion()


# the shipped example --------------------------------------------------------------------------------------------------

EXAMPLE = ROOT / "examples" / "faulty_train.py"


def _devlint(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _python(folder, "-m", "devlint", *arguments)


def _python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    environment = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8")


def test_the_example_crashes_and_runs_once_fixed(tmp_path: Path) -> None:
    script = shutil.copy(EXAMPLE, tmp_path / "train.py")
    run = ("run", "--simulate", "1", "--report", "json", "--output-file", "run.json", "train.py")

    crash = _devlint(tmp_path, *run)
    made = next(row for row, text in enumerate(script.read_text().splitlines(), 1) if "self.positions = " in text)
    assert crash.returncode == 1
    for said in ("self.positions", f"train.py:{made}", "unregistered-tensor"):
        assert said in crash.stderr, crash.stderr

    fix = ("--select", "ALL", "--fix", "--unsafe-fixes")
    assert _devlint(tmp_path, "check", "--isolated", *fix, "train.py").returncode == 0
    fixed = _devlint(tmp_path, *run)
    assert fixed.returncode == 0, fixed.stderr
    assert fixed.stdout.count("epoch") == 3
    assert fixed.stdout == _python(tmp_path, "train.py").stdout
    assert Report.from_dict(json.loads((tmp_path / "run.json").read_text())).findings == []


def test_the_readme_quotes_what_is_said_of_the_example() -> None:
    said = _devlint(ROOT, "check", "--isolated", "--no-cache", "--select", "ALL", "examples/faulty_train.py").stdout
    quoted = re.findall(r"^examples/faulty_train\.py:.*?(?=\n\n|\n```)", (ROOT / "README.md").read_text(), re.M | re.S)
    assert quoted and all(text in said for text in quoted)
