"""Whose sizes or type a factory takes: `x` of `torch.zeros(x.size(0), dtype=x.dtype)`, also by names given to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted, names_bound
from devlint.flow.scope import Function
from devlint.flow.value import ARRAY, LIST, Value
from devlint.rule import Rule

_NUMBERS = frozenset({"int", "max", "min", "round", "len", "abs", "sum"})


class Sizes:
    """What gives the sizes of what the functions of a file make; ``is_open`` judges what is asked for them."""

    def __init__(self, rule: Rule, is_open: Callable[[Function, cst.BaseExpression], bool]) -> None:
        self._rule, self._is_open = rule, is_open
        self._names: dict[Function, dict[str, str]] = {}

    def givers(self, function: Function, factory: cst.Call) -> set[str]:
        """The code of each thing whose sizes or type a factory in a function takes: ``action`` of
        ``torch.randn(action.shape)``."""
        found: set[str] = set()
        args = [*factory.args, *_spread(self._rule, factory)]
        for part in (each for arg in args for each in tree.walk(arg.value)):
            if isinstance(part, cst.Name):
                named = self._named(function).get(part.value)
                found |= {named} if named is not None else set()
            elif isinstance(part, cst.ListComp | cst.GeneratorExp):
                gone_through = self._giver(function, part, {})
                found |= {gone_through} if gone_through is not None else set()
            else:
                measured = _measured(part)
                if measured is not None and self._is_open(function, measured):
                    found.add(code_of(self._rule, measured))
        rows = {
            dotted(part.target): code_of(self._rule, part.iter)
            for arg in factory.args
            for part in tree.walk(arg.value)
            if isinstance(part, cst.CompFor) and self._is_gone_through(function, part)
        }
        return {rows.get(code, code) for code in found}

    def _is_gone_through(self, function: Function, node: cst.CompFor) -> bool:
        """Whether a comprehension goes through what may be tensors: ``sum(block.size(0) for block in blocks)``."""
        if not isinstance(node.iter, cst.Name | cst.Attribute):
            return False
        value = self._rule.flow.value(node.iter)
        held = value.items if value.kind == LIST else None
        if self._is_open(function, node.iter) or (isinstance(held, Value) and not held.place.is_host):
            return True
        return not value.place.is_host and value.kind != ARRAY and _fills(function, dotted(node.iter))

    def _named(self, function: Function) -> dict[str, str]:
        """The names that a function gives to the sizes of something, and of what; not those that it binds to something
        else, too."""
        if function not in self._names:
            found: dict[str, str] = {}
            others: set[str] = set()
            for target, value in _bindings(function):
                names = names_bound(target)
                code = self._giver(function, value, found) if value is not None else None
                others |= {name for name in names if code is None or found.get(name, code) != code}
                found |= dict.fromkeys(names, code) if code is not None else {}
            self._names[function] = {name: code for name, code in found.items() if name not in others}
        return self._names[function]

    def _giver(self, function: Function, node: cst.BaseExpression, known: dict[str, str]) -> str | None:
        """What an expression gives sizes of: ``x`` for ``x.shape``, ``x.size(0) // 2``, ``list(x.shape[:2])``."""
        if isinstance(node, cst.Attribute):
            measured = _measured(node)
            if measured is None or node.attr.value == "dtype" or not self._is_open(function, measured):
                return None
            return code_of(self._rule, measured)
        if isinstance(node, cst.Name):
            return known.get(node.value)
        if isinstance(node, cst.Subscript):
            return self._giver(function, node.value, known)
        if isinstance(node, cst.BinaryOperation):
            return self._giver(function, node.left, known) or self._giver(function, node.right, known)
        if isinstance(node, cst.ListComp | cst.GeneratorExp):
            rows = node.for_in
            asks = any(
                _measured(part) is not None and dotted(_measured(part)) == dotted(rows.target)
                for part in tree.walk(node.elt)
            )
            return code_of(self._rule, rows.iter) if asks and self._is_gone_through(function, rows) else None
        if isinstance(node, cst.Call) and dotted(node.func) in ("list", "tuple", *_NUMBERS):
            given = (self._giver(function, arg.value, known) for arg in node.args)
            return next((each for each in given if each is not None), None)
        return self._giver(function, node.func, known) if isinstance(node, cst.Call) else None


def code_of(rule: Rule, node: cst.BaseExpression) -> str:
    """Code with one sort of quotes: ``site['value']`` is ``site["value"]``."""
    return rule.code(node).replace("'", '"')


def _spread(rule: Rule, factory: cst.Call) -> list[cst.Arg]:
    """What sizes it is brought to at once: ``torch.arange(n)[None].expand(x.size(0), -1)``"""
    found: list[cst.Arg] = []
    node: cst.CSTNode = factory
    above = rule.parent(node)
    while isinstance(above, cst.Attribute | cst.Call | cst.Subscript) and not isinstance(node, cst.Arg):
        if isinstance(above, cst.Call) and above.func is node and called_name(above) in _SPREADS:
            found += [arg for arg in above.args if not arg.star]
        node, above = above, rule.parent(above)
    return found


_SPREADS = frozenset("expand repeat view reshape tile expand_as view_as".split())


def _measured(node: cst.CSTNode) -> cst.BaseExpression | None:
    """``x`` of ``x.shape``, ``x.size``, ``x.dtype``."""
    if not isinstance(node, cst.Attribute) or node.attr.value not in ("shape", "size", "dtype"):
        return None
    return node.value if isinstance(head_of(node.value), cst.Name) else None


def _fills(function: Function, path: str) -> bool:
    """``for block in blocks: found[i : i + n] = block``: no array can be put into a tensor."""
    return any(
        isinstance(put, cst.Assign)
        and isinstance(put.targets[0].target, cst.Subscript)
        and dotted(put.value) in names_bound(loop.target)
        for loop in tree.walk(function.node.body)
        if isinstance(loop, cst.For)
        and any(dotted(part) == path for part in tree.walk(loop.iter) if isinstance(part, cst.Name | cst.Attribute))
        for put in tree.walk(loop.body)
    )


def head_of(node: cst.BaseExpression) -> cst.BaseExpression:
    """``batch`` of ``batch.x``, ``batch["x"]``."""
    while isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
    return node


def _bindings(function: Function) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression | None]]:
    """What a function binds, with what to, where that is one value: ``b, n = x.size(0), 4`` are two."""
    for node in tree.walk(function.node.body):
        if type(node) is cst.Assign:
            yield from _pairs(node.targets[0].target, node.value)
        elif type(node) in _ANEW and isinstance(node, cst.AugAssign | cst.AnnAssign | cst.For | cst.NamedExpr):
            yield node.target, None


_ANEW = frozenset({cst.AugAssign, cst.AnnAssign, cst.For, cst.NamedExpr})


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """``x, y = x.to(device), y``: each target with what it is bound to, as far as that is written out."""
    if isinstance(target, cst.Tuple | cst.List):
        values = [value] * len(target.elements)
        if isinstance(value, cst.Tuple | cst.List) and len(value.elements) == len(target.elements):
            values = [element.value for element in value.elements]
        for element, part in zip(target.elements, values, strict=True):
            yield from _pairs(element.value, part)
    else:
        yield target, value
