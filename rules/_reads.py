"""What a value that is read back from the device is read for, and how often."""

from __future__ import annotations

import re
import sys

import libcst as cst

from devlint import tree
from devlint.flow import Flow
from devlint.flow import torch_table as table
from devlint.flow.facts import Wait
from devlint.flow.hypothesis import names_device
from devlint.flow.invariance import path_stays
from devlint.flow.loops import Loop, holder, loop_of, runs_sometimes
from devlint.flow.names import dotted, target_names
from devlint.flow.scope import Function
from devlint.flow.value import TENSOR, THING
from devlint.flow.waiting import picks_by_mask
from devlint.rules._arguments import handed_in
from devlint.rules._recurs import calls_of

#: Waits for single numbers, in the words of the flow: not for the bytes of a copy.
READ_AS_NUMBERS = ("item", "tolist", "float", "int", "bool", "format", "print", "index", "in")
COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)


def surely_there(flow: Flow, wait: Wait) -> bool:
    """Whether something says that the value is on a device, besides that it was handed in."""
    # for batch in loader: out = model(batch); out.loss.item()   nothing here says that there is a device
    name, function = wait.value.place.name, flow.function(wait.node)
    if function is None or name not in function.param_names or names_device(name):
        return True
    return function.device_aware


def is_tied(flow: Flow, wait: Wait) -> bool:
    """Whether something says that what is read is a tensor, and not a number that some caller hands in.

    ``def draw(self, x, t): ... t.item()`` may be handed a number of numpy's.
    """
    function, name = flow.function(wait.node), holder(wait.operand)
    return function is None or name not in function.param_names or _is_tensor_by_use(flow, function, name)


def _is_tensor_by_use(flow: Flow, function: Function, name: str) -> bool:
    """Whether a parameter is declared, bound, computed with, or handed in as a tensor."""
    param = next(p for p in function.params if p.name.value == name)
    if param.annotation is not None:
        return "Tensor" in flow.source.code(param.annotation)
    for node in tree.walk(function.node.body):
        if not isinstance(node, cst.Name) or node.value != name:
            continue
        value, parent = flow.value(node), flow.source.parents[node]
        if value.place.is_there and value.place.name != name:
            return True  # t = t.to(device)
        if isinstance(parent, cst.Attribute) and node is parent.value:
            attr = parent.attr.value  # mask.any(), x.device
            if attr not in ("item", "tolist") and (attr in table.METHODS or attr in ("device", "is_cuda")):
                return True
        if isinstance(parent, cst.BinaryOperation | cst.Comparison):
            sides = [parent.left, *_others(parent)]
            if any(side is not node and flow.value(side).place.is_there for side in sides):
                return True
    handed = (handed_in(call, function, name) for call in calls_of(flow, function))
    values = (flow.value(given) for given in handed if given is not None)
    return any(value.is_tensor and value.place.is_there for value in values)


def _others(node: cst.BinaryOperation | cst.Comparison) -> list[cst.BaseExpression]:
    if isinstance(node, cst.BinaryOperation):
        return [node.right]
    return [each.comparator for each in node.comparisons]


# one by one ---------------------------------------------------------------------------------------


def read_one_by_one(flow: Flow, wait: Wait) -> tuple[cst.CSTNode, cst.BaseExpression] | None:
    """The loop that reads a tensor element by element, and the tensor: `for i in range(n): sizes[i].item()`.

    `sizes.tolist()` above the loop would read it at once. ``None`` where the loop may change the tensor.
    """
    node = _element(wait.operand)
    for repeated, loop, over in _repeating(flow, wait.node):
        if isinstance(node, cst.Name) and node.value in _bound(repeated):
            # for size in sizes: size.item()
            read = _iterated(node.value, repeated, over)
        elif isinstance(node, cst.Subscript) and _is_element(node, _bound(repeated)) and _counts(over):
            # for i in range(n): sizes[i].item()   not: for i in best: scores[i].item()
            read = _base(node)
        else:
            continue
        value = flow.value(read) if read is not None else None
        if read is None or value is None or value.kind not in (TENSOR, THING) or value.zero:
            return None
        if value.kind == THING and isinstance(read, cst.Name | cst.Call):
            return None  # losses = model(x); for loss in losses: loss.item()   a tuple, perhaps: x.max(dim=1)
        path = holder(read)
        if path in _handed_in(flow, read) and _LENGTHS.search(path):
            return None  # for row, n in zip(x, lengths): row[:n]   pack_padded_sequence wants them on the host
        changes = loop is not None and loop.changes(path)  # for i in range(n): a = f(a, x); a[i].item()
        if not path or changes or _waits_otherwise(flow, repeated):
            return None
        return repeated, read
    return None


