"""What goes wrong where a statement registers, as a buffer, what was a plain attribute."""

from __future__ import annotations

import builtins

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import CONSTRUCTOR, Class
from devlint.rule import Rule
from devlint.rules._modules import after_super
from devlint.rules._placed_unseen import bases_elsewhere


def is_taken(rule: Rule, cls: Class, registered: cst.CSTNode, name: str) -> bool:
    """Whether objects have something of that name before the statement registers it, for which torch raises `KeyError`,
    or the statement may be run of what is no module."""
    owner = _owner(rule, registered)
    if owner is None or not owner.is_module or name in _OF_MODULES:
        return True  # class StatsMixin: ...; class Scaler(StatsMixin): ...; class Net(nn.Module, StatsMixin): ...
    family = (*cls.lineage, *owner.descendants, *bases_elsewhere(rule, cls))
    # class Backbone(nn.Module): mean = None   def prior(self): raise NotImplementedError
    if any(name in each.methods or name in each.attrs_of_class for each in family):
        return True
    # class Backbone(nn.Module): def __init__(self): super().__init__(); self.mean = 0.0
    above = (each for each in family if each is not owner and each not in owner.descendants)
    if any(name in method.stores for each in above for method in each.methods.values()):
        return True
    # self.mean = None; super().__init__()
    return any(not after_super(rule, store) for each in owner.descendants for store, *_ in each.stores.get(name, ()))


def is_set_otherwise(rule: Rule, statement: cst.CSTNode, name: str) -> bool:
    """Whether a subclass, or another file, may set the attribute to what is no tensor, which no buffer can be, or
    registers it itself."""
    owner, project = _owner(rule, statement), rule.flow.project
    for heir in owner.descendants if owner is not None else ():
        # class Even(Weighted): def __init__(self): super().__init__(); self.weights = 0.5
        seen = heir.stores.get(name, ())
        is_set = any(name in method.stores for method in heir.methods.values())
        if is_set and (not seen or any(not value.is_tensor and not _is_none(store) for store, value, _ in seen)):
            return True
    # loss.weights = 0.5, net.register_buffer("weights", net.__dict__.pop("weights"))
    return (
        owner is not None
        and project is not None
        and any(project.some_file_says(f"{what} {owner.name} {name}") is True for what in ("resets", "registers"))
    )


def is_handed_on(rule: Rule, cls: Class, statement: cst.Assign | cst.AnnAssign, name: str) -> bool:
    """``self.prior = Normal(self.mu, 1.0)``: what keeps the tensor has that one, wherever the buffer goes."""
    function = rule.flow.function(statement)
    kept = statement.value.value if isinstance(statement.value, cst.Name) else None
    for by in (method for each in (*cls.lineage, *cls.descendants) for method in each.methods.values()):
        for node in tree.walk(by.node.body) if by.role == CONSTRUCTOR else ():
            # self.mask = mask; self.attention = Attention(mask)
            is_it = isinstance(node, cst.Attribute) and dotted(node) == f"self.{name}"
            is_it = is_it or (by is function and isinstance(node, cst.Name) and node.value == kept)
            if is_it and _is_kept(rule, node):
                return True
    return False


def _owner(rule: Rule, statement: cst.CSTNode) -> Class | None:
    """The class in whose methods a statement stands."""
    function = rule.flow.function(statement)
    return function.cls if function is not None else None


def _is_none(store: cst.CSTNode) -> bool:
    return isinstance(store, cst.Assign | cst.AnnAssign) and store.value is not None and dotted(store.value) == "None"


def _is_kept(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether a tensor, as it is, is handed to what the constructor keeps in ``self``."""
    is_handed = False
    above = rule.parent(node)
    if (isinstance(above, cst.Attribute) and above.attr is node) or (
        isinstance(above, cst.Arg) and above.keyword is node
    ):
        return False  # Attention(sizes.mask), Attention(mask=None)
    while above is not None and not isinstance(above, cst.BaseSmallStatement | cst.BaseCompoundStatement):
        call = rule.parent(above) if isinstance(above, cst.Arg) else None
        if isinstance(call, cst.Call):
            if not is_handed and not _may_keep(rule, call):
                return False
            is_handed, above = True, call
        elif (
            not is_handed and isinstance(above, cst.Attribute | cst.Subscript) and not rule.flow.value(above).is_tensor
        ):
            return False  # Grid(self.mask.shape[0])
        above = rule.parent(above)
    if isinstance(above, cst.Expr):
        # self.layers.append(Attention(self.mask))
        return isinstance(above.value, cst.Call) and called_name(above.value) in _ADDS and is_handed
    return (
        is_handed
        and isinstance(above, cst.Assign)
        and any(dotted(target.target).startswith("self.") for target in above.targets)
    )


def _may_keep(rule: Rule, call: cst.Call) -> bool:
    """Whether what is made of a tensor may keep it, and not move it: ``torch.cumsum(self.betas, 0)`` is another one,
    and layers of torch's register what they are handed."""
    name = rule.flow.name_of(call) or rule.flow.scope.qualified(call.func)
    if rule.flow.value(call).is_tensor or hasattr(builtins, name) or called_name(call) in _ADDS:
        return False
    return not name.startswith(("torch.", "numpy.", "math.")) or name.startswith("torch.distributions.")


_ADDS = frozenset("append extend insert add_module register_module".split())
#: What each module has, and a buffer cannot be called.
_OF_MODULES = frozenset(
    "buffers children cpu cuda double eval float half modules parameters state_dict train type".split()
)
