from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.facts import Move
from devlint.flow.names import dotted
from devlint.flow.value import MODULE
from devlint.rule import Rule
from devlint.rules._distributed import argument, bound_name, is_none, wrappings
from devlint.rules._moves import short
from devlint.rules._places import origin_note


class WrappedBeforeMove(Rule):
    """A model is wrapped in `DistributedDataParallel` while it is still on the host.

    ## What it does
    Reports `DistributedDataParallel(model, device_ids=[...])` where the model is on the host, and a wrapped model that
    is moved to a device afterwards.

    ## Why is this bad
    `DistributedDataParallel` looks at where the parameters are when it is built. With `device_ids` it refuses a model
    on the host. Without, it makes what it gathers gradients in on the host, and its documentation asks never to change
    the parameters afterwards: what it reduces would no longer match them.

    ## Example
    ```python
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


    def build(local_rank):
        model = nn.Linear(8, 8)
        return DistributedDataParallel(model, device_ids=[local_rank])
    ```

    ## Use instead
    ```python
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


    def build(local_rank):
        model = nn.Linear(8, 8)
        return DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
    ```

    ## Fix safety
    The fix moves the model to the device that `device_ids` names. It is unsafe: an optimizer that was built before may
    have state on the host.

    ## Limits
    In the nursery: eight findings in repositories that nobody had tuned for were wrong, for two reasons that are
    mended.

    Silent where it is not known where the model is and nothing moves it afterwards in the same function. Held back as
    tentative: a model that is moved afterwards, and may have been there before.

    Not proved by running: it takes a process group on a device.

    ## References
    - [torch.nn.parallel.DistributedDataParallel](https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
    """

    group = "nursery"
    fixable = "sometimes"

    def check(self) -> None:
        for call in wrappings(self.flow):
            model = argument(call, 0, "module")
            if model is None:
                continue
            value = self.flow.value(model)
            ids = argument(call, 1, "device_ids")
            if value.kind == MODULE and value.place.is_host and not is_none(ids):
                self.report(
                    call,
                    f"`{short(self.code(model))}` is on the host, and `device_ids` says that it is on a device",
                    notes=origin_note(self, f"`{short(self.code(model))}`", value),
                    fix=self._fix(model, ids),
                )
                continue
            move = self._moved_after(call)
            # model = DDP(model.to(device)); model.to(device)   is there already
            if move is not None and not value.place.is_there:
                self.report(
                    call,
                    f"`{short(self.code(model))}` is wrapped before it is moved to its device",
                    notes=[self.note(move.node, "it is moved here")],
                    tentative=not value.place.is_host,  # def wrap(model): model = DDP(model); return model.to(device)
                )

    def _moved_after(self, call: cst.Call) -> Move | None:
        """`model = DDP(model); model.to(device)`, `DDP(model).cuda()`."""
        name, function = bound_name(self.flow, call), self.flow.function(call)
        for move in self.flow.facts.moves.values():
            if not move.target.is_there:
                continue
            if move.receiver is call:
                return move
            same = bool(name) and dotted(move.receiver) == name and self.flow.function(move.node) is function
            after = self.source.comes_before(call, move.node)
            if same and after and not self._excludes(call, move.node):
                return move
        return None

    def _excludes(self, call: cst.CSTNode, move: cst.CSTNode) -> bool:
        """``if on_host: model = DDP(model)`` ``else: model = DDP(model.to(device))``: never both."""
        child, above = call, self.parent(call)
        while above is not None:
            other = above.orelse if isinstance(above, cst.If) and child is above.body else None
            if other is not None and any(node is move for node in tree.walk(other)):
                return True
            child, above = above, self.parent(above)
        return False

    def _fix(self, model: cst.BaseExpression, ids: cst.BaseExpression | None) -> Fix | None:
        if not isinstance(ids, cst.List) or len(ids.elements) != 1 or not isinstance(model, cst.Name):
            return None
        device = self.code(ids.elements[0].value)
        return self.fix("move the model first", self.insert_after(model, f".to({device})"), safe=False)
