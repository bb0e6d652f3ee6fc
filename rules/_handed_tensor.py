"""Parameters that are tensors by what a function does with them, though nothing says so."""

from __future__ import annotations

import re

import libcst as cst

from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule

_KIND = re.compile(r"(cuda|cpu|mps|xpu|npu|hpu|mlu|musa)(:\d+)?")


def compared_device(rule: Rule, node: cst.Comparison) -> tuple[cst.Attribute, str] | None:
    """``x.device`` of ``x.device == "npu"``, and the text, where ``x`` is handed in and used as a tensor."""
    compared = node.comparisons[0]
    if len(node.comparisons) != 1 or not isinstance(compared.operator, cst.Equal | cst.NotEqual):
        return None
    function = rule.flow.function(node)
    for device, text in ((node.left, compared.comparator), (compared.comparator, node.left)):
        is_device = isinstance(device, cst.Attribute) and device.attr.value == "device"
        if not is_device or not isinstance(device, cst.Attribute) or not isinstance(text, cst.SimpleString):
            continue
        kind, name = str(text.evaluated_value), dotted(device.value)
        if _KIND.fullmatch(kind) and function is not None and is_used_as_tensor(rule, function, name):
            return device, kind
    return None


def is_used_as_tensor(rule: Rule, function: Function, name: str) -> bool:
    """Whether a parameter without an annotation is given to torch, where others look like its tensors."""
    param = function.param(name)
    if param is None or param.annotation is not None or name in ("self", "cls", "args", "config", "cfg", "opt"):
        return False
    return any(
        _takes(rule, call, name) for call in rule.source.nodes_of(cst.Call) if rule.flow.function(call) is function
    )


def _takes(rule: Rule, call: cst.Call, name: str) -> bool:
    """``torch.cat([x, y])``, ``F.pad(x, (0, 4))``, ``x.to(torch.float16)``"""
    if isinstance(call.func, cst.Attribute) and dotted(call.func.value) == name:
        given = [rule.flow.scope.qualified(arg.value) for arg in call.args]
        return call.func.attr.value == "to" and any(each.startswith("torch.") for each in given)
    if not rule.flow.scope.qualified(call.func).startswith("torch."):
        return False
    given_nodes = [arg.value for arg in call.args[:2]]
    for node in (
        *given_nodes,
        *(e.value for n in given_nodes if isinstance(n, cst.List | cst.Tuple) for e in n.elements),
    ):
        if dotted(node) == name:
            return True
    return False
