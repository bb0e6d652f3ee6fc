"""Choices of a device that are overwritten before anything reads them, or dropped by how an expression is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted, last_word
from devlint.rule import Rule
from devlint.rules._portability import Surroundings, is_available_test, is_device_name, told_to_device
from devlint.rules._switches import tests_above

_IS_DEVICE = re.compile(r"(^|_)device(_|$)")
_KIND = re.compile(r"(cpu|cuda|mps|xpu|npu|hpu|mlu|musa)(:\d+)?")
_WITHOUT_CUDA = "not torch.cuda.is_available()"
_KEY = re.compile(r"""(?:\.get\(|\[)['"](\w+)['"]""")
#: `torch.backends.mps.is_available()`, `is_torch_cuda_available()`
_AVAILABLE = re.compile(r"(\w+\.)*(is_(\w+_)?available|is_built)\(\)")

#: A test, and whether it holds.
_Test = tuple[cst.BaseExpression, bool]


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


@dataclass(frozen=True)
class Dropped:
    """``device or "cuda" if ... else "cpu"``: the ``choice``, what was ``given``, and what stands after ``or``."""

    choice: cst.IfExp
    given: cst.BaseExpression
    after: cst.BaseExpression


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


def _given_by(rule: Rule, line: cst.CSTNode, tests: tuple[_Test, ...] = ()) -> list[Given]:
    """The names that a statement gives a device, in the order of the code, where these ``tests`` come out so."""
    if isinstance(line, cst.If):
        held, failed = (*tests, (line.test, True)), (*tests, (line.test, False))
        found = [each for inner in line.body.body for each in _given_by(rule, inner, held)]
        if isinstance(line.orelse, cst.If):
            found += _given_by(rule, line.orelse, failed)
        elif line.orelse is not None:
            found += [each for inner in line.orelse.body.body for each in _given_by(rule, inner, failed)]
        return found
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return []
    name = dotted(small.targets[0].target)
    if not _IS_DEVICE.search(name.rpartition(".")[2]):
        return []
    value = told_to_device(rule, small.value)
    sides = [(value, tests)]
    if isinstance(value, cst.IfExp):
        sides = [(value.body, (*tests, (value.test, True))), (value.orelse, (*tests, (value.test, False)))]
    return [
        Given(name, side, kind, _all(rule, at), at[-1][0] if at else None)
        for side, at in sides
        if (kind := _kind(rule, side)) is not None
    ]


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


def _all(rule: Rule, tests: tuple[_Test, ...]) -> str:
    """What has to be so that these tests come out so, as code."""
    return " and ".join(rule.code(test) if holds else _not(rule.code(test)) for test, holds in tests)


def _not(test: str) -> str:
    return test.removeprefix("not ") if test.startswith("not ") else f"not {test}"


def dropped_choices(rule: Rule) -> Iterator[Dropped]:
    """``device or "cuda" if torch.cuda.is_available() else "cpu"``, which is read as ``(device or "cuda") if ...``."""
    around = Surroundings(rule)
    for choice in rule.source.nodes_of(cst.IfExp):
        either = choice.body
        # (device or "cuda") if torch.cuda.is_available() else "cpu"   is meant so
        if not isinstance(either, cst.BooleanOperation) or not isinstance(either.operator, cst.Or) or either.lpar:
            continue
        given = next((each for each in _alternatives(either.left) if _was_given(rule, each)), None)
        if given is None or not _is_about_machine(rule, around, choice.test):
            continue
        # workers or 4 if torch.cuda.is_available() else 0, device or "cuda" if ... else device
        if not _is_device(rule, choice.orelse) or _is_read(rule, given, choice.orelse):
            continue
        # if device is None: device = device or "cuda" if torch.cuda.is_available() else "cpu"
        if not any(_is_read(rule, given, test) for test, _, _ in tests_above(rule, choice)):
            yield Dropped(choice, given, either.right)


def _alternatives(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """``a`` and ``b`` of ``a or b``."""
    if isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.Or):
        yield from _alternatives(node.left)
        yield from _alternatives(node.right)
    else:
        yield node


def _was_given(rule: Rule, node: cst.BaseExpression) -> bool:
    """``device``, ``args.device``, ``config["device"]``, ``os.environ.get("DEVICE")``"""
    key = _KEY.search(rule.code(node)) if isinstance(node, cst.Call | cst.Subscript) else None
    return is_device_name(key[1].lower() if key is not None else last_word(dotted(node)))


def _is_read(rule: Rule, given: cst.BaseExpression, inside: cst.BaseExpression) -> bool:
    path = dotted(given)
    return any(_names(rule, node, path) if path else rule.code(given) == rule.code(node) for node in tree.walk(inside))


def _is_about_machine(rule: Rule, around: Surroundings, test: cst.BaseExpression) -> bool:
    """Whether a test asks which devices there are, and nothing that anybody chose."""
    if isinstance(test, cst.UnaryOperation):
        return _is_about_machine(rule, around, test.expression)
    if isinstance(test, cst.BooleanOperation):
        return all(_is_about_machine(rule, around, side) for side in (test.left, test.right))
    if isinstance(test, cst.Name):  # HAS_CUDA = torch.cuda.is_available()
        made = around.assigned(test.value)
        return bool(made) and all(is_available_test(code) for code in made)
    code = rule.code(test)
    return is_available_test(code) or _AVAILABLE.fullmatch(code) is not None


def _is_device(rule: Rule, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.IfExp):
        return _is_device(rule, node.body) and _is_device(rule, node.orelse)
    return _kind(rule, node) is not None or is_device_name(last_word(dotted(node)))
