"""Finding, Note, Edit and Fix: what a check says, as plain data.

Nothing here knows LibCST, so a finding read from the cache costs no import of it.
Rows and columns count from 1, in code points; an end is the place just after the last character.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Group -> level of its findings. The promise of each group is in the README.
GROUPS: dict[str, str] = {
    "correctness": "error",
    "suspicious": "warning",
    "performance": "warning",
    "distributed": "warning",
    "memory": "warning",
    "portability": "warning",
    "nursery": "warning",
}

#: Groups whose rules run when nothing is selected.
DEFAULT_GROUPS = frozenset({"correctness", "suspicious", "performance", "distributed", "memory"})

#: Of these, the groups that are off in test code unless somebody selects them: a test's few steps wait and keep little.
QUIET_IN_TESTS = frozenset({"performance", "memory"})

#: Findings that no rule class makes: they are about the file, not about torch. Name -> group and level.
SYNTAX_ERROR, UNUSED_IGNORE, INTERNAL_ERROR = "syntax-error", "unused-ignore", "internal-error"
#: What turns on the findings that rest on little evidence (``Rule.report``).
TENTATIVE = "tentative"
BUILT_IN: dict[str, tuple[str, str]] = {
    SYNTAX_ERROR: ("correctness", "error"),
    UNUSED_IGNORE: ("suspicious", "warning"),
    INTERNAL_ERROR: ("correctness", "error"),
    TENTATIVE: ("nursery", "warning"),
}


@dataclass(frozen=True, order=True)
class Span:
    """A stretch of a file: first character and the place just after the last."""

    row: int
    column: int
    end_row: int
    end_column: int


@dataclass(frozen=True)
class Note:
    """A second place that explains a finding; ``path`` is set when it is in another file."""

    message: str
    span: Span
    path: str | None = None


@dataclass(frozen=True, order=True)
class Edit:
    """Replace what ``span`` covers by ``content``; an empty span inserts."""

    span: Span
    content: str


@dataclass(frozen=True)
class Fix:
    """Edits that belong together; ``safe`` means that they cannot change what correct code computes."""

    title: str
    safe: bool
    edits: tuple[Edit, ...]

    @property
    def safety(self) -> str:
        return "safe" if self.safe else "unsafe"


@dataclass(frozen=True)
class Measured:
    """What a run measured where a finding is: in words, in figures, and as a key that sorts the costliest first."""

    text: str
    figures: Mapping[str, int | float | None]
    cost: tuple[float, ...]


@dataclass(frozen=True)
class Finding:
    """One fault: the rule that saw it, where, and what to do.

    ``tentative``: what is known allows the fault and does not show it. ``measured`` is of one run, and never cached.
    """

    rule: str
    group: str
    level: str
    message: str
    span: Span
    notes: tuple[Note, ...] = ()
    fix: Fix | None = None
    tentative: bool = False
    measured: Measured | None = field(default=None, compare=False)

    @property
    def told(self) -> str:
        """The message, with what was measured."""
        return self.message if self.measured is None else f"{self.message} ({self.measured.text})"

    def to_data(self) -> list[Any]:
        """The finding as nested lists, strings and numbers, for the cache and between processes."""
        fix = self.fix
        return [
            self.rule,
            self.group,
            self.level,
            self.message,
            _span_data(self.span),
            [[n.message, _span_data(n.span), n.path] for n in self.notes],
            None if fix is None else [fix.title, fix.safe, [[_span_data(e.span), e.content] for e in fix.edits]],
            self.tentative,
        ]

    @classmethod
    def from_data(cls, data: list[Any]) -> Finding:
        """The inverse of :meth:`to_data`; raises ``ValueError`` or ``TypeError`` on data of another shape."""
        rule, group, level, message, span, notes, fix, tentative = data
        return cls(
            rule,
            group,
            level,
            message,
            Span(*span),
            tuple(Note(m, Span(*s), p) for m, s, p in notes),
            None if fix is None else Fix(fix[0], fix[1], tuple(Edit(Span(*s), c) for s, c in fix[2])),
            tentative,
        )


def _span_data(span: Span) -> list[int]:
    return [span.row, span.column, span.end_row, span.end_column]
