from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.facts import Wait
from devlint.flow.loops import working_loop
from devlint.flow.names import called_name, dotted, last_word, only_target
from devlint.flow.scope import Function
from devlint.flow.value import TENSOR, THING
from devlint.flow.waiting import picks_by_mask
from devlint.rule import Rule
from devlint.rules._afterwards import reads_of
from devlint.rules._arguments import handed_in
from devlint.rules._moves import short
from devlint.rules._neighbours import Told, report_apart
from devlint.rules._places import origin_note
from devlint.rules._reads import COMPREHENSIONS, READ_AS_NUMBERS, read_one_by_one
from devlint.rules._recurs import calls_of, is_deprecated
from devlint.rules._switches import tests_above


class HostSyncInForward(Rule):
    """A module's `forward` reads a value back from the device, and every call of it waits.

    ## What it does
    Reports `.item()`, `float(t)`, `print(t)`, `if t.any():`, an f-string, and whatever else needs a value on the host,
    in `forward` or `training_step` of a module and in what these call, where each call comes by it and the value could
    stay on the device: it decides whether to do what may as well be done always (`x.masked_fill(mask, 0)`), is computed
    with tensors again, is shown, is given to Lightning's `self.log` or kept; or a tensor is read element by element.

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
    No fix is offered: compute with the tensor itself, choose by `torch.where` instead of a branch, log and keep
    `loss.detach()`, read a tensor at once (`sizes.tolist()` above the loop).

    ## Limits
    By default only a wait that the host could do without is told. The rest is tentative: what is read for sizes and
    slices (also of the next call), handed to other libraries or returned on the host, or leaves a loop or the function
    early; a branch that spares work (`if not mask.any(): mask = None`), a check, a guard against overflow; another
    value in each turn of a loop; and what takes as much as there is of something, as an index that is a mask, or
    `nonzero`, does. So is a wait beside such, a value that gets a name first (`most = x.max().item()`, `x / most`), and
    a parameter that is `None` unless given, where the file does not show who gives it. Silent in `assert` and what
    raises or warns, behind caches, under tests that may come out otherwise (`if self.debug`, `if step % 100 == 0`,
    `torch.compiler.is_compiling()`), for `lengths` that `pack_padded_sequence` wants on the host, and in deprecated
    code.

    Of 21 findings of a first form in repositories that nobody had tuned for, 8 were worth a change, and 6 wrong; of the
    ten left in the projects that showed what to mend, all are right. It waits in the nursery since, of 28 in a thousand
    more repositories, strict readers held 21 for true, six for arguable and one for wrong: what they wait for is real,
    and most stand where a project seldom gets. Of 20 in 234 more, they held nine for true, and four for wrong: numbers
    and texts that stand beside tensors in a dictionary.

    ## References
    - [Performance tuning guide: avoid unnecessary CPU-GPU synchronization](https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization)
    - [CUDA semantics: asynchronous execution](https://pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution)
    """

    group = "nursery"

    def check(self) -> None:
        self._found: dict[str, list[Told]] = {}
        self._look()
        for found in self._found.values():
            report_apart(self, found)

    def _look(self) -> None:
        told: set[cst.CSTNode | str] = set()
        for wait in self.flow.facts.waits.values():
            if not self.flow.runs_each_step(wait.node):
                continue
            if is_deprecated(self.flow, wait.node):
                continue  # nobody speeds up what is kept for old callers
            if wait.what in _SELECTING:
                self._left(wait, "for how many there are", told)
                continue
            if working_loop(self.flow, wait.node) is not None:
                continue  # for layer in self.layers: x = layer(x); print(x.max())   host-sync-in-loop judges it
            single = read_one_by_one(self.flow, wait) if wait.what in READ_AS_NUMBERS else None
            if single is not None:
                read = f"{self.code(single[1])} in {self.flow.source.place(self.flow.source.offsets(single[0])[0])}"
                if read not in told:
                    told.add(read)
                    said = f"and reads `{short(self.code(single[1]), 40)}` element by element"
                    self._tell(wait, said, kind="elements")
                continue
            if self._repeats(wait.node):
                self._left(wait, "for another value in each turn", told)  # for row in rows: row[row > 0].tolist()
                continue
            why, by_name = self._needless(wait), self._counts_by_name(wait)
            statement = self.enclosing(wait.node, cst.If, cst.BaseSmallStatement)
            if (why is not None or by_name) and statement not in told:  # if t.any() and u.any():
                told.add(statement)
                tentative = why is None or self._is_doubtful(wait, why) or self._waits_beside(wait.node)
                self._tell(wait, why or _COUNTS, kind=why or _COUNTS, tentative=tentative)
            elif why is None and not by_name:
                self._left(wait, "for what the host goes on with", told)

    def _left(self, wait: Wait, why: str, told: set[cst.CSTNode | str]) -> None:
        """Tell, tentatively, of a wait that the host may need: whether a device could do without it, who knows."""
        if any(_SOMETIMES.search(self.code(test)) for test, _, _ in tests_above(self, wait.node)):
            return  # if self.global_rank == 0 and batch_idx == 0: print(loss.item())
        if "length" in self.code(wait.operand) and "pack_padded_sequence" in self.source.text:
            return  # which wants them on the host
        statement = self.enclosing(wait.node, cst.If, cst.BaseSmallStatement)
        if statement is not None and statement not in told:
            told.add(statement)
            self._tell(wait, why, kind=why, tentative=True)

    def _is_doubtful(self, wait: Wait, why: str) -> bool:
        """Whether what is tested may be `None` in each call: a parameter that nobody is seen to hand in."""
        node: cst.BaseExpression = wait.operand if why is _MEANS_NONE else _asked(wait.operand)
        function = self.flow.function(wait.node)
        if why not in (_MEANS_NONE, _FILLS) or not isinstance(node, cst.Name) or function is None:
            return False
        # def forward(self, x, scale=None): if scale: x = self.widen(x, scale)
        return not self._is_handed_in(function, node.value, unknown=why is _FILLS)

    def _is_handed_in(
        self, function: Function, name: str, *, unknown: bool, seen: frozenset[Function] = frozenset()
    ) -> bool:
        """Whether a call of the file hands in something else than `None`; ``unknown``: what to say where none does."""
        param = function.param(name)
        if param is None or dotted(param.default) != "None" or function in seen:
            return unknown
        calls = calls_of(self.flow, function)
        if not calls:
            return unknown
        for call in calls:
            given, caller = handed_in(call, function, name), self.flow.function(call)
            if any(arg.star for arg in call.args):
                return True
            if isinstance(given, cst.Name) and given.value != "None" and caller is not None:
                # def forward(self, x, mask=None): return self.attend(x, mask)
                if self._is_handed_in(caller, given.value, unknown=True, seen=seen | {function}):
                    return True
            elif given is not None and dotted(given) != "None":
                return True
        return False

    def _waits_beside(self, node: cst.CSTNode) -> bool:
        """Whether code that runs whenever the node does selects by values, and so waits in any case."""
        # middle = angles[hot > 0].median(); self.scale = middle.item()
        function, blocks = self.flow.function(node), set(self._blocks(node))
        assert function is not None
        return any(
            isinstance(n, cst.Subscript | cst.Call)
            and (self._selects(n) if isinstance(n, cst.Call) else picks_by_mask(self.flow, n))
            and next(self._blocks(n), None) in blocks
            for n in tree.walk(function.node.body)
        )

    def _selects(self, node: cst.Call) -> bool:
        wait = self.flow.facts.waits.get(node)
        return wait is not None and wait.what in _SELECTING

    def _blocks(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The blocks of the function around a node, the innermost first."""
        above = self.parent(node)
        while above is not None and not isinstance(above, cst.FunctionDef):
            if isinstance(above, cst.IndentedBlock | cst.Lambda | cst.BaseComp):
                yield above
            above = self.parent(above)

    def _counts_by_name(self, wait: Wait) -> bool:
        """`most = x.max().item(); return x / most`: the name is there to compute with tensors alone."""
        assign, function = self.parent(wait.node), self.flow.function(wait.node)
        target = only_target(assign) if assign is not None else None
        if wait.what not in ("item", "float") or not isinstance(target, cst.Name) or function is None:
            return False
        reads = reads_of(self, function, target.value)
        return bool(reads) and all(self._meets_tensor(read) for read in reads)

    def _meets_tensor(self, read: cst.Name) -> bool:
        child: cst.CSTNode = read
        above = self.parent(child)
        while isinstance(above, cst.UnaryOperation | cst.BinaryOperation):
            if isinstance(above, cst.BinaryOperation):
                other = self.flow.value(above.left if above.right is child else above.right)
                if other.kind in (TENSOR, THING) and other.place.is_there:
                    return True
            child, above = above, self.parent(above)
        return False

    def _repeats(self, node: cst.CSTNode) -> bool:
        loop = self.enclosing(node, *_REPEATING, cst.FunctionDef)
        return isinstance(loop, _REPEATING) and self._is_inside(node, loop)

    def _needless(self, wait: Wait) -> str | None:
        """What the value is read for, where the host could do without it."""
        parents = self.source.parents
        child, current = wait.node, parents[wait.node]
        if wait.what in ("print", "format", "str", "repr"):
            return "to show it"
        while True:
            if isinstance(current, cst.If | cst.IfExp) and child is current.test:
                return self._branches(current)
            if wait.what in ("item", "float", "int") and isinstance(current, cst.BinaryOperation):
                other = current.right if current.left is child else current.left
                if self.flow.value(other).kind in (TENSOR, THING) and self.flow.value(other).place.is_there:
                    return _COUNTS
            elif not isinstance(current, _TRANSPARENT):
                return self._kept(child, current) if wait.what in ("item", "float", "int", "tolist") else None
            child, current = current, parents[current]

    def _branches(self, node: cst.If | cst.IfExp) -> str | None:
        """Why a branch could do without the host: it is cheap enough to be taken always, or `None` is tested for."""
        if isinstance(node.test, cst.Name):
            return _MEANS_NONE if self._may_be_none(node.test) else None  # if guidance: h = h + self.embed(guidance)
        mask = self._tested_mask(node.test)
        if not mask or isinstance(node, cst.IfExp) or node.orelse is not None:
            return None
        # if mask.any(): mask = self.widen(mask); x = self.fill(x, mask)   may spare more than the test costs
        lines = node.body.body
        statements = [s for line in lines for s in (line.body if isinstance(line, cst.SimpleStatementLine) else [line])]
        filled = all(isinstance(s, cst.Assign) and self._fills(s.value, mask) for s in statements)
        return _FILLS if filled and not self._tested_again(node) else None

    def _tested_again(self, node: cst.If) -> bool:
        """Whether the function asks a mask once more: one wait would stay."""
        # if pad.any(): x = x.masked_fill(pad, 0)   and then   return x, pad if pad.any() else None
        function = self.flow.function(node)
        return any(
            wait.node is not node.test
            and self.flow.function(wait.node) is function
            and self.enclosing(wait.node, cst.If, cst.IfExp) is not node
            and last_word(dotted(_asked(wait.operand))).endswith("mask")
            for wait in self.flow.facts.waits.values()
            if wait.what == "bool"
        )

    def _tested_mask(self, node: cst.BaseExpression) -> str:
        """`mask` of `mask.any()`, `mask is not None and mask.any()`, `mask.max() > 0`."""
        if isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.And):
            node = node.right
        if isinstance(node, cst.Comparison) and self.code(node.comparisons[0].comparator) == "0":
            node = node.left
        if not isinstance(node, cst.Call) or (node.args and self.flow.name_of(node) != "torch.any"):
            return ""
        if node.args:
            return dotted(node.args[0].value)
        is_test = isinstance(node.func, cst.Attribute) and node.func.attr.value in ("any", "max", "sum")
        return dotted(node.func.value) if is_test and isinstance(node.func, cst.Attribute) else ""

    def _fills(self, node: cst.BaseExpression, mask: str) -> bool:
        """`x.masked_fill(mask, 0)`, also of another shape or type: what does nothing where the mask is empty."""
        filled = False
        for inner in tree.walk(node):
            if not isinstance(inner, cst.Call):
                continue
            name = called_name(inner)
            if name in ("masked_fill", "masked_fill_") and inner.args:
                filled = any(
                    isinstance(n, cst.Name | cst.Attribute) and dotted(n) == mask
                    for n in tree.walk(inner.args[0].value)
                )
            elif name not in _SHAPING:
                return False
        return filled

    def _may_be_none(self, node: cst.Name) -> bool:
        """Whether the function gives the name `None` somewhere: `else: guidance = None`, `guidance=None`."""
        function = self.flow.function(node)
        if function is None:
            return False
        for param in function.params:
            if param.name.value == node.value and isinstance(param.default, cst.Name):
                return param.default.value == "None"
        return any(
            isinstance(n, cst.Assign)
            and isinstance(n.value, cst.Name)
            and n.value.value == "None"
            and any(dotted(t.target) == node.value for t in n.targets)
            for n in tree.walk(function.node.body)
        )

    def _kept(self, child: cst.CSTNode, current: cst.CSTNode) -> str | None:
        """`self.last_loss = loss.item()`, `self.log("loss", loss.item())`."""
        # scores["loss"] = loss.item()   may be what the caller wants on the host
        if isinstance(current, cst.Assign) and all(self.code(t.target).startswith("self.") for t in current.targets):
            bounds = any(self._bounds_slices(t.target) for t in current.targets)
            return "to keep it" if not bounds else None
        if isinstance(current, cst.Arg):
            call = self.parent(current)
            name = dotted(call.func) if isinstance(call, cst.Call) else ""
            if name == "self.log" or (name.startswith("self.") and name.endswith(".append")):
                return "to keep it"
        return None

    def _bounds_slices(self, attribute: cst.BaseExpression) -> bool:
        """Whether a method cuts by what is kept, or chooses by it, and so needs it on the host."""
        # end = self.place + 3; x = x[:, :end]; self.place = x.argmax().item()
        function, path = self.flow.function(attribute), dotted(attribute)
        for owner in function.cls.lineage if function is not None and function.cls is not None else ():
            for method in owner.methods.values():
                for read in (
                    n for n in tree.walk(method.node.body) if isinstance(n, cst.Attribute) and dotted(n) == path
                ):
                    above = self._computed_from(read)
                    target = only_target(above)
                    if isinstance(above, _OF_HOST):
                        return True
                    if isinstance(target, cst.Name) and any(
                        isinstance(self._computed_from(n), _OF_HOST) for n in tree.named(method.node.body, target.value)
                    ):
                        return True
        return False

    def _computed_from(self, node: cst.CSTNode) -> cst.CSTNode:
        """What stands around a name and the sums that it is part of."""
        above = self.source.parents[node]
        while isinstance(above, cst.UnaryOperation | cst.BinaryOperation):
            above = self.source.parents[above]
        return above

    def _is_inside(self, node: cst.CSTNode, loop: cst.CSTNode) -> bool:
        """Whether a node is evaluated in each turn: not `for i in range(n.item())`."""
        child, current = node, self.source.parents[node]
        while current is not loop:
            child, current = current, self.source.parents[current]
        if isinstance(loop, cst.For):
            return child is loop.body
        return not isinstance(child, cst.CompFor)

    def _tell(self, wait: Wait, why: str, *, kind: str, tentative: bool = False) -> None:
        function = self.flow.function(wait.node)
        assert function is not None
        shown = wait.operand if wait.what in _SHOWN else wait.node
        while isinstance(shown, cst.BooleanOperation):
            shown = shown.right  # if mask is not None and mask.any():
        if wait.what == "index":
            shown = self.enclosing(wait.node, cst.Subscript) or shown  # x[:length]
        code = short(self.code(shown), 60)
        self._found.setdefault(kind, []).append(
            Told(
                wait.node,
                f"`{code}`: each call of `{function.name}` waits for the device, {why}",
                also=f"`{code}` waits for the device, too",
                notes=origin_note(self, f"`{' '.join(self.code(wait.operand).split())[:60]}`", wait.value),
                tentative=tentative,
            )
        )


def _asked(node: cst.BaseExpression) -> cst.BaseExpression:
    """`pad` of `pad.any()`."""
    while isinstance(node, cst.BooleanOperation):
        node = node.right
    return node.func.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else node


_SOMETIMES = re.compile(r"step|idx|iter|rank|epoch|debug|verbose|log|script|compil|trac|export|check", re.IGNORECASE)
_COUNTS = "to compute with a tensor again"
_FILLS = "to fill by a mask that could always be used"
_MEANS_NONE = "to choose a branch, where `is not None` may be meant"
_SHAPING = frozenset(
    "float half to type_as view reshape unsqueeze squeeze expand expand_as transpose t permute bool".split()
)
#: Waits for what a size depends on, and what tensor-from-device-scalars reports.
_SELECTING = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "torch.")
    for name in "mask nonzero argwhere where masked_select unique unique_consecutive one_hot repeat_interleave "
    "bincount".split()
) | {"tensor from device scalars"}
_SHOWN = ("print", "format", "str", "repr", "bool")
#: Where only a number of the host will do.
_OF_HOST = (cst.Slice, cst.Index, cst.Comparison, cst.ComparisonTarget, cst.If, cst.While)
_REPEATING = (cst.For, *COMPREHENSIONS)
_TRANSPARENT = (cst.UnaryOperation, cst.BooleanOperation, cst.Comparison, cst.ComparisonTarget, cst.BinaryOperation)
