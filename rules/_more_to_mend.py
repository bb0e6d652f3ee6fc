"""Where one line that is mended seldom mends it all.

Of 183 findings of `tensor-without-device` and `unregistered-tensor` that strict readers judged in code that nobody had
tuned for, and as they were told then, 120 of 131 were true where the function has no arrays and at most one of the
three other questions below is answered with yes, and 29 of the other 52 (the questions were put to the text, as near as
that tells). It is seldom that the two are elsewhere than they are said to be: mostly what stands around them fails as
well, or wants them on the host. Of 41 in the next 7,851 packages, 19 of 27 without arrays were true, and 4 of 14 with.
"""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted, last_word
from devlint.flow.scope import CONSTRUCTOR, Function
from devlint.rule import Rule
from devlint.rules._as_arrays import asked_for_arrays

#: The wrapper of what learns, which torch has needed no longer since 0.4, the first to know `device=`.
_OF_OLD_TORCH = re.compile(r"\bVariable\(")
#: Lines of a function that does many things.
_LONG = 60
_MANY = 2
#: What numpy has beside arrays.
_NUMBERS = frozenset({"pi", "e", "inf", "nan", "newaxis"})


def has_more_to_mend(rule: Rule, *nodes: cst.CSTNode) -> bool:
    """Whether one of the functions that what is told stands in reads or makes arrays; or two of these go together: one
    is long, or belongs to what moves something by hand, or is a constructor that makes tensors of arrays, or the file
    wraps its tensors as torch wanted it before it knew ``device=``."""
    functions = {function for node in nodes if (function := rule.flow.function(node)) is not None}
    signs = (
        any(_moves_by_hand(each) for each in functions),
        bool(_OF_OLD_TORCH.search(rule.source.text)),
        any(_is_long(rule, each) for each in functions),
        any(each.role == CONSTRUCTOR and _has_arrays(rule, each) for each in functions),
    )
    return sum(signs) >= _MANY or any(each.role != CONSTRUCTOR and _has_arrays(rule, each) for each in functions)


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
    ``np.pi``, nor ``found.cpu().numpy()``, which is right anywhere."""
    imports = rule.flow.scope.imports
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Attribute) and node.attr.value == "from_numpy":
            return True
        if isinstance(node, cst.Name) and imports.get(node.value, "").partition(".")[0] == "numpy":
            above = rule.parent(node)  # torch.arange(3), where `arange` is numpy's
            if not isinstance(above, cst.Attribute) or (above.value is node and above.attr.value not in _NUMBERS):
                return True
    return any(True for _ in asked_for_arrays(function))
