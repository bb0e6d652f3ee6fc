"""Invariance: whether an expression gives the same value in every iteration of a loop.

A name counts as unchanged only where nothing in the loop binds it, writes into it or hands it to a function that might,
where no second name is seen for its memory, and where it is not trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from devlint import tree
from devlint.flow import hypothesis
from devlint.flow import torch_table as table
from devlint.flow.loops import Loop, holder
from devlint.flow.names import dotted, target_names
from devlint.flow.place import Place
from devlint.flow.scope import CONSTRUCTOR, Class
from devlint.flow.value import DTYPE, LIST, TENSOR, TUPLE, Value

if TYPE_CHECKING:
    from devlint.flow import Flow

#: Functions that make an array or a tensor of what they are given.
MAKING = frozenset(
    "torch.tensor torch.as_tensor torch.asarray torch.from_numpy torch.Tensor torch.FloatTensor torch.LongTensor "
    "torch.DoubleTensor torch.IntTensor torch.BoolTensor numpy.array numpy.asarray".split()
)
_SHARING = frozenset("torch.as_tensor torch.asarray torch.from_numpy numpy.asarray torch.autograd.Variable".split())
_SHOWING = table.VIEWS | table.VIEWS_OR_COPIES | {"numpy", "detach", "requires_grad_", "share_memory_"}


def same_every_time(flow: Flow, loop: Loop, node: cst.BaseExpression) -> bool:
    """Whether host data or a host tensor is the same in every iteration; ``False`` where that is not known."""
    if isinstance(node, cst.Integer | cst.Float | cst.SimpleString):
        return True
    if type(node) is cst.Name or type(node) is cst.Attribute:
        return _is_host_value(flow.value(node)) and path_stays(flow, loop, node)
    if type(node) is cst.UnaryOperation:
        return same_every_time(flow, loop, node.expression)
    if type(node) is cst.BinaryOperation:
        return same_every_time(flow, loop, node.left) and same_every_time(flow, loop, node.right)
    if type(node) is cst.List or type(node) is cst.Tuple:
        return all(type(e) is cst.Element and same_every_time(flow, loop, e.value) for e in node.elements)
    if type(node) is cst.Call:
        arguments = node.args
        if flow.name_of(node) in MAKING:
            # the data; what else is given is a type or a device
            return bool(arguments) and same_every_time(flow, loop, arguments[0].value)
        if type(node.func) is not cst.Attribute:
            return False
        operation = table.METHODS.get(node.func.attr.value)
        if operation is None or operation.result != "tensor":
            return False
        return same_every_time(flow, loop, node.func.value) and all(
            arg.star == "" and (_is_type(flow, arg.value) or same_every_time(flow, loop, arg.value))
            for arg in arguments
        )
    return False


def target_stays(loop: Loop, node: cst.BaseExpression | None, place: Place) -> tuple[bool, bool]:
    """Whether a ``device`` expression names one device in all iterations, and whether it may stand above the loop."""
    paths = [] if node is None else _paths_in(node)
    if not any(loop.binds(path) for path in paths):
        return True, True
    # `w.to(x.device)` where x was moved to `device`
    named = place.kind == "device" and hypothesis.names_device(place.name.rpartition(".")[2])
    return (place.kind == "fixed" or named) and not loop.binds(place.name), False


def bindings(loop: Loop, name: str) -> int:
    """How many statements and clauses of the loop bind the name."""
    count = 0
    for node in tree.walk(loop.node):
        names: set[str] = set()
        if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.NamedExpr | cst.For | cst.CompFor):
            target_names(node.target, names)
        elif type(node) is cst.AsName:
            target_names(node.name, names)
        count += name in names
    return count


def _is_host_value(value: Value) -> bool:
    if value.kind == TENSOR:
        return value.place.is_host and not value.grad and value.ref != "parameter"
    if value.kind == LIST:
        return value.items is not None and _is_host_value(value.items)
    if value.kind == TUPLE:
        return all(_is_host_value(item) for item in value.items)
    return value.is_data


def _is_type(flow: Flow, node: cst.BaseExpression) -> bool:
    return flow.value(node).kind == DTYPE


def path_stays(flow: Flow, loop: Loop, node: cst.BaseExpression) -> bool:
    """Whether a name, or an attribute of ``self``, holds the same in every iteration, as far as the file shows."""
    path = dotted(node)
    if not path or loop.changes(path):
        return False
    function = flow.function(node)
    if path.startswith("self."):
        return function is not None and function.cls is not None and _attribute_stays(flow, function.cls, path)
    if path in flow.scope.globals_written:
        return False
    return not any(
        _gives_second_name(flow, loop, path, n) for root in _bodies(flow, node, path) for n in tree.walk(root)
    )


def _bodies(flow: Flow, node: cst.CSTNode, path: str) -> list[cst.CSTNode]:
    """Where the name is bound: the function around the node, or the statements of the module."""
    function = flow.function(node)
    while function is not None:
        if path.partition(".")[0] in function.assigned or path in function.param_names:
            return [function.node.body]
        function = function.outer
    return [s for s in flow.source.module.body if not isinstance(s, cst.FunctionDef | cst.ClassDef)]


def _attribute_stays(flow: Flow, cls: Class, path: str) -> bool:
    """Whether only constructors set ``self.x``, and nothing in the class writes into it or gives it a second name."""
    name = path.split(".")[1]
    for owner in {*cls.lineage, *cls.subclasses}:
        for method in owner.methods.values():
            if name in method.stores and method.role != CONSTRUCTOR:
                return False
            for node in tree.walk(method.node.body):
                if _gives_second_name(flow, None, path, node):
                    return False
                if type(node) is cst.Call and type(node.func) is cst.Attribute:
                    if node.func.attr.value.endswith("_") and holder(node.func.value) == path:
                        return False
                elif type(node) is cst.AugAssign and holder(node.target) == path:
                    return False
    return True


def _gives_second_name(flow: Flow, loop: Loop | None, path: str, node: cst.CSTNode) -> bool:
    """`view = ring[0]`, `Adam([w])`, `w.requires_grad_()`: what happens to it may not be seen under its own name."""
    if type(node) is cst.Assign or type(node) is cst.AnnAssign or type(node) is cst.NamedExpr:
        if node.value is None:
            return False
        seen = set(shown(flow, node.value))
        if path in seen:
            return True
        targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
        if any(
            type(t) is cst.Attribute and t.attr.value == "requires_grad" and dotted(t.value) == path for t in targets
        ):
            return True
        # `t = torch.from_numpy(frame)`: writing into frame changes t
        return loop is not None and any(dotted(t) == path for t in targets) and any(map(loop.changes, seen))
    if type(node) is cst.Call:
        if type(node.func) is cst.Attribute and node.func.attr.value == "requires_grad_":
            return holder(node.func.value) == path
        return any(type(a.value) in (cst.List, cst.Tuple, cst.Dict) and path in shown(flow, a.value) for a in node.args)
    return False


def shown(flow: Flow, node: cst.BaseExpression) -> Iterator[str]:
    """Paths whose memory the value of an expression shares."""
    if type(node) is cst.Name or type(node) is cst.Attribute:
        path = dotted(node)
        if path:
            yield path
    elif type(node) is cst.Subscript:
        yield from shown(flow, node.value)
    elif type(node) is cst.Call:
        if type(node.func) is cst.Attribute and node.func.attr.value in _SHOWING:
            yield from shown(flow, node.func.value)
        elif flow.name_of(node) in _SHARING and node.args:
            yield from shown(flow, node.args[0].value)
    elif type(node) is cst.IfExp:
        yield from shown(flow, node.body)
        yield from shown(flow, node.orelse)
    elif type(node) is cst.BooleanOperation:
        yield from shown(flow, node.left)
        yield from shown(flow, node.right)
    elif isinstance(node, cst.Tuple | cst.List | cst.Set | cst.Dict):
        for item in node.elements:
            yield from shown(flow, item.value)


def _paths_in(node: cst.BaseExpression) -> list[str]:
    path = dotted(node)
    if path:
        return [path]
    return [n.value for n in tree.walk(node) if type(n) is cst.Name]
