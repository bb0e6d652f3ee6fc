from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow.scope import Class, Function
from devlint.flow.value import DICT, LIST, MODULE, TENSOR
from devlint.rule import Rule


class MoveOverrideSkipped(Rule):
    """A module moves a tensor in its own `cuda` or `cpu`, and `to` leaves it behind.

    ## What it does
    Reports `cuda` or `cpu` that a module defines for itself and that moves a tensor, or a container of tensors, which
    is a plain attribute, where the class has neither a `to` nor an `_apply` of its own.

    ## Why is this bad
    `module.to("cuda")` does not call `cuda`, and a module that holds this one moves it with `_apply`, which calls
    neither. What only the override moves stays behind: the next operation finds it on another device and raises, on
    every kind of device that has no method of its own as well.

    ## Example
    ```python
    import torch
    from torch import nn


    class Normalize(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = torch.zeros(3)

        def cuda(self, device=None):
            self.mean = self.mean.cuda(device)
            return super().cuda(device)
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
    No fix is offered. Register tensors as buffers, or define `_apply`, which every move goes through.

    ## Limits
    Silent where the override only checks, warns, records a device or hands on, for what is registered, and where what
    it sets may be a module, which is moved anyway. Silent, too, where the class or a base of the project has a `to`: in
    code that is kept well, those who hold such a module call it by hand, or nobody holds it (of 15 findings that
    included these, strict readers held one for true, and that is left).

    ## References
    - [torch.nn.Module.to](https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to)
    """

    group = "nursery"

    def check(self) -> None:
        for cls in self.flow.scope.classes.values():
            if not cls.is_module or any(cls.find_method(name) is not None for name in ("to", "_apply")):
                continue
            own = [cls.methods[name] for name in ("cuda", "cpu") if name in cls.methods]
            left = {method: [n for n in sorted(method.stores) if self._is_left(cls, method, n)] for method in own}
            own = [method for method in own if left[method]]
            if own:
                self._report(own, left[own[0]])

    def _report(self, own: list[Function], names: list[str]) -> None:
        methods = " and ".join(f"`{method.name}`" for method in own)
        self.report(
            own[0].node,
            f"only {methods} {'moves' if len(own) == 1 else 'move'} {_listed([f'`{name}`' for name in names])}: "
            "`to`, and a module that holds this one, leave that behind",
        )

    def _is_left(self, cls: Class, method: Function, name: str) -> bool:
        """Whether an attribute that the override sets is one that `nn.Module` does not move."""
        if any(name in base.buffers for base in cls.lineage):
            return False
        values = [value for _, value in self.flow.stores(cls, name)]
        # self.encoder = self.encoder.cuda(); self.mean = nn.Parameter(...)
        if any(value.kind == MODULE or value.ref in ("parameter", "buffer") for value in values):
            return False
        # self.times_moved = 3  moves nothing; self.model = self.model.cuda()  may be a module
        known = any(value.kind in (TENSOR, LIST, DICT) for value in values)
        return known and self._is_moved_in(method, name)

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


def _listed(words: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; the first three of many."""
    words = words[:3]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
