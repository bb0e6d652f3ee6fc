"""What is made on the host right beside what is made on a device: in one literal or call, on the other side of an `if`,
among the arguments of one model, in one list that is joined afterwards.

Where a function makes things on a device, others are on the host on purpose, as often as not. Not so where the two
stand for one another, or go the same way together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.hypothesis import MODEL_NAME, asks_for_device
from devlint.flow.names import called_name, dotted, last_word
from devlint.flow.place import UNKNOWN_PLACE, from_string
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, Class, Function
from devlint.flow.value import DATA, NONE, TENSOR, THING, UNKNOWN_KIND, Value
from devlint.rule import Rule
from devlint.rules._followed import is_moved
from devlint.rules._likeness import operations
from devlint.rules._made import made_on_host
from devlint.rules._meetings import is_dead, is_of_host, runs_on_host
from devlint.rules._moves import short
from devlint.rules._switches import tests_above

#: Such may have to stay on the host: `pack_padded_sequence` takes none that are elsewhere.
_OF_LENGTHS = re.compile(r"length|(^|_)lens?(_|$)")
_OF_EXPORTS = re.compile(r"onnx|trac(e|ing)|script|export")
_JOIN = frozenset(f"torch.{name}" for name in "cat concat concatenate stack vstack hstack dstack".split())
_SAYS_WHERE = ("device", "cuda", ".to(")
_RUNS = frozenset("forward generate __call__ predict sample encode decode".split())


class CloseBy(NamedTuple):
    """``how`` says what a factory's result has to do with ``beside``; ``device`` is the code of the device that others
    in the same expression are made on."""

    factory: cst.Call
    beside: cst.BaseExpression
    how: str
    device: str | None = None


def close_by(rule: Rule, is_meant: Callable[[cst.Call], bool]) -> Iterator[CloseBy]:
    """The factories that make such things; ``is_meant`` judges which are on the host for want of ``device=``."""
    text = rule.source.text
    if not rule.flow.makers or rule.in_tests or runs_on_host(rule) or not any(word in text for word in _SAYS_WHERE):
        return
    found = (
        *_siblings(rule),
        *_returned(rule),
        *_alternatives(rule),
        *_kept_twice(rule),
        *_in_rows(rule),
        *_arguments(rule),
        *_listed(rule),
        *_met(rule),
    )
    for each in found:
        function = rule.flow.function(each.factory)
        if not is_meant(each.factory) or is_dead(rule, each.factory):
            continue
        # if self.onnx_trace: shape = torch.cat((n.view(1), torch.tensor([-1])))   sizes as tensors
        if any(_OF_EXPORTS.search(rule.code(test)) for test, _, _ in tests_above(rule, each.factory)):
            continue
        if function is None or not is_moved(rule, function, each.factory):
            yield each


# one call, list, tuple or dictionary -----------------------------------------------------------------


def _siblings(rule: Rule) -> Iterator[CloseBy]:
    """``State(rows=torch.zeros(n, device=d), ids=torch.zeros(n), marks=torch.ones(n, device=d))``"""
    for node, parts in _containers(rule):
        told = [(part, code) for _, part in parts if (code := _told(rule, part)) is not None]
        if not told or len({code for _, code in told}) != 1:
            continue
        fresh = [
            factory
            for name, part in parts
            if (factory := _made_here(rule, part)) is not None and not _OF_LENGTHS.search(name)
        ]
        function = rule.flow.function(node)
        # batch = Batch(rows.to(device), torch.zeros(n)); batch = batch.to(device)
        if len(fresh) > len(told) or (function is not None and is_moved(rule, function, node)):
            continue
        for factory in fresh:
            yield CloseBy(factory, told[0][0], f"others beside it are made on `{told[0][1]}`", told[0][1])


def _containers(rule: Rule) -> Iterator[tuple[cst.BaseExpression, list[tuple[str, cst.BaseExpression]]]]:
    """The parts of each literal and call that something is made in, by the names that they are given."""
    around: set[cst.CSTNode] = set()
    for made in rule.flow.makers:
        above = rule.parent(made)
        while above is not None and above not in around:
            around.add(above)
            above = rule.parent(above)
    for call in rule.source.nodes_of(cst.Call):
        if len(call.args) > 1 and call in around:
            yield call, [(arg.keyword.value if arg.keyword is not None else "", arg.value) for arg in call.args]
    rows: list[cst.List | cst.Tuple] = [*rule.source.nodes_of(cst.List), *rule.source.nodes_of(cst.Tuple)]
    for row in rows:
        if row in around:
            yield row, [("", element.value) for element in row.elements]
    for table_of in rule.source.nodes_of(cst.Dict):
        if table_of not in around:
            continue
        items = [element for element in table_of.elements if isinstance(element, cst.DictElement)]
        yield table_of, [(rule.code(item.key), item.value) for item in items]


def _returned(rule: Rule) -> Iterator[CloseBy]:
    """``return rows, marks, weights``, where all but one have been made on a device."""
    for node in rule.source.nodes_of(cst.Return):
        if not isinstance(node.value, cst.Tuple):
            continue
        parts = [element.value for element in node.value.elements]
        there = [part for part in parts if _is_there(rule, part)]
        made = [factory for part in parts if (factory := _made(rule, part)) is not None]
        if len(there) > 1 and len(made) == 1:
            yield CloseBy(made[0], there[0], "what is returned with it is on a device")


# one name ------------------------------------------------------------------------------------------


def _alternatives(rule: Rule) -> Iterator[CloseBy]:
    """``if wide: self.x = torch.zeros(n) else: self.x = torch.ones(n, device=device)``"""
    for test in rule.source.nodes_of(cst.IfExp):
        if not asks_for_device(rule.code(test.test)):
            yield from _either(rule, [[test.body], [test.orelse]])
    for branch in rule.source.nodes_of(cst.If):
        above = rule.parent(branch)
        if branch.orelse is None or (isinstance(above, cst.If) and above.orelse is branch):
            continue  # elif: with the first one
        tests, blocks = _branches(branch)
        bound = [_bound_in(rule, block) for block in blocks]
        for name in dict.fromkeys(name for each in bound for name in each):
            for each in _either(rule, [each[name] for each in bound if name in each]):
                # if self.useCuda: x = torch.FloatTensor(x).cuda() else: x = torch.FloatTensor(x)
                codes = [rule.code(test) for test in tests]
                if _OF_LENGTHS.search(name) or any(asks_for_device(c) or "cuda" in c.lower() for c in codes):
                    continue
                yield each


def _either(rule: Rule, cases: list[list[cst.BaseExpression]]) -> Iterator[CloseBy]:
    for case in cases:
        others = (value for other in cases if other is not case for value in other)
        told = next(
            (value for value in others if _told(rule, value) is not None or _is_made_like_another(rule, value)), None
        )
        if told is None or any(_is_there(rule, value) for value in case):
            continue
        for value in case:
            factory = _made_here(rule, value)
            if factory is None and isinstance(value, cst.Call) and rule.flow.name_of(value) in table.KEEPING:
                factory = value  # rows = torch.as_tensor(rows)
            if factory is not None:
                there = "is on a device" if _told(rule, told) is not None else "is wherever another tensor is"
                yield CloseBy(factory, told, f"what stands for it in another case {there}")


def _is_made_like_another(rule: Rule, node: cst.BaseExpression) -> bool:
    """``torch.zeros_like(x)``, ``x.new_zeros(3)``, and not where that is on the host."""
    if not isinstance(node, cst.Call) or any(arg.keyword and arg.keyword.value == "device" for arg in node.args):
        return False
    function = rule.flow.function(node)
    if function is None or function.role in (CONSTRUCTOR, HOST_SIDE) or is_of_host(rule):
        return False
    if rule.flow.name_of(node) in table.LIKE and node.args:
        other = node.args[0].value
    elif called_name(node) in table.NEW_METHODS and isinstance(node.func, cst.Attribute):
        other = node.func.value
    else:
        return False
    return _is_unknown(rule, other)


def _branches(branch: cst.If) -> tuple[list[cst.BaseExpression], list[cst.BaseSuite]]:
    tests, blocks = [branch.test], [branch.body]
    rest = branch.orelse
    while rest is not None:
        blocks.append(rest.body)
        if isinstance(rest, cst.If):
            tests.append(rest.test)
            rest = rest.orelse
        else:
            rest = None
    return tests, blocks


def _bound_in(rule: Rule, block: cst.BaseSuite) -> dict[str, list[cst.BaseExpression]]:
    """What a block binds names, attributes and items to, and what it puts into lists."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for line in block.body:
        if isinstance(line, cst.If):
            for name, values in _bound_in(rule, line.body).items():
                found.setdefault(name, []).extend(values)
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
                target = statement.targets[0].target
                if isinstance(target, cst.Name | cst.Attribute | cst.Subscript):
                    found.setdefault(rule.code(target), []).append(statement.value)
            elif isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
                call = statement.value  # rows.append(torch.zeros(3))
                if called_name(call) == "append" and isinstance(call.func, cst.Attribute) and len(call.args) == 1:
                    found.setdefault(f"{rule.code(call.func.value)}.append", []).append(call.args[0].value)
    return found


