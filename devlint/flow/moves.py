"""Moves: ``.to()``, ``.cuda()`` and their kin, of tensors, of modules under all their names, of ``self``; ``copy_``."""

from __future__ import annotations

import libcst as cst

from devlint.flow import copies, hypothesis, optimizers, project_calls
from devlint.flow import torch_table as table
from devlint.flow.arguments import Args, flag
from devlint.flow.facts import Copy, Move
from devlint.flow.frame import Frame
from devlint.flow.names import switched
from devlint.flow.place import DIFFERENT, HOST, SOMEWHERE, UNKNOWN_PLACE, Place, relation
from devlint.flow.scope import CONSTRUCTOR
from devlint.flow.value import (
    DATA,
    DEVICE,
    DICT,
    DTYPE,
    HOST_DATA,
    LIST,
    LOADER,
    MODULE,
    NAME,
    NONE,
    OF_SETTINGS,
    SELF,
    SEVERAL,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN_KIND,
    Value,
    modules_in,
    without_place,
)


def move(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, how: str, args: Args) -> Value:
    """``.to(...)``, ``.cuda(...)``, ``.cpu()``: of a tensor, a module, or what is either."""
    if receiver.kind == SELF:
        method = receiver.ref.find_method(how) if receiver.ref is not None else None
        if method is not None:
            return project_calls.call(frame, node, method, args, receiver)
    target, target_node, sure = _target(frame, how, args)
    if target is None:
        # a dtype or a memory format: nothing moves
        return receiver.but(grad=False) if receiver.kind != SELF else receiver
    non_blocking = _non_blocking(how, args)
    # x.to(**options)   names no device that code could be given instead, and may change the type, too
    unpacked = any(arg.star == "**" for arg in node.args)
    if sure and not frame.dead and not unpacked:
        frame.facts.moves[node] = Move(node, how, func.value, receiver, target, target_node, non_blocking)
    to_host = how == "cpu" or (target.is_host and sure and non_blocking is False)
    has_tensors = receiver.kind == TENSOR or (receiver.kind == THING and receiver.ref != "moved")
    if to_host and has_tensors and receiver.place.is_there:
        frame.wait(node, how, func.value, receiver, explicit=True)
    if not non_blocking:
        copies.may_be_done(frame)
    elif sure and target.is_host and _comes_from_device(receiver):
        copies.begin(frame, node)
    kind = receiver.kind
    tracked = False if frame.recording is False else receiver.tracked
    _note_parameter(frame, frame.key(func.value), target)
    if kind == TENSOR:
        same_place = target == receiver.place and target.kind != "unknown"
        pinned = receiver.pinned if same_place else None
        if target.is_host and receiver.place.is_there and non_blocking:
            pinned = True  # what such a copy is written to
        ref = receiver.ref if receiver.ref == "mask" else None
        if (receiver.grad or receiver.ref == "parameter") and relation(receiver.place, target) == DIFFERENT:
            ref = "non-leaf"
        # nn.Parameter(x).cpu()   gives the very same object, where that is on the host
        stays = receiver.ref == "parameter" and same_place and "copy" not in args.keywords
        return Value(
            TENSOR,
            target,
            receiver.origin if same_place else node,
            pinned=pinned,
            zero=receiver.zero,
            grad=stays and receiver.grad,
            ref="parameter" if stays else ref,
            tracked=tracked,
        )
    if kind == THING:
        ref = receiver.ref if receiver.ref == "moved" else None
        moved = Value(THING, target, node, ref=ref, obj=receiver.obj, tracked=tracked)
        if isinstance(func.value, cst.Name) and frame.env is not None and _moves_in_place(receiver):
            frame.env[func.value.value] = moved
        return moved
    if kind == MODULE:
        return move_module(frame, node, func, receiver, target)
    if kind == SELF:
        return _move_self(frame, node, func, receiver, target)
    moved = Value(THING, target, node, ref="moved", obj=node)
    # a model is moved in place, whether or not the result is used
    key = frame.key(func.value)
    if key is not None and frame.env is not None and hypothesis.MODEL_NAME.match(key.rpartition(".")[2]):
        moved = Value(MODULE, target, node, obj=node)
        frame.env[key] = moved
        frame.flow.has_paths = frame.flow.has_paths or "." in key
    return moved


def _moves_in_place(value: Value) -> bool:
    """``words = tokenizer(text, return_tensors="pt"); words.to(device)``, ``for graph in loader: graph.to(device)``"""
    whole_batch = isinstance(value.ref, Value) and value.ref.kind == LOADER
    return value.text is None and (value.ref == "encoding" or whole_batch)


