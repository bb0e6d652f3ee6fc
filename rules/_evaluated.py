"""What a model gives in a loop that only evaluates, in code that trains elsewhere: autograd records it all the same."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import called_name, dotted
from devlint.flow.steps import above
from devlint.flow.value import ARRAY, DATA, MODULE, NONE
from devlint.rule import Rule
from devlint.rules._training import FREEING, Body, Loop, is_inside, stops_recording

#: Words of code that trains, or that has turned autograd off: ``Variable(x, volatile=True)``.
_GRADIENTS = re.compile(r"grad|backward|volatile|inference_mode")
_SWITCHES = re.compile(r"requires_grad|set_grad_enabled")
#: How a tensor is read without its history, which says that it has one.
_READS = frozenset({"data", "item", "detach", "cpu"})
_DEEP = 6


class Evaluation:
    """A loop of a body that goes backward, but in other loops; ``is_one``: surely such, with gradients on."""

    def __init__(self, rule: Rule, body: Body, loop: Loop) -> None:
        self.rule, self.body, self.loop = rule, body, loop
        flow = rule.flow
        self.model: cst.Call | None = None
        self._around = body.function.node if body.function is not None else rule.source.module
        self.is_one = (
            bool(body.backwards)
            and bool((around := flow.loop(loop.body.body[0])) and around.loader)
            and not any(isinstance(n, cst.Name) and _GRADIENTS.search(n.value) for n in tree.walk(loop))
            # with torch.no_grad(): for x in loader: ...
            and not any(
                isinstance(n, cst.With) and any(stops_recording(flow, item.item) for item in n.items)
                for n in above(flow, loop)
            )
            # torch.set_grad_enabled(False)   above the loop, and on again below; net.requires_grad_(False)
            and not any(isinstance(n, cst.Name) and _SWITCHES.search(n.value) for n in tree.walk(self._around))
            # for x in loader: log_probs.append(net(x)); for each in log_probs: loss = loss - each; loss.backward()
            and all(rule.source.comes_before(each.node, loop) for each in body.backwards)
        )

    def records(self, node: cst.BaseExpression, holder: str, depth: int = _DEEP) -> bool:
        """Whether autograd records what is kept: what a model gave, or was computed from that in this turn."""
        value = self.rule.flow.value(node)
        if depth == 0 or value.kind in (DATA, ARRAY, NONE) or value.tracked is False:
            return False
        if isinstance(node, cst.Name):
            bound = [
                each for each in self.body.bindings.get(node.value, ()) if is_inside(self.rule.flow, each, self.loop)
            ]
            return len(bound) == 1 and self._records_bound(bound[0], holder, depth)
        if isinstance(node, cst.BinaryOperation):
            return any(self.records(each, holder, depth - 1) for each in (node.left, node.right))
        if not isinstance(node, cst.Call) or called_name(node) in FREEING:
            return False
        called = self.rule.flow.value(node.func)
        if called.kind == MODULE and not self._holds_nothing(called.ref):
            self.model = node
            return True
        name = self.rule.flow.name_of(node)
        if isinstance(node.func, cst.Attribute) and not name and self.records(node.func.value, holder, depth - 1):
            return True
        if called.kind != MODULE and not name.startswith("torch.") and not self._gives_tensor(node, holder):
            return False
        return any(self.records(arg.value, holder, depth - 1) for arg in node.args)

    def _records_bound(self, statement: cst.CSTNode, holder: str, depth: int) -> bool:
        if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
            return False
        value = statement.value
        if isinstance(statement.targets[0].target, cst.Name):
            return self.records(value, holder, depth - 1)
        # out, state = model(x)   unlike   best, index = torch.max(out, 1)
        called = self.rule.flow.value(value.func) if isinstance(value, cst.Call) else None
        return called is not None and called.kind == MODULE and self.records(value, holder, depth - 1)

    def _holds_nothing(self, ref: object) -> bool:
        """`nn.CrossEntropyLoss()`"""
        fact = table.MODULES.get(ref) if isinstance(ref, str) else None
        return fact is not None and fact.tensors not in ("always", "default")

    def _gives_tensor(self, call: cst.Call, holder: str) -> bool:
        """Whether a function gives a tensor: another loop sends backward what it gives, or the sum is read as one."""
        path = dotted(call.func)
        for backward in self.body.backwards:
            for loss in backward.paths:
                for statement in self.body.bindings.get(loss, ()):
                    value = statement.value if isinstance(statement, cst.Assign) else None
                    if path and isinstance(value, cst.Call) and dotted(value.func) == path:
                        return True
        # (total / batches).data.cpu()
        return any(
            isinstance(node, cst.Attribute)
            and node.attr.value in _READS
            and any(dotted(part) == holder for part in _arithmetic(node.value))
            for node in tree.walk(self._around)
        )


def _arithmetic(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node, cst.BinaryOperation):
        return _arithmetic(node.left) + _arithmetic(node.right)
    return [node]
