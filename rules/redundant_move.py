from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.facts import Move
from devlint.flow.hypothesis import names_device
from devlint.flow.names import called_name, last_word, target_names
from devlint.flow.scope import CONSTRUCTOR, Function
from devlint.flow.value import TENSOR
from devlint.rule import Rule
from devlint.rules._copied import is_by_others, is_copied, refills, says_why
from devlint.rules._exports import is_of_export
from devlint.rules._moves import destination, short
from devlint.rules._neighbours import Told, report_together
from devlint.rules._offloaded import moved_then_offloaded
from devlint.rules._places import origin_note
from devlint.rules._switches import tests_apart

#: What is asked of tensors.
_SHAPES = frozenset({"shape", "size", "dtype", "ndim"})
#: Make things of the host of what they are given.
_ON_HOST = frozenset({"torch.Tensor", "torch.FloatTensor", "torch.tensor", "numpy.array", "float", "int", "bool"})
#: A test for whether there is a GPU, or one is to be used.
_OF_GPU = re.compile(r"cuda|gpu", re.IGNORECASE)
#: As many statements are seen at once.
_NEAR = 3


class RedundantMove(Rule):
    """A tensor is moved to where it surely is already, or to two devices in a row.

    ## What it does
    Reports `.to(device)` and `.cuda()` on a tensor that was made or moved there in the same function
    (`torch.zeros(n, device=device).to(device)`), and `x.cuda().to(device)`.

    ## Why is this bad
    A tensor that is there already is handed back as it is: nothing is copied, but the reader is told otherwise, and
    where the first of two devices is another one, the copy to it was for nothing.

    ## Example
    ```python
    import torch


    def mask(n, device):
        return torch.ones(n, n, device=device).to(device)
    ```

    ## Use instead
    ```python
    import torch


    def mask(n, device):
        return torch.ones(n, n, device=device)
    ```

    ## Fix safety
    The fix drops the move, or the first of two. It is safe: the result is the same tensor.

    ## Limits
    Silent where another function made or moved the tensor, or that which it is made like, which may change; where the
    move changes the type, too; for modules that are there already (parts may have been added since); for what comes out
    of modules, and for what is moved to where that is (`labels.to(logits.device)`), since their parts may be spread
    over devices; where the name of the device is bound more than once; where only some ways through the code have moved
    the tensor, or a test chose between its device and the host; for what an earlier call may have set (`if Scale.factor
    is None: Scale.factor = ...`); for a line of a block of three or more that all bind their own names anew, or all
    make what they move to one device, or one of a tuple, not all of which are there before; for lines that another
    function has, too, and needs; and where the function makes the same name in the same way elsewhere and needs the
    move there. What one function does in several places is one finding, and so is what several do in the same words, or
    what methods of one name in several classes do in the same line.

    Tentative, and kept back unless that is selected: a pipeline of diffusers that is moved right before
    `enable_model_cpu_offload()` or `enable_sequential_cpu_offload()`, which bring it back; in code that says it was
    copied (`# Copied from`, at the head of the file, too) or documented elsewhere, that is put in the place of another
    package's, or that is of a whole distribution inside of a package, or of a copy of a well-known package, which is
    kept alike; in constructors; in code for an export; in a branch that fills anew what a module keeps once that is too
    small; below a comment that says why something is moved; in files by others than the project's own packages and its
    licence, as the copyright at their heads has it; where what is moved goes into a table on the host
    (`torch.tensor([...])`); near a line that moves the same elsewhere, and beside one that binds its own name anew as
    this one does and needs that; beside an argument of the same call that needs its move; in a statement that another
    function has, too, and needs; and below a test for GPUs that has another branch, where nothing guards the move above
    it (the first one may be out of place).

    Not of `performance`, for such a move neither waits nor copies. Of 13 findings in 262 fresh repositories readers
    held none for wrong, and three for less than that group promises.

    Not proved by running: that a tensor is handed back as it is leaves nothing that a run would see.

    ## References
    - [torch.Tensor.to](https://pytorch.org/docs/stable/generated/torch.Tensor.to.html)
    """

    group = "suspicious"
    fixable = "sometimes"

    def check(self) -> None:
        found: list[Told] = []
        for move in self.flow.facts.moves.values():
            if not move.target.is_there or isinstance(self.parent(move.node), cst.Expr):
                continue  # x.to(device) as a statement is discarded-move
            if self._is_put_to_test(move.node):
                continue
            first = self.flow.move(move.receiver)
            if first is not None and first.target.is_there:
                found.append(self._twice(first, move))
            elif self._is_there(move) and not (
                self._is_in_row(move) or self._is_mirrored(move) or self._is_like_needed(move)
            ):
                found.append(self._there(move))
        # what one function does in several places is one thing to mend, and so is what several do in the same words,
        # or what a method does in the same line in several classes
        words: dict[tuple[str, str], str] = {}
        keys = [words.setdefault(self._line(told.node), self._words(told.node)) for told in found]
        report_together(self, [replace(t, key=(key, t.tentative)) for t, key in zip(found, keys, strict=True)])
        for moved, offload in moved_then_offloaded(self):
            self._report_offloaded(moved, offload)

    def _is_put_to_test(self, node: cst.CSTNode) -> bool:
        """``self.assertIs(x.cuda(0), x)``, ``x.to(device) is x``: that nothing is moved is what is asked."""
        above = self.parent(node)
        if isinstance(above, cst.Arg) and isinstance(call := self.parent(above), cst.Call):
            return called_name(call).startswith("assert")
        if isinstance(above, cst.ComparisonTarget):
            above = self.parent(above)
        return isinstance(above, cst.Comparison) and isinstance(above.comparisons[0].operator, cst.Is | cst.IsNot)

    def _report_offloaded(self, move: cst.Call, offload: cst.Call) -> None:
        assert isinstance(move.func, cst.Attribute)
        name = called_name(offload)
        self.report(
            move,
            f"the whole of `{short(self.code(offload.func)).removesuffix(f'.{name}')}` goes to the device here, "
            f"and `{name}` brings it back",
            notes=[self.note(offload, "this moves each part when it is its turn")],
            tentative=True,
        )

    def _line(self, node: cst.CSTNode) -> tuple[str, str]:
        """The name of a function, and a line of it."""
        function = self.flow.function(node)
        return function.name if function is not None else "", self.code(self._statement(node))

    def _words(self, node: cst.CSTNode) -> str:
        function = self.flow.function(node)
        return self.code(function.node.body) if function is not None else ""

    def _is_there(self, move: Move) -> bool:
        value, place = move.value, move.target
        if value.kind != TENSOR or value.place != place or not place.name or place.name == "self":
            return False  # h = self.conv(x); h.to(self.weight.device)   parts of a model may be on several devices
        if (
            not self._got_there_plainly(value.origin, move)
            or not self._moves_only(move)
            or self._is_beside_output(move)
        ):
            return False
        named = names_device(last_word(place.name))
        return not named or self._bindings(move.node, place.name.partition(".")[0]) <= 1

    def _is_in_row(self, move: Move) -> bool:
        """Whether the move is one of three lines or more, one below the other, or one of several in a tuple, that move
        to one device, and not all of them are there before: such a block is kept uniform on purpose.
        """
        # seen = torch.zeros(n).to(device); done = torch.zeros(n).to(device); rest = torch.zeros_like(seen).to(device)
        line = self.enclosing(move.node, cst.SimpleStatementLine)
        block = self.parent(line) if line is not None else None
        if line is None or not isinstance(block, cst.IndentedBlock | cst.Module):
            return False
        row = self._in_tuple(line, move)
        if not row:
            for kind, group in groupby(block.body, lambda statement: self._kind_of_line(statement, move)):
                lines = list(group)
                if kind is not None and len(lines) >= 3 and line in lines:
                    row = [call for each in lines if (call := self._move_of_line(each, move)) is not None]
        return move.node in row and not all(self._does_nothing(call) for call in row)

    def _in_tuple(self, line: cst.SimpleStatementLine, like: Move) -> list[cst.Call]:
        """The moves of `x, y = x.to(device), y.to(device)`."""
        assign = line.body[0]
        if not isinstance(assign, cst.Assign) or not isinstance(assign.value, cst.Tuple):
            return []
        found = [self._same_move(element.value, like) for element in assign.value.elements]
        return [call for call in found if call is not None]

    def _move_of_line(self, statement: cst.CSTNode, like: Move) -> cst.Call | None:
        """The move in `style = style.to(device).repeat(n)`, to the same device as another one."""
        assign = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if not isinstance(assign, cst.Assign) or not isinstance(assign.targets[0].target, cst.Name):
            return None
        return self._same_move(assign.value, like)

    def _kind_of_line(self, statement: cst.CSTNode, like: Move) -> str | None:
        """Whether a line that moves binds a name anew, or makes what it moves."""
        call = self._move_of_line(statement, like)
        if call is None:
            return None
        node: cst.BaseExpression = call
        while isinstance(node, cst.Subscript) or (isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)):
            if isinstance(node, cst.Subscript):  # rows = rows[:, :longest].to(device)
                node = node.value
                continue
            if self.flow.name_of(node):
                return "made"  # torch.zeros(n)
            node = cst.ensure_type(node.func, cst.Attribute).value
        line = cst.ensure_type(statement, cst.SimpleStatementLine)
        target = cst.ensure_type(line.body[0], cst.Assign).targets[0].target
        return "bound anew" if self.code(node) == self.code(target) else None

    def _same_move(self, node: cst.BaseExpression, like: Move) -> cst.Call | None:
        to = self.code(like.target_node) if like.target_node is not None else ""
        while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if node.func.attr.value == like.how and (not to or any(self.code(arg.value) == to for arg in node.args)):
                return node
            node = node.func.value
        return None

    def _is_mirrored(self, move: Move) -> bool:
        """Whether another function has the same statement behind the same one, and needs the move there."""
        # def validate(self): ...; y = y[:, -n:]; y = torch.cat([y, z]).to(self.device)   of what is on the host there
        line = self.enclosing(move.node, cst.SimpleStatementLine)
        text = self._with_line_above(line) if line is not None else None
        return text is not None and any(self._with_line_above(other) == text for other in self._needed_elsewhere(move))

    def _is_repeated(self, move: Move) -> bool:
        """Whether another function has the same statement, and needs the move there: one may keep them alike."""
        line = self.enclosing(move.node, cst.SimpleStatementLine)
        text = self.code(line) if line is not None else ""
        return any(self.code(other) == text for other in self._needed_elsewhere(move))

    def _needed_elsewhere(self, move: Move) -> Iterator[cst.SimpleStatementLine]:
        """The lines of other functions with the same move, which is not for nothing there."""
        function, code = self.flow.function(move.node), self.code(move.node)
        for call in self.source.nodes_of(cst.Call):
            if not isinstance(call.func, cst.Attribute) or call.func.attr.value != move.how:
                continue
            line = self.enclosing(call, cst.SimpleStatementLine)
            if line is None or self.flow.function(call) is function or self.code(call) != code:
                continue
            known = self.flow.move(call)
            if known is None or not self._is_there(known):
                yield line

    def _is_like_needed(self, move: Move) -> bool:
        """Whether the same function makes the same thing in the same way elsewhere, and needs the move there."""
        # self.words = torch.cat((self.words, head)).to(self.device); ...
        # self.words = torch.cat((self.words, tail)).to(self.device)
        shape = self._shape(move.node)
        function = self.flow.function(move.node)
        return shape is not None and any(
            other.node is not move.node
            and self.flow.function(other.node) is function
            and self._shape(other.node) == shape
            and not self._is_there(other)
            for other in self.flow.facts.moves.values()
        )

    def _shape(self, node: cst.Call) -> tuple[str, str, str] | None:
        """What is bound by ``words = torch.cat(...).to(device)``, by which function, and how what that gives moves."""
        assign, func = self.parent(node), node.func
        if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
            return None
        if not isinstance(func, cst.Attribute) or not isinstance(func.value, cst.Call):
            return None
        moved = f"{func.attr.value}({', '.join(self.code(arg) for arg in node.args)})"
        return self.code(assign.targets[0].target), self.code(func.value.func), moved

    def _with_line_above(self, line: cst.SimpleStatementLine) -> tuple[str, ...] | None:
        block = self.parent(line)
        if not isinstance(block, cst.IndentedBlock | cst.Module):
            return None
        at = next(i for i, statement in enumerate(block.body) if statement is line)
        lines = block.body[max(at - 1, 0) : at + 1]
        return tuple(self.code(s.body[0]) for s in lines if isinstance(s, cst.SimpleStatementLine))

    def _got_there_plainly(self, origin: cst.CSTNode | None, move: Move) -> bool:
        """Whether the same function moved the tensor, or made it with `device=`: a reader sees both at once.

        What another function hands back on the device may be moved again in case that ever changes.
        """
        if not isinstance(origin, cst.Call) or self.flow.function(origin) is not self.flow.function(move.node):
            return False  # embeds = self.encode(prompt, device); embeds.to(device)
        if self.flow.name_of(origin) in table.LIKE and origin.args:
            # embeds = self.encode(prompt, device); torch.zeros_like(embeds).to(device)   has its place from there, too
            given = self.flow.value(origin.args[0].value).origin
            if not isinstance(given, cst.Param) and not self._got_there_plainly(given, move):
                return False
        made = self.flow.name_of(origin) in table.LIKE or any(
            arg.keyword is not None and arg.keyword.value == "device" for arg in origin.args
        )
        if self.flow.move(origin) is None and not (made and self.flow.name_of(origin).startswith("torch.")):
            return False
        # torch.arange(n).type_as(ids).to(ids.device)   written for a time when `type_as` did not move to an index
        return not any(
            isinstance(n, cst.Attribute) and n.attr.value == "type_as" for n in tree.walk(self._statement(move.node))
        )

    def _is_beside_output(self, move: Move) -> bool:
        """Whether the move goes to where a call gives something: a model may be spread over devices, on any of which
        it may take its inputs."""
        # logits = self.model(ids).logits; labels = labels.to(logits.device)
        made = self.flow.value(move.target_node).origin if move.target_node is not None else None
        if not isinstance(made, cst.Call) or self.flow.move(made) is not None:
            return False
        if called_name(made) in ("parameters", "buffers"):
            return False  # home = next(net.parameters()).device
        return not self.flow.name_of(made).startswith("torch.")

    def _statement(self, node: cst.CSTNode) -> cst.CSTNode:
        return self.enclosing(node, cst.BaseSmallStatement, cst.BaseCompoundStatement) or node

    def _moves_only(self, move: Move) -> bool:
        """Whether the call asks for a device and nothing else: `x.to(y)` and `x.to(device, dtype)` change the type."""
        if move.target_node is not None and self.flow.value(move.target_node).holds_tensors:
            return False
        return all(
            arg.value is move.target_node or (arg.keyword is not None and arg.keyword.value == "non_blocking")
            for arg in move.node.args
        )

    def _bindings(self, at: cst.CSTNode, name: str) -> int:
        """How often the function binds the name that stands for a device, as a parameter or by assignment."""
        function = self.flow.function(at)
        count = int(function is not None and name in function.param_names)
        for assign in self.source.nodes_of(cst.AssignTarget):
            names: set[str] = set()
            target_names(assign.target, names)
            count += name in names and self.flow.function(assign) is function
        return count

    def _is_kept_alike(self, move: Move) -> bool:
        """Whether one would leave it: code that follows another project's, and what runs once, or in a long while."""
        # self.sums = torch.zeros(n).to(device); self.last = torch.zeros_like(self.sums).to(device)
        function = self.flow.function(move.node)
        constructs = function is not None and (function.role == CONSTRUCTOR or function.name == "__init__")
        once = function is not None and constructs and not self._is_handed_tensors(function)
        follows = is_copied(self, move.node) or is_by_others(self) or says_why(self, move.node)
        seldom = once or refills(self, move.node) or is_of_export(self, move.node)
        alike = self._is_one_of_many(move) or self._is_one_of_two(move)
        return seldom or follows or alike or self._goes_to_host(move)

    def _goes_to_host(self, move: Move) -> bool:
        """Whether what is moved goes into what holds it on the host: what is worth a change is that it was moved."""
        # torch.Tensor([base.to(device).pow(step).to(device) for step in range(n)])
        line, node = self._statement(move.node), self.parent(move.node)
        while node is not None and node is not line:
            if isinstance(node, cst.Call) and self.flow.name_of(node) in _ON_HOST:
                return True
            node = self.parent(node)
        return False

    def _is_one_of_many(self, move: Move) -> bool:
        """Whether it is one of several in a call or a literal, not all of which are there before."""
        # net(rows=rows.to(device), pairs=pairs.to(device), scale=scale.to(device))   whose order nobody thinks about
        around = self.enclosing(move.node, cst.Call, cst.Dict, cst.List, cst.Tuple)
        if isinstance(around, cst.Call):
            parts: list[cst.BaseExpression] = [arg.value for arg in around.args]
        elif isinstance(around, cst.Dict | cst.List | cst.Tuple):
            parts = [element.value for element in around.elements]
        else:
            return False
        row = [call for part in parts if (call := self._move_in(part, move)) is not None]
        return move.node in row and not all(self._does_nothing(call) for call in row)

    def _move_in(self, node: cst.BaseExpression, like: Move) -> cst.Call | None:
        """The move in `rows.to(device) if rows is not None else None` and `[row.to(device) for row in rows]`, too."""
        if isinstance(node, cst.IfExp):
            return self._move_in(node.body, like) or self._move_in(node.orelse, like)
        if isinstance(node, cst.ListComp | cst.GeneratorExp):
            return self._move_in(node.elt, like)
        return self._same_move(node, like)

    def _is_one_of_two(self, move: Move) -> bool:
        """Whether a line near by moves the same elsewhere, or that above or below binds its own name anew as this one
        does, and needs that."""
        # left = a[mask.to(a.device)]; right = b[mask.to(b.device)]
        line = self.enclosing(move.node, cst.SimpleStatementLine)
        block = self.parent(line) if line is not None else None
        if line is None or not isinstance(block, cst.IndentedBlock | cst.Module):
            return False
        here = next(i for i, statement in enumerate(block.body) if statement is line)
        near = [*block.body[max(here - _NEAR, 0) : here], *block.body[here + 1 : here + _NEAR + 1]]
        beside = [*block.body[max(here - 1, 0) : here], *block.body[here + 1 : here + 2]]
        for other in self.flow.facts.moves.values():
            at = self.enclosing(other.node, cst.SimpleStatementLine)
            if at is None or not any(at is each for each in near) or self._does_nothing(other.node):
                continue
            if self._only_rebinds(other, at):
                if any(at is each for each in beside) and self._only_rebinds(move, line):
                    return True
            elif self._ends(other) != self._ends(move) and self.code(other.receiver) == self.code(move.receiver):
                return True
        return False

    def _ends(self, move: Move) -> str:
        return self.code(move.target_node) if move.target_node is not None else ""

    def _does_nothing(self, call: cst.Call) -> bool:
        known = self.flow.move(call)
        return known is not None and self._is_there(known)

    def _is_handed_tensors(self, function: Function) -> bool:
        """`def __init__(self, scores): self.mask = ...`: such an object is made anew in each call."""
        shaped = _SHAPES & set().union(*(function.attributes.get(name, set()) for name in function.param_names))
        return bool(shaped) or any(self.flow.value(param).is_tensor for param in function.params)

    def _there(self, move: Move) -> Told:
        name = short(self.code(move.receiver))
        return Told(
            move.node,
            f"`{name}` is on {destination(self, move)} already: this moves nothing",
            also=f"`{name}` is there already, too",
            notes=origin_note(self, f"`{name}`", move.value),
            fix=self._drop(move, "drop the move"),
            tentative=self._is_kept_alike(move)
            or self._is_the_one_meant(move)
            or self._is_repeated(move)
            or self._is_asked_for_first(move),
        )

    def _is_asked_for_first(self, move: Move) -> bool:
        """``if self.gpu: rows = rows.cuda()`` and then ``rows = rows.cuda()``, for those who said no."""
        first = move.value.origin
        if first not in self.flow.facts.moves:
            return False
        tests = tests_apart(self, first, move.node)
        return any(holds and _OF_GPU.search(self.code(test)) is not None for test, _, holds in tests)

    def _is_the_one_meant(self, move: Move) -> bool:
        """``x = torch.rand(n).cuda()`` and then ``if use_gpu: x = x.cuda()``: the first one is out of place."""
        first = move.value.origin
        if move.target_node is not None or not isinstance(first, cst.CSTNode):
            return False
        return any(
            isinstance(branch := self.parent(block), cst.If) and branch.orelse is not None and _OF_GPU.search(code)
            for test, block, holds in tests_apart(self, move.node, first)
            if holds and (code := self.code(test))
        )

    def _twice(self, first: Move, move: Move) -> Told:
        name = short(self.code(first.receiver))
        where_first, where_then = destination(self, first), destination(self, move)
        twice = "twice in a row" if where_first == where_then else f"and then to {where_then}"
        plain = self._moves_only(first)
        return Told(
            move.node,
            f"`{name}` is moved to {where_first}, {twice}",
            also=f"`{name}` is moved to {where_first}, {twice}",
            fix=self._drop(first, "drop the first move") if plain else None,
            tentative=self._is_kept_alike(move),
        )

    def _drop(self, move: Move, title: str) -> Fix | None:
        _, kept = self.source.offsets(move.receiver, outer=True)
        _, end = self.source.offsets(move.node)
        if "#" in self.source.text[kept:end]:
            return None
        line = self.parent(self.parent(move.node) or move.node)
        if not isinstance(line, cst.SimpleStatementLine) or not self._only_rebinds(move, line):
            return self.fix(title, self.replace_between(kept, end, ""), safe=True)
        edit = self.drop_statement(line)
        return self.fix(title, edit, safe=True) if edit is not None else None

    def _only_rebinds(self, move: Move, line: cst.SimpleStatementLine) -> bool:
        """`x = x.to(device)`, alone on its line."""
        assign = line.body[0]
        return (
            len(line.body) == 1
            and isinstance(assign, cst.Assign)
            and len(assign.targets) == 1
            and isinstance(assign.targets[0].target, cst.Name)
            and isinstance(move.receiver, cst.Name)
            and assign.targets[0].target.value == move.receiver.value
            and assign.value is move.node
        )
