from __future__ import annotations

import re
from functools import cached_property

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.hypothesis import names_device, numbers_device
from devlint.flow.names import called_name, dotted, last_word, names_bound
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.flow.value import CONTEXT, DATA, DEVICE, LIST, MODULE, NAME, TENSOR, THING, UNKNOWN_KIND, Value
from devlint.rule import Rule
from devlint.rules._arguments import argument, handed_in, parameter
from devlint.rules._by_position import report_by_position
from devlint.rules._copied import is_copied
from devlint.rules._device_zero import GIVE_DEVICE, report_or, report_test
from devlint.rules._errors import is_expected
from devlint.rules._meetings import calls_that_run
from devlint.rules._moves import short
from devlint.rules._new_modules import is_on_new_module
from devlint.rules._none_by_default import report_left_out
from devlint.rules._one_past import report_one_past
from devlint.rules._perhaps_device import is_surely_object, why_device_object
from devlint.rules._perhaps_none import device_of_none
from devlint.rules._placed_unseen import bases_elsewhere
from devlint.rules._refused import is_taken_elsewhere, may_be_of_torch, report_refused, report_refused_by_function
from devlint.rules._switches import is_switched_off, tests_above
from devlint.rules._with_index import why_indexed
from devlint.rules._zero_is_false import report_false_zero

#: What names no device of its own, and takes the current one.
_ON_CURRENT = re.compile(r"""\.cuda\(\s*\)|["']cuda["']|cuda\.current_device\(""")


