"""What rules about several processes share: the names of what makes a program one of them."""

from __future__ import annotations

import re

import libcst as cst

from devlint.flow import Flow
from devlint.flow.names import dotted

#: Words of names that say that data is not trained on.
NOT_TRAINED_ON = re.compile(r"(^|_|\.)(val|valid|validation|test|eval|evaluation|dev|infer|inference|predict)", re.I)
_WRAPPERS = frozenset(
    {"torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"}
)


def wrappings(flow: Flow) -> list[cst.Call]:
    """The calls that wrap a model in ``DistributedDataParallel``."""
    return flow.calls(*_WRAPPERS)


def argument(call: cst.Call, position: int | None, *keywords: str) -> cst.BaseExpression | None:
    """An argument of a call, by position or name."""
    for index, arg in enumerate(call.args):
        if arg.star:
            return None
        if (arg.keyword is None and index == position) or (arg.keyword is not None and arg.keyword.value in keywords):
            return arg.value
    return None


def takes_more(call: cst.Call) -> bool:
    """Whether a call unpacks arguments that are not seen: ``DataLoader(dataset, **options)``."""
    return any(arg.star for arg in call.args)


def is_none(node: cst.BaseExpression | None) -> bool:
    return node is None or (isinstance(node, cst.Name) and node.value == "None")


def bound_name(flow: Flow, call: cst.Call) -> str:
    """``loader`` of ``loader = DataLoader(...)``, also behind a condition; empty for anything else."""
    current: cst.CSTNode | None = flow.source.parents.get(call)
    while isinstance(current, cst.IfExp):
        current = flow.source.parents.get(current)
    if isinstance(current, cst.Assign) and len(current.targets) == 1:
        return dotted(current.targets[0].target)
    return dotted(current.target) if isinstance(current, cst.AnnAssign) else ""
