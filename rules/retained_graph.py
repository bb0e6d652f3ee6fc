from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import LOSS_NAME, OPTIMIZER_NAME
from devlint.flow.names import called_name, dotted, last_word, names_bound, target_names
from devlint.flow.scope import Function
from devlint.flow.steps import above, function_called
from devlint.flow.value import ARRAY, DATA, INSTANCE, MODULE, NONE, OPTIMIZER, TENSOR, THING
from devlint.rule import Rule
from devlint.rules._afterwards import reads_of
from devlint.rules._beside_freed import kept_beside_freed
from devlint.rules._evaluated import Evaluation
from devlint.rules._moves import short
from devlint.rules._neighbours import Told, report_apart
from devlint.rules._portability import leaves
from devlint.rules._training import (
    FREEING,
    Backward,
    Bodies,
    Body,
    Loop,
    bound_paths,
    is_inside,
    loop_around,
    paths_in,
    runs_few_times,
    under_no_grad,
)

#: What gives another batch each time.
_DRAWS = re.compile(r"(^|\.)(next|(\w+_)?batch(_\w+)?)$")
#: What counts the parts of one step: range(gradient_accumulation_steps).
_PARTS = re.compile(r"accum|micro_?batch", re.I)
_EMPTYING = ("clear", "pop", "popleft")
#: The history of so many steps is small: `backward()` has freed what it saved.
_FEW_STEPS = 100
#: And that of so many is not.
_MANY_STEPS = 2000


@dataclass(eq=False)
class Keep:
    """A statement that keeps something from one iteration to the next: ``total += loss``, ``losses.append(loss)``."""

    node: cst.CSTNode
    holder: cst.BaseExpression  # total, losses
    value: cst.BaseExpression
    sums: bool


class Given(NamedTuple):
    """What a function returns with its history, by where that comes from, and its place in a row of what it returns."""

    node: cst.CSTNode
    at: int | None


