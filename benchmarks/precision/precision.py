"""How many findings are true: draws samples from checkouts, and sums up what readers said of them.

    python benchmarks/precision/precision.py sample CHECKOUTS --seed 1 > sample.csv
    python benchmarks/precision/precision.py density CHECKOUTS > density.csv
    python benchmarks/precision/precision.py summary verdicts.csv

CHECKOUTS is a folder of git checkouts of public repositories. A sample holds up to 20 findings of every rule that is on
by default, drawn at random, from one repository after the other so that none fills it. A reader opens the code at each
and writes a verdict and a reason: ``true`` (where the line runs with an accelerator, what the finding says holds there,
the promise of its rule's group is kept, and the advice is right), ``arguable`` (nothing is won by the advice, or there
is a good technical reason to leave it), or ``false``; whether it is ``reached``: whether anything in the project runs
it so (``no``: nothing runs it, or it fails before; ``host``: all that runs it keeps that data on the host); and whether
it is ``worth`` it: whether who maintains that code would plausibly take the change. What is written down holds no code.

The first forty-one samples asked one question for both: ``true`` was what a maintainer would agree with, and change;
they have no column for what is worth it, and what stands in code that nobody runs, or costs little, is ``arguable`` in
them. ``by-promise.csv`` is the first table that tells the two apart: findings of all rules but those of portability,
those of the nursery and the tentative ones among them, drawn from 48 repositories.

``first-sample.csv`` is a first sample, of seven repositories, the second and the third are later ones, of twenty-four,
the fourth is of twenty-two others that nobody had looked at before, and the fifth of twenty-six more, drawn after what
the fourth showed was mended; so were the sixth to the forty-first, of 30, 31, 32, 32, 20, 30, 27, 37, 47, 64, 79, 60,
74, 73, 141, 140, 153, 121, 119, 120, 120, 108, 112, 108, 95, 101, 120, 101, 93, 120, 80, 166, 110, 105, 62 and 160
others, in this order. Strict readers read each, before what they found was mended; what was drawn before is left out of
the next. (Since the twentieth, no repository was in a table before, or had one of the faults of ``benchmarks/recall``,
but for two that had got other names: nerfacc in the twenty-seventh and exllamav2 in the twenty-ninth. Some in which
nothing had been found may have been checked before. The checkouts of the twentieth and the twenty-first lacked a third
of their files, those that come behind a large one, which readers did not see either. The twenty-second to the
twenty-fifth are of libraries and of programs that people use, the later ones are of the programs of papers as well; the
twenty-second was read whole, half of it before and half of it after what the first half showed was mended, and one
repository of it, with 52 findings, at once. Since then six rules are in the nursery, and another six since the
twenty-third. Of the twenty-fourth, the rules of the nursery were read, too, but for `data-parallel` and
`load-without-map-location`; of the thirty-first, `clipped-while-scaled`, `debugging-left-on` and `unentered-context`,
which were new in the nursery; of the thirty-fifth, `unused-move`, which was, too; of the last two, all of the nursery,
three findings for each rule and repository at most. These two are of projects of students and single authors, many of
them finished or given up, as the others are not.)

The forty-second and the forty-third, of 37 and 28 repositories, are the first drawn with the two questions: kept code
of many fields again, with the rules that were about to be on (the forty-second: and six of the nursery). What the
forty-second showed was mended before the forty-third was drawn; since both, `device-compared-to-string` and
`loader-without-pin-memory` wait in the nursery once more, and `load-without-map-location` did for a while.

The forty-fourth and the forty-fifth, of 93 and 104 more, were drawn with `load-without-map-location` on again, as it is
told by default since ``loads.csv``: all of its findings, and those of two rules of the nursery, in 27 of 97 other
repositories. The checkouts of these three had no ``.git``, so that devlint did not see which files make a project: six
findings that readers held for wrong or arguable are silent, or tentative, in whole checkouts. What the forty-fourth
showed of `discarded-move` was mended before the forty-fifth was drawn, and what both showed of
`load-without-map-location` after that; `non-leaf-parameter` is in the nursery since.

The forty-sixth and the forty-seventh, of 233 and 120 more, whole ones, hold all findings of `load-without-map-location`
and up to twenty of each other rule that is on by default. What the forty-sixth showed of that rule, of
`inference-with-grad` and of `missing-zero-grad` was mended before, or while, the forty-seventh was read; since both, it
waits in the nursery, as do `inference-with-grad` and `timing-without-sync`. Two readers read most of the forty-sixth;
where they differed, the stricter one counts.

The forty-eighth, the forty-ninth and the fiftieth, of 224, 85 and 73 more, are of kept code again: libraries, and
programs of laboratories that others use. What the forty-eighth showed was mended before the forty-ninth was drawn (of
`tensor-without-device`, 14 of 18 findings that were not true stood where no file that imports the code brings anything
to a device), and what these two showed after the fiftieth was; `host-sync-in-forward` waits in the nursery since. Two
readers read all findings of the rules of `correctness`; where they differed, the stricter one counts.

The fifty-first and the fifty-second, of 333 and 138 more, are of laboratories and companies, many of them the programs
of papers, and the first whose checkouts hold the settings, scripts and documents of a project: those before had only
its Python, notebooks and ``.toml`` and ``.cfg`` files, so that what is named in nothing else was held back (in 60 of
these repositories 89 findings are told without the other files, 109 with them). What the fifty-first showed was mended
before the fifty-second was drawn; two readers read its findings of `correctness`, and agreed. ``missing-set-epoch`` is
told at another line since, where the call is missing. ``density.csv`` says how many findings the repositories of the
last five samples had as they were drawn.

The fifty-third to the fifty-seventh, of 328, 131, 326, 92 and 81 more, are of the same kind. What each showed was
mended before the next was drawn.

Up to there one question stood for the first two: what nothing runs, or what runs on the host alone, is ``arguable`` in
those tables, although all that is said of it may hold. Rules judge code as it behaves when its device is an
accelerator, so that the two are asked apart since. ``read-again.csv`` are 124 findings of the forty-second to the
fifty-seventh, read again with three questions by readers who did not know what was said of them before: all 84 that are
still told and were arguable or wrong (64 are true where they run, 13 arguable, seven wrong), and 40 true ones (all true
again, two of them on the host). ``summary`` counts both: what is true, and what is true and reached.

The fifty-eighth, of 493 more, is the first with three questions; what it showed was mended before the fifty-ninth was
drawn. That is of 588 repositories that were in no table before, but 176 of them have faults of ``benchmarks/recall``,
which were worked on, and whose mends are in what was checked. The sixtieth, drawn after what the fifty-ninth showed was
mended, are findings of both that nobody had read; of other rules than its three, none were left.

The sixty-first and the sixty-second are of the halves, by chance, of 468 more, and hold rules of the nursery, too; what
the first showed was mended before the second was drawn. The readers of the sixty-first were told that what costs
nothing that one could measure is arguable, and that `redundant-move` is about faults: ``sixty-first-again.csv`` holds
what a reader who knew of none of that said of the 20 findings still told that were not true, and of 14 others, by what
is said above (a copy for nothing is one however small): 14 of the 20 are true, and one of the 14 is wrong. Files that
several of these repositories hold alike were drawn once. The sixty-third holds what nobody had read in these 468 yet,
after the mends of both. The sixty-fourth and the sixty-fifth are of 84 and 180 more. What the sixty-fourth showed was
mended before the sixty-fifth was drawn, in which `unregistered-tensor`, `unregistered-module`, `input-not-moved`,
`mixed-devices` and `numpy-on-device-tensor` are on by default, for what they are sure of. What the sixty-fifth showed
was mended after it, and `uncalled-function` is in `suspicious` since.

``new-rules.csv`` holds what a reader said of all findings of the first two of these three, of a first form of
`unused-move`, of `device-compared-to-string`, `visible-devices-set-late` and `zero-device-count` in the repositories of
earlier samples, which nobody had looked at with them.

``held-back-in-large-repositories.csv`` is no sample of what is told: it holds 128 of the 374 findings of
`tensor-without-device` that were held back as tentative in 392 large, well-kept repositories, of those that meet
something or stand beside what is on a device, six of one repository at most (37 true, 26 arguable, 65 wrong). Some of
the causes were mended after it; what a step hands to the functions that it calls, and what a module's public methods
are handed, is told since.
"""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

