from __future__ import annotations

import libcst as cst

from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted, last_word
from devlint.rule import Rule
from devlint.rules._errors import is_expected
from devlint.rules._moves import short


class DtypeForDevice(Rule):
    """A dtype is given for a device, or a device for a dtype.

    ## What it does
    Reports `device=x.dtype` and `dtype=x.device` in any call, also by names (`device=dtype`), as a default
    (`def f(device=torch.float32)`), and one that is bound to a name of the other: `device, dtype = x.dtype, x.device`,
    `self.device = device or dtype`.

    ## Why is this bad
    torch raises a `TypeError` as soon as it is used. Mostly that is late: in a branch that is taken seldom, or where
    nothing was said and the default is wrong.

    ## Example
    ```python
    import torch


    def jitter(x: torch.Tensor):
        return x + torch.eye(x.shape[-1], dtype=x.dtype, device=x.dtype) * 1e-6
    ```

    ## Use instead
    ```python
    import torch


    def jitter(x: torch.Tensor):
        return x + torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) * 1e-6
    ```

    ## Fix safety
    `x.device` for `x.dtype`, and the reverse, in an argument is safe: the code raises as it is. Elsewhere what is meant
    has to be guessed, and no fix is offered.

    ## Limits
    Silent where the error is expected, and where a name says both (`dtype_and_device`). What is compared, or handed on
    by position, is not looked at. Held back as tentative: what only names tell, as `device=dtype`. New: in code that is
    kept well it found nothing, and two faults that projects have mended since.

    ## References
    - [Tensor attributes](https://pytorch.org/docs/stable/tensor_attributes.html)
    """

    group = "nursery"
    fixable = "sometimes"
    raises = True

    def visit_Arg(self, node: cst.Arg) -> None:
        """``torch.eye(3, device=x.dtype)``, ``model.to(dtype=x.device)``"""
        if node.keyword is None or node.keyword.value not in _KINDS:
            return
        wanted = node.keyword.value
        call = self.parent(node)
        wrong = self._other(node.value, wanted)
        if wrong is None or is_expected(self, node) or not isinstance(call, cst.Call):
            return
        fix = None
        if isinstance(wrong, cst.Attribute) and wrong.attr.value in _KINDS and wrong is node.value:
            fix = self.fix(f"take its {wanted}", self.replace(wrong.attr, wanted), safe=True)
        self._say(wrong, wanted, fix)

    def visit_Param(self, node: cst.Param) -> None:
        """``def ones(size, device=torch.float32)``"""
        wanted = _kind_of_name(node.name.value)
        if wanted is not None and node.default is not None and self._other(node.default, wanted) is not None:
            self._say(node.default, wanted, None)

    def visit_Assign(self, node: cst.Assign) -> None:
        for each in node.targets:
            targets, values = _elements(each.target), _elements(node.value)
            for target, value in zip(targets, values, strict=False) if len(targets) == len(values) else ():
                self._bound(target, value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._bound(node.target, node.value)

    def _bound(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        """``device = x.dtype``, ``self.device = device or dtype``"""
        wanted = _kind_of_name(last_word(dotted(target)))
        wrong = self._other(value, wanted) if wanted is not None else None
        if wanted is not None and wrong is not None:
            self._say(wrong, wanted, None)

    def _say(self, wrong: cst.BaseExpression, wanted: str, fix: Fix | None) -> None:
        given, code = "dtype" if wanted == "device" else "device", short(self.code(wrong))
        said = f"`{code}` is a {given}, and a {wanted} is asked for"
        self.report(wrong, said, fix=fix, tentative=not self._is_surely(wrong, given))

    def _other(self, node: cst.BaseExpression, wanted: str) -> cst.BaseExpression | None:
        """What is of the other kind in what is given for a device, or for a dtype."""
        if isinstance(node, cst.BooleanOperation):  # device or dtype
            return self._other(node.right, wanted) or self._other(node.left, wanted)
        if isinstance(node, cst.IfExp):
            return self._other(node.body, wanted) or self._other(node.orelse, wanted)
        given = "dtype" if wanted == "device" else "device"
        if self._is_surely(node, given):
            return node
        if not isinstance(node, cst.Name | cst.Attribute) or _kind_of_name(last_word(dotted(node))) != given:
            return None
        function = self.flow.function(node)
        # def to(self, dtype): device = dtype if isinstance(dtype, torch.device) else None
        is_asked = function is not None and f"isinstance({self.code(node)}," in self.code(function.node)
        return None if is_asked else node

    def _is_surely(self, node: cst.BaseExpression, kind: str) -> bool:
        """Whether it is more than a name that says so: `x.dtype`, `torch.float32`."""
        if isinstance(node, cst.Attribute) and node.attr.value == kind:
            return dotted(node.value) != "self"
        module, _, name = self.flow.scope.qualified(node).rpartition(".")
        return kind == "dtype" and module == "torch" and name in table.DTYPES


def _kind_of_name(name: str) -> str | None:
    """`"device"` for `offload_device`, `"dtype"` for `param_dtype`; neither for what speaks of both."""
    if "dtype" in name:
        return "dtype" if name.endswith("dtype") and "dev" not in name else None
    return "device" if names_device(name) and name.endswith("device") else None


def _elements(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What a tuple or list is made of, and of anything else that itself."""
    if type(node) is cst.Tuple or type(node) is cst.List:
        return [each.value for each in node.elements]
    return [node]


_KINDS = frozenset({"device", "dtype"})
