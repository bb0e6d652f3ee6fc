"""Whether the code itself shows that a needless copy is paid for again and again."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint.flow.facts import Move
from devlint.flow.loops import runs_sometimes, working_loop
from devlint.flow.value import TENSOR, UNKNOWN_KIND
from devlint.flow.waiting import is_constant, waits
from devlint.rule import Rule
from devlint.rules._copied import is_copied
from devlint.rules._made import Made
from devlint.rules._recurs import in_stepping_loop, reads, recurs

#: From so many sizes on that vary, what is filled on the host is large enough for the copy to cost by itself.
_SIZES_OF_MUCH = 3
#: What gives one value of many, which a test then waits for.
_SUMMARIES = frozenset("max min amax amin sum any all equal allclose isclose mean count_nonzero".split())
#: What makes a tensor of Python's or numpy's data.
_OF_DATA = frozenset("torch.tensor torch.as_tensor torch.from_numpy torch.asarray torch.Tensor".split())


def is_evident(rule: Rule, move: Move, made: Made) -> bool:
    """Whether it surely recurs and costs, or stands beside what the same function makes on the device."""
    if is_copied(rule, move.node) or (made.random and _has_fixed_size(made.factory)):
        return False  # for step in range(10): x = torch.randn(20, 5).to(device)   stands in for real data
    if _makes_others_there(rule, move.node):
        return True
    return _is_called_often(rule, move.node) and (_is_large(made.factory) or not _waits_beside(rule, move.node))


def _is_called_often(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether the file shows who calls it: a loop, a step, or whoever runs the module that it is a method of."""
    function = rule.flow.function(node)
    of_module = function is not None and function.cls is not None and function.cls.is_module
    return of_module or recurs(rule.flow, node)


def _makes_others_there(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether the same function fills other memory where it belongs: `ones = torch.ones(n, device=x.device)`."""
    return any(
        isinstance(n, cst.Call)
        and (entry := rule.flow.factory(n)) is not None
        and entry.values != "python"
        and any(arg.keyword is not None and arg.keyword.value == "device" for arg in n.args)
        and not rule.flow.value(n).place.is_host
        for n in _beside(rule, node)
    )


def _waits_beside(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether the host waits for the device in the same call, or in the same turn of the loop, for something else."""
    # assert torch.max(offset) <= self.longest; index = offset + torch.arange(n).to(offset.device)
    flow = rule.flow
    loop = working_loop(flow, node) if in_stepping_loop(flow, node) else None
    for n in _beside(rule, node) if loop is None else _inside(loop.node.body):
        if not isinstance(n, cst.BaseExpression) or (loop is not None and runs_sometimes(flow, n, loop)):
            continue
        if waits(flow, n, needed=True) or reads(flow, n) or _brings_data(rule, n) or _asks_values(rule, n):
            return True
    return False


def _asks_values(rule: Rule, node: cst.BaseExpression) -> bool:
    """`torch.max(offset)` of `assert torch.max(offset) + size <= self.longest`, `mask.any()` of `if mask.any():`"""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    if node.func.attr.value not in _SUMMARIES:
        return False
    is_function = rule.flow.name_of(node).startswith("torch.")
    operand = rule.flow.value(node.args[0].value if is_function and node.args else node.func.value)
    if operand.kind not in (TENSOR, UNKNOWN_KIND) or operand.place.is_host:
        return False
    child: cst.CSTNode = node
    above = rule.parent(child)
    while isinstance(above, cst.BaseExpression | cst.ComparisonTarget):
        child, above = above, rule.parent(above)
    return isinstance(above, cst.Assert | cst.If | cst.While) and above.test is child


def _brings_data(rule: Rule, node: cst.BaseExpression) -> bool:
    """`torch.from_numpy(rows).to(device)`, `tokenizer(words, return_tensors="pt")`: data that only the host has."""
    if not isinstance(node, cst.Call):
        return False
    if any(arg.keyword is not None and arg.keyword.value == "return_tensors" for arg in node.args):
        return True
    move = rule.flow.facts.moves.get(node)
    if move is None or not move.target.is_there or not isinstance(move.value.origin, cst.Call):
        return False
    made = move.value.origin
    if not move.value.place.is_host or rule.flow.name_of(made) not in _OF_DATA:
        return False
    return not made.args or not is_constant(made.args[0].value)


def _beside(rule: Rule, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The code of the function that a node is in."""
    function = rule.flow.function(node)
    return _inside(function.node.body) if function is not None else iter(())


def _inside(body: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes of a block, without the functions and classes that are defined in it."""
    stack = [body]
    while stack:
        node = stack.pop()
        yield node
        stack += [child for child in node.children if not isinstance(child, cst.FunctionDef | cst.ClassDef)]


def _is_large(factory: cst.Call) -> bool:
    """`torch.zeros(batch, time, width)`"""
    return sum(not isinstance(size, cst.Integer) for size in _sizes(factory)) >= _SIZES_OF_MUCH


def _has_fixed_size(factory: cst.Call) -> bool:
    sizes = _sizes(factory)
    return bool(sizes) and all(isinstance(size, cst.Integer) for size in sizes)


def _sizes(factory: cst.Call) -> list[cst.BaseExpression]:
    sizes = [arg.value for arg in factory.args if arg.keyword is None or arg.keyword.value == "size"]
    if sizes and isinstance(sizes[0], cst.List | cst.Tuple):
        return [element.value for element in sizes[0].elements]
    return sizes
