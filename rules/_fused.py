"""Fused optimizers that are chosen because torch has them, whatever the device."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.rule import Rule

_OF_DEVICES = re.compile(r"cuda|device|gpu|cpu", re.IGNORECASE)


def fused_by_signature(rule: Rule) -> Iterator[cst.Comparison]:
    """``fused = "fused" in inspect.signature(torch.optim.AdamW).parameters``, and nothing that asks for the device."""
    if '"fused"' not in rule.source.text and "'fused'" not in rule.source.text:
        return
    for node in rule.source.nodes_of(cst.Comparison):
        is_in = len(node.comparisons) == 1 and isinstance(node.comparisons[0].operator, cst.In)
        if not is_in or not isinstance(node.left, cst.SimpleString) or node.left.evaluated_value != "fused":
            continue
        if "signature" not in tree.words(node.comparisons[0].comparator):
            continue
        line = rule.enclosing(node, cst.SimpleStatementLine, cst.If)
        if line is None or _OF_DEVICES.search(rule.code(line.test if isinstance(line, cst.If) else line)):
            continue
        name = _bound(rule, node)
        if not name or not _is_asked(rule, name, node):
            yield node


def _bound(rule: Rule, node: cst.Comparison) -> str:
    assign = rule.parent(node)
    return dotted(assign.targets[0].target) if isinstance(assign, cst.Assign) else ""


def _is_asked(rule: Rule, name: str, node: cst.Comparison) -> bool:
    """``use_fused = has_fused and device_type == "cuda"``, ``if has_fused and on_cuda:``"""
    home = rule.flow.function(node)
    return any(
        rule.flow.function(either) is home
        and name in tree.words(either).split()
        and _OF_DEVICES.search(rule.code(either)) is not None
        for either in rule.source.nodes_of(cst.BooleanOperation)
    )
