"""Layers and parameters that are made with the sizes of a layer that is there already, to stand in its place or beside
it: ``nn.Linear(old.in_features, rank)``.

The old one is wherever its model is. Values that are copied into a new one in place do not bring it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.modules import has_tensors
from devlint.flow.names import called_name, dotted, last_word, names_bound
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, Class, Function
from devlint.flow.value import MODULE
from devlint.rule import Rule
from devlint.rules._exports import is_of_export

_SIZES = frozenset("in_features out_features in_channels out_channels num_embeddings embedding_dim".split())
#: Those, and what says how a layer is built.
_ASKED = _SIZES | frozenset("num_features normalized_shape kernel_size".split())
_WORDS = _ASKED | {"shape", "size"}
_SPEAKS = re.compile(rf"\.({'|'.join(_ASKED)})\b|\.weight\.(shape|size|data\.shape|data\.size)\b")
_SETTINGS = re.compile(r"(^|_)(config|cfg|conf|args|opts?|hparams|params?|spec|settings|options|dataset|data|env)$")
#: What is one layer, and no network that another part is built to fit.
_LAYER = re.compile(
    r"linear|layer|conv|base|orig|old|dense|proj|(^|_)(lin|fc|m|mod|module|src|source|child|from|other)(_|\d|$)|wrapped"
)
_NETWORK = re.compile(r"backbone|encoder|decoder|(^|_)(net|model|network|trunk|stem)(_|$)")
_LAYER_TYPE = re.compile(r"Linear|Conv")
_LAYER_CLASS = re.compile(r"(Linear|Conv(Transpose)?\d?[dD]?|Embedding|Norm\d?[dD]?|LoRA\w*|Lora\w*)$")
_MOVES = frozenset("to cuda to_empty npu xpu mps type_as".split())
_MAY_MOVE = re.compile(r"(^|_)(to|move|put|place|prepare|dispatch|distribute|device|cuda|gpu|shard)(_|$)", re.I)
#: Contexts in which things are made elsewhere: `with torch.device("meta"):`.
CONTEXT = re.compile(r"device|meta|init_empty|no_init", re.I)
_ELSEWHERE = re.compile(r"\bdevice\b|cuda|get_device|\.is_cuda")
_OF_TENSORS = frozenset("weight bias data x input inputs output outputs hidden_states mask".split())


class After(NamedTuple):
    """``made`` is a call of a layer's class, or of a factory whose tensor becomes a parameter or buffer."""

    made: cst.Call
    old: str
    what: str


def after_old_layers(rule: Rule) -> Iterator[After]:
    """What is made so, and left on the host: the first of each function and old layer."""
    if _SPEAKS.search(rule.source.text) is None or rule.in_tests:
        return
    said: set[tuple[Function, str]] = set()
    known: dict[Function, _Sizes] = {}
    asking = {rule.flow.function(node) for node in rule.source.nodes_of(cst.Attribute) if node.attr.value in _WORDS}
    for call in rule.source.nodes_of(cst.Call) if asking - {None} else ():
        function = rule.flow.function(call)
        if function is None or function not in asking or function.role == HOST_SIDE or not call.args:
            continue
        what = _made(rule, call)
        if what is None or _is_told_place(rule, call) or any(_is_tensor(arg.value) for arg in call.args):
            continue
        sizes = known.get(function) or known.setdefault(function, _Sizes(rule, function))
        asked = sizes.of(call)
        for old in sorted(asked):
            if (function, old) in said or not _fits(rule, function, call, old, asked[old], sizes):
                continue
            if _is_brought(rule, function, call, old) or _is_brought_by_callers(rule, function, frozenset()):
                continue
            said.add((function, old))
            yield After(call, old, what)
            break


# what is made --------------------------------------------------------------------------------------


def _made(rule: Rule, call: cst.Call) -> str | None:
    """What a call makes that has tensors for keeps; ``None`` for anything else."""
    name, value = rule.flow.name_of(call), rule.flow.value(call)
    fact = table.MODULES.get(name)
    if fact is not None:
        return f"`{name}`" if fact.kind != "container" and fact.tensors in ("always", "default") else None
    if rule.flow.factory(call) is not None:
        return f"`{name}`" if value.zero is not True and is_kept(rule, call) else None
    if value.kind == MODULE and isinstance(value.ref, Class):
        return f"`{value.ref.name}`" if has_tensors(value) else None
    function = rule.flow.function(call)
    if isinstance(call.func, cst.Name) and call.func.value == "cls" and function is not None and function.cls:
        return f"`{function.cls.name}`" if function.cls.is_module else None
    called = last_word(dotted(call.func))
    if called[:1].isupper() and _LAYER_CLASS.search(called) and not name.startswith("torch."):
        return f"`{called}`"
    return None


