"""Which meetings are plain: whoever runs the code as it stands there sees it raise.

What is shown to be on different devices may still never come together: a branch is not taken, a module moves what it
is handed, a placeholder is replaced. Findings that hang on such things are tentative.
"""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.facts import Meeting
from devlint.flow.modules import takes_as_is
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.rule import Rule
from devlint.rules._errors import is_caught
from devlint.rules._switches import tests_above

#: Torch drops a mask that it recognises as causal on its way to their layers.
_LOOK_AT_MASKS = frozenset(f"`torch.nn.{name}`" for name in ("Transformer", "TransformerEncoder", "TransformerDecoder"))
_ON_HOST = re.compile(r"""\bdevice\s*=\s*(?:torch\.device\()?["']cpu""")
#: Factories that take nothing but sizes by position.
OF_SIZES = frozenset("torch.zeros torch.ones torch.empty torch.rand torch.randn torch.eye".split())


def is_plain(rule: Rule, meeting: Meeting) -> bool:
    """Whether a factory's tensor surely comes to the meeting, and the meeting surely refuses it."""
    made = meeting.host.origin
    return (
        isinstance(made, cst.Call)
        and _refuses(rule, meeting)
        and not _may_go_either_way(rule, meeting)
        and _can_be_made(rule, made)
        and not _is_parameter(rule, made)
        and _comes_straight(rule, made, meeting)
        and not _is_for_nothing(rule, meeting)
        and not is_caught(rule, meeting.node)
    )


def _refuses(rule: Rule, meeting: Meeting) -> bool:
    """Whether what they meet in takes them as they are."""
    if meeting.what == "a call of the module":
        # def forward(self, z): z = z.to(self.device)   of a module that others wrote
        return takes_as_is(meeting.there)
    if meeting.what == "an update of the metric":
        return False  # torchmetrics moves some of what it is handed
    if meeting.what in _LOOK_AT_MASKS and isinstance(meeting.node, cst.Call):
        return bool(meeting.node.args) and meeting.node.args[0].value is meeting.host_node
    return True


def _may_go_either_way(rule: Rule, meeting: Meeting) -> bool:
    """``device = "cpu"; rows = torch.tensor(data); rows[torch.tensor([3, 1], device="cuda:0")]`` in a program of the
    host: it is the index that is elsewhere."""
    if meeting.what != "indexing" or rule.flow.function(meeting.node) is not None:
        return False
    return meeting.there.place.kind == "fixed" and _ON_HOST.search(rule.source.text) is not None


def _can_be_made(rule: Rule, made: cst.Call) -> bool:
    """Whether the factory itself works: ``torch.ones(self.width / 2)`` raises, wherever that is."""
    if rule.flow.name_of(made) not in OF_SIZES:
        return True
    return not any(
        isinstance(arg.value, cst.BinaryOperation) and isinstance(arg.value.operator, cst.Divide) for arg in made.args
    )


def _is_parameter(rule: Rule, made: cst.Call) -> bool:
    """``scale = nn.Parameter(torch.zeros(2)); model.register_parameter("scale", scale); model.to(device)``: what it is
    handed on to moves the parameter in place."""
    call = rule.parent(arg) if isinstance(arg := rule.parent(made), cst.Arg) else None
    return isinstance(call, cst.Call) and called_name(call) == "Parameter"


# how it gets there --------------------------------------------------------------------------------


