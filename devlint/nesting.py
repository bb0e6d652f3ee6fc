"""Whether a file is nested so deeply that its parser would fail.

LibCST's parser recurses in native code: deep enough, it takes the whole process with it, and long before that its time
grows with the square of the depth. Python's own parser is fast, and gives up in an orderly way. So where the look of a
file suggests great depth, Python is asked first.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

#: Levels of the syntax tree: a term of a sum is one, a call in a chain two. Python 3.11 compiles no more either.
MOST_LEVELS = 3000

# What may be that deep: a long line; a run of many lines that continue an expression, with few others and none blank
# among them; many branches.
_LONG_LINE = 500
_LONG_RUN = 500
_OTHERS = 8
_MANY_BRANCHES = 1000
_STARTS = (*".)]}+-*/%&|^<>=~", "and ", "or ", "not ", "if ", "else ", "lambda")
_ENDS = (*"([{+-*/%&|^<>=~.\\", " and", " or", " not", " else", "lambda:")


_REASON = f"this is nested more than {MOST_LEVELS} levels deep, too deep to be read; split it up"


def too_deep(text: str) -> tuple[str, int, int] | None:
    """What to say of a file that is nested too deeply, with row and column; ``None`` of any other."""
    row = _suspect(text)
    if row is None:
        return None
    try:
        with _usual_recursion(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (RecursionError, MemoryError):
        return _REASON, row, 1
    except SyntaxError as error:
        if "too many nested parentheses" in error.msg:
            return error.msg, error.lineno or row, error.offset or 1
        return None
    except ValueError:
        return None
    level: list[ast.AST] = [tree]
    for _ in range(MOST_LEVELS):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return None
    deepest = next((node for node in level if isinstance(node, (ast.expr, ast.stmt))), None)
    return (_REASON, row, 1) if deepest is None else (_REASON, deepest.lineno, deepest.col_offset + 1)


def _suspect(text: str) -> int | None:
    """The row at which something begins that may be nested deeply."""
    if len(text) < _LONG_LINE:
        return None
    run = others = first = 0
    lines = text.split("\n")
    if len(lines) < _LONG_RUN and max(map(len, lines)) < _LONG_LINE:
        return None
    for row, line in enumerate(lines, 1):
        if not line:
            run = others = 0
            continue
        if len(line) >= _LONG_LINE:
            return row
        code = line.strip()
        if code.startswith(_STARTS) or code.endswith(_ENDS):
            first = first if run else row
            run, others = run + 1, 0
            if run >= _LONG_RUN:
                return first
        elif run:
            others += 1
            if not code or others > _OTHERS:
                run = others = 0
    if text.count("elif ") >= _MANY_BRANCHES:
        return next(row for row, line in enumerate(lines, 1) if "elif " in line)
    return None


@contextmanager
def _usual_recursion() -> Iterator[None]:
    """Python's parser may recurse as deep as it does in a program that changes nothing, and no deeper."""
    limit = sys.getrecursionlimit()
    frames = 0
    frame = sys._getframe()
    while frame is not None:
        frames += 1
        frame = frame.f_back  # type: ignore[assignment]
    sys.setrecursionlimit(min(limit, frames + 1000))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
