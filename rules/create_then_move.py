from __future__ import annotations

from typing import NamedTuple, TypeGuard

import libcst as cst

from devlint import tree
from devlint.finding import Edit, Fix
from devlint.flow import torch_table as table
from devlint.flow.facts import Move
from devlint.flow.names import dotted
from devlint.flow.scope import CONSTRUCTOR, HOST_SIDE
from devlint.flow.value import DEVICE, DTYPE
from devlint.rule import Rule
from devlint.rules._moves import destination
from devlint.rules._neighbours import Told, report_together
from devlint.rules._recurs import (
    calls_what_waits,
    function_of,
    in_stepping_loop,
    is_deprecated,
    reads,
    recurs,
    waits_in_loop,
)

#: What a factory's result may go through without being computed with: the same calls give the same on a device.
_REARRANGE = (
    table.VIEWS | table.VIEWS_OR_COPIES | {"repeat", "tile", "clone", "tril", "triu", "flip", "roll", "diag"}
) - {"sum_to_size"}
_FILL = frozenset({"fill_", "zero_"})
_DRAW = frozenset(
    {"uniform_", "normal_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_"}
)

#: Arguments of a factory that tie it to the host, or make of the move more than a copy.
_KEEP_ON_HOST = frozenset({"device", "generator", "requires_grad", "pin_memory", "out"})

#: Arguments of `.to` that mean nothing once the tensor is there.
_ABOUT_THE_COPY = frozenset({"device", "other", "non_blocking", "copy"})


class _Made(NamedTuple):
    """A factory call at the head of a chain; ``random``: its values are drawn."""

    factory: cst.Call
    random: bool


class _Named(NamedTuple):
    """A name that a factory's result goes through: the lines that bind and move it, and those between."""

    line: cst.SimpleStatementLine
    move_line: cst.SimpleStatementLine
    between: list[cst.CSTNode]
    made: _Made


