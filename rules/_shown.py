"""What shows that a value is on a device, where the code alone only allows that it is.

A parameter may be on the host for all that a function says. Who finds fault with that needs more: the code names the
device, or is run by ``forward``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.facts import Meeting
from devlint.flow.hypothesis import names_device, numbers_device
from devlint.flow.names import dotted, last_word, names_bound
from devlint.flow.place import UNKNOWN_PLACE, Place, from_string
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.flow.steps import is_module_step
from devlint.flow.value import MODULE, TENSOR, THING, UNKNOWN_KIND, Value
from devlint.rule import Rule
from devlint.rules._arguments import given_to
from devlint.rules._before_the_move import runs_before_the_move
from devlint.rules._default_device import is_under_default
from devlint.rules._exports import is_of_other_runtime
from devlint.rules._host_side import may_be_host_side
from devlint.rules._kept_on_host import (
    brings_self_to_host,
    is_fed_from_host,
    is_given_back_on_host,
    is_on_host_there,
    leaves_on_host,
    places_its_parts,
    reads_arrays_before,
    reads_inputs_on_host,
)
from devlint.rules._meetings import calls_of, calls_that_run, is_off
from devlint.rules._moves import moves_of_name
from devlint.rules._on_the_side import is_on_the_side
from devlint.testcode import near

#: Files whose modules may run where data is read, before anything is moved.
OF_DATA = re.compile(
    r"(^|[/_])(data|datasets?|dataloaders?|preprocess\w*|transforms?|augment\w*|tokeniz\w+|features?)([/_.]|$)"
)
#: Names of what holds the settings of a program, the device among them.
_SETTINGS = re.compile(
    r"^(args?|opts?|options?|cfg|conf|config|hparams|hps?|params|settings|flags|FLAGS|accelerator|fabric|trainer)$"
)


def is_shown(rule: Rule, meeting: Meeting) -> bool:
    """Whether the other side of a meeting is on a device by more than a parameter that may be anywhere."""
    if is_off(rule, meeting.node) or _is_read_as_array(rule, meeting.node) or _counts_something(meeting):
        return False
    if _may_be_read(rule, meeting) or _may_be_hooked(rule, meeting.there) or may_be_host_side(rule, meeting.node):
        return False
    function = rule.flow.function(meeting.node)
    if function is not None and _is_handed_moved(rule, function):
        return False
    if is_chosen(rule, meeting.there) or meeting.what.endswith("NCCL"):
        return not _is_brought_to_host(rule, function, meeting.there) and not is_under_default(rule, function)
    if function is None or is_under_default(rule, function) or is_on_host_there(rule, meeting.node):
        return False
    if _is_handed_there(rule, function, meeting.there.origin):
        return True
    if _comes_from_module(rule, meeting):
        return not (
            is_given_back_on_host(rule, function, meeting.there)
            or brings_self_to_host(rule, function)
            or places_its_parts(rule, function)
            or _is_called_by_nobody(rule, function)
            or runs_before_the_move(rule, function)
            or is_moved_next(rule, meeting.node)
            or reads_arrays_before(rule, function, meeting.node)
        )
    return _runs_in_forward(rule, function, meeting)


def _is_read_as_array(rule: Rule, node: cst.CSTNode) -> bool:
    """``self.net(torch.tensor(rows)).argmax(-1).numpy()``, ``y = self.net(torch.randn(n, 3)); return y.numpy()``: what
    comes of it is on the host, or raises in any case."""
    part, above = node, rule.parent(node)
    while isinstance(above, cst.Attribute):
        call, how = rule.parent(above), above.attr.value
        if not isinstance(call, cst.Call) or how in table.MOVES:
            return False
        if how == "numpy":
            return not call.args
        part, above = call, rule.parent(call)
    function = rule.flow.function(node)
    if not isinstance(above, cst.Assign) or above.value is not part or len(above.targets) > 1 or function is None:
        return False
    target, end = above.targets[0].target, rule.source.offsets(above)[1]
    if not isinstance(target, cst.Name) or _binds_again(function, target.value):
        return False
    return target.value not in function.param_names and any(
        isinstance(rule.parent(use), cst.Attribute)
        and rule.source.offsets(use)[0] >= end
        and _is_read_as_array(rule, use)
        for use in tree.named(function.node.body, target.value)
    )


def _binds_again(function: Function, name: str) -> bool:
    """``y = net(x); y = y.cpu(); y.numpy()``"""
    bound = (each for each in tree.walk(function.node.body) if isinstance(each, cst.AssignTarget | cst.AugAssign))
    return sum(name in names_bound(each.target) for each in bound) > 1


#: Names of what is counted beside a result, mostly by Python's numbers or on the host.
_COUNTED = re.compile(r"(^|_)(usage|perplexity|counts?|num|n|acc|accuracy|ratio|rate|fraction|steps?)(_|$)")


def _counts_something(meeting: Meeting) -> bool:
    """``codes, loss, usage = quantizer(x); total_usage += usage``: of what a module gives beside its result."""
    node, there = meeting.node, meeting.there_node
    return isinstance(node, cst.AugAssign) and isinstance(there, cst.Name) and _COUNTED.search(there.value) is not None


def _is_handed_moved(rule: Rule, function: Function) -> bool:
    """``@on_host def smooth(x): ...``, where that is a decorator of the file that moves something: the arguments."""
    by = (rule.flow.scope.function_names.get(name) for name in function.decorators if name)
    return any(each is not None and any(inner.moves_something for inner in (each, *_inner(rule, each))) for each in by)


def _inner(rule: Rule, function: Function) -> list[Function]:
    return [each for each in rule.flow.scope.functions.values() if each.outer is function]


def _is_handed_there(rule: Rule, function: Function, param: cst.CSTNode | None) -> bool:
    """``loss = contrast(net(x.cuda()))``, where ``def contrast(z): ...``: a plain function that its file calls with
    what is on a device, and with nothing else."""
    if function.cls is not None or not isinstance(param, cst.Param) or param not in function.params:
        return False
    if param.name.value in function.handed_host or param.name.value in function.assigned:
        return False
    given = [each for call in calls_that_run(rule, function) for each in given_to(call, function, param)]
    values = [rule.flow.value(each) for each in given]
    return bool(values) and all(value.holds_tensors and is_chosen(rule, value) for value in values)


def _may_be_read(rule: Rule, meeting: Meeting) -> bool:
    """``counts = torch.tensor([4, 8]); model(rows, counts)`` of a model that nothing is known of, with the rows on a
    device: some read such an argument on the host."""
    made, call = meeting.host.origin, meeting.node
    if (
        meeting.there.kind != MODULE
        or meeting.there.ref is not None
        or not isinstance(call, cst.Call)
        or not isinstance(made, cst.Call)
    ):
        return False
    if not call.args or meeting.host_node is not call.args[0].value:
        return True  # net(x, torch.arange(3))
    entry = rule.flow.factory(made)
    values = [rule.flow.value(arg.value) for arg in call.args]
    is_told = rule.flow.name_of(made) in table.KEEPING or (entry is not None and entry.values == "python")
    return is_told and any(v.is_tensor and not v.place.is_host for v in values)


def _may_be_hooked(rule: Rule, module: Value) -> bool:
    """``self.register_forward_pre_hook(to_own_device)``, which may move what a module is called with."""
    of_torch = isinstance(module.ref, str) and module.ref.startswith("torch.")
    return module.kind == MODULE and not of_torch and "forward_pre_hook" in rule.source.text


def is_surely_there(rule: Rule, node: cst.CSTNode, value: Value) -> bool:
    """Whether a value is on a device by more than a parameter that may be anywhere."""
    function = rule.flow.function(node)
    if is_chosen(rule, value):
        return not _is_brought_to_host(rule, function, value) and not is_of_other_runtime(rule)
    if value.place.name != "self" or is_on_host_there(rule, node):
        return False
    return not is_fed_from_host(rule, function) and not reads_inputs_on_host(rule, function)


def _is_brought_to_host(rule: Rule, function: Function | None, value: Value) -> bool:
    """``def place(self, device): self.table = self.rows.to(device)``, of which somebody asks the host: ``place("cpu")``
    or, where that is its default, ``place()``; what reads `self.table` may be called after that."""
    place = value.place
    placer = _function_of(rule, place)
    head = place.name.partition(".")[0]
    if placer is None or placer is function or placer.cls is None or placer.role == CONSTRUCTOR:
        return False
    param = placer.param(head)
    if param is None or head in placer.assigned:
        return False
    for call in calls_that_run(rule, placer):
        given = given_to(call, placer, param)
        if any(leaves_on_host(rule, each) for each in given):
            return True
        if not given and param.default is not None and leaves_on_host(rule, param.default):
            return True
    return False


# the code says which device -----------------------------------------------------------------------


def is_chosen(rule: Rule, value: Value) -> bool:
    """Whether the code names the device that a value is on, and not by an argument that everybody leaves out."""
    place = value.place
    if place.kind == "fixed":
        return True
    if place.kind != "device":
        return False
    if not place.name:
        # model.to(torch_device): the code moves it, whatever that is
        move = rule.flow.move(value.origin) if value.origin is not None else None
        return move is not None and move.target.is_there
    head, dot, _ = place.name.partition(".")
    is_named = names_device(last_word(place.name)) or numbers_device(last_word(place.name))
    if head == "self":
        return bool(dot) and is_named and _is_told_to_constructor(rule, place)
    if dot:
        return is_named and _SETTINGS.match(head) is not None  # not layout.device, which is wherever the layout is
    function = _function_of(rule, place)
    if function is None:
        return is_named or head in rule.flow.module_names
    if head not in function.param_names:
        return True  # home = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not is_named:
        return _is_fed_there(rule, place)
    if head in function.assigned:
        return True
    may_be_asked = function.name == "__init__" or function.cls is None
    return _is_told(rule, function, head) and not (may_be_asked and _is_asked_of_host(rule, function))


def _function_of(rule: Rule, place: Place) -> Function | None:
    """The function whose variable or parameter names a place."""
    return next((each for each in rule.flow.scope.functions.values() if each.scope == place.scope), None)


def _is_fed_there(rule: Rule, place: Place) -> bool:
    """``def evaluate(model, loader, device): model(x.to(device))``: a model that is handed what has been moved."""
    return any(
        feeding.module.place == place and feeding.value.place != place and is_chosen(rule, feeding.value)
        for feeding in rule.flow.facts.feedings.values()
    )


def _is_told_to_constructor(rule: Rule, place: Place) -> bool:
    """``self.device``, unless that is a parameter of the constructor that nobody in the file gives, or somebody gives
    as the host."""
    cls = next((c for c in rule.flow.scope.classes.values() if c.scope == place.scope), None)
    name = place.name.removeprefix("self.")
    for statement, _ in rule.flow.stores(cls, name) if cls is not None else ():
        setter = rule.flow.function(statement)
        given = dotted(statement.value) if isinstance(statement, cst.Assign) else ""
        if setter is None or given not in setter.param_names - setter.assigned:
            continue
        if not _is_told(rule, setter, given):
            return False
        if _is_asked_of_host(rule, setter):
            return False
    return True


def _is_asked_of_host(rule: Rule, function: Function) -> bool:
    """Whether somebody in the project tells a function to put things on the host, or a constructor its objects:
    ``Rope("cpu", config)``, ``to_arrays(rows, cpu_device)``."""
    project = rule.flow.project
    name = function.cls.name if function.cls is not None else function.name
    return project is not None and project.is_built_on_host(name)


def _is_told(rule: Rule, function: Function, name: str) -> bool:
    """Whether callers have to say what a parameter is, do, or get an accelerator where they do not:
    ``def draw(n, device=None)`` that nobody tells a device works on the host."""
    todo, seen = [(function, name)], {(function, name)}
    while todo:
        function, name = todo.pop()
        param = next(each for each in function.params if each.name.value == name)
        if param.default is None or _is_accelerator(rule, param.default):
            return True
        for call in calls_that_run(rule, function):
            caller = rule.flow.function(call)
            for each in given_to(call, function, param):
                given = dotted(each)
                if caller is not None and given in caller.param_names - caller.assigned:
                    # def draw_all(device=None): return draw(3, device)
                    if (caller, given) not in seen:
                        seen.add((caller, given))
                        todo.append((caller, given))
                elif not leaves_on_host(rule, each):
                    return True
    return False


def _is_accelerator(rule: Rule, default: cst.BaseExpression) -> bool:
    if isinstance(default, cst.SimpleString):
        return from_string(str(default.evaluated_value)).is_there
    return rule.flow.value(default).place.is_there


# the model runs it --------------------------------------------------------------------------------


def _comes_from_module(rule: Rule, meeting: Meeting) -> bool:
    """Whether it is the module's own, or computed with that: ``x * self.scale``."""
    values = [meeting.there, *(rule.flow.value(part) for part in tree.walk(meeting.there_node))]
    return any(value.kind in (TENSOR, THING, MODULE) and value.place.name == "self" for value in values)


