"""What is there on one kind of device alone, and is used on all: ``scaler = GradScaler() if on_cuda else None``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.rule import Rule
from devlint.rules._portability import SPEAKS_OF_CUDA, Surroundings


@dataclass(frozen=True)
class NoneElsewhere:
    """``name`` is ``None`` where ``test`` holds, or does not (``unless``), and ``use`` asks it for something anyway."""

    name: str
    test: cst.BaseExpression
    unless: bool
    use: cst.Attribute


def none_elsewhere(rule: Rule, around: Surroundings) -> Iterator[NoneElsewhere]:
    """The first such use in each function; of names that nothing else is assigned to."""
    for assign in rule.source.nodes_of(cst.Assign):
        choice, name = assign.value, dotted(assign.targets[0].target) if isinstance(assign.value, cst.IfExp) else ""
        if not isinstance(choice, cst.IfExp) or not name or len(around.assigned(name.rpartition(".")[2])) != 1:
            continue
        # scaler = None if device.type == "cpu" else GradScaler()
        made = choice.body if dotted(choice.orelse) == "None" else choice.orelse
        if dotted(made) == "None" or "None" not in (dotted(choice.body), dotted(choice.orelse)):
            continue
        if isinstance(made, cst.Call) and SPEAKS_OF_CUDA.search(rule.code(choice.test)):
            for use in _uses(rule, around, assign, name):
                yield NoneElsewhere(name, choice.test, made is choice.body, use)


def _uses(rule: Rule, around: Surroundings, assign: cst.Assign, name: str) -> Iterator[cst.Attribute]:
    home, last = rule.flow.function(assign), name.rpartition(".")[2]
    done = set()
    for node in rule.source.nodes_of(cst.Attribute):
        if dotted(node.value) != name or not isinstance(rule.parent(node), cst.Call):
            continue
        function = rule.flow.function(node)
        if name.startswith("self."):
            if function is None or home is None or function.cls is not home.cls:
                continue
        elif function is not home:
            continue
        if function not in done and around.guard(node) is None and not _is_asked(rule, node, last):
            done.add(function)
            yield node


def _is_asked(rule: Rule, node: cst.CSTNode, last: str) -> bool:
    """``if self.scaler is not None: self.scaler.step(optimizer)``, ``assert self.scaler``, also in another test."""
    function = rule.enclosing(node, cst.FunctionDef)
    for each in tree.walk(function) if function is not None else tree.walk(rule.source.module):
        if isinstance(each, cst.If | cst.IfExp | cst.Assert | cst.While) and last in tree.words(each.test):
            return True
        if isinstance(each, cst.BooleanOperation) and last in tree.words(each.left):
            return True
    return False
