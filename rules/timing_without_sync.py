from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import LOSS_NAME
from devlint.flow.names import called_name, dotted, last_word
from devlint.flow.scope import Class
from devlint.flow.steps import above
from devlint.flow.value import CONTEXT, FUNCTION, LIST, LOADER, MODULE, OPTIMIZER, TENSOR, THING, UNKNOWN_KIND
from devlint.flow.waiting import picks_by_mask
from devlint.rule import Rule
from devlint.rules._files import made
from devlint.rules._moves import short
from devlint.rules._neighbours import Told, report_together
from devlint.rules._training import loop_around

_CLOCKS = frozenset(
    "time.time time.perf_counter time.monotonic time.time_ns time.perf_counter_ns time.monotonic_ns "
    "timeit.default_timer".split()
)
#: Functions that neither wait for a device nor call anything that could.
_HARMLESS = frozenset(
    "range enumerate zip len print str int float min max sum list tuple dict tqdm trange next iter".split()
)
#: Methods of tensors, modules and optimizers that give a view, or set something: no work worth timing.
_NO_WORK = frozenset(
    "view reshape permute transpose t size dim unsqueeze squeeze detach to cuda train eval zero_grad parameters "
    "requires_grad_ requires_grad contiguous".split()
)


class TimingWithoutSync(Rule):
    """The clock is read around work for a device, and nothing waits for the device before it is read again.

    ## What it does
    Reports a reading of the clock that is compared to an earlier one, where a model was called, `backward()` was or
    tensors on a device were computed in between, and nothing there waits for the device.

    ## Why is this bad
    Work for a device is queued, and the call returns at once. Such a time is that of queueing: a model looks many
    times faster than it is, and the next thing that waits, perhaps a `.cpu()`, looks slow for it.

    ## Example
    ```python
    import time

    from torch import nn


    def latency(x, device):
        model = nn.LSTM(512, 512).to(device)
        x = x.to(device)
        start = time.perf_counter()
        model(x)
        return time.perf_counter() - start
    ```

    ## Use instead
    ```python
    import time

    import torch
    from torch import nn


    def latency(x, device):
        model = nn.LSTM(512, 512).to(device)
        x = x.to(device)
        torch.cuda.synchronize()
        start = time.perf_counter()
        model(x)
        torch.cuda.synchronize()
        return time.perf_counter() - start
    ```

    ## Limits
    Of 14 findings in repositories that were read for it, five were worth a change; what was wrong with the others is
    mended, and all of the next five were true. Of seven in 550 more, strict readers held three for true and one for
    wrong, which is why this rule waits here; three were arguable for waits that make them tentative now. Waits that a
    library's layer or a long class makes are not seen. Tentative where the last of the work is a call of a module that
    is not seen, where each turn of a loop copies pageable memory to a device, since such a copy begins with a wait for
    what was queued before, and where gradients are clipped to a norm, which older releases of torch wait for. Silent
    where anything in between may wait, functions that are not seen or are handed others and indices that may be masks
    or on the host included, where the time is that of a whole pass over a loader, and where nothing says that the work
    is done on a device. Several such times in one function are one finding. Where so much is queued that the host has
    to wait for room, the time is only partly wrong. Of three in 234 more, they held all for arguable.

    Not proved by running: an imaginary device does its work at once, and a time on a real one is no result to compare.

    ## References
    - [CUDA: API synchronization behavior](https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html)
    - [CUDA semantics: asynchronous execution](https://pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution)
    """

    group = "nursery"
    fixable = "never"

    def check(self) -> None:
        clocks = self.flow.calls(*_CLOCKS)
        if len(clocks) < 2:
            return
        starts = [(name, statement) for call in clocks for name, statement in self._bound(call)]
        found: list[Told] = []
        for call in clocks:
            for name in self._compared_to(call):
                before = [s for n, s in starts if n == name and self._comes_before(s, call)]
                if before:
                    found += self._check_pair(max(before, key=lambda s: self.source.offsets(s)[0]), call)
        report_together(self, found)

    def _bound(self, call: cst.Call) -> Iterator[tuple[str, cst.SimpleStatementLine]]:
        """`start = time.time()`: the name, and the statement."""
        assign = self.parent(call)
        line = self.parent(assign) if assign is not None else None
        if isinstance(assign, cst.Assign) and isinstance(line, cst.SimpleStatementLine) and len(assign.targets) == 1:
            name = dotted(assign.targets[0].target)
            if name:
                yield name, line

    def _compared_to(self, call: cst.Call) -> set[str]:
        """The earlier readings that this one is compared to: `time.time() - start`, `end - start` further down."""
        above_ = self.parent(call)
        if isinstance(above_, cst.BinaryOperation) and isinstance(above_.operator, cst.Subtract):
            return {dotted(above_.right)} - {""} if above_.left is call else set()
        return {
            dotted(node.right)
            for name, statement in self._bound(call)
            for node in self.source.nodes_of(cst.BinaryOperation)
            if isinstance(node.operator, cst.Subtract)
            and dotted(node.left) == name
            and dotted(node.right) != name
            and self._reaches(name, statement, node)
        } - {""}

    def _reaches(self, name: str, bound: cst.SimpleStatementLine, use: cst.BinaryOperation) -> bool:
        """Whether a reading is the last one of its name before it is used."""
        # for x in warm_up: ...; end = time.time()    for x in loader: ...; end = time.time(); spent.append(end - start)
        if not self._is_before(bound, use):
            return False
        return not any(
            other is not bound and self._is_before(bound, other) and self._is_before(other, use)
            for clock in self.flow.calls(*_CLOCKS)
            for n, other in self._bound(clock)
            if n == name
        )

    def _is_before(self, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        if self.flow.function(first) is not self.flow.function(second):
            return False
        return self.source.comes_before(first, second)

    def _comes_before(self, start: cst.SimpleStatementLine, end: cst.Call) -> bool:
        return (
            self.flow.function(start) is self.flow.function(end)
            and loop_around(self.flow, start) is loop_around(self.flow, end)
            and self.source.comes_before(start, end)
        )

    def _check_pair(self, start: cst.SimpleStatementLine, end: cst.Call) -> list[Told]:
        between = self._between(start, end)
        work: cst.Call | None = None
        waits_perhaps = False
        for statement in between or ():
            for node in self._nodes(statement):
                if isinstance(node, cst.Call) and self._waits_for_work(node):
                    # for _ in range(100): model(images.cuda())   only the last turn goes unwaited for
                    in_loop = isinstance(statement, cst.For | cst.While)
                    waits_perhaps, work = waits_perhaps or in_loop, work if in_loop else None
                if node in self.flow.facts.waits or self._goes_through_loader(node):
                    return []  # loss.item(); for x, y in loader: ...
                if isinstance(node, cst.Subscript) and self._may_wait(node):
                    return []
                if isinstance(node, cst.Call):
                    if not self._is_queued(node):
                        return []  # torch.cuda.synchronize(), show(out)
                    work = node if self._is_work(node) else work
        if work is None:
            return []
        queued = f"`{short(self.code(work))}` is only queued"
        told = Told(
            end,
            f"the clock is read while {queued}: nothing waits for the device",
            also=f"here, {queued}",
            notes=[self.note(start, "timed since here"), self.note(work, "this is work for a device")],
            key=self.flow.function(end) or self.source.module,
            # boxes = detector(images)   may end with a step that waits
            tentative=not self._is_seen(work) or waits_perhaps or self._clips(between or []),
        )
        return [told]

    def _waits_for_work(self, call: cst.Call) -> bool:
        """Whether a call copies pageable memory to a device, which begins with a wait for what its stream has to do."""
        move = self.flow.facts.moves.get(call)
        if move is None or not move.target.is_there or move.non_blocking is not False:
            return False
        return move.value.place.is_host and move.value.pinned is not True

    def _clips(self, between: list[cst.CSTNode]) -> bool:
        """Whether gradients are clipped to a norm, which older releases of torch wait for."""
        return any(
            isinstance(node, cst.Call) and called_name(node) in ("clip_grad_norm_", "clip_grad_norm")
            for statement in between
            for node in self._nodes(statement)
        )

    def _is_seen(self, call: cst.Call) -> bool:
        """Whether a call of a module is one of torch's, or of a class of the project, which is asked for its waits."""
        called, function = self.flow.value(call.func), self.flow.function(call)
        if called.kind != MODULE or isinstance(called.ref, Class):
            return True
        if LOSS_NAME.search(last_word(dotted(call.func))):
            return True
        if isinstance(call.func, cst.Name) and function is not None and call.func.value in function.handed_modules:
            return True
        built = made(self, call.func)
        while isinstance(built, cst.Call) and isinstance(built.func, cst.Attribute):  # nn.Linear(3, 3).to(device)
            if self.flow.name_of(built).startswith("torch.nn."):
                return True
            built = built.func.value
        return False

    def _between(self, start: cst.SimpleStatementLine, end: cst.Call) -> list[cst.CSTNode] | None:
        """The statements between the two readings; ``None`` where they are in different blocks."""
        block = self.parent(start)
        if not isinstance(block, cst.IndentedBlock | cst.Module):
            return None
        around = set(above(self.flow, end))
        last = next((i for i, statement in enumerate(block.body) if statement in around), None)
        first = next(i for i, statement in enumerate(block.body) if statement is start)
        if last is None or last <= first:
            return None
        if not isinstance(block.body[last], cst.SimpleStatementLine):
            return None  # if verbose: ...; print(time.time() - start)
        return list(block.body[first + 1 : last])

    def _nodes(self, statement: cst.CSTNode) -> Iterator[cst.CSTNode]:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            return
        yield from tree.walk(statement)

    def _goes_through_loader(self, node: cst.CSTNode) -> bool:
        if not isinstance(node, cst.For):
            return False
        over = self.flow.value(node.iter)
        inner = self.flow.loop(node.body)
        return over.kind == LOADER or (inner is not None and inner.loader)

    def _may_wait(self, node: cst.Subscript) -> bool:
        """Whether an index may be a mask, of which the host has to know the size, or on the host itself."""
        # loss = criterion(logits[train_mask], labels[rows])
        if picks_by_mask(self.flow, node):
            return True
        base = self.flow.value(node.value)
        if base.place.is_host or base.kind not in (TENSOR, THING, UNKNOWN_KIND):
            return False
        indices = [self.flow.value(i.slice.value) for i in node.slice if isinstance(i.slice, cst.Index)]
        return any(v.kind in (TENSOR, THING, UNKNOWN_KIND) and not v.place.is_there for v in indices)

    def _is_queued(self, call: cst.Call) -> bool:
        """Whether a call surely waits for no device: a known one, or one of a value of torch's."""
        if self.flow.waits_in(call):
            return False
        # model.sample(y, step), where  def step(net, x): ... t.to(x.device)   waits
        if any(self.flow.value(arg.value).kind == FUNCTION or isinstance(arg.value, cst.Lambda) for arg in call.args):
            return False
        name = self.flow.name_of(call)
        if name.startswith("torch."):
            return not ("synchronize" in name or ".cuda." in name or ".distributed." in name or "load" in name)
        func = call.func
        if isinstance(func, cst.Attribute):
            if func.attr.value in ("backward", "append", "extend"):
                return True
            receiver = self.flow.value(func.value)
            if receiver.kind in (TENSOR, THING, OPTIMIZER, LIST):
                return True  # those that wait are facts
            if receiver.kind == MODULE and func.attr.value in _NO_WORK:
                return True
        called = self.flow.value(func)
        if called.kind == MODULE:
            return True
        if LOSS_NAME.search(dotted(func).rpartition(".")[2]):
            return True
        if called.kind == CONTEXT or self.flow.value(call).kind == CONTEXT:
            return True
        return isinstance(func, cst.Name) and func.value in _HARMLESS

    def _is_work(self, call: cst.Call) -> bool:
        """Whether a call surely puts a device to work."""
        func, value = call.func, self.flow.value(call)
        if isinstance(func, cst.Attribute) and func.attr.value == "backward":
            return self.flow.value(func.value).place.is_there
        if isinstance(func, cst.Attribute) and func.attr.value in _NO_WORK:
            return False
        called = self.flow.value(func)
        if called.kind == MODULE:
            return called.place.is_there
        if self.flow.name_of(call).startswith("torch.") and self.flow.factory(call) is None:
            return value.kind == TENSOR and value.place.is_there
        return False
