"""What is put together from several factories' results on the host, and moved as one."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.facts import Move
from devlint.flow.names import dotted
from devlint.rule import Rule
from devlint.rules._made import factory_draws, is_stored, is_view, mentions_of, rearranges, rearranges_first

#: Functions that put tensors side by side, with nothing computed.
_JOIN = frozenset(
    f"torch.{name}"
    for name in "stack cat concat concatenate hstack vstack dstack meshgrid cartesian_prod broadcast_tensors".split()
)
_SAYS_HOW = frozenset({"dim", "axis", "indexing"})


class Joined:
    """The factories whose results, and nothing else, are joined to what a move moves; ``random``: one is drawn."""

    def __init__(self, rule: Rule, move: Move) -> None:
        self.rule, self.move = rule, move
        self.factories: list[cst.Call] = []
        self.random = self.joins = False
        self.reads: dict[str, set[cst.Name]] = {}
        self.statement = rule.enclosing(move.node, cst.BaseSmallStatement)
        function = rule.flow.function(move.node)
        self.is_whole = (
            function is not None
            and self.statement is not None
            and self._is_made(move.receiver)
            and self.joins
            and all(self._is_read_for_nothing_else(name, reads) for name, reads in self.reads.items())
        )

    @property
    def is_at_once(self) -> bool:
        """Whether it all stands in one expression."""
        return not self.reads

    def _is_made(self, node: cst.BaseExpression) -> bool:
        """Whether an expression is a factory's result, or joined of such, and nothing is computed with it."""
        flow = self.rule.flow
        while True:
            if isinstance(node, cst.Name):
                return self._is_made_above(node)
            if isinstance(node, cst.Subscript | cst.Attribute) and is_view(node):
                node = node.value
                continue
            if not isinstance(node, cst.Call):
                return False
            name = flow.name_of(node)
            drawn = factory_draws(flow, node)
            if drawn is not None:
                self.random = self.random or drawn
                if name in table.LIKE:  # torch.ones_like(columns)
                    return bool(node.args) and self._is_made(node.args[0].value)
                self.factories.append(node)
                return True
            if name in _JOIN:
                self.joins = True
                return self._joins(node)
            if name:
                if not rearranges_first(name) or not node.args:
                    return False
                node = node.args[0].value
            elif isinstance(node.func, cst.Attribute) and rearranges(flow, node, node.func.attr.value):
                node = node.func.value
            else:
                return False

    def _joins(self, call: cst.Call) -> bool:
        """`torch.stack([rows, columns], dim=-1)`, `torch.cat((rows, columns), 1)`, `torch.meshgrid(rows, columns)`"""
        parts: list[cst.BaseExpression] = []
        for arg in call.args:
            if arg.keyword is not None:
                if arg.keyword.value not in _SAYS_HOW:
                    return False  # out=, tensors=
            elif isinstance(arg.value, cst.List | cst.Tuple):
                parts += [element.value for element in arg.value.elements]
            elif not isinstance(arg.value, cst.Integer | cst.UnaryOperation):
                parts.append(arg.value)
        return bool(parts) and all(self._is_made(part) for part in parts)

    def _is_made_above(self, name: cst.Name) -> bool:
        """Whether one line of the function, in the same loop, binds the name to what is made of factories' results."""
        if name.value in self.reads:
            self.reads[name.value].add(name)
            return True
        flow = self.rule.flow
        function = flow.function(name)
        assert function is not None
        bindings = [
            assign
            for assign in self.rule.source.nodes_of(cst.Assign)
            if assign is not self.statement and flow.function(assign) is function and name.value in _bound(assign)
        ]
        if name.value in function.param_names:
            return False  # if rows is None: rows = torch.arange(n)
        if len(bindings) != 1 or len(bindings[0].targets) != 1 or flow.loop(bindings[0]) is not flow.loop(name):
            return False  # grid = torch.arange(n); for x in batches: net(x, torch.stack([grid, grid]).to(x.device))
        if not self.rule.source.comes_before(bindings[0], name) or tree.named(bindings[0].value, name.value):
            return False  # for x in batches: x = torch.stack([x, x]); net(x.to(device))
        self.reads[name.value] = {name}
        target, value = bindings[0].targets[0].target, bindings[0].value
        if isinstance(target, cst.Tuple | cst.List) and isinstance(value, cst.Tuple | cst.List):
            if len(target.elements) != len(value.elements):
                return False
            pairs = zip(target.elements, value.elements, strict=True)
            value = next((each.value for at, each in pairs if dotted(at.value) == name.value), value)
        # rows, columns = torch.meshgrid(...)   its elements are those of one call
        return self._is_made(value)

    def _is_read_for_nothing_else(self, name: str, reads: set[cst.Name]) -> bool:
        function, statement = self.rule.flow.function(self.move.node), self.statement
        assert function is not None and statement is not None
        rebinds = (
            isinstance(statement, cst.Assign) and statement.value is self.move.node and _bound(statement) == {name}
        )
        for mention in mentions_of(self.rule, name, function.node):
            if mention in reads:
                continue
            if rebinds and not self.rule.source.comes_before(mention, statement):
                continue  # grid = grid.to(device); net(grid)
            if not is_stored(self.rule, mention) or self._is_written(mention):
                return False  # rows.size(0), rows[0] = 1
        return True

    def _is_written(self, mention: cst.Name) -> bool:
        above = self.rule.parent(mention)
        return isinstance(above, cst.Subscript | cst.Attribute | cst.AugAssign)


def _bound(assign: cst.Assign) -> set[str]:
    """The names that an assignment binds, in a row or not."""
    found: set[str] = set()
    for each in assign.targets:
        target = each.target
        parts = target.elements if isinstance(target, cst.Tuple | cst.List) else (cst.Element(target),)
        found |= {part.value.value for part in parts if isinstance(part.value, cst.Name)}
    return found
