"""Objects that put their model in evaluation mode for good, and ask it with autograd on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.rule import Rule
from devlint.rules._saved_places import root
from devlint.rules._training import names_any

#: What has to do with gradients, or with the other mode.
_TRAINS = re.compile(r"grad|backward|inference_mode|optim|attack|adversar|^train$|loss", re.IGNORECASE)


class Answer(NamedTuple):
    """A call of a model that answers, in which method, and where the model was put in evaluation mode."""

    call: cst.Call
    method: Function
    eval_: cst.Call


def answers(rule: Rule) -> Iterator[Answer]:
    """The first such call of each class: ``self.net = load(path).eval()``, and ``return self.net(x)`` elsewhere."""
    for cls in rule.flow.scope.classes.values():
        init = cls.methods.get("__init__")
        # class Perceptual(nn.Module): self.vgg = vgg.eval()   lets gradients through
        if cls.is_module or init is None or rule.in_tests or names_any(cls.node, _TRAINS):
            continue
        for path, eval_ in _evaluated(rule, cls, init):
            found = next(
                (
                    Answer(call, method, eval_)
                    for method in cls.methods.values()
                    if method.role != CONSTRUCTOR
                    for call in tree.walk(method.node.body)
                    if isinstance(call, cst.Call) and dotted(call.func) == path
                ),
                None,
            )
            if found is not None:
                yield found
                break


def _evaluated(rule: Rule, cls: Class, init: Function) -> Iterator[tuple[str, cst.Call]]:
    """The attributes that hold a model in evaluation mode once the object is built."""
    kept: dict[str, str] = {}  # net = load(path); net.eval(); self.net = net
    for node in tree.walk(init.node.body):
        if isinstance(node, cst.Assign) and isinstance(node.value, cst.Name):
            for target in node.targets:
                if dotted(target.target).startswith("self."):
                    kept[node.value.value] = dotted(target.target)
    for call in tree.walk(init.node.body):
        if not (isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and called_name(call) == "eval"):
            continue
        holder = root(rule, call)
        path = kept.get(holder, holder)
        if path.startswith("self.") and path.count(".") == 1 and cls.find_method(path.removeprefix("self.")) is None:
            yield path, call