class CreateThenMove(Rule):
    """A tensor is made on the host and then copied to the device that could have made it.

    ## What it does
    Reports a factory call (`torch.zeros`, `torch.arange`, `torch.randn`, `torch.ones_like`, ...) whose result is moved
    to a device and used for nothing else: at once, behind calls that only rearrange it, or through a name that
    nothing else reads. It speaks where that happens again and again: in a loop that drives a model, in `forward` and
    what it calls, in what a loop of the file calls, and in functions that follow an argument (`.to(x.device)`). What
    stands in statements one below the other is one finding.

    ## Why is this bad
    The host fills memory that nobody reads there, and the copy that follows comes from pageable memory, so that the
    host waits for it. With `device=`, the device fills its own memory and the host goes on.

    ## Example
    ```python
    import torch


    def causal(x: torch.Tensor):
        mask = torch.ones(x.size(0), x.size(0)).to(x.device)
        return x * mask.tril()
    ```

    ## Use instead
    ```python
    import torch


    def causal(x: torch.Tensor):
        mask = torch.ones(x.size(0), x.size(0), device=x.device)
        return x * mask.tril()
    ```

    ## Fix safety
    The fix gives the factory `device=` and drops the move, or only its device where it changes the type, too. It is
    safe: the values stay the same. For random factories it is unsafe, since a device draws other numbers from the
    same seed than the host does; so it is for `.cuda(index)` with an index that may be `None`. No fix is offered
    where the device may be another one, or not bound yet, at the factory.

    ## Limits
    Silent for values that come from Python or numpy (`torch.tensor(xs)`): `device=` makes the very same copy of them.
    Silent with `generator=`, `pin_memory=`, `requires_grad=` and an explicit `device="cpu"`; where something is
    computed, written or read between; and where one tensor is copied several times. Silent for what happens once: in
    constructors, in the main code outside of loops, once an epoch, what a module keeps in an attribute; in a statement
    that waits for the device in any case, and beside a loop that does each time around, its own or one of a function
    that it calls; in a branch of a setting before a loop that generates; for what is then filled from the host row by
    row; for `linspace` of integers, which a device rounds in another way; for tensors without elements; and in
    deprecated code.

    ## References
    - [Creation ops](https://pytorch.org/docs/stable/torch.html#creation-ops)
    - [Performance tuning guide: create tensors directly on the target device](https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html)
    """

    group = "performance"
    fixable = "sometimes"

    def check(self) -> None:
        found = []
        for move in self.flow.facts.moves.values():
            value = move.value
            if not (value.is_tensor and value.place.is_host and _goes_there(move)) or value.pinned or value.grad:
                continue
            if self._is_for_its_effect(move.node):
                continue
            head, drawn = self._head(move.receiver)
            named = self._named(move, head) if isinstance(head, cst.Name) else None
            made = named.made._replace(random=named.made.random or drawn) if named is not None else None
            if isinstance(head, cst.Call):
                made = _Made(head, drawn)
            if made is not None and not self._is_empty(made.factory) and self._matters(move):
                found.append(self._told(move, made, named))
        report_together(self, found)

    def _told(self, move: Move, made: _Made, named: _Named | None) -> Told:
        name = self.flow.name_of(made.factory)
        return Told(
            move.node,
            f"`{name}` makes this tensor on the host, only for it to be copied to {destination(self, move)}",
            also=f"so is what `{name}` makes here",
            notes=[self.note(made.factory, "it is made here, and used only where it is moved")] if named else [],
            fix=self._fix(move, made, named),
        )

    # whether it matters -------------------------------------------------------------------------

    def _matters(self, move: Move) -> bool:
        """Whether the host is to wait again and again: one copy while a program starts is no matter."""
        if is_deprecated(self.flow, move.node) or self._is_kept(move) or self._waits_anyway(move):
            return False
        if in_stepping_loop(self.flow, move.node):
            return True
        function = self.flow.function(move.node)
        if calls_what_waits(self.flow, function) or self._is_filled_from_host(move) or self._goes_before_loop(move):
            return False
        if waits_in_loop(self.flow, function):
            return False  # while not done: ... tokens.tolist()   next to which one copy at the start is nothing
        return recurs(self.flow, move.node) or self._follows_an_argument(move)

    def _is_kept(self, move: Move) -> bool:
        """`if self.mask is None: self.mask = torch.ones(n).to(x.device)`"""
        parent = self.parent(move.node)
        if not isinstance(parent, cst.Assign) or self.flow.runs_each_step(move.node):
            return False
        return any(dotted(_held(target.target)).startswith("self.") for target in parent.targets)

    def _waits_anyway(self, move: Move) -> bool:
        """`torch.arange(n).to(mask.device)[mask].tolist()`: the statement waits for the device in any case."""
        statement = self.enclosing(move.node, cst.BaseSmallStatement, cst.BaseCompoundStatement)
        if not isinstance(statement, cst.BaseSmallStatement):
            return False
        return any(isinstance(node, cst.BaseExpression) and reads(self.flow, node) for node in tree.walk(statement))

    def _is_filled_from_host(self, move: Move) -> bool:
        """`for i, row in enumerate(rows): table[i] = torch.tensor(row)`: better filled on the host, and moved once."""
        parent = self.parent(move.node)
        target = parent.targets[0].target if isinstance(parent, cst.Assign) else None
        if not isinstance(target, cst.Name):
            return False
        function = self.flow.function(move.node)
        for assign in self.source.nodes_of(cst.Assign):
            held = assign.targets[0].target
            if (
                isinstance(held, cst.Subscript)
                and dotted(held.value) == target.value
                and self.flow.function(assign) is function
                and self.flow.loop(assign) is not None
                and (value := self.flow.value(assign.value)).is_tensor
                and value.place.is_host
            ):
                return True
        return False

    def _goes_before_loop(self, move: Move) -> bool:
        """`if self.config.is_encoder_decoder: ...`, once for a call that then goes to a method that generates."""
        test = self.enclosing(move.node, cst.If, cst.FunctionDef)
        if not isinstance(test, cst.If) or "config" not in dotted(test.test).split("."):
            return False
        function = self.flow.function(move.node)
        calls = [n for n in tree.walk(function.node.body) if isinstance(n, cst.Call)] if function is not None else []
        at, _ = self.source.offsets(move.node)
        return any(
            isinstance(n, cst.For | cst.While) and (loop := self.flow.loop(n.body.body[0])) is not None and loop.works
            for call in calls
            if self.source.offsets(call)[0] > at and (called := function_of(self.flow, call)) is not None
            for n in tree.walk(called.node.body)
        )

    def _follows_an_argument(self, move: Move) -> bool:
        """Whether the tensor goes to where an argument of the function is: such functions are called for each batch."""
        function = self.flow.function(move.node)
        if function is None or function.role in (CONSTRUCTOR, HOST_SIDE):
            return False
        if function.name == "__call__" and (function.cls is None or not function.cls.is_module):
            return False  # a pipeline, called once for each picture
        node = move.target_node
        if isinstance(node, cst.Attribute) and node.attr.value == "type":
            node = node.value  # x.device.type
        if isinstance(node, cst.Attribute) and node.attr.value == "device":
            node = node.value
        elif node is None or not self.flow.value(node).holds_tensors:
            return False
        if isinstance(node, cst.Subscript):
            node = node.value  # batch["ids"].device
        elif not (self.flow.value(node).holds_tensors or self._has_a_shape(node, function.node)):
            return False  # args.device
        return isinstance(node, cst.Name) and node.value in function.param_names and node.value not in ("self", "cls")

    def _has_a_shape(self, node: cst.BaseExpression, function: cst.FunctionDef) -> bool:
        name = dotted(node)
        return any(
            isinstance(n, cst.Attribute) and n.attr.value in _OF_TENSORS and dotted(n.value) == name
            for n in tree.walk(function.body)
        )

    def _is_empty(self, factory: cst.Call) -> bool:
        """`torch.empty(0)`, `torch.zeros((0, 4))`: there is nothing to copy."""
        if self.flow.name_of(factory).rpartition(".")[2] not in ("empty", "zeros", "ones", "rand", "randn"):
            return False
        sizes = [arg.value for arg in factory.args if arg.keyword is None]
        if len(sizes) == 1 and isinstance(sizes[0], cst.List | cst.Tuple):
            sizes = [element.value for element in sizes[0].elements]
        return any(isinstance(size, cst.Integer) and size.value == "0" for size in sizes)

    def _is_for_its_effect(self, call: cst.Call) -> bool:
        """Whether nothing reads what was moved: the device is to be woken up, or the copy itself tried."""
        parent = self.parent(call)
        if isinstance(parent, cst.Expr):
            return True  # torch.zeros(1).cuda()
        if not isinstance(parent, cst.Assign) or not isinstance(parent.targets[0].target, cst.Name):
            return False
        name = parent.targets[0].target.value
        function = self.enclosing(call, cst.FunctionDef)
        return name == "_" or (function is not None and len(self._mentions(name, function)) == 1)

    # what was made ------------------------------------------------------------------------------

    def _head(self, node: cst.BaseExpression) -> tuple[cst.BaseExpression | None, bool]:
        """The factory call, or the name, that a chain of rearranging calls starts from; whether values are drawn."""
        drawn = False
        while True:
            if isinstance(node, cst.Name):
                return node, drawn
            if _is_view(node):
                node = node.value
            elif not isinstance(node, cst.Call):
                return None, False
            elif (random := self._factory_draws(node)) is not None:
                return node, drawn or random
            elif self.flow.name_of(node):
                # torch.tril(torch.ones(n, n))
                if self.flow.name_of(node).removeprefix("torch.") not in _REARRANGE or not node.args:
                    return None, False
                node = node.args[0].value
            elif isinstance(node.func, cst.Attribute) and self._rearranges(node, node.func.attr.value):
                drawn = drawn or node.func.attr.value in _DRAW
                node = node.func.value
            else:
                return None, False

    def _factory_draws(self, call: cst.Call) -> bool | None:
        """Whether a factory that a device could run draws its values; ``None`` if the call is no such factory."""
        name = self.flow.name_of(call)
        entry = self.flow.factory(call)
        if entry is None and name not in table.LIKE:
            return None
        if entry is not None and entry.values == "python":
            return None
        if name in ("torch.linspace", "torch.logspace") and any(
            "int" in dotted(arg.value) or dotted(arg.value) in ("torch.long", "torch.short")
            for arg in call.args
            if arg.keyword is not None and arg.keyword.value == "dtype"
        ):
            return None  # a device computes in another precision, and cuts off other fractions
        if any(
            arg.star == "**" or (arg.keyword is not None and arg.keyword.value in _KEEP_ON_HOST) for arg in call.args
        ):
            return None
        if name == "torch.normal" and any(self.flow.value(arg.value).holds_tensors for arg in call.args):
            return None  # it follows its mean
        return entry.values == "random" if entry is not None else "rand" in name

    def _rearranges(self, call: cst.Call, method: str) -> bool:
        if method in _DRAW:
            return all(arg.keyword is None or arg.keyword.value != "generator" for arg in call.args)
        if method in ("to", "type"):
            return len(call.args) == 1 and self.flow.value(call.args[0].value).kind == DTYPE
        return method in _REARRANGE or method in _FILL

    # through a name -----------------------------------------------------------------------------

    def _named(self, move: Move, name: cst.Name) -> _Named | None:
        """The name's way from the factory to the move, where nothing else reads or writes it on that way."""
        line: cst.CSTNode | None = move.node
        while not isinstance(line, cst.SimpleStatementLine):
            if line is None or isinstance(line, _PERHAPS_OR_OFTEN):
                return None
            line = self.parent(line)
        block = self.parent(line)
        if not isinstance(block, cst.IndentedBlock | cst.Module) or len(line.body) != 1:
            return None
        scope = self.enclosing(line, cst.FunctionDef) or self.source.module
        mentions = self._mentions(name.value, scope)
        holders = {mention: self._statement_in(block, mention) for mention in mentions}
        statements: list[cst.CSTNode] = list(block.body)
        at = statements.index(line)
        before = [i for i in range(at) if statements[i] in holders.values()]
        first = statements[before[-1]] if before else None
        made = self._binds(first, name.value) if isinstance(first, cst.SimpleStatementLine) else None
        if not isinstance(first, cst.SimpleStatementLine) or made is None:
            return None
        others = [m for m in mentions if m is not name and holders[m] is line]
        rebound = isinstance(line.body[0], cst.Assign) and any(self._is_stored(m) for m in others)
        if any(not self._is_stored(m) for m in others) or not (rebound or len(mentions) == 2):
            return None  # the host's copy is read too, or the same one is copied again
        return _Named(first, line, statements[before[-1] + 1 : at], made)

    def _binds(self, line: cst.SimpleStatementLine, name: str) -> _Made | None:
        """``name = <factory>``, alone on its line."""
        if len(line.body) != 1:
            return None
        assign = line.body[0]
        if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
            target, value = assign.targets[0].target, assign.value
        elif isinstance(assign, cst.AnnAssign) and assign.value is not None:
            target, value = assign.target, assign.value
        else:
            return None
        if not isinstance(target, cst.Name) or target.value != name:
            return None
        head, drawn = self._head(value)
        return _Made(head, drawn) if isinstance(head, cst.Call) else None

    def _mentions(self, name: str, scope: cst.CSTNode) -> list[cst.Name]:
        """Every use of a name in a function, the functions inside it included, or in the file."""
        found = []
        for node in self.source.nodes_named("Name"):
            if not isinstance(node, cst.Name) or node.value != name:
                continue
            parent = self.parent(node)
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                continue
            if isinstance(parent, cst.Arg) and parent.keyword is node:
                continue
            above: cst.CSTNode | None = node
            while above is not None and above is not scope:
                above = self.parent(above)
            if above is scope:
                found.append(node)
        return found

    def _statement_in(self, block: cst.CSTNode, node: cst.CSTNode) -> cst.CSTNode | None:
        """The statement of the block that holds a node."""
        current: cst.CSTNode | None = node
        while current is not None:
            above = self.parent(current)
            if above is block:
                return current
            current = above
        return None

    def _is_stored(self, name: cst.Name) -> bool:
        child: cst.CSTNode = name
        parent = self.parent(child)
        while isinstance(parent, _PARTS_OF_A_TARGET):
            child, parent = parent, self.parent(parent)
        if isinstance(parent, cst.For | cst.AugAssign | cst.AnnAssign | cst.NamedExpr):
            return parent.target is child
        return isinstance(parent, cst.AssignTarget | cst.AsName | cst.Del | cst.FunctionDef | cst.ClassDef)

    # fix ----------------------------------------------------------------------------------------

    def _fix(self, move: Move, made: _Made, named: _Named | None) -> Fix | None:
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
        return self.fix(title, argument, removal, safe=not made.random and self._names_a_device(move))

    def _device(self, move: Move) -> str | None:
        """Code for ``device=`` that means what the move means."""
        node = move.target_node
        if node is None:
            return f'"{move.how}"'
        if isinstance(node, cst.NamedExpr) or "#" in self.code(node):
            return None
        if self._follows_a_tensor(move):
            return f"{self.code(node)}.device" if isinstance(node, cst.Name | cst.Attribute) else None
        if isinstance(node, cst.Integer):
            return f'"{move.target.name or "cuda"}"' if move.how != "to" else self.code(node)
        return self.code(node)

    def _names_a_device(self, move: Move) -> bool:
        # `x.cuda(None)` is the current device, but `device=None` is the default one
        node = move.target_node
        return move.how == "to" or node is None or isinstance(node, cst.Integer) or self.flow.value(node).kind == DEVICE

    def _same_device_before(self, move: Move, named: _Named) -> bool:
        """Whether the device expression has the same value at the factory as at the move."""
        node = move.target_node
        if node is None or not named.between:
            return True
        head = node
        while isinstance(head, cst.Attribute):
            head = head.value
        if isinstance(head, cst.SimpleString | cst.Integer):
            return True
        if not isinstance(head, cst.Name):
            return False  # next(self.parameters()).device: the module may be moved between
        block = self.parent(named.line)
        assert block is not None
        return not any(
            self._is_stored(mention) and self._statement_in(block, mention) in named.between
            for mention in self._mentions(head.value, block)
        )

    def _remove_move(self, move: Move, named: _Named | None) -> Edit | None:
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
            return self._delete_statement(named.move_line)
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
        """``.to(x)``: to the device and the type of another tensor."""
        return move.target_node is not None and self.flow.value(move.target_node).is_tensor

    def _only_rebinds(self, move: Move, named: _Named) -> bool:
        statement = named.move_line.body[0]
        return (
            isinstance(statement, cst.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0].target, cst.Name)
            and isinstance(move.receiver, cst.Name)
            and statement.targets[0].target.value == move.receiver.value
            and statement.value is move.node
        )

    def _delete_statement(self, line: cst.SimpleStatementLine) -> Edit:
        comment = line.trailing_whitespace.comment
        if comment is None:
            return self.delete_line(line)
        start, _ = self.source.offsets(line.body[0])
        return self.replace_between(start, self.source.offsets(comment)[0], "")


