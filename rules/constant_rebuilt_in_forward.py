from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import libcst as cst

from devlint import tree
from devlint.flow import steps
from devlint.flow.facts import Move
from devlint.flow.loops import working_loop
from devlint.flow.names import called_name, dotted
from devlint.flow.place import Place
from devlint.flow.scope import CONSTRUCTOR, Function
from devlint.flow.steps import STEPS, is_under_test, runs_each_time
from devlint.flow.waiting import is_constant, waits
from devlint.rule import Rule
from devlint.rules._moves import has_memory_of_its_own, short
from devlint.rules._neighbours import Told, report_together
from devlint.rules._places import where
from devlint.rules._recurs import calls_of, function_of


class ConstantRebuiltInForward(Rule):
    """Each call of `forward` copies the same constant from the host to the device.

    ## What it does
    Reports, in `forward` or `training_step` of a module and in what these call: `torch.tensor(...)` of constants that
    is made on a device or moved there, and the move of a tensor that the constructor left on the host as an attribute
    (`self.mean.to(x.device)`), where each call comes by it.

    ## Why is this bad
    Each call copies the same bytes from pageable memory, for which the host waits until the device has done all that it
    was given before. A buffer is copied once, with the module.

    ## Example
    ```python
    import torch
    from torch import nn


    class Normalize(nn.Module):
        def forward(self, x: torch.Tensor):
            x = x / 255
            mean = torch.tensor([0.485, 0.456, 0.406], device=x.device)
            return x - mean[:, None, None]
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    class Normalize(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]), persistent=False)

        def forward(self, x: torch.Tensor):
            x = x / 255
            return x - self.mean[:, None, None]
    ```

    ## Fix safety
    No fix is offered. Register a buffer, or keep a cache for each device and dtype where the function has no module;
    for a single number use the number itself (`x.clamp(max=1.0)`, `torch.where(mask, x, 0.0)`), or `torch.zeros(())`
    and `torch.full((), value)` with `device=`, which fill memory there and copy nothing. `module.half()` converts
    buffers of floats, too: cast to `torch.float32` in `forward` where that would lose digits that matter. A complex
    tensor does not go into a buffer: `module.to(dtype)` would drop its imaginary part. Keep its copy in an attribute
    instead, one for each device.

    ## Limits
    Of 17 findings in 113 repositories readers held 16 for right and one for arguable; about half were worth a change.
    Tentative where `forward` begins with a constant, since the batch may just have been waited for, and in tests.
    Silent for tables in functions outside of classes, which have no place to keep them; in functions marked to be
    compiled; where the module keeps the copy (`self.mean = self.mean.to(x.device)`), in functions that are cached,
    where the numbers are not the same in each call, where a method sets `self.device`, and for `torch.zeros`,
    `torch.arange` and their kin, which copy nothing. Silent where a test decides whether the constant is made or used,
    in the function or where it is called, unless it asks for types or devices; for a name that each branch binds anew;
    and for tables in double, which a buffer would have cast with the module. Silent, too, where each call waits as well
    for something else, in the function, a loop in it, what it calls or all that calls it: a value of the device, the
    bound of a slice or a size that is a tensor, a selection by a mask, `unique`, a distribution that looks at its
    arguments, a list of indices or other data that is copied.

    What `torch.compile` makes of such a function copies nothing (on an H100, with torch 2.11: each plain call copied
    the constant and waited, compiled ones did neither).

    ## References
    - [torch.nn.Module.register_buffer](https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer)
    - [Performance tuning guide: create tensors directly on the target device](https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#create-tensors-directly-on-the-target-device)
    """

    group = "performance"
    assumes_host_default = True

    def check(self) -> None:
        found = []
        for call in self.flow.calls("torch.tensor", "torch.as_tensor", "torch.asarray"):
            if call.args and not call.args[0].star and is_constant(call.args[0].value):
                found += self._built(call)
        for move in self.flow.facts.moves.values():
            if move.value.is_tensor and move.value.attr is not None and self._keeps_on_host(move):
                name = short(self.code(move.receiver))
                told = self._told(move.node, f"`{name}` stays on the host, and is copied to", move.target)
                found += [replace(each, tentative=True) for each in told] if self._may_move_along(move) else told
        report_together(self, found)

    @cached_property
    def _plain(self) -> frozenset[Function]:
        return steps.functions(self.flow, plainly=True)

    @cached_property
    def _steps(self) -> frozenset[Function]:
        return steps.functions(self.flow)

    def _built(self, call: cst.Call) -> list[Told]:
        attribute = self.parent(call)
        above = self.parent(attribute) if isinstance(attribute, cst.Attribute) else None
        moved = self.flow.move(above) if above is not None else None
        place = moved.target if moved is not None else self.flow.value(call).place
        function = self.flow.function(call)
        if function is not None and function.cls is None and isinstance(call.args[0].value, cst.List | cst.Tuple):
            return []  # def to_hls(image): index = torch.tensor([[0, 1, 2]], device=image.device)   no place to keep it
        if not has_memory_of_its_own(place):
            return []
        return self._told(call, f"`{short(self.code(call.args[0].value))}` is copied to", place)

    def _told(self, node: cst.Call, said: str, place: Place) -> list[Told]:
        if not self.flow.runs_each_step(node) or working_loop(self.flow, node) is not None:
            return []  # for layer in self.layers: x = layer(x, torch.tensor(...))   invariant-move-in-loop judges it
        function = self.flow.function(node)
        assert function is not None
        if any("compile" in decorator for decorator in function.decorators):
            return []  # @torch.compile: the compiler fills it in on the device
        if function not in self._plain or is_under_test(self.flow, function, node) or not self._is_used(node, function):
            return []  # if x.shape[0] == 1: return torch.tensor([0], device=x.device)
        if self._set_later(place, function) or self._waits_anyway(node, function):
            return []
        said = f"{said} {where(place)} by each call of `{function.name}`"
        is_built = self.flow.move(node) is None
        tentative = self.in_tests or (is_built and self._comes_first(node, function))
        return [Told(node, said, also=said, tentative=tentative)]

    def _comes_first(self, node: cst.Call, function: Function) -> bool:
        """Whether a step begins with it: where the batch has just been copied, nothing is queued to wait for."""
        # def forward(self, batch): total = torch.tensor(0.0, device=self.device); ...
        return function.name in STEPS and not any(
            self._queues(n) and self.source.comes_before(n, node) for n in tree.walk(function.node.body)
        )

    def _queues(self, node: cst.CSTNode) -> bool:
        """Whether the device is given something to do, as far as that can be seen: an operation, a call."""
        if isinstance(node, cst.Call):
            return called_name(node) not in _ASKING
        if not isinstance(node, cst.BinaryOperation | cst.Comparison | cst.AugAssign):
            return False
        value = self.flow.value(node.target if isinstance(node, cst.AugAssign) else node)
        return value.is_tensor and not value.place.is_host

    def _set_later(self, place: Place, function: Function) -> bool:
        """Whether a method sets `self.device` to what it is handed: a sampler may be on the host, its model not."""
        if place.name != "self.device" or function.cls is None:
            return False
        owners = list(function.cls.lineage)
        heir = self.flow.heir(function.cls, "device")
        if heir is not None:
            owners += heir.lineage
        return any(m.role != CONSTRUCTOR and "device" in m.stores for o in owners for m in o.methods.values())

    def _is_used(self, node: cst.CSTNode, function: Function) -> bool:
        """Whether each call needs the value: `zero = torch.tensor(0.0, device=d)` may be there for one branch only."""
        assign = self.enclosing(node, cst.BaseSmallStatement)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) else getattr(assign, "target", None)
        if not isinstance(target, cst.Name):
            return True
        at, _ = self.source.offsets(assign)
        if self._is_bound_anew(assign, target.value):
            return False
        return any(
            isinstance(n, cst.Name)
            and n.value == target.value
            and self.source.offsets(n)[0] > at
            and not isinstance(self.parent(n), cst.AssignTarget)
            and n is not target
            and not is_under_test(self.flow, function, n)
            for n in tree.walk(function.node.body)
        )

    def _is_bound_anew(self, assign: cst.CSTNode, name: str) -> bool:
        """Whether the next statement that has the name binds it in each of its branches, or leaves it to none."""
        # loss = torch.tensor(0.0, device=d); if mean: loss = x.mean() elif total: loss = x.sum()
        line = self.parent(assign)
        block = self.parent(line) if line is not None else None
        if not isinstance(block, cst.IndentedBlock):
            return False
        for statement in block.body[block.body.index(line) + 1 :]:
            if _names(statement, name):
                return _binds(statement, name)
        return False

    def _waits_anyway(self, node: cst.CSTNode, function: Function) -> bool:
        """Whether each call waits for the device in another place of the function, too: `n = int(ids.max())`."""
        loop = self.flow.loop(node)
        if loop is not None:
            # for i in range(n): x[rows[i]] = torch.tensor(0.0, device=x.device)   one wait more in each
            # not: for i in range(n): outs = [torch.tensor(0.0, device=x.device)]; for code in codes[i]: if code: ...
            return any(n in self.flow.facts.waits for n in tree.walk(loop.node.body))
        return self._waits(function) or self._callers_wait(function)

    def _waits(self, function: Function) -> bool:
        return any(
            waits(self.flow, n, needed=True) and runs_each_time(self.flow, function, n)
            for n in tree.walk(function.node.body)
            if isinstance(n, cst.BaseExpression)
        )

    def _callers_wait(self, function: Function, seen: frozenset[Function] = frozenset()) -> bool:
        """Whether the file calls the function, and whatever calls it, or calls that, waits each time."""
        # def forward(self, x): return x[self.weigh(x) > 0].tolist()   and the constant is that of `self.weigh`
        callers = [self.flow.function(call) for call in calls_of(self.flow, function)]
        seen |= {function}
        return bool(callers) and all(
            f in self._steps and f not in seen and (self._waits(f) or self._callers_wait(f, seen)) for f in callers
        )

    def _is_double(self, move: Move) -> bool:
        made = move.value.origin
        statement = self.enclosing(made, cst.BaseSmallStatement) if made is not None else None
        return statement is not None and any(
            isinstance(n, cst.Attribute) and n.attr.value in ("double", "float64") for n in tree.walk(statement)
        )

    def _may_move_along(self, move: Move) -> bool:
        """``self.scale = nn.Parameter(scale) if learned else scale``; ``self.n, self.scale = scales(n, learned)``"""
        assert move.value.attr is not None
        for statement, value in self.flow.stores(*move.value.attr):
            # self.scale = torch.ones(1) if fixed else nn.Parameter(torch.ones(1))
            if value.ref in ("parameter", "buffer") or "Parameter(" in self.code(statement):
                return True
            made = statement.value if isinstance(statement, cst.Assign) else None
            maker = function_of(self.flow, made) if isinstance(made, cst.Call) else None
            if maker is not None and maker.home is self.flow and "Parameter(" in self.code(maker.node):
                return True
        return False

    def _keeps_on_host(self, move: Move) -> bool:
        """Whether an attribute is set by constructors alone, and only a copy of it is on the device."""
        if self._is_double(move):
            return False  # self.rates = torch.arange(n).double()   a buffer would be cast with the module
        if not (move.value.place.is_host and has_memory_of_its_own(move.target)) or move.value.grad:
            return False
        path = dotted(move.receiver)
        function = self.flow.function(move.node)
        cls = function.cls if function is not None else None
        if not path.startswith("self.") or path.count(".") != 1 or cls is None or not cls.is_module:
            return False
        name = path[5:]
        for owner in {*cls.lineage, *cls.descendants}:
            for method in owner.methods.values():
                # def _apply(self, fn): self.mean = fn(self.mean)
                if method.name == "_apply" or (name in method.stores and method.role != CONSTRUCTOR):
                    return False
        return True


