"""Devices that are `None` unless somebody gives one: `def draw(n, device=None): ... torch.device(device)`."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted, last_word
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._arguments import handed_in
from devlint.rules._errors import is_expected
from devlint.rules._meetings import calls_that_run

#: Decorators that hand in what others said.
_HANDING = frozenset({"command", "option", "argument", "main"})
#: What may leave out what stands in it.
_MAY_SKIP = (
    cst.If,
    cst.For,
    cst.While,
    cst.Try,
    cst.TryStar,
    cst.Match,
    cst.IfExp,
    cst.BooleanOperation,
    cst.BaseComp,
    cst.FunctionDef,
)


def report_left_out(rule: Rule, node: cst.Call, given: cst.Name) -> None:
    """``def draw(n, device=None): ... torch.device(device)``"""
    function = rule.flow.function(node)
    param = function.param(given.value) if function is not None else None
    if function is None or param is None or dotted(param.default) != "None" or is_expected(rule, node):
        return
    # @click.option("--device", default="cpu")
    if function.is_replaced or any(last_word(each) in _HANDING for each in function.decorators):
        return
    if isinstance(rule.enclosing(node, cst.FunctionDef, cst.Lambda), cst.Lambda):
        return  # lambda: torch.device(device)  runs once it is known, or never
    mentions = _mentions_before(rule, function, node, given)
    # if device is None: device = "cpu"
    if not all(isinstance(rule.parent(each), cst.Arg) for each in mentions) or _asks_kind(rule, mentions):
        return
    surely = not mentions and _runs_always(rule, function, node) and _is_left_out(rule, function, given.value)
    name = given.value
    said = f"`{name}` is `None`, which is no device, unless it is given"
    rule.report(given, said, notes=[rule.note(param, "by default")], tentative=not surely)


def _mentions_before(rule: Rule, function: Function, node: cst.Call, given: cst.Name) -> list[cst.Name]:
    """Where a parameter is named before a call is done with, or in the same statement, in any way."""
    statement = rule.enclosing(node, cst.SimpleStatementLine, cst.BaseCompoundStatement)
    whole: cst.CSTNode = node  # with torch.device(device) if device is not None else nullcontext():
    while isinstance(above := rule.parent(whole), cst.BaseExpression | cst.Arg | cst.WithItem):
        whole = above
    end = rule.source.offsets(statement if isinstance(statement, cst.SimpleStatementLine) else whole)[1]
    return [
        each
        for each in tree.named(function.node.body, given.value)
        if each is not given
        and rule.source.offsets(each)[0] < end
        # x.device, draw(3, device=...), and device = torch.device(device) itself
        and not _is_no_use(rule, each, statement)
    ]


def _is_no_use(rule: Rule, name: cst.Name, statement: cst.CSTNode | None) -> bool:
    """Whether a name is an attribute's or a keyword, or what the statement itself binds."""
    above = rule.parent(name)
    if isinstance(above, cst.Attribute):
        return above.attr is name
    if isinstance(above, cst.Arg):
        return above.keyword is name
    return isinstance(above, cst.AssignTarget) and rule.enclosing(above, cst.SimpleStatementLine) is statement


def _asks_kind(rule: Rule, mentions: list[cst.Name]) -> bool:
    """``if isinstance(device, str):``, ``if is_known(device):``, ``device = resolve(device)``"""
    calls = (rule.parent(rule.parent(each) or each) for each in mentions)
    return any(not isinstance(rule.parent(call), cst.Expr) for call in calls if call is not None)


def _runs_always(rule: Rule, function: Function, node: cst.Call) -> bool:
    """Whether each call of a function comes to a node: no branch is around it, and nothing returns before."""
    child: cst.CSTNode = node
    above = rule.parent(child)
    while above is not None and above is not function.node:
        # move and torch.device(device), torch.device(device) if move else None, [torch.device(device) for x in xs]
        if isinstance(above, _MAY_SKIP):
            return False
        child, above = above, rule.parent(above)
    start = rule.source.offsets(node)[0]
    return not any(
        isinstance(each, cst.Return | cst.Raise | cst.Yield | cst.Await) and rule.source.offsets(each)[1] < start
        for each in tree.walk(function.node.body)
    )


def _is_left_out(rule: Rule, function: Function, name: str) -> bool:
    """Whether a call of the file leaves a parameter out, or hands in ``None``, and nothing catches that."""
    cls = function.cls
    called = function.name
    if cls is not None:
        # super().__init__() calls another one, and so may layer.draw(3)
        called = cls.name if function.name == "__init__" else f"self.{function.name}"
        if cls.node.decorators:
            return False  # @gin.configurable
    for call in calls_that_run(rule, function):
        if dotted(call.func) != called or (called.startswith("self.") and not _is_in(rule, call, function)):
            continue
        given = handed_in(call, function, name)
        if given is None and any(arg.star for arg in call.args):
            continue  # Told(3, **options)
        if (given is None or dotted(given) == "None") and not is_expected(rule, call):
            return True
    return False


def _is_in(rule: Rule, call: cst.Call, function: Function) -> bool:
    """Whether it is the method's own class that calls a method."""
    caller = rule.flow.function(call)
    return caller is not None and caller.cls is function.cls
