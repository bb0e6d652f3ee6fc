from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.facts import Move
from devlint.flow.names import dotted, target_names
from devlint.flow.place import SAME, relation
from devlint.flow.scope import Class, Function
from devlint.flow.value import INSTANCE, LOADER, TENSOR, THING, UNKNOWN_KIND, Value
from devlint.rule import Rule
from devlint.rules._copied import is_copied
from devlint.rules._into_models import goes_into_model
from devlint.rules._measuring import is_named_for_measuring, measures_time
from devlint.rules._missed import LENGTHS, Misses
from devlint.rules._moves import destination, short
from devlint.rules._places import origin_note
from devlint.rules._switches import tests_above
from devlint.rules._tensor_use import OF_TENSORS, called_names, is_more_than_tensor, is_used_as_tensor
from devlint.rules._unread import Unread, unread_moves


class DiscardedMove(Rule):
    """A tensor is moved and the moved copy is thrown away.

    ## What it does
    Reports a statement `x.to(device)`, `x.cuda()` or `x.cpu()` where `x` is a tensor, or is used as one afterwards
    (`x - mean`, `x[:, 0]`, `F.relu(x)`), an entry of what a tokenizer gave, or an object of a class of the file whose
    own `to` returns a new object; and `x = x.to(device)` in a loop that takes `x` from a container, if nothing reads
    `x` afterwards: the container holds what it held.

    ## Why is this bad
    `Module.to` moves in place, but `Tensor.to` returns the moved tensor and leaves its receiver where it was. The
    statement makes a copy and drops it; what follows meets a tensor on the wrong device.

    ## Example
    ```python
    import torch


    def evaluate(model: torch.nn.Module, x: torch.Tensor, device: torch.device):
        model.to(device)
        x.to(device)
        return model(x)
    ```

    ## Use instead
    ```python
    import torch


    def evaluate(model: torch.nn.Module, x: torch.Tensor, device: torch.device):
        model.to(device)
        x = x.to(device)
        return model(x)
    ```

    ## Fix safety
    The fix assigns the result to the name: safe. For an attribute or an item it is unsafe, since others may hold the
    old tensor, and so it is for what is collected in a container later, and in a test that goes to `meta` among others.
    No fix is offered where an assignment would not do: a global or enclosing function's name without `global` or
    `nonlocal`, a loop variable over a container (the container keeps the old tensor), parameters and other leaves with
    `requires_grad`, which would stop being leaves, and what numpy or `tolist()` reads afterwards.

    ## Limits
    Silent where the receiver may be a module or an object that moves in place, as batches of graphs do, where it is
    on that device already, and where a move is made for its effect: to see whether it raises, to wake a device up,
    to wait for it, or to measure it; behind what surely raises (`torch.zeros(labels.size)`); and in the `to` of an
    object that a test makes up.

    Told by default is what surely comes to what wants it there: it meets what is there, goes into a model or a loss
    that is there, is returned as the function was handed it, or is read by `numpy()` after a discarded `cpu()`; and
    moves in an object's own `to`. Held back as tentative: all else, since a move whose result nothing misses does no
    harm; what a model or its loss is handed, and nothing else shows to be a tensor (`for x, y in batches:`, `x, y =
    batch`); what the model of an object is handed that nothing in the file moves (`x.to(device); self.net(x)`); what
    may be there already, since nobody knows where it is (what a function is handed, or makes of that); what follows its
    module anyway; what only its use says is a tensor (`rays - origin`) in a project that has a class with a `to` of its
    own; lengths, which the host reads; elements of containers of which nothing shows that they are tensors; what
    becomes an attribute whose name is a variable, or is only put into another object; attributes that meet tensors on
    the host, or were brought there on purpose; vectors of which only single numbers are read; what only `DataParallel`
    and its like are handed, which move it; what nothing reads again before it is moved properly; the targets of
    `ctc_loss`; what a function did not make itself, in code that is copied from others; and tests that are skipped on
    every machine.

    Of 70 findings in repositories that nobody had tuned for, 40 were worth a change; 23 moves did nothing in code that
    nobody runs or reads the result of, and in seven the receiver was a module, or was there already. What they showed
    is mended, so that 14 of the 15 that could be looked at again and are still told are of the first kind. In 1,468
    more repositories strict readers judged twelve findings: five were true, five arguable and two, of one class that
    leaves its model on the host, wrong; these seven are tentative since. So are two of one function in 180 more, whose
    tensors meet others of the host next. In 641 more, readers held one of eight for true and seven for arguable, since
    nothing missed what was not moved: that is when the rule was narrowed to what is said above. Of six in 1,764
    packages, told while that was done, two were true, and four, in a `cpu` of the object's own, below a test and with a
    model that was wrapped, arguable; these are tentative. It was a rule of `correctness` then. Nearly all that was
    arguable was so because nothing crashed: the copy was thrown away, and nothing missed it. Judged by what it promises
    now, that the line is not what its author took it for, all eight of these that are told were true.

    ## References
    - [torch.Tensor.to](https://pytorch.org/docs/stable/generated/torch.Tensor.to.html)
    - [torch.nn.Module.to](https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to)
    """

    group = "suspicious"
    fixable = "sometimes"

    def check(self) -> None:
        for unread in unread_moves(self):
            loop = unread.loop
            if loop is None or not unread.is_element or self._is_probe(unread.assign, unread.move.target.is_host):
                continue
            around = self.flow.loop(unread.assign)
            if around is None or around.loader or relation(unread.move.value.place, unread.move.target) == SAME:
                continue  # for x, y in loader: y = y.to(device)   the batch is gone afterwards: unused-move
            shown = self._is_shown_to_be_tensor(unread)
            may_move_in_place = (
                _MODULES.search(f"{unread.name.value} {self.code(loop.iter)}") or unread.name.value == "data"
            )
            if shown or not may_move_in_place:
                self._report_element(unread, loop, shown)

    def _is_shown_to_be_tensor(self, unread: Unread) -> bool:
        """``for v in rows.values(): if torch.is_tensor(v): v = v.to(device)``, ``for p in net.parameters(): ...``"""
        value = unread.move.value
        if value.is_tensor or value.ref == "parameter":
            return True
        asked = re.compile(rf"is_tensor\(\s*{unread.name.value}\b|isinstance\(\s*{unread.name.value}\s*,[^)]*Tensor\b")
        return any(holds and asked.search(self.code(test)) for test, _, holds in tests_above(self, unread.assign))

    def _report_element(self, unread: Unread, loop: cst.For, shown: bool) -> None:
        name, held = unread.name.value, short(self.code(loop.iter))
        self.report(
            unread.move.node,
            f"`{name}` is moved to {destination(self, unread.move)}, but the moved copy only takes the place of the "
            "loop's variable, and is discarded with it",
            notes=[self.note(loop.iter, f"`{held}` holds what it held before")],
            # a tensor that stays on its device, though it was to leave it, costs memory there
            tentative=not shown
            or unread.move.target.is_host
            or is_copied(self, unread.assign)
            or self._is_moved_whole(loop),
        )

    def _is_moved_whole(self, loop: cst.For) -> bool:
        """``for p in net.parameters(): p = p.cpu()``, and then ``net.cpu()``, which moves them."""
        whole = re.match(r"([\w.]+)\.(named_)?parameters\(", self.code(loop.iter))
        block = self.parent(loop)
        if whole is None or not isinstance(block, cst.IndentedBlock | cst.Module):
            return False
        after = block.body[block.body.index(loop) + 1 :]
        moves = {f"{whole[1]}.{move}" for move in table.MOVES}
        calls = (each for line in after for each in tree.walk(line) if isinstance(each, cst.Call))
        return any(dotted(each.func) in moves for each in calls)

    def visit_Expr(self, node: cst.Expr) -> None:
        call = node.value
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
            return
        receiver = call.func.value
        if not isinstance(receiver, cst.Name | cst.Attribute | cst.Subscript):
            return  # torch.zeros(1).cuda()  wakes the device up
        given = self.flow.value(receiver)
        surely_tensor = given.is_tensor and given.place.is_known
        if (
            given.kind != INSTANCE
            and not surely_tensor
            and is_more_than_tensor(self.flow.function(call), dotted(receiver))
        ):
            return
        move = self.flow.move(call)
        shown = move is not None and (
            move.value.is_tensor or self._is_collated(receiver, move.value) or self._is_used_as_tensor(receiver, move)
        )
        if move is not None and (shown or self._may_be_input(receiver, move)):
            value, target = move.value, f"moved to {destination(self, move)}"
        elif call.func.attr.value in table.MOVES and self._returns_copy(
            self.flow.value(receiver), call.func.attr.value
        ):
            value, target = self.flow.value(receiver), "moved"
        else:
            return
        to_host = move.target.is_host if move is not None else call.func.attr.value == "cpu"
        if self._is_probe(node, to_host) or self._is_stub(node, call.func.attr.value) or self._was_never_made(value):
            return
        if move is not None and self._is_there_already(receiver, move):
            return
        name = self.code(receiver)
        self.report(
            call,
            f"`{name}` is {target}, but the moved copy is discarded",
            notes=origin_note(self, f"`{name}`", value) if value.place.is_known else [],
            fix=self._fix(call, receiver, value, move),
            tentative=(move is not None and not shown)
            or (move is not None and self._may_move_in_place(move.value))
            or self._is_skipped(node)
            or not Misses(self).is_missed(call, receiver, move),
        )

    def _is_there_already(self, receiver: cst.BaseExpression, move: Move) -> bool:
        """``x = x.to(device); x.to(device)``, ``edges[kind].to(edges[kind].device)``"""
        target = move.target_node
        held = target.value if isinstance(target, cst.Attribute) and target.attr.value == "device" else target
        same = held is not None and self.code(held).split() == self.code(receiver).split()
        return same or relation(move.value.place, move.target) == SAME

    def _may_move_in_place(self, value: Value) -> bool:
        """``rays.to(device); rays - origin``, of what only its use says is a tensor, in a project that has a class with
        a `to` of its own: ``class Rays: ... def to(self, device): self.far = self.far.to(device); return self``"""
        given, project = value.origin, self.flow.project
        if value.is_tensor and not isinstance(given, cst.Param):
            return False
        if isinstance(given, cst.Param) and given.annotation is not None and "Tensor" in self.code(given.annotation):
            return False
        return project is not None and project.some_file_says("takes self to") is True

    def _returns_copy(self, value: Value, how: str) -> bool:
        """Whether the move of an object of the project makes a new object and leaves the old one as it was."""
        if value.kind != INSTANCE or not isinstance(value.ref, Class):
            return False
        method = value.ref.find_method(how)
        if method is None or method.stores:
            return False
        summary = self.flow.summary(method, None)
        return summary is not None and summary.returns.kind == INSTANCE and summary.returns.ref is method.cls

    def _is_collated(self, receiver: cst.BaseExpression, value: Value) -> bool:
        """``for x, y in loader:``, where nothing but a tensor with a `to` can come out of torch's own collation."""
        loader = value.ref
        if not isinstance(receiver, cst.Name) or not isinstance(loader, Value) or loader.kind != LOADER:
            return False
        made = loader.origin
        if self.flow.name_of(made) not in _TORCH_LOADERS or not isinstance(made, cst.Call):
            return False
        if any(arg.star or (arg.keyword is not None and arg.keyword.value == "collate_fn") for arg in made.args):
            return False
        loop = self.flow.loop(receiver)
        return loop is not None and isinstance(loop.node, cst.For) and self._unpacks(loop.node.target, receiver.value)

    def _is_used_as_tensor(self, receiver: cst.BaseExpression, move: Move) -> bool:
        """``rows = read(path); rows = rows.view(1, -1); rows.to(device)``: what nothing else says may be no module."""
        function = self.flow.function(receiver)
        if move.value.kind not in (UNKNOWN_KIND, THING):
            return False
        if isinstance(receiver, cst.Name):
            name = receiver.value
            if name in called_names(self, function):
                return False
            if function is not None and function.methods.get(name, set()) & OF_TENSORS:
                return True
        return is_used_as_tensor(self, move.node, receiver)

    def _may_be_input(self, receiver: cst.BaseExpression, move: Move) -> bool:
        """``for x, y in batches: x.to(device); model(x)``, of which nothing else says that it is a tensor."""
        if move.value.kind not in (UNKNOWN_KIND, THING):
            return False
        if self._is_called_as_tensor(receiver, move.node):
            return True
        return move.target.is_there and goes_into_model(self, receiver, move.node)

    def _is_called_as_tensor(self, receiver: cst.BaseExpression, call: cst.Call) -> bool:
        """``for tensor in self.inputs: tensor.to(self.device)``: a loop over tensors, by its variable's name."""
        loop = self.enclosing(call, cst.For, cst.FunctionDef)
        if not isinstance(receiver, cst.Name) or not isinstance(loop, cst.For):
            return False
        is_variable = isinstance(loop.target, cst.Name) and loop.target.value == receiver.value
        return (
            is_variable and _TENSORS.fullmatch(receiver.value) is not None and not _MODULES.search(self.code(loop.iter))
        )

    def _unpacks(self, target: cst.BaseExpression, name: str) -> bool:
        """Whether a loop's target takes a batch apart, and the name is one of its parts."""
        if not isinstance(target, cst.Tuple | cst.List):
            return False
        whole = self.flow.value(target)
        for item in target.elements:
            if isinstance(item.value, cst.Name) and item.value.value == name:
                return whole.kind == THING
            if self._unpacks(item.value, name):
                return True
        return False

    def _is_probe(self, node: cst.CSTNode, to_host: bool) -> bool:
        """Whether the move is made for its effect: an error that is expected, or the time it takes."""
        child, parent = node, self.parent(node)
        while parent is not None and not isinstance(parent, cst.FunctionDef | cst.ClassDef):
            if isinstance(parent, cst.Try | cst.TryStar) and child is parent.body:
                return True  # try: x.to(name) / except RuntimeError: return False
            if isinstance(parent, cst.With) and any("raises" in self.code(item).lower() for item in parent.items):
                return True  # with pytest.raises(RuntimeError): x.cuda()
            child, parent = parent, self.parent(parent)
        function = self.flow.function(node)
        return function is not None and (measures_time(function) or (to_host and _waits(function)))

    def _was_never_made(self, value: Value) -> bool:
        """``flags = torch.zeros(labels.size)`` of a tensor raises, and nothing behind it runs."""
        made = value.origin
        if not isinstance(made, cst.Call) or self.flow.factory(made) is None:
            return False
        sizes = [arg.value for arg in made.args if isinstance(arg.value, cst.Attribute)]
        around = self.enclosing(made, cst.FunctionDef) or self.source.module
        return any(
            size.attr.value == "size"
            and (self.flow.value(size.value).kind == TENSOR or f"{self.code(size)}(" in self.code(around))
            for size in sizes
        )

    def _is_stub(self, node: cst.CSTNode, how: str) -> bool:
        """Whether a test's own object is moved here: ``class Out: def to(self, device): self.values.to(device)``."""
        function = self.flow.function(node)
        return function is not None and function.cls is not None and function.name == how and self.in_tests

    def _is_skipped(self, node: cst.CSTNode) -> bool:
        """Whether the test, or the class of tests, never runs: ``@unittest.skip("broken")``"""
        return any(
            self.flow.scope.qualified(d.decorator.func if isinstance(d.decorator, cst.Call) else d.decorator) in _SKIPS
            for definition in self.source.definitions(node)
            for d in definition.decorators
        )

    # fix ----------------------------------------------------------------------------------------

    def _fix(self, call: cst.Call, receiver: cst.BaseExpression, value: Value, move: Move | None) -> Fix | None:
        if value.grad or value.ref == "parameter":
            return None  # weight = weight.to(device)  is no leaf, and no parameter
        name = self.code(receiver)
        if LENGTHS.search(name):
            return None  # lengths.to(device)   packing and losses read them on the host: the line may rather go
        if isinstance(receiver, cst.Name) and not self._rebinding_does(receiver):
            return None
        reads = Misses(self).other_reads(call, receiver)
        to_host = move is not None and move.target.is_host
        if not to_host and any(self._wants_host(read) for read in reads):
            return None  # x.to(device); rows = x.numpy()   goes well as it is: the line may rather go
        collected = not to_host and any(self._is_collected(read) for read in reads)
        safe = isinstance(receiver, cst.Name) and not collected and not self._may_go_to_meta(call)
        return self.fix(f"assign the result to `{name}`", self.insert_before(call, f"{name} = "), safe=safe)

    def _may_go_to_meta(self, call: cst.Call) -> bool:
        """``@given(kind=st.just("meta"))``, ``@pytest.mark.parametrize("device", ["cpu", "meta"])``: what is brought
        back from there later raises."""
        return any(
            isinstance(node, cst.SimpleString) and node.evaluated_value == "meta"
            for definition in self.source.definitions(call)
            for decorator in definition.decorators
            for node in tree.walk(decorator)
        )

    def _wants_host(self, read: cst.BaseExpression) -> bool:
        """``x[0].numpy()``, ``np.mean(x)``"""
        above: cst.CSTNode | None = self.parent(read)
        if isinstance(above, cst.Arg):
            call = self.parent(above)
            return isinstance(call, cst.Call) and self.flow.scope.qualified(call.func).startswith("numpy.")
        while isinstance(above, cst.Attribute | cst.Call | cst.Subscript):
            if self.flow.move(above) is not None:
                return False  # x.cpu().numpy()
            if isinstance(above, cst.Attribute) and above.attr.value in ("numpy", "tolist"):
                return True
            above = self.parent(above)
        return False

    def _is_collected(self, read: cst.BaseExpression) -> bool:
        """``rows.append(x)``: what becomes of them all is not known."""
        call = Misses(self).call_of(read)
        return (
            isinstance(call, cst.Call)
            and isinstance(call.func, cst.Attribute)
            and call.func.attr.value in ("append", "extend", "add", "insert", "put")
        )

    def _rebinding_does(self, name: cst.Name) -> bool:
        function = self.flow.function(name)
        if function is not None and name.value not in function.assigned | function.param_names | function.globals:
            return False  # the assignment would make a new, local name
        above = self.parent(name)
        while above is not None and not isinstance(above, cst.FunctionDef | cst.ClassDef):
            if isinstance(above, cst.For):
                targets: set[str] = set()
                target_names(above.target, targets)
                loop = self.flow.loop(name)
                if name.value in targets and not (loop is not None and loop.loader):
                    return False  # for t in tensors: t = t.to(device)  leaves the list as it was
            above = self.parent(above)
        return True


def _waits(function: Function) -> bool:
    """Whether a function waits on purpose, or measures, by its name: ``def bench(f, x): f(x).cpu()``."""
    waits = "synchronize" in function.attribute_words | function.calls
    return waits or is_named_for_measuring(function)


#: What a loop goes through that may be modules or other objects, which move in place.
_MODULES = re.compile(
    r"model|module|layer|net|block|encod|decod|head|critic|actor|polic|pipe|optim|metric|criteri|loss|graph|te\b",
    re.IGNORECASE,
)
#: What one of several tensors is called. Not `batch`, `data`, `item`, `x`: these may be moved in place.
_TENSORS = re.compile(
    r"(tensor|t|input|img|image|mask|label|target|feat|feature|param|p|grad|latent|weight|buf|buffer|embedding)(_?\d|_)?"
)
_TORCH_LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})

#: What leaves a test out, whatever the machine.
_SKIPS = frozenset({"unittest.skip", "pytest.mark.skip"})
