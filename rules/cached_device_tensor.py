from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted, is_tensor_annotation
from devlint.flow.scope import HOST_SIDE, Class, Function
from devlint.flow.value import DICT, LIST, MODULE, TUPLE, Value
from devlint.rule import Rule
from devlint.rules._first_device import FirstDevice, kept_where_first_made
from devlint.rules._neighbours import Told, report_together

#: What a cached function may be asked about without end being in sight: devices and types are few.
_FEW = frozenset("dtype torch_dtype device_type".split())


class CachedDeviceTensor(Rule):
    """A cache of function results holds tensors on a device, or the module that made them.

    ## What it does
    Reports `functools.lru_cache` and `functools.cache` on a method of a module, on a function that takes tensors, and,
    where the cache has no bounds, on a function that gives tensors on a device for any number of arguments.

    Reports, too, an attribute of a module that is `None` at first, and that is filled where it is missing or does not
    fit, on the device of the input: nothing asks whether it is on that device the next time.

    ## Why is this bad
    A cache holds what it was asked and what it answered until newer entries push them out: without bounds, until the
    program ends. On a method, `self` is part of each key, so that a module, its parameters and all its buffers stay
    on the device after the last other reference is gone. A tensor as a key is found again only if it is the same
    object; each new one is kept, with its result. What a module makes for its first input stays on that device when
    the module is moved, and the next operation finds it there.

    ## Example
    ```python
    from functools import lru_cache

    import torch
    from torch import nn


    class Rotary(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.register_buffer("inverse", 1.0 / torch.arange(1.0, width))

        @lru_cache(maxsize=32)
        def table(self, n):
            return torch.outer(torch.arange(n, device=self.inverse.device), self.inverse)
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    class Rotary(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.register_buffer("inverse", 1.0 / torch.arange(1.0, width))
            self.tables = {}

        def table(self, n):
            if n not in self.tables:
                self.tables[n] = torch.outer(torch.arange(n, device=self.inverse.device), self.inverse)
            return self.tables[n]
    ```

    ## Fix safety
    The fix drops the decorator, where `self` or a tensor is in the keys. It is unsafe: the work is done anew in each
    call then. Where it costs much, keep the results on the object, or key them by what the tensor stands for.

    ## Limits
    In the nursery: of 20 findings in repositories that nobody had tuned for, 3 were worth a change. Most of the caches
    hold a few bytes, or nobody calls what is cached. Decorators only. Silent for functions with a bounded cache and no
    tensor among their arguments, for those that are asked about devices, types, settings that have a default, and what
    has few values by its annotation (`Literal`, `bool`, an `Enum`) or by a check (`assert bands in {80, 128}`) alone,
    and for what runs on the host, such as the methods of a data set. Caches kept in dictionaries are not looked at.
    Tentative are attributes that are filled with the first input: many a module is never moved after that. Silent where
    a test around asks for a device, where any other method clears the attribute, and where a use moves it.

    ## References
    - [functools.lru_cache](https://docs.python.org/3/library/functools.html#functools.lru_cache)
    """

    group = "nursery"
    fixable = "sometimes"

    def check(self) -> None:
        report_together(self, (self._kept(each) for each in kept_where_first_made(self)))
        if "cache" not in self.source.text:
            return
        for function in self.flow.scope.functions.values():
            for decorator in function.node.decorators:
                bounded = self._bounds(decorator)
                if bounded is not None and function.role != HOST_SIDE:
                    self._check_function(function, decorator, bounded)

    def _kept(self, kept: FirstDevice) -> Told:
        return Told(
            kept.none,
            f"`self.{kept.name}` is made where the first input is, and stays there when `{kept.cls.name}` is moved",
            f"so does `self.{kept.name}`",
            notes=[
                self.note(kept.test.test, "nothing here asks where it is"),
                self.note(kept.store, "it is made here, on the device of the input"),
            ],
            key=(kept.cls, kept.test),
            tentative=True,
        )

    def _bounds(self, decorator: cst.Decorator) -> bool | None:
        """Whether a cache has bounds; ``None`` where the decorator makes none."""
        node = decorator.decorator
        call = node if isinstance(node, cst.Call) else None
        name = self.flow.scope.qualified(call.func if call is not None else node)
        if name == "functools.cache":
            return False
        if name != "functools.lru_cache":
            return None
        size = (
            next((a.value for a in call.args if a.keyword is None or a.keyword.value == "maxsize"), None)
            if call
            else None
        )
        return not (isinstance(size, cst.Name) and size.value == "None")

    def _check_function(self, function: Function, decorator: cst.Decorator, bounded: bool) -> None:
        name = function.name
        of_object = function.takes_self and not function.is_classmethod
        returned = function.summary.returns if function.summary is not None else None
        gives_tensors = returned is not None and _is_there(returned)
        cls = function.cls
        if of_object and cls is not None and cls.is_module and not _has_state(cls):
            return  # an embedding that computes its table anew: nothing of its own is on a device
        if of_object and cls is not None and (cls.is_module or gives_tensors):
            what = "the module and all that it has" if cls.is_module else "the object and what it was given"
            said = f"the cache of `{name}` has `self` in its keys: it keeps {what} on the device after its last use"
            self.report(function.node.name, said, fix=self._fix(decorator))
            return
        tensors = [p for p in function.params if is_tensor_annotation(p.annotation)]
        if tensors:
            first = tensors[0].name.value
            self.report(
                function.node.name,
                f"the cache of `{name}` has the tensor `{first}` in its keys: it keeps each one, and finds none again",
                notes=[self.note(tensors[0], "tensors with the same values are different keys")],
                fix=self._fix(decorator),
            )
            return
        # def mel_filters(device, n_mels=80): a setting has few values in a program, or one
        needed = [p for p in function.params if p.default is None and not self._has_few_values(function, p)]
        asked = [p.name.value for p in needed if not (names_device(p.name.value) or p.name.value in _FEW)]
        if gives_tensors and not bounded and asked:
            self.report(
                function.node.name,
                f"the cache of `{name}` has no bounds: a tensor on the device for each `{asked[0]}` stays for ever",
            )

    def _has_few_values(self, function: Function, param: cst.Param) -> bool:
        """Whether the code says which values an argument may have."""
        said = param.annotation.annotation if param.annotation is not None else None
        if isinstance(said, cst.Subscript) and dotted(said.value).rpartition(".")[2] == "Literal":
            return True  # kind: Literal["hann", "hamming"]
        if isinstance(said, cst.Name) and (said.value == "bool" or self._is_enum(said.value)):
            return True
        for statement in tree.walk(function.node.body):
            # assert bands in {80, 128}
            if isinstance(statement, cst.Assert) and _is_one_of(statement.test, param.name.value, cst.In):
                return True
            # if bands not in (80, 128): raise ValueError(bands)
            if isinstance(statement, cst.If) and _is_one_of(statement.test, param.name.value, cst.NotIn):
                return any(isinstance(each, cst.Raise) for each in tree.walk(statement.body))
        return False

    def _is_enum(self, name: str) -> bool:
        return any(
            node.name.value == name and any(dotted(base.value).endswith("Enum") for base in node.bases)
            for node in self.source.nodes_of(cst.ClassDef)
        )

    def _fix(self, decorator: cst.Decorator) -> Fix | None:
        source = self.source
        start, end = source.offsets(decorator)
        first, below = source.lines[source.place(start)[0] - 1], source.lines[source.place(end)[0]]
        if any(first <= offset < below for offset, _ in source.comments):
            return None
        return self.fix("drop the cache", self.replace_between(first, below, ""), safe=False)


def _has_state(cls: Class) -> bool:
    """Whether a module is known to hold parameters, buffers or other modules."""
    return any(c.buffers for c in cls.lineage) or any(
        v.kind == MODULE or v.ref == "parameter" or v.place.is_there for c in cls.lineage for v in c.attrs.values()
    )


def _is_one_of(test: cst.BaseExpression, name: str, operator: type[cst.BaseCompOp]) -> bool:
    """``name in {80, 128}``: written out, element by element."""
    if not isinstance(test, cst.Comparison) or dotted(test.left) != name or len(test.comparisons) != 1:
        return False
    target = test.comparisons[0]
    return isinstance(target.operator, operator) and isinstance(target.comparator, cst.Set | cst.Tuple | cst.List)


def _is_there(value: Value) -> bool:
    """A tensor on a device, or a container with one in it."""
    if value.kind in (LIST, TUPLE, DICT) and value.items:
        items = value.items
        inner = [items] if isinstance(items, Value) else items.values() if isinstance(items, dict) else items
        return any(_is_there(item) for item in inner)
    return value.is_tensor and value.place.is_there
