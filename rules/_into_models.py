"""What a function hands as it is to a model or its loss: a tensor, where nothing shows a graph or a mapping."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import LOSS_NAME, MODEL_NAME
from devlint.flow.names import dotted, last_word, names_bound
from devlint.flow.value import MODULE
from devlint.rule import Rule
from devlint.rules._afterwards import reads_of
from devlint.rules._tensor_use import OF_TENSORS, called_names

#: Packages whose batches move in place.
_IN_PLACE = frozenset({"torch_geometric", "pytorch_geometric", "dgl", "torch_cluster", "jraph", "tokenizers"})
#: Makes mappings that move in place.
_MAKES_MAPPINGS = ("token", "processor", "collat", "encode")
#: Names of what holds several tensors and moves in place, even where it is one part of several.
_OF_SEVERAL = re.compile(r"graph|encod(ing|ed)|^(data|batch|features|samples)$")
#: Holders of other things than batches.
_SETTINGS = re.compile(r"(^|\.)(args|opts?|config|cfg|params|state|models?|modules?|nets?)$")
#: That may also be what turns images on the host, which is handed no part of a batch.
_TRANSFORMER = re.compile(r"(^|_)transformer$")
#: What is asked of tensors besides their methods.
_ATTRIBUTES = OF_TENSORS | frozenset({"to", "cuda", "cpu", "shape", "size", "dtype", "device", "ndim", "dim", "float"})


def goes_into_model(rule: Rule, receiver: cst.BaseExpression, since: cst.CSTNode) -> bool:
    """``for x, y in batches: x.to(device); model(x)``, ``x = read(path); x.to(device); model(x)``"""
    function = rule.flow.function(receiver)
    if not isinstance(receiver, cst.Name):
        return False
    name, packages = receiver.value, {each.partition(".")[0] for each in rule.flow.scope.imports.values()}
    called = called_names(rule, function)
    if packages & _IN_PLACE or name in called or name == "self" or MODEL_NAME.search(name):
        return False
    around = function.node if function is not None else rule.source.module
    if not _is_bound_to_tensor(around, name, called):
        return False
    reads = reads_of(rule, function, name)
    if not all(_is_tensors_read(rule, read) for read in reads):
        return False
    later = [read for read in reads if rule.source.comes_before(since, read)]
    return any(_is_handed_to_model(rule, read) for read in later)


def _is_bound_to_tensor(around: cst.CSTNode, name: str, called: set[str]) -> bool:
    """Whether a function takes a batch apart for it, or has it from a call that makes no mapping."""
    for node in tree.walk(around):
        if isinstance(node, cst.For) and _is_part(node.target, name, node.iter):
            return True
        if isinstance(node, cst.Assign):
            for each in node.targets:
                if dotted(each.target) == name:
                    return _is_of_batch(node.value) or _gives_tensors(node.value)
                if isinstance(each.target, cst.Tuple | cst.List):
                    position = _position(each.target, name)
                    if position is None:
                        continue
                    if _OF_SEVERAL.search(name) or names_bound(each.target) & called:
                        return False  # head, tail = parts; head(x)
                    return _gives_part(node.value, position)
    return False


def _position(target: cst.Tuple | cst.List, name: str) -> int | None:
    """Where a name stands among those that something is taken apart into; ``None`` behind ``*others``, too."""
    for position, element in enumerate(target.elements):
        if not isinstance(element, cst.Element):
            return None
        if isinstance(element.value, cst.Name) and element.value.value == name:
            return position
    return None


def _gives_part(value: cst.BaseExpression, position: int) -> bool:
    """``images, boxes = data``, ``source, target = batch.source, batch.target``, ``mask, count = masks(source)``"""
    if isinstance(value, cst.Tuple):
        part = value.elements[position].value if position < len(value.elements) else None
        return part is not None and (_is_of_batch(part) or _gives_tensors(part))
    if isinstance(value, cst.Call):
        return last_word(dotted(value.func))[:1].islower()
    return isinstance(value, cst.Name) or _is_of_batch(value)


def _is_of_batch(value: cst.BaseExpression) -> bool:
    """``batch[0]``, ``batch["image"]``, ``batch.source``, and not ``self.encoder``"""
    if not isinstance(value, cst.Subscript | cst.Attribute):
        return False
    holder = dotted(value.value)
    return bool(holder) and not holder.startswith(("self", "cls")) and not _SETTINGS.search(holder)


def _gives_tensors(made: cst.BaseExpression) -> bool:
    """``read(path)``, and not ``Inputs(path)``, ``tokenizer(text)``"""
    called = dotted(made.func) if isinstance(made, cst.Call) else ""
    plain = last_word(called)
    return bool(plain) and plain[:1].islower() and not any(word in called.lower() for word in _MAKES_MAPPINGS)


def _is_part(target: cst.BaseExpression, name: str, gone_through: cst.BaseExpression) -> bool:
    """``for x, y in batches``, ``for i, (x, y) in enumerate(batches)``; ``for i, batch in enumerate(...)`` is whole."""
    if not isinstance(target, cst.Tuple):
        return False
    parts = [element.value for element in target.elements]
    if isinstance(gone_through, cst.Call) and last_word(dotted(gone_through.func)) in ("enumerate", "items"):
        inner = parts[1] if len(parts) == 2 else None
        parts = [element.value for element in inner.elements] if isinstance(inner, cst.Tuple) else []
    return any(isinstance(part, cst.Name) and part.value == name for part in parts)


def _is_tensors_read(rule: Rule, read: cst.Name) -> bool:
    above = rule.parent(read)
    if isinstance(above, cst.Attribute):
        return above.attr.value in _ATTRIBUTES
    if isinstance(above, cst.Subscript):  # batch["ids"]
        return not any(isinstance(node, cst.SimpleString) for each in above.slice for node in tree.walk(each))
    return not (isinstance(above, cst.Arg) and above.star == "**")


def _is_handed_to_model(rule: Rule, read: cst.Name) -> bool:
    arg = rule.parent(read)
    call = rule.parent(arg) if isinstance(arg, cst.Arg) and not arg.star else None
    if not isinstance(call, cst.Call):
        return False
    called = last_word(dotted(call.func))
    named = (MODEL_NAME, LOSS_NAME, _TRANSFORMER)  # criterion(scores, labels)
    return any(name.search(called) for name in named) or rule.flow.value(call.func).kind == MODULE
