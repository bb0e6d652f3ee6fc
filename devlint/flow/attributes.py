"""What ``base.attr`` is."""

from __future__ import annotations

import re

import libcst as cst

from devlint.flow import arrays, elsewhere, hypothesis, loaders
from devlint.flow import torch_table as table
from devlint.flow.arguments import Args, Operand
from devlint.flow.frame import Frame
from devlint.flow.names import dotted
from devlint.flow.place import SOMEWHERE, UNKNOWN_PLACE, Place
from devlint.flow.scope import Class
from devlint.flow.value import (
    ANY_DTYPE,
    ARRAY,
    CLASS,
    DATA,
    DEVICE,
    ELEMENT,
    FUNCTION,
    GENERATOR,
    HOST_DATA,
    INSTANCE,
    LIST,
    MODULE,
    NAME,
    OBJECT,
    OF_LAYER,
    OF_SETTINGS,
    OF_TENSOR,
    PARTIAL,
    SELF,
    TENSOR,
    THING,
    TOLD,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    part,
    substitute,
    tensor,
    without_place,
)

#: Names of what holds the settings of a program: ``args``, ``self.app_state``.
_SETTINGS = re.compile(r"(^|[._])(args?|opts?|options?|cfg|conf|config|hparams|params|settings|flags|state)$", re.I)


def attribute(frame: Frame, node: cst.BaseExpression, base: Value, attr: str) -> Value:
    """``base.attr`` where no path says more."""
    value = _attribute(frame, node, base, attr)
    if value.origin is None and frame.flow.project is not None and isinstance(base.ref, Class):
        owner = base.ref if base.ref.home is not frame.flow else frame.flow.heir(base.ref, attr)
        if owner is not None:
            elsewhere.note(frame.flow, node, owner)
            if value.kind in (TENSOR, THING, MODULE):
                return value.but(origin=node)
    return value


def _attribute(frame: Frame, node: cst.BaseExpression, base: Value, attr: str) -> Value:
    kind = base.kind
    if base.or_host is not None and attr == "device":
        return Value(DEVICE, UNKNOWN_PLACE)  # the host's on one side of an `if`
    if kind == NAME:
        qualified = f"{base.ref}.{attr}"
        if base.ref == "torch" and attr in table.DTYPES:
            return ANY_DTYPE
        return frame.flow.named(qualified)
    if kind in (TENSOR, THING):
        if attr == "device":
            move = frame.facts.moves.get(base.origin) if base.origin is not None else None
            by_to = move is not None and move.how == "to"  # x = x.to(device): torch's own spelling
            place = base.place
            if kind == TENSOR and place == UNKNOWN_PLACE:
                place = _unknown_attribute(frame, node, attr).place  # rows = scaled(batch.x); rows.device
            if kind == TENSOR and (by_to or _is_torchs(frame, base)):
                return Value(DEVICE, place, base.origin, ref=OF_TENSOR)
            # an object of the project's own keeps the one that it was told, perhaps without an index
            return Value(DEVICE, place, base.origin, ref=OBJECT if by_to else None)
        if attr == "dtype":
            return ANY_DTYPE
        known = table.ATTRIBUTES.get(attr)
        if known == "host":
            return HOST_DATA
        if known == "tensor":
            tracked = False if attr in ("data", "grad") else base.tracked
            # layer.weight.T is registered nowhere
            ref = None if base.ref in ("parameter", "buffer", OF_LAYER) else base.ref
            return base.but(grad=False, obj=None, tracked=tracked, ref=ref)
        found = loaders.entry(base, attr)
        if found is not None:
            return found
        if kind == THING and base.ref != "moved" and base.text != ELEMENT:  # for image in images: image.history
            return part(base) if attr != "keys" else UNKNOWN
        return UNKNOWN
    if kind == SELF:
        value = frame.flow.attribute_at_use(base.ref, attr, frame)
        if value is None:
            value = _of_methods(frame, node, base, attr)
        return value if value is not None else _unknown_attribute(frame, node, attr)
    if kind == MODULE:
        return _module_attribute(frame, node, base, attr)
    if kind == INSTANCE:
        if attr == "flat" and arrays.is_axes(base):
            return base
        value = _of_methods(frame, node, base, attr)
        if value is None:
            value = frame.flow.attribute_of(base.ref, attr)
        if value is not None and value.kind == DEVICE and base.items and attr in base.items:
            return value.but(place=base.items[attr], origin=None)
        return _as_constructed(value, base) if value is not None else _unknown_attribute(frame, node, attr)
    if kind == DEVICE:
        if attr == "type" and base.place.is_host:
            return Value(DATA, base.place, text="cpu")
        return HOST_DATA if attr in ("type", "index") else UNKNOWN
    if kind == CLASS:
        if any(attr in owner.attrs_of_class for owner in base.ref.lineage):
            return frame.flow.attribute_of(base.ref, attr) or UNKNOWN
        method = base.ref.find_method(attr)
        if method is None and attr == "apply":
            return _applied(node, base.ref)
        return Value(FUNCTION, ref=method) if method is not None and not method.is_property else UNKNOWN
    if kind == GENERATOR and attr == "device":
        return Value(DEVICE, base.place, base.origin, ref=OBJECT)
    if kind == ARRAY:
        return base if attr == "T" else HOST_DATA
    if attr == "saved_tensors" and kind == UNKNOWN_KIND and frame.of_autograd:
        assert frame.function is not None
        param = frame.function.positional[0]  # def backward(ctx, grad): x, weight = ctx.saved_tensors
        return Value(LIST, items=tensor(Place("param", param.name.value, frame.id), param, zero=False))
    return _unknown_attribute(frame, node, attr)