def _is_called_by_nobody(rule: Rule, function: Function) -> bool:
    """``def _rotate(self, x)``, of which the file has no other mention."""
    if not function.name.startswith("_") or function.name.endswith("__"):
        return False
    return not any(
        n.value == function.name and rule.parent(n) is not function.node for n in rule.source.nodes_of(cst.Name)
    )


def _runs_in_forward(rule: Rule, function: Function, meeting: Meeting) -> bool:
    """Whether ``forward`` or a training step runs a meeting with what it was handed."""
    if OF_DATA.search("/".join(near(rule.source.path))):
        return False
    if function not in rule.flow.reached_functions and not _is_offered(rule, function):
        return False
    if not _is_handed_tensor(rule, function, meeting.there.origin):
        return False
    if _moves_others(rule, function, meeting.there.origin) or is_moved_next(rule, meeting.node):
        return False
    if function in rule.flow.reached_functions and not is_module_step(function):
        param = meeting.there.origin
        return isinstance(param, cst.Param) and _is_handed_input(rule, function, param, set())
    return _is_input(rule, function, meeting.there_node, meeting.there.place)


def _is_offered(rule: Rule, function: Function) -> bool:
    """``def log_prob(self, x)`` of a module, which its own file never calls: who has the module calls it as he calls
    ``forward``."""
    cls = function.cls
    offered = cls is not None and cls.is_module and not function.name.startswith("_") and not function.is_static
    return offered and not calls_of(rule, function)


