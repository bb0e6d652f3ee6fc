"""Tensors that numpy reads as they were handed in, while others of their kind, or they themselves, are brought first.

Whoever writes `y_true.cpu().numpy()` expects tensors on a device. The one beside it has come from there as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted, is_tensor_annotation
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._arguments import handed_in
from devlint.rules._as_arrays import read_as_arrays
from devlint.rules._recurs import function_of

#: What a model gives, by its name: beside what the loader gave, it is the one that surely comes from the device.
_GIVEN_BY_MODEL = re.compile(r"(^|_)(y?_?(pred|hat)|preds?|predictions?|predicted|logits?|outputs?|scores?)(_|$)", re.I)
_BRINGS = frozenset({"cpu", "tolist", "item", "to"})


def brought_elsewhere(rule: Rule) -> Iterator[tuple[cst.Call, cst.BaseExpression, str]]:
    """What numpy reads, and where the like of it is brought to the host, in words."""
    if ".cpu()" not in rule.source.text:
        return
    for call, operand in read_as_arrays(rule):
        function, name = rule.flow.function(call), _root(operand)
        if function is None or name not in function.param_names or name in function.assigned:
            continue
        if function.takes_self and function.positional[0].name.value == name:
            continue
        if any(_brings(node, name) for node in tree.walk(function.node.body)):
            continue  # if x.is_cuda: return x.cpu().numpy()
        other = _brought_beside(function, name)
        if other:
            yield call, operand, f"is handed in beside `{other}`, which is brought to the host first"
        elif _is_brought_by_callers(rule, function, name):
            yield call, operand, "is handed in by what brings it to the host for others"


def _root(node: cst.BaseExpression) -> str:
    """`x` of `x[start : start + n]`, of `x.data` and of `x.detach()`."""
    while True:
        if isinstance(node, cst.Subscript) or (isinstance(node, cst.Attribute) and node.attr.value == "data"):
            node = node.value
        elif isinstance(node, cst.Call) and called_name(node) == "detach" and isinstance(node.func, cst.Attribute):
            node = node.func.value
        else:
            break
    return node.value if isinstance(node, cst.Name) else ""


def _brings(node: cst.CSTNode, name: str) -> bool:
    """`x.cpu()`, `x.detach().cpu()`"""
    if not isinstance(node, cst.Call) or called_name(node) not in _BRINGS or not isinstance(node.func, cst.Attribute):
        return False
    return _start(node.func.value) == name


def _start(node: cst.BaseExpression) -> str:
    while True:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            node = node.func.value
        elif isinstance(node, cst.Subscript | cst.Attribute):
            node = node.value
        else:
            return node.value if isinstance(node, cst.Name) else ""


def _brought_beside(function: Function, name: str) -> str:
    """Another tensor that the function was handed, and brings to the host: `y_true` beside `y_pred`."""
    # def show(image: Tensor, mask: Tensor): np.clip(image, 0, 1); mask.cpu()   an image may come from a file
    if _GIVEN_BY_MODEL.search(name) is None:
        return ""
    told = {each.name.value for each in function.params if is_tensor_annotation(each.annotation)}
    if name not in told:
        return ""
    for other in sorted(told - {name}):
        if other not in function.assigned and any(
            _brings(node, other) and called_name(node) == "cpu"
            for node in tree.walk(function.node.body)
            if isinstance(node, cst.Call)
        ):
            return other
    return ""


def _is_brought_by_callers(rule: Rule, function: Function, name: str) -> bool:
    """`report(preds.cpu()); accuracy(preds)`: a caller hands in what it brings to the host for something else."""
    given = [
        (caller, value)
        for call in rule.source.nodes_of(cst.Call)
        if _is_called(rule, call, function)
        if (caller := rule.flow.function(call)) is not None and (value := handed_in(call, function, name)) is not None
    ]
    return bool(given) and all(_is_brought_for_others(rule, caller, value) for caller, value in given)


def _is_called(rule: Rule, call: cst.Call, function: Function) -> bool:
    if called_name(call) != function.name:
        return False
    # Trainer.accuracy(preds)   of a static method
    by_class = function.cls is not None and dotted(call.func) == f"{function.cls.name}.{function.name}"
    return (by_class and not function.takes_self) or function_of(rule.flow, call) is function


def _is_brought_for_others(rule: Rule, caller: Function, value: cst.BaseExpression) -> bool:
    name = _root(value)
    if not name or rule.flow.value(value).place.is_host:
        return False
    for node in tree.walk(caller.node.body):
        if isinstance(node, cst.Call) and called_name(node) == "cpu" and _brings(node, name):
            above = rule.parent(node)
            # preds = preds.cpu()   and if preds.is_cuda: ... preds.cpu()
            return isinstance(above, cst.Arg)
    return False
