"""Modules that are new: being built, where nobody can have moved them, or built anew in each step."""

from __future__ import annotations

import libcst as cst

from devlint.flow.names import dotted, last_word
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.rule import Rule


def is_on_new_module(rule: Rule, node: cst.CSTNode, device: cst.BaseExpression | None) -> bool:
    """``class Lit(LightningModule): def __init__(self): self.mean = torch.zeros(3).to(self.device)``: a base keeps the
    device, which is the host before anybody moves the module."""
    function = rule.flow.function(node)
    cls = function.cls if function is not None and function.role == CONSTRUCTOR else None
    if cls is None or not cls.is_module or device is None or dotted(device) != "self.device":
        return False
    return not any("device" in method.stores for each in cls.lineage for method in each.methods.values())


def is_built_in_steps(rule: Rule, cls: Class) -> bool:
    """``def forward(self, x): return Seasons(self.width)(x)``: what is built anew in each step is never moved."""
    built = [call for call in rule.source.nodes_of(cst.Call) if last_word(dotted(call.func)) == cls.name]
    return bool(built) and all(is_in_step(rule, rule.flow.function(call)) for call in built)


def is_in_step(rule: Rule, function: Function | None) -> bool:
    """Whether ``forward`` or a training step runs a function, or defines it inside."""
    while function is not None and function not in rule.flow.step_functions:
        function = function.outer
    return function is not None
