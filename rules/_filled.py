"""What a factory fills."""

from __future__ import annotations

import libcst as cst

from devlint.flow.names import last_word
from devlint.rule import Rule

#: Factories that take sizes, and nothing else by place.
_SIZED = frozenset("empty zeros ones rand randn".split())


def is_nothing(rule: Rule, factory: cst.Call) -> bool:
    """`torch.empty(0)`, `torch.zeros((0, 4))`, `torch.Tensor()`, `torch.tensor([])`: there is nothing to copy."""
    given = _sizes(factory)
    if last_word(rule.flow.name_of(factory)) in ("Tensor", "FloatTensor", "LongTensor", "tensor"):
        return not given  # the first argument is a list without elements, or there is none
    if last_word(rule.flow.name_of(factory)) not in _SIZED:
        return False
    return any(isinstance(size, cst.Integer) and size.value == "0" for size in given)


def is_of_fixed_size(factory: cst.Call) -> bool:
    """`torch.randn(20, 5)`"""
    given = _sizes(factory)
    return bool(given) and all(isinstance(size, cst.Integer) for size in given)


def _sizes(factory: cst.Call) -> list[cst.BaseExpression]:
    """The sizes that a factory is called with, in a list or not."""
    given = [arg.value for arg in factory.args if arg.keyword is None or arg.keyword.value == "size"]
    if given and isinstance(given[0], cst.List | cst.Tuple):
        return [element.value for element in given[0].elements]
    return given
