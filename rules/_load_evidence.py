"""What shows that it matters to which device a checkpoint is loaded: without it, it only may."""

from __future__ import annotations

import re
from collections import Counter
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
from devlint.rules._main_process import runs_in_main_process
from devlint.rules._saved_places import goes_to_cuda, is_asked_for, is_forgotten_for_host, moved, receivers
from devlint.rules._switches import is_switched_off, tests_above
from devlint.rules._training import is_inside

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
_HOST_READERS = frozenset({"safetensors.torch.load_file", "safetensors.safe_open"})
#: Packages whose kernels run on CUDA, and calls that switch such kernels on.
_OF_CUDA = frozenset("awq auto_gptq bitsandbytes flash_attn tensorrt tensorrt_llm torch2trt torch_tensorrt".split())
_SWITCH = re.compile(r"xformers|(^|\.)enable_flash")


def why_it_matters(rule: Rule, call: cst.Call) -> Note | None:
    """What shows that a load without a place goes wrong, or is an oversight; ``None`` where nothing does."""
    function = rule.flow.function(call)
    if _is_published(rule, call) or _is_sample(rule, call) or _is_optional(rule, call):
        return None
    if function is not None and function.name == "__setstate__":
        return None  # plain pickle has brought the tensors around it to where they were before
    if _loses_names(rule):
        return None
    if is_for_cuda_alone(rule, call):
        return _loaded_by_each(rule, call)  # which of the devices still matters
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


def _is_sample(rule: Rule, call: cst.Call) -> bool:
    """``if __name__ == "__main__":`` of a file that defines what others use: a sample of how to."""
    if rule.flow.function(call) is not None or not any(
        "__main__" in rule.code(each.test) and is_inside(rule.flow, call, each) for each in _decisions(rule)
    ):
        return False
    names = Counter(name.value for name in rule.source.nodes_of(cst.Name))
    defined = (each for each in rule.source.module.body if isinstance(each, cst.FunctionDef | cst.ClassDef))
    return any(names[each.name.value] == 1 and not each.name.value.startswith("_") for each in defined)


def _is_optional(rule: Rule, call: cst.Call) -> bool:
    """``def predict(self, name, load=False): if load: ...``: who trained just before says so."""
    return is_switched_off(rule, call, parameters=True)


def _loses_names(rule: Rule) -> bool:
    """``if device == "cuda": net = DataParallel(net)``: without CUDA the names in the file fit no longer."""
    for wrap in rule.source.nodes_of(cst.Call):
        if dotted(wrap.func).rpartition(".")[2] != "DataParallel":
            continue
        branch = rule.enclosing(wrap, cst.If, cst.FunctionDef)
        if isinstance(branch, cst.If) and "cuda" in rule.code(branch.test):
            return ".module.state_dict(" not in rule.source.text
    return False


def _decisions(rule: Rule) -> list[cst.If | cst.IfExp]:
    return [*rule.source.nodes_of(cst.IfExp), *rule.source.nodes_of(cst.If)]


# for CUDA alone ---------------------------------------------------------------------------------


def is_for_cuda_alone(rule: Rule, call: cst.Call) -> bool:
    """Whether the code around a load runs on CUDA, whatever there is: ``x = torch.ones(1, 3).cuda()``."""
    function = rule.flow.function(call)
    uses: list[cst.CSTNode] = [
        move.node
        for move in rule.flow.facts.moves.values()
        if goes_to_cuda(rule, move)
        and not is_asked_for(rule, move)
        # device = "cpu"; if torch.cuda.is_available(): device = "cuda"; net.to(device)
        and (move.target.kind != "fixed" or move.target_node is None or "cuda" in rule.code(move.target_node))
    ]
    # pipe.enable_xformers_memory_efficient_attention()
    uses += [each for each in rule.source.nodes_of(cst.Call) if _SWITCH.search(dotted(each.func))]
    for use in uses:
        around = rule.flow.function(use)
        if around is function and _runs_with(rule, use, call):
            return True
        if around is None or function is None:
            continue
        # class Trainer: def __init__(self): load(); def run(self): for x in batches: self.net(x.cuda())
        # def build(): net = Net(); return net.cuda()   inside of the function that loads
        is_near = around.cls is function.cls is not None or around.outer is function
        if is_near and not any(tests_above(rule, use)):
            return True
    imports: list[cst.Import | cst.ImportFrom] = [
        *rule.source.nodes_of(cst.Import),
        *rule.source.nodes_of(cst.ImportFrom),
    ]
    return any(_runs_with(rule, node, call) and _OF_CUDA.intersection(_packages(node)) for node in imports)


def _runs_with(rule: Rule, node: cst.CSTNode, call: cst.Call) -> bool:
    """Whether no condition, and no function, is around a node that is not around the load as well."""
    above = rule.parent(node)
    while above is not None:
        if isinstance(above, cst.If | cst.IfExp | cst.Try | cst.FunctionDef) and not is_inside(rule.flow, call, above):
            return False
        above = rule.parent(above)
    return True


