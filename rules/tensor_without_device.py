from __future__ import annotations

import libcst as cst

from devlint.finding import Fix
from devlint.flow.facts import Meeting
from devlint.rule import Rule
from devlint.rules._meetings import meetings
from devlint.rules._moves import short
from devlint.rules._places import device_expression, origin_note, where


class TensorWithoutDevice(Rule):
    """A tensor made on the host, for want of `device=`, meets tensors that are on a device.

    ## What it does
    Reports a factory call (`torch.zeros`, `torch.arange`, `torch.tensor`, ...) without `device=` whose
    result comes together with a tensor on an accelerator: as operands, in `torch.cat` or `torch.where`,
    as the argument of a layer that lives there, or as a tensor indexed by one that does.

    ## Why is this bad
    Factories make their tensor on the default device, which is the host. As soon as the model is moved,
    the operation raises `Expected all tensors to be on the same device`; where a tensor is indexed, `indices should be
    either on cpu or on the same device as the indexed tensor`.

    ## Example
    ```python
    import torch
    from torch import nn


    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.proj = nn.Linear(dim, dim)

        def forward(self, x):
            positions = torch.arange(x.size(1))
            return self.proj(x) + positions[:, None]
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.proj = nn.Linear(dim, dim)

        def forward(self, x):
            positions = torch.arange(x.size(1), device=x.device)
            return self.proj(x) + positions[:, None]
    ```

    ## Fix safety
    The fix adds `device=` with the device of the tensor that is met. It is safe: the values stay the same.
    For random factories (`torch.randn`, `torch.rand`, ...) it is unsafe: numbers drawn on a device are not
    the numbers that the same seed draws on the host. Where no expression that names the device is sure to
    be bound at the factory, no fix is offered.

    ## Limits
    Zero-dimensional host tensors may mix with device tensors in elementwise operations and are not reported
    there. Silent in code that runs under a default device (`torch.set_default_device`, `with torch.device(...)`),
    and wherever one of the two places is not known. A tensor that a function was handed counts as being on a device
    where the file has to do with devices, is not about data or tests, and no call in it hands over what is on the host.

    ## References
    - [Tensor attributes: torch.device](https://pytorch.org/docs/stable/tensor_attributes.html#torch.device)
    - [Creation ops](https://pytorch.org/docs/stable/torch.html#creation-ops)
    """

    group = "correctness"
    fixable = "sometimes"

    def check(self) -> None:
        reported: set[cst.CSTNode] = set()
        for meeting in meetings(self):
            origin = meeting.host.origin
            if not isinstance(origin, cst.Call) or origin in reported or self.flow.factory(origin) is None:
                continue
            if any(arg.keyword is not None and arg.keyword.value == "device" for arg in origin.args):
                continue  # torch.zeros(1, device=self.home): on the host, and not for want of it
            if meeting.host.attr is not None:
                continue  # self.table = torch.arange(n): unregistered-tensor speaks of it
            reported.add(origin)
            self._report(origin, meeting)

    def _report(self, factory: cst.Call, meeting: Meeting) -> None:
        name = self.flow.name_of(factory)
        there = self.code(meeting.there_node)
        apart = meeting.node is not factory
        met = [self.note(meeting.node, f"they meet here, in {meeting.what}")] if apart else []
        self.report(
            factory,
            f"`{name}` makes this tensor on the host, and it meets `{short(there)}` on {where(meeting.there.place)}",
            notes=[*met, *origin_note(self, f"`{short(there)}`", meeting.there)],
            fix=self._fix(factory, meeting),
        )

    def _fix(self, factory: cst.Call, meeting: Meeting) -> Fix | None:
        device = device_expression(self.flow, factory, meeting.there_node, meeting.there)
        edit = self.add_argument(factory, f"device={device}") if device is not None else None
        if edit is None:
            return None
        entry = self.flow.factory(factory)
        random = entry is not None and entry.values == "random"
        title = f"make it there: `device={device}`" + (" (draws other random numbers)" if random else "")
        return self.fix(title, edit, safe=not random)
