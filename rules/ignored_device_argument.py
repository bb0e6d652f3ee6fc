from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import libcst as cst

from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted, target_names
from devlint.flow.place import from_string
from devlint.flow.scope import Function
from devlint.flow.value import MODULE
from devlint.rule import Rule
from devlint.testcode import is_test_file

#: Words in a test that decide on the device: what stands under it is meant for one of them.
_ASKS = re.compile(r"device|cuda|gpu|mps|xpu|npu|hpu")
_AVAILABLE = re.compile(r"torch\.cuda\.is_available\(\)")
_NAMES = ("device", "torch_device")


@dataclass
class _Use:
    """A call that makes or moves something: ``target`` says where to, ``None`` for ``x.cuda()``."""

    call: cst.Call
    target: cst.BaseExpression | None
    receiver: cst.BaseExpression | None

    @property
    def path(self) -> str:
        return dotted(self.target)


@dataclass
class _Told:
    """The device that a function is told, or works out itself (``binding``)."""

    name: str
    param: cst.Param | None = None
    bindings: list[cst.Assign] = field(default_factory=list)


class IgnoredDeviceArgument(Rule):
    """A function is told a device, or works one out, and puts tensors elsewhere.

    ## What it does
    Reports, in a function that has a parameter `device` or binds a variable `device`, what is moved to or made on
    `self.device` or a constant such as `"cuda"` instead; a tensor made without `device=` that such a function
    returns; and the call of a function of the project that takes `device`, left at its default, though the caller
    has one. Reports `x.cuda()` in a function where everything else goes to `flair.device` or the like.

    ## Why is this bad
    It works as long as both happen to be the same device. The caller who passes another one (`cuda:1`, the host, a
    device that weights are loaded to on demand) gets tensors that are apart, and the first operation that
    mixes them raises `Expected all tensors to be on the same device`.

    ## Example
    ```python
    import torch


    class Sampler:
        def latents(self, image, device):
            image = image.to(self.device)
            noise = torch.randn(image.shape, device=device)
            return image + noise
    ```

    ## Use instead
    ```python
    import torch


    class Sampler:
        def latents(self, image, device):
            image = image.to(device)
            noise = torch.randn(image.shape, device=device)
            return image + noise
    ```

    ## Fix safety
    The fix names the device that the function was told. It is unsafe: whoever relied on the other one
    gets tensors on another device than before.

    ## Limits
    Silent in constructors, where the device is usually being stored; under a test that asks for the device; where
    the function moves `self` first, or uses its `device` for what it returns only; where what is moved is moved
    again at once, read by nothing else, or brought back. Of the functions called, those of the project are seen, and
    none that is handed a tensor or a module and has `None` for a default. Constants are left to tests.

    ## References
    - [CUDA semantics: device-agnostic code](https://docs.pytorch.org/docs/stable/notes/cuda.html#device-agnostic-code)
    """

    group = "correctness"
    fixable = "sometimes"

    def check(self) -> None:
        uses = self._uses()
        for function, found in uses.items():
            told = self._told(function)
            if told is not None:
                self._beside(function, told, found)
            else:
                self._constants_beside(function, found)
        self._returned()
        self._left_at_default(uses)

    def _uses(self) -> dict[Function, list[_Use]]:
        """What is moved, or made with ``device=``, in each function."""
        uses: dict[Function, list[_Use]] = {}
        calls: dict[cst.Call, _Use] = {}
        for move in self.flow.facts.moves.values():
            if move.how != "cpu":
                calls[move.node] = _Use(move.node, move.target_node, move.receiver)
        for arg in self.source.nodes_of(cst.Arg):
            call = self.parent(arg)
            if not isinstance(call, cst.Call) or call in calls:
                continue
            if (arg.keyword is not None and arg.keyword.value == "device") or self._moves_pipeline(call):
                calls[call] = _Use(call, arg.value, None)
        for use in calls.values():
            function = self.flow.function(use.call)
            if function is not None:
                uses.setdefault(function, []).append(use)
        return uses

    def _moves_pipeline(self, call: cst.Call) -> bool:
        func = call.func
        return (
            isinstance(func, cst.Attribute)
            and func.attr.value == "to"
            and len(call.args) >= 1
            and (value := self.flow.value(func.value)).kind == "instance"
            and value.text == "pipeline"
        )

    def _told(self, function: Function) -> _Told | None:
        """The device that a function is handed, or binds, or finds around it."""
        for param in function.params:
            if param.name.value in _NAMES:
                return _Told(param.name.value, param)
        if "device" in function.assigned:
            bindings = [
                node
                for node in self.source.nodes_of(cst.Assign)
                if self.flow.function(node) is function and "device" in _targets(node)
            ]
            return _Told("device", bindings=bindings) if bindings else None
        outer = function.outer
        # def test(device): class Probe(Metric): def reset(self): torch.zeros(1, device=self._device)
        if outer is not None and (function.cls is None or function.cls is outer.cls):
            return self._told(outer)
        return None

    # beside the device that is told -------------------------------------------------------------

    def _beside(self, function: Function, told: _Told, found: list[_Use]) -> None:
        reads = self._reads(function, told.name)
        constants = [use for use in found if self._constant(use) is not None]
        several = _spread(self._constant(use) for use in constants)
        for use in found:
            constant = self._constant(use)
            if constant is not None:
                wrong = not several and self._constant_is_wrong(function, told, found, use)
            else:
                wrong = self._attribute_is_wrong(function, told, found, use)
            if not wrong or self._asked(use.call, function) or not self._bound(told, use.call):
                continue
            if self._for_results(reads) or self._is_left_alone(use):
                continue
            target = constant or use.path
            self.report(
                use.call,
                f"`{_what(self.code(use.call.func))}` goes to `{target}`, though `{function.name}` "
                + (f"is told `{told.name}`" if told.param is not None else f"works out `{told.name}`"),
                notes=[self.note(told.param or told.bindings[0], f"`{told.name}` is {_origin(told)}")],
                fix=self._to(use, told.name),
            )

    def _attribute_is_wrong(self, function: Function, told: _Told, found: list[_Use], use: _Use) -> bool:
        path = use.path
        head, _, attr = path.partition(".")
        if head != "self" or "." in attr or not names_device(attr) or function.takes_self is False:
            return False
        # def __init__(self, device): super().__init__(device); self.mean = mean.to(self.device)
        if function.role == "constructor":
            return False
        # def move(self, device): self.device = device; self.table = self.table.to(self.device)
        if attr in function.stores:
            return False
        # def to(self, device): self.to(device); x = x.to(self.device)
        if any(isinstance(each.receiver, cst.Name) and each.receiver.value == "self" for each in found):
            return False
        if told.param is not None:
            return True
        # device = self._execution_device; mask = mask.to(self.device): two of its devices
        sources = {dotted(node.value) for node in told.bindings}
        return len(sources) == 1 and all(s.startswith("self.") and s != path and names_device(s[5:]) for s in sources)

    def _constant_is_wrong(self, function: Function, told: _Told, found: list[_Use], use: _Use) -> bool:
        # device = torch.device("cuda"); net.cuda()
        for node in told.bindings:
            value = self.flow.value(node.value)
            if value.place.kind == "fixed" or (value.text is not None and value.ref != "choice"):
                return False
        return any(each.path == told.name for each in found)

    def _reads(self, function: Function, name: str) -> list[cst.Name]:
        return [
            node
            for node in self.source.nodes_of(cst.Name)
            if node.value == name
            and self.flow.function(node) is function
            and not isinstance(self.parent(node), cst.Param | cst.AssignTarget)
            and not (isinstance(above := self.parent(node), cst.Arg) and above.keyword is node)
            and not (isinstance(above, cst.Attribute) and above.attr is node)
        ]

    def _for_results(self, reads: list[cst.Name]) -> bool:
        """``return self.net(x.to(self.device)).to(device)``: the device is asked for what is given back."""
        return bool(reads) and all(self._of_result(node) for node in reads)

    def _of_result(self, node: cst.Name) -> bool:
        if self.enclosing(node, cst.Return, cst.FunctionDef, cst.Lambda).__class__ is cst.Return:
            return True
        move = self.flow.move(self.enclosing(node, cst.Call))
        return (
            move is not None and move.value.holds_tensors and (move.value.ref == "output" or move.value.place.is_there)
        )

    def _bound(self, told: _Told, at: cst.CSTNode) -> bool:
        """``net.cuda()`` before ``device = ...``: it is not yet worked out."""
        if told.param is not None:
            return True
        offset, _ = self.source.offsets(at)
        return any(self.source.offsets(node)[0] < offset for node in told.bindings)

    def _constant(self, use: _Use) -> str | None:
        """The accelerator that a use names by a constant."""
        node = use.target
        if node is None or isinstance(node, cst.Integer):
            return use.call.func.attr.value if isinstance(use.call.func, cst.Attribute) else None
        if isinstance(node, cst.Call) and len(node.args) == 1 and self.flow.name_of(node) == "torch.device":
            node = node.args[0].value
        if isinstance(node, cst.SimpleString):
            text = str(node.evaluated_value)
            return text if from_string(text).is_there else None
        return None

    def _asked(self, node: cst.CSTNode, function: Function) -> bool:
        """Whether a test around a node asks for the device: ``if device is None: x = x.to(self.device)``."""
        parents = self.source.parents
        current = parents.get(node)
        while current is not None and current is not function.node:
            if isinstance(current, cst.If | cst.IfExp | cst.While) and _ASKS.search(
                _AVAILABLE.sub("", self.code(current.test))
            ):
                return True
            current = parents.get(current)
        return False

    def _is_left_alone(self, use: _Use) -> bool:
        """Whether nothing else meets what is moved or made: it moves on at once, is not read, or is only tried out."""
        above = self.parent(use.call)
        if isinstance(above, cst.Attribute) and above.attr.value in table.MOVES | table.TYPE_MOVES:
            return True  # scale.cuda().type_as(w)
        while isinstance(above, cst.Attribute) or (
            isinstance(above, cst.Call) and isinstance(above.func, cst.Attribute)
        ):
            above = self.parent(above)
        if not isinstance(above, cst.Assign) or len(above.targets) != 1:
            return False
        name, function = above.targets[0].target, self.flow.function(use.call)
        if not isinstance(name, cst.Name) or function is None:
            return False
        start, end = self.source.offsets(above)
        reads = [
            read
            for read in self._reads(function, name.value)
            if (at := self.source.offsets(read)[0]) > end or (at < start and self._in_loop(above))
        ]
        tried = self.enclosing(above, cst.Try)
        if isinstance(tried, cst.Try) and all(self.enclosing(read, cst.Try) is tried for read in reads):
            return True  # try: q = torch.randn(1, 2, device="cuda"); attend(q, q, q)
        return all(self._goes_back(read) for read in reads)

    def _in_loop(self, node: cst.CSTNode) -> bool:
        return isinstance(self.enclosing(node, cst.For, cst.While, cst.FunctionDef), cst.For | cst.While)

    def _goes_back(self, read: cst.Name) -> bool:
        """``audio.unsqueeze(0).cpu()``"""
        above = self.parent(read)
        while isinstance(above, cst.Attribute | cst.Call):
            move = self.flow.move(above)
            if move is not None:
                return move.target.is_host
            above = self.parent(above)
        return False

    # no device is told --------------------------------------------------------------------------

    def _constants_beside(self, function: Function, found: list[_Use]) -> None:
        """``x.cuda()`` where the function puts everything else on ``flair.device``."""
        constants = [use for use in found if self._constant(use) is not None]
        if not constants or _spread(self._constant(use) for use in constants) or is_test_file(self.source.path):
            return  # a test for one kind of device names it
        named = [use for use in found if "." in use.path and names_device(use.path.rpartition(".")[2])]
        # x = torch.rand(3, device="cuda"); y = torch.rand(3, device=x.device)
        named = [use for use in named if use.target is None or self.flow.value(use.target).place.kind != "fixed"]
        if not named or len({use.path for use in named}) > 1:
            return
        path = named[0].path
        head = path.partition(".")[0]
        for use in constants:
            if self._asked(use.call, function) or self._is_left_alone(use):
                continue
            # self.to("cuda"); self.head.to(self.unet.device)
            if use.receiver is not None and dotted(use.receiver).partition(".")[0] == head:
                continue
            self.report(
                use.call,
                f"`{_what(self.code(use.call.func))}` goes to `{self._constant(use)}`, "
                f"though the rest of `{function.name}` goes to `{path}`",
                notes=[self.note(named[0].call, f"here it is `{path}`")],
                fix=self._to(use, path),
            )

    # what is given back, and handed on ----------------------------------------------------------

    def _returned(self) -> None:
        """``def mask(n, device): return torch.ones(n)``."""
        if is_test_file(self.source.path):
            return  # reference(preds, target, device): computed by another library, on the host
        for node in self.source.nodes_of(cst.Return):
            function = self.flow.function(node)
            if function is None or node.value is None:
                continue
            param = next((p for p in function.params if p.name.value in _NAMES), None)
            if param is None:
                continue
            value = self.flow.value(node.value)
            origin = value.origin
            if (
                not value.is_tensor
                or not value.place.is_host
                or value.zero
                or not isinstance(origin, cst.Call)
                or self.flow.factory(origin) is None
                or self.flow.function(origin) is not function
                or any(arg.keyword is not None and arg.keyword.value in ("device", "out") for arg in origin.args)
                or self._asked(node, function)
            ):
                continue
            edit = self.add_argument(origin, f"device={param.name.value}")
            self.report(
                origin,
                f"`{self.flow.name_of(origin)}` makes on the host what `{function.name}` returns, "
                f"though it is told `{param.name.value}`",
                notes=[self.note(node, "it is returned here")],
                fix=self.fix(f"make it there: `device={param.name.value}`", edit, safe=False) if edit else None,
            )

    def _left_at_default(self, uses: dict[Function, list[_Use]]) -> None:
        for call, (callee, param) in self.flow.facts.left_at_default.items():
            function = self.flow.function(call)
            told = self._told(function) if function is not None else None
            if function is None or told is None or not self._bound(told, call) or self._asked(call, function):
                continue
            if not any(use.path == told.name for use in uses.get(function, ())) and told.param is None:
                continue
            if self._goes_by_its_arguments(call, param) or self._needs_none(call, param):
                continue
            # bands = frequencies(dim); return bands.to(device)
            if self._moved_after(call, uses.get(function, ())):
                continue
            name = param.name.value
            edit = self.add_argument(call, f"{name}={told.name}")
            self.report(
                call,
                f"`{callee.name}` is called without `{name}`, though `{function.name}` "
                + (f"is told `{told.name}`" if told.param is not None else f"works out `{told.name}`"),
                notes=[self.note(param, "left at this default")] if callee.home is self.flow else [],
                fix=self.fix(f"hand `{told.name}` on", edit, safe=False) if edit else None,
            )

    def _goes_by_its_arguments(self, call: cst.Call, param: cst.Param) -> bool:
        """Whether a function whose device is ``None`` by default is handed something that has one."""
        if not (isinstance(param.default, cst.Name) and param.default.value == "None"):
            return False
        return any(
            value.holds_tensors or value.kind == MODULE for value in (self.flow.value(a.value) for a in call.args)
        )

    def _needs_none(self, call: cst.Call, param: cst.Param) -> bool:
        """Whether what a call gives is of no use as a tensor."""
        above = self.parent(call)
        if isinstance(above, cst.Expr):
            # load_checkpoint(net, file): to the host first, and from there to where the network is
            text = param.default.evaluated_value if isinstance(param.default, cst.SimpleString) else None
            return text == "cpu"
        outer = self.parent(above) if isinstance(above, cst.Arg) else None
        return isinstance(outer, cst.Call) and self.code(outer.func) in ("type", "len", "isinstance", "str", "print")

    def _moved_after(self, call: cst.Call, found: Iterable[_Use]) -> bool:
        """Whether what a call gives is moved, at once or under the name it is bound to."""
        if any(use.receiver is call for use in found):
            return True
        above = self.parent(call)
        names = _targets(above) if isinstance(above, cst.Assign) else set()
        return any(isinstance(use.receiver, cst.Name) and use.receiver.value in names for use in found)

    def _to(self, use: _Use, device: str) -> Fix | None:
        if use.target is not None and not isinstance(use.target, cst.Integer):
            return self.fix(f"use `{device}`", self.replace(use.target, device), safe=False)
        func = use.call.func
        if not isinstance(func, cst.Attribute):
            return None
        if use.target is not None:
            edits = [self.replace(use.target, device), self.replace(func.attr, "to")]
        elif not use.call.args:
            start, _ = self.source.offsets(func.attr)
            _, end = self.source.offsets(use.call)
            edits = [self.replace_between(start, end, f"to({device})")]
        else:  # x.cuda(non_blocking=True)
            start, _ = self.source.offsets(func.attr)
            first, _ = self.source.offsets(use.call.args[0])
            edits = [self.replace_between(start, first, f"to({device}, ")]
        return self.fix(f"use `{device}`", *edits, safe=False)


def _spread(constants: Iterable[str | None]) -> bool:
    """``front.to("cuda:0"); back.to("cuda:1")``: layers are spread over devices."""
    return len({constant for constant in constants if constant is not None and ":" in constant}) > 1


def _targets(node: cst.Assign) -> set[str]:
    names: set[str] = set()
    for target in node.targets:
        target_names(target.target, names)
    return names


def _origin(told: _Told) -> str:
    return "handed in here" if told.param is not None else "worked out here"


def _what(code: str) -> str:
    line = " ".join(code.split())
    return line if len(line) <= 40 else line[:37] + "..."
