"""What the code of a file does with a model that is held by a name, an attribute or a parameter: all of it, or nothing.

A model is moved in place: whoever is handed it may move it. The uses count only where each mention is understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import Class, Function
from devlint.rule import Rule
from devlint.rules._brought import Brought, pairs

#: Methods that move a module, or take it somewhere that moves it.
_MOVE = frozenset("to cuda cpu to_empty xpu npu mps hpu mlu ipu type share_memory _apply to_device".split())
#: Methods that give the module itself: ``net.eval().cuda()``.
_GIVE_ITSELF = frozenset("eval train half float double bfloat16 requires_grad_ apply".split())
#: Methods of the project's own that may move it, by their names.
_MAY_MOVE = re.compile(
    r"load(?!_state_dict)|setup|init|prepare|device|cuda|gpu|place|fit|train_|compile|build|move|dispatch|wrap|parallel"
    r"|start|run|restore|resume|deploy|offload"
)
#: Functions that only look at what they are handed.
_LOOK = frozenset(
    "print len isinstance hasattr getattr type id str repr deepcopy copy save summary count_parameters info debug "
    "warning writer add_graph watch callable next iter list named_parameters".split()
)
#: Packages whose functions move the models they are handed, or what goes into them.
_PLACERS = frozenset(
    "pytorch_lightning lightning transformers accelerate ignite fastai skorch catalyst deepspeed composer mmcv "
    "mmengine ray torchtnt peft trl diffusers sentence_transformers fairscale apex horovod torch torchmetrics "
    "super_gradients ultralytics monai nni optuna".split()
)
_OF_DEVICES = re.compile(r"device|cuda|gpu|DEVICE|place")
#: How often a model is handed on.
_DEEPEST = 4


class Use(NamedTuple):
    """A call of the model with something on a device (``sure``), or of a function nobody knows with both."""

    call: cst.Call
    operand: cst.BaseExpression
    sure: bool


class Uses:
    """Gathers the uses of one model."""

    def __init__(self, rule: Rule, brought: Brought) -> None:
        self.rule, self.brought = rule, brought
        self.found: list[Use] = []
        self.is_module = False  # asked for parameters, or put into evaluation mode
        self._seen: set[cst.CSTNode] = set()

    def gather(self, mentions: Iterable[cst.BaseExpression], depth: int = 0) -> bool:
        """Whether each mention is understood, and none may move the model."""
        return depth <= _DEEPEST and all(self._is_plain(node, depth) for node in mentions)

    def _is_plain(self, node: cst.BaseExpression, depth: int) -> bool:
        if node in self._seen:
            return True
        self._seen.add(node)
        above = self.rule.parent(node)
        if isinstance(above, cst.Attribute) and above.value is node:
            return self._is_plain_member(above, depth)
        if isinstance(above, cst.Call) and above.func is node:
            self._use(above)
            return True
        if isinstance(above, cst.Arg):
            call = self.rule.parent(above)
            return isinstance(call, cst.Call) and self._is_handed_plainly(call, above, depth)
        if isinstance(above, cst.Assign):
            return len(above.targets) == 1 and self._is_plain_alias(above.targets[0].target, depth)
        if isinstance(above, cst.Element):
            return self._is_plain_element(node, above, depth)
        if isinstance(above, cst.AnnAssign):
            return above.target is node
        # return net   net is None   if net:
        return isinstance(
            above,
            cst.Return
            | cst.Comparison
            | cst.ComparisonTarget
            | cst.If
            | cst.UnaryOperation
            | cst.BooleanOperation
            | cst.Expr
            | cst.AssignTarget
            | cst.Param
            | cst.NameItem
            | cst.Del,
        )

    def _is_plain_element(self, node: cst.BaseExpression, element: cst.Element, depth: int) -> bool:
        """``net, head = Net(), Head()``, ``self.net, self.rows = net, rows``"""
        assign = self.rule.enclosing(element, cst.Assign)
        if assign is None or len(assign.targets) != 1:
            return isinstance(self.rule.parent(self.rule.parent(element) or element), cst.Return)
        for target, value in pairs(assign.targets[0].target, assign.value):
            if target is node:
                return True
            if value is node:
                return self._is_plain_alias(target, depth)
        return False

    def _is_plain_member(self, member: cst.Attribute, depth: int) -> bool:
        name = member.attr.value
        call = self.rule.parent(member)
        if not (isinstance(call, cst.Call) and call.func is member):
            if _OF_DEVICES.search(name):
                return False  # net.device = device   it sees to its place itself
            part: cst.CSTNode | None = member
            while isinstance(part, cst.Attribute | cst.Subscript):
                if isinstance(part, cst.Attribute) and (
                    part.attr.value in _MOVE or _OF_DEVICES.search(part.attr.value)
                ):
                    return False  # net.features.cuda()
                part = self.rule.parent(part)
            if not isinstance(part, cst.AssignTarget):
                return True
            assign = self.rule.parent(part)  # net.head = nn.Linear(8, 2).to(device)
            return isinstance(assign, cst.Assign) and not isinstance(assign.value, cst.Call)
        if name in _MOVE:
            return False
        if name in ("parameters", "eval", "state_dict", "load_state_dict", "named_parameters", "zero_grad"):
            self.is_module = True
        if name in _GIVE_ITSELF:
            return self._is_plain(call, depth)
        if name == "load_state_dict" or self._use(call):
            return True
        return not _MAY_MOVE.search(name)

    def _use(self, call: cst.Call) -> bool:
        operand = self.brought.operand(call)
        if operand is not None:
            self.found.append(Use(call, operand, sure=True))
        return operand is not None

    # handed on ----------------------------------------------------------------------------------

    def _is_handed_plainly(self, call: cst.Call, arg: cst.Arg, depth: int) -> bool:
        if arg.star or any(each.star for each in call.args):
            return False
        called = self._called(call)
        if called is not None:
            param = _param_of(call, arg, called)
            if param is None or called.is_replaced:
                return False
            return self.gather(self.brought.mentions(param, called.node.body), depth + 1)
        if called_name(call) == "Sequential":
            return self._is_plain(call, depth)  # whole = nn.Sequential(net, head)
        return called_name(call) in _LOOK or self._is_unknown_use(call, arg.value)

    def _called(self, call: cst.Call) -> Function | None:
        """The function of the file that a call runs, or the constructor."""
        scope, name = self.rule.flow.scope, dotted(call.func)
        head, _, method = name.rpartition(".")
        if not head:
            cls = scope.class_names.get(name)
            if cls is not None:
                return cls.find_method("__init__")
            named = [each for each in scope.functions.values() if each.name == name and each.cls is None]
            return named[0] if len(named) == 1 else None
        around = self.rule.flow.function(call)
        if head == "self" and around is not None and around.cls is not None:
            found = around.cls.find_method(method)
            return found if found is not None and found.home is self.rule.flow else None
        return None

    def _is_unknown_use(self, call: cst.Call, model: cst.BaseExpression) -> bool:
        """``separate(net, wave)``: who moves the wave only, and says no device, leaves the model to nobody."""
        rule = self.rule
        name = rule.flow.scope.imports.get(dotted(call.func).partition(".")[0], "")
        if not name or name.partition(".")[0] in _PLACERS or _OF_DEVICES.search(tree.words(call)):
            return False
        qualified = name + dotted(call.func)[len(dotted(call.func).partition(".")[0]) :]
        project, definition = rule.flow.project, rule.flow.definition(qualified)
        if definition is not None and project is not None and project.speaks_of_devices(definition):
            return False
        operand = self.brought.told(call, model)
        if operand is not None:
            self.found.append(Use(call, operand, sure=False))
        return operand is not None

    def _is_plain_alias(self, target: cst.BaseExpression, depth: int) -> bool:
        """``self.net = net``, ``bare = net``"""
        function = self.rule.flow.function(target)
        if isinstance(target, cst.Attribute) and dotted(target.value) == "self":
            if function is None or function.cls is None or not is_plain_class(function.cls):
                return False
            return self.gather(members(self.rule, target.attr.value, function.cls), depth + 1)
        if isinstance(target, cst.Name):
            around = function.node if function is not None else self.rule.source.module
            return self.gather(self.brought.mentions(target.value, around), depth + 1)
        return False


def members(rule: Rule, name: str, cls: Class) -> list[cst.BaseExpression]:
    """Every attribute of that name in the file, but what other classes call so of their own."""
    found: list[cst.BaseExpression] = []
    for node in rule.source.nodes_of(cst.Attribute):
        if node.attr.value != name:
            continue
        function = rule.flow.function(node) if dotted(node.value) == "self" else None
        other = function.cls if function is not None else None
        if other is None or other in cls.lineage or cls in other.lineage:
            found.append(node)
    return found


def is_plain_class(cls: Class) -> bool:
    """Whether nobody moves the attributes of a class with the whole, as is done with modules, or in an unseen base."""
    return not cls.is_module and cls.known_whole


def _param_of(call: cst.Call, arg: cst.Arg, called: Function) -> str | None:
    if arg.keyword is not None:
        return arg.keyword.value if arg.keyword.value in called.param_names else None
    position = [each for each in call.args if each.keyword is None].index(arg) + called.takes_self
    return called.positional[position].name.value if position < len(called.positional) else None
