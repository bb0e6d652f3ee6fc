"""Functions and methods that compute tensors from tensors: their operands meet, the result follows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst

from devlint.flow import copies, suppositions
from devlint.flow import torch_table as table
from devlint.flow.arguments import Args, Operand, flag
from devlint.flow.frame import Frame
from devlint.flow.names import called_name
from devlint.flow.place import UNKNOWN_PLACE, Place
from devlint.flow.value import (
    HOST_DATA,
    LIST,
    MODULE,
    NOTHING,
    ROW,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    carried,
    element,
    tensor,
)

#: Are told their sizes one by one, or in a tuple.
_SIZED = frozenset(f"torch.{name}" for name in "empty ones rand randn zeros".split())

SAME_MEMORY = table.VIEWS | table.VIEWS_OR_COPIES


def call(frame: Frame, node: cst.Call, name: str, operation: table.Op, args: Args) -> Value:
    """A function of torch, by the table: ``torch.cat``, ``F.cross_entropy``."""
    operands = _operands(operation, args)
    if "use_separate_proj_weight" in args.keywords and len(operands) > 5:
        del operands[5]  # F.multi_head_attention_forward(q, k, v, ..., torch.empty([0]), ...): handed in, not looked at
    if name.rpartition(".")[2] not in SAME_MEMORY and operation.result not in ("host", "none"):
        for _, value in operands:
            copies.read(frame, node, value)
    if name in table.WAIT_FUNCTIONS and operands and waits(name.rpartition(".")[2], args, 1):
        frame.wait(node, name, operands[0][0], operands[0][1], explicit=False)
    if operation.operands == "none" and operation.result == "tensor":
        return _copied_together(node, args)
    if name == "torch.autograd.grad":
        meet_gradients(frame, node, f"`{name}`", args.get(0, "outputs"), args.get(2, "grad_outputs"))
    if name == "torch.autograd.backward":
        meet_gradients(frame, node, f"`{name}`", args.get(0, "tensors"), args.get(1, "grad_tensors"))
    meet_window(frame, node, name, operands, args, 1)
    sized = name not in table.OF_TWO_NUMBERS or not any(v.zero for _, v in operands)
    if bounded_by_number(name.rpartition(".")[2], args, 1):
        operands = operands[:1]
    if name in table.OF_ONE_SIZE:
        operands = of_one_size(operands)
    chosen = frame.meet(node, operands, f"`{name}`", strict=operation.strict and sized)
    result = result_of(frame, node, operation, chosen, args, 1, operands)
    if name == "torch.reshape" and gives_sizes(args._replace(positional=args.positional[1:])):
        result = result.but(zero=False)
    return suppositions.beside(frame, result, operands)


def of_one_size(operands: Sequence[Operand]) -> list[Operand]:
    """The operands of a loss that wants its target, the second, to be of the size of its input: where one of them has
    dimensions, so has the other."""
    pair, rest = operands[:2], operands[2:]
    if not any(value.is_tensor and value.zero is False for _, value in pair):
        return [*operands]
    return [*((node, value.but(zero=False) if value.is_tensor else value) for node, value in pair), *rest]


def bounded_by_number(tail: str, args: Args, offset: int) -> bool:
    """``x.clamp(0.0, self.most)``: beside a number the other bound is read as one, wherever it is."""
    if tail not in table.BOUNDED:
        return False
    bounds = args.get(offset, "min"), args.get(offset + 1, "max")
    return any(bound is not None and bound[1].is_data for bound in bounds)


def meet_window(
    frame: Frame, node: cst.Call, name: str, operands: list[Operand], args: Args, positional_before: int
) -> None:
    """``torch.stft(x, n, hop, n, self.window)``: what it gives is where the signal is, wherever the window may be."""
    windowed = bool(operands) and name.rpartition(".")[2] in table.WINDOWED
    window = args.get(positional_before + 3, "window") if windowed else None
    if window is not None:
        frame.meet(node, [operands[0], window], f"`{name}`", strict=True)


def meet_gradients(frame: Frame, node: cst.Call, what: str, outputs: Operand | None, given: Operand | None) -> None:
    """``torch.autograd.grad(scores, x, torch.ones(n, 1))``: the gradient that is given meets what it is of."""
    if outputs is None or given is None:
        return
    for output, gradient in zip(parts_of(outputs), parts_of(given), strict=False):
        frame.meet(node, [output, gradient], what)


def _operands(operation: table.Op, args: Args) -> list[Operand]:
    kind = operation.operands
    if kind == "all":
        # torch.pow(base, self.width_of_net): whatever it is called, no module is counted with
        return [each for each in (*args.positional, *counted_with(args)) if each[1].kind != MODULE]
    if kind in ("first", "index"):
        first = args.get(0, "input", "self", "x")
        return [first] if first is not None else []
    if kind == "sequence":
        given = args.positional or list(args.keywords.values())[:1]
        return [part for operand in given for part in parts_of(operand)]
    return []


def counted_with(args: Args) -> list[Operand]:
    """What is handed in by name, but for the numbers: ``torch.baddbmm(x, q, k, alpha=scale)``."""
    return [operand for name, operand in args.keywords.items() if name not in table.NUMBERS]


def parts_of(operand: Operand) -> list[Operand]:
    """What a list or a tuple holds, as far as it is known; anything else is itself."""
    node, value = operand
    if value.kind == TUPLE:
        return _elements_of(node, value)
    if value.kind != LIST:
        return [operand]
    if isinstance(value.ref, tuple):
        return _elements_of(node, Value(TUPLE, items=list(value.ref)))
    return [(node, value.items)] if value.items is not None else []


def _elements_of(node: cst.BaseExpression, value: Value) -> list[Operand]:
    if isinstance(node, cst.Tuple | cst.List) and len(node.elements) == len(value.items):
        return [(item.value, v) for item, v in zip(node.elements, value.items, strict=True)]
    return [(node, v) for v in value.items]


def _copied_together(node: cst.Call, args: Args) -> Value:
    """``pad_sequence``: tensors from anywhere are copied into one that lives where the first does."""
    first = args.value(0)
    each = element(first) if first is not None and first.kind in (LIST, TUPLE) else first
    if each is not None and each.holds_tensors:
        return tensor(each.place, each.origin, pinned=False if each.place.is_host else None)
    return tensor(UNKNOWN_PLACE, node)


def result_of(
    frame: Frame,
    node: cst.Call,
    operation: table.Op,
    chosen: Value | None,
    args: Args,
    positional_before: int,
    operands: list[Operand],
) -> Value:
    """What an operation of the table gives: where ``chosen``, the operand that decides on it, lives."""
    if operation.result == "host":
        return HOST_DATA
    if operation.result == "none":
        return NOTHING
    if chosen is None:
        if operation.result == "tuple":
            return UNKNOWN
        return tensor(UNKNOWN_PLACE, node) if operation.operands != "none" else UNKNOWN
    if chosen.kind == MODULE:
        return UNKNOWN
    ranks = [v.zero for _, v in operands if v.holds_tensors]
    zeros = False if False in ranks else None if None in ranks else True
    zero = _zero_by(operation, args, positional_before, zeros, not chosen.place.is_host and chosen.text != ROW)
    if zero is None and (
        _leaves_dimension(node, args, positional_before)
        or (called_name(node) == "matmul" and have_rows(frame, operands))
    ):
        zero = False
    place = chosen.place
    if operation.operands == "all" and chosen.follows and any(v.kind == UNKNOWN_KIND for _, v in operands):
        place, zero = UNKNOWN_PLACE, None
    tail = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
    tracked = False if tail in table.UNTRACKED else frame.tracked(v for _, v in operands)
    pinned = _pinned_result(tail, place, chosen.pinned)
    value = tensor(place, chosen.origin, zero=zero, attr=chosen.attr, pinned=pinned, tracked=tracked)
    if operation.result == "tuple":
        if operation.reduces == "no_dim" and zero:
            return value
        return Value(THING, place, chosen.origin, zero=zero, tracked=tracked)
    # mask.float().sum(1); a sum over all of them is a number, which mixes with anything
    return carried(value, chosen) if len(ranks) == 1 and zero is not True else value


def _zero_by(
    operation: table.Op, args: Args, positional_before: int, operands_zero: bool | None, batch: bool
) -> bool | None:
    reduces = operation.reduces
    if reduces == "always":
        return True
    if reduces in ("no_dim", "no_dim_third", "dim_third"):
        return _zero_along(operation, args, positional_before + (reduces != "no_dim"), operands_zero, batch)
    if reduces == "loss":
        reduction = args.value(None, "reduction")
        if reduction is None or reduction.text in ("mean", "sum", "batchmean"):
            return True
        return False if reduction.text == "none" else None
    if reduces == "adds":
        return False
    return operands_zero if reduces == "never" else None


def _zero_along(operation: table.Op, args: Args, position: int, operands_zero: bool | None, batch: bool) -> bool | None:
    """Of a reduction whose dimension, if any, is the argument at ``position``; of a ``batch`` there is another."""
    if args.starred or operands_zero:
        return operands_zero or None
    given = args.get(position, "dim", "axis")
    if given is None:
        if "other" in args.keywords:
            return operands_zero
        return operation.reduces != "dim_third" and "keepdim" not in args.keywords
    if operation.operands == "all" and operation.result == "tuple" and not given[1].is_data:
        return operands_zero if given[1].holds_tensors else None  # torch.max(best, o.max()), torch.max(x, dim)
    keeps = False if operation.reduces == "dim_third" else flag(args, position + 1, "keepdim")
    if keeps is not False:
        return False if keeps else None
    if batch and not isinstance(given[0], cst.Tuple | cst.List):
        return False  # net(x).argmax(-1)
    dims = _dimensions(given[0])
    return False if dims and all(map(_is_behind_another, dims)) else None


def _dimensions(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node, cst.Tuple | cst.List):
        return [element.value for element in node.elements]
    return [node]


def _is_behind_another(dim: cst.BaseExpression) -> bool:
    """``x.sum(1)``, ``x.max(-2)``: there is another; ``x.sum(0)`` and ``x.sum(-1)`` of a vector leave none."""
    if isinstance(dim, cst.UnaryOperation) and isinstance(dim.operator, cst.Minus):
        return isinstance(dim.expression, cst.Integer) and dim.expression.value != "1"
    return isinstance(dim, cst.Integer) and dim.value != "0"


def _leaves_dimension(node: cst.Call, args: Args, positional_before: int) -> bool:
    """``x.squeeze(1)``: there is a dimension before it. ``mask.nonzero().squeeze()``: as a rule there are several."""
    if called_name(node) == "gather":
        index = args.value(positional_before + 1, "index")
        return index is not None and index.zero is False
    if not isinstance(node.func, cst.Attribute) or node.func.attr.value not in ("squeeze", "select"):
        return False
    squeezed = args.positional[0][0] if positional_before and args.positional else node.func.value
    if isinstance(squeezed, cst.Call) and called_name(squeezed) in ("nonzero", "argwhere"):
        return node.func.attr.value == "squeeze"
    dim = args.get(positional_before, "dim")
    return dim is not None and isinstance(dim[0], cst.Integer) and dim[0].value != "0"


def have_rows(frame: Frame, operands: Iterable[Operand]) -> bool:
    """``torch.rand(4, 8) @ v``: beside what is made with two sizes, the product has a dimension, whatever `v` has."""
    return any(_has_rows(frame, value) for _, value in operands)


def _has_rows(frame: Frame, value: Value) -> bool:
    made = value.origin
    if not isinstance(made, cst.Call) or frame.values.get(made) is not value:
        return False  # table = torch.rand(4, 8); table.sum(1)   what is computed of it may have less
    name = frame.facts.names.get(made)
    if name == "torch.eye" or name not in _SIZED:
        return name == "torch.eye"
    sizes = [arg.value for arg in made.args if arg.keyword is None and not arg.star]
    if sizes and isinstance(sizes[0], cst.Tuple | cst.List):
        sizes = [each.value for each in sizes[0].elements if isinstance(each, cst.Element)]
    return len(sizes) > 1


def _pinned_result(name: str, place: Place, pinned: bool | None) -> bool | None:
    """Whether what the operation ``name`` gives is page-locked, where its first operand is or not."""
    if not place.is_host:
        return None
    if name in table.VIEWS:
        return pinned
    if name in table.VIEWS_OR_COPIES:
        return False if pinned is False else None
    return False  # new memory, which torch does not pin


def waits(tail: str, args: Args, offset: int) -> bool:
    """The conditions under which a function of the table waits."""
    if tail == "where":
        return len(args.positional) + len(args.keywords) == 1
    if tail == "one_hot":
        return len(args.positional) < offset + 1 and "num_classes" not in args.keywords
    if tail == "repeat_interleave":
        repeats = args.value(offset, "repeats")
        return repeats is not None and repeats.kind == TENSOR and "output_size" not in args.keywords
    return True


def gives_sizes(args: Args) -> bool:
    """``view(-1, 1)``, ``reshape((n, 3))``: at least one dimension is asked for."""
    if len(args.positional) != 1:
        return len(args.positional) > 1
    node = args.positional[0][0]
    return isinstance(node, cst.Integer | cst.UnaryOperation) or (
        isinstance(node, cst.Tuple | cst.List) and bool(node.elements)
    )
