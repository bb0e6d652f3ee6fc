"""Proof by execution: a rule is a claim about torch, so fixtures run, and torch says whether the claim is true.

A fixture ``fixtures/<rule>/proof_<case>.py`` has a ``main(device="cuda")`` that returns numbers, strings, or tensors
and arrays on the host. It runs as written and as fixed (``.fixed.py``), on a simulated GPU or a real one, under the
guard. Markers say what its fault does when it runs, where:

    positions = torch.arange(n)       #~ tensor-without-device
    h = tokens(ids) + positions       #! raises RuntimeError "same device"
    total += loss.item()              #! waited x3  #~ host-sync-in-loop

    raises ERROR "text"    this line ends the program with this error; the text is part of what it says
    moved, waited, ...     an event of this kind happens here (`devlint.runtime.events` has the kinds); a copy may be
                           ``pinned`` or ``pageable``, ``blocking`` or ``asynchronous``
    RULE "text"            the guard names this line under the rule; the text is part of its message or notes
    runs, skipped          this line runs, or never does
    differs                (on any line) nothing is raised, and the result is wrong: another one than as fixed
    redraws: why           (on any line) the fix may change the random numbers of the result
    rounds: why            (on any line) the fix may change the last digits of the result
    races: why             (on any line) on a real GPU the result is wrong as written where the GPU is late
    unnamed: why           (on any line) the guard does not name the fault under the fixture's rule
    needs: two GPUs        (on any line) it runs on another machine than one with one GPU: ``MACHINES`` has them

``x3`` after a word says how often, ``x3 to x1`` how often as written and as fixed. ``#!`` comes before ``#~`` on a
line. Each ``#~`` needs a ``#!`` that proves it.

The program as written must do what its markers say, and the guard must name it under the fixture's rule. As fixed it
must not, the guard may not, and the result must be the same. Where a rule offers no fix, only the first half is proved.
"""

from __future__ import annotations

import math
import re
import sys
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import numpy as np
import pytest
import torch

from devlint.rule import rule_files
from devlint.runtime.events import Event, Kind, Report
from devlint.runtime.guard import On, guard
from devlint.runtime.placement import HOST, device_of
from devlint.runtime.simulator import simulate
from harness import Fixture, FixtureError, fixtures

FLAGS: dict[str, Callable[[Event], bool]] = {
    "pinned": lambda event: event.pinned is True,
    "pageable": lambda event: event.pinned is False,
    "blocking": lambda event: event.blocking is True,
    "asynchronous": lambda event: event.blocking is False,
}
OF_LINES = ("runs", "skipped")
PERMISSIONS = ("redraws", "rounds", "races", "unnamed", "needs")
OF_PROGRAM = ("differs", *PERMISSIONS)

_CLAIM = re.compile(
    r"(?P<what>[a-z][a-z-]*)(: (?P<why>.+)|( (?P<error>[A-Z]\w*))?"
    r"( x(?P<times>\d+))?( to x(?P<left>\d+))?(?P<flags>( [a-z]+)*)"
    r'( "(?P<text>.+)")?)'
)


@dataclass(frozen=True)
class Claim:
    """One ``#!`` marker; `left` is what may be left of `times` in the fixed program."""

    row: int
    code: str
    what: str
    error: str | None
    times: int | None
    left: int
    flags: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Machine:
    """What programs run in: a context, entered for each, and whether its numbers are the host's, bit by bit."""

    start: Callable[[], AbstractContextManager[Any]]
    exact: bool


@contextmanager
def without_devices() -> Iterator[None]:
    """The host alone: on a machine with a GPU, programs that ask for one are told that there is none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.cuda, "device_count", lambda: 0)
        patch.setattr(torch.backends.mps, "is_available", lambda: False)
        if hasattr(torch, "accelerator"):  # since 2.6
            patch.setattr(torch.accelerator, "is_available", lambda: False)
            patch.setattr(torch.accelerator, "device_count", lambda: 0)
            patch.setattr(torch.accelerator, "current_accelerator", lambda *args, **kwargs: None)
        yield


@contextmanager
def _real() -> Iterator[None]:
    """The GPU that there is. cuDNN would round to TF32, which is no five digits."""
    cudnn: Any = torch.backends.cudnn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is a newer way to say it, in newer versions of torch
        before, cudnn.allow_tf32 = cudnn.allow_tf32, False
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cudnn.allow_tf32 = before


SIMULATED = Machine(simulate, exact=True)
REAL = Machine(_real, exact=False)
#: What a proof may need that a machine with one GPU is not, and the machine that is simulated for it.
MACHINES: dict[str, Machine] = {
    "two GPUs": Machine(partial(simulate, 2), exact=True),
    "a Mac": Machine(partial(simulate, 1, "mps"), exact=True),
}


@dataclass
class Outcome:
    """What a program did: its result or its error, what the guard saw, and how often its lines ran."""

    file: Path
    result: Any = None
    error: BaseException | None = None
    report: Report = field(default_factory=Report)
    ran: Counter[int] = field(default_factory=Counter)

    def error_row(self) -> int | None:
        """The innermost of the program's own lines that the error came through."""
        frames = traceback.extract_tb(self.error.__traceback__) if self.error else []
        return next((frame.lineno for frame in reversed(frames) if frame.filename == str(self.file)), None)

    def count(self, claim: Claim) -> int:
        """How often a claim came true."""
        if claim.what == "raises":
            kinds = [kind.__name__ for kind in type(self.error).__mro__]
            return claim.error in kinds and claim.row == self.error_row() and claim.text in str(self.error)
        if claim.what in OF_LINES:
            return self.ran[claim.row] if claim.what == "runs" else not self.ran[claim.row]
        return sum(
            line.count
            for line in self.report.lines.values()
            if claim.what in (line.first.kind, line.first.rule)
            and line.first.site is not None
            and (line.first.site.file, line.first.site.line) == (str(self.file), claim.row)
            and all(FLAGS[flag](line.first) for flag in claim.flags)
            and any(claim.text in said for said in (line.first.message, *(text for _, text in line.first.notes)))
        )


