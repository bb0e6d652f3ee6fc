"""What becomes of a value under the name that it is bound to: whether anything else ever meets it."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import dotted, target_names
from devlint.flow.scope import Function
from devlint.flow.value import FUNCTION, MODULE
from devlint.rule import Rule
from devlint.rules._recurs import function_of


def reads_of(rule: Rule, function: Function | None, name: str) -> list[cst.Name]:
    """Where a function, or the file outside of all functions, reads one of its names."""
    return [
        node
        for node in rule.source.nodes_of(cst.Name)
        if node.value == name
        and rule.flow.function(node) is function
        and not isinstance(rule.parent(node), cst.Param | cst.AssignTarget)
        and not (isinstance(above := rule.parent(node), cst.Arg) and above.keyword is node)
        and not (isinstance(above, cst.Attribute) and above.attr is node)
        and not (isinstance(above, cst.Element) and _is_target(rule, above))  # r, t = ...
    ]


def _is_target(rule: Rule, element: cst.Element) -> bool:
    above: cst.CSTNode | None = element
    while isinstance(above, cst.Element | cst.Tuple | cst.List):
        above = rule.parent(above)
    return isinstance(above, cst.AssignTarget)


def later_reads(rule: Rule, call: cst.Call) -> list[cst.Name] | None:
    """Where the names are read that a statement binds a value to; ``None`` where it binds anything but names.

    The value may have gone through its own methods first: ``x = zeros(3).cuda().float()``.
    """
    above = rule.parent(call)
    while isinstance(above, cst.Attribute) or (isinstance(above, cst.Call) and isinstance(above.func, cst.Attribute)):
        above = rule.parent(above)
    place = -1
    if isinstance(above, cst.Element):  # x, y = x.cuda(), y.cuda()
        row = rule.parent(above)
        place = row.elements.index(above) if isinstance(row, cst.Tuple) else -1
        above = rule.parent(row) if isinstance(row, cst.Tuple) else None
    function = rule.flow.function(call)
    if not isinstance(above, cst.Assign) or len(above.targets) != 1 or function is None:
        return None
    target: cst.BaseExpression = above.targets[0].target
    if place >= 0:
        if not isinstance(target, cst.Tuple) or len(target.elements) <= place:
            return None
        target = target.elements[place].value
    parts = target.elements if isinstance(target, cst.Tuple | cst.List) else (cst.Element(target),)
    if not all(isinstance(part.value, cst.Name) for part in parts):
        return None
    names: set[str] = set()
    target_names(target, names)
    start, end = rule.source.offsets(above)
    again = isinstance(rule.enclosing(above, cst.For, cst.While, cst.FunctionDef), cst.For | cst.While)
    return [
        read
        for name in sorted(names)
        for read in reads_of(rule, function, name)
        if (at := rule.source.offsets(read)[0]) > end or (at < start and again)
    ]


def is_left_alone(rule: Rule, call: cst.Call) -> bool:
    """Whether nothing else meets what is moved or made: it moves on at once, is not read, or is only tried out."""
    above = rule.parent(call)
    if isinstance(above, cst.Attribute) and above.attr.value in table.MOVES | table.TYPE_MOVES:
        return True  # scale.cuda().type_as(w)
    reads = later_reads(rule, call)
    if reads is None:
        return False
    tried = rule.enclosing(call, cst.Try)
    if isinstance(tried, cst.Try) and all(rule.enclosing(read, cst.Try) is tried for read in reads):
        return True  # try: q = torch.randn(1, 2, device="cuda"); attend(q, q, q)
    return all(
        goes_to_host(rule, read) or is_gone_through(rule, read) or _moved_by_callee(rule, read) for read in reads
    )


def goes_to_host(rule: Rule, read: cst.BaseExpression) -> bool:
    """``audio.unsqueeze(0).cpu()``, ``sizes[0].item()``"""
    above = rule.parent(read)
    while isinstance(above, cst.Attribute | cst.Call | cst.Subscript):
        move = rule.flow.move(above)
        if move is not None:
            return move.target.is_host
        if isinstance(above, cst.Attribute) and above.attr.value in table.EXPLICIT_WAITS:
            return True  # lengths.tolist()
        above = rule.parent(above)
    return False


def is_gone_through(rule: Rule, read: cst.BaseExpression) -> bool:
    """``for i, t in enumerate(timesteps)``: the elements of a list of numbers may meet what is anywhere."""
    child: cst.CSTNode = read
    above = rule.parent(read)
    while isinstance(above, cst.Arg | cst.Call):
        if isinstance(above, cst.Call) and dotted(above.func) == "len":
            return True
        child, above = above, rule.parent(above)
    return isinstance(above, cst.For | cst.CompFor) and above.iter is child


def _moved_by_callee(rule: Rule, read: cst.BaseExpression) -> bool:
    """Whether a read hands a value to a function that moves it before it does anything else with it."""
    arg = rule.parent(read)
    call = rule.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(arg, cst.Arg) or not isinstance(call, cst.Call) or arg.star:
        return False
    called = rule.flow.value(call.func)
    function = function_of(rule.flow, call)
    if function is None and called.kind == FUNCTION and isinstance(called.ref, Function):
        function = called.ref
    if function is None:
        return False
    params = function.positional[1:] if function.takes_self else function.positional
    if arg.keyword is not None:
        name = arg.keyword.value
    else:
        position = next(i for i, each in enumerate(call.args) if each is arg)
        if position >= len(params):
            return False
        name = params[position].name.value
    return name in function.param_names and moves_first(function, name)


def moves_first(function: Function, name: str) -> bool:
    """``def pitch(self, units): units = units.to(self.device)``"""
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Assign) and any(dotted(target.target) == name for target in node.targets):
            value = node.value
            return (
                isinstance(value, cst.Call)
                and isinstance(value.func, cst.Attribute)
                and value.func.attr.value in table.MOVES
                and dotted(value.func.value) == name
            )
        if isinstance(node, cst.Name) and node.value == name:
            return False
    return False


def ends_on(rule: Rule, node: cst.BaseExpression, device: str, moved: set[cst.Call]) -> bool:
    """Whether a value goes to a device, or is handed on together with it.

    ``boxes.float().to(device)``, ``Boxes(boxes).to(device)``, ``Cameras(device=device, R=R)``. ``moved``: the calls
    that move something there.
    """
    child: cst.CSTNode = node
    above = rule.parent(node)
    while isinstance(above, cst.Attribute | cst.Subscript | cst.Arg | cst.Call | cst.Element | cst.List | cst.Tuple):
        if isinstance(above, cst.Subscript) and child is not above.value:
            return False
        if isinstance(above, cst.Call):
            if above in moved:
                return True
            if child is not above.func and any(dotted(arg.value) == device for arg in above.args):
                return True
        child, above = above, rule.parent(above)
    return False


def meets_what_is_there(rule: Rule, node: cst.BaseExpression) -> bool:
    """Whether a value is given back as it is, or computed with what is on a device: ``(x - noise.float()).sum()``."""
    child: cst.CSTNode = node
    above = rule.parent(node)
    while above is not None and not isinstance(above, cst.BaseStatement | cst.BaseSmallStatement):
        others: list[cst.BaseExpression] = []
        if isinstance(above, cst.BinaryOperation):
            others = [above.left, above.right]
        elif isinstance(above, cst.Comparison):
            others = [above.left, *(target.comparator for target in above.comparisons)]
        elif isinstance(above, cst.Call) and child is not above.func:
            called = rule.flow.value(above.func)
            if called.kind == MODULE and called.place.is_there:
                return True  # net(y.cuda())
            if not rule.flow.name_of(above).startswith("torch."):
                return False  # what becomes of it in there is not known
            others = [arg.value for arg in above.args]
        if any(other is not child and rule.flow.value(other).place.is_there for other in others):
            return True
        child, above = above, rule.parent(above)
    return isinstance(above, cst.Return)
