from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Edit, Fix
from devlint.flow.facts import Wait
from devlint.flow.hypothesis import names_device
from devlint.flow.loops import Loop, leaves, runs_by_epoch, runs_sometimes, working_loop
from devlint.flow.names import dotted, target_names
from devlint.flow.value import DATA
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._places import last_word, origin_note


class HostSyncInLoop(Rule):
    """A loop that drives the device reads a value back in every iteration, and waits for it.

    ## What it does
    Reports `.item()`, `.tolist()`, `.cpu()`, `float(t)`, `print(t)`, `if t`, an f-string and whatever else needs a
    value on the host, where the value is on a device and the loop goes through a data loader or calls a model,
    `backward()` or an optimizer.

    ## Why is this bad
    Work for a device is queued: the host runs ahead and prepares the next steps meanwhile. Reading a value makes it
    wait until the queue is empty, and the device then stands idle until the host has queued something again. One
    `.item()` in each step is enough to lose that overlap.

    ## Example
    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, device):
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        return total
    ```

    ## Use instead
    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, device):
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        total = float(total)
        return total
    ```

    ## Fix safety
    For a sum that the loop does not read (`total += loss.item()`), the fix sums on the device and reads the sum once
    after the loop. It is unsafe: the sum is then made in the precision of the tensor, not in that of Python's `float`,
    and is a tensor until the loop has ended. For other uses no fix is offered: log every so many steps, or
    collect tensors and read them together.

    ## Limits
    Silent where the value is read in some iterations only (`if step % 100 == 0`, `if args.debug`), once an epoch, in
    an `assert`, in an exception handler, to decide whether the loop goes on, on the way out of it, to act in an
    environment (`env.step(action)`), or to write results to a file. Waits inside functions that the loop calls are
    not seen.

    ## References
    - [Performance tuning guide: avoid unnecessary CPU-GPU synchronization](https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization)
    - [CUDA semantics: asynchronous execution](https://pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution)
    """

    group = "performance"
    fixable = "sometimes"

    def check(self) -> None:
        for wait in self.flow.facts.waits.values():
            if wait.what == "tensor from device scalars":
                continue  # tensor-from-device-scalars says so
            loop = working_loop(self.flow, wait.node)
            if loop is None or runs_by_epoch(self.flow, loop) or not self._surely_there(wait):
                continue
            if runs_sometimes(self.flow, wait.node, loop) or self._needed(wait, loop):
                continue
            self._report(wait, loop)

    def _surely_there(self, wait: Wait) -> bool:
        # for batch in loader: out = model(batch); out.loss.item()   nothing here says that there is a device
        name, function = wait.value.place.name, self.flow.function(wait.node)
        if function is None or name not in function.param_names or names_device(name):
            return True
        return function.device_aware

    def _needed(self, wait: Wait, loop: Loop) -> bool:
        """Whether the host cannot do without the value in this iteration."""
        parents = self.source.parents
        child, current = wait.node, parents[wait.node]
        while child is not loop.node:
            if isinstance(current, cst.Assert) or (isinstance(current, cst.Call) and _is_check(current)):
                return True
            if isinstance(current, cst.While) and child is current.test:
                return True  # while error > tolerance:
            if isinstance(current, cst.If) and child is current.test and _leads_out(current):
                return True  # if token.item() == eos: break
            child, current = current, parents[current]
        if wait.what in ("cpu", "to", "numpy", "tolist") and self._ends_in(wait.node, loop, _writes):
            return True
        return self._ends_in(wait.node, loop, _acts) or self._ends_in(wait.node, loop, _saves)

    def _ends_in(self, node: cst.CSTNode, loop: Loop, is_end) -> bool:
        """Whether the value, also under other names, is an argument of a call of that kind in the loop."""
        call = node
        while call is not loop.node:
            call = self.source.parents[call]
            if isinstance(call, cst.Call) and is_end(call):
                return True
        statement = self.enclosing(node, cst.Assign, cst.AnnAssign, cst.BaseCompoundStatement)
        names = _bound_by(statement)
        if not names:
            return False
        for inner in tree.walk(loop.node.body):
            if (
                isinstance(inner, cst.Assign | cst.AnnAssign)
                and inner.value is not None
                and _mentions(inner.value, names)
            ):
                names |= _bound_by(inner)
            elif isinstance(inner, cst.Call) and is_end(inner) and any(_mentions(arg, names) for arg in inner.args):
                return True
        return False

    def _report(self, wait: Wait, loop: Loop) -> None:
        what = short(self.code(wait.operand), 60)
        said = {
            "format": f"formatting `{what}` makes the host wait for the device in every iteration",
            "print": f"printing `{what}` makes the host wait for the device in every iteration",
            "bool": f"the truth of `{what}` makes the host wait for the device in every iteration",
        }
        code = short(self.code(wait.node), 60)
        message = said.get(wait.what, f"`{code}` makes the host wait for the device in every iteration")
        self.report(
            wait.node,
            message,
            notes=[
                *origin_note(self, f"`{what}`", wait.value),
                self.note(loop.node, "this loop drives the device"),
            ],
            fix=self._fix(wait, loop),
        )

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
        uses = [n for n in tree.walk(loop.node) if isinstance(n, cst.Name) and n.value == name]
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


def _leads_out(node: cst.If) -> bool:
    blocks = [node.body, node.orelse.body if isinstance(node.orelse, cst.Else) else None]
    return any(block is not None and block.body and leaves(block.body[-1]) for block in blocks)


def _counts(node: cst.BaseExpression) -> bool:
    """`(pred == y).sum()`, `pred.eq(y).sum()`: a whole number, without history."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or node.func.attr.value != "sum":
        return False
    summed = node.func.value
    return isinstance(summed, cst.Comparison) or (isinstance(summed, cst.Call) and _called(summed) in _COMPARISONS)


_COMPARISONS = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isfinite", "isinf", "logical_and", "logical_or"}
)
_ENVIRONMENT = re.compile(r"(^|_)(env|envs|venv|environment|game|world|sim|simulator)s?$")
_WRITER = re.compile(r"^(write|dump|tofile|to_csv)")
_SAVER = re.compile(r"^(save|imwrite|imsave|export)")


def _acts(call: cst.Call) -> bool:
    # obs, reward, done, info = env.step(action)
    func = call.func
    if not isinstance(func, cst.Attribute) or not func.attr.value.startswith(("step", "act")):
        return False
    return _ENVIRONMENT.search(last_word(dotted(func.value))) is not None


def _writes(call: cst.Call) -> bool:
    # csv.writerows(out.tolist()); a loss written to a log is no reason to wait for it
    return _WRITER.match(_called(call)) is not None


def _saves(call: cst.Call) -> bool:
    # torch.save(out.cpu(), path), image.save(f"{index[i]}.png")
    return _SAVER.match(_called(call)) is not None


def _is_check(call: cst.Call) -> bool:
    # self.assertLess(loss.item(), 1.0)
    return _called(call).startswith("assert")


def _called(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func)


def _bound_by(statement: cst.CSTNode | None) -> set[str]:
    names: set[str] = set()
    if isinstance(statement, cst.Assign):
        for target in statement.targets:
            target_names(target.target, names)
    elif isinstance(statement, cst.AnnAssign):
        target_names(statement.target, names)
    return names


def _mentions(node: cst.CSTNode, names: set[str]) -> bool:
    return any(isinstance(n, cst.Name) and n.value in names for n in tree.walk(node))


def _is_detached(node: cst.BaseExpression) -> bool:
    """`loss.detach()`, `loss.data`."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.attr.value == "detach"
    return isinstance(node, cst.Attribute) and node.attr.value == "data"
