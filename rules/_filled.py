"""How much memory a factory fills."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted, last_word
from devlint.flow.scope import CONSTRUCTOR
from devlint.flow.waiting import bound_to
from devlint.rule import Rule
from devlint.rules._switches import sets

#: As many numbers as nobody counts.
_FEW = 64
#: Factories that take sizes, each of which multiplies what is filled.
_SIZED = frozenset("empty zeros ones full rand randn randint".split())


def sizes(factory: cst.Call) -> list[cst.BaseExpression]:
    """The sizes that a factory is called with, in a list or not; with what fills it, where that stands by its place."""
    given = [arg.value for arg in factory.args if arg.keyword is None or arg.keyword.value == "size"]
    if given and isinstance(given[0], cst.List | cst.Tuple):
        return [element.value for element in given[0].elements]
    return given


def is_nothing(rule: Rule, factory: cst.Call) -> bool:
    """`torch.empty(0)`, `torch.zeros((0, 4))`, `torch.Tensor()`, `torch.tensor([])`: there is nothing to copy."""
    given = sizes(factory)
    if last_word(rule.flow.name_of(factory)) in ("Tensor", "FloatTensor", "LongTensor", "tensor"):
        return not given  # the first argument is a list without elements, or there is none
    if last_word(rule.flow.name_of(factory)) not in _SIZED - {"full", "randint"}:
        return False
    return any(isinstance(size, cst.Integer) and size.value == "0" for size in given)


def is_little(rule: Rule, factory: cst.Call) -> bool:
    """`torch.ones(1, 1, 3)`, `torch.arange(self.bins)` of 20 bins: the copy is a wait, and hardly any bytes."""
    count = 1
    for size in sizes(factory):
        number = _number(rule, size)
        if number is None:
            return False
        count *= number
    return count <= _FEW


def is_of_fixed_size(factory: cst.Call) -> bool:
    """`torch.randn(20, 5)`"""
    given = sizes(factory)
    return bool(given) and all(isinstance(size, cst.Integer) for size in given)


def varying(factory: cst.Call) -> int:
    """How many of the sizes are no plain numbers."""
    return sum(not isinstance(size, cst.Integer) for size in sizes(factory))


def is_table(rule: Rule, factory: cst.Call, moved: cst.BaseExpression) -> bool:
    """Whether at least two sizes that vary multiply in what is copied, and one of them with what comes in.

    `torch.ones(n, n)`, `torch.zeros(x.shape)`, `torch.zeros_like(x)`, `torch.eye(n)`, `torch.arange(n).repeat(b, 1)`.
    """
    kind = last_word(rule.flow.name_of(factory))
    if kind.endswith("_like"):
        return True
    if any(isinstance(n, cst.Call) and called_name(n) in ("repeat", "tile") for n in tree.walk(moved)):
        return True
    given = sizes(factory)
    if kind == "eye":
        return bool(given) and _number(rule, given[0]) is None
    if kind not in _SIZED:
        return False
    if any(_is_shape(rule, size) for size in given) or any(arg.star == "*" for arg in factory.args):
        return True
    if kind in ("full", "randint"):  # torch.randint(low, high, (n, m))   other arguments are no sizes
        lists = [arg.value for arg in factory.args if isinstance(arg.value, cst.List | cst.Tuple)]
        given = [element.value for element in lists[0].elements] if lists else []
    return sum(_number(rule, size) is None for size in given) > 1 and not all(_is_setting(rule, n) for n in given)


def _is_shape(rule: Rule, size: cst.BaseExpression) -> bool:
    """`x.shape`, `x.size()[:-1]`, `list(x.size())`, `(n, *x.shape)`, and a name that is bound to such."""
    if isinstance(size, cst.Name):
        return any(
            isinstance(bound, cst.Tuple | cst.List) or _is_shape(rule, bound)
            for bound in bound_to(rule.flow, size)
            if not isinstance(bound, cst.Name)
        )
    if isinstance(size, cst.Subscript):
        return any(isinstance(item.slice, cst.Slice) for item in size.slice) and _is_shape(rule, size.value)
    if isinstance(size, cst.Call):
        if called_name(size) == "size":
            return not size.args
        return called_name(size) in ("list", "tuple", "Size") and any(_is_shape(rule, a.value) for a in size.args)
    return isinstance(size, cst.Attribute) and size.attr.value == "shape"


def _is_setting(rule: Rule, size: cst.BaseExpression) -> bool:
    """`self.width`, `2 * self.width + 1`: no more than a constructor says, however large a batch is."""
    if isinstance(size, cst.BinaryOperation):
        return _is_setting(rule, size.left) and _is_setting(rule, size.right)
    path, function = dotted(size), rule.flow.function(size)
    if not path.startswith("self.") or function is None or function.cls is None:
        return isinstance(size, cst.Integer)
    return not any(
        path.split(".")[1] in method.stores
        for owner in {*function.cls.lineage, *function.cls.descendants}
        for method in owner.methods.values()
        if method.role != CONSTRUCTOR
    )


def _number(rule: Rule, size: cst.BaseExpression) -> int | None:
    """`20`, and `20` of `self.bins`, which a constructor sets to that, and nothing else in the file binds."""
    if isinstance(size, cst.Integer):
        return int(size.evaluated_value)
    path, function = dotted(size), rule.flow.function(size)
    if function is None or function.cls is None or not path.startswith("self."):
        return None
    assigns = [n for n in rule.source.nodes_of(cst.Assign) if sets(n, path)]
    setter = rule.flow.function(assigns[0]) if len(assigns) == 1 else None
    if setter is None or setter.role != CONSTRUCTOR or setter.cls not in function.cls.lineage:
        return None
    value = assigns[0].value
    return int(value.evaluated_value) if isinstance(value, cst.Integer) else None
