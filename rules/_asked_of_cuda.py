"""Questions to CUDA that are asked where there may be none, below names and tests that only seem to keep them away."""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from devlint import tree
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._meetings import calls_of
from devlint.rules._portability import SPEAKS_OF_CUDA, Surroundings, leaves

#: What asks which device there is, and raises where there is none.
_QUESTIONS = frozenset(
    "current_device get_device_name get_device_capability get_device_properties mem_get_info utilization".split()
)
#: A test for precision, that holds where it is reduced.
_REDUCED = re.compile(
    r"(?:\w+\.)*(?:use_|with_)?(?:fp16|half|amp|bf16|mixed_precision)|"
    r"getattr\([\w.]+, ['\"](?:fp16|half|amp|bf16)['\"](?:, \w+)?\)"
)


@dataclass(frozen=True)
class Asked:
    """Why a question is asked where there is no CUDA, too: ``why`` is said of ``node``."""

    node: cst.CSTNode
    why: str


def asked_whatever_there_is(rule: Rule, around: Surroundings, call: cst.Call, words: re.Pattern[str]) -> Asked | None:
    """What shows that a call for CUDA, which has a guard or stands in a file for CUDA, is made elsewhere, too."""
    if around.is_test or around.is_fixed(call):
        return None
    guard = around.guard(call, words)
    found = _in_full_precision(rule, around, call, guard, words)
    if found is not None or rule.flow.scope.qualified(call.func).rpartition(".")[2] not in _QUESTIONS:
        return found
    if around.demands_cuda_apart_from_imports:
        return None
    asked = _asks(rule)
    function = around.function(call)
    if asked is None or (function is not None and _launches(function)):
        return None
    if guard is None:
        return Asked(asked, "here, the file asks whether there is CUDA, and has an answer for where there is none")
    # def gpu_name(): return torch.cuda.get_device_name()
    named = function is not None and guard is function.node and not function.node.decorators
    if not named or function is None or around.guard(guard, words) is not None:
        return None
    for each in calls_of(rule, function):
        caller = around.function(each)
        launches = caller is not None and _launches(caller)
        if caller is not function and not launches and around.guard(each, words) is None:
            return Asked(each, f"nothing asks before `{function.name}` is called here, as others do in this file")
    return None


def _in_full_precision(
    rule: Rule, around: Surroundings, call: cst.Call, guard: cst.CSTNode | None, words: re.Pattern[str]
) -> Asked | None:
    """``if args.fp16: ...`` and ``else: torch.cuda.get_device_capability(0)``, which any machine comes to."""
    branch = rule.parent(guard) if isinstance(guard, cst.BaseExpression) else None
    if guard is None or not isinstance(branch, cst.If) or not isinstance(branch.orelse, cst.Else):
        return None
    if not _REDUCED.fullmatch(rule.code(guard)) or around.speaks(branch.test, SPEAKS_OF_CUDA):
        return None
    if around.guard(branch, words) is not None or around.is_for_cuda(call):
        return None
    if not any(each is call for each in tree.walk(branch.orelse)):
        return None
    return Asked(guard, "where this does not hold, which is no matter of devices")


def _asks(rule: Rule) -> cst.Call | None:
    """``if torch.cuda.is_available(): return "cuda"``: not an assertion, nor a test that ends the program."""
    for call in rule.flow.calls("torch.cuda.is_available"):
        above = rule.enclosing(call, cst.If, cst.IfExp, cst.Assert, cst.FunctionDef, cst.Decorator)
        ends = isinstance(above, cst.If) and leaves(above.body, raises=True)
        if isinstance(above, cst.If | cst.IfExp) and not ends and any(each is call for each in tree.walk(above.test)):
            return call
    return None


def _launches(function: Function) -> bool:
    """``kernel[grid](x, y)``: a kernel runs on CUDA."""
    return any(isinstance(each, cst.Call) and isinstance(each.func, cst.Subscript) for each in tree.walk(function.node))
