from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.hypothesis import names_device
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import CONSTRUCTOR, Function
from devlint.rule import Rule
from devlint.rules._lost_choices import lost_choices
from devlint.rules._lost_parameters import report_lost_parameters
from devlint.rules._moves import short
from devlint.rules._passed_over import under_loose_tests
from devlint.rules._portability import Chosen, Implied, Surroundings, is_device_name, told_to_device
from devlint.rules._unasked import handed_as_text, told_to_cuda, written_choices
from devlint.rules._written_backend import report_written_backend
from devlint.rules._written_defaults import written_defaults

_NAMES_DEVICE = re.compile(r"(^|_)device(_map)?$")
_KINDS = frozenset({"cuda", "mps", "xpu", "npu", "hpu", "mlu", "musa"})
#: What a test says of `{0}` where it only asks whether that is on CUDA yet.
_NOT_THERE = (
    r"not {0}\.is_cuda|{0}\.is_cuda (?:is|==) False|{0}\.is_cpu|"
    r"(?:{0}\.device(?:\.type)?|str\({0}\.device\)) (?:!= (?:torch\.device\()?['\"]cuda(?::0)?['\"]\)?|"
    r"== (?:torch\.device\()?['\"]cpu['\"]\)?)|['\"]cuda['\"] not in str\({0}\.device\)"
)
_MPS = re.compile(r"(?<![a-z])mps(?![a-z])", re.IGNORECASE)
#: Words of code that is for Macs.
_OF_MACS = re.compile(r"darwin|mac_?os|apple|coreml|(?<![a-z])(mlx|metal)(?![a-z])", re.IGNORECASE)
_FOR_MACS = re.compile(r"(?<![a-z])(mps|apple|mac|mac_?os|m[1-4])(?![a-z])", re.IGNORECASE)
#: The GPU that was asked for, by whatever index: `args.device != "cpu"`, `"cuda" in str(device)`.
_WHICHEVER_GPU = re.compile(
    r"""((?:\w+\.)*device) != ["']cpu["']|["']cuda["'] in (?:str\()?((?:\w+\.)*device)|"""
    r"""((?:\w+\.)*device)\.startswith\(["']cuda["']\)|((?:\w+\.)*device)\.type == ["']cuda["']"""
)
#: What makes another device the current one.
_SETS_CURRENT = re.compile(r"set_device|cuda\.device\(|device_guard|VISIBLE_DEVICES")
#: An extension that is compiled for CUDA, by its name: `quant_cuda.matmul`, `upfirdn2d_cuda.forward`.
_OF_EXTENSION = re.compile(r"(?!torch\.|cupy|numba)([\w.]*\.)?\w*cuda\w*\.\w+$", re.IGNORECASE)
_HAS_KERNELS = re.compile(r"triton|cuda\w*\.\w+\(")
#: What tells all factories of the process where to make tensors.
_FOR_ALL = frozenset({"torch.set_default_tensor_type", "torch.set_default_device"})


