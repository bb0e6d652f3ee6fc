"""What a function does with a value later shows that it is a tensor."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.scope import Function
from devlint.flow.value import MODULE
from devlint.rule import Rule


def is_used_as_tensor(rule: Rule, since: cst.CSTNode, receiver: cst.BaseExpression) -> bool:
    """``rows.to(device); loss = (rows - mean).sum()``: whether it goes on as tensors do, until it is assigned again."""
    path = rule.code(receiver).split()
    around = rule.flow.function(receiver)
    if around is not None:
        nodes = [n for n in tree.walk(around.node.body) if type(n) is type(receiver)]
    else:  # if __name__ == "__main__": ...
        nodes = [n for n in rule.source.nodes_of(type(receiver)) if rule.flow.function(n) is None]
    later = [n for n in nodes if rule.source.comes_before(since, n)]
    same = sorted((n for n in later if rule.code(n).split() == path), key=lambda n: rule.source.offsets(n)[0])
    for node in same:
        parent = rule.parent(node)
        if isinstance(parent, cst.AssignTarget) and not _reads(parent, node, rule):
            return False  # graph.to(device); graph = graph.x; graph - mean
        if _is_tensors(rule, node, parent):
            return True
    return False


def is_more_than_tensor(function: Function | None, name: str) -> bool:
    """``batch.num_graphs``, ``graph.cart_dir``: batches of graphs, and other objects, move in place, and have `detach`,
    `clone` and the like, too."""
    read = function.attributes.get(name, set()) if function is not None else set()
    return any(not each.startswith("_") for each in read - _ALL_OF_TENSORS)


def called_names(rule: Rule, function: Function | None) -> set[str]:
    """The plain names that a function, or the file outside of all functions, calls: ``net`` of ``net(x)``."""
    if function is not None:
        return function.called
    calls = (call for call in rule.source.nodes_of(cst.Call) if rule.flow.function(call) is None)
    return {call.func.value for call in calls if isinstance(call.func, cst.Name)}


def _reads(target: cst.AssignTarget, node: cst.BaseExpression, rule: Rule) -> bool:
    """``rows = rows - mean``: the old value is read first."""
    assign = rule.parent(target)
    if not isinstance(assign, cst.Assign):
        return False
    path = rule.code(node).split()
    return any(
        type(each) is type(node) and rule.code(each).split() == path and _is_tensors(rule, each, rule.parent(each))
        for each in tree.walk(assign.value)
    )


def _is_tensors(rule: Rule, node: cst.BaseExpression, parent: cst.CSTNode | None) -> bool:
    if isinstance(parent, cst.Subscript):
        return node is parent.value and len(parent.slice) > 1  # rows[0, :, :]; net[0] is a layer
    if isinstance(parent, cst.BinaryOperation):
        return isinstance(parent.operator, _ARITHMETIC)  # transforms are joined by `|` and `>>`
    if isinstance(parent, cst.Attribute):
        call = rule.parent(parent)
        return isinstance(call, cst.Call) and call.func is parent and parent.attr.value in OF_TENSORS
    call = rule.parent(parent) if isinstance(parent, cst.Arg) else None
    if not isinstance(call, cst.Call) or not isinstance(parent, cst.Arg) or parent.star or parent.keyword is not None:
        return False
    if takes_tensors_alone(rule, call) and parent in call.args[:2]:
        return True
    if call.args[0] is not parent:
        return False
    name = rule.flow.name_of(call)
    operation = table.FUNCTIONS.get(name)
    return name.startswith("torch.nn.functional.") or (operation is not None and operation.operands in ("all", "first"))


def takes_tensors_alone(rule: Rule, call: cst.Call) -> bool:
    """``F.cross_entropy(out, y)``, ``criterion(out, y)`` of a loss of torch's: two tensors that have to be together."""
    operation = table.FUNCTIONS.get(rule.flow.name_of(call))
    if operation is not None:
        return operation.operands == "all" and operation.reduces == "loss"
    module = rule.flow.value(call.func)
    fact = table.MODULES.get(module.ref) if module.kind == MODULE and isinstance(module.ref, str) else None
    return fact is not None and fact.kind == "loss" and module.ref != "torch.nn.CTCLoss"


_ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.Divide, cst.MatrixMultiply, cst.Power)

_ALL_OF_TENSORS = (
    {*table.METHODS, *table.ATTRIBUTES, *table.MOVES, *table.TYPE_MOVES, *table.HOST_ONLY_METHODS, *table.NEW_METHODS}
    | {*"index storage untyped_storage register_hook register_post_accumulate_grad_hook set_".split()}
    | {*"is_sparse_csr sparse_mask smm sspaddmm".split()}
    | {"[,]", "size()"}  # ways to use one, not names
)

#: Methods of tensors; what holds several and moves them in place, as graphs and modules do, has none of these.
OF_TENSORS = frozenset(
    "unsqueeze squeeze permute masked_fill view argmax softmax repeat_interleave reshape flatten transpose numpy item "
    "tolist backward sum mean expand repeat clamp abs norm sigmoid log_softmax matmul bmm nonzero cumsum gather "
    "index_select masked_select scatter_ unbind topk numel view_as expand_as triu tril amax amin".split()
)
