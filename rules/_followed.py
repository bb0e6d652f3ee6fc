"""What becomes of what a factory makes on the host: under which names a function goes on with it, and whether anything
brings it elsewhere, or reads it on the host."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted, names_bound
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._switches import tests_above

#: What puts a tensor somewhere, reads it on the host, or makes another of it where something else is.
PUTS = frozenset("to cuda cpu type_as numpy tolist item copy_ new_tensor tensor as_tensor prefetch put".split())
_MAY_PUT = re.compile(
    r"device|cuda|gpu|move|send|prepare|scatter|register_buffer|Parameter$|Dataset$|DataLoader$|(^|_)(to|dev)(_|$)"
)
#: What is read on the host or brought there, types that only tensors there have, and parameters, into which values are
#: copied from anywhere.
_OF_HOST = re.compile(r"\.(cpu|numpy|tolist|load_state_dict)\(|(isinstance\(.{1,40}, |\.type\()torch\.[A-Z]\w*Tensor\)")
#: What makes one value of another.
_PASS_ON = (cst.Attribute, cst.Call, cst.Subscript, cst.BinaryOperation, cst.UnaryOperation, cst.Comparison)


def is_for_host(rule: Rule, function: Function) -> bool:
    """``isinstance(ids, torch.LongTensor)``, ``net.load_state_dict(inflated)``, ``found.append(rows.cpu())``"""
    return _OF_HOST.search(rule.source.text) is not None and _OF_HOST.search(rule.code(function.node)) is not None


def is_put(rule: Rule, function: Function, call: cst.BaseExpression) -> bool:
    """Whether anything in a function brings what a call gives, or what is made of it, somewhere, or reads it."""
    names = _made_of(function, call, kept_as(rule, call))
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Assign) and _fills_from_host(rule, node, names):
            return True
        if isinstance(node, cst.Attribute) and node.attr.value in PUTS and holds(node.value, call, names):
            return True
        if isinstance(node, cst.Call) and _is_told_type(node) and holds(node.func, call, names):
            return True
        if isinstance(node, cst.Call) and any(holds(arg.value, call, names) for arg in node.args):
            word = called_name(node)
            if node is not call and (word in PUTS or _MAY_PUT.search(word)):
                return True
            if rule.flow.name_of(node).partition(".")[0] in ("numpy", "cv2", "scipy", "sklearn", "matplotlib"):
                return True
    # self.mask = self.mask.to(x.device)   in another method
    attrs = "|".join(re.escape(name) for name in names if name.startswith("self."))
    return bool(attrs) and re.search(rf"(?:{attrs})(?:\[[^]\n]*\])?\.(?:to|cuda)\(", rule.source.text) is not None


def is_moved(rule: Rule, function: Function, made: cst.BaseExpression) -> bool:
    """Whether a function moves what an expression gives, under the names that it gives to that, in the same run: not
    in the other branch of an ``if``."""
    names = kept_as(rule, made) or _stored_as(rule, made)
    above = {id(test): holds for test, _, holds in tests_above(rule, made)}
    for node in tree.walk(function.node.body):
        if isinstance(node, cst.Attribute) and node.attr.value in _MOVES:
            moves = holds(node.value, made, names)
        elif isinstance(node, cst.Call) and node is not made:
            word = called_name(node)
            moves = _MAY_PUT.search(word) is not None and any(holds(arg.value, made, names) for arg in node.args)
        else:
            continue
        if moves and all(above.get(id(test), way) == way for test, _, way in tests_above(rule, node)):
            return True
    return False


def _stored_as(rule: Rule, made: cst.BaseExpression) -> set[str]:
    """``self.rows`` of ``self.rows = torch.zeros(n).bool()``"""
    assign = rule.enclosing(made, cst.BaseSmallStatement)
    targets = [each.target for each in assign.targets] if isinstance(assign, cst.Assign) else []
    return {dotted(filled(target)) for target in targets} - {"", "self"}


_MOVES = frozenset("to cuda type_as new_tensor as_tensor".split())


def _is_told_type(call: cst.Call) -> bool:
    """``torch.ones(n).type(x.type())``: the name of a type says where it is, too."""
    given = call.args[0].value if len(call.args) == 1 else None
    return called_name(call) == "type" and isinstance(given, cst.Call) and called_name(given) == "type"


def kept_as(rule: Rule, call: cst.BaseExpression) -> set[str]:
    """The names that a statement gives to what it makes of a call: ``ids = torch.arange(n)[None] > 2``."""
    node: cst.CSTNode = call
    above = rule.parent(node)
    while isinstance(above, _PASS_ON) and not isinstance(node, cst.Arg):
        node, above = above, rule.parent(above)
    if not isinstance(above, cst.Assign) or above.value is not node:
        return set()
    return {name for target in above.targets for name in names_bound(target.target)}


def _made_of(function: Function, call: cst.BaseExpression, own: set[str]) -> set[str]:
    """All names in a function for what something that a call gives went into."""
    known = set(own)
    while True:
        before = len(known)
        for node in tree.walk(function.node.body):
            targets: list[cst.BaseExpression] = []
            if isinstance(node, cst.Assign):
                targets, value = [each.target for each in node.targets], node.value
            elif isinstance(node, cst.AugAssign | cst.NamedExpr):
                targets, value = [node.target], node.value
            elif isinstance(node, cst.For):
                targets, value = [node.target], node.iter
            elif isinstance(node, cst.Call) and called_name(node) in ("append", "extend", "insert") and node.args:
                targets = [node.func.value] if isinstance(node.func, cst.Attribute) else []
                value = node.args[-1].value
            else:
                continue
            if holds(value, call, known):
                for target in targets:
                    known |= names_bound(target) or {dotted(filled(target))} - {"", "self"}
        if len(known) == before:
            return known


def holds(node: cst.CSTNode, call: cst.BaseExpression, names: set[str]) -> bool:
    return any(
        part is call
        or (isinstance(part, cst.Name) and part.value in names)
        or (isinstance(part, cst.Attribute) and dotted(part) in names)
        for part in tree.walk(node)
    )


def _fills_from_host(rule: Rule, node: cst.Assign, names: set[str]) -> bool:
    """``kept[i] = noise.cpu()``"""
    target = node.targets[0].target
    is_item = isinstance(target, cst.Subscript) and dotted(filled(target)) in names
    return is_item and ".cpu(" in rule.code(node.value)


def filled(node: cst.BaseExpression) -> cst.BaseExpression:
    """``rows`` of ``rows[i]``; ``self.rows`` as it is."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return node


def is_from_host(rule: Rule, function: Function, path: str) -> bool:
    """Whether a function got something from what is on the host, through whatever helpers: ``rows`` of ``rows =
    normalized(torch.from_numpy(table))``, ``state`` of ``state = read(file, map_location="cpu")``."""
    known = {re.split(r"[.\[]", path, maxsplit=1)[0]}
    values = [
        (names_bound(*(target.target for target in node.targets)), node.value)
        for node in tree.walk(function.node.body)
        if isinstance(node, cst.Assign)
    ]
    for names, value in reversed(values):
        if names.isdisjoint(known):
            continue
        if _READ_ON_HOST.search(rule.code(value)):
            return True
        if isinstance(value, cst.Subscript | cst.Attribute | cst.Call):
            known |= {part.value for part in tree.walk(value) if isinstance(part, cst.Name)} & function.assigned
    return False


_READ_ON_HOST = re.compile(r"map_location=[^,)]*cpu|\bfrom_numpy\(|\bshape_as_tensor\(|\.cpu\(\)")
