"""LibCST's nodes, cheaper: a third of the processor time of a run went into what this file takes out.

LibCST checks each node it makes, also those its own parser makes, and sets each field through ``object.__setattr__``
since nodes are frozen. While devlint parses, constructors only fill the slots. And nodes are compared and hashed by
identity, which LibCST says in Python and ``object`` in C: every look-up by a node asks for it.

Half of the time to import LibCST goes into methods that Python writes and compiles for each class of nodes. Most are
never called: those that make nodes frozen, and the comparing and printing that LibCST replaces anyway. Where this file
is what imports LibCST, they are not made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from threading import Lock
from typing import Any, cast


@contextmanager
def _plain_nodes() -> Iterator[None]:
    """LibCST's nodes that are defined now get no methods but their constructor."""
    usual = dataclasses.dataclass

    def plain(cls: Any = None, /, **given: Any) -> Any:
        if cls is None:
            return lambda cls: plain(cls, **given)
        if cls.__module__.startswith("libcst._nodes."):
            given = {**given, "repr": False, "eq": False, "frozen": False}
        return usual(cls, **given)

    dataclasses.dataclass = plain
    try:
        yield
    finally:
        dataclasses.dataclass = usual


with _plain_nodes():
    import libcst as cst


def parse(text: str) -> cst.Module:
    """The tree of some code. Raises what LibCST's parser raises."""
    with _parsing:
        for kind, _, quick in _constructors:
            kind.__init__ = quick  # type: ignore[misc]
        try:
            return cst.parse_module(text)
        finally:
            for kind, usual, _ in _constructors:
                kind.__init__ = usual  # type: ignore[misc]


def _kinds(kind: type[cst.CSTNode]) -> Iterator[type[cst.CSTNode]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def _filling(kind: type) -> Callable[..., None] | None:
    """A constructor that fills the slots of a class of nodes and does no more; ``None`` for a class of another make."""
    names: dict[str, Any] = {"MISSING": MISSING}
    params, body = [], []
    for field in fields(kind):
        slot: Any = getattr(kind, field.name, None)
        if not field.init or type(slot).__name__ != "member_descriptor":
            return None
        names[f"set_{field.name}"] = slot.__set__
        value = field.name
        if field.default is not MISSING:
            names[f"default_{field.name}"] = field.default
            params.append(f"{field.name}=default_{field.name}")
        elif field.default_factory is not MISSING:
            names[f"make_{field.name}"] = field.default_factory
            params.append(f"{field.name}=MISSING")
            value = f"make_{field.name}() if {field.name} is MISSING else {field.name}"
        else:
            params.append(field.name)
        body.append(f"    set_{field.name}(self, {value})\n")
    exec(f"def __init__({', '.join(('self', *params))}):\n{''.join(body) or '    pass'}", names)
    return cast("Callable[..., None]", names["__init__"])


def _prepare() -> list[tuple[type, Any, Any]]:
    """Classes of nodes, with their own constructors and the quick ones."""
    found = []
    by_identity = cst.CSTNode.__hash__, cst.CSTNode.__eq__
    for kind in dict.fromkeys(_kinds(cst.CSTNode)):  # type: ignore[type-abstract]
        if (kind.__hash__, kind.__eq__) == by_identity:
            kind.__hash__, kind.__eq__ = object.__hash__, object.__eq__  # type: ignore[method-assign]
        if "__init__" in vars(kind) and "__dataclass_fields__" in vars(kind):
            quick = _filling(kind)
            if quick is not None:
                found.append((kind, vars(kind)["__init__"], quick))
    return found


_parsing = Lock()
_constructors = _prepare()
