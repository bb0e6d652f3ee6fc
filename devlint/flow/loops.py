"""Loops: what one iterates over, whether it drives device work, and what it rebinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from devlint import tree
from devlint.flow import hypothesis
from devlint.flow.scope import dotted, target_names
from devlint.flow.value import LOADER, MODULE, THING, Value

if TYPE_CHECKING:
    from devlint.flow import Flow


@dataclass(eq=False)
class Loop:
    """One ``for`` or ``while``.

    ``over`` is what it iterates. ``loader``: it goes through a data loader. ``works``: the nodes
    that drive the device once an iteration (a model called, ``backward``, an optimizer's ``step``), its
    inner loops' included. ``rebinds``: names, and paths such as ``self.x``, that its body binds.
    """

    node: cst.For | cst.While
    over: Value | None
    loader: bool = False
    works: list[cst.CSTNode] = field(default_factory=list)
    rebinds: set[str] = field(default_factory=set)

    @property
    def drives_device(self) -> bool:
        return bool(self.works)


def loop_of(flow: Flow, node: cst.CSTNode) -> Loop | None:
    """The innermost loop whose body holds the node, within the same function."""
    parents = flow.source.parents
    child, current = node, parents.get(node)
    while current is not None:
        kind = type(current)
        if kind is cst.FunctionDef or kind is cst.Lambda or kind is cst.ClassDef:
            return None
        if (kind is cst.For or kind is cst.While) and child is current.body:
            return _describe(flow, current)
        if kind is cst.While and child is current.test:
            return _describe(flow, current)
        child, current = current, parents.get(current)
    return None


def _describe(flow: Flow, node: cst.For | cst.While) -> Loop:
    known = flow._loops.get(node)
    if known is not None:
        return known
    over = flow.value(node.iter) if type(node) is cst.For else None
    loop = Loop(node, over)
    if over is not None:
        loop.loader = _goes_through_loader(over) or _named_loader(node.iter)
    _read(flow, node, loop)
    flow._loops[node] = loop
    return loop


def _goes_through_loader(value: Value) -> bool:
    return value.kind == LOADER or isinstance(value.ref, Value) and value.ref.kind == LOADER


def _named_loader(node: cst.BaseExpression) -> bool:
    # enumerate(tqdm(train_loader))
    while isinstance(node, cst.Call) and node.args:
        node = node.args[0].value
    name = dotted(node).rpartition(".")[2]
    return bool(name) and hypothesis.LOADER_NAME.search(name) is not None


def _read(flow: Flow, node: cst.For | cst.While, loop: Loop) -> None:
    stack: list[cst.CSTNode] = [node.body]
    if type(node) is cst.For:
        target_names(node.target, loop.rebinds)
    while stack:
        current = stack.pop()
        kind = type(current)
        if kind is cst.FunctionDef or kind is cst.Lambda or kind is cst.ClassDef:
            continue
        if kind in (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.NamedExpr):
            _paths(current.target, loop.rebinds)
        elif kind is cst.For or kind is cst.CompFor:
            target_names(current.target, loop.rebinds)
        elif kind is cst.AsName:
            target_names(current.name, loop.rebinds)
        elif kind is cst.Call and _drives(flow, current):
            loop.works.append(current)
        for field_name in reversed(tree.CHILDREN.get(kind.__name__, ())):
            child = getattr(current, field_name)
            if type(child) is tuple or type(child) is list:
                stack.extend(reversed(child))
            elif isinstance(child, cst.CSTNode):
                stack.append(child)


def _paths(target: cst.BaseExpression, into: set[str]) -> None:
    if isinstance(target, cst.Tuple | cst.List):
        for item in target.elements:
            _paths(item.value, into)
        return
    if isinstance(target, cst.Subscript):
        _paths(target.value, into)  # writing an item changes the whole
        return
    name = dotted(target)
    if name:
        into.add(name)


def _drives(flow: Flow, call: cst.Call) -> bool:
    func = call.func
    if type(func) is cst.Attribute:
        name = func.attr.value
        if name == "backward":
            return True
        receiver = flow.value(func.value)
        if name == "step":
            holder = dotted(func.value).rpartition(".")[2]
            return receiver.kind == "optimizer" or hypothesis.OPTIMIZER_NAME.search(holder) is not None
    value = flow.value(func)
    if value.kind == MODULE:
        return isinstance(value.ref, str) is False or "Loss" not in value.ref
    if value.kind == THING and value.ref == "moved":
        return True
    if type(func) is cst.Name:
        return hypothesis.MODEL_NAME.match(func.value) is not None and value.kind not in ("class", "function", "name")
    if type(func) is cst.Attribute and value.kind == "unknown":
        return hypothesis.MODEL_NAME.match(func.attr.value) is not None and not isinstance(func.value, cst.Call)
    return False
