"""``nccl`` that is written down, which is for CUDA alone, where processes may be the CPU's."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._portability import SPEAKS_OF_CUDA, Surroundings

_INIT = "torch.distributed.init_process_group"
_OF_BACKENDS = re.compile(f"{SPEAKS_OF_CUDA.pattern}|backend|nccl|gloo", re.IGNORECASE)
_BACKEND = re.compile(r"(^|_)backend$")
_CPU = re.compile(r"(use_|force_|with_|is_)?cpu(_only)?|no_(cuda|gpu)")


def report_written_backend(rule: Rule, around: Surroundings) -> None:
    """``init_process_group("nccl")`` beside ``init_process_group(args.backend)``, or of what is told ``cpu``."""
    calls = rule.flow.calls(_INIT)
    if rule.in_tests or not any(_backend(call) is not None for call in calls):
        return
    for call in calls:
        told = _backend(call)
        if told is None or "nccl" not in rule.code(told) or not isinstance(told, cst.SimpleString):
            continue
        if around.guard(call, _OF_BACKENDS, closely=True) is not None:
            continue
        other = next((node for node in _others(rule, around, call, list(calls))), None)
        if other is not None:
            said = f"the backend is written down as `{rule.code(told)}`, which is for CUDA alone"
            note = rule.note(other, "here, it is another one, or the CPU may be asked for")
            rule.report(told, said, notes=[note], tentative=True)


def _backend(call: cst.Call) -> cst.BaseExpression | None:
    for position, arg in enumerate(call.args):
        if arg.keyword.value == "backend" if arg.keyword is not None else position == 0:
            return arg.value
    return None


def _others(rule: Rule, around: Surroundings, call: cst.Call, calls: list[cst.Call]) -> Iterator[cst.CSTNode]:
    """What shows that the same function starts processes of the CPU, too."""
    function = around.function(call)
    for other in calls:
        told = _backend(other)
        if other is not call and told is not None and "nccl" not in rule.code(told):
            yield told
    for param in function.params if function is not None else ():
        if _BACKEND.search(param.name.value) or _CPU.fullmatch(param.name.value):
            yield param
    yield from _read(rule, around, function)


def _read(rule: Rule, around: Surroundings, function: Function | None) -> Iterator[cst.CSTNode]:
    """``args.cpu``, ``config["cpu"]``, ``args.dist_backend``, read in the same function."""
    for node in rule.source.nodes_of(cst.Attribute):
        word = node.attr.value
        if around.function(node) is function and (_CPU.fullmatch(word) or _BACKEND.search(word)):
            # x.cpu(), torch.backends, dist.Backend
            above = rule.parent(node)
            if not (isinstance(above, cst.Call) and above.func is node) and dotted(node).partition(".")[0] not in (
                "torch",
                "dist",
            ):
                yield node
    for text in rule.source.nodes_of(cst.SimpleString):
        if not isinstance(rule.parent(text), cst.Index) or around.function(text) is not function:
            continue
        word = str(text.evaluated_value)
        if _CPU.fullmatch(word) or _BACKEND.search(word):
            yield text