def _waits_otherwise(flow: Flow, repeated: cst.CSTNode) -> bool:
    """Whether each turn waits for something that no turn before could have read."""
    # for i in range(n): id = ids[i].item(); hit = (a[i] > b).all().item()
    bound = _bound(repeated)
    loop = loop_of(flow, repeated.body) if isinstance(repeated, cst.For) else None
    for node in tree.walk(repeated.body if isinstance(repeated, cst.For) else repeated):
        other = flow.facts.waits.get(node)
        if other is not None:
            operand = other.operand
        elif isinstance(node, cst.Subscript) and picks_by_mask(flow, node):
            operand = node  # rows = features[labels == i]   how many there are, again
        elif isinstance(node, cst.Call) and _copies_number(flow, node):
            return True  # for t in times: t = torch.tensor([t.item()], device=device)   waits as each copy does
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and _reads_back(flow, node.func):
            operand = node.func.value  # rows = (expert == i).nonzero()   how many there are is for the host to know
        else:
            continue
        element = _element(operand)
        if isinstance(element, cst.Subscript) and _is_element(element, bound):
            continue
        # for i in ids: n = i.item(); hit = ids == n; if not hit.any(): ...   `hit` is made in the turn that asks
        if isinstance(element, cst.Name) and (element.value in bound or loop is None or not loop.binds(element.value)):
            continue
        if loop is None or not runs_sometimes(flow, node, loop):
            return True
    return False


def compares_perhaps(flow: Flow, loop: Loop, node: cst.CSTNode) -> bool:
    """Whether a test compares what is a tensor of the device on one way through the turn, and a number on another."""
    # if empty: loss = 0
    # else: loss = net(x).loss
    # if loss < best: ...
    if not isinstance(node, cst.Comparison) or isinstance(node.comparisons[0].operator, cst.Is | cst.IsNot | cst.In):
        return False
    parents = flow.source.parents
    asked: cst.CSTNode = node
    while isinstance(parents[asked], cst.BooleanOperation | cst.UnaryOperation):
        asked = parents[asked]
    above = parents[asked]
    if not isinstance(above, cst.If | cst.IfExp | cst.While) or above.test is not asked:
        return False  # hits += (best == y).sum()
    sides = {side.value for side in (node.left, *_others(node)) if isinstance(side, cst.Name)}
    return any(
        isinstance(n, cst.Assign)
        and any(dotted(target.target) in sides for target in n.targets)
        and flow.value(n.value).holds_tensors
        and not flow.value(n.value).place.is_host
        for n in tree.walk(loop.node.body)
    )


def _reads_back(flow: Flow, func: cst.Attribute) -> bool:
    name = func.attr.value
    return name in ("item", "tolist", "nonzero", "masked_select", "unique") and not flow.value(func.value).place.is_host


_LENGTHS = re.compile(r"(^|_)(len|lens|lengths?)$")


def _handed_in(flow: Flow, node: cst.CSTNode) -> frozenset[str] | set[str] | tuple[str, ...]:
    function = flow.function(node)
    return function.param_names if function is not None else ()


def _element(node: cst.BaseExpression) -> cst.BaseExpression:
    """`sizes[i]` of `sizes[i] > 0`, `sizes[i].long()`, `(sizes[i])`."""
    while True:
        if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
            if not isinstance(node.comparisons[0].comparator, cst.Integer | cst.Float):
                return node
            node = node.left
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and not node.args:
            if node.func.attr.value not in ("int", "long", "float", "detach", "bool"):
                return node
            node = node.func.value
        elif isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
            node = node.expression
        else:
            return node


def _repeating(flow: Flow, node: cst.CSTNode):
    """The loops and comprehensions around a node that evaluate it in each turn, with what they bind and go over."""
    parents = flow.source.parents
    child, current = node, parents[node]
    while not isinstance(current, cst.FunctionDef | cst.Lambda | cst.ClassDef | cst.Module):
        if isinstance(current, cst.For) and child is current.body:
            loop = loop_of(flow, child)
            if loop is not None:
                yield current, loop, current.iter
        elif isinstance(current, COMPREHENSIONS) and child is not current.for_in:
            yield current, None, current.for_in.iter
        child, current = current, parents[current]


def _bound(repeated: cst.CSTNode) -> set[str]:
    names: set[str] = set()
    clause: cst.CSTNode | None = repeated.for_in if isinstance(repeated, COMPREHENSIONS) else repeated
    while isinstance(clause, cst.For | cst.CompFor):
        target_names(clause.target, names)
        clause = clause.inner_for_in if isinstance(clause, cst.CompFor) else None
    return names


