"""What `torch.load` loads: whether it is a checkpoint, by what is done with it and by what it is called."""

from __future__ import annotations

import re

import libcst as cst

from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._moves import short

#: Holds numbers, or data that is prepared on the host.
_NUMBERS = re.compile(
    r"transform(?!er)|scaler|schedul|sampler|loader|callback|engine|trainer|early|meter", re.IGNORECASE
)
#: What one number is called, or a few.
_SCORE = re.compile(r"(^|_)(scores?|metrics?|loss|losses|acc|accuracy)$")
_OF_MODELS = frozenset({"eval", "train", "parameters", "state_dict", "named_parameters"})
_CHECKPOINT = re.compile(r"checkpoint|ckpt|snapshot|state_?dict|weights|pretrained|resume", re.IGNORECASE)
#: Entries of a checkpoint that are no tensors.
SETTINGS = re.compile(r"(^|[_.])(cfg|config|args|hparams|hyper_parameters|epoch|step|version|vocab)$")
#: Parts of a checkpoint, surely, and where there are several of them.
_STATE = re.compile(r"(^|_)state_?dict$")
_PARTS = frozenset("model net generator discriminator encoder decoder optimizer optim scaler scheduler ema".split())
_DATA = re.compile(r"data(?!_?parallel)|feature|sample|cache|vocab|graph|target|label|embedding", re.IGNORECASE)
#: What generators of random numbers are called: their states are tensors on the host.
_RANDOM = re.compile(r"(^|[\W_])rng([\W_]|$)", re.IGNORECASE)
#: What files that hold weights are called.
_WEIGHTS = re.compile(
    r"checkpoint|ckpt|cp|snapshot|state|weight|model|net|param|pretrained|best|last|latest|final|epoch|step|iter"
    r"|encoder|decoder|head|adapter|lora|ema|actor|critic|policy|gen|disc|optim|backbone|vae|train|save|backup|resume|\d",
    re.IGNORECASE,
)


def loaded_as(rule: Rule, call: cst.Call, *, to_hand_on: bool) -> str | None:
    """What is loaded, as the start of a message; ``None`` where nothing shows it to be a checkpoint.

    ``to_hand_on``: the function takes `map_location` for it, whatever it is called.
    """
    function = rule.flow.function(call)
    if _goes_to_numbers(rule, call):
        return None
    return used_as(rule, call, function) or _named(rule, call, function, to_hand_on) or _parted(rule, call, function)


def assigned(rule: Rule, call: cst.Call) -> list[str]:
    """Names and attributes that the loaded value, or a part of it, is bound to."""
    node: cst.CSTNode = call
    parent = rule.parent(call)
    while (
        isinstance(parent, cst.Subscript | cst.Attribute)
        or (isinstance(parent, cst.Call) and parent.func is node)  # torch.load(f).get("model")
        or (
            isinstance(parent, cst.IfExp) and parent.test is not node
        )  # torch.load(f) if cuda else torch.load(f, "cpu")
    ):
        node, parent = parent, rule.parent(parent)
    if isinstance(parent, cst.Assign) and parent.value is node:
        return [rule.code(target.target) for target in parent.targets]
    if isinstance(parent, cst.AnnAssign | cst.NamedExpr) and parent.value is node:
        return [rule.code(parent.target)]
    return []


def has_location(call: cst.Call, position: int = 1) -> bool:
    """``torch.load(f, device)``, ``map_location=``, or ``*args`` and ``**kwargs`` that may hold it."""
    return (len(call.args) > position and call.args[position].keyword is None) or any(
        arg.star or (arg.keyword is not None and arg.keyword.value == "map_location") for arg in call.args
    )


def used_as(rule: Rule, call: cst.Call, function: Function | None) -> str | None:
    """What is loaded by what is done with it, as the start of the message."""
    uses = (_consumer(rule, call), *(_use_of(rule, name, call, function) for name in assigned(rule, call)))
    return next((used for used in uses if used is not None), None)


def _named(rule: Rule, call: cst.Call, function: Function | None, to_hand_on: bool) -> str | None:
    """What is loaded by what it is called; ``None`` where nothing shows it to be a checkpoint."""
    names = assigned(rule, call)
    if any(is_score(name) or is_of_no_use(rule, name, function) for name in names):
        return None
    file = rule.code(call.args[0].value)
    if _DATA.search(file):
        return None  # torch.load("train_features.pt")
    if not to_hand_on and _is_of_folder_alone(call.args[0].value):
        file = ""  # torch.load(os.path.join(checkpoint_dir, "common.pt"))
    for word in (*names, file):
        if _CHECKPOINT.search(word):
            return f"checkpoint `{short(word)}`"
    return f"`{short(file)}`" if to_hand_on else None


def is_data(word: str) -> bool:
    """``train_features.pt``"""
    return _DATA.search(word) is not None


def is_of_a_checkpoint(word: str) -> bool:
    """``args.checkpoint``, ``pretrained_weights``"""
    return _CHECKPOINT.search(word) is not None


def is_score(name: str) -> bool:
    """``best_accuracy``, and what generators of random numbers are called"""
    return _SCORE.search(name) is not None or _RANDOM.search(name) is not None


def _parted(rule: Rule, call: cst.Call, function: Function | None) -> str | None:
    """What is loaded by the parts that are taken of it: ``m = torch.load(f); m["model"], m["generator"]``."""
    names = [name for name in assigned(rule, call) if name.isidentifier()]
    keys = parts(rule, call, function)
    # results["model"] may be what the model is called; several parts of training are not
    if any(_STATE.search(key) for key in keys) or len(keys & _PARTS) > 1:
        return f"checkpoint `{short(names[0])}`" if names else "the checkpoint"
    return None


