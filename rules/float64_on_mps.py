from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.names import called_name, dotted
from devlint.flow.value import DEVICE, TENSOR, THING
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._numpy import is_float64
from devlint.rules._portability import Surroundings

_FLOAT64 = frozenset({"torch.float64", "torch.double"})
#: Words of what is made of bytes or whole numbers, which are fewer before they are cast.
_SMALL = re.compile(r"uint8|int64|255|im(g|age)|frame|pixel|mask|label|rgb|video|token|(^|_)ids?\b|int16|32768")
_FROM_ARRAYS = frozenset({"torch.from_numpy", "torch.tensor", "torch.as_tensor"})
#: Words by which a test, or a name in it, says that it is about `mps` or about precision.
_SPEAKS = re.compile(r"mps|float64|double|dtype|(?<![a-z])cpu(?![a-z])|cuda|device\.type|precision", re.IGNORECASE)


class Float64OnMps(Rule):
    """A float64 tensor is asked for on a device that may be Apple's, which has no float64.

    ## What it does
    Reports `dtype=torch.float64` together with a `device=` that is decided elsewhere (`x.device`, `self.device`,
    `device`), and `x.double()` and `x.to(torch.float64)` of a tensor that lives on such a device. So are arrays of
    numpy's reported that go to such a device: numpy makes float64 by default.

    ## Why is this bad
    `mps` has no float64: torch raises "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't
    support float64". All other devices run the code, so that only the users with a Mac meet it.

    ## Example
    ```python
    import torch


    def frequencies(pos: torch.Tensor, dim):
        scale = torch.arange(0, dim, 2, dtype=torch.float64, device=pos.device) / dim
        return pos[:, None] / 10000**scale
    ```

    ## Use instead
    ```python
    import torch


    def frequencies(pos: torch.Tensor, dim):
        scale = torch.arange(0, dim, 2, dtype=torch.float32, device=pos.device) / dim
        return pos[:, None] / 10000**scale
    ```

    ## Fix safety
    The fix takes float32 where the device is `mps`, and leaves float64 elsewhere. It is unsafe: on a Mac, what runs
    from there on is less precise.

    ## Limits
    Silent under a test that speaks of `mps`, of other kinds of devices or of precision, where the device is written
    down, and in tests. Of what numpy makes, only an array is followed that the same function makes a tensor on a
    device, and only where each way to it is known to be float64. Held back as tentative: `torch.from_numpy(rows)` that
    goes to the device and is cast to float32 there, where nothing around it speaks of bytes or whole numbers. Cast
    before, it is half of the bytes, too.

    ## References
    - [MPS backend](https://pytorch.org/docs/stable/notes/mps.html)
    """

    group = "portability"
    fixable = "sometimes"

    def check(self) -> None:
        text = self.source.text
        if "float64" not in text and "double" not in text and "from_numpy(" not in text:
            return
        around = Surroundings(self)
        if around.is_test:
            return
        self._cast_there(around)
        for call in self.source.nodes_of(cst.Call):
            found = self._made(call) or self._converted(call) or self._from_numpy(call)
            if found is not None and around.guard(call, _SPEAKS) is None and not around.is_for_cuda(call):
                node, what, fix = found
                self.report(node, f"{what}, which has no float64 where it is `mps`", fix=fix)

    def _made(self, call: cst.Call) -> tuple[cst.CSTNode, str, Fix | None] | None:
        """``torch.zeros(n, dtype=torch.float64, device=x.device)``, ``x.to(device, dtype=torch.float64)``."""
        given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
        dtype, device = given.get("dtype"), given.get("device")
        if dtype is None or device is None or self.flow.scope.qualified(dtype) not in _FLOAT64:
            return None
        if not self._is_open(device):
            return None
        code = self.code(device)
        return call, f"float64 is asked for on `{short(code)}`", self._fix(dtype, code, device)

    def _converted(self, call: cst.Call) -> tuple[cst.CSTNode, str, Fix | None] | None:
        """``x.double()``, ``x.to(torch.float64)``, ``x.type(torch.double)``."""
        func = call.func
        if not isinstance(func, cst.Attribute):
            return None
        name = func.attr.value
        if name == "double":
            if call.args:
                return None
        elif name not in ("to", "type") or not any(self.flow.scope.qualified(a.value) in _FLOAT64 for a in call.args):
            return None
        above = self.parent(call)
        if isinstance(above, cst.Attribute) and above.attr.value == "numpy":
            return None  # waveform.double().numpy()  is on the host
        value = self.flow.value(func.value)
        if value.kind not in (TENSOR, THING) or value.place.kind not in ("device", "param") or len(call.args) > 1:
            return None
        return call, f"`{short(self.code(func.value))}` becomes float64 on its device", None

    def _from_numpy(self, call: cst.Call) -> tuple[cst.CSTNode, str, Fix | None] | None:
        """``torch.from_numpy(times).to(device)``, where ``times`` is what numpy makes of Python's floats."""
        func = call.func
        given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
        if "dtype" in given:
            return None
        name = self.flow.scope.qualified(func)
        if name in ("torch.tensor", "torch.as_tensor") and "device" in given and call.args[0].keyword is None:
            made, device, array = call, given["device"], call.args[0].value
        elif isinstance(func, cst.Attribute) and func.attr.value == "to" and len(call.args) == 1:
            device = call.args[0].value
            inner = func.value
            if not isinstance(inner, cst.Call) or len(inner.args) != 1 or inner.args[0].keyword is not None:
                return None
            if self.flow.scope.qualified(inner.func) not in _FROM_ARRAYS:
                return None
            made, array = call, inner.args[0].value
        else:
            return None
        if not self._is_open(device) or not is_float64(self, array):
            return None
        return (
            made,
            f"`{short(self.code(array))}` is float64, as numpy makes it, and goes to `{self.code(device)}`",
            None,
        )

    def _cast_there(self, around: Surroundings) -> None:
        """``torch.from_numpy(rows).to(device).float()``: what has to be cast is float64, most likely, when it moves."""
        for call in self.flow.calls("torch.from_numpy"):
            attribute = self.parent(call)
            move = self.parent(attribute) if isinstance(attribute, cst.Attribute) else None
            if not isinstance(move, cst.Call) or not isinstance(attribute, cst.Attribute) or len(move.args) != 1:
                continue
            device = move.args[0]
            if attribute.attr.value != "to" or (device.keyword is not None and device.keyword.value != "device"):
                continue
            function = self.flow.function(call)
            # image = torch.from_numpy(image).to(device).float() / 255  moves bytes, which is best
            said = (
                self.code(function.node)
                if function is not None
                else self.code(self.enclosing(call, cst.SimpleStatementLine))
            )
            if not self._is_open(device.value) or _SMALL.search(said) or self._is_cast(move) is None:
                continue
            guard = around.guard(call, _SPEAKS)
            # if isinstance(x, np.ndarray): x = ...; x = x.type(dtype)  asks nothing about the dtype
            asks = guard is not None and _SPEAKS.search(self.code(guard)) is not None
            if not asks and not around.is_for_cuda(call):
                array, where = short(self.code(call.args[0].value)), short(self.code(device.value))
                message = f"`{array}` goes to `{where}` before it is cast, and float64 does not get there on `mps`"
                self.report(move, message, tentative=True)

    def _is_cast(self, move: cst.Call) -> cst.Call | None:
        """The cast of what was moved: in the same expression, or the next one that binds the name again."""
        above = self.parent(move)
        if isinstance(above, cst.Attribute):
            call = self.parent(above)
            return call if isinstance(call, cst.Call) and self._casts(call) else None
        line = self.enclosing(move, cst.SimpleStatementLine)
        block = self.parent(line) if line is not None and isinstance(above, cst.Assign) else None
        if not isinstance(block, cst.IndentedBlock | cst.Module) or not isinstance(above, cst.Assign):
            return None
        name = self.code(above.targets[0].target)
        body = list(block.body)
        following = body[body.index(line) + 1 : body.index(line) + 2]
        for call in tree.walk(following[0]) if following else ():
            if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and self._casts(call):
                return call if self.code(call.func.value) == name else None
        return None

    def _casts(self, call: cst.Call) -> bool:
        """``x.float()``, ``x.to(torch.float32)``, ``x.type(dtype)``"""
        how = called_name(call)
        if how == "float":
            return not call.args
        if how not in ("to", "type") or len(call.args) != 1:
            return False
        code = self.code(call.args[0].value)
        return code in ("torch.float32", "torch.float", "torch.FloatTensor", "dtype", "self.dtype")

    def _is_open(self, node: cst.BaseExpression) -> bool:
        """Whether a device is decided elsewhere, and not written down, nor the host."""
        value = self.flow.value(node)
        if value.kind == DEVICE:
            return value.place.kind not in ("fixed", "host", "meta")
        return dotted(node).rpartition(".")[2].endswith("device") and not value.is_data

    def _fix(self, dtype: cst.BaseExpression, code: str, device: cst.BaseExpression) -> Fix | None:
        if not (isinstance(device, cst.Attribute) and device.attr.value == "device" and dotted(device)):
            return None
        if dotted(device).startswith(("self.", "args.", "config.", "cfg.")):
            return None  # which may be a string
        new = f'torch.float32 if {code}.type == "mps" else {self.code(dtype)}'
        return self.fix("take float32 on `mps`", self.replace(dtype, new, outer=True), safe=False)
