"""Tables that a module makes on the device of its first input, and keeps in a plain attribute from then on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, Class, Function
from devlint.flow.value import NONE
from devlint.rule import Rule

#: What a test asks that knows of devices, or is about something else than whether the table still fits.
_ASKS_MORE = re.compile(r"device|training|cuda|is_tracing|first_|init|grad")
#: What is a model's memory, and no table: others clear it, or it is made of what came in.
_STATE = re.compile(
    r"state|hidden|memory|kv|(^|_)(k|v|key|value|past|prev|last|running|ema|momentum|h|c|cell|feat)(_|$)|buffer"
)
_MOVING = (".to(", ".cuda(", ".type_as(", ".to_device(")


class FirstDevice(NamedTuple):
    """``none`` leaves the attribute open, ``store`` fills it, wherever the input is, where ``test`` says so."""

    cls: Class
    name: str
    none: cst.Assign | cst.AnnAssign
    test: cst.If
    store: cst.CSTNode


def kept_where_first_made(rule: Rule) -> Iterator[FirstDevice]:
    """``if self._grid is None or self._grid.shape != x.shape: self._grid = torch.linspace(0, 1, n, device=x.device)``,
    also where a method does that which is called there."""
    if "device" not in rule.source.text or "None" not in rule.source.text or rule.in_tests:
        return
    for cls in rule.flow.scope.classes.values():
        if not cls.is_module or any(cls.find_method(name) for name in ("_apply", "to", "__setattr__")):
            continue
        for name, stores in cls.stores.items():
            if name in cls.buffers or name in rule.flow.scope.outside_stores or _STATE.search(name):
                continue
            found = _of(rule, cls, name, dict.fromkeys((statement, function) for statement, _, function in stores))
            if found is not None and _is_taken_as_it_is(rule, cls, name):
                yield found


def _of(rule: Rule, cls: Class, name: str, stores: dict[tuple[cst.CSTNode, Function], None]) -> FirstDevice | None:
    none: list[cst.Assign | cst.AnnAssign] = []
    filled: list[tuple[cst.If, cst.CSTNode]] = []
    for statement, function in stores:
        if not isinstance(statement, cst.Assign | cst.AnnAssign) or statement.value is None:
            return None
        empty = rule.flow.value(statement.value).kind == NONE
        if empty and function.role == CONSTRUCTOR:
            none.append(statement)
        elif empty or function.role in (CONSTRUCTOR, HOST_SIDE):
            return None  # def reset(self): self._grid = None
        elif not _names(statement.value, name):  # self._grid = self._grid.unsqueeze(0)
            test = _test_of(rule, cls, name, statement, function)
            if test is None or not _is_made_there(rule, test, statement, function):
                return None
            filled.append((test, statement))
    return FirstDevice(cls, name, none[0], *filled[0]) if none and filled else None


def _test_of(rule: Rule, cls: Class, name: str, statement: cst.CSTNode, function: Function) -> cst.If | None:
    """The test that decides whether the table is made anew: above the store, or above each call of its method."""
    above = _asks(rule, statement, name)
    if above is not None or _above(rule, statement):
        return above
    calls = [
        (call, caller)
        for owner in cls.lineage
        for caller in owner.methods.values()
        if caller is not function and function.name in caller.self_calls
        for call in tree.walk(caller.node.body)
        if isinstance(call, cst.Call) and dotted(call.func) == f"self.{function.name}"
    ]
    tests = [_asks(rule, call, name) for call, caller in calls if caller.role != CONSTRUCTOR]
    if len(tests) != len(calls):
        return None  # the constructor makes it as well
    return tests[0] if tests and all(test is not None for test in tests) else None


def _above(rule: Rule, node: cst.CSTNode) -> list[cst.If]:
    """The choices around a node, in the body of which it stands."""
    found: list[cst.If] = []
    child, above = node, rule.parent(node)
    while above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.If) and child is above.body:
            found.append(above)
        child, above = above, rule.parent(above)
    return found


def _asks(rule: Rule, node: cst.CSTNode, name: str) -> cst.If | None:
    """The choice around a node that asks whether the table is there, or fits, and for no device."""
    tests = _above(rule, node)
    if any(_ASKS_MORE.search(rule.code(each.test)) for each in tests):
        return None
    return next((each for each in tests if _names(each.test, name) or _asks_for_key(each)), None)


def _asks_for_key(choice: cst.If) -> bool:
    """``if n != self.length: self.length = n; self.table = make(n)``"""
    set_there = {
        dotted(target.target)
        for assign in tree.walk(choice.body)
        if isinstance(assign, cst.Assign)
        for target in assign.targets
    }
    asked = {dotted(each) for each in tree.walk(choice.test) if isinstance(each, cst.Attribute)}
    return any(path.startswith("self.") for path in set_there & asked)


def _names(node: cst.CSTNode, name: str) -> bool:
    return any(isinstance(each, cst.Attribute) and dotted(each) == f"self.{name}" for each in tree.walk(node))


def _is_made_there(rule: Rule, test: cst.If, statement: cst.Assign | cst.AnnAssign, function: Function) -> bool:
    """Whether what is kept is made with the device that the input is on."""
    assert statement.value is not None
    value = rule.flow.value(statement.value)
    if value.is_data or value.place.is_host or not (value.is_tensor or value.kind == "unknown"):
        return False
    region = test.body if rule.flow.function(test) is function else function.node.body
    return any(
        arg.keyword is not None
        and arg.keyword.value == "device"
        and rule.flow.scope.qualified(call.func).startswith("torch.")
        and not isinstance(arg.value, cst.SimpleString)
        and not re.fullmatch(r"self\.\w+", rule.code(arg.value))  # device=self.device
        for call in tree.walk(region)
        if isinstance(call, cst.Call)
        for arg in call.args
    )


def _is_taken_as_it_is(rule: Rule, cls: Class, name: str) -> bool:
    """Whether no use brings the table to where it is needed: ``self._grid[:n].to(x.device)``"""
    read = False
    for owner in (cls, *cls.descendants):
        for node in tree.walk(owner.node):
            if not isinstance(node, cst.Attribute) or dotted(node) != f"self.{name}":
                continue
            if isinstance(rule.parent(node), cst.AssignTarget):
                continue
            statement = rule.enclosing(node, cst.BaseSmallStatement, cst.If)
            code = rule.code(statement) if isinstance(statement, cst.BaseSmallStatement) else ""
            if any(word in code for word in _MOVING):
                return False
            read = read or bool(code)
    return read
