"""Arguments that a call of torch refuses, mostly those of another one."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.finding import Edit, Fix
from devlint.flow.names import annotation_names
from devlint.flow.scope import Class
from devlint.flow.value import INSTANCE, MODULE, NAME, OPTIMIZER, TENSOR, THING, Value
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._errors import is_expected
from devlint.rules._moves import short


def report_refused(rule: Rule, node: cst.Call, func: cst.Attribute) -> None:
    """``x.cpu(non_blocking=True)``, ``net.cuda(device_id=0)``, ``net.load_state_dict(state, map_location=d)``"""
    method = func.attr.value
    if method not in _METHODS or any(arg.star for arg in node.args) or not any(arg.keyword for arg in node.args):
        return
    receiver = rule.flow.value(func.value)
    # TensorDict's own takes it; so may that of any class of the project
    if not may_be_of_torch(rule, receiver, method) or rule.flow.scope.packages & _OWN:
        return
    if _is_own_tensor(rule, func.value):
        return
    known = _taken(receiver, method)
    if known is None or (not known[1] and _is_of_other_type(rule, func.value)):
        return
    taken, is_known = known
    for arg in node.args:
        word = arg.keyword.value if arg.keyword is not None else ""
        # queue.cpu(cores=2), pipe.to(torch_dtype=torch.float16), engine.load_state_dict(state, tag="best")
        if not word or word in taken or not (is_known or (method, word) in _MEANT):
            continue
        if is_expected(rule, node):
            return
        of_module = " of a module" if receiver.kind == MODULE and word in _METHODS[method][0] else ""
        # backend.cuda(device_id=0), self.optimizer.load_state_dict(state, map_location=device)
        is_built = receiver.kind == OPTIMIZER and bool(receiver.items)
        surely = is_known or receiver.kind == TENSOR or is_built
        surely = surely or (receiver.kind == THING and not is_taken_elsewhere(rule, method, "self"))
        surely = surely or (receiver.kind == MODULE and not is_taken_elsewhere(rule, method, word))
        # x.to(backend=y.backend)   nobody means torch by that: `x` is of another kind
        surely = surely and ((method, word) in _MEANT or any(word in words for words in _METHODS[method]))
        meant = _MEANT.get((method, word), "")
        told = _TOLD.get(meant, f": the argument is `{meant}`")
        fix = _mended(rule, node, arg, meant)
        rule.report(node, f"`{method}`{of_module} takes no `{word}`{told}", fix=fix, tentative=not surely)
        return


def report_refused_by_function(rule: Rule, node: cst.Call, name: str) -> None:
    """``torch.autocast(device="cuda")``, ``torch.save(x, f, map_location="cpu")``"""
    refused = _FUNCTIONS.get(name)
    if refused is None or any(arg.star for arg in node.args):
        return
    for arg in node.args:
        word = arg.keyword.value if arg.keyword is not None else ""
        if word in refused and not is_expected(rule, node):
            meant = refused[word]
            told = f": the argument is `{meant}`" if meant else ""
            fix = _mended(rule, node, arg, meant)
            rule.report(node, f"`{short(rule.code(node.func))}` takes no `{word}`{told}", fix=fix)
            return


def _taken(receiver: Value, method: str) -> tuple[frozenset[str], bool] | None:
    """What the method of a value takes, and whether it is known to take no more; ``None`` where that is another's."""
    of_tensor, of_module = _METHODS[method]
    if receiver.kind == MODULE:
        own = receiver.ref
        if isinstance(own, Class):
            # def cuda(self, device_id): ...   of a class in another file
            return (of_module, True) if own.is_module and own.find_method(method) is None else None
        if isinstance(own, str) and own.startswith("torch.nn."):
            return of_module, True
        return of_tensor | of_module, False  # def fetch(model): model.cuda(non_blocking=True)   may be told a tensor
    if receiver.kind == OPTIMIZER:
        return (_OF_OPTIMIZERS, False) if method == "load_state_dict" else None
    return of_tensor | of_module, receiver.kind == TENSOR


def is_taken_elsewhere(rule: Rule, method: str, word: str) -> bool:
    """Whether something of the project has its own: ``for head in self.heads.values(): head.load_state_dict(state,
    device=device)``, ``for batch in loader: batch.cuda(True)`` of a ``Batch`` with a ``cuda``."""
    project = rule.flow.project
    return project is not None and project.some_file_says(f"takes {word} {method}") is not False


def _is_own_tensor(rule: Rule, node: cst.BaseExpression) -> bool:
    """``def fit(x: Tensor): x.cpu(non_blocking=True)``, where `Tensor` is a class of the project."""
    function = rule.flow.function(node)
    names = {each.value for each in tree.walk(node) if isinstance(each, cst.Name)}
    params = [each for each in function.params if each.name.value in names] if function is not None else []
    said = (annotation_names(each.annotation.annotation) for each in params if each.annotation is not None)
    return any("Tensor" in each for each in said) and rule.flow.has_own_tensor


