from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.finding import Edit, Fix, Note
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted
from devlint.flow.value import DEVICE
from devlint.rule import Rule
from devlint.rules._asked_of_cuda import asked_whatever_there_is
from devlint.rules._bound_elsewhere import unbound_elsewhere
from devlint.rules._fused import fused_by_signature
from devlint.rules._loose_tests import works_on_choice
from devlint.rules._moves import short
from devlint.rules._none_elsewhere import none_elsewhere
from devlint.rules._pins import pinned_anyway
from devlint.rules._portability import SPEAKS, SPEAKS_OF_CUDA, Surroundings, asks_whether_available

#: What raises where there is no such device (torch 2.13 for the CPU); the rest answers 0, or does nothing.
_RAISE = {
    "cuda": frozenset(
        "current_device get_device_name get_device_capability get_device_properties synchronize init "
        "reset_peak_memory_stats reset_max_memory_allocated reset_accumulated_memory_stats memory_summary "
        "memory_snapshot mem_get_info initial_seed get_rng_state Stream current_stream default_stream Event "
        "ipc_collect can_device_access_peer set_per_process_memory_fraction current_blas_handle CUDAGraph "
        "graph_pool_handle is_current_stream_capturing nvtx.range_push nvtx.range_pop cudart get_sync_debug_mode "
        "set_sync_debug_mode utilization temperature".split()
    ),
    "mps": frozenset(
        "empty_cache synchronize current_allocated_memory driver_allocated_memory seed get_rng_state "
        "set_per_process_memory_fraction recommended_max_memory Event profiler.start".split()
    ),
    "xpu": frozenset(
        "synchronize current_device get_device_name set_device get_device_properties Stream reset_peak_memory_stats "
        "mem_get_info".split()
    ),
}
_OTHER_KIND = re.compile(r"xpu|npu|mps|hpu|mlu|musa|cpu")
_IS_CUDA = re.compile(r"cuda(:\d+)?")
_NAMES = {"cuda": "CUDA", "mps": "MPS", "xpu": "an XPU"}
#: Attributes of torch that a package of the vendor's adds, and how such packages are called.
_PLUGINS = {"npu": "torch_npu", "mlu": "torch_mlu", "musa": "torch_musa", "hpu": "habana_frameworks"}
#: Whatever is not the CPU: `device != "cpu"`, `str(self.device) != "cpu"`, `not device.type == "cpu"`.
_NOT_HOST = re.compile(r"""(str\([\w.]+\)|[\w.]+) != ["']cpu["']|not (str\([\w.]+\)|[\w.]+) == ["']cpu["']""")
#: A switch for CUDA, which is on or off for good: not `is_cuda`, `on_gpu`, which say where something is by now.
_SWITCH = re.compile(r"(?:\w+\.)*_?(?:use_?|has_?|with_?|enable_?)?(?:cuda|gpu)(?:_available)?", re.IGNORECASE)
_SWITCHED_OFF = re.compile(
    r"(?:\w+\.)*(?:(?:no|disable)_?(?:cuda|gpu)|cpu_only|use_?cpu|only_?cpu|force_?cpu)", re.IGNORECASE
)
#: The device of a run: a parameter, an attribute of its own, or an option.
_OF_RUN = re.compile(r"(self\.)?((args?|opts?|config|cfg|options|hparams)\.)?\w*device")
#: What all that these match has: code is made for little else.
_NAMED = re.compile(r"cuda|gpu|cpu|device", re.IGNORECASE)
#: The device that was chosen is the CPU: `device == "cpu"`, `str(self.device) == "cpu"`, `args.device.type != "cuda"`.
_IS_HOST = re.compile(
    r"""(?:str\()?((?:self\.|args\.|opt\.|cfg\.|config\.)?device)"""
    r"""(?:(?:\.type)?\)? == (?:torch\.device\()?["']cpu["']\)?|\.type != ["']cuda["'])"""
)


