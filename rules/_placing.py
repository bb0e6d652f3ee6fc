"""Loaders whose batches may be on a device already."""

from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow.names import names_bound
from devlint.flow.scope import Class
from devlint.flow.value import FUNCTION, INSTANCE, LIST, LOADER, THING
from devlint.rule import Rule
from devlint.rules._arguments import given_to
from devlint.rules._meetings import calls_that_run


def may_place(rule: Rule, loader: cst.CSTNode | None) -> bool:
    """Whether a data set or a collate function may put tensors on a device: of a loader that is built there, or handed
    to a function that the file calls."""
    if isinstance(loader, cst.Param):
        function = rule.flow.function(loader)
        calls = calls_that_run(rule, function) if function is not None else []
        given = (each for call in calls for each in given_to(call, function, loader)) if function is not None else ()
        values = [rule.flow.value(each) for each in given]
        return any(value.kind == LOADER and _may_be_placed(rule, value.origin) for value in values)
    return _may_be_placed(rule, loader)


def _may_be_placed(rule: Rule, loader: cst.CSTNode | None) -> bool:
    if not isinstance(loader, cst.Call):
        return False
    for arg in loader.args:
        if arg.keyword is not None and arg.keyword.value == "collate_fn":
            collate = rule.flow.value(arg.value)  # collate_fn=dataset.collate: who knows where it puts them
            if collate.kind != FUNCTION or getattr(collate.ref, "moves_something", True):
                return True
    if not loader.args or loader.args[0].star:
        return False
    given = loader.args[0].value
    dataset = rule.flow.value(given)
    makers = [given, *_bound_to(rule, given)]
    values = [rule.flow.value(part) for maker in makers for part in tree.walk(maker)]
    if any(value.place.is_there and not isinstance(value.origin, cst.Param) for value in values):
        return True  # random_split(TensorDataset(x.to(device), y.to(device)), [8, 2])
    if dataset.kind == INSTANCE and isinstance(dataset.ref, Class):
        methods = [method for cls in dataset.ref.lineage for method in cls.methods.values()]
        return any(method.moves_something or method.device_aware for method in methods)
    if dataset.kind == LIST:
        return True  # rows = [(x.to(device), y.to(device)) for x, y in rows]
    return dataset.kind == THING and dataset.ref == "dataset" and not dataset.place.is_host  # TensorDataset(x.cuda())


def _bound_to(rule: Rule, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What the function assigns to a name: ``held, rest = random_split(rows, [8, 2])``."""
    if not isinstance(node, cst.Name):
        return []
    function = rule.flow.function(node)
    return [
        assign.value
        for assign in rule.source.nodes_of(cst.Assign)
        if rule.flow.function(assign) is function
        and node.value in names_bound(*(target.target for target in assign.targets))
    ]
