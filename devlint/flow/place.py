"""Place: where a value lives, under the hypothesis that the target device is an accelerator.

Two places are *same*, *different* or *cannot tell*. Only ``different`` lets a rule speak.
"""

from __future__ import annotations

from typing import NamedTuple

SAME, DIFFERENT, CANNOT_TELL = "same", "different", "cannot tell"


class Place(NamedTuple):
    """Where something lives.

    ``kind`` is ``host``; ``device`` (*there*: the accelerator that ``name`` stands for, such as
    ``device``, ``self`` or ``x``); ``fixed`` (``name`` is ``cuda``, ``cuda:1``, ``mps``); ``meta``;
    ``param`` (wherever the parameter ``name`` of the function ``scope`` turns out to be); ``unknown``.
    ``scope`` tells symbols of the same name apart.
    """

    kind: str
    name: str = ""
    scope: int = 0

    @property
    def is_host(self) -> bool:
        return self.kind == "host"

    @property
    def is_there(self) -> bool:
        """On an accelerator, whichever."""
        return self.kind == "device" or self.kind == "fixed"

    @property
    def is_known(self) -> bool:
        """Not left open, by the code or to the callers of the function."""
        return self.kind not in ("unknown", "param")

    def __str__(self) -> str:
        if self.kind in ("host", "meta", "unknown"):
            return self.kind
        return self.name or "device"


HOST = Place("host")
META = Place("meta")
UNKNOWN_PLACE = Place("unknown")
#: *There*, on a device that has no one name.
SOMEWHERE = Place("device")
#: Wherever what a function was handed is, or on a device: ``sizes = torch.full((n,), 9, device=x.device)`` on one path.
HANDED = Place("param")


def from_string(text: str) -> Place:
    """The place that a device string such as ``"cuda:1"`` names."""
    name = text.strip()
    kind = name.partition(":")[0]
    if kind == "cpu":
        return HOST
    if kind == "meta":
        return META
    if kind in ("cuda", "mps", "xpu", "npu", "hpu", "mlu", "musa", "xla"):
        return Place("fixed", name)
    return UNKNOWN_PLACE


def relation(a: Place, b: Place) -> str:
    """``same``, ``different`` or ``cannot tell``."""
    if a == b:
        return SAME if a.kind != "unknown" and a != SOMEWHERE else CANNOT_TELL
    kinds = {a.kind, b.kind}
    if "unknown" in kinds or "param" in kinds or "meta" in kinds:
        return CANNOT_TELL
    if "host" in kinds:
        return DIFFERENT
    if a.kind == "fixed" and b.kind == "fixed":
        a_type, _, a_index = a.name.partition(":")
        b_type, _, b_index = b.name.partition(":")
        if a_type != b_type or (a_index and b_index):
            return DIFFERENT
    return CANNOT_TELL  # two symbols may name one device


def join(a: Place, b: Place) -> Place:
    """The place of a value that is at ``a`` on one path and at ``b`` on another."""
    if a == b:
        return a
    if a.is_there and b.is_there and relation(a, b) != DIFFERENT:
        return SOMEWHERE
    # one of two that the function was handed, or one of those and what is there
    if {a.kind, b.kind} <= {"param", "device", "fixed"} and relation(a, b) != DIFFERENT:
        return HANDED
    return UNKNOWN_PLACE
