"""Whether an error is expected where a fault would raise one."""

from __future__ import annotations

import libcst as cst

from devlint.flow.names import called_name
from devlint.rule import Rule


def is_expected(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether the code around ``node`` is made for the error: ``try:``, ``with pytest.raises(...):``."""
    child, parent = node, rule.parent(node)
    while parent is not None and not isinstance(parent, cst.FunctionDef | cst.ClassDef):
        if isinstance(parent, cst.Try | cst.TryStar) and child is parent.body:
            # around a whole program it says nothing of this line
            return bool(parent.handlers) and len(parent.body.body) <= _FEW
        if isinstance(parent, cst.With) and any("raises" in rule.code(item.item).lower() for item in parent.items):
            return True
        child, parent = parent, rule.parent(parent)
    return False


#: Statements that a ``try`` written for one of them holds at most.
_FEW = 3


_KINDS = ("TypeError", "RuntimeError")


def is_caught(rule: Rule, node: cst.CSTNode) -> bool:
    """``try: a = x.numpy()``, ``except TypeError: a = x.cpu().numpy()``; ``with suppress(RuntimeError): y = x + w``."""
    child, parent = node, rule.parent(node)
    while parent is not None and not isinstance(parent, cst.FunctionDef | cst.ClassDef):
        if isinstance(parent, cst.Try) and child is parent.body:
            for handler in parent.handlers:
                caught = rule.code(handler.type) if handler.type is not None else "Exception"
                if any(kind in caught for kind in _KINDS):
                    return True
                if "Exception" in caught and len(parent.body.body) == 1:
                    return True  # around a whole program it says nothing of this line
        if isinstance(parent, cst.With) and any(_suppresses(rule, item) for item in parent.items):
            return True
        child, parent = parent, rule.parent(parent)
    return False


def _suppresses(rule: Rule, item: cst.WithItem) -> bool:
    call = item.item
    if not isinstance(call, cst.Call) or called_name(call) not in ("suppress", "raises", "assertRaises"):
        return False
    given = " ".join(rule.code(arg.value) for arg in call.args)
    return any(kind in given for kind in (*_KINDS, "Exception"))
