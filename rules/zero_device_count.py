from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted, last_word
from devlint.rule import Rule
from devlint.rules._portability import SPEAKS_OF_CUDA, Surroundings

_COUNTS = frozenset({"torch.cuda.device_count", "torch.xpu.device_count", "torch.mps.device_count"})
_DIVIDES = (cst.FloorDivide, cst.Divide)
_BATCH = re.compile(r"batch_?size|(^|_)bs(z)?$")


class ZeroDeviceCount(Rule):
    """The number of GPUs, which is 0 on a machine without one, is divided by, or multiplies the size of a batch.

    ## What it does
    Reports `n // torch.cuda.device_count()` and `/`; and `batch_size * torch.cuda.device_count()` where that
    is the size of a batch; also by a name for the number. The code around it runs without a GPU, too: it asks for one
    elsewhere, was told a device, or binds the name to 0 itself.

    ## Why is this bad
    Without a GPU the number is 0: the division raises `ZeroDivisionError`, and a loader refuses batches of 0
    ("batch_size should be a positive integer value").

    ## Example
    ```python
    import torch
    from torch.utils.data import DataLoader


    def batches(dataset, batch_size: int):
        num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return DataLoader(dataset, batch_size=batch_size * num_gpus)
    ```

    ## Use instead
    ```python
    import torch
    from torch.utils.data import DataLoader


    def batches(dataset, batch_size: int):
        num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return DataLoader(dataset, batch_size=batch_size * max(1, num_gpus))
    ```

    ## Fix safety
    `max(1, ...)` around the number is safe: where there is a GPU nothing changes.

    ## Limits
    Silent under a test, exit, handler or decorator that speaks of GPUs or of the number, in tests, in what is for
    CUDA by its name or by what it sets up, under a test for processes that `nccl` joins, and where nothing shows
    that the code runs without one. A name counts where all that is bound to it is the number, or 0. `rank %
    torch.cuda.device_count()` numbers a GPU, and is for CUDA. New: of 11 findings in public code two were worth a
    change; of the five wrong ones four are silent now.

    ## References
    - [torch.cuda.device_count](https://pytorch.org/docs/stable/generated/torch.cuda.device_count.html)
    """

    group = "nursery"
    fixable = "always"

    def check(self) -> None:
        if "device_count" not in self.source.text:
            return
        around = Surroundings(self)
        for node in self.source.nodes_of(cst.BinaryOperation):
            if isinstance(node.operator, _DIVIDES):
                self._number(node, node.right, around, "divides by it")
            elif isinstance(node.operator, cst.Multiply) and self._is_batch(node):
                for factor in (node.left, node.right):
                    self._number(node, factor, around, "makes a batch of none")
        for call in self.source.nodes_of(cst.Call):
            # rows.expand((torch.cuda.device_count(),) + rows.size())
            if called_name(call) in ("expand", "repeat", "tile") and call.args:
                for size in _sizes(call):
                    self._number(call, size, around, "makes a tensor of nothing")
        for each in self.source.nodes_of(cst.AugAssign):
            target = last_word(dotted(each.target))
            if isinstance(each.operator, cst.FloorDivideAssign | cst.DivideAssign):
                self._number(each, each.value, around, "divides by it")
            elif isinstance(each.operator, cst.MultiplyAssign) and _BATCH.search(target):
                self._number(each, each.value, around, "makes a batch of none")

    def _is_batch(self, node: cst.CSTNode) -> bool:
        """``batch_size=8 * n``, ``batch_size = args.batch_size * n``"""
        above = self.parent(node)
        while isinstance(above, cst.BinaryOperation):
            node, above = above, self.parent(above)
        if isinstance(above, cst.Arg):
            return above.keyword is not None and _BATCH.search(above.keyword.value) is not None
        targets = [each.target for each in above.targets] if isinstance(above, cst.Assign) else []
        return any(_BATCH.search(last_word(dotted(each))) is not None for each in targets)

    def _number(self, node: cst.CSTNode, given: cst.BaseExpression, around: Surroundings, what: str) -> None:
        counts, zeros = self._bound(given) if isinstance(given, cst.Name | cst.Attribute) else ([given], [])
        if not counts or not all(self._is_count(each) for each in counts):
            return
        name = last_word(dotted(given)) or "device_count"
        # if num_gpus > 1: size //= num_gpus
        # if opt.distributed: size //= num_gpus   of processes that nccl joins, which is for CUDA
        joined = r"|distributed|\bddp\b" if "nccl" in self.source.text else ""
        words = re.compile(rf"{SPEAKS_OF_CUDA.pattern}|\b{re.escape(name)}\b{joined}", re.IGNORECASE)
        if around.guard(node, words) is not None or around.is_test or around.demands_cuda:
            return
        shown = zeros[0] if zeros else self._runs_without(node, around)
        if shown is None:
            return
        code = self.code(given)
        start, end = self.source.offsets(given, outer=True)
        self.report(
            node,
            f"`{code}` is 0 where there is no GPU, and this {what}",
            notes=[self.note(shown, "this is for a machine without one")],
            fix=self.fix("count one at least", self.replace_between(start, end, f"max(1, {code})"), safe=True),
        )

    def _is_count(self, node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.Call) and self.flow.scope.qualified(node.func) in _COUNTS

    def _bound(self, name: cst.BaseExpression) -> tuple[list[cst.BaseExpression], list[cst.BaseExpression]]:
        """What the statements of the function, or of the file, bind a name to: numbers of devices, and zeros."""
        path, function = dotted(name), self.flow.function(name)
        if not path or (function is not None and path in function.param_names):
            return [], []
        values: list[cst.BaseExpression] = []
        for node in self.source.nodes_of(cst.Assign):
            here = self.flow.function(node)
            if any(dotted(each.target) == path for each in node.targets) and (here is function or here is None):
                values += tree.sides(node.value)
        counts = [value for value in values if self.code(value) != "0"]
        return counts, [value for value in values if value not in counts]

    def _runs_without(self, node: cst.CSTNode, around: Surroundings) -> cst.CSTNode | None:
        """What shows that the code runs without a GPU, too."""
        if around.is_fixed(node):
            return None  # device = "cuda"
        function = around.function(node)
        for test in self.flow.calls("torch.cuda.is_available"):
            if around.function(test) is function:
                return test
        chosen = around.chosen(node)
        return chosen.node if chosen is not None and chosen.is_handed_in else None


def _sizes(call: cst.Call) -> list[cst.BaseExpression]:
    """The sizes that a call names one by one, also in a tuple that others are added to."""
    found: list[cst.BaseExpression] = []
    for arg in call.args:
        value = arg.value
        while isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
            value = value.left
        found += [each.value for each in value.elements] if isinstance(value, cst.Tuple | cst.List) else [value]
    return found
