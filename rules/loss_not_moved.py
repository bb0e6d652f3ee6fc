from __future__ import annotations

import libcst as cst

from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.facts import Meeting
from devlint.flow.modules import is_loss_or_metric
from devlint.flow.names import dotted, only_target
from devlint.flow.value import MODULE
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._placed_unseen import attribute_may_be_placed, variable_may_be_placed
from devlint.rules._places import device_expression, is_set_before, where
from devlint.rules._shown import is_shown


class LossNotMoved(Rule):
    """A loss or a metric holds tensors on the host, and is handed tensors that are on a device.

    ## What it does
    Reports a loss of `torch.nn` that was given a weight (`nn.CrossEntropyLoss(weight=w)`), or a metric of torchmetrics
    that keeps its state in tensors, where it is never moved and what it is called with was.

    ## Why is this bad
    Such a loss is a module with a buffer, and such a metric one with states: they live on the host until they are
    moved, like the parameters of a model. The first call with tensors that are on the device raises `Expected all
    tensors to be on the same device`; torchmetrics says that it encountered different devices.

    ## Example
    ```python
    import torch
    from torch import nn


    def train(model: nn.Module, loader, device):
        model.to(device)
        criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            criterion(model(x), y).backward()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    def train(model: nn.Module, loader, device):
        model.to(device)
        criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0])).to(device)
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            criterion(model(x), y).backward()
    ```

    ## Fix safety
    The fix moves the loss or the metric where it is made: safe. Where no expression that names the device is sure to
    be bound there, no fix is offered.

    ## Limits
    Silent for a loss that is an attribute of a module, and moves with it, for weights whose place is not known, and for
    metrics that keep what they are given in lists. Tentative:

    - where nothing but a parameter says that what it is called with is on a device, as for `tensor-without-device`;
    - where the file may move it by other means: under another name, in a loop over several, in a container that an
      attribute keeps, by a helper; and where another file sets or moves an attribute of that name
      (`trainer.criterion.to(device)`);
    - where numpy reads what comes of it at once.

    It waited in the nursery since it says next to nothing in published code, which runs: three findings in all samples
    that were told by default, of which strict readers held one for true, one for arguable and one for wrong, and none
    in 392 repositories, large and well kept, and some 6,500 packages. In code that people show when they ask why it
    fails (`benchmarks/questions`) a metric or a weight that was never moved is among the commonest faults, and this
    rule tells of it there.

    ## References
    - [torch.nn.CrossEntropyLoss](https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    - [Metrics and devices](https://lightning.ai/docs/torchmetrics/stable/pages/overview.html#metrics-and-devices)
    """

    group = "correctness"
    fixable = "sometimes"
    assumes_host_default = True
    raises = True
    needs_device = True

    def check(self) -> None:
        reported: set[cst.CSTNode] = set()
        for meeting in self.flow.facts.meetings.values():
            made = meeting.host.origin
            if meeting.host.kind != MODULE or not isinstance(made, cst.Call) or made in reported:
                continue
            if not meeting.host.holds:
                continue  # loss = nn.L1Loss() if regression else nn.BCEWithLogitsLoss()
            name = self.flow.name_of(made)
            if is_loss_or_metric(name) and not self._is_kept_elsewhere(made):
                reported.add(made)
                self._report(made, meeting, "weight" if name in table.MODULES else "state")

    def _is_kept_elsewhere(self, made: cst.Call) -> bool:
        """``accuracy = Accuracy(); model.metric = accuracy; model.to(device)``: it moves with what it is a part of."""
        name = dotted(only_target(self.enclosing(made, cst.BaseSmallStatement) or made))
        return bool(name) and any(
            dotted(assign.value) == name and isinstance(target.target, cst.Attribute)
            for assign in self.source.nodes_of(cst.Assign)
            for target in assign.targets
        )

    def _may_be_placed(self, made: cst.Call) -> bool:
        """``for part in (self.net, self.criterion): part.to(device)``, or another way of moving it that is not seen."""
        name = dotted(only_target(self.enclosing(made, cst.BaseSmallStatement) or made))
        function = self.flow.function(made)
        if not name.startswith("self."):
            return variable_may_be_placed(self, made, name)
        cls = function.cls if function is not None else None
        return cls is not None and attribute_may_be_placed(self, cls, name.removeprefix("self."), is_module=True)

    def _report(self, made: cst.Call, meeting: Meeting, what: str) -> None:
        name, there = short(self.code(meeting.host_node)).removesuffix(".update"), short(self.code(meeting.there_node))
        self.report(
            made,
            f"`{name}` is never moved: its {what} is on the host, and meets `{there}` on {where(meeting.there.place)}",
            notes=[self.note(meeting.node, "they meet here")],
            fix=self._fix(made, meeting),
            tentative=not is_shown(self, meeting) or self._may_be_placed(made),
        )

    def _fix(self, made: cst.Call, meeting: Meeting) -> Fix | None:
        device = device_expression(self.flow, made, meeting.there_node, meeting.there)
        if device is None or not is_set_before(self, device, made):
            return None
        return self.fix(f"move it: `.to({device})`", self.insert_after(made, f".to({device})"), safe=True)
