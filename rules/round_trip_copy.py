from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.loops import holder
from devlint.flow.names import dotted
from devlint.flow.scope import CONSTRUCTOR
from devlint.flow.value import DTYPE
from devlint.rule import Rule
from devlint.rules._afterwards import reads_of
from devlint.rules._exports import is_of_export
from devlint.rules._moves import short
from devlint.rules._places import origin_note, where
from devlint.rules._writes import writes_into


class RoundTripCopy(Rule):
    """A tensor is copied from a device to the host, and from there to a device again, with nothing done in between.

    ## What it does
    Reports a copy to a device of what has just come from one: `x.cpu().to(device)`, `torch.from_numpy(x.cpu().numpy())`
    that is moved back, `torch.tensor(x.item(), device=device)`, also through a name on the line above.

    ## Why is this bad
    The host waits for the device, takes the bytes, and sends them back. The device had them all the time. The way back
    comes from pageable memory, so that the host waits again, and a trip through numpy or Python values cuts the history
    that `backward()` needs.

    ## Example
    ```python
    import torch


    def smooth(logits: torch.Tensor, device):
        probabilities = torch.softmax(logits.to(device), dim=-1)
        return torch.tensor(probabilities.cpu().numpy()).to(device)
    ```

    ## Use instead
    ```python
    import torch


    def smooth(logits: torch.Tensor, device):
        probabilities = torch.softmax(logits.to(device), dim=-1)
        return probabilities.detach()
    ```

    ## Fix safety
    The fix drops the copy to the host where the copy back is asked of it at once (`x.cpu().to(device)`). It is unsafe:
    the result then shares memory with the tensor if that is there already. Where either is written in place afterwards,
    the trip made a copy that is needed: the fix puts `clone()` in its place. For other ways no fix is offered.

    ## Limits
    Silent where the host computes with the values, where anything is called between the two copies (what is on the host
    may be kept there to free memory, or as it was before a change), and for modules.

    Tentative, and kept back unless that is selected: in constructors outside of loops, which run once, and in
    code for an export.

    In the nursery: none of 4 findings in repositories that nobody had tuned for was worth a change. Two make the trip
    beside a wait that stays.

    ## References
    - [Performance tuning guide: avoid unnecessary CPU-GPU synchronization](https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization)
    - [torch.Tensor.cpu](https://pytorch.org/docs/stable/generated/torch.Tensor.cpu.html)
    """

    group = "nursery"
    fixable = "sometimes"

    def check(self) -> None:
        for move in self.flow.facts.moves.values():
            if move.target.is_there and move.value.is_tensor:
                self._look(move.node, move.receiver)
        for call in self.flow.calls("torch.tensor", "torch.as_tensor", "torch.asarray"):
            if call.args and self.flow.value(call).place.is_there and not call.args[0].star:
                self._look(call, call.args[0].value)

    def _look(self, back: cst.Call, node: cst.BaseExpression) -> None:
        """Follow a copy to a device back to where its values came from."""
        followed = False
        while True:
            if isinstance(node, cst.Name):
                found = None if followed else self._bound_above(back, node)
                if found is None:
                    return
                node, followed = found, True
            if not isinstance(node, cst.Call):
                return
            move, wait = self.flow.move(node), self.flow.facts.waits.get(node)
            if move is not None and move.target.is_host:
                if move.value.holds_tensors and move.value.place.is_there and move.value.kind != "module":
                    self._report(back, node, move.receiver)
                return
            if wait is not None:
                if wait.what in ("item", "tolist", "float", "int", "numpy") and wait.value.is_tensor:
                    self._report(back, node, wait.operand)
                return
            if self.flow.name_of(node) in _WRAPPING and len(node.args) >= 1 and not node.args[0].star:
                node = node.args[0].value
            elif isinstance(node.func, cst.Attribute) and self._keeps_values(node, node.func.attr.value):
                node = node.func.value
            else:
                return

    def _keeps_values(self, call: cst.Call, method: str) -> bool:
        if method == "to":
            return len(call.args) == 1 and self.flow.value(call.args[0].value).kind == DTYPE
        return method in _SAME_VALUES

    def _bound_above(self, back: cst.Call, name: cst.Name) -> cst.BaseExpression | None:
        """What the name is bound to by a statement above in the same block, where nothing is called in between."""
        line = self.enclosing(back, cst.SimpleStatementLine)
        block = self.parent(line) if line is not None else None
        if not isinstance(block, cst.IndentedBlock | cst.Module):
            return None
        statements = list(block.body)
        for statement in reversed(statements[: statements.index(line)]):
            if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
                return None
            assign = statement.body[0]
            if not isinstance(assign, cst.Assign):
                return None
            if any(dotted(target.target) == name.value for target in assign.targets):
                return None if self._is_read_besides(name, back, assign) else assign.value
            if any(isinstance(n, cst.Call) for n in tree.walk(assign)):
                return None
        return None

    def _is_read_besides(self, name: cst.Name, back: cst.Call, bound: cst.Assign) -> bool:
        """`ids = token.tolist(); x = torch.tensor(ids).cuda(); written += ids`: the host wants it, too."""
        function = self.flow.function(back)
        return function is not None and any(
            read is not name and self.source.comes_before(bound, read) for read in reads_of(self, function, name.value)
        )

    def _report(self, back: cst.Call, there: cst.Call, operand: cst.BaseExpression) -> None:
        value, name = self.flow.value(operand), short(self.code(operand))
        returned = self.flow.move(back)
        place = returned.target if returned is not None else self.flow.value(back).place
        written = self._written(back, operand)
        needed = [self.note(written, "it is written in place here: a copy is needed, and `clone()` makes it there")]
        self.report(
            back,
            f"`{name}` comes to the host only to be copied to {where(place)} again",
            notes=[
                self.note(there, "it is copied to the host here"),
                *origin_note(self, f"`{name}`", value),
                *(needed if written is not None else ()),
            ],
            fix=self._fix(back, there, operand, clone=written is not None),
            tentative=self._runs_once(back) or is_of_export(self, back),
        )

    def _runs_once(self, back: cst.Call) -> bool:
        """`def __init__(self, table): self.table = torch.tensor(table.numpy()).to(device)`"""
        function = self.flow.function(back)
        return function is not None and function.role == CONSTRUCTOR and self.flow.loop(back) is None

    def _written(self, back: cst.Call, operand: cst.BaseExpression) -> cst.CSTNode | None:
        """Where the function writes into what came back, or into what was copied, afterwards."""
        # labels = ids[:, 1:].cpu().to(device); labels[labels == pad] = -100
        statement = self.enclosing(back, cst.BaseSmallStatement)
        bound = [dotted(t.target) for t in statement.targets] if isinstance(statement, cst.Assign) else []
        end = self.source.offsets(back)[1]
        for path in filter(None, (*bound, holder(operand))):
            for write in writes_into(self, path):
                same = self.flow.function(write) is self.flow.function(back)
                if same and self.source.offsets(write)[0] >= end:
                    return write
        return None

    def _fix(self, back: cst.Call, there: cst.Call, operand: cst.BaseExpression, *, clone: bool) -> Fix | None:
        """`x.cpu().to(device)` -> `x.to(device)`, or `x.clone().to(device)`"""
        returned, move = self.flow.move(back), self.flow.move(there)
        if returned is None or move is None or returned.receiver is not there or there.lpar:
            return None
        if len(there.args) > (move.target_node is not None):
            return None  # x.to("cpu", torch.float64).to(device)
        _, kept = self.source.offsets(operand, outer=True)
        _, end = self.source.offsets(there)
        if "#" in self.source.text[kept:end]:
            return None
        title = "copy it on the device" if clone else "leave it on the device"
        return self.fix(title, self.replace_between(kept, end, ".clone()" if clone else ""), safe=False)


#: Functions that make a tensor or an array of the same values.
_WRAPPING = frozenset(
    "torch.tensor torch.as_tensor torch.asarray torch.from_numpy torch.Tensor torch.FloatTensor torch.LongTensor "
    "torch.DoubleTensor torch.IntTensor torch.BoolTensor numpy.array numpy.asarray".split()
)
_SAME_VALUES = (
    table.VIEWS
    | table.VIEWS_OR_COPIES
    | frozenset("detach numpy contiguous clone float double half bfloat16 long int bool astype copy".split())
)