class RetainedGraph(Rule):
    """A loss is kept from step to step with the history that autograd recorded for it.

    ## What it does
    Reports `total += loss`, `losses.append(loss)` and the like, where `loss` goes backward in the same step, and what
    it is kept in lives on. Also reported: terms of such a loss, and the model's outputs that it was computed from;
    what a function returns of these, or computes likewise once more (`return loss, accuracy`); and what a model gives
    in a loop over a loader that only evaluates, in a function that trains in a loop above, with gradients on.
    Tentatively: a term that is kept in a record as it is, beside two at least that are kept by `.item()` or the like;
    `total.add_(loss)` in a function that makes one step, where the total was there before; and outputs of the model
    that a step writes into a buffer (`self.queue[:n] = z`).

    ## Why is this bad
    A tensor that requires gradients holds the graph that it was computed by. A sum or a list of such tensors holds the
    graphs of all steps: memory grows in every step, of the host and, for whatever `backward()` has not freed, of the
    device. Nothing can go backward through them any more.

    ## Example
    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, device):
        total_loss = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            total_loss += loss
        return total_loss / len(loader)
    ```

    ## Use instead
    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, device):
        total_loss = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            total_loss += loss.detach()
        return total_loss / len(loader)
    ```

    ## Fix safety
    The fix keeps `loss.detach()`, which has the same value and waits for nothing. It is safe where `loss` is a name
    that goes backward here, and unsafe where the loss is what a function returns.

    ## Limits
    Silent where the sum goes backward itself, where `backward(retain_graph=True)` keeps the graph for more, where the
    list is emptied or bound anew in each step, or again and again after a few (`if step % accumulate == 0:`, or where
    the optimizer steps), and in loops of a few iterations. Functions that do nothing but evaluate are for
    `inference-with-grad`. Held back as tentative: outputs of the model, and what gets its history otherwise (`info =
    self.update(batch)` may hold numbers throughout), loops `for epoch in range(epochs)` of one step each, and what a
    loop around binds anew for each step of the optimizer, for a round of several optimizers, or a function that goes
    through the parts of one: `backward()` has freed most of the few rounds that it keeps.

    A strict reader held all of 7 findings in 48 repositories for right and worth a change. Often the history is kept
    for a few steps only, until the sum or the list is made anew.

    In 2,404 more repositories and packages strict readers held 26 of 33 for true, two for arguable and five for wrong;
    none of the five is told now. In 2,596 more they held fourteen of fifteen for true, and one, a sum of numbers that
    are weighed, for wrong; that is mended.

    ## References
    - [Frequently asked questions: my model reports "cuda runtime error: out of memory"](https://pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory)
    """

    group = "memory"
    fixable = "always"

    def check(self) -> None:
        if "backward" not in self.source.text and "training_step" not in self.source.text:
            return
        bodies = Bodies(self.flow)
        if not bodies.found:
            return
        returning = {body.function: given for body in bodies.found.values() if (given := self._given(bodies, body))}
        found = [self._told(bodies, keep, returning) for keep in self._keeps()]
        found += [self._told_of_beside(kept, freed) for kept, freed in kept_beside_freed(self)]
        for body in bodies.found.values():
            found += [*self._added_in_place(body), *self._written_to_buffers(body)]
        report_apart(self, (told for told in found if told is not None))

    def _told(self, bodies: Bodies, keep: Keep, returning: dict[Function | None, Given]) -> Told | None:
        body = bodies.found.get(self.flow.function(keep.node))
        told = self._check_names(bodies, body, keep) if body is not None else None
        if told is None and body is not None:
            told = self._check_evaluated(body, keep)
        return told or (self._check_call(bodies, keep, returning) if returning else None)

    # what is kept -------------------------------------------------------------------------------

    def _keeps(self) -> Iterator[Keep]:
        for node in self.source.nodes_of(cst.AugAssign):
            if isinstance(node.operator, cst.AddAssign | cst.SubtractAssign):
                if isinstance(node.value, cst.List) and len(node.value.elements) == 1:
                    yield Keep(node, node.target, node.value.elements[0].value, sums=False)
                else:
                    yield Keep(node, node.target, node.value, sums=True)
        for assign in self.source.nodes_of(cst.Assign):
            value, target = assign.value, assign.targets[0].target
            if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add) and dotted(target):
                if dotted(value.left) == dotted(target):
                    yield Keep(assign, target, value.right, sums=True)
                elif dotted(value.right) == dotted(target):
                    yield Keep(assign, target, value.left, sums=True)
        for call in self.source.nodes_of(cst.Call):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "append" and len(call.args) == 1:
                yield Keep(call, call.func.value, call.args[0].value, sums=False)

    def _kept_parts(self, keep: Keep) -> Iterator[cst.BaseExpression]:
        """The expressions whose history is kept: factors and terms of a sum, the entries of a tuple."""
        todo = [keep.value]
        while todo:
            node = todo.pop()
            if _is_share_of_number(node):
                continue  # (loss * share).backward(); total += float(loss) * share   is a number throughout
            if isinstance(node, cst.BinaryOperation):
                # (loss / parts).backward(); total += float(loss) / parts   counts them
                todo += [node.left] if isinstance(node.operator, cst.Divide) else [node.left, node.right]
            elif isinstance(node, cst.UnaryOperation):
                todo.append(node.expression)
            elif isinstance(node, cst.Tuple | cst.List | cst.Dict) and not keep.sums:
                todo += [element.value for element in node.elements]
            else:
                yield node

    # names that go backward ---------------------------------------------------------------------

    def _check_names(self, bodies: Bodies, body: Body, keep: Keep) -> Told | None:
        for part in self._kept_parts(keep):
            path = dotted(part)
            value = self.flow.value(part)
            if not path or value.kind in (DATA, ARRAY, NONE) or value.tracked is False:
                continue
            for backward in body.backwards:
                if backward.again or not self._goes_with(body, path, backward):
                    continue
                if self._same_step(bodies, body, keep, path, backward) and self._outlives(
                    body, keep, loop_around(self.flow, backward.node)
                ):
                    loss = path in backward.paths or LOSS_NAME.search(path) is not None
                    sure = loss and self._recurs_often(loop_around(self.flow, keep.node))
                    sure = sure and not self._ends_with_step(body, keep)
                    return self._tell(keep, part, backward.node, safe=True, sure=sure)
        return None

    def _goes_with(self, body: Body, path: str, backward: Backward) -> bool:
        """Whether the path is what goes backward, or a tensor with history that it is computed from."""
        if path in backward.paths:
            return True
        for loss in backward.paths:
            for statement in body.bindings.get(loss, ()):
                if not isinstance(statement, cst.Assign) or path not in paths_in(statement.value):
                    continue
                bound = [each for each in body.bindings.get(path, ()) if isinstance(each, cst.Assign)]
                if any(self._has_history(each) or _gives_losses(each, path) for each in bound):
                    return self._reads_directly(statement.value, path)
        return False

    def _has_history(self, statement: cst.Assign) -> bool:
        """`out = model(x)`, `rec_loss = F.mse_loss(out, x)`."""
        value = statement.value
        if len(statement.targets) != 1 or not isinstance(statement.targets[0].target, cst.Name):
            return False
        known = self.flow.value(value)
        if known.kind not in (TENSOR, THING) or known.tracked is False:
            return False  # beta = schedule(step)
        if known.tracked:
            return True
        called = self.flow.value(value.func) if isinstance(value, cst.Call) else None
        if called is not None and called.kind == MODULE:
            return True
        return LOSS_NAME.search(statement.targets[0].target.value) is not None

    def _reads_directly(self, value: cst.BaseExpression, path: str) -> bool:
        """Whether an expression uses a path with its history: not `loss.detach()`."""
        todo: list[cst.BaseExpression] = [value]
        while todo:
            node = todo.pop()
            if dotted(node) == path:
                return True
            if isinstance(node, cst.BinaryOperation):
                todo += [node.left, node.right]
            elif isinstance(node, cst.Call):
                todo += [arg.value for arg in node.args]
                if isinstance(node.func, cst.Attribute) and node.func.attr.value not in FREEING:
                    todo.append(node.func.value)
        return False

    def _same_step(self, bodies: Bodies, body: Body, keep: Keep, path: str, backward: Backward) -> bool:
        """Whether what is kept is the very tensor that goes backward in this iteration."""
        flow = self.flow
        loop = loop_around(flow, backward.node)
        if loop is not loop_around(flow, keep.node):
            return False  # for epoch ...: for batch ...: loss.backward()    losses.append(loss): one an epoch
        if loop is not None and runs_few_times(loop):
            return False  # for _ in range(3): losses.append(loss)
        if loop is None and not dotted(keep.holder).startswith("self."):
            return False  # one step, and no loop here
        for node in above(flow, keep.node, loop):
            # if phase == "train": loss.backward() else: val_losses.append(loss)
            if (
                isinstance(node, cst.If)
                and is_inside(flow, backward.node, node)
                and is_inside(flow, keep.node, node.body) != is_inside(flow, backward.node, node.body)
            ):
                return False
        if self._leaves(keep.node, backward.node):
            return False
        first, last = sorted((bodies.position(keep.node), bodies.position(backward.node)))
        if any(first < bodies.position(call) < last for call in self._detached_in_place(path)):
            return False  # loss.backward(); loss.detach_(); losses.append(loss)
        for statement in body.bindings.get(path, ()):
            between = first < bodies.position(statement) < last and statement is not keep.node
            if between and not _carries_on(statement, path):
                return False  # loss.backward(); loss = loss.detach(); losses.append(loss)
        return True

    def _leaves(self, node: cst.CSTNode, other: cst.CSTNode) -> bool:
        """``if callable(loss): self.losses.append(loss); return`` above ``loss.backward()``: one or the other."""
        return any(
            isinstance(block, cst.BaseSuite) and leaves(block) and not is_inside(self.flow, other, block)
            for block in above(self.flow, node)
        )

    def _detached_in_place(self, path: str) -> list[cst.Call]:
        return [
            call
            for call in self.source.nodes_of(cst.Call)
            if isinstance(call.func, cst.Attribute)
            and call.func.attr.value == "detach_"
            and dotted(call.func.value) == path
        ]

    def _outlives(self, body: Body, keep: Keep, loop: Loop | None) -> bool:
        """Whether what it is kept in lives longer than the iteration, and nothing goes backward through it."""
        flow, holder = self.flow, keep.holder
        while isinstance(holder, cst.Subscript):
            holder = holder.value
        path = dotted(holder)
        if not path or path in body.goes_backward():
            return False  # total += loss; ...; total.backward()
        if keep.sums and under_no_grad(flow, keep.node):
            return False  # with torch.no_grad(): total += loss
        if flow.value(holder).kind == INSTANCE:
            return False  # meter += loss
        around: cst.CSTNode = loop.body if loop is not None else body.function.node.body
        bound = [each for each in body.bindings.get(path, ()) if not _adds_to_itself(each, path)]
        if any(is_inside(flow, each, around) and not self._conditional(each, keep, loop) for each in bound):
            return False  # losses = [] where the step begins
        head = path.partition(".")[0]
        if head != path and head != "self" and any(is_inside(flow, e, around) for e in body.bindings.get(head, ())):
            return False
        if self._emptied(path, body.function):
            return False
        return self._is_plain(keep, path, body)

    def _conditional(self, statement: cst.CSTNode, keep: Keep, loop: Loop | None) -> bool:
        """Whether a statement runs in some of the turns that keep something, and not after each few of them."""
        # if step == 0: total = 0.0
        return any(
            isinstance(node, cst.If) and not self._is_periodic(node) and not self._is_above_both(node, statement, keep)
            for node in above(self.flow, statement, loop)
        )

    def _is_above_both(self, node: cst.If, statement: cst.CSTNode, keep: Keep) -> bool:
        """`if self.contrasts: total += loss; if step % 10 == 0: total = 0.0`: what adds is asked the same."""
        flow = self.flow
        taken = is_inside(flow, statement, node.body)
        return is_inside(flow, keep.node, node) and is_inside(flow, keep.node, node.body) == taken

    def _is_periodic(self, node: cst.If) -> bool:
        """Whether a condition comes true again after a few steps: what is kept until then is bounded, and small."""
        # if (step + 1) % accumulate == 0: optimizer.step(); total = 0.0
        if any(isinstance(each, cst.Call) and self._steps(each) for each in tree.walk(node.body)):
            return True
        # if accelerator.sync_gradients: log(total); total = 0.0
        if any(
            isinstance(each, cst.Attribute) and each.attr.value == "sync_gradients" for each in tree.walk(node.test)
        ):
            return True
        # if step % log_every == 0: total = 0.0   a literal of thousands of steps is another matter
        return any(
            isinstance(each, cst.BinaryOperation)
            and isinstance(each.operator, cst.Modulo)
            and not (isinstance(each.right, cst.Integer) and each.right.evaluated_value > _FEW_STEPS)
            for each in tree.walk(node.test)
        )

    def _steps(self, call: cst.Call) -> bool:
        """`optimizer.step()`, `scaler.step(optimizer)`."""
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "step":
            return False
        named = [call.func.value, *(arg.value for arg in call.args)]
        return any(self.flow.value(n).kind == OPTIMIZER or OPTIMIZER_NAME.search(last_word(dotted(n))) for n in named)

    def _ends_with_step(self, body: Body, keep: Keep) -> bool:
        """Whether a loop around binds the holder anew for each step of the optimizer, so that only its rounds stay."""
        # for step in range(steps): total = 0.0; for part in parts: ...; total += loss   and then: optimizer.step()
        loop = loop_around(self.flow, keep.node)
        if isinstance(loop, cst.For) and self._counts_parts(loop, body, dotted(keep.holder)):
            return True
        steps = [call for call in self.source.nodes_of(cst.Call) if self._steps(call) or _clears(call)]
        if loop is None:
            return False
        bound = [each for each in body.bindings.get(dotted(keep.holder), ()) if not is_inside(self.flow, each, loop)]
        inside = [call for call in steps if is_inside(self.flow, call, loop)]
        if inside:
            # for images in loader: losses = []; for head, optimizer in zip(heads, optimizers): ...; optimizer.step()
            each_its_own = isinstance(loop, cst.For) and all(_is_of_turn(call, loop) for call in inside)
            outer = loop_around(self.flow, loop)
            return each_its_own and outer is not None and any(is_inside(self.flow, each, outer) for each in bound)
        return any(
            is_inside(self.flow, each, outer) and loop_around(self.flow, call) is outer
            for outer in above(self.flow, loop)
            if isinstance(outer, cst.For | cst.While)
            for each in bound
            for call in steps
        )

    def _counts_parts(self, loop: cst.For, body: Body, path: str) -> bool:
        """`total = 0.0`, and then `for _ in range(accumulate): ...`, in a function that makes one step."""
        if loop_around(self.flow, loop) is not None or "." in path or body.function is None:
            return False
        over = loop.iter
        return (
            isinstance(over, cst.Call)
            and dotted(over.func) == "range"
            and any(_PARTS.search(name) for arg in over.args for name in paths_in(arg.value))
        )

    def _emptied(self, path: str, function: Function | None) -> bool:
        """`buffer.clear()`, `buffer.pop(0)`, `del buffer[0]`."""
        for call in self.source.nodes_of(cst.Call):
            func = call.func
            if isinstance(func, cst.Attribute) and func.attr.value in _EMPTYING and dotted(func.value) == path:
                return True
        return any(
            path in paths_in(node.target) and self.flow.function(node) is function
            for node in self.source.nodes_of(cst.Del)
        )

    def _is_plain(self, keep: Keep, path: str, body: Body) -> bool:
        """Whether it is kept in a number, a tensor, a list or a dictionary, and no object that knows what to do."""
        statements = list(body.bindings.get(path, ()))
        if path.startswith("self."):
            cls = body.function.cls if body.function is not None else None
            if cls is None:
                return False
            stores = [statement for statement, _ in self.flow.stores(cls, path.partition(".")[2])]
            statements += [each for each in stores if isinstance(each, cst.Assign | cst.AnnAssign)]
        values = [v for each in statements if not _adds_to_itself(each, path) for v in _values_for(each, path)]
        if not values:
            return False
        return all(self._holds_what_it_is_given(value, keep.sums) for value in values)

    def _holds_what_it_is_given(self, value: cst.BaseExpression, sums: bool) -> bool:
        if isinstance(value, cst.Integer | cst.Float | cst.UnaryOperation):
            return sums
        if isinstance(value, cst.List | cst.Dict | cst.ListComp | cst.DictComp):
            return True
        if isinstance(value, cst.Name):
            return value.value == "None"
        if isinstance(value, cst.Call):
            name = dotted(value.func).rpartition(".")[2]
            if name == "deque":
                return len(value.args) == 0  # deque(maxlen=20)
            if name in ("list", "dict", "defaultdict", "OrderedDict"):
                return True
            return sums and (name == "float" or self.flow.value(value).kind == TENSOR)
        return False

    # what is only evaluated -----------------------------------------------------------------------

    def _check_evaluated(self, body: Body, keep: Keep) -> Told | None:
        """`total += criterion(net(x), y)` in a loop that only evaluates, in a function that trains in another loop."""
        loop = loop_around(self.flow, keep.node)
        if loop is None or runs_few_times(loop) or under_no_grad(self.flow, keep.node):
            return None
        evaluation = Evaluation(self, body, loop)
        if not evaluation.is_one or not self._outlives(body, keep, loop):
            return None
        for part in self._kept_parts(keep):
            if not evaluation.records(part, dotted(keep.holder)) or evaluation.model is None:
                continue
            holder, what = short(self.code(keep.holder)), short(self.code(part))
            return Told(
                keep.node,
                f"`{holder}` keeps the autograd history of every turn, for `{what}` is kept with its own",
                f"so does `{holder}`, for `{what}`",
                notes=[self.note(evaluation.model, "autograd records it from here, and nothing goes backward")],
                fix=self.fix("keep it without its history", self.insert_after(part, ".detach()"), safe=False),
            )
        return None

    # losses that functions return ---------------------------------------------------------------

    def _given(self, bodies: Bodies, body: Body) -> Given | None:
        """What a function returns with its history: a loss that it has sent backward, or another computed likewise."""
        function = body.function
        if function is None or function.is_replaced or function.name == "training_step":
            return None
        returns = [n for n in self.source.nodes_of(cst.Return) if self.flow.function(n) is function]
        if not returns or not body.backwards:
            return None
        values = [node.value for node in returns]
        if all(isinstance(value, cst.Tuple) for value in values):
            # return loss, accuracy
            for at in range(min(len(value.elements) for value in values if isinstance(value, cst.Tuple))):
                each = [value.elements[at].value for value in values if isinstance(value, cst.Tuple)]
                if spent := self._spent(bodies, body, each):
                    return Given(spent, at)
            return None
        spent = self._spent(bodies, body, values)
        return Given(spent, None) if spent is not None else None

    def _spent(self, bodies: Bodies, body: Body, values: Sequence[cst.BaseExpression | None]) -> cst.CSTNode | None:
        """Where the loss that all these are, on one path each, gets its history, and is spent."""
        found = [self._is_spent_loss(bodies, body, value) for value in values]
        return found[0] if found and all(each is not None for each in found) else None

    def _is_spent_loss(self, bodies: Bodies, body: Body, value: cst.BaseExpression | None) -> cst.CSTNode | None:
        path = dotted(value)
        if value is None or not path or self.flow.value(value).kind in (DATA, ARRAY, NONE):
            return None
        for backward in body.backwards:
            if path in backward.paths and not backward.again:
                start, end = bodies.position(backward.node), bodies.position(value)
                between = [s for s in body.bindings.get(path, ()) if start < bodies.position(s) < end]
                if start < end and all(_carries_on(statement, path) for statement in between):
                    return backward.node
        # loss = criterion(net(x), y); loss.backward(); ...; after = criterion(net(xs), ys); return after
        bound = body.bindings.get(path, ())
        if len(bound) != 1 or not isinstance(bound[0], cst.Assign) or under_no_grad(self.flow, bound[0]):
            return None
        if not isinstance(bound[0].targets[0].target, cst.Name):
            return None  # loss, log = self.loss.compute(out)   what comes beside the loss may be numbers
        called = _called_in(bound[0])
        losses = [
            each for backward in body.backwards for loss in backward.paths for each in body.bindings.get(loss, ())
        ]
        if (
            called
            and any(_called_in(each) == called for each in losses)
            and self.flow.value(value).tracked is not False
        ):
            return bound[0]
        return None

    def _check_call(self, bodies: Bodies, keep: Keep, returning: dict[Function | None, Given]) -> Told | None:
        """`total += train_step(batch)`; `loss = train_step(batch)` and then `total += loss`."""
        flow = self.flow
        loop = loop_around(flow, keep.node)
        if loop is None or runs_few_times(loop):
            return None
        for part in self._kept_parts(keep):
            call: cst.BaseExpression | None = part
            name, place = dotted(part), None
            if name:
                bound = [
                    n
                    for n in self.source.nodes_of(cst.Assign)
                    if is_inside(flow, n, loop.body) and name in bound_paths(n)
                ]
                before = [n for n in bound if bodies.position(n) < bodies.position(keep.node)]
                if not before:
                    continue
                last = max(before, key=bodies.position)
                if len(bound) > 1 and self._block(last) is not self._block(keep.node):
                    continue  # if train: loss = step(x) else: loss = evaluate(x)
                call, target = last.value, last.targets[0].target
                if isinstance(target, cst.Tuple):  # loss, accuracy = train_step(batch)
                    names = [dotted(each.value) for each in target.elements]
                    place = names.index(name) if name in names else -1
            function = self._called(call)
            if function not in returning:
                continue
            body, given = bodies.of(flow.function(keep.node)), returning[function]
            if given.at != place:
                continue
            if self._outlives(body, keep, loop):
                sure = self._recurs_often(loop) and not self._ends_with_step(body, keep)
                safe = bool(name) and not isinstance(given.node, cst.Assign)
                return self._tell(keep, part, given.node, safe=safe, sure=sure)
        return None

    def _block(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self.parent(self.enclosing(node, cst.SimpleStatementLine) or node)

    def _called(self, call: cst.BaseExpression | None) -> Function | None:
        if not isinstance(call, cst.Call):
            return None
        caller = self.flow.function(call)
        inner = (f for f in self.flow.scope.functions.values() if f.outer is not None and f.outer is caller)
        # def solve(...): def train(...): ...; losses.append(train(...))
        return next((f for f in inner if f.name == dotted(call.func)), None) or function_called(self.flow, caller, call)

    # what is said -------------------------------------------------------------------------------

    def _recurs_often(self, loop: Loop | None) -> bool:
        """Whether the loop is one over batches, or may go on for ever: a few hundred small graphs are no matter."""
        # for epoch in range(epochs): loss = criterion(model(graph), labels); ...; losses.append(loss)
        if isinstance(loop, cst.For) and _calls_each(loop):
            return False
        if not isinstance(loop, cst.For) or loop_around(self.flow, loop) is not None:
            return True
        over = loop.iter
        while isinstance(over, cst.Call) and dotted(over.func).rpartition(".")[2] == "tqdm" and over.args:
            over = over.args[0].value
        if not isinstance(over, cst.Call) or dotted(over.func).rpartition(".")[2] not in ("range", "trange"):
            return True
        if any(isinstance(each, cst.Call) and _DRAWS.search(dotted(each.func)) for each in tree.walk(loop.body)):
            return True  # for step in range(steps): x, y = next(batches)
        names = {name for arg in over.args for name in paths_in(arg.value)}
        bounds = [arg.value for arg in over.args]
        bounds += [  # STEPS = 10_000_000
            assign.value
            for assign in self.source.nodes_of(cst.Assign)
            if any(dotted(target.target) in names for target in assign.targets)
        ]
        return any(isinstance(each, cst.Integer) and each.evaluated_value > _MANY_STEPS for each in bounds)

    def _tell(self, keep: Keep, part: cst.BaseExpression, backward: cst.CSTNode, *, safe: bool, sure: bool) -> Told:
        holder, what = short(self.code(keep.holder)), short(self.code(part))
        told = "it goes backward from here, and nothing needs its history after that"
        if isinstance(backward, cst.Assign):
            told = "it gets its history here, and nothing needs that"
        notes = [self.note(backward, told)]
        if self._is_never_read(keep):
            notes.append(self.note(keep.node, f"nothing reads `{holder}`: the line can go"))
        return Told(
            keep.node,
            f"`{holder}` keeps the autograd history of every step, for `{what}` is kept with its own",
            f"so does `{holder}`, for `{what}`",
            notes=notes,
            fix=self.fix("keep it without its history", self.insert_after(part, ".detach()"), safe=safe),
            # info = self.update(batch); infos.append(info)   may be numbers throughout
            tentative=not sure or isinstance(backward, cst.Assign),
        )

    def _added_in_place(self, body: Body) -> Iterator[Told]:
        """``self.total.add_(loss)`` in a function that makes one step, of something that was there before."""
        for backward in body.backwards:
            if backward.again or body.function is None:
                continue
            for call in tree.walk(body.function.node.body):
                if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
                    continue
                if call.func.attr.value != "add_" or not call.args or dotted(call.args[0].value) not in backward.paths:
                    continue
                if under_no_grad(self.flow, call) or self._is_own(body, call.func.value):
                    continue
                holder, loss = short(self.code(call.func.value)), call.args[0].value
                name = short(self.code(loss))
                yield Told(
                    call,
                    f"`{holder}` keeps the autograd history of every step, for `{name}` is added with its own",
                    also=f"so does `{holder}`",
                    notes=[self.note(backward.node, "it goes backward here")],
                    fix=self.fix("add it without its history", self.insert_after(loss, ".detach()"), safe=False),
                    tentative=True,
                )

    def _written_to_buffers(self, body: Body) -> Iterator[Told]:
        """``self.queue[:n] = z`` in a function that makes one step: the buffer is recorded from there on."""
        if body.function is None:
            return
        for assign in tree.walk(body.function.node.body):
            if not isinstance(assign, cst.Assign) or not isinstance(assign.targets[0].target, cst.Subscript):
                continue
            holder = assign.targets[0].target.value
            if self.flow.value(holder).ref != "buffer" or under_no_grad(self.flow, assign):
                continue
            if self._is_recorded(body, assign.value):
                value = assign.value
                yield Told(
                    assign,
                    f"the buffer `{short(self.code(holder))}` keeps the autograd history of every step, "
                    f"for `{short(self.code(value))}` is written into it with its own",
                    also=f"`{short(self.code(value))}` is written with its own, too",
                    fix=self.fix("write it without its history", self.insert_after(value, ".detach()"), safe=False),
                    tentative=True,
                )

    def _is_recorded(self, body: Body, node: cst.BaseExpression, depth: int = 4) -> bool:
        """Whether a value is what a model gave, or is made of that, with its history."""
        if depth == 0 or self.flow.value(node).tracked is False or under_no_grad(self.flow, node):
            return False
        if isinstance(node, cst.Name):
            bound = body.bindings.get(node.value, ())
            values = [each.value for each in bound if isinstance(each, cst.Assign)]
            return len(values) == 1 and self._is_recorded(body, values[0], depth - 1)
        if isinstance(node, cst.Tuple | cst.List):
            return any(self._is_recorded(body, each.value, depth) for each in node.elements)
        if isinstance(node, cst.Subscript):
            return self._is_recorded(body, node.value, depth)
        if not isinstance(node, cst.Call):
            return False
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in FREEING:
            return False
        if self.flow.value(node.func).kind == MODULE or dotted(node.func) == "self":
            return True
        if self.flow.name_of(node).startswith("torch."):
            return any(self._is_recorded(body, arg.value, depth) for arg in node.args)
        return isinstance(node.func, cst.Attribute) and self._is_recorded(body, node.func.value, depth)

    def _is_own(self, body: Body, holder: cst.BaseExpression) -> bool:
        """Whether something is made in the function, or is read without its history: ``total.data.add_(loss)``."""
        names = [node.value for node in tree.walk(holder) if isinstance(node, cst.Name)]
        return names[0] in body.bindings or any(name in ("data", "detach") for name in names)

    def _told_of_beside(self, kept: cst.Name, freed: cst.BaseExpression) -> Told:
        name = kept.value
        return Told(
            kept,
            f"`{name}` is kept with its history, unlike what is kept beside it",
            also=f"`{name}` is kept with its own, too",
            notes=[self.note(freed, "this is kept without")],
            fix=self.fix("keep it without its history", self.insert_after(kept, ".detach()"), safe=False),
            tentative=True,
        )

    def _is_never_read(self, keep: Keep) -> bool:
        """``total += loss`` in a function that does nothing else with the sum."""
        function, name = self.flow.function(keep.node), keep.holder
        if function is None or not isinstance(name, cst.Name) or not isinstance(keep.node, cst.AugAssign):
            return False
        named = tree.named(function.node, name.value)
        reads = [read for read in reads_of(self, function, name.value) if not self._is_added_to(read)]
        return not reads and all(self.flow.function(each) is function for each in named)

    def _is_added_to(self, name: cst.Name) -> bool:
        above = self.parent(name)
        return isinstance(above, cst.AugAssign) and above.target is name


def _is_share_of_number(node: cst.BaseExpression) -> bool:
    """``float(loss) * share``, ``share * loss.item()``"""
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Multiply):
        return False
    sides = (each for each in (node.left, node.right) if isinstance(each, cst.Call))
    return any(called_name(each) in ("float", "item") for each in sides)


