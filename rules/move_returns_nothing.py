from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import Class, Function
from devlint.flow.value import MODULE, TENSOR
from devlint.rule import Rule


class MoveReturnsNothing(Rule):
    """A class has a `pin_memory` or `to` that returns nothing, and its answer is used.

    ## What it does
    Reports `pin_memory` of a class that is no module, where it returns nothing, or where one of its ways does; and `to`
    or `cuda`, where something in the file uses what it gives (`batch = batch.to(device)`), where one of its ways gives
    something, or where those of the other classes of the file do.

    ## Why is this bad
    A `DataLoader` with `pin_memory=True` calls the method of each batch that has one, and hands on what that returns:
    the loop gets `None`. Likewise, helpers that move batches write `batch = batch.to(device)`, as for tensors.

    ## Example
    ```python
    import torch


    class Batch:
        def __init__(self, rows):
            self.rows = torch.stack([row["x"] for row in rows])

        def pin_memory(self):
            self.rows = self.rows.pin_memory()
    ```

    ## Use instead
    ```python
    import torch


    class Batch:
        def __init__(self, rows):
            self.rows = torch.stack([row["x"] for row in rows])

        def pin_memory(self):
            self.rows = self.rows.pin_memory()
            return self
    ```

    ## Fix safety
    No fix is offered.

    ## Limits
    In the nursery: two findings in a thousand files that move things by hand, of which one was true. Silent for methods
    that are to be written by others (`pass`, `raise NotImplementedError`), and for `pin_memory` where the file calls it
    as a statement, so that it is not there for a loader.

    ## References
    - [Memory pinning](https://docs.pytorch.org/docs/stable/data.html#memory-pinning)
    """

    group = "nursery"
    raises = True

    def check(self) -> None:
        for cls in self.flow.scope.classes.values():
            if cls.is_module:
                continue
            for name in ("pin_memory", "to", "cuda"):
                method = cls.methods.get(name)
                if method is None or not _is_written(method) or method.is_generator or method.is_property:
                    continue
                gives, empty = self._returns(method)
                if gives and empty:
                    self.report(
                        empty[0],
                        f"`{name}` of `{cls.name}` returns nothing here, and something elsewhere",
                        notes=[self.note(gives[0], "it gives something here")],
                    )
                elif not gives:
                    self._report_nothing(cls, method)

    def _report_nothing(self, cls: Class, method: Function) -> None:
        if method.name == "pin_memory":
            if not self._is_called_alone(method):
                self.report(
                    method.node.name,
                    f"`pin_memory` of `{cls.name}` returns nothing: a loader that pins hands on `None`",
                )
            return
        used = self._used(cls, method)
        if used is not None:
            self.report(
                used,
                f"`{method.name}` of `{cls.name}` returns nothing, and what it gives is used here",
                notes=[self.note(method.node.name, "it is defined here")],
            )
            return
        if self._is_called_alone(method):
            return  # for shard in shards: shard.to(device)
        others = [other for other in self._others(cls, method.name) if self._returns(other)[0]]
        if len(others) > 1 or any(other.cls in cls.lineage[1:] for other in others):
            self.report(
                method.node.name,
                f"`{method.name}` of `{cls.name}` returns nothing, unlike those of the other classes",
                notes=[self.note(others[0].node.name, "this one does")],
            )

    def _others(self, cls: Class, name: str) -> list[Function]:
        """The methods of that name of the other classes of the file that are no modules."""
        classes = self.flow.scope.classes.values()
        return [
            method
            for other in classes
            if other is not cls and not other.is_module and (method := other.methods.get(name)) is not None
        ]

    def _returns(self, method: Function) -> tuple[list[cst.Return], list[cst.Return]]:
        """The statements that return something, and those that return nothing."""
        gives: list[cst.Return] = []
        empty: list[cst.Return] = []
        for node in tree.walk(method.node.body):
            if isinstance(node, cst.Return) and self.flow.function(node) is method:
                nothing = node.value is None or dotted(node.value) == "None"
                (empty if nothing else gives).append(node)
        return gives, empty

    def _is_called_alone(self, method: Function) -> bool:
        """``batch.pin_memory()`` as a statement, outside of such methods."""
        return any(
            isinstance(node.value, cst.Call)
            and called_name(node.value) == method.name
            and self.flow.value(node.value.func.value if isinstance(node.value.func, cst.Attribute) else node).kind
            not in (MODULE, TENSOR)
            and (by := self.flow.function(node)) is not method
            and (by is None or by.name != method.name)
            for node in self.source.nodes_of(cst.Expr)
        )

    def _used(self, cls: Class, method: Function) -> cst.Call | None:
        """``batch = batch.to(device)``, where the flow knows that ``batch`` is of this class."""
        for call in self.source.nodes_of(cst.Call):
            if not isinstance(call.func, cst.Attribute) or call.func.attr.value != method.name:
                continue
            if self.flow.value(call.func.value).ref is cls and not isinstance(self.parent(call), cst.Expr):
                return call
        return None


def _is_written(method: Function) -> bool:
    """Whether a method does anything: not ``pass``, ``...``, a docstring, ``raise NotImplementedError``."""
    if any(re.search(r"abstract|overload", name) for name in method.decorators):
        return False
    parts = list(tree.walk(method.node.body))
    does = any(isinstance(part, cst.Assign | cst.Call) for part in parts)
    return does and not any(isinstance(part, cst.Raise) for part in parts)
