"""Names that are bound where there is CUDA alone, and read on every machine: ``if use_cuda: index = ...``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from devlint import tree
from devlint.flow.names import names_bound, target_names
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._made import is_use
from devlint.rules._portability import SPEAKS_OF_CUDA, Surroundings, leaves

_ASKS = re.compile(
    r"(torch\.)?(cuda|accelerator|backends\.mps|mps|xpu)\.is_available\(\)|(\w+\.)*_?(use_?|has_?|on_?|with_?)?(cuda|gpu)|"
    r"""(\w+\.)*device(\.type)? == ["'](cuda|mps|xpu)["']|["']cuda["'] in (str\()?(\w+\.)*device\)?|"""
    r"(\w+\.)*is_cuda|torch\.cuda\.device_count\(\) (> 0|>= 1)",
    re.IGNORECASE,
)


# what each of these names: quicker than to make the code of every test
_NAMES_KIND = re.compile(r"cuda|gpu|mps|xpu|accelerator", re.IGNORECASE)


@dataclass(frozen=True)
class Unbound:
    """``name`` is bound under ``test``, and nowhere else; ``use`` reads it."""

    name: str
    test: cst.BaseExpression
    use: cst.Name


def unbound_elsewhere(rule: Rule, around: Surroundings) -> Iterator[Unbound]:
    """The first such use of each name."""
    for branch in rule.source.nodes_of(cst.If):
        function = rule.flow.function(branch)
        if function is None or branch.orelse is not None or _NAMES_KIND.search(tree.words(branch.test)) is None:
            continue
        if _ASKS.fullmatch(rule.code(branch.test)) is None:
            continue
        if leaves(branch.body) or around.guard(branch, SPEAKS_OF_CUDA) is not None:
            continue
        for name in _bound_in(branch.body):
            if name in function.param_names or _is_bound_outside(rule, function, name, branch):
                continue
            use = next(iter(_reads(rule, around, function, name, branch)), None)
            if use is not None:
                yield Unbound(name, branch.test, use)


def _bound_in(body: cst.BaseSuite) -> list[str]:
    found: set[str] = set()
    for line in body.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Assign):
                for each in small.targets:
                    target_names(each.target, found)
    return sorted(found)


def _is_bound_outside(rule: Rule, function: Function, name: str, branch: cst.If) -> bool:
    """Whether anything else in the function binds it, or says that it is of another scope."""
    inside = set(tree.walk(branch.body))
    for node in tree.walk(function.node.body):
        if node in inside:
            continue
        if isinstance(node, cst.AssignTarget | cst.AnnAssign | cst.AugAssign | cst.NamedExpr | cst.For | cst.CompFor):
            if name in names_bound(node.target):
                return True
        elif isinstance(node, cst.AsName) and name in names_bound(node.name):
            return True
        elif isinstance(node, cst.ImportAlias | cst.Global | cst.Nonlocal | cst.FunctionDef | cst.ClassDef | cst.Del):
            if any(isinstance(each, cst.Name) and each.value == name for each in tree.walk(node)):
                return True
        elif isinstance(node, cst.Match):
            return True
    return False


def _reads(rule: Rule, around: Surroundings, function: Function, name: str, branch: cst.If) -> Iterator[cst.Name]:
    """Reads that follow, where nothing asks again."""
    inside = set(tree.walk(branch))
    for node in tree.named(function.node.body, name):
        if node in inside:
            continue
        above = rule.parent(node)
        if (
            not is_use(rule, node)
            or not rule.source.comes_before(branch, node)
            or rule.flow.function(node) is not function
        ):
            continue
        if isinstance(above, cst.AssignTarget | cst.Del) or around.guard(node, SPEAKS_OF_CUDA) is not None:
            return
        # if name in locals();   gpu_id if use_cuda else None;   if n_gpu and lists: lists[0]
        step: cst.CSTNode | None = node
        while step is not None and step is not function.node:
            outer = rule.parent(step)
            if isinstance(outer, cst.If | cst.IfExp | cst.While | cst.BooleanOperation | cst.Try | cst.Assert):
                asked = outer.left if isinstance(outer, cst.BooleanOperation) else getattr(outer, "test", None)
                if asked is None or any(word in tree.words(asked) for word in tree.words(branch.test).split()):
                    return
            step = outer
        yield node
        return
