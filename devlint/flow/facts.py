"""What the flow has seen happen, for rules to judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from devlint.flow.place import Place

if TYPE_CHECKING:
    import libcst as cst

    from devlint.flow.scope import Function
    from devlint.flow.value import Value


@dataclass(eq=False)
class Move:
    """``receiver.to(...)`` and its kin, where it surely goes to a device or to the host.

    ``value`` is the receiver before the move, ``target`` where it goes, ``target_node`` the expression
    that says so (``None`` for ``.cuda()`` and ``.cpu()``). ``non_blocking`` is ``True``, ``False``, or
    ``None`` where it depends on a variable.
    """

    node: cst.Call
    how: str
    receiver: cst.BaseExpression
    value: Value
    target: Place
    target_node: cst.BaseExpression | None
    non_blocking: bool | None


@dataclass(eq=False)
class Copy:
    """``target.copy_(value)``: what is copied, and what it is copied into."""

    node: cst.Call
    source: cst.BaseExpression
    value: Value
    target: cst.BaseExpression
    into: Value
    non_blocking: bool | None


@dataclass(eq=False)
class EarlyRead:
    """What ``copy`` brings to the host in the background is read by ``node`` before anything waits for it."""

    copy: cst.Call
    node: cst.CSTNode


@dataclass(eq=False)
class Meeting:
    """Two values on different places are operands of one operation, which raises.

    ``what`` names the operation. ``host_node`` and ``there_node`` are the operand expressions.
    """

    node: cst.CSTNode
    what: str
    host_node: cst.BaseExpression
    host: Value
    there_node: cst.BaseExpression
    there: Value


@dataclass(eq=False)
class Feeding:
    """A module that was moved is called on ``operand``."""

    node: cst.Call
    module_node: cst.BaseExpression
    module: Value
    operand: cst.BaseExpression
    value: Value


@dataclass(eq=False)
class Wait:
    """The host waits for a value that lives on a device. ``explicit``: the value is asked for by name (``.item()``)."""

    node: cst.CSTNode
    what: str
    operand: cst.BaseExpression
    value: Value
    explicit: bool


@dataclass(eq=False)
class ArrayUse:
    """A tensor that numpy (or another library that reads host memory) cannot read is handed to it.

    It lives on a device, or autograd tracks it (``tracked``: surely, surely not, or not known). ``what`` names what is
    called. ``value`` is ``operand``'s, or that of its elements. ``host_too``: host tensors are refused as well.
    """

    node: cst.Call
    what: str
    operand: cst.BaseExpression
    value: Value
    tracked: bool | None
    host_too: bool


@dataclass(eq=False)
class BuiltBeforeMove:
    """An optimizer was built by ``optimizer`` from a module on the host, and used once ``move`` had moved that.

    ``module`` is what the module is called there. ``state``: how and where the optimizer got state before the move,
    as (``built``, ``loaded`` or ``stepped``, node).
    """

    optimizer: cst.Call
    module: str
    move: cst.Call
    state: tuple[str, cst.CSTNode] | None
    used: bool


@dataclass(eq=False)
class Facts:
    """All facts of a file, in the order the code was followed; keyed by node where a node can have one only."""

    moves: dict[cst.CSTNode, Move] = field(default_factory=dict)
    copies: dict[cst.CSTNode, Copy] = field(default_factory=dict)
    early_reads: dict[cst.CSTNode, EarlyRead] = field(default_factory=dict)
    meetings: dict[tuple[cst.CSTNode, cst.CSTNode], Meeting] = field(default_factory=dict)
    #: a function that may not bring the two together is handed what a module keeps on the host, and what is on a device
    perhaps: dict[tuple[cst.CSTNode, cst.CSTNode], Meeting] = field(default_factory=dict)
    #: what a module keeps plain as it was handed to its constructor meets what others hand in, or is on a device
    kept: dict[tuple[cst.CSTNode, cst.CSTNode], Meeting] = field(default_factory=dict)
    feedings: dict[tuple[cst.CSTNode, cst.CSTNode], Feeding] = field(default_factory=dict)
    #: parts of a batch, or of what a tokenizer gave, that nothing has moved come to what is on a device
    left_behind: dict[tuple[cst.CSTNode, cst.CSTNode], Meeting] = field(default_factory=dict)
    #: what a function was handed, as it was handed in, beside what is on a device
    unmoved: dict[tuple[cst.CSTNode, cst.CSTNode], Meeting] = field(default_factory=dict)
    #: two that are on two devices, both of which the code names
    apart: dict[tuple[cst.CSTNode, cst.CSTNode], Meeting] = field(default_factory=dict)
    #: meetings of what is made on the host with what the function was handed: wrong where that is on a device
    assumed: dict[tuple[cst.CSTNode, cst.CSTNode], Meeting] = field(default_factory=dict)
    #: ... and with what is nobody knows where, but is made of that
    supposed: dict[tuple[cst.CSTNode, cst.CSTNode], Meeting] = field(default_factory=dict)
    #: by what put it there, what is on a kind of device that is written down, and meets what the function was handed
    beside: dict[cst.CSTNode, Meeting] = field(default_factory=dict)
    #: what is made on the host is given back on one path, and what is elsewhere on another
    given_back: dict[tuple[cst.CSTNode, cst.CSTNode], Meeting] = field(default_factory=dict)
    #: by what made it, what else on the host meets a tensor there
    together_on_host: dict[cst.CSTNode, set[cst.CSTNode]] = field(default_factory=dict)
    left_at_default: dict[cst.Call, tuple[Function, cst.Param]] = field(default_factory=dict)
    waits: dict[cst.CSTNode, Wait] = field(default_factory=dict)
    array_uses: dict[cst.CSTNode, ArrayUse] = field(default_factory=dict)
    built_before_move: dict[cst.CSTNode, BuiltBeforeMove] = field(default_factory=dict)
    calls: dict[str, list[cst.Call]] = field(default_factory=dict)
    names: dict[cst.Call, str] = field(default_factory=dict)
    reveals: dict[cst.Call, Value] = field(default_factory=dict)
