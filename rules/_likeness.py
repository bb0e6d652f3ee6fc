"""What is made on the host with the sizes or the type of something, and then meets that: `x + torch.randn(x.shape)`.

Where the other is, the flow does not know. Whoever asks it for its sizes means it to be where it is, though, and a
factory that is not told so makes its tensor on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.facts import Meeting
from devlint.flow.hypothesis import MODEL_NAME
from devlint.flow.names import dotted, names_bound
from devlint.flow.place import UNKNOWN_PLACE
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, Function
from devlint.flow.value import ARRAY, DATA, DICT, LIST, TENSOR, THING, TUPLE, UNKNOWN_KIND, Value
from devlint.rule import Rule
from devlint.rules._followed import is_from_host
from devlint.rules._meetings import is_dead, is_of_host, is_of_models, reads_array
from devlint.rules._sizes import Sizes, code_of


def likened(rule: Rule, is_meant: Callable[[cst.Call], bool]) -> Iterator[Meeting]:
    """The meetings of what such factories make with what they were made after; ``is_meant`` judges the factories."""
    if is_of_host(rule):
        return
    # who works with arrays may work on the host alone
    may_be_there = is_of_models(rule) or "numpy" not in rule.flow.scope.packages
    patterns: dict[cst.CSTNode, frozenset[str]] = {}
    sizes = Sizes(rule, lambda function, node: _is_open(rule, function, node))
    for call in rule.flow.makers:
        if rule.flow.name_of(call) in table.KEEPING or not is_meant(call):
            continue
        function = rule.flow.function(call)
        if function is None or function.role in (HOST_SIDE, CONSTRUCTOR) or function.moves_something:
            continue  # ids = torch.cat([ids, torch.zeros(1, dtype=ids.dtype)]); batch = ids.to(device)
        found = sizes.givers(function, call)
        found = {pattern for pattern in found if not is_from_host(rule, function, pattern)}
        if not may_be_there:
            found = {pattern for pattern in found if _is_given_by_model(rule, call, pattern)}
        if found:
            patterns[call] = frozenset(found)
    for node, what, operands in operations(rule) if patterns else ():
        for operand in operands:
            made = rule.flow.value(operand)
            if made.origin not in patterns or not _is_on_host(made) or is_dead(rule, node):
                continue
            for other in operands:
                if isinstance(node, cst.AugAssign) and other is node.target:
                    is_met = code_of(rule, other) in patterns[made.origin]  # the flow knows what it is afterwards
                else:
                    met = patterns[made.origin]
                    is_met = any(_follows(rule, other, pattern) for pattern in met) or _is_beside(rule, other, met)
                if is_met and other is not operand:
                    yield Meeting(node, what, operand, made, other, rule.flow.value(other))


def _is_on_host(value: Value) -> bool:
    return value.kind == TENSOR and value.place.is_host and value.zero is False and value.attr is None


def _is_open(rule: Rule, function: Function, node: cst.BaseExpression) -> bool:
    """Whether something may be a tensor, and nobody knows where."""
    value = rule.flow.value(node)
    is_open = value.kind in (UNKNOWN_KIND, TENSOR, THING) and value.place == UNKNOWN_PLACE
    return is_open and not reads_array(rule, function, code_of(rule, node))


def _is_given_by_model(rule: Rule, factory: cst.Call, name: str) -> bool:
    """``action = self.policy(state)``"""
    function = rule.flow.function(factory)
    return any(
        isinstance(assign.value, cst.Call)
        and dotted(assign.targets[0].target) == name
        and MODEL_NAME.match(dotted(assign.value.func).rpartition(".")[2]) is not None
        for assign in tree.walk(function.node.body if function is not None else rule.source.module)
        if isinstance(assign, cst.Assign)
    )


def operations(rule: Rule) -> Iterator[tuple[cst.BaseExpression | cst.AugAssign, str, list[cst.BaseExpression]]]:
    """Each operation that refuses operands on different devices, with what they are."""
    for node in rule.source.nodes_of(cst.BinaryOperation):
        yield node, "an operation", [node.left, node.right]
    for aug in rule.source.nodes_of(cst.AugAssign):
        yield aug, "an operation", [aug.target, aug.value]
    for test in rule.source.nodes_of(cst.Comparison):
        if len(test.comparisons) == 1:
            yield test, "a comparison", [test.left, test.comparisons[0].comparator]
    for call in rule.source.nodes_of(cst.Call):
        name = rule.flow.name_of(call)
        entry = table.FUNCTIONS.get(name)
        given = [arg.value for arg in call.args if not arg.star]
        if entry is not None and entry.operands == "all":
            yield call, f"`{name}`", given
        elif entry is not None and entry.operands == "sequence" and given:
            if isinstance(given[0], cst.List | cst.Tuple):
                yield call, f"`{name}`", [element.value for element in given[0].elements]
        elif isinstance(call.func, cst.Attribute) and not name.startswith("torch."):
            method = table.METHODS.get(call.func.attr.value)
            if method is not None and method.operands == "all" and method.result != "host":
                yield call, f"`{call.func.attr.value}`", [call.func.value, *given]


def _follows(rule: Rule, node: cst.BaseExpression, pattern: str) -> bool:
    """Whether an expression is computed from ``pattern``, and is no number: ``action``, ``site["value"] * 2``."""
    value = rule.flow.value(node)
    if value.kind in (LIST, TUPLE, DICT, ARRAY, DATA) or value.place != UNKNOWN_PLACE or value.zero is True:
        return False
    if code_of(rule, node) == pattern:
        return True
    if value.kind == TENSOR and value.zero is False:
        return True  # what else is computed there
    if isinstance(node, cst.BinaryOperation):
        return _follows(rule, node.left, pattern) or _follows(rule, node.right, pattern)
    if isinstance(node, cst.UnaryOperation):
        return _follows(rule, node.expression, pattern)
    if isinstance(node, cst.Subscript):
        return _follows(rule, node.value, pattern)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        name = rule.flow.name_of(node)
        if name.startswith("torch."):
            entry = table.FUNCTIONS.get(name)
            return entry is not None and entry.operands in ("all", "first") and _is_first(rule, node, pattern)
        return node.func.attr.value in table.METHODS and _follows(rule, node.func.value, pattern)
    return False


def _is_beside(rule: Rule, node: cst.BaseExpression, patterns: frozenset[str]) -> bool:
    """``lengths.view(-1, 1)`` for ``x``, of ``x = batch.rows`` and ``lengths = batch.lengths``: what one object holds
    goes together, and what has such a method is a tensor."""
    function = rule.flow.function(node)
    if function is None or not isinstance(node, cst.Call):
        return False
    objects = {_holder(function, pattern) for pattern in patterns} - {None}
    receiver = node.func.value if isinstance(node.func, cst.Attribute) else None
    while isinstance(receiver, cst.Call) and isinstance(receiver.func, cst.Attribute):
        receiver = receiver.func.value
    if not isinstance(receiver, cst.Name) or _holder(function, receiver.value) not in objects:
        return False
    return _follows(rule, node, receiver.value)


def _holder(function: Function, name: str) -> str | None:
    """``batch`` of ``x = batch.rows``, where nothing else binds ``x``."""
    values = [
        assign.value
        for assign in tree.walk(function.node.body)
        if isinstance(assign, cst.Assign) and any(name in names_bound(each.target) for each in assign.targets)
    ]
    value = values[0] if len(values) == 1 else None
    if not isinstance(value, cst.Attribute) or not isinstance(value.value, cst.Name):
        return None
    return value.value.value if value.value.value in function.param_names - {"self", "cls"} else None


def _is_first(rule: Rule, call: cst.Call, pattern: str) -> bool:
    return bool(call.args) and _follows(rule, call.args[0].value, pattern)
