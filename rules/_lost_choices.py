"""Choices of a device that are overwritten before anything reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.rule import Rule
from devlint.rules._portability import told_to_device

_IS_DEVICE = re.compile(r"(^|_)device(_|$)")
_KIND = re.compile(r"(cpu|cuda|mps|xpu|npu|hpu|mlu|musa)(:\d+)?")
_WITHOUT_CUDA = "not torch.cuda.is_available()"


@dataclass(frozen=True)
class Given:
    """A name is given a device (``kind``) by ``value``, ``when`` a ``test`` holds; always, where that is empty."""

    name: str
    value: cst.BaseExpression
    kind: str
    when: str
    test: cst.BaseExpression | None


@dataclass(frozen=True)
class Lost:
    """``choice`` gave a name one device or another, and then it is ``given`` one whatever that was."""

    choice: cst.CSTNode
    given: Given


def lost_choices(rule: Rule) -> Iterator[Lost]:
    """``device = "mps" if ... else "cpu"``, and ``device = "cpu"`` below, with nothing in between that reads it."""
    blocks: list[cst.Module | cst.IndentedBlock] = [rule.source.module, *rule.source.nodes_of(cst.IndentedBlock)]
    for block in blocks:
        chosen: dict[str, tuple[cst.CSTNode, list[Given]]] = {}
        for line in block.body:
            given = _given_by(rule, line)
            for name in list(chosen):
                mentions = [node for node in tree.walk(line) if _names(rule, node, name)]
                if not mentions:
                    continue
                choice, before = chosen.pop(name)
                if all(isinstance(rule.parent(node), cst.AssignTarget) for node in mentions):
                    after = [each for each in given if each.name == name]
                    yield from (Lost(choice, each) for each in after if _is_lost(each, before))
            for each in given:
                if each.when:
                    chosen[each.name] = (line, [other for other in given if other.name == each.name])


def _is_lost(given: Given, before: list[Given]) -> bool:
    """Whether nothing that was chosen stays: a Mac has no CUDA, and loses its ``mps`` ``when`` there is none."""
    if not given.when:
        return True
    others = {each.kind for each in before} - {"cpu", "cuda"}
    return bool(others) and given.kind == "cpu" and given.when == _WITHOUT_CUDA


def _given_by(rule: Rule, line: cst.CSTNode, when: str = "", asked: cst.BaseExpression | None = None) -> list[Given]:
    """The names that a statement gives a device, in the order of the code."""
    if isinstance(line, cst.If):
        test = _and(when, rule.code(line.test))
        found = [each for inner in line.body.body for each in _given_by(rule, inner, test, line.test)]
        otherwise = _and(when, _not(rule.code(line.test)))
        if isinstance(line.orelse, cst.If):
            found += _given_by(rule, line.orelse, otherwise, line.test)
        elif line.orelse is not None:
            found += [each for inner in line.orelse.body.body for each in _given_by(rule, inner, otherwise, line.test)]
        return found
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return []
    name = dotted(small.targets[0].target)
    if not _IS_DEVICE.search(name.rpartition(".")[2]):
        return []
    value = told_to_device(rule, small.value)
    sides = [(value, when)]
    if isinstance(value, cst.IfExp):
        test, asked = rule.code(value.test), value.test
        sides = [(value.body, _and(when, test)), (value.orelse, _and(when, _not(test)))]
    return [Given(name, side, kind, at, asked) for side, at in sides if (kind := _kind(rule, side)) is not None]


def _kind(rule: Rule, node: cst.BaseExpression) -> str | None:
    """The kind of device that an expression names."""
    node = told_to_device(rule, node)
    match = _KIND.fullmatch(str(node.evaluated_value)) if isinstance(node, cst.SimpleString) else None
    return match[1] if match is not None else None


def _names(rule: Rule, node: cst.CSTNode, name: str) -> bool:
    if not isinstance(node, cst.Name | cst.Attribute) or dotted(node) != name:
        return False
    above = rule.parent(node)
    if isinstance(above, cst.Attribute):
        return above.attr is not node  # torch.device
    return not (isinstance(above, cst.Arg) and above.keyword is node)  # net.to(device=...)


def _and(when: str, test: str) -> str:
    return f"{when} and {test}" if when else test


def _not(test: str) -> str:
    return test.removeprefix("not ") if test.startswith("not ") else f"not {test}"
