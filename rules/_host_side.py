"""The side of a test about devices that is for the host, where the test is one that the flow does not follow."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._meetings import calls_of

#: Tests that the flow does not follow: ``x.get_device() >= 0``, ``str(x.device) == "cpu"``.
_ODD = re.compile(r"\bget_device\(\)|\bstr\([^)]*device|\.type\(\) *[=!]=|\bcuda\.\w*Tensor\b|\b(on|is)_(gpu|cuda)\(")
#: Those, and what it follows within one function.
_ASKS = re.compile(rf"{_ODD.pattern}|\bis_cuda\b|\bis_cpu\b|\bdevice\.type\b|\bdevice *[=!]=")
#: ``assert not x.is_cuda``
_WANTS_HOST = re.compile(r"\bnot [\w.]*is_cuda\b|\bis_cpu\b|\bdevice\b[^\n]*==[^\n]*\bcpu\b")


def may_be_host_side(rule: Rule, node: cst.CSTNode) -> bool:
    """``if x.device.type == "cuda": return self.fused(x)`` and ``return self.plain(x)``: in `plain`, all is on the
    host; ``if x.get_device() >= 0: ...`` before, or around; ``assert not x.is_cuda``."""
    function = rule.flow.function(node)
    if function is None:
        return False
    if "device" not in rule.source.text and "is_c" not in rule.source.text and ".type()" not in rule.source.text:
        return False
    return (
        _is_beside(rule, function, node, _ODD)
        or _is_for_host(rule, function, node)
        or _is_chosen(rule, function)
        or _is_asked_beside(rule, function)
    )


def _is_beside(rule: Rule, function: Function, node: cst.CSTNode, asks: re.Pattern[str]) -> bool:
    """Whether a test asks where something is, around a node or before it, where it then returns."""
    start = rule.source.offsets(node)[0]
    child, above = node, rule.parent(node)
    while above is not None and above is not function.node:
        if isinstance(above, cst.If | cst.IfExp) and child is not above.test and asks.search(rule.code(above.test)):
            return True
        if isinstance(above, cst.Match) and child is not above.subject and _ASKS.search(rule.code(above.subject)):
            return True
        child, above = above, rule.parent(above)
    return any(
        isinstance(each, cst.If)
        and rule.source.offsets(each)[1] <= start
        and asks.search(rule.code(each.test)) is not None
        and any(isinstance(part, cst.Return) for part in tree.walk(each.body))
        for each in tree.walk(function.node.body)
    )


def _is_for_host(rule: Rule, function: Function, node: cst.CSTNode) -> bool:
    """``assert x.device.type == "cpu"``, ``if not x.is_cpu: raise ValueError``"""
    start = rule.source.offsets(node)[0]
    for each in tree.walk(function.node.body):
        if isinstance(each, cst.Assert) and rule.source.offsets(each)[1] <= start:
            if _WANTS_HOST.search(rule.code(each.test)):
                return True
        elif isinstance(each, cst.If) and rule.source.offsets(each)[1] <= start:
            raises = any(isinstance(part, cst.Raise) for part in tree.walk(each.body))
            if raises and re.search(r"\bis_cuda\b|\bis_cpu\b", rule.code(each.test)):
                return True
    return False


def _is_chosen(rule: Rule, function: Function) -> bool:
    """``{"cpu": self._plain, "cuda": self._fused}[x.device.type](x)``"""
    return any(
        isinstance(each.key, cst.SimpleString)
        and each.key.evaluated_value == "cpu"
        and dotted(each.value).rpartition(".")[2] == function.name
        for each in rule.source.nodes_of(cst.DictElement)
    )


def _is_asked_beside(rule: Rule, function: Function) -> bool:
    """Whether all that call a function of the class, or the file, do so on one side of such a test."""
    calls = calls_of(rule, function) if function.name not in ("forward", "__call__") else []
    callers = [(call, rule.flow.function(call)) for call in calls]
    return bool(callers) and all(
        caller is not None and caller is not function and _is_beside(rule, caller, call, _ASKS)
        for call, caller in callers
    )