#: Calls that give the device nothing to do, or nothing that takes time.
_ASKING = frozenset(
    "size dim numel len isinstance getattr hasattr int float next parameters buffers type range zeros ones full empty "
    "arange tensor as_tensor to cuda".split()
)


def _names(code: cst.CSTNode, name: str) -> bool:
    return bool(tree.named(code, name))


def _binds(statement: cst.CSTNode, name: str) -> bool:
    """Whether a statement gives a name another value before anything reads the one that it has."""
    if isinstance(statement, cst.If):
        branches = [
            statement.body,
            statement.orelse.body if isinstance(statement.orelse, cst.Else) else statement.orelse,
        ]
        return not _names(statement.test, name) and all(b is not None and _binds(b, name) for b in branches)
    if isinstance(statement, cst.IndentedBlock):
        first = next((each for each in statement.body if _names(each, name)), None)
        leaves = isinstance(statement.body[-1], cst.SimpleStatementLine) and isinstance(
            statement.body[-1].body[-1], cst.Raise | cst.Return
        )
        return _binds(first, name) if first is not None else leaves
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    only = statement.body[0]
    return (
        isinstance(only, cst.Assign)
        and not _names(only.value, name)
        and any(isinstance(target.target, cst.Name) and target.target.value == name for target in only.targets)
    )
