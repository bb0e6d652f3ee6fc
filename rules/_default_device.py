"""Code that runs where its file has set a default device."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted, last_word
from devlint.flow.scope import Function
from devlint.rule import Rule


def is_under_default(rule: Rule, function: Function | None) -> bool:
    """``with torch.device("cuda"): net = Net()``: whether the file calls a function, or builds its class, where a
    default device is set."""
    contexts = [call for call in rule.flow.calls("torch.device") if _is_entered(rule, call)]
    if function is None or not contexts:
        return False
    names = {function.name, function.cls.name if function.cls is not None else function.name}
    functions = {rule.flow.function(call) for call in contexts}
    return any(
        last_word(dotted(call.func)) in names
        and rule.flow.function(call) in functions
        and _is_inside(rule, call, contexts)
        for call in rule.source.nodes_of(cst.Call)
    )


def may_be_redirected(rule: Rule) -> bool:
    """``utils/setup.py: torch.set_default_device(device)``, where `train.py` imports that and what is in `models/`."""
    project = rule.flow.project
    return project is not None and project.is_redirected()


def _is_inside(rule: Rule, call: cst.Call, contexts: list[cst.Call]) -> bool:
    above = rule.enclosing(call, cst.With)
    while above is not None:
        if any(part in contexts for item in above.items for part in tree.walk(item)):
            return True
        if any(part in contexts for part in tree.walk(above.body) if rule.source.comes_before(part, call)):
            return True  # stack.enter_context(torch.device("cuda"))
        above = rule.enclosing(above, cst.With)
    return False


def _is_entered(rule: Rule, call: cst.Call) -> bool:
    """``with torch.device("cuda"):``, ``stack.enter_context(torch.device("cuda"))``"""
    above = rule.parent(call)
    if isinstance(above, cst.WithItem):
        return True
    entering = rule.parent(above) if isinstance(above, cst.Arg) else None
    return isinstance(entering, cst.Call) and last_word(dotted(entering.func)) == "enter_context"
