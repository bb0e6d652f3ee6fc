"""What a function was handed is moved for one use, and comes as it was to what is there."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint.flow import torch_table as table
from devlint.flow.facts import Meeting, Move
from devlint.flow.place import DIFFERENT, relation
from devlint.rule import Rule
from devlint.rules._meetings import is_dead
from devlint.rules._switches import tests_apart

#: Take what is on the host, be the rest on a device.
_TAKE_BOTH = frozenset({"indexing", "a call of the module"})


def moved_once(rule: Rule) -> Iterator[tuple[Meeting, Move]]:
    """``found = net(x.to(device)); loss = criterion(found, x)``: each parameter once, with the copy that is moved."""
    copies: dict[cst.CSTNode | None, list[Move]] = {}
    for move in rule.flow.facts.moves.values():
        if move.target.is_there and isinstance(move.receiver, cst.Name):
            copies.setdefault(move.value.origin, []).append(move)
    seen: set[cst.CSTNode] = set()
    for meeting in rule.flow.facts.unmoved.values():
        param = meeting.host.origin
        if param is None or param not in copies or param in seen or meeting.what in _TAKE_BOTH:
            continue
        if is_dead(rule, meeting.node):
            continue
        copy = _copy_of(rule, meeting, copies[param])
        if copy is not None:
            seen.add(param)
            yield meeting, copy


def _copy_of(rule: Rule, meeting: Meeting, copies: list[Move]) -> Move | None:
    """The one that is made before they meet, on the same path, and to no other device."""
    name, flow = _name(meeting.host_node), rule.flow
    _, end = rule.source.offsets(meeting.node)
    for move in copies:
        if rule.source.offsets(move.node)[0] >= end or rule.code(move.receiver) != name:
            continue
        if isinstance(rule.parent(move.node), cst.Expr):
            continue  # x.to(device), as a statement: discarded-move speaks of it
        if flow.function(move.node) is not flow.function(meeting.node) or tests_apart(rule, move.node, meeting.node):
            continue
        if relation(flow.value(move.node).place, meeting.there.place) != DIFFERENT:
            return move
    return None


def _name(node: cst.BaseExpression) -> str:
    """`x` of `x`, `x.float()` and `x.view(-1)`."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value not in table.METHODS:
            return ""
        node = node.func.value
    return node.value if isinstance(node, cst.Name) else ""
