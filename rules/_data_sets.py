"""What the data set of a loader is: whether its tensors may have been put on a device before, or are surely on the
host."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.hypothesis import names_device
from devlint.flow.names import called_name, dotted, names_bound, targets_in
from devlint.flow.scope import Class, Function
from devlint.flow.value import DTYPE, FUNCTION, INSTANCE
from devlint.outline import CLASS, DEF
from devlint.rule import Rule
from devlint.rules._arguments import argument, given_to

_OF_TORCHVISION = ("torchvision.datasets.",)
#: What is made of other data sets.
_AROUND_OTHERS = frozenset(f"torch.utils.data.{name}" for name in ("Subset", "ConcatDataset", "random_split"))
#: Methods of what gives tensors: of a data set, or a transform. Settings that speak of devices have none of them.
_GIVES = ("__getitem__", "__iter__", "__call__", "forward")


def may_be_preloaded(rule: Rule, loader: cst.Call) -> bool:
    """Whether a data set may give what is on a device: it moves that, or was handed what does, or somebody has put it
    there (``rows.data = rows.data.to(device)``)."""
    sets = _data_sets(rule, loader)
    above = rule.parent(loader)
    loaders = [target.target for target in above.targets] if isinstance(above, cst.Assign) else []
    return (
        any(_moves(rule, part) for each in sets if isinstance(each, cst.Call) for part in _handed_on(rule, each))
        or any(_is_filled(rule, each, dotted(each)) for each in sets if dotted(each))
        # train_loader.dataset.data = train_loader.dataset.data.to(device)
        or any(_is_filled(rule, each, f"{dotted(each)}.dataset") for each in loaders if dotted(each))
    )


def is_surely_on_host(rule: Rule, loader: cst.Call, moved: set[cst.Call]) -> bool:
    """Whether the batches of a loader are on the host: what makes its data set is known, or some batches of the same
    are moved. ``moved``: the loaders whose are."""
    makers = _makers(rule, loader)
    beside = {_name(rule, maker) for other in moved for maker in _makers(rule, other)}
    # Rows(x, "cpu") may be moved, and Rows(y, device) not
    return loader in moved or (
        bool(makers)
        and all(
            _is_on_host(rule, maker) or (_name(rule, maker) in beside and not _is_told_device(maker))
            for maker in makers
        )
    )


def is_of_torchvision(rule: Rule, node: cst.BaseExpression) -> bool:
    """Whether torchvision made a data set: there, or under that name elsewhere in the file."""
    if isinstance(node, cst.Call):
        return rule.flow.name_of(node).startswith(_OF_TORCHVISION)
    return isinstance(node, cst.Name) and any(
        name.startswith(_OF_TORCHVISION)
        and isinstance(above := rule.parent(call), cst.Assign)
        and any(isinstance(t.target, cst.Name) and t.target.value == node.value for t in above.targets)
        for call, name in rule.flow.facts.names.items()
    )


def _is_on_host(rule: Rule, maker: cst.BaseExpression) -> bool:
    value = rule.flow.value(maker)
    if (value.kind == INSTANCE and isinstance(value.ref, Class)) or value.ref == "dataset":
        return True
    if is_of_torchvision(rule, maker):
        return True
    project = rule.flow.project
    if not isinstance(maker, cst.Call) or project is None:
        return False
    given = [rule.flow.value(arg.value) for arg in maker.args]
    if any(each.holds_tensors and not each.place.is_host for each in given):
        return False  # Pairs(x, y): what it gives may be one of the tensors that it was built of
    qualified = rule.flow.scope.qualified(maker.func)
    found = rule.flow.definition(qualified)
    # a base of theirs may move what a class that speaks of no devices gives
    return found is not None and found.kind == CLASS and len(project.ancestry(qualified).known) == 1


def _name(rule: Rule, maker: cst.BaseExpression) -> tuple[str, Function | Class | None]:
    """What is called to make a data set; or what it is called, and by whom."""
    if isinstance(maker, cst.Call):
        return rule.code(maker.func), None
    return rule.code(maker), _owner(rule, maker, dotted(maker))


def _is_told_device(maker: cst.BaseExpression) -> bool:
    return any(isinstance(part, cst.Name) and names_device(part.value) for part in tree.walk(maker))


# what a data set is made of ------------------------------------------------------------------------


def _data_sets(rule: Rule, loader: cst.Call) -> list[cst.BaseExpression]:
    """The expressions for a data set, and for those that it is made of: ``Subset(rows, picked)``, ``rows``, and
    ``Rows(names)``, where ``rows = Rows(names)``."""
    given = argument(loader, 0, "dataset")
    found = [given.value] if given is not None else []
    for each in found:
        found += [inner for inner in _made_of(rule, each) if inner not in found]
    return found


def _makers(rule: Rule, loader: cst.Call) -> list[cst.BaseExpression]:
    """Of these, those that are made of no other."""
    return [each for each in _data_sets(rule, loader) if not _made_of(rule, each)]


def _made_of(rule: Rule, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node, cst.Subscript):
        return [node.value]  # splits["train"]
    if isinstance(node, cst.IfExp):
        return list(tree.sides(node))
    if isinstance(node, cst.Call) and rule.flow.name_of(node) in _AROUND_OTHERS and node.args:
        inner = node.args[0].value
        return [each.value for each in inner.elements] if isinstance(inner, cst.List | cst.Tuple) else [inner]
    return _bound_to(rule, node)


def _bound_to(rule: Rule, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What is assigned to a name in its function or at the top level, or to ``self.rows`` anywhere."""
    path = dotted(node)
    if not path:
        return []
    return [
        value
        for target, value in _assigned(rule)
        if dotted(target) == path and _owner(rule, target, path) is _owner(rule, node, path)
    ]


