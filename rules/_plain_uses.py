"""What a module keeps in a plain attribute on the host, and what its methods bring that to, by the text.

The flow knows what an attribute is only where no other method, and no earlier call of the same one, may have set it.
Here it is enough that each store of it is seen, and that none of them makes anything but a tensor on the host:

    if length > self.table.size(0):
        self.table = make_table(length)
    return x + self.table[:length]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.facts import Meeting
from devlint.flow.hypothesis import MODEL_NAME
from devlint.flow.modules import takes_as_is
from devlint.flow.names import dotted
from devlint.flow.place import HANDED
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, Class, Function
from devlint.flow.value import DICT, LIST, MODULE, TUPLE, UNKNOWN_KIND, Value, made_of
from devlint.rule import Rule
from devlint.rules._kept_plain import MOVING, Kept, binds, kept_plain


class PlainUse(NamedTuple):
    """A meeting of such an attribute.

    ``how``: ``meets`` what is on a device, ``indexes`` it, which copies it there each time, or is given ``back`` by
    ``forward``.
    """

    meeting: Meeting
    how: str
    kept: Kept


def plain_uses(rule: Rule) -> Iterator[PlainUse]:
    """The meetings of such attributes with what is on the module's device, or is handed to its methods."""
    for cls in rule.flow.scope.classes.values():
        kept = kept_plain(rule, cls) if cls.is_module else {}
        for each in (cls, *cls.descendants) if kept else ():
            for use in tree.walk(each.node):
                if isinstance(use, cst.Attribute) and use.attr.value in kept and dotted(use.value) == "self":
                    yield from _uses(rule, use, kept[use.attr.value])


def _uses(rule: Rule, use: cst.BaseExpression, kept: Kept) -> Iterator[PlainUse]:
    function = _method(rule, use)
    if function is None or function.role in (CONSTRUCTOR, HOST_SIDE) or function.is_static or function.is_classmethod:
        return
    if kept.fitted and function.name.lstrip("_").startswith("fit"):
        return
    value = kept.value
    done: set[cst.CSTNode] = set()
    todo: list[cst.BaseExpression] = [use]
    while todo:
        part = todo.pop()
        if part in done:
            continue
        done.add(part)
        above = rule.parent(part)
        if isinstance(above, cst.Assign):
            todo += _read_as(rule, above, dotted(use))
            continue
        if isinstance(above, cst.Subscript) and above.value is part:
            if isinstance(rule.parent(above), cst.Index):
                todo.append(above)  # x[self.rows[0]]
            if value.kind in (LIST, TUPLE, DICT) and part is use:
                todo.append(above)  # x + self.biases[level]
                continue
        other = _other(rule, function, part)
        if other is not None:
            where, what, node = other
            there = _there(rule, function, node) or rule.flow.value(node)
            how = "indexes" if what == _INDEXES else "meets"
            yield PlainUse(Meeting(where, what, part, value, node, there), how, kept)
            continue
        back = _given_back(rule, function, part)
        if back is not None:
            yield PlainUse(Meeting(back, "a result", part, value, part, value), "back", kept)
            continue
        after = _still(rule, part)
        if after is not None:
            todo.append(after)


def _given_back(rule: Rule, function: Function, part: cst.BaseExpression) -> cst.CSTNode | None:
    """``return self.means, self.table``"""
    above: cst.CSTNode | None = part
    while isinstance(above, cst.BaseExpression | cst.Element) and (
        above is part or isinstance(above, cst.Tuple | cst.Element)
    ):
        above = rule.parent(above)
    if not isinstance(above, cst.Return) or function.name != "forward" or rule.flow.function(above) is not function:
        return None
    return above


def _method(rule: Rule, node: cst.CSTNode) -> Function | None:
    """The method that a node stands in, or in a function of which."""
    function = rule.flow.function(node)
    while function is not None and function.cls is None:
        function = function.outer
    return function


def _read_as(rule: Rule, assign: cst.Assign, path: str) -> list[cst.BaseExpression]:
    """``table = self.table[:n]``: where the name is read, if it stands for nothing else in the function."""
    target = assign.targets[0].target
    function = rule.flow.function(assign)
    if len(assign.targets) != 1 or not isinstance(target, cst.Name) or function is None:
        return []
    read: list[cst.BaseExpression] = []
    for name in tree.walk(function.node):
        if not isinstance(name, cst.Name) or name.value != target.value:
            continue
        above = rule.parent(name)
        if isinstance(above, cst.AssignTarget):
            bound = rule.parent(above)
            code = rule.code(bound.value) if isinstance(bound, cst.Assign) else ""
            again = path in code or code.startswith((f"{name.value}.", f"{name.value}["))  # table = table.unsqueeze(0)
            if not again or any(word in code for word in MOVING):
                return []  # table = table.to(x.device)
        elif isinstance(above, cst.Param) or getattr(above, "target", None) is name:
            return []  # table *= x
        elif isinstance(above, cst.Element) and isinstance(rule.parent(rule.parent(above) or above), cst.AssignTarget):
            return []  # table, rows = bring(table, rows)
        elif not isinstance(above, cst.Attribute | cst.Arg) or name not in (
            above.attr if isinstance(above, cst.Attribute) else above.keyword,
        ):
            read.append(name)
    return read