class InvalidDeviceArgument(Rule):
    """Something that is no device is given where torch asks for one, or a device where torch takes none.

    ## What it does
    Reports

    - a flag for a device: `x.cuda(True)`, `torch.zeros(3, device=use_cuda)`;
    - the context manager `torch.cuda.device(0)` for a device, or as a statement of its own, where it does nothing;
    - a function that is not called: `device=torch.cuda.current_device`;
    - names that torch does not know: `"gpu"`, `f"gpu:{index}"`, `"CUDA"`, `"cuda0"`, `"cuda:0,1"`; lists of devices;
    - a `torch.device` for the `device_type` of `autocast`, which takes a string;
    - an accelerator for a constructor of host tensors: `torch.LongTensor([1], device=device)`;
    - `device=` for a function or class that has no such argument: `torch.cat`, `nn.ReLU`, `nn.Parameter`, `DataLoader`;
    - arguments of other calls: `x.cpu(non_blocking=True)` and that of a module's `cuda`, where `to` has it,
      `net.cuda(device_id=0)`, `net.load_state_dict(torch.load(f), map_location=device)`, `autocast(device="cuda")`;
    - `torch.device(device)` of a parameter that is `None` unless it is given, which nothing asks before;
    - `if gpu:` and `gpu or other` for a number of a device that may be `None`: device 0 is false;
    - as tentative, a device by position: `torch.zeros(3, device)`, and `nn.Linear(3, 3, device)`, which is its `bias`;
    - as tentative, how many devices there are for the number of one: `f"cuda:{torch.cuda.device_count()}"`; and
      `ids.device` below `device = ids.device if ids is not None else embeds.device`.

    ## Why is this bad
    All but the last, the `bias` and the statement raise as soon as they run. Often that is on a machine with a GPU
    only, which is not where the tests run. `x.cuda(True)` looks like the `non_blocking` of `x.to(device, True)`; `cuda`
    takes the device first. `torch.cuda.device(i)` on a line of its own selects nothing, and `if gpu:` leaves out the
    first GPU, both without a word.

    ## Example
    ```python
    import torch


    def step(model, x: torch.Tensor):
        with torch.autocast(x.device):
            return model(torch.cat([x, x], device=x.device))
    ```

    ## Use instead
    ```python
    import torch


    def step(model, x: torch.Tensor):
        with torch.autocast(x.device.type):
            return model(torch.cat([x, x]))
    ```

    ## Fix safety
    The code raises as it is, so that what is plainly meant is safe: `non_blocking=True`, the device's `type`, calling
    the function, leaving out an argument that is not taken, `torch.tensor` and `torch.empty` for the constructors of
    host tensors. `is not None` for the truth of a number is unsafe, since the first GPU is used from then on. What has
    to be guessed is unsafe, too, or not offered: `torch.cuda.set_device` raises for a device without an index.

    ## Limits
    Silent where the value may be something else, where the object may be of a class that is not torch's, for what a
    test's own parameter tells a constructor of host tensors, where the error is expected (`pytest.raises`, a `try`
    around it), and for the device that a base keeps, in a constructor (`torch.Tensor(rows, device=self.device)` of a
    `LightningModule`): that is the host until somebody moves the module. `gpu or other` counts where it is given for a
    device or the other is one, and not where both are the rank of the process.

    Tentative:

    - the truth of a number that no annotation calls one (`gpu=None`, `--gpu` with `type=int`), and of a parameter of
      which nothing but a default (`cuda=False`) says that it is a flag, where no call of the file leaves it out or
      hands it one;
    - `autocast(device_type="cuda:0")`, which releases of torch since 2.4 take, and `autocast` told the `device` of
      something that mostly has a `torch.device` (`model.device`, a field that is annotated so);
    - the context manager as a statement where the device is the first one or has no index (`device = "cuda"`), since
      that is the current one anyway, or in a file that names each of its devices;
    - constructors of host tensors where the default tensor type is set, in what puts batches together on the host, with
      a device that is the host's by default, below an option of the constructor that nothing in the file gives (`if
      self.rate == 0: return x`), and in a copy of somebody else's package, which would have been mended if the project
      ran that;
    - `torch.device` of a parameter that is `None` by default, where no call of the file leaves it out, or something may
      come before: another branch, a `return`, a call that checks it;
    - keywords that are refused by what is only taken for a module or an optimizer of torch's, and what such a module is
      moved to in a project with a `to` of its own.

    In the thirteen samples since the eighty-first, of code that nobody had tuned for, strict readers held 72 of 90
    findings for true, nine for arguable and nine for wrong. Fourteen of the 18 others stand in three projects, each of
    one cause; all but two of the causes are mended. `benchmarks/precision` has each, with a reason.

    ## References
    - [torch.Tensor.cuda](https://pytorch.org/docs/stable/generated/torch.Tensor.cuda.html)
    - [torch.device](https://pytorch.org/docs/stable/tensor_attributes.html#torch.device)
    - [torch.autocast](https://pytorch.org/docs/stable/amp.html#torch.autocast)
    """

    group = "correctness"
    fixable = "sometimes"
    assumes_host_default = True
    raises = True

    def check(self) -> None:
        report_one_past(self)
        for use, test in device_of_none(self):
            note = self.note(test, "that is asked here")
            self.report(
                use, f"`{self.code(use.value)}` is read whether it is `None` or not", notes=[note], tentative=True
            )

    def visit_Call(self, node: cst.Call) -> None:
        report_by_position(self, node)
        name = self.flow.name_of(node)
        if name.startswith("torch."):
            self._function(node, name)
            report_refused_by_function(self, node, name)
        elif not name and isinstance(node.func, cst.Attribute):
            report_refused(self, node, node.func)
            if node.func.attr.value in ("to", "cuda"):
                self._move(node, node.func)
        # TorchAutocast(device_type=self.device), of whatever package
        told = argument(node, None, "device_type") if not name.startswith("torch.") else None
        if told is not None and "autocast" in called_name(node).lower():
            self._indexed(told)

    # methods ------------------------------------------------------------------------------------

    def _move(self, node: cst.Call, func: cst.Attribute) -> None:
        receiver, how = self.flow.value(func.value), func.attr.value
        moved = receiver.kind in (TENSOR, THING, MODULE)
        arg = argument(node, 0, "device")
        if arg is None or not (moved or may_be_of_torch(self, receiver, "to", "cuda")):
            return
        if receiver.kind == MODULE and self._has_own(receiver.ref, how):
            return
        known = receiver.kind == TENSOR or (receiver.kind == MODULE and receiver.ref is not None)
        # model = Stack(Dense(1, 16))   of a framework that the project has itself
        sure = known or not is_taken_elsewhere(self, how, "self")
        if how == "cuda" and self._is_flag(arg.value):
            self._report_flag(node, arg, is_tensor=receiver.kind in (TENSOR, THING), sure=sure)
        else:
            self._device(node, arg, named=moved, sure=sure)

    def _has_own(self, made: object, how: str) -> bool:
        """``class Net(nn.Module): def cuda(self, flag=True): ...``: what that takes is for the class to say."""
        if not isinstance(made, Class):
            return False
        return any(cls.find_method(how) is not None for cls in (made, *bases_elsewhere(self, made)))

    # functions ----------------------------------------------------------------------------------

    def _function(self, node: cst.Call, name: str) -> None:
        if name == "torch.cuda.device":
            self._statement(node)
        elif name in _AUTOCAST:
            self._autocast(node)
        elif name in _TOLD:
            arg = argument(node, 0, "type", "device")
            if arg is not None:
                self._device(node, arg, named=True)
            if arg is not None and name == "torch.device" and isinstance(arg.value, cst.Name):
                report_left_out(self, node, arg.value)
        elif name in _LOADING:
            self._load(node, name)
        elif name in _LEGACY:
            self._legacy(node, name)
        elif takes_no_device(name):
            arg = argument(node, None, "device")
            if arg is not None and not self._is_expected(node):
                # nn.Parameter(torch.zeros(3), device=device)  wants the tensor there, which is for another call to do
                of_operands = name in table.FUNCTIONS or name in table.MODULES or name in table.OPTIMIZERS
                # DistributedDataParallel(net, device=[rank], output_device=rank)  means `device_ids`
                meant = argument(node, None, "output_device") is not None
                # torch.meshgrid(torch.arange(n), torch.arange(n), device=device)   means the two
                meant = meant or any(self.flow.factory(each) is not None for each in _calls_in(node))
                edit = self.remove_argument(node, "device") if of_operands and not meant else None
                fix = self.fix("leave `device` out", edit, safe=True) if edit is not None else None
                refused = "no `device`"
                if name == "torch.from_numpy":
                    fix = self._moved_afterwards(node)
                    refused = "neither `dtype` nor `device`" if argument(node, None, "dtype") else refused
                self.report(node, f"`{short(self.code(node.func))}` takes {refused}", fix=fix)
        elif name in table.FACTORIES or name in table.LIKE or name in table.KEEPING or name in table.MODULES:
            arg = argument(node, None, "device")
            if arg is not None and self._is_flag(arg.value):
                self._report_flag(node, arg, is_tensor=False)
            elif arg is not None:
                self._device(node, arg, named=True)

    def _moved_afterwards(self, node: cst.Call) -> Fix | None:
        """``torch.from_numpy(rows).to(dtype=dtype, device=device)``"""
        first, *others = node.args
        refused = [arg.keyword.value for arg in others if arg.keyword is not None]
        if first.keyword is not None or first.star or len(refused) < len(others) or set(refused) - {"dtype", "device"}:
            return None
        start, end = self.source.offsets(first.value, outer=True)[1], self.source.offsets(node)[1]
        if any(start <= offset < end for offset, _ in self.source.comments):
            return None
        given = ", ".join(f"{word}={self.code(arg.value)}" for word, arg in zip(refused, others, strict=True))
        return self.fix("move what it gives", self.replace_between(start, end, f").to({given})"), safe=True)

    def _statement(self, node: cst.Call) -> None:
        """``torch.cuda.device(rank)`` on a line of its own."""
        if node.args and isinstance(self.parent(node), cst.Expr) and not self._is_expected(node):
            # set_device(torch.device("cuda"))  raises for want of an index
            given = node.args[0].value
            offered = isinstance(node.func, cst.Attribute) and self._has_index(given)
            edit = self.replace(node.func, re.sub(r"\bdevice$", "set_device", self.code(node.func)))
            self.report(
                node,
                f"`{short(self.code(node))}` selects nothing here: it is a context manager",
                fix=self.fix("call `set_device`", edit, safe=False) if offered else None,
                silent=True,
                tentative=self._is_set_before(node) or not self._counts_on_current() or not self._is_another(given),
            )

    def _is_another(self, given: cst.BaseExpression) -> bool:
        """``device = "cuda"; torch.cuda.device(device)``, ``torch.cuda.device(0)``: that is the one in use anyway."""
        return self._has_index(given) and _FIRST.search(self.flow.value(given).place.name or self.code(given)) is None

    def _counts_on_current(self) -> bool:
        """``x.cuda()``, ``device="cuda"``: whether anything in the file goes where the selected device is."""
        return _ON_CURRENT.search(self.source.text) is not None

    def _is_set_before(self, node: cst.Call) -> bool:
        """``torch.cuda.set_device(rank); torch.cuda.device(rank)``: it would select what is selected already."""
        function = self.flow.function(node)
        return any(
            called_name(each) == "set_device"
            and self.flow.function(each) is function
            and self.source.comes_before(each, node)
            for each in self.source.nodes_of(cst.Call)
        )

    def _has_index(self, node: cst.BaseExpression) -> bool:
        """Whether it is a number of a device, or a device of which the index is known."""
        value = self.flow.value(node)
        if value.is_device_object or names_device(last_word(dotted(node))):
            return ":" in value.place.name
        return isinstance(node, cst.Integer) or numbers_device(last_word(dotted(node)))

    def _autocast(self, node: cst.Call) -> None:
        arg = argument(node, 0, "device_type")
        if arg is None or self._is_expected(node):
            return
        value = self.flow.value(arg.value)
        if value.is_device_object:
            code = short(self.code(arg.value))
            simple = isinstance(arg.value, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
            edit = self.insert_after(arg.value, ".type")
            # def train(net, device: torch.device): with autocast(device): ...   which is told "cuda", or never ran
            sure = is_surely_object(self, arg.value)
            self.report(
                arg.value,
                f"`autocast` takes a string for its `device_type`, and `{code}` is a `torch.device`",
                fix=self.fix("give its `type`", edit, safe=sure) if simple else None,
                tentative=not sure,
            )
        elif isinstance(arg.value, cst.Integer):
            self.report(arg.value, "`autocast` takes a string for its `device_type`, not the number of a device")
        elif (unknown := self._unknown_name(arg.value)) is not None:
            self.report(arg.value, f"`{short(self.code(unknown))}` is no type of device that torch knows")
        elif (shown := why_device_object(self, arg.value)) is not None:
            code = short(self.code(arg.value))
            self.report(
                arg.value,
                f"`autocast` takes a string for its `device_type`, and `{code}` stands for a `torch.device`",
                notes=[self.note(shown, "this says what it is")],
                fix=self.fix("give its `type`", self.insert_after(arg.value, ".type"), safe=False),
                tentative=True,
            )
        else:
            self._indexed(arg)

    def _indexed(self, arg: cst.Arg) -> None:
        """``device = f"cuda:{rank}"; autocast(device_type=device)``"""
        if (shown := why_indexed(self, arg.value)) is not None and not self.in_tests:
            said = f"`{short(self.code(arg.value))}` comes with an index, which `autocast` refuses before torch 2.4"
            notes = [self.note(shown, "this says what it is")] if shown is not arg.value else []
            self.report(arg.value, said, notes=notes, tentative=True)

    def _load(self, node: cst.Call, name: str) -> None:
        arg = argument(node, 1, "map_location")
        if arg is not None:
            self._device(node, arg, named=True)
        given = argument(node, None, "device")
        if given is None or self._is_expected(node):
            return
        fix = None
        if arg is None and given.keyword is not None:
            fix = self.fix("call it `map_location`", self.replace(given.keyword, "map_location"), safe=False)
        self.report(node, f"`{name}` takes no `device`: the argument is `map_location`", fix=fix)

    def _legacy(self, node: cst.Call, name: str) -> None:
        arg = argument(node, None, "device")
        if (
            arg is None
            or self._is_expected(node)
            or self._is_for_type_checker(node)
            or is_on_new_module(self, node, arg.value)
        ):
            return
        value = self.flow.value(arg.value)
        # def cube(device="cpu"): of a test
        if self.in_tests and isinstance(value.origin, cst.Param):
            return
        if value.kind == NAME:  # flair.device, of another file
            there = not str(value.ref).startswith("torch.") and names_device(str(value.ref).rpartition(".")[2])
        else:
            there = value.place.is_there if value.kind == DEVICE else bool(_ACCELERATOR.match(value.text or ""))
        if there:
            self.report(
                node,
                f"`{short(self.code(node.func))}` makes host tensors only, and refuses `{short(self.code(arg))}`",
                fix=self._without_legacy(node, name),
                # once that is one of CUDA's, it makes tensors there
                tentative=self.flow.default_type_set
                or self._is_for_batches(node)
                or self._is_host_by_default(node, value)
                or self._is_of_data(node, value)
                or self._is_of_loop(node, arg)
                or is_copied(self, node)
                or is_switched_off(self, node),
            )

    def _is_of_loop(self, node: cst.Call, arg: cst.Arg) -> bool:
        """``for boxes, size in zip(found, sizes): boxes * torch.Tensor(size, device=boxes.device)``, of what may have
        been brought to the host before."""
        of = arg.value.value if isinstance(arg.value, cst.Attribute) and arg.value.attr.value == "device" else None
        if not isinstance(of, cst.Name) or self.flow.value(of).kind not in (UNKNOWN_KIND, THING):
            return False
        loop = self.enclosing(node, cst.For, cst.FunctionDef)
        return isinstance(loop, cst.For) and bool(tree.named(loop.target, of.value))

    def _is_of_data(self, node: cst.Call, device: Value) -> bool:
        """``def mask(batch): return torch.Tensor(rows, device=batch["x"].device)``: data is prepared on the host."""
        function, row = self.flow.function(node), _OF_ROW.fullmatch(device.place.name)
        return function is not None and function.cls is None and row is not None and row[1] in function.param_names

    def _is_host_by_default(self, node: cst.Call, device: Value) -> bool:
        """``def turn(x, device=torch.device("cpu")): ...``: whether anybody gives another one, nobody knows."""
        function = self.flow.function(node)
        if function is None or (function.role == CONSTRUCTOR and function.cls is not None):
            return False  # def __init__(self, size, device="cpu"): ...   is there for others to build elsewhere
        param = function.param(device.place.name)
        return param is not None and param.default is not None and "cpu" in self.code(param.default)

    def _is_for_batches(self, node: cst.Call) -> bool:
        """``class Collator: def __call__(self, rows): torch.Tensor(marks, device=rows[0].device)``, on the host."""
        function = self.flow.function(node)
        if function is None:
            return False
        collates = function.name == "__call__" and function.cls is not None and not function.cls.is_module
        return collates or "collate" in function.name

    def _is_for_type_checker(self, node: cst.Call) -> bool:
        """``x: Tensor[float32, L[2]] = Tensor(2, device="cuda")``: torch's own takes no arguments, so that this never
        runs."""
        annotated = self.parent(node)
        return isinstance(annotated, cst.AnnAssign) and isinstance(annotated.annotation.annotation, cst.Subscript)

    def _without_legacy(self, node: cst.Call, name: str) -> Fix | None:
        """``torch.tensor([...], dtype=...)`` or ``torch.empty(sizes, dtype=...)``, where it is plain which is meant."""
        given = [arg for arg in node.args if arg.keyword is None]
        if not isinstance(node.func, cst.Attribute) or not given or any(arg.star for arg in node.args):
            return None
        dtype = _LEGACY[name]
        if len(given) > 1 or isinstance(given[0].value, cst.Integer):
            made = "empty"
        elif dtype and isinstance(given[0].value, cst.List | cst.ListComp) and self.flow.value(given[0].value):
            if self._holds_tensors(given[0].value):
                return None
            made = "tensor"
        else:
            return None
        edits = [self.replace(node.func.attr, made)]
        if dtype:
            more = self.add_argument(node, f"dtype={self.code(node.func.value)}.{dtype}")
            if more is None:
                return None
            edits.append(more)
        return self.fix(f"use `torch.{made}`", *edits, safe=True)

    def _holds_tensors(self, node: cst.BaseExpression) -> bool:
        value = self.flow.value(node)
        return value.kind == LIST and value.items is not None and value.items.kind != DATA

    # what is given for a device -----------------------------------------------------------------

    def _device(self, node: cst.Call, arg: cst.Arg, *, named: bool, sure: bool = True) -> None:
        """Report what is given for a device and is none. ``named``: it is torch's, and strings are names of devices.
        ``sure``: it is torch's by more than the name of a method."""
        given = arg.value
        value = self.flow.value(given)
        unknown = self._unknown_name(given) if named else None
        if value.kind == CONTEXT and value.ref == "torch.cuda.device":
            message = f"`{short(self.code(given))}` is a context manager, and no device"
            fix = self._as_device(given)
        elif isinstance(given, cst.Name) and self._bound_uncalled(node, given):
            return
        elif value.kind == NAME and value.ref in GIVE_DEVICE:
            message = f"`{short(self.code(given))}` is a function: it is not called here"
            fix = self.fix("call it", self.insert_after(given, "()"), safe=True)
        elif named and isinstance(given, cst.List | cst.ListComp):  # trainer.cuda([0, 1])  of who knows what
            message, fix = f"`{short(self.code(given))}` is a list, and no device", None
        elif unknown is not None:
            message, fix = f"`{short(self.code(unknown))}` is no device that torch knows", None
        else:
            return
        if not self._is_expected(node):
            elsewhere = unknown is not None and self.flow.function(unknown) is not self.flow.function(given)
            notes = [self.note(unknown, "it is named here")] if unknown is not None and unknown is not given else []
            # in projects for mindspore, an adapter takes the place of torch, and "CPU" is a device
            other = unknown is not None and "mindspore" in self.source.text
            self.report(given, message, notes=notes, fix=fix, tentative=elsewhere or other or not sure)

    def _bound_uncalled(self, node: cst.Call, name: cst.Name) -> bool:
        """``device = torch.accelerator.current_accelerator if found else "cpu"``: said, and mended, where the name is
        bound, which other uses and the other side share."""
        function = self.flow.function(name)
        within = function if function is not None and name.value in function.assigned else None
        sides = self._uncalled.get((within, name.value), [])
        calls = self.source.nodes_of(cst.Call) if sides else []
        if any(isinstance(call.func, cst.Name) and call.func.value == name.value for call in calls):
            return False
        for side in sides:
            if side not in self._said and not self._is_expected(node):
                self._said.add(side)
                self.report(
                    side,
                    f"`{short(self.code(side))}` is a function: it is not called here",
                    notes=[self.note(name, "this is to be a device")],
                    fix=self.fix("call it", self.insert_after(side, "()"), safe=True),
                )
        return bool(sides)

    @cached_property
    def _uncalled(self) -> dict[tuple[Function | None, str], list[cst.BaseExpression]]:
        """The functions that give devices and that names are bound to, by where and by the name."""
        found: dict[tuple[Function | None, str], list[cst.BaseExpression]] = {}
        for assign in self.source.nodes_of(cst.Assign):
            for side in tree.sides(assign.value):
                value = self.flow.value(side)
                if value.kind == NAME and value.ref in GIVE_DEVICE:
                    for target in assign.targets:
                        found.setdefault((self.flow.function(assign), dotted(target.target)), []).append(side)
        return found

    @cached_property
    def _said(self) -> set[cst.CSTNode]:
        return set()

    def _unknown_name(self, given: cst.BaseExpression) -> cst.BaseExpression | None:
        """The name that torch does not know: a string, one side of a choice, or what a name is bound to, once."""
        bound = self._bound_once(given) if isinstance(given, cst.Name) else given
        return next(filter(_is_unknown, tree.sides(bound)), None) if bound is not None else None

    def _bound_once(self, name: cst.Name) -> cst.BaseExpression | None:
        """What the only statement binds that binds a name, in the function or, where that does not, in the file."""
        function = self.flow.function(name)
        if function is not None and name.value in function.param_names:
            return None  # device = "gpu" if device == "auto" else device
        if function is not None and name.value not in function.assigned:
            if any(name.value in each.param_names for each in function.outwards):
                return None
            function = None
        places = [node for node in self.source.nodes_of(cst.AssignTarget) if dotted(node.target) == name.value]
        statements = [self.parent(node) for node in places if self.flow.function(node) is function]
        others = [node for node in self.source.nodes_of(cst.AnnAssign) if dotted(node.target) == name.value]
        if len(statements) != 1 or others or not isinstance(statements[0], cst.Assign):
            return None  # device = "gpu"; if ...: device = "cuda"
        loops = [each for each in self.source.nodes_of(cst.For) if name.value in names_bound(each.target)]
        if any(self.flow.function(each) is function for each in loops) or len(statements[0].targets) != 1:
            return None
        return statements[0].value

    def _as_device(self, node: cst.BaseExpression) -> Fix | None:
        if not isinstance(node, cst.Call) or len(node.args) != 1 or node.args[0].keyword or node.args[0].star:
            return None
        if not self.code(node.func).endswith("torch.cuda.device"):
            return None
        holder = self.code(node.func).removesuffix(".cuda.device")
        code = f'{holder}.device("cuda", {self.code(node.args[0].value)})'
        return self.fix("make a `torch.device`", self.replace(node, code), safe=False)

    def _report_flag(self, node: cst.Call, arg: cst.Arg, *, is_tensor: bool, sure: bool = True) -> None:
        code = short(self.code(arg.value))
        constant = isinstance(arg.value, cst.Name) and code in ("True", "False")
        if self._is_expected(node):
            return
        fix = None
        if constant and is_tensor and sure and arg.keyword is None:
            fix = self.fix("call it `non_blocking`", self.insert_before(arg.value, "non_blocking="), safe=True)
        said = f"`{code}` is taken for the device" if constant else f"`{code}` is a flag, and taken for the device"
        tentative = not sure or not self._is_surely_flag(arg.value)
        self.report(node, f"{said}, which it is not", fix=fix, tentative=tentative)

    def _is_surely_flag(self, node: cst.BaseExpression) -> bool:
        """Whether more than a default says so: ``def __init__(self, size, cuda=False)`` may be told a device."""
        function, param = self.flow.function(node), self._flag_by_default(node)
        if function is None or param is None:
            return True
        name = param.name.value
        # if cuda: x = x.cuda(cuda)   is for those who hand one in
        guarded = any(holds and dotted(test) == name for test, _, holds in tests_above(self, node))
        if not guarded and any(self._is_asked(use) for use in tree.named(function.node.body, name)):
            return True
        for call in calls_that_run(self, function):
            given = handed_in(call, function, name)
            if given is None and not guarded and not any(arg.star for arg in call.args):
                return True
            if given is not None and self._is_flag(given) and self._flag_by_default(given) is None:
                return True
        return False

    def _flag_by_default(self, node: cst.BaseExpression) -> cst.Param | None:
        """The parameter that a node names, where its default is all that is known of it."""
        param = parameter(self.flow.function(node), node.value) if isinstance(node, cst.Name) else None
        return param if param is not None and param.annotation is None else None

    def _is_asked(self, node: cst.Name) -> bool:
        """``if cuda:``, ``not cuda``, ``cuda and fast``"""
        above = self.parent(node)
        if isinstance(above, cst.If | cst.IfExp):
            return above.test is node
        return isinstance(above, cst.BooleanOperation) or (
            isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Not)
        )

    def _is_flag(self, node: cst.BaseExpression) -> bool:
        """``True`` or ``False``, as far as anybody says."""
        if isinstance(node, cst.Name):
            if node.value in ("True", "False"):
                return True
            param = parameter(self.flow.function(node), node.value)
            if param is None:
                return False
            said = [param.annotation.annotation] if param.annotation is not None else [param.default]
            return all(isinstance(each, cst.Name) and each.value in ("bool", "True", "False") for each in said)
        if isinstance(node, cst.UnaryOperation):
            return isinstance(node.operator, cst.Not)
        if isinstance(node, cst.Call):
            return self.flow.name_of(node) in _FLAGS
        return isinstance(node, cst.Comparison)

    def _is_expected(self, node: cst.CSTNode) -> bool:
        return is_expected(self, node)

    def visit_If(self, node: cst.If) -> None:
        report_test(self, node.test, node.body)
        report_false_zero(self, node)

    def visit_IfExp(self, node: cst.IfExp) -> None:
        report_test(self, node.test, node.body)
        report_false_zero(self, node)

    def visit_BooleanOperation(self, node: cst.BooleanOperation) -> None:
        report_or(self, node)
        report_false_zero(self, node)