def _assigned(rule: Rule) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """What the file assigns to, and what it assigns: of ``a, b = f(x), g(x)`` each with its own, of ``a, b = f(x)``
    both with the same."""
    for assign in rule.source.nodes_of(cst.Assign):
        for one in assign.targets:
            targets, values = targets_in(one.target), targets_in(assign.value)
            if len(values) != len(targets):
                values = [assign.value] * len(targets)
            yield from zip(targets, values, strict=True)


def _owner(rule: Rule, node: cst.CSTNode, path: str) -> Function | Class | None:
    """Whose a name is: of a function, of a class (``self.rows``), or of the file."""
    function = rule.flow.function(node)
    if function is None or path.startswith("self."):
        return function.cls if function is not None else None
    first = path.partition(".")[0]
    is_local = first in function.param_names or first in function.assigned
    return function if is_local and first not in function.globals else None


# what moves anything -------------------------------------------------------------------------------


def _handed_on(rule: Rule, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """What is called in an expression, and what that is handed, names followed: ``transform=to_tensor``, where
    ``to_tensor = T.Compose([T.ToTensor(), T.Lambda(lambda x: x.to(device))])``."""
    todo = [node]
    for each in todo:
        for part in tree.walk(each):
            above = rule.parent(part)
            is_word = isinstance(above, cst.Attribute) or (isinstance(above, cst.Arg) and above.keyword is part)
            if isinstance(part, cst.Call | cst.Lambda) or (isinstance(part, cst.Name | cst.Attribute) and not is_word):
                yield part
                todo += [bound for bound in _bound_to(rule, part) if bound not in todo]


def _moves(rule: Rule, node: cst.BaseExpression) -> bool:
    """Whether a function, a transform or a data set moves what it gives, as far as its code says."""
    if isinstance(node, cst.Lambda):
        return any(_is_move(rule, part) for part in tree.walk(node.body))
    value, project = rule.flow.value(node), rule.flow.project
    if value.kind == FUNCTION and isinstance(value.ref, Function):
        return value.ref.moves_something
    if value.kind == INSTANCE and isinstance(value.ref, Class):
        methods = [method for cls in value.ref.lineage for method in cls.methods.values()]
        gives = any(value.ref.find_method(name) is not None for name in _GIVES)
        return gives and any(method.moves_something or method.device_aware for method in methods)
    qualified = rule.flow.scope.qualified(node) if dotted(node) else ""
    found = rule.flow.definition(qualified) if qualified else None
    if found is None or project is None or not project.speaks_of_devices(found):
        return False
    return found.kind == DEF or any(project.holder(qualified, name) is not None for name in _GIVES)


def _is_move(rule: Rule, node: cst.CSTNode) -> bool:
    """``x.to(device)``, not ``x.to(torch.float32)`` or ``x.cpu()``."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    is_type = bool(node.args) and all(rule.flow.value(arg.value).kind == DTYPE for arg in node.args)
    return node.func.attr.value in table.MOVES and not is_type and not rule.flow.value(node).place.is_host


def _is_filled(rule: Rule, node: cst.BaseExpression, path: str) -> bool:
    """Whether what is on a device is stored into what a path leads to, under this name or another one."""
    return any(
        dotted(each) == path and _owner(rule, each, path) is _owner(rule, node, path) and _is_there(rule, value)
        for holder, value in _stored(rule)
        for each in _stands_for(rule, holder)
    )


def _stored(rule: Rule) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """What is given attributes or entries, and what these are: ``rows`` and ``x`` of ``rows.data = x``."""
    for target, value in _assigned(rule):
        holder = target
        while isinstance(holder, cst.Attribute | cst.Subscript):
            holder = holder.value
            yield holder, value
    for call in rule.source.nodes_of(cst.Call):
        if called_name(call) == "setattr" and len(call.args) == 3:
            yield call.args[0].value, call.args[2].value


def _stands_for(rule: Rule, holder: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """A name, what a loop binds it to, and what the file hands in for it."""
    name, function = dotted(holder), rule.flow.function(holder)
    yield holder
    # for rows in (train_rows, test_rows): rows.data = rows.data.to(device)
    loop = rule.enclosing(holder, cst.For)
    while loop is not None:
        if name in names_bound(loop.target):
            yield from (part for part in tree.walk(loop.iter) if isinstance(part, cst.Name | cst.Attribute))
        loop = rule.enclosing(loop, cst.For)
    # def preload(rows): rows.data = rows.data.to(device)      preload(train_rows)
    param = function.param(name) if function is not None else None
    if function is not None and param is not None:
        for call in rule.source.nodes_of(cst.Call):
            if rule.flow.value(call.func).ref is function:
                yield from given_to(call, function, param)


def _is_there(rule: Rule, node: cst.BaseExpression) -> bool:
    """Whether anything of an expression is on a device, or would move what it is called with."""
    parts = [(part, rule.flow.value(part)) for part in tree.walk(node)]
    return any(
        _is_move(rule, part) or (value.place.is_there and not isinstance(value.origin, cst.Param))
        for part, value in parts
    ) or any(_moves(rule, part) for part in _handed_on(rule, node))
