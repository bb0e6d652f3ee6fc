"""Data loaders: where their batches live and whether these are pinned; what accelerate makes of loaders and models."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow import calls, hypothesis
from devlint.flow import torch_table as table
from devlint.flow.arguments import Args, is_false
from devlint.flow.frame import Frame
from devlint.flow.place import HOST, UNKNOWN_PLACE
from devlint.flow.scope import Class, Function
from devlint.flow.value import (
    DICT,
    FUNCTION,
    LIST,
    LOADER,
    MODULE,
    NONE,
    OPTIMIZER,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    inside,
    tensor,
)


def build(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    """``DataLoader(...)``, and the loaders of other libraries with the same arguments."""
    pin = args.get(7, "pin_memory")
    if pin is not None:
        # pin_memory=torch.cuda.is_available()
        pinned = True if hypothesis.truth(frame, pin[0]) else False if is_false(pin[0]) else None
    else:
        pinned = None if args.starred else False
    dataset = args.value(0, "dataset")
    place = HOST
    if dataset is not None and dataset.kind == THING and dataset.ref == "dataset":
        place = dataset.place
    elif dataset is not None and (dataset.kind == THING or _holds_what_was_moved(frame, dataset)):
        place = UNKNOWN_PLACE
    given = args.get(6, "collate_fn")
    if given is not None and place == HOST and not pinned and _may_place(frame, *given):
        place = UNKNOWN_PLACE
    if args.starred and given is not None and given[1].kind != FUNCTION:
        place = UNKNOWN_PLACE
    if name.startswith("torch_geometric."):
        pinned = None  # their batches are objects
    if pinned is not None and given is not None and given[1].kind != NONE:
        pinned = _pinned_after(frame, node, given[1], pinned)
    return Value(LOADER, place, node, pinned=pinned)


def _holds_what_was_moved(frame: Frame, dataset: Value) -> bool:
    """``Pairs(x.to(device), y)``: what a dataset gives may be one of the tensors that it was built of."""
    made = dataset.origin
    if not isinstance(made, cst.Call):
        return False
    given = (frame.flow.value(arg.value) for arg in made.args)
    return any(value.holds_tensors and not value.place.is_host for value in given)


def _may_place(frame: Frame, node: cst.BaseExpression, collate: Value) -> bool:
    """Whether a collate function, or what makes it, moves anything or is told a device: ``collate_fn=packer(device)``,
    ``collate_fn=lambda rows: pad(rows).to(device)``."""
    words = {part.value for part in tree.walk(node) if isinstance(part, cst.Name)}
    if not words.isdisjoint(table.MOVES) or any(hypothesis.names_device(word) for word in words):
        return True
    made_by = [frame.flow.value(part.func) for part in tree.walk(node) if isinstance(part, cst.Call)]
    for value in (collate, *made_by):
        functions = [value.ref] if isinstance(value.ref, Function) else []
        if isinstance(value.ref, Class):
            functions = [method for cls in value.ref.lineage for method in cls.methods.values()]
        if any(function.moves_something or function.device_aware for function in functions):
            return True
    return False


def _pinned_after(frame: Frame, node: cst.Call, collate: Value, pinned: bool) -> bool | None:
    """Whether batches that a collate function makes are pinned: a loader pins tensors, not what it does not know."""
    samples = Args([(node, Value(LIST, items=UNKNOWN))], {}, False)
    todo = [calls.call_value(frame, node, collate, samples) if collate.kind == FUNCTION else UNKNOWN]
    for value in todo:
        if value.kind in (LIST, TUPLE, DICT):
            todo += inside(value)
        elif value.kind == TENSOR and value.place.is_host:
            if value.pinned is not False and not pinned:
                return None  # pinned by the function itself
        elif not value.is_data and (pinned or value.kind not in (UNKNOWN_KIND, THING) or value is todo[0]):
            return None  # an object of theirs; what is one entry of many is left as it is where nothing pins
    return pinned


def encoded(frame: Frame, node: cst.Call, args: Args) -> Value:
    """``tokenizer(text, return_tensors="pt")``: tensors on the host, unless the call names a device."""
    if args.keywords["return_tensors"][1].text != "pt" or args.starred:
        return UNKNOWN
    given = args.get(None, "device")
    place = frame.device_place(given[1], given[0]) if given is not None else HOST
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "encode":
        return tensor(place, node, zero=False, ref="encoding", tracked=False)  # the ids alone
    return Value(THING, place, node, ref="encoding", tracked=False)


def entry(encoding: Value, key: str | None) -> Value | None:
    """``words["input_ids"]``, ``words.input_ids``: a tensor, of what a tokenizer gave, which moves in place."""
    if encoding.ref != "encoding" or encoding.kind != THING or encoding.text is not None or key not in _ENTRIES:
        return None
    return encoding.but(kind=TENSOR, zero=False, ref=None)


#: What the tokenizers and feature extractors of transformers call what they give.
_ENTRIES = frozenset(
    "input_ids attention_mask token_type_ids special_tokens_mask pixel_values pixel_mask input_values "
    "input_features".split()
)


def prepared(frame: Frame, func: cst.Attribute, args: Args) -> Value:
    """``accelerator.prepare(...)``: models are moved, loaders give batches that are there."""
    key = frame.key(func.value) or "accelerator"
    place = frame.symbol(f"{key}.device")
    values = []
    for operand, value in args.positional:
        name = (frame.key(operand) or "").rpartition(".")[2]
        if value.kind in (MODULE, LOADER):
            value = value.but(place=place, origin=operand, pinned=None)
        elif value.kind == OPTIMIZER:
            value = value.but(items=())  # follows the modules
        elif value.kind == UNKNOWN_KIND and hypothesis.MODEL_NAME.match(name):
            value = Value(MODULE, place, operand, obj=operand)
        elif value.kind == UNKNOWN_KIND and hypothesis.LOADER_NAME.search(name):
            value = Value(LOADER, place, operand)
        values.append(value)
    if args.starred or not values:
        return UNKNOWN
    return values[0] if len(values) == 1 else Value(TUPLE, items=values)