def beginning(node: cst.BaseExpression) -> tuple[str, bool]:
    """The constant beginning of a string, however it is put together, and whether that is all of it."""
    if isinstance(node, cst.SimpleString):
        text = node.evaluated_value
        return (text, True) if isinstance(text, str) else ("", False)
    if isinstance(node, cst.FormattedString):  # f"gpu:{index}"
        first = node.parts[0] if node.parts else None
        return (first.value, len(node.parts) == 1) if isinstance(first, cst.FormattedStringText) else ("", False)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):  # "gpu:" + str(index)
        return beginning(node.left)[0], False
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):  # "gpu:%d" % index
        return re.sub(r"%\d*[di]", "0", beginning(node.left)[0]).partition("%")[0], False
    func = node.func if isinstance(node, cst.Call) else None
    if isinstance(func, cst.Attribute) and func.attr.value == "format":  # "gpu:{}".format(index)
        return beginning(func.value)[0].partition("{")[0], False
    return "", False


def _is_unknown(node: cst.BaseExpression) -> bool:
    """Whether a string is meant for a device, and torch knows none of that name."""
    start, is_whole = beginning(node)
    # f"cuda{index}"  may be told ":1"
    return _MEANT.match(start) is not None and not (_VALID if is_whole else _BEGUN).fullmatch(start)