def _comes_from_device(value: Value) -> bool:
    """On a device, or a tensor handed in: a copy to the host means something only where it is on one."""
    return (value.holds_tensors and value.place.is_there) or (value.kind == TENSOR and value.place.kind == "param")


def _target(frame: Frame, how: str, args: Args) -> tuple[Place | None, cst.BaseExpression | None, bool]:
    """Where a move goes; ``None`` for a conversion that moves nothing; and whether it surely is a move."""
    if how == "cpu":
        return HOST, None, True
    if how != "to":
        given = args.get(0, "device")
        if given is None or given[1].kind == NONE:
            return Place("fixed", how), None, True
        if given[1].kind == DATA and given[1].text is None and isinstance(given[0], cst.Integer):
            return Place("fixed", f"{how}:{given[0].value}"), given[0], True
        place = frame.device_place(given[1], given[0])
        if not place.is_known or place == SOMEWHERE:
            key = frame.key(given[0])
            place = frame.symbol(key) if key is not None else SOMEWHERE
        return place, given[0], True
    given = args.get(None, "device") or args.get(None, "other")
    if given is None:
        for pair in args.positional[:1]:
            if pair[1].kind == DTYPE:
                return None, None, False
            given = pair
    if given is None:
        if args.starred:
            return UNKNOWN_PLACE, None, False
        return None, None, False  # to(dtype=...), to(memory_format=...)
    operand, value = given
    if value.kind == NONE:
        return None, None, False
    place = frame.device_place(value, operand)
    open_to_all = value.kind == UNKNOWN_KIND and not place.is_known
    if open_to_all or (value.is_data and value.text is None):
        key = frame.key(operand) or ""
        if "dtype" in key.lower():  # dtype = random.choice(dtypes)
            return None, None, False
    if open_to_all:
        return UNKNOWN_PLACE, operand, False
    if value.kind == NAME and not place.is_known:
        return (None, None, False) if str(value.ref).startswith("torch.") else (UNKNOWN_PLACE, operand, False)
    sure = value.kind in (DEVICE, TENSOR) or value.text is not None or place.is_known
    return place, operand, sure


def _non_blocking(how: str, args: Args) -> bool | None:
    # cuda(device, non_blocking), to(other, non_blocking), to(device, dtype, non_blocking)
    position = 2 if how == "to" and args.positional and args.positional[0][1].kind != TENSOR else 1
    return flag(args, position, "non_blocking") if how != "cpu" else False


def by_type(node: cst.Call, receiver: Value, name: str, args: Args) -> Value:
    """``x.type(...)`` and ``x.type_as(y)``: a type may name a device."""
    given = args.get(0, "dtype", "other")
    if given is None:
        return HOST_DATA
    value = given[1]
    if name == "type_as":
        return receiver.but(place=value.place if value.holds_tensors else UNKNOWN_PLACE, obj=None, grad=False)
    if value.kind == NAME and value.ref in table.DEVICE_TYPED:
        return receiver.but(place=Place("fixed", "cuda"), origin=node, obj=None)
    if (value.kind == NAME and value.ref in table.HOST_TYPED) or value.text in table.HOST_TYPED:
        return receiver.but(place=HOST, origin=node, obj=None, grad=False)
    if (value.kind == DTYPE and value.ref != OF_SETTINGS) or (
        value.kind == NAME and str(value.ref).startswith("torch.")
    ):
        return receiver.but(obj=None, grad=False)
    if value.text is not None:
        place = Place("fixed", "cuda") if "cuda" in value.text else receiver.place
        return receiver.but(place=place, origin=node, obj=None)
    return receiver.but(place=UNKNOWN_PLACE, origin=None, obj=None)


def copy_into(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, args: Args) -> None:
    """``receiver.copy_(src, non_blocking)``: across devices where the two are apart."""
    given = args.get(0, "src", "other")
    if given is None or frame.dead:
        return
    non_blocking = flag(args, 1, "non_blocking")
    frame.facts.copies[node] = Copy(node, *given, func.value, receiver, non_blocking)
    if not non_blocking:
        copies.may_be_done(frame)
    elif receiver.place.is_host and receiver.pinned and given[1].place.is_there:
        # into pageable memory such a copy returns only when it is done
        copies.begin(frame, node)
        frame.change(receiver, frame.key(func.value), receiver.but(origin=node))


