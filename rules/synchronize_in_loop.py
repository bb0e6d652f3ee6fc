from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.loops import Loop, runs_by_epoch, runs_sometimes, working_loop
from devlint.flow.names import called_name
from devlint.rule import Rule
from devlint.rules._switches import tests_above


class SynchronizeInLoop(Rule):
    """A loop that drives the device stops for it, or throws its memory pool away, in every iteration.

    ## What it does
    Reports `torch.cuda.synchronize()`, `torch.cuda.empty_cache()`, `gc.collect()`, and the same of other accelerators,
    in every iteration of a loop that calls a model, `backward()` or an optimizer; and, as tentative, in every call of a
    method that does one step of such a loop (`forward`, `training_step`, an optimizer's `step`).

    ## Why is this bad
    Work for a device is queued, and the host runs ahead to prepare the next steps. `synchronize()` makes it wait until
    the queue is empty. `empty_cache()` waits as well, and hands memory back to the driver that the next iteration has
    to ask for again, which is slow. `gc.collect()` goes through all objects of Python while the device gets nothing
    new to do. None of them frees what a name still holds.

    ## Example
    ```python
    import torch


    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x.cuda(), y.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.empty_cache()
    ```

    ## Use instead
    ```python
    import torch


    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x.cuda(), y.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    ```

    ## Fix safety
    No fix is offered: whether the call may go is for a person to say. To read values, no `synchronize()` is needed:
    `.item()` and `.cpu()` wait by themselves.

    ## Limits
    In the nursery: of ten findings of a first form of it in public code, none was worth a change; most of them saved
    memory on purpose. Silent in loops that read a clock, record events or look at memory, or that delete something; in
    exception handlers (running out of memory), every so many steps, and once an epoch or for each of several models;
    where a cache is emptied under a flag for saving memory (`if self.cpu_cache:`) or below a comment on memory; for
    `synchronize()` right before a read, which waits in any case, and where modules of the file synchronize, too. Of 14
    in 234 more repositories, where they were asked whether what is said holds, readers held twelve for true and two for
    arguable, since something else waits there.

    ## References
    - [CUDA semantics: memory management](https://pytorch.org/docs/stable/notes/cuda.html#memory-management)
    - [torch.cuda.synchronize](https://pytorch.org/docs/stable/generated/torch.cuda.synchronize.html)
    """

    group = "nursery"

    def check(self) -> None:
        for name, said in _CALLS.items():
            for call in self.flow.calls(name):
                loop = working_loop(self.flow, call)
                if loop is None:
                    self._in_step(call, said)
                    continue
                if not loop.works or runs_by_epoch(self.flow, loop):
                    continue
                if runs_sometimes(self.flow, call, loop) or self._is_meant(loop):
                    continue
                if said is not _WAITS and self._saves_memory(call):
                    continue
                if said is _WAITS and (self._is_read_next(call) or self._is_waited_for_inside(name)):
                    continue
                self.report(
                    call,
                    f"`{self.code(call.func)}` {said} in every iteration",
                    notes=[self.note(loop.node, "this loop drives the device")],
                )

    def _in_step(self, call: cst.Call, said: str) -> None:
        """``def forward(self, x): ...; torch.cuda.empty_cache()``, ``def step(self): ...``: others loop over it."""
        function = self.flow.function(call)
        if function is None or function.cls is None or self.in_tests:
            return
        is_step = self.flow.runs_each_step(call) or _STEP.fullmatch(function.name) is not None
        if not is_step or any(True for _ in tests_above(self, call)) or self.enclosing(call, cst.Try) is not None:
            return
        if any(isinstance(node, cst.Del) or _is_about_cost(node) for node in tree.walk(function.node.body)):
            return
        if (said is _WAITS and self._is_read_next(call)) or (said is not _WAITS and self._saves_memory(call)):
            return
        said = said.replace("next iteration", "next call")
        self.report(call, f"`{self.code(call.func)}` {said} in every call of `{function.name}`", tentative=True)

    def _saves_memory(self, call: cst.Call) -> bool:
        """Whether somebody wanted time for memory: by a flag of such a name, or as a comment above says."""
        above: cst.CSTNode | None = call
        while above is not None and not isinstance(above, cst.FunctionDef):
            # if self.cpu_cache: torch.cuda.empty_cache()
            if isinstance(above, cst.If) and any(
                isinstance(n, cst.Name) and _SAVES.search(n.value) for n in tree.walk(above.test)
            ):
                return True
            above = self.parent(above)
        # h = None  # to lower the peak of memory
        # torch.cuda.empty_cache()
        first, _ = self.source.place(self.source.offsets(call)[0])
        return any(
            _MEMORY.search(text) for at, text in self.source.comments if 0 <= first - self.source.place(at)[0] <= 2
        )

    def _is_read_next(self, call: cst.Call) -> bool:
        """``torch.cuda.synchronize(); log(loss.item())``, which waits for the same in any case."""
        line = self.parent(self.parent(call) or call)
        block = self.parent(line) if line is not None else None
        if not isinstance(line, cst.SimpleStatementLine) or not isinstance(block, cst.IndentedBlock):
            return False
        following = block.body[block.body.index(line) + 1 :][:1]
        return any(
            n in self.flow.facts.waits or (isinstance(n, cst.Call) and called_name(n) in table.EXPLICIT_WAITS)
            for statement in following
            for n in tree.walk(statement)
        )

    def _is_waited_for_inside(self, name: str) -> bool:
        """Whether a module of the file synchronizes, too: a file that measures, where one wait more says nothing."""
        functions = (self.flow.function(call) for call in self.flow.calls(name))
        return any(f is not None and f.cls is not None and f.cls.is_module for f in functions)

    def _is_meant(self, loop: Loop) -> bool:
        """Whether the loop takes times, looks at memory, or frees something that it made."""
        if any(isinstance(node, cst.Del) or _is_about_cost(node) for node in tree.walk(loop.node.body)):
            return True
        function = self.flow.function(loop.node)
        if function is not None and _COST.search(function.name):
            return True  # def benchmark(model):
        # for name in names: net = build(name).cuda(); net(x); torch.cuda.empty_cache()
        return any(self.flow.value(target.target).kind == "module" for target in _bound(loop))


def _is_about_cost(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and _COST.search(node.value) is not None


def _bound(loop: Loop) -> list[cst.AssignTarget]:
    return [node for node in tree.walk(loop.node.body) if isinstance(node, cst.AssignTarget)]


_COST = re.compile(
    r"(^|_)(time|timer|timeit|clock|tic|toc|t0|t1|start|end|elapsed|latency|bench|benchmark|warmup|memory|speed)(_|s?$|r$)"
    r"|perf_counter|monotonic|Event$|profil|memory_|synchronize_time",
    re.I,
)
#: Methods that somebody calls once for each batch.
_STEP = re.compile(r"(training_|train_|optim_|optimizer_)?step|update|train_(on_)?batch|optimize_parameters")
_SAVES = re.compile(r"cache|mem(ory)?(_|$)|vram|offload|empty|saving", re.I)
_MEMORY = re.compile(r"memory|\bOOM\b|vram|\bpeak\b", re.I)
_WAITS = "makes the host wait for all that the device was given"
_EMPTIES = "gives memory back that the next iteration has to ask for again"
_CALLS = {
    **{f"torch.{kind}.synchronize": _WAITS for kind in ("cuda", "mps", "xpu", "accelerator", "npu")},
    **{f"torch.{kind}.empty_cache": _EMPTIES for kind in ("cuda", "mps", "xpu", "accelerator.memory", "npu")},
    "gc.collect": "goes through all objects, while the device gets nothing new to do,",
}
