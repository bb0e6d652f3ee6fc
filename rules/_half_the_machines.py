"""Loads that are told where to on machines without CUDA alone, and those of Lightning beside one that is told."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint.flow.names import called_name
from devlint.rule import Rule
from devlint.rules._checkpoints import has_location
from devlint.rules._portability import Surroundings
from devlint.rules._saved_places import loads
from devlint.rules._training import is_inside

#: Not `args.gpu is None`: where it is, all of them may be meant.
_OF_DEVICES = re.compile(r"(?!.* None)(?=.*(cuda|gpu|device|cpu))", re.IGNORECASE | re.DOTALL)
_OF_SEVERAL = re.compile(r"cuda:\{|set_device|device_ids|gpu_ids?\b|local_rank|DistributedDataParallel")
_FROM_FILE = frozenset({"load_from_checkpoint", "load_from_file"})


def told_without_cuda(rule: Rule) -> Iterator[tuple[cst.Call, cst.Call]]:
    """``torch.load(f) if use_cuda else torch.load(f, map_location="cpu")``: the first, and the one that is told."""
    all_loads = loads(rule)
    told = [call for call in all_loads if has_location(call)]
    around = Surroundings(rule)
    for call in all_loads if told else ():
        # device = "cuda" if torch.cuda.is_available() else "cpu"   is the first of them, as it was where it was saved
        chosen = around.chosen(call)
        if (chosen is None or chosen.is_default) and _OF_SEVERAL.search(rule.source.text) is None:
            continue
        branch: cst.CSTNode = call
        above = rule.parent(call)
        while above is not None and not isinstance(above, cst.FunctionDef | cst.ClassDef):
            if isinstance(above, cst.If | cst.IfExp) and branch is not above.test and not has_location(call):
                other = next((each for each in told if _is_same(rule, call, each, above, branch)), None)
                if other is not None and _OF_DEVICES.match(rule.code(above.test)):
                    yield call, other
                    break
            branch, above = above, rule.parent(above)


def _is_same(rule: Rule, call: cst.Call, other: cst.Call, above: cst.CSTNode, branch: cst.CSTNode) -> bool:
    """Whether another load reads the same file, in the other branch."""
    same = rule.code(call.args[0].value) == rule.code(other.args[0].value)
    return same and is_inside(rule.flow, other, above) and not is_inside(rule.flow, other, branch)


def told_beside(rule: Rule) -> Iterator[tuple[cst.Call, cst.Call]]:
    """``Net.load_from_checkpoint(path)``, and one elsewhere in the file that is told ``map_location``."""
    calls = [call for call in rule.source.nodes_of(cst.Call) if called_name(call) in _FROM_FILE and call.args]
    told = [call for call in calls if has_location(call)]
    for call in calls:
        starred = any(arg.star for arg in call.args)
        if has_location(call) or starred or not isinstance(call.func, cst.Attribute):
            continue
        other = next((each for each in told if called_name(each) == called_name(call)), None)
        if other is not None:
            yield call, other
