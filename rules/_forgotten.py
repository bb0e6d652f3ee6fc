"""What a function makes on the host although it is told a device, on which it makes other things:
``def turns(n, device): angle = torch.rand(n); turn = torch.eye(3, device=device).repeat(n, 1, 1)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import asks_for_device, names_device
from devlint.flow.names import called_name, dotted, names_bound
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, Function
from devlint.flow.value import TENSOR
from devlint.rule import Rule
from devlint.rules._companions import goes_on
from devlint.rules._followed import is_for_host
from devlint.rules._made import is_read_at_once
from devlint.rules._meetings import is_dead, is_of_host, runs_on_host
from devlint.rules._switches import tests_above


class Forgotten(NamedTuple):
    factory: cst.Call
    beside: cst.Call
    device: str


def forgotten(rule: Rule, is_meant: Callable[[cst.Call], bool]) -> Iterator[Forgotten]:
    """The factories that make such things; ``is_meant`` judges which are on the host for want of ``device=``."""
    if rule.in_tests or runs_on_host(rule) or is_of_host(rule):
        return
    made: dict[Function, list[cst.Call]] = {}
    for call in rule.flow.makers:
        function = rule.flow.function(call)
        if function is not None and rule.flow.factory(call) is not None:
            made.setdefault(function, []).append(call)
    for function, calls in made.items():
        told = next(((call, code) for call in calls if (code := _told(rule, function, call))), None)
        if told is None or function.role in (HOST_SIDE, CONSTRUCTOR):
            continue
        for call in calls:
            value = rule.flow.value(call)
            if value.kind != TENSOR or not value.place.is_host or value.zero is True or not is_meant(call):
                continue
            if is_for_host(rule, function):
                break
            if any(asks_for_device(rule.code(test)) for test, _, _ in tests_above(rule, call)) or is_dead(rule, call):
                continue
            if _is_named(rule, call) and goes_on(rule, function, call) and not is_read_at_once(rule, call):
                yield Forgotten(call, *told)


def _is_named(rule: Rule, call: cst.Call) -> bool:
    """Whether a line names what it makes of a call: ``noise = default(noise, torch.randn(n))``. Of what stands in a
    literal, ``Batch(torch.zeros(n))``, or is kept, ``self.rows = torch.zeros(n)``, what is beside it says more."""
    assign = rule.enclosing(call, cst.BaseSmallStatement)
    if not isinstance(assign, cst.Assign) or not all(isinstance(each.target, cst.Name) for each in assign.targets):
        return False
    function = rule.flow.function(call)
    names = {dotted(each.target) for each in assign.targets}
    again = (each for each in tree.walk(function.node.body if function is not None else assign) if each is not assign)
    if any(isinstance(each, cst.Assign) and names & names_bound(each.targets[0].target) for each in again):
        return False  # rows = torch.zeros(4); rows = x.new_ones(4)
    above = rule.parent(call)
    while above is not None and above is not assign:
        if isinstance(above, cst.Dict | cst.List | cst.Tuple):
            return False
        if isinstance(above, cst.Call) and called_name(above)[:1].isupper():
            return False
        above = rule.parent(above)
    return True


def _told(rule: Rule, function: Function, call: cst.Call) -> str:
    """The parameter, or ``self.device``, that a factory is given as the device."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == "device":
            code = dotted(arg.value)
            if code == "self.device" or (code in function.param_names and names_device(code)):
                return code
    return ""
