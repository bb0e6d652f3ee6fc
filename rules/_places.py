"""Saying in a message where something is, and finding an expression that names a device."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Note
from devlint.flow import Flow, Value
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted, last_word, names_bound, target_names
from devlint.flow.place import Place
from devlint.flow.scope import Function
from devlint.flow.value import DEVICE, MODULE
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._moves import destination, moves_of_name
from devlint.rules._tensor_by_then import is_tensor_by, used_as_tensor


def where(place: Place) -> str:
    """The place in words: ``the host``, ``the module's device``, "`x`'s device"."""
    if place.is_host:
        return "the host"
    if place.kind == "fixed":
        return f"`{place.name}`"
    if place.name == "self":
        return "the module's device"
    if not place.name:
        return "the device"
    return f"`{place.name}`" if names_device(last_word(place.name)) else f"`{place.name}`'s device"


def origin_note(rule: Rule, what: str, value: Value) -> list[Note]:
    """A note at the line where a value got to its place, where that is known."""
    if value.origin is None:
        return []
    if isinstance(value.origin, cst.Param):
        return [rule.note(value.origin, f"{what} is on {where(value.place)}: it is handed in here")]
    move = rule.flow.move(value.origin) if isinstance(value.origin, cst.Call) else None
    # home = torch.device(settings.device if cuda.is_available() else "cpu"); x.to(home)   is on `home`
    there = destination(rule, move) if move is not None and move.target.name else where(value.place)
    return [rule.note(value.origin, f"{what} is on {there} since here")]


def device_expression(flow: Flow, at: cst.CSTNode, there_node: cst.CSTNode, there: Value) -> str | None:
    """Code that names the device of ``there`` and can be evaluated at ``at``; ``None`` where none is sure to be."""
    function = flow.function(at)
    if (
        isinstance(there_node, cst.Name)
        and there.holds_tensors
        and bound_before(flow, there_node.value, at)
        and _is_no_number(flow, at, there_node.value)
        and not _is_moved_later(flow, function, there_node.value, at)
        and is_tensor_by(flow, there_node.value, at)
    ):
        return f"{there_node.value}.device"
    place = there.place
    if place.kind == "fixed":
        return _device_in_reach(flow, at, place) or f'"{place.name}"'
    if place.kind == "device" and names_device(last_word(place.name)):
        head = place.name.partition(".")[0]
        is_method = function is not None and any("self" in each.param_names for each in function.outwards)
        if is_method if head == "self" else bound_before(flow, head, at):
            return place.name
    if place.kind == "param" and _is_given_tensor(flow, at, place.name):
        return f"{place.name}.device"
    told = _device_told(flow, at, there)
    if told is not None:
        return told
    name = _tensor_in_reach(flow, at)
    if name is not None:
        return f"{name}.device"
    cls = function.cls if function is not None and function.takes_self else None
    if cls is not None and (held := _tensor_of_module(flow, there_node)) is not None:
        return f"{held}.device"
    if (
        there.place.name == "self"
        and cls is not None
        and any(v.holds or v.grad for c in cls.lineage for v in c.attrs.values())
    ):
        return "next(self.parameters()).device"
    return None


def _device_told(flow: Flow, at: cst.CSTNode, there: Value) -> str | None:
    """``device`` of ``steps = torch.arange(n, device=device)``, which comes before."""
    made = there.origin
    function = flow.function(at)
    if not isinstance(made, cst.Call) or flow.factory(made) is None or flow.function(made) is not function:
        return None
    told = argument(made, None, "device")
    name = told.value.value if told is not None and isinstance(told.value, cst.Name) else ""
    return name if names_device(name) and bound_before(flow, name, at) else None


def _device_in_reach(flow: Flow, at: cst.CSTNode, place: Place) -> str | None:
    """``device`` of ``device = torch.device("cuda" if x.is_cuda else "cpu")``, of the function or the file: a name for
    more than the one place."""
    function = flow.function(at)
    for assign in flow.source.nodes_of(cst.Assign):
        target = assign.targets[0].target
        if not isinstance(target, cst.Name) or not names_device(target.value):
            continue
        inner = set().union(*(each.param_names | each.assigned for each in function.outwards)) if function else set()
        if flow.function(assign) is not function and (target.value in inner or not _is_at_top_level(flow, assign)):
            continue  # def run(x, device): ...   is told another one
        value = flow.value(assign.value)
        if value.kind == DEVICE and value.place == place and bound_before(flow, target.value, at):
            return target.value
    return None


