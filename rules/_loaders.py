"""What rules about data loaders share: whether other processes prepare the batches, and what these are for."""

from __future__ import annotations

import libcst as cst

from devlint.finding import Fix
from devlint.flow import outside
from devlint.flow.names import dotted
from devlint.flow.value import Value
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.source import Source

#: The positions of arguments of ``DataLoader``.
NUM_WORKERS, COLLATE, PIN_MEMORY = 5, 6, 7


def maker(rule: Rule, loader: Value | None) -> cst.Call | None:
    """The call of ``DataLoader`` itself that made a loader."""
    made = loader.origin if loader is not None else None
    # loader = get_loader(data, workers=4)  of another file may take no `pin_memory`
    return made if isinstance(made, cst.Call) and rule.flow.name_of(made) in outside.LOADERS else None


def gives_pin_memory(made: cst.Call) -> bool:
    """``DataLoader(data, num_workers=4, pin_memory=False)`` is a decision."""
    return argument(made, PIN_MEMORY, "pin_memory") is not None


def pinning(rule: Rule, made: cst.Call) -> Fix | None:
    """Lets a loader pin its batches; ``None`` where its call cannot be changed."""
    given = argument(made, PIN_MEMORY, "pin_memory")
    edit = rule.replace(given.value, "True") if given is not None else rule.add_argument(made, "pin_memory=True")
    return rule.fix("let the loader pin its batches: `pin_memory=True`", edit, safe=True) if edit is not None else None


def has_workers(source: Source, made: cst.Call) -> bool:
    """Whether worker processes prepare the batches, so that a thread of its own may pin them."""
    if any(arg.star for arg in made.args):
        return False
    given = argument(made, NUM_WORKERS, "num_workers")
    if given is None or isinstance(given.value, cst.Integer):
        return given is not None and not _is_zero(given.value)
    name = dotted(given.value).rpartition(".")[2]
    values = _bound_to(source, name) if name else [given.value]
    # 0 if windows else 4; an option whose default is zero, or that another file declares
    return bool(values) and all(v is not None and not any(_is_zero(part) for part in _parts(v)) for v in values)


def works_alone(made: cst.Call) -> bool:
    """Whether the loader has no worker processes, and makes each batch while the loop waits for it."""
    given = argument(made, NUM_WORKERS, "num_workers")
    return not any(arg.star for arg in made.args) and (given is None or _is_zero(given.value))


def _bound_to(source: Source, name: str) -> list[cst.BaseExpression | None]:
    """What the file binds a name, a parameter or a command line's option to; ``None`` for what it leaves open."""
    bound: list[cst.BaseExpression | None] = [
        param.default for param in source.nodes_of(cst.Param) if param.name.value == name
    ]
    for assign in source.nodes_of(cst.Assign):
        if any(dotted(target.target).rpartition(".")[2] == name for target in assign.targets):
            bound.append(assign.value)
    bound += [a.value for a in source.nodes_of(cst.AnnAssign) if dotted(a.target) == name]
    bound += [_default(call) for call in source.nodes_of(cst.Call) if _is_option(call, name)]
    return bound


def _parts(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node, cst.IfExp):
        return [node.body, node.orelse]
    return [node]


def _is_zero(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Integer) and node.value == "0"


def _is_option(call: cst.Call, name: str) -> bool:
    """``parser.add_argument("--num-workers", type=int, default=4)``."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in ("add_argument", "add_option"):
        return False
    flags = [a.value for a in call.args if isinstance(a.value, cst.SimpleString) and a.keyword is None]
    return any(str(flag.evaluated_value).lstrip("-").replace("-", "_") == name for flag in flags)


def _default(call: cst.Call) -> cst.BaseExpression | None:
    return next((a.value for a in call.args if a.keyword is not None and a.keyword.value == "default"), None)
