"""How many real bugs are found: runs devlint on faults as they stood before they were fixed, and after.

    python benchmarks/recall/recall.py CLONES [--set SET] [--selected SELECTED] [--misses]

``faults.jsonl`` names 2,476 faults of device placement, and of what it costs, by the commit that mended each, in 863
public projects whose histories no rule was made from. Readers found them by the words of commit messages and then the
changes themselves, without seeing what devlint says of them. ``judged`` is ``valid``, or ``arguable`` where it is a
matter of taste or of support for one more backend; ``static`` says whether the file alone shows the fault: ``yes``,
``hard`` (only by guesses, or with other files), or ``no``. In reach are those that are valid and shown by their file.
The first projects were parted by the hash of their names: what the ``tuned`` ones showed was worked on first. The
``held`` ones were not looked at then, and the ``later`` faults, others of all these projects, were read after that
work; both were worked on afterwards. ``last`` are still others of these projects, and ``fresh`` those of 49 projects
that were new: what is missed of these was looked at once, and nothing was made of it. The ``opened`` ones were kept
aside until those of half of the projects at hand were looked at and worked on, too, three times. ``wide`` and ``aside``
are of 238 more projects, in which findings had been read before, parted by the hash of their names: the ``wide`` ones
were worked on first, the ``aside`` ones much later. ``newer`` and ``newest`` are of 51 projects of students and single
authors, parted likewise: the ``newer`` ones were worked on, and nobody has looked at what is missed of the ``newest``.
``recent`` and ``unseen`` are of 97 projects that were new again, parted likewise: the ``recent`` ones were worked on,
once, the ``unseen`` ones looked at afterwards. ``latest`` and ``untouched`` are of 59 more, parted likewise: of the
``latest``, what is missed was looked at, once, and nobody has looked at what is missed of the ``untouched``.

CLONES is a folder of clones, with their histories, as OWNER+NAME; faults of projects that are not there are left out
and counted. A fault is found where any rule that is selected (all of them, tentative findings included, unless told
otherwise) speaks of its line or the next ones, and mended where the same rule is silent there afterwards.
"""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

FAULTS = Path(__file__).with_name("faults.jsonl")
#: What is missed of these is not to be looked at, so that they tell what is found of faults that nobody worked on.
KEPT_ASIDE = ("newest", "untouched")
SLACK = 1  # lines around the one that a reader has pointed at
#: What may be selected, and the options that do.
SELECTIONS = {"all": ("--select", "ALL"), "default": (), "tentative": ("--extend-select", "tentative")}


@dataclass
class Fault:
    """One fault; ``remains``: the change left a fault of the same kind at that place."""

    repository: str
    fix: str
    path: str
    line: int
    kind: str
    scope: str
    judged: str
    static: str
    remains: bool
    set: str
    why: str
    before: str = ""
    after: str = ""
    found: frozenset[str] = frozenset()
    mended: frozenset[str] = frozenset()

    @property
    def in_reach(self) -> bool:
        return self.judged == "valid" and self.static == "yes"

    @property
    def copy(self) -> Path:
        """Where the file lies among those to be checked; several faults of one file share a copy."""
        return Path(self.repository.replace("/", "+"), self.fix, self.path)

    def lines_after(self) -> range:
        """The lines that stand where the fault stood."""
        old, new = self.before.splitlines(), self.after.splitlines()
        at = self.line - 1
        for _, start, end, first, last in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if start <= at < end:
                same = end - start == last - first
                return range(first + at - start + 1, first + at - start + 2) if same else range(first + 1, last + 2)
        return range(0)


def faults(which: str | None) -> list[Fault]:
    found = [Fault(**json.loads(line)) for line in FAULTS.read_text(encoding="utf-8").splitlines()]
    return [fault for fault in found if which in (None, fault.set)]


def read(clones: Path, fault: Fault) -> bool:
    """Fill in the file before and after; false where the clone or the commit is missing."""
    clone = clones / fault.repository.replace("/", "+")
    if not clone.exists():
        return False
    texts = []
    for revision in (f"{fault.fix}^", fault.fix):
        shown = subprocess.run(["git", "-C", str(clone), "show", f"{revision}:{fault.path}"], capture_output=True)
        if shown.returncode:
            return False
        texts.append(shown.stdout.decode(errors="replace"))
    fault.before, fault.after = texts
    return True


