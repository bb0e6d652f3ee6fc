from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.names import called_name, called_on, dotted, last_word
from devlint.flow.scope import Class, Function
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._constants import values_of
from devlint.rules._copied import is_copied
from devlint.rules._neighbours import Told, report_together
from devlint.rules._switches import flags_of, is_limit_off, sets, tests_above
from devlint.rules._training import method_calls

#: What clips the gradients of parameters in place.
_CLIPS = frozenset(f"torch.nn.utils.{name}" for name in "clip_grad_norm_ clip_grad_value_ clip_grad_norm".split())
#: Names of what unscales, or makes up for the scale: `scaler.unscale_`, `scaler.get_scale()`, `inv_scale`.
_MAKES_UP = re.compile(r"unscale|get_scale|inv_?scale|loss_?scale\b")
#: What a test is about that asks for a limit.
_LIMIT = re.compile(r"clip|norm|limit|bound|largest|max", re.I)
#: What a test is about that may decide whether gradients are scaled.
_MIXED = re.compile(r"amp|fp16|half|precision|scale|mixed|autocast", re.I)


@dataclass(frozen=True, eq=False)
class Clipping:
    """What clips, what it comes after, what unscales too late, and the path of the scaler."""

    call: cst.Call
    backward: cst.Call
    step: cst.Call
    scaler: str


