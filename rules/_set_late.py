"""Whether a variable of the environment is set when what reads it has run already."""

from __future__ import annotations

import libcst as cst

from devlint.flow.names import dotted
from devlint.flow.scope import Class, Function
from devlint.rule import Rule


def cuda_uses(rule: Rule) -> list[cst.CSTNode]:
    """What makes CUDA read its variables, in the order of the file."""
    found: list[cst.CSTNode] = [call for call, name in rule.flow.facts.names.items() if name in _USES]
    found += [move.node for move in rule.flow.facts.moves.values() if move.target.name.startswith("cuda")]
    return sorted(found, key=lambda node: rule.source.offsets(node)[0])


def surely_before(rule: Rule, use: cst.CSTNode, node: cst.CSTNode) -> bool:
    """Whether ``use`` has run whenever ``node`` runs."""
    home, place = _runs_in(rule, use), rule.flow.function(node)
    if home is not None and home is not place:
        return False
    if home is None and place is not None:
        # def choose(gpu): os.environ[...] = gpu   is called above the use:  choose("0"); torch.cuda.is_available()
        return _always_runs(rule, use, None) and not _called_before(rule, place.name, use)
    return rule.source.offsets(use)[1] <= rule.source.offsets(node)[0] and _always_runs(rule, use, node)


def is_for_others(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether the variable is for a process that is started, or is put back to what it was."""
    if isinstance(rule.enclosing(node, cst.Finally, cst.FunctionDef), cst.Finally):
        return True
    # class Runner: def __init__(self): os.environ[...] = gpus   and   def start(self): mp.spawn(work)
    around = _stands_in(rule, node)
    calls = [call for call in rule.source.nodes_of(cst.Call) if _stands_in(rule, call) is around]
    called = {rule.flow.scope.qualified(call.func) for call in calls}
    if "gradio" in rule.source.text:
        called = {name for name in called if not name.endswith(".launch")}  # demo.launch(share=True)  serves a page
    return any(word in name for name in called for word in _STARTERS)


def _stands_in(rule: Rule, node: cst.CSTNode) -> Class | Function | None:
    """The class that a node stands in a method of; else the function."""
    function = rule.flow.function(node)
    return function.cls if function is not None and function.cls is not None else function


def _runs_in(rule: Rule, node: cst.CSTNode) -> Function | None:
    """The function that a node runs in: a default, ``device=pick()``, runs where the function is defined."""
    parameters = rule.enclosing(node, cst.Parameters, cst.FunctionDef)
    function = rule.flow.function(node)
    return function.outer if function is not None and isinstance(parameters, cst.Parameters) else function


def _always_runs(rule: Rule, use: cst.CSTNode, node: cst.CSTNode | None) -> bool:
    """Whether no branch that does not hold ``node``, too, decides on ``use``."""
    around: set[cst.CSTNode] = set()
    above = node
    while above is not None:
        around.add(above)
        above = rule.parent(above)
    child, parent = use, rule.parent(use)
    while parent is not None and not isinstance(parent, cst.FunctionDef | cst.Lambda | cst.Parameters):
        # if torch.cuda.is_available(): os.environ[...] = gpu   asks first
        decides = isinstance(parent, cst.If | cst.While | cst.IfExp) and child is not parent.test
        if decides and isinstance(parent, cst.If) and "__name__" in rule.code(parent.test):
            decides = False  # if __name__ == "__main__":  what it calls runs in there
        decides = decides or isinstance(parent, cst.For | cst.ExceptHandler | cst.MatchCase)
        # try: import torch   and where that fails nothing reads the variable
        decides = decides or (isinstance(parent, cst.Try) and not isinstance(use, cst.Import | cst.ImportFrom))
        decides = decides or (isinstance(parent, cst.BooleanOperation) and child is parent.right)
        if decides and child not in around:
            return False
        child, parent = parent, rule.parent(parent)
    return not isinstance(parent, cst.Lambda)


def _called_before(rule: Rule, name: str, use: cst.CSTNode) -> bool:
    return any(
        dotted(call.func).rpartition(".")[2] == name
        for call in rule.source.nodes_of(cst.Call)
        if rule.flow.function(call) is None and rule.source.comes_before(call, use)
    )


_STARTERS = ("subprocess", "Popen", "spawn", "os.system", "os.exec", "Process", "launch", "start_processes", "ray.")
_USES = frozenset(
    f"torch.cuda.{name}"
    for name in (
        "is_available set_device current_device get_device_name get_device_properties get_device_capability init "
        "synchronize mem_get_info current_stream"
    ).split()
)