def _kept_twice(rule: Rule) -> Iterator[CloseBy]:
    """``self.x = torch.zeros(n)`` in a method, where another has ``self.x = torch.ones(n, device=device)``"""
    for cls in rule.flow.scope.classes.values():
        for name, stores in cls.stores.items():
            values = [value for node, _, _ in stores if (value := _stored(node)) is not None]
            if any(_is_of_itself(value, name) and _is_there(rule, value) for value in values):
                continue  # self.x = self.x.to(device)
            told = next((value for value in values if _is_there(rule, value)), None)
            for node, _, function in stores if told is not None else ():
                value = _stored(node)
                factory = _made_here(rule, value) if value is not None and function.role != CONSTRUCTOR else None
                if factory is not None and told is not None and not _OF_LENGTHS.search(name):
                    yield CloseBy(factory, told, f"elsewhere `self.{name}` is on a device")


def _is_of_itself(node: cst.BaseExpression, name: str) -> bool:
    """``self.x[:n].to(device)``, not ``self.net(rows.to(device), self.x)``."""
    while isinstance(node, cst.Call | cst.Subscript | cst.Attribute):
        if dotted(node) == f"self.{name}":
            return True
        node = node.func if isinstance(node, cst.Call) else node.value
    return isinstance(node, cst.BinaryOperation) and (_is_of_itself(node.left, name) or _is_of_itself(node.right, name))


