"""What may bring something to a device where the flow does not see it: by another name, in a loop, by a helper, in
another file."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import called_name, called_on, dotted, names_bound
from devlint.flow.scope import Class, Function
from devlint.rule import Rule
from devlint.rules._recurs import function_of


def attribute_may_be_placed(rule: Rule, cls: Class, name: str, *, is_module: bool = False) -> bool:
    """Whether anything may bring the attribute of an object of the class to a device: itself, what is in it, or what
    is put in its place."""
    family = _family(cls)
    started = [*_attributes(rule, family, name), *_by_any_name(rule, family)]
    return (
        any(_is_placed(rule, name, each, is_module) for each in _names_of(rule, started, in_attributes=is_module))
        or any(_sets(rule, call, family, name) for call in rule.source.nodes_of(cst.Call))
        or _is_handed_over(rule, family)
        or _is_placed_elsewhere(rule, cls, name)
        or (not is_module and _is_registered_elsewhere(rule, family, name))
    )


def variable_may_be_placed(rule: Rule, made: cst.CSTNode, name: str) -> bool:
    """The same of a module that a variable is bound to where it is made."""
    started = _variables(rule, rule.flow.function(made), name)
    return any(_is_placed(rule, name, each, True) for each in _names_of(rule, started, in_attributes=True))


def bases_elsewhere(rule: Rule, cls: Class) -> Iterator[Class]:
    """The classes of other files of the project that a class descends from."""
    project = rule.flow.project
    for name in dict.fromkeys(base for each in cls.lineage for base in each.project_bases):
        for definition in project.classes(name) if project is not None else ():
            unit = project.unit(definition) if project is not None else None
            if unit is not None and unit.cls is not None:
                yield unit.cls


def _family(cls: Class) -> tuple[Class, ...]:
    return (*cls.lineage, *cls.descendants)


# where it is named -------------------------------------------------------------------------------


def _attributes(rule: Rule, family: tuple[Class, ...], name: str) -> Iterator[cst.CSTNode]:
    for node in rule.source.nodes_of(cst.Attribute):
        if node.attr.value == name and _may_be_of(rule, node.value, family):
            yield node


def _by_any_name(rule: Rule, family: tuple[Class, ...]) -> Iterator[cst.CSTNode]:
    """``getattr(self, name)``, ``vars(module)``, ``module.__dict__``"""
    for call in rule.source.nodes_of(cst.Call):
        called = dotted(call.func)
        by_name = called == "getattr" and len(call.args) > 1 and not isinstance(call.args[1].value, cst.SimpleString)
        if (by_name or (called == "vars" and call.args)) and _may_be_of(rule, call.args[0].value, family):
            yield call
    for node in rule.source.nodes_of(cst.Attribute):
        if node.attr.value == "__dict__" and _may_be_of(rule, node.value, family):
            yield node


def _may_be_of(rule: Rule, node: cst.BaseExpression, family: tuple[Class, ...]) -> bool:
    """Whether an object may be one of the class: ``self`` of another is none, nor is a package."""
    function, path = rule.flow.function(node), dotted(node)
    if path == "self":
        return function is not None and function.cls in family
    return path not in rule.flow.scope.imports


def _variables(rule: Rule, function: Function | None, name: str) -> Iterator[cst.CSTNode]:
    for node in rule.source.nodes_of(cst.Name):
        if node.value == name and rule.flow.function(node) is function:
            yield node


def _names_of(
    rule: Rule, started: list[cst.CSTNode] | Iterator[cst.CSTNode], *, in_attributes: bool
) -> Iterator[cst.CSTNode]:
    """These nodes, and those that name the same, or what is in it: what is bound to it, what a loop over it binds, and
    the parameters that it is handed to; ``in_attributes``: also the attributes of ``self`` that keep it, among others,
    which tells something of modules alone: they are moved where they are."""
    found = dict.fromkeys(started)
    todo = list(found)
    for node in todo:
        yield node
        part, above = _around(rule, node)
        bound: set[str] = set()
        function = rule.flow.function(part)
        if isinstance(above, cst.Assign | cst.AnnAssign) and above.value is part:
            targets = [each.target for each in above.targets] if isinstance(above, cst.Assign) else [above.target]
            bound = names_bound(*targets)  # t = self.table
            if in_attributes and function is not None and function.cls is not None:
                for kept in filter(None, map(_attribute_of_self, targets)):
                    more = [each for each in _attributes(rule, _family(function.cls), kept) if each not in found]
                    found.update(dict.fromkeys(more))
                    todo += more
        elif isinstance(above, cst.For | cst.CompFor) and above.iter is part:
            bound = set(names_bound(above.target))  # for part in (self.net, self.loss):
        elif isinstance(above, cst.Arg) and isinstance(call := rule.parent(above), cst.Call):
            function = function_of(rule.flow, call)  # place(self.net, self.loss)
            bound = _parameter(call, function, above) if function is not None else set()
        for name in bound:
            more = [each for each in _variables(rule, function, name) if each not in found]
            found.update(dict.fromkeys(more))
            todo += more


def _attribute_of_self(target: cst.BaseExpression) -> str:
    """The attribute that keeps what is assigned: ``self.nets["loss"] = loss``, ``self.parts = [self.net, loss]``."""
    while isinstance(target, cst.Subscript):
        target = target.value
    owner, _, name = dotted(target).rpartition(".")
    return name if owner == "self" else ""


def _parameter(call: cst.Call, function: Function, arg: cst.Arg) -> set[str]:
    """The name of the parameter that an argument is handed to."""
    if arg.keyword is not None:
        return {arg.keyword.value}
    place = [each for each in call.args if each.keyword is None].index(arg) + (
        function.takes_self and isinstance(call.func, cst.Attribute)
    )
    if place < len(function.positional):
        return {function.positional[place].name.value}
    rest = function.node.params.star_arg
    return {rest.name.value} if isinstance(rest, cst.Param) else set()


def _around(rule: Rule, node: cst.CSTNode) -> tuple[cst.CSTNode, cst.CSTNode | None]:
    """The widest expression that still is what a node names, holds that, or is a part of it, and what that is in:
    ``nn.ModuleList([self.net, self.loss])``, ``self.tables["a"]``, ``enumerate(self.tables.items())``."""
    part, above = node, rule.parent(node)
    while above is not None:
        if isinstance(above, cst.Subscript):
            if above.value is not part:
                break  # rows[self.index]
        elif isinstance(above, cst.Attribute):
            call = rule.parent(above)
            if above.attr.value in ("items", "values") and isinstance(call, cst.Call) and call.func is above:
                above = call
            elif above.value is not part or above.attr.value not in _PARTS:
                break
        elif isinstance(above, cst.Arg):
            call = rule.parent(above)
            if not isinstance(call, cst.Call) or not (
                dotted(call.func) in _PASSES or rule.flow.name_of(call) in _CONTAINERS
            ):
                break
            above = call
        elif not isinstance(
            above, cst.Element | cst.StarredElement | cst.List | cst.Tuple | cst.Set | cst.Dict | cst.DictElement
        ):
            break
        part, above = above, rule.parent(above)
    return part, above


# what the whole object is handed to, and what other files do ---------------------------------------


def _is_handed_over(rule: Rule, family: tuple[Class, ...]) -> bool:
    """``sync_device(self, x.device)``, of another file, which may move whatever the object has."""
    for call in rule.source.nodes_of(cst.Call):
        last = called_name(call)
        if last in table.MOVES or _PLACES.search(last) is None or not isinstance(rule.parent(call), cst.Expr):
            continue  # device = get_device(self)
        function = rule.flow.function(call)
        if (
            function is not None
            and function.cls in family
            and any(dotted(arg.value) == "self" for arg in call.args)
            and function_of(rule.flow, call) is None
        ):
            return True
    return False


def _is_placed_elsewhere(rule: Rule, cls: Class, name: str) -> bool:
    """Whether another file sets or moves an attribute of that name, or whatever attributes an object has."""
    # class Movable: def place(self, device): for k, v in vars(self).items(): setattr(self, k, v.to(device))
    if any(base.sets_by_variable or base.buffers_by_variable for base in bases_elsewhere(rule, cls)):
        return True
    project = rule.flow.project
    # net.table = net.table.cuda()   for k, v in vars(obj).items(): setattr(obj, k, v.to(device))
    return project is not None and any(project.some_file_says(asked) is True for asked in (f"places {name}", "sweeps"))


def _is_registered_elsewhere(rule: Rule, family: tuple[Class, ...], name: str) -> bool:
    """``class Learned(Prior): def __init__(self): super().__init__(); self.mu = nn.Parameter(torch.zeros(3))``"""
    project = rule.flow.project
    return project is not None and any(
        project.some_file_says(f"registers {each.name} {name}") is True for each in family
    )


# what is done with it ----------------------------------------------------------------------------


def _is_placed(rule: Rule, name: str, node: cst.CSTNode, is_module: bool) -> bool:
    part, above = _around(rule, node)
    if isinstance(above, cst.AssignTarget):
        assign = rule.parent(above)
        if isinstance(part, cst.Subscript) and _is_of_dict(part.value):
            return _may_say(part.slice[0].slice, name)  # module.__dict__["table"] = x.new_ones(3)
        # t["a"] = t["a"].to(x), t.data = t.data.to(x), self.loss.weight = self.loss.weight.to(x)
        is_part = part is not node and isinstance(part, cst.Attribute | cst.Subscript)
        if is_part and isinstance(part, cst.Attribute) and part.attr.value == "data" and isinstance(assign, cst.Assign):
            return not rule.flow.value(assign.value).place.is_host  # self.shift.data = x.mean(0)
        return is_part and isinstance(assign, cst.Assign) and _moves(assign.value)
    call = rule.parent(above) if above is not None else None
    if not isinstance(call, cst.Call):
        return False
    if isinstance(above, cst.Arg):
        # send_to(device, self.loss), of another file
        last = called_name(call)
        return is_module and last not in table.MOVES and _PLACES.search(last) is not None
    if not isinstance(above, cst.Attribute) or call.func is not above:
        return False
    how = above.attr.value
    if how in table.MOVES:
        # trainer.loss.to(device), and not table.to(device) or self.loss.weight.to(device), which leave it where it is
        return is_module and not (isinstance(part, cst.Attribute) and part.attr.value in _PARTS)
    return how == "register_buffer" or (how in _PUTS and any(_moves(arg.value) for arg in call.args))


def _sets(rule: Rule, call: cst.Call, family: tuple[Class, ...], name: str) -> bool:
    """``setattr(module, name, value.to(device))``, ``object.__setattr__(self, "table", moved)``"""
    if called_name(call) not in ("setattr", "__setattr__") or len(call.args) not in (2, 3):
        return False
    value, said = call.args[-1].value, call.args[-2].value
    held = call.args[0].value if len(call.args) == 3 else None
    if not _may_say(said, name) or (held is not None and not _may_be_of(rule, held, family)):
        return False
    if _moves(value):
        return True
    function, path, owner = rule.flow.function(call), dotted(value), dotted(held) if held is not None else ""
    for node in tree.walk(function.node.body) if function is not None else ():
        if path and isinstance(node, cst.Assign) and dotted(node.targets[0].target) == path and _moves(node.value):
            return True  # value = value.to(device); setattr(module, name, value)
        if isinstance(node, cst.Call) and called_name(node) in table.MOVES and called_on(node) in {path, owner} - {""}:
            return True  # setattr(module, name, value); module.to(device)
    return False


def _moves(node: cst.CSTNode) -> bool:
    """Whether an expression brings something elsewhere, or makes it where something else is."""
    return any(
        isinstance(each, cst.Call) and (called_name(each) in _BRINGS or _is_given_device(each))
        for each in tree.walk(node)
    )


def _is_given_device(call: cst.Call) -> bool:
    return any(arg.keyword is not None and arg.keyword.value == "device" for arg in call.args)


def _may_say(node: cst.CSTNode, name: str) -> bool:
    """Whether an expression is the name, or may be."""
    if isinstance(node, cst.Index):
        node = node.value
    return not isinstance(node, cst.SimpleString) or node.evaluated_value == name


def _is_of_dict(node: cst.BaseExpression) -> bool:
    return (isinstance(node, cst.Attribute) and node.attr.value == "__dict__") or (
        isinstance(node, cst.Call) and dotted(node.func) == "vars"
    )


_PARTS = frozenset({"data", "weight", "pos_weight"})
_PASSES = frozenset("list tuple set iter enumerate zip reversed sorted dict itertools.chain chain".split())
_CONTAINERS = frozenset(f"torch.nn.{name}" for name in ("ModuleList", "ModuleDict", "Sequential"))
_PUTS = frozenset("update append extend insert".split())
_BRINGS = table.MOVES | {"type_as", "new_ones", "new_zeros", "new_tensor", "new_full"}
#: What others call it to bring something to a device.
_PLACES = re.compile(r"(^|_)(to|place|move|send|prepare|cuda|gpu|device)(_|$)", re.IGNORECASE)
