from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.arrays import WRONG_ANSWERS
from devlint.flow.facts import ArrayUse
from devlint.flow.hypothesis import LOSS_NAME
from devlint.flow.names import called_name, dotted
from devlint.flow.value import TENSOR, THING, UNKNOWN_KIND, Value
from devlint.rule import Rule
from devlint.rules._brought_back import read_and_brought_back
from devlint.rules._errors import is_caught
from devlint.rules._moves import short
from devlint.rules._neighbours import Told, report_together
from devlint.rules._perhaps_there import Read, perhaps_there
from devlint.rules._places import origin_note, where
from devlint.rules._shown import is_surely_there
from devlint.rules._switches import tests_above

_TENSORS_OF_ARRAYS = frozenset({"torch.from_numpy", "torch.tensor", "torch.as_tensor", "torch.asarray"})

#: What a flag is called that says in what form something was handed in: ``is_numpy``, ``input_was_np``, ``from_array``.
_WAS_ARRAY = re.compile(r"(?:^|[_.])(?:is|was|were|from|input|inputs|given|got)_(?:\w+_)?(?:np|numpy|nd_?array|array)$")


class NumpyOnDeviceTensor(Rule):
    """A tensor that lives on a device, or that autograd tracks, is handed to numpy.

    ## What it does
    Reports `.numpy()`, `np.asarray(t)` and other functions of numpy, plots of matplotlib and calls of
    scikit-learn on a tensor that is on an accelerator, or that surely requires gradients (a parameter, a loss
    that has been backpropagated) where gradients are recorded. Tentatively, reports also `y.numpy()` where the same
    function brings what it makes of the array to `y.device`, and, in a file that moves anything, is told devices or is
    no script, what nothing brings to the host: `y.detach().numpy()`, what a model gave, what callers hand in on a
    device, and in any file a prediction beside a target that is brought (`np.argmax(y_pred)`, `y_true.cpu()`), and what
    all callers bring to the host for something else, and hand in as it is.

    ## Why is this bad
    Numpy reads host memory. For a tensor on a device the call raises `can't convert cuda:0 device type tensor
    to numpy`, for one that requires gradients `Can't call numpy() on Tensor that requires grad`. Worse,
    `np.array_equal` catches that error and answers `False`.

    ## Example
    ```python
    import torch


    @torch.no_grad()
    def predict(model, x: torch.Tensor, device):
        logits = model.to(device)(x.to(device))
        return logits.argmax(dim=1).numpy()
    ```

    ## Use instead
    ```python
    import torch


    @torch.no_grad()
    def predict(model, x: torch.Tensor, device):
        logits = model.to(device)(x.to(device))
        return logits.argmax(dim=1).cpu().numpy()
    ```

    ## Fix safety
    The fix inserts what is missing of `.detach()` and `.cpu()`, and `.numpy()` where the function refuses host
    tensors as well (`np.mean` hands its own keywords to `Tensor.mean`). The call raised before: safe. It is
    unsafe where the value may be something other than a tensor, such as the output of a model, and where the call is
    given something else that may be a tensor on a device, too. What one line makes is told once in a function: its fix
    brings it to numpy wherever it is read there. `.detach()` is left out only where autograd surely does not track the
    tensor. There is no fix for a list of tensors, nor for an array that becomes a tensor again at once.

    ## Limits
    Silent where the tensor's device is not known, and where an `except` around the call catches the error. A tensor
    that is on the host is reported only where it surely requires gradients in the same function: its callers may have
    turned them off, so that all but parameters and what goes backward there is tentative. A function of numpy, a plot
    or scikit-learn makes something of much that is no tensor (`np.sum(found != before)`, where `before` is an array, is
    a sum of one truth value): what they are handed is surely so only where the same function moves that to a device or
    makes it there. So is `.numpy()` only of what is seen to get on a device. Functions that read no values (`np.shape`,
    `np.squeeze`) are silent. Tentative for what a function was handed, unless that is a model which the file hands
    moved inputs, and for a device that is an argument (`device=None`) which no call in the file gives. Tentative, too,
    for an entry of a record (`results[env_id]`), which may be an array, and where the other branch of a test brings the
    tensor to the host first. So are a module's own tensors where its `forward` hands numpy what it is given, or where
    the method feeds the module with what is made on the host; attributes that a method puts somewhere, which somebody
    asks to put them on the host (`self.place("cpu")`); and attributes of batches and outputs that functions read as
    arrays (`np.array(batch.names)`), or that a model of another file gives by a name (`net(x)["lines"]`); and what a
    flag says was an array when it was handed in (`if is_numpy:`); arrays that are made of a new tensor to be written
    through, what is handed on beside an array of the host, and what a `forward` gives that only raises. Nothing shows
    where a tensor that nothing brings to the host is: its model may never leave the host. Such reads are silent under a
    test about devices, where a name on the way is ever brought to the host before, and in test code.

    It was in the nursery first: of 34 findings in seven samples of repositories that nobody had tuned for, 3 were worth
    a change: code that runs on a device every day has few such faults, and much that looks like one. In 48 more
    repositories one of 14 tentative ones was true, eleven were wrong and are silent since. Of 14 that it told by itself
    in 468 more, readers held six for true, one for arguable and seven for wrong; six of these stood in ports to
    tensorflow, and none of the seven is told now. In 180 more, all four were true.

    In 2,405 more repositories and packages strict readers held 42 of 58 for true and sixteen for wrong, of eleven
    causes. Once these were mended, and it told less, they held nine of twenty in 1,103 more for true: arrays that are
    written through (`rows_np = rows.numpy()`), helpers for the host and base classes give new causes each time. So it
    waits in the nursery again: half of what it tells is so.

    ## References
    - [torch.Tensor.numpy](https://pytorch.org/docs/stable/generated/torch.Tensor.numpy.html)
    """

    group = "nursery"
    fixable = "sometimes"
    raises = True

    def check(self) -> None:
        packages = self.flow.scope.packages
        if "tensorflow" in packages and "torch" not in packages:
            return  # its tensors come to the host by themselves
        uses = self.flow.facts.array_uses.values()
        told = [self._told(use) for use in uses if not is_caught(self, use.node)]
        known: set[cst.CSTNode] = {use.node for use in uses}
        for read, back in read_and_brought_back(self):
            if read not in known and not is_caught(self, read):
                told.append(self._told_of_way_back(read, back))
                known.add(read)
        hinted = (each for each in perhaps_there(self) if each.use.node not in known)
        told += [self._told_of_hint(each) for each in hinted if not is_caught(self, each.use.node)]
        report_together(self, told)

    def _told_of_way_back(self, read: cst.Call, back: cst.Call) -> Told:
        assert isinstance(read.func, cst.Attribute)
        operand = read.func.value
        name = short(self.code(operand))
        return Told(
            read,
            f"`.numpy()` cannot read `{name}` on a device, where what comes of it is brought to",
            also=f"`.numpy()` cannot read `{name}` either",
            notes=[self.note(back, "it is brought to the device here")],
            tentative=True,  # a helper that is handed what is on the host, to count there, works as it is
            fix=self.fix("bring it to numpy with `.cpu()`", self.insert_after(operand, ".cpu()"), safe=True),
            key=(self.flow.function(read), back),
        )

    def _told_of_hint(self, read: Read) -> Told:
        use = read.use
        name = short(self.code(use.operand))
        what = f"`{'.numpy()' if use.what == 'numpy' else use.what}`"
        fix = self._fix(use) if not self._goes_back(use.node) else None
        notes = [self.note(use.node, f"{what} reads what is kept here")] if read.kept is not None else []
        return Told(
            use.node if use.what == "numpy" else use.operand,
            f"{what} cannot read `{name}` on a device, and nothing brings it to the host: it {read.why}",
            also=f"{what} cannot read `{name}` either",
            notes=notes,
            fix=Fix(fix.title, False, fix.edits) if fix is not None else None,
            tentative=True,
        )

    def _told(self, use: ArrayUse) -> Told:
        own = use.what == "numpy"  # the tensor's own method
        name = short(self.code(use.operand))
        what = "`.numpy()`" if own else f"`{use.what}`"
        is_tensor = self.flow.value(use.operand).holds_tensors  # else a list of them
        if use.value.place.is_there:
            state = f"{'is' if is_tensor else 'holds tensors'} on {where(use.value.place)}"
            notes = origin_note(self, f"`{name}`", use.value)
        else:
            state = "requires gradients" if is_tensor else "holds tensors that require gradients"
            notes = []
        message = f"{what} cannot read `{name}`, which {state}"
        if use.what in WRONG_ANSWERS:
            message = f"{what} always answers `False`: it cannot read `{name}`, which {state}"
        node = use.node if own else use.operand
        return Told(
            node,
            message,
            also=f"{what} cannot read `{name}` either",
            notes=notes,
            fix=self._fix(use) if is_tensor and not self._goes_back(use.node) else None,
            tentative=not (self._is_surely_there(use, node) if use.value.place.is_there else self._is_recorded(use))
            or self._is_entry(use.operand)
            or self._is_brought_beside(use.node)
            or self._is_view_to_fill(use)
            or self._is_beside_host(use.node)
            or self._is_of_other_forward(use)
            or self._came_as_array(use.node),
            # days = torch.arange(n); plt.plot(days, mean); plt.plot(days[:3], low): what one line makes is one cause
            key=(self.flow.function(node), use.value.origin or node, use.what in WRONG_ANSWERS),
        )

    def _is_surely_there(self, use: ArrayUse, node: cst.CSTNode) -> bool:
        """Whether a tensor is seen to get on a device; for a function of numpy, or a plot, which make something of much
        that is no tensor (``np.sum(found != before)``), by a move or a factory in the same function."""
        made = use.value.origin
        if made is None or not is_surely_there(self, node, use.value):
            return False  # torch.cat(self.rows).numpy()  of rows that nobody knows how they came there
        if use.what == "numpy" or use.what in WRONG_ANSWERS:
            return True
        is_placed = isinstance(made, cst.Call) and (self.flow.move(made) or self.flow.factory(made)) is not None
        return is_placed and self.flow.function(made) is self.flow.function(node) and use.value.is_tensor

    def _is_recorded(self, use: ArrayUse) -> bool:
        """Whether gradients are surely recorded. ``def decode(self, x): return self.net(x).cpu().numpy()`` may be
        called under ``no_grad``, unlike what goes backward; a parameter requires gradients everywhere."""
        function = self.flow.function(use.node)
        if use.value.ref == "parameter" or use.value.grad:
            return True
        return ".backward(" in (self.source.text if function is None else self.code(function.node))

    def _is_entry(self, node: cst.BaseExpression) -> bool:
        """``results[env_id]``: somebody's record, of which some entries may be arrays already."""
        if not isinstance(node, cst.Subscript) or self.flow.value(node.value).kind == TENSOR:
            return False
        return any(isinstance(item.slice, cst.Index) and isinstance(item.slice.value, cst.Name) for item in node.slice)

    def _is_brought_beside(self, node: cst.CSTNode) -> bool:
        """``if self.device_id == -1: y = out.numpy()``, ``else: y = out.cpu().numpy()``: the test tells them apart."""
        for _, branch, holds in tests_above(self, node):
            statement = self.parent(branch)
            beside = (statement.orelse if holds else statement.body) if isinstance(statement, cst.If) else None
            if beside is not None and any(
                isinstance(n, cst.Call) and called_name(n) == "cpu" for n in tree.walk(beside)
            ):
                return True
        return False

    def _is_view_to_fill(self, use: ArrayUse) -> bool:
        """``rows = torch.empty(n, device=device); rows_np = rows.numpy()``: the array is there to be written through,
        which works on the host alone, and so is the device."""
        made = use.value.origin
        assigned = isinstance(self.parent(use.node), cst.Assign)
        return assigned and isinstance(made, cst.Call) and self.flow.factory(made) is not None

    def _is_beside_host(self, node: cst.CSTNode) -> bool:
        """``fused(h.numpy(), out.numpy())`` of an `out` that is on the host: so is what else it is called with."""
        arg = self.parent(node)
        call = self.parent(arg) if isinstance(arg, cst.Arg) else None
        others = (each.value for each in call.args if each is not arg) if isinstance(call, cst.Call) else ()
        return any(
            isinstance(each, cst.Call)
            and isinstance(each.func, cst.Attribute)
            and each.func.attr.value == "numpy"
            and self.flow.value(each.func.value).place.is_host
            for each in others
        )

    def _is_of_other_forward(self, use: ArrayUse) -> bool:
        """``y = self(x)`` in a base class whose own `forward` only raises: others may give back what is on the host."""
        made, function = use.value.origin, self.flow.function(use.node)
        if not isinstance(made, cst.Call) or dotted(made.func) != "self" or function is None or function.cls is None:
            return False
        forward = function.cls.find_method("forward")
        return forward is not None and any(isinstance(part, cst.Raise) for part in tree.walk(forward.node.body))

    def _came_as_array(self, node: cst.CSTNode) -> bool:
        """``if is_numpy: points = points.numpy()``: an array is what was handed in."""
        tests = (test for test, _, holds in tests_above(self, node) if holds)
        return any(_WAS_ARRAY.search(dotted(test)) is not None for test in tests)

    def _goes_back(self, node: cst.CSTNode) -> bool:
        """``torch.from_numpy(out.detach().numpy())``: with `.cpu()` it would stay on the host."""
        arg = self.parent(node)
        above = self.parent(arg) if isinstance(arg, cst.Arg) else None
        return isinstance(above, cst.Call) and self.flow.name_of(above) in _TENSORS_OF_ARRAYS

    def _fix(self, use: ArrayUse) -> Fix:
        missing = ".detach()" if use.tracked is not False else ""
        missing += ".cpu()" if use.value.place.is_there else ""
        missing += ".numpy()" if use.host_too else ""
        # out = model(x); np.asarray(out)  is no tensor for sure, unlike what has a `.numpy()`
        sure = (use.what == "numpy" or self._is_tensor(use.value)) and not self._is_guess(use.value)
        safe = sure and not any(self._may_raise_too(arg.value) for arg in use.node.args if arg.value is not use.operand)
        operand = use.operand
        title = f"bring it to numpy with `{missing}`"
        if operand.lpar or isinstance(operand, cst.Name | cst.Attribute | cst.Subscript | cst.Call):
            return self.fix(title, self.insert_after(operand, missing), safe=safe)
        return self.fix(title, self.insert_before(operand, "("), self.insert_after(operand, f"){missing}"), safe=safe)

    def _is_tensor(self, value: Value) -> bool:
        """``grid, axes = model(x); north = axes["lat"] > 0``: what is made of the output may be an array as that is."""
        made = value.origin
        of_output = isinstance(made, cst.Call) and self.flow.value(made).kind == THING
        return value.is_tensor and not of_output

    def _is_guess(self, value: Value) -> bool:
        """``criterion(out)``: nothing but its name says what gives the value."""
        made = value.origin
        if not isinstance(made, cst.Call) or LOSS_NAME.search(dotted(made.func).rpartition(".")[2]) is None:
            return False
        return self.flow.value(made.func).kind == UNKNOWN_KIND

    def _may_raise_too(self, node: cst.BaseExpression) -> bool:
        """Whether what else the call is given may be a tensor that is anywhere: ``high = draws.max(dim=0).values``."""
        value = self.flow.value(node)
        if value.kind in (TENSOR, THING):
            return not value.place.is_known
        return value.kind == UNKNOWN_KIND and isinstance(node, cst.Name | cst.Attribute | cst.Subscript | cst.Call)
