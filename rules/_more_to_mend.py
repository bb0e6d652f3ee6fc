"""Where one line that is mended seldom mends it all.

Of 183 findings of `tensor-without-device` and `unregistered-tensor` that strict readers judged in code that nobody had
tuned for, and as they were told then, those were true of which at most one of the four questions below holds in 136 of
149 cases, and the others in 13 of 34: it is seldom that the two are elsewhere than they are said to be, mostly what
stands around them fails as well, or wants them on the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted, last_word
from devlint.flow.scope import Function
from devlint.rule import Rule

#: The wrapper of what learns, which torch has needed no longer since 0.4, the first to know `device=`.
_OF_OLD_TORCH = re.compile(r"\bVariable\(")
#: Lines of a function that does many things.
_LONG = 60
_MANY = 2


def has_more_to_mend(rule: Rule, *nodes: cst.CSTNode) -> bool:
    """Whether two or more go together in the functions that what is told stands in: one reads or makes arrays, is long,
    or belongs to what moves something by hand; the file wraps its tensors as torch wanted it before it knew
    ``device=``."""
    functions = {function for node in nodes if (function := rule.flow.function(node)) is not None}
    signs = (
        any(_moves_by_hand(each) for each in functions),
        bool(_OF_OLD_TORCH.search(rule.source.text)),
        any(_is_long(rule, each) for each in functions),
        any(_has_arrays(rule, each) for each in functions),
    )
    return sum(signs) >= _MANY


def _moves_by_hand(function: Function) -> bool:
    """``x = x.to(self.device)`` in the function, or a method of its class: not ``x.double()``, nor ``x.cpu()``."""
    methods = function.cls.methods.values() if function.cls is not None else ()
    return any(
        isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and _puts_on_device(node, node.func)
        for each in {function, *methods}
        if each.moves_something
        for node in tree.walk(each.node.body)
    )


def _puts_on_device(call: cst.Call, func: cst.Attribute) -> bool:
    if func.attr.value == "cuda":
        return True
    given = [arg.value for arg in call.args[:1]] if func.attr.value == "to" else []
    return any(
        "cuda" in each.value if isinstance(each, cst.SimpleString) else names_device(last_word(dotted(each)))
        for each in given
    )


def _is_long(rule: Rule, function: Function) -> bool:
    return rule.code(function.node).strip().count("\n") >= _LONG


def _has_arrays(rule: Rule, function: Function) -> bool:
    """``np.array(rows)``, ``isinstance(rows, np.ndarray)``, ``torch.from_numpy(rows)``, ``found.numpy()``: not
    ``found.cpu().numpy()``, which is right anywhere."""
    imports = rule.flow.scope.imports
    return any(imports.get(each.value, "").partition(".")[0] == "numpy" for each in _names(function)) or any(
        isinstance(node, cst.Attribute)
        and (node.attr.value == "from_numpy" or (node.attr.value == "numpy" and not tree.named(node.value, "cpu")))
        for node in tree.walk(function.node.body)
    )


def _names(function: Function) -> Iterator[cst.Name]:
    return (node for node in tree.walk(function.node.body) if isinstance(node, cst.Name))