def move_module(frame: Frame, node: cst.Call, func: cst.Attribute, module: Value, target: Place) -> Value:
    """``model.to(device)``: in place, under every name the module has."""
    moved = module.but(place=target, origin=node)
    env = frame.env
    if env is None:
        return moved
    key = frame.key(switched(func.value))  # self.net.eval().to(device)
    if module.obj is not None:
        names = _move_known(frame, node, module, target)
        optimizers.leave_behind(frame, node, [module.obj], key or (names or ["the module"])[0], target)
    if key is not None:
        env[key] = moved
        for name, value in env.items():
            if value.kind == MODULE and name.startswith(f"{key}."):
                env[name] = value.but(place=target, origin=node)  # net.head = nn.Linear(8, 2); net.to(device)
        frame.flow.has_paths = frame.flow.has_paths or "." in key
        _store_moved(frame, node, key, moved)
    return moved


def _move_known(frame: Frame, node: cst.Call, module: Value, target: Place) -> list[str]:
    """Move a module under all names it has, with its parts; what holds it, or may be it, has no sure place then."""
    env = frame.env
    assert env is not None
    moving, parts = {module.obj}, frame.flow.parts
    todo = [module.obj]
    while todo:
        for part in parts.get(todo.pop(), ()):
            if part not in moving:
                moving.add(part)
                todo.append(part)
    names = []
    for name, value in env.items():
        if value.kind == MODULE:
            if value.obj in moving and value.obj is not SEVERAL:
                names.append(name)
                env[name] = value.but(place=target, origin=node)
            elif value.place != target and (SEVERAL in moving or parts.get(value.obj, _NO_PARTS) & moving):
                env[name] = without_place(value)
        elif value.kind in (LIST, TUPLE, DICT):
            inside = modules_in(value)
            if any(m.place != target and (m.obj in moving or SEVERAL in (m.obj, module.obj)) for m in inside):
                env[name] = without_place(value)
    return names


_NO_PARTS: set[object] = set()


def _note_parameter(frame: Frame, key: str | None, target: Place) -> None:
    """For callers: a parameter, should it be a module, is moved."""
    function = frame.function
    if key is not None and function is not None and key in function.param_names and not frame.dead:
        sure = not frame.conditional and key not in function.assigned
        frame.moved[key] = target if sure else UNKNOWN_PLACE


def _move_self(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, target: Place) -> Value:
    """``self.to(device)``: a constructor moves its module, and the modules that it has put in so far."""
    env, name = frame.env, frame.key(func.value)
    if env is None or name is None or frame.role != CONSTRUCTOR or receiver.ref is None or not receiver.ref.is_module:
        return receiver
    parts = {key: value for key, value in env.items() if value.kind == MODULE and key.startswith(f"{name}.")}
    for key, value in parts.items():
        env[key] = value.but(place=target, origin=node)
    env[name] = moved = receiver.but(place=target)
    objects = [receiver.ref, *(value.obj for value in parts.values() if value.obj is not None)]
    optimizers.leave_behind(frame, node, objects, name, target)
    return moved


def leave_moved(frame: Frame, node: cst.Call, operand: cst.BaseExpression, value: Value, place: Place) -> None:
    """A function that was called has moved the module it was handed, or may have."""
    key, env = frame.key(operand), frame.env
    if key is None or env is None:
        return
    if frame.function is not None and key in frame.function.param_names:
        frame.moved[key] = UNKNOWN_PLACE if frame.conditional else place
    if value.kind == MODULE:
        if value.obj is not None:
            _move_known(frame, node, value, place)
        if key in env or "." in key:
            env[key] = value.but(place=place, origin=node)
            frame.flow.has_paths = frame.flow.has_paths or "." in key
        _store_moved(frame, node, key, env.get(key, value))


def _store_moved(frame: Frame, node: cst.Call, key: str, module: Value) -> None:
    """``self.model.cuda()``: other methods find it moved, or not yet."""
    cls = frame.cls
    if cls is None or cls.is_module or not key.startswith("self.") or key.count(".") > 1 or frame.dead:
        return
    if frame.role == CONSTRUCTOR and not frame.conditional:
        cls.attrs[key[5:]] = module
    else:
        frame.flow.store(cls, key[5:], module, node, frame)


def escape(frame: Frame, node: cst.Call, operand: cst.BaseExpression, value: Value) -> None:
    """A value is handed to a function that cannot be followed: it may move a module, and change a container."""
    if value.kind == MODULE and not value.place.is_there:
        leave_moved(frame, node, operand, value, UNKNOWN_PLACE)
    elif value.kind in (LIST, DICT) or (value.kind == THING and value.ref is None):
        key = frame.key(operand)
        if key is not None and frame.env is not None and type(frame.scope.source.parents.get(node)) is cst.Expr:
            frame.change(value, key, without_place(value))  # called for what it does
