from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._portability import (
    SPEAKS_OF_CUDA,
    Implied,
    Surroundings,
    asks_whether_available,
    is_available_test,
    told_to_device,
)

_SEVERAL_GPUS = re.compile(r"\(?\s*(torch\.cuda\.is_available\(\) and )?torch\.cuda\.device_count\(\) (> 1|>= 2)\s*\)?")
_PARALLEL = re.compile(r"(?!Distributed)\w*?DataParallel(?!ism)\w*")
_SEVERAL = (cst.BooleanOperation, cst.IfExp, cst.List, cst.Tuple, cst.Param, cst.Decorator, cst.Comparison)


class AvailabilityInsteadOfDevice(Rule):
    """Whether there is CUDA decides where something goes, although a device was chosen.

    ## What it does
    Reports moves to CUDA under `if torch.cuda.is_available():`, and `"cuda" if torch.cuda.is_available() else "cpu"`
    as anything else than the choice of a device, in code that was told its device. Also under a name for what
    `is_available()` says. Reports as tentative such moves where nothing names a device, of what meets a tensor the
    function was handed or is made in a module; and `DataParallel(net)` under `if torch.cuda.device_count() > 1:`, all
    GPUs there are, where a device was chosen. Reports, too, `n_gpu = torch.cuda.device_count()` beside the choice of
    the CPU, as tentative where a flag makes that choice: what is done for `n_gpu > 1` is done on the CPU then.

    ## Why is this bad
    On a machine with CUDA the test always holds. Where the device that was chosen is the CPU, or `cuda:1`, what is
    moved so ends up elsewhere than the rest, and the first operation on both raises.

    ## Example
    ```python
    import torch


    def embed(model, tokens, device):
        tokens = tokens.to(device)
        if torch.cuda.is_available():
            model.cuda()
        return model(tokens)
    ```

    ## Use instead
    ```python
    import torch


    def embed(model, tokens, device):
        tokens = tokens.to(device)
        if torch.cuda.is_available():
            model.to(device)
        return model(tokens)
    ```

    ## Fix safety
    The fix moves to the device that was chosen, and leaves the test. It is unsafe: the code may have meant the GPU
    whatever was chosen.

    ## Limits
    Silent where no device was chosen, and where the one that was chosen is `"cuda"` wherever there is CUDA.

    ## References
    - [CUDA semantics: device-agnostic code](https://pytorch.org/docs/stable/notes/cuda.html#device-agnostic-code)
    """

    group = "portability"
    fixable = "sometimes"

    def check(self) -> None:
        if "cuda" not in self.source.text:
            return
        around = Surroundings(self)
        if "DataParallel" in self.source.text and "device_count" in self.source.text:
            self._spread(around)
        if "device_count" in self.source.text:
            self._counted(around)
        if "is_available" not in self.source.text:
            return
        tests: list[cst.If | cst.IfExp] = [*self.source.nodes_of(cst.If), *self.source.nodes_of(cst.IfExp)]
        for node in tests:
            if not self._asks(node.test, around) or around.is_for_cuda(node):
                continue
            for call in tree.walk(node.body):
                if isinstance(call, cst.Call) and _goes_to_cuda(call) and around.guard(call) is node.test:
                    self._moved(call, around)
            if isinstance(node, cst.IfExp) and _is_kind(node.body) and isinstance(node.orelse, cst.SimpleString):
                self._named(node, around)

    def _asks(self, test: cst.BaseExpression, around: Surroundings) -> bool:
        """``torch.cuda.is_available()``, or a name for what that says: ``use_cuda = torch.cuda.is_available()``."""
        if not isinstance(test, cst.Name):
            return asks_whether_available(self, test)
        made = around.assigned(test.value)
        function = self.flow.function(test)
        handed = function is not None and test.value in function.param_names
        return bool(made) and not handed and all(is_available_test(code) for code in made)

    def _spread(self, around: Surroundings) -> None:
        """``if torch.cuda.device_count() > 1: net = DataParallel(net)``, and then ``net.to(device)``: on all GPUs,
        though one was chosen, or the CPU."""
        for branch in self.source.nodes_of(cst.If):
            if not _SEVERAL_GPUS.fullmatch(self.code(branch.test)) or around.guard(
                branch, SPEAKS_OF_CUDA, closely=True
            ):
                continue
            for call in tree.walk(branch.body):
                # DataParallel(net, device_ids=gpus)
                if (
                    not isinstance(call, cst.Call)
                    or len(call.args) != 1
                    or around.guard(call, SPEAKS_OF_CUDA, closely=True) is not branch.test
                ):
                    continue
                chosen = around.chosen(call) if _PARALLEL.fullmatch(dotted(call.func).rpartition(".")[2]) else None
                if chosen is None or chosen.is_default or not chosen.is_handed_in or around.is_for_cuda(call):
                    continue
                note = self.note(chosen.node, f"`{chosen.code}` is what was chosen, and may be the CPU or one GPU")
                said = f"`{short(self.code(call))}` spreads over all GPUs there are, though `{chosen.code}` was chosen"
                self.report(branch.test, said, notes=[note], tentative=True)

    def _counted(self, around: Surroundings) -> None:
        """``device = torch.device("cpu"); n_gpu = torch.cuda.device_count()``: the CPU was chosen, and a GPU may be
        there all the same."""
        for call in self.source.nodes_of(cst.Call):
            statement = self.parent(call)
            line = self.parent(statement) if isinstance(statement, cst.Assign) else None
            block = self.parent(line) if line is not None else None
            if not isinstance(block, cst.IndentedBlock | cst.Module) or around.is_test:
                continue
            if self.flow.scope.qualified(call.func) != "torch.cuda.device_count":
                continue
            for other in block.body:
                small = other.body[0] if isinstance(other, cst.SimpleStatementLine) else None
                how = self._chooses_host(small)
                # device = "cpu"; if torch.cuda.device_count(): device = "cuda"
                if how == "always" and not isinstance(self.parent(block), cst.If | cst.Else):
                    continue
                if how is not None and isinstance(small, cst.Assign | cst.AnnAssign):
                    name = self.code(statement.targets[0].target) if isinstance(statement, cst.Assign) else ""
                    said = f"`{name}` counts the GPUs there are, though `{self.code(_target(small))}` may be the CPU"
                    note = self.note(small, "the device is chosen here")
                    self.report(call, said, notes=[note], tentative=how != "always")
                    break

    def _chooses_host(self, node: cst.CSTNode | None) -> str | None:
        """Whether a statement chooses the CPU: always, or by a flag as well as for want of a GPU."""
        if not isinstance(node, cst.Assign | cst.AnnAssign) or node.value is None:
            return None
        if not names_device(dotted(_target(node)).rpartition(".")[2]):
            return None
        value = told_to_device(self, node.value)
        if isinstance(value, cst.IfExp):
            # "cuda" if torch.cuda.is_available() and not args.no_cuda else "cpu"
            flagged = "is_available" in self.code(value.test) and isinstance(value.test, cst.BooleanOperation)
            value, how = value.orelse, "by a flag" if flagged else None
        else:
            how = "always"
        return how if isinstance(value, cst.SimpleString) and value.evaluated_value == "cpu" else None

    def _moved(self, call: cst.Call, around: Surroundings) -> None:
        chosen = around.chosen(call) or around.elsewhere(call)
        if chosen is None and (implied := around.followed(call)) is not None:
            self._implied(call, implied)
        # device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  is where .cuda() goes
        if chosen is None or chosen.is_default or around.is_fixed(call):
            return
        assert isinstance(call.func, cst.Attribute)
        code = around.expression(chosen, call)
        said = f"`{short(self.code(call.func.value))}` goes to CUDA wherever there is one"
        said += f", though `{chosen.code}` was chosen" if code else f", while this file works on `{chosen.code}`"
        note = self.note(chosen.node, f"`{chosen.code}` is what was chosen")
        self.report(call, said, notes=[note], fix=self._to(call, code) if code else None)

    def _implied(self, call: cst.Call, implied: Implied) -> None:
        assert isinstance(call.func, cst.Attribute)
        said = f"`{short(self.code(call.func.value))}` goes to CUDA wherever there is one, {implied.why}"
        fix = self._to(call, implied.code) if implied.code is not None else None
        note = self.note(implied.node, "this tells where it has to be")
        self.report(call, said, notes=[note], fix=fix, tentative=True)

    def _to(self, call: cst.Call, chosen: str) -> Fix:
        assert isinstance(call.func, cst.Attribute)
        start, _ = self.source.offsets(call.func.attr)
        _, end = self.source.offsets(call)
        rest = ", ".join(self.code(arg).rstrip(", \n") for arg in call.args if arg.keyword is not None)
        new = f"to({chosen}{', ' if rest else ''}{rest})"
        return self.fix(f"move it to `{chosen}`", self.replace_between(start, end, new), safe=False)

    def _named(self, node: cst.IfExp, around: Surroundings) -> None:
        chosen = around.chosen(node)
        if chosen is None or chosen.is_default or chosen.owner == "file" or self._is_a_choice(node):
            return
        message = f"`{short(self.code(node))}` asks for CUDA, though `{chosen.code}` was chosen"
        note = self.note(chosen.node, f"`{chosen.code}` is what was chosen")
        code = around.expression(chosen, node)
        fix = None
        if code is not None:
            start, end = self.source.offsets(node, outer=True)
            edit = self.replace_between(start, end, f"torch.device({code}).type")
            fix = self.fix(f"take the type of `{code}`", edit, safe=False)
        self.report(node, message, notes=[note], fix=fix)

    def _is_a_choice(self, node: cst.IfExp) -> bool:
        """Whether it is what the device is chosen to be: assigned to one, a default, or one of several."""
        above = self.parent(node)
        while above is not None and not isinstance(above, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            if isinstance(above, cst.Arg) and above.keyword is not None:
                # parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
                if above.keyword.value == "default" or names_device(above.keyword.value):
                    return True
            # device or ("cuda" if ... else "cpu"), def f(device="cuda" if ... else "cpu")
            elif isinstance(above, _SEVERAL):
                return True
            above = self.parent(above)
        if isinstance(above, cst.Assign):
            targets = [dotted(each.target) for each in above.targets]
            return any(names_device(each.rpartition(".")[2]) or not each for each in targets)
        if isinstance(above, cst.AnnAssign):
            return names_device(dotted(above.target).rpartition(".")[2])
        return isinstance(above, cst.Return)


def _target(node: cst.Assign | cst.AnnAssign) -> cst.BaseExpression:
    return node.targets[0].target if isinstance(node, cst.Assign) else node.target


def _is_kind(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString) and str(node.evaluated_value).partition(":")[0] == "cuda"


def _goes_to_cuda(call: cst.Call) -> bool:
    """``x.cuda()``, ``x.to("cuda")``."""
    if not isinstance(call.func, cst.Attribute):
        return False
    if call.func.attr.value == "cuda":
        only = all(arg.keyword is not None and arg.keyword.value == "non_blocking" for arg in call.args)
        return only and dotted(call.func) != "torch.cuda"
    return call.func.attr.value == "to" and bool(call.args) and _is_kind(call.args[0].value)
