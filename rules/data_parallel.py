from __future__ import annotations

from devlint.rule import Rule


class DataParallel(Rule):
    """A model is spread over devices by `DataParallel`, in one process.

    ## What it does
    Reports `torch.nn.DataParallel(...)` and `torch.nn.parallel.data_parallel(...)`.

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
