"""What a test says of the names in it, on the path where it holds and on the other."""

from __future__ import annotations

import libcst as cst

from devlint.flow import hypothesis
from devlint.flow.frame import Env, Frame
from devlint.flow.place import UNKNOWN_PLACE
from devlint.flow.value import (
    DEVICE,
    MODULE,
    NOTHING,
    OBJECT,
    OBJECT_OR_TEXT,
    TENSOR,
    THING,
    UNKNOWN,
    UNKNOWN_KIND,
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
    if type(test) is cst.UnaryOperation and isinstance(test.operator, cst.Not):
        narrow(frame, test.expression, not holds)
        return
    if (
        type(test) is cst.Call
        and type(test.func) is cst.Name
        and test.func.value == "isinstance"
        and len(test.args) == 2
    ):
        narrow_to_type(frame, test.args[0].value, frame.scope.qualified(test.args[1].value), holds)
        return
    if type(test) is cst.Call and len(test.args) == 1 and frame.scope.qualified(test.func) == "torch.is_tensor":
        narrow_to_type(frame, test.args[0].value, "torch.Tensor", holds)
        return
    if holds and hypothesis.outlives_call(frame, test):
        _set_before(frame, test)
        return
    if type(test) is cst.Attribute and test.attr.value == "is_cuda" and not holds:
        _place_asked_for(frame, test.value)  # if x.is_cuda: return on_gpu(x)   what follows is for the host
        return
    if type(test) is cst.Comparison and len(test.comparisons) == 1:
        target = test.comparisons[0]
        operator = type(target.operator)
        if (
            operator in (cst.Is, cst.IsNot)
            and type(target.comparator) is cst.Name
            and target.comparator.value == "None"
        ):
            if (operator is cst.Is) != holds and hypothesis.outlives_call(frame, test.left):
                _set_before(frame, test.left)
                return
            key = frame.key(test.left)
            value = frame.lookup(key) if key is not None else None
            if key is not None and value is not None and (operator is cst.Is) == holds:
                env[key] = NOTHING
                return
        # `if x.device != y.device:` -- inside, nothing is known of either
        for side in (test.left, target.comparator):
            if type(side) is cst.Attribute and side.attr.value in ("device", "is_cuda"):
                if holds and operator is cst.NotEqual:
                    _place_asked_for(frame, side.value)
            elif type(side) is cst.Attribute and side.attr.value == "type" and type(side.value) is cst.Attribute:
                # if x.device.type == "cpu": ...   who asks what kind it is has an answer for each
                asked = side.value
                key = frame.key(asked.value) if asked.attr.value == "device" else None
                given = frame.lookup(key) if key is not None else None
                if given is not None and given.place.kind == "param":
                    _place_asked_for(frame, asked.value)


def _set_before(frame: Frame, node: cst.BaseExpression) -> None:
    """An earlier call set it, to what is not known."""
    env, key = frame.env, frame.key(node)
    if env is not None and key is not None:
        env[key] = UNKNOWN
        frame.flow.has_paths = frame.flow.has_paths or "." in key


def _place_asked_for(frame: Frame, node: cst.BaseExpression) -> None:
    """Nothing is known any more of where a value is."""
    env, key = frame.env, frame.key(node)
    value = frame.lookup(key) if key is not None else None
    if env is not None and key is not None and value is not None and value.kind in (TENSOR, THING, MODULE):
        env[key] = value.but(place=UNKNOWN_PLACE)


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
        env[key] = value.but(kind=TENSOR, ref=None)
    elif value.kind == UNKNOWN_KIND and holds and type_name == "torch.Tensor":
        env[key] = tensor(UNKNOWN_PLACE)
        frame.flow.has_paths = frame.flow.has_paths or "." in key or "[" in key


def remember_texts(env: Env, ruled_out: Env | None) -> None:
    """What is a ``torch.device`` on the path taken may still be a string where there is no accelerator."""
    for name, value in (ruled_out or {}).items():
        mine = env.get(name)
        if mine is not None and mine is not value and mine.is_device_object and not value.is_device_object:
            env[name] = mine.but(ref=None)
