"""What is made on the host and then meets what a method, or a function of elsewhere, has made of a tensor:
``shift, scale = self.heads(x); shift + scale * torch.randn(x.size(0), 4)``.

Where that is, the flow does not know: it could not follow the call. What is made of a tensor is where that is, though.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.hypothesis import LOSS_NAME
from devlint.flow.names import annotation_names, called_name, dotted, is_tensor_annotation, names_bound
from devlint.flow.place import UNKNOWN_PLACE
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, Function
from devlint.flow.value import TENSOR, THING, UNKNOWN_KIND
from devlint.rule import Rule
from devlint.rules._derived import Derived
from devlint.rules._drawn import Drawn
from devlint.rules._followed import is_for_host, is_from_host
from devlint.rules._likeness import operations
from devlint.rules._made import made_on_host
from devlint.rules._meetings import (
    is_dead,
    is_of_host,
    is_of_models,
    may_be_handed_there,
    runs_on_host,
    speaks_of_devices,
)
from devlint.rules._sizes import Sizes, head_of

_Maker = Callable[[Function, cst.CSTNode, cst.BaseExpression], "cst.Call | None"]


class BesideMade(NamedTuple):
    """What ``factory`` makes meets ``other`` at ``node``."""

    factory: cst.Call
    node: cst.CSTNode
    other: cst.BaseExpression


def beside_made(rule: Rule, is_meant: Callable[[cst.Call], bool]) -> Iterator[BesideMade]:
    """The factories that make such things; ``is_meant`` judges which are on the host for want of ``device=``."""

    def maker(function: Function, node: cst.CSTNode, operand: cst.BaseExpression) -> cst.Call | None:
        made = _made(rule, function, node, operand)
        return made if made is not None and is_meant(made) else None

    yield from _found(rule, maker)


def beside_plain(rule: Rule) -> Iterator[BesideMade]:
    """What is made on the host by what takes no device, ``torch.cat([torch.Tensor([0]), torch.cumsum(x, 0)])``, or
    drawn from distributions there: ``x + self.noise.sample(x.shape)``."""
    if rule.flow.calls(*table.HOST_FACTORIES):
        yield from beside_made(rule, lambda call: rule.flow.name_of(call) in table.HOST_FACTORIES)
    if "sample(" in rule.source.text and "istributions" in rule.source.text:
        drawn = Drawn(rule)
        yield from _found(rule, lambda function, _, operand: drawn.of(function, operand), anywhere=True)


def _found(rule: Rule, maker: _Maker, *, anywhere: bool = False) -> Iterator[BesideMade]:
    """``anywhere``: whatever is met is taken for a tensor on a device."""
    # who works with arrays may work on the host alone
    may_be_there = is_of_models(rule) or "numpy" not in rule.flow.scope.packages
    if rule.in_tests or runs_on_host(rule) or (is_of_host(rule) and not keeps_tensors(rule)):
        return
    derived = Derived(rule)
    sizes = Sizes(rule, lambda function, node: _is_open(rule, node))
    for node, pairs in _meetings(rule):
        function = rule.flow.function(node)
        if function is None or function.role in (HOST_SIDE, CONSTRUCTOR):
            continue
        for operand, other in pairs:
            made = maker(function, node, operand)
            if made is None or not _is_open(rule, other) or is_dead(rule, node):
                continue
            if not anywhere and rule.flow.value(other).place != UNKNOWN_PLACE:
                continue  # of what is handed in itself, others know more
            roots = derived.of(function, other)
            is_met = _is_surely_there(rule, function, roots)
            if not is_met and _moves_elsewhere(rule, function, roots):
                continue
            if not is_met and not is_for_host(rule, function):
                handed = (
                    may_be_there
                    and _is_handed_in(rule, function, made, roots)
                    and _is_rows(rule, function, made, other, roots, sizes)
                )
                name = dotted(other)
                is_like = (
                    may_be_there and name in sizes.givers(function, made) and not is_from_host(rule, function, name)
                )
                is_taken = anywhere and may_be_there and (roots or name.startswith("self."))
                is_met = handed or is_like or bool(is_taken) or _is_loss(rule, function, other)
            if is_met:
                yield BesideMade(made, node, other)


def _is_surely_there(rule: Rule, function: Function, roots: frozenset[str]) -> bool:
    """Whether callers in the file hand in what they have moved, ``self.loss(scores, y.to(device))``, or the function
    brings something of it to the host afterwards: ``scores = result["scores"].cpu()``."""
    given = {root for root in roots & function.param_names - function.handed_host if not _is_asked(function, root)}
    if any(function.hints.get(root) == "there" for root in given):
        return True
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "cpu"
        and isinstance(call.func.value, cst.Subscript | cst.Attribute)
        and isinstance(head := head_of(call.func.value), cst.Name)
        and head.value in given
        for call in tree.walk(function.node.body)
        if isinstance(call, cst.Call)
    )


def keeps_tensors(rule: Rule) -> bool:
    """Whether a file that is about data, by its path, has to do with what moves all the same:
    ``class Affine(Transform): ... self.scale = nn.Parameter(scale)``."""
    text = rule.source.text
    of_images = not rule.flow.scope.packages.isdisjoint(("PIL", "cv2", "torchvision", "scipy", "pandas"))
    return not of_images and re.search(r"\.register_buffer\(|\bnn\.(Parameter|ModuleList|Linear)\(", text) is not None


def _meetings(rule: Rule) -> Iterator[tuple[cst.CSTNode, list[tuple[cst.BaseExpression, cst.BaseExpression]]]]:
    """Each operation, with the pairs of its operands of which the first may be on the host while the second is not."""
    for node, _, operands in operations(rule):
        yield node, [(one, other) for one in operands for other in operands if one is not other]
    for node in rule.source.nodes_of(cst.Subscript):
        index = node.slice[0].slice if len(node.slice) == 1 else None
        if isinstance(index, cst.Index) and (_is_mask(rule, index.value) or _is_handed_there(rule, index.value)):
            yield node, [(node.value, index.value)]


def _is_handed_there(rule: Rule, node: cst.BaseExpression) -> bool:
    """``torch.eye(n)[labels]``, where a caller hands in what it has moved"""
    function = rule.flow.function(node)
    return isinstance(node, cst.Name) and function is not None and function.hints.get(node.value) == "there"


def _is_mask(rule: Rule, node: cst.BaseExpression) -> bool:
    """``marks == 1``, and what the flow knows for a tensor: no number, nor a text"""
    if isinstance(node, cst.UnaryOperation):
        return _is_mask(rule, node.expression)
    if isinstance(node, cst.Comparison):
        return isinstance(node.comparisons[0].operator, cst.Equal | cst.NotEqual | cst.GreaterThan | cst.LessThan)
    return rule.flow.value(node).kind == TENSOR


def _made(rule: Rule, function: Function, node: cst.CSTNode, operand: cst.BaseExpression) -> cst.Call | None:
    value = rule.flow.value(operand)
    if isinstance(node, cst.AugAssign) and node.target is operand:
        return _made_before(rule, function, operand) if isinstance(operand, cst.Name) else None
    return made_on_host(rule, function, operand) if value.zero is False and value.attr is None else None


def _made_before(rule: Rule, function: Function, name: cst.Name) -> cst.Call | None:
    """``total = torch.tensor(0.0); for x in rows: total += self.loss(x)``: in place, a number has to be there, too."""
    made = None
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Assign) and any(name.value in names_bound(each.target) for each in node.targets):
            if not isinstance(node.value, cst.Call) or rule.flow.factory(node.value) is None:
                return None  # total = total + x
            made = node.value
        elif isinstance(node, cst.For | cst.AnnAssign | cst.NamedExpr) and name.value in names_bound(node.target):
            return None
    return made if made is not None and rule.flow.value(made).place.is_host else None


def _is_open(rule: Rule, node: cst.BaseExpression) -> bool:
    value = rule.flow.value(node)
    return value.kind in (UNKNOWN_KIND, TENSOR, THING) and not value.place.is_host and value.zero is not True


def _is_handed_in(rule: Rule, function: Function, made: cst.Call, roots: frozenset[str]) -> bool:
    """Whether something is made of a tensor that the function was handed, which may be on a device."""
    return any(
        may_be_handed_there(rule, function, made, root)
        and not is_from_host(rule, function, root)
        and is_tensor(rule, function, root)
        and not _is_asked(function, root)
        for root in roots & function.param_names
    )


def _is_asked(function: Function, name: str) -> bool:
    """``if x.is_cuda: ...``: where it is, the function knows"""
    return not function.attributes.get(name, set()).isdisjoint(("is_cuda", "numpy", "tolist"))


def _is_rows(
    rule: Rule, function: Function, made: cst.Call, other: cst.BaseExpression, roots: frozenset[str], sizes: Sizes
) -> bool:
    """Whether something that is made of a tensor is one, too: ``width`` of ``width = widest(x)`` may be a number."""
    if rule.flow.value(other).kind == TENSOR or isinstance(other, cst.Comparison):
        return True
    counted = {
        dotted(arg.value)
        for part in made.args
        for call in tree.walk(part.value)
        if isinstance(call, cst.Call) and dotted(call.func) == "len"
        for arg in call.args
    }
    return not roots.isdisjoint(
        {re.split(r"[.\[]", each, maxsplit=1)[0] for each in sizes.givers(function, made)} | counted
    )


def _is_loss(rule: Rule, function: Function, node: cst.BaseExpression) -> bool:
    """``loss`` of ``loss = self.compare(batch)``, wherever the batch is from."""
    name = dotted(node)
    return (
        LOSS_NAME.search(name) is not None
        and speaks_of_devices(rule)
        and any(
            isinstance(each.value, cst.Call) and called_name(each.value) not in ("item", "float", "cpu", "tolist")
            for each in tree.walk(function.node.body)
            if isinstance(each, cst.Assign) and any(name in names_bound(target.target) for target in each.targets)
        )
    )


def is_tensor(rule: Rule, function: Function, name: str) -> bool:
    """Whether something in a function shows that a parameter is a tensor, or several: a width of ``arange(width)`` is
    none."""
    param = function.param(name)
    if param is None or function.called & {name}:
        return False
    if is_tensor_annotation(param.annotation) or name in function.documented or rule.flow.value(param).is_tensor:
        return True
    if param.annotation is not None and set(annotation_names(param.annotation.annotation)) & PLAIN:
        return False
    if not _OF_TENSORS.isdisjoint(function.attributes.get(name, ())):
        return True
    cls = function.cls
    return cls is not None and cls.is_module and function.name == "forward"


#: Annotations of what is no tensor.
PLAIN = frozenset({"int", "float", "str", "bool", "dict", "Dict", "Callable"})
_OF_TENSORS = (frozenset(table.METHODS) | {"shape", "device", "ndim", "grad"}) - frozenset(
    "copy count index update get items keys values mean sum min max all any format split replace sort repeat "
    "item".split()
)


def _moves_elsewhere(rule: Rule, function: Function, roots: frozenset[str]) -> bool:
    """Whether a function moves anything, but to where one of these is: ``ids = torch.cat(rows).to(device)``."""
    for call in tree.walk(function.node.body):
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
            continue
        if call.func.attr.value in ("to", "cuda", "cpu", "type_as"):
            named = {part.value for arg in call.args for part in tree.walk(arg.value) if isinstance(part, cst.Name)}
            if called_name(call) in ("cuda", "cpu") or ("dtype" not in named and named.isdisjoint(roots)):
                return True
    return False
