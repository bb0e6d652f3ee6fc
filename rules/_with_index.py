"""Names of devices that have an index, where the kind alone is wanted: ``"cuda:0"`` for ``"cuda"``."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted
from devlint.rule import Rule
from devlint.rules._arguments import parameter

_INDEXED = re.compile(r"""[fF]?["'](?:cuda|xpu|npu|mps|hpu):(?:\d|\{|%)|["'](?:cuda|xpu|npu):["'] \+""")
#: ``torch.device(f"cuda:{rank}")``, ``f"cuda:{rank}".split(":")[0]``
_OTHER = re.compile(r"device\(|\.(?:split|partition)\(|\[:\d\]")


def why_indexed(rule: Rule, node: cst.BaseExpression) -> cst.CSTNode | None:
    """What shows that a name of a device may be ``"cuda:0"``: where it is written, chosen, or asked about."""
    for side in tree.sides(node):
        if _says_index(rule, side):
            return side
    path = dotted(node)
    if not path:
        return None
    param = parameter(rule.flow.function(node), path) if "." not in path else None
    if param is not None and param.default is not None and _says_index(rule, param.default):
        return param
    values = [value for value in _given(rule, node, path) if param is None]
    told = next((value for value in values if any(_says_index(rule, side) for side in tree.sides(value))), None)
    return told or _option(rule, path.rpartition(".")[2] if "." in path else "") or _asked(rule, node, path)


def _says_index(rule: Rule, node: cst.BaseExpression) -> bool:
    """``"cuda:0"``, ``f"cuda:{rank}"``, ``"cuda:{}".format(rank)``, ``"cuda:" + str(rank)``"""
    code = rule.code(node)
    return _INDEXED.match(code) is not None and _OTHER.search(code) is None


def _given(rule: Rule, node: cst.CSTNode, path: str) -> list[cst.BaseExpression]:
    """What is assigned to a name, where that is bound; to ``self.device``, anywhere in the file."""
    function, found = rule.flow.function(node), list[tuple[object, cst.BaseExpression]]()
    for assign in rule.source.nodes_of(cst.Assign):
        if any(dotted(each.target) == path for each in assign.targets):
            found.append((rule.flow.function(assign), assign.value))
    if "." in path:
        return [value for _, value in found]
    while function is not None:
        here = [value for where, value in found if where is function]
        if here or path in function.param_names:
            return here
        function = function.outer
    return [value for where, value in found if where is None]


def _option(rule: Rule, name: str) -> cst.CSTNode | None:
    """``parser.add_argument("--device", default="cuda:0")`` of ``args.device``."""
    for call in rule.source.nodes_of(cst.Call) if name else ():
        if called_name(call) != "add_argument" or not call.args:
            continue
        flags = [rule.code(arg.value).strip("-\"'").replace("-", "_") for arg in call.args if arg.keyword is None]
        for arg in call.args:
            is_default = arg.keyword is not None and arg.keyword.value == "default"
            if name in flags and is_default and _says_index(rule, arg.value):
                return arg
    return None


def _asked(rule: Rule, node: cst.BaseExpression, path: str) -> cst.CSTNode | None:
    """``"cuda" in device``, ``device.startswith("cuda")``: somebody takes it for a text that has more than that."""
    function = rule.flow.function(node)
    for other in rule.source.nodes_of(cst.Name if "." not in path else cst.Attribute):
        if dotted(other) != path or ("." not in path and rule.flow.function(other) is not function):
            continue
        above = rule.parent(other)
        if isinstance(above, cst.ComparisonTarget) and isinstance(above.operator, cst.In):
            test = rule.parent(above)
            text = test.left if isinstance(test, cst.Comparison) else None
            if isinstance(text, cst.SimpleString) and text.evaluated_value in ("cuda", "xpu"):
                return test
        call = rule.parent(above) if isinstance(above, cst.Attribute) and above.attr.value == "startswith" else None
        if isinstance(call, cst.Call) and call.args and rule.code(call.args[0].value).strip("\"'") in ("cuda", "xpu"):
            return call
    return None
