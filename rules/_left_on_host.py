"""What else a function leaves on the host: where that comes together with a device, too, and nobody says so, one
``device=`` only moves the error."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import libcst as cst

from devlint import tree
from devlint.flow.facts import Meeting
from devlint.flow.modules import has_tensors
from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.flow.steps import function_called
from devlint.flow.value import DICT, FUNCTION, LIST, MODULE, TENSOR, THING, TUPLE, UNKNOWN_KIND, inside
from devlint.rule import Rule
from devlint.rules._as_arrays import asked_for_arrays
from devlint.rules._drawn import is_distribution
from devlint.rules._plain import deciders

#: What makes a tensor without dimensions of a number.
_OF_DATA = frozenset({"torch.tensor", "torch.as_tensor", "torch.asarray"})
#: How many of what is left beside are named.
SHOWN = 3


def leaves_more_on_host(rule: Rule, meeting: Meeting, told: Collection[cst.CSTNode | None]) -> bool:
    """Whether a function fails on a device in another place as well, or may, and none of what is told mends that:
    ``self.nets[i](states).gather(1, torch.tensor(taken))``, ``x + found.type(torch.FloatTensor)``,
    ``self.decode(words.cuda(), causal_mask(n))``, ``found.detach().numpy()``."""
    function = rule.flow.function(meeting.node)
    if function is None:
        return False
    around = deciders(rule, meeting.node)

    def runs_with(node: cst.CSTNode) -> bool:
        """Whether nothing decides about it that does not decide about the meeting as well."""
        return all(each in around for each in deciders(rule, node))

    if any(runs_with(node) for node in _failing(rule, function, told)) or _is_fed_from_host(rule, function, told):
        return True
    # return self.penalise(h)   and that is where the next one is
    called = {each for call, each in _calls_others(rule, function) if runs_with(call)}
    return any(_surely_runs(rule, node) for each in called for node in _failing(rule, each, told))


def _calls_others(rule: Rule, function: Function) -> Iterator[tuple[cst.Call, Function]]:
    """The calls of a function, and the other functions of the file that they run."""
    for node in tree.walk(function.node.body):
        called = function_called(rule.flow, function, node) if isinstance(node, cst.Call) else None
        if isinstance(node, cst.Call) and called is not None and called is not function:
            yield node, called


def _surely_runs(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether each call runs a node: ``for i in range(n)`` has a first turn."""
    return all(isinstance(above, cst.For) for above, _ in deciders(rule, node))


def left_beside(rule: Rule, nodes: Iterable[cst.CSTNode], told: Collection[cst.CSTNode | None]) -> list[cst.Call]:
    """What else the functions around nodes make on the host that nothing is told of, and that they do not move: it may
    meet a device as well."""
    functions = {function for node in nodes if (function := rule.flow.function(node)) is not None}
    moved = {move.value.origin for move in rule.flow.facts.moves.values()}
    return [
        node
        for function in functions
        for node in tree.walk(function.node.body)
        if isinstance(node, cst.Call)
        and rule.flow.factory(node) is not None
        and node not in moved
        and rule.flow.value(node).zero is False
        and _is_left(rule, node, function, told)
    ][:SHOWN]


def left_in_called(
    rule: Rule, node: cst.CSTNode, found: Iterable[cst.Call], told: Collection[cst.CSTNode | None]
) -> list[cst.Call]:
    """What functions that the one around a node calls make on the host: of what is found, and not told by default."""
    function = rule.flow.function(node)
    if function is None:
        return []
    called = {each for _, each in _calls_others(rule, function)}
    return [each for each in found if each not in told and rule.flow.function(each) in called][:SHOWN]


def _is_fed_from_host(rule: Rule, function: Function, told: Collection[cst.CSTNode | None]) -> bool:
    """``def learn(self): rows = self.batch(); self.returns(rows)``, where that makes tensors on the host: whether the
    function, or a method that calls it, hands such over to another that moves nothing."""
    cls = function.cls
    if cls is None or not cls.is_module:
        return False
    callers = [each for each in cls.methods.values() if function.name in each.self_calls]
    calls = (node for each in {function, *callers} for node in tree.walk(each.node.body) if isinstance(node, cst.Call))
    for call in calls:
        owner, _, name = dotted(call.func).rpartition(".")
        method = cls.find_method(name) if owner == "self" else None
        if method is None or method.moves_something or method.device_aware:
            continue
        given = [rule.flow.value(arg.value) for arg in call.args]
        if any(each.is_tensor and each.place.is_host and not each.zero and each.origin not in told for each in given):
            return True
    return False


def _failing(rule: Rule, function: Function, told: Collection[cst.CSTNode | None]) -> Iterator[cst.CSTNode]:
    """What fails in a function on a device, or may."""
    facts = rule.flow.facts
    for use in facts.array_uses.values():
        if use.value.place.is_there and rule.flow.function(use.node) is function:
            yield use.node
    for read in asked_for_arrays(function):
        value = rule.flow.value(read)
        # bias = torch.zeros(n); bias[free] = self.bias; bias.numpy()   once it is on the device; self.run(x).numpy()
        if not value.place.is_host or (value.is_tensor and value.origin in told):
            yield read
    for other in (*facts.meetings.values(), *facts.left_behind.values()):
        made = other.host.origin
        is_told = not isinstance(made, cst.Call) or made in told  # or it is a part of what is told
        # self.table   another rule speaks of what a module keeps
        if not is_told and other.host.attr is None and rule.flow.function(other.node) is function:
            yield other.node
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.BaseExpression) and _is_left(rule, node, function, told):
            yield from (node for other in _beside(rule, node) if _may_be_elsewhere(rule, other))
        if isinstance(node, cst.Call) and is_distribution(rule, node):
            # prior = Normal(torch.zeros(n), torch.ones(n))
            yield from (node for arg in node.args if _is_left(rule, arg.value, function, told))
        if isinstance(node, cst.Attribute) and _is_kept_on_host(rule, function, node):
            yield node


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


def _is_kept_on_host(rule: Rule, function: Function, node: cst.Attribute) -> bool:
    """``self.prior`` and ``self.blocks`` of ``self.prior = Normal(torch.zeros(n), torch.ones(n))`` and ``self.blocks =
    [nn.Linear(8, 8), nn.Linear(8, 8)]``, which stay where they are when the module is moved."""
    cls, (owner, _, name) = function.cls, dotted(node).partition(".")
    if cls is None or owner != "self" or not cls.is_module:
        return False
    for statement, value in rule.flow.stores(cls, name):
        made = statement.value if isinstance(statement, cst.Assign) else None
        if isinstance(made, cst.Call) and is_distribution(rule, made):
            given = [rule.flow.value(arg.value) for arg in made.args]
            return any(each.is_tensor and each.place.is_host and each.zero is False for each in given)
        if value.kind in (LIST, TUPLE, DICT) and any(
            each.kind == MODULE and has_tensors(each) for each in inside(value)
        ):
            return True
    return False


def _may_be_elsewhere(rule: Rule, node: cst.BaseExpression) -> bool:
    """Whether something is on a device, or is what something unknown gives, which may be."""
    value = rule.flow.value(node)
    if value.kind in (TENSOR, THING, MODULE) and (value.place.is_there or value.place.kind == "param"):
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
