"""Code that is kept like that of another project, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.rule import Rule

_COPIED = re.compile(r"#\s*(copied|copy|taken) (\w+ )?from\b", re.IGNORECASE)


def is_copied(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether what is changed there comes back, or is lost on the way: one keeps such code as its model has it."""
    return any(_is_marked(each) or _takes_a_place(rule, each) for each in _definitions(rule, node))


def _definitions(rule: Rule, node: cst.CSTNode) -> Iterator[cst.FunctionDef | cst.ClassDef]:
    """The functions and classes that a node stands in."""
    above: cst.CSTNode | None = node
    while above is not None:
        if isinstance(above, cst.FunctionDef | cst.ClassDef):
            yield above
        above = rule.parent(above)


def _is_marked(definition: cst.FunctionDef | cst.ClassDef) -> bool:
    """`# Copied from transformers.models.bart.modeling_bart.shift` above it: a check of the project undoes changes."""
    lines = [*definition.leading_lines, *definition.lines_after_decorators]
    lines += [line for decorator in definition.decorators for line in decorator.leading_lines]
    return any(line.comment is not None and _COPIED.match(line.comment.value) for line in lines)


def _takes_a_place(rule: Rule, definition: cst.FunctionDef | cst.ClassDef) -> bool:
    """`transformers.models.llama.modeling_llama.Rotary = Rotary2`: it stands in for the code of another package."""
    name, imports = definition.name.value, rule.flow.scope.imports
    return any(
        dotted(assign.value) == name
        and any(
            isinstance(each.target, cst.Attribute) and dotted(each.target).partition(".")[0] in imports
            for each in assign.targets
        )
        for assign in rule.source.nodes_of(cst.Assign)
    )


def refills(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether a node stands in a branch that fills anew what the module keeps, once that is too small."""
    # if length > self.longest: self.longest = length; self.register_buffer("table", torch.cat((t, t)).to(x.device))
    child, above = node, rule.parent(node)
    while above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.If) and child is above.body:
            asked = {dotted(n) for n in tree.walk(above.test) if isinstance(n, cst.Attribute)}
            bound = {dotted(n.target) for n in tree.walk(above.body) if isinstance(n, cst.AssignTarget)}
            if any(path.startswith("self.") for path in asked & bound):
                return True
        child, above = above, rule.parent(above)
    return False