def _is_of_other_type(rule: Rule, node: cst.BaseExpression) -> bool:
    """``def restore(optimizer: BaseOptimizer)``: what that takes is another file's to say."""
    function = rule.flow.function(node)
    param = function.param(node.value) if function is not None and isinstance(node, cst.Name) else None
    if param is None or param.annotation is None:
        return False
    return not any(name.startswith("torch.") for name in rule.flow.scope.qualified_names(param.annotation))


def _mended(rule: Rule, node: cst.Call, arg: cst.Arg, meant: str) -> Fix | None:
    assert arg.keyword is not None
    word, edits = arg.keyword.value, list[Edit | None]()
    if meant == "to" or (meant == "load" and argument(node, 0, "state_dict") is None):
        edits, said = [rule.remove_argument(node, word)], "leave it out"
    elif meant == "load":
        edits, said = [rule.remove_argument(node, word), *_told_load(rule, node, arg)], "tell `torch.load`"
    elif meant and argument(node, None, meant) is None:
        edits, said = [rule.replace(arg.keyword, meant)], f"call it `{meant}`"
    given = [edit for edit in edits if edit is not None]
    return rule.fix(said, *given, safe=True) if edits and len(given) == len(edits) else None


def _told_load(rule: Rule, node: cst.Call, arg: cst.Arg) -> list[Edit | None]:
    """``net.load_state_dict(torch.load(f), map_location=d)``: the parenthesis is in the wrong place."""
    first = argument(node, 0, "state_dict")
    loaded = first.value if first is not None else None
    if not isinstance(loaded, cst.Call) or rule.flow.name_of(loaded) != "torch.load":
        return [None]  # state = torch.load(f); net.load_state_dict(state, map_location=d)
    if argument(loaded, 1, "map_location") is not None:
        return []
    return [rule.add_argument(loaded, f"map_location={rule.code(arg.value)}")]


def may_be_of_torch(rule: Rule, value: Value, *methods: str) -> bool:
    """Whether what is not known may only be torch's: no class of the file has a method of that name."""
    # Settings().cuda(True)  is not torch's
    return value.kind not in (INSTANCE, NAME) and not any(
        name in cls.methods for cls in rule.flow.scope.classes.values() for name in methods
    )


#: Packages with tensors, or whole batches of them, of their own.
_OWN = frozenset({"tensordict", "torchrl", "dgl", "tensorflow", "mxnet", "paddle"})
_FORMAT = frozenset({"memory_format"})
_NOTHING = frozenset[str]()
_OF_OPTIMIZERS = frozenset({"state_dict"})
#: Keywords that methods take: those of a tensor, and those of a module (torch 2.13).
_METHODS = {
    "cpu": (_FORMAT, _NOTHING),
    "cuda": (frozenset({"device", "non_blocking", "memory_format"}), frozenset({"device"})),
    "xpu": (frozenset({"device", "non_blocking", "memory_format"}), frozenset({"device"})),
    "to": (
        frozenset({"device", "dtype", "non_blocking", "copy", "memory_format", "tensor"}),
        frozenset({"device", "dtype", "non_blocking", "memory_format", "tensor"}),
    ),
    "load_state_dict": (_NOTHING, frozenset({"state_dict", "strict", "assign"})),
}
_MEANT = {
    ("cpu", "non_blocking"): "to",
    ("cuda", "non_blocking"): "to",
    ("cuda", "device_id"): "device",
    ("cuda", "device_ids"): "",
    ("cuda", "gpu_id"): "device",
    ("cuda", "async_"): "non_blocking",
    ("cuda", "nonblocking"): "non_blocking",
    ("to", "device_id"): "device",
    ("to", "map_location"): "device",
    ("to", "nonblocking"): "non_blocking",
    ("load_state_dict", "map_location"): "load",
    ("load_state_dict", "device"): "load",
}
_AUTOCAST = {"device": "device_type"}
_SCALER = {"device": "", "device_type": ""}
_NUMBERED = {"device_id": "device", "gpu_id": "device", "device_index": "device"}
_TOLD = {"": "", "to": ": `to` does", "load": ": `torch.load` does"}
#: Keywords that functions and classes refuse, and those that are meant.
_FUNCTIONS = {
    "torch.autocast": _AUTOCAST,
    "torch.amp.autocast": _AUTOCAST,
    "torch.amp.autocast_mode.autocast": _AUTOCAST,
    "torch.cuda.amp.autocast": {"device": "", "device_type": ""},
    "torch.cuda.amp.GradScaler": _SCALER,
    "torch.amp.GradScaler": {"device_type": "device"},
    "torch.save": {"device": "", "map_location": ""},
    "torch.cuda.set_device": _NUMBERED,
    "torch.cuda.device": _NUMBERED,
    "torch.cuda.synchronize": _NUMBERED,
    "torch.cuda.get_device_name": _NUMBERED,
    "torch.cuda.get_device_properties": _NUMBERED,
    "torch.nn.DataParallel": {"gpu_ids": "device_ids", "devices": "device_ids"},
    "torch.nn.parallel.DistributedDataParallel": {"device_id": "", "gpu_ids": "device_ids", "devices": "device_ids"},
    "torch.utils.data.DataLoader": {"non_blocking": "", "pin_mem": "pin_memory"},
}
