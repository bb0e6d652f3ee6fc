from __future__ import annotations

import libcst as cst

from devlint.finding import Fix
from devlint.flow.facts import Move
from devlint.flow.names import dotted, names_bound
from devlint.flow.scope import Function
from devlint.flow.value import TENSOR
from devlint.rule import Rule
from devlint.rules._writes import writes_into


class MoveTakenForCopy(Rule):
    """A moved tensor is changed in place, and the original is used afterwards as if it were another one.

    ## What it does
    Reports `y = x.to(device)`, `x.cuda()`, `x.cpu()` and `x.cpu().numpy()` where `y` is changed in place and `x` is
    used afterwards, or is an attribute.

    ## Why is this bad
    A move gives the very same tensor where nothing has to move, and `numpy()` shares the memory of a host tensor. So
    `x` is changed, too, where it is on that device already, and is not elsewhere: the same code computes one thing on
    the host and another on a GPU.

    ## Example
    ```python
    import torch


    def clipped(scores: torch.Tensor):
        array = scores.cpu().numpy()
        array[array < 0] = 0
        return array, scores.mean()
    ```

    ## Use instead
    ```python
    import torch


    def clipped(scores: torch.Tensor):
        array = scores.cpu().clone().numpy()
        array[array < 0] = 0
        return array, scores.mean()
    ```

    ## Fix safety
    The fix asks for a copy: `copy=True`, or `.clone()`. It is unsafe: what is computed changes where the two were one.

    ## Limits
    Silent where a type is converted in the same call, where the two places are surely different, and where the original
    is read no more in the function, although whoever handed it in may. Of five in one repository, readers held three
    for true and two for arguable.

    ## References
    - [torch.Tensor.to](https://pytorch.org/docs/stable/generated/torch.Tensor.to.html)
    - [torch.Tensor.numpy](https://pytorch.org/docs/stable/generated/torch.Tensor.numpy.html)
    """

    group = "nursery"
    fixable = "always"

    def check(self) -> None:
        for move in self.flow.facts.moves.values():
            if move.value.kind == TENSOR:  # a batch that is no tensor may move in place
                self._moved(move)

    def _moved(self, move: Move) -> None:
        function, original = self.flow.function(move.node), _root(move.receiver)
        if function is None or original is None or not self._may_be_no_copy(move):
            return
        taken: cst.BaseExpression = move.node
        above = self.parent(taken)
        if isinstance(above, cst.Attribute) and above.attr.value == "numpy":  # x.cpu().numpy()
            call = self.parent(above)
            if not isinstance(call, cst.Call) or call.args or not move.target.is_host:
                return
            taken, above = call, self.parent(call)
        if not isinstance(above, cst.Assign) or above.value is not taken or len(above.targets) != 1:
            return
        name = above.targets[0].target
        if not isinstance(name, cst.Name) or name.value == original:
            return
        change = self._changed_in_place(name.value, above, function)
        if change is None or not self._is_used_after(original, change, above, function):
            return
        self.report(
            taken,
            f"`{name.value}` is `{original}` itself where that is there already: a change to one changes both",
            notes=[self.note(change, f"`{name.value}` is changed in place here")],
            fix=self._fix(move),
        )

    def _fix(self, move: Move) -> Fix | None:
        edit = (
            self.add_argument(move.node, "copy=True") if move.how == "to" else self.insert_after(move.node, ".clone()")
        )
        return self.fix("ask for a copy", edit, safe=False) if edit is not None else None

    def _may_be_no_copy(self, move: Move) -> bool:
        # x.to("cpu", torch.float64), x.to(device, copy=True)
        allowed = {"device", "non_blocking", "memory_format"}
        if any(arg.star or (arg.keyword is not None and arg.keyword.value not in allowed) for arg in move.node.args):
            return False
        if move.how == "to" and len([arg for arg in move.node.args if arg.keyword is None]) > 1:
            return False
        # torch.zeros(3).to("cuda")  is always copied
        return not (move.value.place.is_host and move.target.kind == "fixed")

    def _changed_in_place(self, name: str, after: cst.CSTNode, function: Function) -> cst.CSTNode | None:
        """The first change of what the name is bound to, if that is still the moved tensor then."""
        changes = list(writes_into(self, name))
        if not changes:
            return None
        start = self.source.offsets(after)[1]
        later = [node for node in changes if self.flow.function(node) is function and self._start(node) > start]
        if not later:
            return None
        first = min(later, key=self._start)
        for assign in self.source.nodes_of(cst.Assign):
            bound = names_bound(*(target.target for target in assign.targets))
            between = start < self._start(assign) < self._start(first)
            if name in bound and between and self.flow.function(assign) is function:
                return None
        return first

    def _is_used_after(self, original: str, change: cst.CSTNode, move: cst.CSTNode, function: Function) -> bool:
        """Whether the original is read after the change, or kept beyond the function."""
        if original.startswith("self."):
            # self.table = table  says that it is meant
            stores = [t for assign in self.source.nodes_of(cst.Assign) for t in assign.targets]
            return not any(dotted(t.target) == original and self.flow.function(t) is function for t in stores)
        start, end = self._start(move), self.source.offsets(change)[1]
        for name in self.source.nodes_of(cst.Name):
            at = self._start(name)
            if name.value != original or at < self.source.offsets(move)[1] or self.flow.function(name) is not function:
                continue
            if isinstance(self.parent(name), cst.AssignTarget):
                return False  # it is another tensor from here on
            above = self.parent(name)
            if isinstance(above, cst.Attribute) and above.attr.value in _NO_VALUES:
                continue
            if at > end > start and not self._excludes(change, name):
                return True
        return False

    def _excludes(self, change: cst.CSTNode, use: cst.CSTNode) -> bool:
        """Whether the branch of the change ends before the use: ``if fast: y += 1; return y``."""
        above = self.parent(change)
        while above is not None and not isinstance(above, cst.FunctionDef):
            if isinstance(above, cst.If):
                inside: cst.CSTNode | None = use
                while inside is not None and inside is not above:
                    inside = self.parent(inside)
                if inside is above:
                    return True
                body = above.body.body
                last = body[-1] if body else None
                if isinstance(last, cst.SimpleStatementLine) and isinstance(
                    last.body[-1], cst.Return | cst.Raise | cst.Continue | cst.Break
                ):
                    return True
            above = self.parent(above)
        return False

    def _start(self, node: cst.CSTNode) -> int:
        return self.source.offsets(node)[0]


def _root(node: cst.BaseExpression) -> str | None:
    """``x`` of ``x.detach()``: what shares its memory."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "detach":
        node = node.func.value
    name = dotted(node)
    return name if isinstance(node, cst.Name) or name.startswith("self.") else None


_NO_VALUES = frozenset({"shape", "device", "dtype", "size", "dim", "ndim", "is_cuda", "numel"})
