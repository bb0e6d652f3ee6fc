"""The arguments of a call, evaluated."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from devlint.flow.value import Value

#: An argument, or what an operation is done with: the expression, and what it is.
Operand = tuple[cst.BaseExpression, Value]


class Args(NamedTuple):
    """A call's arguments, evaluated. ``starred``: some come from ``*xs`` or ``**kw`` and are not known."""

    positional: list[Operand]
    keywords: dict[str, Operand]
    starred: bool

    def get(self, position: int | None, *names: str) -> Operand | None:
        """The argument of one of the names, or at the position; ``None`` where it is not given."""
        for name in names:
            found = self.keywords.get(name)
            if found is not None:
                return found
        if position is not None and position < len(self.positional):
            return self.positional[position]
        return None

    def value(self, position: int | None, *names: str) -> Value | None:
        """What :meth:`get` finds is."""
        found = self.get(position, *names)
        return None if found is None else found[1]

    @property
    def all(self) -> list[Operand]:
        """Every argument, however it is given."""
        return [*self.positional, *self.keywords.values()]

    def but(self, names: frozenset[str]) -> list[Operand]:
        """Every argument, but for those that are given by one of the names."""
        return [*self.positional, *(operand for name, operand in self.keywords.items() if name not in names)]


def is_true(node: cst.BaseExpression) -> bool:
    """The constant ``True``."""
    return isinstance(node, cst.Name) and node.value == "True"


def is_false(node: cst.BaseExpression) -> bool:
    """The constant ``False``."""
    return isinstance(node, cst.Name) and node.value == "False"


def flag(args: Args, position: int, name: str) -> bool | None:
    """An argument that is ``False`` unless given; ``None`` where it depends on a variable."""
    given = args.get(position, name)
    if given is None:
        return False if not args.starred else None
    return True if is_true(given[0]) else False if is_false(given[0]) else None
