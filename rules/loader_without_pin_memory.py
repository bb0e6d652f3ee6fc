from __future__ import annotations

import libcst as cst

from devlint.flow.facts import Move
from devlint.flow.names import dotted, target_names
from devlint.flow.scope import Function
from devlint.flow.value import DICT, LIST, TENSOR, THING, TUPLE, UNKNOWN, UNKNOWN_KIND, inside
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._loaders import COLLATE, gives_pin_memory, has_workers, maker, pinning
from devlint.rules._moves import destination, has_memory_of_its_own, loader_of
from devlint.rules._recurs import in_training_loop


class LoaderWithoutPinMemory(Rule):
    """Worker processes prepare the batches, and each batch is copied to a device from pageable memory.

    ## What it does
    Reports a `DataLoader` with worker processes and without `pin_memory`, where a loop moves its batches to a device
    and trains a model there.

    ## Why is this bad
    The device can fetch bytes by itself from page-locked (pinned) memory only. A copy from pageable memory is staged
    through a pinned buffer first, piece by piece, and the host takes part in it. With `pin_memory=True`, a thread of
    the loader pins batches while the loop is busy with the one before; the copy itself is then faster, and with
    `non_blocking=True` it runs beside other work.

    ## Example
    ```python
    from torch.utils.data import DataLoader


    def train(model, dataset, optimizer, device):
        for images, labels in DataLoader(dataset, batch_size=64, num_workers=8):
            optimizer.zero_grad()
            model(images.to(device), labels.to(device)).backward()
            optimizer.step()
    ```

    ## Use instead
    ```python
    from torch.utils.data import DataLoader


    def train(model, dataset, optimizer, device):
        for images, labels in DataLoader(dataset, batch_size=64, num_workers=8, pin_memory=True):
            optimizer.zero_grad()
            model(images.to(device, non_blocking=True), labels.to(device, non_blocking=True)).backward()
            optimizer.step()
    ```

    ## Fix safety
    The fix adds `pin_memory=True`, which is safe: the batches hold the same values. On a machine without a device that
    memory can be pinned for, torch warns and pins nothing.

    ## Limits
    Silent for loaders without worker processes (`num_workers` is zero by default), or where nothing says how many:
    they would pin in the thread of the loop itself, which costs about what the faster copy gains. Silent where
    `pin_memory` is given, whatever its value; where batches are made by a function that is not known to give tensors
    alone (a loader does not pin other objects), are changed by the loop before they are copied, or are moved outside
    of a loop that trains; where `non_blocking=True` is asked for, which is `pageable-non-blocking`; and on
    Apple's chips, where both sides share one memory; and for loaders that a function of another file makes.

    In the nursery: how large the batches are is not looked at, and the copy of a small one is hidden by what prepares
    the next. Of the last 11 findings that strict readers judged, 9 were true. Tentative for a `TensorDataset`. Of five
    in 234 more, they held three for true and two for arguable.

    ## References
    - [torch.utils.data: memory pinning](https://pytorch.org/docs/stable/data.html#memory-pinning)
    - [A guide on good usage of non_blocking and pin_memory()](https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html)
    """

    group = "nursery"
    fixable = "always"

    def check(self) -> None:
        told: set[cst.Call] = set()
        for move in self.flow.facts.moves.values():
            made = self._made(move)
            if made is None or made in told or gives_pin_memory(made):
                continue
            if not has_workers(self.source, made) or not in_training_loop(self.flow, move.node):
                continue
            if not self._makes_tensors(made) or self._is_made_anew(move):
                continue
            told.add(made)
            self.report(
                made,
                "this loader does not pin its batches, which are copied to a device from pageable memory each time",
                notes=[self.note(move.node, f"a batch of it is copied to {destination(self, move)} here")],
                fix=pinning(self, made),
                tentative=self._holds_tensors(made),
            )

    def _holds_tensors(self, made: cst.Call) -> bool:
        """Whether the data may be tensors that the host holds already, whose rows are few bytes."""
        # rows = TensorDataset(ids, labels); DataLoader(rows, 32, num_workers=2)   or where `rows` is handed in
        given = argument(made, 0, "dataset")
        data = self.flow.value(given.value) if given is not None else UNKNOWN
        if data.kind == UNKNOWN_KIND:
            return bool(self.flow.calls("torch.utils.data.TensorDataset"))
        return data.kind == THING and data.ref == "dataset"

    def _makes_tensors(self, made: cst.Call) -> bool:
        """Whether all of a batch can be pinned: a loader pins tensors, and leaves other objects as they are."""
        collate = argument(made, COLLATE, "collate_fn")
        if collate is None or dotted(collate.value) == "None":
            return True
        function = self.flow.value(collate.value).ref
        summary = function.summary if isinstance(function, Function) else None
        todo = [summary.returns] if summary is not None else [UNKNOWN]
        for value in todo:
            if value.kind in (LIST, TUPLE, DICT) and value.items is not None:
                todo += inside(value)
            elif value.kind != TENSOR and not value.is_data:
                return False  # graphs, labels = zip(*samples); return dgl.batch(graphs), torch.tensor(labels)
        return True

    def _is_made_anew(self, move: Move) -> bool:
        """Whether a part of the batch is not what the loader gave when it is copied: `x = torch.tensor(x.numpy())`."""
        loop = self.flow.loop(move.node)
        if loop is None or not isinstance(loop.node, cst.For):
            return False
        parts: set[str] = set()
        target_names(loop.node.target, parts)
        return any(
            other.value.place.is_host
            and other.target.is_there
            and self.flow.loop(other.node) is loop
            and dotted(other.receiver) in parts
            and loader_of(self.flow, other.receiver) is None
            for other in self.flow.facts.moves.values()
        )

    def _made(self, move: Move) -> cst.Call | None:
        """The call that made the loader of an unpinned batch that is moved to a device."""
        value = move.value
        if not (value.holds_tensors and value.place.is_host and value.pinned is False):
            return None
        if move.non_blocking or not has_memory_of_its_own(move.target):
            return None  # batch.to(device, non_blocking=True): pageable-non-blocking says so
        return maker(self, loader_of(self.flow, move.receiver))
