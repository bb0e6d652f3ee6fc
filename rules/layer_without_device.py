from __future__ import annotations

from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._old_layers import after_old_layers
from devlint.rules._sibling_layers import beside_told_layers


class LayerWithoutDevice(Rule):
    """A layer is made on the host, where the one that it replaces, or the others beside it, are on a device.

    ## What it does
    Reports a layer, or a parameter or buffer of one, that is made without `device=` with the sizes of a layer that was
    there before (`nn.Linear(old.in_features, rank)`), to stand in its place or to go beside it, where nothing in the
    file moves it. Reports, too, one for which a function forgets the `device=` that it gives to others.

    ## Why is this bad
    The old layer is wherever its model is. The new one is on the host, also after `new.weight.data.copy_(old.weight)`
    or `new.load_state_dict(...)`, which copy values and leave where they are what they write into. Where the model has
    been moved before, the first call raises `Expected all tensors to be on the same device`.

    ## Example
    ```python
    import torch
    from torch import nn


    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear, rank: int):
            super().__init__()
            self.base = base
            self.down = nn.Linear(base.in_features, rank, bias=False)
            self.up = nn.Linear(rank, base.out_features, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear, rank: int):
            super().__init__()
            self.base = base
            device = base.weight.device
            self.down = nn.Linear(base.in_features, rank, bias=False, device=device)
            self.up = nn.Linear(rank, base.out_features, bias=False, device=device)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))
    ```

    ## Fix safety
    No fix is offered.

    ## Limits
    In the nursery: whether the model is moved before or after the layers are replaced is up to whoever calls that, and
    may stand in another file. Of 33 findings of replaced layers in 1,500 files, one reader held twelve for true and
    nine for wrong, which is mended. Silent where the file shows that something is moved afterwards, where the old
    values themselves are put into the new layer (`new.weight = old.weight`), for layers that were built in the same
    function, and for new heads that take one size of the old one only (`net.fc = nn.Linear(net.fc.in_features, 10)`).

    ## References
    - [torch.nn.Linear](https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html)
    - [torch.Tensor.copy_](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.copy_.html)
    """

    group = "nursery"
    assumes_host_default = True
    raises = True

    def check(self) -> None:
        said = set()
        for after in after_old_layers(self):
            said.add(after.made)
            self.report(
                after.made,
                f"{after.what} makes this on the host, with the sizes of `{short(after.old)}`, which is wherever its "
                "model is",
            )
        for beside in beside_told_layers(self):
            if beside.made not in said:
                name = self.flow.name_of(beside.made) or self.code(beside.made.func)
                self.report(
                    beside.made,
                    f"`{name}` makes this on the host, and the others beside it are made on `{short(beside.device)}`",
                    notes=[self.note(beside.told, "this one is told")],
                )
