"""Tests for the type of a tensor that only one on the host has: one on a device is none, or is called otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint.flow.names import dotted
from devlint.flow.scope import HOST_SIDE
from devlint.rule import Rule

#: ``isinstance(x, torch.cuda.FloatTensor)`` anywhere in the function: it thinks of devices.
_OF_CUDA = re.compile(r"cuda\.\w*Tensor")
#: ``isinstance(x, (torch.Tensor, torch.FloatTensor))``, ``torch.is_tensor(x) or ...``, and a device that is asked for
_ANY = re.compile(r"(?<![A-Za-z])Tensor\b|is_tensor|Variable|is_cuda|is_cpu|\.cpu\(|\.device\b|Storage")
_TYPE = re.compile(r"torch\.(Float|Double|Half|BFloat16|Byte|Char|Short|Int|Long|Bool)Tensor")


def type_tests(rule: Rule) -> Iterator[tuple[cst.BaseExpression, str]]:
    """Where a type is asked for that no tensor on a device has, with what to say; of ``isinstance``, only what it
    asks by a plain name (``from torch import LongTensor``)."""
    for call in rule.source.nodes_of(cst.Call):
        if len(call.args) != 2 or dotted(call.func) != "isinstance":
            continue
        held = call.args[0].value
        for asked_for in _each(call.args[1].value):
            named = isinstance(asked_for, cst.Name) and _is_type(rule, asked_for, False)
            if named and is_of_any_place(rule, call, held):
                said = f"`{rule.code(held)}` is never one on a device, whatever its dtype"
                yield asked_for, f"`{rule.code(asked_for)}` is of the host: {said}"
    for test in rule.source.nodes_of(cst.Comparison):
        if len(test.comparisons) != 1:
            continue
        operator, right = test.comparisons[0].operator, test.comparisons[0].comparator
        if not isinstance(operator, cst.Equal | cst.NotEqual | cst.In | cst.NotIn | cst.Is | cst.IsNot):
            continue
        left = test.left if isinstance(test.left, cst.Call) else right
        asked = _asked(rule, left)
        if asked is None:
            continue
        tensor, is_text = asked
        types = [each for each in _each(right if left is test.left else test.left) if _is_type(rule, each, is_text)]
        if not types or not is_of_any_place(rule, test, tensor):
            continue
        code, kind = rule.code(left), rule.code(types[0])
        if is_text:
            yield test, f"`{code}` is {kind} on the host alone: ask for the `dtype`"
        else:
            yield test, f"`{code}` is `torch.Tensor`, wherever the tensor is, and never `{kind}`"


def is_of_any_place(rule: Rule, test: cst.CSTNode, tensor: cst.BaseExpression) -> bool:
    """Whether what a test asks of may be on a device, and nothing beside the test takes care of that."""
    function = rule.flow.function(test)
    if rule.flow.value(tensor).place.is_host:
        return False  # x = torch.from_numpy(rows); isinstance(x, torch.FloatTensor)
    if function is not None:
        if function.role == HOST_SIDE:
            return False  # def __getitem__(self, index): of a data set
        if function.name == "__call__" and function.cls is not None and not function.cls.is_module:
            return False  # class ToImage: def __call__(self, picture): of what prepares data
        code = rule.code(function.node)
        # if not isinstance(x, torch.IntTensor): raise TypeError; handle = x.data_ptr()   is for the host on purpose
        if _OF_CUDA.search(code) or f"{rule.code(tensor)}.data_ptr(" in code or f"{rule.code(tensor)}.numpy(" in code:
            return False
    elif _OF_CUDA.search(rule.source.text):
        return False
    return not any(_ANY.search(rule.code(each)) for each in _beside(rule, test))


def _beside(rule: Rule, test: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The whole condition that a test is part of, and those of ``elif`` beside it."""
    above = rule.parent(test)
    while isinstance(above, cst.BooleanOperation | cst.UnaryOperation):
        test, above = above, rule.parent(above)
    yield test
    if isinstance(above, cst.If):
        first: cst.CSTNode | None = above
        while isinstance(first, cst.If):
            above, first = first, rule.parent(first)
        branch: cst.CSTNode | None = above
        while isinstance(branch, cst.If):
            yield branch.test
            branch = branch.orelse


def _asked(rule: Rule, node: cst.BaseExpression) -> tuple[cst.BaseExpression, bool] | None:
    """``x`` of ``x.type()``, ``torch.typename(x)`` and ``type(x)``, and whether that gives a text."""
    if not isinstance(node, cst.Call):
        return None
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "type" and not node.args:
        return node.func.value, True
    if len(node.args) != 1 or node.args[0].keyword is not None or node.args[0].star:
        return None
    if rule.flow.scope.qualified(node.func) == "torch.typename":
        return node.args[0].value, True
    return (node.args[0].value, False) if dotted(node.func) == "type" else None


def _each(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node, cst.Tuple | cst.List | cst.Set):
        return [each.value for each in node.elements]
    return [node]


def _is_type(rule: Rule, node: cst.BaseExpression, is_text: bool) -> bool:
    if is_text:
        return isinstance(node, cst.SimpleString) and _TYPE.fullmatch(str(node.evaluated_value)) is not None
    return _TYPE.fullmatch(rule.flow.scope.qualified(node)) is not None
