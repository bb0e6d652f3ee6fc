"""Fixtures: files of code to check, with markers in comments that say what must be found.

``fixtures/<rule>/<case>.py`` is checked with that rule alone; ``fixtures/<rule>/<case>/`` is a project of several
files; ``fixtures/flow/`` asks the flow, and no rule. A fixture is read, never imported; ``proof_*.py`` also run, see
``proofs.py``.

    x.to(device)         #~ discarded-move [safe] "moved copy"
    y = x.to(device)     # no marker: no rule may speak here
    reveal_device(y)     #~ reveals device

A marker is ``#~ rule`` (``#~ rule?`` for a tentative finding), then the safety of the fix (``[safe]``, ``[unsafe]``,
or ``[none]`` for no fix) and a text that the message contains; both are compared only where they are given. ``#~^``
points one line up, ``#~^^`` two. Several markers may stand on one line. A first line ``#~ with: other-rule, another``
selects more rules.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import libcst as cst

from devlint import engine
from devlint.config import Selection, Settings
from devlint.decoding import line_starts
from devlint.finding import Finding
from devlint.flow import Flow
from devlint.index import ProjectIndex, View
from devlint.source import Source

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
FLOW = "flow"

_MARKER = re.compile(
    r'(?P<up>\^*)\s*(?P<rule>[a-z][a-z0-9-]*)(?P<tentative>\??)(?:\s+\[(?P<safety>safe|unsafe|none)\])?(?:\s+"(?P<text>.+)")?'
)
_REVEALS = re.compile(r"(?P<up>\^*)\s*reveals\s+(?P<text>.+)")
_WITH = re.compile(r"#~\s*with:(?P<rules>.*)")


class FixtureError(Exception):
    """A fixture is written wrongly: the message names the file, the line and what is wrong there."""


def only(rules: Collection[str]) -> Settings:
    """Settings that enable just these rules, with what they say tentatively.

    A syntax error stays one: it must not pass as a silent file.
    """
    ignore = () if engine.UNUSED_IGNORE in rules else (engine.UNUSED_IGNORE,)
    return Settings(command_line=Selection(select=(*sorted(rules), engine.TENTATIVE), ignore=ignore))


@dataclass(frozen=True)
class Marker:
    """What one marker expects at ``row``; ``safety`` and ``text`` are ``None`` where nothing was said."""

    row: int
    rule: str
    tentative: bool
    safety: str | None
    text: str | None

    def meets(self, finding: Finding) -> bool:
        return (
            (self.row, self.rule, self.tentative) == (finding.span.row, finding.rule, finding.tentative)
            and self.safety in (None, safety(finding))
            and (self.text or "") in finding.message
        )

    def __str__(self) -> str:
        said = f" [{self.safety}]" if self.safety else ""
        return f"{self.rule}{'?' * self.tentative}{said}" + (f' "{self.text}"' if self.text else "")


@dataclass(frozen=True)
class Reveal:
    """What the flow must say of the argument of a ``reveal_device`` call on ``row``."""

    row: int
    text: str


@dataclass(frozen=True)
class Fixture:
    """One file of a fixture; ``rule`` is the folder's name."""

    file: Path

    @property
    def id(self) -> str:
        return self.file.relative_to(FIXTURES).as_posix()

    @property
    def rule(self) -> str:
        return self.file.relative_to(FIXTURES).parts[0]

    @property
    def project(self) -> View | None:
        """The files around it, where it is one of several in a folder of a case."""
        depth = len(self.file.relative_to(FIXTURES).parts)
        case = self.file.parents[depth - 3] if depth > 2 else None
        return ProjectIndex(str(case)).view(str(self.file)) if case is not None else None

    @property
    def fixed_file(self) -> Path:
        return self.file.with_suffix(".fixed.py")

    @cached_property
    def raw(self) -> bytes:
        return self.file.read_bytes()

    @cached_property
    def lines(self) -> list[str]:
        return split_lines(self.raw.decode("utf-8"))

    @cached_property
    def rules(self) -> frozenset[str]:
        """The rules that this fixture is checked with."""
        others = _WITH.match(self.lines[0]) if self.lines else None
        more = [name.strip() for name in others["rules"].split(",")] if others else []
        return frozenset(more) | ({self.rule} if self.rule != FLOW else set())

    @cached_property
    def markers(self) -> list[Marker]:
        return [said for said in self._said if isinstance(said, Marker)]

    @cached_property
    def reveals(self) -> list[Reveal]:
        return [said for said in self._said if isinstance(said, Reveal)]

    @cached_property
    def _said(self) -> list[Marker | Reveal]:
        return [self._parse(row, comment) for row, comment in self._comments()]

    def _comments(self) -> Iterator[tuple[int, str]]:
        for row, line in enumerate(self.lines, start=1):
            if row == 1 and _WITH.match(line):
                continue
            _, *comments = line.split("#~")
            yield from ((row, comment) for comment in comments)

    def _parse(self, row: int, comment: str) -> Marker | Reveal:
        comment = comment.strip()
        if found := _REVEALS.fullmatch(comment):
            return Reveal(row - len(found["up"]), found["text"])
        found = _MARKER.fullmatch(comment)
        if found is None or len(found["up"]) >= row:
            raise FixtureError(f"{self.id}:{row}: this marker cannot be read: #~ {comment}")
        if found["rule"] not in self.rules:
            raise FixtureError(
                f"{self.id}:{row}: the marker names {found['rule']}, which this fixture is not checked with "
                f"(a first line `#~ with: {found['rule']}` adds it)"
            )
        return Marker(row - len(found["up"]), found["rule"], bool(found["tentative"]), found["safety"], found["text"])


