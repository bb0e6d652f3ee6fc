"""What a factory made, and its way to where it is moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

import libcst as cst

from devlint import tree
from devlint.flow import Flow
from devlint.flow import torch_table as table
from devlint.flow.facts import Move
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import Function
from devlint.flow.value import DTYPE, TENSOR
from devlint.flow.waiting import bound_to
from devlint.rule import Rule
from devlint.rules._training import is_inside

#: What a factory's result may go through without being computed with: the same calls give the same on a device.
_REARRANGE = (
    table.VIEWS | table.VIEWS_OR_COPIES | {"repeat", "tile", "clone", "tril", "triu", "flip", "roll", "diag"}
) - {"sum_to_size"}
_WRAP = frozenset({"torch.autograd.Variable", "torch.nn.Parameter", "torch.nn.parameter.Parameter"})
_FILL = frozenset({"fill_", "zero_"})
_DRAW = frozenset(
    {"uniform_", "normal_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_"}
)

#: Arguments of a factory that tie it to the host, or make of the move more than a copy.
_KEEP_ON_HOST = frozenset({"device", "generator", "requires_grad", "pin_memory", "out"})


class Made(NamedTuple):
    """A factory call at the head of a chain; ``random``: its values are drawn."""

    factory: cst.Call
    random: bool


class Named(NamedTuple):
    """A name that a factory's result goes through: the lines that bind and move it, and those between."""

    line: cst.SimpleStatementLine
    move_line: cst.SimpleStatementLine
    between: list[cst.CSTNode]
    made: Made


# the factory --------------------------------------------------------------------------------------


def head(flow: Flow, node: cst.BaseExpression) -> tuple[cst.BaseExpression | None, bool]:
    """The factory call, or the name, that a chain of rearranging calls starts from; whether values are drawn."""
    drawn = False
    while True:
        if isinstance(node, cst.Name):
            return node, drawn
        if is_view(node):
            node = node.value
        elif not isinstance(node, cst.Call):
            return None, False
        elif (random := factory_draws(flow, node)) is not None:
            return node, drawn or random
        elif flow.name_of(node):
            # torch.tril(torch.ones(n, n))
            if not rearranges_first(flow.name_of(node)) or not node.args:
                return None, False
            node = node.args[0].value
        elif isinstance(node.func, cst.Attribute) and rearranges(flow, node, node.func.attr.value):
            drawn = drawn or node.func.attr.value in _DRAW
            node = node.func.value
        else:
            return None, False


def made_on_host(rule: Rule, function: Function | None, node: cst.BaseExpression) -> cst.Call | None:
    """The call of a function that has made, on the host, the tensor that an expression is."""
    value = rule.flow.value(node)
    made = value.origin
    is_made = value.kind == TENSOR and value.place.is_host and isinstance(made, cst.Call)
    return made if is_made and isinstance(made, cst.Call) and rule.flow.function(made) is function else None


def factory_draws(flow: Flow, call: cst.Call) -> bool | None:
    """Whether a factory that a device could run draws its values; ``None`` if the call is no such factory."""
    name = flow.name_of(call)
    entry = flow.factory(call)
    if entry is None and name not in table.LIKE:
        return None
    if entry is not None and entry.values == "python":
        return None
    if name in ("torch.linspace", "torch.logspace") and any(
        "int" in dotted(arg.value) or dotted(arg.value) in ("torch.long", "torch.short")
        for arg in call.args
        if arg.keyword is not None and arg.keyword.value == "dtype"
    ):
        return None  # a device computes in another precision, and cuts off other fractions
    if any(arg.star == "**" or _keeps_on_host(arg) for arg in call.args):
        return None
    if name == "torch.normal" and any(flow.value(arg.value).holds_tensors for arg in call.args):
        return None  # it follows its mean
    return entry.values == "random" if entry is not None else "rand" in name


def _keeps_on_host(arg: cst.Arg) -> bool:
    # torch.eye(n, requires_grad=False)   says what goes without saying
    return arg.keyword is not None and arg.keyword.value in _KEEP_ON_HOST and dotted(arg.value) != "False"


def rearranges_first(name: str) -> bool:
    """Whether a function of torch rearranges its first argument, or wraps it: `torch.tril`, `Variable`."""
    return name.removeprefix("torch.") in _REARRANGE or name in _WRAP


def rearranges(flow: Flow, call: cst.Call, method: str) -> bool:
    if method in _DRAW:
        return all(arg.keyword is None or arg.keyword.value != "generator" for arg in call.args)
    if method in ("to", "type"):
        return len(call.args) == 1 and flow.value(call.args[0].value).kind == DTYPE
    return method in _REARRANGE or method in _FILL


