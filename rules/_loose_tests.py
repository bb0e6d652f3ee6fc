"""Tests that speak of devices, and ask for none: they stand above code, and do not keep it from any machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted

if TYPE_CHECKING:
    from devlint.rules._portability import Surroundings

#: Which process this is: `if rank == 0:`, `is_main_process()`. Not `rank == -1`, which says that there is one alone.
WHICH_PROCESS = re.compile(
    r"(?:not )?(?:[\w.]*\.)?(?:get_)?(?:global_|local_|ddp_)*rank(?:\(\))?(?: (?:==|!=|>) \d+| in [\[(][-\d, ]+[\])])?|"
    r"(?:not )?(?:[\w.]*\.)?is_(?:main|master)\w*(?:\([\w.]*\))?|(?:[\w.]*\.)?master_process"
)
_ASKS_NONE = re.compile(
    r"(?:not )?(?P<name>[\w.]+)|(?P<said>[\w.]+) (?:is|is not|==|!=) None|isinstance\((?P<whole>[\w.]+), [\w., ()]+\)"
)
#: What puts something on a device: whether that is there says nothing of the device.
_PUT_THERE = re.compile(r"\.(?:to|cuda)\(|device ?=")
_CHOOSES = re.compile(
    r"\bNone\b|is_available|device_count|Stream|Event|GradScaler|autocast|\b(True|False)\b|^torch\.device"
)
_OF_DEVICES = re.compile(r"cuda|gpu|cpu|device|memory|nccl", re.IGNORECASE)
#: How many devices there are, or are asked for; 0 of them are none.
_COUNT = re.compile(r"len\([\w.]+\)|[\w.]*(?:device_count\(\)|(?:\b|_)(?:n|num|world)_?(?:of_)?(?:gpu|device|size)\w*)")
_NONE = re.compile(r"(?:==|<=) 0|< 1|not ")
#: As many statements, and what a handler is for is not one of them.
_MANY = 4


def is_loose(around: Surroundings, guard: cst.CSTNode) -> bool:
    """Whether what :meth:`Surroundings.guard` found asks for no device, although its words are about them."""
    if isinstance(guard, cst.Try):
        return _is_for_anything(around, guard)
    if isinstance(guard, cst.If):
        return _is_of_one_option(around, guard.test)
    if isinstance(guard, cst.BaseExpression):
        code = around.rule.code(guard)
        return WHICH_PROCESS.fullmatch(code) is not None or _asks_if_made(around, guard, code)
    return False


def _asks_if_made(around: Surroundings, test: cst.BaseExpression, code: str) -> bool:
    """``if net is not None:``, ``if mask is None:``, where the one or the other is put on a device somewhere."""
    match = _ASKS_NONE.fullmatch(code)
    if match is None or (name := match[match.lastgroup or 0]) is None or _OF_DEVICES.search(name):
        return False
    made = around.assigned(name.rpartition(".")[2])
    # stream = torch.cuda.Stream() if device.type == "cuda" else None
    told = [text for text in made if _OF_DEVICES.search(text)]
    return bool(told) and all(_PUT_THERE.search(text) and not _CHOOSES.search(text) for text in told)


def _is_of_one_option(around: Surroundings, test: cst.BaseExpression) -> bool:
    """``if args.compile and accelerator != "cuda": raise``, which lets through all who do not ask for that."""
    # if len(args.gpus) > 1: raise;   if batch_size % n_gpus: raise
    code = around.rule.code(test)
    if not _NONE.search(code) and _COUNT.search(code) and not _OF_DEVICES.search(_COUNT.sub("", code)):
        return True
    if not isinstance(test, cst.BooleanOperation) or not isinstance(test.operator, cst.And):
        return False
    sides, parts = [test.left, test.right], []
    while sides:
        side = sides.pop()
        if isinstance(side, cst.BooleanOperation) and isinstance(side.operator, cst.And):
            sides += [side.left, side.right]
        else:
            parts.append(side)
    return any(not _OF_DEVICES.search(around.rule.code(_asked(part))) for part in parts)


def _asked(part: cst.BaseExpression) -> cst.BaseExpression:
    """``args.backend`` of ``args.backend == "cudagraphs"``."""
    text = part.comparisons[0].comparator if isinstance(part, cst.Comparison) else None
    return part.left if isinstance(part, cst.Comparison) and isinstance(text, cst.SimpleString) else part


def _is_for_anything(around: Surroundings, tried: cst.Try) -> bool:
    """``try: ... except Exception as error: print(error)`` around a whole step."""
    for handler in tried.handlers:
        # except RuntimeError: net = net.cpu()
        if _OF_DEVICES.search(around.rule.code(handler.body)):
            return False
        if handler.type is not None and not re.search(r"\b(Base)?Exception\b", around.rule.code(handler.type)):
            return False
    body = tried.body
    # try: import bitsandbytes; net = quantized(net)   except Exception: ...
    imports = any(isinstance(node, cst.Import | cst.ImportFrom) for node in tree.walk(body))
    return len(body.body) >= _MANY and not imports


def works_on_choice(around: Surroundings) -> tuple[cst.BaseExpression, str] | None:
    """Where a file shows that it runs on more than CUDA, and the name of the device.

    ``args.device`` of ``net.to(args.device)``, where nothing sets that, or a name for ``"cuda"`` here and ``"cpu"``
    there.
    """
    kinds: dict[str, set[str]] = {}
    for path, value in around.assignments():
        if isinstance(value, cst.SimpleString) and value.evaluated_value in ("cuda", "cpu", "gpu", "mps"):
            kinds.setdefault(path, set()).add(str(value.evaluated_value))
            if "cpu" in kinds[path] and len(kinds[path]) > 1:
                return value, path
    for node in around.source.nodes_of(cst.Attribute):
        path = dotted(node)
        if node.attr.value != "device" or not _OPTIONS.fullmatch(path.rpartition(".")[0]):
            continue
        arg = around.source.parents.get(node)
        call = around.source.parents.get(arg) if isinstance(arg, cst.Arg) else None
        if not isinstance(call, cst.Call) or not isinstance(arg, cst.Arg) or around.assigned_to(path):
            continue
        is_move = isinstance(call.func, cst.Attribute) and call.func.attr.value == "to" and call.args[0] is arg
        if is_move or (arg.keyword is not None and arg.keyword.value == "device"):
            return node, path
    return None


_OPTIONS = re.compile(r"(self\.)?_?(args?|opts?|options|conf\w*|cfg|settings?|hparams|flags)", re.IGNORECASE)
