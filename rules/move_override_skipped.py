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
            own = [cls.methods[name] for name in _MOVES if name in cls.methods and cls.methods[name].stores]
            left = {
                method: [n for n in sorted(method.stores) if self._is_left_behind(cls, method, n)] for method in own
            }
            own = [method for method in own if left[method]]
            if own:
                self._report(own, left[own[0]])

    def _report(self, own: list[Function], names: list[str]) -> None:
        sets = "sets" if len(own) == 1 else "set"
        methods = _listed([f"`{method.name}`" for method in own])
        self.report(
            own[0].node,
            f"only {methods} {sets} {_listed([f'`{name}`' for name in names])}: "
            f"a module that holds this one does not call {'it' if len(own) == 1 else 'them'} when it is moved",
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


def _listed(words: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; the first three of many."""
    words = words[:3]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


_MOVES = ("to", "cuda", "cpu")
