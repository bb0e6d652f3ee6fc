"""Numbers of devices whose truth is asked for where no annotation says that they are numbers: device 0 is false."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import called_name, dotted, last_word
from devlint.rule import Rule
from devlint.rules._arguments import parameter

_FLAG = re.compile(r"^(use|has|with|is|enable|no|multi|num|n)_|s$|_size$", re.IGNORECASE)
_NUMBER = re.compile(
    r"(^|_)((gpu|rank)(_?(id|idx|index|num|number))?|(device|cuda)_?(id|idx|index|num|number|ordinal))$", re.IGNORECASE
)
_INDEXED = re.compile(r"""[fF]["'](cuda|xpu|npu):\{""")
_TAKE_NUMBER = frozenset({"torch.cuda.set_device", "torch.cuda.device", "torch.cuda.get_device_properties"})
_TAKE_NAMED = frozenset({"device", "device_id", "gpu", "gpu_id", "device_index"})


def report_false_zero(rule: Rule, branch: cst.If | cst.IfExp | cst.BooleanOperation) -> None:
    """``if rank: device = f"cuda:{rank % count}"``, ``rank and f"cuda:{rank}"``: that device, or none."""
    asked, then = _asked(branch)
    path = dotted(asked) if asked is not None else ""
    word = last_word(path)
    if asked is None or then is None or not _NUMBER.search(word) or _FLAG.search(word):
        return
    if not _is_number(rule, asked, path):
        return
    use = next((each for each in _read(then, path) if _numbers_device(rule, each)), None)
    if use is not None:
        note = rule.note(use, "here it is the number of a device")
        rule.report(asked, f"`{path}` is false for device 0, which is left out here", notes=[note], tentative=True)


def _asked(branch: cst.If | cst.IfExp | cst.BooleanOperation) -> tuple[cst.BaseExpression | None, cst.CSTNode | None]:
    """The number whose truth is asked for, and the code that runs where it is true."""
    if isinstance(branch, cst.BooleanOperation):
        return (branch.left, branch.right) if isinstance(branch.operator, cst.And) else (None, None)
    test: cst.BaseExpression = branch.test
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return test.expression, branch.orelse
    # if rank and torch.cuda.is_available():
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        sides = (test.left, test.right)
        test = next((each for each in sides if _NUMBER.search(last_word(dotted(each)))), test)
    return test, branch.body


def _is_number(rule: Rule, node: cst.BaseExpression, path: str) -> bool:
    """Whether it is a number, or ``None`` where none is meant, as far as anybody says: no flag, and no text."""
    if "." in path:
        return _is_option(rule, last_word(path))
    param = parameter(rule.flow.function(node), path)
    if param is None:
        return False  # rank = os.environ.get("RANK")
    if param.annotation is not None:
        return False  # of which more is known
    return param.default is not None and rule.code(param.default) in ("None", "-1")


def _is_option(rule: Rule, name: str) -> bool:
    """``parser.add_argument("--gpu", type=int)`` of ``args.gpu``; without a type it is a text, and "0" is true."""
    for call in rule.source.nodes_of(cst.Call):
        if called_name(call) != "add_argument":
            continue
        flags = [rule.code(arg.value).strip("-\"'").replace("-", "_") for arg in call.args if arg.keyword is None]
        given = {arg.keyword.value: rule.code(arg.value) for arg in call.args if arg.keyword is not None}
        if name in flags:
            return given.get("type") == "int" and "choices" not in given and "nargs" not in given
    return False


def _read(then: cst.CSTNode, path: str) -> Iterator[cst.BaseExpression]:
    for node in tree.walk(then):
        if isinstance(node, cst.Name | cst.Attribute) and dotted(node) == path:
            yield node


def _numbers_device(rule: Rule, node: cst.BaseExpression) -> bool:
    """``f"cuda:{gpu}"``, ``"cuda:%d" % gpu``, ``torch.cuda.set_device(gpu)``, ``net.cuda(gpu)``, ``gpu=gpu % count``"""
    above: cst.CSTNode | None = rule.parent(node)
    while isinstance(above, cst.BinaryOperation | cst.BooleanOperation):
        if isinstance(above, cst.BinaryOperation) and rule.code(above.left).startswith(('"cuda:', "'cuda:")):
            return True
        above = rule.parent(above)
    if isinstance(above, cst.FormattedStringExpression):
        text = rule.parent(above)
        return text is not None and _INDEXED.match(rule.code(text)) is not None
    call = rule.parent(above) if isinstance(above, cst.Arg) else None
    if not isinstance(call, cst.Call) or not isinstance(above, cst.Arg):
        return False
    if above.keyword is not None:
        return above.keyword.value in _TAKE_NAMED and called_name(call) != "print"
    name = rule.flow.scope.qualified(call.func)
    if name in _TAKE_NUMBER or name == "torch.device":
        return True
    if called_name(call) == "str":
        joined = rule.parent(call)
        return isinstance(joined, cst.BinaryOperation) and rule.code(joined.left).strip("\"'") == "cuda:"
    if called_name(call) == "format" and isinstance(call.func, cst.Attribute):
        return rule.code(call.func.value).strip("\"'").startswith("cuda:")
    moves = isinstance(call.func, cst.Attribute) and call.func.attr.value in ("cuda", "to")
    return moves and above is call.args[0]