def _still(rule: Rule, part: cst.BaseExpression) -> cst.BaseExpression | None:
    """The expression above one, where that is the tensor still: a view of it, or what is computed of it alone."""
    above = rule.parent(part)
    if isinstance(above, cst.Attribute):
        if above.value is not part:
            return None
        call = rule.parent(above)
        if isinstance(call, cst.Call) and call.func is above:
            name = above.attr.value
            known = table.METHODS.get(name)
            if name in table.VIEWS or name in table.VIEWS_OR_COPIES:
                return call
            keeps = known is not None and known.result == "tensor" and known.reduces in ("never", "adds")
            return call if keeps and rule.flow.move(call) is None and name not in table.MOVES else None
        return above if table.ATTRIBUTES.get(above.attr.value) == "tensor" else None
    if isinstance(above, cst.Subscript) and above.value is part:
        # self.weight[i]   is one number, for all that is known
        wide = any(isinstance(each.slice, cst.Slice) or len(above.slice) > 1 for each in above.slice)
        if any(
            isinstance(each.slice, cst.Index) and isinstance(each.slice.value, cst.SimpleString) for each in above.slice
        ):
            return above  # self.scales["mean"]
        none = any(isinstance(each.slice, cst.Index) and dotted(each.slice.value) == "None" for each in above.slice)
        return above if wide or none else None
    if isinstance(above, cst.BinaryOperation):
        other = above.right if above.left is part else above.left
        return above if rule.flow.value(other).is_data or isinstance(other, cst.Integer | cst.Float) else None
    if isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Minus | cst.BitInvert):
        return above
    if isinstance(above, cst.IfExp) and above.test is not part:
        return above
    call = rule.parent(above) if isinstance(above, cst.Arg) else None
    if isinstance(call, cst.Call) and call.args and call.args[0].value is part:
        op = table.FUNCTIONS.get(rule.flow.name_of(call))
        alone = op is not None and op.result == "tensor" and op.reduces in ("never", "adds")
        return call if alone else None
    return None


_INDEXES = "an index"
_Other = tuple[cst.CSTNode, str, cst.BaseExpression]


def _other(rule: Rule, function: Function, part: cst.BaseExpression) -> _Other | None:
    """Where an expression comes to a tensor that is on a device, or was handed in: where, in what, and that tensor."""
    above = rule.parent(part)
    if isinstance(above, cst.BinaryOperation):
        other = above.right if above.left is part else above.left
        return (above, "an operation", other) if _there(rule, function, other) else None
    if isinstance(above, cst.ComparisonTarget) or (isinstance(above, cst.Comparison) and above.left is part):
        comparison = rule.parent(above) if isinstance(above, cst.ComparisonTarget) else above
        if not isinstance(comparison, cst.Comparison) or len(comparison.comparisons) != 1:
            return None
        target = comparison.comparisons[0]
        if isinstance(target.operator, cst.Is | cst.IsNot | cst.In | cst.NotIn):
            return None
        other = target.comparator if above is comparison else comparison.left
        return (comparison, "a comparison", other) if _there(rule, function, other) else None
    if isinstance(above, cst.Subscript) and above.value is part and len(above.slice) == 1:
        index = above.slice[0].slice
        # self.history[step % 10] = loss   takes numbers, and tensors from anywhere
        if not isinstance(index, cst.Index) or isinstance(rule.parent(above), cst.AssignTarget):
            return None
        if rule.flow.value(index.value).holds_tensors and _there(rule, function, index.value):
            return above, "indexing", index.value  # self.table[labels]
        return None
    if isinstance(above, cst.Index):
        element = rule.parent(above)
        whole = rule.parent(element) if element is not None else None
        if isinstance(whole, cst.Subscript) and (value := _there(rule, function, whole.value)) and value.place.is_there:
            return whole, _INDEXES, whole.value  # x[:, self.rows]
        return None
    if isinstance(above, cst.Attribute) and above.value is part:
        call = rule.parent(above)
        op = table.METHODS.get(above.attr.value)
        if isinstance(call, cst.Call) and call.func is above and op is not None and op.operands in ("all", "index"):
            return _among(rule, function, call, [arg.value for arg in call.args], above.attr.value)
        return None
    if isinstance(above, cst.Element):
        joined = rule.parent(above)
        call = rule.parent(rule.parent(joined) or joined) if joined is not None else None
        op = table.FUNCTIONS.get(rule.flow.name_of(call))
        if not isinstance(joined, cst.List | cst.Tuple) or not isinstance(call, cst.Call) or op is None:
            return None
        if op.operands != "sequence":
            return None
        return _among(rule, function, call, [e.value for e in joined.elements if e is not above], "an operation")
    call = rule.parent(above) if isinstance(above, cst.Arg) else None
    if not isinstance(call, cst.Call) or not isinstance(above, cst.Arg):
        return None
    return _in_call(rule, function, call, above)


