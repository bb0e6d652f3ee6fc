"""What a module is handed beside its input: targets, lengths and sizes, which may be as the loader gave them."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.facts import Meeting
from devlint.flow.names import dotted, names_bound
from devlint.flow.scope import Class, Function
from devlint.rule import Rule
from devlint.rules._modules import has_parts

#: Names of what says how long others are.
_LENGTHS = re.compile(r"(^|_)(len|lens|length|lengths|sizes|counts)(_|$)|\w(lens|lengths)$")


def is_on_the_side(rule: Rule, function: Function, cls: Class, meeting: Meeting) -> bool:
    """``def forward(self, x, target=None): ... target["boxes"] * torch.tensor(size)``: what comes after the input, or
    is a part of what is handed in as one, and none of the module's own is called or counted with. So are lengths, which
    `pack_padded_sequence` wants on the host.
    """
    if any(isinstance(node, cst.Name) and _LENGTHS.search(node.value) for node in tree.walk(meeting.there_node)):
        return True
    place = meeting.there.place
    first = next((param.name.value for param in function.positional[1:]), "")
    parts = _parts_of(function, place.name)
    if place.name == first and not parts:
        return False
    has_weights = has_parts(cls)
    is_fed = any(
        feeding.module.place.name == "self" and feeding.value.place == place
        for feeding in rule.flow.facts.feedings.values()
    )
    if not parts and (is_fed or not has_weights):
        return False  # what a loss compares is together, as a rule
    named = [_part(node) for node in tree.walk(meeting.there_node)]
    part = next((each for each in named if each in parts), "") if parts else place.name
    counted = (
        node
        for node in tree.walk(function.node.body)
        if isinstance(node, cst.Call | cst.BinaryOperation) and _holds(node, part)
    )
    if has_weights:  # self.net(x), x + self.shift
        return not any(rule.flow.value(node).place.name == "self" for node in counted)
    return place.name == first or not any(_holds(node, first) for node in counted)  # x - target["x"]


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
