"""What any tensor has, and what only looks like one."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import names_bound
from devlint.flow.value import TENSOR
from devlint.rule import Rule

#: Whatever a tensor has: its methods, also those that work in place, and what is no method.
OF_ANY_TENSOR = frozenset(
    {*table.METHODS, *(f"{name}_" for name in table.METHODS), *table.ATTRIBUTES}
    | set("is_floating_point is_complex is_inference is_signed is_conj is_neg cuda cpu backward".split())
    | set("to type type_as new new_empty new_full new_ones new_tensor new_zeros pin_memory".split())
    | set("storage untyped_storage register_hook index set_ [,]".split())  # x[a, b]
)


def may_be_of_other_class(rule: Rule, node: cst.BaseExpression, depth: int = 10) -> bool:
    """``specs = torch.stack([Spec(3), Spec(4)])``: a class of elsewhere may take torch's functions over."""
    if depth == 0:
        return False
    parts: list[cst.BaseExpression] = []
    if isinstance(node, cst.Name):
        function = rule.flow.function(node)
        parts = [
            assign.value
            for assign in rule.source.nodes_of(cst.Assign)
            if rule.flow.function(assign) is function
            and node.value in names_bound(*(target.target for target in assign.targets))
            and not any(each is node for each in tree.walk(assign.value))
        ]
    elif isinstance(node, cst.List | cst.Tuple):
        parts = [element.value for element in node.elements]
    elif isinstance(node, cst.Call):
        name = rule.flow.scope.qualified(node.func)
        if name.startswith("torch."):
            parts = [arg.value for arg in node.args]
        elif isinstance(node.func, cst.Attribute) and rule.flow.value(node.func.value).kind == TENSOR:
            parts = [node.func.value]  # specs.expand(4, 2)
        else:
            return name.rpartition(".")[2][:1].isupper()
    return any(may_be_of_other_class(rule, part, depth - 1) for part in parts)
