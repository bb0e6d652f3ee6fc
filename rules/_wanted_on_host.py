"""Tensors that something else reads on the host as well: to make them on a device would only move the error."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import Function
from devlint.flow.value import MODULE, TENSOR
from devlint.rule import Rule
from devlint.rules._arguments import argument


def is_wanted_on_host(rule: Rule, factory: cst.Call) -> bool:
    """``t = torch.linspace(0, 1, 200); u = net(t); plt.plot(t.numpy(), u.cpu())``, ``sizes = torch.full((3,), 9)`` for
    ``pack_padded_sequence(x, sizes)``, ``self.names[chosen]`` of a list; or what a method gives back, and its callers
    read so."""
    function, name = rule.flow.function(factory), _bound_to(rule, factory)
    if name:
        around = function.node.body if function is not None else rule.source.module
        uses = [use for use in tree.named(around, name) if rule.flow.function(use) is function]
        return any(_is_of_host(rule, use) for use in uses)
    if function is None or not isinstance(rule.enclosing(factory, cst.BaseSmallStatement), cst.Return):
        return False
    return any(_is_of_host(rule, call) for call in _calls_by_name(rule, function))


def _bound_to(rule: Rule, factory: cst.Call) -> str:
    """The name of what a factory makes: ``t`` of ``t = torch.linspace(0, 1, 200).view(-1, 1)``."""
    assign = rule.enclosing(factory, cst.BaseSmallStatement)
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return ""
    target = assign.targets[0].target
    made: cst.BaseExpression = assign.value
    while isinstance(made, cst.Call) and made is not factory and isinstance(made.func, cst.Attribute):
        made = made.func.value
    return target.value if isinstance(target, cst.Name) and made is factory else ""


def _calls_by_name(rule: Rule, function: Function) -> list[cst.Call]:
    return [call for call in rule.source.nodes_of(cst.Call) if called_name(call) == function.name]


def _is_of_host(rule: Rule, use: cst.BaseExpression) -> bool:
    """Whether what is used is read by numpy or a plot, or as lengths or an index that have to be on the host."""
    above = rule.parent(use)
    if isinstance(above, cst.Attribute) and above.value is use:
        return above.attr.value == "numpy"
    if isinstance(above, cst.Index):
        table = rule.enclosing(above, cst.Subscript)
        if table is None:
            return False
        held = rule.flow.value(table.value)
        return held.kind not in (TENSOR, MODULE) and dotted(table.value).startswith("self.")
    call = rule.parent(above) if isinstance(above, cst.Arg) else None
    if not isinstance(call, cst.Call) or not isinstance(above, cst.Arg):
        return False
    if called_name(call) == "pack_padded_sequence":
        return argument(call, 1, "lengths") is above
    owner = dotted(call.func).partition(".")[0]
    return rule.flow.name_of(call).startswith("numpy.") or owner in _PLOTS


#: What draws, and takes arrays.
_PLOTS = frozenset({"plt", "ax", "axes", "pyplot", "sns"})
