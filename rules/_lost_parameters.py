"""Devices that a function is told and overwrites: before anything reads them, or with the first of their kind."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._made import is_use
from devlint.rules._portability import is_device_name

_KIND = re.compile(r"""["'](?:cuda|cpu|mps|xpu|npu)(?::\d+)?["']|torch\.device\(|is_available\(""")
_FIRST = re.compile(
    r"""["']cuda(?::0)?["']|torch\.device\((?:type=)?["']cuda(?::0)?["'](?:, (?:index=)?0)?\)|torch\.device\(0\)"""
)


def report_lost_parameters(rule: Rule) -> None:
    for function in rule.flow.scope.functions.values():
        for param in function.params:
            name = param.name.value
            if is_device_name(name) and name in function.assigned and isinstance(function.node, cst.FunctionDef):
                _unread(rule, function, param)
                _without_index(rule, function, name)


def _unread(rule: Rule, function: Function, param: cst.Param) -> None:
    """``def load(self, device): device = "cuda"``"""
    body, name = function.node.body, param.name.value
    for line in body.body if isinstance(body, cst.IndentedBlock) else ():
        mentions = [node for node in tree.named(line, name) if is_use(rule, node)]
        if not mentions:
            continue
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
        value = small.value if isinstance(small, cst.Assign | cst.AnnAssign) else None
        # device = device or "cuda";  device = resolve(args, self)   of which nobody knows what it goes by
        only = [node for node in mentions if not isinstance(rule.parent(node), cst.AssignTarget | cst.AnnAssign)]
        if value is not None and not only and _KIND.search(rule.code(value)):
            note = rule.note(param, "it is handed in here")
            said = f"`{name}` is `{rule.code(value)}`, whatever `{function.name}` was told"
            rule.report(value, said, notes=[note], tentative=True)
        return


def _without_index(rule: Rule, function: Function, name: str) -> None:
    """``if device.type == "cuda": device = torch.device("cuda:0")``"""
    asked = re.compile(
        rf"""(?:{name}\.type|{name}\.split\(["']:["']\)\[0\]) == ["']cuda["']|["']cuda["'] in (?:str\()?{name}\)?|"""
        rf"""{name}\.startswith\(["']cuda["']\)|{name} != ["']cpu["']|{name}\.type != ["']cpu["']"""
    )
    for assign in rule.source.nodes_of(cst.Assign):
        branch = rule.enclosing(assign, cst.If, cst.FunctionDef)
        if not isinstance(branch, cst.If) or rule.flow.function(assign) is not function:
            continue
        inside = any(node is assign for node in tree.walk(branch.body))
        if [dotted(each.target) for each in assign.targets] == [name] and inside:
            code = rule.code(assign.value)
            if _FIRST.fullmatch(code) and asked.fullmatch(rule.code(branch.test)):
                note = rule.note(branch.test, "it may be any of them here")
                rule.report(assign.value, f"this is one GPU, whatever index `{name}` has", notes=[note], tentative=True)
