"""A rank that a class or function was handed and numbers a device with, though it knows the local one as well."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule

_RANK = re.compile(r"(?:self\._?)?(?:global_)?rank")
#: What says that processes are counted on each node, too.
_KNOWS_LOCAL = re.compile(r"_?local_?(?:rank|world_?size)|LOCAL_(?:RANK|WORLD_SIZE)", re.IGNORECASE)
#: ``self.rank = rank % torch.cuda.device_count()``, ``self.rank = local_rank``: it is the one on the node.
_IS_LOCAL = re.compile(r"%|local|device_count", re.IGNORECASE)


def rank_beside_local(rule: Rule, rank: cst.BaseExpression, function: Function | None) -> cst.CSTNode | None:
    """Where the local rank is, or how many processes a node has, beside ``self._rank`` or ``rank``."""
    name = dotted(rank)
    if function is None or not _RANK.fullmatch(name):
        return None
    owner: cst.CSTNode = function.node
    if name.startswith("self."):
        if function.cls is None:
            return None
        owner = function.cls.node
    elif name not in function.param_names:
        return None
    for node in tree.walk(owner):
        # rank = rank % torch.cuda.device_count(), self.rank %= 8
        if isinstance(node, cst.AugAssign) and dotted(node.target) == name:
            return None
        if not isinstance(node, cst.Assign | cst.AnnAssign) or node.value is None:
            continue
        targets = [each.target for each in node.targets] if isinstance(node, cst.Assign) else [node.target]
        said = [dotted(each) for each in targets]
        if name in said and _IS_LOCAL.search(rule.code(node.value)):
            return None
        # self.local_rank = rank: there is one node
        if any(_KNOWS_LOCAL.search(each) for each in said) and _RANK.fullmatch(dotted(node.value)):
            return None
    return next((node for node in tree.walk(owner) if _says_local(node)), None)


def _says_local(node: cst.CSTNode) -> bool:
    """``self._local_rank``, ``local_world_size``, ``os.environ["LOCAL_RANK"]``"""
    if isinstance(node, cst.Name):
        return _KNOWS_LOCAL.fullmatch(node.value) is not None
    return isinstance(node, cst.SimpleString) and _KNOWS_LOCAL.fullmatch(str(node.evaluated_value)) is not None
