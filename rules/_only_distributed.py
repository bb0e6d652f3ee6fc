"""What is there in runs of several processes or devices alone, and is used in all: ``model.module``, a sampler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._loose_tests import WHICH_PROCESS
from devlint.rules._order_of_runs import excludes
from devlint.rules._switches import lines_above

#: Tests that ask whether there are several.
SEVERAL = re.compile(
    r"distribut|\bddp\b|_ddp|ddp_|rank|world_?size|n_?gpus?\b|num_gpu|gpus|device_count|multi|parallel|is_initialized",
    re.IGNORECASE,
)
_WRAPS = re.compile(r"^(\w*DataParallel|DDP|DP|FSDP|\w*DistributedDataParallel)$")
_ASKS = re.compile(r"module|hasattr|isinstance|getattr|sampler|wrap", re.IGNORECASE)


@dataclass(frozen=True)
class Bound:
    """``name`` is given what is for several of them by ``value``, below ``test``."""

    name: str
    value: cst.BaseExpression
    test: cst.BaseExpression


def wrapped_for_several(rule: Rule) -> Iterator[Bound]:
    """``if args.distributed: model = DistributedDataParallel(model)``, where nothing else wraps it."""
    for branch in rule.source.nodes_of(cst.If):
        above = rule.parent(branch)
        if isinstance(above, cst.If) and above.orelse is branch:
            continue  # elif
        first = next(_wraps_in(branch), None)
        if first is None or not SEVERAL.search(rule.code(branch.test)):
            continue
        name = dotted(first.targets[0].target)
        # if args.distributed: net = DDP(net)  else: net = DataParallel(net)
        if name and not _always(branch, name) and not _wrapped_beside(rule, name, branch):
            yield Bound(name, first.value, branch.test)


def _wraps_in(block: cst.CSTNode) -> Iterator[cst.Assign]:
    for node in tree.walk(block):
        if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call) and _WRAPS.match(called_name(node.value)):
            yield node


def _always(branch: cst.If | cst.Else, name: str) -> bool:
    """Whether each way through a branch wraps it."""
    here = any(dotted(each.targets[0].target) == name for each in _wraps_in(branch.body))
    if isinstance(branch, cst.Else):
        return here
    return here and branch.orelse is not None and _always(branch.orelse, name)


def _wrapped_beside(rule: Rule, name: str, branch: cst.If) -> bool:
    inside, function = set(tree.walk(branch)), rule.flow.function(branch)
    return any(
        node not in inside
        and ("." in name or rule.flow.function(node) is function)
        and any(dotted(each.target) == name for each in node.targets)
        and re.search(r"Parallel|DDP|FSDP|prepare|initialize|wrap", rule.code(node.value)) is not None
        for node in rule.source.nodes_of(cst.Assign)
    )


def samplers_for_several(rule: Rule) -> Iterator[Bound]:
    """``sampler = DistributedSampler(rows) if args.distributed else None``, and the same in branches."""
    for assign in rule.source.nodes_of(cst.Assign):
        value, name = assign.value, dotted(assign.targets[0].target)
        if not name:
            continue
        if isinstance(value, cst.IfExp):
            sides = (value.body, value.orelse)
            made = [each for each in sides if isinstance(each, cst.Call) and "Sampler" in called_name(each)]
            if made and any(dotted(each) == "None" for each in sides) and SEVERAL.search(rule.code(value.test)):
                yield Bound(name, made[0], value.test)
        elif isinstance(value, cst.Call) and called_name(value) == "DistributedSampler":
            branch = rule.enclosing(assign, cst.If, cst.FunctionDef)
            if not isinstance(branch, cst.If) or not SEVERAL.search(rule.code(branch.test)):
                continue
            others = [
                node.value
                for node in rule.source.nodes_of(cst.Assign)
                if node is not assign and any(dotted(each.target) == name for each in node.targets)
            ]
            here = [each for each in others if rule.flow.function(each) is rule.flow.function(assign)]
            if here and all(dotted(each) == "None" for each in here):
                yield Bound(name, value, branch.test)


def uses(rule: Rule, bound: Bound, attribute: str) -> Iterator[cst.Attribute]:
    """Where the attribute is read and nothing asks: in the same function, or class for what is its own."""
    home = rule.flow.function(bound.value)
    for node in rule.source.nodes_of(cst.Attribute):
        if node.attr.value != attribute or dotted(node.value) != bound.name:
            continue
        function = rule.flow.function(node)
        own = bound.name.startswith("self.") and function is not None and home is not None
        if _sees(function, home, bound.name):
            if not rule.source.comes_before(bound.value, node) or excludes(rule, bound.value, node):
                continue
        elif not own or function is None or home is None or function.cls is not home.cls:
            continue
        if not _is_asked(rule, node, bound):
            yield node


def _sees(function: Function | None, home: Function | None, name: str) -> bool:
    """Whether a name means the same in a function as where it is bound: there, or in one around it."""
    head = name.partition(".")[0]
    while function is not home:
        if function is None or head in function.param_names or head in function.assigned:
            return False
        function = function.outer
    return True


def _is_asked(rule: Rule, node: cst.CSTNode, bound: Bound) -> bool:
    """Whether a test, an exit or a handler around, or any in the function about that name, says there are several."""
    words = set() if bound.test is bound.value else set(tree.words(bound.test).split())
    words -= {"args", "self", "torch", "cuda", "opt", "cfg", "config", "not"}
    for line in lines_above(rule, node):
        if isinstance(line, cst.If) and _leaves(line) and _tells(rule, line.test, words):
            return True
        if isinstance(line, cst.SimpleStatementLine) and any(
            isinstance(small, cst.Assert) and _tells(rule, small.test, words) for small in line.body
        ):
            return True
    child, above = node, rule.parent(node)
    while above is not None:
        if isinstance(above, cst.If | cst.IfExp | cst.While) and child is not above.test:
            if _tells(rule, above.test, words):
                return True
        elif (
            isinstance(above, cst.BooleanOperation) and child is above.right and _tells(rule, above.left, words)
        ) or isinstance(above, cst.Try):
            return True
        elif isinstance(above, cst.FunctionDef):
            return SEVERAL.search(above.name.value) is not None
        child, above = above, rule.parent(above)
    return False


def _tells(rule: Rule, test: cst.BaseExpression, words: set[str]) -> bool:
    code = rule.code(test)
    if WHICH_PROCESS.fullmatch(code):
        return False  # if rank == 0:   holds in a single one, too
    return bool(SEVERAL.search(code) or _ASKS.search(code) or words & set(tree.words(test).split()))


def _leaves(branch: cst.If) -> bool:
    ends = (cst.Return, cst.Raise, cst.Continue, cst.Break)
    return any(isinstance(node, ends) for node in tree.walk(branch.body)) or "exit" in tree.words(branch.body)
