"""Distributions that are built of numbers, whatever these are called: `Normal(0, std)` with ``std=0.1``. What they draw
is on the host, wherever the model that keeps them is: no distribution is a module."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import dotted, last_word
from devlint.flow.scope import Class, Function
from devlint.rule import Rule

_DRAWS = frozenset({"sample", "rsample"})
_NUMBERS = (cst.Integer, cst.Float)


def drawn_from(rule: Rule, node: cst.BaseExpression) -> cst.Call | None:
    """The distribution that a call draws rows from, ``self.noise.sample(x.shape)``, where that is on the host for sure;
    nothing for single numbers: ``noise.sample()``."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or node.func.attr.value not in _DRAWS:
        return None
    size = node.args[0].value if node.args else None
    if size is None or (isinstance(size, cst.Tuple | cst.List) and not size.elements):
        return None
    made = _made(rule, node, node.func.value)
    return made if made is not None and _is_of_numbers(rule, made) else None


def is_distribution(rule: Rule, call: cst.Call) -> bool:
    """``torch.distributions.Normal(0, 1)``, also as ``torch.distributions.normal.Normal``, or pyro's."""
    name = rule.flow.name_of(call)
    return (
        name.startswith(("torch.distributions.", "pyro.distributions."))
        and f"torch.distributions.{last_word(name)}" in table.DISTRIBUTIONS
    )


def _stored(rule: Rule, cls: Class, name: str) -> list[cst.BaseExpression | None]:
    statements = (statement for statement, _ in rule.flow.stores(cls, name))
    return [each.value if isinstance(each, cst.Assign | cst.AnnAssign) else None for each in statements]


def _made(rule: Rule, node: cst.Call, holder: cst.BaseExpression) -> cst.Call | None:
    """What is called a name, where one statement binds it: of the function, of the file, of the object."""
    if isinstance(holder, cst.Call):
        return holder
    path, function = dotted(holder), rule.flow.function(node)
    if path.startswith("self."):
        cls = function.cls if function is not None else None
        values = _stored(rule, cls, path[5:]) if cls is not None else []
        # self.noise.loc = self.noise.loc.to(device)
        if any(dotted(each.target).startswith(f"{path}.") for each in rule.source.nodes_of(cst.AssignTarget)):
            return None
    else:
        values = [
            assign.value
            for assign in rule.source.nodes_of(cst.Assign)
            if dotted(assign.targets[0].target) == path and rule.flow.function(assign) in (function, None)
        ]
        if function is not None and path in function.param_names:
            return None
    return values[0] if len(values) == 1 and isinstance(values[0], cst.Call) else None


def _is_of_numbers(rule: Rule, made: cst.Call) -> bool:
    if not is_distribution(rule, made) or not made.args:
        return False
    function = rule.flow.function(made)
    given = [arg.value for arg in made.args if arg.keyword is None or arg.keyword.value != "validate_args"]
    return not any(arg.star for arg in made.args) and all(_is_number(rule, function, each) for each in given)


def _is_number(rule: Rule, function: Function | None, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.UnaryOperation):
        return _is_number(rule, function, node.expression)
    if isinstance(node, cst.BinaryOperation):
        return _is_number(rule, function, node.left) and _is_number(rule, function, node.right)
    if isinstance(node, cst.Call):
        if rule.flow.factory(node) is not None:  # Normal(torch.zeros(3), torch.ones(3))
            return rule.flow.value(node).place.is_host
        return dotted(node.func) in ("float", "int") or rule.flow.name_of(node).startswith("math.")
    if isinstance(node, cst.Attribute) and dotted(node).startswith("self.") and function is not None:
        values = _stored(rule, function.cls, node.attr.value) if function.cls is not None else []
        # self.std = std, of the same constructor
        return len(values) == 1 and values[0] is not None and _is_number(rule, function, values[0])
    if isinstance(node, cst.Name) and function is not None:
        param = function.param(node.value)
        if param is None or node.value in function.assigned:
            return _is_constant(rule, node.value)
        annotated = dotted(param.annotation.annotation) if param.annotation is not None else ""
        return annotated in ("float", "int") or isinstance(_positive(param.default), _NUMBERS)
    return isinstance(node, _NUMBERS)


def _positive(node: cst.BaseExpression | None) -> cst.BaseExpression | None:
    return node.expression if isinstance(node, cst.UnaryOperation) else node


def _is_constant(rule: Rule, name: str) -> bool:
    """``STD = 0.1`` at the top of a file"""
    values = [
        assign.value
        for assign in rule.source.nodes_of(cst.Assign)
        if any(isinstance(each.target, cst.Name) and each.target.value == name for each in assign.targets)
    ]
    return bool(values) and all(isinstance(_positive(each), _NUMBERS) for each in values)


class Drawn:
    """What the functions of a file draw so, and how they call it."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._names: dict[Function, dict[str, cst.Call]] = {}

    def of(self, function: Function, node: cst.BaseExpression) -> cst.Call | None:
        """The call that has drawn what an expression is."""
        if isinstance(node, cst.Name):
            return self._named(function).get(node.value)
        if isinstance(node, cst.BinaryOperation):  # scale * noise.sample(x.shape)
            one, other = self.of(function, node.left), self.of(function, node.right)
            return one or other
        return node if isinstance(node, cst.Call) and drawn_from(self._rule, node) is not None else None

    def _named(self, function: Function) -> dict[str, cst.Call]:
        """The names that a function gives to what it draws, and to nothing else."""
        if function not in self._names:
            found: dict[str, cst.Call] = {}
            bound: dict[str, int] = {}
            for node in tree.walk(function.node.body):
                if isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Name):
                    name = node.targets[0].target.value
                    bound[name] = bound.get(name, 0) + 1
                    if isinstance(node.value, cst.Call) and drawn_from(self._rule, node.value) is not None:
                        found[name] = node.value
            self._names[function] = {name: call for name, call in found.items() if bound[name] == 1}
        return self._names[function]
