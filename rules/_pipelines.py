"""Parts of a pipeline of `diffusers` that it does not know of, and so does not move."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import MODEL_NAME
from devlint.flow.modules import has_tensors
from devlint.flow.names import dotted
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.flow.value import MODULE
from devlint.rule import Rule


def unknown_parts(rule: Rule) -> Iterator[tuple[Class, str, cst.Assign]]:
    """``self.encoder = encoder`` in ``__init__``, which nothing registers: the class, the name, and the statement.

    ``DiffusionPipeline.to`` moves what it finds under the names of the parameters of ``__init__`` that have no default,
    and those in ``_optional_components``.
    """
    if "Pipeline" not in rule.source.text or "diffusers" not in rule.flow.scope.packages:
        return
    for cls in rule.flow.scope.classes.values():
        init = cls.methods.get("__init__")
        if init is None or not _is_pipeline(cls) or any(cls.find_method(name) for name in ("to", "cuda")):
            continue
        known = _told(rule, cls)
        for assign in tree.walk(init.node.body):
            if not isinstance(assign, cst.Assign) or rule.flow.function(assign) is not init:
                continue
            owner, _, name = dotted(assign.targets[0].target).rpartition(".")
            is_unknown = owner == "self" and name not in known and _is_part(rule, init, name, assign.value)
            if is_unknown and _is_used(cls, name):
                yield cls, name, assign


def _is_pipeline(cls: Class) -> bool:
    return any(
        base.startswith("diffusers.") and base.endswith("Pipeline") for owner in cls.lineage for base in owner.bases
    )


def _told(rule: Rule, cls: Class) -> set[str]:
    """The names of the parts that the pipeline is told of, and of what goes to a constructor of a base."""
    found: set[str] = set()
    for owner in cls.lineage:
        for node in tree.walk(owner.node):
            if isinstance(node, cst.Call) and dotted(node.func).rpartition(".")[2] in ("register_modules", "setattr"):
                found |= {arg.keyword.value for arg in node.args if arg.keyword is not None}
                if any(arg.star for arg in node.args) or dotted(node.func) == "setattr":
                    found.update(owner.stores)  # self.register_modules(**parts)
            elif isinstance(node, cst.Call) and rule.code(node.func).startswith("super("):
                found |= {arg.keyword.value for arg in node.args if arg.keyword is not None}
                found |= {dotted(arg.value) for arg in node.args}
            elif isinstance(node, cst.Assign) and dotted(node.targets[0].target) == "_optional_components":
                found |= {
                    str(each.evaluated_value) for each in tree.walk(node.value) if isinstance(each, cst.SimpleString)
                }
    return found


def _is_part(rule: Rule, init: Function, name: str, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Name):
        param = init.param(node.value)
        if param is not None:
            return param.default is not None and MODEL_NAME.match(name) is not None
    value = rule.flow.value(node)
    if value.kind != MODULE or not has_tensors(value):
        return False
    # one of the parameters without a default is looked for under its name, whatever it holds
    param = init.param(name)
    return param is None or param.default is not None


def _is_used(cls: Class, name: str) -> bool:
    """Whether a method calls the part, or asks it: ``self.text_encoder(ids)``, and none moves it by itself."""
    path = f"self.{name}"
    called = False
    for method in cls.methods.values():
        if name in method.moves:
            return False
        for node in tree.walk(method.node.body):
            if method.role != CONSTRUCTOR and isinstance(node, cst.Call):
                owner = node.func.value if isinstance(node.func, cst.Attribute) else node.func
                called = called or path in (dotted(node.func), dotted(owner))
    return called