def _is_input(rule: Rule, step: Function, node: cst.BaseExpression, place: Place) -> bool:
    """Whether what a ``forward`` or a training step was handed at a place is the module's input."""
    cls = step.cls
    # def transfer_batch_to_device(self, batch, device, i): batch["image"] = batch["image"].to(device); return batch
    if cls is None or cls.find_method("transfer_batch_to_device") is not None:
        return False
    if step.is_step:
        return True
    return not _is_of_transforms(rule, cls) and not is_on_the_side(rule, step, cls, node, place)


def _is_handed_input(rule: Rule, function: Function, param: cst.Param, asked: set[cst.CSTNode]) -> bool:
    """``def forward(self, x): return self._mix(x)`` and ``def _mix(self, rows): ... rows + torch.arange(n)``: whether
    what a step calls is handed the step's input for a parameter, or something of the module's own."""
    asked.add(param)
    for call in calls_of(rule, function):
        caller = rule.flow.function(call)
        if caller is None or caller not in rule.flow.reached_functions:
            continue
        for given in given_to(call, function, param):
            value = rule.flow.value(given)
            if value.place.name == "self":
                return True
            if is_module_step(caller):
                found = value.place.kind == "device" and _is_input(rule, caller, given, value.place)
            else:
                own = value.origin if value.origin in caller.params and value.origin not in asked else None
                found = isinstance(own, cst.Param) and _is_handed_input(rule, caller, own, asked)
            if found:
                return True
    return False


