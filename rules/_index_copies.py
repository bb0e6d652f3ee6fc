"""Indices that each step of a loop brings to the device, and waits for: minibatches out of tensors that are there."""

from __future__ import annotations

import libcst as cst

from devlint.flow import Flow
from devlint.flow.value import ARRAY, LIST, TENSOR


def copies_to_device(flow: Flow, node: cst.CSTNode) -> bool:
    """``torch.tensor(chosen, device=device)``, and ``rows[chosen]`` where the rows are on a device and what is chosen
    is not. torch copies both from pageable memory, for which the host waits until all before is done."""
    if isinstance(node, cst.Call):
        entry = flow.factory(node)
        is_of_data = entry is not None and entry.values == "python" and bool(node.args)
        return is_of_data and flow.value(node).place.is_there and not isinstance(node.args[0].value, _NUMBERS)
    if not isinstance(node, cst.Subscript) or len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        return False
    held, index = flow.value(node.value), flow.value(node.slice[0].slice.value)
    if held.kind != TENSOR or not held.place.is_there:
        return False
    return index.kind in (ARRAY, LIST) or (index.kind == TENSOR and index.place.is_host and index.zero is False)


#: ``torch.tensor(0.0, device=device)``, which is filled there.
_NUMBERS = cst.Integer | cst.Float | cst.UnaryOperation
