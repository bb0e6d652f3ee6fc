"""Arguments that ``to`` takes, and ``cpu`` does not."""

from __future__ import annotations

import libcst as cst

from devlint.flow.value import INSTANCE, MODULE, NAME, TENSOR, THING, Value
from devlint.rule import Rule
from devlint.rules._arguments import argument


def report_refused(rule: Rule, node: cst.Call, func: cst.Attribute) -> None:
    """``x.cpu(non_blocking=True)``: that of a tensor takes a memory format alone, and that of a module nothing."""
    arg = argument(node, None, "non_blocking")
    if arg is None:
        return
    receiver = rule.flow.value(func.value)
    # TensorDict's own takes it; so may that of any class of the project
    if not may_be_of_torch(rule, receiver, "cpu") or rule.flow.scope.packages & _OWN:
        return
    edit = rule.remove_argument(node, "non_blocking")
    rule.report(
        node,
        "`cpu` takes no `non_blocking`: `to` does",
        # to("cpu", non_blocking=True)  would be read before it is there
        fix=rule.fix("leave it out", edit, safe=True) if edit is not None else None,
        tentative=receiver.kind not in (TENSOR, THING, MODULE),
    )


def may_be_of_torch(rule: Rule, value: Value, *methods: str) -> bool:
    """Whether what is not known may only be torch's: no class of the file has a method of that name."""
    # Settings().cuda(True)  is not torch's
    return value.kind not in (INSTANCE, NAME) and not any(
        name in cls.methods for cls in rule.flow.scope.classes.values() for name in methods
    )


#: Packages with tensors, or whole batches of them, of their own.
_OWN = frozenset({"tensordict", "torchrl", "dgl", "tensorflow", "mxnet", "paddle"})