def _packages(node: cst.Import | cst.ImportFrom) -> set[str]:
    """The packages that a statement imports from: ``torch2trt`` of ``from torch2trt import TRTModule``."""
    if isinstance(node, cst.ImportFrom):
        return {dotted(node.module).partition(".")[0]} if node.module is not None and not node.relative else set()
    return {dotted(alias.name).partition(".")[0] for alias in node.names}


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
    for node in _decisions(rule):
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
    """Another load of the same kind that says where to, or that reads to the host by itself."""
    near: list[Note] = []
    far: list[Note] = []
    for other in rule.source.nodes_of(cst.Call):
        is_near = rule.flow.function(other) is function
        reads_to_host = rule.flow.scope.qualified(other.func) in _HOST_READERS
        says_where = any(_is_location(arg) or _is_host(rule, arg, reads_to_host) for arg in other.args)
        if (says_where or (reads_to_host and is_near)) and _is_alike(rule, call, other):
            note = rule.note(other, "this one says where to" if says_where else "this one loads to the host")
            (near if is_near else far).append(note)
    return next(iter((*near, *far)), None)


def said_beside(rule: Rule, call: cst.Call) -> str | None:
    """The name of where all other loads above in the function load to: ``map_location=place``."""
    function = rule.flow.function(call)
    if function is None or is_forgotten_for_host(rule, call):
        return None  # torch.load(f, map_location=device) if use_cuda else torch.load(f)
    said = {
        rule.code(arg.value)
        for other in rule.source.nodes_of(cst.Call)
        if rule.flow.function(other) is function and rule.source.comes_before(other, call)
        for arg in other.args
        if _is_location(arg)
    }
    name = said.pop() if len(said) == 1 else ""
    return name if function.param(name) is not None or _is_bound_above(rule, name, call, function) else None


def _is_bound_above(rule: Rule, name: str, call: cst.Call, function: Function) -> bool:
    """Whether a name is bound on every way to a call; not ``if first: place = "cpu"; ...`` and then ``if second:``."""
    for assign in rule.source.nodes_of(cst.Assign):
        if rule.flow.function(assign) is function and any(dotted(to.target) == name for to in assign.targets):
            block = rule.enclosing(assign, cst.IndentedBlock)
            above = rule.source.comes_before(assign, call)
            if block is not None and above and is_inside(rule.flow, call, block):
                return name.isidentifier()
    return False


def _is_alike(rule: Rule, call: cst.Call, other: cst.Call) -> bool:
    """Whether two loads are of one kind: the same file, into the same object, or one in the place of the other."""
    function, another = rule.flow.function(call), rule.flow.function(other)
    # str(path), and path; but `path` of another function may be any file
    is_named = function is another or not isinstance(call.args[0].value, cst.Name)
    if other.args and is_named and _file(rule, other) == _file(rule, call):
        return True
    both = receivers(rule, call, function) & receivers(rule, other, another)
    if function is another:
        return bool(both) or _is_beside(rule, call, other)
    # def restore(self): self.net.load_state_dict(...); def resume(self): self.net.load_state_dict(...)
    if function is None or another is None or function.cls is None or function.cls is not another.cls:
        return False
    return any(name.partition(".")[0] == "self" for name in both)


def _file(rule: Rule, load: cst.Call) -> str:
    node = load.args[0].value
    if isinstance(node, cst.Call) and dotted(node.func) in ("str", "Path") and len(node.args) == 1:
        node = node.args[0].value
    return rule.code(node)


def _is_beside(rule: Rule, call: cst.Call, other: cst.Call) -> bool:
    """Whether two loads are in branches of one `if`, or in statements right below each other."""
    below: cst.CSTNode | None = other
    above = rule.parent(other)
    while above is not None and not is_inside(rule.flow, call, above):
        above, below = rule.parent(above), above
    if isinstance(above, cst.If | cst.IfExp):
        return True
    if not isinstance(above, cst.IndentedBlock | cst.Module):
        return False
    here = [i for i, each in enumerate(above.body) if each is below or is_inside(rule.flow, call, each)]
    return here[-1] - here[0] <= 1


def _is_location(arg: cst.Arg) -> bool:
    is_none = isinstance(arg.value, cst.Name) and arg.value.value == "None"
    return arg.keyword is not None and arg.keyword.value == "map_location" and not is_none


def _is_host(rule: Rule, arg: cst.Arg, reads_to_host: bool) -> bool:
    """``safe_open(f, framework="pt", device="cpu")``"""
    return reads_to_host and rule.code(arg.value) in ('"cpu"', "'cpu'")


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
    if runs_in_main_process(rule, call):
        return None
    for other in rule.source.nodes_of(cst.Call):
        if _JOINS.search(rule.flow.scope.qualified(other.func) or dotted(other.func)):
            return rule.note(other, "each process loads it to the one device that it was saved from")
    return None
