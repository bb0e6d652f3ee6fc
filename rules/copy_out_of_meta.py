from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.facts import Move
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import CONSTRUCTOR, Class
from devlint.flow.value import MODULE, TENSOR, UNKNOWN_KIND, Value
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._errors import is_expected
from devlint.rules._moves import destination


class CopyOutOfMeta(Rule):
    """What was made on the meta device is moved, and has no data to copy.

    ## What it does
    Reports `.to(device)`, `.cuda()` and `.cpu()` on a module or tensor that was made under `torch.device("meta")` or
    `init_empty_weights()`, or with `device="meta"`, before anything gave it data.

    ## Why is this bad
    The meta device keeps shapes and types, and no values: `Cannot copy out of meta tensor; no data!`. `to_empty` makes
    uninitialised memory on the device instead; weights are loaded afterwards, or before with
    `load_state_dict(state, assign=True)`. Without `assign=True`, what is loaded into a meta parameter is dropped.

    ## Example
    ```python
    import torch
    from torch import nn


    def build(state, device):
        with torch.device("meta"):
            model = nn.Linear(1024, 1024)
        model.to(device)
        model.load_state_dict(state)
        return model
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    def build(state, device):
        with torch.device("meta"):
            model = nn.Linear(1024, 1024)
        model.to_empty(device=device)
        model.load_state_dict(state)
        return model
    ```

    ## Fix safety
    The fix calls `to_empty`. It is unsafe: the memory is not initialised, so that weights have to be loaded afterwards,
    and buffers that are not in the state have to be filled. There is none for a tensor.

    ## Limits
    Silent where anything in between may have given the module data: another function that takes it, a method of its own
    or of the object that keeps it, a loop over its parameters, `load_state_dict(..., assign=True)`, `from_pretrained`;
    where its constructor makes parts on another device (`nn.Linear(3, 3, device="cpu")`); and where a test says that
    it is on another device. What one function makes and another moves is not seen.

    ## References
    - [Meta device](https://pytorch.org/docs/stable/meta.html)
    - [torch.nn.Module.to_empty](https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to_empty)
    """

    group = "correctness"
    fixable = "sometimes"
    raises = True

    def check(self) -> None:
        if not any(word in self.source.text for word in ('"meta"', "'meta'", "init_empty_weights")):
            return
        for move in self.flow.facts.moves.values():
            if move.target.kind in ("host", "device", "fixed", "param"):
                self._moved(move)

    def _moved(self, move: Move) -> None:
        made = self._made_empty(move)
        if made is None or is_expected(self, move.node):
            return
        name = self.code(move.receiver)
        self.report(
            move.node,
            f"`{name}` has no data to copy to {destination(self, move)}: it is on the meta device",
            notes=[self.note(made, "it is made without data here")],
            fix=self._fix(move) if move.value.kind != TENSOR else None,
        )

    def _fix(self, move: Move) -> Fix | None:
        if move.how != "to" or len(move.node.args) != 1 or move.target_node is None:
            target = '"cuda"' if move.how == "cuda" and not move.node.args else None
        else:
            target = self.code(move.target_node)
        if target is None or not isinstance(move.node.func, cst.Attribute):
            return None
        start, _ = self.source.offsets(move.node.func.attr)
        _, end = self.source.offsets(move.node)
        return self.fix("use `to_empty`", self.replace_between(start, end, f"to_empty(device={target})"), safe=False)

    def _made_empty(self, move: Move) -> cst.CSTNode | None:
        """Where the receiver was put on the meta device, if it surely is there."""
        value = move.value
        if value.kind == TENSOR:
            return value.origin if value.place.kind == "meta" else None
        if value.kind not in (MODULE, UNKNOWN_KIND):
            return None
        name = dotted(move.receiver)
        # nn.ReLU().to(device)  has nothing to copy
        if not name or (value.kind == MODULE and isinstance(value.ref, str) and not value.holds):
            return None
        made = value.origin if value.place.kind == "meta" else self._made_under_meta(name, move)
        if isinstance(made, cst.Call) and _makes_module(made) and self._may_be_filled_as_made(made):
            return None
        if made is None or (self.flow.function(move.node) is None and self.flow.function(made) is not None):
            return None  # net = build(); net.to(device)   outside of functions
        return made if self._stays_empty(name, made, move.node) else None

    def _made_under_meta(self, name: str, move: Move) -> cst.CSTNode | None:
        """``with torch.device("meta"): model = Net()``, the last thing that the name was bound to before the move."""
        if not any(self._is_meta(item.item) for item in self.source.nodes_of(cst.WithItem)):
            return None
        last: cst.Assign | None = None
        function = self.flow.function(move.node)
        for assign in self.source.nodes_of(cst.Assign):
            bound = any(dotted(target.target) == name for target in assign.targets)
            if not bound or self.flow.function(assign) is not function:
                continue
            if self.source.offsets(assign)[1] < self.source.offsets(move.node)[0]:
                last = assign
        if last is None or not isinstance(last.value, cst.Call) or not _makes_module(last.value):
            return None
        above = self.parent(last)
        while above is not None and not isinstance(above, cst.FunctionDef | cst.If | cst.For | cst.Try):
            contexts = [item.item for item in above.items] if isinstance(above, cst.With) else []
            if any(self._is_meta(each) for each in contexts):
                return last.value
            if isinstance(above, cst.With) and any(map(self._is_other_context, above.items)):
                return None
            above = self.parent(above)
        return None

    def _may_be_filled_as_made(self, made: cst.Call) -> bool:
        """Whether it has no tensors, or some that are not made on the meta device: ``Net(device="cpu")``, and
        ``self.scale = torch.ones(3, device="cpu")`` in its constructor."""
        if self._is_emptied(made):
            return False
        if any(self._is_other_device(arg) for arg in made.args):
            return True
        value = self.flow.value(made)
        if not isinstance(value.ref, Class):
            return False
        classes = dict.fromkeys(value.ref.lineage)
        held = [part for cls in classes for part in cls.attrs.values()]
        if held and value.ref.known_whole and all(_has_none(part) for part in held):
            return not any(cls.sets_by_variable or cls.buffers_by_variable for cls in classes)  # self.act = nn.ReLU()
        todo = list(classes)
        for cls in todo:
            parts = [ref for part in cls.attrs.values() if isinstance(ref := part.ref, Class) and ref not in classes]
            classes.update(dict.fromkeys(parts))
            todo += parts
        inits = [method.node for cls in classes for method in cls.methods.values() if method.role == CONSTRUCTOR]
        return any(
            self._is_other_context(node) if isinstance(node, cst.WithItem) else self._is_other_device(node)
            for init in inits
            for node in tree.walk(init.body)
            if isinstance(node, cst.WithItem | cst.Arg)
        )

    def _is_other_context(self, node: cst.WithItem) -> bool:
        """``with torch.device("cpu"):``"""
        return self.flow.name_of(node.item) == "torch.device" and not self._is_meta(node.item)

    def _is_emptied(self, made: cst.Call) -> bool:
        """Whether it is made under ``init_empty_weights()``, which puts parameters on meta wherever they were made."""
        above = self.enclosing(made, cst.With, cst.FunctionDef)
        while isinstance(above, cst.With):
            if any(self.flow.name_of(item.item) in _EMPTY for item in above.items):
                return True
            above = self.enclosing(above, cst.With, cst.FunctionDef)
        return False

    def _is_other_device(self, arg: cst.Arg) -> bool:
        """``device="cpu"``, and what is handed on of ``def __init__(self, device="cpu")``."""
        if arg.keyword is None or arg.keyword.value not in ("device", "map_location"):
            return False
        function = self.flow.function(arg)
        param = function.param(arg.value.value) if function is not None and isinstance(arg.value, cst.Name) else None
        given = param.default if param is not None else arg.value
        if given is None or dotted(given) == "None" or self.flow.value(given).text == "meta":
            return False
        return not self._is_meta(given)

    def _is_meta(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, cst.Call) and self.flow.name_of(node) in _EMPTY:
            # init_empty_weights(include_buffers=False)  leaves the parameters empty all the same
            return True
        return self.flow.value(node).place.kind == "meta"

    def _stays_empty(self, name: str, made: cst.CSTNode, move: cst.CSTNode) -> bool:
        """Whether nothing between the two may have given it data."""
        start, end = self.source.offsets(made)[1], self.source.offsets(move)[0]
        if self._may_be_filled(name, start, end):
            return False
        kind = cst.Name if "." not in name else cst.Attribute
        for use in self.source.nodes_of(kind):
            if dotted(use) == name and start <= self.source.offsets(use)[0] < end and not self._is_harmless(use):
                return False
        return True

    def _may_be_filled(self, name: str, start: int, end: int) -> bool:
        """``self.load_weights(path)``, between the making of ``self.net`` and its move."""
        return name.startswith("self.") and any(
            isinstance(call.func, cst.Attribute)
            and dotted(call.func.value) == "self"
            and start <= self.source.offsets(call)[0] < end
            for call in self.source.nodes_of(cst.Call)
        )

    def _is_harmless(self, use: cst.CSTNode) -> bool:
        func = self.parent(use)
        if isinstance(func, cst.AssignTarget):
            return True
        call = self.parent(func) if isinstance(func, cst.Attribute) else None
        if not isinstance(func, cst.Attribute) or not isinstance(call, cst.Call) or call.func is not func:
            return False
        if func.attr.value == "load_state_dict":
            # model.load_state_dict(state, assign=True), and the same without its name: (state, True, True)
            assigns = argument(call, 2, "assign")
            return (assigns is None or self.code(assigns.value) == "False") and not any(arg.star for arg in call.args)
        if func.attr.value in ("parameters", "buffers"):
            # for p in model.parameters(): p.data = ...
            # if next(model.parameters()).is_meta: model.to_empty(device="cuda")
            return not isinstance(self.parent(call), cst.For) and not self._is_in_test(call)
        return func.attr.value in _KEEPS_EMPTY

    def _is_in_test(self, node: cst.CSTNode) -> bool:
        test = self.enclosing(node, cst.If, cst.IfExp, cst.While, cst.Assert, cst.BaseSmallStatement)
        return isinstance(test, cst.If | cst.IfExp | cst.While | cst.Assert) and any(
            each is node for each in tree.walk(test.test)
        )


def _has_none(part: Value) -> bool:
    """Whether what an attribute holds surely is nothing with tensors."""
    fact = table.MODULES.get(part.ref) if part.kind == MODULE and isinstance(part.ref, str) else None
    return part.is_data or (fact is not None and fact.tensors == "never")


def _makes_module(call: cst.Call) -> bool:
    """A class, or a configuration made into a model."""
    last = called_name(call)
    return last in ("from_config", "_from_config") or (last[:1].isupper() and not last.isupper())


_EMPTY = frozenset({"accelerate.init_empty_weights", "accelerate.big_modeling.init_empty_weights"})
_KEEPS_EMPTY = frozenset("eval train half bfloat16 float requires_grad_ state_dict to".split())
