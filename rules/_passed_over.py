"""CUDA that is written down below a test that speaks of devices and asks for none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from devlint.rule import Rule
from devlint.rules._loose_tests import works_on_choice
from devlint.rules._portability import Implied, Surroundings


def under_loose_tests(
    rule: Rule, around: Surroundings, literal_of: Callable[[cst.Call], cst.BaseExpression | None]
) -> Iterator[tuple[cst.Call, cst.BaseExpression, Implied]]:
    """Calls that put something on CUDA, what says so, and what tells that it has to be elsewhere.

    Those that no test stands above are others' business.
    """
    if around.is_test or around.demands_cuda_closely:
        return
    settings = works_on_choice(around)
    for call in rule.source.nodes_of(cst.Call):
        literal = literal_of(call)
        if literal is None or around.guard(call, closely=True) is not None or around.is_fixed(call):
            continue
        if around.guard(call) is None and not around.demands_cuda:
            continue
        told = around.chosen(call) or around.elsewhere(call)
        if told is not None:
            yield call, literal, Implied(f"while `{told.code}` was chosen", told.node, around.expression(told, call))
        elif (implied := around.implied(call)) is not None:
            yield call, literal, implied
        elif settings is not None:
            node, name = settings
            yield call, literal, Implied(f"while this file works on `{name}`", node)
