"""What a function gives back as it was made on the host, where on other paths it gives what it has computed of what it
was handed: ``if explore: return torch.randint(n, (1,))``, and else ``return self.scores(x).argmax(-1)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import libcst as cst

from devlint.flow.hypothesis import asks_for_device
from devlint.flow.names import annotation_names
from devlint.flow.place import UNKNOWN_PLACE
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, Function
from devlint.flow.value import LIKE_TENSOR, TENSOR
from devlint.rule import Rule
from devlint.rules._beside_made import PLAIN
from devlint.rules._companions import is_brought_by_callers
from devlint.rules._derived import Derived
from devlint.rules._followed import is_for_host, is_from_host
from devlint.rules._made import made_on_host
from devlint.rules._meetings import is_dead, is_of_host, may_be_handed_there, runs_on_host
from devlint.rules._switches import tests_above


class GivenEither(NamedTuple):
    factory: cst.Call
    other: cst.BaseExpression


def given_either(rule: Rule, is_meant: Callable[[cst.Call], bool]) -> Iterator[GivenEither]:
    """The factories that make such things; ``is_meant`` judges which are on the host for want of ``device=``."""
    if rule.in_tests or runs_on_host(rule) or is_of_host(rule):
        return
    returns: dict[Function, list[cst.Return]] = {}
    for node in rule.source.nodes_of(cst.Return):
        function = rule.flow.function(node)
        if function is not None and node.value is not None:
            returns.setdefault(function, []).append(node)
    derived = Derived(rule)
    for function, nodes in returns.items():
        if len(nodes) < 2 or function.role in (CONSTRUCTOR, HOST_SIDE) or function.moves_something:
            continue
        for node in nodes:
            parts = [_parts(each) for each in nodes if each is not node]
            for at, part in enumerate(_parts(node)):
                made = _made(rule, function, part)
                if made is None or not is_meant(made) or is_dead(rule, node) or is_for_host(rule, function):
                    continue
                others = [each[at] for each in parts if len(each) == len(_parts(node))]
                other = next((each for each in others if _is_computed(rule, function, derived, each)), None)
                if other is None or _is_without_input(rule, (node, other), derived.of(function, other)):
                    continue
                if not is_brought_by_callers(rule, function):
                    yield GivenEither(made, other)


def _parts(node: cst.Return) -> list[cst.BaseExpression]:
    if isinstance(node.value, cst.Tuple):
        return [element.value for element in node.value.elements]
    return [node.value] if node.value is not None else []


def _made(rule: Rule, function: Function, node: cst.BaseExpression) -> cst.Call | None:
    value = rule.flow.value(node)
    return made_on_host(rule, function, node) if value.zero is not True and value.attr is None else None


def _is_computed(rule: Rule, function: Function, derived: Derived, node: cst.BaseExpression) -> bool:
    value = rule.flow.value(node)
    if not (value.kind == TENSOR or value.ref == LIKE_TENSOR) or value.place != UNKNOWN_PLACE:
        return False
    fed = {given for _, given in function.fed}  # self.scores(x), whatever else the object may be
    return any(
        (root in fed or may_be_handed_there(rule, function, node, root))
        and root not in function.handed_host
        and not is_from_host(rule, function, root)
        for root in derived.of(function, node) & function.param_names
        if not _is_plain(function, root)
    )


def _is_plain(function: Function, name: str) -> bool:
    param = function.param(name)
    annotation = param.annotation if param is not None else None
    return annotation is not None and not PLAIN.isdisjoint(annotation_names(annotation.annotation))


def _is_without_input(rule: Rule, nodes: tuple[cst.CSTNode, ...], roots: frozenset[str]) -> bool:
    """``if rows is None: return torch.zeros(1)``: there is no input to follow; ``if x.is_cuda: ...`` may choose."""
    for test, _, _ in (each for node in nodes for each in tests_above(rule, node)):
        code = rule.code(test)
        if asks_for_device(code) or any(f"{root} is None" in code for root in roots):
            return True
    return False
