"""Methods that are called before a module is moved, or while it is on the host."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, called_on, dotted
from devlint.flow.scope import Function
from devlint.flow.value import MODULE
from devlint.rule import Rule
from devlint.rules._meetings import calls_of

#: Names of methods that are called once, before anything else is.
_SET_UP = re.compile(r"_?(init|initiali[sz]e|set|setup|load|register|configure)(_|$)|\w+_initiali[sz]e[rd]?$")
#: How a module, or what it is asked through, is brought to the host.
_TO_HOST = re.compile(r"""\.(?:cpu\(\)|to\((?:device=)?(?:torch\.device\()?["']cpu["'])""")


def runs_before_the_move(rule: Rule, function: Function) -> bool:
    """Whether who calls a method has the module on the host, as far as the method tells."""
    return (
        _asks_for_size(rule, function)
        or _tries_out(rule, function)
        or _sets_up(rule, function)
        or _rebuilds(rule, function)
        or _is_asked_on_host(rule, function)
    )


def _asks_for_size(rule: Rule, function: Function) -> bool:
    """``def width(self): return self.conv(torch.zeros(1, 3, 84, 84)).numel()``: constructors ask for that, on the
    host, be it in another file."""
    if function in rule.flow.step_functions:
        return False
    returned = [each.value for each in tree.walk(function.node.body) if isinstance(each, cst.Return)]
    bound: dict[str, list[cst.BaseExpression]] = {}
    for assign in tree.walk(function.node.body):
        if isinstance(assign, cst.Assign):
            for each in assign.targets:
                bound.setdefault(dotted(each.target), []).append(assign.value)
    return bool(returned) and all(value is not None and _is_size(value, bound) for value in returned)


def _is_size(node: cst.BaseExpression, bound: dict[str, list[cst.BaseExpression]]) -> bool:
    """``x.size(1)``, ``x.shape[-1]``, ``int(np.prod(x.size()))``, ``len(x[0].view(-1))``, ``[f.shape[1] for f in xs]``,
    ``x.shape[1], x.shape[2]``, and a name that is ``bound`` to such."""
    if isinstance(node, cst.Name):
        values = bound.get(node.value, ())
        return bool(values) and all(_is_size(each, {}) for each in values)
    if isinstance(node, cst.Tuple | cst.List | cst.Dict):
        return bool(node.elements) and all(_is_size(each.value, bound) for each in node.elements)
    if isinstance(node, cst.ListComp | cst.GeneratorExp):
        return _is_size(node.elt, bound)
    if isinstance(node, cst.BinaryOperation):
        sides = [each for each in (node.left, node.right) if not isinstance(each, cst.Integer)]
        return bool(sides) and all(_is_size(each, bound) for each in sides)
    if isinstance(node, cst.Subscript):
        return _is_size(node.value, bound)
    if isinstance(node, cst.Attribute):
        return node.attr.value in _SIZES
    if not isinstance(node, cst.Call):
        return False
    is_asked = isinstance(node.func, cst.Attribute) and node.func.attr.value in _SIZES
    return is_asked or dotted(node.func) == "len" or (len(node.args) == 1 and _is_size(node.args[0].value, bound))


def _tries_out(rule: Rule, function: Function) -> bool:
    """``def test(self): out = self(torch.rand(1, 3, 32, 32)); assert out.shape == (1, 10)``, of a module that nobody
    moves before: all that is made there ends there."""
    if function in rule.flow.step_functions or function.outer is not None:
        return False
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Yield) or (isinstance(node, cst.Return) and node.value is not None):
            return False
        if isinstance(node, cst.AssignTarget) and "." in dotted(node.target):
            return False
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
            owner, _, done = dotted(node.value.func).rpartition(".")
            if owner.partition(".")[0] == "self" or done in ("backward", "step", "append", "put"):
                return False  # self.log("loss", loss); loss.backward(); found.append(out)
    return True


def _sets_up(rule: Rule, function: Function) -> bool:
    """``def initialize_mean(self): self.mean = self(torch.zeros(1, 3))``, which no step calls: who builds the module
    does, as a rule before it is moved."""
    return function not in rule.flow.step_functions and _SET_UP.match(function.name) is not None


def _rebuilds(rule: Rule, function: Function, known: dict[Function, bool] | None = None) -> bool:
    """``def extend(self, n): self.emb = nn.Embedding.from_pretrained(torch.cat([self.emb.weight.data,
    torch.zeros(n, 8)]))``, or what only such a method calls: who builds a module does that, before it is moved.
    ``known``: what was found out about callers on the way, each asked once."""
    if function in rule.flow.step_functions or function.cls is None:
        return False
    if any(_replaces_part(function, node) for node in tree.walk(function.node.body)):
        return True
    known = {} if known is None else known
    known[function] = False  # for whom calls it and is called by it: a circle that nothing else begins
    callers = {rule.flow.function(call) for call in calls_of(rule, function)}
    for each in callers:
        if each is not None and each not in known:
            known[each] = _rebuilds(rule, each, known)
        if each is None or not known[each]:
            return False
    return bool(callers)


def _replaces_part(function: Function, node: cst.CSTNode) -> bool:
    """``self.emb = ...`` of a module or parameter, ``self.emb.weight = ...``, ``self.weight.data = ...``,
    ``self.weight.copy_(...)``, ``self.weight.data[:n] = ...``"""
    if isinstance(node, cst.AssignTarget | cst.AugAssign):
        target: cst.BaseExpression = node.target
        while isinstance(target, cst.Subscript):
            target = target.value
        return _is_part(function, dotted(target))
    if not isinstance(node, cst.Call) or called_name(node) not in _WRITE:
        return False
    return isinstance(node.func, cst.Attribute) and _is_part(function, dotted(node.func.value))


def _is_part(function: Function, path: str) -> bool:
    """``self.emb`` of a layer, ``self.emb.weight``, ``self.scale`` of a parameter, ``self.scale.data``"""
    owner, _, rest = path.partition(".")
    name, _, deeper = rest.partition(".")
    held = [each.attrs[name] for each in function.cls.lineage if name in each.attrs] if function.cls else []
    if owner != "self" or not held:
        return False
    is_module, is_parameter = (any(each.kind == MODULE for each in held), any(each.ref == "parameter" for each in held))
    return is_module or (is_parameter and deeper in ("", "data"))


def _is_asked_on_host(rule: Rule, function: Function) -> bool:
    """``net = net.cpu(); print(net.diversity())``, and nothing else asks it."""
    calls = [
        call
        for call in rule.source.nodes_of(cst.Call)
        if called_name(call) == function.name and isinstance(call.func, cst.Attribute) and called_on(call) != "self"
    ]
    return bool(calls) and all(_is_on_host_by_then(rule, call) for call in calls)


def _is_on_host_by_then(rule: Rule, call: cst.Call) -> bool:
    function, owner = rule.flow.function(call), called_on(call)
    last = None
    for each in rule.source.nodes_of(cst.Call):
        moves = called_name(each) in ("cpu", "cuda", "to") and called_on(each) == owner and bool(owner)
        if moves and rule.flow.function(each) is function and rule.source.comes_before(each, call):
            last = each
    return last is not None and _TO_HOST.search(rule.code(last)) is not None


_SIZES = frozenset({"size", "shape", "numel", "nelement"})
_WRITE = frozenset("copy_ fill_ mul_ add_ normal_ uniform_ zero_ index_copy_ set_".split())