def _as_constructed(value: Value, base: Value) -> Value:
    """An attribute seen from outside: what its constructor was handed there is not known here."""
    init = base.ref.find_method("__init__") if isinstance(base.ref, Class) else None
    if init is not None and value.place.scope == init.scope and value.kind != DEVICE:
        return without_place(value)
    place = value.place
    if place.kind == "device" and place.name.startswith("self.") and place.name.count(".") > 1 and value.kind != DEVICE:
        return without_place(value)  # self.net = net.to(self.fabric.device): each object has a fabric of its own
    return value


def _is_torchs(frame: Frame, value: Value) -> bool:
    """Whether a tensor is torch's: what only looks like one may be another library's, whose device is a string."""
    if "torch" not in frame.scope.packages:
        return False
    if value.ref == TOLD:
        return True
    origin = value.origin
    while isinstance(origin, cst.Call) and isinstance(origin.func, cst.Attribute) and origin not in frame.facts.names:
        receiver = frame.values.get(origin.func.value)  # y = x.cpu(): as sure as x is
        if receiver is None or receiver.kind == UNKNOWN_KIND:
            return origin.func.attr.value == "parameters"
        if not receiver.holds_tensors or receiver.origin is origin:
            break
        origin = receiver.origin
    if not isinstance(origin, cst.Param):
        return origin is not None
    if origin.annotation is None:
        return frame.cls is not None and frame.cls.is_module
    return any(name.startswith("torch.") for name in frame.scope.qualified_names(origin.annotation))


def _of_methods(frame: Frame, node: cst.CSTNode, base: Value, attr: str) -> Value | None:
    """A method bound to the object, or what a property of it gives; ``None`` where the class has no such."""
    method = base.ref.find_method(attr) if isinstance(base.ref, Class) else None
    if method is None:
        return None
    if not method.is_property:
        return Value(FUNCTION, ref=method, items=None if method.is_static or method.is_classmethod else base)
    if any(attr in owner.attrs for owner in base.ref.lineage):
        return None  # a subclass sets it
    summary = frame.flow.summary(method, frame)
    if summary is None:
        return None
    places = {("self", cls.scope): base.place for cls in base.ref.lineage}
    returned = summary.returns
    if method.home is not frame.flow:
        elsewhere.note(frame.flow, node, method)
        if method.cls is not None:
            places["self", method.cls.scope] = base.place
        returned = elsewhere.value(returned, node, places)
    return substitute(returned, places)


def _applied(node: cst.BaseExpression, cls: Class) -> Value:
    """``Scale.apply`` of a ``torch.autograd.Function``: its ``forward``, which is handed a context first."""
    forward = cls.find_method("forward")
    is_function = any("torch.autograd.Function" in each.bases for each in cls.lineage)
    if forward is None or not is_function or not forward.is_static:
        return UNKNOWN
    context: list[Operand] = [] if cls.find_method("setup_context") is not None else [(node, UNKNOWN)]
    return Value(PARTIAL, ref=Value(FUNCTION, ref=forward), items=Args(context, {}, starred=False))


def _unknown_attribute(frame: Frame, node: cst.BaseExpression, attr: str) -> Value:
    if hypothesis.names_device(attr):
        if _is_never_bound(frame, node):
            return Value(DEVICE)
        key = frame.key(node)
        return Value(DEVICE, frame.symbol(key) if key is not None else SOMEWHERE)
    if attr == "dtype" or attr.endswith("_dtype"):
        of_settings = isinstance(node, cst.Attribute) and _SETTINGS.search(dotted(node.value)) is not None
        return ANY_DTYPE.but(ref=OF_SETTINGS) if of_settings else ANY_DTYPE
    return UNKNOWN


def _is_never_bound(frame: Frame, node: cst.BaseExpression) -> bool:
    """``self.tabel.device``, where nothing in the class has such an attribute: that raises, wherever things are."""
    holder = node.value if isinstance(node, cst.Attribute) else None
    if frame.cls is None or not isinstance(holder, cst.Attribute) or dotted(holder.value) != "self":
        return False
    name, lineage = holder.attr.value, [*frame.cls.lineage, *frame.cls.descendants]
    if not frame.cls.known_whole or name in frame.scope.outside_stores:
        return False
    return not any(
        name in cls.attrs
        or name in cls.stores
        or name in cls.buffers
        or name in cls.methods
        or cls.sets_by_variable
        or cls.buffers_by_variable
        or any(name in method.stores for method in cls.methods.values())
        for cls in lineage
    )


def _module_attribute(frame: Frame, node: cst.BaseExpression, base: Value, attr: str) -> Value:
    if attr == "device":
        return Value(DEVICE, base.place, base.origin) if base.place.is_known else _unknown_attribute(frame, node, attr)
    if attr == "dtype":
        return ANY_DTYPE
    if attr == "module":
        return base
    if isinstance(base.ref, Class):
        value = _of_methods(frame, node, base, attr)
        if value is not None:
            return value
        value = frame.flow.attribute_of(base.ref, attr)
        if value is not None:
            if value.kind == MODULE or value.grad or value.ref in ("parameter", "buffer"):
                return value.but(place=base.place, obj=None)
            return UNKNOWN
    if attr in ("weight", "bias"):
        return tensor(base.place, base.origin, grad=True, ref=OF_LAYER)
    return UNKNOWN
