"""Where a program sets variables of its environment, from which CUDA and torch read settings."""

from __future__ import annotations

from collections.abc import Container

import libcst as cst

from devlint.rule import Rule


def settings_of(rule: Rule, variables: Container[str]) -> list[tuple[cst.CSTNode, str, str]]:
    """Where variables are set in the environment of the process: the node, which one, and to what, as it is written
    out; empty where that is worked out."""
    found: list[tuple[cst.CSTNode, str, str]] = []
    for assign in rule.source.nodes_of(cst.Assign):
        target = assign.targets[0].target
        if isinstance(target, cst.Subscript) and len(target.slice) == 1:
            index = target.slice[0].slice
            name = _text(index.value) if isinstance(index, cst.Index) else None
            if name in variables and rule.flow.scope.qualified(target.value) == "os.environ":
                found.append((assign, name or "", _text(assign.value) or ""))
    for call in rule.source.nodes_of(cst.Call):
        func = rule.flow.scope.qualified(call.func)
        if func in ("os.putenv", "os.environ.setdefault") and len(call.args) == 2:
            name = _text(call.args[0].value)
            if name in variables:
                found.append((call, name or "", _text(call.args[1].value) or ""))
        elif func == "os.environ.update" and call.args and isinstance(call.args[0].value, cst.Dict):
            pairs = [e for e in call.args[0].value.elements if isinstance(e, cst.DictElement)]
            named = [(_text(pair.key), _text(pair.value)) for pair in pairs]
            found += [(call, name, value or "") for name, value in named if name in variables and name is not None]
    return found


def given(rule: Rule, node: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """What a variable is set to by one of ``settings_of``."""
    if isinstance(node, cst.Assign):
        return node.value
    if not isinstance(node, cst.Call):
        return None
    if rule.flow.scope.qualified(node.func) != "os.environ.update":
        return node.args[1].value
    held = node.args[0].value
    pairs = [each for each in held.elements if isinstance(each, cst.DictElement)] if isinstance(held, cst.Dict) else []
    return next((pair.value for pair in pairs if _text(pair.key) == name), None)


def _text(node: cst.BaseExpression) -> str | None:
    """What a string is that is written out."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None
