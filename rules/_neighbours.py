"""Findings of one kind that stand side by side are one thing to mend, and told once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import libcst as cst

from devlint.finding import Fix, Note
from devlint.rule import Rule


@dataclass(eq=False)
class Told:
    """What a rule has to say of one node; ``also`` is what a note says where a neighbour speaks for it."""

    node: cst.CSTNode
    message: str
    also: str
    notes: Sequence[Note] = ()
    fix: Fix | None = None
    key: object = field(default=None)
    tentative: bool = False


def report_together(rule: Rule, found: Iterable[Told], apart: int = 1) -> None:
    """Report what stands in one statement, or in statements one below the other, or has one key, as one finding.

    ``apart``: how many statements further down the next one may stand. The first speaks, the others become notes, and
    its fix mends all of them. What a fix mends safely is not mixed with what it does not. One that is sure speaks for
    those that are not.
    """
    groups: dict[object, list[Told]] = {}
    last: tuple[cst.CSTNode | None, int, object] = (None, -apart - 1, None)
    for told in sorted(found, key=lambda told: rule.source.offsets(told.node)[0]):
        key = told.key
        if key is None:
            block, position = _position(rule, told.node)
            key = last[2] if last[0] is block and position - last[1] <= apart else told
            last = (block, position, key)
        safe = told.fix.safe if told.fix is not None else None
        groups.setdefault((key, safe), []).append(told)
    for first, *others in groups.values():
        notes = [*first.notes, *(rule.note(other.node, other.also) for other in others)]
        tentative = first.tentative and all(other.tentative for other in others)
        rule.report(first.node, first.message, notes=notes, fix=_together([first, *others]), tentative=tentative)


def report_apart(rule: Rule, found: Iterable[Told], apart: int = 1) -> None:
    """As :func:`report_together`, but what is sure does not speak for what is not."""
    told = list(found)
    for tentative in (False, True):
        report_together(rule, (each for each in told if each.tentative is tentative), apart)


def _position(rule: Rule, node: cst.CSTNode) -> tuple[cst.CSTNode | None, int]:
    """The block that a statement stands in, and which of its statements it is."""
    statement: cst.CSTNode | None = node
    while statement is not None and not isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        statement = rule.parent(statement)
    block = rule.parent(statement) if statement is not None else None
    if not isinstance(block, cst.IndentedBlock | cst.Module):
        return statement, 0
    return block, next(i for i, each in enumerate(block.body) if each is statement)


def _together(told: list[Told]) -> Fix | None:
    fixes = [each.fix for each in told if each.fix is not None]
    edits = {edit for fix in fixes for edit in fix.edits}
    if not fixes or len(fixes) < 2:
        return fixes[0] if fixes else None
    title = fixes[0].title if len({fix.title for fix in fixes}) == 1 else f"{fixes[0].title}, and the like below"
    return Fix(title, all(fix.safe for fix in fixes), tuple(sorted(edits)))