def _is_tensor(node: cst.BaseExpression) -> bool:
    """``Compressed(codes, old.bias, old.stride)`` keeps what it is handed, wherever that is."""
    return isinstance(node, cst.Attribute) and node.attr.value in ("weight", "bias", "data")


def is_kept(rule: Rule, call: cst.Call) -> bool:
    """``nn.Parameter(torch.empty(n, m))``, ``self.register_buffer("scale", torch.ones(n))``"""
    node: cst.CSTNode = call
    above = rule.parent(node)
    while above is not None:
        if isinstance(above, cst.Call) and node is not above.func:
            word = called_name(above)
            return word in ("Parameter", "register_buffer", "register_parameter", "Buffer")
        if not isinstance(above, cst.Attribute | cst.Arg | cst.Call | cst.BinaryOperation):
            return False
        if isinstance(above, cst.Attribute) and above.attr.value in (*_MOVES, "new"):
            return False
        node, above = above, rule.parent(above)
    return False


def _is_told_place(rule: Rule, call: cst.Call) -> bool:
    """Whether a call is told a device, in whatever words, or may be, or is moved at once, or made under a default."""
    if any(arg.star == "**" or (arg.keyword is not None and arg.keyword.value == "device") for arg in call.args):
        return True
    if any(_ELSEWHERE.search(rule.code(arg.value)) for arg in call.args):
        return True  # Quantized(old.in_features, old.weight.device)
    node: cst.CSTNode = call
    above = rule.parent(node)
    while above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.Attribute) and above.value is node and above.attr.value in _MOVES:
            return True
        if isinstance(above, cst.With) and any(CONTEXT.search(rule.code(item.item)) for item in above.items):
            return True
        if isinstance(above, cst.Arg) and _MAY_MOVE.search(called_name(rule.enclosing(above, cst.Call))):
            return True
        node, above = above, rule.parent(above)
    return False


# whose sizes it takes ------------------------------------------------------------------------------


