from __future__ import annotations

import difflib
import re

import libcst as cst

from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted
from devlint.flow.value import TENSOR
from devlint.rule import Rule
from devlint.rules._any_tensor import OF_ANY_TENSOR, may_be_of_other_class
from devlint.rules._errors import is_expected
from devlint.rules._moves import short

#: What `torch.cuda` has of what is asked of other modules, too (torch 2.13).
_OF_CUDA = frozenset(
    "current_device current_stream default_stream device_count empty_cache get_device_capability get_device_name "
    "get_device_properties ipc_collect is_available is_bf16_supported is_initialized manual_seed manual_seed_all "
    "max_memory_allocated max_memory_reserved mem_get_info memory_allocated memory_reserved memory_stats "
    "memory_summary reset_max_memory_allocated reset_peak_memory_stats set_device set_stream synchronize "
    "Stream Event device stream".split()
)
#: Which of them other modules have; what no version of torch up to that one has is what they are reported for.
_ALSO = {
    "torch": frozenset("Stream Event device manual_seed".split()),
    "torch.mps": frozenset("Event device_count empty_cache is_available manual_seed synchronize".split()),
    "torch.cpu": frozenset(
        "Event Stream current_device current_stream device_count is_available is_initialized set_device stream "
        "synchronize is_bf16_supported".split()
    ),
    "torch.backends.mps": frozenset({"is_available"}),
    "torch.backends.cuda": frozenset[str](),
}
#: Modules where a name that is nearly one of these is a slip of the hand, and the names of theirs that are near.
_MISTYPED = {
    "torch.cuda": frozenset("is_available device_count current_device empty_cache set_device synchronize".split()),
    "torch.mps": frozenset("is_available empty_cache synchronize".split()),
    "torch.backends.mps": frozenset({"is_available"}),
}
_NEAR = 0.88
#: Functions that take no argument.
_TAKE_NOTHING = {
    "torch.cuda": frozenset(
        "current_device device_count empty_cache init initial_seed ipc_collect is_available is_initialized seed "
        "seed_all".split()
    ),
    "torch.mps": frozenset(
        "current_allocated_memory device_count driver_allocated_memory empty_cache is_available "
        "recommended_max_memory seed synchronize".split()
    ),
    "torch.xpu": frozenset(
        "current_device device_count empty_cache init initial_seed is_available is_initialized seed seed_all".split()
    ),
    "torch.backends.mps": frozenset({"is_available", "is_built"}),
}
#: What a tensor says of its place without being called.
_ATTRIBUTES = frozenset("is_cuda is_cpu is_mps is_xpu is_meta device".split())
#: Packages whose classes have methods of these names: `SparseTensor.is_cuda()`, `KeyedJaggedTensor.device()`.
_HAVE_METHODS = frozenset("jax k2 torch_geometric torch_sparse torchrec triton_python_backend_utils".split())
#: What is asked which device it is without being a tensor: `current_platform.is_cuda()`.
_OF_DEVICES = re.compile(r"platform|backend|accelerator|target|place")


