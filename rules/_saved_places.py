"""Where a checkpoint was saved from, and whether it is plainly idle to say where it shall be loaded to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import libcst as cst

from devlint import tree
from devlint.flow.facts import Move
from devlint.flow.names import called_name, dotted, target_names
from devlint.flow.scope import Class, Function
from devlint.flow.value import DICT, TENSOR, THING
from devlint.rule import Rule
from devlint.rules._checkpoints import SETTINGS, assigned, has_location, parts
from devlint.rules._files import made
from devlint.rules._training import is_inside

_GATHERED = re.compile(r"StateDictType|StateDictConfig|state_dict_type|StateDictOptions")
#: `torch.cuda.is_available()`, `use_cuda or self.gpu`, `device.startswith("cuda")`, or `not` one of them.
_FLAG = r"(?:\w+\.)*\w*(?:cuda|gpu)\w*(?:\.is_available\(\))?"
_KIND = r"(?:\w+\.)*device(?:\.type)?(?: == |\.startswith\()['\"]cuda['\"]\)?"
_ASKED = re.compile(rf"(?:(?P<not>not )(?:{_FLAG}|{_KIND}))|(?:{_FLAG}|{_KIND})(?: or (?:{_FLAG}|{_KIND}))*")
_CUDA = re.compile(r"""(torch\.device\()?["']cuda(:\d+)?["']\)?""")
#: What a test asks that decides on the machine.
AVAILABLE = re.compile(r"is_available|cuda|gpu|device", re.IGNORECASE)


def is_of_host(rule: Rule, call: cst.Call, function: Function | None) -> bool:
    """Whether all that the file saves is on the host, or is gathered there."""
    if _GATHERED.search(rule.source.text):
        return True  # with FSDP.state_dict_type(model, FULL, FullStateDictConfig(offload_to_cpu=True))
    saved = [
        save.args[0].value
        for save in rule.flow.calls("torch.save")
        if save.args and not _is_saved_again(rule, save.args[0].value)
    ]
    # torch.save({"net": state}, f); torch.save(optimizer.state_dict(), g)   who reads "net" reads the first
    keys = parts(rule, call, function)
    saved = [node for node in saved if _has_one(rule, node, keys)] or saved
    # torch.save(vectors, f)  is not what  net.load_state_dict(torch.load(f))  reads
    kinds = (TENSOR, THING) if _is_one_tensor(rule, call, function) else (THING,)
    return bool(saved) and all(_state_of_host(rule, node, kinds) for node in saved)


def _has_one(rule: Rule, node: cst.BaseExpression, keys: set[str]) -> bool:
    """Whether what is saved is a dictionary with one of the keys."""
    saved = made(rule, node)
    return isinstance(saved, cst.Dict) and any(
        isinstance(each, cst.DictElement)
        and isinstance(each.key, cst.SimpleString)
        and each.key.evaluated_value in keys
        for each in saved.elements
    )


def is_of_host_elsewhere(rule: Rule) -> bool:
    """Whether another file of the program, or of a package of the project that this one uses, moves each tensor to the
    host and saves it: ``for key, param in state.items(): state[key] = param.cpu()``."""
    return not rule.flow.calls("torch.save") and _around_says(rule, "offloads")


def is_of_cuda_program(rule: Rule) -> bool:
    """Whether a file of the program, or of a package of the project that this one uses, needs CUDA whatever happens:
    what is saved there is loaded there, whatever this file says of other devices."""
    return _around_says(rule, "demands")


def _around_says(rule: Rule, question: str) -> bool:
    project = rule.flow.project
    if project is None:
        return False
    folder, below, _ = project.in_project().partition(os.sep)
    folders = {folder if below else "", *rule.flow.scope.packages}
    return any(project.some_file_says(f"{question} {each}") is True for each in sorted(folders))


def moved_and_saved(rule: Rule, call: cst.Call, function: Function | None) -> Move | None:
    """Where a class moves to a device what it saves, and loads again, under one name: ``self.queue`` of
    ``self.queue = torch.load(self.path)["queue"]``.

    ``self.data = torch.load(self.path)`` of a data set that nobody moves is on the host.
    """
    cls = function.cls if function is not None else None
    file = rule.code(call.args[0].value)
    if cls is None or not file.startswith("self."):
        return None
    for name in assigned(rule, call):
        moves = [move for move in rule.flow.facts.moves.values() if root(rule, move.receiver) == name]
        # self.queue = torch.load(self.path); self.queue = self.queue.cuda()
        if not name.startswith("self.") or any(rule.flow.function(move.node) is function for move in moves):
            continue
        there = [move for move in moves if not move.target.is_host and _is_in(rule, move.node, cls)]
        saves = (save for save in rule.flow.calls("torch.save") if len(save.args) > 1 and _is_in(rule, save, cls))
        if there and any(file == rule.code(save.args[1].value) and _holds(rule, save, name) for save in saves):
            return there[0]
    return None


def _is_in(rule: Rule, node: cst.CSTNode, cls: Class) -> bool:
    function = rule.flow.function(node)
    return function is not None and function.cls is cls


def _holds(rule: Rule, save: cst.Call, name: str) -> bool:
    """``torch.save({"queue": self.queue}, f)``, ``torch.save(self.queue, f)``"""
    saved = made(rule, save.args[0].value)
    values = [element.value for element in saved.elements] if isinstance(saved, cst.Dict) else [saved]
    return any(rule.code(value) == name for value in values)


def _is_one_tensor(rule: Rule, call: cst.Call, function: Function | None) -> bool:
    """``vectors = torch.load(f); vectors.size(1)``, ``weight.copy_(vectors)``."""
    names = assigned(rule, call)
    reads = [n for n in rule.source.nodes_of(cst.Name) if n.value in names and rule.flow.function(n) is function]
    for above in map(rule.parent, reads):
        if isinstance(above, cst.Attribute) and above.attr.value in ("size", "shape", "numel"):
            return True
        copied = rule.parent(above) if isinstance(above, cst.Arg) else None
        if isinstance(copied, cst.Call) and dotted(copied.func).endswith(".copy_"):
            return True
    return False


def _is_saved_again(rule: Rule, node: cst.BaseExpression) -> bool:
    """``pkg = torch.load(f); torch.save(pkg, g)``: it is where whoever wrote it first had it."""
    return any(
        not has_location(load)
        and rule.code(node) in assigned(rule, load)
        and rule.flow.function(load) is rule.flow.function(node)
        for load in rule.flow.calls("torch.load")
    )


def _state_of_host(rule: Rule, node: cst.BaseExpression, kinds: tuple[str, ...]) -> bool:
    """``net.cpu(); torch.save({"net": net.state_dict(), "epoch": epoch}, f)``."""
    value = rule.flow.value(node)
    if value.kind in kinds and value.place.is_host:
        return True  # weights = torch.load(f, "cpu")["weights"]; torch.save(weights, g)
    node = made(rule, node)
    if isinstance(node, cst.Dict):
        states = [
            each.value
            for each in node.elements
            if not (isinstance(each, cst.DictElement) and _is_setting(rule, each, kinds))
        ]
        return bool(states) and all(_state_of_host(rule, state, kinds) for state in states)
    if isinstance(node, cst.DictComp):
        # {name: weight.cpu() for name, weight in net.state_dict().items()}
        return isinstance(node.value, cst.Call) and called_name(node.value) == "cpu"
    if not (
        isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "state_dict"
    ):
        return False
    if isinstance(node.func.value, cst.Call) and called_name(node.func.value) == "cpu":
        return True  # torch.save(net.cpu().state_dict(), f)
    name, before = rule.code(node.func.value), rule.source.offsets(node)[0]
    moves = [
        (rule.source.offsets(move.node)[0], move.target.is_host)
        for move in rule.flow.facts.moves.values()
        if root(rule, move.receiver) == name and rule.flow.function(move.node) is rule.flow.function(node)
    ]
    earlier = [move for move in moves if move[0] < before]
    return bool(earlier) and max(earlier)[1]


def _is_setting(rule: Rule, element: cst.DictElement, kinds: tuple[str, ...]) -> bool:
    """Whether an entry of what is saved says nothing: ``"epoch": epoch``, ``"config": to_yaml(config)``."""
    key, node = element.key, made(rule, element.value)
    if isinstance(key, cst.SimpleString) and SETTINGS.search(str(key.evaluated_value)):
        return True
    value = rule.flow.value(element.value)
    if value.kind == TENSOR and value.place.is_host:
        return TENSOR not in kinds  # {"net": net.state_dict(), "mean": torch.zeros(3)}
    if isinstance(element.value, cst.Name):
        is_state = isinstance(node, cst.Call) and dotted(node.func).endswith("state_dict")
        return value.kind not in (TENSOR, THING, DICT) and not is_state
    return isinstance(node, cst.Integer | cst.Float | cst.SimpleString)


def receivers(rule: Rule, call: cst.Call, function: Function | None, names: Iterable[str] = ()) -> set[str]:
    """What a load is bound to, and what that, or one of the names, is loaded into."""
    found = {*assigned(rule, call), *names}
    holders: list[cst.CSTNode] = [call]
    holders += [n for n in rule.source.nodes_of(cst.Name) if n.value in found and rule.flow.function(n) is function]
    for node in holders:
        above = rule.parent(node)
        while isinstance(above, cst.Subscript | cst.Attribute | cst.Arg | cst.Call | cst.IfExp):
            called = above.func if isinstance(above, cst.Call) else None
            if isinstance(called, cst.Attribute) and called.attr.value == "load_state_dict":
                found.add(rule.code(called.value))  # net.load_state_dict(torch.load(f))
            above = rule.parent(above)
    return found


def moved(rule: Rule, names: set[str], function: Function | None) -> list[Move]:
    """The moves of one of the names that a function makes."""
    return [
        move
        for move in rule.flow.facts.moves.values()
        if rule.flow.function(move.node) is function and root(rule, move.receiver) in names
    ]


def needs_cuda(rule: Rule, call: cst.Call, function: Function | None) -> bool:
    """Whether the same function moves what is loaded, or loads it into what it moves, to CUDA and nowhere else:
    ``net = Net().cuda(); net.load_state_dict(torch.load(f))``."""
    names = receivers(rule, call, function, _made_of(rule, set(assigned(rule, call)), function))
    return any(goes_to_cuda(rule, move) and not is_asked_for(rule, move) for move in moved(rule, names, function))


def goes_to_cuda(rule: Rule, move: Move) -> bool:
    """``net.cuda()``; ``device = torch.device("cuda")``, and ``net.to(device)``."""
    if move.target.kind == "fixed":
        return move.target.name.startswith("cuda")
    return move.target_node is not None and _CUDA.fullmatch(rule.code(made(rule, move.target_node))) is not None


def _made_of(rule: Rule, names: set[str], function: Function | None) -> set[str]:
    """The names, and those that get parts of what they hold: ``for k, v in state.items(): new[k[7:]] = v``."""
    found = set(names)
    loops = [(each.iter, each.target) for each in rule.source.nodes_of(cst.For)]
    assigned = [(each.value, to.target) for each in rule.source.nodes_of(cst.Assign) for to in each.targets]
    for read, target in [*loops, *assigned]:
        into: cst.BaseExpression = target
        while isinstance(into, cst.Subscript):
            into = into.value
        here = rule.flow.function(read) is function
        if here and any(isinstance(part, cst.Name) and part.value in found for part in tree.walk(read)):
            target_names(into, found)
    return found


def root(rule: Rule, node: cst.BaseExpression) -> str:
    """``net`` of ``net.eval()``; the name that what is moved is bound to: ``net = Net().cuda()``."""
    above = rule.parent(node)
    while isinstance(above, cst.Attribute | cst.Call):
        above = rule.parent(above)
    if isinstance(above, cst.Assign) and len(above.targets) == 1:
        return rule.code(above.targets[0].target)
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        node = node.func.value
    return rule.code(node)


def is_asked_for(rule: Rule, move: Move) -> bool:
    """``if use_cuda: net.cuda()``; ``place = device("cuda") if torch.cuda.is_available() else device("cpu")``"""
    if move.target_node is not None and "is_available" in rule.code(made(rule, move.target_node)):
        return True
    above = rule.parent(move.node)
    while above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.If | cst.IfExp) and AVAILABLE.search(rule.code(above.test)):
            return True
        above = rule.parent(above)
    return False


def has_another_way(rule: Rule, call: cst.Call) -> bool:
    """Whether a handler, or a branch for other machines, makes the same load with a place for it."""
    child: cst.CSTNode = call
    above = rule.parent(call)
    while above is not None and not isinstance(above, cst.FunctionDef | cst.ClassDef):
        if isinstance(above, cst.IfExp | cst.If | cst.Try) and child is not getattr(above, "test", None):
            of_machines = isinstance(above, cst.Try) or AVAILABLE.search(rule.code(above.test)) is not None
            for other in loads(rule):
                # if not torch.cuda.is_available(): torch.load(f, map_location="cpu") else: torch.load(f)
                same = of_machines or rule.code(other.args[0].value) == rule.code(call.args[0].value)
                elsewhere = is_inside(rule.flow, other, above) and not is_inside(rule.flow, other, child)
                if same and elsewhere and has_location(other):
                    of_cuda = _is_of_cuda(rule, above, child)
                    # if use_cuda: torch.load(f, "cpu") else: torch.load(f)   forgets what is for the host
                    return of_cuda is None or (of_cuda and not _has_several_processes(rule))
            if isinstance(above, cst.If) and child is above.body and of_machines:
                return True
        child, above = above, rule.parent(above)
    return False


def _is_of_cuda(rule: Rule, branches: cst.CSTNode, branch: cst.CSTNode) -> bool | None:
    """Whether a branch is for machines with CUDA, or for those without it; ``None`` where nobody can tell."""
    match = _ASKED.fullmatch(rule.code(branches.test)) if isinstance(branches, cst.If | cst.IfExp) else None
    if match is None or not isinstance(branches, cst.If | cst.IfExp):
        return None
    return (branch is branches.body) is (match["not"] is None)


def is_forgotten_for_host(rule: Rule, call: cst.Call) -> bool:
    """Whether only the branch for CUDA says where to: ``torch.load(f, d) if use_cuda else torch.load(f)``."""
    branch: cst.CSTNode = call
    above = rule.parent(call)
    while above is not None and not isinstance(above, cst.FunctionDef | cst.ClassDef):
        if isinstance(above, cst.If | cst.IfExp) and branch is not above.test:
            others = [each for each in loads(rule) if is_inside(rule.flow, each, above)]
            return _is_of_cuda(rule, above, branch) is False and any(
                has_location(each) and not is_inside(rule.flow, each, branch) for each in others
            )
        branch, above = above, rule.parent(above)
    return False


def _has_several_processes(rule: Rule) -> bool:
    return any(name.value == "DistributedDataParallel" for name in rule.source.nodes_of(cst.Name))


def loads(rule: Rule) -> list[cst.Call]:
    """The calls of `torch.load` in the file, also where nobody comes by."""
    calls = rule.source.nodes_of(cst.Call)
    return [call for call in calls if call.args and rule.flow.scope.qualified(call.func) == "torch.load"]
