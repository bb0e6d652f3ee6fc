"""Classes that say themselves what it is to set, keep and read an attribute."""

from __future__ import annotations

import libcst as cst

from devlint.flow.names import dotted
from devlint.flow.scope import Class, Function
from devlint.rule import Rule

#: ``__getattr__`` is none of these: it is asked only for what no plain attribute has.
_HOOKS = ("__setattr__", "__getattribute__")
#: What a decorator names that changes how the attributes of a class are set, or what they are afterwards.
_CHANGES = frozenset({"__init__", "__setattr__", "__getattribute__", "setattr", "register_buffer"})


def overrides_attributes(rule: Rule, cls: Class) -> bool:
    """Whether a tensor that ``self.mean = torch.zeros(3)`` keeps may be registered, or be elsewhere when it is read.

    def __setattr__(self, name, value):
        self.register_buffer(name, value) if torch.is_tensor(value) else super().__setattr__(name, value)
    """
    return any(cls.find_method(hook) is not None for hook in _HOOKS) or any(
        _changes_class(rule, decorator) for each in cls.lineage for decorator in each.node.decorators
    )


def _changes_class(rule: Rule, decorator: cst.Decorator) -> bool:
    """``@with_buffers`` of ``def with_buffers(cls): init = cls.__init__; ...; cls.__init__ = changed; return cls``, and
    not ``@dataclass`` or ``@register("norm")`` of a function that only keeps the class."""
    node = decorator.decorator.func if isinstance(decorator.decorator, cst.Call) else decorator.decorator
    function = _function(rule, node)
    return function is not None and not _CHANGES.isdisjoint(function.attribute_words | function.calls)


def _function(rule: Rule, node: cst.BaseExpression) -> Function | None:
    found = rule.flow.scope.function_names.get(dotted(node))
    if found is not None:
        return found
    unit = rule.flow.followed(rule.flow.scope.qualified(node))
    return unit.function if unit is not None else None
