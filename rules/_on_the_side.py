"""What a module is handed beside its input: targets, lengths and sizes, which may be as the loader gave them."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted, names_bound
from devlint.flow.place import Place
from devlint.flow.scope import Class, Function
from devlint.rule import Rule
from devlint.rules._modules import has_parts

#: Names of what says how long others are.
_LENGTHS = re.compile(r"(^|_)(len|lens|length|lengths|sizes|counts)(_|$)|\w(lens|lengths)$")


def is_on_the_side(rule: Rule, function: Function, cls: Class, there: cst.CSTNode, place: Place) -> bool:
    """``def forward(self, x, target=None): ... target["boxes"] * torch.tensor(size)``: what comes after the input of a
    class with layers; and a part of what is handed in as one, where none of the module's own is called or counted with
    that. So are lengths, which `pack_padded_sequence` wants on the host."""
    if any(isinstance(node, cst.Name) and _LENGTHS.search(node.value) for node in tree.walk(there)):
        return True
    first = next((param.name.value for param in function.positional[1:]), "")
    parts = _parts_of(function, place.name)
    if place.name == first and not parts:
        return False
    if not parts:
        return comes_after_input(function, cls, place)
    named = [_part(node) for node in tree.walk(there)]
    part = next((each for each in named if each in parts), "")
    counted = (
        node
        for node in tree.walk(function.node.body)
        if isinstance(node, cst.Call | cst.BinaryOperation) and _holds(node, part)
    )
    if has_parts(cls):  # self.net(batch["rows"]), batch["rows"] + self.shift
        return not any(rule.flow.value(node).place.name == "self" for node in counted)
    return place.name == first or not any(_holds(node, first) for node in counted)  # x - target["x"]


def comes_after_input(function: Function, cls: Class, place: Place) -> bool:
    """``def forward(self, x, mask): ... mask + torch.arange(n)``, where the class has layers: `x` is where the module
    is, and what comes with it may be as the loader gave it; what a loss compares is together, as a rule. Of nine such
    findings that readers judged, two were true; of 40 about the first, 30."""
    others = function.params[function.takes_self + 1 :]
    return has_parts(cls) and any(param.name.value == place.name for param in others)


def _parts_of(function: Function, name: str) -> set[str]:
    """What a function takes of a parameter: names that it unpacks it into (``ids, lengths = batch``), and entries."""
    found: set[str] = set()
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Assign) and dotted(node.value) == name:
            for target in node.targets:
                if isinstance(target.target, cst.Tuple | cst.List):
                    found |= names_bound(target.target)
        elif isinstance(node, cst.Subscript) and dotted(node.value) == name:
            found.add(_part(node))
    return found - {""}


def _part(node: cst.CSTNode) -> str:
    """A name, or an entry: ``batch["lengths"]``."""
    if isinstance(node, cst.Name):
        return node.value
    index = node.slice[0].slice if isinstance(node, cst.Subscript) else None
    if isinstance(node, cst.Subscript) and isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString):
        return f"{dotted(node.value)}[{index.value.evaluated_value!r}]"
    return ""


def _holds(node: cst.CSTNode, part: str) -> bool:
    return bool(part) and any(_part(each) == part for each in tree.walk(node))
