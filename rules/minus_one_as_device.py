from __future__ import annotations

import os
import re

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted, last_word
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._arguments import argument, handed_in
from devlint.rules._meetings import calls_that_run
from devlint.rules._moves import short
from devlint.rules._portability import Surroundings

#: What an option says of itself where -1 is for the CPU: "-1 for CPU", "set to -1 to use the cpu".
_SAYS_MINUS_ONE = re.compile(r"(?<![\w.])-1(?![\w.])")
#: A test that lets tensors on a GPU through: `x.is_cuda`, `x.get_device() >= 0`, `device.type != "cpu"`.
_KNOWS = re.compile(r"cuda|gpu|(?<![a-z])cpu(?![a-z])|get_device\(\) *[<>=!]|device\.type", re.IGNORECASE)
_NUMBERED = re.compile(r"""cuda:(\{\w*\}|%d|%s|%i)?""")


class MinusOneAsDevice(Rule):
    """A number that is -1 for the CPU is taken for a device, which none is called.

    ## What it does
    Reports `x.get_device()` where a device is asked for: `y.to(x.get_device())`, `torch.zeros(3,
    device=x.get_device())`; and `f"cuda:{args.gpu}"` where the option is -1 by default, or says so in its help, and
    nothing asks for it.

    ## Why is this bad
    For a tensor on the host, `get_device()` gives -1, and torch raises "Device index must not be negative". The name
    `cuda:-1` is an "Invalid device string". Whoever has no GPU, or asks for none, cannot run the program.

    ## Example
    ```python
    import torch


    def positions(x: torch.Tensor):
        return torch.arange(x.shape[1], device=x.get_device())
    ```

    ## Use instead
    ```python
    import torch


    def positions(x: torch.Tensor):
        return torch.arange(x.shape[1], device=x.device)
    ```

    ## Fix safety
    `x.device` for `x.get_device()` is safe: on a GPU it is the same one. No fix is offered for an option.

    ## Limits
    Silent where a test, exit, handler or decorator around it speaks of kinds of devices, where something compares the
    number, in tests, in code that is for CUDA by its name, or by what it sets up, and in a program of which a file says
    `accelerator="gpu"` and none says anything else. On a GPU nothing is wrong. A tensor on `mps` has the number 0,
    which is taken for the current accelerator. Strict readers held five of five findings for true in code that is kept
    well.

    ## References
    - [torch.Tensor.get_device](https://pytorch.org/docs/stable/generated/torch.Tensor.get_device.html)
    - [torch.device](https://pytorch.org/docs/stable/tensor_attributes.html#torch.device)
    """

    group = "portability"
    fixable = "sometimes"

    def check(self) -> None:
        has_number, has_options = "get_device(" in self.source.text, "add_argument" in self.source.text
        if not has_number and not (has_options and "-1" in self.source.text):
            return
        around = Surroundings(self)
        if around.is_test or around.is_set_up_for_cuda or self._is_for_gpus_alone():
            return
        for call in self.source.nodes_of(cst.Call):
            if has_number:
                self._numbered(call, around)
        if has_options:
            for formatted in self.source.nodes_of(cst.FormattedString):
                self._named(formatted)
            for string in self.source.nodes_of(cst.SimpleString):
                self._named(string)

    def _is_for_gpus_alone(self) -> bool:
        """``Trainer(accelerator="gpu")`` in a file of the same program, and no other choice in any."""
        project = self.flow.project
        if project is None:
            return False
        folder, below, _ = project.in_project().partition(os.sep)
        folder = folder if below else ""
        return project.some_file_says(f"gpus {folder}") is True and project.some_file_says(f"chooses {folder}") is False

    # numbers of tensors -------------------------------------------------------------------------

    def _numbered(self, call: cst.Call, around: Surroundings) -> None:
        """``y.to(x.get_device())``"""
        given = self._told(call)
        number = self._number(given) if given is not None else None
        if given is None or number is None or around.guard(call, _KNOWS) is not None:
            return
        holder = number.func.value if isinstance(number.func, cst.Attribute) else number
        code = self.code(holder)
        fix = self.fix("take its device", self.replace(number, f"{code}.device"), safe=True)
        notes = [self.note(number, "the number is taken here")] if number is not given else []
        said = f"`{short(self.code(number))}` is -1 for a tensor on the host, and no device is called so"
        self.report(given, said, notes=notes, fix=fix if number is given else None)

    def _told(self, call: cst.Call) -> cst.BaseExpression | None:
        """What a call is told for a device, where that has to be one: `x.to(index)`, `zeros(3, device=index)`."""
        arg = argument(call, None, "device")
        if arg is None and self.flow.name_of(call) == "torch.device" and len(call.args) == 1:
            arg = call.args[0]
        if arg is None and isinstance(call.func, cst.Attribute) and call.func.attr.value == "to":
            arg = argument(call, 0, "device")
        return arg.value if arg is not None else None

    def _number(self, given: cst.BaseExpression) -> cst.Call | None:
        """``x.get_device()``, also by the name that it is bound to, where nothing else is and nobody compares it."""
        if isinstance(given, cst.Name):
            function = self.flow.function(given)
            around = function.node if function is not None else self.source.module
            if function is not None and given.value in function.param_names:
                return None
            bound = [
                node.value
                for node in tree.walk(around)
                if isinstance(node, cst.Assign) and any(dotted(each.target) == given.value for each in node.targets)
            ]
            if len(bound) != 1 or self._is_compared(given.value, around):
                return None
            given = bound[0]
        func = given.func if isinstance(given, cst.Call) and not given.args else None
        # dist.get_device(), self.get_device()  are the project's own
        if not isinstance(func, cst.Attribute) or func.attr.value != "get_device" or not isinstance(given, cst.Call):
            return None
        value = self.flow.value(func.value)
        return (
            given if value.is_tensor or (dotted(func.value) != "self" and self._is_tensor_by_use(func.value)) else None
        )

    def _is_tensor_by_use(self, node: cst.BaseExpression) -> bool:
        """Whether the function asks it what only a tensor has, or hands it to torch."""
        function, path = self.flow.function(node), dotted(node)
        if not path:
            return False
        for each in tree.walk(function.node if function is not None else self.source.module):
            # but for `self.config.dtype`, beside `self.config.get_device()`
            asked = each.attr.value if isinstance(each, cst.Attribute) and dotted(each.value) == path else ""
            if asked in _OF_TENSORS or (asked in _ALSO_OF_OTHERS and self._is_called(each)):
                return True
            above = self.parent(each) if isinstance(each, cst.Arg) and dotted(each.value) == path else None
            if self.flow.name_of(above).startswith("torch."):
                return True
        return False

    def _is_called(self, node: cst.CSTNode) -> bool:
        above = self.parent(node)
        return isinstance(above, cst.Call) and above.func is node

    def _is_compared(self, name: str, around: cst.CSTNode) -> bool:
        """``if index < 0: index = "cpu"``, ``"cpu" if index == -1 else index``"""
        return any(
            isinstance(node, cst.Comparison) and re.search(rf"\b{re.escape(name)}\b", self.code(node)) is not None
            for node in tree.walk(around)
        )

    # options ------------------------------------------------------------------------------------

    def _named(self, string: cst.FormattedString | cst.SimpleString) -> None:
        """``f"cuda:{args.gpu}"``, ``"cuda:%d" % args.gpu``, ``"cuda:{}".format(args.gpu)``, ``"cuda:" + str(gpu)``"""
        number = self._formatted(string)
        option = self._option(number) if number is not None else None
        if number is None or option is None:
            return
        # device = f"cuda:{args.gpu}" if args.gpu >= 0 else "cpu";  if args.gpu == -1: args.gpu = 0
        if self._is_compared(last_word(dotted(number)), self.source.module):
            return
        said = f"`{self.code(number)}` may be -1, as the option says, and no device is called `cuda:-1`"
        self.report(string, said, notes=[self.note(option, "the option is made here")])

    def _formatted(self, string: cst.FormattedString | cst.SimpleString) -> cst.BaseExpression | None:
        """The one number that is put behind `cuda:`."""
        if isinstance(string, cst.FormattedString):
            if len(string.parts) != 2:
                return None
            kind, number = string.parts
            is_name = isinstance(kind, cst.FormattedStringText) and kind.value == "cuda:"
            return number.expression if is_name and isinstance(number, cst.FormattedStringExpression) else None
        text, above = string.evaluated_value, self.parent(string)
        if not isinstance(text, str) or not _NUMBERED.fullmatch(text):
            return None
        given: cst.BaseExpression | None = None
        if isinstance(above, cst.BinaryOperation) and above.left is string:
            given = above.right
        elif isinstance(above, cst.Attribute) and above.attr.value == "format":
            call = self.parent(above)
            given = call.args[0].value if isinstance(call, cst.Call) and len(call.args) == 1 else None
        if isinstance(given, cst.Tuple):
            given = given.elements[0].value if len(given.elements) == 1 else None
        if isinstance(given, cst.Call) and dotted(given.func) == "str" and len(given.args) == 1:
            given = given.args[0].value
        return given

    def _option(self, number: cst.BaseExpression) -> cst.Call | None:
        """The option of the command line that tells a number, where it is -1 for none."""
        path = dotted(number)
        head, _, name = path.rpartition(".")
        if head in ("args", "opt", "opts", "options", "config", "cfg", "FLAGS", "params", "hparams"):
            return self._declared(name)
        function = self.flow.function(number)
        if not head and function is not None and name in function.param_names:
            return self._handed(function, name)
        return None

    def _handed(self, function: Function, name: str) -> cst.Call | None:
        """``main(args.cuda)``, for ``def main(cuda):``"""
        for call in calls_that_run(self, function):
            given = handed_in(call, function, name)
            if isinstance(given, cst.Attribute) and (found := self._declared(given.attr.value)) is not None:
                return found
        return None

    def _declared(self, name: str) -> cst.Call | None:
        for call in self.source.nodes_of(cst.Call):
            if called_name(call) != "add_argument":
                continue
            names = [str(arg.value.evaluated_value) for arg in call.args if isinstance(arg.value, cst.SimpleString)]
            if not any(each.lstrip("-").replace("-", "_") == name for each in names if each.startswith("--")):
                continue
            default, told = argument(call, None, "default"), argument(call, None, "help")
            is_by_default = default is not None and self.code(default.value).replace(" ", "") == "-1"
            if is_by_default or (told is not None and _SAYS_MINUS_ONE.search(self.code(told.value))):
                return call
        return None


#: What a tensor is asked, and little else.
_OF_TENSORS = frozenset(
    "shape ndim view reshape unsqueeze squeeze detach mean permute transpose contiguous new_zeros new_ones is_cuda "
    "numel expand type_as".split()
)
#: What tensors have as methods, and settings and the like as fields.
_ALSO_OF_OTHERS = frozenset({"size", "dim", "float", "long", "sum", "clone"})
