"""Whether the host waits again and again for a copy that a device could do without."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.facts import Move
from devlint.flow.loops import Loop, working_loop
from devlint.flow.names import dotted, names_bound
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, MAIN, Function
from devlint.flow.steps import runs_each_time
from devlint.flow.waiting import needs_wait_at
from devlint.rule import Rule
from devlint.rules._exports import RECORDERS
from devlint.rules._filled import is_little, is_table
from devlint.rules._made import Made
from devlint.rules._recurs import (
    branches_in_loop,
    calls_what_waits,
    function_of,
    in_stepping_loop,
    is_deprecated,
    reads,
    reads_each_time,
    recurs,
    waits_in_loop,
)
from devlint.rules._switches import is_switched_off, sets, tests_above

#: What is asked of tensors, and of no settings.
_OF_TENSORS = frozenset("size shape dtype dim ndim numel".split())


def is_worth_it(rule: Rule, move: Move, made: Made) -> bool:
    """Whether a program spares itself more than one copy while it starts, and a maintainer would change it."""
    flow, node = rule.flow, move.node
    if is_deprecated(flow, node) or _is_called_by_nobody(rule, node) or _is_kept(rule, move):
        return False
    if is_switched_off(rule, node) or _is_only_traced(rule, node) or _may_stay_on_host(rule, move):
        return False
    if _stands_in_for_what_is_missing(rule, node) or _is_written_from_host(rule, move):
        return False
    if _waits_anyway(rule, node) or _counts_what_was_found(rule, made.factory):
        return False
    if made.random and not _draws_freely(rule, node):
        return False
    loop = working_loop(flow, node) if in_stepping_loop(flow, node) else None
    if loop is not None:
        return not _waits_inside(rule, loop) and not (is_little(rule, made.factory) and reads_each_time(flow, loop))
    function = flow.function(node)
    if _is_before_work(rule, node):
        return False
    if waits_much(rule, node) and not is_table(rule, made.factory, move.receiver):
        return False  # while not done: ... tokens.tolist()   next to which one copy at the start is nothing
    if is_little(rule, made.factory) and _reads_back(rule, function):
        return False
    return recurs(flow, node) or _follows_an_argument(rule, move) or _meets_an_argument(rule, move)


def waits_much(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether the function, or one that it calls, waits for the device in each turn of a loop."""
    function = rule.flow.function(node)
    return calls_what_waits(rule.flow, function) or waits_in_loop(rule.flow, function)


# it runs once, or never ---------------------------------------------------------------------------


