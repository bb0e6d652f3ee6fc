"""What is a `torch.device`: by all that the file shows, where the flow does not know, and surely, where it does."""

from __future__ import annotations

import re

import libcst as cst

from devlint.flow.names import dotted
from devlint.flow.value import OF_TENSOR
from devlint.rule import Rule

#: Whose `device` is a `torch.device`, as libraries have it.
_HAVE_DEVICE = re.compile(r"(^|_)(accelerator|fabric|unet|vae|pipe|pipeline|model|text_encoder|transformer)$")
#: Bases whose own `device` is one.
_BASES = re.compile(r"LightningModule|PreTrainedModel|ModelMixin|DiffusionPipeline|DeviceDtypeModuleMixin")


def why_device_object(rule: Rule, node: cst.BaseExpression) -> cst.CSTNode | None:
    """What shows that ``self.params.device`` is a ``torch.device``, and no string."""
    path = dotted(node)
    if not isinstance(node, cst.Attribute) or node.attr.value != "device" or not path or rule.flow.value(node).text:
        return None
    holder = path.removesuffix(".device")
    # model.device, self.accelerator.device
    if _HAVE_DEVICE.search(holder.rpartition(".")[2]):
        return node.value
    if holder == "self":
        cls = rule.enclosing(node, cst.ClassDef)
        bases = cls.bases if isinstance(cls, cst.ClassDef) else ()
        return next((base for base in bases if _BASES.search(rule.code(base.value))), None)
    return _declared(rule)


def is_surely_object(rule: Rule, device: cst.BaseExpression) -> bool:
    """Whether it is a ``torch.device`` by more than an annotation: those are written of strings as well."""
    value, name = rule.flow.value(device), dotted(device)
    if value.ref == OF_TENSOR or not isinstance(value.origin, cst.Param):
        return True
    function = rule.flow.function(device)  # stream = torch.cuda.Stream() if device.type == "cuda" else None
    return bool(name) and any(
        node.attr.value in ("type", "index") and dotted(node.value) == name and rule.flow.function(node) is function
        for node in rule.source.nodes_of(cst.Attribute)
    )


def _declared(rule: Rule) -> cst.CSTNode | None:
    """``class Params: device: torch.device``, where no class of the file has another field of that name."""
    fields = [
        field
        for field in rule.source.nodes_of(cst.AnnAssign)
        if dotted(field.target) == "device" and rule.flow.function(field) is None
    ]
    return fields[0] if fields and all(_is_of_devices(rule, field) for field in fields) else None


def _is_of_devices(rule: Rule, field: cst.AnnAssign) -> bool:
    """``device: torch.device``, ``device: Device = torch.device("cuda")``"""
    made = field.value
    if isinstance(made, cst.Call) and rule.flow.scope.qualified(made.func) == "torch.device":
        return True
    return rule.flow.scope.qualified(field.annotation.annotation) == "torch.device"