def _gives_losses(statement: cst.Assign, path: str) -> bool:
    """``class_loss, box_loss = criterion(out, y)``, where ``class_loss`` is asked about."""
    target, value = statement.targets[0].target, statement.value
    return (
        isinstance(target, cst.Tuple)
        and path in names_bound(target)
        and LOSS_NAME.search(path) is not None
        and isinstance(value, cst.Call)
        and LOSS_NAME.search(called_name(value)) is not None
    )


def _clears(call: cst.Call) -> bool:
    """`optimizer.zero_grad()`, `model.zero_grad()`."""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "zero_grad"


def _is_of_turn(call: cst.Call, loop: cst.For) -> bool:
    """`for head, optimizer in zip(heads, optimizers): ...; optimizer.step()`"""
    names: set[str] = set()
    target_names(loop.target, names)
    return any(path.partition(".")[0] in names for path in paths_in(call))


def _carries_on(statement: cst.CSTNode, path: str) -> bool:
    """`loss = loss / steps`, `loss *= n`: another tensor, with the same history."""
    if isinstance(statement, cst.AugAssign):
        return True
    if isinstance(statement, cst.Assign) and isinstance(statement.value, cst.BinaryOperation):
        return dotted(statement.value.left) == path or dotted(statement.value.right) == path
    return False


