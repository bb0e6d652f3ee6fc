"""Where what a name holds is written in place."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint.flow.names import dotted
from devlint.rule import Rule


def writes_into(rule: Rule, path: str) -> Iterator[cst.CSTNode]:
    """What the file writes into the memory of a path: ``y[0] = 1``, ``y += 1``, ``y[0] += 1``, ``y.zero_()``."""
    for assign in rule.source.nodes_of(cst.Assign):
        if any(isinstance(t.target, cst.Subscript) and dotted(t.target.value) == path for t in assign.targets):
            yield assign
    for node in rule.source.nodes_of(cst.AugAssign):
        if dotted(node.target.value if isinstance(node.target, cst.Subscript) else node.target) == path:
            yield node
    for call in rule.source.nodes_of(cst.Call):
        if isinstance(call.func, cst.Attribute) and dotted(call.func.value) == path and _writes(call.func.attr.value):
            yield call


def _writes(method: str) -> bool:
    """``add_``, but not what leaves the values: ``requires_grad_``."""
    return method.endswith("_") and not method.endswith("__") and method not in _LEAVE_VALUES


_LEAVE_VALUES = frozenset({"requires_grad_", "detach_", "share_memory_", "rename_"})
