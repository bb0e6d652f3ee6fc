"""Adding an import that a fix needs."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from devlint.finding import Edit
from devlint.source import Source

#: Compound statements whose body runs in the scope around them.
_SAME_SCOPE = (cst.If, cst.Else, cst.Try, cst.TryStar, cst.ExceptHandler, cst.Finally, cst.With, cst.For, cst.While)


def needed(source: Source, module: str) -> Edit | None:
    """The edit that adds ``import module``; ``None`` where the module's top-level name is bound at module level.

    It goes beside the imports at the head of the file, so that it is bound before anything else runs: before the first
    one from the same package, else after the last; without any, below the docstring or the comments that head the file.
    An import under ``if TYPE_CHECKING:`` does not bind a name that code may use.
    """
    top = module.split(".")[0]
    if top in set(_bound(source.module.body)):
        return None
    head: list[cst.BaseStatement] = []  # docstring, __future__ imports and the other imports
    for statement in source.module.body:
        if not (_is_import(statement) or (not head and _is_docstring(statement))):
            break
        if _imports_from(statement, top):
            return _at_line(source, source.place(source.offsets(statement)[0])[0], f"import {module}\n")
        head.append(statement)
    if not head:
        return _at_line(source, _first_row(source), f"import {module}\n")
    last = head[-1]
    row = source.place(source.offsets(last)[1])[0] + 1
    blank = "\n" if _imports_from(last, "__future__") or _is_docstring(last) else ""
    if row > len(source.lines):  # the file's last line has no end
        return _insert(source, len(source.text), f"\n{blank}import {module}")
    return _at_line(source, row, f"{blank}import {module}\n")


def _at_line(source: Source, row: int, code: str) -> Edit:
    return _insert(source, source.lines[row - 1], code)


def _insert(source: Source, offset: int, code: str) -> Edit:
    return Edit(source.span_at(offset, offset), code.replace("\n", source.newline(offset)))


def _first_row(source: Source) -> int:
    """The row of the first statement, or of the comments right above it unless they head the file."""
    if not source.module.body:
        return len(source.lines)
    first = source.module.body[0]
    decorators = getattr(first, "decorators", ())
    row = source.place(source.offsets(decorators[0] if decorators else first)[0])[0]
    above = row
    comments = {source.place(offset)[0] for offset, _ in source.comments}
    while above - 1 in comments:
        above -= 1
    return row if above == 1 else above


def _is_docstring(statement: cst.BaseStatement) -> bool:
    match statement:
        case cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString())]):
            return True
    return False


def _is_import(statement: cst.BaseStatement) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body
    )


def _imports_from(statement: cst.BaseStatement, top: str) -> bool:
    """Whether a line holds ``from top... import`` or ``import top...``."""
    for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
        if isinstance(small, cst.ImportFrom) and small.module is not None and not small.relative:
            if _first_name(small.module) == top:
                return True
        elif isinstance(small, cst.Import) and any(_first_name(alias.name) == top for alias in small.names):
            return True
    return False


def _first_name(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _bound(statements: Iterable[cst.CSTNode]) -> Iterable[str]:
    """Names that these statements, and those inside them in the same scope, bind."""
    stack: list[cst.CSTNode] = list(statements)
    while stack:
        node = stack.pop()
        match node:
            case cst.Import(names=aliases) | cst.ImportFrom(names=[*aliases]):
                for alias in aliases:
                    yield _first_name(alias.asname.name if alias.asname is not None else alias.name)
            case cst.FunctionDef(name=name) | cst.ClassDef(name=name):
                yield name.value
            case cst.Assign(targets=targets):
                for target in targets:
                    yield from _target_names(target.target)
            case cst.AnnAssign(target=target, value=value) if value is not None:
                yield from _target_names(target)
            case cst.If(test=cst.Name("TYPE_CHECKING") | cst.Attribute(attr=cst.Name("TYPE_CHECKING"))):
                if node.orelse is not None:
                    stack.append(node.orelse)
                continue
            case cst.SimpleStatementLine() | cst.SimpleStatementSuite() | cst.IndentedBlock():
                stack += node.body
                continue
        if isinstance(node, _SAME_SCOPE):
            stack += [child for child in node.children if isinstance(child, (cst.BaseSuite, *_SAME_SCOPE))]


def _target_names(target: cst.BaseExpression) -> Iterable[str]:
    match target:
        case cst.Name(value=name):
            yield name
        case cst.Tuple(elements=elements) | cst.List(elements=elements):
            for element in elements:
                yield from _target_names(element.value)
