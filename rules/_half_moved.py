"""Objects that are no modules and move their own tensors by hand: what such a method leaves where it was.

def to(self, device):
    self.rows = self.rows.to(device)
    self.mask = self.mask.to(device)      # and self.weights?
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import called_name, dotted, is_tensor_annotation
from devlint.flow.scope import Class, Function
from devlint.flow.value import NONE, TENSOR
from devlint.rule import Rule

_MOVERS = re.compile(
    r"^_*((make_|set_|move_|put_|send_)?(to|on|cuda|gpu)(_?(device|cuda|gpu))?|move(_tensors)?|pin_memory|"
    r"(move|transfer|send|put)_(data_|tensors_|batch_)?(to|on)_?\w+|pin)_?$"
)
_MOVES = frozenset("to cuda pin_memory npu xpu".split())
#: Ways to reach attributes without writing their names.
_BY_VARIABLE = re.compile(
    r"\b(setattr|getattr|vars|__dict__|fields|asdict|__slots__|astuple|_replace|replace|tree_map|items|apply|map|keys|"
    r"deepcopy|copy|__annotations__)\b"
)
#: `pack_padded_sequence` takes these on the host only.
_LENGTHS = re.compile(r"len(gth)?s?(_|$)|(^|_)n_|num|count|size")
_ELSEWHERE = re.compile(r"device|\.to\(|cuda|\.cpu\(|numpy|tolist")


class Left(NamedTuple):
    """``node`` sets ``name``; ``mover`` moves ``moved``."""

    node: cst.CSTNode
    name: str
    mover: Function
    moved: list[str]


def left_behind(rule: Rule) -> Iterator[Left]:
    """The tensors that the moves of the classes of a file leave out."""
    if rule.in_tests:
        return
    said: set[cst.CSTNode] = set()
    for cls in rule.flow.scope.classes.values():
        if cls.is_module or cls.is_dataset or cls.sets_by_variable:
            continue
        for mover in cls.methods.values():
            if _MOVERS.match(mover.name) is None or not mover.takes_self:
                continue
            moved, handed_on = _moved(rule, mover)
            if len(moved) < 2 or _BY_VARIABLE.search(rule.code(mover.node.body)):
                continue
            for name, node in _tensors(rule, cls, mover, moved):
                if node not in said and name not in moved and _is_left(rule, cls, mover, name, handed_on, moved):
                    said.add(node)
                    yield Left(node, name, mover, moved)


def _moved(rule: Rule, mover: Function) -> tuple[list[str], set[str]]:
    """The attributes that a method moves, and those that it hands on as they are to the object that it makes."""
    moved: list[str] = []
    handed_on: set[str] = set()
    for node in tree.walk(mover.node.body):
        if isinstance(node, cst.Call) and called_name(node) in _MOVES and isinstance(node.func, cst.Attribute):
            held = _held(node.func.value)
            if held and held not in moved:
                moved.append(held)
        elif isinstance(node, cst.Return) and isinstance(node.value, cst.Call):
            handed_on |= {held for arg in node.value.args if (held := _held(arg.value))}
    return moved, handed_on


def _held(node: cst.BaseExpression) -> str:
    """``rows`` of ``self.rows``, ``self.rows[i]``"""
    while isinstance(node, cst.Subscript):
        node = node.value
    return node.attr.value if isinstance(node, cst.Attribute) and dotted(node.value) == "self" else ""


def _is_left(rule: Rule, cls: Class, mover: Function, name: str, handed_on: set[str], moved: list[str]) -> bool:
    # @property def center(self): return self._center   and self.center is moved
    read = {word for method in cls.methods.values() if method.is_property for word in method.attribute_words}
    if name in cls.methods or name in read:
        return False
    if _LENGTHS.search(name) and not any(_LENGTHS.search(other) for other in moved):
        return False
    inside = [n for n in tree.walk(mover.node.body) if isinstance(n, cst.Attribute) and _held(n) == name]
    if inside and (name not in handed_on or len(inside) > 1):
        return False  # if self.weights is not None: move(self.weights)
    # self.rows.numpy(), batch.rows.to(device): read on the host, or moved by whoever holds it
    return re.search(rf"\.{name}(\[[^\]]*\])?\.(to|cuda|cpu|numpy|tolist|item|pin_memory)\(", rule.source.text) is None


def _tensors(rule: Rule, cls: Class, mover: Function, moved: list[str]) -> Iterator[tuple[str, cst.CSTNode]]:
    """The attributes that the constructor binds to tensors, and nothing else binds to anything but those."""
    init = cls.methods.get("__init__")
    if init is None:
        yield from _fields(cls)
        return
    bound = _bound(init)
    # once it has been called, what is made of what has been moved is there
    calls = [n for n in tree.walk(init.node.body) if isinstance(n, cst.Call) and dotted(n.func) == f"self.{mover.name}"]
    for name, stores in bound.items():
        others = [n for n, _, by in cls.stores.get(name, ()) if by is not init and by is not mover]
        if any(_ELSEWHERE.search(rule.code(other)) for other in others):
            continue
        if any(rule.source.comes_before(call, node) for call in calls for node, _ in stores):
            continue
        found = [node for node, value in stores if _is_tensor(rule, init, node, value, moved, bound)]
        rest = [value for node, value in stores if node not in found and not _is_none(rule, value)]
        if found and not rest and not any(_ELSEWHERE.search(rule.code(node)) for node, _ in stores):
            yield name, found[0]


def _fields(cls: Class) -> Iterator[tuple[str, cst.CSTNode]]:
    """``@dataclass class Batch: rows: Tensor``"""
    for line in cls.node.body.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            target = small.target if isinstance(small, cst.AnnAssign) else None
            if isinstance(target, cst.Name) and target.value in cls.tensor_fields:
                yield target.value, small


def _bound(init: Function) -> dict[str, list[tuple[cst.CSTNode, cst.BaseExpression]]]:
    """What the constructor binds attributes to."""
    bound: dict[str, list[tuple[cst.CSTNode, cst.BaseExpression]]] = {}
    for node in tree.walk(init.node.body):
        if isinstance(node, cst.Assign):
            targets, value = [each.target for each in node.targets], node.value
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            if isinstance(target, cst.Attribute) and (name := _held(target)):
                bound.setdefault(name, []).append((node, value))
    return bound


def _is_tensor(
    rule: Rule,
    init: Function,
    node: cst.CSTNode,
    value: cst.BaseExpression,
    moved: list[str],
    bound: dict[str, list[tuple[cst.CSTNode, cst.BaseExpression]]],
) -> bool:
    if _is_none(rule, value):
        return False
    known = rule.flow.value(value)
    if known.zero is True:
        return False  # a number mixes with what is anywhere
    if isinstance(node, cst.AnnAssign) and is_tensor_annotation(node.annotation):
        return True
    if known.kind == TENSOR:
        return True
    param = init.param(value.value) if isinstance(value, cst.Name) else None
    if param is not None:
        return is_tensor_annotation(param.annotation)
    # self.mask = (self.rows != 0)[:, None], self.inputs = rows[:, :-1]   where self.rows is moved
    sources = {f"self.{name}" for name in moved}
    sources |= {dotted(each) for name in moved for _, each in bound.get(name, ()) if isinstance(each, cst.Name)}
    return _is_made_of(value, sources)


def _is_made_of(node: cst.BaseExpression, sources: set[str]) -> bool:
    """Whether an expression is computed from one of these, and is no single number."""
    if dotted(node) in sources:
        return True
    if isinstance(node, cst.Comparison):
        return _is_made_of(node.left, sources)
    if isinstance(node, cst.BinaryOperation):
        return _is_made_of(node.left, sources) or _is_made_of(node.right, sources)
    if isinstance(node, cst.UnaryOperation):
        return _is_made_of(node.expression, sources)
    if isinstance(node, cst.Subscript):
        # rows[0] may be a number; rows[:, 1:] is none
        sliced = any(isinstance(each.slice, cst.Slice) for each in node.slice)
        return sliced and _is_made_of(node.value, sources)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        word = node.func.attr.value
        if word in _KEEPS or (word in table.METHODS and word not in _NUMBERS):
            return _is_made_of(node.func.value, sources)
    return False


_NUMBERS = frozenset("sum mean max min any all prod std var norm median size dim numel item tolist numpy cpu".split())
_KEEPS = frozenset("float long int bool half double unsqueeze view reshape".split())


def _is_none(rule: Rule, value: cst.BaseExpression) -> bool:
    return rule.flow.value(value).kind == NONE or dotted(value) == "None"
