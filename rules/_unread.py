"""Moves whose result is bound to a name that nothing reads: the copy is made for nothing, or in the wrong place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow.facts import Move
from devlint.flow.names import names_bound
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._training import is_inside


class Unread(NamedTuple):
    """``name = x.to(device)``, read by nothing; ``loop``: the one around it that binds the name anew each turn;
    ``is_element``: what is moved is still what the loop has taken from what it goes through."""

    assign: cst.Assign
    name: cst.Name
    move: Move
    loop: cst.For | None
    is_element: bool


def unread_moves(rule: Rule) -> Iterator[Unread]:
    """Where a function binds a moved copy to a name of its own, and never reads that afterwards."""
    for node, move in rule.flow.facts.moves.items():
        assign, target = _bound_to(rule, node)
        if assign is None or not isinstance(target, cst.Name) or target.value.startswith("_"):
            continue
        function = rule.flow.function(assign)
        if function is None or isinstance(rule.enclosing(assign, cst.FunctionDef, cst.ClassDef), cst.ClassDef):
            continue  # class View: center = torch.zeros(3).cuda()   is for whoever is given the class
        loop = _binding_loop(rule, assign, target.value)
        if not _is_read(rule, function, assign, target, loop):
            yield Unread(assign, target, move, loop, loop is not None and _is_element(rule, target, move, loop))


def _bound_to(rule: Rule, node: cst.CSTNode) -> tuple[cst.Assign | None, cst.BaseExpression | None]:
    """What a move's result is bound to, also in ``x, y = x.to(device), y.to(device)``."""
    parent = rule.parent(node)
    element = parent if isinstance(parent, cst.Element) else None
    row = rule.parent(element) if element is not None else None
    assign = rule.parent(row) if row is not None else parent
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None, None
    target = assign.targets[0].target
    if element is None:
        return assign, target
    if not isinstance(row, cst.Tuple) or not isinstance(target, cst.Tuple) or len(row.elements) != len(target.elements):
        return None, None
    return assign, target.elements[row.elements.index(element)].value


def _binding_loop(rule: Rule, node: cst.CSTNode, name: str) -> cst.For | None:
    above = rule.parent(node)
    while above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.For) and name in names_bound(above.target):
            return above
        above = rule.parent(above)
    return None


def _is_element(rule: Rule, target: cst.Name, move: Move, loop: cst.For) -> bool:
    """Whether nothing binds the name before the move: ``for x in rows: x = x.abs(); total += x; x = x.cpu()``."""
    if not isinstance(move.receiver, cst.Name) or move.receiver.value != target.value:
        return False
    return not any(
        isinstance(node, cst.Name)
        and node.value == target.value
        and node is not target
        and isinstance(rule.parent(node), cst.AssignTarget | cst.AugAssign)
        for node in tree.walk(loop.body)
    )


def _is_read(rule: Rule, function: Function, assign: cst.Assign, target: cst.Name, loop: cst.For | None) -> bool:
    name = target.value
    if name in function.globals | function.shared or function.calls & _READ_ALL:
        return True
    again = _outermost(rule, assign, loop)
    for node in tree.walk(function.node.body):
        if not isinstance(node, cst.Name) or node.value != name or not _loads(rule, node):
            continue
        if _is_another(rule, node, assign):
            continue
        inner = rule.flow.function(node)
        if inner is not function and inner is not None:
            if name in inner.assigned | inner.param_names:
                continue  # def later(): for x in rows: ...   has one of its own
            return True
        if isinstance(rule.enclosing(node, cst.Lambda), cst.Lambda):
            return True  # later = lambda: x
        is_moved = is_inside(rule.flow, node, assign)
        if not is_moved and rule.source.comes_before(assign, node):
            return True
        # while True: show(x); x = x.to(device)   the next turn reads it
        if (
            again is not None
            and is_inside(rule.flow, node, again)
            and not (loop is not None and is_inside(rule.flow, node, loop))
        ):
            return True
    return False


def _is_another(rule: Rule, node: cst.Name, assign: cst.Assign) -> bool:
    """Whether another loop or a comprehension binds the name for this read: ``for x in columns: show(x)``."""
    above = rule.parent(node)
    while above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.For) and not is_inside(rule.flow, node, above.iter):
            if node.value in names_bound(above.target) and not is_inside(rule.flow, assign, above):
                return True
        elif isinstance(above, cst.BaseComp) and node.value in _targets(above.for_in):
            return True
        above = rule.parent(above)
    return False


def _targets(comp: cst.CompFor | None) -> set[str]:
    found: set[str] = set()
    while comp is not None:
        found |= names_bound(comp.target)
        comp = comp.inner_for_in
    return found


def _outermost(rule: Rule, node: cst.CSTNode, loop: cst.For | None) -> cst.CSTNode | None:
    """The outermost loop around a node: what stands above the node in that is run again after it."""
    found = None
    above = rule.parent(node)
    while above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.For | cst.While) and above is not loop:
            found = above
        above = rule.parent(above)
    return found


def _loads(rule: Rule, node: cst.Name) -> bool:
    """Whether a name is read where it stands: no target, keyword, attribute or parameter."""
    parent = rule.parent(node)
    if isinstance(parent, cst.Attribute):
        return node is parent.value
    if isinstance(parent, cst.Arg):
        return node is parent.value
    if isinstance(parent, cst.Element):
        whole = rule.parent(parent)  # for x, y in rows:
        return not isinstance(whole and rule.parent(whole), cst.AssignTarget | cst.For | cst.CompFor)
    if isinstance(parent, cst.For | cst.CompFor):
        return node is not parent.target
    return not isinstance(parent, cst.AssignTarget | cst.AnnAssign | cst.Param | cst.Del)


#: What reads each name of a function.
_READ_ALL = frozenset({"locals", "vars", "eval", "exec"})
