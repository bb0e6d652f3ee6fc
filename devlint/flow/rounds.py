"""Which rounds of a loop take a branch: what stood there before the loop is gone where the first cannot."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from devlint.flow.frame import Env, Frame
from devlint.flow.names import dotted, target_names
from devlint.flow.value import Value, without_place

#: ``0 < t`` is ``t > 0``.
_TURNED: dict[type, type] = {
    cst.GreaterThan: cst.LessThan,
    cst.GreaterThanEqual: cst.LessThanEqual,
    cst.LessThan: cst.GreaterThan,
    cst.LessThanEqual: cst.GreaterThanEqual,
}
#: What holds where a comparison does not.
_REFUTED: dict[type, type] = {
    cst.Equal: cst.NotEqual,
    cst.NotEqual: cst.Equal,
    cst.GreaterThan: cst.LessThanEqual,
    cst.GreaterThanEqual: cst.LessThan,
    cst.LessThan: cst.GreaterThanEqual,
    cst.LessThanEqual: cst.GreaterThan,
}


def forget_start(frame: Frame, test: cst.BaseExpression, holds: bool) -> dict[str, tuple[Value, Value]]:
    """A path that the first round cannot take finds anew what each round binds: ``if t > 0: x = out``, with
    ``out, state = self.cell(x, state)`` below. Gives what is there now, with what the loop found there."""
    env = frame.env
    if env is None or not frame.loops:
        return {}
    around = frame.loops[-1]
    counter = _counter(around.node)
    if counter is None or around.entry is None or not _is_later(test, counter, holds):
        return {}
    held = {}
    for name in _always_bound(around.node.body):
        started = env.get(name)
        if started is not None and started.holds_tensors and started is around.entry.get(name):
            env[name] = without_place(started)
            held[name] = env[name], started
    return held


def restore_start(env: Env | None, held: dict[str, tuple[Value, Value]]) -> None:
    """Where such a path meets that of the first round, which found what the loop found."""
    for name, (now, started) in held.items():
        if env is not None and env.get(name) is now:
            env[name] = started


def _counter(loop: cst.For | cst.While) -> str | None:
    """The name that counts the rounds from zero: ``for t in range(n)``, ``for t, x in enumerate(xs)``."""
    if type(loop) is not cst.For or type(loop.iter) is not cst.Call:
        return None
    made, args = dotted(loop.iter.func), loop.iter.args
    if made == "range" and (len(args) == 1 or (args and _is_zero(args[0].value))):
        return dotted(loop.target) or None
    if made == "enumerate" and len(args) == 1 and isinstance(loop.target, cst.Tuple):
        return dotted(loop.target.elements[0].value) or None
    return None


def _is_later(test: cst.BaseExpression, counter: str, holds: bool) -> bool:
    """Whether a test says, where it holds or does not, that the counter is above zero."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _is_later(test.expression, counter, not holds)
    if isinstance(test, cst.BooleanOperation):
        # if t > 0 and not forced: ...;  if t == 0 or forced: ... else: ...
        if isinstance(test.operator, cst.And) == holds:
            return _is_later(test.left, counter, holds) or _is_later(test.right, counter, holds)
        return _is_later(test.left, counter, holds) and _is_later(test.right, counter, holds)
    if isinstance(test, cst.Name):
        return holds and test.value == counter  # if t: ...
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    operator, left, right = type(test.comparisons[0].operator), test.left, test.comparisons[0].comparator
    if dotted(right) == counter:
        operator, left, right = _TURNED.get(operator, operator), right, left
    if dotted(left) != counter or isinstance(right, cst.UnaryOperation):
        return False
    if not holds:
        operator = _REFUTED.get(operator, operator)
    if operator is cst.Equal or operator is cst.GreaterThanEqual:
        # if t == 1: ...;  if t >= len(known): x = out   a number of things, which are not none
        return not _is_zero(right) and (operator is cst.GreaterThanEqual or isinstance(right, cst.Integer))
    if operator is cst.NotEqual:
        return _is_zero(right)  # if t != 0
    return operator is cst.GreaterThan


def _is_zero(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Integer) and node.value == "0"


def _always_bound(body: cst.BaseSuite) -> set[str]:
    """Names that each round of a loop binds, whatever it comes by."""
    found: set[str] = set()
    todo: list[Iterable[cst.CSTNode]] = [body.body]
    while todo:
        for statement in todo.pop():
            if isinstance(statement, cst.With):
                todo.append(statement.body.body)
            for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
                for target in small.targets if isinstance(small, cst.Assign) else ():
                    target_names(target.target, found)
    return found
