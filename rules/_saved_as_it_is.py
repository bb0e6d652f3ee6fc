"""Whether a file saves, as it is, the state of what it loads one into: from wherever that was."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._checkpoints import assigned, holds_numbers
from devlint.rules._saved_places import receivers

#: What holds the state of an optimizer: an entry for each parameter, where that is.
_OPTIMIZER = re.compile(r"optim|(^|[._])opt([._\d]|$)", re.IGNORECASE)
_SAVES = re.compile(r"save\w*\(|\breturn\b[^\n]*state|def (\w+_)?state_dict")
#: What brings a state to the host, or gathers it there, on its way to the file.
_TO_HOST = re.compile(r"""\.cpu\(|["']cpu["']|to_host|to_cpu|offload""")


def is_saved_as_it_is(rule: Rule, call: cst.Call, function: Function | None) -> bool:
    """Whether the file saves a state of the kind that a call loads, be it a model's or an optimizer's, and nothing
    brings that to the host on its way: ``torch.save({"net": net.state_dict()}, f)``."""
    loaded = {_is_of_optimizer(name) for name in receivers(rule, call, function).difference(assigned(rule, call))}
    return any(_is_of_optimizer(name) in loaded for name in _saved(rule)) if loaded else False


def _is_of_optimizer(name: str) -> bool:
    return _OPTIMIZER.search(name.rpartition(".")[2] or name) is not None


def _saved(rule: Rule) -> Iterator[str]:
    """What the file takes the state of to save it, but for what holds numbers alone."""
    for state in rule.source.nodes_of(cst.Call):
        if not isinstance(state.func, cst.Attribute) or state.func.attr.value != "state_dict":
            continue
        above = rule.parent(state)
        if isinstance(above, cst.Attribute):
            continue  # {name: weight.cpu() for name, weight in net.state_dict().items()}
        name, function = dotted(state.func.value) or rule.code(state.func.value), rule.flow.function(state)
        if holds_numbers(rule, name, state) or not _is_of_saving(rule, function):
            continue
        # state = net.state_dict(); for name in state: state[name] = state[name].cpu()
        way = rule.enclosing(state, cst.BaseSmallStatement) if not isinstance(above, cst.Assign) else None
        if _TO_HOST.search(rule.code(way or (function.node if function is not None else rule.source.module))) is None:
            yield name.removesuffix(".module")


def _is_of_saving(rule: Rule, function: Function | None) -> bool:
    """Whether code calls what saves, or gives back what others save."""
    if function is None:
        return True
    return _SAVES.search(rule.code(function.node)) is not None
