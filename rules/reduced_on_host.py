from __future__ import annotations

import libcst as cst

from devlint.finding import Fix
from devlint.flow.facts import Move
from devlint.flow.loops import runs_sometimes, working_loop
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._places import origin_note
from devlint.rules._training import bound_paths


class ReducedOnHost(Rule):
    """A whole tensor is copied to the host, which then computes a much smaller one from it.

    ## What it does
    Reports `x.cpu().mean()`, `x.cpu().numpy().argmax(1)`, `np.max(x.cpu().numpy())` and the like, in a loop that drives
    a device or in `forward`, where `x` lives on a device and the copy is used for nothing else.

    ## Why is this bad
    All of the tensor goes over the bus, where its sum or its largest index would have done, and the host computes what
    the device computes faster.

    ## Example
    ```python
    import torch


    @torch.no_grad()
    def predict(model, loader, device):
        found = []
        for x in loader:
            found.append(model(x.to(device)).cpu().argmax(dim=1))
        return torch.cat(found)
    ```

    ## Use instead
    ```python
    import torch


    @torch.no_grad()
    def predict(model, loader, device):
        found = []
        for x in loader:
            found.append(model(x.to(device)).argmax(dim=1).cpu())
        return torch.cat(found)
    ```

    ## Fix safety
    The fix swaps the two calls. It is unsafe: a device adds in another order than the host does, so that the last
    digits of a sum may differ. For numpy's functions no fix is offered.

    ## Limits
    Silent for single values, where the type is changed on the host first (`x.cpu().double().mean()`), where the copy
    has a name, in some iterations only (`if step % 100 == 0`), and outside of loops. Tentative where one value of each
    sample is left to copy (`(scores.argmax(1) == labels).cpu().sum()`): that is little. Tentative, too, where one axis
    is reduced (`errors.cpu().mean(axis=1)`): it may be a short one.

    In the nursery: of 8 findings in repositories that nobody had tuned for, 2 were worth a change. What the others copy
    is little, such as the scores of one sample: the copy of what is left of them takes as long.

    Not proved by running: there is one copy either way, and what shrinks is its size, of which proofs say nothing.

    ## References
    - [Performance tuning guide: avoid unnecessary CPU-GPU synchronization](https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization)
    """

    group = "nursery"
    fixable = "sometimes"

    def check(self) -> None:
        for move in self.flow.facts.moves.values():
            value = move.value
            if not (move.target.is_host and value.holds_tensors and value.place.is_there) or value.zero:
                continue
            reduced = self._reduced(move)
            if reduced is None:
                continue
            loop = working_loop(self.flow, move.node)
            if loop is not None and loop.works:
                # if done: print(rewards.cpu().numpy().mean())
                if runs_sometimes(self.flow, move.node, loop):
                    continue
            elif not self.flow.runs_each_step(move.node):
                continue
            self._report(move, reduced)

    def _reduced(self, move: Move) -> cst.Call | None:
        """The call that makes a smaller tensor or array of the copy, and of nothing else."""
        node: cst.BaseExpression = move.node
        while True:
            above = self.parent(node)
            call = self.parent(above) if above is not None else None
            if not isinstance(call, cst.Call):
                return None
            if isinstance(above, cst.Arg):
                # np.mean(x.cpu().numpy())
                package, _, name = self.flow.name_of(call).rpartition(".")
                return call if package in ("numpy", "torch") and name in _REDUCING and call.args[0] is above else None
            if not isinstance(above, cst.Attribute) or call.func is not above:
                return None
            if above.attr.value in _REDUCING:
                return call
            if above.attr.value not in ("detach", "numpy"):
                return None
            node = call

    def _report(self, move: Move, reduced: cst.Call) -> None:
        name = short(self.code(move.receiver))
        by = reduced.func.attr.value if isinstance(reduced.func, cst.Attribute) else short(self.code(reduced.func))
        self.report(
            reduced,
            f"all of `{name}` is copied to the host, only for `{by}` to make less of it",
            notes=origin_note(self, f"`{name}`", move.value),
            fix=self._fix(move, reduced),
            # errors.cpu().mean(axis=1)   leaves some, of which nobody knows how many
            tentative=bool(reduced.args[isinstance(self.parent(move.node), cst.Arg) :])
            or self._is_reduced(move.receiver, self.flow.function(move.node)),
        )

    def _is_reduced(self, node: cst.BaseExpression, function: Function | None, depth: int = 3) -> bool:
        """Whether one value of a sample is left: `scores.max(1)[1]`, `found.eq(labels)`, `(found == labels).int()`."""
        if isinstance(node, cst.Comparison):
            return any(self._is_reduced(n, function, depth) for n in (node.left, node.comparisons[0].comparator))
        if isinstance(node, cst.Subscript):
            return self._is_reduced(node.value, function, depth)
        if isinstance(node, cst.Call):
            tensor = self.flow.name_of(node).startswith("torch.") and len(node.args) > 1
            if called_name(node) in _REDUCING and (tensor or (node.args and not self.flow.name_of(node))):
                return True
            return isinstance(node.func, cst.Attribute) and self._is_reduced(node.func.value, function, depth)
        if isinstance(node, cst.Attribute):
            return self._is_reduced(node.value, function, depth)
        # found = scores.max(1)[1]; _, found = scores.max(1)
        return depth > 0 and any(
            self._is_reduced(assign.value, function, depth - 1)
            for assign in self.source.nodes_of(cst.Assign)
            if self.flow.function(assign) is function and dotted(node) in bound_paths(assign)
        )

    def _fix(self, move: Move, reduced: cst.Call) -> Fix | None:
        """`x.cpu().mean()` -> `x.mean().cpu()`"""
        if not isinstance(reduced.func, cst.Attribute) or reduced.func.value is not move.node or move.node.lpar:
            return None
        if reduced.func.attr.value in _GIVING_PAIRS and reduced.args:
            return None
        _, start = self.source.offsets(move.receiver, outer=True)
        _, end = self.source.offsets(move.node)
        copy = self.source.text[start:end]
        if "#" in copy or "\n" in copy:
            return None
        return self.fix(
            "reduce it first", self.replace_between(start, end, ""), self.insert_after(reduced, copy), safe=False
        )


_REDUCING = frozenset("mean sum max min amax amin argmax argmin norm std var any all prod median".split())
#: With ``dim`` they give values and indices.
_GIVING_PAIRS = frozenset({"max", "min", "median"})
