"""What is supposed of values that nobody knows: that what is made of a tensor is where that is.

``x = pad(x)`` of another file, ``scores = torch.softmax(self.compare(x), -1)``: no rule may be sure of it. So it
changes nothing of what is known: what is unknown, or a tensor nobody knows where, keeps what it is made of beside that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.arguments import Args, Operand
from devlint.flow.frame import Frame
from devlint.flow.names import called_name
from devlint.flow.place import UNKNOWN_PLACE
from devlint.flow.value import LIKE_TENSOR, LIST, NUMPY_ARRAY, TUPLE, UNKNOWN, UNKNOWN_KIND, Value, made_of

#: Functions whose names say that they give something else than tensors where their arguments are.
_GIVES_OTHERS = re.compile(
    r"(^|_)(cpu|host|numpy|np|arrays?|lists?|dicts?|strs?|strings?|names?|len|lengths?|size|sizes|shapes?|num|count|dims?|"
    r"dtype|device|is|has|check|validate|assert|index|hash|print|log|save|write|plot|show|encode|decode|json)(_|$)"
)
#: Methods that arrays and numbers do not have.
_OF_TENSORS = frozenset(table.METHODS) - frozenset(
    "all any argmax argmin argsort byteswap choose clip compress conj conjugate copy cumprod cumsum diagonal dot dump "
    "fill flatten item max mean min nonzero partition prod ptp put ravel real imag repeat reshape resize round "
    "searchsorted sort split squeeze std sum swapaxes take tolist trace transpose var view count index replace add "
    "update remove values keys values_ abs pow floor ceil".split()
)


def of_call(frame: Frame, node: cst.Call, operands: Iterable[Operand]) -> Value:
    """What a call gives of which nothing is known: something made of the tensors that it is handed, perhaps."""
    if frame.function is None or _GIVES_OTHERS.search(called_name(node)):
        return UNKNOWN
    origin = common(frame, operands)
    return UNKNOWN.but(items=origin) if origin is not None else UNKNOWN


def common(frame: Frame, operands: Iterable[Operand]) -> Value | None:
    """The first tensor, of this function's, that any of these are made of."""
    function = frame.function
    for _, value in operands:
        origin = made_of(value)
        if origin is not None and function is not None and origin.place.scope == function.scope:
            return origin.but(ref=None, obj=None)
    return None


def in_place_of(frame: Frame, node: cst.Assign, value: Value) -> Value:
    """``x = pad(x)``, ``x, mask = pad(x, mask)``: what takes the place of a tensor is one."""
    if value.items is None or frame.env is None:
        return value
    target = node.targets[0].target
    given = {name.value for name in tree.walk(node.value) if isinstance(name, cst.Name)}
    if isinstance(target, cst.Tuple):
        parts = [_replaced(frame, each.value, given, value) for each in target.elements]
        return Value(TUPLE, items=parts) if len(parts) == len(target.elements) else value
    return _replaced(frame, target, given, value)


def _replaced(frame: Frame, target: cst.BaseExpression, given: set[str], value: Value) -> Value:
    if isinstance(target, cst.Name) and target.value in given and frame.env is not None:
        before = frame.env.get(target.value, UNKNOWN)
        origin = common(frame, [(target, before)])
        if origin is not None and (before.kind != UNKNOWN_KIND or before.ref == LIKE_TENSOR):
            return UNKNOWN.but(items=origin, ref=LIKE_TENSOR)
    return value.but(ref=None)


def of_method(frame: Frame, node: cst.Call, receiver: Value, name: str, args: Args) -> Value:
    """``pad(x).unsqueeze(0)``"""
    operation = table.METHODS.get(name)
    if operation is not None and operation.result == "numpy":
        return NUMPY_ARRAY
    if receiver.items is None or operation is None or operation.result in ("host", "none", "tuple"):
        return UNKNOWN
    if name in _OF_TENSORS:
        receiver = receiver.but(ref=LIKE_TENSOR)
    if operation.operands == "all" and isinstance(node.func, cst.Attribute):
        frame.meet(node, [(node.func.value, receiver), *args.positional], f"`{name}`")
    return receiver


def together(left: Value, right: Value) -> Value:
    """What an operation gives, of which one side is made of a tensor, and nothing is known of the other."""
    for value, other in ((left, right), (right, left)):
        origin = made_of(value)
        if origin is not None and other.kind not in (LIST, TUPLE):
            surely = value.is_tensor or LIKE_TENSOR in (left.ref, right.ref)
            return UNKNOWN.but(items=origin, ref=LIKE_TENSOR if surely else None)
    return UNKNOWN


def beside(frame: Frame, result: Value, operands: Iterable[Operand]) -> Value:
    """What an operation of torch gives is a tensor, be it nobody knows where."""
    if result.is_tensor and result.place == UNKNOWN_PLACE and result.items is None:
        origin = common(frame, operands)
        if origin is not None:
            return result.but(items=origin, or_host=result.or_host)
    return result
