"""Buffers that the constructor of a module puts under a second name, which keeps them as they are then."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE, Class
from devlint.rule import Rule


def kept_buffers(rule: Rule) -> Iterator[tuple[Class, str, cst.Assign, cst.BaseExpression, cst.CSTNode]]:
    """``self.tables[name] = self.sine``: the class, the attribute, the statement, the buffer, and where a method that
    runs on the module's device reads the attribute."""
    if "register_buffer" not in rule.source.text:
        return
    for cls in rule.flow.scope.classes.values():
        init = cls.methods.get("__init__")
        if init is None or any(cls.find_method(name) for name in ("_apply", "to", "__getattr__")):
            continue
        buffers = registered_buffers(rule, cls)
        for assign in tree.walk(init.node.body) if buffers else ():
            if not isinstance(assign, cst.Assign) or rule.flow.function(assign) is not init:
                continue
            target = assign.targets[0].target
            name = _attribute(target.value if isinstance(target, cst.Subscript) else target)
            kept = next((each for each in _parts(assign.value) if _names_one(rule, each, buffers)), None)
            if name is None or kept is None or name in buffers or name in rule.flow.scope.outside_stores:
                continue
            if any(name in m.stores for c in (cls, *cls.descendants) for m in c.methods.values() if m is not init):
                continue  # def _refresh(self): self.tables = {"sine": self.sine}
            use = _read(rule, cls, name)
            if use is not None:
                yield cls, name, assign, kept, use


def registered_buffers(rule: Rule, cls: Class) -> set[str]:
    """The names of the buffers of a class, and the code of those that are made up: ``f"table_{i}"``."""
    found = set()
    for call in rule.source.nodes_of(cst.Call):
        func = call.func
        if (
            type(func) is cst.Attribute
            and func.attr.value == "register_buffer"
            and call.args
            and dotted(func.value) == "self"
        ):
            function = rule.flow.function(call)
            if function is not None and function.cls in cls.lineage:
                name = call.args[0].value
                found.add(str(name.evaluated_value) if isinstance(name, cst.SimpleString) else rule.code(name))
    return found


def _attribute(node: cst.BaseExpression) -> str | None:
    owner, _, name = dotted(node).rpartition(".")
    return name if owner == "self" else None


def _parts(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What a store keeps: the value, or what is in it."""
    if isinstance(node, cst.List | cst.Tuple | cst.Dict):
        return [each.value for each in node.elements]
    if isinstance(node, cst.ListComp):
        return [node.elt]
    return [node.value] if isinstance(node, cst.DictComp) else [node]


def _names_one(rule: Rule, node: cst.BaseExpression, buffers: set[str]) -> bool:
    """``self.sine``, ``getattr(self, f"table_{i}")``"""
    if isinstance(node, cst.Call):
        if dotted(node.func) != "getattr" or len(node.args) != 2 or dotted(node.args[0].value) != "self":
            return False
        name = node.args[1].value
        return (str(name.evaluated_value) if isinstance(name, cst.SimpleString) else rule.code(name)) in buffers
    return _attribute(node) in buffers


def _read(rule: Rule, cls: Class, name: str) -> cst.CSTNode | None:
    for each in (cls, *cls.descendants):
        for node in tree.walk(each.node):
            if isinstance(node, cst.Attribute) and dotted(node) == f"self.{name}":
                function = rule.flow.function(node)
                if function is not None and function.role not in (CONSTRUCTOR, HOST_SIDE):
                    return node
    return None
