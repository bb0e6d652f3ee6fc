from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from devlint.flow.facts import Wait
from devlint.flow.loops import leaves, working_loop
from devlint.flow.names import dotted
from devlint.flow.value import TENSOR, THING
from devlint.rule import Rule
from devlint.rules._places import origin_note


class HostSyncInForward(Rule):
    """A module's `forward` reads a value back from the device, and every call of it waits.

    ## What it does
    Reports `.item()`, `float(t)`, `print(t)`, `if t.any():`, an f-string, and whatever else needs a value on the host,
    in `forward` or `training_step` of a module and in what these call, where each call comes by it and the value could
    stay on the device: it decides a branch, is computed with tensors again, is logged or kept; or the waits come one
    by one, in a Python loop.

    ## Why is this bad
    Work for a device is queued: the host runs ahead and prepares what comes next. Reading a value makes it wait until
    the queue is empty, in the midst of a step, and the device then stands idle until the host has queued something
    again. It also ends what `torch.compile` and CUDA graphs can capture as a whole.

    ## Example
    ```python
    import torch
    from torch import nn


    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor):
            return x * self.scale.item()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor):
            return x * self.scale
    ```

    ## Fix safety
    No fix is offered: compute with the tensor itself, choose by `torch.where` instead of a branch, collect tensors and
    read them together (`lengths.tolist()` above the loop).

    ## Limits
    Silent where the host cannot do without the value: for sizes and slices outside a Python loop, for what is handed to
    other libraries or returned on the host, and to leave a loop or the function early. Silent in checks (`assert`,
    `if ...: raise`, `warn`), behind caches, and under tests that may come out otherwise (`if self.debug`,
    `torch.compiler.is_compiling()`). Indexing with a mask and `nonzero` wait, too, and are not reported.

    ## References
    - [Performance tuning guide: avoid unnecessary CPU-GPU synchronization](https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization)
    - [CUDA semantics: asynchronous execution](https://pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution)
    """

    group = "performance"

    def check(self) -> None:
        told: set[cst.CSTNode] = set()
        for wait in self.flow.facts.waits.values():
            if wait.what in _SELECTING or not self.flow.runs_each_step(wait.node):
                continue
            if working_loop(self.flow, wait.node) is not None:
                continue  # for layer in self.layers: x = layer(x); print(x.max())   host-sync-in-loop judges it
            why = self._needless(wait)
            statement = self.enclosing(wait.node, cst.If, cst.BaseSmallStatement)
            if why is not None and statement not in told:  # if t.any() and u.any():
                told.add(statement)
                self._report(wait, why)

    def _needless(self, wait: Wait) -> str | None:
        """What the value is read for, where the host could do without it."""
        loop = self.enclosing(wait.node, *_REPEATING, cst.FunctionDef)
        if isinstance(loop, _REPEATING) and self._is_inside(wait.node, loop):
            leaving = self.enclosing(wait.node, cst.If, cst.For, cst.While)
            if isinstance(leaving, cst.If) and _is_check(leaving):
                return None  # for layer in layers: if done.all(): break
            return "in each turn of a loop" if wait.what not in ("cpu", "to") else None
        parents = self.source.parents
        child, current = wait.node, parents[wait.node]
        if wait.what in ("print", "format", "str", "repr"):
            return "to show it"
        while True:
            if isinstance(current, cst.If) and child is current.test:
                return None if _is_check(current) else _BRANCH
            if isinstance(current, cst.IfExp) and child is current.test:
                return _BRANCH
            if wait.what in ("item", "float", "int") and isinstance(current, cst.BinaryOperation):
                other = current.right if current.left is child else current.left
                if self.flow.value(other).kind in (TENSOR, THING) and self.flow.value(other).place.is_there:
                    return "to compute with a tensor again"
            elif not isinstance(current, _TRANSPARENT):
                return self._kept(child, current) if wait.what in ("item", "float", "int", "tolist") else None
            child, current = current, parents[current]

    def _kept(self, child: cst.CSTNode, current: cst.CSTNode) -> str | None:
        """`self.last_loss = loss.item()`, `self.log("loss", loss.item())`."""
        if isinstance(current, cst.Assign):
            targets = [t.target for t in current.targets]
            if all(isinstance(t, cst.Attribute | cst.Subscript) for t in targets):
                return "to keep it"
        if isinstance(current, cst.Arg):
            call = self.parent(current)
            name = call.func.attr.value if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) else ""
            if name in _KEEPING:
                return "to keep it"
        return None

    def _is_inside(self, node: cst.CSTNode, loop: cst.CSTNode) -> bool:
        """Whether a node is evaluated in each turn: not `for i in range(n.item())`."""
        child, current = node, self.source.parents[node]
        while current is not loop:
            child, current = current, self.source.parents[current]
        if isinstance(loop, cst.For):
            return child is loop.body
        return not isinstance(child, cst.CompFor)

    def _report(self, wait: Wait, why: str) -> None:
        function = self.flow.function(wait.node)
        assert function is not None
        shown = wait.operand if wait.what in _SHOWN else wait.node
        while isinstance(shown, cst.BooleanOperation):
            shown = shown.right  # if mask is not None and mask.any():
        if wait.what == "index":
            shown = self.enclosing(wait.node, cst.Subscript) or shown  # x[:length]
        code = " ".join(self.code(shown).split())
        what = f"`{code if len(code) <= 60 else code[:57] + '...'}`"
        self.report(
            wait.node,
            f"{what}: each call of `{function.name}` waits for the device, {why}",
            notes=origin_note(self, f"`{' '.join(self.code(wait.operand).split())[:60]}`", wait.value),
        )


def _is_check(node: cst.If) -> bool:
    """`if done.all(): break`, `if t.isnan().any(): raise ...`, `if low < 0: warnings.warn(...)`"""
    blocks = [node.body, node.orelse.body if isinstance(node.orelse, cst.Else) else None]
    return any(block is not None and block.body and _leaves_or_tells(block.body) for block in blocks)


def _leaves_or_tells(statements: Sequence[cst.CSTNode]) -> bool:
    last = statements[-1]
    if leaves(last) or (isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Continue)):
        return True
    return all(
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.Call)
        and dotted(statement.body[0].value.func).rpartition(".")[2] in _TELLING
        for statement in statements
    )


_BRANCH = "to choose a branch"
#: Waits for what a size depends on, and what tensor-from-device-scalars reports.
_SELECTING = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "torch.")
    for name in "mask nonzero argwhere where masked_select unique unique_consecutive one_hot repeat_interleave "
    "multinomial bincount".split()
) | {"tensor from device scalars"}
_SHOWN = ("print", "format", "str", "repr", "bool")
_TELLING = frozenset({"warn", "warning", "warn_once", "warning_once", "print", "info", "debug", "error", "log"})
_REPEATING = (cst.For, cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)
_TRANSPARENT = (cst.UnaryOperation, cst.BooleanOperation, cst.Comparison, cst.ComparisonTarget, cst.BinaryOperation)
_KEEPING = frozenset("log add_scalar append update setdefault log_metric log_scalar".split())
