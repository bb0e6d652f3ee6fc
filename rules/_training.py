"""What rules about training share: which loss goes backward where, and what happens to a name in between."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from devlint import tree
from devlint.flow import Flow
from devlint.flow.hypothesis import LOSS_NAME
from devlint.flow.names import dotted, last_word, target_names
from devlint.flow.scope import Function
from devlint.flow.steps import above

Loop = cst.For | cst.While
#: Methods that go backward for the loss they are handed: ``accelerator.backward(loss)``.
_BACKWARD = frozenset({"backward", "manual_backward"})
#: Context managers, by the last word of their names, in which autograd does not record.
_NOT_RECORDING = frozenset({"no_grad", "inference_mode"})
#: Methods that give a tensor without history, or no tensor.
FREEING = frozenset("detach item tolist numpy cpu_scalar detach_ argmax eq ne gt lt ge le size numel".split())


@dataclass(eq=False)
class Backward:
    """``loss.backward()`` and its kin, or the ``return`` of a ``training_step``.

    ``paths`` are the names that go backward. ``again``: the graph is kept for more.
    """

    node: cst.CSTNode
    paths: frozenset[str]
    again: bool


@dataclass(eq=False)
class Body:
    """What a function, or the code outside of functions, binds, and what it sends backward."""

    function: Function | None
    backwards: list[Backward] = field(default_factory=list)
    bindings: dict[str, list[cst.CSTNode]] = field(default_factory=dict)  # path -> statements that bind it

    def bind(self, statement: cst.CSTNode) -> None:
        for path in bound_paths(statement):
            self.bindings.setdefault(path, []).append(statement)

    def goes_backward(self) -> set[str]:
        """Every path whose value goes into something that goes backward."""
        found = {path for backward in self.backwards for path in backward.paths}
        todo = list(found)
        while todo:
            for statement in self.bindings.get(todo.pop(), ()):
                value = statement.value if isinstance(statement, cst.Assign | cst.AugAssign | cst.AnnAssign) else None
                for path in paths_in(value) - found if value is not None else ():
                    found.add(path)
                    todo.append(path)
        return found


class Bodies:
    """The bodies of a file that send anything backward, by function."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.source = flow.source
        self.found: dict[Function | None, Body] = {}
        for call in self.source.nodes_of(cst.Call):
            if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in _BACKWARD:
                continue
            # u, log_det = flow.backward(u): what autograd does gives nothing
            if not isinstance(self.source.parents.get(call), cst.Assign):
                self._body(flow.function(call)).backwards.append(_backward(call))
        for function in flow.scope.functions.values():
            if function.name == "training_step" and function.cls is not None:
                self._read_returned(function)
        if self.found:
            self._read_bindings()

    def _body(self, function: Function | None) -> Body:
        return self.found.setdefault(function, Body(function))

    def _read_returned(self, function: Function) -> None:
        """Lightning sends backward what ``training_step`` returns."""
        for node in tree.walk(function.node.body):
            if isinstance(node, cst.Return) and node.value is not None and self.flow.function(node) is function:
                value: cst.BaseExpression | None = node.value
                if isinstance(value, cst.Dict):
                    value = next((item.value for item in value.elements if _key(item) == "loss"), None)
                path = dotted(value)
                if path:
                    self._body(function).backwards.append(Backward(node, frozenset({path}), False))

    def _read_bindings(self) -> None:
        for node in self._binding_statements():
            body = self.found.get(self.flow.function(node))
            if body is not None:
                body.bind(node)

    def _binding_statements(self) -> Iterator[cst.CSTNode]:
        for kind in (cst.Assign, cst.AugAssign, cst.AnnAssign, cst.For):
            yield from self.source.nodes_of(kind)

    def of(self, function: Function | None) -> Body:
        """The body of a function, also of one that sends nothing backward."""
        known = self.found.get(function)
        if known is not None:
            return known
        body = Body(function)
        for node in self._binding_statements():
            if self.flow.function(node) is function:
                body.bind(node)
        return body

    def position(self, node: cst.CSTNode) -> int:
        """Where a node starts, to tell what comes first."""
        return self.source.offsets(node)[0]


def _key(item: cst.BaseDictElement) -> str:
    if isinstance(item, cst.DictElement) and isinstance(item.key, cst.SimpleString):
        return str(item.key.evaluated_value)
    return ""


