"""Inputs that are made on the host, and models that are put somewhere out of sight.

The function is handed the model, or its object holds one; where that is, nobody can see. What a tokenizer gives, or a
factory, is on the host, and the function moves nothing: it works where the model happens to be on the host, and nowhere
else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow import outside
from devlint.flow import torch_table as table
from devlint.flow.hypothesis import MODEL_NAME
from devlint.flow.names import dotted, last_word
from devlint.flow.place import UNKNOWN_PLACE
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, Function
from devlint.flow.value import MODULE, UNKNOWN_KIND, Value
from devlint.rule import Rule
from devlint.rules._exports import is_of_export

#: What makes tensors that are on the host, always.
MADE_ON_HOST = outside.HOST_TENSORS.union(table.HOST_FACTORIES)
_OF_MACS = re.compile(r"\bmps\b")
#: Packages of which some move what a model is called with, and others have devices of their own.
_OTHERS = frozenset(
    "accelerate deepspeed fabric jax lightning onnxruntime openvino optimum pytorch_lightning sentence_transformers "
    "tensorflow".split()
)
_NO_MODEL = re.compile(r"token|process|collat", re.IGNORECASE)
_ASKED_BY = frozenset({"generate", "forward", "encode", "decode", "encode_image", "encode_text", "predict"})
_BRINGS = frozenset({"to", "cuda", "_prepare_inputs", "prepare_inputs", "send_to_device", "move_to_device"})


def unmoved_inputs(rule: Rule) -> Iterator[tuple[cst.Call, cst.BaseExpression, cst.BaseExpression, Value]]:
    """The calls of such models: the call, the model, the input and what is known of it."""
    text = rule.source.text
    if rule.in_tests or not _speaks_of_devices(text) or rule.flow.scope.packages & _OTHERS or "DataParallel" in text:
        return
    movers: dict[Function, bool] = {}
    for call in rule.source.nodes_of(cst.Call):
        given = call.args[0].value if call.args else None  # a batch may hold names and lengths behind its tensors
        value = rule.flow.value(given) if given is not None else None
        if given is None or value is None or not _is_made_on_host(rule, value):
            continue
        function = rule.flow.function(call)
        if function is None or function.role in (CONSTRUCTOR, HOST_SIDE):
            continue
        model = _model(rule, call)
        if model is None or is_of_export(rule, call) or not _is_handed(function, model):
            continue
        if function not in movers:
            movers[function] = _moves(function)
        if movers[function]:
            continue  # tokens["input_ids"] = tokens["input_ids"].to(device)
        place = rule.flow.value(model).place
        is_open = place == UNKNOWN_PLACE or place.is_there or place.kind == "param"
        if not is_encoding(rule, value) and not (is_open and _is_model(rule, model)):
            continue
        yield call, model, given, value


def _speaks_of_devices(text: str) -> bool:
    text = text.lower()
    return any(word in text for word in ("device", "cuda", "gpu")) or _OF_MACS.search(text) is not None


def _is_handed(function: Function, model: cst.BaseExpression) -> bool:
    """Whether a function is handed what it calls, or its object holds it: ``len(tokens)``, and ``self.split(tokens)``
    of a method, ask no model, and ``net = build(); net(torch.zeros(3))`` may be built on the host."""
    first, _, rest = dotted(model).partition(".")
    if first not in ("self", "cls"):
        return first in function.param_names
    return function.cls is None or function.cls.find_method(rest) is None


def _model(rule: Rule, call: cst.Call) -> cst.BaseExpression | None:
    """The model that a call asks: ``model(x)``, ``self.model.generate(x)``; handed in, or held by the object."""
    model = call.func
    if isinstance(model, cst.Attribute) and model.attr.value in _ASKED_BY:
        model = model.value
    path, function = dotted(model), rule.flow.function(call)
    value = rule.flow.value(model)
    if not path or function is None or value.kind not in (MODULE, UNKNOWN_KIND):
        return None
    if value.place.is_host or (value.place.is_there and value.ref is not None and value.place.name != "self"):
        return None  # it is on the host, or is known to be on a device, which the flow speaks of
    if _NO_MODEL.search(path):
        return None  # tokenizer.decode(ids), processor(ids)
    first, _, rest = path.partition(".")
    if first in ("self", "cls"):
        return model if "." not in rest or MODEL_NAME.match(rest.partition(".")[0]) else None
    return model if "." not in path else None


def _is_model(rule: Rule, node: cst.BaseExpression) -> bool:
    names = dotted(node).split(".")
    return rule.flow.value(node).kind == MODULE or any(MODEL_NAME.match(name) for name in names)


def is_encoding(rule: Rule, value: Value) -> bool:
    """What a tokenizer gave, or an entry of that."""
    return value.ref == "encoding" or (value.origin is not None and rule.flow.value(value.origin).ref == "encoding")


def _is_made_on_host(rule: Rule, value: Value) -> bool:
    """Whether a tokenizer, a factory or an array made it here, on the host."""
    if not value.place.is_host or value.attr is not None or not isinstance(value.origin, cst.Call):
        return False
    if is_encoding(rule, value):
        return True
    made = rule.flow.name_of(value.origin) in MADE_ON_HOST or rule.flow.factory(value.origin) is not None
    return made and value.is_tensor


def _moves(function: Function) -> bool:
    """``inputs = self._prepare_inputs(inputs)``: another function may move them."""
    return function.moves_something or any(
        isinstance(node, cst.Call) and last_word(dotted(node.func)) in _BRINGS for node in tree.walk(function.node.body)
    )
