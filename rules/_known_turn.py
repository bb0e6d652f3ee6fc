"""Whether a turn of a loop does nothing but what is known: torch's own, and code of the project that was followed.

Of anything else nobody here can say whether it waits by itself, and then a read beside it costs next to nothing.
"""

from __future__ import annotations

import builtins
import re
import sys

import libcst as cst

from devlint import tree
from devlint.flow import Flow
from devlint.flow import torch_table as table
from devlint.flow.loops import Loop, runs_sometimes
from devlint.flow.names import called_name, dotted, names_bound
from devlint.flow.scope import Class, Function
from devlint.flow.value import (
    CLASS,
    DATA,
    DICT,
    FUNCTION,
    INSTANCE,
    LIST,
    LOADER,
    MODULE,
    OPTIMIZER,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN_KIND,
)
from devlint.rules._arguments import handed_in
from devlint.rules._recurs import calls_of, function_of

#: What holds tensors or host data, and whose methods are torch's or Python's.
_PLAIN = frozenset({TENSOR, THING, LIST, TUPLE, DICT, DATA, LOADER, OPTIMIZER})
#: Packages that do nothing to the device, or what torch does.
_PACKAGES = sys.stdlib_module_names | {"torch", "torchvision", "numpy", "tqdm", "transformers", "einops", "timm"}
#: Methods that each module has, and that run no `forward`.
_OF_MODULES = frozenset(
    "train eval parameters named_parameters modules children state_dict zero_grad requires_grad_ to cuda no_sync "
    "buffers".split()
)
#: Those of them by which one knows a module.
_OF_MODULES_ONLY = frozenset({"eval", "named_parameters", "parameters", "requires_grad_", "state_dict", "train"})
#: Methods of optimizers, schedules, progress bars, logs and containers, whatever they are called on.
_HARMLESS = frozenset(
    "step zero_grad backward update append extend items keys values get pop info debug warning error get_last_lr "
    "get_lr set_description set_postfix autocast no_sync accumulate to cuda add_scalar add_scalars".split()
)
_LOSS = re.compile(r"^(self\.)?_?(\w*criterion|loss(_?(fn|func|function))?|\w+_loss_fn|\w+_criterion)$", re.I)


def knows_all_calls(flow: Flow, loop: Loop) -> bool:
    """Whether each turn calls nothing of which nobody here knows what it does."""
    return not _hooks_in(flow, loop) and all(
        runs_sometimes(flow, node, loop) or _is_known(flow, node)
        for node in tree.walk(loop.node.body)
        if isinstance(node, cst.Call)
    )


def _hooks_in(flow: Flow, loop: Loop) -> bool:
    """`handles = [part.register_forward_hook(watch) for part in net]`: each call of the model runs that as well."""
    function = flow.function(loop.node)
    around = function.node if function is not None else flow.source.module
    return any(
        isinstance(node, cst.Call) and called_name(node) in ("register_forward_hook", "register_forward_pre_hook")
        for node in tree.walk(around)
    )


def queues_work(flow: Flow, loop: Loop, until: int) -> bool:
    """Whether each turn runs a model before an offset: next to nothing is queued behind a copy of the batch alone."""
    for node in tree.walk(loop.node.body):
        if not isinstance(node, cst.Call) or flow.source.offsets(node)[0] >= until:
            continue
        if (node in loop.works and called_name(node) != "step") or _runs_model(flow, node):
            return True
    return False


def _runs_model(flow: Flow, call: cst.Call) -> bool:
    """`prior(x)` where `prior.train()` stands somewhere, `self.policy.get_log_prob(x)`, and `self.loop_over(batch)`,
    which calls a model."""
    if _is_used_as_module(flow, call.func):
        return True
    if isinstance(call.func, cst.Attribute) and flow.value(call.func.value).kind == MODULE:
        return call.func.attr.value not in _OF_MODULES
    called = function_of(flow, call)
    return called is not None and any(
        isinstance(node, cst.Call) and flow.value(node.func).kind == MODULE for node in tree.walk(called.node.body)
    )


def _is_used_as_module(flow: Flow, func: cst.BaseExpression) -> bool:
    """Whether the file calls what only modules have on what a name or a path names."""
    path = dotted(func)
    return bool(path) and any(
        n.attr.value in _OF_MODULES_ONLY and dotted(n.value) == path for n in flow.source.nodes_of(cst.Attribute)
    )


