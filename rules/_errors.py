"""Whether an error is expected where a fault would raise one."""

from __future__ import annotations

import libcst as cst

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
