"""CUDA that is written down where nothing chose it and nothing asks whether there is any."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator

import libcst as cst

from devlint.flow.names import called_name, dotted
from devlint.flow.value import DEVICE, UNKNOWN_KIND
from devlint.rule import Rule
from devlint.rules._portability import Surroundings, is_device_name, told_to_device

_CUDA = re.compile(r"cuda(:\d+)?")
_DEFINITIONS = (cst.FunctionDef, cst.ClassDef)
#: Calls that compare, look up or print a text: `name.startswith("cuda")`, `getattr(torch, "cuda")`.
_OF_TEXTS = frozenset(dir(builtins)) | frozenset(dir(str)) | frozenset(dir(dict)) | frozenset(dir(list))
#: Calls that take the name of a kind of device, or of something else, and put nothing there.
_OF_NAMES = re.compile(
    r"add_argument|add_option|option|argument|autocast|GradScaler|CUDAExtension|import_module|importorskip|skipif|"
    r"warn|info|debug|warning|error|log|parametrize|mark|backend|set_provider",
    re.IGNORECASE,
)


def written_choices(rule: Rule, around: Surroundings) -> Iterator[tuple[str, cst.BaseExpression]]:
    """``device = torch.device("cuda")`` and ``self.device = "cuda"``: what all that reads them works on.

    Not what stands in a class (``device: str = "cuda"`` of settings), and may be set otherwise.
    """
    if around.is_test or around.demands_cuda:
        return
    for path, value in around.assignments():
        name = path.rpartition(".")[2]
        if not is_device_name(name.lower()) or not is_cuda(told_to_device(rule, value)):
            continue
        if around.guard(value) is not None or isinstance(rule.enclosing(value, *_DEFINITIONS), cst.ClassDef):
            continue
        function = around.function(value)
        # if args.cpu: device = "cpu"   def run(device): device = "cuda"
        if "." not in path and function is not None and name in function.param_names:
            continue
        if all("cuda" in text for text in around.assigned_to(path)):
            yield path, value


def handed_as_text(rule: Rule, call: cst.Call) -> cst.BaseExpression | None:
    """``"cuda"`` of ``load(path, "cuda")``, of a function that is neither torch's nor about texts."""
    name = rule.flow.scope.qualified(call.func)
    last = called_name(call)
    if name.startswith("torch.") or not last or last in ("to", "cuda", *_OF_TEXTS) or _OF_NAMES.search(last):
        return None
    return next((arg.value for arg in call.args if arg.keyword is None and not arg.star and is_cuda(arg.value)), None)


def told_to_cuda(rule: Rule, call: cst.Call) -> cst.BaseExpression | None:
    """``self.device`` of ``x.cuda(self.device)``, which raises where that is the CPU; not ``x.cuda(args.gpu)``."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "cuda" or len(call.args) not in (1, 2):
        return None
    given = next((arg for arg in call.args if arg.keyword is None or arg.keyword.value == "device"), None)
    told = told_to_device(rule, given.value) if given is not None else None
    if given is None or told is None or not is_device_name(dotted(told).rpartition(".")[2]):
        return None
    value = rule.flow.value(given.value)
    return told if value.kind in (DEVICE, UNKNOWN_KIND) and value.place.kind != "fixed" else None


def is_cuda(node: cst.BaseExpression) -> bool:
    """Whether it is the text ``"cuda"``, or that of one of them: ``"cuda:1"``."""
    return isinstance(node, cst.SimpleString) and _CUDA.fullmatch(str(node.evaluated_value)) is not None
