"""Tools for those who write devlint's rules: ``python -m devlint.dev``.

``new`` starts a rule and its fixture, ``corpus`` compares findings over a folder of checkouts before and
after a change, ``tree`` prints what the flow knows of a file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent

RULE = '''\
from __future__ import annotations

import libcst as cst

from devlint.rule import Rule


class {class_name}(Rule):
    """One sentence that says what the fault is.

    ## What it does
    What is reported, in a sentence or two.

    ## Why is this bad
    What the user loses: a crash, a wait, a wrong number. Run torch before claiming it.

    ## Example
    ```python
    import torch

    torch.example(3)
    ```

    ## Use instead
    ```python
    import torch

    torch.zeros(3)
    ```

    ## Fix safety
    There is no fix. Where there is one: when is it safe, when not, and why.

    ## Limits
    What the rule cannot see, and where it is silent on purpose.

    ## References
    - [Title](https://docs.pytorch.org/docs/stable/)
    """

    group = "nursery"
    fixable = "never"

    def visit_Call(self, node: cst.Call) -> None:
        # ask self.flow what a value is and where it lives; names alone say little
        if self.code(node.func) == "torch.example":
            self.report(node, f"`{{self.code(node)}}` is only an example")
'''

FIXTURE = """\
# Every line is a claim: a marker says that the rule speaks on it, no marker that the rule is silent.
# The format is explained in tests/harness.py.
import torch


def reported(n):
    x = torch.example(n)  #~ {name} [none] "only an example"
    # [safe], [unsafe] or [none] is the safety of the fix, the text a part of the message; both may be left out
    y = torch.example(
        n,
    )
    #~^^^ {name}
    return x, y


def silent(n):
    return torch.zeros(n)
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Tools for writing devlint's rules."""


# new ------------------------------------------------------------------------------------------------


@main.command()
@click.argument("name")
def new(name: str) -> None:
    """Start a rule: rules/NAME.py and fixtures/NAME/basic.py."""
    name = name.replace("_", "-")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise click.UsageError(f"{name!r} is not a rule name: lower-case words joined by dashes, as in discarded-move")
    stem = name.replace("-", "_")
    rule = ROOT / "rules" / f"{stem}.py"
    fixture = ROOT / "fixtures" / name / "basic.py"
    if not rule.parent.is_dir():
        raise click.UsageError(f"{ROOT} is no checkout of devlint: it has no rules/ folder")
    for file in (rule, fixture):
        if file.exists():
            raise click.UsageError(f"{_short(file)} exists already")
    class_name = "".join(word.capitalize() for word in name.split("-"))
    fixture.parent.mkdir(parents=True, exist_ok=True)
    rule.write_text(RULE.format(class_name=class_name), encoding="utf-8")
    fixture.write_text(FIXTURE.format(name=name), encoding="utf-8")
    click.echo(f"wrote {_short(rule)} and {_short(fixture)}")
    click.echo(f"next: pytest tests/test_fixtures.py -k {name}")


# corpus ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A finding as the corpus remembers it. ``text`` is its line; ``line`` is where that was."""

    file: str
    line: int
    rule: str
    message: str
    fix: str
    text: str


Corpus = dict[str, list[Seen]]
Key = Callable[[Seen], Hashable]


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--against", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What --output wrote.")
@click.option("--output", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Keep the findings.")
@click.option("--select", default="ALL", show_default=True, help="Rules and groups to check.")
def corpus(folder: Path, against: Path | None, output: Path | None, select: str) -> None:
    """Check every checkout below FOLDER; with --against, show what a change made new, gone or different."""
    now: Corpus = {}
    for checkout in sorted(path for path in folder.iterdir() if path.is_dir()):
        now[checkout.name] = _check(checkout, select)
        click.echo(f"{checkout.name}: {len(now[checkout.name])} findings", err=True)
    if output is not None:
        data = {name: [asdict(seen) for seen in found] for name, found in now.items()}
        output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if against is None:
        _print_counts(now)
    else:
        before = json.loads(against.read_text(encoding="utf-8"))
        _print_difference({name: [Seen(**seen) for seen in found] for name, found in before.items()}, now)


def _check(checkout: Path, select: str) -> list[Seen]:
    command = [sys.executable, "-m", "devlint", "check", ".", "--isolated", "--no-cache", "--select", select]
    command += ["--output-format", "json"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, encoding="utf-8")
    if done.returncode == 2:
        click.echo(f"{checkout.name}: {done.stderr.strip()}", err=True)
    try:
        found = json.loads(done.stdout)
    except ValueError as error:
        raise click.ClickException(f"{checkout.name}: no findings could be read: {done.stderr}") from error
    lines: dict[str, list[str]] = {}
    seen = []
    for finding in found:
        file, row = finding["filename"], finding["location"]["row"]
        if file not in lines:
            lines[file] = (checkout / file).read_text(encoding="utf-8", errors="replace").split("\n")
        path = checkout.joinpath(file).resolve().relative_to(checkout.resolve()).as_posix()
        text = lines[file][row - 1].strip() if row <= len(lines[file]) else ""
        fix = finding["fix"]["safety"] if finding["fix"] else "none"
        seen.append(Seen(path, row, finding["rule"], finding["message"], fix, text))
    return seen


def compare(before: list[Seen], now: list[Seen]) -> tuple[list[Seen], list[Seen], list[tuple[Seen, Seen]]]:
    """New, gone and changed findings. A finding that only moved to another line is none of these."""
    gone, new = _unmatched(before, now, lambda s: (s.file, s.rule, s.text, s.message, s.fix))
    changed = []
    # the same line says something else; or the same place holds another text
    sames: tuple[Key, ...] = (lambda s: (s.file, s.rule, s.text), lambda s: (s.file, s.rule, s.line))
    for same in sames:
        waiting: dict[Hashable, list[Seen]] = defaultdict(list)
        for seen in gone:
            waiting[same(seen)].append(seen)
        for seen in list(new):
            if waiting[same(seen)]:
                old = waiting[same(seen)].pop(0)
                changed.append((old, seen))
                gone.remove(old)
                new.remove(seen)
    return new, gone, changed


def _unmatched(before: list[Seen], now: list[Seen], key: Key) -> tuple[list[Seen], list[Seen]]:
    common = Counter(map(key, before)) & Counter(map(key, now))

    def left(found: Iterable[Seen]) -> Iterator[Seen]:
        matched = Counter(common)
        for seen in found:
            if matched[key(seen)]:
                matched[key(seen)] -= 1
            else:
                yield seen

    return list(left(before)), list(left(now))


def _print_counts(now: Corpus) -> None:
    for name, found in now.items():
        click.echo(name)
        for rule, count in sorted(Counter(seen.rule for seen in found).items()):
            click.echo(f"  {count:>6}  {rule}")


def _print_difference(before: Corpus, now: Corpus) -> None:
    totals: Counter[str] = Counter()
    for name in sorted(before.keys() | now.keys()):
        if name not in now or name not in before:
            click.echo(f"{name}: only {'before' if name in before else 'now'}; not compared")
            continue
        new, gone, changed = compare(before[name], now[name])
        totals.update(new=len(new), gone=len(gone), changed=len(changed))
        for rule in sorted({seen.rule for seen in (*new, *gone, *(after for _, after in changed))}):
            click.echo(f"{name}: {rule}")
            for sign, found in (("+", new), ("-", gone)):
                for seen in found:
                    if seen.rule == rule:
                        _print_seen(sign, seen)
            for old, seen in changed:
                if seen.rule == rule:
                    click.echo(f"  ~ was [{old.fix}] {old.message}\n      |  {old.text}")
                    _print_seen("~", seen)
    click.echo(f"{totals['new']} new, {totals['gone']} gone, {totals['changed']} changed")


def _print_seen(sign: str, seen: Seen) -> None:
    click.echo(f"  {sign} {seen.file}:{seen.line} [{seen.fix}] {seen.message}\n      |  {seen.text}")


# tree -----------------------------------------------------------------------------------------------


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--line", type=int, help="This line alone.")
def tree(file: Path, line: int | None) -> None:
    """Print each line of FILE and what the flow knows of the expressions on it."""
    from devlint.decoding import SourceError
    from devlint.flow import Flow
    from devlint.source import Source

    try:
        source = Source(file.read_bytes(), str(file))
    except SourceError as error:
        raise click.ClickException(f"{file}:{error.row}:{error.column}: {error.reason}") from error
    known: dict[int, list[str]] = defaultdict(list)
    for node, text in Flow(source).describe():
        code = " ".join(source.code(node).split())
        known[source.span(node).row].append(f"{code if len(code) <= 50 else code[:47] + '...':<50}  {text}")
    for row, code in enumerate(re.split(r"\r\n|\r|\n", source.text), start=1):
        if line in (None, row):
            click.echo(f"{row:>5}  {code}")
            for text in known[row]:
                click.echo(f"       -> {text}")


def _short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


if __name__ == "__main__":
    main(prog_name="python -m devlint.dev")
