"""What a test says of the names in it, on the path where it holds and on the other."""

from __future__ import annotations

import libcst as cst

from devlint.flow import hypothesis
from devlint.flow.frame import Env, Frame
from devlint.flow.names import dotted
from devlint.flow.place import UNKNOWN_PLACE, Place, from_string
from devlint.flow.value import (
    DATA,
    DEVICE,
    MODULE,
    NOTHING,
    OBJECT,
    OBJECT_OR_TEXT,
    TENSOR,
    THING,
    TOLD,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    tensor,
)


def narrow(frame: Frame, test: cst.BaseExpression, holds: bool) -> None:
    """What a test says of the names in it, on the path where it holds or not."""
    env = frame.env
    assert env is not None
    if type(test) is cst.BooleanOperation and isinstance(test.operator, cst.And) and holds:
        narrow(frame, test.left, True)
        narrow(frame, test.right, True)
        return
    if type(test) is cst.BooleanOperation and isinstance(test.operator, cst.Or) and not holds:
        narrow(frame, test.left, False)
        narrow(frame, test.right, False)
        return
    if type(test) is cst.UnaryOperation and isinstance(test.operator, cst.Not):
        narrow(frame, test.expression, not holds)
        return
    if (
        type(test) is cst.Call
        and type(test.func) is cst.Name
        and test.func.value == "isinstance"
        and len(test.args) == 2
    ):
        if not (holds and _asks_for_container(frame, test.args[0].value, test.args[1].value)):
            narrow_to_type(frame, test.args[0].value, frame.scope.qualified(test.args[1].value), holds)
        return
    if type(test) is cst.Call and len(test.args) == 1 and frame.scope.qualified(test.func) == "torch.is_tensor":
        narrow_to_type(frame, test.args[0].value, "torch.Tensor", holds)
        return
    if type(test) is cst.Call and not holds and _asks_for_tensor(test):
        narrow_to_type(frame, test.args[0].value, "torch.Tensor", False)
        return
    if holds and hypothesis.outlives_call(frame, test):
        _set_before(frame, test)
        return
    if type(test) is cst.Attribute and test.attr.value in _ASKING:
        if test.attr.value == "is_cuda" and not holds:
            _told_otherwise(frame, test.value)  # if x.is_cuda: return on_gpu(x)   what follows is for the host
        else:
            _told_kind(frame, test.value, {_ASKING[test.attr.value]}, holds)
        return
    if type(test) is cst.Call and type(test.func) is cst.Attribute and test.func.attr.value == "startswith":
        asked = _asked_device_of(test.func.value)  # if x.device.type.startswith("cuda"):
        kinds = _kinds_named(frame, test.args[0].value) if len(test.args) == 1 else None
        if asked is not None and kinds is not None:
            _told_kind(frame, asked, kinds, holds)
        return
    if type(test) is cst.Call and frame.scope.qualified(test.func) in ("any", "all") and len(test.args) == 1:
        each = test.args[0].value
        if type(each) is cst.GeneratorExp and type(each.elt) is cst.Attribute and each.elt.attr.value in _ASKING:
            owner = _owner_of_parameters(each.for_in.iter)  # if any(p.is_meta for p in net.parameters()):
            if owner is not None:
                _told_kind(frame, owner, {_ASKING[each.elt.attr.value]}, holds)
        return
    if type(test) is cst.Comparison and len(test.comparisons) == 1:
        target = test.comparisons[0]
        operator = type(target.operator)
        if (
            operator in (cst.Is, cst.IsNot, cst.Equal, cst.NotEqual)
            and type(target.comparator) is cst.Name
            and target.comparator.value == "None"
        ):
            asks_for_none = operator in (cst.Is, cst.Equal)
            if asks_for_none != holds and hypothesis.outlives_call(frame, test.left):
                _set_before(frame, test.left)
                return
            key = frame.key(test.left)
            value = frame.lookup(key) if key is not None else None
            if key is not None and value is not None and asks_for_none == holds:
                env[key] = NOTHING
                return
        _compare_devices(frame, test.left, target.comparator, operator, holds)


