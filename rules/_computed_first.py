"""What is computed on the host of nothing but what is made there, and copied to a device then:
``mask = (torch.rand(n, 1) < 0.5).repeat(1, 64).to(x.device)``. The device could have made and computed all of it."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.facts import Move
from devlint.flow.names import dotted, names_bound
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE
from devlint.flow.value import ARRAY, LIST, MODULE, TENSOR, THING, TUPLE
from devlint.rule import Rule
from devlint.rules._made import factory_draws, is_view

#: What is read on the host, or may have been written from there.
_READ = frozenset("item tolist numpy copy_ map_ apply_ set_".split())
#: Legacy types that are given sizes: ``torch.FloatTensor(n, 1)``.
_TYPES = frozenset({"torch.Tensor", "torch.FloatTensor", "torch.LongTensor", "torch.BoolTensor", "torch.ByteTensor"})


def computed_first(rule: Rule, move: Move) -> cst.Call | None:
    """The factory that what a move moves begins with; nothing where anything else goes into it."""
    function = rule.flow.function(move.node)
    if function is None or function.role in (CONSTRUCTOR, HOST_SIDE):
        return None
    chain = _Chain(rule, move)
    made = chain.begin(move.receiver)
    return made if made is not None and chain.computes and not chain.is_read else None


class _Chain:
    def __init__(self, rule: Rule, move: Move) -> None:
        self.rule, self.move = rule, move
        self.computes = self.is_read = False
        self._names: set[str] = set()
        self._statement = rule.enclosing(move.node, cst.BaseSmallStatement)

    def begin(self, node: cst.BaseExpression) -> cst.Call | None:
        """The first factory of an expression that is made of factories' results and numbers alone."""
        if isinstance(node, cst.Name):
            return self._of_name(node)
        if isinstance(node, cst.Subscript | cst.Attribute):
            return self.begin(node.value) if is_view(node) else None
        if isinstance(node, cst.UnaryOperation):
            self.computes = True
            return self.begin(node.expression)
        if isinstance(node, cst.BinaryOperation):
            self.computes = True
            return self._of_parts([node.left, node.right])
        if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
            self.computes = True
            return self._of_parts([node.left, node.comparisons[0].comparator])
        return self._of_call(node) if isinstance(node, cst.Call) else None

    def _of_call(self, node: cst.Call) -> cst.Call | None:
        flow, name = self.rule.flow, self.rule.flow.name_of(node)
        if factory_draws(flow, node) is not None and name not in table.LIKE:
            return node
        given = [arg.value for arg in node.args if not arg.star]
        if name in _TYPES:
            sizes = all(flow.value(each).kind not in (LIST, TUPLE, ARRAY, TENSOR) for each in given)
            return node if len(given) > 1 and sizes else None  # torch.FloatTensor(rows) holds what Python knows
        if name in table.FUNCTIONS or name in table.LIKE:
            self.computes = True
            return self._of_parts(given)
        if name or not isinstance(node.func, cst.Attribute) or node.func.attr.value not in _METHODS:
            return None
        if any(arg.keyword is not None and arg.keyword.value == "generator" for arg in node.args):
            return None  # torch.empty(n).normal_(generator=g): the generator is where it is
        self.computes = True
        made = self.begin(node.func.value)
        return made if made is not None and all(self._fits(each) for each in given) else None

    def _of_parts(self, parts: list[cst.BaseExpression]) -> cst.Call | None:
        made = [self.begin(part) for part in parts]
        fits = all(one is not None or self._fits(part) for one, part in zip(made, parts, strict=True))
        return next((each for each in made if each is not None), None) if fits else None

    def _fits(self, node: cst.BaseExpression) -> bool:
        """A number, a size, a type, or what is made likewise."""
        kind = self.rule.flow.value(node).kind
        if kind in (TENSOR, THING, ARRAY, MODULE, LIST):
            return self.begin(node) is not None
        return True

    def _of_name(self, node: cst.Name) -> cst.Call | None:
        rule, function = self.rule, self.rule.flow.function(node)
        if function is None or node.value in function.param_names or node.value in function.items_set:
            return None  # mask[i] = len(row) > 3: it is filled on the host
        if node.value in self._names:
            return None  # cut = mask[:n]; mask = cut.repeat(2, 1)   begins with itself
        values: list[cst.BaseExpression] = []
        for each in tree.walk(function.node.body):
            if isinstance(each, cst.Assign) and any(node.value in names_bound(t.target) for t in each.targets):
                if each is self._statement or not rule.source.comes_before(each, self.move.node):
                    continue
                if not isinstance(each.targets[0].target, cst.Name):
                    return None
                values.append(each.value)
            elif isinstance(each, cst.For | cst.AugAssign | cst.NamedExpr) and node.value in names_bound(each.target):
                return None
            elif isinstance(each, cst.Attribute) and each.attr.value in _READ and dotted(each.value) == node.value:
                self.is_read = True
        self._names.add(node.value)
        made: cst.Call | None = None
        for value in values:
            # mask = mask.repeat(1, 4)   goes on with what is known
            goes_on = tree.named(value, node.value)
            made = (self.begin(value) if not goes_on else self._again(value, node.value, made)) or made
            if made is None:
                break
        self._names.discard(node.value)
        return made

    def _again(self, value: cst.BaseExpression, name: str, made: cst.Call | None) -> cst.Call | None:
        """``mask = mask.float() * 2``: nothing but numbers is added."""
        others = [
            part
            for part in tree.walk(value)
            if isinstance(part, cst.Name) and part.value != name and self.rule.flow.value(part).kind in (TENSOR, THING)
        ]
        self.computes = True
        return made if not others else None


_METHODS = frozenset(table.METHODS) | {"uniform_", "normal_", "random_", "bernoulli_", "exponential_", "type", "to"}
