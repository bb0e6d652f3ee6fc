"""Pipelines that are moved to a device right before they are told to keep their parts on the host.

``enable_model_cpu_offload`` and ``enable_sequential_cpu_offload`` of diffusers bring a pipeline to the host first, and
move each part to the device when it is its turn.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import names_device
from devlint.flow.names import called_name, dotted, last_word, only_target
from devlint.flow.value import DEVICE
from devlint.rule import Rule

_OFFLOADS = frozenset({"enable_model_cpu_offload", "enable_sequential_cpu_offload"})


def moved_then_offloaded(rule: Rule) -> Iterator[tuple[cst.Call, cst.Call]]:
    """``pipe = build().to(device); pipe.enable_model_cpu_offload()``: the moves, and the calls that undo them."""
    for name in _OFFLOADS:
        if name not in rule.source.text or rule.in_tests:
            continue
        for call in rule.source.nodes_of(cst.Call):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == name:
                move = _moved_before(rule, call, dotted(call.func.value))
                if move is not None:
                    yield move, call


def _moved_before(rule: Rule, call: cst.Call, path: str) -> cst.Call | None:
    """The move in the statements above, with nothing between that runs the pipeline."""
    child: cst.CSTNode = call
    above = rule.parent(child)
    while path and above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.IndentedBlock | cst.Module):
            lines = list(above.body)
            for line in reversed(lines[: lines.index(child)]):  # type: ignore[arg-type]
                move = _move_of(rule, line, path)
                if move is not None:
                    return move
                if _may_run(line, path):
                    return None
        child, above = above, rule.parent(above)
    return None


def _move_of(rule: Rule, line: cst.CSTNode, path: str) -> cst.Call | None:
    """``pipe.to(device)``, ``pipe = pipe.to(device)``, ``pipe = build().to(device)``"""
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
    if isinstance(small, cst.Expr):
        value, holder = small.value, ""
    elif isinstance(small, cst.Assign):
        value, holder = small.value, dotted(only_target(small) or small.targets[0].target)
    else:
        return None
    if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
        return None
    if (holder or dotted(value.func.value)) != path:
        return None
    return value if _goes_to_device(rule, value) else None


def _goes_to_device(rule: Rule, call: cst.Call) -> bool:
    name = called_name(call)
    if name == "cuda":
        return True
    if name != "to" or not call.args:
        return False
    given = call.args[0].value
    if isinstance(given, cst.SimpleString):
        return not str(given.evaluated_value).startswith("cpu")
    value = rule.flow.value(given)
    return (value.kind == DEVICE and not value.place.is_host) or names_device(last_word(dotted(given)))


def _may_run(line: cst.CSTNode, path: str) -> bool:
    """``image = pipe(prompt)``, ``pipe = build()``, ``run(pipe)``; not ``pipe.set_progress_bar_config(...)``."""
    for node in tree.walk(line):
        if isinstance(node, cst.Call):
            of_its_own = dotted(node.func).startswith(f"{path}.") and called_name(node) not in ("generate", "forward")
            if dotted(node.func) == path or (not of_its_own and any(dotted(arg.value) == path for arg in node.args)):
                return True
        if isinstance(node, cst.AssignTarget) and dotted(node.target) == path:
            return True
    return False
