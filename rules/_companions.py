"""What is made on the host with the sizes or the type of something, and kept, given back or handed on.

Where that something is, the flow does not know, nor whether the two ever meet: unlike in `_likeness`, nothing shows it.
Whoever asks a tensor for its sizes to make another one means the two to go together, though, and nothing in the
function, or in those of the file that call it, brings the new one anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.hypothesis import MODEL_NAME
from devlint.flow.names import dotted, last_word, names_bound
from devlint.flow.scope import Function
from devlint.flow.value import DATA, TENSOR, THING, UNKNOWN_KIND
from devlint.rule import Rule
from devlint.rules._followed import filled, holds, is_for_host, is_from_host, is_put, kept_as
from devlint.rules._meetings import calls_of, is_of_host, may_be_handed_there, runs_on_host
from devlint.rules._sizes import Sizes, head_of
from devlint.rules._switches import tests_apart

#: Such may have to stay on the host: `pack_padded_sequence` takes none that are elsewhere.
_OF_LENGTHS = re.compile(r"length|(^|_)lens?(_|$)")
#: What has no device of its own to speak of.
_NUMBERS = frozenset("int float bool len range print str repr format list tuple max min sorted zip enumerate".split())
#: What a tensor is asked to do, and an array is not.
_OF_TENSORS = frozenset(
    "size dim unsqueeze permute contiguous detach float long bool double half backward expand new_zeros new_ones "
    "new_full new_tensor new_empty index_select gather scatter_ scatter_add_ numel chunk narrow masked_fill "
    "masked_fill_ repeat_interleave to cuda type_as requires_grad_ softmax sigmoid log_softmax".split()
)
_TO_NUMBER = frozenset("sum mean max min any all prod std var norm median numel".split())
_ASKED = frozenset("shape size dtype ndim device dim numel is_cuda".split())
_TAKE_ARRAYS = frozenset({"torch.from_numpy", "torch.is_tensor", "torch.Tensor", "torch.tensor", "torch.as_tensor"})


class Companion(NamedTuple):
    factory: cst.Call
    giver: str


def companions(rule: Rule, is_meant: Callable[[cst.Call], bool]) -> Iterator[Companion]:
    """The factories that make such things; ``is_meant`` judges which are on the host for want of ``device=``."""
    if rule.in_tests or is_of_host(rule) or runs_on_host(rule):
        return
    sizes = Sizes(rule, lambda function, node: _may_be_tensor(rule, function, node))
    for call in rule.flow.makers:
        if rule.flow.name_of(call) in table.KEEPING or not is_meant(call):
            continue
        function, value = rule.flow.function(call), rule.flow.value(call)
        if function is None:
            continue
        if value.kind != TENSOR or not value.place.is_host or value.zero is not False or _is_told_more(rule, call):
            continue
        givers = sorted(sizes.givers(function, call))
        if not givers or not all(may_be_handed_there(rule, function, call, _word(each)) for each in givers):
            continue
        if any(is_from_host(rule, function, giver) for giver in givers) or _replaces_data(rule, call):
            continue
        if is_for_host(rule, function) or is_brought_by_callers(rule, function):
            continue
        if goes_on(rule, function, call, givers):
            yield Companion(call, givers[0])


def _may_be_tensor(rule: Rule, function: Function, node: cst.BaseExpression) -> bool:
    value = rule.flow.value(node)
    if value.kind not in (UNKNOWN_KIND, TENSOR, THING) or value.place.is_host:
        return False
    head = head_of(node)
    if rule.flow.scope.qualified(head).partition(".")[0] == "torch":
        return False
    # image.shape[0] of what cv2 has read: arrays have shapes, too
    return value.kind == TENSOR or not _knows_arrays(rule) or _is_used_as_tensor(rule, function, head)


def _replaces_data(rule: Rule, call: cst.Call) -> bool:
    """``table.weight.data = torch.zeros(more, width)``: done to a model that is being built."""
    assign = rule.parent(call)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
    return isinstance(target, cst.Attribute) and target.attr.value == "data"


def _word(giver: str) -> str:
    """``batch`` of ``batch.x``."""
    return re.split(r"[.\[]", giver, maxsplit=1)[0]


def _knows_arrays(rule: Rule) -> bool:
    return not rule.flow.scope.packages.isdisjoint(("numpy", "cv2", "PIL", "scipy", "skimage", "pandas"))


def _is_used_as_tensor(rule: Rule, function: Function, head: cst.BaseExpression) -> bool:
    """``x.size(0)``, ``torch.cat((x, y))``, which no array knows or takes."""
    if not isinstance(head, cst.Name):
        return False
    if head.value in function.documented:
        return True
    if not _OF_TENSORS.isdisjoint(function.methods.get(head.value, ())):
        return True
    return any(
        name.startswith("torch.")
        and name not in _TAKE_ARRAYS
        and any(_reads_any(arg.value, {head.value}) for arg in call.args)
        for call in tree.walk(function.node.body)
        if isinstance(call, cst.Call) and rule.flow.factory(call) is None and (name := rule.flow.name_of(call))
    )


def _is_told_more(rule: Rule, call: cst.Call) -> bool:
    """``torch.rand(n, generator=rng)``, ``torch.empty(n, pin_memory=True)``, where the host is meant;
    ``torch.tensor([n])``, which holds sizes and has none from elsewhere."""
    told = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    return not told.isdisjoint(("generator", "pin_memory", "out", "names")) or rule.flow.name_of(call) in _TAKE_ARRAYS


def goes_on(rule: Rule, function: Function, call: cst.Call, givers: Sequence[str] = ()) -> bool:
    """Whether something is done with what a call gives that a device matters for, and nothing brings it anywhere."""
    own = kept_as(rule, call)
    if any(_OF_LENGTHS.search(name) for name in own):
        return False
    if is_put(rule, function, call) or not _is_filled_from(rule, function, own, givers):
        return False
    if not own:
        return _matters(rule, call)
    if _is_placeholder(rule, function, call, own):
        return False
    uses = (node for node in tree.walk(function.node.body) if isinstance(node, cst.Name) and node.value in own)
    return any(
        _matters(rule, node) and not _is_bound(rule, node) and not _is_replaced(rule, function, call, node)
        for node in uses
    )


def _is_placeholder(rule: Rule, function: Function, call: cst.Call, own: set[str]) -> bool:
    """``mean = torch.zeros(n)``, and then ``if self.norm: mean = self.mean(x)``: what is read elsewhere has no part."""
    return any(
        tests_apart(rule, node, call)
        for node in tree.walk(function.node.body)
        if isinstance(node, cst.Assign)
        and any(not own.isdisjoint(names_bound(target.target)) for target in node.targets)
        and not isinstance(node.targets[0].target, cst.Subscript)
    )


def _is_replaced(rule: Rule, function: Function, call: cst.Call, use: cst.Name) -> bool:
    """Whether a loop has given the name another value by then, as far as anybody knows."""
    # guess = torch.zeros(n); for t in range(9): step = guess if t > 0 else x[t]; guess = cell(step)
    again = next(
        (
            node
            for loop in tree.walk(function.node.body)
            if isinstance(loop, cst.For | cst.While)
            for node in tree.walk(loop.body)
            if isinstance(node, cst.Assign)
            and any(use.value in names_bound(target.target) for target in node.targets)
            and not holds(node, call, set())
        ),
        None,
    )
    if again is None:
        return False
    return bool(tests_apart(rule, use, call)) or not (holds(again, use, set()) or rule.source.comes_before(use, again))


def _is_filled_from(rule: Rule, function: Function, own: set[str], givers: Sequence[str]) -> bool:
    """Whether what is put into something comes of what gave its sizes, and of no model: the results of many turns may
    be meant for the host; or nothing is."""
    if own.isdisjoint(function.items_set):
        return True
    put: list[cst.BaseExpression] = [
        node.value
        for node in tree.walk(function.node.body)
        if isinstance(node, cst.Assign)
        and isinstance(target := node.targets[0].target, cst.Subscript)
        and dotted(filled(target)) in own
    ]
    names = {_word(giver) for giver in givers}
    for node in tree.walk(function.node.body):
        # for i, rows in enumerate(x): found[i] = loss(rows)
        if isinstance(node, cst.For):
            if not _counts(node.iter) and _reads_any(node.iter, names):
                names |= names_bound(node.target)
        elif isinstance(node, cst.Assign) and _reads_any(node.value, names):
            names |= {name for target in node.targets for name in names_bound(target.target)}
    return any(_reads_any(each, names) and not _asks_model(each) for each in put)


def _counts(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and dotted(node.func) == "range"


def _reads_any(node: cst.CSTNode, names: set[str]) -> bool:
    return any(isinstance(part, cst.Name) and part.value in names for part in tree.walk(node))


def _asks_model(node: cst.CSTNode) -> bool:
    calls = (part for part in tree.walk(node) if isinstance(part, cst.Call))
    return any(MODEL_NAME.match(last_word(dotted(call.func))) for call in calls)


def _is_bound(rule: Rule, node: cst.Name) -> bool:
    above = rule.parent(node)
    if isinstance(above, cst.Element):
        above = rule.parent(rule.parent(above) or above)
    return isinstance(above, cst.AssignTarget | cst.For | cst.CompFor) and getattr(above, "target", None) is not None


def _matters(rule: Rule, node: cst.BaseExpression) -> bool:
    """Whether the device of a value matters where it stands: not as an index, which may be on the host, nor for what is
    read of it one by one."""
    child: cst.CSTNode = node
    above = rule.parent(child)
    while above is not None:
        if isinstance(above, cst.Attribute):
            if above.attr.value in _ASKED:
                return False
            call = rule.parent(above)
            if above.attr.value in _TO_NUMBER and isinstance(call, cst.Call) and not call.args:
                return False  # x * mask.sum()   takes a single number from anywhere
        elif isinstance(above, cst.Subscript):
            if above.value is not child or _picks_one(rule, above):
                return False  # rows[ids], rates[0]
        elif isinstance(above, cst.Arg):
            call = rule.parent(above)
            if not isinstance(call, cst.Call) or dotted(call.func) in _NUMBERS:
                return False
        elif isinstance(
            above, cst.For | cst.CompFor | cst.Index | cst.Slice | cst.FormattedStringExpression | cst.Expr | cst.Del
        ):
            return False  # for i in torch.randperm(n): ...
        elif isinstance(above, cst.Comparison) and isinstance(above.comparisons[0].operator, cst.Is | cst.IsNot):
            return False
        elif isinstance(above, cst.BinaryOperation | cst.Comparison):
            operands = [above.left, above.right] if isinstance(above, cst.BinaryOperation) else _compared(above)
            if any(each is not child and rule.flow.value(each).kind != DATA for each in operands):
                return True
        elif not isinstance(above, cst.Call | cst.UnaryOperation | cst.ComparisonTarget | cst.Element | cst.Tuple):
            return True
        child, above = above, rule.parent(above)
    return False


def _picks_one(rule: Rule, node: cst.Subscript) -> bool:
    index = node.slice[0].slice if len(node.slice) == 1 else None
    return isinstance(index, cst.Index) and rule.flow.value(index.value).kind == DATA


def _compared(node: cst.Comparison) -> list[cst.BaseExpression]:
    return [node.left, *(each.comparator for each in node.comparisons)]


def is_brought_by_callers(rule: Rule, function: Function) -> bool:
    """``mask = causal(x).to(x.device)``, in any function of the file that calls this one."""
    for call in calls_of(rule, function):
        by = rule.flow.function(call)
        if by is not None and by is not function and is_put(rule, by, call):
            return True
    return False
