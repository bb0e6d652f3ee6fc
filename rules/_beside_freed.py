"""Losses that are kept with their history, where those kept beside them are not."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import LOSS_NAME
from devlint.flow.names import called_name, dotted, last_word
from devlint.flow.scope import Function
from devlint.flow.value import ARRAY, DATA, NONE
from devlint.rule import Rule
from devlint.rules._training import FREEING, under_no_grad

#: Others that must be kept without their history before one with it stands out.
_BESIDE = 2


def kept_beside_freed(rule: Rule) -> Iterator[tuple[cst.Name, cst.BaseExpression]]:
    """``info["kl"] = kl_loss`` beside ``info["recon"] = recon_loss.item()``: what is kept, and one of the others."""
    if "item()" not in rule.source.text and "detach()" not in rule.source.text:
        return
    for function in rule.flow.scope.functions.values():
        for holder, kept in _records(function).items():
            freed = [each for each in kept if _is_freed(each)]
            if len(freed) < _BESIDE or _is_freed_at_once(rule, function, holder):
                continue
            for each in kept:
                if isinstance(each, cst.Name) and _has_history(rule, function, each):
                    yield each, freed[0]


def _records(function: Function) -> dict[str, list[cst.BaseExpression]]:
    """What is kept under the constant keys of each dictionary of a function, by its name or by where it stands."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Subscript):
            if holder := dotted(node.targets[0].target.value):
                found.setdefault(holder, []).append(node.value)
        elif isinstance(node, cst.Assign) and isinstance(node.value, cst.Dict):
            found.setdefault(dotted(node.targets[0].target), []).extend(_entries(node.value))
        elif isinstance(node, cst.Return) and isinstance(node.value, cst.Dict):
            found[f"return {len(found)}"] = _entries(node.value)
    return found


def _entries(node: cst.Dict) -> list[cst.BaseExpression]:
    return [each.value for each in node.elements if isinstance(each, cst.DictElement)]


def _is_freed(node: cst.BaseExpression) -> bool:
    """``kl_loss.detach().cpu().item()``, ``float(loss)``"""
    if not isinstance(node, cst.Call):
        return False
    if called_name(node) == "float" and len(node.args) == 1:
        return LOSS_NAME.search(last_word(dotted(node.args[0].value))) is not None
    freed = False
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        freed = freed or node.func.attr.value in FREEING
        node = node.func.value
    return freed and LOSS_NAME.search(last_word(dotted(node))) is not None


def _has_history(rule: Rule, function: Function, name: cst.Name) -> bool:
    """Whether a loss is a part of a sum above, which is what goes backward, and nothing has freed it since."""
    value = rule.flow.value(name)
    if LOSS_NAME.search(name.value) is None or value.kind in (DATA, ARRAY, NONE) or value.tracked is False:
        return False
    if under_no_grad(rule.flow, name) or name.value in function.param_names:
        return False
    added = False
    for node in tree.walk(function.node.body):
        if not rule.source.comes_before(node, name):
            continue
        if isinstance(node, cst.Assign) and any(dotted(each.target) == name.value for each in node.targets):
            if _is_freed(node.value):
                return False  # kl_loss = kl_loss.item()
        elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
            added = added or name.value in _terms(node)
        elif isinstance(node, cst.AugAssign) and LOSS_NAME.search(last_word(dotted(node.target))):
            added = added or name.value in _terms(node.value)
    return added


def _terms(node: cst.BaseExpression) -> set[str]:
    """The names in a sum: those of its terms, and their factors."""
    if isinstance(node, cst.BinaryOperation):
        return _terms(node.left) | _terms(node.right)
    return {dotted(node)}


def _is_freed_at_once(rule: Rule, function: Function, holder: str) -> bool:
    """``{key: float(value) for key, value in info.items()}``, ``info["gen"].backward()``"""
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Attribute) and node.attr.value in ("items", "values", "backward"):
            of = node.value.value if isinstance(node.value, cst.Subscript) else node.value
            if dotted(of) == holder:
                return True
    return False