def _asks_for_container(frame: Frame, node: cst.BaseExpression, types: cst.BaseExpression) -> bool:
    """``out = self.net(x)``, ``if isinstance(out, (tuple, dict)):``: which structure it is, and not where it is."""
    value = _value_of(frame, node)
    named = [each.value for each in types.elements] if isinstance(types, cst.Tuple) else [types]
    return value is not None and value.kind == THING and all(dotted(each) in _CONTAINERS for each in named)


_CONTAINERS = frozenset({"tuple", "list", "dict", "Mapping", "Sequence", "OrderedDict"})

#: What says of what kind a tensor's device is.
_ASKING = {
    "is_cpu": "host",
    "is_meta": "meta",
    **dict.fromkeys(("is_cuda", "is_xpu", "is_mps", "is_hpu", "is_mtia", "is_xla"), "there"),
}


def _compare_devices(
    frame: Frame, left: cst.BaseExpression, right: cst.BaseExpression, operator: type, holds: bool
) -> None:
    """``if x.device.type == "cpu":``, ``if x.device != y.device:``, ``if "cuda" in str(x.device):``."""
    asked = [_asked_device_of(left), _asked_device_of(right)]
    if operator in (cst.NotEqual, cst.NotIn, cst.IsNot):
        holds = not holds
    elif operator not in (cst.Equal, cst.In, cst.Is):
        return
    for node, other in ((asked[0], right), (asked[1], left)):
        if node is None:
            continue
        value = _value_of(frame, node)
        kinds = _kinds_named(frame, other)
        if kinds is not None:
            _told_kind(frame, node, kinds, holds)
        elif not holds or None not in asked:
            _place_asked_for(frame, node)  # of two that differ, or are the same, nothing is known of either
        elif value is not None and value.place.kind == "param":
            _place_asked_for(frame, node)


