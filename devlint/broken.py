"""Whether code fails, on any device, before it gets to where a finding is: what is said of it matters to nobody.

What published code does more often than one would think: it reads an attribute that nothing sets, or whose only
assignment is commented out, or a name that nothing in its file binds, or it asks whether a device equals a string.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.loops import exits
from devlint.flow.names import dotted
from devlint.flow.scope import BARE_BASES, CONSTRUCTOR, Class, Function
from devlint.flow.steps import above, is_under_test, runs_each_time
from devlint.flow.value import TENSOR
from devlint.mentions import says

if TYPE_CHECKING:
    from devlint.flow import Flow
    from devlint.source import Source

#: Puts names where nobody sees them.
_BY_TEXT = re.compile(r"\bimport\s+\*|\bglobals\(\)|\bexec\(|\bget_ipython\(|\bbuiltins\.")
_KNOWN = frozenset(dir(builtins)) | frozenset(
    "__annotations__ __builtins__ __class__ __file__ __module__ __path__ __qualname__ __version__ display exit quit "
    "reveal_type".split()
)


def fails_before(flow: Flow, node: cst.CSTNode) -> bool:
    """Whether a function always fails before it gets to a node of it, or the constructor of its class always does."""
    function = flow.function(node)
    if _has_ended(flow, node):
        return True
    if function is None:
        return False
    if _never_holds(flow, node):
        return True
    order = flow.source.comes_before
    if any(order(each, node) for each in _failing(flow, function)):
        return True
    cls = function.cls
    return cls is not None and function.role != CONSTRUCTOR and _cannot_be_built(flow, cls)


def always_fails(flow: Flow, node: cst.CSTNode) -> bool:
    """Whether the method that a node is in fails whenever it runs, be it after the node: a script, which may work for
    hours before, is none."""
    function = flow.function(node)
    return function is not None and function.cls is not None and any(True for _ in _failing(flow, function))


def _has_ended(flow: Flow, node: cst.CSTNode) -> bool:
    """Whether ``exit()``, or the like, stands before a node in one of the blocks around it."""
    if "exit(" not in flow.source.text and "quit(" not in flow.source.text:
        return False
    for inner, around in pairwise([node, *above(flow, node)]):
        if isinstance(around, cst.IndentedBlock | cst.Module):
            for statement in around.body:
                if statement is inner:
                    break
                if any(exits(part) for part in statement.children):
                    return True
    return False


def _never_holds(flow: Flow, node: cst.CSTNode) -> bool:
    """Whether a node stands under ``if x.device == "cpu":``, which is never so: a ``torch.device`` equals no string."""
    way = [node, *above(flow, node)]
    return any(
        type(around) is cst.If and inner is around.body and _takes_device_for_text(flow, around.test)
        for inner, around in pairwise(way)
    )


def _takes_device_for_text(flow: Flow, test: cst.BaseExpression) -> bool:
    if type(test) is not cst.Comparison or type(test.left) is not cst.Attribute:
        return False
    asked, other = test.left, test.comparisons[0]
    is_equal = type(other.operator) is cst.Equal and type(other.comparator) is cst.SimpleString
    return is_equal and asked.attr.value == "device" and flow.value(asked.value).kind == TENSOR


def _cannot_be_built(flow: Flow, cls: Class) -> bool:
    constructor = cls.methods.get("__init__")
    if constructor is None:
        return False
    asked = [constructor]
    for call in tree.walk(constructor.node.body):
        if type(call) is cst.Call and dotted(call.func).startswith("self.") and runs_each_time(flow, constructor, call):
            method = cls.methods.get(dotted(call.func)[5:])
            if method is not None and method not in asked:
                asked.append(method)
    return any(True for method in asked for _ in _failing(flow, method))


def _failing(flow: Flow, function: Function) -> Iterator[cst.CSTNode]:
    """What a function reads whenever it runs, and nothing sets or binds."""
    source, cls = flow.source, function.cls
    for node in tree.walk(function.node.body):
        if type(node) is cst.Attribute:
            missing = (
                cls is not None
                and _is_own(source, node)
                and (_is_commented_out(flow, cls, node) or _is_never_set(flow, cls, node))
            )
        else:
            missing = type(node) is cst.Name and _is_unbound(source, node)
        if not missing or not runs_each_time(flow, function, node) or is_under_test(flow, function, node):
            continue
        # try: profile   rows: Rows = []
        if not any(isinstance(each, cst.Try | cst.TryStar | cst.Annotation) for each in above(flow, node)):
            yield node


def _is_own(source: Source, node: cst.Attribute) -> bool:
    """Whether ``self.head`` is read."""
    return type(node.value) is cst.Name and node.value.value == "self" and _is_loaded(source, node)


def _is_commented_out(flow: Flow, cls: Class, node: cst.Attribute) -> bool:
    """``self.head(x)``, where the file has ``# self.head = nn.Linear(8, 2)`` and nothing else sets or names it."""
    name, text = node.attr.value, flow.source.text
    if name not in _stores_commented_out(text):
        return False
    # net.head = nn.Linear(8, 2); setattr(net, "head", layer); def head(self): ...
    if re.search(
        rf"^[^#\n]*(?:\b{name}\b[^\n=(]*=(?!=)|\b(?:def|class) +{name}\b|[\"']{name}[\"'])", text, re.MULTILINE
    ):
        return False
    return not any(name in owner.methods or name in owner.stores for owner in cls.lineage)


def _is_never_set(flow: Flow, cls: Class, node: cst.Attribute) -> bool:
    """``if self.nane is None:``, where nothing in the class, what it inherits, or the project's text sets that."""
    name = node.attr.value
    if name.startswith("_") or name in table.MODULE_ATTRIBUTES or flow.project is None:
        return False
    if not cls.outside_bases <= BARE_BASES:
        return False
    sets = f"sets {name}"
    return not says(flow.source.raw, "", sets) and flow.project.some_file_says(sets) is False


@lru_cache(maxsize=1)
def _stores_commented_out(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"^[ \t]*#[ \t#]*self\.(\w+)[ \t]*=(?!=)", text, re.MULTILINE))


def _is_unbound(source: Source, node: cst.Name) -> bool:
    """Whether a name is read that nothing in the file binds, wherever that is, and Python does not know."""
    parent = source.parents.get(node)
    if node.value in _KNOWN or isinstance(parent, cst.Param | cst.NameItem):
        return False
    if isinstance(parent, cst.Attribute | cst.Arg | cst.NamedExpr) and parent.value is not node:
        return False
    while isinstance(parent, cst.Attribute):
        parent = source.parents.get(parent)
    if isinstance(parent, cst.Import | cst.ImportFrom | cst.ImportAlias):
        return False  # from nets.left import Net
    known = _names_bound(source.text)
    return known is not None and node.value not in known


@lru_cache(maxsize=1)
def _names_bound(text: str) -> frozenset[str] | None:
    """The names that some scope of a file binds; nothing where names may come by other ways."""
    import symtable

    if _BY_TEXT.search(text):
        return None
    try:
        todo = [symtable.symtable(text, "", "exec")]
    except (SyntaxError, ValueError, RecursionError):
        return None  # what LibCST reads, and this Python does not
    found: set[str] = set()
    for each in todo:
        todo += each.get_children()
        found.update(
            symbol.get_name()
            for symbol in each.get_symbols()
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_parameter() or symbol.is_namespace()
        )
    return frozenset(found)


def _is_loaded(source: Source, node: cst.CSTNode) -> bool:
    return not isinstance(source.parents.get(node), cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.Del)
