"""Layers that a function makes on the host, where it tells others beside them a device: ``self.q = nn.Linear(n, n,
device=device)``, ``self.k = nn.Linear(n, n)``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import Class, Function
from devlint.flow.value import MODULE
from devlint.rule import Rule
from devlint.rules._old_layers import CONTEXT, is_kept

_MOVES = frozenset("to cuda to_empty".split())
_DEVICE = re.compile(r"device|cuda", re.I)


class Beside(NamedTuple):
    """``told`` is a call that is told ``device``, ``made`` one that is not."""

    made: cst.Call
    told: cst.Call
    device: str


def beside_told_layers(rule: Rule) -> Iterator[Beside]:
    """The layers, parameters and buffers that are told nothing, where the others of the same function are."""
    if rule.in_tests or "device" not in rule.source.text:
        return
    telling = {rule.flow.function(call) for call in rule.source.nodes_of(cst.Call) if _may_tell(call)}
    made: dict[Function, list[cst.Call]] = {}
    for call in rule.source.nodes_of(cst.Call) if telling else ():
        function = rule.flow.function(call)
        if function is not None and function in telling and _is_layer(rule, call):
            made.setdefault(function, []).append(call)
    for function, calls in made.items():
        told = {call: code for call in calls if (code := _told(rule, function, call)) is not None}
        devices = set(told.values())
        if len(devices) != 1 or _moves_all(rule, function):
            continue
        device = devices.pop()
        free = [call for call in calls if call not in told and _is_free(rule, call, device)]
        # one of many: who tells few of them means these few
        if not free or len(free) > len(told):
            continue
        for call in free:
            beside = next((each for each in told if called_name(each) == called_name(call)), next(iter(told)))
            if len(told) > 1 or called_name(beside) == called_name(call):
                yield Beside(call, beside, device)


def _may_tell(call: cst.Call) -> bool:
    return any(arg.star == "**" or (arg.keyword is not None and arg.keyword.value == "device") for arg in call.args)


def _is_layer(rule: Rule, call: cst.Call) -> bool:
    name, value = rule.flow.name_of(call), rule.flow.value(call)
    fact = table.MODULES.get(name)
    if fact is not None:
        return fact.kind != "container" and fact.tensors in ("always", "default")
    if rule.flow.factory(call) is not None:
        return value.zero is not True and is_kept(rule, call)  # a number mixes with what is anywhere
    # make = lambda n: Block(n, device=device): self.inner = make(8)
    if value.kind == MODULE and isinstance(value.ref, Class) and called_name(call) == value.ref.name:
        init = value.ref.find_method("__init__")
        return init is not None and init.param("device") is not None
    return False


def _told(rule: Rule, function: Function, call: cst.Call) -> str | None:
    """The device that a call is told, as code."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == "device":
            return _named(rule, arg.value)
        if arg.star == "**" and isinstance(arg.value, cst.Name):
            given = _options(rule, function, arg.value.value)
            if given is not None:
                return given
    return None


def _options(rule: Rule, function: Function, name: str) -> str | None:
    """``device`` of ``options = {"device": device, "dtype": dtype}``, ``options = dict(device=device)``"""
    for node in tree.walk(function.node.body):
        if not isinstance(node, cst.Assign) or dotted(node.targets[0].target) != name:
            continue
        if isinstance(node.value, cst.Dict):
            for item in node.value.elements:
                if isinstance(item, cst.DictElement) and rule.code(item.key).strip("\"'") == "device":
                    return _named(rule, item.value)
        elif isinstance(node.value, cst.Call) and dotted(node.value.func) == "dict":
            for arg in node.value.args:
                if arg.keyword is not None and arg.keyword.value == "device":
                    return _named(rule, arg.value)
    return None


def _named(rule: Rule, device: cst.BaseExpression) -> str | None:
    """The code of a device; nothing for one that is written down, or is none."""
    code = rule.code(device)
    return None if code == "None" or code[:1] in "\"'" else code


def _moves_all(rule: Rule, function: Function) -> bool:
    """``self.to(device)``, and whatever else a function moves as a whole."""
    return any(
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in _MOVES
        and dotted(node.func.value) == "self"
        for node in tree.walk(function.node.body)
    )


def _is_free(rule: Rule, call: cst.Call, device: str) -> bool:
    """Whether nothing tells a call a device, or moves what it makes."""
    if any(arg.star or (arg.keyword is not None and arg.keyword.value == "device") for arg in call.args):
        return False
    if any(_DEVICE.search(rule.code(arg.value)) for arg in call.args):
        return False  # Block(n, options["device"])
    function = rule.flow.function(call)
    node: cst.CSTNode = call
    above = rule.parent(node)
    while above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.Attribute) and above.value is node and above.attr.value in _MOVES:
            return False
        if isinstance(above, cst.With) and any(CONTEXT.search(rule.code(item.item)) for item in above.items):
            return False
        if isinstance(above, cst.If) and _DEVICE.search(rule.code(above.test)):
            return False  # if device is None: self.a = nn.Linear(n, n)
        node, above = above, rule.parent(above)
    statement = rule.enclosing(call, cst.BaseSmallStatement)
    names = {dotted(each.target) for each in statement.targets} - {""} if isinstance(statement, cst.Assign) else set()
    # self.head = nn.Linear(n, 2); self.head.to(device)
    return function is not None and not any(
        isinstance(node, cst.Attribute) and node.attr.value in (*_MOVES, "data") and dotted(node.value) in names
        for node in tree.walk(function.node.body)
    )