def _in_call(rule: Rule, function: Function, call: cst.Call, given: cst.Arg) -> _Other | None:
    """``torch.where(mask, self.fill, x)``, ``x.mul(self.scale)``, ``rotate(x, self.table)``, ``self.rnn(x, self.h)``"""
    others = [arg.value for arg in call.args if arg is not given and not arg.star]
    op = table.FUNCTIONS.get(rule.flow.name_of(call))
    if op is not None:
        if op.operands != "all" and not (op.operands in ("index", "sequence") and not given.star):
            return None
        return _among(rule, function, call, others, "an operation")
    if isinstance(call.func, cst.Attribute) and _there(rule, function, call.func.value):
        op = table.METHODS.get(call.func.attr.value)
        meets = op is not None and op.operands in ("all", "index") and not given.star
        return (call, "an operation", call.func.value) if meets else None
    called = rule.flow.value(call.func)
    if called.kind == MODULE:
        if isinstance(called.ref, Class):
            return None  # may move, or only look at, what it is given
        as_is = called.ref is None or takes_as_is(called)
        return _among(rule, function, call, others, "a module") if as_is else None
    owner, _, part = dotted(call.func).rpartition(".")
    if owner == "self" and called.kind == UNKNOWN_KIND and MODEL_NAME.match(part):
        return _among(rule, function, call, others, "a module")  # self.model(ids, head_mask=self.head_mask)
    helper = called.ref if isinstance(called.ref, Function) else None
    if helper is None or helper.summary is None:
        return None
    params = [param.name.value for param in helper.positional[helper.takes_self and called.items is not None :]]
    names = dict(zip((arg for arg in call.args if arg.keyword is None), params, strict=False))
    names |= {arg: arg.keyword.value for arg in call.args if arg.keyword is not None}
    mine = names.get(given)
    pairs = [*helper.summary.constraints, *helper.summary.perhaps]
    beside = {one.name for pair in pairs for one, two in (pair, pair[::-1]) if two.name == mine}
    beside = {each for each in beside if each != mine}
    for arg, name in names.items():
        if name in beside and (_there(rule, function, arg.value) or _is_made_of_parts(rule, function, arg.value)):
            return call, f"`{helper.name}`", arg.value
    return None


def _is_made_of_parts(rule: Rule, function: Function, node: cst.BaseExpression) -> bool:
    """``query = shape(self.query(x), heads)``: handed to a function that computes with it, it is a tensor, and the name
    is what a part of the module gave."""
    if not isinstance(node, cst.Name) or rule.flow.value(node).kind != UNKNOWN_KIND:
        return False
    return any(
        isinstance(part, cst.Call) and rule.flow.value(part).holds_tensors and rule.flow.value(part).place.is_there
        for assign in tree.walk(function.node.body)
        if isinstance(assign, cst.Assign) and binds(assign, node.value)
        for part in tree.walk(assign.value)
    )


def _among(
    rule: Rule, function: Function, call: cst.Call, others: list[cst.BaseExpression], what: str
) -> _Other | None:
    found = next((other for other in others if _there(rule, function, other)), None)
    return (call, what, found) if found is not None else None


def _there(rule: Rule, function: Function, node: cst.BaseExpression) -> Value | None:
    """What a tensor is that is on a device, or was handed to the method."""
    value = rule.flow.value(node)
    if value.attr is not None or value.zero is True or value.kind in (LIST, TUPLE, DICT):
        return None
    if value.holds_tensors and value.place.is_there:
        return value
    origin = made_of(value)
    if origin is None or origin.place.kind not in ("param", "device") or origin.zero is True:
        return None
    inner = rule.flow.function(node)
    scopes = {each.scope for each in (function, inner) if each is not None}
    handed = origin.place == HANDED or origin.place.scope in scopes
    return origin if origin.place.is_there or handed else None