def proofs(rule: str | None = None) -> list[Fixture]:
    """The fixtures that are run."""
    return [fixture for fixture in fixtures(rule) if fixture.file.name.startswith("proof_")]


def claims(file: Path) -> list[Claim]:
    """The ``#!`` markers of a file.

    Raises:
        FixtureError: one cannot be read.
    """
    found = []
    for row, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        for comment in line.partition("#~")[0].split("#!")[1:]:
            said = _CLAIM.fullmatch(comment.strip())
            if (
                said is None
                or said["what"] not in _known()
                or (said["what"] == "raises") != bool(said["error"])
                or (said["what"] in PERMISSIONS) != bool(said["why"])
            ):
                raise FixtureError(f"{file.name}:{row}: this marker cannot be read: #! {comment.strip()}")
            flags = tuple((said["flags"] or "").split())
            if not set(flags) <= set(FLAGS):
                raise FixtureError(f"{file.name}:{row}: a copy is {' or '.join(FLAGS)}: #! {comment.strip()}")
            times, left, text = said["times"], said["left"] or 0, said["text"] or ""
            number = int(times) if times else None
            found.append(Claim(row, comment.strip(), said["what"], said["error"], number, int(left), flags, text))
    return found


def needs(fixture: Fixture) -> str | None:
    """What the proof needs, a key of ``MACHINES``; ``None`` where any machine with a GPU will do."""
    for claim in claims(fixture.file):
        if claim.what == "needs":
            return claim.code.partition(": ")[2]
    return None


def simulated(fixture: Fixture) -> Machine:
    """The imaginary machine that a proof is run on."""
    need = needs(fixture)
    if need is not None and need not in MACHINES:
        raise FixtureError(f"{fixture.id}: there is no machine `{need}`: there are {', '.join(MACHINES)}")
    return MACHINES[need] if need is not None else SIMULATED


def _known() -> set[str]:
    return {"raises", *OF_LINES, *OF_PROGRAM, *get_args(Kind), *rule_files()}


def run(file: Path, machine: Machine | None, on: On = "collect") -> Outcome:
    """Runs the program in a machine, under the guard; with ``None`` on the host, and without."""
    module = types.ModuleType(f"{file.stem}_{id(file)}")
    module.__file__ = str(file)
    outcome = Outcome(file)
    code = compile(file.read_bytes(), str(file), "exec")
    random = torch.get_rng_state(), np.random.get_state()
    sys.modules[module.__name__] = module  # dataclasses and pickle look there
    try:
        with (
            machine.start() if machine else without_devices(),
            guard(on=on) if machine else nullcontext() as report,
        ):
            outcome.report = report or Report()
            try:
                with _counting_lines(outcome):
                    exec(code, module.__dict__)
                    outcome.result = module.main() if machine else module.main("cpu")
            except Exception as error:  # the program's own: it is what is looked at
                outcome.error = error
    finally:
        del sys.modules[module.__name__]
        torch.autograd.set_detect_anomaly(False)  # a program may leave it on
        torch.set_rng_state(random[0])
        np.random.set_state(random[1])
    return outcome


@contextmanager
def _counting_lines(outcome: Outcome) -> Iterator[None]:
    def in_function(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            outcome.ran[frame.f_lineno] += 1
        return in_function

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        return in_function if frame.f_code.co_filename == str(outcome.file) else None

    before = sys.gettrace()  # a debugger's, or that of coverage
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)


