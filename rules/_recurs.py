"""Whether code runs again and again while a model trains or answers, or once."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow import Flow
from devlint.flow.loops import Loop, loops_around, runs_by_epoch, runs_sometimes, working_loop
from devlint.flow.names import dotted, target_names
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, MAIN, Class, Function, decorators
from devlint.flow.steps import function_called, runs_each_time
from devlint.flow.value import MODULE
from devlint.flow.waiting import needs_wait_at
from devlint.rules._training import runs_few_times

#: What is called for each batch, or for each step of an optimizer, a search or a sampler.
_STEPS = frozenset({"forward", "training_step", "validation_step", "test_step", "predict_step", "step"})


def recurs(flow: Flow, node: cst.CSTNode) -> bool:
    """Whether a node is evaluated for batch after batch, or step after step.

    It stands in a loop that drives a model, in ``forward`` or what that calls, or in what a loop of the file calls.
    """
    if in_stepping_loop(flow, node):
        return True
    function = flow.function(node)
    if function is None or function.role in (CONSTRUCTOR, HOST_SIDE, MAIN):
        return False
    return function in _reached_from_steps(flow) or _called_in_loop(flow, function)


def in_stepping_loop(flow: Flow, node: cst.CSTNode) -> bool:
    """Whether each iteration of a loop that drives a model evaluates a node."""
    loop = working_loop(flow, node)
    if loop is None or runs_by_epoch(flow, loop) or runs_few_times(loop.node):
        return False
    return not _goes_through_models(loop) and not runs_sometimes(flow, node, loop)


def trains(loop: Loop) -> bool:
    """Whether each iteration goes backward or steps an optimizer."""
    return any(
        isinstance(work, cst.Call)
        and isinstance(work.func, cst.Attribute)
        and work.func.attr.value in ("backward", "step")
        for work in loop.works
    )


def in_training_loop(flow: Flow, node: cst.CSTNode) -> bool:
    """Whether each iteration of a loop that trains evaluates a node: not `next(iter(loader))`, nor a pass made once."""
    loop = working_loop(flow, node)
    return loop is not None and trains(loop) and not runs_sometimes(flow, node, loop)


def reads_each_time(flow: Flow, loop: Loop) -> bool:
    """Whether each iteration, or a function of the file that it calls, reads a value of the device on the host."""
    for node in tree.walk(loop.node.body):
        if not isinstance(node, cst.BaseExpression) or not (isinstance(node, cst.Call) or reads(flow, node)):
            continue
        if runs_sometimes(flow, node, loop):
            continue
        if reads(flow, node):
            return True
        called = function_of(flow, node) if isinstance(node, cst.Call) else None
        if (
            called is not None
            and called.home is flow
            and any(
                isinstance(n, cst.BaseExpression) and reads(flow, n) and runs_each_time(flow, called, n)
                for n in tree.walk(called.node.body)
            )
        ):
            return True
    return False


def reads(flow: Flow, node: cst.BaseExpression) -> bool:
    """Whether the host waits for a value of the device at this node, by the facts or by the look of it."""
    if node in flow.facts.waits or needs_wait_at(flow, node):
        return True  # f"{loss:.2f}" and x[mask], too
    if isinstance(node, cst.BinaryOperation):
        # "%.2f" % loss
        return isinstance(node.operator, cst.Modulo) and _is_text(node.left) and _shows(flow, node.right)
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    func = node.func
    return func.attr.value == "format" and _is_text(func.value) and any(_shows(flow, arg.value) for arg in node.args)


def _is_text(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString | cst.ConcatenatedString)


def _shows(flow: Flow, node: cst.BaseExpression) -> bool:
    """Whether text is made of a tensor that is not on the host, or of several values with one among them."""
    if isinstance(node, cst.Tuple):
        return any(_shows(flow, element.value) for element in node.elements)
    value = flow.value(node)
    return value.is_tensor and not value.place.is_host


def function_of(flow: Flow, call: cst.Call) -> Function | None:
    """The function or method of the file that a call calls by name."""
    return function_called(flow, flow.function(call), call)


def calls_of(flow: Flow, function: Function) -> list[cst.Call]:
    """The calls of the file that run a function or method, also by calling the module whose `forward` it is."""
    cls = function.cls if function.name == "forward" else None
    return [
        call
        for call in flow.source.nodes_of(cst.Call)
        if function_of(flow, call) is function or (cls is not None and cls in _modules_called(flow, call))
    ]


def _modules_called(flow: Flow, call: cst.Call) -> set[Class]:
    """The classes of the file whose `forward` a call such as `self.scheme(x)` may run, as built or as declared."""
    called = flow.value(call.func)
    built = {called.ref} if called.kind == MODULE and isinstance(called.ref, Class) else set()
    caller, path = flow.function(call), dotted(call.func)
    if caller is None or caller.cls is None or not path.startswith("self."):
        return built
    # def __init__(self, scheme: Scheme | None = None): self.scheme = scheme or Plain()
    declared: set[str] = set()
    for method in (m for owner in caller.cls.lineage for m in owner.methods.values() if m.role == CONSTRUCTOR):
        given = {
            value.value
            for n in tree.walk(method.node.body)
            if isinstance(n, cst.Assign) and any(dotted(target.target) == path for target in n.targets)
            for value in tree.walk(n.value)
            if isinstance(value, cst.Name)
        }
        for param in method.params:
            if param.name.value in given and param.annotation is not None:
                declared |= {n.value for n in tree.walk(param.annotation) if isinstance(n, cst.Name)}
    roots = [cls for cls in flow.scope.classes.values() if cls.name in declared]
    return built | {cls for root in roots for cls in (root, *root.descendants)}


def _goes_through_models(loop: Loop) -> bool:
    """``for tokenizer, encoder in zip(tokenizers, encoders): encoder(tokenizer(text))``: once for each model."""
    if not isinstance(loop.node, cst.For) or loop.loader:
        return False
    names: set[str] = set()
    target_names(loop.node.target, names)
    called = {dotted(work.func).partition(".")[0] for work in loop.works if isinstance(work, cst.Call)}
    return bool(names & called)


def _reached_from_steps(flow: Flow) -> set[Function]:
    """The functions of the file that steps call, whether always or not, and these themselves."""
    functions = flow.scope.functions.values()
    todo = [f for f in functions if f.name in _STEPS and f.cls is not None and f.role not in (CONSTRUCTOR, HOST_SIDE)]
    seen = set(todo)
    while todo:
        function = todo.pop()
        called = [flow.scope.function_names.get(name) for name in function.calls]
        if function.cls is not None:
            called += [function.cls.find_method(name) for name in function.self_calls]
        for other in called:
            # @lru_cache
            if other is not None and other not in seen and not other.is_replaced and other.role != CONSTRUCTOR:
                seen.add(other)
                todo.append(other)
    return seen


def _called_in_loop(flow: Flow, function: Function) -> bool:
    """Whether a loop of the file calls a function that is no program of its own."""
    if any(isinstance(n, cst.For | cst.While) for n in tree.walk(function.node.body)):
        return False  # for seed in range(5): run(seed)
    for call in flow.source.nodes_of(cst.Call):
        if dotted(call.func).rpartition(".")[2] != function.name or function_of(flow, call) is not function:
            continue
        if in_stepping_loop(flow, call):
            return True
        if any(_counts(loop.node) for loop in loops_around(flow, call)):
            return True
    return False


def _counts(node: cst.For | cst.While) -> bool:
    """``for _ in range(n):``, and not ``for layer in self.layers: fuse(layer)``, which goes through a model once."""
    if not isinstance(node, cst.For) or runs_few_times(node):
        return False
    return isinstance(node.iter, cst.Call) and dotted(node.iter.func) == "range" and "epoch" not in _target(node)


def _target(node: cst.For) -> str:
    names: set[str] = set()
    target_names(node.target, names)
    return " ".join(names).lower()


def is_deprecated(flow: Flow, node: cst.CSTNode) -> bool:
    """Whether code is kept for old callers only: ``@deprecated(...)``, a folder of that name."""
    if "deprecated" in flow.source.path.replace("\\", "/").split("/"):
        return True
    function = flow.function(node)
    if function is None:
        return False
    names = [*function.decorators, *(decorators(function.cls.node) if function.cls is not None else ())]
    return any("deprecated" in name.lower() for name in names)
