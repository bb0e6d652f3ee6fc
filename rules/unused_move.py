from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.hypothesis import asks_for_device
from devlint.flow.names import names_bound
from devlint.flow.place import DIFFERENT, SAME, relation
from devlint.flow.value import MODULE
from devlint.flow.waiting import is_constant
from devlint.rule import Rule
from devlint.rules._copied import is_copied
from devlint.rules._errors import is_expected
from devlint.rules._filled import is_nothing
from devlint.rules._measuring import is_named_for_measuring
from devlint.rules._moves import destination
from devlint.rules._switches import tests_above
from devlint.rules._unread import Unread, unread_moves


class UnusedMove(Rule):
    """A tensor is copied to a device, and nothing reads the copy.

    ## What it does
    Reports a move whose result a function binds to a name that it never reads: `y = y.to(device)` of a batch whose
    labels nothing asks for.

    ## Why is this bad
    The copy is made all the same, in each turn of the loop: it takes time on the bus, memory on the device and, from
    pageable memory, the host waits for it.

    ## Example
    ```python
    import torch
    from torch.utils.data import DataLoader


    def embed(model: torch.nn.Module, loader: DataLoader, device: torch.device):
        found = []
        for x, y in loader:
            x = x.to(device)
            y = y.to(device)
            found.append(model(x).cpu())
        return torch.cat(found)
    ```

    ## Use instead
    ```python
    import torch
    from torch.utils.data import DataLoader


    def embed(model: torch.nn.Module, loader: DataLoader, device: torch.device):
        found = []
        for x, y in loader:
            x = x.to(device)
            found.append(model(x).cpu())
        return torch.cat(found)
    ```

    ## Fix safety
    The fix takes the line out, which changes nothing but the time and the memory: safe. None is offered where the line
    is all that its block holds, or holds more than the move.

    ## Limits
    Silent for what may be a module, which moves in place; where another function may read the name; for names that
    begin with `_`; in tests; where a loop goes through a container and moves its elements, which `discarded-move`
    speaks of; and where the move is made to see whether it raises, or to measure it.

    Silent, too, for what is there already by what a method of the file returns, and for `torch.rand(1, 1).to(device)`,
    which sets up the device. Tentative, and kept back unless that is selected: another name for what may be there
    already, what an operation above may have needed there, the first turn of a loop alone, and code that is copied from
    others.

    In the nursery: of 13 findings in repositories that were new to it, seven were worth a change and none was wrong;
    the others stood in code that never runs, or moved nothing, which is silent now. Of 35 of a first form, 25 were. Of
    20 in 234 more, they held eleven for true and four for wrong, which are silent or tentative now.

    ## References
    - [torch.Tensor.to](https://pytorch.org/docs/stable/generated/torch.Tensor.to.html)
    """

    group = "nursery"
    fixable = "sometimes"

    def check(self) -> None:
        if self.in_tests:
            return
        for unread in unread_moves(self):
            if relation(unread.move.value.place, unread.move.target) == SAME:
                continue  # a, b = self.split(x); b = b.to(self.device)   of what is there already: nothing is copied
            if self._is_of_tensor(unread) and not self._is_empty(unread) and not self._is_wanted(unread):
                self.report(
                    unread.move.node,
                    f"`{unread.name.value}` is copied to {destination(self, unread.move)}, and nothing reads the copy",
                    fix=self._fix(unread),
                    tentative=not self._is_sure(unread),
                )

    def _is_of_tensor(self, unread: Unread) -> bool:
        """Whether what is moved is surely a tensor: modules, graphs and other objects move in place."""
        if unread.is_element and not self._is_part_of_batch(unread):
            return False  # for x in rows: x = x.to(device)   means to move what is in `rows`: discarded-move
        return unread.move.value.is_tensor or self._is_part_of_batch(unread)

    def _is_empty(self, unread: Unread) -> bool:
        """``rows = torch.Tensor().to(device)``, which copies nothing."""
        made = unread.move.value.origin
        return isinstance(made, cst.Call) and is_nothing(self, made)

    def _is_part_of_batch(self, unread: Unread) -> bool:
        """``for x, y in loader:``, where ``y`` is moved."""
        loop, moved = unread.loop, unread.move.receiver
        if loop is None or not isinstance(moved, cst.Name) or moved.value not in names_bound(loop.target):
            return False
        known = self.flow.loop(unread.assign)
        return known is not None and known.loader and isinstance(loop.target, cst.Tuple | cst.List)

    def _is_sure(self, unread: Unread) -> bool:
        """Whether there is a copy, and nobody meant to read it."""
        if self._comes_late(unread) or is_copied(self, unread.assign) or self._is_for_first(unread):
            return False
        place, target = unread.move.value.place, unread.move.target
        # def noise(self, x): z = torch.randn(9); z = z.to(x.device)   made on the host, wherever `x` is
        apart = relation(place, target) == DIFFERENT or (place.is_host and target.kind == "param")
        return apart or self._is_part_of_batch(unread) or self._ends_here(unread)

    def _ends_here(self, unread: Unread) -> bool:
        """Whether the name is what is moved, and nothing asks for it again: ``rows = rows.cpu()``, wherever it was."""
        moved, function = unread.move.receiver, self.flow.function(unread.assign)
        if not isinstance(moved, cst.Name) or moved.value != unread.name.value:
            return False
        if function is not None and moved.value in function.param_names:
            return False  # whoever calls it may have moved it
        # if rows.device != home: rows = rows.to(home)
        return not any(asks_for_device(self.code(test)) for test, _, _ in tests_above(self, unread.assign))

    def _is_for_first(self, unread: Unread) -> bool:
        """``for x, y in loader: x = x.to(device); self.shape = y.shape; break``, which runs once."""
        loop = self.flow.loop(unread.assign)
        return loop is not None and any(
            isinstance(line, cst.SimpleStatementLine) and any(isinstance(each, cst.Break) for each in line.body)
            for line in loop.node.body.body
        )

    def _comes_late(self, unread: Unread) -> bool:
        """``scale = torch.rand(2); x = x * scale; scale = scale.to(x.device)``, which belongs further up."""
        move, name = unread.move, unread.name.value
        if move.target.is_host or self.code(move.receiver) != name:
            return False
        around = self.enclosing(unread.assign, cst.FunctionDef) or self.source.module
        return any(
            self._computes(node)
            and self.source.comes_before(node, unread.assign)
            and any(isinstance(part, cst.Name) and part.value == name for part in tree.walk(node))
            for node in tree.walk(around)
        )

    def _computes(self, node: cst.CSTNode) -> bool:
        """Whether it needs its operands on one device: an operation, or the call of a model: ``net(x, mask)``."""
        if isinstance(node, cst.Call):
            return self.flow.value(node.func).kind == MODULE
        return isinstance(node, cst.BinaryOperation | cst.AugAssign)

    def _is_wanted(self, unread: Unread) -> bool:
        """Whether the copy is made for its effect: ``try: x = x.to(name)``, to see whether there is such a device."""
        made = unread.move.receiver
        if isinstance(made, cst.Call) and self.flow.name_of(made) in _FACTORIES and _are_written_out(made):
            return True  # torch.rand(1, 1).to(device), before a kernel is loaded: it sets up the device
        function = self.flow.function(unread.assign)
        measures = function is not None and is_named_for_measuring(function)
        return measures or is_expected(self, unread.assign)

    def _fix(self, unread: Unread) -> Fix | None:
        line = self.enclosing(unread.assign, cst.SimpleStatementLine)
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return None
        if unread.assign.value is not unread.move.node:
            return None  # x, y = x.to(device), y.to(device)
        edit = self.drop_statement(line)
        return self.fix("drop the move", edit, safe=True) if edit is not None else None


#: What makes a tensor of nothing but sizes.
_FACTORIES = frozenset(f"torch.{name}" for name in "zeros ones empty rand randn tensor".split())


def _are_written_out(made: cst.Call) -> bool:
    return all(is_constant(arg.value) for arg in made.args if arg.keyword is None)
