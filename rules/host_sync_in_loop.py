from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise

import libcst as cst

from devlint import tree
from devlint.finding import Edit, Fix, Note
from devlint.flow.facts import Wait
from devlint.flow.loops import Loop, runs_by_epoch, runs_sometimes, working_loop
from devlint.flow.names import called_name, dotted, target_names
from devlint.flow.steps import above
from devlint.flow.value import DATA, FUNCTION, MODULE, TENSOR, UNKNOWN_KIND
from devlint.flow.waiting import COMPARING, call_waits, picks_by_mask, wait_of_called
from devlint.rule import Rule
from devlint.rules._copied import is_copied
from devlint.rules._index_copies import copies_to_device
from devlint.rules._moves import short
from devlint.rules._neighbours import Told, report_together
from devlint.rules._places import origin_note
from devlint.rules._reads import (
    READ_AS_NUMBERS,
    compares_perhaps,
    is_tied,
    kept_as,
    read_one_by_one,
    same_each_time,
    surely_there,
)
from devlint.rules._recurs import is_deprecated, trains
from devlint.rules._switches import flags_of, is_left_out, may_be_on, tests_above


class HostSyncInLoop(Rule):
    """A loop that drives the device waits for values that it need not read there.

    ## What it does
    Reports `.item()`, `float(t)` and whatever else needs a value on the host, in a loop that goes through a data loader
    or calls a model, `backward()` or an optimizer, where the loop would do without:

    - a training step reads a number in its midst, and only adds it to a sum, keeps it in a list, or looks at it once
      the step's work is queued;
    - a training loop reads numbers at the end of each step, needs none of them there, and waits for nothing else;
    - a tensor is read element by element in a Python loop, instead of at once;
    - the same value is read in every iteration.

    ## Why is this bad
    Work for a device is queued: the host runs ahead and prepares what comes next. Reading a value makes it wait until
    the queue is empty, and the device then stands idle until the host has queued something again. In the midst of a
    step this costs most: `backward()` is not queued yet, or the forward pass of another model.

    ## Example
    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, device):
        total = 0.0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = F.cross_entropy(model(x), y)
            total += loss.item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return total
    ```

    ## Use instead
    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, device):
        total = 0.0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = F.cross_entropy(model(x), y)
            total += loss.detach()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total = float(total)
        return total
    ```

    ## Fix safety
    For sums that the loop does not read (`total += loss.item()`), the fix sums on the device and reads the sums once
    after the loop. It is unsafe: a sum is then made in the precision of the tensor, not in that of Python's `float`,
    and is a tensor until the loop has ended. For other uses no fix is offered: read once the optimizer has stepped,
    keep `loss.detach()` in the list and read all together with `torch.stack`, or `tolist()` before the inner loop.

    ## Limits
    What a wait costs is not to be seen in the code: it depends on what is queued when it comes. `devlint run` measures
    it.

    One finding a loop speaks of all its needless reads, and one of two neighbours that read element by element. Silent

    - in loops over epochs, where the value is read in some iterations only (`if step % 100 == 0`, `if args.debug`), and
      in deprecated code;
    - where the next line reads a clock (`spent += time.time() - start`), which is to count what the device does;
    - where each step copies to the device soon after and waits for that, as for the indices of its minibatch
      (`torch.tensor(chosen, device=device)`, `rows[chosen]` of an array or a permutation on the host).

    Tentative:

    - a call of a function or a model that waits by itself in each step of a training, once a loop (of 23 in 81
      repositories, five were read: all wait);
    - a wait that the loop may need, where other work for the device comes after it, or where an inner loop waits
      several times, since the value, or another one, is shown, logged, tested or written in each step; a read beside
      such a wait; sums that a flag may show in each step; and what is changed in place once it was read;
    - a read where something else waits anyway: `scaler.step(optimizer)`, a mask, a copy without `non_blocking=True`
      once the model is called, a function or a model that waits by itself, a metric of who knows what make
      (`metric_fn(out, y)`), which gives a number as a rule, or the loop's own batch, moved for nothing
      (`rows.to(device)` for a statement);
    - values of a pass that does not train; an argument that may as well be a number, since nothing declares it or uses
      it as a tensor, or that is `None` by default and that all calls of the file leave out;
    - tests; and code that says it was copied, or lies in a folder of what others wrote.

    In the thirteen samples since the eighty-first, of code that nobody had tuned for, strict readers held 200 of 224
    findings for true, 22 for arguable and two for wrong: nearly all where a tensor is read element by element, and
    fewer where a step reads a number that it does not need, as what the step calls, in files or objects that are not
    followed, waits as well at times.

    ## References
    - [Performance tuning guide: avoid unnecessary CPU-GPU synchronization](https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization)
    - [CUDA semantics: asynchronous execution](https://pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution)
    """

    group = "performance"
    fixable = "sometimes"

    def check(self) -> None:
        read: dict[Loop, list[Wait]] = {}
        told: set[tuple[cst.CSTNode, object]] = set()
        singles: list[Told] = []
        refused = {node for node, _ in self.flow.facts.meetings}
        for wait in self.flow.facts.waits.values():
            if wait.what == "tensor from device scalars":
                continue  # tensor-from-device-scalars says so
            loop = working_loop(self.flow, wait.node)
            if loop is None or runs_by_epoch(self.flow, loop) or not surely_there(self.flow, wait):
                continue
            if runs_sometimes(self.flow, wait.node, loop) or is_deprecated(self.flow, wait.node):
                continue
            single = read_one_by_one(self.flow, wait) if wait.what in READ_AS_NUMBERS else None
            if single is not None:
                repeated, tensor = single
                if any(part in refused for part in tree.walk(tensor)):
                    continue  # for t in torch.eq(scores, torch.arange(3)): nothing is read where that raises
                # gen[starts[i] : ends[i]]   is one thing to mend, and so is what two lines read of one tensor
                marks = {(loop.node, self.code(tensor)), (repeated, self.enclosing(wait.node, cst.BaseSmallStatement))}
                if not marks & told:
                    singles.append(self._one_by_one(wait, repeated, tensor))
                told |= marks
            elif wait.what in READ_AS_NUMBERS and same_each_time(self.flow, loop, wait.operand):
                operand = f"`{short(self.code(wait.operand), 60)}`"
                origin = origin_note(self, operand, wait.value)
                self._unchanged(wait.node, loop, origin, tied=is_tied(self.flow, wait))
            else:
                read.setdefault(loop, []).append(wait)
        report_together(self, singles)
        for loop, waits in read.items():
            waits = [wait for wait in waits if not self._is_timed(wait)]
            # a pass over held-out data ends in a wait anyway, and is short beside an epoch of training
            if waits and not (trains(loop) and self._kept(loop, waits)):
                self._needed(loop, waits)
        self._fed()
        self._in_called(set(read))

    def _in_called(self, told: set[Loop]) -> None:
        """``loss = masked_loss(net(x), y)``: the wait stands in what a step calls, where nobody sees the loop."""
        if "backward" not in self.source.text and ".step(" not in self.source.text:
            return
        for call in self.source.nodes_of(cst.Call):
            loop = working_loop(self.flow, call) if self.flow.function(call) is not None else None
            if loop is None or loop in told or not trains(loop) or runs_by_epoch(self.flow, loop):
                continue
            if self._is_beside(call) or runs_sometimes(self.flow, call, loop) or not call_waits(self.flow, call):
                continue
            told.add(loop)
            inside = wait_of_called(self.flow, call)
            self.report(
                call,
                f"`{short(self.code(call.func), 60)}` waits for the device by itself, in every iteration",
                notes=[
                    *([self.note(inside, "here")] if inside is not None else []),
                    self.note(loop.node, "this loop drives the device"),
                ],
                tentative=True,
            )

    def _fed(self) -> None:
        """`net(x, mask=mask, sizes=mask.sum(dim=1).tolist())`: what a model is fed with lives where the model does."""
        for call in self.source.nodes_of(cst.Call):
            func = call.func
            if not isinstance(func, cst.Attribute) or func.attr.value not in ("item", "tolist") or call.args:
                continue
            name = _reduced(func.value)
            loop = working_loop(self.flow, call) if name is not None else None
            if name is None or loop is None or loop.changes(name.value):
                continue
            value = self.flow.value(name)
            if value.kind not in (UNKNOWN_KIND, TENSOR) or value.place.is_host or value.place.is_there:
                continue
            fed = any(
                isinstance(arg.value, cst.Name) and arg.value.value == name.value
                for work in loop.works
                if isinstance(work, cst.Call) and called_name(work) not in ("step", "backward")
                for arg in work.args
            )
            if fed and not runs_by_epoch(self.flow, loop) and not runs_sometimes(self.flow, call, loop):
                self._unchanged(call, loop)

    def _one_by_one(self, wait: Wait, repeated: cst.CSTNode, tensor: cst.BaseExpression) -> Told:
        code, name = short(self.code(wait.node), 60), short(self.code(tensor), 40)
        return Told(
            wait.node,
            f"`{code}` makes the host wait for one element after the other: read `{name}` at once, before the loop",
            f"so does `{code}`: read `{name}` at once, too",
            notes=[*origin_note(self, f"`{name}`", wait.value), self.note(repeated, "this loop reads it")],
            tentative=self._is_beside(wait.node) or not is_tied(self.flow, wait),
        )

    def _is_beside(self, node: cst.CSTNode) -> bool:
        """Whether code is another project's, or a test, which makes some steps and looks at all it keeps."""
        return is_copied(self, node) or self.in_tests

    def _unchanged(self, node: cst.CSTNode, loop: Loop, origin: Sequence[Note] = (), *, tied: bool = True) -> None:
        self.report(
            node,
            f"`{short(self.code(node), 60)}` makes the host wait for the same value in every iteration",
            notes=[*origin, self.note(loop.node, "read it before this loop")],
            tentative=not tied or self._is_beside(node) or self._is_left_out(node),
        )

    def _is_left_out(self, node: cst.CSTNode) -> bool:
        """`if marks is None or not marks.any():`, of an argument that nothing in the file hands over."""
        function, asked = self.flow.function(node), self.enclosing(node, cst.BooleanOperation)
        if function is None or not isinstance(asked, cst.BooleanOperation):
            return False
        compared = {
            dotted(n.left)
            for n in tree.walk(asked)
            if isinstance(n, cst.Comparison) and isinstance(n.comparisons[0].operator, cst.Is | cst.IsNot)
        }
        read = {n.value for n in tree.walk(node) if isinstance(n, cst.Name)}
        return any(is_left_out(self, function, name) for name in read & compared & function.param_names)

    def _needed(self, loop: Loop, waits: list[Wait]) -> None:
        """Waits that the loop may have to make, ahead of work for the device, or several in one iteration."""
        offsets = self.source.offsets
        last = max((offsets(work)[0] for work in loop.works if not _steps(work)), default=0)
        # for image in images: boxes.append(image.tolist())
        held = [w for w in waits if offsets(w.node)[1] <= last or self.flow.loop(w.node) is not loop]
        if not held:
            return  # what comes last in an iteration holds up nothing but the next one
        for near in self._near(held):
            self._report_needed(loop, near)

    def _near(self, waits: list[Wait]) -> Iterator[list[Wait]]:
        """The waits, those together that stand within a few lines of each other."""
        near: list[Wait] = []
        for wait in sorted(waits, key=lambda each: self.source.offsets(each.node)[0]):
            if near and self.source.span(wait.node).row - self.source.span(near[-1].node).row > _A_SCREEN:
                yield near
                near = []
            near.append(wait)
        yield near

    def _report_needed(self, loop: Loop, waits: list[Wait]) -> None:
        first, *others = waits
        code = short(self.code(first.node), 60)
        self.report(
            first.node,
            f"`{code}` makes the host wait for the device in every iteration",
            notes=[
                *origin_note(self, f"`{short(self.code(first.operand), 60)}`", first.value),
                self.note(loop.node, "this loop drives the device"),
                *(self.note(o.node, f"`{short(self.code(o.node), 60)}` waits, too") for o in others),
            ],
            tentative=True,
        )

    def _kept(self, loop: Loop, waits: list[Wait]) -> bool:
        """Report numbers that are read before a step needs them, or that no step needs; whether there are some."""
        offsets = self.source.offsets
        # if step % 500 == 0: show(generator(noise))   is no part of each step
        works = [work for work in loop.works if not runs_sometimes(self.flow, work, loop)]
        if not works:
            return False
        # loss.backward(); total += loss.item(); optimizer.step()   only a few launches are held up there
        last = max((offsets(work)[0] for work in works if not _steps(work)), default=0)
        early = [
            wait
            for wait in waits
            if any(
                offsets(wait.node)[1] <= offsets(work)[0] and not self._never_both(wait.node, work, loop)
                for work in works
                if not _steps(work)
            )
        ]
        end = max(offsets(work)[0] for work in works) if early else sys.maxsize
        # out = net(x); loss = criterion(out, y.to(device)); total += loss.item()   the copy has waited for `net`
        start = min((offsets(wait.node)[0] for wait in early), default=0)
        ran = [w for w in works if not _steps(w) and not _judges(w)] + [
            node for node in tree.walk(loop.node.body) if isinstance(node, cst.Call) and dotted(node.func) == "self"
        ]
        models = [offsets(each) for each in ran if offsets(each)[0] < start]
        if early and self._stops_after(loop, max((after for _, after in models), default=start), end):
            return False
        # approx_kl = kl.mean().item(); mb_advantages = b_advantages[mb_inds]   copies the indices, and waits
        if early and any(
            start < offsets(node)[0] < end and copies_to_device(self.flow, node) for node in tree.walk(loop.node.body)
        ):
            return False
        if early:
            # D_x = out.mean().item(); optimizer.step(); print(D_x)   the print could read it
            kept, place = self._all_kept(loop, early, last), "in the midst of each step"
        else:
            kept, place = self._all_kept(loop, waits, sys.maxsize), "at the end of each step"
            if kept and self._copy_waits(loop):
                return False  # x.to(device)   without non_blocking=True waits as well, soon after
        first, *others = early or waits
        beside = self._on_both_sides(loop, end)
        if beside and not self._all_kept(loop, beside, last if early else sys.maxsize):
            return False
        # prompt = encode(text); out = net(x, prompt); total += out.item()   what waits before `net` is no such wait
        if not kept or self._waits_anyway(loop, max((before for before, _ in models), default=0), end):
            return False
        code, name = short(self.code(first.node), 60), kept[first.node]
        test = self._test_before_use(loop, first, name)
        if early:
            needless = f"no step needs `{name}` before its end"
        elif test is not None:
            needless = f"only steps with `{short(self.code(test), 40)}` need `{name}`"
        else:
            needless = f"no step needs `{name}` at all"
        self.report(
            first.node,
            f"`{code}` makes the host wait {place}, and {needless}",
            notes=[
                *origin_note(self, f"`{short(self.code(first.operand), 60)}`", first.value),
                self.note(loop.node, "this loop drives the device"),
                *(
                    self.note(o.node, f"`{short(self.code(o.node), 60)}` could be read later, too")
                    for o in (*others, *beside)
                ),
            ],
            fix=self._together([self._fix(wait, loop) for wait in waits]) if not beside else None,
            tentative=self._is_beside(first.node)
            or not all(is_tied(self.flow, wait) for wait in early or waits)
            or self._compares_others(loop, end)
            or self._others_read_there(loop, waits)
            or self._scales_gradients(loop)
            or self._loses_moves(loop)
            or any(self._is_changed_later(wait, loop) for wait in waits)
            or self._is_shown(loop, early or waits, kept, last if early else sys.maxsize),
        )
        return True

    def _loses_moves(self, loop: Loop) -> bool:
        """``rows.to(device)`` for a statement: where what it gives is lost, the batch stays on the host, and what it is
        fed to is there as well, or raises."""
        return any(
            isinstance(node, cst.Expr) and isinstance(node.value, cst.Call) and self._is_of_batch(node.value, loop)
            for node in tree.walk(loop.node.body)
        )

    def _is_of_batch(self, call: cst.Call, loop: Loop) -> bool:
        # model.to(device)   is moved in place, wherever it stands
        move = self.flow.facts.moves.get(call)
        return move is not None and move.target.is_there and bool(name := dotted(move.receiver)) and loop.binds(name)

    def _on_both_sides(self, loop: Loop, end: int) -> list[Wait]:
        """``if step == 1: smooth = loss.item()``, ``else: smooth = 0.9 * smooth + 0.1 * loss.item()``: each step has
        one of the two."""
        waits = self.flow.facts.waits
        found: list[Wait] = []
        for node in tree.walk(loop.node.body):
            if not isinstance(node, cst.If) or not isinstance(node.orelse, cst.Else):
                continue
            if self.source.offsets(node)[0] > end or runs_sometimes(self.flow, node, loop):
                continue
            sides = [
                [waits[part] for part in tree.walk(side) if part in waits] for side in (node.body, node.orelse.body)
            ]
            if all(sides):
                found += [wait for side in sides for wait in side if runs_sometimes(self.flow, wait.node, loop)]
        return found

    def _is_changed_later(self, wait: Wait, loop: Loop) -> bool:
        """``total.append(loss.item()); loss += penalty``: what is read later, be it detached, is another number."""
        name = dotted(wait.operand)
        return bool(name) and any(
            isinstance(node, cst.AugAssign)
            and dotted(node.target) == name
            and self.source.comes_before(wait.node, node)
            for node in tree.walk(loop.node.body)
        )

    def _never_both(self, first: cst.CSTNode, second: cst.CSTNode, loop: Loop) -> bool:
        """``if not train: kept.append(loss.item())`` and ``if train: loss.backward()``; ``if phase == "valid"`` and
        ``if phase == "train"``."""
        asked, later = (
            flags_of((test, holds) for test, _, holds in above)
            for above in (tests_above(self, first), tests_above(self, second))
        )
        held = {(self.code(flag), holds) for flag, holds in later}
        equal = [self._compared(flag) for flag, holds in later if holds]
        for flag, holds in asked:
            if (self.code(flag), not holds) in held and not loop.binds(self.code(flag)):
                return True
            name, text = self._compared(flag) if holds else ("", "")
            if name and not loop.binds(name) and any(each == name and other != text for each, other in equal):
                return True
        return False

    def _compared(self, test: cst.BaseExpression) -> tuple[str, str]:
        """The path and the text of ``phase == "train"``."""
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            to = test.comparisons[0]
            if isinstance(to.operator, cst.Equal) and isinstance(to.comparator, cst.SimpleString):
                return dotted(test.left), str(to.comparator.evaluated_value)
        return "", ""

    def _is_shown(self, loop: Loop, waits: list[Wait], kept: dict[cst.CSTNode, str], end: int) -> bool:
        """Whether a flag that may well be on makes each step show what is read: `if show: bar.set_postfix(loss=now)`,
        and not `if step % 100 == 0: ...`."""
        for wait in waits:
            statement = self.enclosing(wait.node, cst.BaseSmallStatement)
            names = {kept[wait.node]}  # now = loss.item(); total += now; if show: print(now)
            if isinstance(statement, cst.Assign):
                names |= {dotted(target.target) for target in statement.targets}
            own = set(tree.walk(statement)) if statement is not None else set()
            for node in tree.walk(loop.node.body):
                if not isinstance(node, cst.Name | cst.Attribute) or node in own or dotted(node) not in names:
                    continue
                if self.source.offsets(node)[0] < end and self._under_flags_only(node, loop):
                    return True
        return False

    def _under_flags_only(self, node: cst.CSTNode, loop: Loop) -> bool:
        """Whether a node runs in some iterations only, by flags that no iteration changes and that may be on."""
        if not runs_sometimes(self.flow, node, loop):
            return False
        inside = set(tree.walk(loop.node.body))
        tests = [(test, holds) for test, _, holds in tests_above(self, node) if test in inside]
        return bool(tests) and all(
            may_be_on(self, flag, wanted=holds) and not loop.binds(dotted(flag)) for flag, holds in flags_of(tests)
        )

    def _scales_gradients(self, loop: Loop) -> bool:
        """`if args.fp16: scaler.step(optimizer)`: a scaler waits whenever it steps, every so many batches, too.

        So does apex: `with amp.scale_loss(loss, optimizer) as scaled: scaled.backward()`.
        """
        calls = [n for n in tree.walk(loop.node.body) if type(n) is cst.Call and type(n.func) is cst.Attribute]
        return any(
            called_name(n) == "scale_loss" or (called_name(n) == "step" and "scaler" in dotted(n.func).lower())
            for n in calls
        )

    def _compares_others(self, loop: Loop, end: int) -> bool:
        """Whether each step compares what may as well be on the device: `if loss < best: best = loss`."""
        return any(
            compares_perhaps(self.flow, loop, node)
            and self.source.offsets(node)[0] <= end
            and not runs_sometimes(self.flow, node, loop)
            for node in tree.walk(loop.node.body)
        )

    def _test_before_use(self, loop: Loop, wait: Wait, name: str) -> cst.BaseExpression | None:
        """The test of the steps that look at what is kept: `if step % 100 == 0: print(sum(losses))`."""
        own = set(tree.walk(self.enclosing(wait.node, cst.BaseSmallStatement) or wait.node))
        for node in tree.walk(loop.node.body):
            if isinstance(node, cst.Name | cst.Attribute) and node not in own and dotted(node) == name:
                way = [node, *above(self.flow, node, loop.node)]
                for inner, branch in pairwise(way):
                    if isinstance(branch, cst.If) and inner is branch.body and not own & set(tree.walk(branch)):
                        return branch.test
        return None

    def _others_read_there(self, loop: Loop, waits: list[Wait]) -> bool:
        """Whether something else, of which too little is known to name it, is read by `item()`, or with nothing queued
        in between."""
        # parts += weighed(x).item(); total += loss.item()
        offsets, named = self.source.offsets, {wait.node for wait in waits}
        at = offsets(waits[0].node)[0]
        works = [offsets(work)[0] for work in loop.works]
        start = max((work for work in works if work < at), default=0)
        end = min((work for work in works if work > at), default=sys.maxsize)
        return any(
            isinstance(node, cst.Call)
            and node not in named
            and (start < offsets(node)[0] < end or called_name(node) == "item")
            and self._call_waits(node)
            and not runs_sometimes(self.flow, node, loop)
            for node in tree.walk(loop.node.body)
        )

    def _is_timed(self, wait: Wait) -> bool:
        """`total += loss.item(); forward_time += time.time() - start`: the clock is read once the device is done."""
        line = self.enclosing(wait.node, cst.SimpleStatementLine)
        block = self.parent(line) if line is not None else None
        if line is None or not isinstance(block, cst.IndentedBlock):
            return False
        after = block.body[next(i for i, each in enumerate(block.body) if each is line) + 1 :][:1]
        return any(
            isinstance(n, cst.Call) and self.flow.scope.qualified(n.func) in _CLOCKS
            for each in after
            for n in tree.walk(each)
        )

    def _all_kept(self, loop: Loop, waits: list[Wait], end: int) -> dict[cst.CSTNode, str]:
        """What each value is kept as until the offset; nothing where a step needs one of them before."""
        kept: dict[cst.CSTNode, str] = {}
        for wait in waits:
            name = kept_as(self.flow, wait.node, loop, end) if wait.what in ("item", "float", "int") else None
            if name is None:
                return {}  # if not math.isfinite(loss.item()): ...   this wait stays, and the others cost little
            kept[wait.node] = name
        return kept

    def _copy_waits(self, loop: Loop) -> bool:
        """Whether each step ends, or the next one starts, with a copy to the device that waits for it."""
        moves = [m for m in self.flow.facts.moves.values() if m.target.is_there and self._is_in(m.node, loop)]
        # batch = next(batches)   of a loop that counts
        fed = loop.loader or any(
            isinstance(n, cst.Call) and dotted(n.func) == "next" for n in tree.walk(loop.node.body)
        )
        # loader = accelerator.prepare(loader)   copies each batch, and waits
        prepared = any(called_name(call) == "prepare" for call in self.source.nodes_of(cst.Call))
        if any(move.non_blocking is not True for move in moves) or (fed and (prepared or not moves)):
            return True
        return any(copies_to_device(self.flow, node) for node in tree.walk(loop.node.body))

    def _is_in(self, node: cst.CSTNode, loop: Loop) -> bool:
        """Whether a node is in a loop, or in one inside it: `for key in batch: batch[key] = batch[key].to(device)`."""
        inner = self.flow.loop(node)
        while inner is not None and inner is not loop:
            inner = self.flow.loop(inner.node)
        return inner is loop

    def _stops_after(self, loop: Loop, start: int, end: int) -> bool:
        """Whether what is between two offsets waits for a copy to the device, or for a mask of the host."""
        there = (node for node in tree.walk(loop.node.body) if start <= self.source.offsets(node)[0] <= end)
        return any(self._stops(node) and not runs_sometimes(self.flow, node, loop) for node in there)

    def _stops(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Call):
            # total += loss.item(); fake = netG(torch.randn(n, 100).to(device))   each step is stopped there as well
            move = self.flow.facts.moves.get(node)
            if move is not None:
                return move.target.is_there and not move.value.place.is_there and move.non_blocking is not True
            # torch.tensor([0, 1], device=device)
            named = self.flow.name_of(node) in ("torch.tensor", "torch.as_tensor")
            return named and self.flow.value(node).place.is_there
        if not isinstance(node, cst.Subscript) or self.flow.value(node.value).place.is_host:
            return False
        # keep = torch.arange(n) != new; grads.data[keep, :] = 0   the host says where, and the device is told
        indices = [self.flow.value(i.slice.value) for i in node.slice if isinstance(i.slice, cst.Index)]
        return any(index.kind == TENSOR and index.place.is_host for index in indices)

    def _together(self, fixes: list[Fix | None]) -> Fix | None:
        if any(fix is None for fix in fixes):
            return None  # half of them would leave the wait
        edits = list(dict.fromkeys(edit for fix in fixes if fix is not None for edit in fix.edits))
        return self.fix("sum on the device, and read the sum after the loop", *edits, safe=False)

    def _waits_anyway(self, loop: Loop, since: int, end: int) -> bool:
        """Whether something else waits in each step before the offset `end`: what is called, from `since` on."""
        for node in tree.walk(loop.node.body):
            if not isinstance(node, cst.Call | cst.Subscript) or self.source.offsets(node)[0] > end:
                continue
            if runs_sometimes(self.flow, node, loop):
                continue
            if isinstance(node, cst.Call) and self._waits_inside(node, loop, since):
                return True
            # out[data.train_mask]
            waits = picks_by_mask(self.flow, node) if isinstance(node, cst.Subscript) else self._call_waits(node)
            if waits and kept_as(self.flow, node, loop, end) is None:
                return True
        return False

    def _waits_inside(self, call: cst.Call, loop: Loop, since: int) -> bool:
        """Whether what is called in each step waits: `net(x)`, which picks by a mask."""
        if self.source.offsets(call)[0] < since:
            return False
        if not (self.flow.waits_in(call) or self._tells(call) or self._measures(call)):
            return False
        # if args.gamma is not None: weights = weigh(steps)   few runs do
        return not any(isinstance(each, cst.If) for each in above(self.flow, call, loop.node))

    def _call_waits(self, call: cst.Call) -> bool:
        name = called_name(call)
        wait = self.flow.facts.waits.get(call)
        if wait is not None and wait.what == "tensor from device scalars":
            return True  # losses = [torch.zeros_like(loss) for _ in ranks]; torch.tensor(losses)
        if name == "step":
            # scaler.step(optimizer) reads whether a gradient overflowed; LBFGS reads the loss of its closure
            return bool(call.args)
        if name.startswith("clip_grad"):
            # clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
            return any(a.keyword is not None and a.keyword.value == "error_if_nonfinite" for a in call.args)
        return name in _WAITING

    def _tells(self, call: cst.Call) -> bool:
        """Whether a call looks at what it is handed, or shows it: `check_update(net)`, `log({"loss": loss})`, and
        `bar.set_description(get_log(epoch, loss))`."""
        if not _TELLING.match(called_name(call)):
            return False
        given: list[cst.BaseExpression] = []
        for arg in call.args:
            given += [each.value for each in arg.value.elements] if isinstance(arg.value, cst.Dict) else [arg.value]
        return any(isinstance(v, cst.Name | cst.Attribute) and not self.flow.value(v).place.is_host for v in given)

    def _measures(self, call: cst.Call) -> bool:
        """``right = metric_fn(out, y)``, ``meter.add(out, y)``, of who knows what, which gives numbers as a rule."""
        func, name = call.func, called_name(call)
        owner = dotted(func.value) if isinstance(func, cst.Attribute) else ""
        if not (_OF_METRICS.search(name) or (name in ("add", "update") and _OF_METRICS.search(owner))):
            return False
        known = self.flow.value(func)
        if known.kind in (FUNCTION, MODULE) or self.flow.name_of(call).startswith("torch"):
            return False  # it was looked into, or sums on the device
        return any(self.flow.value(arg.value).place.is_there for arg in call.args)

    def _fix(self, wait: Wait, loop: Loop) -> Fix | None:
        """Sum on the device, and read the sum after the loop."""
        if wait.what not in ("item", "float", "int") or loop.node.orelse is not None:
            return None
        sum_ = self.enclosing(wait.node, cst.BaseSmallStatement)
        if not isinstance(sum_, cst.AugAssign) or not isinstance(sum_.target, cst.Name):
            return None
        if not isinstance(sum_.operator, cst.AddAssign | cst.SubtractAssign) or not self._scales(wait.node, sum_):
            return None
        name = sum_.target.value
        uses = tree.named(loop.node, name)
        if uses != [sum_.target] or not self._starts_as_number(name, loop):
            return None
        counted = _counts(wait.operand)
        operand = self._with_parentheses(wait.operand)
        if not counted and not _is_detached(wait.operand):
            operand += ".detach()"
        after = self._insert_below(loop.node, f"{name} = {'int' if counted else 'float'}({name})")
        if after is None:
            return None
        on_device = self.replace(wait.node, operand)
        return self.fix("sum on the device, and read the sum after the loop", on_device, after, safe=False)

    def _scales(self, node: cst.CSTNode, sum_: cst.AugAssign) -> bool:
        """Whether the value is added as it is, or times numbers: `total += loss.item() * len(x)`."""
        while node is not sum_.value:
            above = self.source.parents[node]
            if not isinstance(above, cst.BinaryOperation):
                return False
            if not isinstance(above.operator, cst.Multiply | cst.Divide | cst.Add | cst.Subtract):
                return False
            other = above.right if above.left is node else above.left
            if self.flow.value(other).kind != DATA:
                return False
            if isinstance(above.operator, cst.Divide) and above.right is node:
                return False
            node = above
        return True

    def _starts_as_number(self, name: str, loop: Loop) -> bool:
        """`total = 0.0` in the block of the loop or around it, and nothing else."""
        function = self.flow.function(loop.node)
        found = False
        for assign in self.source.nodes_of(cst.Assign):
            bound: set[str] = set()
            for target in assign.targets:
                target_names(target.target, bound)
            if name in bound and self.flow.function(assign) is function:
                values = assign.value.elements if isinstance(assign.value, cst.Tuple) else [assign]
                if not all(isinstance(v.value, cst.Integer | cst.Float) for v in values):
                    return False
                found = True
        return found and (function is None or name not in function.globals)

    def _with_parentheses(self, node: cst.BaseExpression) -> str:
        start, end = self.source.offsets(node, outer=True)
        code = self.source.text[start:end]
        plain = isinstance(node, cst.Name | cst.Attribute | cst.Call | cst.Subscript) or bool(node.lpar)
        return code if plain else f"({code})"

    def _insert_below(self, loop: cst.For | cst.While, code: str) -> Edit | None:
        """A statement on a line of its own, right below the loop and the comments that end its body."""
        source = self.source
        start, end = source.offsets(loop)
        indent = source.text[source.lines[source.place(start)[0] - 1] : start]
        if indent.strip():
            return None
        row, _ = source.place(end)
        for offset, _ in source.comments:
            line, column = source.place(offset)
            between = source.text[source.lines[row] : offset] if line > row else "no comment of its own"
            if column > len(indent) + 1 and not between.strip():
                row = line
        if row == len(source.lines):
            return self.replace_between(len(source.text), len(source.text), f"{source.newline(end)}{indent}{code}")
        return self.replace_between(source.lines[row], source.lines[row], f"{indent}{code}{source.newline(end)}")


