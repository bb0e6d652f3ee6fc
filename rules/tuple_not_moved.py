from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._kinds_asked import Ways, asked


class TupleNotMoved(Rule):
    """A function that moves nested data asks for lists, and leaves tuples where they are.

    ## What it does
    Reports `isinstance(data, list)` in a function that moves tensors, and those in dictionaries and lists, where a
    tuple comes out as it went in; and `isinstance(data, tuple)` where a list does.

    ## Why is this bad
    The tensors of a tuple stay on the host, without a word, until one of them meets a tensor on the device, far away
    from here: "Expected all tensors to be on the same device". Tuples are what models return (the state of an LSTM is
    one), what a `collate_fn` of one's own returns as `return xs, ys`, and what is put together by hand.

    The default `collate_fn` of a `DataLoader` makes lists of tuples, also of those in tuples and in dictionaries, so
    that such a function goes well until somebody hands it something else; but named tuples stay tuples. Where tuples
    alone are asked for, it is the batches of that very `collate_fn` that stay behind.

    ## Example
    ```python
    import torch


    def move_to(data, device):
        if isinstance(data, dict):
            return {key: move_to(value, device) for key, value in data.items()}
        if isinstance(data, list):
            return [move_to(value, device) for value in data]
        if isinstance(data, torch.Tensor):
            return data.to(device)
        return data
    ```

    ## Use instead
    ```python
    import torch


    def move_to(data, device):
        if isinstance(data, dict):
            return {key: move_to(value, device) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            return [move_to(value, device) for value in data]
        if isinstance(data, torch.Tensor):
            return data.to(device)
        return data
    ```

    ## Fix safety
    No fix is offered: whether a list may come out of a tuple, and what is to be done with named tuples, somebody has to
    say.

    ## Limits
    Whether a tuple ever comes is not asked. Silent where anything else might handle one: `Sequence`, `Iterable`,
    `hasattr(data, "__iter__")`, a function that gets the data; where it is refused (`raise`, `data.to(device)` for
    whatever is left), where annotations say that only lists come, and in tests.

    In the nursery: of eleven findings in some 75,000 public files that nobody had tuned for, four were true, six
    arguable, since no tuple is seen to come, and one wrong. Of nine in 234 more, they held all for arguable: no tuple
    is seen to come.

    ## References
    - [torch.utils.data.default_collate](https://pytorch.org/docs/stable/data.html#torch.utils.data.default_collate)
    """

    group = "nursery"

    def check(self) -> None:
        text = self.source.text
        if not _MOVES_IN_TEXT.search(text) or not _ASKS.search(text) or self.in_tests:
            return
        asked_about: dict[tuple[Function, str], None] = {}
        for call in self.source.nodes_of(cst.Call):
            if dotted(call.func) in ("isinstance", "type") and call.args:
                function, name = self.flow.function(call), dotted(call.args[0].value)
                if function is not None and name in function.param_names:
                    asked_about[function, name] = None
        for function, name in asked_about:
            self._parameter(function, name)

    def _parameter(self, function: Function, name: str) -> None:
        tests = [(node, kinds) for node in tree.walk(function.node) if (kinds := asked(node, name))]
        tests = [(node, kinds) for node, kinds in tests if self.flow.function(node) is function]
        for kind, other in (("list", "tuple"), ("tuple", "list")):
            test = next((node for node, kinds in tests if kind in kinds and other not in kinds), None)
            if test is None or any(other in kinds for _, kinds in tests):
                continue
            if not self._moves_each(test, function) or not self._moves(function):
                continue
            if self._is_told_kind(function, name, other) or not Ways(self, function, name, other).leaves_it():
                continue
            said = f"a {other} is left where it is, with the tensors in it: `{function.name}` asks for {kind}s only"
            self.report(test, said)

    def _moves_each(self, test: cst.CSTNode, function: Function) -> bool:
        """Whether the branch hands each element to the function itself, or moves it."""
        branch = self.enclosing(test, cst.If, cst.IfExp, cst.MatchCase, cst.FunctionDef)
        if branch is None or isinstance(branch, cst.FunctionDef):
            return False
        for node in tree.walk(branch.body):
            if isinstance(node, cst.Name) and node.value == function.name:
                return True
            if self._is_move(node):
                return True
        return False

    def _moves(self, function: Function) -> bool:
        """Whether it moves a tensor, itself or in a function inside it."""
        return any(self._is_move(node) for node in tree.walk(function.node))

    def _is_move(self, node: cst.CSTNode) -> bool:
        """`x.cuda()`, `x.to(device)`; not `x.to(torch.float16)`."""
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
            return False
        how = node.func.attr.value
        if how in ("cuda", "cpu", "npu", "xpu"):
            return True
        if how != "to" or not node.args:
            return False
        if self.flow.move(node) is not None:
            return True
        return any(_NAMES_DEVICE.search(self.code(arg)) or arg.star for arg in node.args)

    def _is_told_kind(self, function: Function, name: str, other: str) -> bool:
        """Whether the annotation of a parameter says what comes, and that none of the other kind does."""
        param = next((each for each in tree.walk(function.node.params) if _is_param(each, name)), None)
        annotation = param.annotation if isinstance(param, cst.Param) else None
        if annotation is None:
            return False
        said = self._expanded(annotation.annotation)
        return not re.search(rf"\b({other}|{other.title()}|{_OPEN})\b", said) and said not in ("dict", "Dict")

    def _expanded(self, annotation: cst.BaseExpression) -> str:
        """The code of an annotation, with what its names are set to in the file: `Batch = Union[Tensor, list]`."""
        names = {node.value for node in tree.walk(annotation) if isinstance(node, cst.Name)}
        made = [
            self.code(each.value)
            for each in self.source.nodes_of(cst.Assign)
            if dotted(each.targets[0].target) in names
        ]
        return " ".join([self.code(annotation), *made])


def _is_param(node: cst.CSTNode, name: str) -> bool:
    return isinstance(node, cst.Param) and node.name.value == name


#: Annotations that let anything in.
_OPEN = "Any|object|Sequence|Iterable|Collection|TypeVar|T"
_ASKS = re.compile(r"\bisinstance\(\w+,\s*[^\n]*?\b(?:list|tuple|List|Tuple)\b|\btype\(\w+\)")
_MOVES_IN_TEXT = re.compile(r"\.(?:to|cuda|cpu|npu|xpu)\(")
_NAMES_DEVICE = re.compile(r"device|cuda|gpu|rank|cpu|(?<![a-z])dev(?![a-z])", re.IGNORECASE)
