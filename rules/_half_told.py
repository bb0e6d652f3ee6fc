"""Loads that are told where to for the host alone: ``map_location="cpu" if device == "cpu" else None``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted
from devlint.rule import Rule
from devlint.rules._files import made

_NUMBERED = re.compile(r"cuda:\d+")
_HOST = re.compile(r"""["']cpu["']|torch\.device\(["']cpu["']\)""")


@dataclass
class HalfTold:
    """``device`` is asked whether it is the host; else ``place`` is taken: ``cuda:0``, or as it was saved."""

    test: cst.BaseExpression
    device: cst.BaseExpression
    place: str | None


def half_told(rule: Rule, given: cst.BaseExpression) -> HalfTold | None:
    """How a location was chosen, where which of the devices is meant does not count."""
    for test, of_host, other in _choices(rule, given):
        device = _asked(rule, test)
        if device is None:
            continue
        equal = isinstance(test, cst.Comparison) and isinstance(test.comparisons[0].operator, cst.Equal)
        host, there = (of_host, other) if equal else (other, of_host)
        if not _HOST.fullmatch(rule.code(host)) and rule.code(host) != rule.code(device):
            continue
        if isinstance(there, cst.Name) and there.value == "None":
            return HalfTold(test, device, None)
        if isinstance(there, cst.SimpleString) and _NUMBERED.fullmatch(str(there.evaluated_value)):
            return HalfTold(test, device, str(there.evaluated_value))
    return None


def _choices(
    rule: Rule, given: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression, cst.BaseExpression]]:
    """The test that chooses a location, and what it is in either case."""
    value = made(rule, given)
    if isinstance(value, cst.IfExp):
        yield value.test, value.body, value.orelse
    if not isinstance(given, cst.Name):
        return
    function = rule.flow.function(given)
    for branch in rule.source.nodes_of(cst.If):
        if rule.flow.function(branch) is function and isinstance(branch.orelse, cst.Else):
            first, second = _bound_in(branch.body, given.value), _bound_in(branch.orelse.body, given.value)
            if first is not None and second is not None:
                yield branch.test, first, second


def _bound_in(block: cst.BaseSuite, name: str) -> cst.BaseExpression | None:
    for line in block.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(statement, cst.Assign) and any(dotted(to.target) == name for to in statement.targets):
                return statement.value
    return None


def _asked(rule: Rule, test: cst.BaseExpression) -> cst.BaseExpression | None:
    """The device that is compared with the host: ``device`` of ``device.type == "cpu"``."""
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return None
    compared = test.comparisons[0]
    if not isinstance(compared.operator, cst.Equal | cst.NotEqual) or not _HOST.fullmatch(
        rule.code(compared.comparator)
    ):
        return None
    device = test.left
    if isinstance(device, cst.Call) and dotted(device.func) == "str" and len(device.args) == 1:
        device = device.args[0].value
    if isinstance(device, cst.Attribute) and device.attr.value == "type":
        device = device.value
    base, _, last = dotted(device).rpartition(".")
    if not names_device(last):
        return None
    function = rule.flow.function(test)
    # device = "cuda" if torch.cuda.is_available() else "cpu": there is one to choose
    return device if base or (function is not None and function.param(last) is not None) else None
