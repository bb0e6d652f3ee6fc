from __future__ import annotations

import libcst as cst

from devlint.finding import Fix
from devlint.flow.facts import EarlyRead
from devlint.rule import Rule
from devlint.rules._moves import short


class UnsynchronizedHostCopy(Rule):
    """A copy to the host is begun with `non_blocking=True` and read before it is done.

    ## What it does
    Reports `.to("cpu", non_blocking=True)`, and `copy_` into a pinned tensor, where the host reads the result before
    anything has waited for the device.

    ## Why is this bad
    Such a copy returns at once. Until the stream is synchronised, the memory on the host holds whatever was there
    before: zeros, an older batch, or half of the new one. Nothing raises; the numbers are wrong now and then. (On an
    H100, with torch 2.11, a first softmax of a small model read in this way was all zeros, on an H200 it was right.)

    ## Example
    ```python
    import torch


    def predict(x: torch.Tensor, device):
        scores = x.to(device).softmax(-1)
        scores = scores.to("cpu", non_blocking=True)
        return scores.tolist()
    ```

    ## Use instead
    ```python
    import torch


    def predict(x: torch.Tensor, device):
        scores = x.to(device).softmax(-1)
        scores = scores.to("cpu")
        return scores.tolist()
    ```

    Where several copies are to overlap, keep `non_blocking=True` and call `torch.cuda.synchronize()` once before the
    results are read.

    ## Fix safety
    The fix removes `non_blocking=True`: safe, the copy is then done when the call returns.

    ## Limits
    Follows a value through one function. Views, `.numpy()`, `return` and calls read nothing yet. A call of
    anything that is not known (a helper, a module of the project, a context manager) may have waited, and so silences
    the rule.

    ## References
    - [A guide on good usage of non_blocking and pin_memory()](https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html)
    - [CUDA semantics: asynchronous execution](https://pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution)
    """

    group = "correctness"
    fixable = "always"

    def check(self) -> None:
        for early in self.flow.facts.early_reads.values():
            name = self._name(early)
            self.report(
                early.copy,
                f"`{name}` is read before its copy to the host is done: `non_blocking=True` does not wait for it",
                notes=[self.note(early.node, "it is read here, and nothing has waited for the device in between")],
                fix=self._fix(early.copy),
            )

    def _name(self, early: EarlyRead) -> str:
        """What the copy is called: the name it is bound to, else what is copied."""
        copy = early.copy
        into = self.flow.facts.copies.get(copy)
        if into is not None:
            return short(self.code(into.target))
        statement = self.parent(copy)
        if isinstance(statement, cst.Assign) and isinstance(statement.targets[0].target, cst.Name):
            return statement.targets[0].target.value
        assert isinstance(copy.func, cst.Attribute)
        return short(self.code(copy.func.value))

    def _fix(self, copy: cst.Call) -> Fix | None:
        title = "wait for the copy: drop `non_blocking=True`"
        edit = self.remove_argument(copy, "non_blocking")
        for position, arg in enumerate(copy.args):
            if arg.keyword is None and isinstance(arg.value, cst.Name) and arg.value.value == "True":
                # x.to("cpu", torch.float32, True): the first flag, whose place must be kept where another follows
                if position + 1 < len(copy.args):
                    return self.fix("wait for the copy", self.replace(arg.value, "False"), safe=True)
                _, start = self.source.offsets(copy.args[position - 1].value, outer=True)
                _, end = self.source.offsets(arg.value, outer=True)
                edit = self.replace_between(start, end, "")
        return self.fix(title, edit, safe=True) if edit is not None else None
