"""What else a function leaves on the host: where that comes together with a device, too, and nobody says so, one
``device=`` only moves the error."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from devlint import tree
from devlint.flow.facts import Meeting
from devlint.flow.scope import Function
from devlint.flow.value import FUNCTION, MODULE, TENSOR, THING, UNKNOWN_KIND
from devlint.rule import Rule
from devlint.rules._plain import deciders

#: What makes a tensor without dimensions of a number.
_OF_DATA = frozenset({"torch.tensor", "torch.as_tensor", "torch.asarray"})


def leaves_more_on_host(rule: Rule, meeting: Meeting, told: Collection[cst.CSTNode | None]) -> bool:
    """Whether a function fails on a device in another place as well, or may, and none of what is told mends that:
    ``self.nets[i](states).gather(1, torch.tensor(taken))``, ``x + found.type(torch.FloatTensor)``,
    ``self.decode(words.cuda(), causal_mask(n))``, ``found.detach().numpy()``."""
    function = rule.flow.function(meeting.node)
    if function is None:
        return False
    return any(_runs_with(rule, meeting.node, node) for node in _failing(rule, function, told))


def _failing(rule: Rule, function: Function, told: Collection[cst.CSTNode | None]) -> Iterator[cst.CSTNode]:
    facts = rule.flow.facts
    for use in facts.array_uses.values():
        if use.value.place.is_there and rule.flow.function(use.node) is function:
            yield use.node
    for other in (*facts.meetings.values(), *facts.left_behind.values()):
        made = other.host.origin
        is_told = not isinstance(made, cst.Call) or made in told  # or it is a part of what is told
        # self.table   another rule speaks of what a module keeps
        if not is_told and other.host.attr is None and rule.flow.function(other.node) is function:
            yield other.node
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.BaseExpression) and _is_left(rule, node, function, told):
            yield from (node for other in _beside(rule, node) if _may_be_elsewhere(rule, other))


def _is_left(rule: Rule, node: cst.BaseExpression, function: Function, told: Collection[cst.CSTNode | None]) -> bool:
    """Whether this is a tensor with dimensions that the function has made on the host, or got there from a helper."""
    value = rule.flow.value(node)
    made = value.origin
    if not value.is_tensor or not value.place.is_host or value.zero is True:
        return False
    if not isinstance(made, cst.Call) or made in told or rule.flow.function(made) is not function:
        return False
    # scale = torch.tensor(1 / math.sqrt(width)), a number, mixes with anything
    return value.zero is False or rule.flow.name_of(made) not in _OF_DATA


def _runs_with(rule: Rule, node: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Whether nothing decides about the other that does not decide about the first as well."""
    around = deciders(rule, node)
    return all(each in around for each in deciders(rule, other))


def _may_be_elsewhere(rule: Rule, node: cst.BaseExpression) -> bool:
    """Whether something is on a device, or is what something unknown gives, which may be."""
    value = rule.flow.value(node)
    if value.kind in (TENSOR, THING, MODULE) and value.place.is_there:
        return True
    return value.kind == UNKNOWN_KIND and isinstance(node, cst.Call) and not value.place.is_host


def _beside(rule: Rule, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """What an operation combines with a tensor, wherever either is: not what it indexes, nor is indexed by, nor the
    entries of a list."""
    above = rule.parent(node)
    if isinstance(above, cst.BinaryOperation):
        yield above.right if above.left is node else above.left
    elif isinstance(above, cst.Comparison):
        yield above.comparisons[0].comparator
    elif isinstance(above, cst.ComparisonTarget):
        comparison = rule.parent(above)
        if isinstance(comparison, cst.Comparison):
            yield comparison.left
    elif isinstance(above, cst.AugAssign):
        yield above.value if above.target is node else above.target
    elif isinstance(above, cst.Arg):
        call = rule.parent(above)
        if isinstance(call, cst.Call):
            yield from _called_with(rule, call, above)


def _called_with(rule: Rule, call: cst.Call, arg: cst.Arg) -> Iterator[cst.BaseExpression]:
    """The tensor that has the method, ``self.nets[i](x).gather(1, taken)``, the module, and the other tensors."""
    func, called = call.func, rule.flow.value(call.func)
    if called.kind == FUNCTION and isinstance(func, cst.Name):
        return  # def shifted(x, by): return x + by.to(x.device)   what it does with both is known
    if isinstance(func, cst.Attribute):
        holder = rule.flow.value(func.value)
        if holder.kind in (TENSOR, THING) or isinstance(func.value, cst.Call):
            yield func.value
    if called.kind == MODULE:
        yield func
    for each in call.args:
        if each is not arg and rule.flow.value(each.value).is_tensor:
            yield each.value
