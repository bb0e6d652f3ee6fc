"""Functions of torch that make tensors: where these live, and what else is known of them."""

from __future__ import annotations

import libcst as cst

from devlint.flow import suppositions
from devlint.flow import torch_table as table
from devlint.flow.arguments import Args, is_false, is_true
from devlint.flow.frame import Frame
from devlint.flow.place import HOST, UNKNOWN_PLACE, Place
from devlint.flow.value import (
    ARRAY,
    DATA,
    LIST,
    NONE,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    element,
    tensor,
)


def makes_one(made: cst.CSTNode | None) -> bool:
    """Whether a factory is told to make a single element: ``torch.tensor([0.0])``, ``torch.zeros(1)``."""
    sizes = [arg.value for arg in made.args if arg.keyword is None] if isinstance(made, cst.Call) else []
    if len(sizes) == 1 and isinstance(sizes[0], cst.List | cst.Tuple) and len(sizes[0].elements) == 1:
        return True
    return len(sizes) == 1 and isinstance(sizes[0], cst.Integer) and sizes[0].value == "1"


def make(frame: Frame, node: cst.Call, name: str, factory: table.Factory, args: Args) -> Value:
    """A factory that obeys ``device=``."""
    given = args.get(None, "device")
    origin: cst.CSTNode = node
    if given is not None and given[1].kind != NONE:
        place = frame.device_place(given[1], given[0])
        maker = given[1].origin
        if place.is_host and isinstance(maker, cst.Call) and frame.facts.names.get(maker) in table.FACTORIES:
            origin = maker  # rows = torch.zeros(n); torch.ones(n, device=rows.device)
    elif args.starred and any(not isinstance(a.keyword, cst.Name) and a.star == "**" for a in node.args):
        place = UNKNOWN_PLACE  # device may be in **kwargs
    elif (followed := _followed(frame, name, args)) is not None:
        place = followed
    elif name in table.IGNORE_DEFAULT and not frame.flow.default_type_set:
        place = HOST
    else:
        out = args.value(None, "out")
        place = frame.default_place() if out is None else out.place
    data = args.value(0, "data")
    zero: bool | None = factory.rank == "zero"
    if factory.rank == "scalar_if_number":
        zero = _data_is_number(args, data)
        if data is not None and data.kind == TENSOR and given is None:
            zero = data.zero
        elif data is not None and data.kind == LIST and data.items is not None and data.items.kind == TENSOR:
            first_node = args.positional[0][0] if args.positional else node
            frame.wait(node, "tensor from device scalars", first_node, data.items, explicit=False)
    elif factory.rank == "sized" and name in (
        "torch.full",
        "torch.zeros",
        "torch.ones",
        "torch.empty",
        "torch.rand",
        "torch.randn",
    ):
        zero = _is_empty(args.get(0, "size"))
    elif name == "torch.randint":
        zero = _is_empty(args.get(2, "size") or args.get(1, "size"))  # (high, size) or (low, high, size)
    pinned_by = args.get(None, "pin_memory")
    pinned = False if pinned_by is None else True if is_true(pinned_by[0]) else None
    grad = (asked := args.get(None, "requires_grad")) is not None and is_true(asked[0])
    for operand, value in args.all:
        if value.kind == TENSOR and value.place.is_there and name != "torch.tensor" and operand is not node:
            # sizes and bounds are read to the host
            frame.wait(node, name, operand, value, explicit=False)
    return tensor(place, origin, zero=zero, pinned=pinned, grad=grad, tracked=_asked_to_track(args))


def _followed(frame: Frame, name: str, args: Args) -> Place | None:
    """Where the tensors are that a factory follows; ``None`` where it is given none, or a default device decides."""
    by_tensors = name == "torch.normal" and args.value(2, "size") is None  # torch.normal(0, scale * noise)
    if not by_tensors and (name not in table.FOLLOWING or name in table.IGNORE_DEFAULT or frame.redirected):
        return None
    told = [each for position, word in table.FOLLOWING[name] if (each := args.get(position, word)) is not None]
    given = [value for _, value in told]
    tensors = [value for value in given if value.kind == TENSOR or (value.kind == THING and name != "torch.tensor")]
    if tensors:  # a host number for one bound, and a device tensor for the other: it goes to the device
        return next((value for value in tensors if value.place.is_there), tensors[0]).place
    if name.startswith("torch.sparse"):
        by_tensors = any(not value.is_data and value.kind not in (LIST, TUPLE) for value in given)
    return UNKNOWN_PLACE if by_tensors or any(is_of_tensors(node) for node, _ in told) else None