class UnknownDeviceFunction(Rule):
    """A function for devices is asked of a module of torch that has none of that name, or told what it does not take.

    ## What it does
    Reports what `torch.cuda` has and the module that is asked has not: `torch.set_device(0)`, `torch.empty_cache()`,
    `torch.mps.set_device(0)`, `torch.mps.memory_allocated()`, `torch.backends.cuda.is_available()`; names that are
    written wrongly, as `torch.cuda.is_avaliable()`; arguments for functions that take none:
    `torch.mps.synchronize(device)`, `torch.cuda.empty_cache(0)`; and calls of what a tensor says without being called:
    `x.is_cuda()`, `x.device()`.

    ## Why is this bad
    The line raises as soon as it runs: "module 'torch' has no attribute 'set_device'", "synchronize() takes 0
    positional arguments but 1 was given", "'bool' object is not callable". Mostly it stands in a branch for one kind of
    device that the author had none of, or behind a test for a GPU.

    ## Example
    ```python
    import torch


    def wait(device: torch.device):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize(device)
    ```

    ## Use instead
    ```python
    import torch


    def wait(device: torch.device):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize()
    ```

    ## Fix safety
    The code raises as it is: leaving out arguments that are not taken, parentheses behind what is no function, and the
    name that is nearly the one written, are safe, the parentheses only where it surely is a tensor. `torch.cuda` for
    what `torch` has not is unsafe, as it has to be guessed.

    ## Limits
    Silent in tests, under `hasattr`, in a `try` around it, and where the file sets the attribute itself. What torch had
    in older versions, or may get in newer ones, is not reported: the names are those of torch 2.13, and what is asked
    of `torch.accelerator` and of the modules of vendors is left alone.

    `x.device()` is reported on what is surely a tensor; `x.is_cuda()` is tentative on a parameter of which nothing says
    what it is. Both are left alone where a class of the file has such a method, where the file imports a package whose
    classes have (`torch_sparse`), and where the function asks what `x` is (`isinstance(x, Packed)`).

    New: in code that is kept well it found nothing, and two faults that projects have mended since.

    ## References
    - [torch.cuda](https://pytorch.org/docs/stable/cuda.html)
    - [torch.mps](https://pytorch.org/docs/stable/mps.html)
    """

    group = "nursery"
    fixable = "sometimes"
    raises = True

    def check(self) -> None:
        if self.in_tests:
            return
        for node in self.source.nodes_of(cst.Attribute):
            if type(node.value) is not cst.Name and type(node.value) is not cst.Attribute:
                continue
            owner, _, name = self.flow.scope.qualified(node).rpartition(".")
            if owner in _ALSO or owner in _MISTYPED:
                self._asked(node, owner, name)
        for call in self.source.nodes_of(cst.Call):
            owner, _, name = self.flow.scope.qualified(call.func).rpartition(".") if call.args else ("", "", "")
            if name in _TAKE_NOTHING.get(owner, ()):
                self._told(call, f"{owner}.{name}")
            elif isinstance(call.func, cst.Attribute) and call.func.attr.value in _ATTRIBUTES:
                self._called(call, call.func)

    def _asked(self, node: cst.Attribute, owner: str, name: str) -> None:
        """``torch.set_device``, ``torch.cuda.is_avaliable``"""
        missing = name in _OF_CUDA and name not in _ALSO.get(owner, _OF_CUDA)
        near = None if name in _OF_CUDA else self._nearly(owner, name)
        if not (missing or near) or isinstance(self.parent(node), cst.AssignTarget | cst.Del):
            return
        if is_expected(self, node) or self._is_provided(node, name):
            return
        if near:
            named = self.fix(f"call `{near}`", self.replace(node.attr, near), safe=True)
            self.report(node, f"`{owner}` has no `{name}`: it is called `{near}`", fix=named)
        else:
            held = self.code(node.value)
            edit = self.replace(node.value, f"{held}.cuda")
            fix = self.fix("ask `torch.cuda`", edit, safe=False) if owner == "torch" else None
            self.report(node, f"`{owner}` has no `{name}`: `torch.cuda` has", fix=fix)

    def _nearly(self, owner: str, name: str) -> str | None:
        """The name that is meant by one that is nearly the same."""
        if name.startswith("_"):
            return None
        found = difflib.get_close_matches(name, _MISTYPED.get(owner, ()), n=1, cutoff=_NEAR)
        return found[0] if found else None

    def _is_provided(self, node: cst.Attribute, name: str) -> bool:
        """Whether the file sets the function itself, or asks for it: `hasattr(torch, "set_device")`."""
        if re.search(rf"""(has|get|set)attr\([^()]*["']{name}["']""", self.source.text):
            return True
        code = self.code(node)
        return any(self.code(target.target) == code for target in self.source.nodes_of(cst.AssignTarget))

    def _told(self, call: cst.Call, name: str) -> None:
        """``torch.mps.synchronize(device)``"""
        if any(arg.star for arg in call.args) or is_expected(self, call):
            return  # torch.mps.synchronize(*options)  may be handed none
        start, end = self.source.offsets(call.args[0])[0], self.source.offsets(call)[1] - 1
        is_bare = not any(start <= offset < end for offset, _ in self.source.comments)
        fix = self.fix("leave the argument out", self.replace_between(start, end, ""), safe=True) if is_bare else None
        self.report(call, f"`{name}` takes no argument", fix=fix)

    # attributes of tensors ----------------------------------------------------------------------

    def _called(self, call: cst.Call, func: cst.Attribute) -> None:
        """``x.is_cuda()``, ``x.device()``"""
        word = func.attr.value
        surely = self._is_tensor(func.value, word)
        if not surely and not (word != "device" and self._may_be_tensor(func.value)):
            return
        if is_expected(self, call) or self._has_method(func):
            return
        start, end = self.source.offsets(func, outer=True)[1], self.source.offsets(call)[1]
        is_bare = not call.args and not any(start <= offset < end for offset, _ in self.source.comments)
        fix = self.fix("do not call it", self.replace_between(start, end, ""), safe=surely) if is_bare else None
        gives = "a `torch.device`" if word == "device" else "`True` or `False`"
        message = f"`{short(self.code(func))}` is {gives}, and no function"
        self.report(call, message, fix=fix, tentative=not surely)

    def _is_tensor(self, node: cst.BaseExpression, word: str) -> bool:
        """Whether it is a tensor by more than being asked for this."""
        value = self.flow.value(node)
        if self._is_called_tensor(node):
            return True
        if value.kind != TENSOR or may_be_of_other_class(self, node):
            return False
        param, function = value.origin, self.flow.function(node)
        if not isinstance(param, cst.Param) or param.annotation is not None:
            return True
        name = param.name.value
        if function is None or not self._is_like_tensor(node, name):
            return False
        known = name in function.called_with or name in function.documented or function.is_tensor_by_methods(name)
        return known and function.param(name) is param

    def _is_called_tensor(self, node: cst.BaseExpression) -> bool:
        """``def add(a: torch.tensor)``, which is a function, and meant for the type."""
        function = self.flow.function(node)
        if function is None or not isinstance(node, cst.Name) or node.value in function.assigned:
            return False
        param = function.param(node.value)
        said = param.annotation if param is not None else None
        return said is not None and self.flow.scope.qualified(said.annotation) == "torch.tensor"

    def _may_be_tensor(self, node: cst.BaseExpression) -> bool:
        """Whether it is a parameter of which nothing says that it is something else."""
        function = self.flow.function(node)
        if function is None or not isinstance(node, cst.Name) or node.value in function.assigned:
            return False
        param = function.param(node.value)
        # def size(platform): return 8 if platform.is_cuda() else 4
        if param is None or param.annotation is not None or _OF_DEVICES.search(node.value) or names_device(node.value):
            return False
        is_self = function.takes_self and param is function.positional[0]
        return not is_self and self._is_like_tensor(node, node.value)

    def _is_like_tensor(self, node: cst.BaseExpression, name: str) -> bool:
        """Whether nothing is read from a parameter that no tensor has: ``batch.num_graphs``."""
        function = self.flow.function(node)
        return function is not None and not function.attributes.get(name, set()) - OF_ANY_TENSOR

    def _has_method(self, func: cst.Attribute) -> bool:
        """Whether others have a method of that name: classes here and elsewhere, or what the code asks about."""
        scope, word, holder = self.flow.scope, func.attr.value, self.code(func.value)
        if _HAVE_METHODS & scope.packages:
            return True
        # class Batch: def is_cuda(self): ...
        if any(word in cls.methods for cls in scope.classes.values()):
            return True
        # if isinstance(x, Packed): ...   callable(x.is_cuda)
        function = self.flow.function(func)
        return any(
            dotted(call.func) in _ASK and call.args and self.code(call.args[0].value) in (holder, f"{holder}.{word}")
            for call in self.source.nodes_of(cst.Call)
            if self.flow.function(call) is function
        )


#: Functions that tell of what kind something is.
_ASK = frozenset({"isinstance", "type", "callable", "hasattr", "getattr"})
