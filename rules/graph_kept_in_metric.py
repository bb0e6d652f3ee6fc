from __future__ import annotations

import re

import libcst as cst

from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule

#: What no gradient is recorded for: classes, masks, numbers.
_NO_HISTORY = re.compile(
    r"target|label|truth|(^|_)(gt|y|ids?|idx|index(es)?|indices|mask|lengths?|count|num\w*|names?|paths?|files?|weights?|"
    r"batch_size|images?|tokens?|seq\w*|groups?|timestamps?|real)(s|$|_)",
    re.IGNORECASE,
)


class GraphKeptInMetric(Rule):
    """A metric keeps what it is told, with the history that autograd recorded for it.

    ## What it does
    Reports a metric of torchmetrics whose `update` appends an argument, as it is, to a state that is a list
    (`add_state("preds", default=[])`): predictions, scores, losses.

    ## Why is this bad
    torchmetrics runs `update` without recording gradients, and what is appended unchanged has its history all the same:
    `metric.update(logits, y)` in a training step keeps the graph of every step until the epoch ends and the metric is
    reset. Device memory grows in every step.

    ## Example
    ```python
    import torch
    from torchmetrics import Metric


    class Precision(Metric):
        def __init__(self):
            super().__init__()
            self.add_state("preds", default=[], dist_reduce_fx="cat")

        def update(self, preds: torch.Tensor):
            self.preds.append(preds)

        def compute(self):
            return torch.cat(self.preds).mean()
    ```

    ## Use instead
    ```python
    import torch
    from torchmetrics import Metric


    class Precision(Metric):
        def __init__(self):
            super().__init__()
            self.add_state("preds", default=[], dist_reduce_fx="cat")

        def update(self, preds: torch.Tensor):
            self.preds.append(preds.detach())

        def compute(self):
            return torch.cat(self.preds).mean()
    ```

    ## Fix safety
    Safe: the value is the same, and nothing goes backward through a state.

    ## Limits
    Whether the argument has a history is for the caller to say: none has in a validation step, nor where the caller
    detaches it, and `metric(preds, y)` keeps none either. Silent for what is computed in `update`, for what is called a
    target, label, mask or index, and for metrics that are differentiable on purpose (`is_differentiable = True`).

    ## References
    - [torchmetrics: implementing a metric](https://lightning.ai/docs/torchmetrics/stable/pages/implement.html)
    """

    group = "nursery"
    fixable = "always"

    def check(self) -> None:
        if "add_state" not in self.source.text:
            return
        for cls in self.flow.scope.classes.values():
            update = cls.methods.get("update")
            states = {name for each in cls.lineage for name in each.list_states}
            if update is not None and states and "is_differentiable = True" not in self.code(cls.node):
                self._check_update(update, states)

    def _check_update(self, update: Function, states: set[str]) -> None:
        for call in self.source.nodes_of(cst.Call):
            state, _, method = dotted(call.func).rpartition(".")
            if method == "append" and len(call.args) == 1 and self.flow.function(call) is update:
                self._kept(update, state, states, call.args[0].value)
        for each in self.source.nodes_of(cst.AugAssign):
            value = each.value
            if isinstance(value, cst.List) and len(value.elements) == 1 and self.flow.function(each) is update:
                self._kept(update, dotted(each.target), states, value.elements[0].value)

    def _kept(self, update: Function, state: str, states: set[str], value: cst.BaseExpression) -> None:
        """``self.preds.append(preds)``, ``self.preds += [preds]``"""
        if state.removeprefix("self.") not in states or not state.startswith("self."):
            return
        # preds = preds.softmax(-1)  is computed without history
        if not isinstance(value, cst.Name) or value.value in update.assigned or value.value not in update.param_names:
            return
        name = value.value
        param = update.param(name)
        annotated = self.code(param.annotation) if param is not None and param.annotation is not None else "Tensor"
        if _NO_HISTORY.search(name) or "Tensor" not in annotated:
            return
        fix = self.fix("detach it", self.insert_after(value, ".detach()"), safe=True)
        self.report(value, f"`{state}` keeps `{name}` with the history that autograd has for it", fix=fix)
