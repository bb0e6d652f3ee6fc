"""Attributes of modules that are a parameter on one path, and the same tensor, plain, on the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import dotted
from devlint.rule import Rule
from devlint.rules._switches import tests_above


def left_plain(rule: Rule, stores: Sequence[cst.CSTNode], use: cst.CSTNode) -> Iterator[cst.Assign | cst.AnnAssign]:
    """``self.scale = nn.Parameter(scale) if learned else scale``: the stores of the tensor that would be the parameter,
    where ``use`` takes either."""
    if any(_asks_for_choice(test) for test, _, _ in tests_above(rule, use)):
        return  # x * self.scale if self.learned else x
    plain: dict[str, cst.Assign | cst.AnnAssign] = {}
    wrapped: set[str] = set()
    for statement in stores:
        if not isinstance(statement, cst.Assign | cst.AnnAssign) or statement.value is None:
            continue
        target = statement.targets[0].target if isinstance(statement, cst.Assign) else statement.target
        value = statement.value
        for side in (value.body, value.orelse) if isinstance(value, cst.IfExp) else (value,):
            made_of = _made_of(rule, side)
            if made_of is not None:
                wrapped.add(made_of)
                continue
            plain[_text(rule, target)] = plain[_text(rule, side)] = statement
            if isinstance(side, cst.Name) and _is_wrapped_under_test(rule, side):
                wrapped.add(side.value)
    # self.low = torch.ones(n); if learned: self.low = nn.Parameter(self.low)
    yield from dict.fromkeys(statement for text, statement in plain.items() if text in wrapped)


def _made_of(rule: Rule, node: cst.BaseExpression) -> str | None:
    """``torch.ones(n)`` of ``nn.Parameter(torch.ones(n), requires_grad=True)``."""
    if isinstance(node, cst.Call) and node.args and rule.flow.name_of(node) in table.WRAPPERS:
        return _text(rule, node.args[0].value)
    return None


def _is_wrapped_under_test(rule: Rule, name: cst.Name) -> bool:
    """``if learned: scale = nn.Parameter(scale)``, above ``self.scale = scale``."""
    return any(
        _made_of(rule, assign.value) == name.value == dotted(assign.targets[0].target)
        and rule.flow.function(assign) is rule.flow.function(name)
        and isinstance(rule.enclosing(assign, cst.If, cst.FunctionDef), cst.If)
        for assign in rule.source.nodes_of(cst.Assign)
    )


def _asks_for_choice(test: cst.CSTNode) -> bool:
    """``if self.learned:``, not ``if self.training:``"""
    return any(
        isinstance(node, cst.Attribute) and dotted(node.value) == "self" and node.attr.value != "training"
        for node in tree.walk(test)
    )


def _text(rule: Rule, node: cst.CSTNode) -> str:
    return " ".join(rule.code(node).split())
