"""More that is made on the host for want of ``device=``, each kind with why that is told; none of it is sure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import libcst as cst

from devlint.flow import torch_table as table
from devlint.flow.names import called_name
from devlint.rule import Rule
from devlint.rules._beside_made import beside_made
from devlint.rules._forgotten import forgotten
from devlint.rules._given_either import given_either
from devlint.rules._in_collectives import collected
from devlint.rules._moves import short
from devlint.rules._tried_with import tried_with


class MadeOnHost(NamedTuple):
    """``why`` says what a factory's result has to do with ``node``, and ``note`` what that is."""

    factory: cst.Call
    why: str
    node: cst.CSTNode
    note: str


def more_of_host(
    rule: Rule, is_meant: Callable[[cst.Call], bool], is_left: Callable[[cst.Call], bool]
) -> Iterator[MadeOnHost]:
    """The factories of all these kinds; ``is_meant`` judges which are on the host for want of ``device=``, ``is_left``
    takes types of the host for such, too."""
    if rule.flow.calls(*table.FACTORIES, *table.HOST_FACTORIES):
        yield from _of_factories(rule, is_meant)
    for tried in tried_with(rule, is_left):
        why = f"it is handed to `{short(rule.code(tried.call.func))}`, wherever that is"
        yield MadeOnHost(tried.factory, why, tried.call, "they meet here")


def _of_factories(rule: Rule, is_meant: Callable[[cst.Call], bool]) -> Iterator[MadeOnHost]:
    for met in beside_made(rule, is_meant):
        other = short(rule.code(met.other))
        yield MadeOnHost(met.factory, f"it meets `{other}`, wherever that is", met.node, "they meet here")
    for each in collected(rule, is_meant):
        beside = f", as it does `{short(rule.code(each.other))}`" if each.other is not None else ""
        why = f"`{called_name(each.call)}` exchanges it between processes{beside}"
        yield MadeOnHost(each.factory, why, each.call, "it is handed over here")
    for told in forgotten(rule, is_meant):
        why = f"its function makes others on `{told.device}`"
        yield MadeOnHost(told.factory, why, told.beside, "like this one")
    for given in given_either(rule, is_meant):
        other = short(rule.code(given.other))
        why = f"is returned, as `{other}` is, wherever that was computed"
        yield MadeOnHost(given.factory, why, given.other, f"`{other}` is returned here")