def _stored(node: cst.CSTNode) -> cst.BaseExpression | None:
    return node.value if isinstance(node, cst.Assign | cst.AnnAssign) else None


def _in_rows(rule: Rule) -> Iterator[CloseBy]:
    """One of several lines below each other."""
    for block in rule.source.nodes_of(cst.IndentedBlock):
        lines = [_assigned(line) for line in block.body]
        for before, at, after in zip(lines, lines[1:], lines[2:], strict=False):
            if before is None or at is None or after is None:
                continue
            codes = {_told(rule, before), _told(rule, after)}
            factory = _made_here(rule, at)
            if factory is not None and len(codes) == 1 and None not in codes:
                yield CloseBy(factory, before, f"the lines around it make theirs on `{codes.pop()}`")


def _assigned(line: cst.CSTNode) -> cst.BaseExpression | None:
    if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 and isinstance(line.body[0], cst.Assign):
        return line.body[0].value
    return None


# the arguments of a model ----------------------------------------------------------------------------


def _arguments(rule: Rule) -> Iterator[CloseBy]:
    """``self.model(rows.to(self.device), torch.tensor([0]))``"""
    for call in rule.source.nodes_of(cst.Call):
        if len(call.args) < 2 or not _runs_model(call):
            continue
        beside = next((arg.value for arg in call.args if _is_there(rule, arg.value)), None)
        for arg in call.args if beside is not None else ():
            factory = _made(rule, arg.value)
            name = arg.keyword.value if arg.keyword is not None else dotted(arg.value)
            if factory is not None and beside is not None and not _OF_LENGTHS.search(name):
                how = f"`{dotted(call.func)}` is handed what is on a device beside it"
                yield CloseBy(factory, beside, how)


def _runs_model(call: cst.Call) -> bool:
    path = dotted(call.func)
    receiver, _, last = path.rpartition(".")
    return MODEL_NAME.match(last) is not None or (last in _RUNS and MODEL_NAME.match(last_word(receiver)) is not None)


# one list ------------------------------------------------------------------------------------------


def _listed(rule: Rule) -> Iterator[CloseBy]:
    """``rows = [torch.zeros(1)]; rows.append(rates.to(device)); torch.cat(rows)``"""
    aware = _knowing(rule) if not is_of_host(rule) else set()
    for function, joined in _names_joined(rule).items():
        for name, values in _put_into(function, joined).items():
            beside = next((value for value in values if _is_there(rule, value)), None)
            if beside is None and (function in aware or _is_of_module(function)):
                beside = next((value for value in values if _is_unknown(rule, value)), None)
            for value in values if beside is not None else ():
                factory = _made_here(rule, value)
                if factory is not None and beside is not None:
                    yield CloseBy(factory, beside, f"`{name}` is joined of it and `{short(rule.code(beside))}`")