COLUMNS = ("repository", "commit", "path", "line", "rule", "verdict", "reached", "worth", "reason")
VERDICTS = ("true", "arguable", "false")


@dataclass(frozen=True)
class Checkout:
    folder: Path
    repository: str
    commit: str


@dataclass(frozen=True)
class Found:
    checkout: Checkout
    path: str
    line: int
    rule: str
    group: str

    @property
    def place(self) -> tuple[str, ...]:
        return self.checkout.repository, self.checkout.commit, self.path, str(self.line), self.rule


def checkouts(folder: Path) -> list[Checkout]:
    found = []
    for each in sorted(path for path in folder.iterdir() if (path / ".git").exists()):
        address = _git(each, "remote", "get-url", "origin").removesuffix(".git")
        found.append(Checkout(each, "/".join(address.split("/")[-2:]), _git(each, "rev-parse", "HEAD")))
    if not found:
        raise click.ClickException(f"no git checkouts in {folder}")
    return found


def _git(folder: Path, *command: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def findings(checkout: Checkout, options: Iterable[str]) -> list[Found]:
    """What devlint says of a checkout, whatever the checkout's own settings for it are."""
    command = [sys.executable, "-m", "devlint", "check", "--isolated", "--output-format", "json", *options, "."]
    done = subprocess.run(command, cwd=checkout.folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise click.ClickException(f"{checkout.repository}: devlint exited {done.returncode}:\n{done.stderr}")
    return [
        Found(checkout, Path(each["filename"]).as_posix(), each["location"]["row"], each["rule"], each["group"])
        for each in json.loads(done.stdout)
        if each["rule"] not in ("syntax-error", "unused-ignore")
    ]


def draw(found: list[Found], size: int, chance: random.Random) -> list[Found]:
    """A sample of one rule's findings, taken from one repository after the other."""
    by_repository = defaultdict(list)
    for each in sorted(found, key=lambda each: each.place):
        by_repository[each.checkout.repository].append(each)
    piles = list(by_repository.values())
    chance.shuffle(piles)
    for pile in piles:
        chance.shuffle(pile)
    taken: list[Found] = []
    while len(taken) < size and any(piles):
        taken += [pile.pop() for pile in piles if pile]
    return sorted(taken[:size], key=lambda each: each.place)


@click.group()
def main() -> None:
    pass


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed draws another sample.")
@click.option("--size", type=click.IntRange(1), default=20, show_default=True, help="Findings of each rule.")
@click.option("--without", type=click.Path(exists=True, dir_okay=False), multiple=True, help="Drawn before: left out.")
@click.option("--select", help="Rules or groups; by default, those that are on by default.")
def sample(folder: Path, seed: int, size: int, without: tuple[str, ...], select: str | None) -> None:
    """Draw findings to be read, as a table with room for verdicts."""
    drawn_before = {row_place(row) for file in without for row in _rows(file)}
    by_rule = defaultdict(list)
    for checkout in checkouts(folder):
        for each in findings(checkout, ["--select", select] if select else []):
            if each.place not in drawn_before:
                by_rule[each.rule].append(each)
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(COLUMNS)
    for rule, found in sorted(by_rule.items()):
        table.writerows([*each.place, "", "", "", ""] for each in draw(found, size, random.Random(f"{seed} {rule}")))


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def density(folder: Path) -> None:
    """Findings of a default run for each thousand lines of Python."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(("repository", "commit", "lines", "findings", "per thousand lines", "by rule"))
    for checkout in checkouts(folder):
        files = (file for file in checkout.folder.rglob("*.py") if file.is_file())
        lines = sum(file.read_bytes().count(b"\n") for file in files)
        rules = Counter(each.rule for each in findings(checkout, []))
        total = sum(rules.values())
        share = f"{1000 * total / lines:.2f}" if lines else ""
        by_rule = " ".join(f"{rule}:{count}" for rule, count in rules.most_common())
        table.writerow((checkout.repository, checkout.commit, lines, total, share, by_rule))


@main.command()
@click.argument("files", type=click.Path(exists=True, dir_okay=False), nargs=-1, required=True)
def summary(files: tuple[str, ...]) -> None:
    """Share of true findings, by rule and by group."""
    from devlint.rule import discover

    rules = discover()
    by_rule: dict[str, Counter[str]] = defaultdict(Counter)
    by_group: dict[str, Counter[str]] = defaultdict(Counter)
    worth: dict[str, Counter[str]] = defaultdict(Counter)
    reached: dict[str, int] = defaultdict(int)
    for file in files:
        for row in _rows(file):
            rule = rules.get(row["rule"])
            if row["verdict"] not in VERDICTS:
                place = ":".join(row_place(row)[2:4])
                raise click.ClickException(f"{file}: {place}: the verdict is one of {', '.join(VERDICTS)}")
            by_rule[row["rule"]][row["verdict"]] += 1
            group = rule.group if rule else "no longer a rule"
            by_group[group][row["verdict"]] += 1
            for name in (row["rule"], group):
                worth[name][row.get("worth", "")] += 1
                reached[name] += row["verdict"] == "true" and row.get("reached", "yes") == "yes"
    for title, counts in (("rule", by_rule), ("group", by_group)):
        heads = (title, "read", *VERDICTS, "share true", "true and reached", "worth")
        click.echo(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
        for name, count in sorted(counts.items()):
            share = f"{100 * count['true'] / count.total():.0f} %"
            verdicts = " | ".join(str(count[v]) for v in VERDICTS)
            click.echo(f"| {name} | {count.total()} | {verdicts} | {share} | {reached[name]} | {worth[name]['yes']} |")
        click.echo()


def row_place(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[column] for column in COLUMNS[:5])


def _rows(file: str) -> list[dict[str, str]]:
    with open(file, encoding="utf-8", newline="") as content:
        return list(csv.DictReader(content))


if __name__ == "__main__":
    main()