def _is_at_top_level(flow: Flow, assign: cst.Assign) -> bool:
    """Not below ``if __name__ == "__main__":``, which nobody runs who imports the file."""
    line = flow.source.parents.get(assign)
    return line is not None and isinstance(flow.source.parents.get(line), cst.Module)


def is_set_before(rule: Rule, device: str, at: cst.CSTNode) -> bool:
    """Whether a constructor has set `self.device` by then."""
    function = rule.flow.function(at)
    if not device.startswith("self.") or function is None or function.cls is None or function.name != "__init__":
        return True
    before, _ = rule.source.offsets(at)
    stores = rule.flow.stores(function.cls, device.partition(".")[2])
    return any(rule.source.offsets(statement)[0] < before for statement, _ in stores)


def _is_given_tensor(flow: Flow, at: cst.CSTNode, name: str) -> bool:
    """Whether ``name`` is a parameter of the function around ``at`` that is a tensor, and still is the same."""
    function = flow.function(at)
    if function is None or name in function.assigned or not _is_no_number(flow, at, name):
        return False
    return any(param.name.value == name and flow.value(param).is_tensor for param in function.params)


def _is_no_number(flow: Flow, at: cst.CSTNode, name: str) -> bool:
    """Whether no test says that ``name`` may be something else than a tensor at ``at``:
    ``filler = torch.zeros(3)``, and then ``if isinstance(x, Tensor): return torch.cat([filler, x])``."""
    function = flow.function(at)
    if function is None or not any(_asks_type(node, name) for node in tree.walk(function.node.body)):
        return True
    test = _type_test(flow, at, name)
    return test is not None and _names_tensors(flow, test)


def is_no_tensor(flow: Flow, at: cst.CSTNode, name: str) -> bool:
    """Whether a test around ``at`` says that a parameter is something else: ``if isinstance(x, dict)``."""
    test = _type_test(flow, at, name)
    return test is not None and not _names_tensors(flow, test)


def _names_tensors(flow: Flow, test: cst.BaseExpression) -> bool:
    """``isinstance(x, torch.Tensor)``, ``isinstance(x, (LongTensor, Parameter))``, ``torch.is_tensor(x)``"""
    return re.search(r"tensor\b|Parameter", flow.source.code(test), re.IGNORECASE) is not None


def _type_test(flow: Flow, at: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """The innermost test around ``at`` that asks what ``name`` is, where that holds there."""
    child, above = at, flow.source.parents.get(at)
    while above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.If) and child is above.body and _asks_type(above.test, name):
            return above.test
        child, above = above, flow.source.parents.get(above)
    return None


def _asks_type(node: cst.CSTNode, name: str) -> bool:
    """``isinstance(x, torch.Tensor)``, ``torch.is_tensor(x)``"""
    if not isinstance(node, cst.Call) or not node.args or dotted(node.args[0].value) != name:
        return False
    return dotted(node.func).rpartition(".")[2] in ("isinstance", "is_tensor")


def _tensor_in_reach(flow: Flow, at: cst.CSTNode) -> str | None:
    """A name surely bound at ``at`` to a tensor on the device: a parameter first, else the last one used before."""
    function = flow.function(at)
    if function is not None:
        for param in function.params:
            given, known_as = flow.value(param), param.name.value
            is_tensor = given.is_tensor and given.place.is_there and param.default is None
            kept = not _is_rebound(flow, function, known_as) and not _is_moved_later(flow, function, known_as, at)
            if is_tensor and kept and _is_no_number(flow, at, known_as) and is_tensor_by(flow, known_as, at):
                return known_as
    _, end = flow.source.offsets(at)  # its own arguments count: torch.zeros(x.size(0))
    found = None
    for name in flow.source.nodes_of(cst.Name):
        value = flow.value(name)
        if value.kind not in ("tensor", "thing") or not value.place.is_there or flow.function(name) is not function:
            continue
        if isinstance(value.origin, cst.Call) and flow.name_of(value.origin) == "torch.load":
            continue  # first = checkpoint["epoch"] + 1   is a number as well as not
        if flow.source.offsets(name)[0] >= end:
            break
        if function is not None and (_is_rebound(flow, function, name.value) or _may_be_none(function, name.value)):
            continue
        if _is_moved_later(flow, function, name.value, at) or not is_tensor_by(flow, name.value, at):
            continue
        if (value.is_tensor or used_as_tensor(flow, name)) and bound_before(flow, name.value, at):
            found = name.value if _is_no_number(flow, at, name.value) else found
    return found