def _is_of_transforms(rule: Rule, cls: Class) -> bool:
    """``transforms.Compose([ToTensor(), Noise(0.1)])`` of another file: where data is read, and on the host."""
    project = rule.flow.project
    return project is not None and project.some_file_says(f"composes {cls.name}") is True


def is_moved_next(rule: Rule, node: cst.CSTNode) -> bool:
    """``torch.cat([torch.zeros(1), rows]).to(x.device)``, ``mask = steps < sizes[:, None]; mask = mask.to(x.device)``:
    who moves what comes of it thinks of both on the host."""
    above = rule.parent(node)
    while isinstance(above, cst.Attribute | cst.BinaryOperation | cst.UnaryOperation) or (
        isinstance(above, cst.Call) and above.func is not node
    ):
        if isinstance(above, cst.Call) and rule.flow.move(above) is not None:
            return True
        above = rule.parent(above)
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    if not isinstance(target, cst.Name):
        return False
    function, end = rule.flow.function(node), rule.source.offsets(node)[1]
    return any(
        move.target.is_there and rule.source.offsets(move.node)[0] > end
        for move in moves_of_name(rule.flow, function, target.value)
    )


def _moves_others(rule: Rule, function: Function, param: cst.CSTNode | None) -> bool:
    """``def forward(self, images, rows): images.to(self.device) ... torch.arange(3)[rows == 0]``: what is handed in
    there may be on the host."""
    moved = [
        move.value.origin
        for move in rule.flow.facts.moves.values()
        if move.target.is_there and move.value.origin in function.params
    ]
    return bool(moved) and param in function.params and param not in moved


