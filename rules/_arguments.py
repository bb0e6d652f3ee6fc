"""What a call is given."""

from __future__ import annotations

import libcst as cst


def argument(node: cst.Call, position: int | None, *names: str) -> cst.Arg | None:
    """The argument of one of the names, or at the position; ``None`` where `*xs` or `**options` may hold it."""
    for index, arg in enumerate(node.args):
        if arg.star:
            return None
        if (arg.keyword is None and index == position) or (arg.keyword is not None and arg.keyword.value in names):
            return arg
    return None
