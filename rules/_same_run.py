"""Whether the run that reads a file has written it itself, a few lines before."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted, target_names
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._arguments import handed_in
from devlint.rules._files import made
from devlint.rules._main_process import runs_in_main_process
from devlint.rules._recurs import function_of
from devlint.rules._training import is_inside

_EARLY = re.compile(r"early_?stop", re.IGNORECASE)
#: What an object that keeps checkpoints calls their paths: ``best_model_path``, ``best_k_models``, ``last_checkpoint``.
_KEPT = re.compile(r"^(best|last|kth)_")


def is_of_same_run(rule: Rule, call: cst.Call) -> bool:
    """Whether the file that a call reads was saved, or trained, before it by the same process."""
    function = rule.flow.function(call)
    return (
        _is_saved_in_function(rule, call)
        or _is_written_above(rule, call, rule.code(made(rule, call.args[0].value)))
        or _goes_backward_above(rule, call, function)
        or _trains_above(rule, call, function)
        or (
            function is not None
            and (
                _is_written_by_callers(rule, call, function)
                or _is_kept_by_fitted(rule, call, function)
                or _stops_early(function)
            )
        )
    )


def _is_saved_in_function(rule: Rule, call: cst.Call) -> bool:
    """``torch.save(x, f); torch.load(f)``, also where a function inside it does one of them; but not where the first
    process saves for all: ``if rank == 0: torch.save(x, f)   dist.barrier()   torch.load(f)``."""
    file, outermost = rule.code(made(rule, call.args[0].value)), _outermost(rule, call)
    return any(
        _outermost(rule, save) is outermost
        and file in (rule.code(save.args[1].value), rule.code(made(rule, save.args[1].value)))
        and (runs_in_main_process(rule, call) or not runs_in_main_process(rule, save))
        for save in _saves(rule)
    )


def _is_written_by_callers(rule: Rule, call: cst.Call, function: Function) -> bool:
    """``convert(net, args.out); publish(args.out)``: whoever calls the function has had its file written."""
    param = rule.code(call.args[0].value)
    callers = [call for call in rule.source.nodes_of(cst.Call) if function_of(rule.flow, call) is function]
    files = [handed_in(caller, function, param) for caller in callers]
    return bool(callers) and all(
        file is not None and _is_written_above(rule, caller, rule.code(file))
        for caller, file in zip(callers, files, strict=True)
    )


def _is_written_above(rule: Rule, call: cst.Call, file: str) -> bool:
    """Whether a function of the file that is called above writes the file that it is handed."""
    return any(
        file in (rule.code(written) for written in _written_by(rule, other))
        for other in rule.source.nodes_of(cst.Call)
        if _runs_before(rule, other, call)
    )


def _written_by(rule: Rule, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """The arguments of a call that the called function saves to."""
    function = function_of(rule.flow, call)
    if function is None:
        return
    for save in _saves(rule):
        file = handed_in(call, function, rule.code(save.args[1].value))
        if file is not None and rule.flow.function(save) is function:
            yield file


def _goes_backward_above(rule: Rule, call: cst.Call, function: Function | None) -> bool:
    """``loss.backward()`` above in the same function: the best of this very run is loaded at its end."""
    at = rule.source.offsets(call)[0]
    return any(
        node.attr.value == "backward" and rule.source.offsets(node)[0] < at and rule.flow.function(node) is function
        for node in rule.source.nodes_of(cst.Attribute)
    )


def _trains_above(rule: Rule, call: cst.Call, function: Function | None) -> bool:
    """``best = train(net, loader); evaluate(net, best)``: training is called above, here or by all that call this."""
    calls = [(each, function_of(rule.flow, each)) for each in rule.source.nodes_of(cst.Call)]
    trains = {rule.flow.function(node) for node in rule.source.nodes_of(cst.Attribute) if node.attr.value == "backward"}
    trainings = [each for each, called in calls if called is not None and called in trains]
    if any(_runs_before(rule, each, call) for each in trainings):
        return True
    callers = [
        each for each, called in calls if called is function is not None and rule.flow.function(each) not in trains
    ]
    return bool(callers) and all(any(_runs_before(rule, each, caller) for each in trainings) for caller in callers)


def _is_kept_by_fitted(rule: Rule, call: cst.Call, function: Function) -> bool:
    """``trainer = Trainer(callbacks=[keeper]); trainer.fit(net); torch.load(keeper.best_model_path)``."""
    file = made(rule, call.args[0].value)
    for loop in rule.source.nodes_of(cst.For):  # for path in keeper.best_k_models: torch.load(path)
        if isinstance(loop.target, cst.Name) and rule.code(loop.target) == rule.code(file):
            file = loop.iter if is_inside(rule.flow, call, loop) else file
    holders = [_handed_on(rule, {keeper}, function) for keeper in _keepers(rule, file)]
    fits = [fit for fit in rule.source.nodes_of(cst.Call) if any(_fits(fit, names) for names in holders)]
    return any(_runs_before(rule, fit, call) for fit in fits)


def _keepers(rule: Rule, file: cst.BaseExpression) -> Iterator[str]:
    """The objects built by the function, or at the top of the file, that name the checkpoint they kept."""
    for node in tree.walk(file):
        if isinstance(node, cst.Attribute) and _KEPT.search(node.attr.value):
            keeper: cst.BaseExpression = node
            while isinstance(keeper, cst.Attribute):
                keeper = keeper.value
            built = made(rule, keeper)
            # args = parser.parse_args(); trainer = Trainer(args)  says nothing of  args.last_checkpoint
            if isinstance(built, cst.Call) and dotted(built.func).rpartition(".")[2][:1].isupper():
                yield rule.code(keeper)


def _fits(call: cst.Call, holders: set[str]) -> bool:
    owner, _, method = dotted(call.func).rpartition(".")
    return method in ("fit", "train") and owner in holders


def _handed_on(rule: Rule, names: set[str], function: Function) -> set[str]:
    """The names, and those of what is made of them: ``extras.append(keeper); trainer = Trainer(callbacks=extras)``."""
    found = set(names)
    given: list[tuple[cst.CSTNode, cst.BaseExpression]] = [
        (assign.value, to.target) for assign in rule.source.nodes_of(cst.Assign) for to in assign.targets
    ]
    for call in rule.source.nodes_of(cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("append", "extend") and call.args:
            given.append((call.args[0].value, call.func.value))
    for value, target in sorted(given, key=lambda pair: rule.source.offsets(pair[1])):
        if rule.flow.function(target) is function and any(
            isinstance(part, cst.Name) and part.value in found for part in tree.walk(value)
        ):
            target_names(target, found)
    return found


def _stops_early(function: Function) -> bool:
    """``class EarlyStopping``: what it loads it has saved in this very run."""
    return function.cls is not None and _EARLY.search(function.cls.name) is not None


def _saves(rule: Rule) -> Iterator[cst.Call]:
    for call in rule.source.nodes_of(cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "save" and len(call.args) > 1:
            yield call


def _runs_before(rule: Rule, first: cst.Call, second: cst.Call) -> bool:
    """Whether nothing gets to the second call of a function but by the first: it stands in no branch of its own.

    A loop counts as run: ``for epoch in range(n): train(net)``.
    """
    if rule.flow.function(first) is not rule.flow.function(second):
        return False
    if rule.source.offsets(first)[0] >= rule.source.offsets(second)[0]:
        return False
    block = rule.enclosing(first, cst.IndentedBlock, cst.Module)
    while block is not None and isinstance(rule.parent(block), cst.With | cst.For | cst.While):
        block = rule.enclosing(block, cst.IndentedBlock, cst.Module)
    return block is not None and is_inside(rule.flow, second, block)


def _outermost(rule: Rule, node: cst.CSTNode) -> Function | None:
    """The function at the top level, or the method, that a node stands in."""
    function = rule.flow.function(node)
    while function is not None and function.outer is not None:
        function = function.outer
    return function
