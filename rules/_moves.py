"""What rules about copies between host and device share."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint.flow import Flow, Value
from devlint.flow import torch_table as table
from devlint.flow.facts import Move
from devlint.flow.place import Place
from devlint.flow.scope import Function
from devlint.rule import Rule


def short(code: str, most: int = 40) -> str:
    """Code on one line, cut where it is longer than ``most`` characters."""
    line = " ".join(code.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def destination(rule: Rule, move: Move) -> str:
    """Where a move goes, as the code says it: ``the host``, "`device`", "`x`'s device"."""
    node = move.target_node
    if move.target.is_host:
        return "the host"
    if node is None or isinstance(node, cst.SimpleString | cst.Integer):
        return f"`{move.target.name or 'the device'}`"
    code = short(rule.code(node))
    return f"`{code}`'s device" if rule.flow.value(node).holds_tensors else f"`{code}`"


def has_memory_of_its_own(place: Place) -> bool:
    """Whether a place is an accelerator that copies go to: on Apple's chips there is one memory for both."""
    return place.is_there and not place.name.startswith("mps")


def loader_of(flow: Flow, node: cst.BaseExpression) -> Value | None:
    """The loader whose batch, or a view of it, an expression is, in the memory that the loader gave it."""
    # labels.view(-1)
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in table.VIEWS:
        node = node.func.value
    value = flow.value(node)
    loader = value.ref
    if isinstance(loader, Value) and loader.kind == "loader" and loader.pinned is value.pinned:
        return loader
    return None  # scaled = images / 255  of a pinned batch is not pinned


def moves_of_name(flow: Flow, function: Function | None, name: str) -> Iterator[Move]:
    """The moves that a function, or the file, makes of what a name stands for: ``x.to(device)``."""
    for move in flow.facts.moves.values():
        receiver = move.receiver
        if isinstance(receiver, cst.Name) and receiver.value == name and flow.function(move.node) is function:
            yield move
