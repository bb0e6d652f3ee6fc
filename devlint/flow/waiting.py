"""Whether a call makes the host wait for the device in the code that it runs, as far as that can be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from devlint import tree
from devlint.flow import steps
from devlint.flow import torch_table as table
from devlint.flow.names import dotted
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.flow.value import HOST_DATA, INSTANCE, MODULE, TENSOR, UNKNOWN_KIND

if TYPE_CHECKING:
    from devlint.flow import Flow

#: Functions and methods that give as many values as there are to find.
_FINDING = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"})
#: Reads that some code does not make: text that nobody may look at, a size that is known.
_PERHAPS = frozenset({"format", "print", "in"})


def call_waits(flow: Flow, call: cst.Call) -> bool:
    """Whether each call of what is called waits for the device."""
    func, caller = call.func, flow.function(call)
    value = flow.value(func)
    if value.kind == MODULE:
        modules = {value.ref} if isinstance(value.ref, Class) else set()
        if isinstance(func, cst.Name) and caller is not None:
            modules |= caller.handed_modules.get(func.value, set())  # def train(model, ...): what callers hand in
        return any(module_waits(flow, cls) for cls in modules)
    return any(function is not None and waits_each_time(flow, function) for function in _called(flow, call, caller))


def waits_each_time(flow: Flow, function: Function) -> bool:
    """Whether each call of a function waits for the device, in itself or in what it calls."""
    if function.waits is None and function.home is flow:
        function.waits = False  # while it is being read, should it call itself
        function.waits = any(
            (waits_at(flow, node) or (type(node) is cst.Call and call_waits(flow, node)))
            and steps.runs_each_time(flow, function, node)
            and not steps.is_under_test(flow, function, node)  # if self.log: print(x.max().item())
            for node in tree.walk(function.node.body)
            if isinstance(node, cst.BaseExpression)
        )
    return function.waits is True


def module_waits(flow: Flow, cls: Class) -> bool:
    """Whether each call of a module waits for the device: its `forward`, or that of a module which it is made of."""
    if cls.waits is None and cls.home is flow:
        cls.waits = False
        forward = cls.find_method("forward")
        parts = (
            flow.value(call).ref
            for owner in cls.lineage
            for method in owner.methods.values()
            if method.role == CONSTRUCTOR
            for call in tree.walk(method.node.body)
            if type(call) is cst.Call and flow.value(call).kind == MODULE
        )
        cls.waits = (forward is not None and waits_each_time(flow, forward)) or any(
            module_waits(flow, part) for part in parts if isinstance(part, Class)
        )
    return cls.waits is True


def _called(flow: Flow, call: cst.Call, caller: Function | None) -> Iterator[Function | None]:
    """The functions and methods of the project that a call runs."""
    func = call.func
    known = flow.value(func).ref
    if isinstance(known, Function):
        yield known
        return
    if isinstance(func, cst.Attribute):
        owner = flow.value(func.value)
        if owner.kind in (MODULE, INSTANCE) and isinstance(owner.ref, Class):
            yield owner.ref.find_method(func.attr.value)
            return
    yield steps.function_called(flow, caller, call)
    unit = flow.built_or_called(flow.scope.qualified(func)) if dotted(func) else None
    yield unit.function if unit is not None else None


def waits_at(flow: Flow, node: cst.BaseExpression) -> bool:
    """Whether the host waits at a node: for a value, for how many there are, for a copy to the device."""
    wait = flow.facts.waits.get(node)
    if wait is not None:
        return wait.what not in _PERHAPS
    if isinstance(node, cst.Subscript):
        return picks_by_mask(flow, node)
    if not isinstance(node, cst.Call):
        return False
    move = flow.facts.moves.get(node)
    if move is not None:
        # torch.zeros(n).to(device); for layer, graph in zip(self.layers, graphs): x = layer(graph.to(self.device), x)
        from_host = move.value.place.is_host or move.value.kind == UNKNOWN_KIND
        return move.target.is_there and from_host and move.non_blocking is not True
    name = flow.name_of(node)
    if name in ("torch.tensor", "torch.as_tensor"):
        return flow.value(node).place.is_there  # torch.tensor([0, n], device=device)
    if name.startswith("torch."):
        given = flow.value(node.args[0].value) if node.args else HOST_DATA
        return name[6:] in _FINDING and not given.place.is_host and not given.is_data
    if not isinstance(node.func, cst.Attribute) or node.args:
        return False
    receiver = flow.value(node.func.value)
    if receiver.kind not in (TENSOR, UNKNOWN_KIND) or receiver.place.is_host:
        return False
    return node.func.attr.value in table.EXPLICIT_WAITS | _FINDING


def picks_by_mask(flow: Flow, node: cst.Subscript) -> bool:
    """``box[mask]``, and not ``box[mask] = 0``: how many there are is for the host to know."""
    if isinstance(flow.source.parents.get(node), cst.AssignTarget | cst.AugAssign) or flow.value(node.value).is_data:
        return False
    for item in node.slice:
        if not isinstance(item.slice, cst.Index):
            continue
        value = flow.value(item.slice.value)
        named = dotted(item.slice.value).rpartition(".")[2].endswith("mask") and not value.is_data
        if value.ref == "mask" or named:
            return not flow.value(node.value).place.is_host
    return False
