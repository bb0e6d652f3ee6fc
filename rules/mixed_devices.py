from __future__ import annotations

import re

import libcst as cst

from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.facts import Meeting, Move
from devlint.flow.loops import loops_around
from devlint.flow.modules import has_tensors, is_loss_or_metric
from devlint.flow.names import dotted, names_bound
from devlint.flow.value import MODULE, TENSOR, THING, UNKNOWN
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._beside_made import BesideMade, beside_plain
from devlint.rules._left_behind import is_needed_there, left_behind
from devlint.rules._made import is_use
from devlint.rules._meetings import doubted, is_dead, meetings
from devlint.rules._moved_once import moved_once
from devlint.rules._moves import short
from devlint.rules._places import device_expression, origin_note, where
from devlint.rules._shown import is_chosen, is_surely_there

_MADE = "it is made"
#: What a module is moved by, or may be.
_MAY_MOVE = table.MOVES | {"apply", "load", "to_empty"}


class MixedDevices(Rule):
    """A value that is on the host, and one that is on a device, come together.

    ## What it does
    Reports where a tensor that is on the host for sure meets one that is on a device (as operands, in `torch.cat` or
    `torch.where`, as an index), or what makes it, where that is in the same function. It is there because it was moved
    there (`.cpu()`), made by a function that takes no `device=` (`torch.from_numpy`, `torch.Tensor(...)`) or drawn from
    a distribution of numbers (`Normal(0, 1).sample(x.shape)`), perhaps on one side of an `if` only. Reports also a
    module that a function builds and, without moving it, calls on the tensors handed to it, or hands to a function that
    moves what it calls it with; what is on a device where a type of the host is to take it (`torch.LongTensor(index)`);
    and a part of a batch, or of what a tokenizer gave, that meets what is on a device, where another part of the same
    batch is moved: `criterion(net(x.to(device)), y)`.

    Likewise what a function was handed and moves for one use alone (`loss = criterion(net(x.to(device)), x)`), and two
    that are on two devices, both of which the code names (`torch.ones(3, device="cuda:0") + net.to("cuda:1")(x)`).

    Reports also a layer that is put into a module which has been moved before, and is called afterwards, and lengths on
    a device that `pack_padded_sequence` is handed, which reads them on the host.

    ## Why is this bad
    The operation raises `Expected all tensors to be on the same device`; the type, `expected TensorOptions(...)`.

    ## Example
    ```python
    import torch
    from torch import nn


    class Gain(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(dim))

        def forward(self, x, weights=None):
            if weights is None:
                weights = torch.Tensor([1.0, 0.5, 0.25])
            return x * self.scale * weights
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    class Gain(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(dim))

        def forward(self, x, weights=None):
            if weights is None:
                weights = torch.tensor([1.0, 0.5, 0.25], device=x.device)
            return x * self.scale * weights
    ```

    ## Fix safety
    The fix moves the host's value to the other's device where they meet. It is unsafe: the result is then on that
    device, and the copy is made each time.

    ## Limits
    What a function was handed counts as being on a device where the file has to do with devices and no call in it says
    otherwise. A zero-dimensional host tensor may mix with device tensors and is not reported. Tensors made by functions
    that take `device=` are for `tensor-without-device`, attributes of modules for `unregistered-tensor`. Silent where
    the data set, or what collates its rows, may put them on a device.

    Told by default are a part of a batch that stays on the host, while another part of it is moved in the same turn of
    the loop (`loss = criterion(net(x.to(device)), y)`), parts that are put into a module after its move, lengths for
    `pack_padded_sequence`, and two devices that one function names. All other meetings are tentative, and so are
    comparisons, and what is computed with a part (`round(size * gain)`), where that may be a number, parts that are
    handed to a model, or to a loss that is not torch's own, or that a wrapper of models may move, and batches of which
    a model is fed a part as it is (`net(x)`).

    In published code it was true in 15 of 61 findings in all samples, nearly all of them tentative now, or silent; it
    waited in the nursery for that. By default it tells next to nothing there: of two in one file of 3,508 repositories
    and packages, both wrong and silent since, and of three in one file of some 6,500 packages, numbers, wrong, and
    tentative since, and of nothing in 392 repositories that are large and well kept. What it tells is for code that is
    being written: labels that nobody moved are a common first mistake.

    ## References
    - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)
    - [Module.to](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to)
    """

    group = "correctness"
    fixable = "sometimes"
    assumes_host_default = True
    raises = True

    def check(self) -> None:
        reported: set[cst.CSTNode] = set()
        for meeting in (*meetings(self), *doubted(self)):
            if self._is_late_part(meeting) and meeting.host.origin not in reported:
                reported.add(meeting.host_node)
                self._report_part(meeting)
                continue
            how = self._how(meeting)
            if how is None or meeting.host.origin in reported:
                continue
            assert meeting.host.origin is not None
            reported.add(meeting.host.origin)
            host, there = short(self.code(meeting.host_node)), short(self.code(meeting.there_node))
            is_refused = meeting.node is meeting.host.origin  # torch.LongTensor(index)
            met = f"{meeting.what} takes what is on the host, and `{there}` is on {where(meeting.there.place)}"
            if not is_refused:
                met = f"`{host}` is on the host and meets `{there}` on {where(meeting.there.place)}, in {meeting.what}"
            if isinstance(meeting.node, cst.Call) and meeting.there_node is meeting.node.func:
                wants = "calls it with what is on" if meeting.host.kind == MODULE else "wants it on"
                met = f"`{host}` is on the host, and {meeting.what} {wants} {where(meeting.there.place)}"
            # what is made there has to be made, or put, elsewhere; of what is moved there, either end may be wrong
            made = meeting.host.origin
            at_maker = how == _MADE and self.flow.function(made) is self.flow.function(meeting.node)
            note = self.note(meeting.node, "they meet here") if at_maker else self.note(made, f"{how} here")
            self.report(
                made if at_maker else meeting.node,
                met,
                notes=[note] if not is_refused else [],
                fix=self._fix(meeting),
                tentative=True,  # in public code whoever moves one of them knows of the other: see Limits
            )
        for meeting, moved in left_behind(self):
            self._report_left_behind(meeting, moved)
        for meeting, moved in moved_once(self):
            self._report_moved_once(meeting, moved)
        for meeting in self.flow.facts.apart.values():
            if not is_dead(self, meeting.node):
                self._report_apart(meeting)
        for found in beside_plain(self):
            if self.flow.value(found.factory).origin not in reported and found.factory not in reported:
                reported.add(found.factory)
                self._report_plain(found)
        self._report_lengths()

    def _report_moved_once(self, meeting: Meeting, moved: Move) -> None:
        """``loss = criterion(net(x.to(device)), x)``"""
        host, there = meeting.host_node, short(self.code(meeting.there_node))
        self.report(
            meeting.node,
            f"`{short(self.code(host))}` is where it was handed in, and meets `{there}` on "
            f"{where(meeting.there.place)}, in {meeting.what}",
            notes=[self.note(moved.node, "only this copy of it is moved")],
            fix=self._move_likewise(host, moved),
            tentative=True,  # whoever calls may have moved it already
        )

    def _report_apart(self, meeting: Meeting) -> None:
        """``torch.ones(3, device="cuda:0") + torch.ones(3, device="cuda:1")``"""
        one, other = short(self.code(meeting.host_node)), short(self.code(meeting.there_node))
        function = self.flow.function(meeting.node)
        made = [value.origin for value in (meeting.host, meeting.there)]
        self.report(
            meeting.node,
            f"`{one}` is on {where(meeting.host.place)} and meets `{other}` on {where(meeting.there.place)}, "
            f"in {meeting.what}",
            notes=[self.note(each, "one is put there here") for each in made if each is not None],
            tentative=any(each is None or self.flow.function(each) is not function for each in made),
        )

    def _report_plain(self, found: BesideMade) -> None:
        """``x + Normal(0, 1).sample(x.shape)``"""
        drawn, other = short(self.code(found.factory)), short(self.code(found.other))
        self.report(
            found.factory,
            f"`{drawn}` is on the host, and meets `{other}`, wherever that is",
            notes=[self.note(found.node, "they meet here")],
            tentative=True,
        )

    def _report_lengths(self) -> None:
        """``pack_padded_sequence(x, mask.sum(1))``: it reads the lengths on the host, and refuses others."""
        for call in self.flow.calls("torch.nn.utils.rnn.pack_padded_sequence"):
            lengths = argument(call, 1, "lengths")
            value = self.flow.value(lengths.value) if lengths is not None else UNKNOWN
            if lengths is None or value.kind not in (TENSOR, THING) or is_dead(self, call):
                continue  # THING: a part of a batch
            handed_in = isinstance(lengths.value, cst.Name) and isinstance(value.origin, cst.Param)
            if not value.place.is_there and (value.place.kind != "param" or handed_in):
                continue  # def forward(self, x, lengths): callers know to leave them on the host
            name = short(self.code(lengths.value))
            self.report(
                lengths.value,
                f"`{name}` is on {where(value.place)}, and `pack_padded_sequence` takes lengths on the host only",
                notes=origin_note(self, f"`{name}`", value),
                fix=self.fix("bring them to the host: `.cpu()`", self.insert_after(lengths.value, ".cpu()"), safe=False)
                if isinstance(lengths.value, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
                else None,
                tentative=not is_surely_there(self, call, value),
            )

    def _is_late_part(self, meeting: Meeting) -> bool:
        """Whether a module that was moved is used with a part that is on the host, not handed one: ``net(nn.ReLU)``."""
        set_here = isinstance(self.parent(meeting.host_node), cst.Assign | cst.AnnAssign)
        return meeting.host.kind == MODULE and meeting.there.kind == MODULE and set_here

    def _report_part(self, meeting: Meeting) -> None:
        """``net.to(device); net.head = nn.Linear(8, 2); net(x)``"""
        whole = short(self.code(meeting.there_node))
        self.report(
            meeting.host_node,
            f"this becomes a part of `{whole}`, on {where(meeting.there.place)} already, and stays on the host",
            notes=[
                self.note(meeting.there.origin, f"`{whole}` is moved here"),
                self.note(meeting.node, "it is used here"),
            ],
            fix=self._fix_part(meeting),
            tentative=meeting.what != "a call of the module" or not is_chosen(self, meeting.there),
        )

    def _fix_part(self, meeting: Meeting) -> Fix | None:
        device = device_expression(self.flow, meeting.host_node, meeting.there_node, meeting.there)
        if device is None:
            return None
        return self.fix(f"move it: `.to({device})`", self.insert_after(meeting.host_node, f".to({device})"), safe=False)

    def _is_discarded(self, meeting: Meeting) -> bool:
        """``y.to(device)``, as a statement: discarded-move says why `y` is where it was."""
        function, name = self.flow.function(meeting.node), self.code(meeting.host_node)
        return any(
            isinstance(self.parent(move.node), cst.Expr)
            and move.target.is_there
            and self.flow.function(move.node) is function
            and self.code(move.receiver) == name
            for move in self.flow.facts.moves.values()
        )

    def _is_input(self, meeting: Meeting) -> bool:
        """``net(x)``, where input-not-moved knows of the model and of `x`."""
        feeding = self.flow.facts.feedings.get((meeting.node, meeting.host_node))
        return feeding is not None and feeding.value.place.is_host

    def _report_left_behind(self, meeting: Meeting, moved: Move) -> None:
        if self._is_discarded(meeting):
            return
        host, there, beside = meeting.host_node, short(self.code(meeting.there_node)), self.flow.value(moved.node)
        self.report(
            meeting.node,
            f"`{short(self.code(host))}` is not moved and meets `{there}` on {where(beside.place)}, in {meeting.what}",
            notes=[self.note(moved.node, "another part of the same batch is moved here")],
            fix=self._move_likewise(host, moved),
            # y == 0, where `y` may be a number beside a tensor
            tentative=meeting.what == "a comparison"
            or not self._is_of_batch(host)
            or self._is_input(meeting)
            or not (is_needed_there(self, meeting) and is_chosen(self, beside)),
        )

    def _move_likewise(self, host: cst.BaseExpression, moved: Move) -> Fix | None:
        """Move it to where another move goes."""
        if moved.target_node is None or not isinstance(host, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
            return None
        device = self.code(moved.target_node)
        return self.fix(f"move it: `.to({device})`", self.insert_after(host, f".to({device})"), safe=False)

    def _is_of_batch(self, node: cst.BaseExpression) -> bool:
        """``y`` of ``for x, y in loader:``, ``batch["y"].float()``; not ``round(size * gain)``, a number."""
        while isinstance(node, cst.Subscript | cst.Attribute | cst.Call):
            node = node.func if isinstance(node, cst.Call) else node.value
        if self.flow.value(node).ref == "encoding":
            return True  # words["attention_mask"], of what a tokenizer gave
        loops = (loop.node for loop in loops_around(self.flow, node))
        return any(isinstance(loop, cst.For) and dotted(node) in names_bound(loop.target) for loop in loops)

    def _how(self, meeting: Meeting) -> str | None:
        """How the host's value got there; ``None`` where that is not sure, or another rule speaks of it."""
        host, origin = meeting.host, meeting.host.origin
        if not isinstance(origin, cst.Call) or host.attr is not None:
            return None  # self.table = torch.from_numpy(t): unregistered-tensor; what is handed in is anywhere
        if self.flow.factory(origin) is not None:
            # torch.zeros(n): tensor-without-device
            return "nobody tells it a device, and it is made" if self._is_untold(origin) else None
        if meeting.there.kind == MODULE:
            return None  # net(x): input-not-moved
        if host.kind == MODULE:
            if is_loss_or_metric(self.flow.name_of(origin)):
                return None  # criterion = nn.CrossEntropyLoss(weight=w): loss-not-moved
            if not has_tensors(host):
                return None  # class Nearest(nn.Module): what it keeps is what `fit` is handed, wherever that is
            if self.flow.function(origin) is not self.flow.function(meeting.node):
                # self.net = resnet18() in the constructor: others may move it before a method calls it
                return "it is built" if self._is_left_by_object(meeting) or self._is_left_by_file(meeting) else None
            if self._has_parts_set(meeting):
                return None  # layer = Layer(3); layer.inner.weight = nn.Parameter(torch.eye(3, device=device))
            return "it is built" if host.obj is origin else None
        if not host.is_tensor and not (host.kind == THING and self.flow.move(origin) is not None):
            return None  # out = model(x).cpu(): what is counted with is a tensor
        if self.flow.move(origin) is not None:
            # def pick(audio, order): return audio[order.cpu()]: who moves it knows where the other is
            # def extract(self, x): return conv(x.cuda(), self.basis.cuda()).cpu()   for a module that stays on the host
            here = self.flow.function(origin) is self.flow.function(meeting.node)
            return "it is moved there" if here and meeting.there.place.is_there else None
        if any(arg.keyword is not None and arg.keyword.value == "device" for arg in origin.args):
            return None  # torch.FloatTensor(shape, device=x.device): invalid-device-argument
        name = self.flow.name_of(origin)  # torch.from_numpy(rows), torch.distributions.Normal(0, 1)
        if name in table.DISTRIBUTIONS and self._has_parts_replaced(origin):
            return None
        return _MADE if name in table.HOST_FACTORIES or name in table.DISTRIBUTIONS else None

    def _is_left_by_file(self, meeting: Meeting) -> bool:
        """``policy = Net().to(device); target = Net()`` outside of functions, and ``target(x.to(device))`` in one."""
        made, name = meeting.host.origin, meeting.host_node
        if not isinstance(name, cst.Name) or made is None or self.flow.function(made) is not None:
            return False
        uses = [use for use in self.source.nodes_of(cst.Name) if use.value == name.value]
        bound = [use for use in uses if isinstance(self.parent(use), cst.AssignTarget)]
        # train(target), for net in (policy, target): net.to(device)   may move it
        return len(bound) == 1 and all(use in bound or self._is_only_asked(use) for use in uses)

    def _is_only_asked(self, use: cst.Name) -> bool:
        """``target(x)``, ``target.eval()``, ``other.target``"""
        above = self.parent(use)
        if isinstance(above, cst.Attribute):
            return above.attr is use or above.attr.value not in _MAY_MOVE
        return (isinstance(above, cst.Call) and above.func is use) or not is_use(self, use)

    def _is_left_by_object(self, meeting: Meeting) -> bool:
        """``self.q = Net().to(device); self.target = Net()``, of an object that is no module."""
        made, path = meeting.host.origin, dotted(meeting.host_node)
        maker = self.flow.function(made) if made is not None else None
        if maker is None or maker.cls is None or maker.cls.is_module or maker.name != "__init__":
            return False
        if not path.startswith("self.") or made is meeting.node or self.flow.function(meeting.node) is maker:
            return False
        moves = [each for each in self.flow.facts.moves.values() if self.flow.function(each.node) is maker]
        code, word = self.code(maker.cls.node), re.escape(path.removeprefix("self."))
        if re.search(rf"\b{word}\b[^\n]*\.(to|cuda|load|apply)\(|\bfor\b[^\n]*\b{word}\b", code):
            return False
        return any(each.target.is_there and each.value.kind == MODULE for each in moves)

    def _is_untold(self, made: cst.Call) -> bool:
        """``def initial(n, device=None): return torch.zeros(n, device=device)``, called without one."""
        given, function = argument(made, None, "device"), self.flow.function(made)
        return given is not None and function is not None and dotted(given.value) in function.devices_by_default

    def _has_parts_replaced(self, made: cst.Call) -> bool:
        """``self.noise = Normal(0, 1); self.noise.loc = self.noise.loc.to(device)``"""
        assign = self.parent(made)
        held = dotted(assign.targets[0].target) if isinstance(assign, cst.Assign) else ""
        return bool(held) and any(
            dotted(each.target).startswith(f"{held}.") for each in self.source.nodes_of(cst.AssignTarget)
        )

    def _has_parts_set(self, meeting: Meeting) -> bool:
        """Whether the function puts something of its own in a module that it has built."""
        start, function = f"{self.code(meeting.host_node)}.", self.flow.function(meeting.node)
        return any(
            isinstance(node.target, cst.Attribute)
            and self.flow.function(node) is function
            and self.code(node.target).startswith(start)
            for node in self.source.nodes_of(cst.AssignTarget)
        )

    def _fix(self, meeting: Meeting) -> Fix | None:
        if meeting.host.kind == MODULE or not isinstance(meeting.host_node, cst.Name | cst.Attribute | cst.Call):
            return None
        if meeting.node is meeting.host.origin:
            return None
        device = device_expression(self.flow, meeting.node, meeting.there_node, meeting.there)
        if device is None or self.enclosing(meeting.host_node, cst.AssignTarget) is not None:
            return None
        return self.fix(f"move it: `.to({device})`", self.insert_after(meeting.host_node, f".to({device})"), safe=False)
