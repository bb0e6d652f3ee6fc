"""Python's builtin functions, as far as tensors go through them."""

from __future__ import annotations

import libcst as cst

from devlint.flow import attributes, calls
from devlint.flow import torch_table as table
from devlint.flow.arguments import Args
from devlint.flow.frame import Frame
from devlint.flow.value import (
    ARRAY,
    CLASS,
    DATA,
    DICT,
    FUNCTION,
    HOST_DATA,
    LIST,
    LOADER,
    NAME,
    NOTHING,
    PARAMS,
    SELF,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    Value,
    element,
    join,
    tensor,
)

_READS = frozenset({"int", "float", "bool", "complex"})
_UNKNOWN_RESULT = frozenset(
    {"vars", "locals", "globals", "eval", "object", "slice", "memoryview", "bytes", "bytearray"}
)
_ON_HOST = frozenset(
    "len range isinstance issubclass hasattr id hash ord chr type callable hex bin oct divmod input open vars "
    "dir".split()
)


def call(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    """A builtin by name; anything else is unknown."""
    first = args.positional[0] if args.positional else None
    value = first[1] if first is not None else UNKNOWN
    if name in _READS:
        if first is not None and value.kind == TENSOR:
            frame.wait(node, name, first[0], value, explicit=True)
        return HOST_DATA
    if name == "setattr" and len(node.args) == 3 and value.kind == SELF:
        if type(node.args[1].value) is not cst.SimpleString:
            frame.shake_attributes()
        return NOTHING
    if name == "range":
        for operand, bound in args.positional:
            if bound.kind == TENSOR:
                frame.wait(node, name, operand, bound, explicit=False)
        return HOST_DATA
    if name in _ON_HOST:
        return HOST_DATA
    if name in ("print", "str", "repr"):
        for operand, shown in args.positional:
            if shown.kind == TENSOR:
                frame.wait(node, name, operand, shown, explicit=False)
        return NOTHING if name == "print" else HOST_DATA
    if name == "enumerate":
        return Value(LIST, items=Value(TUPLE, items=[HOST_DATA, element(value)]), ref=_carrier(value))
    if name == "zip":
        values = [v for _, v in args.positional]
        carrier = next((c for c in map(_carrier, values) if c is not None), None)
        return Value(LIST, items=Value(TUPLE, items=[element(v) for v in values]), ref=carrier)
    if name == "iter":
        return value
    if name == "next":
        return element(value)
    if name in ("list", "tuple", "sorted", "reversed", "set", "frozenset"):
        if first is None:
            return Value(LIST) if name != "set" else UNKNOWN
        if value.kind in (LIST, TUPLE, DATA, ARRAY):
            return value if value.kind != ARRAY else HOST_DATA
        if value.kind in (PARAMS, LOADER):
            return value
        return Value(LIST, items=element(value)) if value.kind in (TENSOR, THING) else UNKNOWN
    if name == "filter":
        return args.positional[1][1] if len(args.positional) > 1 else UNKNOWN
    if name == "map":
        return _map(frame, node, args)
    if name == "dict":
        return Value(DICT, items={k: v for k, (_, v) in args.keywords.items()}) if first is None else UNKNOWN
    if name == "sum":
        return _sum(value)
    if name in ("max", "min"):
        return _extreme(frame, node, args)
    if name in ("abs", "round"):
        return value if value.holds_tensors else HOST_DATA if value.kind == DATA else UNKNOWN
    if name == "getattr" and len(args.positional) > 1:
        return _getattr(frame, node, args)
    if name in ("any", "all"):
        if first is not None and value.kind == TENSOR:
            frame.wait(node, name, first[0], value, explicit=False)
        return HOST_DATA
    if name in _UNKNOWN_RESULT:
        return UNKNOWN
    if name == "exec" and frame.function is None:
        frame.shake()
    return calls.unknown_call(frame, node, args)


def _getattr(frame: Frame, node: cst.Call, args: Args) -> Value:
    attr = args.positional[1][1].text or _default_factory(frame, args)
    value = attributes.attribute(frame, node, args.positional[0][1], attr) if attr is not None else UNKNOWN
    return join(value, args.positional[2][1]) if len(args.positional) > 2 else value


def _default_factory(frame: Frame, args: Args) -> str | None:
    """``hann_window`` of ``def __init__(self, window="hann_window"): getattr(torch, window)``: one factory of torch's
    stands for whichever else is named."""
    (_, holder), (name, _) = args.positional[:2]
    if holder.kind != NAME or holder.ref != "torch" or type(name) is not cst.Name or frame.function is None:
        return None
    param = None if name.value in frame.function.assigned else frame.function.param(name.value)
    default = param.default if param is not None else None
    text = default.evaluated_value if isinstance(default, cst.SimpleString) else None
    return text if isinstance(text, str) and f"torch.{text}" in table.FACTORIES else None


def _carrier(value: Value) -> Value | None:
    """The loader inside ``enumerate(zip(loader, ...))``, which a loop over it drives."""
    if value.kind == LOADER:
        return value
    return value.ref if value.kind == LIST and isinstance(value.ref, Value) else None


def _map(frame: Frame, node: cst.Call, args: Args) -> Value:
    if len(args.positional) < 2:
        return UNKNOWN
    function, over = args.positional[0], args.positional[1]
    each = element(over[1])
    if function[1].kind in (NAME, FUNCTION, CLASS):
        return Value(LIST, items=calls.call_value(frame, node, function[1], Args([(over[0], each)], {}, False)))
    return UNKNOWN


def _sum(value: Value) -> Value:
    each = element(value)
    if each.kind == TENSOR:
        return tensor(each.place, each.origin)
    return HOST_DATA if value.kind in (DATA, ARRAY) else UNKNOWN


def _extreme(frame: Frame, node: cst.Call, args: Args) -> Value:
    values = [v for _, v in args.positional]
    if len(values) == 1:
        values = [element(values[0])]
    for (operand, _), value in zip(args.positional, values, strict=False):
        if value.kind == TENSOR:
            frame.wait(
                node, node.func.value if isinstance(node.func, cst.Name) else "max", operand, value, explicit=False
            )
    if all(v.kind == DATA for v in values):
        return HOST_DATA
    joined = values[0] if values else UNKNOWN
    for value in values[1:]:
        joined = join(joined, value)
    return joined
