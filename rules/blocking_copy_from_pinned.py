from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.facts import Move
from devlint.flow.loops import Loop, working_loop
from devlint.flow.names import called_name, dotted
from devlint.flow.value import LOADER, MODULE, TENSOR, THING, UNKNOWN_KIND
from devlint.rule import Rule
from devlint.rules._copied import is_copied
from devlint.rules._loaders import works_alone
from devlint.rules._moves import has_memory_of_its_own, loader_of, short
from devlint.rules._neighbours import Told, report_together
from devlint.rules._recurs import function_of, reads_each_time, trains

#: What keeps what it is handed, wherever that is.
_KEEPING = frozenset(
    {"append", "extend", "add", "to", "cuda", "enumerate", "zip", "isinstance", "len", "range", "type"}
)


class BlockingCopyFromPinned(Rule):
    """A pinned batch is copied to a device, and the host waits for the copy all the same.

    ## What it does
    Reports `.to(device)` and `.cuda()` without `non_blocking=True` on the batches of a `DataLoader` with
    `pin_memory=True`: once for each loop over them.

    ## Why is this bad
    The loader pinned the batch so that it can be copied while the host goes on; a copy that blocks throws that away
    and waits for all the work that is queued before it.

    ## Example
    ```python
    from torch.utils.data import DataLoader


    def train(model, dataset, device):
        for images, labels in DataLoader(dataset, batch_size=64, num_workers=8, pin_memory=True):
            model(images.to(device))
    ```

    ## Use instead
    ```python
    from torch.utils.data import DataLoader


    def train(model, dataset, device):
        for images, labels in DataLoader(dataset, batch_size=64, num_workers=8, pin_memory=True):
            model(images.to(device, non_blocking=True))
    ```

    ## Fix safety
    The fix adds `non_blocking=True`: safe, as work on the device is queued behind the copy. Where the batch is
    written to on the host later, nothing is reported.

    ## Limits
    In the nursery: of 21 findings in repositories that nobody had tuned for, 8 were worth a change, all of one project.
    Models and metrics of other packages often wait by themselves: look where the step reads nothing back. Tentative for
    loaders without worker processes (`num_workers` is zero by default), which make the next batch in the loop itself.

    Silent where the loop, or a function of the file that it calls, reads or prints a result in each step: then
    nothing is queued when the next batch is copied, and little is won. Silent outside of loops; where the pin depends
    on a variable or a branch; where a function is handed a loader that pins in one call and another in the next; for
    batches that are no tensors; where `non_blocking` is written out or decided by a variable; where the copy changes
    the type too, which is done in pageable memory; where the target may be the host; and on Apple's chips, where
    both sides share one memory.

    Silent, too, where a loop that does not train hands results to code of other files (`accuracy.update(net(x), y)`) or
    yields them, since that may wait for them; and in code that says it was copied.

    ## References
    - [A guide on good usage of non_blocking and pin_memory()](https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html)
    - [torch.utils.data: memory pinning](https://pytorch.org/docs/stable/data.html#memory-pinning)
    """

    group = "nursery"
    fixable = "always"

    def check(self) -> None:
        found = []
        for move in self.flow.facts.moves.values():
            value = move.value
            if not (value.holds_tensors and value.place.is_host and has_memory_of_its_own(move.target)):
                continue
            loader = loader_of(self.flow, move.receiver) if value.pinned else None
            if loader is None or self._decided(move) or self._is_written_on_host(move.receiver):
                continue
            loop = self._repeats(move.node)
            if loop is None or not self._is_pinned_by_all(loop) or is_copied(self, move.node):
                continue
            if not trains(loop) and not self._keeps_results(loop):
                continue
            name = short(self.code(move.receiver))
            edit = self.add_argument(move.node, "non_blocking=True")
            title = "copy in the background: `non_blocking=True`"
            told = Told(
                move.node,
                f"`{name}` is pinned, but the host waits for this copy: `non_blocking=True` is missing",
                also=f"the host waits for the copy of `{name}`, too",
                notes=[self.note(loader.origin, "this loader pins its batches")] if loader.origin is not None else [],
                fix=self.fix(title, edit, safe=True) if edit is not None else None,
                key=(loader.origin, loop.node),
                # DataLoader(data, pin_memory=True): the next batch is made while the device works, and not before
                tentative=isinstance(loader.origin, cst.Call) and works_alone(loader.origin),
            )
            found.append(told)
        report_together(self, found)

    def _repeats(self, copy: cst.Call) -> Loop | None:
        """The loop that copies batch after batch, where the host could go on meanwhile."""
        loop = working_loop(self.flow, copy)
        # losses.append(loss.item()): the device is idle already when the next batch is copied
        return loop if loop is not None and not reads_each_time(self.flow, loop) else None

    def _keeps_results(self, loop: Loop) -> bool:
        """Whether no result goes to code that nobody knows, and that may wait for it."""
        # for x, y in loader: accuracy.update(net(x.to(device)), y.to(device))
        return not any(
            isinstance(node, cst.Yield) or (isinstance(node, cst.Call) and self._may_read(node, loop))
            for node in tree.walk(loop.node.body)
        )

    def _may_read(self, call: cst.Call, loop: Loop) -> bool:
        """Whether a call hands what may be on a device to an object or a function of another file."""
        called = function_of(self.flow, call)
        known = (
            self.flow.value(call.func).kind == MODULE
            or call in loop.works
            or (called is not None and called.home is self.flow)
        )
        name = called_name(call)
        if known or self.flow.name_of(call).startswith("torch.") or name in _KEEPING or call in self.flow.facts.moves:
            return False
        values = (self.flow.value(arg.value) for arg in call.args)
        return any(value.kind in (TENSOR, THING, UNKNOWN_KIND) and not value.place.is_host for value in values)

    def _is_pinned_by_all(self, loop: Loop) -> bool:
        """Whether a loader that comes in as an argument is a pinned one in each call: `test(net, plain_loader)`."""
        function = self.flow.function(loop.node)
        if not isinstance(loop.node, cst.For) or function is None:
            return True
        names = {n.value for n in tree.walk(loop.node.iter) if isinstance(n, cst.Name)} & function.param_names
        params = [p.name.value for p in function.params]
        first = 1 if function.cls is not None and not function.is_static else 0
        for call in self.source.nodes_of(cst.Call) if names else ():
            if dotted(call.func).rpartition(".")[2] != function.name or function_of(self.flow, call) is not function:
                continue
            for position, arg in enumerate(call.args):
                name = arg.keyword.value if arg.keyword is not None else "".join(params[first + position :][:1])
                given = self.flow.value(arg.value)
                if name in names and (given.kind == LOADER or name == dotted(loop.node.iter)) and not given.pinned:
                    return False
        return True

    def _decided(self, move: Move) -> bool:
        """Whether the call itself says how to copy: ``x.to(device, non_blocking=False)``, ``x.to(device, dtype)``."""
        plain = 1 if move.target_node is not None else 0
        for position, arg in enumerate(move.node.args):
            name = arg.keyword.value if arg.keyword is not None else None
            if arg.star or name in ("non_blocking", "dtype") or (name is None and position >= plain):
                return True
        return False

    def _is_written_on_host(self, receiver: cst.BaseExpression) -> bool:
        """Whether the batch is written to in place later: ``there = x.to(device); x.zero_()`` would race."""
        name = _root(receiver)
        function = self.flow.function(receiver)
        at, _ = self.source.offsets(receiver)
        for kind in (cst.Call, cst.AugAssign, cst.AssignTarget):
            for node in self.source.nodes.get(kind, ()):
                written = self._written(node)
                if (
                    written is not None
                    and _root(written) == name
                    and self.flow.function(node) is function
                    and self.flow.value(written).place.is_host
                    and self.source.offsets(node)[0] > at
                ):
                    return True
        return False

    def _written(self, node: cst.CSTNode) -> cst.BaseExpression | None:
        """The tensor that a statement or call writes into, by its form: ``x.zero_()``, ``x += 1``, ``x[:, 0] = 0``."""
        if isinstance(node, cst.AugAssign):
            return node.target
        if isinstance(node, cst.AssignTarget) and isinstance(node.target, cst.Subscript):
            # batch[key] = batch[key].to(device)  puts another tensor in its place
            return None if self._sets_item(node.target, self.parent(node)) else node.target.value
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            operation = table.METHODS.get(node.func.attr.value)
            return node.func.value if operation is not None and operation.result == "self" else None
        return None

    def _sets_item(self, target: cst.Subscript, statement: cst.CSTNode | None) -> bool:
        index = target.slice[0].slice
        if len(target.slice) > 1 or not isinstance(index, cst.Index) or not isinstance(statement, cst.Assign):
            return False
        return isinstance(index.value, cst.SimpleString) or self.flow.value(statement.value).holds_tensors


def _root(node: cst.BaseExpression) -> str | None:
    """``batch`` of ``batch["x"]`` and of ``batch.x``."""
    while isinstance(node, cst.Subscript | cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else None
