from __future__ import annotations

import libcst as cst

from devlint.finding import Fix, Note
from devlint.flow import Value
from devlint.flow import torch_table as table
from devlint.rule import Rule
from devlint.rules._moves import has_memory_of_its_own, loader_of, short


class PageableNonBlocking(Rule):
    """A copy to a device is asked not to block, but its source is not pinned.

    ## What it does
    Reports `non_blocking=True` on a copy to a device from host memory that is surely pageable: batches of a
    `DataLoader` without `pin_memory`, and tensors just made on the host.

    ## Why is this bad
    The device can fetch bytes by itself from page-locked (pinned) memory only. What lies in ordinary, pageable
    memory is staged first, and the host is held up until that is done. `non_blocking=True` spares the wait for the
    copy's end, but the copy does not overlap with the work of the host and of the device as it was meant to.

    ## Example
    ```python
    from torch.utils.data import DataLoader


    def train(model, dataset, device):
        for images, labels in DataLoader(dataset, batch_size=64):
            images = images.to(device, non_blocking=True)
            model(images)
    ```

    ## Use instead
    ```python
    from torch.utils.data import DataLoader


    def train(model, dataset, device):
        for images, labels in DataLoader(dataset, batch_size=64, pin_memory=True):
            images = images.to(device, non_blocking=True)
            model(images)
    ```

    ## Fix safety
    The fix adds `pin_memory=True` to the loader (or changes `False`), which is safe: the batches hold the same values.
    Nothing is offered for tensors that no loader made: pinning them on the spot costs more than the copy gains.

    ## Limits
    Silent where the pin depends on a variable or a branch, where a collate function makes something other than
    tensors, for constants written out and other tensors of up to 64 KiB, which the driver takes at once, and on
    Apple's chips, where both sides share one memory.

    ## References
    - [A guide on good usage of non_blocking and pin_memory()](https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html)
    - [torch.utils.data: memory pinning](https://pytorch.org/docs/stable/data.html#memory-pinning)
    """

    group = "performance"
    fixable = "sometimes"

    def check(self) -> None:
        for move in self.flow.facts.moves.values():
            if move.non_blocking and has_memory_of_its_own(move.target):
                self._judge(move.node, move.receiver, move.value)
        for copy in self.flow.facts.copies.values():
            if copy.non_blocking and has_memory_of_its_own(copy.into.place):
                self._judge(copy.node, copy.source, copy.value)

    def _judge(self, copy: cst.Call, source: cst.BaseExpression, value: Value) -> None:
        if not (value.holds_tensors and value.place.is_host and value.pinned is False) or self._is_small(value):
            return
        name = short(self.code(source))
        loader = loader_of(self.flow, source)
        self.report(
            copy,
            f"`{name}` is in pageable memory: the host is held up while it is copied, in spite of `non_blocking=True`",
            notes=self._notes(name, loader, value),
            fix=self._fix(loader),
        )

    def _is_small(self, value: Value) -> bool:
        """``torch.tensor([0.485, 0.456])``, ``torch.zeros(3)``: what the driver takes at once, pinned or not."""
        if value.zero:
            return True
        made = value.origin
        if not isinstance(made, cst.Call) or not made.args:
            return False
        factory = self.flow.factory(made)
        data = made.args[0].value
        if self.flow.name_of(made) in table.KEEPING or (factory is not None and factory.values == "python"):
            # torch.tensor(flag) may be a single number; torch.tensor([0.485, 0.456]) is written out
            return value.zero is not False or isinstance(data, cst.List | cst.Tuple)
        if factory is None:
            return False
        sizes = [a.value for a in made.args if a.keyword is None]
        if len(sizes) == 1 and isinstance(data, cst.List | cst.Tuple):
            sizes = [element.value for element in data.elements]
        count = 1
        for size in sizes:
            if not isinstance(size, cst.Integer):
                return False
            count *= int(size.value.replace("_", ""), 0)
        return count * 4 <= _TAKEN_AT_ONCE

    def _notes(self, name: str, loader: Value | None, value: Value) -> list[Note]:
        if loader is not None and isinstance(loader.origin, cst.Call):
            return [self.note(loader.origin, "this loader does not pin its batches")]
        if isinstance(value.origin, cst.Call) and self.flow.name_of(value.origin) not in table.LOADERS:
            return [self.note(value.origin, f"`{name}` comes from host memory that is allocated here")]
        return []

    def _fix(self, loader: Value | None) -> Fix | None:
        if loader is None or not isinstance(loader.origin, cst.Call):
            return None
        title = "let the loader pin its batches: `pin_memory=True`"
        for position, arg in enumerate(loader.origin.args):
            named = arg.keyword.value if arg.keyword is not None else None
            if named == "pin_memory" or (named is None and position == _PIN_MEMORY):
                return self.fix(title, self.replace(arg.value, "True"), safe=True)
        edit = self.add_argument(loader.origin, "pin_memory=True")
        return self.fix(title, edit, safe=True) if edit is not None else None


#: Bytes up to which a copy from pageable memory does not hold the host up.
_TAKEN_AT_ONCE = 64 * 1024
#: The position of ``pin_memory`` among the arguments of ``DataLoader``.
_PIN_MEMORY = 7
