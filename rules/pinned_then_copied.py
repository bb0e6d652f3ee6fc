from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.finding import Edit
from devlint.flow import Value
from devlint.rule import Rule
from devlint.rules._moves import has_memory_of_its_own, short


class PinnedThenCopied(Rule):
    """A tensor is pinned for one copy, and the host waits for both.

    ## What it does
    Reports `x.pin_memory().to(device)`, also through a name that nothing else reads: a tensor that is pinned and then
    copied once, by the same function, with a copy that waits.

    ## Why is this bad
    To pin is to take page-locked memory, which costs far more than ordinary memory, and to copy the tensor into it, by
    the host. A copy that waits would have got there from the tensor as it was: CUDA's driver brings pageable memory
    over piece by piece through pinned memory of its own. The work is done twice, one after the other. Pinning pays
    where another thread does it, as in a `DataLoader`, or where one pinned tensor is copied many times.

    ## Example
    ```python
    import numpy as np
    import torch


    def load(path, device):
        data = torch.from_numpy(np.load(path))
        return data.pin_memory().to(device)
    ```

    ## Use instead
    ```python
    import numpy as np
    import torch


    def load(path, device):
        data = torch.from_numpy(np.load(path))
        return data.to(device)
    ```

    ## Fix safety
    The fix drops `pin_memory()`. It is safe: the copy holds the same values.

    ## Limits
    In the nursery: it has been seen to fire in too little real code to say how often a reader agrees. Silent with
    `non_blocking=True`: pinning on the spot costs more than a plain copy then, too, but the host does not wait for the
    work that is queued on the device, which may be what is wanted. Silent where the tensor may be pinned already (then
    nothing is copied), where it is pinned in a branch, in another function or above a loop, and where the pinned
    tensor is read again.

    ## References
    - [A guide on good usage of non_blocking and pin_memory()](https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html)
    - [torch.Tensor.pin_memory](https://pytorch.org/docs/stable/generated/torch.Tensor.pin_memory.html)
    """

    group = "nursery"
    fixable = "always"

    def check(self) -> None:
        for move in self.flow.facts.moves.values():
            if move.non_blocking is False and has_memory_of_its_own(move.target):
                self._judge(move.node, move.receiver, move.value)
        for copy in self.flow.facts.copies.values():
            if copy.non_blocking is False and has_memory_of_its_own(copy.into.place):
                self._judge(copy.node, copy.source, copy.value)

    def _judge(self, copy: cst.Call, source: cst.BaseExpression, value: Value) -> None:
        if not (value.holds_tensors and value.place.is_host):
            return  # batch.pin_memory().to(device): an object of theirs may copy in the background by itself
        pin: cst.BaseExpression | None = source
        if isinstance(source, cst.Name):
            pin = self._bound_to(source, copy)  # x = x.pin_memory(), and then x.to(device)
        receiver = _pinned(pin)
        # of a batch that its loader has pinned this makes no copy
        if not isinstance(pin, cst.Call) or receiver is None or self.flow.value(receiver).pinned:
            return
        name = short(self.code(receiver))
        self.report(
            copy,
            f"`{name}` is pinned for this copy alone, and the host waits for both: a plain copy does less",
            notes=[self.note(pin, "it is copied into pinned memory here")],
            fix=self.fix("drop `pin_memory()`", self._drop(pin, receiver), safe=True),
        )

    def _bound_to(self, name: cst.Name, copy: cst.Call) -> cst.BaseExpression | None:
        """What a statement above in the same block binds the name to, where only the copy reads it afterwards."""
        line = self.enclosing(copy, cst.SimpleStatementLine, cst.CompFor, cst.BaseComp, cst.Lambda)
        if not isinstance(line, cst.SimpleStatementLine):
            return None  # [x.to(device) for device in devices]
        block = self.parent(line)
        if not isinstance(block, cst.IndentedBlock | cst.Module):
            return None
        at = next(i for i, statement in enumerate(block.body) if statement is line)
        for statement in reversed(block.body[:at]):
            if not self._mentions(statement, name):
                continue
            if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
                return None
            assign = statement.body[0]
            if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
                return None
            target = assign.targets[0].target
            bound = isinstance(target, cst.Name) and target.value == name.value
            return assign.value if bound and self._read_once(name, line) else None
        return None

    def _read_once(self, name: cst.Name, line: cst.SimpleStatementLine) -> bool:
        """Whether the line reads the name for the copy alone, and binds it anew or is the last to mention it."""
        mentions = tree.named(line, name.value)
        rebound = any(isinstance(self.parent(n), cst.AssignTarget) for n in mentions)
        if len(mentions) != 1 + rebound:
            return False
        scope = self.enclosing(line, cst.FunctionDef) or self.source.module
        end = self.source.offsets(line)[1]
        later = tree.named(scope, name.value)
        if self.flow.loop(line) is not None and not rebound:
            return False  # it may be read at the top of the next iteration
        return rebound or all(self.source.offsets(n)[0] < end for n in later)

    def _mentions(self, statement: cst.CSTNode, name: cst.Name) -> bool:
        return bool(tree.named(statement, name.value))

    def _drop(self, pin: cst.Call, receiver: cst.BaseExpression) -> Edit:
        assign = self.parent(pin)
        if isinstance(assign, cst.Assign) and self.code(assign.targets[0].target) == self.code(receiver):
            line = self.parent(assign)
            assert isinstance(line, cst.SimpleStatementLine)
            return self.delete_line(line)  # x = x.pin_memory()
        _, kept = self.source.offsets(receiver, outer=True)
        return self.replace_between(kept, self.source.offsets(pin)[1], "")


def _pinned(node: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """``x`` of ``x.pin_memory()``."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "pin_memory":
        return node.func.value
    return None