def _backward(call: cst.Call) -> Backward:
    assert isinstance(call.func, cst.Attribute)
    losses = [call.func.value]
    first = call.args[0] if call.args else None
    if first is not None and first.keyword is None and not LOSS_NAME.search(last_word(dotted(call.func.value))):
        losses = [first.value]  # accelerator.backward(loss)
    again = any(arg.keyword is not None and arg.keyword.value in ("retain_graph", "create_graph") for arg in call.args)
    return Backward(call, frozenset().union(*(_sent(loss) for loss in losses)), again)


def _sent(node: cst.BaseExpression) -> frozenset[str]:
    """The paths of ``scaler.scale(loss)``, ``loss / steps``, ``loss.mean()``, ``(a + b)``."""
    path = dotted(node)
    if path:
        return frozenset({path})
    if isinstance(node, cst.BinaryOperation):
        return _sent(node.left) | _sent(node.right)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value in ("scale", "scale_loss") and node.args:
            return _sent(node.args[0].value)
        if node.func.attr.value in ("mean", "sum"):
            return _sent(node.func.value) | frozenset().union(*(_sent(arg.value) for arg in node.args))
    if isinstance(node, cst.Call):
        return frozenset().union(*(_sent(arg.value) for arg in node.args))  # sum(losses).backward()
    return frozenset({dotted(node.value)}) if isinstance(node, cst.Subscript) and dotted(node.value) else frozenset()


def paths_in(node: cst.CSTNode) -> set[str]:
    """Every path of names in an expression, and what each begins with: ``a`` and ``a.b``."""
    found = set()
    for each in tree.walk(node):
        if isinstance(each, cst.Name | cst.Attribute):
            path = dotted(each)
            if path:
                found.add(path)
    return found


def bound_paths(node: cst.CSTNode) -> set[str]:
    """The names and paths that a statement binds, or an item of which it sets."""
    targets: list[cst.BaseExpression] = []
    if isinstance(node, cst.Assign):
        targets = [target.target for target in node.targets]
    elif isinstance(node, cst.AugAssign | cst.AnnAssign | cst.For):
        targets = [node.target]
    found: set[str] = set()
    while targets:
        target = targets.pop()
        if isinstance(target, cst.Tuple | cst.List):
            targets += [item.value for item in target.elements]
        elif isinstance(target, cst.StarredElement | cst.Subscript):
            targets.append(target.value)
        elif path := dotted(target):
            found.add(path)
        else:
            target_names(target, found)
    return found


def method_calls(root: cst.CSTNode, name: str) -> Iterator[cst.Call]:
    """The calls of a method, of whatever it is: ``loss.backward()``."""
    for node in tree.walk(root):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == name:
            yield node


def loop_around(flow: Flow, node: cst.CSTNode) -> Loop | None:
    """The innermost loop around a node, within the same function."""
    loop = flow.loop(node)
    return loop.node if loop is not None else None


def is_inside(flow: Flow, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
    current: cst.CSTNode | None = node
    while current is not None and current is not outer:
        current = flow.source.parents.get(current)
    return current is outer


def stops_recording(flow: Flow, expression: cst.BaseExpression) -> bool:
    """``torch.no_grad()``, ``torch.inference_mode()``, ``torch.set_grad_enabled(...)``."""
    func = expression.func if isinstance(expression, cst.Call) else expression
    return last_word(flow.scope.qualified(func)) in _NOT_RECORDING


def under_no_grad(flow: Flow, node: cst.CSTNode) -> bool:
    """Whether a statement stands in ``with torch.no_grad():``, or in a function that is decorated so."""
    function = flow.function(node)
    if function is not None and any(last_word(name) in _NOT_RECORDING for name in function.decorators):
        return True
    return any(
        isinstance(each, cst.With) and any(stops_recording(flow, item.item) for item in each.items)
        for each in above(flow, node)
    )


_FEW = 20


def runs_few_times(loop: Loop) -> bool:
    """``for _ in range(5)``: what a loop keeps that ends soon is no matter."""
    if isinstance(loop, cst.For) and isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) == "range":
        bounds = [arg.value for arg in loop.iter.args]
        return all(isinstance(bound, cst.Integer) and bound.evaluated_value <= _FEW for bound in bounds)
    return isinstance(loop, cst.For) and isinstance(loop.iter, cst.Tuple | cst.List)


def names_any(where: cst.CSTNode, words: re.Pattern[str]) -> bool:
    """Whether code names anything by such words."""
    return any(isinstance(node, cst.Name) and words.search(node.value) for node in tree.walk(where))