class ClippedWhileScaled(Rule):
    """Gradients are clipped while they are still multiplied by the scale of a `GradScaler`.

    ## What it does
    Reports `clip_grad_norm_` and `clip_grad_value_` between `scaler.scale(loss).backward()` and
    `scaler.step(optimizer)`, where nothing unscales the gradients before.

    ## Why is this bad
    A `GradScaler` multiplies the loss, by 65536 to begin with, so that small gradients survive in half precision, and
    `scaler.step()` divides them again. What is clipped before that is clipped at a 65536th of what was asked for:
    nearly every step is cut down to next to nothing, and the more so the larger the scale grows. No error says so, and
    without a GPU, where the scaler is off, training goes well.

    ## Example
    ```python
    import torch
    import torch.nn.functional as F


    def step(model, x, y, optimizer, scaler: torch.amp.GradScaler):
        with torch.autocast("cuda"):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    import torch.nn.functional as F


    def step(model, x, y, optimizer, scaler: torch.amp.GradScaler):
        with torch.autocast("cuda"):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Fix safety
    The fix unscales the gradients before they are clipped. It is unsafe: training goes another way from there on, and a
    limit or a learning rate that was found by trying with the fault may no longer be the best one. None is offered
    where not every clipping has a step of its own, as `unscale_` may be called once a step.

    ## Limits
    Backward, clipping and step are looked for in one function, or backward in another method of the class. Tentative,
    and kept back unless that is selected: clipping under a test of a limit that is off unless somebody gives one
    (`if args.clip > 0`, of an option that is 0 by default), in code that is copied from others, and where `enabled=` of
    the scaler asks for what the file gives several values, of which one turns it off, or for what turns it off by
    default, as a parameter (`dtype=torch.bfloat16`) or in another file (`AMP = False`).

    Silent where the function, or one of the file that it calls, names the gradients themselves, or what unscales or
    asks for the scale; where what another file defines is handed the scaler, or what holds it, before the clipping, as
    it may unscale; where other losses go backward in between without the scaler; where the scaler is made with
    `enabled=False`, or with what the file's constants make that, or is no `GradScaler`; where the limit is infinite, so
    that the norm is only measured; and where a test about mixed precision decides on the clipping alone.

    Of 17 findings of a first form of it in public code, 7 were worth a change; the other 10 were right of clipping that
    is off by default, which is tentative now.

    ## References
    - [Gradient clipping with a GradScaler](https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping)
    - [torch.amp.GradScaler](https://pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    group = "correctness"
    fixable = "sometimes"

    def check(self) -> None:
        text = self.source.text
        if "clip_grad_" not in text or ".scale(" not in text or "backward" not in text:
            return
        found: dict[cst.Call, list[Clipping]] = {}
        for call in self.source.nodes_of(cst.Call):
            if self.flow.name_of(call) in _CLIPS and not self._only_measures(call):
                clipping = self._clipping(call)
                if clipping is not None:
                    found.setdefault(clipping.step, []).append(clipping)
        report_together(self, [self._told(each, row) for row in found.values() for each in row])

    def _clipping(self, clip: cst.Call) -> Clipping | None:
        function = self.flow.function(clip)
        root = function.node if function is not None else self.source.module
        if self._makes_up(root, function, clip):
            return None
        before = [c for c in method_calls(root, "backward") if self.source.comes_before(c, clip)]
        if not before and function is not None and function.cls is not None:
            before = self._backwards_beside(function, function.cls)
        before = [c for c in before if not self._exclude(c, clip)]
        scaled = [c for c in before if self._scaler(c)]
        if not scaled:
            return None
        backward = scaled[-1]
        scaler = self._scaler(backward)
        if any(c is not backward and not self._scaler(c) and not self._exclude(c, backward) for c in before):
            return None  # loss_d.backward(); clip(d.parameters()); ...   which of the two is clipped?
        steps = [c for c in method_calls(root, "step") if called_on(c) == scaler and len(c.args) == 1]
        step = next((c for c in steps if self.source.comes_before(clip, c) and not self._exclude(clip, c)), None)
        if step is None or not self._is_scaler(scaler, clip) or self._is_chosen_apart(clip, backward):
            return None
        if self._is_handed_out(scaler, root, backward, clip):
            return None
        return Clipping(clip, backward, step, scaler)

    def _backwards_beside(self, function: Function, cls: Class) -> list[cst.Call]:
        """What goes backward in the other methods of a class that never unscales."""
        # def learn(self, x): self.scaler.scale(self.loss(x)).backward(); self.advance()
        if _MAKES_UP.search(self.code(cls.node)):
            return []
        others = [method for method in cls.methods.values() if method is not function]
        return [call for method in others for call in method_calls(method.node, "backward")]

    def _told(self, clipping: Clipping, row: list[Clipping]) -> Told:
        name = called_name(clipping.call)
        return Told(
            clipping.call,
            f"`{name}` clips gradients that are still multiplied by the scale of `{clipping.scaler}`",
            also=f"`{name}` clips scaled gradients, too",
            notes=[
                self.note(clipping.backward, "they are scaled here"),
                self.note(clipping.step, "this unscales them, once they are clipped"),
            ],
            fix=self._fix(row),
            key=clipping.step,
            tentative=self._is_off_by_default(clipping)
            or any(not all(values) for values in self._enabled(clipping.scaler, clipping.call))
            or is_copied(self, clipping.call),
        )

    def _only_measures(self, clip: cst.Call) -> bool:
        # norm = clip_grad_norm_(net.parameters(), float("inf"))
        limit = argument(clip, 1, "max_norm", "clip_value")
        return limit is not None and values_of(self, limit.value) == {inf}

    def _makes_up(self, root: cst.CSTNode, function: Function | None, clip: cst.Call) -> bool:
        """Whether a function, or one of the file that it calls by its name, may unscale gradients before it clips."""
        # scaler.step(optimizer); if scaler.get_scale() >= before: schedule.step()   asks for the scale afterwards
        names = (n for n in tree.walk(root) if isinstance(n, cst.Name) and not self.source.comes_before(clip, n))
        if any(_MAKES_UP.search(n.value) or n.value in ("grad", "grads") for n in names):
            return True
        if any(isinstance(n, cst.Name) and "scale" in n.value for arg in clip.args for n in tree.walk(arg)):
            return True  # clip_grad_norm_(net.parameters(), limit * scale)
        called = function.calls | function.self_calls if function is not None else set()
        return any(
            other.name in called and _MAKES_UP.search(self.code(other.node))
            for other in self.flow.scope.functions.values()
            if other is not function
        )

    def _is_handed_out(self, scaler: str, root: cst.CSTNode, backward: cst.Call, clip: cst.Call) -> bool:
        """Whether what another file defines is handed the scaler, or what holds it, before gradients are clipped."""
        # scaler.scale(loss).backward(); finalize(scaler, optimizer); clip_grad_norm_(...)
        holders = {scaler, scaler.rpartition(".")[0]} - {""}
        for call in tree.walk(root):
            if not isinstance(call, cst.Call) or not self.source.comes_before(call, clip):
                continue
            if self.source.comes_before(call, backward) and self.flow.function(call) is self.flow.function(backward):
                continue
            if holders.intersection(dotted(arg.value) for arg in call.args) and not self._is_of_file(call):
                return True
        return False

    def _is_of_file(self, call: cst.Call) -> bool:
        """Whether the file defines what is called, into which `_makes_up` looks."""
        owner, _, name = dotted(call.func).rpartition(".")
        return owner in ("", "self") and any(each.name == name for each in self.flow.scope.functions.values())

    def _scaler(self, backward: cst.Call) -> str:
        """The scaler of `scaler.scale(loss).backward()`, and of `scaled = scaler.scale(loss); scaled.backward()`."""
        made: cst.BaseExpression = cst.ensure_type(backward.func, cst.Attribute).value
        if isinstance(made, cst.Name):
            origin = [
                node.value
                for node in self.source.nodes_of(cst.Assign)
                if self.flow.function(node) is self.flow.function(backward) and sets(node, made.value)
            ]
            made = origin[0] if len(origin) == 1 else made
        if isinstance(made, cst.Call) and called_name(made) == "scale" and len(made.args) == 1:
            return called_on(made)
        return ""

    def _is_scaler(self, path: str, clip: cst.Call) -> bool:
        """Whether a path may be a `GradScaler` that is on: what the file binds to it says so, or its name."""
        if any(not any(values) for values in self._enabled(path, clip)):
            return False
        calls = self._made(path, clip)
        if any(last_word(dotted(call.func)).endswith("GradScaler") for call in calls):
            return True
        # scaler = Standardize(); scaler = StandardScaler()
        return not calls and "scaler" in last_word(path)

    def _made(self, path: str, clip: cst.Call) -> list[cst.Call]:
        """The calls that a function binds to a path, or else the file."""
        nodes = [node for node in self.source.nodes_of(cst.Assign) if sets(node, path)]
        own = [node for node in nodes if self.flow.function(node) is self.flow.function(clip)]
        return [node.value for node in own or nodes if isinstance(node.value, cst.Call)]

    def _enabled(self, path: str, clip: cst.Call) -> list[set[object]]:
        """What each scaler that is bound to a path may be told by `enabled`."""
        # amp_dtype = torch.bfloat16; scaler = GradScaler(enabled=amp_dtype == torch.float16)
        given = [argument(call, None, "enabled") for call in self._made(path, clip)]
        return [values_of(self, arg.value) for arg in given if arg is not None]

    def _exclude(self, one: cst.CSTNode, other: cst.CSTNode) -> bool:
        """Whether two calls stand in branches of which only one is taken."""
        flags = {self.code(flag): holds for flag, holds in self._flags(one)}
        return any(flags.get(self.code(flag), holds) != holds for flag, holds in self._flags(other))

    def _flags(self, node: cst.CSTNode) -> list[tuple[cst.BaseExpression, bool]]:
        """The tests above a node, and what they are made of."""
        # if self.half and scaler: ...   else: ...
        tests = [(test, holds) for test, _, holds in tests_above(self, node)]
        return [*tests, *flags_of(tests)]

    def _is_chosen_apart(self, clip: cst.Call, backward: cst.Call) -> bool:
        """Whether a test about mixed precision decides on clipping that did not decide on scaling."""
        # scaler.scale(loss).backward(); if not self.half: clip_grad_norm_(...)
        same = {self.code(flag) for flag, _ in self._flags(backward)}
        codes = [self.code(flag) for flag, _ in self._flags(clip)]
        return any(code not in same and _MIXED.search(code) for code in codes)

    def _is_off_by_default(self, clipping: Clipping) -> bool:
        """Whether clipping alone waits for a limit that somebody has to give."""
        same = {self.code(flag) for flag, _ in self._flags(clipping.backward)}
        flags = [flag for flag, holds in self._flags(clipping.call) if holds and self.code(flag) not in same]
        # if self.schedule: clip_grad_norm_(...)   says nothing of a limit
        return any(_LIMIT.search(self.code(flag)) is not None and is_limit_off(self, flag) for flag in flags)

    def _fix(self, row: list[Clipping]) -> Fix | None:
        """Unscale once, above the first that clips for a step, which follows in the same block or in one around it."""
        clip, step = row[0].call, row[0].step
        if len({self._block(each.call) for each in row}) > 1 or self._may_leave(clip, step):
            return None
        if self.flow.function(row[0].backward) is not self.flow.function(clip):
            return None
        around = self._block(clip)
        while around is not self._block(step):
            above = self.parent(around) if around is not None else None
            if above is None or isinstance(above, cst.For | cst.While | cst.FunctionDef):
                return None  # for part in parts: clip_grad_norm_(part.parameters(), 1.0)
            around = self._block(above)
        line = self.insert_statement(clip, f"{row[0].scaler}.unscale_({self.code(step.args[0].value)})")
        return self.fix("unscale them first", line, safe=False) if line is not None else None

    def _may_leave(self, clip: cst.Call, step: cst.Call) -> bool:
        """Whether a step may be left out after its gradients are clipped: one that was unscaled has to be updated."""
        # if not norm.isfinite(): continue
        leaving = [n for kind in (cst.Return, cst.Continue, cst.Break, cst.Raise) for n in self.source.nodes_of(kind)]
        return any(self.source.comes_before(clip, n) and self.source.comes_before(n, step) for n in leaving)

    def _block(self, node: cst.CSTNode) -> cst.CSTNode | None:
        block: cst.CSTNode | None = self.enclosing(node, cst.BaseSuite, cst.Module)
        return block
