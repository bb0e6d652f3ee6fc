from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint.flow.names import dotted, targets_in
from devlint.rule import Rule
from devlint.rules._only_distributed import Bound, uses, wrapped_for_several


class DataParallel(Rule):
    """A model is spread over devices by `DataParallel`, in one process.

    ## What it does
    Reports `torch.nn.DataParallel(...)` and `torch.nn.parallel.data_parallel(...)`. As tentative, `net.module` that
    nothing asks about, of what is wrapped only in runs of several processes or devices (`if args.distributed: net =
    DDP(net)`), or may be given back as it is (`net = accelerator.prepare(net)`).

    ## Why is this bad
    `DataParallel` copies the model to every device in each forward pass, runs the copies in threads that share one
    interpreter, and gathers all outputs on the first device, which needs more memory than the others. PyTorch asks for
    `DistributedDataParallel`, also on a single machine: one process a device, and only gradients are exchanged.

    ## Example
    ```python
    from torch import nn


    def spread(model):
        return nn.DataParallel(model)
    ```

    ## Use instead
    ```python
    from torch.nn.parallel import DistributedDataParallel


    def spread(model, local_rank):
        return DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
    ```

    ## Limits
    A single device is not told from several.

    Not proved by running: an imaginary device has no time that could be lost.

    ## References
    - [torch.nn.DataParallel](https://pytorch.org/docs/stable/generated/torch.nn.DataParallel.html)
    """

    group = "nursery"
    fixable = "never"

    def check(self) -> None:
        for call in self.flow.calls(
            "torch.nn.DataParallel",
            "torch.nn.parallel.DataParallel",
            "torch.nn.parallel.data_parallel.DataParallel",
            "torch.nn.parallel.data_parallel",
            "torch.nn.parallel.data_parallel.data_parallel",
        ):
            self.report(
                call,
                f"`{self.code(call.func)}` copies the model to every device in each forward pass: "
                "`DistributedDataParallel` is made for several devices",
            )
        if ".module" in self.source.text and not self.in_tests:
            self._unwrapped()

    def _unwrapped(self) -> None:
        """``if args.distributed: net = DDP(net)``, and then ``net.module.state_dict()`` in any case."""
        for bound in wrapped_for_several(self):
            for use in uses(self, bound, "module"):
                note = self.note(bound.test, "only where that holds is it wrapped")
                said = f"`{bound.name}` has a `module` only where it is wrapped for several, and is asked for it anyway"
                self.report(use, said, notes=[note], tentative=True)
        for prepared in self._prepared():
            for use in uses(self, prepared, "module"):
                note = self.note(prepared.value, "a single process gets it back as it is")
                said = f"`{prepared.name}` has a `module` in several processes alone: `unwrap_model` gives it in all"
                self.report(use, said, notes=[note], tentative=True)

    def _prepared(self) -> Iterator[Bound]:
        """``net = accelerator.prepare(net)``, ``net, optimizer = accelerator.prepare(net, optimizer)``"""
        for assign in self.source.nodes_of(cst.Assign) if "accelerat" in self.source.text else ():
            value, target = assign.value, assign.targets[0].target
            if not isinstance(value, cst.Call) or not re.search(r"accelerator\.prepare$", dotted(value.func)):
                continue
            for each in targets_in(target):
                if dotted(each):
                    yield Bound(dotted(each), value, value)
