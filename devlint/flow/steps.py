"""Steps: what runs in each call of a module's ``forward`` or ``training_step``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import libcst as cst

from devlint import tree
from devlint.flow.loops import leaves, steady
from devlint.flow.names import dotted
from devlint.flow.scope import CONSTRUCTOR, DEVICE_SIDE, Function

if TYPE_CHECKING:
    from devlint.flow import Flow

#: Methods of a module that run once a step.
STEPS = ("forward", "training_step")


def functions(flow: Flow, *, plainly: bool = False) -> frozenset[Function]:
    """The functions of the file that run in each call of ``forward`` or ``training_step`` of its modules, and the
    hooks of tensors, which run in each backward pass.

    ``plainly``: only those that are called under no test.
    """
    starts = [f for f in flow.scope.functions.values() if is_module_step(f) or f.name in flow.scope.hooks]
    return _called_from(
        flow,
        starts,
        lambda function, node: (
            runs_each_time(flow, function, node) and not (plainly and is_under_test(flow, function, node))
        ),
    )


def reached(flow: Flow) -> frozenset[Function]:
    """The functions of the file that ``forward`` or ``training_step`` of its modules may run, be it under a test."""
    starts = [f for f in flow.scope.functions.values() if is_module_step(f)]
    return _called_from(flow, starts, lambda function, node: True)


def is_module_step(function: Function) -> bool:
    """Whether a function is ``forward`` or ``training_step`` of a module."""
    cls = function.cls
    return function.name in STEPS and cls is not None and cls.is_module and not function.is_static


def _called_from(
    flow: Flow, starts: list[Function], counts: Callable[[Function, cst.CSTNode], bool]
) -> frozenset[Function]:
    """These functions and what they call, directly or in turn; ``counts`` judges a call in a function."""
    todo, seen = [*starts], {*starts}
    while todo:
        function = todo.pop()
        for node in tree.walk(function.node.body):
            called = function_called(flow, function, node) if type(node) is cst.Call else None
            if called is None or called in seen or not _runs_when_called(called):
                continue
            if counts(function, node):
                seen.add(called)
                todo.append(called)
    return frozenset(f for f in seen if f.role == DEVICE_SIDE)


def _runs_when_called(function: Function) -> bool:
    """Whether nothing stands between a call and the body, such as `@lru_cache` or a decorator of the project."""
    return all(name.rpartition(".")[2] in _PLAIN_DECORATORS for name in function.decorators)


_PLAIN_DECORATORS = frozenset(
    "staticmethod classmethod no_grad inference_mode enable_grad set_grad_enabled autocast unused ignore export "
    "script_method override".split()
)


def function_called(flow: Flow, caller: Function | None, call: cst.Call) -> Function | None:
    """The function or method of the file that a call calls by name."""
    name = dotted(call.func)
    if name.startswith("self."):
        return caller.cls.find_method(name[5:]) if caller is not None and caller.cls is not None else None
    return flow.scope.function_names.get(name)


def runs_each_time(flow: Flow, function: Function, node: cst.CSTNode) -> bool:
    """Whether (nearly) each call of a function evaluates a node of it: no test that may come out otherwise is in the
    way, no handler, and no cache that is filled already."""
    parents, fixed = flow.source.parents, _Fixed(function)
    child, current = node, parents[node]
    while child is not function.node:
        if isinstance(
            current, cst.ExceptHandler | cst.ExceptStarHandler | cst.MatchCase | cst.Assert | cst.Lambda | cst.Raise
        ):
            return False
        if type(current) is cst.FunctionDef and current is not function.node:
            return False
        if type(current) is cst.If or type(current) is cst.IfExp:
            if child is not current.test and (_asks_compiler(current.test) or not steady(current.test, fixed)):
                return False
        elif type(current) is cst.BooleanOperation:
            if child is current.right and not steady(current.left, fixed):
                return False
        elif type(current) is cst.IndentedBlock and _may_have_left(current, child, fixed):
            return False
        child, current = current, parents[current]
    return True


def is_under_test(flow: Flow, function: Function, node: cst.CSTNode) -> bool:
    """Whether a test of a function decides on a node: any but those on types, devices and what was never set."""
    parents = flow.source.parents
    child, current = node, parents[node]
    while child is not function.node:
        if isinstance(current, cst.ExceptHandler | cst.ExceptStarHandler | cst.MatchCase):
            return True
        if type(current) is cst.If or type(current) is cst.IfExp:
            if child is not current.test and not _asks_kind(current.test):
                return True
        elif type(current) is cst.BooleanOperation and child is current.right:
            return True
        child, current = current, parents[current]
    return False


def _asks_kind(test: cst.BaseExpression) -> bool:
    """``x.dtype == torch.half``, ``x.is_cuda``, ``self.weight is not None``: what is the same for all of a run."""
    if type(test) is cst.UnaryOperation:
        return _asks_kind(test.expression)
    if type(test) is cst.Comparison and isinstance(test.comparisons[0].operator, cst.Is | cst.IsNot):
        return type(test.left) is cst.Attribute
    return any(type(n) is cst.Attribute and n.attr.value in _KINDS for n in tree.walk(test))


_KINDS = frozenset({"dtype", "device", "is_cuda", "is_floating_point", "is_complex"})


def _asks_compiler(test: cst.BaseExpression) -> bool:
    """``if not torch.compiler.is_compiling():``"""
    return any(type(n) is cst.Name and n.value in _COMPILING for n in tree.walk(test))


_COMPILING = frozenset({"is_compiling", "is_dynamo_compiling", "is_scripting", "is_tracing", "is_exporting"})


class _Fixed:
    """Names of a function that keep their values from call to call: its settings, not what it or a method binds."""

    def __init__(self, function: Function) -> None:
        self._bound = set(function.assigned)
        for cls in function.cls.lineage if function.cls is not None else ():
            for method in cls.methods.values():
                if method.role != CONSTRUCTOR:
                    self._bound |= {f"self.{name}" for name in method.stores}

    def binds(self, path: str) -> bool:
        """Whether the path, or a name that it starts with, may be bound anew."""
        parts = path.split(".")
        return any(".".join(parts[: n + 1]) in self._bound for n in range(len(parts)))


def _may_have_left(block: cst.IndentedBlock, here: cst.CSTNode, fixed: _Fixed) -> bool:
    """Whether `if self.cached is not None: return self.cached` stands above."""
    for statement in block.body:
        if statement is here:
            return False
        if type(statement) is cst.If and statement.body.body and leaves(statement.body.body[-1]):
            paths = [dotted(n) for n in tree.walk(statement.test) if type(n) is cst.Attribute]
            if any(p.startswith("self.") and (fixed.binds(p) or "cache" in p) for p in paths):
                return True
    return False


def above(flow: Flow, node: cst.CSTNode, end: cst.CSTNode | None = None) -> Iterator[cst.CSTNode]:
    """The nodes around a node, within its function, up to ``end``."""
    current = flow.source.parents.get(node)
    while current is not None and current is not end and not isinstance(current, cst.FunctionDef | cst.ClassDef):
        yield current
        current = flow.source.parents.get(current)