def _comes_straight(rule: Rule, made: cst.Call, meeting: Meeting) -> bool:
    """Whether no branch, turn of a loop or flag lies between the factory and the meeting."""
    node = meeting.node
    function, maker = rule.flow.function(node), rule.flow.function(made)
    if rule.flow.value(meeting.host_node).or_host is not None:
        return False  # bias = torch.zeros(n)   if wide: bias = self.bias(x)
    tests = [test for test, _, _ in tests_above(rule, node)]
    if len(tests) > 1 or any(_asks_for_rest(test) or _asks_for_size(test) for test in tests):
        return False  # where one flag hangs on another, nobody may ever come by
    if maker is not function:
        # def _ramp(self, n): return torch.arange(n)   what a constructor makes may be moved before it is used
        if maker is None or deciders(rule, made):
            return False
        if "collate" in maker.name:
            return False  # it is the loader's, which wants it on the host: what lacks is the move of it later
        return maker.role != CONSTRUCTOR or _is_kept(rule, maker, made, meeting)
    above = deciders(rule, node)
    if any(isinstance(step, cst.ExceptHandler) for step, _ in above):
        return False  # except RuntimeError: rows = torch.cat([torch.zeros(1), row])   it fails before, or never comes
    if any(step not in above for step in deciders(rule, made)):
        return False
    return function is None or not _is_replaced(rule, function, made, meeting, above)


def _is_kept(rule: Rule, maker: Function, made: cst.Call, meeting: Meeting) -> bool:
    """``self.levels = torch.linspace(0, 1, n)`` of a plain object, and nothing else is ever put there."""
    cls, function = maker.cls, rule.flow.function(meeting.node)
    if cls is None or cls.is_module or function is None or function.cls is not cls:
        return False
    held = {dotted(part) for part in tree.walk(meeting.host_node) if isinstance(part, cst.Attribute)}
    names = {name.removeprefix("self.") for name in held if name.startswith("self.") and name.count(".") == 1}
    names = {name for name in names if rule.flow.stores(cls, name)}
    if _sets_by_name(rule, cls) or any(_is_handled(rule, cls, name) for name in names):
        return False
    return bool(names) and all(_is_there_at_first(rule, cls, name, function, meeting.node) for name in names)


#: Ways to set attributes that nobody sees: ``setattr(self, name, getattr(self, name).to(device))``.
_BY_NAME = ("setattr(", "__dict__", "vars(")


def _sets_by_name(rule: Rule, cls: Class) -> bool:
    """Whether the class, or a plain function, sets attributes by names that are no constants."""
    if not any(word in rule.source.text for word in _BY_NAME):
        return False
    plain = [each.node for each in rule.flow.scope.functions.values() if each.cls is None and each.outer is None]
    code = "".join(rule.code(node) for node in (*(each.node for each in (*cls.lineage, *cls.descendants)), *plain))
    return any(word in code for word in _BY_NAME)


def _is_handled(rule: Rule, cls: Class, name: str) -> bool:
    """``class OnDevice(Table): ... self.rows = self.rows.to(device)``, ``self.move(self.rows)``,
    ``self.rows.update(...)``, ``self.rows.data = ...``: something else may put other tensors there."""
    if any(name in method.stores for heir in cls.descendants for method in heir.methods.values()):
        return True
    for node in rule.source.nodes_of(cst.Attribute):
        if dotted(node) != f"self.{name}":
            continue
        above = rule.parent(node)
        if isinstance(above, cst.Attribute) and above.attr.value in ("data", "update"):
            return True
        call = rule.parent(above) if isinstance(above, cst.Arg) else None
        if isinstance(call, cst.Call) and (dotted(call.func).startswith("self.") or not rule.flow.name_of(call)):
            return True
    return False


def _is_there_at_first(rule: Rule, cls: Class, name: str, function: Function, node: cst.CSTNode) -> bool:
    """Whether the first call of a method finds what the constructor made: nothing else is put there but by the method
    itself, once it has read it."""
    by_constructor = 0
    for statement, _ in rule.flow.stores(cls, name):
        setter = rule.flow.function(statement)
        if setter is not None and setter.role == CONSTRUCTOR:
            by_constructor += 1
        elif setter is not function or rule.source.offsets(statement)[1] < rule.source.offsets(node)[1]:
            return False
    return by_constructor == 1


