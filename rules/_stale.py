"""What is asked of a module's own device while the module is built, before anybody has moved it."""

from __future__ import annotations

import re

import libcst as cst

from devlint.flow.scope import Class, Function
from devlint.flow.value import Value
from devlint.rule import Rule

#: Packages whose modules have a ``device`` that says where they are now.
_WITH_DEVICE = ("transformers.", "diffusers.", "lightning.", "pytorch_lightning.", "lightning_fabric.")
#: ``next(self.parameters()).device``, ``self.embed.weight.device``
_OF_PARTS = re.compile(r"^(next\(self\.parameters\(\)\)|self(\.\w+)+\.(weight|bias))\.device$")


def stale_in_constructor(rule: Rule, cls: Class, function: Function, value: Value) -> bool:
    """``self.mask = torch.ones(n, device=self.device)`` in ``__init__``: where it is then, which is the host."""
    if function.name != "__init__":
        return False
    node = value.origin
    told = (
        next((a for a in node.args if a.keyword is not None and a.keyword.value == "device"), None)
        if isinstance(node, cst.Call)
        else None
    )
    if told is None:
        return False
    words = "".join(rule.code(told.value).split())
    return bool(_OF_PARTS.match(words)) or (words == "self.device" and _follows_parts(cls))


def _follows_parts(cls: Class) -> bool:
    """Whether ``self.device`` is a property that says where the module is now."""
    if any("device" in each.stores or "device" in each.attrs for each in cls.lineage):
        return False  # self.device = device
    own = cls.find_method("device")
    if own is not None:
        return own.is_property and "parameters" in own.self_calls
    return any(base.startswith(_WITH_DEVICE) for each in cls.lineage for base in each.bases)
