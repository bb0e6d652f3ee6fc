"""The device that a function is told, or works out, and what it puts where."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import libcst as cst

from devlint.finding import Fix
from devlint.flow.names import dotted, names_bound
from devlint.flow.place import from_string
from devlint.flow.scope import Function
from devlint.rule import Rule

#: What a parameter is called that tells a device.
DEVICE_NAMES = ("device", "torch_device")
#: Words in a test that decide on the device: what stands under it is meant for one of them.
_ASKS = re.compile(r"device|cuda|gpu|mps|xpu|npu|hpu")
_AVAILABLE = re.compile(r"torch\.cuda\.is_available\(\)")


@dataclass
class Use:
    """A call that makes or moves something: ``target`` says where to, ``None`` for ``x.cuda()``."""

    call: cst.Call
    target: cst.BaseExpression | None
    receiver: cst.BaseExpression | None

    @property
    def path(self) -> str:
        return dotted(self.target)


@dataclass
class Told:
    """The device that a function is told, or works out itself (``bindings``)."""

    name: str
    param: cst.Param | None = None
    bindings: list[cst.Assign] = field(default_factory=list)


def uses_by_function(rule: Rule) -> dict[Function, list[Use]]:
    """What is moved, or made with ``device=``, in each function."""
    uses: dict[Function, list[Use]] = {}
    calls: dict[cst.Call, Use] = {}
    for move in rule.flow.facts.moves.values():
        if move.how != "cpu":
            calls[move.node] = Use(move.node, move.target_node, move.receiver)
    for arg in rule.source.nodes_of(cst.Arg):
        call = rule.parent(arg)
        if type(call) is not cst.Call or call in calls:
            continue
        if (arg.keyword is not None and arg.keyword.value == "device") or _moves_pipeline(rule, call):
            calls[call] = Use(call, arg.value, None)
    for use in calls.values():
        function = rule.flow.function(use.call)
        if function is not None:
            uses.setdefault(function, []).append(use)
    return uses


def _moves_pipeline(rule: Rule, call: cst.Call) -> bool:
    func = call.func
    return (
        type(func) is cst.Attribute
        and func.attr.value == "to"
        and len(call.args) >= 1
        and (value := rule.flow.value(func.value)).kind == "instance"
        and value.text == "pipeline"
    )


def told(rule: Rule, function: Function) -> Told | None:
    """The device that a function is handed, or binds, or finds around it."""
    bindings = [
        node
        for node in rule.source.nodes_of(cst.Assign)
        if rule.flow.function(node) is function and targets(node) & set(DEVICE_NAMES)
    ]
    for param in function.params:
        if param.name.value in DEVICE_NAMES:
            return Told(param.name.value, param, [node for node in bindings if param.name.value in targets(node)])
    bindings = [node for node in bindings if "device" in targets(node)]
    if bindings:
        return Told("device", bindings=bindings)
    outer = function.outer
    # def test(device): class Probe(Metric): def reset(self): torch.zeros(1, device=self._device)
    if "device" not in function.assigned and outer is not None and (function.cls is None or function.cls is outer.cls):
        return told(rule, outer)
    return None


def targets(node: cst.Assign) -> set[str]:
    return names_bound(*(target.target for target in node.targets))


def constant(rule: Rule, use: Use) -> str | None:
    """The accelerator that a use names by a constant."""
    node = use.target
    if node is None or isinstance(node, cst.Integer):
        return use.call.func.attr.value if isinstance(use.call.func, cst.Attribute) else None
    if isinstance(node, cst.Call) and len(node.args) == 1 and rule.flow.name_of(node) == "torch.device":
        node = node.args[0].value
    if isinstance(node, cst.SimpleString):
        text = str(node.evaluated_value)
        return text if from_string(text).is_there else None
    return None


def names_constants_outside(rule: Rule, function: Function) -> bool:
    """Whether the file puts anything on an accelerator by name outside of a function."""
    if "cuda" not in rule.source.text:
        return False
    for attribute in rule.source.nodes_of(cst.Attribute):
        called = isinstance(rule.parent(attribute), cst.Call)
        if called and attribute.attr.value == "cuda" and rule.flow.function(attribute) is not function:
            return True
    return any(
        "cuda" in text.value
        and str(text.evaluated_value).startswith("cuda")
        and isinstance(arg := rule.parent(text), cst.Arg)
        and rule.flow.function(text) is not function
        and _says_where(rule, arg)
        for text in rule.source.nodes_of(cst.SimpleString)
    )


def _says_where(rule: Rule, arg: cst.Arg) -> bool:
    """``x.to("cuda")``, ``f(device="cuda")``"""
    if arg.keyword is not None:
        return arg.keyword.value == "device"
    call = rule.parent(arg)
    return isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and call.func.attr.value == "to"


def is_torch(rule: Rule, use: Use) -> bool:
    """Whether a call is known to put tensors or modules somewhere: ``Voice(path, device="cuda")`` may be anything."""
    named = rule.flow.name_of(use.call).startswith("torch.")
    return named or rule.flow.move(use.call) is not None or _moves_pipeline(rule, use.call)


def asks_as_binding(rule: Rule, told: Told, node: cst.CSTNode) -> bool:
    """``device = "cuda" if args.fast else "cpu"; if args.fast: net.to("cuda")``: the two are never apart."""
    tests = {rule.code(bound.value.test) for bound in told.bindings if isinstance(bound.value, cst.IfExp)}
    current = rule.parent(node)
    while current is not None and tests:
        if isinstance(current, cst.If | cst.IfExp) and rule.code(current.test) in tests:
            return True
        current = rule.parent(current)
    return False


def is_current(rule: Rule, use: Use) -> bool:
    """Whether a constant means the device that the file has set: ``torch.cuda.set_device(rank); x.cuda()``."""
    if isinstance(use.target, cst.Integer) or ":" in (constant(rule, use) or ":"):
        return False
    return bool(rule.flow.calls("torch.cuda.set_device", "torch.cuda.device"))


def spread(constants: Iterable[str | None]) -> bool:
    """``front.to("cuda:0"); back.to("cuda:1")``: layers are spread over devices."""
    return len({constant for constant in constants if constant is not None and ":" in constant}) > 1


def asked(rule: Rule, node: cst.CSTNode, function: Function) -> bool:
    """Whether a test around a node asks for the device: ``if device is None: x = x.to(self.device)``."""
    parents = rule.source.parents
    current = parents.get(node)
    while current is not None and current is not function.node:
        if isinstance(current, cst.If | cst.IfExp | cst.While) and _ASKS.search(
            _AVAILABLE.sub("", rule.code(current.test))
        ):
            return True
        current = parents.get(current)
    return False


def bound_before(rule: Rule, device: Told, at: cst.CSTNode) -> bool:
    """Whether the device is known at a node, and not as in ``net.cuda()`` above ``device = ...``."""
    if device.param is not None:
        return True
    offset, _ = rule.source.offsets(at)
    return any(rule.source.offsets(node)[0] < offset for node in device.bindings)


def use_instead(rule: Rule, use: Use, device: str) -> Fix | None:
    """Makes or moves it to ``device``."""
    if use.target is not None and not isinstance(use.target, cst.Integer):
        return rule.fix(f"use `{device}`", rule.replace(use.target, device), safe=False)
    func = use.call.func
    if not isinstance(func, cst.Attribute):
        return None
    if use.target is not None:
        edits = [rule.replace(use.target, device), rule.replace(func.attr, "to")]
    elif not use.call.args:
        start, _ = rule.source.offsets(func.attr)
        _, end = rule.source.offsets(use.call)
        edits = [rule.replace_between(start, end, f"to({device})")]
    else:  # x.cuda(non_blocking=True)
        start, _ = rule.source.offsets(func.attr)
        first, _ = rule.source.offsets(use.call.args[0])
        edits = [rule.replace_between(start, first, f"to({device}, ")]
    return rule.fix(f"use `{device}`", *edits, safe=False)