def is_of_tensors(node: cst.BaseExpression) -> bool:
    """``rows.unsqueeze(0)``, ``rows.view(n, -1)``: what only tensors have, and give; arrays are viewed as a type."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    name, values = node.func.attr.value, [arg.value for arg in node.args]
    values = [each.expression if isinstance(each, cst.UnaryOperation) else each for each in values]
    return name in table.ONLY_OF_TENSORS or (name == "view" and any(isinstance(each, cst.Integer) for each in values))


def _asked_to_track(args: Args) -> bool | None:
    """Whether autograd tracks what a factory makes."""
    asked = args.get(None, "requires_grad")
    if asked is None:
        return None if args.starred else False
    return True if is_true(asked[0]) else False if is_false(asked[0]) else None


def _is_empty(size: tuple[cst.BaseExpression, Value] | None) -> bool:
    """Whether a size is ``()``, which is that of a single number."""
    return size is not None and isinstance(size[0], cst.Tuple | cst.List) and not size[0].elements


def _data_is_number(args: Args, data: Value | None) -> bool | None:
    """Whether ``torch.tensor(data)`` is zero-dimensional; ``None`` where data may be a number or a list."""
    if data is None:
        return None
    if _is_number(args, data):
        return True
    return False if data.kind in (LIST, TUPLE) else None


def _is_number(args: Args, data: Value) -> bool:
    node = args.positional[0][0] if args.positional else args.keywords["data"][0]
    if isinstance(node, cst.Integer | cst.Float):
        return True
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.expression, cst.Integer | cst.Float)
    if isinstance(node, cst.Name) and node.value in ("True", "False"):
        return True
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
        return node.func.value in ("float", "int", "len", "bool")
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.attr.value == "item"
    return data.text == "number"


def like(frame: Frame, node: cst.Call, args: Args) -> Value:
    """``zeros_like`` and its kin: follows its first argument unless ``device=`` is given."""
    given = args.get(None, "device")
    first = args.value(0, "input") or UNKNOWN
    place = frame.device_place(given[1], given[0]) if given is not None and given[1].kind != NONE else first.place
    pinned = False if place.is_host and args.get(None, "pin_memory") is None else None
    made = tensor(place, node, zero=first.zero, pinned=pinned, tracked=_asked_to_track(args))
    return made if given is not None else suppositions.beside(frame, made, args.positional[:1])


def make_on_host(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    """``from_numpy``, ``FloatTensor(...)``: on the host, whatever the default device."""
    if frame.flow.default_type_set:
        return tensor(UNKNOWN_PLACE, node)
    place = HOST
    first = args.value(0)
    if first is not None and first.kind == TENSOR and name in table.HOST_TYPED:
        # torch.LongTensor(index): a type of the host takes no tensor that is elsewhere; torch.Tensor does
        frame.refuse(node, f"`{name}`", (node, tensor(HOST, node)), args.positional[0])
    if first is not None and first.holds_tensors and first.place.is_there and name not in table.HOST_TYPED:
        place = first.place if name != "torch.from_numpy" else UNKNOWN_PLACE  # then it is no tensor
    # torch.Tensor([1.0, 2.0]), torch.LongTensor(3), torch.FloatTensor(rows): with a dimension
    # and torch.Tensor(weights) of what was handed in: it takes no number, but for a size
    sized = first is not None and (first.kind in (LIST, TUPLE, DATA, ARRAY, UNKNOWN_KIND) or first.zero is False)
    # torch.from_numpy(np.array(x))   may have no dimension
    by_numpy = name.startswith("torch.from") and (first is None or (first.kind == ARRAY and first.zero is not False))
    zero = False if sized and not by_numpy else None
    return tensor(place, node, zero=zero, pinned=False, tracked=False)


def keep(frame: Frame, node: cst.Call, args: Args) -> Value:
    """``as_tensor`` and ``asarray``: a tensor stays where it is unless ``device=`` is given."""
    given = args.get(None, "device")
    data = args.value(0, "data", "obj") or UNKNOWN
    if given is not None and given[1].kind != NONE:
        return tensor(frame.device_place(given[1], given[0]), node, tracked=False if data.is_data else data.tracked)
    if data.holds_tensors:
        # points = torch.as_tensor(project(there), dtype=torch.float32): old versions of torch copy that to the host
        # (https://github.com/pytorch/pytorch/issues/45367), and code written for them counts on it
        if data.place.is_there and "dtype" in args.keywords:
            return data.but(place=UNKNOWN_PLACE, origin=node)
        return tensor(frame.default_place(), node) if frame.redirected else data
    if data.kind in (DATA, ARRAY, LIST, TUPLE):
        items = element(data)
        if items.holds_tensors:
            return tensor(UNKNOWN_PLACE, node)
        return tensor(frame.default_place(), node, zero=_data_is_number(args, data), pinned=False, tracked=False)
    return tensor(UNKNOWN_PLACE, node)


def wrap(node: cst.Call, name: str, args: Args) -> Value:
    """``Parameter``, ``Buffer``, ``Variable``: the tensor they are given, where it is."""
    value = args.value(0, "data") or UNKNOWN
    is_parameter, is_variable = name.endswith("Parameter"), name.endswith("Variable")
    asked = args.get(None if is_variable else 1, "requires_grad")
    grad = is_parameter if asked is None else (is_parameter or is_variable) and is_true(asked[0])
    tracked = True if grad else False if asked is not None and is_false(asked[0]) else None
    if value.kind == TENSOR:
        return value.but(
            grad=grad,
            tracked=tracked,
            ref="parameter" if is_parameter else "buffer" if name.endswith("Buffer") else None,
        )
    ref = "parameter" if is_parameter else "buffer" if name.endswith("Buffer") else None
    if value.kind == THING:
        return tensor(value.place, value.origin, grad=grad, tracked=tracked, ref=ref)
    return tensor(UNKNOWN_PLACE, node, grad=grad, tracked=tracked, ref=ref)