#: What stands between a move and its statement if the move may not happen, or happen more than once.
_PERHAPS_OR_OFTEN = (
    cst.Lambda,
    cst.ListComp,
    cst.SetComp,
    cst.DictComp,
    cst.GeneratorExp,
    cst.IfExp,
    cst.BooleanOperation,
)

_PARTS_OF_A_TARGET = (cst.Element, cst.StarredElement, cst.Tuple, cst.List, cst.Attribute, cst.Subscript)


#: What is asked of tensors, and of no settings.
_OF_TENSORS = frozenset("size shape dtype dim ndim numel".split())


def _held(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.value if isinstance(node, cst.Subscript) else node


def _goes_there(move: Move) -> bool:
    # `x.device` of an argument is where the caller has x: on the device, as code is judged
    of_argument = isinstance(move.target_node, cst.Attribute) and move.target.kind == "param"
    return move.target.is_there or of_argument


def _assigns_several(statement: cst.BaseSmallStatement) -> bool:
    return isinstance(statement, cst.Assign) and isinstance(statement.targets[0].target, cst.Tuple | cst.List)


def _is_view(node: cst.BaseExpression) -> TypeGuard[cst.Subscript | cst.Attribute]:
    """``x[None, :]`` and ``x.T``."""
    if isinstance(node, cst.Subscript):
        return all(_is_plain_index(item.slice) for item in node.slice)
    return isinstance(node, cst.Attribute) and node.attr.value in ("T", "mT")


def _is_plain_index(index: cst.BaseSlice) -> bool:
    """``[None, :, 0, ...]``: indices that cost the same on a device as on the host."""
    if isinstance(index, cst.Slice):
        return True
    value = index.value if isinstance(index, cst.Index) else None
    if isinstance(value, cst.UnaryOperation):
        value = value.expression
    return isinstance(value, cst.Ellipsis | cst.Integer) or (isinstance(value, cst.Name) and value.value == "None")
