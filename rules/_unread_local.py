"""A device that a function asks for and never reads, beside what it makes on the host: somebody forgot ``device=``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted
from devlint.flow.scope import HOST_SIDE, Function
from devlint.rule import Rule
from devlint.rules._made import is_read_at_once, is_use


def beside_unread_device(rule: Rule, is_meant: Callable[[cst.Call], bool]) -> Iterator[tuple[cst.Call, cst.Assign]]:
    """``device = x.device`` that nothing reads, and each factory of the same function whose tensor nothing moves."""
    unread: dict[Function, cst.Assign] = {}
    for assign in rule.source.nodes_of(cst.Assign):
        target, function = assign.targets[0].target, rule.flow.function(assign)
        if function is None or function.role == HOST_SIDE or not _asks_for_device(assign.value):
            continue
        if isinstance(target, cst.Name) and names_device(target.value) and _is_unread(rule, function, target):
            unread.setdefault(function, assign)
    if not unread:
        return
    moved = {move.value.origin for move in rule.flow.facts.moves.values()}
    for call in rule.flow.makers:
        function = rule.flow.function(call)
        if function not in unread or call in moved or not is_meant(call) or not rule.flow.value(call).place.is_host:
            continue
        if not isinstance(rule.parent(call), cst.Attribute | cst.Expr) and not is_read_at_once(rule, call):
            yield call, unread[function]


def _asks_for_device(value: cst.BaseExpression) -> bool:
    """``x.device``, ``next(self.parameters()).device``, ``self.weight.device``"""
    return isinstance(value, cst.Attribute) and value.attr.value == "device"


def _is_unread(rule: Rule, function: Function, target: cst.Name) -> bool:
    """Whether nothing else in the function has the name, which `locals()` or a text could read as well."""
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Name) and node is not target and node.value == target.value and is_use(rule, node):
            return False
        if isinstance(node, cst.Call) and dotted(node.func) in ("locals", "eval", "exec"):
            return False
    return True
