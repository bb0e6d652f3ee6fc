"""Whether a copy that a device could do without is made again and again, and surely is one."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.facts import Move
from devlint.flow.names import dotted, names_bound
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, MAIN, Function
from devlint.rule import Rule
from devlint.rules._copied import is_copied
from devlint.rules._exports import RECORDERS, is_of_export
from devlint.rules._filled import is_of_fixed_size
from devlint.rules._made import Made
from devlint.rules._recurs import function_of, in_stepping_loop, is_deprecated, reads, recurs
from devlint.rules._switches import is_switched_off, sets, tests_above

#: What is asked of tensors, and of no settings.
_OF_TENSORS = frozenset("size shape dtype dim ndim numel".split())


def is_paid_again(rule: Rule, move: Move, made: Made) -> bool:
    """Whether batch after batch pays for the copy, and the device could fill the memory as well; whose code says that
    it was copied is not to be bothered."""
    return not is_copied(rule, move.node) and happens_again(rule, move, made)


def happens_again(rule: Rule, move: Move, made: Made) -> bool:
    """Likewise, wherever the code is from."""
    flow, node = rule.flow, move.node
    if is_of_export(rule, node) or _is_only_traced(rule, node) or "poptorch" in flow.scope.packages:
        return False
    if is_deprecated(flow, node) or is_switched_off(rule, node) or _is_kept(rule, move):
        return False
    if _waits_anyway(rule, node) or (made.random and not _may_draw_there(rule, node, made)):
        return False
    return recurs(flow, node) or _follows_an_argument(rule, move) or _meets_an_argument(rule, move)


# it may be no copy --------------------------------------------------------------------------------


def may_stay_on_host(rule: Rule, move: Move) -> bool:
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


def is_written_from_host(rule: Rule, move: Move) -> bool:
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


# it runs once, or waits in any case ---------------------------------------------------------------


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


def _is_kept(rule: Rule, move: Move) -> bool:
    """`if self.mask is None: self.mask = torch.ones(n).to(x.device)`, `self.sums = torch.zeros(n).to(device)`"""
    statement = _statement(rule, move.node)
    kept = _kept_in(statement) if statement is not None else set()
    if any(path.startswith("self.") for path in kept) and not rule.flow.runs_each_step(move.node):
        return True
    if _is_put_into_cache(rule, statement):
        return True
    # if key not in windows: windows[key] = torch.hann_window(n).to(x.device)
    return any(
        (_kept_in(branch) | kept) & _paths(test)
        for test, branch, holds in tests_above(rule, move.node)
        if not any(_compares_with_none(n, cst.IsNot if holds else cst.Is) for n in tree.walk(test))
    )


def _is_put_into_cache(rule: Rule, statement: cst.CSTNode | None) -> bool:
    """``if cache.has(n): rows = cache.get(n)   else: rows = torch.ones(n).to(device); cache.add(n, rows)``"""
    names = (
        names_bound(*(target.target for target in statement.targets)) if isinstance(statement, cst.Assign) else set()
    )
    block = rule.enclosing(statement, cst.IndentedBlock) if names and statement is not None else None
    choice = rule.enclosing(block, cst.If, cst.FunctionDef) if block is not None else None
    if block is None or not isinstance(choice, cst.If):
        return False
    asked = {owner for call in tree.walk(choice.test) if (owner := _owner_of_method(call))}
    return any(
        _owner_of_method(call) in asked and any(tree.named(call, name) for name in names) for call in tree.walk(block)
    )


def _owner_of_method(node: cst.CSTNode) -> str:
    """``cache`` of ``cache.get(n)``"""
    return dotted(node.func.value) if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else ""


def _kept_in(code: cst.CSTNode) -> set[str]:
    """The attributes and containers that code writes to."""
    targets = [n.target for n in tree.walk(code) if isinstance(n, cst.AssignTarget)]
    return {_holder(target) for target in targets if isinstance(target, cst.Attribute | cst.Subscript)} - {""}


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


def _waits_anyway(rule: Rule, node: cst.CSTNode) -> bool:
    """`torch.arange(n).to(mask.device)[mask].tolist()`: the statement waits for the device in any case."""
    statement = _statement(rule, node)
    if not isinstance(statement, cst.BaseSmallStatement):
        return False
    return any(isinstance(n, cst.BaseExpression) and reads(rule.flow, n) for n in tree.walk(statement))


# other random numbers would do --------------------------------------------------------------------


def _may_draw_there(rule: Rule, node: cst.CSTNode, made: Made) -> bool:
    """Whether other numbers would do: a device draws others from the same seed than the host does."""
    if is_of_fixed_size(made.factory):
        return False  # for step in range(10): x = torch.randn(20, 5).to(device)   stands in for real data
    function = rule.flow.function(made.factory)
    if function is not None and any(_makes_there(rule, n) and _draws(rule, n) for n in _own_code(function)):
        return True  # eps = torch.randn(n, device=x.device)   draws there already
    # torch.manual_seed(args.seed)   whoever sets one counts on the numbers
    return in_stepping_loop(rule.flow, node) and not any(
        "seed" in name.value.lower() for name in rule.source.nodes_of(cst.Name)
    )


def _draws(rule: Rule, call: cst.CSTNode) -> bool:
    entry = rule.flow.factory(call) if isinstance(call, cst.Call) else None
    return entry is not None and entry.values == "random"


def _makes_there(rule: Rule, node: cst.CSTNode) -> bool:
    return (
        isinstance(node, cst.Call)
        and (entry := rule.flow.factory(node)) is not None
        and entry.values != "python"
        and any(arg.keyword is not None and arg.keyword.value == "device" for arg in node.args)
        and not rule.flow.value(node).place.is_host
    )


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