def parts(rule: Rule, call: cst.Call, function: Function | None) -> set[str]:
    """The keys by which parts of what is loaded are taken."""
    names = [name for name in assigned(rule, call) if name.isidentifier()]
    keys = set()
    for part in rule.source.nodes_of(cst.Subscript):
        of_name = isinstance(part.value, cst.Name) and part.value.value in names
        if part.value is call or (of_name and rule.flow.function(part) is function):
            index = part.slice[0].slice
            if isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString):
                keys.add(str(index.value.evaluated_value))
    return keys


def _consumer(rule: Rule, node: cst.CSTNode) -> str | None:
    """What a value is by what is done with it: ``model.load_state_dict(torch.load(f)["model"])``."""
    child, parent = node, rule.parent(node)
    while isinstance(parent, cst.Subscript | cst.Attribute | cst.Call | cst.Arg | cst.IfExp):
        if isinstance(parent, cst.Call) and child is not parent.func:
            name = dotted(parent.func) or rule.code(parent.func)  # models[i].load_state_dict(torch.load(f))
            if not _takes_weights(name) or holds_numbers(rule, name, parent):
                return None
            return f"the checkpoint for `{short(name)}`"
        if isinstance(parent, cst.Attribute) and parent.attr.value in _OF_MODELS:
            return "the model"  # torch.load("net.pt").eval()
        child, parent = parent, rule.parent(parent)
    return None


def holds_numbers(rule: Rule, name: str, node: cst.CSTNode) -> bool:
    """``scaler.load_state_dict(torch.load(f))``, ``self.load_state_dict(torch.load(f))`` of a sampler."""
    function = rule.flow.function(node)
    if name.startswith("self.") and name.count(".") == 1 and function is not None and function.cls is not None:
        name = function.cls.name
    return _NUMBERS.search(name) is not None


def _use_of(rule: Rule, name: str, call: cst.Call, function: Function | None) -> str | None:
    """The first call below that takes the name, or a part of it, as weights."""
    after = rule.source.offsets(call)[1]
    for other in rule.source.nodes_of(cst.Name):
        if other.value != name.rpartition(".")[2] or rule.flow.function(other) is not function:
            continue
        if rule.source.offsets(other)[0] < after:
            continue
        node: cst.CSTNode = other
        parent = rule.parent(other)
        if isinstance(parent, cst.Attribute) and parent.attr is other:
            node, parent = parent, rule.parent(parent)
        if rule.code(node) != name:
            continue
        used = _consumer(rule, node)
        if used is not None:
            return used
    return None


def is_of_no_use(rule: Rule, name: str, function: Function | None) -> bool:
    """Whether a name is not read, counted, asked for settings alone (`ckpt["cfg"]`), or added to and saved."""
    reads = [
        node
        for node in rule.source.nodes_of(cst.Name)
        if node.value == name
        and rule.flow.function(node) is function
        and not isinstance(above := rule.parent(node), cst.AssignTarget)
        and not (isinstance(above, cst.AnnAssign) and above.target is node)
    ]
    if name.isidentifier() and all(
        _gives_settings(rule, node) or _is_kept(rule, node) or _goes_to_numbers(rule, node) for node in reads
    ):
        return True
    calls = [rule.parent(arg) for arg in map(rule.parent, reads) if isinstance(arg, cst.Arg)]
    return any(isinstance(call, cst.Call) and rule.code(call.func) == "len" for call in calls)


def _is_kept(rule: Rule, node: cst.CSTNode) -> bool:
    """``meta["weights"] = weights; torch.save(meta, file)``: nothing says that it holds tensors."""
    above = rule.parent(node)
    if isinstance(above, cst.Arg):
        call = rule.parent(above)
        return isinstance(call, cst.Call) and dotted(call.func).rpartition(".")[2] == "save"
    while isinstance(above, cst.Subscript):
        above = rule.parent(above)
    return isinstance(above, cst.AssignTarget)


def _goes_to_numbers(rule: Rule, node: cst.CSTNode) -> bool:
    """``scaler.load_state_dict(torch.load(f))``; ``state = torch.load(f); scheduler.load_state_dict(state)``."""
    call = rule.parent(arg) if isinstance(arg := rule.parent(node), cst.Arg) else None
    if not isinstance(call, cst.Call):
        return False
    name = dotted(call.func)
    return _takes_weights(name) and holds_numbers(rule, name, call)


def _gives_settings(rule: Rule, node: cst.CSTNode) -> bool:
    """``checkpoint["epoch"]``, ``manifest.get("epoch")``"""
    parent = rule.parent(node)
    if isinstance(parent, cst.Attribute) and parent.attr.value == "get":
        call = rule.parent(parent)
        key = call.args[0].value if isinstance(call, cst.Call) and call.func is parent and call.args else None
    elif isinstance(parent, cst.Subscript) and len(parent.slice) == 1:
        index = parent.slice[0].slice
        key = index.value if isinstance(index, cst.Index) else None
    else:
        return False
    return isinstance(key, cst.SimpleString) and SETTINGS.search(str(key.evaluated_value)) is not None


def _is_of_folder_alone(file: cst.BaseExpression) -> bool:
    """Whether a folder is called after checkpoints, and the file in it is called something else."""
    last: cst.BaseExpression = file
    if isinstance(file, cst.Call) and file.args and dotted(file.func).rpartition(".")[2] in ("join", "joinpath"):
        last = file.args[-1].value
    elif isinstance(file, cst.BinaryOperation):
        last = file.right
    return last is not file and isinstance(last, cst.SimpleString) and not _WEIGHTS.search(str(last.evaluated_value))


def _takes_weights(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return "load_state_dict" in last or ("state_dict" in last and last.startswith(("load", "set", "restore")))
