"""What a function makes of a parameter, by the kinds of containers that it asks for."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted, last_word, names_bound
from devlint.flow.scope import Function
from devlint.rule import Rule

#: What an object of a kind has, for `hasattr`.
_HAVE: dict[str, Sequence[object]] = {"tuple": (), "list": []}
#: Kinds of which tuples and lists are both.
_WIDER = frozenset(
    "Sequence Iterable Collection Container Sized Reversible Iterator Generator object Any MutableSequence".split()
)
#: Names in lower case that stand for types, none of them a container that is asked about here.
_KNOWN = frozenset(
    "dict str bytes int float bool complex set frozenset torch np numpy string_classes int_classes float_classes "
    "string_types ndarray device dtype generic number type slice range defaultdict deque nn date datetime "
    "tuple list".split()
)
#: What may be asked about a value without anything being done with it.
_HARMLESS = frozenset(
    "isinstance hasattr type len print repr str id is_tensor callable is_dataclass debug info".split()
)


def asked(node: cst.CSTNode, name: str) -> frozenset[str]:
    """The last words of the types that ``isinstance(name, ...)`` or ``type(name) is ...`` asks for."""
    if isinstance(node, cst.Call) and dotted(node.func) == "isinstance" and len(node.args) == 2:
        return _types(node.args[1].value) if dotted(node.args[0].value) == name else frozenset()
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        left, compared = node.left, node.comparisons[0]
        is_type = isinstance(left, cst.Call) and dotted(left.func) == "type" and len(left.args) == 1
        if is_type and isinstance(left, cst.Call) and dotted(left.args[0].value) == name:
            return _types(compared.comparator)
    return frozenset()


def _types(node: cst.BaseExpression) -> frozenset[str]:
    if isinstance(node, cst.Tuple | cst.List | cst.Set):
        return frozenset().union(*(_types(each.value) for each in node.elements))
    if isinstance(node, cst.BinaryOperation):
        return _types(node.left) | _types(node.right)  # list | tuple
    if isinstance(node, cst.Call) and dotted(node.func) == "type" and len(node.args) == 1:
        value = node.args[0].value  # type(()), type([]), type(None)
        if isinstance(value, cst.Tuple | cst.List | cst.Dict):
            return frozenset({type(value).__name__.lower()})
    return frozenset({last_word(dotted(node)) or "?"})


class Ways:
    """What becomes of a parameter that is a tuple, or a list, on each way through a function.

    ``_is_handled``: something may be done with what is in it; nothing more is said then.
    """

    def __init__(self, rule: Rule, function: Function, name: str, kind: str, within: tuple[Function, ...] = ()) -> None:
        self.rule, self.function, self.name, self.kind = rule, function, name, kind
        self._within = within or (function,)  # functions that are followed already
        self._ends: set[str] = set()  # "same": it is returned as it came; "other", "none"
        self._is_handled = False

    def leaves_it(self) -> bool:
        """Whether it comes out as it went in, on one way, and nothing is done with what is in it on any."""
        body = self.function.node.body
        left = self._block(body.body, frozenset({self.name}))
        if left is not None:
            self._ends.add("none")
        if self._is_handled or "other" in self._ends:
            return False
        # def to_device(batch, device):  for key in batch: batch[key] = ...   returns nothing
        return "same" in self._ends or not self._returns_anything()

    def _returns_anything(self) -> bool:
        return any(
            isinstance(node, cst.Yield) or (isinstance(node, cst.Return) and node.value is not None)
            for node in tree.walk(self.function.node)
        )

    # statements: each gives the names of the value behind it, and None where nothing gets there ----------------------

    def _block(
        self, body: Sequence[cst.BaseStatement | cst.BaseSmallStatement], names: frozenset[str]
    ) -> frozenset[str] | None:
        for statement in body:
            following = self._statement(statement, names)
            if following is None:
                return None
            names = following
        return names

    def _statement(self, node: cst.CSTNode, names: frozenset[str]) -> frozenset[str] | None:
        if isinstance(node, cst.SimpleStatementLine | cst.IndentedBlock | cst.SimpleStatementSuite | cst.Else):
            return self._block(node.body.body if isinstance(node, cst.Else) else node.body, names)
        if isinstance(node, cst.Return):
            is_same = node.value is not None and self._is_same(node.value, names)
            self._ends.add("same" if is_same else "other" if node.value is not None else "none")
            return None
        if isinstance(node, cst.Raise):
            return None
        if isinstance(node, cst.If):
            return self._if(node, names)
        if isinstance(node, cst.Try):
            return self._try(node, names)
        if isinstance(node, cst.With):
            self._touch_all([item.item for item in node.items], names)
            return self._statement(node.body, names)
        if isinstance(node, cst.For | cst.While):
            self._touch(node.iter if isinstance(node, cst.For) else node.test, names)
            return _either(names, self._statement(node.body, names))
        if isinstance(node, cst.Assign) or (isinstance(node, cst.AnnAssign) and node.value is not None):
            targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
            bound = names_bound(*targets)
            is_same = node.value is not None and self._is_same(node.value, names)
            self._touch_all([target for target in targets if not isinstance(target, cst.Name)], names)
            return names | bound if is_same else names - bound
        if isinstance(node, cst.FunctionDef):
            # def cuda(data): return data.to(device)   has a name of its own for it
            inner = self.rule.flow.scope.functions[node].param_names
            self._touch(node, names - inner)
            return names
        if isinstance(node, cst.Assert):
            # assert isinstance(data, torch.Tensor)  refuses what is left
            return None if self._test(node.test, names) is False else names
        self._touch(node, names)
        return names

    def _if(self, node: cst.If, names: frozenset[str]) -> frozenset[str] | None:
        answer = self._test(node.test, names)
        body = self._statement(node.body, names) if answer is not False else None
        orelse = None
        if answer is not True:
            orelse = self._statement(node.orelse, names) if node.orelse is not None else names
        return _either(body, orelse)

    def _try(self, node: cst.Try, names: frozenset[str]) -> frozenset[str] | None:
        """``try: return data.to(device)`` and ``except AttributeError: return data``: no tuple has that."""
        fails = any(
            isinstance(part, cst.Attribute) and dotted(part.value) in names and not self._has(part.attr.value)
            for part in tree.walk(node.body)
        )
        left = None if fails else self._statement(node.body, names)
        for handler in node.handlers:
            left = _either(left, self._statement(handler.body, names))
        return left

    # expressions ----------------------------------------------------------------------------------------------------

    def _is_same(self, node: cst.BaseExpression, names: frozenset[str]) -> bool:
        """Whether an expression may be the value as it came."""
        if isinstance(node, cst.IfExp):
            answer = self._test(node.test, names)
            sides = [node.body] if answer is not False else []
            sides += [node.orelse] if answer is not True else []
            answers = [self._is_same(side, names) for side in sides]  # each is looked at
            return any(answers)
        if isinstance(node, cst.Name):
            return node.value in names
        if isinstance(node, cst.Call) and node.args and dotted(node.args[0].value) in names:
            self._touch_all(node.args[1:], names)
            return self._gives_same(node, names)
        self._touch(node, names)
        return False

    def _gives_same(self, call: cst.Call, names: frozenset[str]) -> bool:
        """``copy.deepcopy(data)``; ``move(data)``, of a function of the file that leaves it, too."""
        called = dotted(call.func)
        if last_word(called) in ("copy", "deepcopy"):
            return True
        scope = self.rule.flow.scope
        inner = (each for each in scope.functions.values() if each.outer is self.function and each.name == called)
        function = scope.function_names.get(called) or next(inner, None)
        first = next((param.name.value for param in function.positional), None) if function is not None else None
        if function is None or first is None or function in self._within:
            self._is_handled = True
            return False
        if not Ways(self.rule, function, first, self.kind, (*self._within, function)).leaves_it():
            self._is_handled = True
        return True

    def _test(self, node: cst.BaseExpression, names: frozenset[str]) -> bool | None:
        """The answer of a test; None where it is not known."""
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
            answer = self._test(node.expression, names)
            return None if answer is None or isinstance(node.expression, cst.Name) else not answer
        if isinstance(node, cst.BooleanOperation):
            decides = isinstance(node.operator, cst.Or)
            left = self._test(node.left, names)
            if left is decides:
                return decides
            right = self._test(node.right, names)
            return right if left is not None or right is decides else None
        for name in names:
            if kinds := asked(node, name):
                is_asked = self._is_one_of(kinds)
                negated = isinstance(node, cst.Comparison) and isinstance(
                    node.comparisons[0].operator, cst.NotEqual | cst.IsNot | cst.NotIn
                )
                return not is_asked if negated else is_asked
        if isinstance(node, cst.Comparison) and dotted(node.left) in names:
            compared = node.comparisons[0]
            if dotted(compared.comparator) == "None":
                return isinstance(compared.operator, cst.IsNot | cst.NotEqual)
        if isinstance(node, cst.Call) and node.args and dotted(node.args[0].value) in names:
            called = last_word(dotted(node.func))
            if called == "hasattr" and len(node.args) == 2 and isinstance(node.args[1].value, cst.SimpleString):
                return self._has(str(node.args[1].value.evaluated_value))
            if called in ("is_tensor", "callable", "is_dataclass"):
                return False
        self._touch(node, names)
        return None

    def _is_one_of(self, kinds: frozenset[str]) -> bool:
        if self.kind in kinds or kinds & _WIDER:
            self._is_handled = True  # isinstance(data, (list, tuple)),  isinstance(data, Sequence)
            return True
        # isinstance(data, CONTAINERS),  isinstance(data, sequence_types)
        if any(kind.isupper() or (kind.islower() and kind not in _KNOWN) or kind == "?" for kind in kinds):
            self._is_handled = True
        return False

    def _has(self, attribute: str) -> bool:
        return hasattr(_HAVE[self.kind], attribute)

    def _touch_all(self, nodes: Sequence[cst.CSTNode], names: frozenset[str]) -> None:
        for node in nodes:
            self._touch(node, names)

    def _touch(self, node: cst.CSTNode, names: frozenset[str]) -> None:
        """Whatever is evaluated here may do something with the value where it names it."""
        for part in tree.walk(node):
            if isinstance(part, cst.Name) and part.value in names and not self._is_only_asked(part):
                self._is_handled = True

    def _is_only_asked(self, name: cst.Name) -> bool:
        """``len(data)``, ``print(type(data))``"""
        above = self.rule.parent(name)
        if isinstance(above, cst.Arg):
            if above.keyword is name:
                return True  # f(data=3)
            call = self.rule.parent(above)
            return isinstance(call, cst.Call) and last_word(dotted(call.func)) in _HARMLESS
        if isinstance(above, cst.Attribute):
            return above.attr is name  # self.data
        return False


def _either(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    return other if one is None else one if other is None else one | other
