"""Inputs that a function makes on the host to try out a model that it was handed, wherever that is by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import libcst as cst

from devlint.flow.hypothesis import MODEL_NAME
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, Function
from devlint.flow.value import MODULE
from devlint.rule import Rule
from devlint.rules._exports import is_of_export
from devlint.rules._made import made_on_host
from devlint.rules._meetings import calls_of, is_dead, runs_on_host


class TriedWith(NamedTuple):
    factory: cst.Call
    call: cst.Call


def tried_with(rule: Rule, is_meant: Callable[[cst.Call], bool]) -> Iterator[TriedWith]:
    """``def width_of(backbone): return backbone(torch.ones(1, 3, 32, 32)).shape[1]``; ``is_meant`` judges which
    factories are on the host for want of ``device=``."""
    if rule.in_tests or runs_on_host(rule):
        return
    for call in rule.source.nodes_of(cst.Call):
        function = rule.flow.function(call)
        if function is None or not isinstance(call.func, cst.Name) or not _is_handed_in(rule, function, call.func):
            continue
        for arg in call.args:
            made = made_on_host(rule, function, arg.value)
            if made is None or rule.flow.value(arg.value).zero is True or not is_meant(made):
                continue
            if not is_dead(rule, call) and not is_of_export(rule, call) and not _is_for_builders(rule, function):
                yield TriedWith(made, call)


def _is_handed_in(rule: Rule, function: Function, name: cst.Name) -> bool:
    """Whether a name is a model that the function is handed, and that it moves nowhere."""
    if function.role in (CONSTRUCTOR, HOST_SIDE) or function.moves_something or name.value in function.assigned:
        return False
    if function.name.startswith("test"):
        return False
    is_model = rule.flow.value(name).kind == MODULE or MODEL_NAME.match(name.value) is not None
    return is_model and function.param(name.value) is not None


def _is_for_builders(rule: Rule, function: Function) -> bool:
    """``def __init__(self, backbone): self.width = width_of(backbone)``: when a model is built, it is on the host."""
    builders = [rule.flow.function(call) for call in calls_of(rule, function)]
    return bool(builders) and all(each is not None and each.role == CONSTRUCTOR for each in builders)
