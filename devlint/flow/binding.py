"""Binding: what names, attributes and items hold after an assignment, a loop's target, a `with ... as`."""

from __future__ import annotations

import libcst as cst

from devlint.flow import expressions, hypothesis
from devlint.flow.factories import makes_one
from devlint.flow.frame import Env, Frame
from devlint.flow.place import SOMEWHERE, UNKNOWN_PLACE
from devlint.flow.scope import Class
from devlint.flow.value import (
    DATA,
    DEVICE,
    DICT,
    LIST,
    LOADER,
    MODULE,
    OF_LAYER,
    SELF,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    element,
    is_same,
    join,
    without_place,
    written_elsewhere,
)


def bind(frame: Frame, target: cst.BaseExpression, value: Value, statement: cst.CSTNode | None = None) -> None:
    """Give a target its value: a name, an attribute, an item, or several of them unpacked."""
    env = frame.env
    if env is None:
        return
    frame.values[target] = value
    if type(target) is cst.Name:
        name = target.value
        if frame.function is None and name in frame.scope.stand_ins:
            return  # torch, nn = try_import_torch()   as imports do
        frame.forget(name)
        env[name] = _named_value(frame, name, value, target)
        if name in (frame.scope.globals_written if frame.function is None else frame.function.shared):
            env[name] = written_elsewhere(env[name])
    elif type(target) is cst.Attribute:
        _bind_attribute(frame, target, value, statement)
    elif type(target) is cst.Subscript:
        _bind_item(frame, target, value, env, statement)
    elif type(target) is cst.Tuple or type(target) is cst.List:
        _unpack(frame, target, value, statement)
    elif type(target) is cst.StarredElement:
        bind(frame, target.value, Value(LIST, items=element(value)), statement)


def _named_value(frame: Frame, name: str, value: Value, target: cst.CSTNode) -> Value:
    """A value as known under the name it is bound to: the name may say what the expression does not."""
    if value.kind == DEVICE:
        if value.place == SOMEWHERE or (value.place.kind == "fixed" and frame.conditional):
            return value.but(place=frame.symbol(name))  # chosen by a test: the target device
        return value
    if value.kind == DATA and value.ref == "choice":
        return Value(DEVICE, frame.symbol(name))
    if value.kind == UNKNOWN_KIND:
        last = name.rpartition(".")[2]
        if hypothesis.names_device(last):
            return Value(DEVICE, frame.symbol(name))
        if hypothesis.MODEL_NAME.match(last):
            return Value(MODULE, UNKNOWN_PLACE, target, obj=target)
        if hypothesis.LOADER_NAME.search(last):
            return Value(LOADER, UNKNOWN_PLACE, target)
    if value.kind == MODULE and value.obj is None:
        return value.but(obj=target)
    return value


def _bind_attribute(frame: Frame, target: cst.Attribute, value: Value, statement: cst.CSTNode | None) -> None:
    env = frame.env
    assert env is not None
    base = expressions.evaluate(frame, target.value)
    attr = target.attr.value
    if base.kind in (TENSOR, THING, MODULE) and attr == "data":
        holder = frame.key(target.value)  # `t.data = u` crosses devices silently
        if holder is not None and base.kind in (TENSOR, THING):
            env[holder] = base.but(place=value.place if value.holds_tensors else UNKNOWN_PLACE, origin=statement)
        for container in frame.iterated:  # for t in batch: t.data = t.data.to(device)
            if container is not None and container in env and value.place != base.place:
                env[container] = without_place(env[container])
        return
    key = frame.key(target)
    whole = key.partition(".")[0] if key is not None else ""
    if base.kind == MODULE and whole in env and env[whole].kind == MODULE and not value.place.is_host:
        env[whole] = env[whole].but(place=UNKNOWN_PLACE)  # net.head.weight = nn.Parameter(w): that is elsewhere now
    if base.kind == MODULE and base.obj is not None and value.kind == MODULE and value.obj is not None:
        frame.flow.parts.setdefault(base.obj, set()).add(value.obj)  # net.head = nn.Linear(8, 2): moves with it
    setter = base.ref.find_method(attr) if isinstance(base.ref, Class) else None
    if setter is not None and setter.is_property:
        if key is not None:
            frame.forget(key)
            env.pop(key, None)
        return  # a property: what its setter does with it is not followed
    if base.kind == SELF and key is not None:
        value = _named_value(frame, key, value, target)
        if value.ref == OF_LAYER and base.ref.is_module:
            value = value.but(ref="parameter")  # self.bias = layer.bias
        frame.flow.store(base.ref, attr, value, statement if statement is not None else target, frame)
    if key is not None:
        frame.forget(key)
        env[key] = value
        frame.flow.has_paths = True


def _is_mask(node: cst.BaseExpression, index: Value) -> bool:
    """``x[x == 0] = torch.tensor([1.0])``: one value on the host fills what a mask picks, as a number does."""
    return index.ref == "mask" or isinstance(node, cst.Comparison)


