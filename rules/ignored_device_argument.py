from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import names_device
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import CONSTRUCTOR, Function
from devlint.flow.value import LIST, MODULE, TUPLE, Value
from devlint.rule import Rule
from devlint.rules import _told_device as devices
from devlint.rules._afterwards import ends_on, goes_to_host, is_left_alone, later_reads, meets_what_is_there, reads_of
from devlint.rules._lost_choices import dropped_choices
from devlint.rules._moves import short
from devlint.rules._told_device import DEVICE_NAMES, Told, Use
from devlint.rules._training import is_inside

#: What holds settings, and is no tensor that has a device of its own.
_SETTINGS = re.compile(r"^(self|args|opts?|options|cfg|conf|config|flags|hparams|settings|accelerator|fabric|trainer)$")
#: What a parameter is called that numbers the devices of one kind.
_INDEX = re.compile(r"^(cuda_)?(device|gpu|cuda)_?(id|idx|index|num|number)$")
#: Calls that say something, and place nothing.
_SAYS = frozenset("print log debug info warning format".split())


class IgnoredDeviceArgument(Rule):
    """A function is told a device, or works one out, and puts tensors elsewhere.

    ## What it does
    Reports, in a function that has a parameter `device` or binds a variable `device`, what is moved to or made on
    `self.device` or a constant such as `"cuda"` instead; a tensor made without `device=` that such a function
    returns, or, tentatively, that a plain function or a constructor makes which never reads its `device`; and the call
    of a function of the project that takes `device`, left at its default, though the caller has one. Reports
    `x.cuda()` in a function where everything else goes to `flair.device` or the like. Reports `device or "cuda" if
    torch.cuda.is_available() else "cpu"`, which is read as `(device or "cuda") if ...`, so that `device` is dropped
    on a machine without CUDA; and `torch.device(device)` in a function that takes an index as well and hands on the two
    of them elsewhere: that is the current device of the kind, whatever the index says.

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
    gets tensors on another device than before. For `or` it puts parentheses around the choice that comes after it.

    ## Limits
    In the nursery: of 34 findings in repositories that nobody had tuned for, 6 were worth a change. Mostly the two
    devices were the same one in every run, for reasons that stand in other files. Silent in tests, which put things
    apart on purpose; in constructors, where the device is usually being stored, and in those of modules, which are
    moved as a whole; under a test that asks for the device, or for what the device was chosen by; where the function
    moves `self` first, or uses its `device` for what it returns only; where what is moved is moved again at once, read
    by nothing else, brought back, or only gone through; for `self._execution_device`, and for an attribute that a
    method which is called before goes by, too, and is told nothing else. A constant is reported as the one that was
    forgotten: silent where the file sets the current device, or names CUDA in another function, too, where as much goes
    to CUDA as elsewhere, and where the other device is one of CUDA. Tensors that are filled from the host are meant to
    be there. Of the functions called, those of the project are seen that give tensors, and none that is handed a tensor
    or a module and has `None` for a default; what they give must be given back or meet what is there. Of `or`, silent
    where parentheses say how it is meant, and where the test asks for more than what the machine has. Of an index, only
    what goes to calls together with the device counts, and nothing else may be done with it.

    ## References
    - [CUDA semantics: device-agnostic code](https://docs.pytorch.org/docs/stable/notes/cuda.html#device-agnostic-code)
    """

    group = "nursery"
    fixable = "sometimes"

    def check(self) -> None:
        if self.in_tests:
            return  # def test_to_cuda(x, device): assert x.cuda().device.type == "cuda"
        self._dropped()
        uses = self._uses = devices.uses_by_function(self)
        for function, found in uses.items():
            told = devices.told(self, function)
            constants = [use for use in found if devices.constant(self, use) is not None]
            # x = x.cuda()  in another function: the file is for CUDA, and this one was not forgotten
            if devices.names_constants_outside(self, function):
                constants = []
            if told is not None:
                self._beside(function, told, found, constants)
            else:
                self._constants_beside(function, found, constants)
        returned = self._returned()
        for function in self.flow.scope.functions.values():
            if function not in returned:
                self._never_read(function)
            self._index_left_out(function)
        self._left_at_default(uses)

    # dropped ------------------------------------------------------------------------------------

    def _dropped(self) -> None:
        """``device or "cuda" if torch.cuda.is_available() else "cpu"``"""
        for dropped in dropped_choices(self):
            given, test = self.code(dropped.given), self.code(dropped.choice.test)
            start, _ = self.source.offsets(dropped.after, outer=True)
            _, end = self.source.offsets(dropped.choice)
            edits = (self.replace_between(start, start, "("), self.replace_between(end, end, ")"))
            self.report(
                dropped.choice,
                f"`{given}` is dropped where `{test}` fails: `or` binds closer than `if`",
                fix=self.fix(f"decide first what `{given} or` falls back to", *edits, safe=False),
            )

    def _index_left_out(self, function: Function) -> None:
        """``def load(name, device, device_index=0)``, and ``torch.device(device)`` in it."""
        device = next((p for p in function.params if p.name.value in DEVICE_NAMES), None)
        index = next((p for p in function.params if _INDEX.match(p.name.value)), None)
        # def load(name, device, device_index): net = Net(name, device, device_index); device = net.device
        if device is None or index is None or function.assigned & {device.name.value, index.name.value}:
            return
        # def load(name, device: torch.device, device_index=0): whoever calls it says which one
        if device.annotation is not None and "str" not in self.code(device.annotation.annotation):
            return
        name, number = device.name.value, index.name.value
        reads = reads_of(self, function, number)
        if not reads or not all(self._goes_with(read, name) for read in reads):
            return
        for read in reads_of(self, function, name):
            call = self.enclosing(read, cst.Call)
            if not self._is_kind_alone(call, read, function):
                continue
            self.report(
                call,
                f"`{self.code(call)}` leaves `{number}` out: it is the current device of its kind",
                notes=[self.note(index, "the index is told here")],
            )

    def _goes_with(self, read: cst.Name, device: str) -> bool:
        """``Net(name, device=device, device_index=device_index)``, not ``f"{device}:{device_index}"``, nor a test."""
        arg = self.parent(read)
        call = self.parent(arg) if isinstance(arg, cst.Arg) else None
        if not isinstance(call, cst.Call) or called_name(call) in _SAYS:
            return False
        # torch.device(device, gpu_id), torch.cuda.set_device(gpu_id), logger.info("on %s %d", device, gpu_id)
        handed = any(isinstance(each.value, cst.Name) and each.value.value == device for each in call.args)
        return handed and not self.flow.scope.qualified(call.func).startswith("torch.")

    def _is_kind_alone(self, call: cst.Call | None, device: cst.Name, function: Function) -> bool:
        """``torch.device(device)``"""
        if call is None or self.flow.scope.qualified(call.func) != "torch.device" or len(call.args) != 1:
            return False
        # torch.device(device).type, torch.device(device) == torch.device("cpu")
        if isinstance(self.parent(call), cst.Attribute | cst.Comparison | cst.ComparisonTarget):
            return False
        # if device == "cpu": Detector(torch.device(device))
        return call.args[0].value is device and not devices.asked(self, call, function)

    # beside the device that is told -------------------------------------------------------------

    def _beside(self, function: Function, told: Told, found: list[Use], constants: list[Use]) -> None:
        several = devices.spread(devices.constant(self, use) for use in constants)
        for_results = self._is_for_results(function, told)
        for use in found:
            constant = devices.constant(self, use)
            if constant is not None:
                wrong = use in constants and not several and self._constant_is_wrong(told, found, use)
            else:
                wrong = self._attribute_is_wrong(function, told, found, use)
            if not wrong or devices.asked(self, use.call, function) or not devices.bound_before(self, told, use.call):
                continue
            if for_results or is_left_alone(self, use.call):
                continue
            self.report(
                use.call,
                f"`{short(self.code(use.call.func))}` goes to `{constant or use.path}`, though `{function.name}` "
                + _says(told),
                notes=[self.note(told.param or told.bindings[0], f"`{told.name}` is {_origin(told)}")],
                fix=devices.use_instead(self, use, told.name),
            )

    def _attribute_is_wrong(self, function: Function, told: Told, found: list[Use], use: Use) -> bool:
        path = use.path
        head, _, attr = path.partition(".")
        if head != "self" or "." in attr or not names_device(attr) or function.takes_self is False:
            return False
        # def encode(self, text, device): ids = ids.to(self._execution_device)   is where the pipeline runs
        if attr == "_execution_device" or self._ends_before(function, use):
            return False
        # def __init__(self, device): super().__init__(device); self.mean = mean.to(self.device)
        if function.role == CONSTRUCTOR:
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

    def _ends_before(self, function: Function, use: Use) -> bool:
        """``x0 = self.encode(image)``, above, where ``encode`` is told no device and goes by the same attribute: where
        the two are not the same, it ends there in any case."""
        cls = function.cls
        called = {
            dotted(call.func)[5:]
            for call in self.source.nodes_of(cst.Call)
            if self.flow.function(call) is function
            and dotted(call.func).startswith("self.")
            and self.source.comes_before(call, use.call)
        }
        return cls is not None and any(
            other.cls is cls and other.name in called and devices.told(self, other) is None
            for other, found in self._uses.items()
            if any(each.path == use.path for each in found)
        )

    def _constant_is_wrong(self, told: Told, found: list[Use], use: Use) -> bool:
        if devices.is_current(self, use):
            return False
        if not devices.is_torch(self, use) or devices.asks_as_binding(self, told, use.call):
            return False
        # noise = torch.randn(n, device="cuda"); sample(noise)   what that meets there is not known
        if not self._is_module(use) and not any(
            meets_what_is_there(self, read) for read in (use.call, *(later_reads(self, use.call) or ()))
        ):
            return False
        # device = torch.device("cuda"); net.cuda()
        for node in told.bindings:
            value = self.flow.value(node.value)
            if value.place.kind == "fixed" or (value.text is not None and value.ref != "choice"):
                return False
        return any(each.path == told.name for each in found)

    def _is_module(self, use: Use) -> bool:
        return use.receiver is not None and self.flow.value(use.receiver).kind == MODULE

    def _is_for_results(self, function: Function, told: Told) -> bool:
        """``return self.net(x.to(self.device)).to(device)``: the device is asked for what is given back."""
        reads = reads_of(self, function, told.name)
        return bool(reads) and all(self._of_result(node) for node in reads)

    def _of_result(self, node: cst.Name) -> bool:
        if self.enclosing(node, cst.Return, cst.FunctionDef, cst.Lambda).__class__ is cst.Return:
            return True
        move = self.flow.move(self.enclosing(node, cst.Call))
        return (
            move is not None and move.value.holds_tensors and (move.value.ref == "output" or move.value.place.is_there)
        )

    # no device is told --------------------------------------------------------------------------

    def _constants_beside(self, function: Function, found: list[Use], constants: list[Use]) -> None:
        """``x.cuda()`` where the function puts everything else on ``flair.device``."""
        if devices.spread(devices.constant(self, use) for use in constants):
            return
        # def __init__(self, net): self.window = window.cuda(): whoever builds it moves it as a whole
        if not constants or function.role == CONSTRUCTOR:
            return
        named = [use for use in found if "." in use.path and names_device(use.path.rpartition(".")[2])]
        # x = x.cuda(); y = torch.rand(3, device=x.device): what follows a tensor says of no other device
        named = [use for use in named if self._is_configured(use.path)]
        if not named or len({use.path for use in named}) > 1:
            return
        path = named[0].path
        # unet.to(accelerator.device); seg = seg.cuda(); ids = ids.cuda(); noise = noise.to("cuda")   is for CUDA
        if len(constants) >= len(named) > 1 or self._is_of_cuda(function, path):
            return
        constants = [use for use in constants if not self._comes_late(use, constants)]
        head = path.partition(".")[0]
        for use in constants:
            if devices.asked(self, use.call, function) or is_left_alone(self, use.call):
                continue
            # style = style.cuda(); speak(style, device=args.device)
            if all(ends_on(self, read, path, set()) for read in later_reads(self, use.call) or [use.call]):
                continue
            if (
                not devices.is_torch(self, use)
                or devices.is_current(self, use)
                or self._is_bound_after(function, head, use.call)
            ):
                continue
            # self.to("cuda"); self.head.to(self.unet.device)
            if use.receiver is not None and dotted(use.receiver).partition(".")[0] == head:
                continue
            self.report(
                use.call,
                f"`{short(self.code(use.call.func))}` goes to `{devices.constant(self, use)}`, "
                f"though the rest of `{function.name}` goes to `{path}`",
                notes=[self.note(named[0].call, f"here it is `{path}`")],
                fix=devices.use_instead(self, use, path),
            )

    def _is_configured(self, path: str) -> bool:
        """``args.device``, ``self.device``, ``flair.device``: of no tensor."""
        head = path.partition(".")[0]
        return _SETTINGS.match(head) is not None or head in self.flow.scope.imports

    def _is_of_cuda(self, function: Function, path: str) -> bool:
        """``self.device = torch.device("cuda", rank)``: of the class, where nothing that binds it names another one."""
        stored = self.flow.stores(function.cls, path[5:]) if function.cls is not None and path[:5] == "self." else []
        values = [statement.value for statement, _ in stored if isinstance(statement, cst.Assign)]
        named = [text for value in values if (text := self._kind_named(value)) is not None]
        return bool(named) and all(text.startswith("cuda") for text in named)

    def _kind_named(self, value: cst.BaseExpression) -> str | None:
        """``cuda`` of ``torch.device("cuda", rank)``; nothing for a choice, of which that is one."""
        if not isinstance(value, cst.Call) or not value.args or self.flow.name_of(value) != "torch.device":
            return None
        return self.flow.value(value.args[0].value).text

    def _comes_late(self, use: Use, constants: list[Use]) -> bool:
        """Whether the function names an accelerator before in any case: elsewhere no run gets as far."""
        return any(
            self.source.comes_before(other.call, use.call)
            and (block := self.enclosing(other.call, cst.IndentedBlock)) is not None
            and is_inside(self.flow, use.call, block)
            for other in constants
        )

    def _is_bound_after(self, function: Function, name: str, call: cst.Call) -> bool:
        """``x = x.cuda(); y = net(x); z = torch.zeros(3, device=y.device)``: it follows from the constant."""
        start, _ = self.source.offsets(self.enclosing(call, cst.BaseStatement) or call)
        return any(
            name in devices.targets(node)
            and self.flow.function(node) is function
            and self.source.offsets(node)[0] >= start
            for node in self.source.nodes_of(cst.Assign)
        )

    # what is given back, and handed on ----------------------------------------------------------

    def _returned(self) -> set[Function]:
        """``def mask(n, device): return torch.ones(n)``: gives the functions that were reported."""
        reported = set()
        for node in self.source.nodes_of(cst.Return):
            function = self.flow.function(node)
            if function is None or node.value is None:
                continue
            param = next((p for p in function.params if p.name.value in DEVICE_NAMES), None)
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
                or devices.asked(self, node, function)
                or self._is_filled_from_host(origin)
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
            reported.add(function)
        return reported

    def _never_read(self, function: Function) -> None:
        """``def __init__(self, n, device=None): self.register_buffer("table", torch.zeros(n))``"""
        param = next((p for p in function.params if p.name.value in DEVICE_NAMES), None)
        if param is None or (function.cls is not None and function.name != "__init__"):
            return  # def reset(self, device): ...   other classes may need what this one does not
        # class Positions(nn.Module): def __init__(self, n, device=None): ...   is moved as a whole
        if function.cls is not None and function.cls.is_module:
            return
        name = param.name.value
        parts = list(tree.walk(function.node.body))
        if any(isinstance(part, cst.Name) and part.value in (name, "locals") for part in parts):
            return
        made = [part for part in parts if isinstance(part, cst.Call) and self._is_left_on_host(function, part)]
        if not made:
            return
        edits = [edit for call in made if (edit := self.add_argument(call, f"device={name}")) is not None]
        owner = function.cls.name if function.cls is not None else function.name
        self.report(
            made[0],
            f"`{self.flow.name_of(made[0])}` makes this on the host: nothing reads the `{name}` that `{owner}` is told",
            notes=[self.note(param, "it is told here"), *(self.note(call, "so is this one") for call in made[1:])],
            fix=self.fix(f"make it there: `device={name}`", *edits, safe=False) if len(edits) == len(made) else None,
            tentative=True,
        )

    def _is_left_on_host(self, function: Function, call: cst.Call) -> bool:
        """A factory without ``device=``, whose tensor is no number."""
        value = self.flow.value(call)
        return (
            self.flow.factory(call) is not None
            and self.flow.function(call) is function
            and value.place.is_host
            and not value.zero
            and not any(arg.star or (arg.keyword is not None and arg.keyword.value == "device") for arg in call.args)
        )

    def _is_filled_from_host(self, made: cst.Call) -> bool:
        """``out = torch.zeros(n); out[batch] = net(x[batch].to(device)).cpu()``: all of it would not fit elsewhere."""
        bound = self.enclosing(made, cst.Assign, cst.BaseStatement)
        names = devices.targets(bound) if isinstance(bound, cst.Assign) else set()
        return any(
            isinstance(target.target, cst.Subscript)
            and dotted(target.target.value) in names
            and self.flow.function(node) is self.flow.function(made)
            and self.flow.value(node.value).place.is_host
            for node in self.source.nodes_of(cst.Assign)
            for target in node.targets
        )

    def _left_at_default(self, uses: dict[Function, list[Use]]) -> None:
        for call, (callee, param) in self.flow.facts.left_at_default.items():
            function = self.flow.function(call)
            told = devices.told(self, function) if function is not None else None
            if function is None or told is None or not devices.bound_before(self, told, call):
                continue
            found = uses.get(function, [])
            if told.param is None and not any(use.path == told.name for use in found):
                continue
            if not _gives_tensors(self.flow.value(call)) or devices.asked(self, call, function):
                continue
            if self._goes_by_its_arguments(call, param) or not self._is_apart(call, told, found):
                continue
            name = param.name.value
            edit = self.add_argument(call, f"{name}={told.name}")
            self.report(
                call,
                f"`{callee.name}` is called without `{name}`, though `{function.name}` {_says(told)}",
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

    def _is_apart(self, call: cst.Call, told: Told, found: list[Use]) -> bool:
        """Whether what a call gives meets what is there, or is given back, before it is moved."""
        moved = {use.call for use in found if use.path == told.name}
        if self._ends_well(call, told, moved):
            return False
        # r, t = look_at(dist); cameras = Cameras(device=device, R=r, T=t)
        # but for  embeds = encode(text); embeds = embeds.to(device); return embeds
        later = [read for read in later_reads(self, call) or () if not self._was_moved(read)]
        return any(
            meets_what_is_there(self, read) and not self._ends_well(read, told, moved) for read in (call, *later)
        )

    def _was_moved(self, read: cst.BaseExpression) -> bool:
        origin = self.flow.value(read).origin
        return isinstance(origin, cst.Call) and self.flow.move(origin) is not None

    def _ends_well(self, node: cst.BaseExpression, told: Told, moved: set[cst.Call]) -> bool:
        return ends_on(self, node, told.name, moved) or goes_to_host(self, node)


def _gives_tensors(value: Value) -> bool:
    if value.kind in (LIST, TUPLE):
        items = value.items if value.kind == TUPLE else [value.items]
        return any(isinstance(item, Value) and item.is_tensor for item in items or ())
    return value.is_tensor


def _says(told: Told) -> str:
    return f"is told `{told.name}`" if told.param is not None else f"works out `{told.name}`"


def _origin(told: Told) -> str:
    return "handed in here" if told.param is not None else "worked out here"
