"""Whether a name is bound to a tensor by the time that its `device` would be asked for."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint.flow import Flow
from devlint.flow import torch_table as table
from devlint.flow.names import dotted, names_bound
from devlint.flow.value import MODULE
from devlint.rules._training import is_inside


def is_tensor_by(flow: Flow, name: str, at: cst.CSTNode) -> bool:
    """Whether ``name`` is the tensor at ``at`` already that it is later: not ``found`` of ``found = []`` before and
    ``found = torch.stack(found)`` behind it, nor a parameter ``rows`` of which ``rows = torch.tensor(rows)`` comes."""
    function = flow.function(at)
    if function is None:
        return True
    param = function.param(name)
    if "pack" in name and (param is None or param.annotation is None):
        return False  # a PackedSequence has no `device`
    bound = [each for each in _bindings(flow, name) if flow.function(each) is function]
    bound.sort(key=lambda each: flow.source.offsets(each)[0])
    before = [each for each in bound if flow.source.comes_before(each, at)]
    # x = x + torch.zeros(3)
    behind = [each for each in bound if each not in before and not is_inside(flow, at, each)]
    # hidden=None
    is_given = bool(before) or param is None or param.default is None or _is_used_before(flow, name, at)
    if all(_keeps_tensor(flow, each, name) for each in behind):
        return is_given
    if before:
        last = before[-1]
        return isinstance(last, cst.Assign) and len(last.targets) == 1 and flow.value(last.value).is_tensor
    return is_given and param is not None and param.annotation is not None and flow.value(param).is_tensor


def _bindings(flow: Flow, name: str) -> Iterator[cst.Assign | cst.For | cst.AnnAssign]:
    """The statements that bind a name, kind by kind."""
    for assign in flow.source.nodes_of(cst.Assign):
        if name in names_bound(*(each.target for each in assign.targets)):
            yield assign
    for annotated in flow.source.nodes_of(cst.AnnAssign):
        if annotated.value is not None and name in names_bound(annotated.target):
            yield annotated
    for loop in flow.source.nodes_of(cst.For):
        if name in names_bound(loop.target):
            yield loop


def _is_used_before(flow: Flow, name: str, at: cst.CSTNode) -> bool:
    """``torch.zeros(hidden.size(0))``: it is a tensor there, whatever its default is."""
    function, (_, end) = flow.function(at), flow.source.offsets(at)
    return any(
        each.value == name
        and flow.function(each) is function
        and flow.source.offsets(each)[0] < end
        and used_as_tensor(flow, each)
        for each in flow.source.nodes_of(cst.Name)
    )


def _keeps_tensor(flow: Flow, statement: cst.CSTNode, name: str) -> bool:
    """``x = self.conv(x)``, ``x = x.flatten(1)``, ``x = torch.relu(x)``: what is put in its place shows that it was a
    tensor before; not ``x = torch.cat(x)``, ``x = x[0]``, ``x = self.tokenizer(x)``, ``for x in rows``."""
    value = statement.value if isinstance(statement, cst.Assign | cst.AnnAssign) else None
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        if dotted(value.func.value) == name:
            return value.func.attr.value in table.METHODS
        if not isinstance(value.func.value, cst.Call):
            break
        value = value.func.value  # x.view(3, -1).sum(0)
    if isinstance(value, cst.BinaryOperation):
        return True
    if not isinstance(value, cst.Call) or name not in (dotted(arg.value) for arg in value.args):
        # x, state = self.rnn(noise)   says nothing of what `x` was
        return False
    called = flow.name_of(value)
    return flow.value(value.func).kind == MODULE or (called.startswith("torch.") and called not in _OF_OTHERS)


def used_as_tensor(flow: Flow, name: cst.Name) -> bool:
    """``x.size(0)``: what has no kind of its own is used as a tensor here."""
    above = flow.source.parents.get(name)
    return (
        isinstance(above, cst.Attribute)
        and above.value is name
        and above.attr.value in ("size", "shape", "device", "dtype")
    )


#: What takes lists, arrays or numbers, and gives a tensor.
_OF_OTHERS = frozenset(
    "torch." + name
    for name in (
        "as_tensor asarray block_diag cat concat concatenate dstack from_numpy hstack stack tensor vstack Tensor "
        "FloatTensor LongTensor BoolTensor nn.utils.rnn.pad_sequence nn.utils.rnn.pack_sequence "
        "nn.utils.rnn.pad_packed_sequence utils.data.default_collate"
    ).split()
)