#: ``0``, ``cuda:0``
_FIRST = re.compile(r"\b0$")
#: ``batch["x"].device``
_OF_ROW = re.compile(r"(\w+)\[[^\]]*\]\.device")


def _calls_in(node: cst.Call) -> list[cst.Call]:
    return [each for arg in node.args for each in tree.walk(arg.value) if isinstance(each, cst.Call)]


def takes_no_device(name: str) -> bool:
    """Whether a function or class of torch refuses `device=`."""
    fact = table.MODULES.get(name)
    if fact is not None:
        # nn.Identity(device=device)  takes whatever it is given
        no_layer = fact.kind != "layer" and fact.tensors == "argument"
        return name != "torch.nn.Identity" and (no_layer or fact.tensors in ("never", "children"))
    return name in table.FUNCTIONS or name in table.OPTIMIZERS or name in table.WRAPPERS or name in _NO_DEVICE


_AUTOCAST = frozenset({"torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast"})
#: They take a device, or its name, first.
_TOLD = frozenset({"torch.device", "torch.Generator", "torch.set_default_device"})
_LOADING = frozenset({"torch.load", "torch.jit.load"})
_NO_DEVICE = frozenset({"torch.from_numpy", "torch.frombuffer", "torch.utils.data.DataLoader"})
_FLAGS = frozenset({"torch.cuda.is_available", "torch.accelerator.is_available", "torch.backends.mps.is_available"})
#: Constructors of host tensors, and the dtype of what they make; that of `Tensor` is torch's default.
_LEGACY = {
    "torch.Tensor": "",
    "torch.FloatTensor": "float",
    "torch.DoubleTensor": "double",
    "torch.HalfTensor": "half",
    "torch.BFloat16Tensor": "bfloat16",
    "torch.ByteTensor": "uint8",
    "torch.CharTensor": "int8",
    "torch.ShortTensor": "short",
    "torch.IntTensor": "int",
    "torch.LongTensor": "long",
    "torch.BoolTensor": "bool",
}
_ACCELERATOR = re.compile(r"cuda|mps|xpu|npu|hpu|mlu|musa|xla")
#: Names meant for the devices that everyone has; backends may bring names of their own.
_MEANT = re.compile(r"\s*(gpu|cuda|cpu|mps)(?![a-z])", re.IGNORECASE)
_VALID = re.compile(r"(cuda|cpu|mps)(:(0|[1-9]\d*))?")
#: What such a name may begin with, where the rest is told when the code runs.
_BEGUN = re.compile(r"(cuda|cpu|mps)(:(0|[1-9]\d*)?)?")
