"""What a comparison decides on, where that matters to nobody: nothing but moves to where things are, or words."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted, last_word
from devlint.rule import Rule

#: Methods that move, and what gives the parameters to be moved.
_BRINGS = frozenset("to cuda cpu parameters buffers state_dict items values".split())
#: What is called to tell people something.
_TELLS = frozenset("critical debug error exception info log print warn warn_once warning warning_once".split())
_IDLE_ON_HOST = frozenset({"torch.cuda.empty_cache", "gc.collect"})


def only_brings(rule: Rule, node: cst.Comparison) -> bool:
    """Whether what the comparison decides on is nothing but moves, which do nothing to what is there."""
    # if x.device != device: x = x.to(device)
    branch = rule.parent(node)
    if isinstance(branch, cst.BooleanOperation) and isinstance(branch.operator, cst.And):
        branch = rule.parent(branch)
    if not isinstance(branch, cst.If | cst.IfExp):
        return False
    calls = [each for each in tree.walk(branch.body) if isinstance(each, cst.Call)]
    return bool(calls) and all(called_name(each) in _BRINGS or _is_telling(each) for each in calls)


def only_moves_there(rule: Rule, node: cst.Comparison, text: str) -> bool:
    """Whether the comparison decides on nothing but moves to the place that it asks for, which change nothing."""
    branch, equal = rule.parent(node), isinstance(node.comparisons[0].operator, cst.Equal)
    if not isinstance(branch, cst.If | cst.IfExp) or branch.test is not node:
        return False
    if isinstance(branch, cst.IfExp):  # x if x.device == "meta" else x.to("meta")
        there, moved = (branch.body, branch.orelse) if equal else (branch.orelse, branch.body)
        return isinstance(there, cst.Name | cst.Attribute) and _is_moved(rule, moved, text)
    if not equal and branch.orelse is None and _only_empties(rule, branch.body):
        return True  # if x.device != "cpu": torch.cuda.empty_cache()
    there_values, moved_values = _given(branch.body), _given_otherwise(rule, branch)
    if not equal:  # if x.device != "cpu": x = x.to("cpu")
        there_values, moved_values = [] if branch.orelse is None else moved_values, there_values
    return (
        there_values is not None
        and moved_values is not None
        and moved_values != []
        and all(dotted(value) not in ("", "None", "True", "False") for value in there_values)
        and all(_is_moved(rule, value, text) for value in moved_values)
    )


def _only_empties(rule: Rule, block: cst.BaseSuite) -> bool:
    """Whether a block calls nothing but what does nothing where CUDA was not used."""
    calls = [node for node in tree.walk(block) if isinstance(node, cst.Call)]
    return bool(calls) and all(rule.flow.name_of(call) in _IDLE_ON_HOST for call in calls)


def _given_otherwise(rule: Rule, branch: cst.If) -> list[cst.BaseExpression] | None:
    """What the other branch gives: ``if x.device == "meta": return x``, and what follows it."""
    if branch.orelse is not None:
        return _given(branch.orelse.body) if isinstance(branch.orelse, cst.Else) else None
    block = rule.parent(branch)
    return _given(block, after=branch) if isinstance(block, cst.IndentedBlock) else None


def _is_moved(rule: Rule, value: cst.BaseExpression, text: str) -> bool:
    calls = [node for node in tree.walk(value) if isinstance(node, cst.Call)]
    return bool(calls) and all(_moves_to(rule, call, text) for call in calls)


def _moves_to(rule: Rule, call: cst.Call, text: str) -> bool:
    func = call.func
    if not isinstance(func, cst.Attribute):
        return False
    if func.attr.value == "to" and len(call.args) == 1:
        return rule.flow.value(call.args[0].value).text == text
    return func.attr.value == text and not call.args  # x.cpu()


def _given(block: cst.BaseSuite, after: cst.CSTNode | None = None) -> list[cst.BaseExpression] | None:
    """The values of a block of nothing but assignments and returns, of what stands behind ``after`` in it."""
    lines = list(block.body)
    found = []
    for line in lines[lines.index(after) + 1 :] if after is not None else lines:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else (line,):
            if not isinstance(small, cst.Assign | cst.Return) or small.value is None:
                return None
            found.append(small.value)
    return found


def only_tells(rule: Rule, node: cst.CSTNode) -> bool:
    """``if device != "mps": warnings.warn(...)``, ``print("fast" if device == "cuda" else "slow")``"""
    child, parent = node, rule.parent(node)
    while isinstance(parent, cst.BooleanOperation | cst.UnaryOperation):
        child, parent = parent, rule.parent(parent)
    if isinstance(parent, cst.If) and parent.test is child:
        return _tells(parent.body) and (
            parent.orelse is None or (isinstance(parent.orelse, cst.Else) and _tells(parent.orelse.body))
        )
    statement = rule.enclosing(node, cst.BaseSmallStatement, cst.BaseCompoundStatement)
    return isinstance(statement, cst.Expr) and _says(statement)


def _tells(block: cst.BaseSuite) -> bool:
    """Whether a block does nothing but tell people something."""
    return all(
        isinstance(line, cst.SimpleStatementLine) and all(_says(small) for small in line.body) for line in block.body
    )


def _says(statement: cst.CSTNode) -> bool:
    """``print(...)``, ``logger.info(...)``, ``warnings.warn(...)``"""
    call = statement.value if isinstance(statement, cst.Expr) else None
    return isinstance(call, cst.Call) and _is_telling(call)


def _is_telling(call: cst.Call) -> bool:
    return last_word(dotted(call.func)) in _TELLS
