from __future__ import annotations

import re

import libcst as cst

from devlint.finding import Fix
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._portability import SPEAKS_OF_CUDA, Surroundings

#: Functions of `torch.cuda` that mean the current device where they are given none.
_OF_CURRENT = frozenset(
    "Stream current_stream default_stream synchronize memory_allocated max_memory_allocated memory_reserved "
    "max_memory_reserved reset_peak_memory_stats get_device_name get_device_properties get_device_capability "
    "mem_get_info memory_stats memory_summary".split()
)
_EXACTLY_CUDA = re.compile(
    r"""(?<!\.type)(?<!\s)\s*==\s*(torch\.device\()?['"]cuda['"]|['"]cuda['"]\)?\s*==\s*(\w+\.)*(?!type)\w+$"""
)


class CurrentDeviceAssumed(Rule):
    """A stream, a synchronise or a figure is the current device's, while the work is on the one that was chosen.

    ## What it does
    Reports `torch.cuda.Stream()`, `torch.cuda.synchronize()`, `torch.cuda.max_memory_allocated()` and the like without
    a device, and `torch.cuda.current_device()` as a device, in a function that works on a `device` of its own. Reports
    `if t.is_cuda: x = x.cuda()`, which need not be the device of `t`.

    ## Why is this bad
    The current device is `cuda:0` unless the program sets another. Where the work is on `cuda:1`, a copy on a stream
    of `cuda:0` is not ordered with it, `synchronize()` returns before it is done, the memory counted is another
    card's, and what is moved to the current device meets tensors on another.

    ## Example
    ```python
    import torch


    def milliseconds(model, x, device):
        x = x.to(device)
        if x.is_cuda:
            torch.cuda.synchronize()
        return model(x)
    ```

    ## Use instead
    ```python
    import torch


    def milliseconds(model, x, device):
        x = x.to(device)
        if x.is_cuda:
            torch.cuda.synchronize(device)
        return model(x)
    ```

    ## Fix safety
    The fix names the device that was chosen. It is unsafe: the code may have made that the current one before, and
    these functions refuse the CPU, which a test for `torch.cuda.is_available()` lets through.

    ## Limits
    Silent in files that set the current device (`torch.cuda.set_device`, `with torch.cuda.device(...)`), for the
    device of an `accelerator`, which accelerate sets; but another file may set it. Silent, too, where the
    device is `"cuda"` without an index, and where no test says that it is CUDA: `unguarded-accelerator-call` speaks
    there.

    ## References
    - [CUDA semantics](https://pytorch.org/docs/stable/notes/cuda.html)
    """

    group = "portability"
    fixable = "sometimes"

    def check(self) -> None:
        text = self.source.text
        if "cuda" not in text or "set_device" in text or "cuda.device(" in text or "device_of(" in text:
            return
        around = Surroundings(self)
        for call in self.source.nodes_of(cst.Call):
            name = self.flow.scope.qualified(call.func)
            if call.args or not name.startswith("torch.cuda."):
                continue
            what = name.removeprefix("torch.cuda.")
            if what in _OF_CURRENT or (what == "current_device" and self._is_used_as_device(call)):
                self._look_at(call, what, around)

        self._under_is_cuda()

    def _under_is_cuda(self) -> None:
        """``if t.is_cuda: x = x.cuda()``."""
        for move in self.flow.facts.moves.values():
            if move.target_node is not None or move.how in ("to", "cpu"):
                continue
            test = self._is_cuda_test(move.node)
            if test is None or self.code(test) == self.code(move.receiver):
                continue  # if x.is_cuda: x = x.cuda()
            name = self.code(test)
            self.report(
                move.node,
                f"`{short(self.code(move.node.func))}` goes to the current device, which need not be that of `{name}`",
                notes=[self.note(test, f"`{name}` is asked for its device here")],
                fix=self._fix_move(move.node, name),
            )

    def _is_cuda_test(self, node: cst.CSTNode) -> cst.BaseExpression | None:
        """``t`` where the nearest test around is ``t.is_cuda``, and holds here."""
        parents = self.source.parents
        child, current = node, parents.get(node)
        while current is not None and not isinstance(current, cst.FunctionDef | cst.ClassDef | cst.Lambda):
            if isinstance(current, cst.If | cst.IfExp) and child is current.body:
                tests = [current.test]
                for test in tests:
                    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
                        tests += [test.left, test.right]
                    if isinstance(test, cst.Attribute) and test.attr.value == "is_cuda" and dotted(test.value):
                        # self.is_cuda = next(model.parameters()).is_cuda   is an object's own, which has no `device`
                        return test.value if dotted(test.value) != "self" else None
                return None
            child, current = current, parents.get(current)
        return None

    def _fix_move(self, call: cst.Call, name: str) -> Fix | None:
        func = call.func
        if not isinstance(func, cst.Attribute) or call.args:
            return None
        edit = self.replace_between(
            self.source.offsets(func.attr)[0], self.source.offsets(call)[1], f"to({name}.device)"
        )
        return self.fix(f"use `{name}.device`", edit, safe=False)

    def _look_at(self, call: cst.Call, what: str, around: Surroundings) -> None:
        guard = around.guard(call, SPEAKS_OF_CUDA)
        # without a test it raises on other devices, which another rule says
        if guard is None or not isinstance(guard, cst.BaseExpression | cst.If) or around.is_for_cuda(call):
            return
        # if device == "cuda": it is the current one
        if _EXACTLY_CUDA.search(self.code(guard)):
            return
        chosen = around.chosen(call)
        if chosen is None or chosen.is_default or chosen.owner not in ("parameter", "function"):
            return
        # accelerate makes its device the current one; model.to(torch.cuda.current_device()) asks where another model is
        if "accelerator" in chosen.code or not chosen.is_handed_in:
            return
        if what == "current_device" and "." in chosen.code.removeprefix("self."):
            return
        code = around.expression(chosen, call)
        note = self.note(chosen.node, f"`{chosen.code}` is what was chosen")
        message = f"`{short(self.code(call))}` is for the current device, which need not be `{chosen.code}`"
        self.report(call, message, notes=[note], fix=self._fix(call, what, code) if code else None)

    def _fix(self, call: cst.Call, what: str, chosen: str) -> Fix | None:
        if what == "current_device":
            return self.fix(f"use `{chosen}`", self.replace(call, chosen), safe=False)
        edit = self.add_argument(call, f"device={chosen}")
        return self.fix(f"name `{chosen}`", edit, safe=False) if edit is not None else None

    def _is_used_as_device(self, call: cst.Call) -> bool:
        """``x.to(torch.cuda.current_device())``, ``device=torch.cuda.current_device()``; not the choice of one."""
        arg = self.parent(call)
        if not isinstance(arg, cst.Arg):
            return False
        if arg.keyword is not None:
            return names_device(arg.keyword.value)
        outer = self.parent(arg)
        return isinstance(outer, cst.Call) and dotted(outer.func).rpartition(".")[2] in ("to", "cuda")
