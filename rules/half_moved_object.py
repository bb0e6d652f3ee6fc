from __future__ import annotations

from devlint.rule import Rule
from devlint.rules._half_moved import left_behind


class HalfMovedObject(Rule):
    """An object moves its tensors by hand, and leaves one of them behind.

    ## What it does
    Reports a tensor that the constructor of a class keeps, where a method of the class moves others, two at least, and
    leaves this one where it was: `to`, `cuda`, `pin_memory`, `_make_cuda` and the like, in a class that is no module.

    ## Why is this bad
    Whoever moves the object counts on all of it being there. The tensor that is left meets the others on another
    device, and the operation raises `Expected all tensors to be on the same device`. In `pin_memory` it is the one part
    that is copied from pageable memory, which waits.

    ## Example
    ```python
    import torch


    class Batch:
        def __init__(self, rows: torch.Tensor, weights: torch.Tensor, pad: int):
            self.rows = rows
            self.weights = weights
            self.mask = (rows != pad).unsqueeze(1)

        def to(self, device):
            self.rows = self.rows.to(device)
            self.weights = self.weights.to(device)
            return self
    ```

    ## Use instead
    ```python
    import torch


    class Batch:
        def __init__(self, rows: torch.Tensor, weights: torch.Tensor, pad: int):
            self.rows = rows
            self.weights = weights
            self.mask = (rows != pad).unsqueeze(1)

        def to(self, device):
            self.rows = self.rows.to(device)
            self.weights = self.weights.to(device)
            self.mask = self.mask.to(device)
            return self
    ```

    ## Fix safety
    No fix is offered.

    ## Limits
    In the nursery: some parts are for the host alone, and nothing in the class says so. Of ten findings in a thousand
    files that move things by hand, one reader held three for true and three for wrong, which is mended. Silent for
    single numbers, which mix with tensors anywhere, for lengths where no other lengths are moved, for what the file
    moves or reads on the host elsewhere (`batch.rows.numpy()`), and where the method goes through attributes by their
    names.

    ## References
    - [torch.Tensor.to](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html)
    """

    group = "nursery"
    raises = True

    def check(self) -> None:
        for left in left_behind(self):
            others = " and ".join(f"`{name}`" for name in left.moved[:2])
            more = "" if len(left.moved) < 3 else ", and more"
            self.report(
                left.node,
                f"`{left.mover.name}` moves {others}{more}, and leaves `{left.name}` where it was",
                notes=[self.note(left.mover.node, "the others are moved here")],
            )
