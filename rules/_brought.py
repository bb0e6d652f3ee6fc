"""What a function has on a device because the code put it there: moved, made there, or computed with such."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

import libcst as cst

from devlint.flow.names import called_name, dotted
from devlint.flow.place import Place
from devlint.flow.scope import Function
from devlint.flow.value import DATA, THING, Value
from devlint.rule import Rule
from devlint.rules._made import is_use
from devlint.rules._shown import is_chosen, leaves_on_host
from devlint.rules._training import is_inside

#: Methods that give what is on the host, or is no tensor.
_LEAVE = frozenset("cpu numpy tolist item size dim numel keys state_dict parameters".split())
#: Functions that do.
_LEAVING = frozenset("len float int str bool print range type isinstance repr sorted".split())
_OF_NO_PLACE = frozenset("shape device dtype ndim".split())
#: ``device = next(model.parameters()).device``, ``device = x.device``: wherever that is.
_FOLLOWS = re.compile(r"parameters\(\)|(?<!self)(?<!args)(?<!opt)(?<!cfg)(?<!config)(?<!torch)\.device\b(?!\()")


class Brought:
    """What is on a device in the functions of a file; each is looked through once."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._names: dict[Function | None, set[str]] = {}
        self._told: set[str] = set()  # data sets and the like: what is read from them may be anything
        self._assigns: defaultdict[Function | None, list[cst.Assign]] = defaultdict(list)
        for assign in rule.source.nodes_of(cst.Assign):
            self._assigns[rule.flow.function(assign)].append(assign)

    def mentions(self, name: str, scope: cst.CSTNode) -> list[cst.Name]:
        """Every use of a name in a function, the functions inside it included, or in the file."""
        return [node for node in self._by_name.get(name, ()) if is_inside(self.rule.flow, node, scope)]

    @cached_property
    def _by_name(self) -> dict[str, list[cst.Name]]:
        found: defaultdict[str, list[cst.Name]] = defaultdict(list)
        for node in self.rule.source.nodes_of(cst.Name):
            if is_use(self.rule, node):
                found[node.value].append(node)
        return found

    def operand(self, call: cst.Call) -> cst.BaseExpression | None:
        """The first argument of a call that is on a device."""
        return next((arg.value for arg in call.args if self.is_there(arg.value)), None)

    def told(self, call: cst.Call, model: cst.BaseExpression) -> cst.BaseExpression | None:
        """Likewise beside a model, where what is told the device counts, too: ``Trainer(net, Rows(device=device))``."""
        others = [arg.value for arg in call.args if arg.value is not model]
        return next((each for each in others if self.is_there(each) or dotted(each) in self._told), None)

    def is_there(self, node: cst.BaseExpression) -> bool:
        function = self.rule.flow.function(node)
        if function not in self._names:
            self._names[function] = set()
            self._gather(function, self._names[function])
        return self._holds(node, self._names[function])

    def _gather(self, function: Function | None, names: set[str]) -> None:
        """Add the names that are bound to what is on a device, and never to what was brought back."""
        back: set[str] = set()
        for assign in self._assigns[function]:
            for target in assign.targets:
                for name, value in _named(target.target, assign.value):
                    if isinstance(value, cst.Call) and called_name(value) in _LEAVE:
                        back.add(name)
                    elif self._holds(value, names):
                        names.add(name)
                    elif isinstance(value, cst.Call) and self._is_told(value):
                        self._told.add(name)
        names -= back

    def _holds(self, node: cst.BaseExpression, names: set[str]) -> bool:
        todo: list[cst.BaseExpression] = [node]
        while todo:
            part = todo.pop()
            value = self.rule.flow.value(part)
            if value.place.is_host:
                continue
            if value.holds_tensors and value.place.is_there:
                if self._is_chosen(value):
                    return True
                continue
            if isinstance(part, cst.Name | cst.Attribute) and dotted(part) in names:
                return True
            if isinstance(part, cst.Call):
                name = called_name(part)
                if name in _LEAVE or dotted(part.func) in _LEAVING or name[:1].isupper():
                    continue  # Frames(images): an object of some kind
                move = self.rule.flow.move(part)
                if move is not None:
                    if move.target.is_there and self._is_chosen(Value(THING, move.target, part)):
                        return True
                    continue
            todo += _parts(part)
        return False

    def _is_told(self, call: cst.Call) -> bool:
        """``Rows(path, device=device)``"""
        given = [arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == "device"]
        return any(self._names_accelerator(each) for each in given)

    def _names_accelerator(self, device: cst.BaseExpression) -> bool:
        value = self.rule.flow.value(device)
        if value.kind == DATA and isinstance(device, cst.Name):
            # device = f"cuda:{args.gpu}" if args.gpu is not None else "cpu"
            return any("cuda" in self.rule.code(each) for each in self._bound.get(device.value, ()))
        return value.place.is_there and not leaves_on_host(self.rule, device) and not self._follows(value.place)

    def _is_chosen(self, value: Value) -> bool:
        return value.place.name != "self" and not self._follows(value.place) and is_chosen(self.rule, value)

    def _follows(self, place: Place) -> bool:
        """Whether a device is that of some tensor or module, which may be on the host: ``device = net.device``."""
        head, _, last = place.name.rpartition(".")
        if head and head != "self" and last == "device" and _FOLLOWS.search(place.name):
            return True
        return any(_FOLLOWS.search(self.rule.code(value)) for value in self._bound.get(place.name, ()))

    @cached_property
    def _bound(self) -> dict[str, list[cst.BaseExpression]]:
        """What each name of the file is bound to, in whichever function."""
        found: defaultdict[str, list[cst.BaseExpression]] = defaultdict(list)
        for assign in self.rule.source.nodes_of(cst.Assign):
            for target in assign.targets:
                for name, value in _named(target.target, assign.value):
                    found[name].append(value)
        return found


def pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """``x, y = x.to(device), y``: each target with what it is bound to, as far as that is written out."""
    if isinstance(target, cst.Tuple | cst.List):
        values = [value] * len(target.elements)
        if isinstance(value, cst.Tuple | cst.List) and len(value.elements) == len(target.elements):
            values = [element.value for element in value.elements]
        for element, part in zip(target.elements, values, strict=True):
            yield from pairs(element.value, part)
    else:
        yield target, value


def _named(target: cst.BaseExpression, value: cst.BaseExpression) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Likewise by name: ``batch`` of ``batch[key] = x.to(device)``."""
    for each, part in pairs(target, value):
        while isinstance(each, cst.Subscript):
            each = each.value
        if name := dotted(each):
            yield name, part


def _parts(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What a value is made of: not the index of ``table[index]``, nor the test of a choice."""
    match node:
        case cst.Call(func=func, args=args):
            receiver = [func.value] if isinstance(func, cst.Attribute) else []
            return [*receiver, *(arg.value for arg in args)]
        case cst.Attribute(value=value, attr=attr):
            return [] if attr.value in _OF_NO_PLACE else [value]
        case cst.Subscript(value=value) | cst.StarredElement(value=value):
            return [value]
        case cst.Tuple(elements=elements) | cst.List(elements=elements):
            return [element.value for element in elements]
        case cst.Dict(elements=pairs):
            return [pair.value for pair in pairs]
        case cst.BinaryOperation(left=left, right=right):
            return [left, right]
        case cst.UnaryOperation(expression=inner):
            return [inner]
        case cst.IfExp(body=body, orelse=orelse):
            return [body, orelse]
        case cst.ListComp(elt=elt) | cst.GeneratorExp(elt=elt):
            return [elt]
        case cst.DictComp(value=value):
            return [value]
    return []
