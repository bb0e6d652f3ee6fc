"""Arguments that ``to`` takes, and ``cpu`` does not."""

from __future__ import annotations

import libcst as cst

from devlint.flow.value import INSTANCE, MODULE, NAME, TENSOR, THING
from devlint.rule import Rule
from devlint.rules._arguments import argument


def report_refused(rule: Rule, node: cst.Call, func: cst.Attribute) -> None:
    """``x.cpu(non_blocking=True)``: that of a tensor takes a memory format alone, and that of a module nothing."""
    arg = argument(node, None, "non_blocking")
    if arg is None:
        return
    receiver = rule.flow.value(func.value)
    # TensorDict's own takes it; so may that of any class of the project
    own = any("cpu" in cls.methods for cls in rule.flow.scope.classes.values())
    if receiver.kind in (INSTANCE, NAME) or own or rule.flow.scope.packages & _OWN:
        return
    edit = rule.remove_argument(node, "non_blocking")
    rule.report(
        node,
        "`cpu` takes no `non_blocking`: `to` does",
        # to("cpu", non_blocking=True)  would be read before it is there
        fix=rule.fix("leave it out", edit, safe=True) if edit is not None else None,
        tentative=receiver.kind not in (TENSOR, THING, MODULE),
    )


#: Packages with tensors, or whole batches of them, of their own.
_OWN = frozenset({"tensordict", "torchrl", "dgl", "tensorflow", "mxnet", "paddle"})
