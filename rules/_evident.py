"""Whether the code itself shows that a needless copy is paid for again and again."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.facts import Move
from devlint.flow.loops import runs_sometimes, working_loop
from devlint.flow.names import called_name, dotted
from devlint.flow.value import TENSOR, UNKNOWN_KIND
from devlint.flow.waiting import waits
from devlint.rule import Rule
from devlint.rules._copied import is_copied
from devlint.rules._exports import is_of_export
from devlint.rules._filled import is_nothing, is_of_fixed_size, is_table, sizes, varying
from devlint.rules._made import Made, head
from devlint.rules._recurs import calls_of, function_of, in_stepping_loop, reads, recurs
from devlint.rules._switches import is_switched_off, tests_above
from devlint.rules._training import is_inside
from devlint.rules._worth import waits_much

#: From so many sizes on that vary, what is filled on the host is large enough for the copy to cost by itself.
_SIZES_OF_MUCH = 3
#: As many turns as a trial goes.
_FEW_TURNS = 100
#: What gives one value of many, which a test then waits for.
_SUMMARIES = frozenset("max min amax amin sum any all equal allclose isclose mean count_nonzero".split())


def is_evident(rule: Rule, move: Move, made: Made) -> bool:
    """Whether it surely recurs and costs, or stands beside what the same function makes on the device."""
    return is_table(rule, made.factory, move.receiver) and surely_recurs(rule, move, made)


def surely_recurs(rule: Rule, move: Move, made: Made) -> bool:
    """Whether it is paid for again and again, however little it is."""
    node = move.node
    if is_copied(rule, node) or (made.random and not _may_draw_there(rule, made)):
        return False
    if (
        is_of_export(rule, node)
        or _hardly_runs(rule, node)
        or _goes_into_generation(rule, node)
        or _is_trial(rule, node)
    ):
        return False
    # def __init__(self, fused=True): self.fused = fused   and then   if self.fused: ...; else: ...
    if is_switched_off(rule, node, default=True) or _tells_of_values(rule, node):
        return False
    if _runs_in_fit(rule, node) or _is_set_by_nobody(rule, node):
        return False
    if not _makes_others_there(rule, node) and not _is_called_often(rule, node):
        return False
    if waits_much(rule, node) and not in_stepping_loop(rule.flow, node):
        return False
    if varying(made.factory) < _SIZES_OF_MUCH and _waits_beside(rule, node):
        return False
    return not _is_ahead_of_waiting_loop(rule, node)


def _may_draw_there(rule: Rule, made: Made) -> bool:
    """Whether other numbers would do: a device draws others from a seed, which any file may set, than the host does."""
    if is_of_fixed_size(made.factory):
        return False  # for step in range(10): x = torch.randn(20, 5).to(device)   stands in for real data
    return any(_makes_there(rule, n) and _draws(rule, n) for n in _beside(rule, made.factory))


def _draws(rule: Rule, call: cst.CSTNode) -> bool:
    entry = rule.flow.factory(call) if isinstance(call, cst.Call) else None
    return entry is not None and entry.values == "random"


def _is_trial(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether a file of modules tries them out there, or a program goes a few turns."""
    # if __name__ == "__main__": net = Net().cuda(); net(torch.zeros(n, 3).cuda())
    above: cst.CSTNode | None = node
    while above is not None and not isinstance(above, cst.FunctionDef | cst.ClassDef):
        if isinstance(above, cst.If) and "__name__" in rule.code(above.test):
            loop = rule.flow.loop(node)
            return any(cls.is_module for cls in rule.flow.scope.classes.values()) or (
                loop is not None and _goes_few_turns(rule, loop.node)
            )
        above = rule.parent(above)
    return False


def _goes_few_turns(rule: Rule, loop: cst.For | cst.While) -> bool:
    """`steps = 10` of `for step in range(steps):`"""
    if not isinstance(loop, cst.For) or not isinstance(loop.iter, cst.Call) or dotted(loop.iter.func) != "range":
        return False
    bounds = {dotted(arg.value) for arg in loop.iter.args}
    return any(
        isinstance(n.value, cst.Integer)
        and n.value.evaluated_value <= _FEW_TURNS
        and dotted(n.targets[0].target) in bounds
        for n in rule.source.nodes_of(cst.Assign)
    )


def _tells_of_values(rule: Rule, node: cst.CSTNode) -> bool:
    """`assert torch.equal(rows, torch.arange(n).to(rows.device))`: the host waits for what comes out."""
    child, above = node, rule.parent(node)
    while isinstance(above, cst.BaseExpression | cst.Arg | cst.Element | cst.ComparisonTarget):
        child, above = above, rule.parent(above)
    return isinstance(above, cst.Assert | cst.If | cst.While) and above.test is child