def prove(fixture: Fixture, machine: Machine) -> str:
    """Runs a proof. What does not hold, for a person to read; empty where all does."""
    said = claims(fixture.file)
    wrong = _wrong_as_written(written := run(fixture.file, machine), said, fixture)
    if not 0 < len(fixture.markers) <= sum(claim.what not in PERMISSIONS for claim in said):
        wrong.append("      there is no `#~`, or there are fewer `#!`: each fault needs its proof")
    if fixture.fixed_file.exists():
        kept = claims(fixture.fixed_file)
        if sorted(claim.code for claim in kept) != sorted(claim.code for claim in said):
            wrong.append("      the fix has lost a `#!`, or changed one: what it marks cannot be looked at")
        wrong += _wrong_as_fixed(fixed := run(fixture.fixed_file, machine), kept, fixture)
        on_host = run(fixture.file, None), run(fixture.fixed_file, None)
        wrong += _wrong_results(written, fixed, *on_host, {claim.what for claim in said}, machine)
    return "\n".join([f"fixtures/{fixture.id}: the proof does not hold", *wrong]) if wrong else ""


def _wrong_as_written(written: Outcome, said: list[Claim], fixture: Fixture) -> list[str]:
    wrong = []
    for claim in said:
        if claim.what not in OF_PROGRAM and (got := written.count(claim)) != (claim.times or max(got, 1)):
            wrong.append(f"{claim.row:>4}  as written: {claim.code}: came true {int(got)} times")
    if written.error and not any(claim.what == "raises" for claim in said):
        wrong.append(f"      as written: {_short(written.error)}")
    named = any(line.first.rule in fixture.rules for line in written.report.findings)
    if named and any(claim.what == "unnamed" for claim in said):
        wrong.append("      as written, the guard names it after all")
    elif not named and not any(claim.what == "unnamed" for claim in said):
        wrong.append(f"      as written, the guard does not say {fixture.rule}")
    return wrong + (_seen(written) if wrong else [])


def _wrong_as_fixed(fixed: Outcome, said: list[Claim], fixture: Fixture) -> list[str]:
    wrong = [f"{fixed.error_row() or 0:>4}  as fixed: {_short(fixed.error)}"] if fixed.error else []
    for claim in said:
        if claim.what not in OF_PROGRAM and (got := fixed.count(claim)) != claim.left:
            wrong.append(f"{claim.row:>4}  as fixed: {claim.code}: came true {int(got)} times")
    for line in fixed.report.findings:
        if line.first.error or line.first.rule in fixture.rules:
            wrong.append(f"      as fixed, the guard says: {line.first.rule}: {line.first.message}")
    return wrong + (_seen(fixed) if wrong else [])


def _wrong_results(
    written: Outcome, fixed: Outcome, written_on_host: Outcome, fixed_on_host: Outcome, said: set[str], machine: Machine
) -> list[str]:
    """What the fix has changed in the results: nothing, but for what a marker permits."""
    wrong = []
    if "differs" in said and not written.error and same(written.result, fixed.result):
        wrong.append("      as written, the result does not differ")
    pairs = []
    if "redraws" not in said:
        pairs.append(("fixed on the host", fixed_on_host, "fixed", fixed, machine.exact))
    if "differs" not in said:
        pairs.append(("written on the host", written_on_host, "fixed on the host", fixed_on_host, True))
    if not {"redraws", "differs"} & said and (machine.exact or "races" not in said):
        pairs.append(("written", written, "fixed", fixed, True))
    if fixed_on_host.error and not written_on_host.error:
        wrong.append(f"      as fixed, on the host: {_short(fixed_on_host.error)}")
    pairs = [pair for pair in pairs if not pair[1].error and not pair[3].error]
    if not pairs and not fixed.error:
        wrong.append("      no two runs have a result to compare")
    for one, a, other, b, exact in pairs:
        if not same(a.result, b.result, rounds="rounds" in said or not exact):
            wrong.append(f"      as {one}: {a.result!r}; as {other}: {b.result!r}")
    return wrong


def same(a: Any, b: Any, rounds: bool = False) -> bool:
    """Whether two results are of the same types and equal, bit by bit; with `rounds`, to five digits.

    Raises:
        TypeError: one is not made of numbers, strings, and tensors and arrays on the host.
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor | np.ndarray) and not any(_elsewhere(x) for x in (a, b)):
        a, b = np.asarray(a), np.asarray(b)
        equal = a.shape == b.shape and a.dtype == b.dtype
        return equal and (np.allclose(a, b, rtol=1e-5, atol=1e-6) if rounds else a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) if rounds else a.hex() == b.hex()
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y, rounds) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], rounds) for key in a)
    if a is None or isinstance(a, str | int | np.generic):
        return bool(a == b)
    raise TypeError(
        f"`main` returned a {type(a).__name__}: numbers, strings, and tensors and arrays on the host, please"
    )


def _elsewhere(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and device_of(result) != HOST


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _seen(outcome: Outcome) -> list[str]:
    """Everything that happened, for who has to mend a proof."""
    seen = [f"         seen: {_short(outcome.error)}, line {outcome.error_row()}"] if outcome.error else []
    for line in outcome.report.lines.values():
        event = line.first
        row = event.site.line if event.site else 0
        flags = " ".join(flag for flag, holds in FLAGS.items() if holds(event)) if event.kind == "moved" else ""
        seen.append(f"{row:>4}     seen: {event.kind} x{line.count} {flags} {event.rule or ''} {event.message!r}")
    return seen
