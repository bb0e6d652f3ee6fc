from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow import Value
from devlint.flow.loops import runs_sometimes, working_loop
from devlint.rule import Rule
from devlint.rules._loaders import has_workers, maker, pinning
from devlint.rules._moves import has_memory_of_its_own, loader_of, short
from devlint.rules._neighbours import Told, report_together
from devlint.rules._recurs import in_training_loop, reads_each_time


class PageableNonBlocking(Rule):
    """A copy to a device is asked not to block, but its source is not pinned.

    ## What it does
    Reports `non_blocking=True` on the copies of batches of a `DataLoader` that has worker processes and no
    `pin_memory`, in a loop that trains a model: once for each loader.

    ## Why is this bad
    The device can fetch bytes by itself from page-locked (pinned) memory only. What lies in ordinary, pageable
    memory is staged first, and the host is held up until that is done. `non_blocking=True` spares the wait for the
    copy's end, but the copy does not overlap with the work of the host and of the device as it was meant to.

    ## Example
    ```python
    from torch.utils.data import DataLoader


    def train(model, dataset, optimizer, device):
        for images, labels in DataLoader(dataset, batch_size=64, num_workers=8):
            optimizer.zero_grad()
            model(images.to(device, non_blocking=True)).sum().backward()
            optimizer.step()
    ```

    ## Use instead
    ```python
    from torch.utils.data import DataLoader


    def train(model, dataset, optimizer, device):
        for images, labels in DataLoader(dataset, batch_size=64, num_workers=8, pin_memory=True):
            optimizer.zero_grad()
            model(images.to(device, non_blocking=True)).sum().backward()
            optimizer.step()
    ```

    ## Fix safety
    The fix adds `pin_memory=True` to the loader (or changes `False`), which is safe: the batches hold the same values.

    ## Limits
    Silent for loaders without worker processes (`num_workers` is zero by default), or where nothing says how many:
    they would pin in the thread of the loop itself, which costs about what the faster copy gains. Silent where the pin
    depends on a variable or a branch, where a collate function makes something other than tensors, and on Apple's
    chips, where both sides share one memory. Silent, too, for tensors that no loader made: pinning them on the spot
    costs more than the copy gains, and without `non_blocking=True` the host would wait for other work as well.

    Tentative, and kept back unless that is selected: where each step waits in any case, since it reads a value of the
    device or copies another part of the batch without `non_blocking=True`.

    ## References
    - [A guide on good usage of non_blocking and pin_memory()](https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html)
    - [torch.utils.data: memory pinning](https://pytorch.org/docs/stable/data.html#memory-pinning)
    """

    group = "performance"
    fixable = "always"

    def check(self) -> None:
        found = []
        for move in self.flow.facts.moves.values():
            if move.non_blocking and has_memory_of_its_own(move.target):
                found += self._judge(move.node, move.receiver, move.value)
        for copy in self.flow.facts.copies.values():
            if copy.non_blocking and has_memory_of_its_own(copy.into.place):
                found += self._judge(copy.node, copy.source, copy.value)
        report_together(self, found)

    def _judge(self, copy: cst.Call, source: cst.BaseExpression, value: Value) -> list[Told]:
        if not (value.holds_tensors and value.place.is_host and value.pinned is False):
            return []
        made = maker(self, loader_of(self.flow, source))
        if made is None or not has_workers(self.source, made) or not in_training_loop(self.flow, copy):
            return []
        name = short(self.code(source))
        told = Told(
            copy,
            f"`{name}` is in pageable memory: the host is held up while it is copied, in spite of `non_blocking=True`",
            also=f"so it is while `{name}` is copied here",
            notes=[self.note(made, "this loader does not pin its batches")],
            fix=pinning(self, made),
            key=made,
            tentative=self._waits_anyway(copy),
        )
        return [told]

    def _waits_anyway(self, copy: cst.Call) -> bool:
        """Whether each step around a copy waits for the device besides."""
        loop = working_loop(self.flow, copy)
        if loop is None or reads_each_time(self.flow, loop):
            return True  # total += loss.item()
        inside = set(tree.walk(loop.node.body))
        # images, labels = images.cuda(), labels.cuda(non_blocking=True)
        return any(
            move.node in inside
            and move.target.is_there
            and not move.value.place.is_there
            and move.non_blocking is not True
            and not runs_sometimes(self.flow, move.node, loop)
            for move in self.flow.facts.moves.values()
        )
