from __future__ import annotations

import libcst as cst

from devlint.rule import Rule
from devlint.rules._errors import is_expected

#: What has its effect between `__enter__` and `__exit__` only, and what nobody gets without.
_CONTEXTS = {
    "torch.no_grad": "autograd still records",
    "torch.autograd.no_grad": "autograd still records",
    "torch.autograd.grad_mode.no_grad": "autograd still records",
    "torch.inference_mode": "autograd still records",
    "torch.autograd.inference_mode": "autograd still records",
    "torch.enable_grad": "it changes nothing",
    "torch.autograd.enable_grad": "it changes nothing",
    "torch.autocast": "no type is chosen",
    "torch.amp.autocast": "no type is chosen",
    "torch.cuda.amp.autocast": "no type is chosen",
    "torch.cpu.amp.autocast": "no type is chosen",
    "torch.cuda.device_of": "the current device stays what it was",
    "torch.cuda.stream": "the current stream stays what it was (`torch.cuda.set_stream` sets it for good)",
    "torch.nn.attention.sdpa_kernel": "no kernel is chosen",
    "torch.backends.cuda.sdp_kernel": "no kernel is chosen",
}


class UnenteredContext(Rule):
    """A context manager of torch is made and never entered, and so does nothing.

    ## What it does
    Reports `torch.no_grad()`, `torch.inference_mode()`, `torch.autocast(...)`, `torch.cuda.stream(s)` and the like as
    statements of their own. (`torch.cuda.device(i)` is `invalid-device-argument`.)

    ## Why is this bad
    They work between entering and leaving a `with` block. Called alone, `torch.no_grad()` leaves autograd recording,
    and what it keeps fills the memory of the device; `torch.autocast("cuda")` leaves the model in full precision; and
    after `torch.cuda.stream(s)` everything is still queued where it was before. No error says so.

    ## Example
    ```python
    import torch


    def evaluate(model, loader):
        torch.no_grad()
        return [model(x).argmax(1) for x in loader]
    ```

    ## Use instead
    ```python
    import torch


    def evaluate(model, loader):
        with torch.no_grad():
            return [model(x).argmax(1) for x in loader]
    ```

    ## Fix safety
    No fix is offered: how far the block should reach is not to be seen.

    ## Limits
    Silent on `torch.set_grad_enabled(...)` and `torch.autograd.set_detect_anomaly(...)`, which work when they are
    called, and on `torch.device(...)`, which may be called to see whether it takes a name; and where an error is
    expected (`with pytest.raises(...)`, a short `try`).

    In the nursery: eight findings in one repository that nobody had tuned for were right, and not worth a change, since
    something else turns autograd off there.

    ## References
    - [torch.no_grad](https://pytorch.org/docs/stable/generated/torch.no_grad.html)
    - [torch.autocast](https://pytorch.org/docs/stable/amp.html#torch.autocast)
    - [torch.cuda.stream](https://pytorch.org/docs/stable/generated/torch.cuda.stream.html)
    """

    group = "nursery"

    def check(self) -> None:
        for statement in self.source.nodes_of(cst.Expr):
            call = statement.value
            if not isinstance(call, cst.Call):
                continue
            name = self.flow.name_of(call)
            if name in _CONTEXTS and not is_expected(self, call):
                self.report(call, f"`{self.code(call.func)}` is not entered: {_CONTEXTS[name]}")
