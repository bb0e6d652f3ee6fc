"""Numbers of devices whose truth is asked for: device 0 is false."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import names_device, numbers_device
from devlint.flow.names import annotation_names, called_name, dotted, last_word
from devlint.rule import Rule
from devlint.rules._arguments import parameter

#: Functions that give the device in use, or its number.
GIVE_DEVICE = frozenset({"torch.cuda.current_device", "torch.accelerator.current_accelerator"})
_SELECT = frozenset({"torch.cuda.set_device", "torch.cuda.device"})
_INDEXED = re.compile(r"""f["'](cuda|xpu|npu):\{""")


def report_or(rule: Rule, node: cst.BooleanOperation) -> None:
    """``gpu or default``, where ``gpu`` is a number or ``None``."""
    left = node.left
    if not isinstance(left, cst.Name) or not isinstance(node.operator, cst.Or):
        return
    if not (numbers_device(left.value) or names_device(left.value)) or not _is_optional_number(rule, left):
        return
    # gpu or 0  gives what is meant; if gpu or index:  is no number
    if isinstance(node.right, cst.Integer) or isinstance(rule.parent(node), cst.If | cst.IfExp | cst.While):
        return
    # if gpu or index: name = f"cuda:{gpu or index}"  knows that one of them is none
    around = rule.enclosing(node, cst.If, cst.FunctionDef)
    if isinstance(around, cst.If) and tree.named(around.test, left.value):
        return
    if "rank" in left.value and "rank" in rule.code(node.right).lower():
        return  # rank or dist.get_rank(): 0 is what the first process is told there, too
    # gpu or DEFAULT_GPU  may be how many of them are asked for
    if _reaches_device(rule, node) or _is_device_number(rule, node.right):
        # gpu or torch.cuda.current_device()   is 0 as well, as long as nobody selects another one
        is_current = rule.flow.name_of(node.right) in GIVE_DEVICE
        rule.report(node, f"`{left.value}` is false for device 0, which is left out here", tentative=is_current)


def _reaches_device(rule: Rule, node: cst.BaseExpression) -> bool:
    """Whether it is given for a device, itself or by the name that it is bound to."""
    bound = rule.parent(node)
    if not isinstance(bound, cst.Assign) or len(bound.targets) != 1:
        return _is_used_as_device(rule, node)
    path = dotted(bound.targets[0].target)
    around = rule.enclosing(node, cst.ClassDef if "." in path else cst.FunctionDef) or rule.source.module
    return bool(path) and any(
        _is_used_as_device(rule, each)
        for each in tree.walk(around)
        if isinstance(each, cst.Name | cst.Attribute) and dotted(each) == path
    )


def _is_device_number(rule: Rule, node: cst.BaseExpression) -> bool:
    """``torch.cuda.current_device()``, ``rule.gpu``"""
    word = last_word(dotted(node))
    numbers = names_device(word) or (numbers_device(word) and "rank" not in word)
    return numbers or rule.flow.name_of(node) in GIVE_DEVICE


def report_test(rule: Rule, test: cst.BaseExpression, then: cst.CSTNode) -> None:
    """``if gpu: torch.cuda.set_device(gpu)``, where ``gpu`` is a number or ``None``."""
    if not isinstance(test, cst.Name):
        return
    if not _is_optional_number(rule, test):
        return
    uses = [use for use in tree.named(then, test.value) if _is_used_as_device(rule, use)]
    if uses:
        rule.report(
            test,
            f"`{test.value}` is false for device 0, which is left out here",
            fix=rule.fix("ask whether it is `None`", rule.insert_after(test, " is not None"), safe=False),
            tentative=_is_current_otherwise(rule, test, uses),
        )


def _is_current_otherwise(rule: Rule, test: cst.Name, uses: list[cst.Name]) -> bool:
    """``if gpu: torch.cuda.set_device(gpu)``, and ``if gpu: return net.cuda(gpu)`` before ``return net.cuda()``: the
    current device is the first one, as long as nobody selects another."""
    calls = [rule.enclosing(use, cst.Call) for use in uses]
    if all(call is not None and rule.flow.name_of(call) in _SELECT for call in calls):
        return True
    function = rule.flow.function(test)
    return any(
        called_name(each) == "cuda" and not each.args and rule.flow.function(each) is function
        for each in rule.source.nodes_of(cst.Call)
    )


def _is_optional_number(rule: Rule, node: cst.Name) -> bool:
    """Whether it is a parameter annotated as a number or ``None``."""
    param = parameter(rule.flow.function(node), node.value)
    if param is None or param.annotation is None:
        return False  # def f(gpu=0)  may mean a flag
    said = set(annotation_names(param.annotation.annotation))
    optional = isinstance(param.default, cst.Name) and param.default.value == "None"
    return said == {"int", "None"} or (said == {"int"} and optional)


def _is_used_as_device(rule: Rule, node: cst.BaseExpression) -> bool:
    above = rule.parent(node)
    if isinstance(above, cst.FormattedStringExpression):
        string = rule.parent(above)
        return string is not None and _INDEXED.match(rule.code(string)) is not None
    call = rule.parent(above) if isinstance(above, cst.Arg) else None
    if not isinstance(call, cst.Call) or not isinstance(above, cst.Arg):
        return False
    if above.keyword is not None and above.keyword.value == "device":
        return True
    name = rule.flow.name_of(call)
    if name in ("torch.cuda.set_device", "torch.cuda.device", "torch.device"):
        return True
    moves = isinstance(call.func, cst.Attribute) and call.func.attr.value in ("cuda", "to")
    return moves and above is call.args[0]
