"""Devices numbered by an option that no launcher of torch sets any more."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted
from devlint.rule import Rule
from devlint.rules._numbered import devices_numbered

#: Launchers that do set it.
_SET_IT = re.compile(r"deepspeed|horovod|colossalai", re.IGNORECASE)
_LOCAL = re.compile(r"(^|\.)local_?rank$")


def report_option(rule: Rule) -> None:
    """``parser.add_argument("--local_rank", type=int, default=0)`` and ``torch.cuda.set_device(args.local_rank)``"""
    text = rule.source.text
    if "--local_rank" not in text or "init_process_group" not in text or _SET_IT.search(text):
        return
    option = next((call for call in rule.source.nodes_of(cst.Call) if _is_option(rule, call)), None)
    if option is None or _is_set(rule):
        return
    for node, number in devices_numbered(rule):
        if _LOCAL.search(dotted(number)) and _is_of_option(rule, number):
            rule.report(
                node,
                f"`{dotted(number)}` is the same in each process: `torchrun` says the number in `LOCAL_RANK`",
                notes=[rule.note(option, "no launcher of current torch passes an option of that name")],
                tentative=True,
            )


def _is_option(rule: Rule, call: cst.Call) -> bool:
    """Whether a call adds the option, by that name alone, and with a constant for its default."""
    if called_name(call) != "add_argument" or any(arg.star for arg in call.args):
        return False
    # add_argument("--local-rank", "--local_rank")  is passed by `python -m torch.distributed.launch`
    names = [
        arg.value.evaluated_value for arg in call.args if isinstance(arg.value, cst.SimpleString) and not arg.keyword
    ]
    default = next((arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == "default"), None)
    # default=int(os.environ.get("LOCAL_RANK", 0)), default=RANK
    constant = default is None or rule.code(default).lstrip("-").isdigit() or rule.code(default) == "None"
    return "--local_rank" in names and "--local-rank" not in names and constant


def _is_set(rule: Rule) -> bool:
    """``args.local_rank = int(os.environ["LOCAL_RANK"])``, anywhere; ``parser.set_defaults(local_rank=...)``"""
    for assign in rule.source.nodes_of(cst.Assign):
        for each in assign.targets:
            # args.rank, args.local_rank = read_environment()
            bound = (node for node in tree.walk(each.target) if isinstance(node, cst.Attribute))
            # not  self.local_rank = args.local_rank
            if any(_LOCAL.search(dotted(node)) for node in bound) and not _LOCAL.search(dotted(assign.value)):
                return True
    return "set_defaults(" in rule.source.text or "setattr(args" in rule.source.text


def _is_of_option(rule: Rule, number: cst.BaseExpression) -> bool:
    """``args.local_rank``, and ``local_rank`` where that is all that is bound to it."""
    name = dotted(number)
    if "." in name:
        return True
    function = rule.flow.function(number)
    if function is not None and name in function.param_names:
        return False
    made = [
        assign.value
        for assign in rule.source.nodes_of(cst.Assign)
        if any(dotted(each.target) == name for each in assign.targets)
    ]
    return bool(made) and all("." in dotted(value) and _LOCAL.search(dotted(value)) for value in made)
