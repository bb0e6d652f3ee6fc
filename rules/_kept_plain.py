"""What a module keeps in plain attributes on the host, whichever of its methods set them, by the text."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import dotted, names_bound, targets_in
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, Class, Function
from devlint.flow.value import DICT, LIST, NONE, TENSOR, TUPLE, Value
from devlint.rule import Rule
from devlint.rules._kept_buffers import registered_buffers
from devlint.rules._stale import stale_in_constructor

#: How what brings a tensor somewhere else is written.
MOVING = (".to(", ".cuda(", ".type_as(", "device")
_REGISTERED = ("parameter", "buffer")


class Kept(NamedTuple):
    """What an attribute holds, and the statements that put it there.

    ``fitted``: it is made of what a method was handed that fits the module. ``in_buffer``: it takes the place of a
    buffer, which was moved, perhaps.
    """

    value: Value
    stores: tuple[cst.Assign | cst.AnnAssign, ...]
    fitted: bool = False
    in_buffer: bool = False


def kept_plain(rule: Rule, cls: Class) -> dict[str, Kept]:
    """By name, the attributes of a class where each store leaves a tensor on the host, or nothing, and the properties
    that give them."""
    kept = {name: found for name in cls.stores if (found := _kept(rule, cls, name)) is not None}
    for alias, names in _properties(cls).items() if kept else ():
        kept.update((alias, kept[name]) for name in names if name in kept)
    return kept


def _properties(cls: Class) -> dict[str, set[str]]:
    """By the name of each property, the attributes that it gives, or parts of: ``return self._scale[:n]``"""
    found: dict[str, set[str]] = {}
    for owner in cls.lineage:
        for name, method in owner.methods.items():
            last = method.node.body.body[-1] if method.is_property and method.node.body.body else None
            returned = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
            read = returned.value if isinstance(returned, cst.Return) else None
            todo = [each.value for each in read.elements] if isinstance(read, cst.Dict | cst.Tuple) else [read]
            found[name] = set()
            for each in todo:
                while isinstance(each, cst.Subscript):
                    each = each.value  # return {"mean": self._scales["mean"][: self.rank]}
                path = dotted(each) if each is not None else ""
                if path.startswith("self."):
                    found[name].add(path.removeprefix("self."))
    return found


def _kept(rule: Rule, cls: Class, name: str) -> Kept | None:
    if name in rule.flow.scope.outside_stores or any(each.sets_by_variable for each in cls.lineage):
        return None
    family = dict.fromkeys((*cls.lineage, *cls.descendants))
    if any(name in each.attrs_of_class for each in family):
        return None
    stores = [store for owner in family for store in owner.stores.get(name, ())]
    if any(name in each.buffers for each in family) or any(value.ref in _REGISTERED for _, value, _ in stores):
        return _put_in_buffer(rule, cls, name, stores)
    found: Value | None = None
    on_host: list[cst.Assign | cst.AnnAssign] = []
    fitted = False
    for statement, value, function in stores:
        if value.kind == NONE:
            continue
        if not isinstance(statement, cst.Assign | cst.AnnAssign) or statement.value is None:
            return None  # self.table[rows] = x
        if value.or_host is not None and function.role == CONSTRUCTOR:
            found = value.or_host.value
        elif _is_on_host(rule, value) or stale_in_constructor(rule, cls, function, value):
            found = value
        elif _is_fitted(rule, function, statement.value, value):
            found, fitted = found or value, True
        elif _is_handed_in(function, value) or _is_update(rule, name, function, statement.value):
            continue
        else:
            return None
        on_host.append(statement)
    return Kept(found.but(attr=(cls, name)), tuple(on_host), fitted=fitted) if found is not None else None


def _put_in_buffer(rule: Rule, cls: Class, name: str, stores: list[tuple[cst.CSTNode, Value, Function]]) -> Kept | None:
    """``def reset(self): self.counts = torch.zeros(8)``, of a buffer, which then is on the host until the module is
    moved again."""
    if name not in registered_buffers(rule, cls):
        return None
    late = [
        (statement, value)
        for statement, value, function in stores
        if isinstance(statement, cst.Assign)
        and function.role not in (CONSTRUCTOR, HOST_SIDE)
        and _is_on_host(rule, value)
    ]
    if not late:
        return None
    return Kept(late[0][1].but(attr=(cls, name)), tuple(statement for statement, _ in late), in_buffer=True)


def _is_update(rule: Rule, name: str, function: Function, node: cst.BaseExpression) -> bool:
    """``out, self.hidden = self.rnn(x, self.hidden)``, which needs what was there before, where that was; also by way
    of a name: ``out, last = self.rnn(x, self.hidden); self.hidden = last.detach()``."""
    if _reads_own(name, node):
        return not _moves(rule, node)
    if function.role == CONSTRUCTOR or name not in function.attributes.get("self", ()):
        return False
    names = {each.value for each in tree.walk(node) if isinstance(each, cst.Name)}
    return not _moves(rule, node) and any(
        _reads_own(name, each.value) and not _moves(rule, each)
        for each in tree.walk(function.node.body)
        if isinstance(each, cst.Assign) and names & names_bound(each.targets[0].target)
    )


def _moves(rule: Rule, node: cst.CSTNode) -> bool:
    code = rule.code(node)
    return any(word in code for word in MOVING)


def _reads_own(name: str, node: cst.BaseExpression) -> bool:
    return any(type(each) is cst.Attribute and dotted(each) == f"self.{name}" for each in tree.walk(node))


def _is_handed_in(function: Function, value: Value) -> bool:
    """``self.weight = weight``, beside ``self.weight = torch.ones(n)``, of what the constructor may be handed."""
    setter = function.role == CONSTRUCTOR or function.name.startswith("set_")
    return setter and value.kind == TENSOR and value.place.scope == function.scope


def _is_fitted(rule: Rule, function: Function, node: cst.BaseExpression, value: Value) -> bool:
    """``def fit(self, x): self.basis = torch.linalg.qr(x).Q``, where nothing asks for the module's device."""
    if not function.name.lstrip("_").startswith("fit") or function.moves_something:
        return False
    if value.kind == TENSOR:
        return value.place.scope == function.scope
    names = {each.value for each in tree.walk(node) if isinstance(each, cst.Name)}
    todo = [node]
    todo += [
        each.value
        for each in tree.walk(function.node.body)
        if isinstance(each, cst.Assign) and any(binds(each, name) for name in names)
    ]
    calls = [call for each in todo for call in tree.walk(each) if isinstance(call, cst.Call)]
    return any(rule.flow.scope.qualified(call.func).startswith("torch.") for call in calls)


def _is_on_host(rule: Rule, value: Value) -> bool:
    if value.kind in (LIST, TUPLE, DICT):
        items = value.items.values() if isinstance(value.items, dict) else value.items or ()
        inside = [value.items] if isinstance(value.items, Value) else list(items)
        return bool(inside) and all(each.place.is_host and _has_dimensions(rule, each) for each in inside)
    return value.place.is_host and _has_dimensions(rule, value)


def _has_dimensions(rule: Rule, value: Value) -> bool:
    """Whether a tensor is no single number, which mixes with anything."""
    made = value.origin
    if value.kind != TENSOR or value.ref is not None:
        return False
    if value.zero is None and isinstance(made, cst.Call):
        return (
            rule.flow.name_of(made) in table.HOST_TYPED
        )  # torch.Tensor(weights): torch.Tensor(3) has a dimension, too
    return value.zero is False


def binds(assign: cst.Assign, name: str) -> bool:
    target = assign.targets[0].target
    elements = targets_in(target)
    return any(dotted(each) == name for each in elements)
