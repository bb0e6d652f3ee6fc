"""LibCST's nodes, cheaper: a third of the processor time of a run went into what this file takes out.

LibCST checks each node it makes, also those its own parser makes, and sets each field through ``object.__setattr__``
since nodes are frozen. Here constructors just store what they are given, and check it unless devlint parses. And nodes
are compared and hashed by identity, which LibCST says in Python and ``object`` in C, though every look-up asks for it.

Half of the time to import LibCST goes into methods that Python writes and compiles for each class of nodes. Most are
never called: those that make nodes frozen, the constructors that are replaced, and the comparing and printing that
LibCST replaces anyway. Where this file is what imports LibCST, they are not made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from typing import Any, cast

#: Something while devlint parses.
_parsing: list[str] = []


def _constructor(kind: Any) -> Callable[..., None]:
    """A constructor that sets the fields of a class of nodes, and checks them unless devlint parses."""
    frozen = kind.__dataclass_params__.frozen
    names: dict[str, Any] = {"MISSING": MISSING, "parsing": _parsing, "set_field": object.__setattr__}
    params, body = [], []
    for field in fields(kind):
        name = value = field.name
        if field.default is not MISSING:
            names[f"default_{name}"] = field.default
            params.append(f"{name}=default_{name}")
        elif field.default_factory is not MISSING:
            names[f"make_{name}"] = field.default_factory
            params.append(f"{name}=MISSING")
            value = f"make_{name}() if {name} is MISSING else {name}"
        else:
            params.append(name)
        body.append(f"    set_field(self, {name!r}, {value})\n" if frozen else f"    self.{name} = {value}\n")
    head = f"def __init__({', '.join(('self', *params))}):\n"
    exec(f"{head}{''.join(body)}    if not parsing:\n        self.__post_init__()", names)
    return cast("Callable[..., None]", names["__init__"])


@contextmanager
def _plain_nodes() -> Iterator[None]:
    """LibCST's nodes that are defined now get no methods for being data classes but a constructor, ours."""
    usual = dataclasses.dataclass

    def plain(cls: Any = None, /, **given: Any) -> Any:
        if cls is None:
            return lambda cls: plain(cls, **given)
        if not cls.__module__.startswith("libcst._nodes.") or not hasattr(cls, "_validate"):
            return usual(cls, **given)
        cls = usual(cls, **{**given, "init": False, "repr": False, "eq": False, "frozen": False})
        cls.__init__ = _constructor(cls)
        return cls

    dataclasses.dataclass = plain
    try:
        yield
    finally:
        dataclasses.dataclass = usual


with _plain_nodes():
    import libcst as cst


def parse(text: str) -> cst.Module:
    """The tree of some code. Raises what LibCST's parser raises."""
    _parsing.append(text)
    try:
        return cst.parse_module(text)
    finally:
        _parsing.pop()


def _kinds(kind: type[cst.CSTNode]) -> Iterator[type[cst.CSTNode]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def _prepare() -> None:
    by_identity = cst.CSTNode.__hash__, cst.CSTNode.__eq__
    for kind in dict.fromkeys(_kinds(cst.CSTNode)):  # type: ignore[type-abstract]
        if (kind.__hash__, kind.__eq__) == by_identity:
            kind.__hash__, kind.__eq__ = object.__hash__, object.__eq__  # type: ignore[method-assign]
        params = vars(kind).get("__dataclass_params__")
        if params is not None and params.frozen and "__slots__" in vars(kind):  # something else has imported LibCST
            kind.__init__ = _constructor(kind)  # type: ignore[method-assign]


_prepare()