def _is_element(node: cst.Subscript, bound: set[str]) -> bool:
    """`sizes[i]`, `sizes[i][0]`, `batch["size"][i, 1]`: one number of it in each turn, as far as the indices say."""
    indices = _indices(node)
    return any(isinstance(i, cst.Name) and i.value in bound for i in indices) and all(
        isinstance(i, cst.Integer) or (isinstance(i, cst.Name) and i.value in bound) for i in indices
    )


def _indices(node: cst.BaseExpression) -> list[cst.BaseExpression | None]:
    found: list[cst.BaseExpression | None] = []
    while isinstance(node, cst.Subscript) and not _is_key(node):
        found += [item.slice.value if isinstance(item.slice, cst.Index) else None for item in node.slice]
        node = node.value
    return found


def _is_key(node: cst.Subscript) -> bool:
    item = node.slice[0].slice
    return len(node.slice) == 1 and isinstance(item, cst.Index) and isinstance(item.value, cst.SimpleString)


def _counts(over: cst.BaseExpression) -> bool:
    """`range(n)`, `enumerate(rows)`: the loop comes by all elements."""
    return isinstance(over, cst.Call) and dotted(over.func).rpartition(".")[2] in ("range", "trange", "enumerate")


def _copies_number(flow: Flow, call: cst.Call) -> bool:
    """``torch.tensor([t], device=device)``, ``torch.tensor([t]).to(device)``: made on the host, and copied from memory
    that is not pinned."""
    move = flow.move(call)
    if move is not None:
        return move.target.is_there and move.non_blocking is not True and flow.name_of(move.receiver) == "torch.tensor"
    return flow.name_of(call) == "torch.tensor" and flow.value(call).place.is_there


def _base(node: cst.BaseExpression) -> cst.BaseExpression:
    while isinstance(node, cst.Subscript) and not _is_key(node):
        node = node.value
    return node


def _iterated(name: str, repeated: cst.CSTNode, over: cst.BaseExpression) -> cst.BaseExpression | None:
    """The tensor whose elements a loop variable names: `for n in sizes`, `for i, n in enumerate(sizes)`, `zip(...)`."""
    clause = repeated.for_in if isinstance(repeated, COMPREHENSIONS) else repeated
    target = clause.target if isinstance(clause, cst.For | cst.CompFor) else None
    called = over.func.value if isinstance(over, cst.Call) and isinstance(over.func, cst.Name) else ""
    if called == "enumerate" and isinstance(over, cst.Call) and isinstance(target, cst.Tuple):
        parts = [None, over.args[0].value] if over.args else []
    elif called == "zip" and isinstance(over, cst.Call) and isinstance(target, cst.Tuple):
        parts = [arg.value for arg in over.args]
    else:
        return over if isinstance(target, cst.Name) and target.value == name else None
    for element, part in zip(target.elements, parts, strict=False):
        if isinstance(element.value, cst.Name) and element.value.value == name:
            return part
    return None


# the same each time -------------------------------------------------------------------------------


def same_each_time(flow: Flow, loop: Loop, node: cst.BaseExpression) -> bool:
    """Whether a value of the device is the same in every iteration: `mask.sum(1)` of a mask that no iteration binds,
    writes into or hands on."""
    if isinstance(node, cst.Integer | cst.Float | cst.SimpleString):
        return True
    if isinstance(node, cst.Name):
        value = flow.value(node)
        if node.value in ("True", "False", "None"):
            return True
        # what is trained changes in each step
        return value.kind in (TENSOR, THING) and not value.grad and path_stays(flow, loop, node)
    if isinstance(node, cst.UnaryOperation):
        return same_each_time(flow, loop, node.expression)
    if isinstance(node, cst.BinaryOperation):
        return same_each_time(flow, loop, node.left) and same_each_time(flow, loop, node.right)
    if isinstance(node, cst.Comparison):
        return same_each_time(flow, loop, node.left) and all(
            same_each_time(flow, loop, c.comparator) for c in node.comparisons
        )
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        operation = table.METHODS.get(node.func.attr.value)
        if operation is None or operation.result in ("self", "none") or node.func.attr.value in _DRAWING:
            return False
        return same_each_time(flow, loop, node.func.value) and all(
            arg.star == "" and same_each_time(flow, loop, arg.value) for arg in node.args
        )
    return False


_DRAWING = frozenset({"bernoulli", "multinomial"})


# kept ---------------------------------------------------------------------------------------------


