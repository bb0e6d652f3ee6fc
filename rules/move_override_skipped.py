from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import names_device
from devlint.flow.scope import Class, Function
from devlint.flow.value import DEVICE, DICT, LIST, MODULE, TENSOR
from devlint.rule import Rule


class MoveOverrideSkipped(Rule):
    """A module moves more in its own `to` than `nn.Module` does, and most moves do not call it.

    ## What it does
    Reports `to`, `cuda` or `cpu` that a module defines for itself and that sets a tensor, a container of tensors or a
    recorded device on `self`, where the class has no `_apply` that sets it, too.

    ## Why is this bad
    A module that is moved goes through the modules that it holds with `_apply`, and never calls their `to`. Nor does
    `module.cuda()` call `to`. What only the override moves stays behind in `nn.Sequential(normalize).to(device)`, and
    what it records (`self.device = device`) is out of date.

    ## Example
    ```python
    import torch
    from torch import nn


    class Normalize(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = torch.zeros(3)

        def to(self, device):
            self.mean = self.mean.to(device)
            return super().to(device)
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    class Normalize(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3), persistent=False)
    ```

    ## Fix safety
    No fix is offered. Register tensors as buffers; ask a parameter or the input for the device instead of recording
    it; or define `_apply`, which every move goes through.

    ## Limits
    Silent where the override only checks, warns or hands on, and where what it sets may be a module, which is moved
    anyway. Where a class is never held by another module and never moved by `cuda()`, its `to` does what it should.

    ## References
    - [torch.nn.Module.to](https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to)
    """

    group = "nursery"

    def check(self) -> None:
        for cls in self.flow.scope.classes.values():
            if not cls.is_module:
                continue
            for name in ("to", "cuda", "cpu"):
                method = cls.methods.get(name)
                if method is not None and method.stores:
                    self._override(cls, method)

    def _override(self, cls: Class, method: Function) -> None:
        names = [name for name in sorted(method.stores) if self._is_left_behind(cls, method, name)]
        if not names:
            return
        listed = [f"`{name}`" for name in names[:3]]
        what = listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
        others = [each for each in ("to", "cuda", "cpu") if each not in cls.methods]
        also = f", and `.{others[-1]}()` does not" if method.name == "to" and others else ""
        self.report(
            method.node,
            f"only `{method.name}` sets {what}: a module that holds this one does not call it when it is moved{also}",
        )

    def _is_left_behind(self, cls: Class, method: Function, name: str) -> bool:
        """Whether an attribute that the override sets is one that `nn.Module` does not move."""
        if any(name in base.buffers for base in cls.lineage) or self._is_applied(cls, name):
            return False
        kinds = {value.kind for _, value in self.flow.stores(cls, name)}
        if MODULE in kinds:
            return False  # self.encoder = self.encoder.to(device)
        if names_device(name) or DEVICE in kinds:
            return True
        # self.times_moved = 3  moves nothing; self.model = self.model.to(device)  may be a module
        known = any(value.kind in (TENSOR, LIST, DICT) for _, value in self.flow.stores(cls, name))
        return known and self._is_moved_in(method, name)

    def _is_applied(self, cls: Class, name: str) -> bool:
        """Whether the class's own `_apply`, which every move goes through, sets the attribute too."""
        apply = cls.find_method("_apply")
        if apply is None:
            return False
        called = [cls.find_method(each) for each in apply.self_calls]
        return name in apply.stores or any(method is not None and name in method.stores for method in called)

    def _is_moved_in(self, method: Function, name: str) -> bool:
        """Whether what is stored there is moved, or made on the device."""
        for statement in tree.walk(method.node.body):
            if not isinstance(statement, cst.Assign):
                continue
            if any(f"self.{name}" in self.code(target) for target in statement.targets):
                words = {node.value for node in tree.walk(statement.value) if isinstance(node, cst.Name)}
                if words & {"to", "cuda", "cpu", "device"}:
                    return True
        return False
