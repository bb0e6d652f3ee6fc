from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.loops import leaves
from devlint.flow.names import called_name, dotted, innermost_call
from devlint.flow.scope import Function
from devlint.flow.value import OPTIMIZER
from devlint.rule import Rule
from devlint.rules._neighbours import Told, report_together
from devlint.rules._switches import tests_above, tests_apart
from devlint.rules._training import Loop, loop_around, method_calls, runs_few_times

#: Names of what clears gradients, or takes care of them in a way of its own.
_CLEARS = re.compile(r"(zero|clear|reset|none).*grad|^grad(s)?$|set_to_none|hook", re.I)

#: What makes tensors that are the same number all over.
_CONSTANT = frozenset(f"torch.{name}" for name in "zeros ones full empty".split())


class MissingZeroGrad(Rule):
    """A loop goes backward and steps, and never clears the gradients in between.

    ## What it does
    Reports `optimizer.step()` in a loop that also calls `backward()`, where nothing in the loop, and no function of the
    file that could be called from it, clears gradients; or where those of another optimizer only are cleared, which was
    built of another module; or, tentatively, where only the other branch of an `if` clears them after its own step.

    ## Why is this bad
    `backward()` adds to the gradients that are there. Uncleared, each step is made with the sum over all iterations
    so far: the steps grow, and go on in directions that the parameters have long left.

    ## Example
    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
    ```

    ## Use instead
    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    ## Fix safety
    The fix clears the gradients before `backward()`. It is unsafe: training goes another way from there on. None is
    offered where several iterations make one step.

    ## Limits
    Silent where an optimizer is not known to be one of torch's, or is made anew in each iteration, in loops of a few
    iterations, wherever the loop names `grad`, and where the gradients are cleared outside of the loop and a test
    decides whether it steps, as for the sum of all batches. Held back as tentative: a loop that the gradients are
    cleared right outside of, and that does not count its turns, as the loader may give one batch; one that draws its
    numbers and goes backward from the sum of what comes out, as a trial does; and one that is fed zeros or ones only,
    as one is that measures.

    A strict reader held all of 8 findings in 48 repositories for right, and 7 for worth a change. In 392 repositories
    since, of three one was true, one arguable (the sum is what makes it go on) and one wrong, which is silent now.

    ## References
    - [Zeroing out gradients in PyTorch](https://pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html)
    """

    group = "memory"
    fixable = "sometimes"

    def check(self) -> None:
        if "backward" not in self.source.text or "step(" not in self.source.text:
            return
        found: list[Told] = []
        for call in self.source.nodes_of(cst.Call):
            optimizer = self._stepped(call)
            loop = loop_around(self.flow, call) if optimizer else None
            if loop is not None:
                found += self._check_step(call, optimizer, loop)
        report_together(self, found)

    def _stepped(self, call: cst.Call) -> str:
        """The optimizer of `optimizer.step()`, `scaler.step(optimizer)`."""
        func = call.func
        if not (isinstance(func, cst.Attribute) and func.attr.value == "step"):
            return ""
        holder = func.value
        if self.flow.value(holder).kind != OPTIMIZER:
            if len(call.args) != 1 or "scaler" not in dotted(holder):
                return ""
            holder = call.args[0].value
        elif call.args:
            return ""  # optimizer.step(closure)
        return dotted(holder) if self.flow.value(holder).kind == OPTIMIZER else ""

    def _check_step(self, step: cst.Call, optimizer: str, loop: Loop) -> list[Told]:
        backward = next((c for c in method_calls(loop.body, "backward") if self._before(c, step)), None)
        if backward is None or runs_few_times(loop) or leaves(loop.body.body[-1]):
            return []  # for x in data: loss.backward(); optimizer.step(); break
        known = self.flow.loop(step)
        if known is None or known.binds(optimizer):
            return []  # for make in models: model = make(); optimizer = SGD(model.parameters()); ...
        clearing = [node for node in tree.walk(loop) if _clears(node)]
        if clearing:  # optimizer.zero_grad(), p.grad = None
            return self._check_branches(step, optimizer, loop, clearing) or self._check_others(
                step, optimizer, loop, backward, clearing
            )
        function = self.flow.function(step)
        if self._cleared_elsewhere(function):
            return []
        outside = next((n for n in tree.walk(function.node if function else self.source.module) if _clears(n)), None)
        notes = [self.note(backward, "this adds to the gradients")]
        cleared_outside = outside is not None and self.flow.function(outside) is function
        if cleared_outside and tests_apart(self, step, backward):
            return []  # if i == len(batches) - 1: optimizer.step()   of all of them, at their end
        if cleared_outside:
            notes.append(self.note(outside, "this is outside of the loop"))
        told = Told(
            step,
            f"`{self.code(step)}` uses the gradients of all iterations so far: nothing clears them in this loop",
            also=f"so does `{self.code(step)}`",
            notes=notes,
            fix=self._fix(step, backward, optimizer, loop),
            key=loop,
            tentative=(cleared_outside and not _counts(loop)) or self._is_made_up(loop, backward),
        )
        return [told]

    def _check_branches(self, step: cst.Call, optimizer: str, loop: Loop, clearing: list[cst.CSTNode]) -> list[Told]:
        """``if use_amp: scaler.step(optimizer)``, and ``else: optimizer.step(); optimizer.zero_grad()``."""
        if self._cleared_elsewhere(self.flow.function(step)):
            return []
        for test, branch, _ in tests_above(self, step):
            choice = self.parent(branch)
            if not isinstance(choice, cst.If) or not isinstance(choice.orelse, cst.Else) or choice.test is not test:
                continue
            other = choice.orelse if branch is choice.body else choice.body
            there = set(tree.walk(other))
            steps = [n for n in there if isinstance(n, cst.Call) and self._stepped(n) == optimizer]
            if steps and all(node in there for node in clearing) and loop_around(self.flow, choice) is loop:
                code, line = self.code(step), self.enclosing(clearing[0], cst.SimpleStatementLine)
                return [
                    Told(
                        line or step,
                        f"this clears the gradients in one branch only: "
                        f"`{code}` in the other uses those of all iterations so far",
                        also=f"`{code}` uses the gradients of all iterations, too",
                        notes=[self.note(step, "this steps with all of them")],
                        key=loop,
                        tentative=True,
                    )
                ]
        return []

    def _check_others(
        self, step: cst.Call, optimizer: str, loop: Loop, backward: cst.Call, clearing: list[cst.CSTNode]
    ) -> list[Told]:
        """``for x in loader: opt_g.zero_grad(); ...; opt_d.step()``: those of the other optimizer are never cleared."""
        own = self._trained_by(optimizer, step)
        # optimizer.zero_grad(set_to_none=True)  names gradients twice
        named = [(node, self.parent(node)) for node in clearing]
        cleared = [
            dotted(above.value) if isinstance(above, cst.Attribute) else ""
            for node, above in named
            if not (isinstance(above, cst.Arg) and above.keyword is node)
        ]
        others = [self._trained_by(path, step) if path != optimizer else set() for path in cleared]
        # net.zero_grad(), for each in optimizers: each.zero_grad()  may clear them, too
        if not own or not all(others) or any(_overlap(own, other) for other in others):
            return []
        if self._cleared_elsewhere(self.flow.function(step)):
            return []
        message = (
            f"`{self.code(step)}` uses the gradients of all iterations so far: "
            f"this loop clears those of `{cleared[0]}` only"
        )
        notes = [self.note(backward, "this adds to the gradients"), self.note(clearing[0], "this is for others")]
        return [Told(step, message, also=f"so does `{self.code(step)}`", notes=notes, fix=None, key=loop)]

    def _trained_by(self, optimizer: str, at: cst.CSTNode) -> set[str]:
        """The paths of the modules whose parameters an optimizer was built of, where all of that is plain to see."""
        owner = self.enclosing(at, cst.ClassDef) if optimizer.startswith("self.") else None
        calls = [
            node.value
            for node in self.source.nodes_of(cst.Assign)
            if any(dotted(target.target) == optimizer for target in node.targets)
            and (owner is None or self.enclosing(node, cst.ClassDef) is owner)
        ]
        if not optimizer or len(calls) != 1 or not isinstance(calls[0], cst.Call) or not calls[0].args:
            return set()
        given = calls[0].args[0].value
        # SGD(net.parameters());  not of a list that was put together somewhere
        func = given.func if isinstance(given, cst.Call) else None
        if not isinstance(func, cst.Attribute) or func.attr.value != "parameters":
            return set()
        return {dotted(func.value)} - {""}

    def _is_made_up(self, loop: Loop, backward: cst.Call) -> bool:
        """Whether a loop only tries whether training runs, or how fast: on made-up numbers, towards nothing."""
        if self._is_fed_constants(loop):
            return True
        # for _ in range(rounds): x = torch.randn(8, 3); loss = net(x).sum(); loss.backward(); optimizer.step()
        made = [self.flow.factory(node) for node in tree.walk(loop.body) if isinstance(node, cst.Call)]
        if not any(entry is not None and entry.values == "random" for entry in made):
            return False
        loss = backward.func.value if isinstance(backward.func, cst.Attribute) else None
        bound = [
            node.value
            for node in tree.walk(loop.body)
            if isinstance(node, cst.Assign) and any(dotted(target.target) == dotted(loss) for target in node.targets)
        ]
        return all(
            isinstance(value, cst.Call) and called_name(value) in ("sum", "mean") and not value.args
            for value in (bound if dotted(loss) else [loss])
        )

    def _is_fed_constants(self, loop: Loop) -> bool:
        """Whether all that a loop over a range hands to calls, from outside, are zeros, ones and the like."""
        # x, goal = torch.ones(4, 9), torch.zeros(4, 9); for _ in range(99): ((net(x) - goal) ** 2).mean().backward()
        turns = loop.iter if isinstance(loop, cst.For) else None
        if not isinstance(turns, cst.Call) or called_name(turns) not in ("range", "trange"):
            return False
        known = self.flow.loop(loop.body)
        given = [n.value for n in tree.walk(loop.body) if isinstance(n, cst.Arg) and isinstance(n.value, cst.Name)]
        values = [self.flow.value(n) for n in given if known is None or not known.binds(n.value)]
        origins = {value.origin for value in values if value.kind != OPTIMIZER}  # scaler.step(optimizer)
        return bool(origins) and all(self.flow.name_of(innermost_call(origin)) in _CONSTANT for origin in origins)

    def _before(self, backward: cst.Call, step: cst.Call) -> bool:
        """Whether both run in the same iteration of the innermost loop around the step."""
        if self.flow.function(backward) is not self.flow.function(step):
            return False
        return self.source.comes_before(backward, step)

    def _cleared_elsewhere(self, function: Function | None) -> bool:
        """Whether another function clears gradients, unless it is a loop of its own that does it all."""
        for name in self.source.nodes_of(cst.Name):
            if not _clears(name):
                continue
            other = self.flow.function(name)
            if other is function:
                continue
            if other is None or not self._does_it_all(other):
                return True  # def begin(self): self.optimizer.zero_grad()
            if function is not None and other.name in function.calls | function.self_calls:
                return True
        return False

    def _does_it_all(self, function: Function) -> bool:
        """Whether a function, or one around it, goes backward and steps as well."""
        while function.outer is not None:
            function = function.outer
        words = {node.value for node in tree.walk(function.node) if isinstance(node, cst.Name)}
        return {"step", "backward"} <= words

    def _fix(self, step: cst.Call, backward: cst.Call, optimizer: str, loop: Loop) -> Fix | None:
        """Clear before the statement that goes backward, where each iteration makes a step."""
        if self._block(step) is not loop.body or self._block(backward) is not loop.body:
            return None  # if (i + 1) % 4 == 0: optimizer.step()
        line = self.insert_statement(backward, f"{optimizer}.zero_grad()")
        return self.fix("clear the gradients first", line, safe=False) if line is not None else None

    def _block(self, node: cst.CSTNode) -> cst.CSTNode | None:
        block: cst.CSTNode | None = self.enclosing(node, cst.BaseSuite, cst.Module)
        return block


def _overlap(first: set[str], second: set[str]) -> bool:
    """Whether one of them may be a part of another: `model` and `model.head`."""
    return any(f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.") for a in first for b in second)


def _counts(loop: Loop) -> bool:
    """Whether a loop surely takes several turns: data of one graph make one batch, and `zero_grad` above is enough."""
    # optimizer.zero_grad(); for batch in loader: model(batch).backward(); optimizer.step()
    return not isinstance(loop, cst.For) or any(
        isinstance(node, cst.Name) and node.value in ("enumerate", "range", "trange") for node in tree.walk(loop.iter)
    )


def _clears(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and _CLEARS.search(node.value) is not None and "clip" not in node.value
