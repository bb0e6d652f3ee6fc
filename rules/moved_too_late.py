from __future__ import annotations

from functools import cached_property

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import dotted, names_bound
from devlint.flow.value import DATA, DICT, LIST, MODULE, TENSOR, TUPLE, UNKNOWN_KIND
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._moves import short
from devlint.rules._training import is_inside

#: Functions and methods that want the indices and what they pick from on one device, and where each is given.
_PICKERS = {"torch.index_select": (2, "index"), "torch.gather": (2, "index"), "torch.take": (1, "index")}
_PICKING_METHODS = {"index_select": (1, "index"), "gather": (1, "index"), "take": (0, "index")}
#: What moves a tensor, or makes a number of it, inside an expression: ``table[steps.cpu()]``.
_PUTS = frozenset("to cuda cpu type_as item tolist numpy".split())


class MovedTooLate(Rule):
    """The answer of an operation is moved to a device that the operation needed its input on.

    ## What it does
    Reports a move that comes after the operation that it is there for: what a table gives for `index` is moved to
    `index.device`; what is made on the host is first multiplied with a tensor that the function was handed and then
    moved; the answer of a module that was moved to `device` is moved to `device`, and its input was not.

    ## Why is this bad
    An operation takes its operands on one device. Where they are not, it raises `Expected all tensors to be on the same
    device` (or `indices should be either on cpu or on the same device as the indexed tensor`), and the move below is
    not reached; where they are, the move does nothing.

    ## Example
    ```python
    import torch


    class Kinds:
        def __init__(self, numbers):
            self.kind_of = torch.full((120,), -1)
            self.kind_of[numbers] = torch.arange(len(numbers))

        def __call__(self, numbers):
            return self.kind_of[numbers - 1].to(numbers.device)
    ```

    ## Use instead
    ```python
    import torch


    class Kinds:
        def __init__(self, numbers):
            self.kind_of = torch.full((120,), -1)
            self.kind_of[numbers] = torch.arange(len(numbers))

        def __call__(self, numbers):
            return self.kind_of.to(numbers.device)[numbers - 1]
    ```

    ## Fix safety
    There is no fix: which operand is to be moved, and where it is moved once and for all, is for the author to say.

    ## Limits
    A table on a device takes indices on the host, so that a table that is surely moved is left alone; one that nobody
    moves is taken to be on the host. Of modules, only those that the file moves to the very same device, and only where
    the input was bound in the same function by a call or a loop that names no device. Tentative throughout: where the
    operands are is not known. New: four faults that projects have mended since, and nothing in some 120 repositories
    that are kept well.

    ## References
    - [Tensor.to](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html)
    - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)
    """

    group = "nursery"
    assumes_host_default = True
    raises = True

    def check(self) -> None:
        if ".to(" not in self.source.text and ".cuda(" not in self.source.text:
            return
        for call in self.source.nodes_of(cst.Call):
            if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in ("to", "cuda"):
                continue
            done = self._what_is_moved(call.func.value, call)
            target = _target(call)
            if done is None or (target is None and call.func.attr.value == "to"):
                continue
            if target is not None and isinstance(target, cst.Attribute) and target.attr.value == "device":
                self._picked(done, dotted(target.value), call)
            self._joined(done, call)
            self._answered(done, self.code(target) if target is not None else "", call)

    def _what_is_moved(self, node: cst.BaseExpression, move: cst.Call) -> cst.BaseExpression | None:
        """The operation; that of the statement above, for ``x = scale * x`` and ``x = x.to(device)``."""
        if not isinstance(node, cst.Name):
            return node
        statement = self.enclosing(move, cst.SimpleStatementLine)
        block = self.parent(statement) if statement is not None else None
        if not isinstance(block, cst.IndentedBlock):
            return None
        for line in reversed(block.body[: block.body.index(statement)]):
            bound = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
            if isinstance(bound, cst.Assign) and dotted(bound.targets[0].target) == node.value:
                return bound.value
            if node.value in _bound_in(line):
                return None
        return None

    # a table ------------------------------------------------------------------------------------

    def _picked(self, done: cst.BaseExpression, index: str, move: cst.Call) -> None:
        """``self.table[steps].to(steps.device)``"""
        given: list[cst.BaseExpression] = []
        if isinstance(done, cst.Subscript):
            looked_up = done.value
            given = [each.slice.value for each in done.slice if isinstance(each.slice, cst.Index)]
        elif isinstance(done, cst.Call):
            name = self.flow.name_of(done)
            if name in _PICKERS and done.args:
                looked_up = done.args[0].value
                arg = argument(done, *_PICKERS[name])
            elif not name.startswith("torch.") and isinstance(done.func, cst.Attribute):
                looked_up = done.func.value
                arg = argument(done, *_PICKING_METHODS.get(done.func.attr.value, (None, "")))
            else:
                return
            given = [arg.value] if arg is not None else []
        if not index or not any(_is_computed_from(each, index) for each in given):
            return
        if not self._is_left_at_home(looked_up, index):
            return
        table, code = short(self.code(looked_up)), short(self.code(move.args[0].value))
        self._say(move, f"`{table}` is indexed with `{index}` before what it gives is moved to `{code}`")

    def _is_left_at_home(self, looked_up: cst.BaseExpression, index: str) -> bool:
        """Whether nothing says that a table is where the index is."""
        value = self.flow.value(looked_up)
        if value.place.is_there or value.place.name == "self" or value.kind in (DICT, LIST, TUPLE, DATA, MODULE):
            return False  # self.register_buffer("table", table): it goes where the module goes
        name = dotted(looked_up)
        if not name or name == index:
            return False  # scores[scores.argmax()]   is where its own index is
        if name in self._moved_names:
            return False  # self.table = self.table.to(x.device)
        # bounds = steps.cumsum(0); bounds[steps]   and order = scores.argsort(); scores[order]
        return not self._is_made_of(name, index, looked_up) and not self._is_made_of(index, name, looked_up)

    def _is_made_of(self, name: str, other: str, at: cst.CSTNode) -> bool:
        head = other if other.startswith("self.") else other.partition(".")[0]
        return any(
            isinstance(part, cst.Name | cst.Attribute) and dotted(part) == head
            for bound in self._bindings(name, at)
            for part in tree.walk(bound)
        )

    # operands -----------------------------------------------------------------------------------

    def _joined(self, done: cst.BaseExpression, move: cst.Call) -> None:
        """``noise = scale[:, None] * torch.rand(n, 3)`` and ``noise = noise.to(device)``."""
        if not isinstance(done, cst.BinaryOperation):
            return
        moved = self.flow.move(move)
        if moved is None or moved.target.is_host:
            return
        for made, other in ((done.left, done.right), (done.right, done.left)):
            if self._is_made_on_host(made) and self._is_elsewhere(other):
                what, beside = short(self.code(made)), short(self.code(other))
                self._say(
                    move, f"`{what}` is made on the host and meets `{beside}` before the result is moved", at=done
                )
                return

    def _is_made_on_host(self, node: cst.BaseExpression) -> bool:
        value = self.flow.value(node)
        is_made = self.flow.factory(value.origin) is not None
        return is_made and value.kind == TENSOR and value.place.is_host and value.zero is False and value.attr is None

    def _is_elsewhere(self, node: cst.BaseExpression) -> bool:
        """A tensor with dimensions that the function was handed, or that was put on a device."""
        value = self.flow.value(node)
        if value.kind == TENSOR and value.zero is False:
            return (not value.place.is_host and value.place.kind == "param") or value.place.is_there
        # scale[:, None]   is no number
        is_widened = isinstance(node, cst.Subscript) and any(
            isinstance(each.slice, cst.Index) and dotted(each.slice.value) == "None" for each in node.slice
        )
        return is_widened and value.kind in (UNKNOWN_KIND, TENSOR) and not value.place.is_host

    # modules ------------------------------------------------------------------------------------

    def _answered(self, done: cst.BaseExpression, target: str, move: cst.Call) -> None:
        """``obs = self.norm(obs)`` and ``obs = obs.to(self.device)``, where ``self.norm`` was moved to that."""
        if not isinstance(done, cst.Call) or not done.args or not dotted(done.func) or not target:
            return
        model, asked = dotted(done.func), done.args[0].value
        if not isinstance(asked, cst.Name) or (model, target) not in self._homes:
            return
        bindings = self._bindings(asked.value, done)
        before = [
            each for each in bindings if self.source.comes_before(each, done) and not is_inside(self.flow, done, each)
        ]
        if not before or not isinstance(before[-1], cst.Call) or self.flow.value(asked).place.is_there:
            return
        if any(_is_put(part) for part in tree.walk(before[-1])) or "device" in self.code(before[-1]):
            return  # x = batch["x"].to(device); model(x).to(device)   says it twice
        self._say(
            move,
            f"`{model}` is on `{target}`, and its answer is moved there: `{asked.value}` is not, before the call",
            at=done,
        )

    @cached_property
    def _homes(self) -> set[tuple[str, str]]:
        """What the file moves, and where: ``("self.norm", "self.device")``."""
        found = set()
        for call in self.source.nodes_of(cst.Call):
            target = _target(call)
            if target is None or not isinstance(call.func, cst.Attribute) or call.func.attr.value != "to":
                continue
            above, where = self.parent(call), self.code(target)
            found.add((dotted(call.func.value), where))
            if isinstance(above, cst.Assign):
                found.add((dotted(above.targets[0].target), where))
        return {(name, where) for name, where in found if name}

    # names --------------------------------------------------------------------------------------

    @cached_property
    def _moved_names(self) -> set[str]:
        return {name for name, _ in self._homes} | {
            dotted(each.func.value)
            for each in self.source.nodes_of(cst.Call)
            if isinstance(each.func, cst.Attribute) and each.func.attr.value == "cuda"
        }

    def _bindings(self, name: str, at: cst.CSTNode) -> list[cst.BaseExpression]:
        """What a name is bound to in the same function, or an attribute anywhere in the file."""
        function = self.flow.function(at)
        found: list[cst.BaseExpression] = []
        for assign in self.source.nodes_of(cst.Assign):
            targets = [each.target for each in assign.targets]
            is_bound = name in names_bound(*targets) or name in (dotted(each) for each in targets)
            if is_bound and ("." in name or self.flow.function(assign) is function):
                found.append(assign.value)
        return found

    def _say(self, move: cst.Call, message: str, at: cst.CSTNode | None = None) -> None:
        notes = [self.note(move, "it is moved here")] if at is not None else []
        self.report(at if at is not None else move, message, notes=notes, tentative=True)


def _target(call: cst.Call) -> cst.BaseExpression | None:
    """``x.device`` of ``.to(x.device)`` and ``.to(device=x.device)``."""
    arg = argument(call, 0, "device")
    return arg.value if arg is not None else None


def _bound_in(line: cst.CSTNode) -> set[str]:
    targets = [each.target for each in tree.walk(line) if isinstance(each, cst.AssignTarget | cst.For | cst.AugAssign)]
    return names_bound(*targets)


def _is_put(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _PUTS


def _is_computed_from(node: cst.BaseExpression, name: str) -> bool:
    """``steps``, ``steps - 1``, ``steps.long()``, and not ``steps.shape[0]`` or ``steps.cpu()``."""
    if isinstance(node, cst.Name | cst.Attribute):
        return dotted(node) == name
    if isinstance(node, cst.BinaryOperation):
        return _is_computed_from(node.left, name) or _is_computed_from(node.right, name)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and not _is_put(node):
        method = table.METHODS.get(node.func.attr.value)
        return method is not None and method.result != "host" and _is_computed_from(node.func.value, name)
    return False
