"""What rules about the parts of a module share."""

from __future__ import annotations

import libcst as cst

from devlint.flow.scope import Class
from devlint.flow.value import MODULE, OF_LAYER
from devlint.rule import Rule

#: What a tensor is that a module holds, or one of its layers.
REGISTERED = ("parameter", "buffer", OF_LAYER)


def has_parts(cls: Class) -> bool:
    """Whether a module has parameters, buffers or modules, of its own or from a base in its file."""
    return any(value.kind == MODULE or value.ref in REGISTERED for each in cls.lineage for value in each.attrs.values())


def after_super(rule: Rule, statement: cst.CSTNode) -> bool:
    """Whether a statement of a module's class can register something: `nn.Module.__init__` has run."""
    function = rule.flow.function(statement)
    if function is None or function.name != "__init__":
        return True
    at, _ = rule.source.offsets(statement)
    for call in rule.source.nodes_of(cst.Call):
        if rule.enclosing(call, cst.FunctionDef) is function.node and rule.code(call.func).endswith("__init__"):
            return rule.source.offsets(call)[0] < at
    return False