def _is_called_often(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether the file shows who calls it: a loop, a step, or a method of a module that others of the file call."""
    if recurs(rule.flow, node):
        return True
    function = rule.flow.function(node)
    if function is None or function.cls is None or not function.cls.is_module:
        return False
    name = function.name
    return (
        function.is_step
        or name == "__call__"
        or any(
            n.value == name and not isinstance(rule.parent(n), cst.FunctionDef) for n in rule.source.nodes_of(cst.Name)
        )
    )


def _hardly_runs(rule: Rule, node: cst.CSTNode, *, called: bool = True) -> bool:
    """Whether it stands, or all calls of its function stand, in a branch that warns that something is odd."""
    # if len(wave) != length: print("lengths differ"); wave = fitted(wave, length)
    function = rule.flow.function(node)
    if function is None:
        return False  # if __name__ == "__main__": print(args); main(args)
    if any(
        holds and isinstance(branch, cst.BaseSuite) and any(_warns(each) for each in branch.body)
        for _, branch, holds in tests_above(rule, node)
    ):
        return True
    calls = calls_of(rule.flow, function) if called else []
    return bool(calls) and all(_hardly_runs(rule, call, called=False) for call in calls)


def _warns(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and any(
        isinstance(each, cst.Expr)
        and isinstance(each.value, cst.Call)
        and dotted(each.value.func).rpartition(".")[2] in ("print", "warn", "warning", "warn_once", "warning_once")
        for each in statement.body
    )


def _goes_into_generation(rule: Rule, node: cst.CSTNode) -> bool:
    """`generate(model, torch.cat((ids, torch.zeros(n, 8).to(device))))`: one copy beside many steps of a model."""
    above = rule.parent(node)
    while isinstance(above, cst.BaseExpression | cst.Arg | cst.Element):
        if isinstance(above, cst.Call) and "generate" in dotted(above.func).rpartition(".")[2]:
            return True
        above = rule.parent(above)
    return False


def _makes_others_there(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether the same function fills other memory where it belongs: `ones = torch.ones(n, device=x.device)`."""
    return any(_makes_there(rule, n) for n in _beside(rule, node))


def _makes_there(rule: Rule, node: cst.CSTNode) -> bool:
    return (
        isinstance(node, cst.Call)
        and (entry := rule.flow.factory(node)) is not None
        and entry.values != "python"
        and any(arg.keyword is not None and arg.keyword.value == "device" for arg in node.args)
        and not rule.flow.value(node).place.is_host
    )


def _waits_beside(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether the host waits for the device in the same call, or in the same turn of the loop, for something else."""
    # assert torch.max(offset) <= self.longest; index = offset + torch.arange(n).to(offset.device)
    flow = rule.flow
    loop = working_loop(flow, node) if in_stepping_loop(flow, node) else None
    for n in _beside(rule, node) if loop is None else _inside(loop.node.body):
        if not isinstance(n, cst.BaseExpression) or (loop is not None and runs_sometimes(flow, n, loop)):
            continue
        if _waits_at(rule, n):
            return True
    return False


def _is_ahead_of_waiting_loop(rule: Rule, node: cst.CSTNode, *, around: bool = False, depth: int = 2) -> bool:
    """Whether a loop below waits for the device in each turn, or one below or around each call of the function."""
    # found = torch.zeros(n, 2, 3).to(x.device)
    # for t in range(steps): x = net(x, torch.tensor([t]).to(x.device))
    flow, function = rule.flow, rule.flow.function(node)
    if function is None:
        return False
    for n in _inside(function.node.body):
        if not isinstance(n, cst.For | cst.While):
            continue
        ahead = rule.source.comes_before(node, n) or (around and is_inside(flow, node, n))
        if ahead and _waits_in_each_turn(rule, n):
            return True
    if depth == 0 or function.is_step or function.name == "forward":
        return False  # for x in loader: net(x).item()   each step of a training waits once, and seldom in its midst
    if in_stepping_loop(flow, node):
        return False  # for x, y in loader: ...   many turns for one of `for epoch in range(n): train(net); test(net)`
    calls = calls_of(flow, function)
    return bool(calls) and all(_is_ahead_of_waiting_loop(rule, call, around=True, depth=depth - 1) for call in calls)


def _waits_in_each_turn(rule: Rule, node: cst.For | cst.While) -> bool:
    loop = rule.flow.loop(node.body.body[0])
    if loop is None:
        return False
    return any(
        isinstance(n, cst.BaseExpression) and not runs_sometimes(rule.flow, n, loop) and _waits_at(rule, n)
        for part in ((node.body, node.test) if isinstance(node, cst.While) else (node.body,))
        for n in _inside(part)
    )


def _waits_at(rule: Rule, node: cst.BaseExpression) -> bool:
    flow = rule.flow
    if waits(flow, node, needed=True) or reads(flow, node) or _brings_words(rule, node) or _asks_values(rule, node):
        return True
    if not isinstance(node, cst.Call):
        return False
    # stream.synchronize()
    return called_name(node) == "synchronize" or _counts_up_to_value(rule, node) or _brings_drawn(rule, node)


def _brings_drawn(rule: Rule, node: cst.Call) -> bool:
    """`torch.randn(n).to(x.device)`, which stays on the host for the sake of the seed."""
    move = rule.flow.facts.moves.get(node)
    if move is None or not move.value.place.is_host or move.non_blocking is True:
        return False
    start, drawn = head(rule.flow, move.receiver)
    made = start if isinstance(start, cst.Call) else move.value.origin
    if not isinstance(made, cst.Call) or not (drawn or _draws(rule, made)) or is_nothing(rule, made):
        return False
    return not _may_draw_there(rule, Made(made, random=True))


def _runs_in_fit(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether a method keeps what it computes, and only `fit` of its class calls it: once for a training."""
    # def forward(self, x): self.spread = torch.linalg.inv(cov(x) + torch.eye(n).to(x.device))
    # def fit(self, x): return self.forward(x)
    function = rule.flow.function(node)
    if function is None or function.cls is None or not function.stores or rule.flow.loop(node) is not None:
        return False
    callers = [rule.flow.function(call) for call in calls_of(rule.flow, function)]
    return bool(callers) and all(f is not None and f.name == "fit" and f.cls is function.cls for f in callers)


def _is_set_by_nobody(rule: Rule, node: cst.CSTNode) -> bool:
    """`if hasattr(self, "multiple"): ...`, of an attribute that nothing in the file sets."""
    asked = {
        arg.value.raw_value
        for test, _, holds in tests_above(rule, node)
        if holds
        for call in tree.walk(test)
        if isinstance(call, cst.Call) and dotted(call.func) == "hasattr" and dotted(call.args[0].value) == "self"
        for arg in call.args[1:]
        if isinstance(arg.value, cst.SimpleString)
    }
    scope = rule.flow.scope
    stored = scope.outside_stores.union(*(function.stores for function in scope.functions.values()))
    return not asked <= stored


def _counts_up_to_value(rule: Rule, call: cst.Call) -> bool:
    """`longest = lengths.max()` of `torch.arange(longest)`, which the host has to know."""
    assign = rule.parent(call)
    if not isinstance(assign, cst.Assign) or not isinstance(call.func, cst.Attribute):
        return False
    name = dotted(assign.targets[0].target)
    return call.func.attr.value in ("max", "min", "sum") and any(
        isinstance(n, cst.Call) and rule.flow.factory(n) is not None and any(dotted(size) == name for size in sizes(n))
        for n in _beside(rule, call)
    )


def _asks_values(rule: Rule, node: cst.BaseExpression) -> bool:
    """`torch.max(offset)` of `assert torch.max(offset) + size <= self.longest`, `mask.any()` of `if mask.any():`"""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    if node.func.attr.value not in _SUMMARIES:
        return False
    is_function = rule.flow.name_of(node).startswith("torch.")
    operand = rule.flow.value(node.args[0].value if is_function and node.args else node.func.value)
    if operand.kind not in (TENSOR, UNKNOWN_KIND) or operand.place.is_host:
        return False
    child: cst.CSTNode = node
    above = rule.parent(child)
    while isinstance(above, cst.BaseExpression | cst.ComparisonTarget):
        child, above = above, rule.parent(above)
    return isinstance(above, cst.Assert | cst.If | cst.While) and above.test is child


def _brings_words(rule: Rule, node: cst.BaseExpression) -> bool:
    """`tokenizer(words, return_tensors="pt")`, or a call of what does so: data that only the host has."""
    if not isinstance(node, cst.Call):
        return False
    if _reads_words(node):
        return True
    called = function_of(rule.flow, node)
    return called is not None and any(isinstance(n, cst.Call) and _reads_words(n) for n in _inside(called.node.body))


def _reads_words(call: cst.Call) -> bool:
    return any(arg.keyword is not None and arg.keyword.value == "return_tensors" for arg in call.args)


def _beside(rule: Rule, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The code of the function that a node is in."""
    function = rule.flow.function(node)
    return _inside(function.node.body) if function is not None else iter(())


def _inside(body: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes of a block, without the functions and classes that are defined in it."""
    stack = [body]
    while stack:
        node = stack.pop()
        yield node
        stack += [child for child in node.children if not isinstance(child, cst.FunctionDef | cst.ClassDef)]
