"""What is done with strings, done with a `torch.device`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint.flow.names import called_name
from devlint.rule import Rule


def taken_for_text(rule: Rule) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression, str]]:
    """Where a device is taken for a string, the device, and what it is taken to be; each raises ``TypeError``."""
    for node in rule.source.nodes_of(cst.Subscript):
        # device[:4], device[0], device[-1]; sizes[device] is no part of it
        if len(node.slice) == 1 and _is_part(node.slice[0].slice) and rule.flow.value(node.value).is_device_object:
            yield node, node.value, "has no parts"
    for joined in rule.source.nodes_of(cst.BinaryOperation):
        if isinstance(joined.operator, cst.Add):
            # "on " + x.device, x.device + ":0"
            for device, other in ((joined.left, joined.right), (joined.right, joined.left)):
                if isinstance(other, cst.BaseString) and rule.flow.value(device).is_device_object:
                    yield joined, device, "cannot be added to a string"
    for call in rule.source.nodes_of(cst.Call):
        if called_name(call) not in _WORDS:
            continue
        taken = _TAKE_TEXT.get(rule.flow.name_of(call) or rule.flow.scope.qualified(call.func))
        if taken is None or any(arg.star or arg.keyword is not None for arg in call.args):
            continue
        position, said = taken
        if position < len(call.args) and rule.flow.value(call.args[position].value).is_device_object:
            yield call, call.args[position].value, said  # re.match("cuda", x.device), int(x.device)


def _is_part(index: cst.BaseSlice) -> bool:
    if isinstance(index, cst.Slice):
        return True
    node = index.value if isinstance(index, cst.Index) else None
    return isinstance(node, cst.Integer) or (
        isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus)
    )


#: Where functions take a string, and what is so of a device there.
_TAKE_TEXT = {
    "len": (0, "has no length"),
    "int": (0, "is no number"),
    **{f"re.{name}": (1, "is no string") for name in ("match", "search", "fullmatch", "findall", "split")},
    "re.sub": (2, "is no string"),
}
_WORDS = frozenset(name.rpartition(".")[2] for name in _TAKE_TEXT)
