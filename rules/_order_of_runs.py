"""Whether one place of a file runs before another one, also where they stand in different functions."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint.flow.names import dotted, last_word
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._meetings import calls_that_run
from devlint.rules._switches import tests_above

_STEPS = 4  # of calls that are followed back
_ENDS = frozenset({"exit", "_exit", "quit", "abort"})


def runs_after(rule: Rule, later: cst.CSTNode, first: cst.CSTNode) -> bool:
    """Whether ``later`` runs behind ``first`` in the same run, and never above it, as far as the file shows."""
    pairs = [
        (depth + level, origin, site)
        for function, site, depth in _sites(rule, later)
        for other, origin, level in _sites(rule, first)
        if function is other and site is not origin
    ]
    # what stands in one function needs no look at who calls that
    nearest = min((depth for depth, _, _ in pairs), default=0)
    close = [(origin, site) for depth, origin, site in pairs if depth == nearest]
    for origin, site in close:
        if excludes(rule, origin, site) or _contradicts(rule, (first, origin), (later, site)):
            return False
        if not rule.source.comes_before(origin, site):
            return False  # train(args); os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu
    if close:
        return True
    if _contradicts(rule, (first,), (later,)):
        return False
    home, place = rule.flow.function(first), rule.flow.function(later)
    if home is None:
        # os.environ[...] = gpu   as the file is imported, and a function that other files call
        return place is not None
    is_set_up = home.name in ("__init__", "__new__", "__enter__", "setup")
    return is_set_up and place is not None and place is not home and home.cls is not None and place.cls is home.cls


def _sites(rule: Rule, node: cst.CSTNode) -> Iterator[tuple[Function | None, cst.CSTNode, int]]:
    """A node, and the calls in the file by which it is run, each with the function that it stands in, and how many
    calls lie between."""
    todo: list[tuple[cst.CSTNode, int]] = [(node, 0)]
    seen: set[Function | None] = set()
    while todo:
        current, steps = todo.pop(0)
        function = rule.flow.function(current)
        yield function, current, steps
        if function is not None and function not in seen and steps < _STEPS:
            seen.add(function)
            todo += [(call, steps + 1) for call in calls_that_run(rule, function) if not _is_of_base(call)]


def _is_of_base(call: cst.Call) -> bool:
    """``super().__init__()``"""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "__init__"


def excludes(rule: Rule, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Whether two places of a function stand in different branches of one test, or the branch of the first one
    leaves the function."""
    above = _chain(rule, one)
    for child, parent in _chain(rule, other).items():
        if isinstance(parent, cst.If | cst.IfExp) and parent in above.values():
            branch = next(each for each, holder in above.items() if holder is parent)
            tests = (branch is parent.test) or (child is parent.test)
            if branch is not child and not tests:
                return True
        elif isinstance(parent, cst.Try) and parent in above.values():
            branch = next(each for each, holder in above.items() if holder is parent)
            if branch is not child and all(isinstance(each, cst.ExceptHandler | cst.Else) for each in (branch, child)):
                return True
    around_other = set(_chain(rule, other))
    for child, parent in above.items():
        if isinstance(parent, cst.If) and child is not parent.test and child not in around_other and _leaves(child):
            return True
    return False


def _chain(rule: Rule, node: cst.CSTNode) -> dict[cst.CSTNode, cst.CSTNode]:
    """What stands around a node within its function: each with what holds it."""
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    parent = rule.parent(node)
    while parent is not None and not isinstance(node, cst.FunctionDef):
        found[node] = parent
        node, parent = parent, rule.parent(parent)
    return found


def _leaves(branch: cst.CSTNode) -> bool:
    """``if args.launch: ...; return``"""
    block = branch.body if isinstance(branch, cst.Else) else branch
    if not isinstance(block, cst.IndentedBlock) or not block.body:
        return False
    last = block.body[-1]
    if not isinstance(last, cst.SimpleStatementLine):
        return False
    end = last.body[-1]
    if isinstance(end, cst.Return | cst.Raise | cst.Continue | cst.Break):
        return True
    call = end.value if isinstance(end, cst.Expr) else None
    return isinstance(call, cst.Call) and last_word(dotted(call.func)) in _ENDS


def _contradicts(rule: Rule, firsts: tuple[cst.CSTNode, ...], laters: tuple[cst.CSTNode, ...]) -> bool:
    """``if args.single: os.environ[...] = gpu``  and, elsewhere,  ``if not args.single: set_device(gpu)``"""
    one = {guard for node in firsts for guard in _guards(rule, node)}
    return any((code, not holds) in one for node in laters for code, holds in _guards(rule, node))


def _guards(rule: Rule, node: cst.CSTNode) -> Iterator[tuple[str, bool]]:
    """The tests that let a node run, each with its answer."""
    for test, _, holds in tests_above(rule, node):
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            yield rule.code(test.expression), not holds
        else:
            yield rule.code(test), holds
