from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TypeGuard

import libcst as cst

from devlint import tree
from devlint.finding import Edit, Fix
from devlint.flow.facts import Move
from devlint.flow.names import called_name
from devlint.flow.value import DEVICE
from devlint.rule import Rule
from devlint.rules._computed_first import computed_first
from devlint.rules._filled import is_nothing
from devlint.rules._joined import Joined
from devlint.rules._made import (
    Made,
    Named,
    head,
    is_stored,
    leaves_gaps,
    mentions_of,
    moves_by_type,
    statement_in,
    through_a_name,
)
from devlint.rules._moves import destination
from devlint.rules._neighbours import Told, report_together
from devlint.rules._paid_again import happens_again, is_paid_again, is_written_from_host, may_stay_on_host

#: Arguments of `.to` that mean nothing once the tensor is there.
_ABOUT_THE_COPY = frozenset({"device", "other", "non_blocking", "copy"})


class CreateThenMove(Rule):
    """A tensor is made on the host and then copied to the device that could have made it.

    ## What it does
    Reports a factory call (`torch.zeros`, `torch.arange`, `torch.randn`, `torch.ones_like`, ...) whose result is moved
    to a device (`.to(device)`, `.to(x)`, `.type_as(x)`) and used for nothing else: at once, behind calls that only
    rearrange it, or through a name that nothing else reads; and what is put together from nothing but such results
    (`torch.stack(torch.meshgrid(torch.arange(h), torch.arange(w)))`). It speaks where that happens again and again: in
    a loop that drives a model, in `forward` and what it calls, in what a loop of the file calls, and in functions that
    follow an argument (`.to(x.device)`) or compute with one. What stands in statements close to one another, or is made
    by the same expression in one function, is one finding.

    ## Why is this bad
    The host fills memory that nobody reads there, and the copy that follows comes from pageable memory, so that the
    host waits for it. With `device=`, the device fills its own memory and the host goes on.

    ## Example
    ```python
    import torch
    from torch import nn


    class Causal(nn.Module):
        def forward(self, x):
            mask = torch.ones(x.size(0), x.size(0)).to(x.device)
            return x * mask.tril()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    class Causal(nn.Module):
        def forward(self, x):
            mask = torch.ones(x.size(0), x.size(0), device=x.device)
            return x * mask.tril()
    ```

    ## Fix safety
    The fix gives the factory `device=` and drops the move, or only its device where it changes the type, too. It is
    safe: the values stay the same, but for the last digit, perhaps, of what `torch.linspace`, `torch.logspace` and
    windows compute. For random factories it is unsafe, since a device draws other numbers from the same seed than the
    host does; so it is behind `expand`, `narrow` or `x[:, :n]`, whose results share memory or leave gaps in it, as
    their copy on the device does not (writing to it and `view` may raise then); for `.cuda(index)` with an index that
    may be `None`, for `.to(x.device.type)` and `.type(x.type())`, which forget the index: the fix writes
    `device=x.device`; and for what is put together. No fix is offered where the device may be another one, or not bound
    yet, at the factory.

    ## Limits
    Silent for values that come from Python or numpy (`torch.tensor(xs)`): `device=` makes the very same copy of them.
    Silent with `generator=`, `pin_memory=`, `requires_grad=True` and an explicit `device="cpu"`; where something is
    computed, written or read between; where one tensor is copied several times, or is then written from the host; for
    `linspace` of integers, which a device rounds in another way, and for tensors without elements. Silent where
    `self.device` may be the host's: it was read from another module in a constructor, or all callers move what they get
    once more.

    Tentative is what is computed on the host of nothing but such results and numbers, and copied then
    (`(torch.rand(n, 1) < 0.5).repeat(1, 64).to(x.device)`): twenty such findings were opened, and all were
    true.

    Tentative, too, and kept back unless that is selected: what happens once (in constructors, in the main code outside
    of loops, once an epoch, in what a module or a table keeps); under a flag that is off by default and that nothing in
    the file sets; in deprecated code; in code that says it was copied, or lies in a folder of what others wrote; in
    files and functions for an export; in a statement that reads a value of the device, and so waits in any case; and
    for random numbers, unless the function draws others with `device=`, or a loop draws them in a file that says
    nothing of a seed: elsewhere results depend on them.

    What is copied is copied for nothing, whatever the host waits for beside it: strict readers held all of 33 findings
    in 65 repositories for true, and 23 for worth a change. Of 34 in 48 others one held none for wrong, and 14 for
    little, since a wait stands beside them.

    ## References
    - [Creation ops](https://pytorch.org/docs/stable/torch.html#creation-ops)
    - [Performance tuning guide: create tensors directly on the target device](https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html)
    """

    group = "performance"
    fixable = "sometimes"
    assumes_host_default = True

    def check(self) -> None:
        found: list[tuple[Told, cst.Call]] = []
        for move in (*self.flow.facts.moves.values(), *moves_by_type(self)):
            value = move.value
            if not (value.is_tensor and value.place.is_host and self._goes_there(move)) or value.pinned or value.grad:
                continue
            if self._is_for_its_effect(move.node) or self._becomes_no_parameter(move):
                continue
            start, drawn = head(self.flow, move.receiver)
            named = through_a_name(self, move, start) if isinstance(start, cst.Name) else None
            made = named.made._replace(random=named.made.random or drawn) if named is not None else None
            if isinstance(start, cst.Call):
                made = Made(start, drawn)
            joined = Joined(self, move) if made is None else None
            if joined is not None and joined.is_whole:
                made = Made(joined.factories[0], joined.random)
            if made is None:
                self._report_computed(move)
                continue
            if is_nothing(self, made.factory):
                continue
            if not may_stay_on_host(self, move) and not is_written_from_host(self, move):
                found.append((self._told(move, made, named, joined), made.factory))
        self._find_twins([(told, factory) for told, factory in found if not told.tentative])
        report_together(self, [told for told, _ in found], apart=2)

    def _report_computed(self, move: Move) -> None:
        """``(torch.rand(n, 1) < 0.5).repeat(1, 64).to(x.device)``"""
        factory = computed_first(self, move)
        if factory is None or may_stay_on_host(self, move) or is_written_from_host(self, move):
            return
        if happens_again(self, move, Made(factory, random=False)):
            name = self.flow.name_of(factory)
            self.report(
                move.node,
                f"this is computed on the host of what `{name}` makes there, only for it to be copied to "
                f"{destination(self, move)}",
                notes=[self.note(factory, "it is made here")],
                tentative=True,
            )

    def _goes_there(self, move: Move) -> bool:
        # `x.device` of an argument, or `.to(x)`: where the caller has x, on the device, as code is judged
        of_argument = isinstance(move.target_node, cst.Attribute) or self._follows_a_tensor(move)
        return move.target.is_there or (of_argument and move.target.kind == "param")

    def _find_twins(self, found: list[tuple[Told, cst.Call]]) -> None:
        """Give one key to what a function makes close by, in branches side by side too, or by the same expression."""
        # h = torch.zeros(n, b, d).to(x.device)
        # if self.kind == "lstm": c = torch.zeros(n, b, d).to(x.device)
        found.sort(key=lambda each: self.source.offsets(each[0].node)[0])
        last: Told | None = None
        made: dict[object, object] = {}
        for told, factory in found:
            function = self.flow.function(told.node)
            same = function, self.code(factory)
            close = last is not None and function is self.flow.function(last.node)
            if last is not None and close and self._apart(last.node, told.node) <= 2:
                told.key = last.key
            else:
                told.key = made.get(same, told)
            made.setdefault(same, told.key)
            last = told

    def _apart(self, one: cst.CSTNode, other: cst.CSTNode) -> int:
        """How many statements lie between two nodes, in the smallest block that holds both."""
        blocks = dict(self._blocks_around(one))
        return next(
            (abs(at - blocks[block]) for block, at in self._blocks_around(other) if block in blocks), sys.maxsize
        )

    def _blocks_around(self, node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, int]]:
        """The blocks that a node stands in, each with which of its statements that is."""
        above = self.parent(node)
        while above is not None:
            if isinstance(above, cst.IndentedBlock | cst.Module):
                yield above, next(i for i, each in enumerate(above.body) if each is node)
            node, above = above, self.parent(above)

    def _told(self, move: Move, made: Made, named: Named | None, joined: Joined | None) -> Told:
        name = self.flow.name_of(made.factory)
        what = f"`{name}` makes this tensor on the host"
        if joined is not None:
            what = f"this tensor is put together on the host, of what `{name}` and others make there"
        return Told(
            move.node,
            f"{what}, only for it to be copied to {destination(self, move)}",
            also=f"so is what `{name}` makes here",
            notes=[self.note(made.factory, "it is made here, and used only where it is moved")]
            if named or (joined and not joined.is_at_once)
            else [],
            fix=self._fix(move, made, named) if joined is None else self._fix_of_joined(move, joined),
            tentative=not is_paid_again(self, move, made),
        )

    def _is_for_its_effect(self, call: cst.Call) -> bool:
        """Whether nothing reads what was moved: the device is to be woken up, or the copy itself tried."""
        parent = self.parent(call)
        if isinstance(parent, cst.Expr):
            return True  # torch.zeros(1).cuda()
        if not isinstance(parent, cst.Assign) or not isinstance(parent.targets[0].target, cst.Name):
            return False
        name = parent.targets[0].target.value
        function = self.enclosing(call, cst.FunctionDef)
        return name == "_" or (function is not None and len(mentions_of(self, name, function)) == 1)

    def _becomes_no_parameter(self, move: Move) -> bool:
        """``self.mask = nn.Parameter(torch.ones(n), requires_grad=False).to(device)``: unmoved, it would be one."""
        kept = isinstance(above := self.parent(move.node), cst.Assign) and any(
            isinstance(each.target, cst.Attribute) for each in above.targets
        )
        return kept and any(
            isinstance(each, cst.Call) and called_name(each) == "Parameter" for each in tree.walk(move.receiver)
        )

    # fix ----------------------------------------------------------------------------------------

    def _fix(self, move: Move, made: Made, named: Named | None) -> Fix | None:
        device = self._device(move)
        if device is None or (named is not None and not self._same_device_before(move, named)):
            return None
        if named is not None and _assigns_several(named.move_line.body[0]):
            return None  # h, c = h.to(device), c.to(device)  would leave  h, c = h, c
        argument = self.add_argument(made.factory, f"device={device}")
        removal = self._remove_move(move, named)
        if argument is None or removal is None:
            return None
        title = f"make it there: `device={device}`" + (" (draws other random numbers)" if made.random else "")
        safe = not made.random and self._names_a_device(move) and not _is_kind_of_device(move.target_node)
        lines = [named.line, *named.between] if named is not None else []
        safe = safe and not any(map(leaves_gaps, (move.receiver, *lines)))
        return self.fix(title, argument, removal, safe=safe)

    def _fix_of_joined(self, move: Move, joined: Joined) -> Fix | None:
        device = self._device(move)
        if device is None or not (joined.is_at_once or move.target_node is None):
            return None  # rows = torch.arange(h) may stand above what binds the device
        edits = [self.add_argument(factory, f"device={device}") for factory in joined.factories]
        edits.append(self._remove_move(move, None))
        title = f"make it there: `device={device}`" + (" (draws other random numbers)" if joined.random else "")
        return self.fix(title, *(e for e in edits if e is not None), safe=False) if None not in edits else None

    def _device(self, move: Move) -> str | None:
        """Code for ``device=`` that means what the move means."""
        node = move.target_node
        if move.how == "type" and called_name(move.node) == "type" and isinstance(move.node.args[0].value, cst.Name):
            return None  # dtype = x.type(): x may be another one since
        if node is None:
            return f'"{move.how}"'
        if isinstance(node, cst.NamedExpr) or "#" in self.code(node):
            return None
        if self._follows_a_tensor(move):
            return f"{self.code(node)}.device" if isinstance(node, cst.Name | cst.Attribute) else None
        if isinstance(node, cst.Integer):
            return f'"{move.target.name or "cuda"}"' if move.how != "to" else self.code(node)
        return self.code(node.value if _is_kind_of_device(node) else node)

    def _names_a_device(self, move: Move) -> bool:
        # `x.cuda(None)` is the current device, but `device=None` is the default one
        node = move.target_node
        return move.how == "to" or node is None or isinstance(node, cst.Integer) or self.flow.value(node).kind == DEVICE

    def _same_device_before(self, move: Move, named: Named) -> bool:
        """Whether the device expression has the same value at the factory as at the move."""
        node = move.target_node
        if node is None or not named.between:
            return True
        first = node
        while isinstance(first, cst.Attribute):
            first = first.value
        if isinstance(first, cst.SimpleString | cst.Integer):
            return True
        if not isinstance(first, cst.Name):
            return False  # next(self.parameters()).device: the module may be moved between
        block = self.parent(named.line)
        assert block is not None
        return not any(
            is_stored(self, mention) and statement_in(self, block, mention) in named.between
            for mention in mentions_of(self, first.value, block)
        )

    def _remove_move(self, move: Move, named: Named | None) -> Edit | None:
        """Drop ``.to(device)``, and with it a statement that says nothing more than ``x = x``."""
        assert isinstance(move.node.func, cst.Attribute)
        kept = self._kept_arguments(move)
        _, receiver_end = self.source.offsets(move.receiver, outer=True)
        method_start, _ = self.source.offsets(move.node.func.attr)
        _, end = self.source.offsets(move.node)
        text = self.source.text
        alone = self._remove_device(move) if kept and not self._follows_a_tensor(move) else None
        if alone is not None or "#" in text[method_start:end]:
            return alone
        if kept:
            return self.replace_between(method_start, end, f"to({kept})")
        if named is not None and self._only_rebinds(move, named):
            return self.delete_statement(named.move_line)
        gap = text[receiver_end:method_start]
        if "#" in gap:  # a comment on the line above stays
            receiver_end += len(gap.rpartition("\n")[0].rstrip("\r"))
        return self.replace_between(receiver_end, end, "")

    def _remove_device(self, move: Move) -> Edit | None:
        """Drop the device alone, where nothing else has to go, so that the arguments keep their layout."""
        args = move.node.args
        dropped = [arg for arg in args if arg.keyword is not None and arg.keyword.value in _ABOUT_THE_COPY]
        if [arg.value for arg in dropped] == [move.target_node]:
            return self.remove_argument(move.node, "device")
        positional = [arg for arg in args if arg.keyword is None]
        if dropped or len(args) < 2 or len(positional) > 2 or args[0].value is not move.target_node:
            return None
        start, _ = self.source.offsets(args[0].value, outer=True)
        following, _ = self.source.offsets(args[1])
        return None if "#" in self.source.text[start:following] else self.replace_between(start, following, "")

    def _kept_arguments(self, move: Move) -> str:
        if move.how == "type" and move.target_node is not None:
            return f"{self.code(move.target_node)}.dtype"
        if move.how != "to":
            return ""
        kept = []
        positional = [arg for arg in move.node.args if arg.keyword is None]
        if move.target_node is not None and self._follows_a_tensor(move):
            kept.append(f"{self.code(move.target_node)}.dtype")
        elif len(positional) > 1:
            kept.append(self.code(positional[1].value))
        for arg in move.node.args:
            if arg.keyword is not None and arg.keyword.value not in _ABOUT_THE_COPY:
                kept.append(f"{arg.keyword.value}={self.code(arg.value)}")
        return ", ".join(kept)

    def _follows_a_tensor(self, move: Move) -> bool:
        """``.to(x)``, ``.type_as(x)``: to the device and the type of another tensor."""
        return move.target_node is not None and self.flow.value(move.target_node).is_tensor

    def _only_rebinds(self, move: Move, named: Named) -> bool:
        statement = named.move_line.body[0]
        return (
            isinstance(statement, cst.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0].target, cst.Name)
            and isinstance(move.receiver, cst.Name)
            and statement.targets[0].target.value == move.receiver.value
            and statement.value is move.node
        )


def _is_kind_of_device(node: cst.BaseExpression | None) -> TypeGuard[cst.Attribute]:
    """`x.device.type`, which says `cuda` of a tensor on `cuda:1`."""
    return isinstance(node, cst.Attribute) and node.attr.value == "type" and isinstance(node.value, cst.Attribute)


def _assigns_several(statement: cst.BaseSmallStatement) -> bool:
    return isinstance(statement, cst.Assign) and isinstance(statement.targets[0].target, cst.Tuple | cst.List)