def kept_as(flow: Flow, node: cst.BaseExpression, loop: Loop, end: int, depth: int = 3) -> str | None:
    """What a number that is read in each iteration is kept as: the sum, the list or the name that only few iterations,
    or code after the offset ``end``, look at. ``None`` where an iteration may need it."""
    parents = flow.source.parents
    statement: cst.CSTNode = parents[node]
    child: cst.CSTNode = node
    while not isinstance(statement, cst.BaseSmallStatement):
        if isinstance(statement, cst.Arg):
            call = parents[statement]
            if not isinstance(call, cst.Call):
                return None
            if isinstance(parents[call], cst.Expr) and isinstance(call.func, cst.Attribute) and _appends(call):
                return _unread(flow, call.func.value, parents[call], loop, end)
            if dotted(call.func) not in ("float", "int"):
                return None
        elif not isinstance(statement, cst.BinaryOperation | cst.UnaryOperation | cst.Call):
            return None
        child, statement = statement, parents[statement]
    if isinstance(statement, cst.AugAssign):
        if child is not statement.value or not isinstance(statement.operator, cst.AddAssign | cst.SubtractAssign):
            return None
        return _unread(flow, _whole(statement.target), statement, loop, end)
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0].target
    if isinstance(target, cst.Subscript):
        return _unread(flow, _whole(target), statement, loop, end)
    if not isinstance(target, cst.Name):
        return None
    # loss_value = loss.item(); total += loss_value
    kept = target.value
    for use in _uses(flow, target.value, statement, loop, end):
        if depth == 0 or not isinstance(use, cst.BaseExpression):
            return None
        further = kept_as(flow, use, loop, end, depth - 1)
        if further is None:
            return None
        kept = further
    return kept


def _whole(node: cst.BaseExpression) -> cst.BaseExpression:
    while isinstance(node, cst.Subscript):
        node = node.value
    return node


def _appends(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "append" and len(call.args) == 1


def _unread(flow: Flow, target: cst.BaseExpression, statement: cst.CSTNode, loop: Loop, end: int) -> str | None:
    path = dotted(target)
    if not path or _uses(flow, path, statement, loop, end):
        return None
    # for i in range(steps):
    #     for _ in range(parts): loss = ...; loss.backward(); total += loss.item()
    #     optimizer.step(); print(total)
    around = loop_of(flow, loop.node)
    if around is not None and _steps_after(flow, around):
        inner = set(tree.walk(loop.node))
        for use in _uses(flow, path, statement, around, sys.maxsize):
            if use in inner:
                continue
            if not isinstance(use, cst.BaseExpression) or kept_as(flow, use, around, sys.maxsize) is None:
                return None
    return path


def _steps_after(flow: Flow, loop: Loop) -> bool:
    """Whether the optimizer steps in the loop itself, not in one inside it."""
    return any(
        isinstance(work, cst.Call)
        and isinstance(work.func, cst.Attribute)
        and work.func.attr.value == "step"
        and loop_of(flow, work) is loop
        for work in loop.works
    )


def _uses(flow: Flow, path: str, statement: cst.CSTNode, loop: Loop, end: int) -> list[cst.CSTNode]:
    """Where each iteration reads a name or attribute before an offset, besides in one statement."""
    parents = flow.source.parents
    found: list[cst.CSTNode] = []
    own = set(tree.walk(statement))
    for node in tree.walk(loop.node):
        if not isinstance(node, cst.Name | cst.Attribute) or node in own or dotted(node) != path:
            continue
        place: cst.CSTNode = node
        above = parents[place]
        while isinstance(above, cst.Subscript) and place is above.value:
            place, above = above, parents[above]  # sums[1] += len(batch)
        if isinstance(above, cst.AssignTarget) or (isinstance(above, cst.AugAssign) and place is above.target):
            continue
        above = parents[node]
        if (isinstance(above, cst.Attribute) and node is above.attr) or (
            isinstance(above, cst.Arg) and node is above.keyword
        ):
            continue  # metrics.total, report(total=0)
        if isinstance(loop.node, cst.For) and node is loop.node.iter:
            continue
        each_time = _is_on_both_sides(parents, node, path) or not runs_sometimes(flow, node, loop)
        if each_time and flow.source.offsets(node)[0] < end:
            found.append(node)
    return found


def _is_on_both_sides(parents: tree.Parents, node: cst.CSTNode, path: str) -> bool:
    """``smooth = now if smooth is None else 0.9 * smooth + 0.1 * now``, which reads `now` in any case."""
    while not isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement | cst.Module):
        above = parents[node]
        if isinstance(above, cst.IfExp) and node is not above.test:
            sides = (above.body, above.orelse)
            return all(
                any(isinstance(part, cst.Name | cst.Attribute) and dotted(part) == path for part in tree.walk(side))
                for side in sides
            )
        node = above
    return False
