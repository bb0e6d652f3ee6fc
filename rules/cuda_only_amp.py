from __future__ import annotations

import libcst as cst

from devlint.finding import Fix
from devlint.flow.scope import DEVICE_SIDE, Function
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._places import device_expression
from devlint.rules._portability import SPEAKS_OF_CUDA, Chosen, Surroundings

_OF_CUDA = frozenset({"torch.cuda.amp.autocast", "torch.cuda.amp.autocast_mode.autocast"})
_OF_ANY = frozenset({"torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast"})


class CudaOnlyAmp(Rule):
    """Autocast is asked for on CUDA, where the work may run on another kind of device.

    ## What it does
    Reports `torch.cuda.amp.autocast(...)` and `torch.autocast("cuda", ...)` in code that was told its device, in the
    `forward` of a module, and as a decorator of either.

    ## Why is this bad
    Autocast is switched for each kind of device alone. On the CPU, on `mps` or on `xpu`, autocast for `cuda` changes
    nothing: the work runs in full precision, and `enabled=False` does not keep it from running in half precision.
    On a machine without CUDA torch warns, and disables it.

    ## Example
    ```python
    import torch


    def loss_of(model, x, y, device):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(x.to(device), y.to(device))
    ```

    ## Use instead
    ```python
    import torch


    def loss_of(model, x, y, device):
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            return model(x.to(device), y.to(device))
    ```

    ## Fix safety
    The fix takes the type of the device that was chosen. It is unsafe: on other devices than CUDA, the work now runs
    in half precision, which may be `bfloat16` by default.

    ## Limits
    Silent under a test that speaks of devices, where `enabled=` does, and where no device was chosen outside of a
    module. `GradScaler` is left alone: without CUDA it disables itself.

    ## References
    - [Automatic mixed precision](https://pytorch.org/docs/stable/amp.html)
    """

    group = "portability"
    fixable = "sometimes"

    def check(self) -> None:
        if "autocast" not in self.source.text or "cuda" not in self.source.text:
            return
        around = Surroundings(self)
        for call in self.source.nodes_of(cst.Call):
            name = self.flow.scope.qualified(call.func)
            if name in _OF_CUDA or (name in _OF_ANY and _kind(call) == "cuda"):
                self._look_at(call, around)

    def _look_at(self, call: cst.Call, around: Surroundings) -> None:
        if around.guard(call, SPEAKS_OF_CUDA) is not None or around.is_for_cuda(call):
            return
        enabled = next((arg.value for arg in call.args if _names(arg, "enabled")), None)
        if enabled is None and self.flow.scope.qualified(call.func) in _OF_CUDA and call.args:
            enabled = call.args[0].value if call.args[0].keyword is None else None
        # autocast(enabled=x.is_cuda); by torch.cuda.is_available() it still says nothing of the device at work
        if enabled is not None and not self._is_availability(enabled) and around.speaks(enabled, SPEAKS_OF_CUDA):
            return
        above = self.parent(call)
        if isinstance(above, cst.Decorator):
            function = self.flow.function(call)
            if function is not None and _of_module(function):
                self.report(call, f"`{function.name}` autocasts on CUDA only, whatever device its module is on")
            return
        chosen = around.chosen(call)
        if chosen is not None:
            self._report(call, chosen, around)
            return
        function = self.flow.function(call)
        if (
            function is not None
            and function.role == DEVICE_SIDE
            and function.cls is not None
            and function.cls.is_module
        ):
            code = self._of_inputs(call)
            self.report(
                call,
                f"`{function.name}` autocasts on CUDA only, whatever device its module is on",
                fix=self._fix(call, f"{code}.type") if code is not None else None,
            )

    def _report(self, call: cst.Call, chosen: Chosen, around: Surroundings) -> None:
        code = around.expression(chosen, call)
        note = self.note(chosen.node, f"`{chosen.code}` is what was chosen")
        message = f"`{short(self.code(call))}` is for CUDA only, though `{chosen.code}` was chosen"
        fix = None
        if code is not None:
            of_tensor = code.endswith(".device") and not code.startswith(("self.", "args."))
            fix = self._fix(call, f"{code}.type" if of_tensor else f"torch.device({code}).type")
        self.report(call, message, notes=[note], fix=fix)

    def _fix(self, call: cst.Call, kind: str) -> Fix | None:
        if self.flow.scope.imports.get("torch") != "torch":
            return None
        if self.flow.scope.qualified(call.func) in _OF_ANY:
            given = next(arg.value for arg in call.args if arg.keyword is None or _names(arg, "device_type"))
            return self.fix(f"autocast on `{kind}`", self.replace(given, kind), safe=False)
        arguments = [self.code(arg) for arg in call.args if arg.keyword is not None]
        positional = [self.code(arg.value) for arg in call.args if arg.keyword is None]
        if len(positional) > 1 or any(arg.star for arg in call.args):
            return None  # autocast(enabled, dtype, cache_enabled) has another order than torch.autocast
        parts = [kind, *(f"enabled={each}" for each in positional), *(text.rstrip(", \n") for text in arguments)]
        return self.fix(f"autocast on `{kind}`", self.replace(call, f"torch.autocast({', '.join(parts)})"), safe=False)

    def _of_inputs(self, call: cst.Call) -> str | None:
        """The device of a tensor that the function was given."""
        function = self.flow.function(call)
        assert function is not None
        for param in function.params:
            value = self.flow.value(param)
            if param.default is None and value.is_tensor:
                return device_expression(self.flow, call, param.name, value)
        return None

    def _is_availability(self, node: cst.BaseExpression) -> bool:
        return self.flow.name_of(node) == "torch.cuda.is_available"


def _of_module(function: Function) -> bool:
    return function.cls is not None and function.cls.is_module


def _names(arg: cst.Arg, keyword: str) -> bool:
    return arg.keyword is not None and arg.keyword.value == keyword


def _kind(call: cst.Call) -> str | None:
    for arg in call.args:
        if arg.keyword is None or _names(arg, "device_type"):
            return str(arg.value.evaluated_value) if isinstance(arg.value, cst.SimpleString) else None
    return None
