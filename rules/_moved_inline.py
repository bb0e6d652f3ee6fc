"""What is moved where one model is called, and handed to another as it is."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.facts import Move
from devlint.flow.loops import working_loop
from devlint.flow.names import dotted
from devlint.flow.value import MODULE, THING
from devlint.rule import Rule


def moved_inline(rule: Rule) -> Iterator[tuple[cst.Call, cst.Name, Move]]:
    """``y = net(x.to(device)); f = vgg(x)``: the calls, what they are handed, and where it is moved instead."""
    inline = [
        move
        for move in rule.flow.facts.moves.values()
        if isinstance(move.receiver, cst.Name) and move.target.is_there and isinstance(rule.parent(move.node), cst.Arg)
    ]
    if not inline or rule.in_tests:
        return
    for call in rule.source.nodes_of(cst.Call):
        given = call.args[0].value if call.args and call.args[0].keyword is None else None
        asked = rule.flow.value(call.func)
        moved = asked.kind == MODULE or (asked.kind == THING and asked.ref == "moved")
        if not isinstance(given, cst.Name) or not moved or not asked.place.is_there:
            continue
        for move in inline:
            if _goes_with(rule, move, call, given):
                yield call, given, move
                break


def _goes_with(rule: Rule, move: Move, call: cst.Call, given: cst.Name) -> bool:
    """Whether the same turn of a loop, or function, moves what a call is handed, and never by itself."""
    receiver, function = move.receiver, rule.flow.function(call)
    if not isinstance(receiver, cst.Name) or receiver.value != given.value:
        return False
    if rule.flow.function(move.node) is not function or rule.flow.value(given).place.is_there:
        return False
    if working_loop(rule.flow, call) is not working_loop(rule.flow, move.node):
        return False
    if not rule.source.comes_before(move.node, call):
        return False
    bound = (
        node.value
        for node in rule.source.nodes_of(cst.Assign)
        if rule.flow.function(node) is function and any(dotted(each.target) == given.value for each in node.targets)
    )
    # x = next(batches).cuda(); ...; x = standardized(x)   may be there by now
    return not any(part in rule.flow.facts.moves for value in bound for part in tree.walk(value))