def is_view(node: cst.BaseExpression) -> TypeGuard[cst.Subscript | cst.Attribute]:
    """``x[None, :]`` and ``x.T``."""
    if isinstance(node, cst.Subscript):
        return all(_is_plain_index(item.slice) for item in node.slice)
    return isinstance(node, cst.Attribute) and node.attr.value in ("T", "mT")


def leaves_gaps(node: cst.CSTNode) -> bool:
    """Whether it takes a view that does not fill its memory, or fills it twice: ``torch.eye(3).expand(n, 3, 3)``.

    A copy to another device fills its own, and may be written to and viewed as that one may not.
    """
    for each in tree.walk(node):
        if isinstance(each, cst.Subscript) and not _is_dense(each):
            return True
        if isinstance(each, cst.Call) and called_name(each) in _WITH_GAPS:
            return True
    return False


def _is_dense(node: cst.Subscript) -> bool:
    """``x[None]``, ``x[:n]``, ``x[None, 0]``, not ``x[:, :n]`` and ``x[::2]``: rows as they lie."""
    picked = [item.slice for item in node.slice if not _takes_all(item.slice)]
    if not picked:
        return True
    first = picked[0]
    before = node.slice[: [item.slice for item in node.slice].index(first)]
    news = all(isinstance(item.slice, cst.Index) and dotted(item.slice.value) == "None" for item in before)
    return len(picked) == 1 and news and not (isinstance(first, cst.Slice) and first.step is not None)


def _takes_all(index: cst.BaseSlice) -> bool:
    """``None``, ``:`` and ``...``"""
    if isinstance(index, cst.Slice):
        return index.lower is None and index.upper is None and index.step is None
    return isinstance(index, cst.Index) and (isinstance(index.value, cst.Ellipsis) or dotted(index.value) == "None")


_WITH_GAPS = frozenset(
    "expand expand_as broadcast_to as_strided unfold diagonal select narrow chunk split split_with_sizes tensor_split "
    "hsplit vsplit dsplit unbind".split()
)


def _is_plain_index(index: cst.BaseSlice) -> bool:
    """``[None, :, 0, ...]``: indices that cost the same on a device as on the host."""
    if isinstance(index, cst.Slice):
        return True
    value = index.value if isinstance(index, cst.Index) else None
    if isinstance(value, cst.UnaryOperation):
        value = value.expression
    return isinstance(value, cst.Ellipsis | cst.Integer) or (isinstance(value, cst.Name) and value.value == "None")


def moves_by_type(rule: Rule) -> Iterator[Move]:
    """``x.type_as(y)`` and ``x.type(y.type())``: moves to where ``y`` is, for a type names the kind of device."""
    flow = rule.flow
    for call in rule.source.nodes_of(cst.Call):
        func = call.func
        if not isinstance(func, cst.Attribute) or len(call.args) != 1 or call.args[0].star:
            continue
        how = func.attr.value
        if how not in table.TYPE_MOVES:
            continue
        given = _typed(rule, call.args[0].value) if how == "type" else call.args[0].value
        if given is not None and (value := flow.value(given)).is_tensor and isinstance(given, cst.Name | cst.Attribute):
            how = "to" if how == "type_as" else how  # x.type_as(y)   is `x.to(y.options())`
            yield Move(call, how, func.value, flow.value(func.value), value.place, given, False)


