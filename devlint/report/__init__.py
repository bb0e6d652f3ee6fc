"""Reports: findings as text for people or in the formats of other tools.

One module a format, imported when asked for. Each defines ``render(report) -> str``.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from devlint.finding import Finding

FORMATS = ("text", "concise", "json", "json-lines", "github", "gitlab", "junit", "sarif")


@dataclass(frozen=True)
class Report:
    """What there is to report.

    ``findings`` are pairs of a path as shown and a finding, sorted; ``sources`` gives a file's text, ``None`` where
    it cannot be had; ``width`` is the terminal's; ``fixed`` counts the faults already repaired. With ``unsafe_fixes``
    the option ``--fix`` applies unsafe fixes too; ``quiet`` leaves out what is no finding. ``held`` tentative findings
    are there to be asked for.
    """

    findings: Sequence[tuple[str, Finding]]
    sources: Callable[[str], str | None]
    color: bool
    width: int
    files_checked: int
    fixed: int
    unsafe_fixes: bool
    quiet: bool
    held: int


def render(
    output_format: str,
    findings: Sequence[tuple[str, Finding]],
    *,
    sources: Callable[[str], str | None],
    color: bool,
    width: int,
    files_checked: int,
    fixed: int = 0,
    unsafe_fixes: bool = False,
    quiet: bool = False,
    held: int = 0,
) -> str:
    """The report in one of :data:`FORMATS`: empty, or ending with a newline, and always encodable as UTF-8."""
    module = importlib.import_module(f"{__name__}.{output_format.replace('-', '_')}")
    text: str = module.render(Report(findings, sources, color, width, files_checked, fixed, unsafe_fixes, quiet, held))
    return text


def fixable(findings: Sequence[tuple[str, Finding]], unsafe_fixes: bool) -> str:
    """How many of the findings the fix options would repair; empty where none."""
    fixes = [finding.fix.safe or unsafe_fixes for _, finding in findings if finding.fix is not None]
    now, more = fixes.count(True), fixes.count(False)
    if now and more:
        return f"{now} fixable with `--fix`, {more} more with `--unsafe-fixes`"
    if now:
        return f"{now} fixable with `--fix`"
    return f"{more} fixable with `--fix --unsafe-fixes`" if more else ""


def held_back(held: int) -> str:
    """How to see the tentative findings that were held back; empty where there are none."""
    if not held:
        return ""
    what, them = ("finding", "it") if held == 1 else ("findings", "them")
    return f"{held} tentative {what} held back; `--extend-select tentative` shows {them}"


def statistics(findings: Sequence[tuple[str, Finding]], output_format: str, color: bool) -> str:
    """How often each rule spoke, the most frequent first: as JSON for the JSON formats, else as a table."""
    counts = Counter(finding.rule for _, finding in findings)
    groups = {finding.rule: finding.group for _, finding in findings}
    safe = Counter(finding.rule for _, finding in findings if finding.fix is not None and finding.fix.safe)
    unsafe = Counter(finding.rule for _, finding in findings if finding.fix is not None and not finding.fix.safe)
    rules = sorted(counts, key=lambda rule: (-counts[rule], rule))
    if output_format in ("json", "json-lines"):
        import json

        rows = [
            {
                "rule": rule,
                "group": groups[rule],
                "count": counts[rule],
                "fixable": safe[rule],
                "fixable_unsafe": unsafe[rule],
            }
            for rule in rules
        ]
        if output_format == "json":
            return json.dumps(rows, indent=2) + "\n"
        return "".join(json.dumps(row) + "\n" for row in rows)
    from devlint.report.style import Style

    style = Style(color)
    lines = []
    for rule in rules:
        count = str(counts[rule]).rjust(len(str(counts[rules[0]])))
        name = rule.ljust(max(map(len, rules)))
        group = groups[rule].ljust(max(map(len, groups.values())))
        fixable = [f"{n[rule]} {safety}" for n, safety in ((safe, "safe"), (unsafe, "unsafe")) if n[rule]]
        line = f"{style.bold(count)}  {style.path(name)}  {group}"
        lines.append(f"{line}  fixable: {', '.join(fixable)}\n" if fixable else line.rstrip() + "\n")
    return "".join(lines)