class _Sizes:
    """Which layers the arguments of calls in one function ask for their sizes, also through names."""

    def __init__(self, rule: Rule, function: Function) -> None:
        self.rule, self.bound = rule, dict[str, list[cst.BaseExpression]]()
        for node in tree.walk(function.node.body):
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    for name in names_bound(target.target):
                        self.bound.setdefault(name, []).append(node.value)
                    if isinstance(target.target, cst.Attribute):
                        self.bound.setdefault(dotted(target.target), []).append(node.value)
            elif isinstance(node, cst.AnnAssign) and node.value is not None:
                for name in names_bound(node.target):
                    self.bound.setdefault(name, []).append(node.value)
            elif isinstance(node, cst.For):
                for name in names_bound(node.target):
                    self.bound.setdefault(name, []).append(node.iter)

    def of(self, call: cst.Call) -> dict[str, set[str]]:
        """Old layer -> the words that it is asked for."""
        found: dict[str, set[str]] = {}
        for arg in call.args:
            self._read(arg.value, found, 3)
        return found

    def _read(self, node: cst.CSTNode, found: dict[str, set[str]], steps: int) -> None:
        for part in tree.walk(node):
            if isinstance(part, cst.Attribute):
                word = part.attr.value
                if word in _ASKED:
                    self._note(part.value, word, found)
                elif word in ("shape", "size"):  # old.weight.shape, old.weight.data.size(0)
                    weight = dotted(part.value).removesuffix(".data")
                    if weight.endswith(".weight"):
                        found.setdefault(weight.removesuffix(".weight"), set()).update(("weight", word))
            if steps and isinstance(part, cst.Name | cst.Attribute):
                values = self.bound.get(dotted(part), [])
                if len(values) == 1:
                    self._read(values[0], found, steps - 1)

    def _note(self, layer: cst.BaseExpression, word: str, found: dict[str, set[str]]) -> None:
        code = self.rule.code(layer)
        if code not in ("self", "cls") and not any(_SETTINGS.search(each) for each in code.split(".")):
            found.setdefault(code, set()).add(word)

    def comes_from(self, function: Function, path: str, steps: int = 4) -> bool:
        """Whether what a path names was there before the function ran: handed in, kept by the object, or a part of
        such."""
        head = re.split(r"[.\[(]", path, maxsplit=1)[0]
        values = self.bound.get(head, [])
        if head == "self":
            # self.net = resnet18(); self.net.fc = nn.Linear(self.net.fc.in_features, 10)
            own = [name for name in self.bound if name.startswith("self.") and f"{path}.".startswith(f"{name}.")]
            # old = self.head; self.head = nn.Linear(old.in_features, old.out_features + 1)
            own = [name for name in own if not self._is_read_first(function, name)]
            if own:
                return all(self._are_there(function, self.bound[name], steps) for name in own)
            return function.role != CONSTRUCTOR and "." in path
        if head in function.param_names and not values:
            return True
        return bool(values) and self._are_there(function, values, steps)

    def _is_read_first(self, function: Function, name: str) -> bool:
        reads = (
            node
            for node in tree.walk(function.node.body)
            if isinstance(node, cst.Attribute)
            and dotted(node) == name
            and not isinstance(self.rule.parent(node), cst.AssignTarget)
        )
        first = next(reads, None)
        return first is not None and all(self.rule.source.comes_before(first, value) for value in self.bound[name])

    def _are_there(self, function: Function, values: list[cst.BaseExpression], steps: int) -> bool:
        if not steps:
            return False
        for value in values:
            if isinstance(value, cst.Call):
                name = called_name(value)
                # for name, child in net.named_modules(): ...; getattr(parent, name); list(net.children())
                if not (_IS_PART.search(name) or (isinstance(value.func, cst.Name) and name in _PASSES)):
                    return False
            # `self.fc` of a method is there, `models` of an import is not
            names = [part for part in _paths(value) if part.split(".")[0] in function.param_names | set(self.bound)]
            if not any(self.comes_from(function, each, steps - 1) for each in names):
                return False
        return True


_IS_PART = re.compile(r"^(named_)?(modules|children)$|^get_sub_?module$|^get_parent|^items$|^values$|^get$|^pop$")
_PASSES = frozenset("getattr list dict tuple reversed enumerate zip sorted next iter".split())


def _paths(node: cst.CSTNode) -> list[str]:
    """The longest dotted names in an expression."""
    found: list[str] = []
    for part in tree.walk(node):
        path = dotted(part) if isinstance(part, cst.Name | cst.Attribute) else ""
        if path and not any(each.startswith(f"{path}.") for each in found):
            found.append(path)
    return found


def _fits(rule: Rule, function: Function, call: cst.Call, old: str, asked: set[str], sizes: _Sizes) -> bool:
    """Whether what is made takes the place of the old layer, or goes beside it: it takes both sizes, or its values."""
    word = old.split(".")[-1]
    if not asked & (_SIZES | {"weight"}) or not sizes.comes_from(function, old) or is_of_export(rule, call):
        return False
    if function.name == "__init__":
        # class Adapted(nn.Module): def __init__(self, base): self.down = nn.Linear(base.in_features, 8)
        param = function.param(old)
        if param is None or function.cls is None or not function.cls.is_module:
            return False
        told = rule.code(param.annotation.annotation) if param.annotation is not None else ""
        is_layer = _LAYER_TYPE.search(told) is not None or _LAYER.search(word) is not None
        return is_layer and _NETWORK.search(word) is None and bool(asked & {"in_features", "out_features", "weight"})
    if _takes_values(rule, function, call, old):
        return True
    return (len(asked & _SIZES) > 1 or "weight" in asked) and _is_put_in(rule, function, call)


def _is_put_in(rule: Rule, function: Function, call: cst.Call) -> bool:
    """``setattr(parent, name, nn.Linear(...))``, ``old.bias = nn.Parameter(...)``: into what is there, not into a model
    that the function builds, and not left to whoever asked for it."""
    names = _names(rule, call)
    if any("." in name and not name.startswith("self.") for name in names):
        return True
    above = rule.enclosing(call, cst.Call, cst.BaseStatement)
    calls = [above] if isinstance(above, cst.Call) else []
    calls += [node for node in tree.walk(function.node.body) if isinstance(node, cst.Call) and node is not above]
    return any(
        called_name(each) in ("setattr", "set_module", "set_submodule", "_set_module", "replace_module")
        and any(arg.value is call or dotted(arg.value) in names for arg in each.args)
        for each in calls
    )