def _typed(rule: Rule, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``y`` of ``y.type()``, also through a name that one line of the function binds to that."""
    if isinstance(node, cst.Name):
        # dtype = y.type()
        bound = list(bound_to(rule.flow, node))
        node = bound[0] if len(bound) == 1 else node
    if isinstance(node, cst.Call) and not node.args and isinstance(node.func, cst.Attribute):
        return node.func.value if node.func.attr.value == "type" else None
    return None


# through a name -----------------------------------------------------------------------------------


def through_a_name(rule: Rule, move: Move, name: cst.Name) -> Named | None:
    """The name's way from the factory to the move, where nothing else reads or writes it on that way."""
    line: cst.CSTNode | None = move.node
    while not isinstance(line, cst.SimpleStatementLine):
        if line is None or isinstance(line, _PERHAPS_OR_OFTEN):
            return None
        line = rule.parent(line)
    block = rule.parent(line)
    if not isinstance(block, cst.IndentedBlock | cst.Module) or len(line.body) != 1:
        return None
    scope = rule.enclosing(line, cst.FunctionDef) or rule.source.module
    mentions = mentions_of(rule, name.value, scope)
    holders = {mention: statement_in(rule, block, mention) for mention in mentions}
    statements: list[cst.CSTNode] = list(block.body)
    at = statements.index(line)
    before = [i for i in range(at) if statements[i] in holders.values()]
    first = statements[before[-1]] if before else None
    made = _binds(rule.flow, first, name.value) if isinstance(first, cst.SimpleStatementLine) else None
    if not isinstance(first, cst.SimpleStatementLine) or made is None:
        return None
    others = [m for m in mentions if m is not name and holders[m] is line]
    rebound = isinstance(line.body[0], cst.Assign) and any(is_stored(rule, m) for m in others)
    if any(not is_stored(rule, m) for m in others) or not (rebound or len(mentions) == 2):
        return None  # the host's copy is read too, or the same one is copied again
    return Named(first, line, statements[before[-1] + 1 : at], made)


def _binds(flow: Flow, line: cst.SimpleStatementLine, name: str) -> Made | None:
    """``name = <factory>``, alone on its line."""
    if len(line.body) != 1:
        return None
    assign = line.body[0]
    if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        target, value = assign.targets[0].target, assign.value
    elif isinstance(assign, cst.AnnAssign) and assign.value is not None:
        target, value = assign.target, assign.value
    else:
        return None
    if not isinstance(target, cst.Name) or target.value != name:
        return None
    start, drawn = head(flow, value)
    return Made(start, drawn) if isinstance(start, cst.Call) else None


def mentions_of(rule: Rule, name: str, scope: cst.CSTNode) -> list[cst.Name]:
    """Every use of a name in a function, the functions inside it included, or in the file."""
    return [
        node
        for node in rule.source.nodes_of(cst.Name)
        if node.value == name and is_use(rule, node) and is_inside(rule.flow, node, scope)
    ]


def is_use(rule: Rule, node: cst.Name) -> bool:
    """Whether a name stands for what it is bound to: not ``name`` of ``x.name``, nor of ``f(name=x)``."""
    above = rule.parent(node)
    if isinstance(above, cst.Attribute):
        return above.attr is not node
    return not (isinstance(above, cst.Arg) and above.keyword is node)


_READ = frozenset({"item", "tolist", "numpy"})
_NUMBERS = frozenset({"float", "int", "bool", "len"})


def is_read_at_once(rule: Rule, made: cst.BaseExpression) -> bool:
    """``options.get("least", torch.tensor(3)).item()``, ``torch.linspace(torch.log(torch.tensor(low)), high, 8)``: the
    host reads what comes of it in the same expression, as a number or to make something else."""
    node: cst.CSTNode = made
    above = rule.parent(made)
    while isinstance(above, cst.Arg | cst.BaseExpression):
        if isinstance(above, cst.Attribute) and above.attr.value in _READ:
            return True
        call = above if isinstance(above, cst.Call) and above.func is not node else None
        if call is not None and (called_name(call) in _NUMBERS or rule.flow.factory(call) is not None):
            return True
        node, above = above, rule.parent(above)
    return False


def statement_in(rule: Rule, block: cst.CSTNode, node: cst.CSTNode) -> cst.CSTNode | None:
    """The statement of the block that holds a node."""
    current: cst.CSTNode | None = node
    while current is not None:
        above = rule.parent(current)
        if above is block:
            return current
        current = above
    return None


def is_stored(rule: Rule, name: cst.Name) -> bool:
    """Whether a name is bound, or written into, where it stands."""
    child: cst.CSTNode = name
    parent = rule.parent(child)
    while isinstance(parent, _PARTS_OF_A_TARGET):
        child, parent = parent, rule.parent(parent)
    if isinstance(parent, cst.For | cst.AugAssign | cst.AnnAssign | cst.NamedExpr):
        return parent.target is child
    return isinstance(parent, cst.AssignTarget | cst.AsName | cst.Del | cst.FunctionDef | cst.ClassDef)


#: What stands between a move and its statement if the move may not happen, or happen more than once.
_PERHAPS_OR_OFTEN = (
    cst.Lambda,
    cst.ListComp,
    cst.SetComp,
    cst.DictComp,
    cst.GeneratorExp,
    cst.IfExp,
    cst.BooleanOperation,
)

_PARTS_OF_A_TARGET = (cst.Element, cst.StarredElement, cst.Tuple, cst.List, cst.Attribute, cst.Subscript)
