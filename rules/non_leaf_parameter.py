from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint.finding import Edit, Fix, Note
from devlint.flow import torch_table as table
from devlint.flow.facts import Move
from devlint.flow.names import dotted
from devlint.flow.scope import Class
from devlint.flow.steps import above
from devlint.flow.value import DICT, LIST, NONE, TENSOR, TUPLE, Value
from devlint.rule import Rule
from devlint.rules._moves import destination, short
from devlint.rules._neighbours import Told, report_apart
from devlint.rules._new_modules import is_built_in_steps, is_in_step, is_on_new_module
from devlint.rules._training import is_inside, under_no_grad
from devlint.rules._writes import writes_into


class NonLeafParameter(Rule):
    """A parameter is moved where it is made, and what is kept is no parameter any more.

    ## What it does
    Reports `nn.Parameter(t).to(device)` kept as an attribute of a module; a moved copy of a tensor that requires
    gradients where a leaf is wanted: given to an optimizer, asked for its `grad`, or returned by a function that is
    annotated to give a parameter; and an entry of `_parameters` that is replaced by its own moved copy.

    ## Why is this bad
    To move a tensor that requires gradients is an operation that autograd records: its result is a plain tensor,
    computed from the parameter, and no leaf. A module does not register it: it is missing from `parameters()` and
    `state_dict()`, and is never trained. An optimizer refuses it ("can't optimize a non-leaf Tensor"), and its `grad`
    stays `None`. As long as the device is the host nothing moves, the parameter itself comes back, and all is well.

    ## Example
    ```python
    import torch
    from torch import nn


    class Gate(nn.Module):
        def __init__(self, width, device):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width)).to(device)
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    class Gate(nn.Module):
        def __init__(self, width, device):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width).to(device))
    ```

    ## Fix safety
    The fix moves the values first and makes the parameter, or asks for gradients, then. It is safe: the values are the
    same, and on the host nothing changes. No fix is offered where the parameter is made in another statement, and where
    the class assigns something else to the attribute, or writes it in place while autograd records: a registered
    parameter refuses both, as it does on the host already.

    ## Limits
    Silent where the moved copy is only computed with, where the place of the data is not known, and where
    `retain_grad()` is called or `grad` is set. What stands side by side in one module is told once. Tentative:

    - a class of which all modules of the file go into plain lists, tuples or dictionaries, which register nothing of
      them anyway (`unregistered-module`);
    - parameters with `requires_grad=False`: what is lost is their place in `state_dict()`, and that they move with the
      module, which not everybody asks for;
    - parameters that their class moves again by itself (`self.shift = self.shift.to(x.device)`), which it need not have
      registered, and could not if it had;
    - parameters that are made in a step, when the optimizer has been made, or of a class that steps build anew; and
      those moved to the `self.device` that a base keeps, in a constructor, where that is the host (`LightningModule`);
    - in tests, what is given to an optimizer, which refuses it, or asked for its `grad`;
    - parameters that a function makes of a tensor it is handed, and returns, since that may be there already.

    It was in the nursery first: of 37 findings in all samples until then, strict readers held 29 for true, six for
    arguable and two for wrong. It is told by default since it was read again: in 392 repositories, large and well kept,
    it told three, all true, parameters of published models that no optimizer ever got; in some 17,000 packages of PyPI
    25 more, of which they held 16 for true, six for arguable and three for wrong. Five of these nine are tentative
    since; what is left are constants, which nobody trains.

    ## References
    - [torch.Tensor.is_leaf](https://pytorch.org/docs/stable/generated/torch.Tensor.is_leaf.html)
    - [torch.nn.Parameter](https://pytorch.org/docs/stable/generated/torch.nn.parameter.Parameter.html)
    """

    group = "correctness"
    fixable = "sometimes"

    def check(self) -> None:
        if "_parameters[" in self.source.text:
            self._put_back()
        copies = {node: move for node, move in self.flow.facts.moves.items() if self.flow.value(node).ref == "non-leaf"}
        stored = self._stored(copies) if copies else {}
        # self.w = nn.Parameter(w).to(device); nn.init.ones_(self.w); self.b = nn.Parameter(b).to(device)
        report_apart(self, stored.values(), apart=2)
        wanted = {**self._graded(), **self._optimized()} if copies else {}
        for node, move in copies.items():
            if node in wanted and node not in stored:
                message, notes = wanted[node]
                # assert problems(SGD([weight.cuda()], lr=1.0)) == ["non-leaf"]   in a test, which is about that
                self.report(node, message, notes=notes, fix=self._fix(move), tentative=self.in_tests)
        self._given({*stored, *wanted})

    # where a leaf is wanted -----------------------------------------------------------------------

    def _stored(self, copies: dict[cst.CSTNode, Move]) -> dict[cst.CSTNode, Told]:
        """Copies of parameters that are attributes of a module."""
        found: dict[cst.CSTNode, Told] = {}
        for cls in self.flow.scope.classes.values():
            if not cls.is_module:
                continue
            lost = self._is_never_registered(cls)
            for name in cls.stores:
                stores = self.flow.stores(cls, name)
                for statement, value in stores:
                    move = copies.get(value.origin) if value.origin is not None else None
                    if value.ref != "non-leaf" or move is None or move.value.ref != "parameter":
                        continue  # self.x = torch.ones(3, requires_grad=True).to(device)  was never registered
                    to = destination(self, move)
                    message = f"`self.{name}` is no parameter: what moving one to {to} gives is a plain tensor"
                    if any(v.ref == "parameter" and self._can_come_first(s, statement) for s, v in stores):
                        message = f"`self.{name}` is a parameter, and what moving it to {to} gives is a plain tensor"
                    apart = statement is not self.parent(move.node)
                    notes = [self.note(statement, "it is kept here")] if apart else []
                    also = f"nor is `self.{name}`, for it is moved, too"
                    refused = self._refused(cls, name)
                    if refused is not None:
                        notes.append(self.note(refused, "a registered parameter refuses this: it has to change, too"))
                    fix = self._fix(move) if refused is None else None
                    state_only = move.value.tracked is False  # nn.Parameter(mean, requires_grad=False)
                    found[move.node] = Told(
                        move.node,
                        message,
                        also,
                        notes=notes,
                        fix=fix,
                        tentative=lost or state_only or self._may_be_meant(cls, name, statement, move),
                    )
        return found

    def _may_be_meant(self, cls: Class, name: str, statement: cst.CSTNode, move: Move) -> bool:
        """Whether what is moved stays the parameter, or is none that an optimizer could get."""
        # if self.scale is None: self.scale = nn.Parameter(...).to(x.device)   in `forward`, after the optimizer is made
        late = is_in_step(self, self.flow.function(statement)) or is_built_in_steps(self, cls)
        return late or is_on_new_module(self, statement, move.target_node) or self._is_moved_again(cls, name)

    def _is_moved_again(self, cls: Class, name: str) -> bool:
        """``self.shift = self.shift.to(x.device)`` in `forward`, of what need not be registered for that."""
        stores = self.flow.stores(cls, name)
        if any(value.ref == "parameter" for _, value in stores):
            return False  # that is registered, and refuses what takes its place
        moves = (self.flow.move(statement.value) for statement, _ in stores if isinstance(statement, cst.Assign))
        return any(move is not None and dotted(move.receiver) == f"self.{name}" for move in moves)

    def _given(self, told: set[cst.CSTNode | None]) -> None:
        """``def as_parameter(rows, device) -> nn.Parameter: return nn.Parameter(rows).to(device)``"""
        for node in self.source.nodes_of(cst.Return):
            function = self.flow.function(node)
            # def start(n, device): return nn.Parameter(torch.ones(n)).to(device)   may be for computing with alone
            said = function.node.returns if function is not None and node.value is not None else None
            if function is None or said is None or not _PARAMETERS & self.flow.scope.qualified_names(said):
                continue
            value = self.flow.value(node.value) if node.value is not None else None
            made = node.value if isinstance(node.value, cst.Call) else value.origin if value is not None else None
            move = self.flow.move(made) if made is not None else None
            if value is None or move is None or move.value.ref != "parameter" or value.ref == "parameter":
                continue
            if move.target.is_host or move.node in told:
                continue
            to = destination(self, move)
            self.report(
                move.node,
                f"`{function.name}` is to give a parameter, and what moving one to {to} gives is a plain tensor",
                fix=self._fix(move),
                # def as_parameter(rows: Tensor, device=None)   where `rows` may be there, and `device` be left out
                tentative=value.ref != "non-leaf" or move.value.tracked is False,
            )

    def _refused(self, cls: Class, name: str) -> cst.CSTNode | None:
        """What a class does with an attribute and a parameter does not let it do: ``self.w = self.w * scale``,
        ``self.w.mul_(scale)`` where autograd records."""
        stores = self.flow.stores(cls, name)
        for statement, value in stores:
            gives_way = value.kind == NONE or value.ref in ("parameter", "non-leaf")
            if not gives_way and not isinstance(statement, cst.AugAssign):
                return statement
        if not any(value.tracked for _, value in stores):
            return None  # self.mean.mul_(0.9), of a parameter that is not trained
        return next((n for n in writes_into(self, f"self.{name}") if self._is_refused(n, cls)), None)

    def _is_refused(self, write: cst.CSTNode, cls: Class) -> bool:
        """Whether a write into ``self.w`` is one of the class, and autograd records there."""
        function = self.flow.function(write)
        of_class = function is not None and function.cls in {*cls.lineage, *cls.descendants}
        return of_class and not under_no_grad(self.flow, write)

    def _can_come_first(self, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        """Whether one statement may have run when another does: not the other branch of an `if`."""
        if self.flow.function(first) is not self.flow.function(second):
            return True
        return self.source.comes_before(first, second) and not any(
            isinstance(node, cst.If)
            and is_inside(self.flow, second, node)
            and is_inside(self.flow, first, node.body) != is_inside(self.flow, second, node.body)
            for node in above(self.flow, first)
        )

    def _is_never_registered(self, cls: Class) -> bool:
        """Whether all modules of a class go into plain lists of others, so that no parameter of theirs is one."""
        made = [call for call in self.source.nodes_of(cst.Call) if dotted(call.func) == cls.name]
        return bool(made) and all(self._goes_into_list(call) for call in made)

    def _goes_into_list(self, made: cst.Call) -> bool:
        """``self.cells.append(Cell(8))``, ``self.cells = [Cell(8) for _ in range(3)]``"""
        node: cst.CSTNode | None = self.parent(made)
        call = self.parent(node) if isinstance(node, cst.Arg) else None
        held: cst.CSTNode | None = None
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and call.func.attr.value == "append":
            held = call.func.value
        else:
            while isinstance(
                node, cst.BaseElement | cst.BaseDictElement | cst.List | cst.Tuple | cst.Dict | cst.BaseComp
            ):
                node = self.parent(node)
            held = node.targets[0].target if isinstance(node, cst.Assign) and node.value is not made else None
        function = self.flow.function(made)
        if not isinstance(held, cst.Attribute) or dotted(held.value) != "self" or function is None:
            return False
        stores = self.flow.stores(function.cls, held.attr.value) if function.cls is not None else []
        return bool(stores) and all(value.kind in (LIST, TUPLE, DICT) for _, value in stores)

    def _put_back(self) -> None:
        """`module._parameters[name] = module._parameters[name].to(device)`"""
        for node in self.source.nodes_of(cst.Assign):
            move = self.flow.move(node.value)
            if move is None or not move.target.is_there or not _is_entry(move.receiver):
                continue
            if any(_is_entry(target.target) for target in node.targets):
                to = destination(self, move)
                self.report(node.value, f"what moving a parameter to {to} gives is a plain tensor, and takes its place")

    def _optimized(self) -> dict[cst.CSTNode | None, tuple[str, list[Note]]]:
        """Copies that are handed to an optimizer."""
        found: dict[cst.CSTNode | None, tuple[str, list[Note]]] = {}
        for call in self.flow.calls(*table.OPTIMIZERS):
            for arg in call.args[:1]:
                for value in _tensors(self.flow.value(arg.value)):
                    if _is_copy(value):
                        message = "an optimizer is given what a move made of a leaf, and takes leaves only"
                        found[value.origin] = (message, [self.note(call, "it is given to the optimizer here")])
        return found

    def _graded(self) -> dict[cst.CSTNode | None, tuple[str, list[Note]]]:
        """Copies that are asked for their gradient."""
        found: dict[cst.CSTNode | None, tuple[str, list[Note]]] = {}
        attributes = [
            node for node in self.source.nodes_of(cst.Attribute) if node.attr.value in ("grad", "retain_grad")
        ]
        kept = {self.flow.value(node.value).origin for node in attributes if node.attr.value == "retain_grad"}
        given = {self.flow.value(n.value).origin for n in attributes if isinstance(self.parent(n), cst.AssignTarget)}
        for node in attributes:
            value = self.flow.value(node.value)
            # w.grad = torch.ones(3)   gives it one
            read = node.attr.value == "grad" and not isinstance(self.parent(node), cst.AssignTarget)
            if read and _is_copy(value) and value.origin not in kept | given:
                name = short(self.code(node.value))
                message = f"`{name}.grad` stays `None`: the move makes `{name}` a copy, and the leaf keeps the gradient"
                found.setdefault(value.origin, (message, [self.note(node, "its `grad` is read here")]))
        return found

    # the fix --------------------------------------------------------------------------------------

    def _fix(self, move: Move) -> Fix | None:
        made = move.receiver
        if not isinstance(made, cst.Call):
            return None  # w.to(device)
        start, end = self.source.offsets(made, outer=True)[1], self.source.offsets(move.node)[1]
        suffix = self.source.text[start:end]
        if any(start <= offset < end for offset, _ in self.source.comments):
            return None
        name = self.flow.name_of(made)
        if name in table.WRAPPERS and made.args and not made.args[0].star:
            data = made.args[0].value  # nn.Parameter(torch.ones(3)).to(device)
            before, after = ("", "") if _is_primary(data) else ("(", ")")
            return self.fix(
                "move the data, and make the parameter of it there",
                *([self.insert_before(data, before)] if before else []),
                self.insert_after(data, after + suffix),
                self.replace_between(start, end, ""),
                safe=True,
            )
        asking: Edit | None = None
        if isinstance(made.func, cst.Attribute) and made.func.attr.value == "requires_grad_" and not made.args:
            _, data_end = self.source.offsets(made.func.value, outer=True)  # torch.ones(3).requires_grad_().to(device)
            asking = self.replace_between(data_end, start, "")
        elif self.flow.factory(made) is not None:
            asking = self.remove_argument(made, "requires_grad")  # torch.ones(3, requires_grad=True).to(device)
        if asking is None:
            return None
        title = "ask for gradients once it is there"
        return self.fix(title, asking, self.replace_between(end, end, ".requires_grad_()"), safe=True)


_PARAMETERS = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})


def _is_entry(node: cst.BaseExpression) -> bool:
    """`module._parameters[name]`"""
    return (
        isinstance(node, cst.Subscript)
        and isinstance(node.value, cst.Attribute)
        and node.value.attr.value == "_parameters"
    )


def _is_copy(value: Value) -> bool:
    """A moved copy of a leaf that autograd tracks: not `x.to(device).detach().requires_grad_()`."""
    return value.kind == TENSOR and value.ref == "non-leaf" and value.tracked is True and not value.grad


def _tensors(value: Value) -> Iterator[Value]:
    """The tensors in what an optimizer is given: a list, or groups of them."""
    if value.kind == TENSOR:
        yield value
    elif value.kind == DICT:
        for item in value.items.values():
            yield from _tensors(item)
    elif value.kind in (LIST, TUPLE) and value.items:
        items = value.items if value.kind == TUPLE else value.ref if isinstance(value.ref, tuple) else [value.items]
        for item in items:
            yield from _tensors(item)


def _is_primary(node: cst.BaseExpression) -> bool:
    """Whether `.to(...)` may follow an expression as it stands."""
    return bool(node.lpar) or isinstance(node, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
