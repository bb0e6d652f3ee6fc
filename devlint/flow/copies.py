"""Copies to the host that are under way: begun without waiting, and read before anything waited for the device.

A copy begun on a path is kept in the environment of that path, so that branches and loops join it like any variable:
under way on both, or not known. The bytes of a copy are those of every value whose origin it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from devlint.flow.facts import EarlyRead
from devlint.flow.value import IN_FLIGHT, LIST, UNKNOWN, Value

if TYPE_CHECKING:
    from devlint.flow.frame import Env, Frame

#: Methods of streams and events that queue work, or make the device wait, and return at once.
QUEUEING = frozenset({"record", "record_event", "record_stream", "wait_event", "wait_stream"})


def begin(frame: Frame, node: cst.Call) -> None:
    """A copy to the host is queued by a call that returns before it is done."""
    if frame.env is not None and not frame.dead:
        frame.flow.has_copies = True
        frame.env[_key(node)] = Value(IN_FLIGHT, origin=node)


def may_be_done(frame: Frame) -> None:
    """Something waits for the device, or is not known not to."""
    env = frame.env
    if env is None or not frame.flow.has_copies:
        return
    for key, value in env.items():
        if value.kind == IN_FLIGHT:
            env[key] = UNKNOWN


def read(frame: Frame, node: cst.CSTNode, value: Value) -> None:
    """The bytes of a value are read on the host."""
    if not frame.flow.has_copies or frame.env is None or frame.dead:
        return
    if value.kind == LIST and value.items is not None:
        value = value.items
    if not isinstance(value.origin, cst.Call) or not value.place.is_host:
        return
    state = frame.env.get(_key(value.origin))
    if state is not None and state.kind == IN_FLIGHT:
        frame.facts.early_reads.setdefault(value.origin, EarlyRead(value.origin, node))


def carry(frame: Frame, inner: Env | None, outer: Env | None) -> None:
    """What a scope of its own (a comprehension) began or waited for holds in the scope around it."""
    if frame.flow.has_copies and inner is not None and outer is not None:
        for key, value in inner.items():
            if key.startswith(_PREFIX):
                outer[key] = value


_PREFIX = "<copy "


def _key(node: cst.Call) -> str:
    return f"{_PREFIX}{id(node)}>"
