"""Optimizers: which parameters one was built from, and whether their module moves afterwards."""

from __future__ import annotations

from typing import Any

import libcst as cst

from devlint.flow import torch_table as table
from devlint.flow.arguments import Args
from devlint.flow.facts import BuiltBeforeMove
from devlint.flow.frame import Frame, parameters_in
from devlint.flow.place import UNKNOWN_PLACE, Place
from devlint.flow.scope import Class
from devlint.flow.value import OPTIMIZER, UNKNOWN, Built, Value


def build(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    """``Adam(model.parameters())``: an optimizer of torch's."""
    first = args.value(0, "params") or UNKNOWN
    # a module's own parameters are on the host while its constructor has not moved it
    modules = tuple(
        p.obj
        for p in parameters_in(first)
        if p.obj is not None and (p.place.is_host or (isinstance(p.obj, Class) and not p.place.is_there))
    )
    if not modules or frame.dead:
        return Value(OPTIMIZER, UNKNOWN_PLACE, node, items=())
    state = ("built", node) if name in table.EAGER_STATE else None
    return Value(OPTIMIZER, UNKNOWN_PLACE, node, items=(Built(node, modules, state),))


def method(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str) -> Value:
    """``step`` and ``load_state_dict`` give an optimizer state, which lives where the parameters are then."""
    key = frame.key(func.value)
    if (
        name in ("step", "load_state_dict")
        and receiver.items
        and key is not None
        and frame.env is not None
        and not frame.dead
    ):
        how = "stepped" if name == "step" else "loaded"
        built = []
        for each in receiver.items:
            if each.moved is None:
                stateless = frame.facts.names.get(each.call) == "torch.optim.SGD" and not _has_momentum(each.call)
                if each.state is None and not stateless:
                    each = each._replace(state=(how, node))
            elif how == "loaded" and not frame.conditional:
                frame.facts.built_before_move[each.call].state = None  # replaced, where the module is now
            built.append(each)
        frame.env[key] = receiver.but(items=tuple(built))
    return UNKNOWN


def _has_momentum(sgd: cst.Call) -> bool:
    return len(sgd.args) > 2 or any(
        arg.star or (arg.keyword is not None and arg.keyword.value == "momentum") for arg in sgd.args
    )


def leave_behind(frame: Frame, node: cst.Call, moved: list[Any], module: str, target: Place) -> None:
    """Note which optimizers were built from parameters of what moves from the host to a device now."""
    env = frame.env
    if env is None or frame.dead or not (target.is_there or target.kind == "param"):
        return
    for name, value in env.items():
        if value.kind != OPTIMIZER or not value.items:
            continue
        built = []
        for each in value.items:
            if each.moved is None and any(obj in each.modules for obj in moved):
                each = each._replace(moved=node)
                # an attribute is there for others to use
                frame.facts.built_before_move.setdefault(
                    each.call, BuiltBeforeMove(each.call, module, node, each.state, used="." in name)
                )
            built.append(each)
        env[name] = value.but(items=tuple(built))
