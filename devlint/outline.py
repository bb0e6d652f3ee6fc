"""What a file binds at its top level, read with Python's own ``ast``: a tenth of what a LibCST tree costs."""

from __future__ import annotations

import ast
import hashlib
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from devlint import nesting
from devlint.decoding import SourceError, decode

IMPORT, DEF, CLASS, VARIABLE, SEVERAL = "import", "def", "class", "variable", "several"

#: A larger file is a table of data more often than code that others call.
_LARGEST = 1_000_000


class Binding(NamedTuple):
    """What a name is bound to: by an import (``target`` is its qualified name), or by lines of this file.

    ``several``: bound more than once, and nobody knows which of them counts.
    """

    kind: str
    target: str = ""
    first: int = 0
    last: int = 0
    bases: tuple[str, ...] = ()


class Outline:
    """The names a file binds at its top level, and the files whose names it takes over by ``import *``."""

    def __init__(self, raw: bytes) -> None:
        self.bindings: dict[str, Binding] = {}
        self.stars: list[str] = []
        self.public: list[str] | None = None  # __all__, where it is a plain list
        self.names_torch = b"torch" in raw
        self._lines: list[str] = []
        self._members: dict[str, frozenset[str]] = {}
        if len(raw) > _LARGEST:
            return
        try:
            text = decode(raw)[2]
            if nesting.too_deep(text) is not None:
                return
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = ast.parse(text)
        except (SourceError, SyntaxError, ValueError, RecursionError, MemoryError):
            return  # whoever checks that file says so
        self._lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for statement in module.body:
            self._read(statement, statement)

    def text(self, name: str) -> str:
        """The lines that bind a name."""
        binding = self.bindings[name]
        return textwrap.dedent("\n".join(self._lines[binding.first - 1 : binding.last])) + "\n"

    def members(self, name: str) -> frozenset[str]:
        """The attributes and methods that a class has by its own code."""
        return self._members.get(name, frozenset())

    @property
    def exported(self) -> list[str]:
        """What ``from this import *`` gives, but for what the file has by such an import itself."""
        if self.public is not None:
            return self.public
        return [name for name in self.bindings if not name.startswith("_")]

    def answer(self, question: str) -> str:
        """What the outline says to a question, in few characters: what findings of other files may rest on.

        ``names NAME``: where it leads. ``text NAME``: a digest of its lines. ``members NAME``: of the
        attributes of a class. ``stars``, ``exports``: all of them. ``starts ROW``: what is bound from that line on.
        """
        what, _, name = question.partition(" ")
        if what == "stars":
            return " ".join(self.stars)
        if what == "exports":
            return digest(" ".join(self.exported))
        if what == "starts":
            return " ".join(bound for bound, each in self.bindings.items() if each.first == int(name))
        binding = self.bindings.get(name)
        if binding is None:
            return ""
        if what == "members":
            return digest(" ".join(sorted(self.members(name)))) if binding.kind == CLASS else ""
        if what == "text":
            return digest(self.text(name)) + ("" if self.names_torch else "-") if binding.first else ""
        return " ".join((binding.kind, binding.target, *binding.bases)).rstrip()

    def _read(self, node: ast.stmt, top: ast.stmt) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    target = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._bind(alias.asname or target, Binding(IMPORT, target))
            case ast.ImportFrom(names=names):
                package = "." * node.level + (node.module or "")
                between = "" if package.endswith(".") else "."
                for alias in names:
                    if alias.name == "*":
                        self.stars.append(package)
                    else:
                        self._bind(alias.asname or alias.name, Binding(IMPORT, f"{package}{between}{alias.name}"))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if not any(_last(decorator) == "overload" for decorator in node.decorator_list):
                    self._bind(node.name, Binding(DEF, "", _first_line(node), node.end_lineno or 0))
            case ast.ClassDef():
                bases = tuple(name for base in node.bases if (name := _dotted(base)))
                self._members[node.name] = frozenset(_members(node))
                self._bind(node.name, Binding(CLASS, "", _first_line(node), node.end_lineno or 0, bases))
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (name for target in targets for name in _names(target)):
                    if name == "__all__":
                        self.public = _strings(node) if isinstance(node, ast.Assign) else None
                    else:
                        self._bind(name, Binding(VARIABLE, "", top.lineno, top.end_lineno or 0))
            case ast.If():
                if _last_of_test(node.test) != "__name__":
                    self._read_all((*node.body, *node.orelse), top)
            case ast.Try():
                handled = (each for handler in node.handlers for each in handler.body)
                self._read_all((*node.body, *handled, *node.orelse, *node.finalbody), top)
            case ast.With():
                self._read_all(node.body, top)

    def _read_all(self, body: Iterable[ast.stmt], top: ast.stmt) -> None:
        for statement in body:
            self._read(statement, top)

    def _bind(self, name: str, binding: Binding) -> None:
        known = self.bindings.get(name)
        if known is None:
            self.bindings[name] = binding
        elif known.kind == IMPORT == binding.kind:
            pass  # try: import fast as f / except ImportError: import slow as f
        elif known[:1] + known[2:4] != binding[:1] + binding[2:4]:  # the same statement may bind a variable twice
            self.bindings[name] = Binding(SEVERAL)


def digest(text: str) -> str:
    """A short name for a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _members(cls: ast.ClassDef) -> Iterator[str]:
    """The attributes that a class sets on its instances or has by its body."""
    for statement in cls.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name
            yield from _set_on_self(statement)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from _names(target)
        elif isinstance(statement, ast.AnnAssign):
            yield from _names(statement.target)


def _set_on_self(method: ast.stmt) -> Iterator[str]:
    todo: list[ast.AST] = [method]
    while todo:
        node = todo.pop()
        match node:
            case ast.Assign(targets=targets):
                for target in targets:
                    yield from _attributes(target)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                yield from _attributes(target)
            case ast.For(target=target) | ast.AsyncFor(target=target):
                yield from _attributes(target)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    yield from _attributes(item.optional_vars)
            case ast.Expr(value=value):
                for call in value.elts if isinstance(value, ast.Tuple) else (value,):  # self.add_module("a", a),
                    match call:
                        case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
                            if _last(func).startswith(("register_", "add_")):
                                yield name
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo += getattr(node, block, ())


def _attributes(target: ast.expr | None) -> Iterator[str]:
    """The attributes of ``self`` among the targets."""
    if isinstance(target, ast.Attribute):
        if isinstance(target.value, ast.Name) and target.value.id == "self":
            yield target.attr
    elif isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _attributes(item)
    elif isinstance(target, ast.Starred):
        yield from _attributes(target.value)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    if isinstance(node, ast.Subscript):  # Generic[T]
        node = node.value
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return _dotted(node).rpartition(".")[2]


def _last_of_test(test: ast.expr) -> str:
    return _last(test.left) if isinstance(test, ast.Compare) else ""


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _names(item)


def _strings(node: ast.Assign) -> list[str] | None:
    if not isinstance(node.value, ast.List | ast.Tuple):
        return None
    found = [each.value for each in node.value.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return found if len(found) == len(node.value.elts) else None
