"""Children that are told a GPU by counting from 0, whichever their parent was left."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted, names_bound
from devlint.rule import Rule

_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
#: `os.environ.get("CUDA_VISIBLE_DEVICES")`, `os.getenv(...)`, `os.environ["..."].split(",")`, `"..." in os.environ`
_ASKED = re.compile(
    r"""(environ\.get|getenv|environ\.pop)\(\s*["']\w+_VISIBLE_DEVICES|["']\w+_VISIBLE_DEVICES["'] (not )?in |"""
    r"""environ\[["']\w+_VISIBLE_DEVICES["']\](?! *=[^=])"""
)


def counted_for_children(rule: Rule) -> Iterator[tuple[cst.BaseExpression, cst.CSTNode]]:
    """``{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(n)``: what the child is told, and what counts."""
    if _ASKED.search(rule.source.text) is not None:
        return
    for told in (*_of_dicts(rule), *_of_copies(rule)):
        names = {node.value for node in tree.walk(told) if isinstance(node, cst.Name)} - {"str", "repr"}
        if len(names) == 1 and (loop := _counting(rule, told, names.pop())) is not None:
            yield told, loop


def _of_dicts(rule: Rule) -> Iterator[cst.BaseExpression]:
    for entry in rule.source.nodes_of(cst.DictElement):
        if isinstance(entry.key, cst.SimpleString) and entry.key.evaluated_value in _VARIABLES:
            # os.environ.update({"CUDA_VISIBLE_DEVICES": str(i)})   is for this process
            call = rule.enclosing(entry, cst.Call, cst.Assign)
            if not (isinstance(call, cst.Call) and "environ" in dotted(call.func)):
                yield entry.value


def _of_copies(rule: Rule) -> Iterator[cst.BaseExpression]:
    """``env = os.environ.copy(); env["CUDA_VISIBLE_DEVICES"] = str(i)``"""
    for assign in rule.source.nodes_of(cst.Assign):
        target = assign.targets[0].target
        if not isinstance(target, cst.Subscript) or len(target.slice) != 1 or not isinstance(target.value, cst.Name):
            continue
        index = target.slice[0].slice
        key = index.value if isinstance(index, cst.Index) else None
        is_told = isinstance(key, cst.SimpleString) and key.evaluated_value in _VARIABLES
        if is_told and "env" in target.value.value and rule.flow.scope.qualified(target.value) != "os.environ":
            yield assign.value


def _counting(rule: Rule, told: cst.BaseExpression, name: str) -> cst.CSTNode | None:
    """``range(n)`` of the loop that binds the name."""
    above = rule.parent(told)
    while above is not None and not isinstance(above, cst.FunctionDef):
        loops: list[cst.For | cst.CompFor] = []
        if isinstance(above, cst.For):
            loops = [above]
        elif isinstance(above, cst.ListComp | cst.GeneratorExp | cst.DictComp):
            loops = [above.for_in]
        for loop in loops:
            if name in names_bound(loop.target):
                counts = isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) == "range"
                return loop.iter if counts and isinstance(loop.target, cst.Name) else None
        above = rule.parent(above)
    return None