def deciders(rule: Rule, node: cst.CSTNode) -> list[tuple[cst.CSTNode, cst.CSTNode]]:
    """What decides in a function whether and how often a node is run: each with the part that holds the node."""
    found: list[tuple[cst.CSTNode, cst.CSTNode]] = []
    child, above = node, rule.parent(node)
    while above is not None and not isinstance(above, cst.FunctionDef | cst.ClassDef):
        in_test = isinstance(above, cst.If | cst.IfExp | cst.While) and child is above.test
        in_head = isinstance(above, cst.For) and child is above.iter
        if isinstance(above, cst.If | cst.IfExp | cst.For | cst.While | cst.ExceptHandler) and not (in_test or in_head):
            found.append((above, child))
        child, above = above, rule.parent(above)
    return found


def _asks_for_rest(test: cst.BaseExpression) -> bool:
    """``if self.width % 2``: what is there for odd sizes, which nobody may choose."""
    return any(
        isinstance(part, cst.BinaryOperation) and isinstance(part.operator, cst.Modulo) for part in tree.walk(test)
    )


def _asks_for_size(test: cst.BaseExpression) -> bool:
    """``if points.shape[-1] == 2``: what is there for inputs of another shape, which nobody may hand in."""
    return isinstance(test, cst.Comparison) and any(
        isinstance(part, cst.Attribute) and part.attr.value in ("shape", "size", "ndim", "dim")
        for part in tree.walk(test)
    )


def _is_replaced(
    rule: Rule, function: Function, made: cst.Call, meeting: Meeting, above: list[tuple[cst.CSTNode, cst.CSTNode]]
) -> bool:
    """Whether a branch may have put something else in the place of what was made, before it comes to the meeting."""
    names = {part.value for part in tree.walk(meeting.host_node) if isinstance(part, cst.Name)}
    if not names or made is meeting.host_node:
        return False
    start, end = rule.source.offsets(made)[1], rule.source.offsets(meeting.node)[0]
    held = deciders(rule, made)
    turns = [each for each in above if isinstance(each[0], cst.For | cst.While) and each not in held]
    for target in tree.walk(function.node.body):
        if not isinstance(target, cst.AssignTarget | cst.AugAssign) or dotted(target.target) not in names:
            continue
        around = deciders(rule, target)
        at = rule.source.offsets(target)[0]
        if start < at < end and any(each not in above for each in around):
            return True  # out = torch.empty(1)   if wide: out = self.wide(x)   return out * y
        if any(each in around for each in turns) and any(isinstance(each, cst.If) for each, _ in _inside(above, turns)):
            return True  # for step in range(n): if step > 0: y = y + x   y = self.layer(x)
    return False


def _inside(
    above: list[tuple[cst.CSTNode, cst.CSTNode]], turns: list[tuple[cst.CSTNode, cst.CSTNode]]
) -> list[tuple[cst.CSTNode, cst.CSTNode]]:
    """What decides within the outermost of some loops."""
    return above[: above.index(turns[-1])]


# what it is for -----------------------------------------------------------------------------------


def _is_for_nothing(rule: Rule, meeting: Meeting) -> bool:
    """``bias += mask``, and nothing reads the bias afterwards."""
    node, function = meeting.node, rule.flow.function(meeting.node)
    if not isinstance(node, cst.AugAssign) or not isinstance(node.target, cst.Name) or function is None:
        return False
    end = rule.source.offsets(node)[1]
    turns = [each for each, _ in deciders(rule, node) if isinstance(each, cst.For | cst.While)]
    where: list[cst.CSTNode] = [turns[-1]] if turns else []
    read = (part for around in (*where, function.node.body) for part in tree.walk(around))
    return not any(
        isinstance(part, cst.Name)
        and part.value == node.target.value
        and part is not node.target
        and (bool(turns) or rule.source.offsets(part)[0] >= end)
        and not isinstance(rule.parent(part), cst.AssignTarget)
        for part in read
    )
