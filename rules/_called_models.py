"""What `torch.load` loads by the name of a model alone: ``net = torch.load(f)``, ``def load_model(f): return ...``."""

from __future__ import annotations

import re

import libcst as cst

from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._checkpoints import assigned, is_data, is_of_a_checkpoint, is_of_no_use, is_score
from devlint.rules._moves import short

_MODELS = "model|net|network|generator|discriminator|policy|actor|critic|backbone|teacher|student"
#: What a model is called, whole: not `model_args`, `net_outputs`.
_MODEL = re.compile(rf"(?:[\w.]*[._])?_?(?:{_MODELS})\d?", re.IGNORECASE)
#: Functions that load one: not `load_model_outputs`.
_LOADS = re.compile(
    r"_*(?:re|un)?(?:load|store|read|restore|resume|get|fetch)_?(?:\w*_)?"
    rf"(?:{_MODELS}|checkpoint|ckpt|weights|state_?dict|snapshot|params)s?(?:_?(?:file|from|for|state|weights)\w*)?",
    re.IGNORECASE,
)
#: What is in memory was saved by the same run.
_IN_MEMORY = re.compile(r"buf|BytesIO|stream|payload|bytes", re.IGNORECASE)
#: What is no model, whatever else is said of it.
_OTHER = re.compile(
    r"tokeni[sz]er|vocab|label|config|(^|_)args|result|output|predict|history|stats|logits|corpus|scaler|schedul|mesh"
    r"|body_model",
    re.IGNORECASE,
)


def called_a_model(rule: Rule, call: cst.Call, function: Function | None) -> str | None:
    """What is loaded, as the start of a message, by the name that it is given, or that of the function around it."""
    if not call.args:
        return None
    names, file = assigned(rule, call), _opened(rule, call.args[0].value, function)
    said = function.name if function is not None else ""
    if any(_is_other(word) for word in (*names, file)) or any(is_score(name) for name in names):
        return None
    if _IN_MEMORY.search(file) or any(is_of_no_use(rule, name, function) for name in names):
        return None
    # net = torch.load(f); not  width = torch.load(f)["width"]
    if isinstance(rule.parent(call), cst.Assign | cst.AnnAssign):
        for name in names:
            if _MODEL.fullmatch(name):
                return f"`{short(name)}`"
    if (
        function is not None
        and _LOADS.fullmatch(said)
        and not _is_other(said)
        and _returned(rule, call, names, function)
    ):
        return f"what `{said}` returns"
    # with open(checkpoint, "rb") as file: state = torch.load(file)
    if file != rule.code(call.args[0].value) and is_of_a_checkpoint(file):
        return f"checkpoint `{short(file)}`"
    return None


def _is_other(word: str) -> bool:
    return is_data(word) or _OTHER.search(word) is not None


def _opened(rule: Rule, file: cst.BaseExpression, function: Function | None) -> str:
    """``path`` of ``with open(path, "rb") as file:``, and of ``with path.open("rb") as file:``."""
    for item in rule.source.nodes_of(cst.WithItem) if isinstance(file, cst.Name) else ():
        opened, name = item.item, item.asname.name if item.asname is not None else None
        if not isinstance(name, cst.Name) or not isinstance(file, cst.Name) or name.value != file.value:
            continue
        if rule.flow.function(item) is not function or not isinstance(opened, cst.Call):
            continue
        func = opened.func.attr if isinstance(opened.func, cst.Attribute) else opened.func
        if dotted(func) in ("open", "Open", "GFile", "BlobFile") and opened.args:
            given = opened.args[0].value
            is_mode = isinstance(given, cst.SimpleString) and re.fullmatch(r"[rbt+]+", given.raw_value) is not None
            return rule.code(opened.func.value if is_mode and isinstance(opened.func, cst.Attribute) else given)
    return rule.code(file)


def _returned(rule: Rule, call: cst.Call, names: list[str], function: Function) -> bool:
    """``return torch.load(f)``; ``loaded = torch.load(f)`` and ``return loaded``."""
    if isinstance(rule.parent(call), cst.Return):
        return True
    return any(
        isinstance(each.value, cst.Name) and each.value.value in names and rule.flow.function(each) is function
        for each in rule.source.nodes_of(cst.Return)
    )
