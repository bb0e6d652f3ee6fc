"""Matrix products of integers, for which CUDA has no kernels: what takes part in them is not mended by its device."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import called_name, dotted
from devlint.rule import Rule

#: ``"addmm_cuda" not implemented for 'Long'``
_INTEGERS = frozenset(f"torch.{name}" for name in "int8 uint8 int16 short int32 int int64 long".split())
_CASTS = frozenset({"int", "long", "short"})
#: Attributes and methods that leave integers what they are.
_KEEP = table.VIEWS | frozenset("T mT clone contiguous flatten flip repeat reshape".split())
_PRODUCTS = frozenset(
    "addbmm addmm addmv baddbmm bmm dot einsum inner linear matmul mm multi_dot mv tensordot vdot".split()
)


def makes_integers(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether code says that it makes a tensor of integers (``torch.ones(3, dtype=torch.int32)``, ``rows.long()``), or
    multiplies one that is of integers by what it is given: ``bits @ torch.arange(8)``."""
    for part in tree.walk(node):
        if isinstance(part, cst.Attribute) and rule.flow.scope.qualified(part) in _INTEGERS:
            return True
        if isinstance(part, cst.Call) and isinstance(part.func, cst.Attribute) and part.func.attr.value in _CASTS:
            return True
    calls = (part for part in tree.walk(node) if isinstance(part, cst.Call))
    return any(_is_of_integers(rule, call) and _is_multiplied(rule, call) for call in calls)


def has_products(node: cst.CSTNode) -> bool:
    """Whether matrices are multiplied there: ``torch.matmul(rows, ones)``, ``rows @ ones``."""
    return any(map(is_product, tree.walk(node)))


def is_product(node: cst.CSTNode) -> bool:
    """``torch.matmul(rows, ones)``, ``rows @ ones``, ``F.linear(x, ones)``"""
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, cst.MatrixMultiply)
    return isinstance(node, cst.Call) and called_name(node) in _PRODUCTS and not _only_spreads(node)


def _only_spreads(call: cst.Call) -> bool:
    # torch.einsum("i,j->ij", rows, columns)   sums nothing up, so that torch multiplies as `*` does
    first = call.args[0].value if call.args else None
    if called_name(call) != "einsum" or not isinstance(first, cst.SimpleString):
        return False
    given, arrow, asked = str(first.evaluated_value).partition("->")
    return bool(arrow) and set(given) - set(", .") <= set(asked)


def _is_of_integers(rule: Rule, call: cst.Call) -> bool:
    """``torch.arange(8)``, ``torch.randint(2, (3, 4))``, ``torch.tensor([1, 2, 4])``, of no other type."""
    name = rule.flow.name_of(call)
    if name not in ("torch.arange", "torch.randint", "torch.tensor"):
        return False
    if any(arg.keyword is not None and arg.keyword.value == "dtype" for arg in call.args):
        return False
    parts = [part for arg in call.args for part in tree.walk(arg.value)]
    if name == "torch.tensor":
        values = (part for part in parts if isinstance(part, cst.BaseExpression))
        return all(isinstance(value, cst.List | cst.Tuple | cst.Integer) for value in values)
    # torch.arange(0.0, 1.0, 1 / n)
    return not any(isinstance(part, cst.Float | cst.Divide) for part in parts)


def _is_multiplied(rule: Rule, made: cst.BaseExpression) -> bool:
    """Whether a product takes what is made there, or what that and nothing else is bound to, still as integers."""
    above = rule.parent(made)
    while isinstance(above, cst.BaseExpression):
        if is_product(above):
            return True
        if not _keeps_type(above):
            return False
        above = rule.parent(above)
    if isinstance(above, cst.Arg):
        call = rule.parent(above)
        return call is not None and is_product(call)
    path = dotted(above.targets[0].target) if isinstance(above, cst.Assign) else ""
    if not path:
        return False
    function = rule.flow.function(made)
    root = function.node if function is not None and "." not in path else rule.source.module
    bound = [each for each in tree.walk(root) if isinstance(each, cst.AssignTarget) and dotted(each.target) == path]
    return len(bound) == 1 and any(path in _operands(node) for node in tree.walk(root) if is_product(node))


def _keeps_type(node: cst.BaseExpression) -> bool:
    """``2 ** rows``, ``rows.view(-1, 1)``; neither ``rows / 8`` nor ``rows.float()``."""
    if isinstance(node, cst.BinaryOperation):
        with_integer = isinstance(node.left, cst.Integer) or isinstance(node.right, cst.Integer)
        return with_integer and not isinstance(node.operator, cst.Divide)
    if isinstance(node, cst.Call):
        return isinstance(node.func, cst.Attribute)
    return isinstance(node, cst.Attribute) and node.attr.value in _KEEP


def _operands(product: cst.CSTNode) -> Iterator[str]:
    """The paths that a product takes as they are, or seen otherwise: ``base`` of ``bits @ base.view(-1, 1)``."""
    if isinstance(product, cst.BinaryOperation):
        given = [product.left, product.right]
    else:
        call = cst.ensure_type(product, cst.Call)
        given = [arg.value for arg in call.args]
        if isinstance(call.func, cst.Attribute):
            given.append(call.func.value)  # bits.matmul(base)
    for node in given:
        while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and _keeps_type(node.func):
            node = node.func.value
        yield dotted(node)
