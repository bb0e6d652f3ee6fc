"""Measures on a GPU which mixes of devices torch refuses, operator by operator, for tests/data/operator_devices.json.

    python tests/gpu/make_operator_table.py [--check] [--jobs N] [--output FILE]

For each call of `operator_samples`: how its result with everything on the GPU compares with the host's, and for each
mix whether it raises (type and first words) or passes. A kernel that reads memory it cannot reach leaves a process
without a GPU, so the calls are made in a worker that is replaced when that happens. ``--check`` writes nothing, and
prints where the committed table says otherwise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from operator_samples import (
    TABLE,
    Call,
    calls,
    draws,
    mixed,
    mixes,
    places_of,
    read_table,
    tensors_of,
    verdicts,
    write_table,
)

SAME = "same"
PASSES = "passes: "
UNINITIALISED = ("empty", "new_empty")
LOST = "CUDA error"  # the process has no GPU any more
WORDS = 80  # characters of an error's text that are kept


# In the worker --------------------------------------------------------------------------------------------------------


def work(device: str) -> None:
    """Answers lines of JSON, ``[name, mix]``, with one line each; ends after an answer that cost the GPU."""
    known = {call.name: call for call in calls()}
    for line in sys.stdin:
        name, mix = json.loads(line)
        answer = compared(known[name], device) if mix == SAME else outcome(known[name], mix, device)
        print(json.dumps(answer), flush=True)
        if LOST in answer:
            return


def outcome(call: Call, mix: str, device: str) -> str:
    """``passes:`` and where the result is, or the type and the first words of what torch raises."""
    path, _, way = mix.partition(" ")
    try:
        result = mixed(call, path, way, lambda tensor: tensor.to(device))()
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # what torch raises is the answer
        return described(error)
    return f"{PASSES}{places_of(result)}"


def compared(call: Call, device: str) -> str:
    """``equal``, ``close``, ``differs``, what it raises on the device, or why it was not compared."""
    if call.name.startswith(UNINITIALISED):
        return "not compared: uninitialised"
    if draws(call):
        return "not compared: random"
    expected = tensors_of(call.with_tensors(lambda _, tensor: tensor.clone())())
    try:
        found = [t.cpu() for t in tensors_of(call.with_tensors(lambda _, tensor: tensor.clone().to(device))())]
    except Exception as error:  # what torch raises is the answer
        return f"raises {described(error)}"
    if agree(expected, found, exactly=True):
        return "equal"
    return "close" if agree(expected, found, exactly=False) else "differs"


def agree(some: list[torch.Tensor], others: list[torch.Tensor], exactly: bool) -> bool:
    tolerance = {"rtol": 0.0, "atol": 0.0} if exactly else {"rtol": 1e-3, "atol": 1e-4}
    try:
        torch.testing.assert_close(some, others, equal_nan=True, **tolerance)
    except AssertionError:
        return False
    return True


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:WORDS]


# In the process that writes the table ---------------------------------------------------------------------------------


class Worker:
    """A process that makes calls, replaced by a fresh one when it has lost its GPU."""

    def __init__(self, device: str) -> None:
        self.command = [sys.executable, "-W", "ignore", __file__, "--worker", "--device", device]
        self.process: subprocess.Popen[str] | None = None

    def ask(self, name: str, mix: str) -> str:
        if self.process is None:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, mix]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer: str = json.loads(line) if line else f"RuntimeError: {LOST}: the process ended"
        if LOST in answer:
            self.process.stdin.close()
            self.process.wait()
            self.process = None
        return answer


def measured(device: str, jobs: int) -> dict[str, Any]:
    """The ``operators`` of the table, asked of `jobs` workers: most of the time goes into starting them."""
    known = calls()
    with ThreadPoolExecutor(jobs) as threads:
        parts = threads.map(lambda start: _measured(device, known[start::jobs]), range(jobs))
        found = {name: entry for part in parts for name, entry in part.items()}
    return {call.name: found[call.name] for call in known}


def _measured(device: str, known: list[Call]) -> dict[str, Any]:
    worker = Worker(device)
    operators = {}
    for call in known:
        entry: dict[str, Any] = {SAME: worker.ask(call.name, SAME), "passes": {}, "raises": {}}
        if not entry[SAME].startswith("raises NotImplementedError"):
            for path, way in mixes(call):
                answer = worker.ask(call.name, f"{path} {way}")
                passes, where = answer.startswith(PASSES), answer.removeprefix(PASSES)
                entry["passes" if passes else "raises"].setdefault(where, []).append(f"{path} {way}")
        operators[call.name] = entry
    return operators


def differences(operators: dict[str, Any]) -> tuple[list[str], int, int]:
    """Where the committed table says otherwise, mix by mix; how many mixes of how many calls are in both."""
    found, mixes_, calls_ = [], 0, 0
    for name, entry in read_table()["operators"].items():
        expected, here = verdicts(entry), verdicts(operators.get(name, {"passes": {}, "raises": {}}))
        calls_ += name in operators
        for mix in expected.keys() & here.keys():
            mixes_ += 1
            if expected[mix] != here[mix]:
                found.append(f"{name}, {mix}: {here[mix]}, not {expected[mix]}")
    return found, mixes_, calls_


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures tests/data/operator_devices.json on a GPU.")
    parser.add_argument("--check", action="store_true", help="compare with the committed table; write nothing")
    parser.add_argument("--output", type=Path, default=TABLE, help="where to write the table")
    parser.add_argument("--device", default="cuda", help="`cpu` tries the script itself")
    parser.add_argument("--jobs", type=int, default=4, help="how many processes ask torch at once")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: no GPU here; scripts/derive_operator_table.py derives the table without one")
    if options.worker:
        work(options.device)
        return
    operators = measured(options.device, options.jobs)
    if options.check:
        found, mixes_, calls_ = differences(operators)
        print(*found, f"{len(found)} of {mixes_} mixes of {calls_} calls differ", sep="\n")
        sys.exit(1 if found else 0)
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else None
    write_table({"provenance": "measured", "torch": torch.__version__, "gpu": gpu}, operators, options.output)


if __name__ == "__main__":
    main()
