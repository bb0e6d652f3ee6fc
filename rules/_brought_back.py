"""Who brings what numpy made of a tensor to that tensor's device expects it to be on one."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import asks_for_device
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._switches import tests_above

_OF_ARRAYS = frozenset({"torch.from_numpy", "torch.tensor", "torch.as_tensor"})


def read_and_brought_back(rule: Rule) -> Iterator[tuple[cst.Call, cst.Call]]:
    """``torch.from_numpy(rank(y.numpy())).to(y.device)``: where numpy reads the tensor, and what is brought back."""
    for read in rule.source.nodes_of(cst.Call):
        if called_name(read) != "numpy" or read.args or not isinstance(read.func, cst.Attribute):
            continue
        function, name = rule.flow.function(read), _of(read.func.value)
        # np.array([self.read(i).numpy() for i in rows]), to(self.device)   is what a method of its own gives
        if function is None or name in ("", "self") or rule.flow.value(read.func.value).place.is_host:
            continue
        if name in function.handed_host:
            continue  # rank(torch.tensor(scores)), of a function that is called so
        if any(asks_for_device(rule.code(test)) for test, _, _ in tests_above(rule, read)):
            continue  # if y.device.type == "cpu": y.numpy()
        back = _brought_back(rule, function, name)
        if back is not None and rule.source.offsets(read)[1] < rule.source.offsets(back)[1]:
            yield read, back


def _of(node: cst.BaseExpression) -> str:
    """``y`` of ``y[mask].flatten()``, unless it is brought to the host on the way."""
    while True:
        if isinstance(node, cst.Subscript):
            node = node.value
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and called_name(node) not in _MOVING:
            node = node.func.value
        else:
            return node.value if isinstance(node, cst.Name) else ""


_MOVING = frozenset({"cpu", "to", "cuda", "type"})


def _brought_back(rule: Rule, function: Function, name: str) -> cst.Call | None:
    """A tensor made of an array that goes to the device of ``name``, which was no array, and stays where it is."""
    back = None
    for node in tree.walk(function.node.body):
        if not isinstance(node, cst.Call):
            continue
        if called_name(node) == "cpu" and isinstance(node.func, cst.Attribute) and _of(node.func.value) == name:
            return None  # y = y.cpu()
        if rule.flow.name_of(node) in _OF_ARRAYS and node.args and dotted(node.args[0].value) == name:
            return None  # if isinstance(y, np.ndarray): y = torch.from_numpy(y)
        devices = [arg.value for arg in node.args if arg.keyword is None or arg.keyword.value == "device"]
        if not any(dotted(device) == f"{name}.device" for device in devices):
            continue
        made = node.func.value if isinstance(node.func, cst.Attribute) and called_name(node) == "to" else node
        if any(isinstance(part, cst.Call) and rule.flow.name_of(part) in _OF_ARRAYS for part in tree.walk(made)):
            back = back or node
    return back
