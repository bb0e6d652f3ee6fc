"""Matrix products of integers, for which CUDA has no kernels: what takes part in them is not mended by its device."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name
from devlint.rule import Rule

#: ``"addmm_cuda" not implemented for 'Long'``
_INTEGERS = frozenset(f"torch.{name}" for name in "int8 uint8 int16 short int32 int int64 long".split())
_CASTS = frozenset({"int", "long", "short"})
_PRODUCTS = frozenset("matmul mm bmm addmm baddbmm einsum linear".split())


def makes_integers(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether code says that it makes a tensor of integers: ``torch.ones(3, dtype=torch.int32)``, ``rows.long()``."""
    for part in tree.walk(node):
        if isinstance(part, cst.Attribute) and rule.flow.scope.qualified(part) in _INTEGERS:
            return True
        if isinstance(part, cst.Call) and isinstance(part.func, cst.Attribute) and part.func.attr.value in _CASTS:
            return True
    return False


def has_products(node: cst.CSTNode) -> bool:
    """Whether matrices are multiplied there: ``torch.matmul(rows, ones)``, ``rows @ ones``."""
    return any(map(is_product, tree.walk(node)))


def is_product(node: cst.CSTNode) -> bool:
    """``torch.matmul(rows, ones)``, ``rows @ ones``, ``F.linear(x, ones)``"""
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, cst.MatrixMultiply)
    return isinstance(node, cst.Call) and called_name(node) in _PRODUCTS