def _takes_values(rule: Rule, function: Function, call: cst.Call, old: str) -> bool:
    """``new.weight.copy_(old.weight)``, ``new.load_state_dict(old.state_dict())``, ``new.weight.data[:n] = ...``"""
    names = _names(rule, call)
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Call) and called_name(node) in ("copy_", "load_state_dict") and node.args:
            into, value = node.func, node.args[0].value
        elif isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Subscript):
            into, value = node.targets[0].target, node.value
        else:
            continue
        code = rule.code(into)
        if any(code.startswith(f"{name}.") for name in names) and old in rule.code(value):
            return True
    return False


# whether anything brings it there ------------------------------------------------------------------


def _names(rule: Rule, call: cst.Call) -> set[str]:
    """What the statement binds to what it makes: ``new``, ``self.down``; ``down`` of a buffer of that name."""
    statement = rule.enclosing(call, cst.Assign, cst.AnnAssign, cst.BaseStatement)
    targets: list[cst.BaseExpression] = []
    if isinstance(statement, cst.Assign):
        targets = [each.target for each in statement.targets]
    elif isinstance(statement, cst.AnnAssign):
        targets = [statement.target]
    return {dotted(target) for target in targets} - {""}


def _is_brought(rule: Rule, function: Function, call: cst.Call, old: str) -> bool:
    """Whether the function moves what it makes, or the whole, or puts the old values themselves into it."""
    names, whole = _names(rule, call), old.split(".", maxsplit=1)[0]
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _MOVES:
            mover = rule.code(node.func.value)
            if len(node.args) == 1 and _is_type(rule.code(node.args[0])):
                continue
            if mover in names or mover in ("self", whole) or last_word(mover) not in _OF_TENSORS:
                return True
            if any(mover.startswith(f"{name}.") for name in names):
                return True
        elif isinstance(node, cst.Call) and node is not call and _MAY_MOVE.search(called_name(node)):
            if any(dotted(arg.value) in (*names, whole, "self") for arg in node.args):
                return True
        elif isinstance(node, cst.AssignTarget) and any(
            rule.code(node.target) in (f"{name}.weight", f"{name}.weight.data", f"{name}.data", f"{name}.__dict__")
            for name in names
        ):
            return True  # new.weight = old.weight
    attrs = [re.escape(name) for name in names if name.startswith("self.")]
    if attrs and function.cls is not None:
        moved = re.compile(rf"({'|'.join(attrs)})(\.data|\.weight)*(\.to\(|\.cuda\(|\.type_as\(| = self\.\w+\.to)")
        return moved.search(rule.code(function.cls.node)) is not None
    return False


def _is_type(code: str) -> bool:
    """``old.weight.dtype``, ``torch.float16``"""
    return _ELSEWHERE.search(code) is None and ("dtype" in code or "torch." in code)


def _is_brought_by_callers(rule: Rule, function: Function, seen: frozenset[Function]) -> bool:
    """``net = adapted(net); net.to(device)``: whether what calls a function in the file moves something of the kind
    afterwards."""
    if function in seen or len(seen) > 4:
        return False
    name = function.name
    if function.cls is not None and function.name in ("__init__", "from_float", "from_linear"):
        name = function.cls.name
    for call in rule.source.nodes_of(cst.Call):
        if called_name(call) != name and not dotted(call.func).startswith(f"{name}."):
            continue
        by = rule.flow.function(call)
        if by is function:
            continue
        if _moves_after(rule, by, call):
            return True
        if by is not None and _is_brought_by_callers(rule, by, seen | {function}):
            return True
    return False


def _moves_after(rule: Rule, by: Function | None, call: cst.Call) -> bool:
    for node in tree.walk(by.node.body if by is not None else rule.source.module):
        if not isinstance(node, cst.Call) or (by is None and rule.flow.function(node) is not None):
            continue
        word = called_name(node)
        if isinstance(node.func, cst.Attribute) and word in _MOVES:
            value = rule.flow.value(node.func.value)
            if not value.is_tensor and (node.func.value is call or not rule.source.comes_before(node, call)):
                return True
        elif _MAY_MOVE.search(word) and node is not call and rule.source.comes_before(call, node):
            return True
    return False