def _reduced(node: cst.BaseExpression) -> cst.Name | None:
    """`mask` of `mask.sum(dim=1)`, which numpy would write with `axis`."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    along = any(arg.keyword is not None and arg.keyword.value == "dim" for arg in node.args)
    return node.func.value if along and isinstance(node.func.value, cst.Name) else None


def _steps(work: cst.CSTNode) -> bool:
    return isinstance(work, cst.Call) and called_name(work) == "step"


def _judges(work: cst.CSTNode) -> bool:
    """``criterion(out, y.to(device))``, which is little work behind that of a model."""
    return isinstance(work, cst.Call) and _OF_LOSSES.search(called_name(work)) is not None


_OF_METRICS = re.compile(r"metric|accuracy|meter|score|confusion|(^|_)acc(_|$)", re.IGNORECASE)
_OF_LOSSES = re.compile(r"loss|criterion|entropy|(^|_)(mse|nll|bce|l1)(_|$)", re.IGNORECASE)
#: As many lines are looked at together.
_A_SCREEN = 12
#: Calls that wait, whatever they are called on.
_WAITING = frozenset(
    "item tolist cpu numpy nonzero masked_select unique synchronize barrier wait_for_everyone mark_step print "
    "empty_cache".split()
)
#: What says how late it is.
_CLOCKS = frozenset(f"time.{name}" for name in ("time", "perf_counter", "monotonic", "process_time", "time_ns"))
#: Functions that look at what they are handed, or show it.
_TELLING = re.compile(
    r"_?(check|assert|validate|record|track|add_scalars?|([a-z]+_)?(log|print|report|message|msg|desc|line))(_|$)"
)


def _counts(node: cst.BaseExpression) -> bool:
    """`(pred == y).sum()`, `pred.eq(y).sum()`: a whole number, without history."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or node.func.attr.value != "sum":
        return False
    summed = node.func.value
    return isinstance(summed, cst.Comparison) or (isinstance(summed, cst.Call) and called_name(summed) in _COMPARISONS)


_COMPARISONS = COMPARING | {"isnan", "isfinite", "isinf", "logical_and", "logical_or"}


def _is_detached(node: cst.BaseExpression) -> bool:
    """`loss.detach()`, `loss.data`."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.attr.value == "detach"
    return isinstance(node, cst.Attribute) and node.attr.value == "data"