def _asked_device_of(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``x`` in ``x.device``, ``x.device.type``, ``str(x.device)``; ``net`` in ``next(net.parameters()).device``."""
    if type(node) is cst.Call and type(node.func) is cst.Name and node.func.value == "str" and len(node.args) == 1:
        node = node.args[0].value
    if type(node) is cst.Attribute and node.attr.value == "type":
        node = node.value
    return node.value if type(node) is cst.Attribute and node.attr.value == "device" else None


def _owner_of_parameters(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``net`` in ``net.parameters()``."""
    func = node.func if type(node) is cst.Call else None
    return func.value if type(func) is cst.Attribute and func.attr.value in ("parameters", "buffers") else None


def _kinds_named(frame: Frame, node: cst.BaseExpression) -> set[str] | None:
    """The kinds of devices that are named: ``"cuda:0"``, ``torch.device("meta")``, ``("cuda", "mps")``."""
    if isinstance(node, cst.Tuple | cst.List | cst.Set):
        each = [_kinds_named(frame, element.value) for element in node.elements]
        return None if None in each else {kind for kinds in each if kinds is not None for kind in kinds}
    value = frame.values.get(node)
    if value is None:
        return None
    place = from_string(value.text) if value.kind == DATA and value.text is not None else value.place
    named = value.kind == DEVICE or (value.kind == DATA and value.text is not None)
    return {_kind(place)} if named and place.kind in ("host", "meta", "fixed") else None


def _kind(place: Place) -> str:
    return "there" if place.is_there else place.kind


def _told_kind(frame: Frame, node: cst.BaseExpression, kinds: set[str], holds: bool) -> None:
    """The path says that a value is on a device of one of these kinds, or of none: what is known otherwise is wrong."""
    value = _value_of(frame, node)
    if value is not None and (value.place.kind == "param" or (_kind(value.place) in kinds) != holds):
        _told_otherwise(frame, node)


def _value_of(frame: Frame, node: cst.BaseExpression) -> Value | None:
    key = frame.key(node)
    known = frame.lookup(key) if key is not None else None
    return known if known is not None else frame.values.get(node)


def _set_before(frame: Frame, node: cst.BaseExpression) -> None:
    """An earlier call set it, to what is not known."""
    env, key = frame.env, frame.key(node)
    if env is not None and key is not None:
        env[key] = UNKNOWN
        frame.flow.has_paths = frame.flow.has_paths or "." in key


def _told_otherwise(frame: Frame, node: cst.BaseExpression) -> None:
    """Nothing is known any more of where a value is, nor of what is where that was said to be."""
    # noise = torch.empty_like(x)   if x.is_cuda: ... else: noise.normal_(generator=on_host)
    value = _value_of(frame, node)
    _place_asked_for(frame, node)
    env = frame.env
    if env is None or value is None or value.place.kind not in ("device", "param") or not value.place.name:
        return
    for key, other in list(env.items()):
        if other.kind in (TENSOR, THING) and other.place == value.place:
            env[key] = other.but(place=UNKNOWN_PLACE)


def _place_asked_for(frame: Frame, node: cst.BaseExpression) -> None:
    """Nothing is known any more of where a value is."""
    if type(node) is cst.Call and type(node.func) is cst.Name and node.func.value == "next" and node.args:
        node = _owner_of_parameters(node.args[0].value) or node
    env, key = frame.env, frame.key(node)
    value = _value_of(frame, node)
    if env is not None and key is not None and value is not None and value.kind in (TENSOR, THING, MODULE):
        env[key] = value.but(place=UNKNOWN_PLACE)
        frame.flow.has_paths = frame.flow.has_paths or "." in key or "[" in key


def _asks_for_tensor(test: cst.Call) -> bool:
    """``y.cpu().numpy() if hasattr(y, "cpu") else np.asarray(y)``"""
    if type(test.func) is not cst.Name or test.func.value != "hasattr" or len(test.args) != 2:
        return False
    asked = test.args[1].value
    return type(asked) is cst.SimpleString and asked.evaluated_value in ("detach", "cpu", "is_cuda", "requires_grad")


def narrow_to_type(frame: Frame, node: cst.BaseExpression, type_name: str, holds: bool) -> None:
    """``isinstance(x, torch.Tensor)``, ``case torch.Tensor():``."""
    env, key = frame.env, frame.key(node)
    if env is None or key is None:
        return
    value = frame.lookup(key) or UNKNOWN
    may_be_tensor = value.kind in (TENSOR, THING)
    if value.kind == DEVICE:
        is_object = (
            holds if type_name == "torch.device" else value.ref == OBJECT_OR_TEXT and type_name == "str" and not holds
        )
        if is_object or holds or type_name == "torch.device":
            env[key] = value.but(ref=OBJECT if is_object else None)
        return
    if may_be_tensor and holds != (type_name == "torch.Tensor"):
        env[key] = UNKNOWN
    elif value.kind == THING and type_name == "numpy.ndarray":
        env[key] = UNKNOWN  # if not isinstance(labels, np.ndarray): who has seen arrays may see lists, too
    elif value.kind == THING and holds:
        env[key] = value.but(kind=TENSOR, ref=TOLD)
    elif value.kind == TENSOR and holds and value.ref is None:
        env[key] = value.but(ref=TOLD)
    elif value.kind == UNKNOWN_KIND and holds and type_name == "torch.Tensor":
        env[key] = tensor(UNKNOWN_PLACE, ref=TOLD)
        frame.flow.has_paths = frame.flow.has_paths or "." in key or "[" in key


def remember_texts(env: Env, ruled_out: Env | None) -> None:
    """What is a ``torch.device`` on the path taken may still be a string where there is no accelerator."""
    for name, value in (ruled_out or {}).items():
        mine = env.get(name)
        if mine is not None and mine is not value and mine.is_device_object and not value.is_device_object:
            env[name] = mine.but(ref=None)
