from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.facts import Move
from devlint.flow.invariance import MAKING, bindings, same_every_time, shown, target_stays
from devlint.flow.loops import Loop, holder, runs_sometimes, working_loop
from devlint.flow.names import dotted, only_target
from devlint.flow.place import Place
from devlint.flow.value import ARRAY, LIST, MODULE, TENSOR, TUPLE
from devlint.flow.waiting import call_waits, picks_by_mask
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._neighbours import Told, report_together
from devlint.rules._places import origin_note, where
from devlint.rules._recurs import in_stepping_loop, reads, reads_each_time
from devlint.rules._switches import is_switched_off


class InvariantMoveInLoop(Rule):
    """A loop copies to the device, again and again, what it never changes.

    ## What it does
    Reports three things in loops that go through a data loader or drive a model: a host tensor that nothing in the loop
    changes and that is moved to a device in every iteration; a tensor built there from constants
    (`torch.tensor([0.5, 0.5], device=device)`); and a module that is moved to where it is already.

    ## Why is this bad
    Each iteration pays for a copy whose result is the same as that of the last one. A copy from pageable memory also
    makes the host wait until it is done. Moving a module again copies nothing, but asks each of its parameters and
    buffers where it is.

    ## Example
    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, device):
        class_weights = torch.tensor([1.0, 2.0, 0.5])
        for x, y in loader:
            weight = class_weights.to(device)
            loss = F.cross_entropy(model(x.to(device)), y.to(device), weight=weight)
            loss.backward()
            optimizer.step()
    ```

    ## Use instead
    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, device):
        class_weights = torch.tensor([1.0, 2.0, 0.5])
        weight = class_weights.to(device)
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(device)), y.to(device), weight=weight)
            loss.backward()
            optimizer.step()
    ```

    ## Fix safety
    The fix moves a plain assignment above the loop. It is safe where the loop binds the name nowhere else and does not
    hand it to a function that might write into it. Moving a module earlier is unsafe: what the loop does before it
    would see the module moved. A move inside a larger expression is left to a person.

    ## Limits
    Silent where the copy is written into or deleted (a fresh one is then wanted), where the loop or an unknown function
    may change the source, where the source has a second name, where the loop may give a module new layers
    (`net.add_head(classes)`), for function parameters (they may be there already), for `x = x.to(device)`, which copies
    once, for `torch.zeros(..., device=device)` and its kin, which copy nothing, and for a single number in a loop that
    reads a value of the device each time, and so waits in any case.

    Tentative, and kept back unless that is selected: what is moved once for many steps, in a loop that works in the
    loops inside it only; and a tensor that is one number, or a few in a loop that goes through no loader, that stands
    under an option that is off, in tests, or in a loop of few turns (`range(10)`), one that waits for the device each
    time in any case, and one that goes through models, but for what a module keeps on the host.

    In the nursery: of 7 findings in repositories that nobody had tuned for, one was worth a change. The move is
    needless in each; what it costs is mostly little beside what the turn does.

    ## References
    - [Performance tuning guide: create tensors directly on the target device](https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#create-tensors-directly-on-the-target-device)
    - [torch.Tensor.to](https://pytorch.org/docs/stable/generated/torch.Tensor.to.html)
    """

    group = "nursery"
    fixable = "sometimes"

    def check(self) -> None:
        self._found: list[Told] = []
        for move in self.flow.facts.moves.values():
            loop = working_loop(self.flow, move.node) if move.target.is_there else None
            if loop is None or runs_sometimes(self.flow, move.node, loop):
                continue
            stays, hoistable = target_stays(loop, move.target_node, move.target)
            if not stays:
                continue
            if move.value.kind == MODULE:
                self._module(move, loop, hoistable)
            elif move.value.kind == TENSOR and same_every_time(self.flow, loop, move.receiver):
                self._tensor(move.node, move.receiver, move.target, loop, hoistable)
        for call in self.flow.calls("torch.tensor", "torch.as_tensor", "torch.asarray"):
            self._built(call)
        report_together(self, self._found, apart=0)

    def _built(self, call: cst.Call) -> None:
        device = next((a.value for a in call.args if a.keyword is not None and a.keyword.value == "device"), None)
        place = self.flow.value(call).place
        loop = working_loop(self.flow, call) if device is not None and place.is_there else None
        if loop is None or runs_sometimes(self.flow, call, loop):
            return
        if call.args and _is_one_number(call.args[0].value) and reads_each_time(self.flow, loop):
            return  # one = torch.tensor([1], device=device); ...; total += loss.item()   it waits in any case
        stays, hoistable = target_stays(loop, device, place)
        if stays and same_every_time(self.flow, loop, call):
            self._tensor(call, call, place, loop, hoistable)

    def _tensor(self, node: cst.Call, source: cst.BaseExpression, place: Place, loop: Loop, hoistable: bool) -> None:
        whole = self._with_methods(node)
        above = self.source.parents[whole] if whole is not None else None
        if whole is None or above is None or isinstance(above, cst.Expr):
            return  # z = w.to(d).requires_grad_()   each iteration wants its own; w.to(d)   a measurement
        if isinstance(above, cst.Arg) and self._collects(above):
            return  # replicas.append(w.to(d))
        name = _single_name(above)
        if name is not None and (name in loop.writes or self._is_deleted(name, loop)):
            return  # delta = start.to(d); delta += y
        if self._is_written(above, loop):
            return  # lights.place = torch.tensor([0.0, 2.0], device=d)[None]; lights.place[:, 1] = -2.0
        rebound = name is not None and bindings(loop, name) > 1
        if rebound and source is node:
            return  # loss = torch.tensor(0.0, device=d); loss = loss + y   a sum that starts anew
        code = short(self.code(source), 60)
        done = "built on" if source is node else "copied to"
        told = Told(
            node,
            f"`{code}` is {done} {where(place)} in every iteration, and nothing in the loop changes it",
            also=f"`{code}` is {done} {where(place)}, too",
            notes=[
                *origin_note(self, f"`{code}`", self.flow.value(source)),
                self.note(loop.node, "this loop"),
            ],
            fix=self._hoist(above, name, loop) if hoistable and name is not None and not rebound else None,
            tentative=not self._is_worth_it(node, source, loop),
        )
        self._found.append(told)

    def _is_written(self, above: cst.CSTNode, loop: Loop) -> bool:
        """Whether the loop writes into the copy by the name of an attribute, or by a second name for its memory."""
        target = only_target(above)
        paths = {dotted(target)} if target is not None else set()
        for node in tree.walk(loop.node.body):
            if isinstance(node, cst.Assign) and paths & set(shown(self.flow, node.value)):
                paths |= {dotted(each.target) for each in node.targets}
            written = _written(node)
            if written is not None and holder(written) and holder(written) in paths:
                return True
        return False

    def _is_worth_it(self, node: cst.Call, source: cst.BaseExpression, loop: Loop) -> bool:
        """Whether many turns copy more than a number or two each, and do not wait for something else in any case."""
        origin = self.flow.value(source).origin
        numbers = self._numbers(origin) if isinstance(origin, cst.Call) else 1
        if numbers <= 1 or (numbers < _MANY and not loop.loader):
            return False  # for frame in range(n): pivot = torch.tensor([0, 0, 0.2], device=device); ...
        # def forward(self, x): for layer in self.layers: x = layer(x, self.table.to(x.device))
        of_module = self.flow.value(source).attr is not None and self.flow.runs_each_step(node)
        if not (of_module or in_stepping_loop(self.flow, node)) or is_switched_off(self, node) or self.in_tests:
            return False  # for net, head in zip(nets, heads): ...
        return not any(
            isinstance(n, cst.BaseExpression) and self._brings_back(n) and not runs_sometimes(self.flow, n, loop)
            for n in tree.walk(loop.node.body)
        )

    def _brings_back(self, node: cst.BaseExpression) -> bool:
        """Whether the host waits there, or in what is called, for a value of the device and not for a copy to it."""
        if isinstance(node, cst.Subscript):
            return picks_by_mask(self.flow, node)  # table[order]   may copy what is on the host
        if not isinstance(node, cst.Call):
            return reads(self.flow, node)
        if self.flow.value(node).place.is_there and (
            self.flow.move(node) is not None or self.flow.name_of(node) in MAKING
        ):
            return False  # torch.tensor(rows, device=device)
        return reads(self.flow, node) or call_waits(self.flow, node, needed=True)

    def _numbers(self, origin: cst.Call) -> int:
        """How many numbers a call makes a tensor of, as far as they are written there; one where it may be one."""
        name = self.flow.name_of(origin)
        if name in _SIZED:
            sizes = [n for arg in origin.args if arg.keyword is None for n in tree.walk(arg.value)]
            return 1 if all(self.code(n) == "1" for n in sizes if isinstance(n, cst.Integer | cst.Name)) else _MANY
        if name not in MAKING or not origin.args:
            return _MANY
        return self._written(origin.args[0].value)

    def _written(self, data: cst.BaseExpression) -> int:
        if isinstance(data, cst.List | cst.Tuple):
            return sum(self._written(element.value) for element in data.elements)
        kind = self.flow.value(data).kind
        return _MANY if isinstance(data, cst.ListComp) or kind in (TENSOR, LIST, TUPLE, ARRAY) else 1

    def _module(self, move: Move, loop: Loop, hoistable: bool) -> None:
        receiver = move.receiver
        if not isinstance(receiver, cst.Name):
            return
        name, statement = receiver.value, self.source.parents[move.node]
        again = _single_name(statement) == name
        # for model in models: model.to(d); train(model): it may come back moved elsewhere
        if bindings(loop, name) > again or name in loop.handed or self._moves_of(name, loop) > 1:
            return
        if self._may_grow(name, loop):
            return
        self.report(
            move.node,
            f"`{name}` is moved to {where(move.target)} in every iteration; it stays there after the first",
            notes=[self.note(loop.node, "this loop")],
            fix=self._hoist(statement, name, loop, module=True) if hoistable else None,
            # for epoch in range(9): net.to(device); for x in loader: net(x).sum().backward()   once for many steps
            tentative=not any(self.flow.loop(work) is loop for work in loop.works) and not loop.loader,
        )

    def _moves_of(self, name: str, loop: Loop) -> int:
        """How often the loop moves the module: `model.cpu()` after `model.to(device)` means to move it again."""
        return sum(
            isinstance(n, cst.Attribute) and n.attr.value in table.MOVES and self.code(n.value) == name
            for n in tree.walk(loop.node)
        )

    def _may_grow(self, name: str, loop: Loop) -> bool:
        """Whether the loop may give the module layers, which the move then takes along.

        `net.add_head(classes)`, `net.heads.append(nn.Linear(9, classes))`, `net.head = nn.Linear(9, classes)`
        """
        for node in tree.walk(loop.node):
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                changes = node.func.attr.value not in _KEEPING and _head(node.func) == name
            elif isinstance(node, cst.AssignTarget):
                changes = isinstance(node.target, cst.Attribute) and _head(node.target) == name
            else:
                changes = False
            if changes:
                return True
        return False

    def _with_methods(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """The node with the methods and items asked of it; ``None`` where one of them changes it in place."""
        while True:
            above = self.source.parents[node]
            if isinstance(above, cst.Attribute):
                call = self.source.parents[above]
                if isinstance(call, cst.Call) and call.func is above:
                    if above.attr.value.endswith("_"):
                        return None
                    above = call
            elif not isinstance(above, cst.Subscript):
                return node
            node = above

    def _collects(self, arg: cst.Arg) -> bool:
        call = self.source.parents[arg]
        func = call.func if isinstance(call, cst.Call) else None
        return isinstance(func, cst.Attribute) and func.attr.value in ("append", "extend", "insert", "add", "put")

    def _is_deleted(self, name: str, loop: Loop) -> bool:
        return any(isinstance(n, cst.Del) and _mentions(n, name) for n in tree.walk(loop.node))

    def _hoist(self, assign: cst.CSTNode, name: str, loop: Loop, *, module: bool = False) -> Fix | None:
        """Move the statement above the loop."""
        line = self.source.parents[assign]
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return None
        body = loop.node.body
        if self.source.parents[line] is not body or len(body.body) == 1:
            return None
        if not module and (not self._is_all_same(assign, loop) or self._used_before(name, line, loop)):
            return None
        above = self.insert_statement(loop.node, self._dedented(line, loop))
        if above is None:
            return None
        safe = not module and name not in loop.handed
        return self.fix("move it above the loop", above, self.delete_line(line), safe=safe)

    def _dedented(self, line: cst.SimpleStatementLine, loop: Loop) -> str:
        """The statement with the comment that ends it, as it stands above the loop."""
        source = self.source
        start, end = source.offsets(line)
        first, last = source.place(start)[0], source.place(end)[0]
        line_end = source.lines[last] if last < len(source.lines) else len(source.text)
        code = source.text[start:line_end].rstrip("\r\n")
        inside = source.text[source.lines[first - 1] : start]
        column = source.place(source.offsets(loop.node)[0])[1] - 1
        if '"""' in code or "'''" in code:
            return code  # lines of a string stay as they are
        parts = code.split("\n")
        return "\n".join(inside[:column] + p[len(inside) :] if p.startswith(inside) else p for p in parts)

    def _is_all_same(self, assign: cst.CSTNode, loop: Loop) -> bool:
        """Whether the whole right side is the copy: not `scaled = w.to(d) * factor`."""
        value = assign.value if isinstance(assign, cst.Assign | cst.AnnAssign) else None
        if not isinstance(value, cst.Call):
            return False
        moved = self.flow.move(value)
        return same_every_time(self.flow, loop, moved.receiver if moved is not None else value)

    def _used_before(self, name: str, line: cst.CSTNode, loop: Loop) -> bool:
        """Whether the loop reads the name before the statement binds it, and so another value the first time."""
        at, _ = self.source.offsets(line)
        return any(self.source.offsets(n)[0] < at for n in tree.named(loop.node, name))


#: More numbers than one writes by hand.
_MANY = 100
_SIZED = frozenset(f"torch.{name}" for name in "zeros ones empty rand randn".split())


#: Methods of modules and of what they hold that give them no other parameters.
_KEEPING = table.MOVES | frozenset(
    "train eval forward zero_grad parameters named_parameters buffers named_buffers modules named_modules children "
    "named_children state_dict load_state_dict requires_grad_ half float double bfloat16 share_memory".split()
)


def _head(node: cst.BaseExpression) -> str:
    """`net` of `net.heads.append`."""
    return dotted(node).partition(".")[0]


def _written(node: cst.CSTNode) -> cst.BaseExpression | None:
    """What a node writes into: ``x[0] = 1``, ``x += 1``, ``x.zero_()``."""
    if isinstance(node, cst.AssignTarget):
        return node.target if isinstance(node.target, cst.Subscript) else None
    if isinstance(node, cst.AugAssign):
        return node.target
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.value if node.func.attr.value.endswith("_") else None
    return None


def _is_one_number(node: cst.BaseExpression) -> bool:
    """`0.0`, `[1]`"""
    if isinstance(node, cst.List | cst.Tuple) and len(node.elements) == 1:
        node = node.elements[0].value
    if isinstance(node, cst.UnaryOperation):
        node = node.expression
    return isinstance(node, cst.Integer | cst.Float)


def _single_name(statement: cst.CSTNode) -> str | None:
    """`w` of `w = ...`."""
    target = only_target(statement)
    return target.value if isinstance(target, cst.Name) else None


def _mentions(node: cst.CSTNode, name: str) -> bool:
    return bool(tree.named(node, name))
