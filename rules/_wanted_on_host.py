"""Tensors that something else reads on the host as well: to make them on a device would only move the error."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted
from devlint.flow.value import MODULE, TENSOR, THING
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._meetings import calls_of
from devlint.rules._training import is_inside


def may_be_wanted_on_host(rule: Rule, factory: cst.Call, met: cst.CSTNode) -> bool:
    """``t = torch.linspace(0, 1, 200); u = net(t); plt.plot(t.numpy(), u.cpu())``, ``sizes = torch.full((3,), 9)`` for
    ``pack_padded_sequence(x, sizes)``, ``self.names[chosen]`` of a list, ``found = torch.tensor([])`` that is joined
    with more and then handed to who knows what; or what a method gives back, and its callers read so."""
    function, name = rule.flow.function(factory), _bound_to(rule, factory)
    if name:
        around = function.node.body if function is not None else rule.source.module
        end = rule.source.offsets(factory)[1]
        uses = [use for use in tree.named(around, name) if rule.source.offsets(use)[0] >= end]
        return any(_is_of_host(rule, use) or not _is_of_device(rule, use, met) for use in uses)
    if function is None or not isinstance(rule.enclosing(factory, cst.BaseSmallStatement), cst.Return):
        return False
    return any(_is_of_host(rule, call) for call in calls_of(rule, function))


def meets_lengths(rule: Rule, factory: cst.Call) -> bool:
    """``torch.arange(n) < lengths[:, None]``, of what is handed to ``pack_padded_sequence`` as it is, and so on the
    host: the mask has to be moved."""
    function, statement = rule.flow.function(factory), rule.enclosing(factory, cst.BaseSmallStatement)
    if function is None or statement is None or "pack_padded_sequence" not in rule.source.text:
        return False
    lengths = {
        dotted(given.value)
        for call in tree.walk(function.node.body)
        if isinstance(call, cst.Call) and called_name(call) == "pack_padded_sequence"
        if (given := argument(call, 1, "lengths")) is not None
    }
    made = statement.value if isinstance(statement, cst.Assign) else statement
    return any(isinstance(part, cst.Name) and part.value in lengths for part in tree.walk(made))


def _is_of_device(rule: Rule, use: cst.BaseExpression, met: cst.CSTNode) -> bool:
    """Whether a use goes with a tensor on a device, for all that is seen: where the two meet, in another operation, in
    torch's own functions and modules, or as a size; not what is handed to who knows what."""
    part: cst.CSTNode = use
    above = rule.parent(use)
    while above is not None and above is not met:
        call = rule.parent(above) if isinstance(above, cst.Arg) else None
        if isinstance(call, cst.Call):
            func = call.func
            holder = rule.flow.value(func.value if isinstance(func, cst.Attribute) else func)
            is_known = rule.flow.name_of(call).startswith("torch.") or holder.kind in (TENSOR, THING, MODULE)
            return is_known or rule.flow.value(func).kind == MODULE or is_inside(rule.flow, call, met)
        if isinstance(above, cst.Attribute) and above.value is part and above.attr.value in _SIZES:
            return True
        if isinstance(above, cst.BinaryOperation):
            other = above.right if above.left is part else above.left
            if rule.flow.value(other).kind in (TENSOR, THING):
                return True
        if isinstance(above, cst.Index):
            table = rule.enclosing(above, cst.Subscript)
            known = table is not None and rule.flow.value(table.value).kind in (TENSOR, THING)
            return known or is_inside(rule.flow, above, met)
        part, above = above, rule.parent(above)
    return True


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


_SIZES = frozenset("device dim dtype ndim numel shape size".split())
#: What draws, and takes arrays.
_PLOTS = frozenset({"plt", "ax", "axes", "pyplot", "sns"})
