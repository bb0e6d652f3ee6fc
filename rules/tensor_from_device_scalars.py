from __future__ import annotations

import libcst as cst

from devlint.finding import Fix
from devlint.flow.facts import Wait
from devlint.flow.loops import working_loop
from devlint.rule import Rule
from devlint.rules._places import origin_note


class TensorFromDeviceScalars(Rule):
    """Single values on a device are put into a tensor one by one, and each is waited for.

    ## What it does
    Reports `torch.tensor([a, b])` and `torch.tensor(losses)` of tensors that live on a device, and
    `torch.tensor([loss.item() for loss in losses])`.

    ## Why is this bad
    `torch.tensor` reads Python values: it asks each element for its number, which copies it to the host, and the host
    waits for the device each time. The result has no history for `backward()`, and lives on the host unless it is
    copied back. `torch.stack` joins the tensors where they are, without a wait.

    ## Example
    ```python
    import torch
    import torch.nn.functional as F


    def evaluate(model, batches, device):
        losses = []
        for x, y in batches:
            losses.append(F.mse_loss(model(x.to(device)), y.to(device)))
        return torch.tensor(losses).mean()
    ```

    ## Use instead
    ```python
    import torch
    import torch.nn.functional as F


    def evaluate(model, batches, device):
        losses = []
        for x, y in batches:
            losses.append(F.mse_loss(model(x.to(device)), y.to(device)))
        return torch.stack(losses).mean()
    ```

    ## Fix safety
    The fix uses `torch.stack`, with `.detach()` where history may be recorded. It is unsafe: the result then lives on
    the device, and the list must not be empty. None is offered where a type or a device is asked for, too.

    ## Limits
    Silent for lists that hold numbers as well, and where it is not known that the elements are on a device, or that
    they are single values with no dimension: a vector of one gives another shape, and a number waits for nothing. Of 20
    findings in code that is kept well, strict readers held those five for true that are left, and two for worth a
    change. Of four in 234 more, they held all for arguable: evaluations, which read their figures once.

    ## References
    - [torch.tensor](https://pytorch.org/docs/stable/generated/torch.tensor.html)
    - [torch.stack](https://pytorch.org/docs/stable/generated/torch.stack.html)
    """

    group = "nursery"
    fixable = "sometimes"

    def check(self) -> None:
        waits = self.flow.facts.waits
        for wait in waits.values():
            # torch.tensor([x]) of a vector of one gives another shape than torch.stack; weights may be plain numbers
            if wait.value.zero is not True:
                continue
            if wait.what == "tensor from device scalars" and isinstance(wait.node, cst.Call):
                self._report(wait.node, wait, wait.operand)
        for call in self.flow.calls("torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.FloatTensor"):
            data = call.args[0].value if call.args else None
            if not isinstance(data, cst.ListComp) or working_loop(self.flow, call) is not None:
                continue  # inside a loop, host-sync-in-loop speaks of each `.item()`
            item = data.elt
            read = waits.get(item)
            if read is not None and read.what in ("item", "float") and data.for_in.inner_for_in is None:
                self._report(call, read, data)

    def _report(self, call: cst.Call, wait: Wait, data: cst.BaseExpression) -> None:
        code = " ".join(self.code(data).split())
        self.report(
            call,
            f"`{code if len(code) <= 60 else code[:57] + '...'}` holds values of a device, and each is waited for",
            notes=origin_note(self, "each", wait.value),
            fix=self._fix(call, wait),
        )

    def _fix(self, call: cst.Call, wait: Wait) -> Fix | None:
        if self.flow.name_of(call) != "torch.tensor" or not isinstance(call.func, cst.Attribute) or len(call.args) != 1:
            return None
        edits = [self.replace(call.func.attr, "stack")]
        if isinstance(wait.node, cst.Call) and wait.node is not call:  # [loss.item() for loss in losses]
            edits.append(self.replace(wait.node, self.code(wait.operand)))
        if wait.value.tracked is not False:
            edits.append(self.insert_after(call, ".detach()"))
        return self.fix("join them where they are, with `torch.stack`", *edits, safe=False)