def _is_called_by_nobody(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether the code is in `def _prepare(self): ...`, and the file has no other mention of that."""
    function = rule.flow.function(node)
    if function is None or not function.name.startswith("_") or function.name.endswith("__"):
        return False
    return not any(
        n.value == function.name and rule.parent(n) is not function.node for n in rule.source.nodes_of(cst.Name)
    )


def _is_only_traced(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether the code is that of a class inside a function that writes a program of it for another runtime."""
    # def build(path): class Wrapped(nn.Module): ...; torch.onnx.export(Wrapped(), example, path)
    function = rule.flow.function(node)
    outer = rule.flow.function(function.cls.node) if function is not None and function.cls is not None else None
    if outer is None or any(isinstance(n, cst.Return) and n.value is not None for n in _own_code(outer)):
        return False
    called = [n for n in _own_code(outer) if isinstance(n, cst.Call)]
    helpers = [helper for call in called if (helper := function_of(rule.flow, call)) is not None]
    called += [n for helper in helpers for n in _own_code(helper) if isinstance(n, cst.Call)]
    return any(rule.flow.name_of(call) in RECORDERS for call in called)


def _own_code(function: Function) -> Iterator[cst.CSTNode]:
    """The nodes of a function, without those of the functions and classes inside it."""
    stack: list[cst.CSTNode] = list(function.node.body.body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, cst.FunctionDef | cst.ClassDef):
            stack += node.children


def _may_stay_on_host(rule: Rule, move: Move) -> bool:
    """Whether the device may be the host's, where the constructors of modules are, so that the move copies nothing."""
    return _is_moved_again(rule, move) or _is_device_of_a_constructor(rule, move)


def _is_moved_again(rule: Rule, move: Move) -> bool:
    """Whether the function gives back what it moved, and all its callers move that: one of the two does nothing."""
    # def places(self, n): return torch.arange(n).to(self.device)   and then   places = self.places(n).to(x.device)
    function, statement = rule.flow.function(move.node), _statement(rule, move.node)
    if function is None or not isinstance(statement, cst.Return | cst.Assign) or statement.value is not move.node:
        return False
    if move.target_node is None or not dotted(move.target_node).startswith("self."):
        return False
    kept = {dotted(target.target) for target in statement.targets} if isinstance(statement, cst.Assign) else set()
    returned = [n for n in tree.walk(function.node.body) if isinstance(n, cst.Return)]
    if not all(n is statement or (n.value is not None and dotted(n.value) in kept) for n in returned):
        return False
    calls = [call for call in rule.source.nodes_of(cst.Call) if function_of(rule.flow, call) is function]
    moved = {again.receiver for again in rule.flow.facts.moves.values()}
    return bool(calls) and all(call in moved for call in calls)


def _is_device_of_a_constructor(rule: Rule, move: Move) -> bool:
    """Whether the device is what another module's `self.device` was in its constructor, before anybody moved it."""
    # class Lit(LightningModule): def __init__(self): self.embed = Embed(self.device)
    function = rule.flow.function(move.node)
    cls, path = function.cls if function is not None else None, dotted(move.target_node) if move.target_node else ""
    init = cls.find_method("__init__") if cls is not None else None
    if cls is None or init is None or not path.startswith("self."):
        return False
    given = {dotted(n.value) for n in tree.walk(init.node.body) if isinstance(n, cst.Assign) and sets(n, path)}
    positions = [p.name.value for p in init.node.params.params][1:]
    for call in rule.source.nodes_of(cst.Call):
        builder = rule.flow.function(call)
        if dotted(call.func) != cls.name or builder is None or builder.role != CONSTRUCTOR or builder.cls is None:
            continue
        if any("device" in method.stores for owner in builder.cls.lineage for method in owner.methods.values()):
            continue  # self.device = device
        for position, arg in enumerate(call.args):
            name = arg.keyword.value if arg.keyword is not None else "".join(positions[position : position + 1])
            if name in given and dotted(arg.value) == "self.device":
                return True
    return False


def _is_kept(rule: Rule, move: Move) -> bool:
    """`if self.mask is None: self.mask = torch.ones(n).to(x.device)`, `self.sums = torch.zeros(n).to(device)`"""
    statement = _statement(rule, move.node)
    kept = _kept_in(statement) if statement is not None else set()
    if any(path.startswith("self.") for path in kept) and not rule.flow.runs_each_step(move.node):
        return True
    # if key not in windows: windows[key] = torch.hann_window(n).to(x.device)
    return any(
        (_kept_in(branch) | kept) & _paths(test)
        for test, branch, holds in tests_above(rule, move.node)
        if not any(_compares_with_none(n, cst.IsNot if holds else cst.Is) for n in tree.walk(test))
    )


def _kept_in(code: cst.CSTNode) -> set[str]:
    """The attributes and containers that code writes to."""
    targets = [n.target for n in tree.walk(code) if isinstance(n, cst.AssignTarget)]
    return {_holder(target) for target in targets if isinstance(target, cst.Attribute | cst.Subscript)} - {""}


def _stands_in_for_what_is_missing(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether a branch makes what the caller did not hand over, or is for a batch without elements."""
    return any(
        _is_missing(rule, asked, holds) for test, _, holds in tests_above(rule, node) for asked in tree.walk(test)
    )


def _is_missing(rule: Rule, asked: cst.CSTNode, holds: bool) -> bool:
    if isinstance(asked, cst.UnaryOperation) and isinstance(asked.operator, cst.Not):
        return holds and _counts(rule, asked.expression)  # if not len(boxes): ...
    if not isinstance(asked, cst.Comparison) or len(asked.comparisons) != 1:
        return False
    if _compares_with_none(asked, cst.Is if holds else cst.IsNot):
        return isinstance(asked.left, cst.Name)  # if mask is None: mask = torch.ones(n).to(x.device)
    operator, other = asked.comparisons[0].operator, asked.comparisons[0].comparator
    # if len(boxes) == 0: return torch.zeros(n).to(x.device)
    if not isinstance(other, cst.Integer) or other.value != "0":
        return False
    if not isinstance(asked.left, cst.Call | cst.Subscript) and not _counts(rule, asked.left):
        return False
    return isinstance(operator, cst.Equal if holds else cst.NotEqual | cst.GreaterThan)


def _counts(rule: Rule, node: cst.BaseExpression) -> bool:
    """`len(boxes)`, `boxes.shape[0]`, and what is bound to such a thing: `self.count = boxes.size(1)`."""
    if any(_asks_size(n) for n in tree.walk(node)):
        return True
    path, function = dotted(node), rule.flow.function(node)
    return bool(path) and any(
        (sets(assign, path) or path in names_bound(*(target.target for target in assign.targets)))
        and ("." in path or rule.flow.function(assign) is function)
        and any(_asks_size(n) for n in tree.walk(assign.value))
        for assign in rule.source.nodes_of(cst.Assign)
    )


def _asks_size(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Attribute):
        return node.attr.value in ("size", "shape", "numel", "nelement")
    return isinstance(node, cst.Call) and dotted(node.func) == "len"


def _compares_with_none(node: cst.CSTNode, operator: type[cst.BaseCompOp]) -> bool:
    equal = cst.Equal if operator is cst.Is else cst.NotEqual  # if mask == None: ...
    return (
        isinstance(node, cst.Comparison)
        and isinstance(node.comparisons[0].operator, operator | equal)
        and dotted(node.comparisons[0].comparator) == "None"
    )


def _paths(test: cst.BaseExpression) -> set[str]:
    """What a test asks for: `self.mask` of `self.mask is None`, and of `hasattr(self, "mask")`."""
    found = {path for n in tree.walk(test) if isinstance(n, cst.Name | cst.Attribute) and (path := dotted(n))}
    for call in tree.walk(test):
        if isinstance(call, cst.Call) and dotted(call.func) in ("hasattr", "getattr") and len(call.args) > 1:
            name = call.args[1].value
            if isinstance(name, cst.SimpleString):
                found.add(f"{dotted(call.args[0].value)}.{name.raw_value}")
    return found


def _statement(rule: Rule, node: cst.CSTNode) -> cst.CSTNode | None:
    return rule.enclosing(node, cst.BaseSmallStatement, cst.BaseCompoundStatement)


def _holder(target: cst.BaseExpression) -> str:
    """`self.rows` of `self.rows[0]`."""
    while isinstance(target, cst.Subscript):
        target = target.value
    return dotted(target)


def _is_before_work(rule: Rule, node: cst.CSTNode, depth: int = 2) -> bool:
    """Whether a sampler or a generator makes it once, before the loop in which a model does its work."""
    # total = torch.zeros(len(x)).to(x.device)
    # for t in timesteps: total += self.bound(model(x, t))
    flow, function = rule.flow, rule.flow.function(node)
    if function is None or flow.runs_each_step(function.node.body.body[0]) or in_stepping_loop(flow, node):
        return False  # def forward(self, x): ...; for layer in self.layers: x, h = layer(x, h)
    at, _ = rule.source.offsets(node)
    if any(_works(rule, n) and rule.source.offsets(n)[0] > at for n in tree.walk(function.node.body)):
        return True
    # x = self.padded(x); for i in range(n): x = self.net(x)
    calls = [call for call in rule.source.nodes_of(cst.Call) if function_of(flow, call) is function]
    if calls and depth > 0 and all(_is_before_work(rule, call, depth - 1) for call in calls):
        return True
    test = rule.enclosing(node, cst.If, cst.FunctionDef)
    if not isinstance(test, cst.If) or "config" not in dotted(test.test).split("."):
        return False
    # if self.config.is_encoder_decoder: ...   once for a call that then goes to a method that generates
    return any(
        _works(rule, n)
        for call in tree.walk(function.node.body)
        if isinstance(call, cst.Call) and rule.source.offsets(call)[0] > at
        if (called := function_of(flow, call)) is not None
        for n in tree.walk(called.node.body)
    )


def _works(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether a node is a loop that drives a model."""
    if not isinstance(node, cst.For | cst.While):
        return False
    loop = rule.flow.loop(node.body.body[0])
    return loop is not None and bool(loop.works)


# the host waits in any case -----------------------------------------------------------------------


def _waits_anyway(rule: Rule, node: cst.CSTNode) -> bool:
    """`torch.arange(n).to(mask.device)[mask].tolist()`: the statement waits for the device in any case."""
    statement = _statement(rule, node)
    if not isinstance(statement, cst.BaseSmallStatement):
        return False
    return any(isinstance(n, cst.BaseExpression) and reads(rule.flow, n) for n in tree.walk(statement))


def _counts_what_was_found(rule: Rule, factory: cst.Call) -> bool:
    """Whether it numbers what the host has just waited for to know how many there are."""
    # kinds = torch.unique(labels); rank[kinds] = torch.arange(len(kinds)).to(labels.device)
    function = rule.flow.function(factory)
    size = factory.args[0].value if len(factory.args) == 1 else None
    if function is None or not isinstance(size, cst.Call) or dotted(size.func) != "len":
        return False
    counted = dotted(size.args[0].value)
    return any(
        isinstance(n, cst.Assign)
        and any(dotted(target.target) == counted for target in n.targets)
        and any(isinstance(part, cst.Call) and needs_wait_at(rule.flow, part) for part in tree.walk(n.value))
        for n in tree.walk(function.node.body)
    )


def _waits_inside(rule: Rule, loop: Loop) -> bool:
    """Whether a loop inside a loop waits for the device in each of its turns."""
    # for t in range(steps): ...; for i in range(beams): if words[i] == end: ...
    flow = rule.flow
    return any(
        inner is not loop
        for n in tree.walk(loop.node.body)
        if n in flow.facts.waits or branches_in_loop(flow, n)
        if (inner := flow.loop(n)) is not None
    )


def _reads_back(rule: Rule, function: Function | None) -> bool:
    """Whether each call of a function reads a value of the device on the host."""
    return function is not None and any(
        isinstance(n, cst.BaseExpression) and reads(rule.flow, n) and runs_each_time(rule.flow, function, n)
        for n in tree.walk(function.node.body)
    )


# another change would be the better one -----------------------------------------------------------


def _is_written_from_host(rule: Rule, move: Move) -> bool:
    """Whether the tensor is written from the host: better filled there, and moved once."""
    # for i, row in enumerate(rows): table[i] = torch.tensor(row)
    # kept[torch.arange(n), chosen] = 0   with both indices on the host
    parent = rule.parent(move.node)
    target = parent.targets[0].target if isinstance(parent, cst.Assign) else None
    if not isinstance(target, cst.Name):
        return False
    flow = rule.flow
    function = flow.function(move.node)
    for assign in rule.source.nodes_of(cst.Assign):
        held = assign.targets[0].target
        if not isinstance(held, cst.Subscript) or dotted(held.value) != target.value:
            continue
        if flow.function(assign) is not function:
            continue
        written = [assign.value] if flow.loop(assign) is not None else []
        written += [item.slice.value for item in held.slice if isinstance(item.slice, cst.Index)]
        if any((value := flow.value(node)).is_tensor and value.place.is_host for node in written):
            return True
    return False


def _draws_freely(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether nobody counts on the numbers drawn: a loop draws them, in a file that says nothing of a seed."""
    # torch.manual_seed(args.seed)   a device draws other numbers from the same seed, and so gives other results
    if not in_stepping_loop(rule.flow, node):
        return False  # that is for those who call the function to say
    return not any("seed" in name.value.lower() for name in rule.source.nodes_of(cst.Name))


# it comes again -----------------------------------------------------------------------------------


def _follows_an_argument(rule: Rule, move: Move) -> bool:
    """Whether the tensor goes to where an argument of the function is: such functions are called for each batch."""
    flow = rule.flow
    function = flow.function(move.node)
    if function is None or function.role in (CONSTRUCTOR, HOST_SIDE):
        return False
    if function.name == "__call__" and (function.cls is None or not function.cls.is_module):
        return False  # a pipeline, called once for each picture
    node = move.target_node
    if isinstance(node, cst.Attribute) and node.attr.value == "type":
        node = node.value  # x.device.type
    if isinstance(node, cst.Attribute) and node.attr.value == "device":
        node = node.value
    elif node is None or not flow.value(node).holds_tensors:
        return False
    if isinstance(node, cst.Subscript):
        node = node.value  # batch["ids"].device
    elif not (flow.value(node).holds_tensors or _has_a_shape(node, function.node)):
        return False  # args.device
    return isinstance(node, cst.Name) and node.value in function.param_names and node.value not in ("self", "cls")


def _meets_an_argument(rule: Rule, move: Move) -> bool:
    """Whether what is moved is computed with an argument of the function, which is a tensor there, then."""
    # grid = torch.ones(h, w).cuda(); return flow.permute(0, 2, 3, 1) + grid
    function, statement = rule.flow.function(move.node), _statement(rule, move.node)
    if function is None or function.role in (CONSTRUCTOR, HOST_SIDE, MAIN) or not isinstance(statement, cst.Assign):
        return False
    names = names_bound(*(target.target for target in statement.targets))
    for assign in rule.source.nodes_of(cst.BinaryOperation):
        if rule.flow.function(assign) is not function or not rule.source.comes_before(statement, assign):
            continue
        sides = (assign.left, assign.right), (assign.right, assign.left)
        if any(_starts_from(one) in names and _is_tensor_argument(rule, function, other) for one, other in sides):
            return True
        above = rule.parent(assign)
        if isinstance(above, cst.Assign) and any(_starts_from(side) in names for side, _ in sides):
            names |= names_bound(*(target.target for target in above.targets))  # rays = grid @ pose
    return False


def _is_tensor_argument(rule: Rule, function: Function, node: cst.BaseExpression) -> bool:
    """`flow.permute(0, 2, 3, 1)`: an argument, and no plain number, of which nothing says more."""
    start = _starts_from(node)
    if start not in function.param_names or start in ("self", "cls"):
        return False
    return rule.flow.value(node).is_tensor or (isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute))


def _starts_from(node: cst.BaseExpression) -> str:
    """`x` of `x[:, 0].reshape(-1, 1)`."""
    while True:
        if isinstance(node, cst.Subscript):
            node = node.value
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            node = node.func.value
        elif isinstance(node, cst.BinaryOperation):
            node = node.left
        else:
            return node.value if isinstance(node, cst.Name) else ""


def _has_a_shape(node: cst.BaseExpression, function: cst.FunctionDef) -> bool:
    name = dotted(node)
    return any(
        isinstance(n, cst.Attribute) and n.attr.value in _OF_TENSORS and dotted(n.value) == name
        for n in tree.walk(function.body)
    )
