"""What numpy reads, and for which a tensor has to be on the host."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.arrays import HARMLESS
from devlint.flow.scope import Function
from devlint.rule import Rule


def read_as_arrays(rule: Rule) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
    """``x`` of ``x.numpy()``, and the arguments of numpy's functions that may be arrays, with the calls."""
    for call in rule.source.nodes_of(cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "numpy" and not call.args:
            yield call, call.func.value
            continue
        name = rule.flow.name_of(call)
        if name.startswith("numpy.") and name.removeprefix("numpy.") not in HARMLESS:
            for arg in call.args[:2]:
                if arg.keyword is None and not arg.star:
                    yield call, arg.value


def asked_for_arrays(function: Function) -> Iterator[cst.BaseExpression]:
    """What a function asks for its ``numpy()``, and does not bring to the host in the same breath."""
    for node in tree.walk(function.node.body):
        asked = node.func if isinstance(node, cst.Call) else None
        if isinstance(asked, cst.Attribute) and asked.attr.value == "numpy" and not tree.named(asked.value, "cpu"):
            yield asked.value
