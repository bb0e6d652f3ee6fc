"""What a call is given."""

from __future__ import annotations

import libcst as cst

from devlint.flow.scope import Function


def argument(node: cst.Call, position: int | None, *names: str) -> cst.Arg | None:
    """The argument of one of the names, or at the position; ``None`` where `*xs` or `**options` may hold it."""
    for index, arg in enumerate(node.args):
        if arg.star:
            return None
        if (arg.keyword is None and index == position) or (arg.keyword is not None and arg.keyword.value in names):
            return arg
    return None


def handed_in(call: cst.Call, function: Function, param: str) -> cst.BaseExpression | None:
    """What a call of a function of the file hands in for one of its parameters."""
    params = [each.name.value for each in function.positional]
    position = params.index(param) - (1 if function.takes_self else 0) if param in params else None
    if position is None and param not in (each.name.value for each in function.params):
        return None
    arg = argument(call, position, param)
    return arg.value if arg is not None else None


def given_to(call: cst.Call, function: Function, param: cst.Param) -> list[cst.BaseExpression]:
    """What a call hands to a parameter, by its name or by its position, as far as `*xs` leaves that plain."""
    given = [arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == param.name.value]
    if param in function.positional:
        at = function.positional.index(param) - function.takes_self
        given += [arg.value for arg in call.args if arg.keyword is None and not arg.star][at : at + 1]
    return given


def parameter(function: Function | None, name: str) -> cst.Param | None:
    """The parameter of that name, where nothing else is bound to it."""
    if function is None or name in function.assigned:
        return None
    return function.param(name)
