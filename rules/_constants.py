"""What expressions may be, as far as the constants that a file names make them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from itertools import product
from math import inf

import libcst as cst

from devlint.flow import torch_table as table
from devlint.flow.names import dotted, names_bound
from devlint.flow.scope import Function
from devlint.outline import VARIABLE
from devlint.rule import Rule

#: A value that the code does not tell. It is true, so that only what is surely false is not.
ANYTHING = object()
_NAMED: dict[str, object] = {"True": True, "False": False, "None": None}
_INFINITE = frozenset({"math.inf", "numpy.inf", "torch.inf"})
_SAME_TYPE = {"half": "float16", "float": "float32", "double": "float64"}
#: `DTYPE = torch.bfloat16  # for all runs`
_IS_DTYPE = re.compile(r"\w+(?: *:[^=\n]*)? *= *(torch\.\w+)\s*(?:#.*)?\s*")
_COMPARES: dict[type, Callable[[object, object], bool]] = {
    cst.Equal: operator.eq,
    cst.Is: operator.eq,
    cst.NotEqual: operator.ne,
    cst.IsNot: operator.ne,
}


def values_of(rule: Rule, node: cst.BaseExpression, seen: frozenset[str] = frozenset()) -> set[object]:
    """All that an expression may be, with :data:`ANYTHING` for what is not known; never empty."""
    if isinstance(node, cst.Integer | cst.Float | cst.SimpleString):
        return {node.evaluated_value}
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        return {value if value is ANYTHING else not value for value in values_of(rule, node.expression, seen)}
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        compares = _COMPARES.get(type(node.comparisons[0].operator))
        pairs = product(values_of(rule, node.left, seen), values_of(rule, node.comparisons[0].comparator, seen))
        return {ANYTHING if compares is None or ANYTHING in pair else compares(*pair) for pair in pairs}
    if isinstance(node, cst.BooleanOperation):
        pairs = product(values_of(rule, node.left, seen), values_of(rule, node.right, seen))
        return {_decided(pair, by=isinstance(node.operator, cst.Or)) for pair in pairs}
    if isinstance(node, cst.IfExp):
        return _on_accelerator(values_of(rule, node.body, seen) | values_of(rule, node.orelse, seen))
    if isinstance(node, cst.Call):
        text = rule.code(node.args[0].value).strip("\"'").lower() if len(node.args) == 1 else ""
        return {inf if dotted(node.func) == "float" and text in ("inf", "infinity") else ANYTHING}
    package, _, name = rule.flow.scope.qualified(node).rpartition(".")
    if not package and name in _NAMED:
        return {_NAMED[name]}
    if package == "torch" and name in table.DTYPES:
        return {f"torch.{_SAME_TYPE.get(name, name)}"}
    if f"{package}.{name}" in _INFINITE:
        return {inf}
    if package and isinstance(node, cst.Name | cst.Attribute):
        return _elsewhere(rule, f"{package}.{name}")
    return _named(rule, node, seen) if isinstance(node, cst.Name) and name not in seen else {ANYTHING}


def _decided(pair: tuple[object, object], by: bool) -> object:
    """What two values are together: `amp and fast` is false where either is, and `amp or fast` true."""
    if any(value is not ANYTHING and bool(value) is by for value in pair):
        return by
    return ANYTHING if ANYTHING in pair else not by


def _on_accelerator(values: set[object]) -> set[object]:
    # device = "cuda" if torch.cuda.is_available() else "cpu"
    return values - {"cpu"} or values


def _named(rule: Rule, node: cst.Name, seen: frozenset[str]) -> set[object]:
    """What the function, or the file, binds a name to."""
    name, function = node.value, rule.flow.function(node)
    while function is not None and (name in function.globals or name not in function.assigned | function.param_names):
        function = function.outer
    param = function.param(name) if function is not None else None
    if param is not None and param.default is not None:
        # def train(net, dtype=torch.bfloat16): ...   unless somebody says otherwise
        return {ANYTHING, *values_of(rule, param.default, seen | {name})}
    if param is not None or name in rule.flow.scope.imports:
        return {ANYTHING}
    values: set[object] = set()
    for value in _bound(rule, name, function):
        values |= values_of(rule, value, seen | {name}) if value is not None else {ANYTHING}
    if function is None and ("exec(" in rule.source.text or "globals()" in rule.source.text):
        values.add(ANYTHING)  # exec(open("settings.py").read())   is there to set them
    return _on_accelerator(values) or {ANYTHING}


def _elsewhere(rule: Rule, qualified: str) -> set[object]:
    """What another file of the project binds a name to, where that is as plain as `AMP = False`; others may set it."""
    project, found = rule.flow.project, rule.flow.definition(qualified)
    if project is None or found is None or found.kind != VARIABLE:
        return {ANYTHING}
    if project.file_says(found.path, f"unset {found.name}"):
        return {ANYTHING, False}
    unit = project.unit(found)
    dtype = _IS_DTYPE.fullmatch(unit.flow.source.text) if unit is not None else None
    return {ANYTHING, *(values_of(rule, cst.parse_expression(dtype[1])) if dtype is not None else ())}


def _bound(rule: Rule, name: str, function: Function | None) -> Iterator[cst.BaseExpression | None]:
    """What a function, or the file, binds a name to, by whichever statement; `None` for what is not that plain."""
    nodes_of = rule.source.nodes_of
    for target in nodes_of(cst.AssignTarget):
        assign = rule.parent(target)
        if name in names_bound(target.target) and _is_in(rule, target, name, function):
            yield assign.value if isinstance(assign, cst.Assign) and isinstance(target.target, cst.Name) else None
    for annotated in nodes_of(cst.AnnAssign):
        if dotted(annotated.target) == name and annotated.value and _is_in(rule, annotated, name, function):
            yield annotated.value
    binding: list[cst.AugAssign | cst.CompFor | cst.For | cst.NamedExpr] = [
        *nodes_of(cst.AugAssign),
        *nodes_of(cst.CompFor),
        *nodes_of(cst.For),
        *nodes_of(cst.NamedExpr),
    ]
    for node in binding:
        if name in names_bound(node.target) and _is_in(rule, node, name, function):
            yield None


def _is_in(rule: Rule, node: cst.CSTNode, name: str, function: Function | None) -> bool:
    around = rule.flow.function(node)
    return around is function or (function is None and around is not None and name in around.globals)
