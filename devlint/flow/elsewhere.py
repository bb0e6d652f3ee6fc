"""Values that come from another file: brought over so that nothing of that file's tree is in them.

A value says where it got to its place by a node, and names places by the functions and classes it was seen in. In the
file that asked, the node that asked takes their part.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from devlint.flow.place import SOMEWHERE, UNKNOWN_PLACE, Place
from devlint.flow.value import (
    DEVICE,
    DICT,
    FUNCTION,
    GENERATOR,
    INSTANCE,
    LIST,
    LOADER,
    MODULE,
    NAME,
    OPTIMIZER,
    PARTIAL,
    SELF,
    SUPER,
    TUPLE,
    UNKNOWN,
    Value,
)

if TYPE_CHECKING:
    import libcst as cst

    from devlint.flow import Flow
    from devlint.flow.scope import Class, Function

#: Bound to code, or known by the very calls that made them: of no use in another file.
_STAYS = frozenset({OPTIMIZER, PARTIAL, GENERATOR, SELF, SUPER})


@dataclass(frozen=True)
class Elsewhere:
    """Where in the project a value was learned from: a definition in another file."""

    path: str
    row: int
    name: str


def place(of: Place, known: Container[tuple[str, int]]) -> Place:
    """A place seen in another file; ``known`` are the symbols that mean something here."""
    if of.kind not in ("device", "param") or (of.name, of.scope) in known or of == SOMEWHERE:
        return of
    return SOMEWHERE if of.kind == "device" else UNKNOWN_PLACE


def value(of: Value, node: cst.CSTNode | None, known: Container[tuple[str, int]] = ()) -> Value:
    """A value seen in another file, as ``node`` gets it."""
    kind = of.kind
    if kind in _STAYS or (kind == FUNCTION and (of.items is not None or not _is_plain(of.ref))):
        return UNKNOWN
    if kind == NAME and not of.ref.startswith(("torch.", "numpy.")):
        return UNKNOWN  # as imported there
    items: Any = of.items
    if (kind == LIST and isinstance(items, Value)) or (kind == MODULE and isinstance(items, Value)):
        items = value(items, node, known)
    elif kind == TUPLE:
        items = [value(item, node, known) for item in items]
    elif kind == DICT:
        items = {key: value(item, node, known) for key, item in items.items()}
    elif kind == INSTANCE and items:
        items = {attr: place(at, known) for attr, at in items.items()}
    ref = of.ref
    if isinstance(ref, Value | tuple):
        ref = None
    if kind in (LOADER, DEVICE):
        items = None
    return of.but(
        place=place(of.place, known),
        origin=node if of.origin is not None else None,
        obj=node if of.obj is not None else None,
        attr=None,
        items=items,
        ref=ref,
    )


def _is_plain(function: Any) -> bool:
    """A function at the top level: no lambda, and none that is made where others run."""
    return getattr(function, "outer", function) is None


def note(flow: Flow, node: cst.CSTNode, source: Function | Class) -> None:
    """Remember that what is known of ``node`` was learned from a definition in another file."""
    unit = source.home.unit if source.home is not None else None
    if unit is not None and source.home is not flow:
        flow.learned[node] = Elsewhere(unit.definition.path, unit.row, source.name)