def fixtures(rule: str | None = None) -> list[Fixture]:
    """All fixtures, or those of one rule, in a stable order."""
    folder = FIXTURES / rule if rule else FIXTURES
    files = (file for file in sorted(folder.rglob("*.py")) if not file.name.endswith(".fixed.py"))
    return [Fixture(file) for file in files]


def split_lines(text: str) -> list[str]:
    """The lines of ``text`` with their line ends, as the source counts them."""
    starts = line_starts(text)
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def safety(finding: Finding) -> str:
    return finding.fix.safety if finding.fix else "none"


def check(fixture: Fixture, raw: bytes | None = None, rules: Collection[str] | None = None) -> list[Finding]:
    """The findings in the fixture (or in ``raw`` in its place) with its rules (or with ``rules``)."""
    raw = fixture.raw if raw is None else raw
    return engine.check(raw, str(fixture.file), only(fixture.rules if rules is None else rules), fixture.project)


def compare(fixture: Fixture, findings: list[Finding]) -> str:
    """How findings and markers differ, for a person to read; empty where they agree."""
    missing = []
    unexpected = list(findings)
    # the marker that says most chooses first
    for marker in sorted(fixture.markers, key=lambda m: (m.text is None, m.safety is None)):
        met = next((finding for finding in unexpected if marker.meets(finding)), None)
        if met is None:
            missing.append(marker)
        else:
            unexpected.remove(met)
    said = [(m.row, f"missing     {m}") for m in missing]
    said += [(f.span.row, f"unexpected  {f.rule}{'?' * f.tentative} [{safety(f)}] {f.message}") for f in unexpected]
    return _table(fixture, "findings and markers differ", said)


def compare_reveals(fixture: Fixture) -> str:
    """How the flow's answers and the ``reveals`` markers differ; empty where they agree."""
    source = Source(fixture.raw, str(fixture.file))
    flow = Flow(source, fixture.project)
    answers: dict[int, list[str]] = {}
    for call in source.nodes_named("Call"):
        assert isinstance(call, cst.Call)
        if isinstance(call.func, cst.Name) and call.func.value == "reveal_device":
            answers.setdefault(source.span(call).row, []).append(str(flow.reveal(call.args[0].value)))
    wanted: dict[int, list[str]] = {}
    for reveal in fixture.reveals:
        wanted.setdefault(reveal.row, []).append(reveal.text)
    said = []
    for row in sorted(answers.keys() | wanted.keys()):
        expected, got = wanted.get(row, []), answers.get(row, [])
        if expected != got:
            said.append(
                (row, f"expected {', '.join(expected) or 'no call'}; the flow says {', '.join(got) or 'nothing'}")
            )
    return _table(fixture, "the flow and the `reveals` markers differ", said)


def _table(fixture: Fixture, title: str, said: list[tuple[int, str]]) -> str:
    if not said:
        return ""
    out = [f"fixtures/{fixture.id}: {title}"]
    for row, text in sorted(said):
        out += [f"  {row:>4}  {text}", f"      |  {fixture.lines[row - 1].strip()}"]
    return "\n".join(out)