def _is_of_module(function: Function) -> bool:
    """A method of a module that the constructor does not call: it is handed what the module runs on."""
    cls = function.cls
    return cls is not None and cls.is_module and function.role not in (CONSTRUCTOR, HOST_SIDE)


def _names_joined(rule: Rule) -> dict[Function, set[str]]:
    """The names of lists that a function hands to ``torch.cat`` and its kin as they are, and brings nowhere then."""
    found: dict[Function, set[str]] = {}
    for call in rule.flow.calls(*_JOIN):
        name = dotted(call.args[0].value) if call.args else ""
        function = rule.flow.function(call) if name else None
        if function is not None and not is_moved(rule, function, call):
            found.setdefault(function, set()).add(name)
    return found


def _put_into(function: Function, names: set[str]) -> dict[str, list[cst.BaseExpression]]:
    found: dict[str, list[cst.BaseExpression]] = {}
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Assign) and isinstance(node.value, cst.List):
            for target in node.targets:
                if dotted(target.target) in names:
                    values = [element.value for element in node.value.elements]
                    found.setdefault(dotted(target.target), []).extend(values)
        elif isinstance(node, cst.Call) and called_name(node) == "append" and len(node.args) == 1:
            name = dotted(node.func.value) if isinstance(node.func, cst.Attribute) else ""
            if name in names:
                found.setdefault(name, []).append(node.args[0].value)
    return found


# what belongs to an object that knows its device ----------------------------------------------------


def _met(rule: Rule) -> Iterator[CloseBy]:
    """``torch.cat((self.elite, torch.zeros(1)))`` where the class makes other things on ``self.device``."""
    aware = _knowing(rule) if not is_of_host(rule) else set()
    for node, _, operands in operations(rule) if aware else ():
        function = rule.flow.function(node)
        if function is None or function.role in (HOST_SIDE, CONSTRUCTOR) or aware.isdisjoint((function, function.cls)):
            continue
        for operand in operands:
            if _made(rule, operand) is None or is_moved(rule, function, node):
                continue
            other = next(
                (each for each in operands if each is not operand and _may_be_there(rule, function, node, each)), None
            )
            for factory in _makers(rule, function, operand) if other is not None else ():
                assert other is not None
                how = f"it meets `{short(rule.code(other))}`, where other things are on a device"
                yield CloseBy(factory, other, how)


def _makers(rule: Rule, function: Function, node: cst.BaseExpression) -> Iterator[cst.Call]:
    """All factories that may have made what is known under a name: one in each branch."""
    values = _bound(function, node.value) if isinstance(node, cst.Name) else []
    yield from dict.fromkeys(
        each for each in [_made(rule, node), *(_made_here(rule, v) for v in values)] if each is not None
    )


def _bound(function: Function, name: str) -> list[cst.BaseExpression]:
    return [
        assign.value
        for assign in tree.walk(function.node.body)
        if isinstance(assign, cst.Assign) and any(dotted(each.target) == name for each in assign.targets)
    ]


def _may_be_there(rule: Rule, function: Function, node: cst.CSTNode, other: cst.BaseExpression) -> bool:
    value = rule.flow.value(other)
    if value.kind not in (TENSOR, UNKNOWN_KIND, THING) or value.place != UNKNOWN_PLACE:
        return False
    cls, name = function.cls, dotted(other)
    if cls is not None and name.startswith("self."):
        stores = cls.stores.get(name[5:], ())
        if any(stored.is_tensor and stored.place.is_host for _, stored, _ in stores):
            return False  # self.found = torch.zeros(100)   at first
    return _joins(node) or _is_computed(rule, function, other)