def _is_known(flow: Flow, call: cst.Call, within: frozenset[Function] = frozenset()) -> bool:
    func, value = call.func, flow.value(call.func)
    if value.kind == MODULE or _is_used_as_module(flow, func):
        return is_known_model(flow, func, within)
    if value.kind in (FUNCTION, CLASS) or function_of(flow, call) is not None:
        return True
    qualified = flow.name_of(call)
    if qualified:
        if qualified.startswith("torch.autograd."):
            return False  # forces = -grad(energy.sum(), places)   in the midst of a `forward`
        return qualified.partition(".")[0] in _PACKAGES or flow.built_or_called(qualified) is not None
    if _LOSS.match(dotted(func)):
        return True  # def train(model, loader, criterion):
    if isinstance(func, cst.Name):
        return hasattr(builtins, func.value)
    if not isinstance(func, cst.Attribute):
        return False
    method, owner = func.attr.value, flow.value(func.value)
    if method == "step" and len(call.args) > 1:
        return False  # latents = scheduler.step(noise, t, latents)   may look at its table of times
    if owner.kind in _PLAIN or method in _HARMLESS:
        return True
    if owner.kind in (MODULE, INSTANCE):
        named = owner.ref.find_method(method) if isinstance(owner.ref, Class) else None
        return isinstance(named, Function) or method in _OF_MODULES
    return method in table.METHODS


def is_known_model(flow: Flow, func: cst.BaseExpression, within: frozenset[Function] = frozenset()) -> bool:
    """Whether a model is torch's or has a `forward` that calls nothing unknown; or is handed in, and is one of these in
    all calls of the file."""
    ref = flow.value(func).ref
    if isinstance(ref, Class):
        return _is_read_through(flow, ref, within)
    if ref is not None:
        return not _is_made_by_others(flow, func)
    function = flow.function(func)
    handed = function.handed_modules.get(dotted(func), set()) if function is not None else set()
    return (
        bool(handed)
        and all(_is_read_through(flow, each, within) for each in handed)
        and not _is_made_by_others(flow, func)
        and not _is_handed_by_others(flow, func, set())
    )


def _is_read_through(flow: Flow, cls: Class, within: frozenset[Function]) -> bool:
    """Whether all is known that the `forward` of a model calls, its parts too."""
    forward = cls.find_method("forward")
    if forward is None:
        return False  # from a base that nobody here has seen
    home = forward.home or flow
    return forward in within or all(
        _is_known(home, node, within | {forward}) for node in tree.walk(forward.node.body) if isinstance(node, cst.Call)
    )


def _is_handed_by_others(flow: Flow, model: cst.BaseExpression, seen: set[Function]) -> bool:
    """Whether a call of the file hands a model in that nobody here has seen: `fit(Parser(config), loader)`."""
    function, name = flow.function(model), dotted(model)
    if function is None or function in seen or name not in function.param_names:
        return False
    seen.add(function)
    calls = calls_of(flow, function)
    if function.outer is not None:  # def fit(model, loader): def step(model, batch): ...; step(model, batch)
        calls += [call for call in flow.source.nodes_of(cst.Call) if dotted(call.func) == function.name]
    handed = [given for call in calls if (given := handed_in(call, function, name)) is not None]
    return any(
        flow.value(given).ref is None
        and (
            _is_built(flow, given, by_file=False)
            or _is_made_by_others(flow, given, by_file=False)
            or _is_handed_by_others(flow, given, seen)
        )
        for given in handed
    )


def _is_made_by_others(flow: Flow, func: cst.BaseExpression, *, by_file: bool = True) -> bool:
    """`config, net = build(args)`, that the flow cannot follow; ``by_file``: though `build` is in the file."""
    path, function = dotted(func), flow.function(func)
    for assign in flow.source.nodes_of(cst.Assign):
        if flow.function(assign) is not function and "." not in path:
            continue
        targets = [target.target for target in assign.targets]
        names = names_bound(*targets).union(map(dotted, targets))
        # net = accelerator.prepare(net)   wraps what it is handed, and   net = Parser(net, config)   is another model
        wraps = (
            isinstance(assign.value, cst.Call)
            and not called_name(assign.value)[:1].isupper()
            and any(dotted(arg.value) == path for arg in assign.value.args)
        )
        if path in names and not wraps and _is_built(flow, assign.value, by_file=by_file):
            return True
    return False


def _is_built(flow: Flow, made: cst.BaseExpression, *, by_file: bool) -> bool:
    # net = build(args).to(device)
    while isinstance(made, cst.Call) and isinstance(made.func, cst.Attribute) and made.func.attr.value in _MOVES:
        made = made.func.value
    if not isinstance(made, cst.Call) or (not by_file and function_of(flow, made) is not None):
        return False
    ref = flow.value(made).ref
    if ref is not None:
        return isinstance(ref, Class) and ref.find_method("forward") is None
    qualified = flow.scope.qualified(made.func)
    if called_name(made) == "from_pretrained" or qualified.startswith("torch"):
        return False
    return flow.value(made).kind in (UNKNOWN_KIND, MODULE, TUPLE, THING)


_MOVES = _OF_MODULES | {"half", "float", "bfloat16"}
