"""How many devices there are, where a device is numbered: the last one has the number before that."""

from __future__ import annotations

import re

import libcst as cst

from devlint.flow.names import dotted, last_word
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._numbered import devices_numbered

_COUNTS = frozenset({"torch.cuda.device_count", "torch.accelerator.device_count", "torch.xpu.device_count"})
_IDS = re.compile(r"(^|_)(gpu|device|cuda)_?(ids?|ind(ex|ices)|s)$|^(gpus|devices)$", re.IGNORECASE)


def report_one_past(rule: Rule) -> None:
    """``f"cuda:{torch.cuda.device_count()}"``, ``gpu_ids = [torch.cuda.device_count()]``"""
    if "device_count" not in rule.source.text:
        return
    done: set[cst.CSTNode] = set()
    numbers = [number for _, number in devices_numbered(rule)]
    lists: list[cst.List | cst.Tuple] = [*rule.source.nodes_of(cst.List), *rule.source.nodes_of(cst.Tuple)]
    for listed in lists:
        if len(listed.elements) == 1 and _names_ids(rule, listed):
            numbers.append(listed.elements[0].value)
    for number in numbers:
        counted = _counted(rule, number)
        if counted is not None and number not in done and not rule.in_tests:
            done.add(number)
            notes = [rule.note(counted, "they are counted here")] if counted is not number else []
            said = (
                f"`{short(rule.code(number))}` is how many devices there are: the last one has the number before that"
            )
            rule.report(number, said, notes=notes, tentative=True)


def _names_ids(rule: Rule, listed: cst.List | cst.Tuple) -> bool:
    """``gpu_ids = [...]``, ``Trainer(devices=[...])``, ``{"gpu_ids": [...]}``"""
    above = rule.parent(listed)
    while isinstance(above, cst.IfExp):
        above = rule.parent(above)
    if isinstance(above, cst.Assign):
        return any(_IDS.search(last_word(dotted(each.target))) is not None for each in above.targets)
    if isinstance(above, cst.DictElement) and isinstance(above.key, cst.SimpleString):
        return _IDS.search(str(above.key.evaluated_value)) is not None
    named = above.keyword if isinstance(above, cst.Arg) else None
    return named is not None and _IDS.search(named.value) is not None


def _counted(rule: Rule, number: cst.BaseExpression) -> cst.BaseExpression | None:
    """The call that counts, also of a name that is bound once."""
    if isinstance(number, cst.Call):
        return number if rule.flow.scope.qualified(number.func) in _COUNTS else None
    if not isinstance(number, cst.Name):
        return None
    function = rule.flow.function(number)
    if function is not None and number.value in function.param_names:
        return None
    bound = [
        assign.value
        for assign in rule.source.nodes_of(cst.Assign)
        if any(dotted(each.target) == number.value for each in assign.targets)
    ]
    others = [node for node in rule.source.nodes_of(cst.AugAssign) if dotted(node.target) == number.value]
    loops = [node for node in rule.source.nodes_of(cst.For) if dotted(node.target) == number.value]
    if len(bound) != 1 or others or loops or not isinstance(bound[0], cst.Call):
        return None
    return bound[0] if rule.flow.scope.qualified(bound[0].func) in _COUNTS else None