def _is_computed(rule: Rule, function: Function, node: cst.BaseExpression, steps: int = 4) -> bool:
    """Whether torch computes something, and not to a number: what an object keeps may be anything."""
    if rule.flow.value(node).zero is True or steps == 0:
        return False
    if isinstance(node, cst.BinaryOperation):
        return any(_is_computed(rule, function, each, steps) for each in (node.left, node.right))
    if isinstance(node, cst.Subscript):
        return _is_computed(rule, function, node.value, steps)
    if isinstance(node, cst.Call):
        entry = table.FUNCTIONS.get(rule.flow.name_of(node))
        if entry is not None:
            # found = torch.cat(self.found); torch.histc(found, 10)   what was kept may be on the host
            names = {part.value for arg in node.args for part in tree.walk(arg.value) if isinstance(part, cst.Name)}
            if any(_joins_kept(rule, each) for each in (node, *(v for name in names for v in _bound(function, name)))):
                return False
            return entry.operands in ("all", "first", "sequence") and entry.result != "host"
        return isinstance(node.func, cst.Attribute) and _is_computed(rule, function, node.func.value, steps)
    if isinstance(node, cst.Name):
        bound = _bound(function, node.value)
        return bool(bound) and all(_is_computed(rule, function, each, steps - 1) for each in bound)
    return False


def _joins_kept(rule: Rule, node: cst.BaseExpression) -> bool:
    return (
        isinstance(node, cst.Call)
        and rule.flow.name_of(node) in _JOIN
        and bool(node.args)
        and not isinstance(node.args[0].value, cst.List | cst.Tuple | cst.ListComp | cst.GeneratorExp)
    )


def _joins(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and bool(node.args) and isinstance(node.args[0].value, cst.List | cst.Tuple)


def _knowing(rule: Rule) -> set[Class | Function | None]:
    """The functions that make things on a device, or move them to one, and the classes whose methods do, on
    ``self.device``."""
    found: set[Class | Function | None] = set()
    for call in rule.source.nodes_of(cst.Call):
        function = rule.flow.function(call)
        if function is not None and _told(rule, call) is not None:
            found.add(function)
    for node in rule.source.nodes_of(cst.Attribute):
        if dotted(node) != "self.device" or not isinstance(arg := rule.parent(node), cst.Arg):
            continue
        function = rule.flow.function(node)
        if function is not None and function.cls is not None and (arg.keyword is None or arg.keyword.value == "device"):
            found.add(function.cls)
    return found


# where something is ----------------------------------------------------------------------------------


def _made_here(rule: Rule, node: cst.BaseExpression) -> cst.Call | None:
    """The factory in an expression that makes what it gives, on the host."""
    factory = _made(rule, node)
    return factory if factory is not None and any(part is factory for part in tree.walk(node)) else None


def _made(rule: Rule, node: cst.BaseExpression) -> cst.Call | None:
    value = rule.flow.value(node)
    if value.zero is not False or value.attr is not None:
        return None
    return made_on_host(rule, rule.flow.function(node), node)


def _is_there(rule: Rule, node: cst.BaseExpression) -> bool:
    value = rule.flow.value(node)
    return (value.kind in (TENSOR, THING, UNKNOWN_KIND) and value.place.is_there) or _told(rule, node) is not None


def _is_unknown(rule: Rule, node: cst.BaseExpression) -> bool:
    value = rule.flow.value(node)
    return value.kind in (TENSOR, UNKNOWN_KIND, THING) and value.place.kind in ("unknown", "param")


def _told(rule: Rule, node: cst.BaseExpression) -> str | None:
    """The code of the device that an expression makes a tensor on, or moves it to."""
    while True:
        if type(node) is cst.Call:
            given = next((arg.value for arg in node.args if arg.keyword and arg.keyword.value == "device"), None)
            if given is not None and (rule.flow.factory(node) is not None or called_name(node) == "to"):
                return _code_of_device(rule, given)
            if not isinstance(node.func, cst.Attribute) or rule.flow.name_of(node).startswith("torch."):
                return None
            move = rule.flow.move(node)
            if move is not None and move.how != "cpu" and (move.target.is_there or move.target.kind == "param"):
                return '"cuda"' if move.target_node is None else _code_of_device(rule, move.target_node)
            if move is not None and move.target.is_host:
                return None  # rows.cpu()
            node = node.func.value
        elif type(node) is cst.Subscript or type(node) is cst.Attribute:
            node = node.value
        elif type(node) is cst.BinaryOperation:
            left = _told(rule, node.left)
            return left if left is not None else _told(rule, node.right)
        else:
            return None


def _code_of_device(rule: Rule, node: cst.BaseExpression) -> str | None:
    """Nothing for the host, and where none is named after all."""
    value: Value = rule.flow.value(node)
    is_host = value.place.is_host and value.kind not in (UNKNOWN_KIND, DATA)
    if is_host or value.kind == NONE or (value.text is not None and not from_string(value.text).is_there):
        return None
    return rule.code(node)
