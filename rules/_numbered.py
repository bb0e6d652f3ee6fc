"""Where a number stands for a device of this machine."""

from __future__ import annotations

import re

import libcst as cst

from devlint.flow.names import dotted
from devlint.rule import Rule


def devices_numbered(rule: Rule) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Each expression that numbers a device, with the number."""
    found: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
    for text in rule.source.nodes_of(cst.FormattedString):
        first, last = text.parts[:1], text.parts[1:]
        if len(last) == 1 and isinstance(first[0], cst.FormattedStringText) and first[0].value == "cuda:":
            found += [(text, part.expression) for part in last if isinstance(part, cst.FormattedStringExpression)]
    for joined in rule.source.nodes_of(cst.BinaryOperation):
        if isinstance(joined.operator, cst.Add | cst.Modulo) and _is_start(joined.left):
            found += [(joined, number) for number in _in_text(joined.right)]
    found += [(call, call.args[0].value) for call in rule.flow.calls(*_NUMBERING) if call.args]
    for call in rule.source.nodes_of(cst.Call):
        found += [(call, number) for number in _told(rule, call)]
    for arg in rule.source.nodes_of(cst.Arg):
        named = arg.keyword is not None and arg.keyword.value == "device_ids"
        if named and isinstance(arg.value, cst.List | cst.Tuple) and len(arg.value.elements) == 1:
            found.append((arg.value, arg.value.elements[0].value))
        elif arg.keyword is not None and arg.keyword.value in _NUMBERED_BY:
            found.append((arg.value, arg.value))
    return found


def _told(rule: Rule, call: cst.Call) -> list[cst.BaseExpression]:
    """``rank`` of ``x.to(rank)``, ``x.cuda(rank)``, ``torch.device("cuda", rank)``, ``"cuda:{}".format(rank)``."""
    plain = [arg.value for arg in call.args if arg.keyword is None]
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    if name in ("to", "cuda"):
        return plain[:1]
    if name == "format" and isinstance(call.func, cst.Attribute) and _is_start(call.func.value):
        return plain[:1]
    if rule.flow.scope.qualified(call.func) == "torch.device":
        named = [arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == "index"]
        return named or [each for each in plain if not isinstance(each, cst.SimpleString)]
    return []


def _is_start(node: cst.BaseExpression) -> bool:
    """``"cuda:"``, ``"cuda:%d"``, ``"cuda:{}"``"""
    return isinstance(node, cst.SimpleString) and _CUDA_BEFORE.fullmatch(str(node.evaluated_value)) is not None


def _in_text(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """``rank`` of ``str(rank)`` and of ``(rank,)``."""
    if isinstance(node, cst.Call):
        return [node.args[0].value] if dotted(node.func) == "str" and node.args else []
    return [node.elements[0].value] if isinstance(node, cst.Tuple) and node.elements else [node]


#: Keywords that take the number of a device.
_NUMBERED_BY = frozenset({"device", "output_device", "device_id", "map_location"})
_CUDA_BEFORE = re.compile(r"cuda:(%[ds]|\{0?(:d)?\})?")
_NUMBERING = ("torch.cuda.set_device", "torch.cuda.device", "torch.cuda.get_device_name")