def _bind_item(frame: Frame, target: cst.Subscript, value: Value, env: Env, statement: cst.CSTNode | None) -> None:
    base = expressions.evaluate(frame, target.value)
    for item in target.slice:
        if type(item.slice) is cst.Index:
            index = expressions.evaluate(frame, item.slice.value)
            # torch moves the indices of what is written, host[on_gpu] = 0, and refuses values that are elsewhere
            if index.kind == TENSOR and index.zero is False and type(statement) is cst.Assign:
                frame.meet_index(target, (target.value, base), (statement.value, value))
                if not (_is_mask(item.slice.value, index) and makes_one(value.origin)):
                    frame.meet_put(target, (target.value, base), (statement.value, value))
        elif type(item.slice) is cst.Slice:
            for bound in (item.slice.lower, item.slice.upper, item.slice.step):
                if bound is not None:
                    expressions.evaluate(frame, bound)
    if base.kind == TENSOR:
        frame.copies_into(target, base, value)
    container = frame.key(target.value)
    key = frame.key(target)
    if base.kind == DICT and container is not None:
        constant = (
            expressions.constant_key(target.slice[0].slice.value) if type(target.slice[0].slice) is cst.Index else None
        )
        items = dict(base.items)
        if constant is not None:
            items[constant] = value
        elif container in frame.iterated:
            anew = {name: _rewritten(item, value) for name, item in items.items()}
            _rewrite(frame, container, base, base.but(items=anew))
            return
        else:
            # for k in ("a", "b"): batch[k] = batch[k].to(device)   may be any of them
            items = {name: join(item, value) for name, item in items.items()}
            items.setdefault("*", value)
        filled = base.but(items=items)
        frame.change(base, container, filled)
        env[container] = filled
        _store_item(frame, target, container, value, filled if constant is not None else None)
    elif base.kind in (LIST, TUPLE) and container is not None:
        if base.kind == LIST and frame.loops:
            frame.fills(target, element(base), value)
        changed = Value(LIST, items=join(element(base), value))
        frame.change(base, container, changed)
        env[container] = changed
        _store_item(frame, target, container, value, changed)
    elif base.kind == THING and container is not None and value.kind == LIST:
        env[container] = without_place(base)  # batch[:] = [part.to(device) for part in batch]
    elif base.kind == THING and container is not None and key is None:
        if value.holds_tensors:
            rewritten = base.but(place=value.place, origin=value.origin, pinned=value.pinned)
            if container in frame.iterated:
                _rewrite(frame, container, base, rewritten)
            else:
                env[container] = rewritten
    elif key is not None and base.kind != TENSOR:
        env[key] = value
        frame.flow.has_paths = True
    if base.kind == UNKNOWN_KIND and container is not None:
        _store_item(frame, target, container, value, None)


def _rewrite(frame: Frame, container: str, base: Value, rewritten: Value) -> None:
    """``for k in batch: batch[k] = batch[k].to(device)``: while it is gone through, the next element is as it was.

    A way that leaves them as they are is for what is no tensor: ``except AttributeError: batch[k] = batch[k]``
    """
    known = frame.rewritten.get(container)
    if known is None or is_same(known, base):
        frame.rewritten[container] = rewritten
    elif not is_same(rewritten, base):
        frame.rewritten[container] = join(known, rewritten)


def _rewritten(item: Value, value: Value) -> Value:
    """An entry of a container of which each entry is set anew; what is no tensor is left out, as a rule."""
    if not item.holds_tensors:
        return item
    return item.but(place=value.place, origin=value.origin) if value.holds_tensors else value


def _store_item(frame: Frame, target: cst.Subscript, container: str, value: Value, whole: Value | None) -> None:
    """``self.cache[k] = v``: what other methods find in the container; anything where ``whole`` does not say."""
    head, _, name = container.partition(".")
    if head != "self" or frame.cls is None or "." in name or "[" in name:
        return
    known = frame.flow.attribute_of(frame.cls, name)
    if known is not None and known.kind in (LIST, TUPLE, DICT):
        if whole is None:
            whole = Value(DICT, items={"*": value}) if value.kind == MODULE and known.kind == DICT else UNKNOWN
        frame.flow.store(frame.cls, name, whole, target, frame)


def _unpack(frame: Frame, target: cst.Tuple | cst.List, value: Value, statement: cst.CSTNode | None) -> None:
    names = [item.value for item in target.elements]
    stars = [i for i, item in enumerate(target.elements) if type(item) is cst.StarredElement]
    if value.kind == LIST and isinstance(value.ref, tuple) and not stars and len(value.ref) == len(names):
        value = Value(TUPLE, items=list(value.ref))
    if value.kind == TUPLE and len(stars) <= 1:
        items = value.items
        if stars:
            first = stars[0]
            after = len(names) - first - 1
            if len(items) >= len(names) - 1:
                middle = items[first : len(items) - after]
                rest = Value(LIST, items=element(Value(TUPLE, items=middle)) if middle else None)
                items = [*items[:first], rest, *items[len(items) - after :]] if after else [*items[:first], rest]
        if len(items) == len(names):
            for name, item in zip(names, items, strict=True):
                bind(frame, name, item, statement)
            return
    each = element(value)
    for position, name in enumerate(names):
        bind(frame, name, Value(LIST, items=each) if position in stars else each, statement)
