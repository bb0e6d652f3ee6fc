"""What is made on the host and handed to a collective of all processes with what is elsewhere:
``rows = [torch.empty(x.size()) for _ in range(n)]; dist.all_gather(rows, x)``. No backend takes two devices in one
call, and what NCCL takes is on a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted, names_bound
from devlint.flow.scope import Function
from devlint.flow.value import LIST, TENSOR, THING, TUPLE, UNKNOWN_KIND
from devlint.rule import Rule
from devlint.rules._followed import is_moved
from devlint.rules._made import made_on_host
from devlint.rules._meetings import is_dead, runs_on_host

#: How many of the first arguments are tensors, or lists of them.
_COLLECTIVES = {
    "all_reduce": 1,
    "broadcast": 1,
    "reduce": 1,
    "all_gather": 2,
    "gather": 2,
    "scatter": 2,
    "reduce_scatter": 2,
    "all_gather_into_tensor": 2,
    "reduce_scatter_tensor": 2,
    "all_to_all": 2,
    "all_to_all_single": 2,
    "_all_gather_base": 2,
    "_reduce_scatter_base": 2,
}
_OF_GPUS = re.compile(r"cuda|nccl")
_WORDS = frozenset("tensor tensor_list gather_list scatter_list input output input_tensor output_tensor".split())


class Collected(NamedTuple):
    """``call`` takes it together with ``other``, which may be on a device; or alone, in a file about GPUs."""

    factory: cst.Call
    call: cst.Call
    other: cst.BaseExpression | None


def collected(rule: Rule, is_meant: Callable[[cst.Call], bool]) -> Iterator[Collected]:
    """The factories that make such things; ``is_meant`` judges which are on the host for want of ``device=``."""
    if rule.in_tests or runs_on_host(rule) or "torch.distributed" not in rule.source.text:
        return
    calls: dict[Function, list[tuple[cst.Call, list[cst.BaseExpression]]]] = {}
    for call in rule.source.nodes_of(cst.Call):
        function, operands = rule.flow.function(call), _operands(rule, call)
        if function is not None and operands:
            calls.setdefault(function, []).append((call, operands))
    for function, each in calls.items():
        for call, operands in each:
            for operand in operands:
                factories = [made for made in _made(rule, function, operand) if is_meant(made)]
                other = _beside(rule, function, operand, operands) if factories else None
                if other is None and factories and "gloo" not in rule.source.text:
                    alike = [part for by, parts in each if _group(rule, by) == _group(rule, call) for part in parts]
                    other = _beside(rule, function, operand, alike)
                    if other is None and not _group(rule, call) and _OF_GPUS.search(rule.source.text):
                        other = operand
                for made in factories if other is not None else ():
                    assert other is not None
                    is_brought = is_moved(rule, function, made) or _is_brought(rule, function, operand)
                    if not is_brought and not is_dead(rule, call):
                        yield Collected(made, call, other if other is not operand else None)


def _is_brought(rule: Rule, function: Function, operand: cst.BaseExpression) -> bool:
    """``if backend == "nccl": rows = [row.cuda() for row in rows]``"""
    return any(
        isinstance(node, cst.Assign)
        and dotted(operand) in {dotted(target.target) for target in node.targets}
        and re.search(r"\.(to|cuda)\(", rule.code(node.value)) is not None
        for node in tree.walk(function.node.body)
    )


def _operands(rule: Rule, call: cst.Call) -> list[cst.BaseExpression]:
    name, word = rule.flow.name_of(call), called_name(call)
    if word not in _COLLECTIVES or not name.startswith("torch.distributed."):
        return []
    given = [arg.value for arg in call.args[: _COLLECTIVES[word]] if arg.keyword is None and not arg.star]
    return given + [arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value in _WORDS]


def _group(rule: Rule, call: cst.Call) -> str:
    return next((rule.code(arg.value) for arg in call.args if arg.keyword and arg.keyword.value == "group"), "")


def _beside(
    rule: Rule, function: Function, operand: cst.BaseExpression, others: Iterable[cst.BaseExpression]
) -> cst.BaseExpression | None:
    """Another operand, that may be on a device as far as anybody knows."""
    return next((each for each in others if each is not operand and _may_be_there(rule, function, each)), None)


def _may_be_there(rule: Rule, function: Function, node: cst.BaseExpression) -> bool:
    value = rule.flow.value(node)
    if value.kind in (LIST, TUPLE):
        return isinstance(node, cst.Name) and not list(_made(rule, function, node)) and value.items is not None
    is_open = value.kind in (UNKNOWN_KIND, TENSOR, THING) and not value.place.is_host
    return is_open and not list(_made(rule, function, node))


def _made(
    rule: Rule, function: Function, node: cst.BaseExpression, seen: frozenset[str] = frozenset()
) -> Iterator[cst.Call]:
    """The factories of what an operand is, or holds: a name in each branch, a list by what is put into it."""
    if isinstance(node, cst.Name):
        if node.value in seen:
            return  # rows = [row for row in rows]
        seen |= {node.value}
        bound = [
            each.value
            for each in tree.walk(function.node.body)
            if isinstance(each, cst.Assign) and any(node.value in names_bound(t.target) for t in each.targets)
        ]
        for value in bound:
            yield from _made(rule, function, value, seen) if not isinstance(value, cst.Name) else ()
        if not all(isinstance(value, cst.List) for value in bound):
            return  # rows = torch.stack(rows).cuda()
        for each in tree.walk(function.node.body):
            if isinstance(each, cst.Call) and rule.code(each.func) == f"{node.value}.append" and len(each.args) == 1:
                yield from _made(rule, function, each.args[0].value, seen)
    elif isinstance(node, cst.ListComp):
        yield from _made(rule, function, node.elt, seen)
    elif isinstance(node, cst.List):
        for element in node.elements:
            yield from _made(rule, function, element.value, seen)
    elif isinstance(node, cst.BinaryOperation):  # [torch.zeros(3)] * n
        yield from _made(rule, function, node.left, seen) if isinstance(node.left, cst.List) else ()
    elif isinstance(node, cst.Call):
        made = made_on_host(rule, function, node)
        if made is not None and rule.flow.factory(made):
            yield made
