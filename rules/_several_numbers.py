"""Numbers of devices that are told together: ``"2,3"`` of an option, split up or joined."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint.flow.names import called_name, dotted, names_bound
from devlint.rule import Rule

_ACCESSES = cst.Name | cst.Attribute | cst.Subscript


def split_from(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``args.gpus`` of ``args.gpus.split(",")``, ``[int(i) for i in args.gpus.split(",")]`` and
    ``list(map(int, args.gpus.split(",")))``."""
    if isinstance(node, cst.ListComp | cst.GeneratorExp) and not node.for_in.inner_for_in:
        return split_from(node.for_in.iter)
    if not isinstance(node, cst.Call):
        return None
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "split":
        return _told(node.func.value)
    if dotted(node.func) in ("list", "tuple", "sorted") and len(node.args) == 1:
        return split_from(node.args[0].value)
    if dotted(node.func) in ("map", "filter") and len(node.args) == 2:
        return split_from(node.args[1].value)
    return None


def joined_from(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``gpus`` of ``",".join(map(str, gpus))`` and of ``",".join(str(gpu) for gpu in gpus)``."""
    if isinstance(node, cst.Call) and called_name(node) == "join" and len(node.args) == 1:
        given = node.args[0].value
        if isinstance(given, cst.ListComp | cst.GeneratorExp) and not given.for_in.inner_for_in:
            return _told(given.for_in.iter) if not given.for_in.ifs else None
        if isinstance(given, cst.Call) and dotted(given.func) == "map" and len(given.args) == 2:
            return _told(given.args[1].value)
        return _told(given)
    return None


def _told(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """A name, also of ``str(args.gpus)`` and ``args.gpus.strip()``."""
    if isinstance(node, cst.Call) and dotted(node.func) in ("str", "list") and len(node.args) == 1:
        return _told(node.args[0].value)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "strip":
        return _told(node.func.value)
    return node if isinstance(node, _ACCESSES) else None


def lists_numbered(rule: Rule) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """``DataParallel(net, device_ids=gpus)`` and ``DataParallel(net, gpus)``, with what lists the numbers."""
    for call in rule.source.nodes_of(cst.Call):
        if "DataParallel" not in called_name(call):
            continue
        for position, arg in enumerate(call.args):
            told = arg.keyword.value == "device_ids" if arg.keyword is not None else position == 1
            if told and (isinstance(arg.value, _ACCESSES) or split_from(arg.value) is not None):
                yield call, arg.value


def list_of(rule: Rule, number: cst.BaseExpression) -> cst.BaseExpression | None:
    """``gpus`` of ``gpus[0]``, and of ``gpu`` in ``for gpu in gpus:``; a list as it is."""
    if isinstance(number, cst.Call) and dotted(number.func) in ("int", "str") and len(number.args) == 1:
        return list_of(rule, number.args[0].value)
    if isinstance(number, cst.Subscript) and len(number.slice) == 1 and isinstance(number.slice[0].slice, cst.Index):
        return number.value if isinstance(number.slice[0].slice.value, cst.Integer) else None
    if isinstance(number, cst.Name):
        loop = rule.enclosing(number, cst.For, cst.FunctionDef)
        if isinstance(loop, cst.For) and names_bound(loop.target) == {number.value}:
            return loop.iter
    return None
