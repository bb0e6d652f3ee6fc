"""The hypothesis in words: names and tests that decide on it.

Code is judged as it runs when the target device is an accelerator: ``device`` is there, and
``if torch.cuda.is_available():`` is taken.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from devlint.flow.names import dotted
from devlint.flow.place import DIFFERENT, HOST, from_string, relation
from devlint.flow.value import CLASS, DATA, DEVICE, NONE, SELF, Value

if TYPE_CHECKING:
    from devlint.flow.frame import Frame

_DEVICE_NAME = re.compile(r"^(_?(torch_?)?device(_id)?|dev|_?\w+_device)$")
_NOT_A_DEVICE = re.compile(
    r"(^|_)(multi|single|num|per|cross|same|no|on|is|use|data_device|on_host|host|cpu|meta)_device$|^is_|^use_|^has_|^n_|_per_device$"
)
_DEVICE_NUMBER = re.compile(r"^_?((local|global)_?)?rank$|^gpu(_?(id|idx|index|num|rank))?$")
_ACCELERATOR_FLAG = re.compile(
    r"^(use_|has_|with_|on_|is_)?(cuda|gpu|gpus|cuda_available|gpu_available)$", re.IGNORECASE
)
_HOST_FLAG = re.compile(r"^(no|disable|not)_(cuda|gpu)$|^(use_|force_)?cpu(_only)?$", re.IGNORECASE)
_AVAILABLE = re.compile(r"^torch\.(cuda|accelerator)\.is_available$")
#: ``torch.jit.is_scripting()``, ``is_torch_fx_proxy(x)``: nothing is computed where a program is only recorded.
_TRACING = re.compile(r"(^|[._])is_(scripting|(\w+_)?tracing|in_onnx_export|(\w+_)?fx_proxy|(\w+_)?exporting)$")

#: Not ``self.d_model``, ``n_critic``, ``use_encoder``: widths, counts and switches.
MODEL_NAME = re.compile(
    r"^(?!_?((d|dim)_model|(n|num|is|has|use|with|no)_\w+)$)_?(\w+_)?(model|net|network|module|backbone|encoder|decoder|generator|discriminator|unet|vae|policy|actor|critic|classifier)"
    r"(_\d|\d)?$|^net[A-Z]?$|^(netG|netD|G|D)$"
)
LOADER_NAME = re.compile(
    r"(^|_)(data_?)?loader[s]?$|^(train|val|test|eval|valid)_?(dl|loader|iter)$|dataloader$|^dataloader", re.I
)
OPTIMIZER_NAME = re.compile(r"^(optim|optimizer|opt)(_\w+)?$|_(optim|optimizer)$")
LOSS_NAME = re.compile(
    r"(^|_)(criterion|loss(es)?)(_(fn|fun|func|function|fct))?(_\d|\d)?$|^crit(erion)?(_\w+)?$|^loss_\w+$"
)
PIPELINE_NAME = re.compile(r"(^|[_.])pipe(line)?s?(_|\d|$|\[)")


@lru_cache(maxsize=4096)
def names_device(name: str) -> bool:
    """``device``, ``torch_device``, ``compute_device``: a name that stands for the target device."""
    return _DEVICE_NAME.match(name) is not None and _NOT_A_DEVICE.search(name) is None


def numbers_device(name: str) -> bool:
    """``rank``, ``local_rank``, ``gpu``: a name that stands for the target device where one is asked for."""
    return _DEVICE_NUMBER.match(name) is not None


_ASKS_DEVICE = re.compile(r"device|cuda|gpu|cpu|mps|xpu|npu|hpu|numpy|ndarray|onnx|trac|script|export")
_WORD = re.compile(r"[A-Za-z_][\w.]*")
_OF_NO_MEANING = frozenset("self torch np isinstance len None True False hasattr not and or is in if else".split())


def asks_for_device(code: str) -> bool:
    """Whether a test is about a device, or about what is no tensor on one."""
    return _ASKS_DEVICE.search(code) is not None


def decides(frame: Frame, test: cst.CSTNode, at: cst.CSTNode) -> bool:
    """Whether ``test`` may decide on more than the value it was seen to decide on.

    It asks for a device itself, or what happens ``at`` a node hangs on a test of the same things.
    """
    code = frame.scope.source.code
    text = code(test)
    if asks_for_device(text):
        return True
    words = set(_WORD.findall(text)) - _OF_NO_MEANING
    parents = frame.scope.source.parents
    above = parents.get(at)
    while above is not None and type(above) is not cst.FunctionDef:
        if isinstance(above, cst.If | cst.IfExp | cst.While) and words & set(_WORD.findall(code(above.test))):
            return True
        above = parents.get(above)
    return False


def truth(frame: Frame, test: cst.BaseExpression) -> bool | None:
    """Whether a test holds under the hypothesis; ``None`` where it does not say."""
    if type(test) is cst.UnaryOperation and isinstance(test.operator, cst.Not):
        inner = truth(frame, test.expression)
        return None if inner is None else not inner
    if type(test) is cst.BooleanOperation:
        left, right = truth(frame, test.left), truth(frame, test.right)
        if isinstance(test.operator, cst.And):
            if left is False or right is False:
                return False
            return True if left and right else None
        if left is True or right is True:
            return True
        return False if left is False and right is False else None
    if outlives_call(frame, test):
        return _flag(dotted(test).rpartition(".")[2], None)
    if type(test) is cst.Name:
        if test.value == "True" or test.value == "False":
            return test.value == "True"
        if test.value == "TYPE_CHECKING":
            return False
        return _flag(test.value, frame.values.get(test))
    if type(test) is cst.Integer:
        return test.evaluated_value != 0  # if 0: ...   what was taken out for now
    if type(test) is cst.Attribute:
        attr = test.attr.value
        if attr == "is_cuda":
            value = frame.values.get(test.value)
            if value is None or not value.place.is_known:
                return None
            return value.place.is_there
        return _flag(attr, frame.values.get(test))
    if type(test) is cst.Call:
        name = frame.scope.qualified(test.func)
        if _AVAILABLE.match(name):
            return True
        return False if _TRACING.search(name) else None
    if type(test) is cst.Comparison and len(test.comparisons) == 1:
        return _comparison(frame, test)
    return None


def outlives_call(frame: Frame, node: cst.BaseExpression) -> bool:
    """Whether something that is ``None`` at first may have been set by an earlier call: ``if Scale.factor is None:``"""
    value = frame.values.get(node)
    if frame.function is None or value is None or value.kind != NONE or frame.key(node) in (frame.env or {}):
        return False  # what this call bound itself is as it left it
    if type(node) is cst.Name:
        return node.value in frame.function.globals
    holder = frame.values.get(node.value) if type(node) is cst.Attribute else None
    return holder is not None and (holder.kind == CLASS or (holder.kind == SELF and frame.function.is_classmethod))


def _flag(name: str, value: Value | None) -> bool | None:
    if value is not None and value.kind == NONE:
        return False
    if _ACCELERATOR_FLAG.match(name):
        return True
    if _HOST_FLAG.match(name):
        return False
    return None


def _comparison(frame: Frame, test: cst.Comparison) -> bool | None:
    target = test.comparisons[0]
    operator = type(target.operator)
    left, right = frame.values.get(test.left), frame.values.get(target.comparator)
    if left is None or right is None:
        return None
    if operator in (cst.Is, cst.IsNot):
        if right.kind == NONE and left.kind == NONE and not outlives_call(frame, test.left):
            return operator is cst.Is
        return None
    if operator not in (cst.Equal, cst.NotEqual):
        return None
    equal = _same_device(test.left, left, right)
    if equal is None:
        equal = _same_device(target.comparator, right, left)
    if equal is None:
        return None
    return equal if operator is cst.Equal else not equal


def _same_device(node: cst.BaseExpression, device: Value, text: Value) -> bool | None:
    # `device.type == "cuda"`, `str(device) != "cpu"`, `device == torch.device("cpu")`
    if text.kind == DATA and text.text is not None:
        if device.is_device_object:
            return None  # never equal, whatever is meant
        place = from_string(text.text)
    elif text.kind == DEVICE and text.place == HOST:
        place = HOST
    else:
        return None
    holder = device
    if holder.kind != DEVICE:
        name = dotted(node)
        if not (
            name.endswith(".type") and names_device(name.rpartition(".")[0].rpartition(".")[2])
        ) and not names_device(name.rpartition(".")[2]):
            return None
        return place.name.startswith("cuda") or (False if place == HOST else None)
    if not holder.place.is_known or not place.is_known:
        return None
    if place == HOST or holder.place == HOST:
        return relation(holder.place, place) != DIFFERENT
    # one accelerator is meant; which one the hypothesis does not say, cuda first of all
    return True if place.name.startswith("cuda") and holder.place.kind == "device" else None