def _called_in(statement: cst.CSTNode) -> str:
    """`criterion` of `loss = criterion(net(x), y)`."""
    value = statement.value if isinstance(statement, cst.Assign) else None
    return dotted(value.func) if isinstance(value, cst.Call) else ""


def _adds_to_itself(statement: cst.CSTNode, path: str) -> bool:
    """`total += loss`, `total = total + loss`, `totals["x"] = ...`."""
    if isinstance(statement, cst.AugAssign):
        return True
    if not isinstance(statement, cst.Assign):
        return False
    if any(isinstance(target.target, cst.Subscript) for target in statement.targets):
        return True
    return isinstance(statement.value, cst.BinaryOperation) and path in (
        dotted(statement.value.left),
        dotted(statement.value.right),
    )


def _values_for(statement: cst.CSTNode, path: str) -> list[cst.BaseExpression]:
    """What a statement binds a path to: `a` and `b` of `x, y = a, b`."""
    if isinstance(statement, cst.AnnAssign):
        return [statement.value] if statement.value is not None else []
    if not isinstance(statement, cst.Assign):
        return [cst.Name("unknown")]
    for target in statement.targets:
        if isinstance(target.target, cst.Tuple) and isinstance(statement.value, cst.Tuple):
            pairs = zip(target.target.elements, statement.value.elements, strict=False)
            return [value.value for name, value in pairs if dotted(name.value) == path]
    return [statement.value]


def _calls_each(loop: cst.For) -> bool:
    """``for compute in self.losses(): loss = compute(net); loss.backward(); losses.append(loss)``: the terms of one
    step."""
    names = names_bound(loop.target)
    return any(
        isinstance(node, cst.Assign) and isinstance(node.value, cst.Call) and dotted(node.value.func) in names
        for node in tree.walk(loop.body)
    )
