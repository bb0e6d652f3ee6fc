"""What shows that it matters to which device a checkpoint is loaded: without it, it only may."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint.finding import Note
from devlint.flow.facts import Move
from devlint.flow.hypothesis import names_device, numbers_device
from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._checkpoints import assigned
from devlint.rules._files import made
from devlint.rules._saved_places import moved, receivers

#: Code that puts something somewhere, or names a place.
_PLACES = re.compile(r"""\.cuda\(|["']cpu|["']cuda|torch\.device|\bdevice\b""")
_AVAILABLE = re.compile(r"\b(cuda|accelerator|mps|xpu|npu)\.is_available\(\)")
#: Options of a script, and flags, that choose between the host and a GPU; `--gpu` often numbers one of those.
_OPTION = re.compile(r"--?((no|use|disable)[-_])?(cuda|cpu|device|accel)([-_]only)?|--?(no|use|disable)[-_]gpu")
_FLAG = re.compile(r"\b(no_|use_|with_|on_)?(cuda|gpu)\b(?!\.)")
#: What stands for the options of a run: its ``device`` is what somebody chose.
_CHOSEN_BY = re.compile(
    r"^(self|cls|args|opts?|options|params|hparams|cfg|config|conf|flags|settings|accelerator|fabric)$", re.I
)
#: Calls that make a process one of several.
_JOINS = re.compile(
    r"(^|\.)(init_process_group|init_distributed_mode|ddp_init_group|DistributedDataParallel|Accelerator"
    r"|multiprocessing\.spawn|mp\.spawn)$"
)
_MAIN_PROCESS = re.compile(
    r"rank\w*(\(\))? *== *0|not (\w+\.)*(local_)?rank\b|is_(local_)?(main|master)|is_rank_zero|if_main"
)
_HOST_READERS = frozenset({"safetensors.torch.load_file", "safetensors.safe_open"})


def why_it_matters(rule: Rule, call: cst.Call) -> Note | None:
    """What shows that a load without a place goes wrong, or is an oversight; ``None`` where nothing does."""
    function = rule.flow.function(call)
    if _is_published(rule, call):
        return None
    return (
        _told_elsewhere(rule, call, function)
        or _chosen(rule, call, function)
        or _brought_to_host(rule, call, function)
        or _loaded_by_each(rule, call)
    )


def device_parameter(function: Function | None) -> cst.Param | None:
    """The parameter by which a function is told where to load to: ``map_location``, ``device``."""
    for param in function.params if function is not None else ():
        name = param.name.value
        if name == "map_location" or (names_device(name) and "id" not in name.split("_")):
            return param
    return None


def _is_published(rule: Rule, call: cst.Call) -> bool:
    """``def resnet(pretrained=False): ...; if pretrained: net.load_state_dict(torch.load(FILE))``"""
    branch = rule.enclosing(call, cst.If, cst.FunctionDef)
    return isinstance(branch, cst.If) and rule.code(branch.test) == "pretrained"


# the device is chosen ---------------------------------------------------------------------------


def _chosen(rule: Rule, call: cst.Call, function: Function | None) -> Note | None:
    """``device = "cuda" if torch.cuda.is_available() else "cpu"``: it must work for either, and for any file."""
    # class Agent: def __init__(self, policy, device): ...
    init = function.cls.find_method("__init__") if function is not None and function.cls is not None else None
    if init is not None and init.home is rule.flow and (told := device_parameter(init)) is not None:
        return rule.note(told, "the device is chosen by whoever builds it")
    for move in rule.flow.facts.moves.values():
        if _is_near(rule.flow.function(move.node), function) and _goes_where_chosen(rule, move, function):
            return rule.note(move.node, "the device is chosen")
    for other in rule.source.nodes_of(cst.Call):
        if rule.flow.function(other) is function and dotted(other.func) == "torch.cuda.current_device":
            return rule.note(other, "each process has a device of its own")
    choice = next(_choices(rule), None)
    return rule.note(choice, "the device is chosen here") if choice is not None else None


def _is_near(mover: Function | None, function: Function | None) -> bool:
    """Whether a move stands in the same function, or in a method of the same class."""
    return mover is function or (mover is not None and function is not None and mover.cls is function.cls is not None)


def _goes_where_chosen(rule: Rule, move: Move, function: Function | None) -> bool:
    """``x.to(args.device)``; not ``x.to(y.device)``: that is where something happens to be."""
    if move.target_node is None or move.target.kind not in ("device", "unknown"):
        return False
    # self.device = self.find_device()  may be the host
    name = move.target.name if move.target.kind == "device" else rule.code(made(rule, move.target_node))
    base, _, last = name.rpartition(".")
    if not (names_device(last) or numbers_device(last)):
        return False
    if base == "self" and function is not None and function.cls is not None and function.cls.is_module:
        return any(last in method.stores for method in function.cls.methods.values())
    return not base or _CHOSEN_BY.match(base.rpartition(".")[2]) is not None


def _choices(rule: Rule) -> Iterator[cst.CSTNode]:
    """Where the file decides between the host and a GPU."""
    decisions: list[cst.If | cst.IfExp] = [*rule.source.nodes_of(cst.IfExp), *rule.source.nodes_of(cst.If)]
    for node in decisions:
        test = rule.code(node.test)
        if (_AVAILABLE.search(test) or _FLAG.search(test)) and _PLACES.search(rule.code(node.body)):
            yield node.test
    for call in rule.source.nodes_of(cst.Call):
        if dotted(call.func).endswith("add_argument") and any(
            isinstance(arg.value, cst.SimpleString) and _OPTION.fullmatch(str(arg.value.evaluated_value))
            for arg in call.args
        ):
            yield call


# others say where to ----------------------------------------------------------------------------


def _told_elsewhere(rule: Rule, call: cst.Call, function: Function | None) -> Note | None:
    """Another load of the file that says where to, or one of the function that reads to the host."""
    near: list[cst.Call] = []
    far: list[cst.Call] = []
    for other in rule.source.nodes_of(cst.Call):
        is_near = rule.flow.function(other) is function
        reads_to_host = rule.flow.scope.qualified(other.func) in _HOST_READERS
        names_host = any(rule.code(arg.value) in ('"cpu"', "'cpu'") for arg in other.args)
        if any(_is_location(arg) for arg in other.args) or (reads_to_host and (is_near or names_host)):
            (near if is_near else far).append(other)
    told = next(iter((*near, *far)), None)
    return rule.note(told, "this one says where to") if told is not None else None


def _is_location(arg: cst.Arg) -> bool:
    is_none = isinstance(arg.value, cst.Name) and arg.value.value == "None"
    return arg.keyword is not None and arg.keyword.value == "map_location" and not is_none


def _brought_to_host(rule: Rule, call: cst.Call, function: Function | None) -> Note | None:
    """``net.load_state_dict(torch.load(f)); return net.cpu()``, where the file saves from wherever the model is.

    Of a tensor it says nothing of what comes next.
    """
    if not rule.flow.calls("torch.save"):
        return None
    models = receivers(rule, call, function).difference(assigned(rule, call))
    for move in moved(rule, models, function):
        if move.target.is_host:
            return rule.note(move.node, "it is meant for the host")
    return None


# several processes ------------------------------------------------------------------------------


def _loaded_by_each(rule: Rule, call: cst.Call) -> Note | None:
    """Each process of a distributed run loads its copy to the device of the one that saved."""
    if _is_for_main_process(rule, call):
        return None
    for other in rule.source.nodes_of(cst.Call):
        if _JOINS.search(rule.flow.scope.qualified(other.func) or dotted(other.func)):
            return rule.note(other, "each process loads it to the one device that it was saved from")
    return None


def _is_for_main_process(rule: Rule, node: cst.CSTNode) -> bool:
    above = rule.parent(node)
    while above is not None:
        if isinstance(above, cst.If) and _MAIN_PROCESS.search(rule.code(above.test)):
            return True
        above = rule.parent(above)
    return False