def _is_handed_tensor(
    rule: Rule, function: Function, param: cst.CSTNode | None, asked: set[cst.CSTNode] | None = None
) -> bool:
    """Whether a call hands what may be on a device to a parameter, and none what is on the host; true where no call is
    seen. ``asked``: parameters that were gone through already, each once."""
    # stats = self.stats(images); return self.gap(*stats)   and   def gap(self, spread): spread + torch.eye(3)
    if not isinstance(param, cst.Param) or param not in function.positional:
        return True
    if param.name.value in function.handed_host:
        return False
    asked = set() if asked is None else asked
    asked.add(param)
    found = there = False
    for call in calls_of(rule, function):
        given, caller = given_to(call, function, param), rule.flow.function(call)
        for each in given:
            if caller is not None and _is_either(rule, caller, each):
                return False
            # def _extend(self, rows): return best(rows)   where somebody hands `_extend` rows that are on the host
            if caller is not None:
                # for row in rows: self._one(row)   comes from a parameter as well
                own = (
                    caller.param(dotted(each)) if dotted(each) not in caller.assigned else rule.flow.value(each).origin
                )
                if own in caller.params and own not in asked and not _is_handed_tensor(rule, caller, own, asked):
                    return False
        there = there or not given or any(_may_be_there(rule, call, each) for each in given)
        found = True
    return there or not found


def _is_either(rule: Rule, caller: Function, given: cst.BaseExpression) -> bool:
    """``rows = rows_or_grid(rows)``: what comes from a function of the file is its own at times, on the host."""
    values = [a.value for a in _assigned(rule, dotted(given)) if rule.flow.function(a) is caller]
    for each in (given, *values):
        made_by = rule.flow.scope.function_names.get(dotted(each.func)) if isinstance(each, cst.Call) else None
        summary = made_by.summary if made_by is not None else None
        if summary is not None and summary.returns.or_host is not None:
            return True
    return False


def _may_be_there(rule: Rule, call: cst.Call, given: cst.BaseExpression) -> bool:
    """Whether an argument is a tensor that is not on the host, or made from one in the function that calls."""
    value, caller = rule.flow.value(given), rule.flow.function(call)
    if value.kind != UNKNOWN_KIND and value.place != UNKNOWN_PLACE:
        return not value.place.is_host
    todo: list[cst.CSTNode] = [given]
    seen: set[str] = set()
    while todo:
        part = todo.pop()
        known = rule.flow.value(part)
        if known.holds_tensors and not known.place.is_host and known.place != UNKNOWN_PLACE:
            return True
        todo += part.children
        if isinstance(part, cst.Name) and part.value not in seen:
            seen.add(part.value)
            todo += [a.value for a in _assigned(rule, part.value) if rule.flow.function(a) is caller]
    return False


def _assigned(rule: Rule, name: str) -> Iterator[cst.Assign]:
    for assign in rule.source.nodes_of(cst.Assign):
        if name in names_bound(*(target.target for target in assign.targets)):
            yield assign
