"""Modules of a plain container that are registered by way of another one, or under names of their own."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted, names_bound, target_names, targets_in
from devlint.flow.scope import DEVICE_SIDE, Class, Function
from devlint.rule import Rule

#: Torch's own containers, which register what they are given.
CONTAINERS = frozenset(
    f"torch.nn.{name}" for name in ("ModuleList", "ModuleDict", "Sequential", "ParameterList", "ParameterDict")
)
_PASSES = frozenset("list tuple dict set iter zip enumerate reversed sorted sum filter chain OrderedDict".split())
_PASSES_OF = frozenset("items values copy from_iterable".split())


def is_gathered(rule: Rule, cls: Class, path: str) -> bool:
    """Whether a method puts what is in the container into one of torch's, under another name, or takes it apart:

    rows = []
    for step in self.steps:
        rows += [step, nn.ELU()]
    self.whole = nn.Sequential(*rows)

    first, second = self.steps
    self.first, self.second = first, second
    """
    return any(
        _Carried(rule, method, path).is_registered()
        for owner in (*cls.lineage, *cls.descendants)
        for method in owner.methods.values()
        if method.role != DEVICE_SIDE  # def forward(self, x): return nn.Sequential(*self.steps[:2])(x)
    )


class _Carried:
    """The names by which a method has what is in the container."""

    def __init__(self, rule: Rule, method: Function, path: str) -> None:
        self.rule = rule
        self.nodes = list(tree.walk(method.node.body))
        self.assigns = [node for node in self.nodes if isinstance(node, cst.Assign)]
        self.names = {path}
        for assign in self.assigns:
            if isinstance(assign.value, cst.Name) and any(dotted(each.target) == path for each in assign.targets):
                self.names.add(assign.value.value)  # self.steps = steps
        known = 0
        while known != len(self.names):
            known = len(self.names)
            for node in self.nodes:
                if isinstance(node, cst.Assign) and self.carries(node.value):
                    self.names.update(target.target.value for target in node.targets if type(target.target) is cst.Name)
                elif isinstance(node, cst.AugAssign) and self.carries(node.value):
                    self.names |= names_bound(node.target)  # rows += [step, nn.ELU()]

    def is_registered(self) -> bool:
        return any(
            isinstance(node, cst.Call)
            and self.rule.flow.name_of(node) in CONTAINERS
            and any(self.carries(arg.value) for arg in node.args)
            for node in self.nodes
        ) or any(self._takes_apart(assign) for assign in self.assigns)

    def carries(self, node: cst.CSTNode) -> bool:
        """Whether an expression holds what is in the container, and does not call it: ``layer(x)``."""
        if isinstance(node, cst.Name | cst.Attribute):
            return dotted(node) in self.names or (isinstance(node, cst.Name) and self._is_of_loop(node))
        if isinstance(node, cst.List | cst.Tuple | cst.Set | cst.Dict):
            return any(self.carries(each.value) for each in node.elements)
        if isinstance(node, cst.Subscript):
            return self.carries(node.value)  # rows[:-1]
        if isinstance(node, cst.BinaryOperation):
            return self.carries(node.left) or self.carries(node.right)
        if isinstance(node, cst.ListComp | cst.SetComp | cst.GeneratorExp):
            return self.carries(node.elt)  # not [nn.ELU() for _ in self.steps]
        if isinstance(node, cst.DictComp):
            return self.carries(node.value)
        if not isinstance(node, cst.Call):
            return False
        if called_name(node) in _PASSES and any(self.carries(arg.value) for arg in node.args):
            return True
        func = node.func
        return isinstance(func, cst.Attribute) and func.attr.value in _PASSES_OF and self.carries(func.value)

    def _is_of_loop(self, name: cst.Name) -> bool:
        """``step`` of ``for step in self.steps:``, and of ``[step for pair in zip(...) for step in pair]``"""
        loop = self.rule.enclosing(name, *_LOOPS)
        while loop is not None:
            over: cst.For | cst.CompFor | None = loop if isinstance(loop, cst.For) else loop.for_in
            while over is not None and name not in tree.walk(over.iter):  # for step in step.parts
                for names, of in bound_to(over.target, over.iter):
                    if name.value in names:
                        return self.carries(of)
                over = over.inner_for_in if isinstance(over, cst.CompFor) else None
            loop = self.rule.enclosing(loop, *_LOOPS)
        return False

    def _takes_apart(self, assign: cst.Assign) -> bool:
        """``first, second = self.steps``, where each of them becomes an attribute."""
        target = assign.targets[0].target
        if not isinstance(target, cst.Tuple | cst.List) or not self._is_whole(assign.value):
            return False
        kept = {name for each in self.assigns for name in _kept(each)}
        parts = [dotted(each.value) for each in target.elements]
        return all(part.startswith("self.") or part in kept for part in parts)

    def _is_whole(self, node: cst.BaseExpression) -> bool:
        """``self.steps`` and ``list(self.steps)``, not ``self.steps[0], self.norm``."""
        return isinstance(node, cst.Name | cst.Attribute | cst.Call) and self.carries(node)


def _kept(assign: cst.Assign) -> set[str]:
    """The names that an assignment puts on attributes: ``self.first = first``, ``self.a, self.b = a, b``."""
    found = set()
    for each in assign.targets:
        targets, value = targets_in(each.target), assign.value
        values = [part.value for part in value.elements] if isinstance(value, cst.Tuple) else [value]
        if len(targets) == len(values):
            found |= {dotted(v) for t, v in zip(targets, values, strict=True) if dotted(t).startswith("self.")}
    return found - {""}


def bound_to(target: cst.BaseExpression, of: cst.BaseExpression) -> Iterator[tuple[set[str], cst.BaseExpression]]:
    """The names that a loop binds, and what each is an element of: ``for layer, norm in zip(layers, norms)``."""
    if isinstance(target, cst.Tuple) and isinstance(of, cst.Call) and not any(arg.star for arg in of.args):
        parts = [element.value for element in target.elements]
        given = [arg.value for arg in of.args]
        if dotted(of.func) == "enumerate" and len(parts) == 2 and given:
            yield from bound_to(parts[1], given[0])
            return
        if dotted(of.func) == "zip" and len(parts) == len(given):
            for part, each in zip(parts, given, strict=True):
                yield from bound_to(part, each)
            return
    bound: set[str] = set()
    target_names(target, bound)
    yield bound, of


_LOOPS = (cst.For, cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)