class UnguardedAcceleratorCall(Rule):
    """A function for one kind of device is called in code that runs without that kind, too.

    ## What it does
    Reports calls that raise where there is no such device (`torch.cuda.synchronize()`, `torch.cuda.Stream()`,
    `torch.mps.empty_cache()`), with no test for it above, in code that was told its device; and calls of modules that
    torch has only where a package adds them, `torch.npu.is_available()` above all. Reports apex's fused optimizers,
    too, where they are used as soon as they can be imported; `torch.mps` beside `torch.cuda` in one block, as no
    machine has both; and what is for CUDA in the branch where `torch.cuda.is_available()` is false, or where the
    switch for CUDA is off or the device that was chosen is the CPU (`if self.use_cuda: ... else: x.cuda()`; as
    tentative where nothing goes to CUDA where it is on). As tentative, `torch.cuda.set_device(device)` with the
    device that was chosen, also where it is only asked whether there is CUDA; `pin_memory()` of a tensor, and
    `pin_memory=True` where one is made, also in a file that needs CUDA for nothing else; what runs when the file is
    imported, also as a default argument, where no more of the file does that is for CUDA; other calls for CUDA where
    nothing asks for it; `torch.mps` and `torch.xpu` in a file that names CUDA alone as a device; what
    `device.type != "cpu"` alone guards, which lets other kinds through; and what is `None` without CUDA and used all
    the same (`scaler = GradScaler() if device.type == "cuda" else None`, then `scaler.scale(loss)`). So, too, calls
    below a test or an assertion that asks for CUDA for one way to run alone (`if ddp: assert
    torch.cuda.is_available()`), in a file that works on other devices; names that are bound under `if use_cuda:`
    alone and read in any case; fused optimizers that are chosen because torch has them; calls in the `else` of a test
    for reduced precision; and questions such as `torch.cuda.get_device_name()`, in a function that is called whatever
    there is, beside others that ask first, or in a file that says elsewhere what is to be where there is no CUDA,
    whatever it imports.

    ## Why is this bad
    Without CUDA, `torch.cuda.synchronize()` raises "Torch not compiled with CUDA enabled", or that there is no driver:
    code that works on whatever device it is given ends there on all others. And `torch.npu.is_available()` is no way
    to find out whether there is one: without `torch_npu`, torch has no attribute `npu`.

    ## Example
    ```python
    import time

    import torch


    def seconds(model, x, device):
        x = x.to(device)
        start = time.perf_counter()
        model(x)
        torch.cuda.synchronize()
        return time.perf_counter() - start
    ```

    ## Use instead
    ```python
    import time

    import torch


    def seconds(model, x, device):
        x = x.to(device)
        start = time.perf_counter()
        model(x)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start
    ```

    ## Fix safety
    Where the call is a statement of its own, the fix puts it under `if torch.cuda.is_available():`. It is safe: where
    there is CUDA the call is made as before, and elsewhere it raised.

    ## Limits
    A test of an option alone (`if cuda:`) counts as none where the same function asks for that option and for
    availability elsewhere. Silent under any other test, exit, handler or decorator that speaks of devices, processes or
    precision, in tests, in what is for one kind by its name, in files that set the current CUDA device or start `nccl`
    processes, and by default where no device was chosen: such code may be for CUDA only. Functions that do nothing,
    or answer 0, without a device are not reported: `torch.cuda.empty_cache()`, `torch.cuda.memory_allocated()`.
    `torch.cuda.is_bf16_supported()` is one of them since torch 2.5, and tentative: before, it raised.

    ## References
    - [torch.cuda](https://pytorch.org/docs/stable/cuda.html)
    - [torch.accelerator](https://pytorch.org/docs/stable/accelerator.html)
    """

    group = "portability"
    fixable = "sometimes"

    def check(self) -> None:
        if "apex" in self.source.text:
            self._of_apex()
        text = self.source.text
        kinds = [kind for kind in (*_RAISE, *_PLUGINS) if f"{kind}." in text or f"{kind} import" in text]
        around = Surroundings(self)
        if "is_available" in self.source.text:
            self._where_there_is_none(around)
        if "cuda" in text:
            self._where_it_is_off(around)
        if ".pin_memory(" in text or "pin_memory=True" in text:
            self._pinned(around)
        if ("else None" in text or "None if" in text) and not around.is_test:
            self._missing_elsewhere(around)
        if not around.is_test and ("cuda" in text or "gpu" in text):
            for found in unbound_elsewhere(self, around):
                note = self.note(found.test, "only where that holds is it bound")
                said = f"`{found.name}` is bound where there is CUDA alone, and is read here in any case"
                self.report(found.use, said, notes=[note], tentative=True)
        for test in fused_by_signature(self) if not (around.is_test or around.demands_cuda) else ():
            said = (
                "that torch has fused optimizers does not say that the parameters are on CUDA: before torch 2.4, they"
            )
            self.report(test, f"{said} have to be", tentative=True)
        if not kinds:
            return
        for call in self.source.nodes_of(cst.Call):
            torch, _, name = self.flow.scope.qualified(call.func).partition(".")
            kind, _, what = name.partition(".")
            if torch != "torch" or kind not in kinds or not what:
                continue
            if kind in _PLUGINS:
                self._of_plugin(call, kind, around)
            elif what in _RAISE[kind]:
                self._of_torch(call, kind, around)
            elif (kind, what) == ("cuda", "is_bf16_supported"):
                self._of_older_torch(call, around)
            elif (kind, what) == ("cuda", "device") and call.args:
                self._entered(call, around)
            elif (kind, what) == ("cuda", "set_device") and len(call.args) == 1:
                self._made_current(call, around)

    def _where_there_is_none(self, around: Surroundings) -> None:
        """``if not torch.cuda.is_available(): torch.cuda.empty_cache()``: the test is the wrong way round."""
        branches: list[cst.If | cst.IfExp] = [*self.source.nodes_of(cst.If), *self.source.nodes_of(cst.IfExp)]
        for branch in branches:
            test: cst.BaseExpression = branch.test
            without: cst.CSTNode | None = branch.orelse
            if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
                test, without = test.expression, branch.body
            if without is None or around.is_test or not asks_whether_available(self, test):
                continue
            for node in _run_in(without):
                code = short(self.code(node))
                note = self.note(branch.test, "that is asked here")
                if isinstance(node, cst.Call) and self._is_for_cuda(node) and around.guard(node) is branch.test:
                    self.report(node, f"`{code}` is called only where there is no CUDA", notes=[note])
                elif node is without and isinstance(node, cst.SimpleString) and node.evaluated_value == "cuda":
                    self.report(node, f"`{code}` is chosen only where there is no CUDA", notes=[note])

    def _where_it_is_off(self, around: Surroundings) -> None:
        """``if self.use_cuda: x = x.cuda()``, and ``else: x = x.cuda()``."""
        branches: list[cst.If | cst.IfExp] = [*self.source.nodes_of(cst.If), *self.source.nodes_of(cst.IfExp)]
        for branch in branches:
            found = self._off(branch)
            if found is None or around.is_test or around.guard(branch, SPEAKS_OF_CUDA) is not None:
                continue
            flag, without = found
            # if not self.cuda: self.net.cuda(); self.cuda = True   says where the net is by now
            if flag in self._bound_in(branch) or self._is_number(flag, branch):
                continue
            moves = [node for node in _run_in(without) if isinstance(node, cst.Call) and self._moves_to_cuda(node)]
            for call in moves:
                if around.guard(call) is branch.test:
                    note = self.note(branch.test, "that is asked here")
                    said = f"`{short(self.code(call))}` is reached only where `{self.code(branch.test)}` chose the CPU"
                    self.report(call, said, notes=[note], tentative=not self._decides(flag, branch, without))

    def _off(self, branch: cst.If | cst.IfExp) -> tuple[str, cst.CSTNode] | None:
        """The switch or device that a test asks for, and the branch that is taken where CUDA is not to be used."""
        test, is_off = branch.test, False
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            test, is_off = test.expression, True
        if _NAMED.search(tree.words(test)) is None:
            return None
        code = self.code(test)
        if (host := _IS_HOST.fullmatch(code)) is not None:
            flag, is_off = host[1], not is_off
        elif _SWITCHED_OFF.fullmatch(code):
            flag, is_off = code, not is_off
        elif _SWITCH.fullmatch(code):
            flag = code
        else:
            return None
        without = branch.body if is_off else branch.orelse
        return (flag, without) if without is not None else None

    def _bound_in(self, branch: cst.If | cst.IfExp) -> set[str]:
        """What the branches of a test assign: ``self.cuda``, ``device``."""
        targets = [each.target for node in tree.walk(branch) if isinstance(node, cst.Assign) for each in node.targets]
        return {dotted(target) for target in targets}

    def _is_number(self, flag: str, branch: cst.If | cst.IfExp) -> bool:
        """``if gpu: net.cuda(gpu)``, and ``else: net.cuda()``: the current one, where no other is asked for."""
        return any(isinstance(node, cst.Arg) and self.code(node.value) == flag for node in tree.walk(branch))

    def _decides(self, flag: str, branch: cst.If | cst.IfExp, without: cst.CSTNode) -> bool:
        """Whether it is surely the switch for CUDA: a device, or what is on where something else goes there."""
        # if use_cuda: y = kernel(x)   and   else: y = slowly(x.cuda())   may choose the kernel alone
        if names_device(flag.rpartition(".")[2]):
            return True
        others = (each for each in self.source.nodes_of(cst.If) if (off := self._off(each)) and off[0] == flag)
        for each in (branch, *others):
            off = self._off(each)
            with_it = each.orelse if off is not None and off[1] is each.body else each.body
            if with_it is None or with_it is without:
                continue
            if any(isinstance(node, cst.Call) and self._moves_to_cuda(node) for node in _run_in(with_it)):
                return True
        return False

    def _moves_to_cuda(self, call: cst.Call) -> bool:
        """``x.cuda()``, ``x.cuda(non_blocking=True)``, ``x.to("cuda")``."""
        if not isinstance(call.func, cst.Attribute) or self.code(call.func.value) in ("self", "torch"):
            return False
        if call.func.attr.value == "cuda":
            return all(arg.keyword is not None and arg.keyword.value == "non_blocking" for arg in call.args)
        given = call.args[0].value if call.func.attr.value == "to" and call.args else None
        return isinstance(given, cst.SimpleString) and str(given.evaluated_value).startswith("cuda")

    def _is_for_cuda(self, call: cst.Call) -> bool:
        name = self.flow.scope.qualified(call.func)
        if name.startswith("torch.cuda."):
            what = name.removeprefix("torch.cuda.")
            return what in _RAISE["cuda"] or what in ("empty_cache", "set_device")
        return isinstance(call.func, cst.Attribute) and call.func.attr.value == "cuda" and not call.args

    def _pinned(self, around: Surroundings) -> None:
        """``torch.tensor(rows).pin_memory().to(device)``, where ``device`` may be the CPU of a machine without CUDA."""
        for found in pinned_anyway(self, around):
            code = short(self.code(found.call))
            said = f"`{code}` raises where there is no accelerator, and nothing here asks for one"
            chosen = f"`{found.code}` is what was chosen, and may be the CPU"
            notes = [self.note(found.chosen, chosen)] if found.chosen is not None else []
            self.report(found.call, said, notes=notes, tentative=True)

    def _made_current(self, call: cst.Call, around: Surroundings) -> None:
        """``torch.cuda.set_device(device); net.to(device)``, where ``device`` may be the CPU."""
        given, chosen = call.args[0].value, around.chosen(call)
        # torch.cuda.set_device(self.decoder.first_device): a model that is spread over several GPUs
        if chosen is None or chosen.owner not in ("parameter", "class"):
            return
        if self.code(given) not in (chosen.code, f"self.{chosen.code}"):
            return
        guard = around.guard(call)
        # if torch.cuda.is_available(): torch.cuda.set_device(device)   does not ask for the device
        if isinstance(guard, cst.BaseExpression) and asks_whether_available(self, guard):
            guard = around.guard(self.parent(guard))
        if guard is None and not (around.is_test or around.is_set_up_for_cuda or around.is_fixed(call)):
            note = self.note(chosen.node, f"`{chosen.code}` is what was chosen, and may be of another kind")
            message = f"`{short(self.code(call))}` raises where `{self.code(given)}` is not a CUDA device"
            self.report(call, message, notes=[note], tentative=True)

    def _missing_elsewhere(self, around: Surroundings) -> None:
        """``scaler = GradScaler() if device.type == "cuda" else None; scaler.scale(loss).backward()``"""
        for found in none_elsewhere(self, around):
            when = f"{'unless' if found.unless else 'where'} `{self.code(found.test)}`"
            note = self.note(found.test, "that is asked here")
            self.report(found.use, f"`{found.name}` is `None` {when}, and is used here", notes=[note], tentative=True)

    def _of_apex(self) -> None:
        """``try: from apex.optimizers import FusedAdam``: that it can be imported does not say that there is a GPU."""
        around = Surroundings(self)
        for call in self.source.nodes_of(cst.Call):
            name = self.flow.scope.qualified(call.func)
            if not name.startswith("apex.optimizers.Fused"):
                continue
            optional = self.enclosing(call, cst.Try, cst.FunctionDef)
            if isinstance(optional, cst.Try) and around.guard(call) is None and not around.is_for_cuda(call):
                what = name.rpartition(".")[2]
                self.report(call, f"`{what}` works on CUDA alone, and nothing here asks whether there is any")

    def _of_plugin(self, call: cst.Call, kind: str, around: Surroundings) -> None:
        package = _PLUGINS[kind]
        if any(name.partition(".")[0] == package for name in self.flow.scope.imports.values()):
            return  # import torch_npu
        words = re.compile(rf"{kind}|hasattr|getattr", re.IGNORECASE)
        if around.guard(call, words, "AttributeError") is None and not around.is_test:
            self.report(call, f"`torch.{kind}` exists only where `{package}` adds it: without, this raises")

    def _of_torch(self, call: cst.Call, kind: str, around: Surroundings) -> None:
        words = re.compile(f"{SPEAKS.pattern}|{kind}", re.IGNORECASE)
        guard = around.guard(call, words)
        said = f"`{short(self.code(call))}` raises where there is no {_NAMES[kind].removeprefix('an ')}"
        if guard is not None:
            if not self._for_what_is_wanted(call, said, guard, words, around):
                self._for_all_but_host(call, said, guard, words, around)
                if not self._passed_over(call, said, words, around) and kind == "cuda":
                    self._asked_of(call, said, words, around)
            return
        if around.is_for_cuda(call):
            if not self._passed_over(call, said, words, around) and kind == "cuda":
                self._asked_of(call, said, words, around)
            return
        notes = self._runs_elsewhere(call, kind, around)
        if notes:
            message = f"{said}, and nothing here asks whether there is"
            self.report(call, message, notes=notes, fix=self._fix(call, kind))
        elif (other := self._for_another_kind(kind, around)) is not None:
            notes = [self.note(other, f"here it is for another kind, and nothing names `{kind}` as a device")]
            self.report(call, f"{said}, and nothing here asks whether there is", notes=notes, tentative=True)
        elif self._breaks_import(call, around):
            self.report(call, f"{said}, as soon as this file is imported", tentative=True)
        elif kind == "cuda":
            self.report(call, f"{said}, and nothing here asks whether there is", tentative=True)

    def _passed_over(self, call: cst.Call, said: str, words: re.Pattern[str], around: Surroundings) -> bool:
        """``if ddp: assert torch.cuda.is_available()`` far above, of a file that chooses ``"cpu"`` where it is not."""
        if around.is_test or around.demands_cuda_closely or around.guard(call, words, closely=True) is not None:
            return False
        chosen = around.chosen(call)
        shown = (chosen.node, chosen.code) if chosen is not None and chosen.is_handed_in else works_on_choice(around)
        if shown is None or around.is_fixed(call):
            return False
        note = self.note(shown[0], f"`{shown[1]}` is what was chosen, and may be of another kind")
        self.report(call, f"{said}, and nothing here asks whether there is", notes=[note], tentative=True)
        return True

    def _asked_of(self, call: cst.Call, said: str, words: re.Pattern[str], around: Surroundings) -> None:
        """``def gpu_name(): return torch.cuda.get_device_name()``, which is called whatever there is."""
        found = asked_whatever_there_is(self, around, call, words)
        if found is not None:
            notes = [self.note(found.node, found.why)]
            self.report(call, f"{said}, and nothing here asks whether there is", notes=notes, tentative=True)

    def _of_older_torch(self, call: cst.Call, around: Surroundings) -> None:
        """``dtype = "bfloat16" if torch.cuda.is_bf16_supported() else "float16"``, where ``device`` may be the CPU."""
        elsewhere = "cpu" in self.source.text or "is_available" in self.source.text
        if elsewhere and around.guard(call) is None and not around.is_test:
            said = f"`{short(self.code(call))}` raises where there is no CUDA, before torch 2.5"
            self.report(call, f"{said}, and nothing here asks whether there is", tentative=True)

    def _for_what_is_wanted(
        self, call: cst.Call, said: str, guard: cst.CSTNode, words: re.Pattern[str], around: Surroundings
    ) -> bool:
        """``device = "cuda" if cuda and torch.cuda.is_available() else "cpu"; if cuda: torch.cuda.current_device()``"""
        branch, flag = self.parent(guard), dotted(guard) if isinstance(guard, cst.Name | cst.Attribute) else ""
        if not flag or not isinstance(branch, cst.If | cst.IfExp) or around.guard(branch, words) is not None:
            return False
        function, alone = around.function(call), _flag_and_available(flag)
        if any(around.function(each) is function for each in self._stores_of(flag)):
            return False  # cuda = cuda and torch.cuda.is_available()
        for test in self.flow.calls("torch.cuda.is_available"):
            both = self.enclosing(test, cst.BooleanOperation)
            if around.function(test) is function and both is not None and alone.fullmatch(self.code(both)):
                note = self.note(both, f"here, it is asked beside `{flag}`")
                self.report(call, f"{said}, and `{flag}` alone does not say that there is", notes=[note])
                return True
        return False

    def _stores_of(self, flag: str) -> Iterator[cst.CSTNode]:
        """``args.cuda = ...``, anywhere."""
        yield from (node for node in self.source.nodes_of(cst.AssignTarget) if dotted(node.target) == flag)
        yield from (node for node in self.source.nodes_of(cst.AnnAssign) if dotted(node.target) == flag)

    def _for_all_but_host(
        self, call: cst.Call, said: str, guard: cst.CSTNode, words: re.Pattern[str], around: Surroundings
    ) -> None:
        """``if device.type != "cpu": torch.cuda.synchronize()``: not the CPU may be another kind, too."""
        branch = self.parent(guard)
        if not _NOT_HOST.fullmatch(self.code(guard)) or not isinstance(branch, cst.If | cst.IfExp):
            return
        if around.guard(branch, words) is None and not around.is_for_cuda(call):
            note = self.note(guard, "whatever is not the CPU gets here")
            self.report(call, f"{said}, and of other kinds there are more than the CPU", notes=[note], tentative=True)

    def _for_another_kind(self, kind: str, around: Surroundings) -> cst.CSTNode | None:
        """``def setup(self, device="cuda"): ...``, in a file that says ``mps`` where it calls this alone."""
        text = self.source.text
        if kind == "cuda" or around.is_test or len(re.findall(rf"\b{kind}\b", text)) != text.count(f"torch.{kind}."):
            return None
        if f"torch.{kind}.is_available" in text or f"torch.{kind}.device_count" in text:
            return None
        named = (each for each in self.source.nodes_of(cst.SimpleString) if _IS_CUDA.fullmatch(each.raw_value))
        return next((each for each in named if not isinstance(self.parent(each), cst.Expr)), None)

    def _breaks_import(self, call: cst.Call, around: Surroundings) -> bool:
        """Whether it runs when the file is imported, and nothing else that runs then is for CUDA."""
        if not self._runs_at_import(call, around):
            return False
        # net = build().cuda(); torch.cuda.synchronize();  device = "cuda"  is a program for CUDA
        others = [node for node in self.source.nodes_of(cst.Attribute) if node.attr.value == "cuda"]
        texts = [text for text in self.source.nodes_of(cst.SimpleString) if text.raw_value.startswith("cuda")]
        called = [node for node in others if isinstance(self.parent(node), cst.Call)]
        return not any(self._runs_at_import(node, around) and around.guard(node) is None for node in (*called, *texts))

    def _runs_at_import(self, node: cst.CSTNode, around: Surroundings) -> bool:
        """Not in a function, nor under ``if __name__ == "__main__":``; ``def f(device=current_device())`` does."""
        if around.function(node) is not None or self.enclosing(node, cst.Lambda) is not None:
            return False
        branch = self.enclosing(node, cst.If)
        while branch is not None:
            if "__name__" in self.code(branch.test):
                return False
            branch = self.enclosing(branch, cst.If)
        return True

    def _fix(self, call: cst.Call, kind: str) -> Fix | None:
        """A test above a statement that is nothing but the call."""
        statement = self.parent(call)
        line = self.parent(statement) if isinstance(statement, cst.Expr) else None
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return None
        module = "torch.backends.mps" if kind == "mps" else f"torch.{kind}"
        edit = self.insert_statement(call, f"if {module}.is_available():")
        if edit is None or self.flow.scope.imports.get("torch") != "torch":
            return None
        step = self.source.module.default_indent
        return self.fix("ask first", Edit(edit.span, edit.content + step), safe=True)

    def _entered(self, call: cst.Call, around: Surroundings) -> None:
        """``with torch.cuda.device(x.device):``, where ``x`` may be on the host."""
        given = self.flow.value(call.args[0].value)
        function = around.function(call)
        # an optimizer or a kernel of its own may be for CUDA; a module runs where its input is
        if function is None or function.cls is None or function.name != "forward":
            self._entered_where_chosen(call, around)
            return
        if given.kind != DEVICE or given.place.kind != "device" or around.guard(call) is not None:
            return
        if not around.is_for_cuda(call):
            code = self.code(call.args[0].value)
            self.report(call, f"`{short(self.code(call))}` raises where `{code}` is not a CUDA device")

    def _entered_where_chosen(self, call: cst.Call, around: Surroundings) -> None:
        """``with torch.cuda.device(args.device): torch.cuda.empty_cache()``, where that may be the CPU."""
        given, chosen = call.args[0].value, around.chosen(call)
        if chosen is None or self.code(given) != chosen.code or chosen.is_default or not chosen.is_handed_in:
            return
        # with torch.cuda.device(p.device): kernel(p)   of an optimizer that is for CUDA
        if not _OF_RUN.fullmatch(chosen.code):
            return
        if around.guard(call) is None and not around.is_for_cuda(call):
            note = self.note(chosen.node, f"`{chosen.code}` is what was chosen, and may be of another kind")
            said = f"`{short(self.code(call))}` raises where `{chosen.code}` is not a CUDA device"
            self.report(call, said, notes=[note], tentative=True)

    def _chooses(self, call: cst.Call, texts: list[str]) -> bool:
        """``device = torch.cuda.current_device()`` is for CUDA; not so where a branch of it is for another kind."""
        return any(self.code(call) in text and not _OTHER_KIND.search(text) for text in texts)

    def _runs_elsewhere(self, call: cst.Call, kind: str, around: Surroundings) -> list[Note]:
        """What shows that the code runs on other devices, too."""
        chosen = around.chosen(call)
        if chosen is not None and chosen.is_handed_in and not self._chooses(call, around.assigned(chosen.code)):
            return [self.note(chosen.node, f"`{chosen.code}` is what was chosen, and may be of another kind")]
        function = around.function(call)
        for test in self.flow.calls("torch.cuda.is_available"):
            if around.function(test) is function:
                return [self.note(test, "that is asked here, and not for the call")]
        other = self._of_another_kind(call, kind)
        return [self.note(other, "this is for another kind: no machine has both")] if other is not None else []

    def _of_another_kind(self, call: cst.Call, kind: str) -> cst.CSTNode | None:
        """``torch.cuda.empty_cache(); torch.mps.empty_cache()``"""
        line = self.enclosing(call, cst.SimpleStatementLine)
        block = self.parent(line) if line is not None else None
        for other in block.body if isinstance(block, cst.IndentedBlock | cst.Module) and kind != "cuda" else ():
            small = other.body[0] if isinstance(other, cst.SimpleStatementLine) else None
            called = small.value.func if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) else None
            if called is not None and self.flow.scope.qualified(called).startswith("torch.cuda."):
                return small
        return None


def _flag_and_available(flag: str) -> re.Pattern[str]:
    """``cuda and torch.cuda.is_available()``, either way round."""
    asked, named = r"(torch\.)?cuda\.is_available\(\)", re.escape(flag)
    return re.compile(rf"{named}\s+and\s+{asked}|{asked}\s+and\s+{named}")


def _run_in(branch: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes of a branch that are run with it: not those of a function that it defines."""
    stack = [branch]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, cst.FunctionDef | cst.Lambda):
            stack += reversed(node.children)
