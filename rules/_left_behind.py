"""Parts of a batch that stayed behind: others of the same batch are moved, and these meet what is on a device."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.facts import Meeting, Move
from devlint.flow.hypothesis import MODEL_NAME
from devlint.flow.loops import loops_around
from devlint.flow.names import dotted, last_word, names_bound
from devlint.flow.value import ELEMENT, LOADER, MODULE, UNKNOWN, Value
from devlint.rule import Rule
from devlint.rules._meetings import is_dead
from devlint.rules._placing import may_place

#: What counts elements is read on the host: ``pack_padded_sequence(x, lengths)``.
_SIZES = re.compile(r"len|size|count|num")


def left_behind(rule: Rule) -> Iterator[tuple[Meeting, Move]]:
    """Meetings with such a part, each part once in a loop, and a move of another part beside them."""
    if "accelerate" in rule.flow.scope.packages and ".prepare(" in rule.source.text:
        return  # loader = accelerator.prepare(loader)   in whichever function: its batches are there
    seen: set[object] = set()
    for meeting in rule.flow.facts.left_behind.values():
        key = (rule.flow.function(meeting.node), _turn(rule, meeting.node), _path(rule, meeting.host_node))
        if key in seen or _SIZES.search(key[-1]) or not _is_part(rule, meeting) or is_dead(rule, meeting.node):
            continue
        maker = _maker(rule, meeting)
        if (isinstance(maker.origin, cst.Call) and not maker.place.is_host) or may_place(rule, maker.origin):
            continue  # DataLoader(rows, collate_fn=pack(device))
        moved = _moved_beside(rule, meeting)
        if moved is not None:
            seen.add(key)
            yield meeting, moved


def is_needed_there(rule: Rule, meeting: Meeting) -> bool:
    """Whether a part is surely on the host, and what it comes to refuses it: ``net(x, lengths)`` may want that."""
    if rule.flow.scope.wraps_models:
        return False  # a file that prepares them may hand the loader over
    if meeting.what == "a loss":
        return False  # criterion(net(x), targets)   one of the project's own may move them
    if _is_fed_as_it_is(rule, meeting):
        return False
    # for x, corner in loader: net(x.to(device), corner)   a module may read that on the host
    return meeting.what != "a call of the module" or _maker(rule, meeting).ref == "encoding"


def _is_fed_as_it_is(rule: Rule, meeting: Meeting) -> bool:
    """``guess = model(x)``, ``x - attack(x).to(device)``: who hands a model parts that nobody moves has a loader that
    does, or keeps the model on the host."""
    flow, function = rule.flow, rule.flow.function(meeting.node)
    for call in tree.walk(function.node if function is not None else rule.source.module):
        if not isinstance(call, cst.Call) or not call.args or not isinstance(call.args[0].value, cst.Name):
            continue
        given = flow.value(call.args[0].value)
        part = given.origin is meeting.host.origin and not given.place.is_there
        if part and (flow.value(call.func).kind == MODULE or MODEL_NAME.search(last_word(dotted(call.func)))):
            return True
    return False


def _moved_beside(rule: Rule, meeting: Meeting) -> Move | None:
    """A move of a part of the same batch, in the same turn of the loop over the loader, or in the loop before, where
    the other part was gathered: ``labels.append(y)``, and then ``torch.cat(preds) == torch.cat(labels)``."""
    flow, function = rule.flow, rule.flow.function(meeting.node)
    turn = _turn(rule, meeting.node)
    for move in flow.facts.moves.values():
        if move.target.is_there and move.value.origin is meeting.host.origin and flow.function(move.node) is function:
            # for graph in loader: copy = graph.to(device)   may have moved all of it, in place
            whole = isinstance(move.receiver, cst.Name) and move.value.text != ELEMENT
            gathered = turn is None and rule.source.comes_before(move.node, meeting.node)
            if (_turn(rule, move.node) is not turn and not gathered) or whole:
                continue
            # for i in range(len(data)): data[i] = data[i].cuda()   moves each of them
            return move if not _is_any_part(move.receiver) else None
    return None


def _is_any_part(node: cst.BaseExpression) -> bool:
    """``data[i]``"""
    index = node.slice[0].slice if isinstance(node, cst.Subscript) else None
    return isinstance(index, cst.Index) and isinstance(index.value, cst.Name)


def _turn(rule: Rule, node: cst.CSTNode) -> cst.CSTNode | None:
    return next((loop.node for loop in loops_around(rule.flow, node) if loop.loader), None)


def _is_part(rule: Rule, meeting: Meeting) -> bool:
    """Whether all of a part is met: a single row may be a number, ``for y, p in zip(labels, found): y == p``."""
    if _maker(rule, meeting).ref == "encoding":
        return True
    node: cst.CSTNode = meeting.host_node
    while not isinstance(node, cst.Name):
        if isinstance(node, cst.Call):
            node = node.func
        elif isinstance(node, cst.Attribute) or (isinstance(node, cst.Subscript) and _picks_part(rule, node)):
            node = node.value
        else:
            return False
    function = rule.flow.function(meeting.node)
    around = function.node if function is not None else rule.source.module
    return all(
        _goes_through_loader(rule, each)
        for each in tree.walk(around)
        if isinstance(each, cst.For | cst.CompFor) and node.value in names_bound(each.target)
    )


def _picks_part(rule: Rule, node: cst.Subscript) -> bool:
    """``batch["y"]``, and ``batch[1]`` of what the loader gives, not ``labels[1]``."""
    index = node.slice[0].slice
    if len(node.slice) > 1 or not isinstance(index, cst.Index):
        return False
    if isinstance(index.value, cst.SimpleString):
        return True
    loop = rule.enclosing(node, cst.For)
    while loop is not None and not _goes_through_loader(rule, loop):
        loop = rule.enclosing(loop, cst.For)
    if loop is None or not isinstance(index.value, cst.Integer):
        return False
    counted = isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) == "enumerate"
    batch = loop.target.elements[-1].value if counted and isinstance(loop.target, cst.Tuple) else loop.target
    return isinstance(batch, cst.Name) and batch.value == dotted(node.value)


def _goes_through_loader(rule: Rule, loop: cst.For | cst.CompFor) -> bool:
    """``for i, batch in enumerate(tqdm(loader)):``"""
    over: cst.BaseExpression = loop.iter
    while isinstance(over, cst.Call) and over.args and rule.flow.value(over).kind != LOADER:
        over = over.args[0].value
    return rule.flow.value(over).kind == LOADER


def _maker(rule: Rule, meeting: Meeting) -> Value:
    """The loader, or what the tokenizer gave."""
    made = meeting.host.origin
    return rule.flow.value(made) if made is not None else UNKNOWN


def _path(rule: Rule, node: cst.BaseExpression) -> str:
    """``batch["y"]`` of ``batch["y"].view(-1).float()``: what would have to be moved."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        node = node.func.value
    return rule.code(node)
