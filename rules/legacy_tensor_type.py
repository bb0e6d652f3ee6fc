from __future__ import annotations

import re

import libcst as cst

from devlint.finding import Fix
from devlint.flow.names import dotted
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._places import where
from devlint.rules._portability import Surroundings
from devlint.rules._type_tests import is_of_any_place, type_tests

#: Legacy tensor type -> the dtype it stands for.
_TYPES = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
    "ByteTensor": "uint8",
    "CharTensor": "int8",
    "ShortTensor": "int16",
    "IntTensor": "int32",
    "LongTensor": "int64",
    "BoolTensor": "bool",
}
_CLASS_NAME = re.compile(r"str\(type\(([\w.]+)\)\)")


class LegacyTensorType(Rule):
    """A tensor type such as `torch.cuda.FloatTensor` says dtype and device in one, and knows the CPU and CUDA only.

    ## What it does
    Reports `torch.cuda.FloatTensor` and its kin, as names and in strings; `isinstance(x, torch.LongTensor)`; and
    `x.type(torch.LongTensor)` of what lives on a device. Reports `x.type(y.type())`, which asks for a type by its name,
    and `"cuda" in str(type(x))`. As tentative, `isinstance` where no device was chosen, `x.type() ==
    "torch.FloatTensor"`, and `type(x) == torch.FloatTensor`, which is false everywhere.

    ## Why is this bad
    There are no such types for `mps` or `xpu`, and without CUDA `torch.cuda.FloatTensor(...)` raises. The types
    without `cuda` are those of the host: `isinstance(x, torch.LongTensor)` is false for each tensor on a device,
    whatever its dtype, and `x.type(torch.LongTensor)` copies it to the host. `y.type()` says `torch.mps.FloatTensor`
    on a Mac, which `x.type(...)` refuses as no type, and `type(x)` is `torch.Tensor` on every device.

    ## Example
    ```python
    import torch


    def positions(t, device):
        t = t.to(device)
        return t if isinstance(t, torch.LongTensor) else t.argmax(-1)
    ```

    ## Use instead
    ```python
    import torch


    def positions(t, device):
        t = t.to(device)
        return t if t.dtype == torch.int64 else t.argmax(-1)
    ```

    ## Fix safety
    For `x.type(torch.LongTensor)` the fix converts and leaves the tensor where it is: `x.to(torch.int64)`. It is
    unsafe: what follows may have been written for a tensor on the host. For `x.type(y.type())` it is `x.to(y)`, which
    moves to the very GPU of `y`, too.

    ## Limits
    `torch.LongTensor([1, 2])` makes a tensor on the host, as it says, and is not reported; nor is `x.type(...)` where
    it is not known that `x` lives on a device. `isinstance` is tentative where no device was chosen, and silent, as are
    the other tests of types, where the same function names a type of `torch.cuda`, or the same condition
    `torch.Tensor`, and in what prepares data. Silent in tests.

    ## References
    - [torch.Tensor: data types](https://pytorch.org/docs/stable/tensors.html#data-types)
    - [torch.set_default_tensor_type](https://pytorch.org/docs/stable/generated/torch.set_default_tensor_type.html)
    """

    group = "portability"
    fixable = "sometimes"

    def check(self) -> None:
        if self.in_tests:
            return
        if ".type(" in self.source.text:
            self._of_another()
        if "str(type(" in self.source.text:
            self._in_name_of_class()
        if "Tensor" not in self.source.text:
            return
        for test, said in type_tests(self):
            self.report(test, said, tentative=True)
        around = Surroundings(self)
        for node in self.source.nodes_of(cst.Attribute):
            if node.attr.value in _TYPES:
                self._named(node, around)
        if "torch.cuda." in self.source.text:
            for text in self.source.nodes_of(cst.SimpleString):
                self._written(text)

    def _of_another(self) -> None:
        """``target.type(output.type())``: torch has no such type for what is on `mps`."""
        for call in self.source.nodes_of(cst.Call):
            other = self._asked(call.args[0].value) if len(call.args) == 1 else None
            if other is None or not isinstance(call.func, cst.Attribute) or call.func.attr.value != "type":
                continue
            held = self.code(other)
            message = f"`{short(held)}.type()` is no type that `type` takes where `{short(held)}` is on `mps`"
            start, _ = self.source.offsets(call.func.attr)
            edit = self.replace_between(start, self.source.offsets(call)[1], f"to({held})")
            self.report(call, message, fix=self.fix("convert and move it as the other", edit, safe=False))

    def _asked(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """``x`` of ``x.type()``."""
        if not isinstance(node, cst.Call) or node.args or not isinstance(node.func, cst.Attribute):
            return None
        return node.func.value if node.func.attr.value == "type" else None

    def _in_name_of_class(self) -> None:
        """``"cuda" in str(type(x))``: the class is `torch.Tensor`, wherever the tensor is."""
        for node in self.source.nodes_of(cst.Comparison):
            right = node.comparisons[0].comparator
            if not isinstance(node.comparisons[0].operator, cst.In | cst.NotIn) or not isinstance(
                node.left, cst.SimpleString
            ):
                continue
            text, match = str(node.left.evaluated_value), _CLASS_NAME.fullmatch(self.code(right))
            if match is not None and (text == "cuda" or text.startswith("torch.cuda.")):
                message = (
                    f"`{short(self.code(right))}` never has `{text}` in it: the class is `torch.Tensor` everywhere"
                )
                fix = self.fix("ask for `is_cuda`", self.replace(node, f"{match[1]}.is_cuda"), safe=False)
                is_in = isinstance(node.comparisons[0].operator, cst.In) and not node.lpar
                self.report(node, message, fix=fix if is_in else None)

    def _named(self, node: cst.Attribute, around: Surroundings) -> None:
        name = self.flow.scope.qualified(node)
        dtype = _TYPES[node.attr.value]
        if name == f"torch.cuda.{node.attr.value}":
            self.report(node, f"`{self.code(node)}` is for CUDA only: say `dtype=torch.{dtype}` and a device instead")
            return
        if name != f"torch.{node.attr.value}":
            return
        call = self._call_of(node)
        if call is None:
            return
        if dotted(call.func) == "isinstance":
            chosen, held = around.chosen(call), call.args[0].value
            # code that knows of no device may well be for the host
            knows = chosen is not None and chosen.owner != "file"
            if knows or is_of_any_place(self, call, held):
                said = f"`{short(self.code(held))}` is never one on a device, whatever its dtype"
                self.report(node, f"`{self.code(node)}` is of the host: {said}", tentative=not knows)
        elif isinstance(call.func, cst.Attribute) and call.func.attr.value == "type" and len(call.args) == 1:
            self._converted(call, call.func, dtype)

    def _converted(self, call: cst.Call, func: cst.Attribute, dtype: str) -> None:
        value = self.flow.value(func.value)
        if not (value.is_tensor and value.place.is_there) or self._moves_on(call):
            return
        said = short(self.code(func.value))
        message = (
            f"`{said}` is on {where(value.place)}, and `{short(self.code(call.args[0].value))}` copies it to the host"
        )
        self.report(call, message, fix=self._fix(call, func, dtype))

    def _fix(self, call: cst.Call, func: cst.Attribute, dtype: str) -> Fix:
        start, _ = self.source.offsets(func.attr)
        _, end = self.source.offsets(call)
        edit = self.replace_between(start, end, f"to(torch.{dtype})")
        return self.fix(f"convert to `torch.{dtype}`", edit, safe=False)

    def _written(self, node: cst.SimpleString) -> None:
        text = str(node.evaluated_value)
        kind = text.removeprefix("torch.cuda.")
        if kind == text or kind not in _TYPES:
            return
        self.report(node, f"`{text}` is for CUDA only: say `dtype=torch.{_TYPES[kind]}` and a device instead")

    def _moves_on(self, call: cst.Call) -> bool:
        """``x.type(torch.LongTensor).cpu()``, ``.numpy()``, ``.to(device)``: it goes on from the host at once."""
        above = self.parent(call)
        return isinstance(above, cst.Attribute) and above.attr.value in ("cpu", "numpy", "to", "cuda", "tolist")

    def _call_of(self, node: cst.Attribute) -> cst.Call | None:
        """The call whose argument it is, also in a tuple: ``isinstance(x, (torch.FloatTensor, torch.LongTensor))``."""
        above = self.parent(node)
        if isinstance(above, cst.Element):
            above = self.parent(above)
            above = self.parent(above) if isinstance(above, cst.Tuple) else None
        call = self.parent(above) if isinstance(above, cst.Arg) else None
        return call if isinstance(call, cst.Call) else None
