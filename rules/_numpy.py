"""Whether an array of numpy's is float64, by how the function around makes it."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.rule import Rule

#: What these make is float64 where no dtype is given.
_MAKERS = frozenset(
    f"numpy.{name}"
    for name in (
        "linspace logspace geomspace zeros ones empty eye identity hanning hamming blackman kaiser bartlett "
        "random.rand random.randn random.random random.uniform random.normal random.standard_normal"
    ).split()
)
#: Functions and methods that keep the dtype of what they are given.
_KEEP = frozenset(
    "copy reshape ravel flatten round transpose squeeze flip ascontiguousarray clip sqrt exp log cumprod cumsum".split()
)
_FLOAT64 = frozenset({"float", "numpy.float64", "numpy.double", "numpy.float_"})
_DEEP = 8


def is_float64(rule: Rule, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether an expression surely is a float64 array, on each path that leads to it."""
    if depth > _DEEP:
        return False
    if isinstance(node, cst.Subscript):
        return is_float64(rule, node.value, depth + 1)  # times[::-1]
    if isinstance(node, cst.Name):
        values = _reaching(rule, node)
        return values is not None and all(is_float64(rule, value, depth + 1) for value in values)
    if not isinstance(node, cst.Call):
        return False
    name = rule.flow.scope.qualified(node.func)
    dtype = next((arg.value for arg in node.args if arg.keyword is not None and arg.keyword.value == "dtype"), None)
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "astype":
        given = dtype or (node.args[0].value if node.args else None)
        return given is not None and _says_float64(rule, given)
    if dtype is not None:
        return name.startswith("numpy.") and _says_float64(rule, dtype)
    if name in _MAKERS:
        # np.zeros(n, np.float32)
        return all(arg.star == "" for arg in node.args) and not (len(node.args) > 1 and name in _TAKE_DTYPE_SECOND)
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in _KEEP and not name.startswith("numpy."):
        return is_float64(rule, node.func.value, depth + 1)
    if name.startswith("numpy.") and name.rpartition(".")[2] in _KEEP and node.args:
        return is_float64(rule, node.args[0].value, depth + 1)
    return False


_TAKE_DTYPE_SECOND = frozenset({"numpy.zeros", "numpy.ones", "numpy.empty", "numpy.identity"})


def _says_float64(rule: Rule, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.SimpleString):
        return node.evaluated_value in ("float64", "double", "float", "f8")
    return rule.flow.scope.qualified(node) in _FLOAT64


def _reaching(rule: Rule, name: cst.Name) -> list[cst.BaseExpression] | None:
    """The values that a name may hold there, by the assignments above it; ``None`` where not all are known."""
    parents = rule.source.parents
    child: cst.CSTNode = name
    above = parents.get(name)
    found: list[cst.BaseExpression] = []
    while above is not None and not isinstance(above, cst.FunctionDef | cst.Lambda | cst.ClassDef):
        if isinstance(above, cst.For | cst.While):
            return None  # what a later round brings
        if isinstance(above, cst.IndentedBlock | cst.Module):
            before = above.body[: next(i for i, each in enumerate(above.body) if each is child)]
            if _last(before, name.value, found):
                return found
        child, above = above, parents.get(above)
    return None


def _last(block: Sequence[cst.CSTNode], name: str, found: list[cst.BaseExpression]) -> bool:
    """Add what a block leaves in a name; whether no path through it leaves what the name held before."""
    for statement in reversed(block):
        if isinstance(statement, cst.SimpleStatementLine):
            for small in reversed(statement.body):
                if isinstance(small, cst.Assign) and any(dotted(each.target) == name for each in small.targets):
                    found.append(small.value)
                    return True
                if isinstance(small, cst.Raise | cst.Return):
                    return True
        elif isinstance(statement, cst.If):
            if _of_branches(statement, name, found):
                return True
        elif any(isinstance(node, cst.AssignTarget) and dotted(node.target) == name for node in tree.walk(statement)):
            found.append(cst.Name(name))  # with open(file) as f: times = ...  is not followed
            return True
    return False


def _of_branches(statement: cst.If, name: str, found: list[cst.BaseExpression]) -> bool:
    each_sets = True
    current: cst.If | cst.Else | None = statement
    while isinstance(current, cst.If):
        each_sets = _last(current.body.body, name, found) and each_sets
        current = current.orelse
    return current is not None and _last(current.body.body, name, found) and each_sets
