from __future__ import annotations

import libcst as cst

from devlint.finding import Fix
from devlint.flow import outside
from devlint.flow.facts import Feeding, Move
from devlint.flow.modules import moves_by_itself, takes_as_is
from devlint.flow.scope import Class
from devlint.flow.value import INSTANCE, MODULE, Value
from devlint.rule import Rule
from devlint.rules._data_sets import is_of_torchvision, is_surely_on_host, may_be_preloaded
from devlint.rules._errors import is_caught
from devlint.rules._moved_inline import moved_inline
from devlint.rules._moves import short
from devlint.rules._placed_elsewhere import MADE_ON_HOST, is_encoding, unmoved_inputs
from devlint.rules._places import device_expression, where
from devlint.rules._placing import may_place
from devlint.rules._shown import is_chosen


class InputNotMoved(Rule):
    """A model was moved, and the batch that it is called with was not.

    ## What it does
    Reports a call of a model that was moved to a device, where the first input is on the host: the batch of a
    `DataLoader`, what a tokenizer or processor gives with `return_tensors="pt"`, or a tensor made from an array.

    ## Why is this bad
    Loaders, tokenizers and `torch.from_numpy` give tensors on the host. Moving the model moves its parameters only, so
    that the first layer raises `Expected all tensors to be on the same device`.

    ## Example
    ```python
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset


    def train(dataset: TensorDataset, device):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(device)
        for (x,) in DataLoader(TensorDataset(torch.rand(64, 8))):
            model(x).sum().backward()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset


    def train(dataset: TensorDataset, device):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(device)
        for (x,) in DataLoader(TensorDataset(torch.rand(64, 8))):
            model(x.to(device)).sum().backward()
    ```

    ## Fix safety
    The fix moves the input in the call. It is unsafe: other uses of the batch, its labels above all, may have to be
    moved as well.

    ## Limits
    Silent where something else may move the input:

    - under accelerate, Lightning, `DataParallel` and `device_map`, where a hook comes before the model, and for a model
      whose methods move anything, whose `forward` has a decorator that is not known to leave its arguments alone
      (`@auto_move`) or does not compute with what it is handed first (`self.rows[index]`), or that is made in another
      file, unless it is handed moved inputs, too;
    - where a data set, its transform or a collate function may give tensors that are on the device already, or what is
      on a device was stored into the data set (`rows.data = rows.data.to(device)`).

    Tentative:

    - where nobody can see what makes the data set, and no batches of the same are moved;
    - where an `except` catches the error, the model is called with less than its `forward` takes, or models are brought
      to the host nearby;
    - where the model's device is an argument (`device=None`) that no call in the file gives, or a function was handed
      the model, or its object holds it, and nobody can see where that is: what a tokenizer or a factory made there is
      on the host, in a file that speaks of devices, and the function moves nothing; what meets a model that the
      constructor was handed, and moved (`self.net = net.to(device)`), as that may move its inputs itself;
    - what is moved where another model is called (`net(x.to(device))`), and is handed to this one as it is.

    What is published runs, and this rule is for what is being written. In published code it was true in three of 32
    findings in all samples, most of them tentative ones of a kind that is silent now. It waited in the nursery for
    that, and tells next to nothing there since: in 392 repositories, large and well kept, nothing, and in some 6,500
    packages one, wrong, whose entries are moved one by one, which is silent since. In code that people show when they
    ask why it fails (`benchmarks/questions`) it is among the faults that are asked about most.

    ## References
    - [torch.nn.Module.to](https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to)
    - [torch.utils.data.DataLoader](https://pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader)
    """

    group = "correctness"
    fixable = "sometimes"
    assumes_host_default = True
    raises = True

    def check(self) -> None:
        reported = self._of_moved()
        for call, model, operand, value in unmoved_inputs(self):
            if call in reported or _is_wrapped(self.flow.value(model)) or self._is_moved_by_entry(value):
                continue
            self._report_unseen(model, operand, value)
            reported.add(call)
        for meeting in self.flow.facts.meetings.values():
            # def act(net, x): return net(x)      act(net, torch.from_numpy(obs))
            call = meeting.node
            if meeting.there.kind != MODULE or not isinstance(call, cst.Call) or call in reported:
                continue
            if _is_wrapped(meeting.there) or self._is_moved_by_entry(meeting.host):
                continue
            if self._is_of_host(meeting.host, batches_are_moved=False):
                reported.add(call)
                self._report_unseen(meeting.there_node, meeting.host_node, meeting.host)
        for call, name, move in moved_inline(self):
            if call not in reported and not _is_wrapped(self.flow.value(call.func)):
                self._report_inline(call, name, move)

    def _report_unseen(self, model: cst.BaseExpression, operand: cst.BaseExpression, value: Value) -> None:
        name, asked, place = short(self.code(operand)), short(self.code(model)), self.flow.value(model).place
        put = f"on {where(place)}" if place.is_there else "wherever it was put"
        self.report(
            operand,
            f"`{name}` is on the host, and `{asked}` is {put}",
            notes=[self.note(value.origin, "it comes from here")] if isinstance(value.origin, cst.CSTNode) else [],
            tentative=True,
        )

    def _report_inline(self, call: cst.Call, name: cst.Name, move: Move) -> None:
        self.report(
            name,
            f"`{name.value}` is not moved here, and `{short(self.code(call.func))}` is on "
            f"{where(self.flow.value(call.func).place)}",
            notes=[self.note(move.node, "here, it is moved for this call alone")],
            tentative=True,  # who made that module may have it move what it is handed
        )

    def _of_moved(self) -> set[cst.Call]:
        """Report the inputs of models that are surely on a device; the calls."""
        reported: set[cst.Call] = set()
        feedings = self.flow.facts.feedings.values()
        host = [
            feeding
            for feeding in feedings
            if feeding.value.place.is_host
            and feeding.module.place.name != "self"
            and feeding.value.attr is None
            and not _is_wrapped(feeding.module)
            and not self._is_moved_by_entry(feeding.value)
        ]
        if not host:
            return reported
        # models that are handed moved inputs elsewhere in the file: they do not move them themselves
        fed = [f for f in feedings if f.value.place.is_there]
        batches_moved = any(
            move.target.is_there and self.flow.name_of(move.value.origin) in outside.LOADERS
            for move in self.flow.facts.moves.values()
        )
        for feeding in host:
            seen = any(self._is_same(feeding, other) for other in fed)
            moved = seen or feeding.module.origin in self.flow.facts.moves
            # another model of that name may be handed moved inputs, and this one move its own
            as_is = moved and not moves_by_itself(feeding.module) and (seen or self._takes_as_is(feeding.module))
            if as_is and self._is_of_host(feeding.value, seen or batches_moved):
                self._report(feeding)
                reported.add(feeding.node)
        return reported

    def _is_moved_by_entry(self, value: Value) -> bool:
        """``inputs["input_ids"] = inputs["input_ids"].to(device)``, which may be all that there is to move."""
        return value.origin is not None and any(
            isinstance(target.target, cst.Subscript)
            and self.flow.value(target.target.value).origin is value.origin
            and self.flow.value(assign.value).place.is_there
            for assign in self.source.nodes_of(cst.Assign)
            for target in assign.targets
        )

    def _takes_as_is(self, module: Value) -> bool:
        """Not ``net.register_forward_pre_hook(lambda net, given: given[0].to(device))``."""
        return takes_as_is(module) and "forward_pre_hook" not in self.source.text

    def _is_same(self, a: Feeding, b: Feeding) -> bool:
        """Whether two calls are of one model: another function may call another one by the same name."""
        if self.code(a.module_node) != self.code(b.module_node):
            return False
        if self.code(a.module_node).startswith("self.") and self._owner(a) is not self._owner(b):
            return False
        makers = (a.module.obj, b.module.obj)
        return makers[0] is makers[1] or any(isinstance(maker, cst.Param) for maker in makers)

    def _owner(self, feeding: Feeding) -> Class | None:
        function = self.flow.function(feeding.node)
        return function.cls if function is not None else None

    def _report(self, feeding: Feeding) -> None:
        model, name = short(self.code(feeding.module_node)), short(self.code(feeding.operand))
        notes = []
        if feeding.value.origin is not None:
            notes.append(self.note(feeding.value.origin, f"`{name}` comes from here, on the host"))
        if feeding.module.origin in self.flow.facts.moves:
            notes.append(self.note(feeding.module.origin, f"`{model}` is moved here"))
        self.report(
            feeding.operand,
            f"`{name}` is on the host, and `{model}` is on {where(feeding.module.place)}",
            notes=notes,
            fix=self._fix(feeding),
            tentative=not is_chosen(self, feeding.module)
            or self._may_be_brought(feeding)
            or _lacks_inputs(feeding)
            or self._is_of_unknown(feeding.value),
        )

    def _may_be_brought(self, feeding: Feeding) -> bool:
        """``for net in (self.net, self.ema): net.cpu()``, by whatever name, in the same function or class; and
        ``loader.collate_fn = to_device``."""
        if ".collate_fn =" in self.source.text or is_caught(self, feeding.node):
            return True
        function, owner = self.flow.function(feeding.node), self._owner(feeding)
        for move in self.flow.facts.moves.values():
            if move.target.is_host and move.value.kind == MODULE:
                mover = self.flow.function(move.node)
                if mover is function or (mover is not None and owner is not None and mover.cls is owner):
                    return True
        return False

    # where the input comes from --------------------------------------------------------------------

    def _is_of_host(self, value: Value, batches_are_moved: bool) -> bool:
        """Whether the input surely comes from a loader, a tokenizer or an array, and is on the host there."""
        origin = value.origin
        if not isinstance(origin, cst.Call):
            return False
        name = self.flow.name_of(origin)
        if name in outside.LOADERS:
            return self._gives_host_tensors(origin, batches_are_moved)
        return is_encoding(self, value) or name in MADE_ON_HOST

    def _gives_host_tensors(self, loader: cst.Call, batches_are_moved: bool) -> bool:
        if may_place(self, loader) or may_be_preloaded(self, loader):
            return False
        if not loader.args or loader.args[0].star:
            return batches_are_moved
        made = loader.args[0].value
        dataset = self.flow.value(made)
        if (dataset.kind == INSTANCE and isinstance(dataset.ref, Class)) or dataset.ref == "dataset":
            return True
        return batches_are_moved or is_of_torchvision(self, made)

    def _is_of_unknown(self, value: Value) -> bool:
        """``DataLoader(Rows(x, y))`` where nobody can see what ``Rows`` gives, and nothing moves batches of it."""
        loader, moves = value.origin, self.flow.facts.moves.values()
        if not isinstance(loader, cst.Call) or self.flow.name_of(loader) not in outside.LOADERS:
            return False
        moved = {move.value.origin for move in moves if move.target.is_there}
        return not is_surely_on_host(self, loader, {each for each in moved if isinstance(each, cst.Call)})

    # the fix ---------------------------------------------------------------------------------------

    def _fix(self, feeding: Feeding) -> Fix | None:
        operand = feeding.operand
        if not isinstance(operand, cst.Name | cst.Attribute | cst.Subscript | cst.Call):
            return None
        above = self.parent(operand)
        if isinstance(above, cst.Arg) and above.star == "**" and feeding.value.ref != "encoding":
            return None  # model(**batch): a plain dictionary cannot be moved
        device = device_expression(self.flow, feeding.node, feeding.module_node, feeding.module)
        if device is None:
            return None
        return self.fix(f"move it: `.to({device})`", self.insert_after(operand, f".to({device})"), safe=False)


def _is_wrapped(module: Value) -> bool:
    """``@auto_move def forward(self, x): ...``: what stands around a method may move what that is handed."""
    cls = module.ref
    if not isinstance(cls, Class):
        return False
    entries = [method for name in ("__call__", "forward") if (method := cls.find_method(name)) is not None]
    return any(each.is_replaced for entry in entries for each in cls.reached(entry))


def _lacks_inputs(feeding: Feeding) -> bool:
    """``self.critic(state)`` where ``def forward(self, state, action)``: it raises, wherever the input is."""
    call, cls = feeding.node, feeding.module.ref
    forward = cls.find_method("forward") if isinstance(cls, Class) else None
    if forward is None or not isinstance(call, cst.Call) or any(arg.star for arg in call.args):
        return False
    return len(call.args) < sum(param.default is None for param in forward.positional) - 1
