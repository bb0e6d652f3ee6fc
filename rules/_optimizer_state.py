"""State that an optimizer makes on the host for a parameter: ``state["seen"] = torch.zeros(p.shape[0])``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted, last_word
from devlint.flow.scope import Class, Function
from devlint.flow.value import TENSOR
from devlint.rule import Rule
from devlint.rules._followed import filled

#: Counts are read on the host, and torch's own are kept there.
_OF_COUNTS = re.compile(r"(^|_)(steps?|count|k|t|iter\w*)$|epoch|lr$|num_")
_HOLDS_STATE = re.compile(r"(^|[._])states?$")
_MADE_LIKE_NUMBERS = frozenset({"torch.tensor", "torch.as_tensor", "torch.scalar_tensor"})


def of_optimizers(rule: Rule) -> Iterator[cst.Call]:
    """The factories in the methods of optimizers whose results are kept as the state of a parameter."""
    for cls in rule.flow.scope.classes.values():
        if not _is_optimizer(cls):
            continue
        for method in cls.methods.values():
            # on_host(p), p.to("cpu"): who offloads the state brings it back
            if "cpu" not in rule.code(method.node):
                yield from _kept(rule, method)


def _is_optimizer(cls: Class) -> bool:
    bases = {last_word(base) for each in cls.lineage for base in each.bases}
    return any(base.endswith("Optimizer") for base in bases) and cls.find_method("step") is not None


def _kept(rule: Rule, method: Function) -> Iterator[cst.Call]:
    for node in tree.walk(method.node.body):
        if isinstance(node, cst.Assign) and isinstance(target := node.targets[0].target, cst.Subscript):
            value = node.value
        elif isinstance(node, cst.Call) and called_name(node) == "append" and isinstance(node.func, cst.Attribute):
            if not isinstance(node.func.value, cst.Subscript) or not node.args:
                continue  # found.append(torch.zeros(3))
            target, value = node.func.value, node.args[0].value
        else:
            continue
        key = target.slice[0].slice
        text = key.value if isinstance(key, cst.Index) else None
        name = str(text.evaluated_value) if isinstance(text, cst.SimpleString) else ""
        if _HOLDS_STATE.search(dotted(filled(target))) and not _OF_COUNTS.search(name):
            yield from _made(rule, value)


def _made(rule: Rule, node: cst.BaseExpression) -> Iterator[cst.Call]:
    """The factories that make what is kept, or each part of it."""
    if isinstance(node, cst.ListComp):
        yield from _made(rule, node.elt)
    elif isinstance(node, cst.List | cst.Tuple):
        for element in node.elements:
            yield from _made(rule, element.value)
    elif isinstance(node, cst.Dict):
        for each in node.elements:
            yield from _made(rule, each.value)
    elif isinstance(node, cst.Call):
        value = rule.flow.value(node)
        made = value.origin
        if value.kind != TENSOR or not value.place.is_host or not isinstance(made, cst.Call):
            return
        is_number = value.zero is True or (value.zero is None and rule.flow.name_of(made) in _MADE_LIKE_NUMBERS)
        if not is_number and any(part is made for part in tree.walk(node)):
            yield made
