"""The device of an argument that may be ``None``, where the function has just asked whether it is."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._switches import lines_above


def device_of_none(rule: Rule) -> Iterator[tuple[cst.Attribute, cst.CSTNode]]:
    """``device = ids.device if ids is not None else embeds.device``, and ``ids.device`` below: that, and the test."""
    branches: list[cst.If | cst.IfExp] = [*rule.source.nodes_of(cst.If), *rule.source.nodes_of(cst.IfExp)]
    for branch in branches:
        name = _asked(rule, branch)
        function = rule.flow.function(branch)
        if not name or function is None or branch.orelse is None or name in function.assigned:
            continue
        param = function.param(name)
        if param is None or param.default is None or dotted(param.default) != "None":
            continue
        sides = (branch.body, branch.orelse)
        if not all(any(_reads_device(node) for node in tree.walk(side)) for side in sides):
            continue
        yield from ((use, branch.test) for use in _later(rule, function, name, branch))


def _asked(rule: Rule, branch: cst.If | cst.IfExp) -> str:
    """``ids`` of ``ids is not None`` and of ``ids is None``."""
    test = branch.test
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1 or not isinstance(test.left, cst.Name):
        return ""
    compared = test.comparisons[0]
    is_none = isinstance(compared.operator, cst.Is | cst.IsNot) and dotted(compared.comparator) == "None"
    return test.left.value if is_none else ""


def _reads_device(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == "device"


def _later(rule: Rule, function: Function, name: str, branch: cst.If | cst.IfExp) -> Iterator[cst.Attribute]:
    inside = set(tree.walk(branch))
    for node in tree.walk(function.node.body):
        if not isinstance(node, cst.Attribute) or node in inside or dotted(node) != f"{name}.device":
            continue
        is_below = rule.flow.function(node) is function and rule.source.comes_before(branch, node)
        if is_below and not _is_asked(rule, node, name):
            yield node


def _is_asked(rule: Rule, node: cst.CSTNode, name: str) -> bool:
    """Whether a test above, or one that leaves before, is about the argument, or what goes with it."""
    child, above = node, rule.parent(node)
    while above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.If | cst.IfExp | cst.While) and child is not above.test:
            return True  # if mask is None: mask = torch.ones(n, device=ids.device)   may go with it
        if isinstance(above, cst.BooleanOperation):
            return True
        child, above = above, rule.parent(above)
    return any(
        isinstance(line, cst.If)
        and any(isinstance(each, cst.Raise | cst.Return) for each in tree.walk(line.body))
        and _asked(rule, line) == name
        for line in lines_above(rule, node)
    )