def lint(files: dict[Path, str], selected: str) -> dict[Path, list[tuple[str, range]]]:
    """The rules that speak of each file, and the lines they speak of."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(text, encoding="utf-8")
        options = ["--isolated", "--no-cache", "--output-format", "json", "--no-respect-gitignore"]
        command = [sys.executable, "-m", "devlint", "check", *options, *SELECTIONS[selected], "."]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise click.ClickException(f"devlint exited {done.returncode}:\n{done.stderr}")
    found = defaultdict(list)
    for each in json.loads(done.stdout):
        rows = range(each["location"]["row"], each["end_location"]["row"] + 1)
        found[Path(each["filename"])].append((each["rule"], rows))
    return found


def judge(each: Iterable[Fault], selected: str) -> tuple[int, int]:
    """Fill in which rules found each fault, and which of these are silent where it was mended. How many findings there
    are in the files as they stood before, and how many of them speak of a fault."""
    known = list(each)
    before = lint({fault.copy: fault.before for fault in known}, selected)
    after = lint({fault.copy: fault.after for fault in known}, selected)
    at_a_fault: set[tuple[Path, str, range]] = set()
    for fault in known:
        there = range(fault.line, fault.line + 1)
        speaking = {(rule, rows) for rule, rows in before.get(fault.copy, ()) if near(rows, there)}
        at_a_fault |= {(fault.copy, *finding) for finding in speaking}
        fault.found = frozenset(rule for rule, _ in speaking)
        again = {rule for rule, rows in after.get(fault.copy, ()) if near(rows, fault.lines_after())}
        fault.mended = fault.found if fault.remains else fault.found - again
    return sum(map(len, before.values())), len(at_a_fault)


def near(rows: range, others: range) -> bool:
    return bool(others) and rows.start - SLACK < others.stop and others.start - SLACK < rows.stop


def table(all_of_them: list[Fault]) -> None:
    def line(name: str, some: list[Fault]) -> None:
        if some:
            found, mended = sum(bool(fault.found) for fault in some), sum(bool(fault.mended) for fault in some)
            click.echo(f"{name:<24}{len(some):>6}{found:>8}{mended:>8}{mended / len(some):>8.0%}")

    click.echo(f"{'':<24}{'faults':>6}{'found':>8}{'silent':>8}{'share':>8}   (silent once mended)")
    for name in ("kind", "scope", "set"):
        for value in sorted({getattr(fault, name) for fault in all_of_them}):
            line(f"{name} {value}", [fault for fault in all_of_them if getattr(fault, name) == value])
    line("all", all_of_them)
    for value in sorted({fault.set for fault in all_of_them}):
        line(f"in reach, {value}", [fault for fault in all_of_them if fault.in_reach and fault.set == value])
    line("in reach", [fault for fault in all_of_them if fault.in_reach])


@click.command(help=__doc__)
@click.argument("clones", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--set",
    "which",
    type=click.Choice(
        "tuned held later opened last fresh wide aside newer newest recent unseen latest untouched".split()
    ),
    help="One of the sets alone.",
)
@click.option(
    "--selected",
    type=click.Choice(list(SELECTIONS)),
    default="all",
    show_default=True,
    help="Every rule, those of the default, or these with what they hold back.",
)
@click.option("--misses", is_flag=True, help="Name the faults that are not found, but of the sets kept aside.")
def main(clones: Path, which: str | None, selected: str, misses: bool) -> None:
    wanted = faults(which)
    there = [fault for fault in wanted if read(clones, fault)]
    told, at_a_fault = judge(there, selected)
    table(there)
    click.echo(f"{told} findings in the files as they stood before, {at_a_fault} of them at one of these faults")
    if len(there) < len(wanted):
        click.echo(f"{len(wanted) - len(there)} of {len(wanted)} left out: no clone, or the commit is not in it")
    for fault in there if misses else ():
        if not fault.mended and fault.set not in KEPT_ASIDE:
            said = f" [{', '.join(sorted(fault.found))}]" if fault.found else ""
            click.echo(
                f"{fault.kind}: {fault.repository} {fault.fix[:12]}^ {fault.path}:{fault.line}{said} {fault.why}"
            )


if __name__ == "__main__":
    main()