class HardCodedDevice(Rule):
    """One kind of device is written down where another was chosen.

    ## What it does
    Reports `x.cuda()`, `x.to("cuda")`, `device="cuda"`, `set_default_tensor_type("torch.cuda.FloatTensor")` and the
    like in code that was told its device, also under a test that only asks whether `x` is on CUDA yet (`if not
    x.is_cuda:`): the function takes a `device` or reads one (`x.device`, `self.device`, `self.net.device`,
    `accelerator.device`), or its class or its file does. Reports, too, calls that leave `device` at a default such as
    `"cuda"`, and GPU 0 where a test only asks whether the device is the CPU (`0 if str(device) != "cpu" else -1`), and
    a device that is chosen and then overwritten by one kind, or by the CPU of every machine without CUDA, before
    anything reads it.

    Reports as tentative a parameter `device` that is given another device before anything reads it, or the first GPU
    where only its kind is asked (`if device.type == "cuda": device = torch.device("cuda:0")`); `nccl` for processes
    that may be the CPU's, by an option of the same function or by another backend in the file; and CUDA below a test
    whose words are about devices and that asks for none: whether a model is there, which process this is, an option
    that goes with CUDA, a `try` around a whole step.

    Where nothing names a device, reports as tentative what has to be on one all the same: a tensor made on CUDA that
    meets a tensor the function was handed, or is made in a module, which whoever uses it moves; `.cuda()` in a class
    (or the functions of a file) that elsewhere asks `if args.cuda:` first, or works on `f"cuda:{args.gpu}"`, or in a
    file that sets `Config.cuda = True`; in a function whose callers in the file are all told a `device`; of a tensor
    that is made of what was handed in, where the file works on a device; and beside `from_pretrained(name,
    device_map="auto")`. A tensor made on `"cuda"` that a kernel of Triton or of an extension for CUDA is handed with
    the caller's; `torch.cuda.current_device()` in the constructor of a module; and `"cuda:0"` for whichever GPU was
    asked for (`"cuda:0" if args.device != "cpu" else "cpu"`). So, too, `"cuda"` as what `device` falls back to where it
    is `None`, as the `"device"` of a dictionary of settings in a function that was told one, a method `cuda(device)`
    that drops its argument, and `"mps"`, which few machines have, in a file that says nothing else of it. Last, as
    tentative, all CUDA where nothing asks for it first: moves and factories, a device that is written down
    (`device = torch.device("cuda")`) or the default of a field, a parameter or an option, `"cuda"` handed to any other
    function (`load(path, "cuda")`), and `x.cuda(self.device)`, which raises where that device is another kind.

    ## Why is this bad
    `.cuda()` and `"cuda"` mean the current CUDA device. Where the device that was chosen is `cuda:1`, tensors end up
    on two devices, and the first operation on both raises. Where it is `cpu`, `mps` or `xpu`, the call itself raises
    on a machine without CUDA, and on one with CUDA the work goes to a device that nobody asked for.

    ## Example
    ```python
    import torch


    def encode(model, tokens, device):
        mask = torch.ones(4, 4).cuda()
        return model(tokens.to(device), mask)
    ```

    ## Use instead
    ```python
    import torch


    def encode(model, tokens, device):
        mask = torch.ones(4, 4).to(device)
        return model(tokens.to(device), mask)
    ```

    ## Fix safety
    The fix names the device that was chosen. It is unsafe: the code may have meant the GPU whatever was chosen.

    ## Limits
    Silent under a test that speaks of devices (`if device.type == "cuda":`), after one that leaves the function, and
    in tests. So in what is for CUDA by its name or decorator, and in files that end without CUDA, set the current
    CUDA device, start `nccl` processes or import what needs CUDA, but for the tensors of kernels. By default it is
    silent, too, where no device was chosen: who says `"cuda"` there may be for CUDA only, as many scripts are. A
    default such as `device="cuda"` can be overridden: that of a field, a parameter or an option is tentative, and
    silent in a file that asks what there is. Of `"mps"`, silent where anything else in the file names it (a test, a
    choice, a default, a table), or is for Macs by its words or its path.

    ## References
    - [CUDA semantics: device-agnostic code](https://pytorch.org/docs/stable/notes/cuda.html#device-agnostic-code)
    """

    group = "portability"
    fixable = "sometimes"

    def check(self) -> None:
        if "device" in self.source.text and not self.in_tests:
            self._overwritten()
            report_lost_parameters(self)
        around = Surroundings(self)
        if "else -1" in self.source.text or "-1 if" in self.source.text:
            for choice in self.source.nodes_of(cst.IfExp):
                self._first_of_all(choice, around)
        if "cuda:0" in self.source.text:
            self._index_dropped(around)
        self._on_current(around)
        if "nccl" in self.source.text:
            report_written_backend(self, around)
        if not any(f'"{kind}' in self.source.text or f"'{kind}" in self.source.text for kind in _KINDS) and (
            ".cuda(" not in self.source.text and "set_default_tensor_type" not in self.source.text
        ):
            return
        reported: set[cst.BaseExpression] = set()
        for call in self.source.nodes_of(cst.Call):
            literal = self._literal(call)
            if literal is None:
                continue
            guard, own = around.guard(call), ""
            if guard is not None and self._asks_if_there(guard, call):
                guard, own = around.guard(self.parent(guard)), f"{self._moved(call)}.device"
            if guard is not None:
                chosen = self._of_test(guard, call, literal)
            else:
                chosen = around.chosen(call, apart_from=own) or (None if own else around.elsewhere(call))
                if own and chosen is not None and not chosen.is_handed_in:
                    chosen = None  # if not x.is_cuda: x = x.cuda()   and then   y = x.detach(); z.to(y.device)
            if chosen is not None:
                if not around.is_for_cuda(call):
                    self._report(call, literal, chosen, around)
                    reported.add(literal)
            elif guard is None and (implied := around.implied(call)) is not None and not around.is_for_cuda(call):
                self._report_implied(call, literal, implied)
                reported.add(literal)
            elif not own and guard is None and "cuda" in self.code(literal) and not around.is_for_cuda(call):
                self._report_alone(call, literal)
                reported.add(literal)

        for call, literal, implied in under_loose_tests(self, around, self._literal):
            if literal not in reported and "cuda" in self.code(literal):
                self._report_implied(call, literal, implied)
                reported.add(literal)
        self._beside_in_kernel(reported)
        self._not_asked(around, reported)
        self._only_on_macs(around, reported)
        self._left_at_default(around)
        self._in_settings(around)
        self._fallen_back(around)

    def _first_of_all(self, choice: cst.IfExp, around: Surroundings) -> None:
        """``0 if str(device) != "cpu" else -1``: GPU 0, whichever ``device`` is."""
        ends = {self.code(choice.body), self.code(choice.orelse)}
        if ends != {"0", "-1"} or around.is_for_cuda(choice):
            return
        words = [node for node in tree.walk(choice.test) if isinstance(node, cst.Name) and names_device(node.value)]
        if words and not any(isinstance(node, cst.Name) and node.value == "index" for node in tree.walk(choice.test)):
            self.report(choice, f"this is GPU 0 whatever index `{self.code(words[-1])}` has")

    def _index_dropped(self, around: Surroundings) -> None:
        """``torch.device("cuda:0" if args.device != "cpu" else "cpu")``: GPU 0, whichever was asked for."""
        # os.environ["CUDA_VISIBLE_DEVICES"] = args.device   makes that one the first
        if "VISIBLE_DEVICES" in self.source.text or "set_device" in self.source.text:
            return
        for choice in self.source.nodes_of(cst.IfExp):
            if self.code(choice.body).strip("\"'") != "cuda:0" or self.code(choice.orelse).strip("\"'") != "cpu":
                continue
            asked = [self.code(choice.test)]
            if isinstance(choice.test, cst.Name):
                asked += around.assigned(choice.test.value)
            options = [
                match[match.lastindex or 0] for test in asked if (match := _WHICHEVER_GPU.search(test)) is not None
            ]
            # parser.add_argument("--device", choices=["cuda", "cpu"])
            if options and not around.is_test and not self._is_one_of_few(options[0]):
                self.report(choice, f"this is GPU 0 whatever index `{options[0]}` has", tentative=True)

    def _is_one_of_few(self, option: str) -> bool:
        """Whether ``args.device`` is one of choices that have no index."""
        name = option.rpartition(".")[2]
        return any(
            called_name(call) == "add_argument"
            and self.code(call.args[0].value).strip("-\"'") == name
            and any(arg.keyword is not None and arg.keyword.value == "choices" for arg in call.args)
            for call in self.source.nodes_of(cst.Call)
            if call.args
        )

    def _on_current(self, around: Surroundings) -> None:
        """``super().__init__(size, device=torch.cuda.current_device())`` of a module, which may be moved anywhere."""
        for current in self.flow.calls("torch.cuda.current_device"):
            above = self.enclosing(current, cst.Call)
            told = current
            if above is not None and self.flow.scope.qualified(above.func) == "torch.device":
                above, told = self.enclosing(above, cst.Call), above
            arg = self.parent(told)
            if above is None or not isinstance(arg, cst.Arg) or arg.keyword is None or arg.keyword.value != "device":
                continue
            function = around.function(above)
            # y = torch.empty(n, device=torch.cuda.current_device())  of a step, where the process has set which
            if function is None or function.role != CONSTRUCTOR or around.chosen(above) is not None:
                continue
            implied = around.followed(above) if around.guard(above) is None else None
            if implied is not None and not around.is_for_cuda(above):
                said = f"the device is written down as `{self.code(told)}`, {implied.why}"
                self.report(
                    told, said, notes=[self.note(implied.node, "this tells where it has to be")], tentative=True
                )

    def _beside_in_kernel(self, reported: set[cst.BaseExpression]) -> None:
        """``y = torch.empty(n, device="cuda"); kernel[grid](x, y)``: ``x`` need not be on the current device."""
        if self.in_tests or _SETS_CURRENT.search(self.source.text) or not _HAS_KERNELS.search(self.source.text):
            return
        for launch in self.source.nodes_of(cst.Call):
            function = self.flow.function(launch)
            if not self._is_launch(launch) or function is None:
                continue
            given = [arg.value for arg in launch.args]
            handed = next((each for each in map(_stripped, given) if self._is_handed(each, function)), None)
            for each in given if handed is not None else ():
                literal = self._made_on_kind(each, launch)
                if handed is not None and literal is not None and literal not in reported:
                    reported.add(literal)
                    name = self.code(handed)
                    what = self._said(literal, literal) if isinstance(literal, cst.Call) else ""
                    said = what or f"the device is written down as `{self.code(literal)}`"
                    said += f", though `{self.code(launch.func)}` is handed `{name}` with it"
                    said += ", which is wherever the caller has it"
                    note = self.note(launch, "both are handed to the kernel here")
                    self.report(literal, said, notes=[note], tentative=True)

    def _is_launch(self, call: cst.Call) -> bool:
        """``kernel[grid](x, y)`` of Triton, and ``quant_cuda.matmul(x, w, y)`` of an extension for CUDA."""
        if isinstance(call.func, cst.Subscript):
            return "triton" in self.source.text
        name = self.flow.scope.qualified(call.func)
        return isinstance(call.func, cst.Attribute) and _OF_EXTENSION.match(name) is not None

    def _is_handed(self, node: cst.BaseExpression, function: Function) -> bool:
        """Whether it is a tensor that a function was handed, a view of one, or made of it: ``y = F.pad(x, (0, 4))``."""
        if not isinstance(node, cst.Name):
            return False
        made_of = self.flow.value(node).place.name if node.value not in function.param_names else node.value
        param = function.param(made_of.partition(".")[0])
        if param is None or param.default is not None or not self.flow.value(node).is_tensor:
            return False
        return self.flow.value(node).place.kind != "fixed"

    def _made_on_kind(self, node: cst.BaseExpression, launch: cst.Call) -> cst.BaseExpression | None:
        """``"cuda"`` of the statement above that makes a tensor: ``y = torch.empty(n, device="cuda")``."""
        function = self.enclosing(launch, cst.FunctionDef)
        made: cst.BaseExpression | None = None
        for each in tree.walk(function.body) if function is not None and isinstance(node, cst.Name) else ():
            if each is launch:
                break
            if isinstance(each, cst.Assign) and self.code(each.targets[0].target) == self.code(node):
                made = each.value
        if not isinstance(made, cst.Call):
            return None
        # cost = cost.cuda()
        is_host = isinstance(made.func, cst.Attribute) and self.flow.value(made.func.value).place.is_host
        if is_host and self._literal(made) is made:
            return made
        if not self.flow.scope.qualified(made.func).startswith("torch."):
            return None
        literal = self._literal(made)
        return literal if literal is not None and self.code(literal).strip("\"'") == "cuda" else None

    def _overwritten(self) -> None:
        for lost in lost_choices(self):
            name, value, test = lost.given.name, lost.given.value, lost.given.test
            where = " where there is no CUDA" if lost.given.when else ""
            message = f"`{name}` is `{self.code(value)}`{where}, whatever was chosen for it above"
            self.report(test or value, message, notes=[self.note(lost.choice, "nothing reads what is chosen here")])

    def _only_on_macs(self, around: Surroundings, reported: set[cst.BaseExpression]) -> None:
        """``torch.load(path, map_location="mps")`` in a file that says nothing else of ``mps``."""
        if self.in_tests or not _MPS.search(self.source.text):
            return
        # examples/apple/speak.py
        project = self.flow.project
        path = project.in_project() if project is not None else self.source.path
        if _FOR_MACS.search(path) or _OF_MACS.search(self.source.text):
            return
        written = list(self._on_mps(around))
        # if torch.backends.mps.is_available(), KINDS = ["cpu", "cuda", "mps"], device = "mps": one line to change
        named: list[cst.SimpleString | cst.FormattedStringText | cst.Name] = [*self.source.nodes_of(cst.SimpleString)]
        named += [*self.source.nodes_of(cst.FormattedStringText), *self.source.nodes_of(cst.Name)]
        if any(
            _MPS.search(node.value) and node not in written and not isinstance(self.parent(node), cst.Expr)
            for node in named
        ):
            return
        if written and not reported.intersection(written):
            first, *others = written
            said = f"the device is written down as `{self.code(first)}`, and nothing here asks whether there is any"
            notes = [self.note(other, "so it is here") for other in others]
            self.report(first, said, notes=notes, tentative=True)

    def _on_mps(self, around: Surroundings) -> Iterator[cst.BaseExpression]:
        """``"mps"`` of ``net.to("mps")`` and of ``net.to(torch.device("mps"))``, where nothing was chosen."""
        for call in self.source.nodes_of(cst.Call):
            literal = self._literal(call)
            if literal is None and isinstance(self.parent(call), cst.Arg):
                literal = told_to_device(self, call)
            # dict(name="small", device="mps")
            if literal is None or not _is_mps(literal) or called_name(call) == "dict":
                continue
            if around.guard(call) is None and around.chosen(call) is None:
                yield literal

    def _in_settings(self, around: Surroundings) -> None:
        """``{"task": "summary", "device": "cuda:0"}`` in a function that takes a device."""
        for entry in self.source.nodes_of(cst.DictElement):
            if not (isinstance(entry.key, cst.SimpleString) and names_device(str(entry.key.evaluated_value))):
                continue
            chosen = around.chosen(entry) if _is_kind(entry.value) else None
            told = chosen is not None and chosen.owner in ("parameter", "function")
            if chosen is not None and told and around.guard(entry) is None and not around.is_for_cuda(entry):
                said = f"the device is written down as `{self.code(entry.value)}`, not taken from `{chosen.code}`"
                note = self.note(chosen.node, f"`{chosen.code}` is what was chosen")
                self.report(entry.value, said, notes=[note], tentative=True)

    def _fallen_back(self, around: Surroundings) -> None:
        """``if device is None: device = "cuda"``, whether there is CUDA or not."""
        for test, target, value in self._fallbacks():
            name = dotted(target)
            if not _NAMES_DEVICE.search(name.rpartition(".")[2]):
                continue
            if around.guard(test) is None and not around.is_test and not around.demands_cuda:
                message = f"`{name}` falls back to `{self.code(value)}`, and nothing here asks whether there is any"
                self.report(value, message, tentative=True)

    def _fallbacks(self) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression, cst.BaseExpression]]:
        """What is decided on, the name that is given a device where it says nothing, and the device."""
        for assign in self.source.nodes_of(cst.Assign):
            target = assign.targets[0].target
            value, block = assign.value, self.enclosing(assign, cst.If, cst.FunctionDef)
            if not isinstance(block, cst.If) or not self._names_kind(value):
                continue
            if _says_nothing(self.code(block.test), self.code(target)):
                yield block, target, value
        for either in self.source.nodes_of(cst.BooleanOperation):
            if isinstance(either.operator, cst.Or) and self._names_kind(either.right):
                yield either, either.left, either.right
        for choice in self.source.nodes_of(cst.IfExp):
            for name, other in ((choice.body, choice.orelse), (choice.orelse, choice.body)):
                if not dotted(name) or not self._names_kind(other):
                    continue
                if re.fullmatch(rf"{re.escape(self.code(name))}( is (not )?None)?", self.code(choice.test)):
                    yield choice, name, other

    def _names_kind(self, value: cst.BaseExpression) -> bool:
        """``"cuda"``, ``torch.device("cuda:0")``"""
        return _is_kind(told_to_device(self, value))

    def _left_at_default(self, around: Surroundings) -> None:
        """``one_hot(target, classes)``, where that makes a tensor with ``device="cuda"`` unless told otherwise."""
        found: dict[cst.Param, list[tuple[cst.Call, str, bool]]] = {}
        for call, (callee, param) in self.flow.facts.left_at_default.items():
            if callee.home is not self.flow or param.default is None or not _is_kind(param.default):
                continue
            guard = around.guard(call)
            # def cuda(self, device="cuda:0"): return self.to()  is for CUDA by its name, and drops which one
            drops = guard is not None and self._drops_device(guard)
            if (guard is None or drops) and not around.is_for_cuda(call):
                found.setdefault(param, []).append((call, callee.name, drops))
        for param, calls in found.items():
            self._report_default(param, calls)

    def _report_default(self, param: cst.Param, calls: list[tuple[cst.Call, str, bool]]) -> None:
        """What several calls leave as it is is one finding: whoever mends the default mends them all."""
        assert param.default is not None
        call, callee, drops = calls[0]
        name, default = param.name.value, self.code(param.default)
        if len(calls) == 1:
            message = f"`{callee}` is called without `{name}`, and works on {default} then"
            self.report(call, message, notes=[self.note(param, "left at this default")], tentative=drops)
            return
        message = f"`{callee}` works on {default}, and {len(calls)} calls of it say no other `{name}`"
        notes = [self.note(each, "called without it") for each, _, _ in calls]
        self.report(param, message, notes=notes, tentative=all(dropped for _, _, dropped in calls))

    def _drops_device(self, guard: cst.CSTNode) -> bool:
        """Whether it is a function that takes a device and never reads it."""
        function = self.flow.scope.functions.get(guard) if isinstance(guard, cst.FunctionDef) else None
        names = {each.name.value for each in function.params if is_device_name(each.name.value)} if function else set()
        body = guard.body if isinstance(guard, cst.FunctionDef) else guard
        return bool(names) and not any(isinstance(each, cst.Name) and each.value in names for each in tree.walk(body))

    def _report_implied(self, call: cst.Call, literal: cst.BaseExpression, implied: Implied) -> None:
        note = self.note(implied.node, "this tells where it has to be")
        fix = self._fix(call, literal, implied.code)
        self.report(literal, f"{self._said(call, literal)}, {implied.why}", notes=[note], fix=fix, tentative=True)

    def _not_asked(self, around: Surroundings, reported: set[cst.BaseExpression]) -> None:
        """``device = "cuda"``, ``load(path, "cuda")`` and ``x.cuda(self.device)``, which ask for no CUDA."""
        for name, value in written_choices(self, around):
            if value not in reported and told_to_device(self, value) not in reported:
                said = f"`{name}` is written down as `{self.code(value)}`, and nothing asks whether there is one"
                self.report(value, said, tentative=True)
        for name, value in written_defaults(self, around):
            if value not in reported and told_to_device(self, value) not in reported:
                said = f"`{name}` is `{self.code(value)}` unless told otherwise, and nothing asks whether there is one"
                self.report(value, said, tentative=True)
                reported.add(value)
        for call in self.source.nodes_of(cst.Call):
            literal, told = handed_as_text(self, call), told_to_cuda(self, call)
            if (literal is None and told is None) or around.guard(call) is not None or around.is_for_cuda(call):
                continue
            if told is not None:
                self._report_told(call, told)
            elif literal is not None:
                self._report_alone(call, literal)

    def _report_told(self, call: cst.Call, told: cst.BaseExpression) -> None:
        assert isinstance(call.func, cst.Attribute)
        device = self.code(told)
        fix = self.fix(f"move it to `{device}`", self.replace(call.func.attr, "to"), safe=False)
        said = f"`{short(self.code(call))}` raises where `{device}` is not a CUDA device"
        self.report(call, said, fix=fix, tentative=True)

    def _report_alone(self, call: cst.Call, literal: cst.BaseExpression) -> None:
        self.report(literal, f"{self._said(call, literal)}, and nothing asks whether there is one", tentative=True)

    def _said(self, call: cst.Call, literal: cst.BaseExpression) -> str:
        if literal is call:
            assert isinstance(call.func, cst.Attribute)
            return f"`{short(self.code(call.func.value))}` is moved to the current CUDA device"
        return f"the device is written down as `{self.code(literal)}`"

    def _report(self, call: cst.Call, literal: cst.BaseExpression, chosen: Chosen, around: Surroundings) -> None:
        fixed = around.expression(chosen, call)
        said = self._said(call, literal)
        where = f"not taken from `{chosen.code}`" if fixed else f"while this file works on `{chosen.code}`"
        note = self.note(chosen.node, f"`{chosen.code}` is what was chosen")
        self.report(literal, f"{said}, {where}", notes=[note], fix=self._fix(call, literal, fixed))

    def _fix(self, call: cst.Call, literal: cst.BaseExpression, chosen: str | None) -> Fix | None:
        if chosen is None or self._is_cuda_type(literal):
            return None
        if literal is not call:
            return self.fix(f"use `{chosen}`", self.replace(literal, chosen), safe=False)
        assert isinstance(call.func, cst.Attribute)
        first = ", " if call.args else ""
        start, _ = self.source.offsets(call.func.attr)
        _, end = self.source.offsets(call)
        inner = self.source.offsets(call.args[0], outer=True)[0] if call.args else end - 1
        return self.fix(f"move it to `{chosen}`", self.replace_between(start, inner, f"to({chosen}{first}"), safe=False)

    def _of_test(self, guard: cst.CSTNode, call: cst.Call, literal: cst.BaseExpression) -> Chosen | None:
        """``if mask.is_cuda: x = x.cuda()``: the tensor asked tells the device, which need not be the current one."""
        if literal is not call or not self._runs_if(guard, call):
            return None
        asked = [node for node in tree.walk(guard) if isinstance(node, cst.Attribute) and node.attr.value == "is_cuda"]
        if len(asked) != 1 or not dotted(asked[0]) or dotted(asked[0].value) == "self":
            return None  # self.is_cuda = next(model.parameters()).is_cuda   of an object that has no `device`
        return Chosen(self.code(asked[0].value) + ".device", asked[0], False, "function")

    def _asks_if_there(self, guard: cst.CSTNode, call: cst.Call) -> bool:
        """``if not x.is_cuda: x = x.cuda()``: what is not on CUDA goes there, whatever was chosen."""
        name, above = self._moved(call), self.parent(guard)
        if not name or not isinstance(above, cst.If | cst.IfExp) or not self._is_inside_body(above, call):
            return False
        test = self.code(guard) if isinstance(guard, cst.BaseExpression) else ""
        return re.fullmatch(_NOT_THERE.format(re.escape(name)), test) is not None

    def _moved(self, call: cst.Call) -> str:
        """``x`` of ``x.cuda()``, and of ``x.to(torch.device("cuda"))``"""
        if self.flow.scope.qualified(call.func) == "torch.device":
            call = self.enclosing(call, cst.Call) or call
        return self.code(call.func.value) if isinstance(call.func, cst.Attribute) else ""

    def _runs_if(self, test: cst.CSTNode, node: cst.CSTNode) -> bool:
        """Whether ``node`` is in the branch that is taken if ``x.is_cuda``, or ``x.is_cuda and ...``, holds."""
        branches = self.parent(test)
        if isinstance(test, cst.BooleanOperation) and not isinstance(test.operator, cst.And):
            return False
        if not isinstance(test, cst.Attribute | cst.BooleanOperation) or not isinstance(branches, cst.If | cst.IfExp):
            return False
        return self._is_inside_body(branches, node)

    def _is_inside_body(self, branches: cst.If | cst.IfExp, node: cst.CSTNode) -> bool:
        above: cst.CSTNode | None = node
        while above is not None and above is not branches.body:
            above = self.parent(above)
        return above is not None

    def _literal(self, call: cst.Call) -> cst.BaseExpression | None:
        """What names a kind of device in the call: the call itself for ``.cuda()``, the string for ``.to("cuda")``."""
        func = call.func
        name = func.attr.value if isinstance(func, cst.Attribute) else ""
        if name == "cuda":
            only = all(arg.keyword is not None and arg.keyword.value == "non_blocking" for arg in call.args)
            return call if only and self.flow.scope.qualified(func) != "torch.cuda" else None
        if name == "to" and call.args and call.args[0].keyword is None and _is_kind(call.args[0].value):
            return call.args[0].value
        if self.flow.scope.qualified(func) in ("torch.device", "torch.Generator"):
            if len(call.args) != 1 or not _is_kind(call.args[0].value) or self._is_a_choice(call):
                return None
            return call.args[0].value
        if self.flow.scope.qualified(func) in _FOR_ALL and len(call.args) == 1:
            told = call.args[0].value
            return told if _is_kind(told) or self._is_cuda_type(told) else None
        for arg in call.args:
            if arg.keyword is not None and arg.keyword.value in ("device", "map_location") and _is_kind(arg.value):
                return arg.value
        return None

    def _is_cuda_type(self, node: cst.BaseExpression) -> bool:
        """``"torch.cuda.FloatTensor"``, ``torch.cuda.FloatTensor``"""
        named = str(node.evaluated_value) if isinstance(node, cst.SimpleString) else self.flow.scope.qualified(node)
        return named.startswith("torch.cuda.") and named.endswith("Tensor")

    def _is_a_choice(self, call: cst.Call) -> bool:
        """Whether ``torch.device("cuda")`` is what the device is chosen to be, or is compared to it."""
        child: cst.CSTNode = call
        above = self.parent(call)
        while above is not None and not isinstance(above, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            # x.device == torch.device("cuda"), torch.device("cuda").type, devices = [torch.device("cuda"), ...]
            if isinstance(above, cst.Param | cst.Decorator | cst.List | cst.Tuple | cst.Dict):
                return True
            if isinstance(above, cst.Comparison | cst.ComparisonTarget) and child is call:
                return True  # not  x.to(torch.device("cuda")) > 0
            if isinstance(above, cst.Attribute) and child is call:
                return True
            child, above = above, self.parent(above)
        if isinstance(above, cst.Assign):
            return any(names_device(dotted(each.target).rpartition(".")[2]) for each in above.targets)
        if isinstance(above, cst.AnnAssign):
            return names_device(dotted(above.target).rpartition(".")[2])
        return isinstance(above, cst.Return | cst.Assert)


def _says_nothing(test: str, name: str) -> bool:
    """``device is None``, ``not device``, also with more behind ``and``."""
    name = re.escape(name)
    return re.match(rf"({name} (is|==) None|not {name})( and |$)", test) is not None


def _is_mps(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString) and _MPS.match(str(node.evaluated_value)) is not None


def _is_kind(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString) and str(node.evaluated_value).partition(":")[0] in _KINDS


def _stripped(node: cst.BaseExpression) -> cst.BaseExpression:
    """``x`` of ``x.float().contiguous()``"""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value in _MOVED_AWAY:
            return node
        node = node.func.value
    return node


#: Methods that give what may be on another device.
_MOVED_AWAY = frozenset({"to", "cuda", "cpu", "item", "tolist", "numpy", "new_zeros", "size"})