def _is_moved_later(flow: Flow, function: Function | None, name: str, at: cst.CSTNode) -> bool:
    """``state = torch.zeros(n)``, and then ``x = x.to(device)``: until then, ``x`` is where it was."""
    return any(not flow.source.comes_before(move.node, at) for move in moves_of_name(flow, function, name))


def _is_rebound(flow: Flow, function: Function, name: str) -> bool:
    """``if not issparse(votes): votes = coo_matrix(votes)``: what a parameter is after that need have no device."""
    if name not in function.assigned or name not in function.param_names:
        return False
    return any(
        name in names_bound(*(target.target for target in assign.targets))
        and flow.function(assign) is function
        and not flow.value(assign.value).is_tensor
        for assign in flow.source.nodes_of(cst.Assign)
    )


def _may_be_none(function: Function, name: str) -> bool:
    """``def table(shape=None, x=None)``, which takes the one or the other."""
    param = function.param(name)
    return param is not None and dotted(param.default) == "None"


def _tensor_of_module(flow: Flow, there_node: cst.CSTNode) -> str | None:
    """``self.scale`` of ``x * self.scale``. The copies that `DataParallel` makes of a module have no parameters that
    `parameters()` would find: `next(self.parameters())` raises there."""
    for part in tree.walk(there_node):
        if isinstance(part, cst.Attribute) and dotted(part).count(".") == 1 and dotted(part).startswith("self."):
            held = flow.value(part)
            if held.ref in ("parameter", "buffer"):
                return dotted(part)
            if held.kind == MODULE and held.ref in _WITH_WEIGHT:
                return f"{dotted(part)}.weight"
    return None


def bound_before(flow: Flow, name: str, at: cst.CSTNode) -> bool:
    """Whether a name is surely bound at ``at``: a parameter, or assigned in an enclosing block before."""
    function = flow.function(at)
    parents = flow.source.parents
    if function is not None:
        if name in function.param_names:
            return True
        if name not in function.assigned:
            return name in flow.module_names
    child: cst.CSTNode = at
    current = parents.get(at)
    while current is not None and not isinstance(current, cst.FunctionDef | cst.ClassDef):
        if isinstance(current, cst.IndentedBlock | cst.Module):
            for statement in current.body:
                if statement is child:
                    break
                if name in _binds(statement):
                    return True
        if isinstance(current, cst.For) and child is current.body:
            targets: set[str] = set()
            target_names(current.target, targets)
            if name in targets:
                return True
        child, current = current, parents.get(current)
    return False


def _binds(statement: cst.CSTNode) -> set[str]:
    names: set[str] = set()
    if isinstance(statement, cst.SimpleStatementLine):
        for small in statement.body:
            if isinstance(small, cst.Assign):
                for target in small.targets:
                    target_names(target.target, names)
            elif isinstance(small, cst.AnnAssign) and small.value is not None:
                target_names(small.target, names)
    elif isinstance(statement, cst.If) and isinstance(statement.orelse, cst.Else):
        # `if ...: device = a / else: device = b`
        both = [_block_binds(statement.body), _block_binds(statement.orelse.body)]
        names = both[0] & both[1]
    return names


def _block_binds(body: cst.BaseSuite) -> set[str]:
    return set().union(*(_binds(s) for s in body.body)) if isinstance(body, cst.IndentedBlock) else set()


#: Layers with a `weight`, whatever they are told.
_WITH_WEIGHT = frozenset(
    "torch.nn." + name
    for name in "Linear Embedding EmbeddingBag Conv1d Conv2d Conv3d ConvTranspose1d "
    "ConvTranspose2d ConvTranspose3d".split()
)
