"""CUDA as the default of a field, a parameter or an option, in a file that never asks whether there is any."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted
from devlint.rule import Rule
from devlint.rules._portability import Surroundings, is_device_name, told_to_device
from devlint.rules._unasked import is_cuda
from devlint.testcode import near

#: Said where something asks what there is: `get_device()`, `self._check_device(device)`, `except RuntimeError:`.
_ASKS = re.compile(
    r"is_available|device_count|(?:has|have|use|no|with)_(?:cuda|gpu)|(?:cuda|gpu)_available|accelerat|"
    r"except (?:Runtime|Assertion)Error|(?:get|resolve|pick|select|choose|infer|detect|auto|check|validate|valid|best|"
    r"find|setup|set|prepare|normali[sz]e|parse)_(?:\w*_)?device\w*\(",
    re.IGNORECASE,
)
#: What is for CUDA by what it is called, or measures how fast that is.
_FOR_CUDA = re.compile(r"cuda|gpu|nccl|triton|nvidia|kernel|bench|profil|/csrc/|tensorrt|(?<![a-z])trt(?![a-z])", re.I)
#: What holds the default of a field or an option: `field(default="cuda")`, `typer.Option("cuda", "--device")`.
_HOLDERS = frozenset({"field", "Field", "Option", "Argument", "attrib", "ib"})
_OPTIONS = frozenset({"add_argument", "option", "add_option"})


def written_defaults(rule: Rule, around: Surroundings) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Names with the default ``"cuda"``, and where that stands."""
    path = "/" + "/".join(near(rule.source.path))
    if around.is_test or around.demands_cuda or _ASKS.search(rule.source.text) or _FOR_CUDA.search(path):
        return
    for name, value in (*_fields(rule), *_parameters(rule), *_options(rule)):
        if is_device_name(name.lower()) and around.guard(value) is None:
            yield name, value


def _fields(rule: Rule) -> Iterator[tuple[str, cst.BaseExpression]]:
    """``device: str = "cuda"`` of a class of settings, and ``device = torch.device("cuda")`` of any class."""
    nodes: list[cst.Assign | cst.AnnAssign] = [*rule.source.nodes_of(cst.Assign)]
    for node in (*nodes, *rule.source.nodes_of(cst.AnnAssign)):
        target = node.targets[0].target if isinstance(node, cst.Assign) else node.target
        if node.value is None or not isinstance(target, cst.Name):
            continue
        held = _held(rule, node.value)
        cls = rule.enclosing(node, cst.FunctionDef, cst.ClassDef)
        if held is None or not isinstance(cls, cst.ClassDef) or _FOR_CUDA.search(cls.name.value):
            continue
        if not _is_set(cls, target.value):
            yield target.value, held


def _is_set(cls: cst.ClassDef, name: str) -> bool:
    """``class Net: device = "cuda"`` and ``def __init__(self, device): self.device = device``"""
    return any(
        isinstance(node, cst.AssignTarget) and dotted(node.target) == f"self.{name}" for node in tree.walk(cls.body)
    )


def _parameters(rule: Rule) -> Iterator[tuple[str, cst.BaseExpression]]:
    """``def __init__(self, size, device="cuda")``, of what uses it and is not called with that in the file."""
    # those are said for themselves
    left = {param for _, param in rule.flow.facts.left_at_default.values()}
    for function in rule.flow.scope.functions.values():
        # def main(device="cuda"): of a script, which may be for CUDA only
        if function.name == "main":
            continue
        if _FOR_CUDA.search(function.name) or (function.cls is not None and _FOR_CUDA.search(function.cls.name)):
            continue
        for param in function.params:
            held = _held(rule, param.default) if param.default is not None and param not in left else None
            if held is None:
                continue
            # def load(path, device="cuda"): ...   of a protocol, or that reads it nowhere
            if any(True for _ in tree.named(function.node.body, param.name.value)):
                yield param.name.value, held


def _options(rule: Rule) -> Iterator[tuple[str, cst.BaseExpression]]:
    """``parser.add_argument("--device", default="cuda")``; not with ``choices``, which tell what else there is."""
    for call in rule.source.nodes_of(cst.Call):
        if called_name(call) not in _OPTIONS:
            continue
        given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
        held = _held(rule, given["default"]) if "default" in given and "choices" not in given else None
        if held is None:
            continue
        for arg in call.args:
            text = str(arg.value.evaluated_value) if isinstance(arg.value, cst.SimpleString) else ""
            if arg.keyword is None and is_device_name(text.lstrip("-").replace("-", "_")):
                yield text.lstrip("-").replace("-", "_"), held
                break


def _held(rule: Rule, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``"cuda"`` as it is, in ``torch.device("cuda")``, or in ``field(default="cuda")``."""
    if isinstance(node, cst.Call) and dotted(node.func).rpartition(".")[2] in _HOLDERS:
        told = [arg.value for arg in node.args if arg.keyword is not None and arg.keyword.value == "default"]
        first = [arg.value for arg in node.args[:1] if arg.keyword is None and not arg.star]
        return next((each for each in (*told, *first) if is_cuda(each)), None)
    return node if is_cuda(told_to_device(rule, node)) else None
