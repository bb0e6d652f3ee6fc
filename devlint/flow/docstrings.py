"""What the docstring of a function says that its parameters are, where no annotation does."""

from __future__ import annotations

import re

import libcst as cst

#: A type that is a tensor and nothing else: ``torch.Tensor``, ``Tensor, optional``, ``Tensor[N, 4]``.
_TENSOR = r"(?::\w+:)?[`~]*(?:torch\.)?(?:Float|Double|Half|Long|Int|Byte|Bool)?Tensor(?:\[[^\]\n]*\])?`*"
#: ... followed by nothing that names another type: ``Tensor or float``, ``Tensor | list``.
_END = (
    r"(?:\s*\|\s*None|\s+or\s+None)?(?=\s*(?:[,.;:)(]|$)|\s+(?:of|with)\b)"
    r"(?!,\s*(?:int|float|list|tuple|np\.|numpy|ndarray)\b)"
)
_LINES = (
    re.compile(rf"^\s*(?:[-*]\s+)?[`*]*(\w+)[`*]*\s*\(\s*{_TENSOR}{_END}", re.MULTILINE),  # x (torch.Tensor): Google
    re.compile(rf"^\s*(?:[-*]\s+)?[`*]*(\w+)[`*]*\s*:\s*{_TENSOR}{_END}", re.MULTILINE),  # x : torch.Tensor: numpy
    re.compile(rf"^\s*:type\s+(\w+)\s*:\s*{_TENSOR}{_END}", re.MULTILINE),  # Sphinx
    re.compile(rf"^\s*:param\s+{_TENSOR}\s+(\w+)\s*:", re.MULTILINE),
    re.compile(rf"^\s*:param\s+(\w+)\s*:\s*\(?{_TENSOR}{_END}", re.MULTILINE),
)


def tensors_named(node: cst.FunctionDef) -> frozenset[str]:
    """The names that the docstring of a function says are tensors."""
    body = node.body.body
    first = body[0] if body else None
    expression = first.body[0] if isinstance(first, cst.SimpleStatementLine) else first
    if not isinstance(expression, cst.Expr) or not isinstance(expression.value, cst.SimpleString):
        return frozenset()
    text = expression.value.value
    if "Tensor" not in text:
        return frozenset()
    text = re.split(r"^\s*(?:Returns?|Yields?)\b", text, maxsplit=1, flags=re.MULTILINE)[0]
    return frozenset(name for line in _LINES for name in line.findall(text))
