"""A string that is asked for what only a `torch.device` has."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule

_ASK = frozenset({"isinstance", "hasattr", "getattr", "type"})


def defaults_without_type(rule: Rule) -> Iterator[tuple[cst.Param, cst.Attribute]]:
    """``def load(net, device="cpu"): ... device.type == "cuda"``: the parameter, and where its ``type`` is read.

    Not where it is made a ``torch.device`` first, or asked what it is.
    """
    for function in rule.flow.scope.functions.values():
        for param in function.params:
            name = param.name.value
            if not isinstance(param.default, cst.SimpleString) or not names_device(name) or name in function.assigned:
                continue
            read = next(_reads(rule, function, name), None)
            if read is not None:
                yield param, read


def _reads(rule: Rule, function: Function, name: str) -> Iterator[cst.Attribute]:
    # if isinstance(device, str): ...   hasattr(device, "type")
    calls = (node for node in tree.walk(function.node.body) if isinstance(node, cst.Call) and node.args)
    if any(dotted(call.args[0].value) == name and dotted(call.func) in _ASK for call in calls):
        return
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Attribute) and node.attr.value == "type" and dotted(node.value) == name:
            inner = rule.flow.function(node)
            if inner is function or (inner is not None and name not in inner.param_names | inner.assigned):
                yield node
