"""What is moved for one call alone, and meets what that gives as it is; what is left out of a row of moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from devlint.flow.names import called_name, dotted, innermost_call, names_bound
from devlint.rule import Rule
from devlint.rules._afterwards import reads_of
from devlint.rules._arguments import argument

IsMove = Callable[[cst.Call], bool]
#: What of a row has to be moved for the one that is not to be told of.
_ENOUGH = 3
#: Ask nothing of where the things are that they are handed.
TAKES_ANYTHING = frozenset(
    "print zip len list tuple dict set min max range enumerate isinstance append extend format info debug log".split()
)


def unmoved_beside_answers(rule: Rule, is_move: IsMove) -> Iterator[tuple[cst.Name, cst.Call]]:
    """``y = model(x.to(device)); loss = criterion(y, x)``: where ``x`` meets ``y``, and the move."""
    for move in rule.source.nodes_of(cst.Call):
        func = move.func
        if not isinstance(func, cst.Attribute) or not isinstance(func.value, cst.Name) or not is_move(move):
            continue
        name, function = func.value.value, rule.flow.function(move)
        answers, assign = _answers(rule, move)
        if function is None or not answers or name in answers or name in function.assigned - _gone_through(rule, move):
            continue
        for read in reads_of(rule, function, name):
            if assign is not None and rule.source.comes_before(assign, read) and _meets(rule, read, answers):
                yield read, move
                break


def _answers(rule: Rule, move: cst.Call) -> tuple[set[str], cst.Assign | None]:
    """The names that are bound to what a call gives that takes the moved copy."""
    arg = rule.parent(move)
    call = rule.parent(arg) if isinstance(arg, cst.Arg) else None
    assign = rule.parent(call) if isinstance(call, cst.Call) else None
    if not isinstance(assign, cst.Assign) or not isinstance(call, cst.Call) or called_name(call) in TAKES_ANYTHING:
        return set(), None
    return names_bound(*(each.target for each in assign.targets)), assign


def _gone_through(rule: Rule, node: cst.CSTNode) -> set[str]:
    """What the loops around a node bind in each turn: that is not bound anew in between."""
    found: set[str] = set()
    above = rule.parent(node)
    while above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.For):
            found |= names_bound(above.target)
        above = rule.parent(above)
    return found


def _meets(rule: Rule, read: cst.Name, answers: set[str]) -> bool:
    """Whether a name goes into an operation or a call together with one of these, both as they are."""
    above = rule.parent(read)
    if isinstance(above, cst.BinaryOperation):
        return dotted(above.left if above.right is read else above.right) in answers
    call = rule.parent(above) if isinstance(above, cst.Arg) and not above.star else None
    if not isinstance(call, cst.Call) or called_name(call) in TAKES_ANYTHING:
        return False
    return any(dotted(arg.value) in answers for arg in call.args if not arg.star)


def left_out_of_rows(rule: Rule, is_move: IsMove) -> Iterator[tuple[cst.Call, cst.Call]]:
    """``Sample(rows=torch.Tensor(a).to(device), marks=torch.Tensor(b), ...)``: the one of a row that is not moved."""
    for call in rule.source.nodes_of(cst.Call):
        if len(call.args) <= _ENOUGH:
            continue
        moved: dict[str, list[cst.Call]] = {}
        left: dict[str, list[cst.Call]] = {}
        for arg in call.args:
            made = innermost_call(arg.value)
            if isinstance(made, cst.Call) and rule.flow.name_of(made).startswith("torch."):
                moves = [each for each in _chain(arg.value) if is_move(each)]
                (moved if moves else left).setdefault(rule.flow.name_of(made), []).append(moves[0] if moves else made)
        for name, alone in left.items():
            if len(alone) == 1 and len(moved.get(name, ())) >= _ENOUGH and argument(alone[0], None, "device") is None:
                yield alone[0], moved[name][0]


def _chain(node: cst.BaseExpression) -> Iterator[cst.Call]:
    """The calls of ``torch.Tensor(a).to(device).reshape(-1)``, the last one first."""
    while isinstance(node, cst.Call):
        yield node
        if not isinstance(node.func, cst.Attribute):
            return
        node = node.func.value
