"""What a function makes of a tensor, by whatever calls: `scale` of ``shift, scale = self.heads(x)``.

Where what a method gives is, the flow does not know as soon as it cannot follow that. It is made of what the method was
handed, though, and whoever computes with tensors gives tensors where these are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import called_name, dotted, names_bound
from devlint.flow.scope import Function
from devlint.flow.value import ARRAY, DATA, DEVICE, DTYPE, MODULE, NONE, UNKNOWN_KIND
from devlint.rule import Rule

#: Calls that give no tensors, or tensors on the host.
_GIVES_OTHERS = re.compile(
    r"^(int|float|bool|len|range|str|repr|print|isinstance|type|getattr|hasattr|enumerate|item|tolist|numpy|cpu|size|dim|"
    r"numel|keys|data_ptr|element_size|stride|format|join|get_device|is_contiguous|nelement|ndimension)$"
    r"|(^|_)(cpu|host|numpy|np|arrays?|lists?|dicts?|strs?|strings?|names?|lengths?|lens?|sizes?|shapes?|nums?|counts?|"
    r"dims?|dtype|device|is|has|check|validate|assert|hash|log|save|write|plot|show|read|load|parse|config|build|create|"
    r"schedule|steps?|nodes?|graph|keys?|batch_size)(_|$)"
)
_OF_NUMBERS = frozenset("shape size dtype device ndim is_cuda layout requires_grad grad_fn itemsize nbytes".split())
_LOST = frozenset({""})
_NO_TENSORS = frozenset({DATA, ARRAY, NONE, DTYPE, DEVICE, MODULE})


class Derived:
    """The names in the functions of a file that stand for what was made of others."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._names: dict[Function, dict[str, frozenset[str]]] = {}

    def of(self, function: Function, node: cst.BaseExpression) -> frozenset[str]:
        """What an expression is made of: names that the function is handed or binds."""
        return self._of(node, self._named(function)) - _LOST

    def _named(self, function: Function) -> dict[str, frozenset[str]]:
        if function not in self._names:
            found: dict[str, frozenset[str]] = {}
            self._names[function] = found
            for _ in range(3):  # loops bind what is read above
                before = dict(found)
                for target, value in _bindings(function):
                    given = self._of(value, found)
                    for name in names_bound(target):
                        # x = x.cpu(): nobody knows which of the two is read
                        lost = not given or found.get(name) == _LOST
                        found[name] = _LOST if lost else found.get(name, frozenset()) | given
                if found == before:
                    break
        return self._names[function]

    def _of(self, node: cst.BaseExpression, known: dict[str, frozenset[str]]) -> frozenset[str]:
        value = self._rule.flow.value(node)
        is_joined = isinstance(node, cst.BinaryOperation) or self._rule.flow.name_of(node) in table.FUNCTIONS
        # x * torch.ones(3): the flow goes by what it knows, of which that this is to be told
        if value.kind in _NO_TENSORS or (value.place.is_host and value.kind != UNKNOWN_KIND and not is_joined):
            return frozenset()
        if isinstance(node, cst.Name):
            given = known.get(node.value, frozenset())
            return given if given == _LOST else given | {node.value}
        if isinstance(node, cst.Attribute):
            return frozenset() if node.attr.value in _OF_NUMBERS else self._of(node.value, known) - {"self"}
        if isinstance(node, cst.Subscript):
            return self._of(node.value, known)
        if isinstance(node, cst.Call):
            return self._of_call(node, known)
        parts: list[cst.BaseExpression] = []
        if isinstance(node, cst.BinaryOperation):
            parts = [node.left, node.right]
        elif isinstance(node, cst.UnaryOperation | cst.Await):
            parts = [node.expression]
        elif isinstance(node, cst.Comparison):
            parts = [node.left]
        elif isinstance(node, cst.IfExp):
            either = [self._of(node.body, known), self._of(node.orelse, known)]
            return either[0] | either[1] if all(either) else frozenset()
        elif isinstance(node, cst.Tuple | cst.List):
            parts = [each.value for each in node.elements]
        return self._all(parts, known)

    def _all(self, parts: list[cst.BaseExpression], known: dict[str, frozenset[str]]) -> frozenset[str]:
        return frozenset().union(*(self._of(part, known) for part in parts)) - {""}

    def _of_call(self, node: cst.Call, known: dict[str, frozenset[str]]) -> frozenset[str]:
        name, word = self._rule.flow.name_of(node), called_name(node)
        if _GIVES_OTHERS.search(word) or name.partition(".")[0] in ("numpy", "math", "random", "os", "scipy", "time"):
            return frozenset()
        if name in table.FACTORIES or name in table.HOST_FACTORIES or word[:1].isupper():
            return frozenset()  # Mask(x), torch.tensor(x)
        given = [arg.value for arg in node.args if not arg.star]
        if isinstance(node.func, cst.Attribute) and not name.startswith("torch."):
            given.append(node.func.value)
        return self._all(given, known) - {"self", "cls"}


def _bindings(function: Function) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Assign):
            for each in node.targets:
                yield from _pairs(each.target, node.value)
        elif isinstance(node, cst.AnnAssign | cst.NamedExpr) and node.value is not None:
            yield node.target, node.value


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """``x, y = left(a), right(b)``: each with its own, not ``self.x = ...``."""
    if isinstance(target, cst.Tuple | cst.List):
        if isinstance(value, cst.Tuple | cst.List) and len(value.elements) == len(target.elements):
            for element, part in zip(target.elements, value.elements, strict=True):
                yield from _pairs(element.value, part.value)
        else:
            for element in target.elements:
                yield element.value, value
    elif not dotted(target).startswith("self."):
        yield target, value
