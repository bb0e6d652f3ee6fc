"""What a file binds at its top level, read with Python's own ``ast``: a tenth of what a LibCST tree costs.

Most of a file is in the bodies of its functions and classes, which bind nothing there: they are left out before Python
reads the rest, where that is certain to change nothing (see :func:`_skeleton`). The members of a class are read when
somebody asks for one that its code names.
"""

from __future__ import annotations

import ast
import bisect
import hashlib
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from devlint import nesting
from devlint.decoding import SourceError, decode

IMPORT, DEF, CLASS, VARIABLE, SEVERAL = "import", "def", "class", "variable", "several"

#: A larger file is a table of data more often than code that others call.
_LARGEST = 1_000_000

#: Definitions of more lines are not followed: what a call of one gives is rarely so plain as to be worth it.
_MOST_LINES = {DEF: 50, CLASS: 100, VARIABLE: 20}
#: Without one of these, a definition says nothing of where anything is.
_OF_DEVICES = re.compile(r"\btorch\b|device|cuda|\bcpu\b|\bnn\.|\bF\.|\.to\(|Tensor|register_")
#: Functions that are asked whether something is so, or write it down.
_TELLS = re.compile(r"_?(is|has|check|log|print|save|warn|validate)_")
#: A function that gives nothing and moves nothing leaves all as it was.
_DOES = re.compile(r"\breturn[ (\[]|\byield\b|\.(to|cuda|cpu)\(")

#: What a definition that puts anything somewhere names.
_PUTS = re.compile(r"device|cuda|gpu|\.to\(|accelerat|parallel", re.IGNORECASE)

#: What gives a file names that it does not write down.
_BINDS = re.compile(r"\b(globals|vars|locals|exec|setattr)\(|\bsys\.modules\b|\b__getattr__\b|lazy", re.IGNORECASE)

# Strings, and comments, in which quotes mean nothing. Every text is matched in one way only: where a string is never
# closed, a pattern that can part it in several ways tries them all.
_STRING = re.compile(
    r"#[^\n]*"
    r'|"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'
    r"|'{3}[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'{3}"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'",
    re.DOTALL,
)
# A line that starts a statement of the top level, or goes on with one where no statement could start so.
_AT_LEFT = re.compile(r"^(?![ \t\n#)\]}])(?:((?:async[ \t]+)?def)[ \t]+(\w+)|(class)[ \t])?", re.MULTILINE)
_END_OF_HEADER = re.compile(r":[ \t]*(#.*)?$")
# Where lines are not what they look like.
_ODD = re.compile(r"\f|\\\n(?=\S)")


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
        self._is_plain = False  # whether lines end in the file as in what is followed
        self._followed: dict[str, str] = {}  # where somebody asked
        self._members: dict[str, frozenset[str]] = {}  # of classes, where somebody asked
        if len(raw) > _LARGEST:
            return
        try:
            text = decode(raw)[2]
        except SourceError:
            return  # whoever checks that file says so
        self._is_plain = "\r" not in text
        self._lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        text, self._ends = _skeleton(self._lines)
        module = _parsed(text)
        if module is None and self._ends:
            self._ends = {}
            module = _parsed("\n".join(self._lines))
        for statement in module.body if module is not None else ():
            self._read(statement, statement)

    def text(self, name: str) -> str:
        """The lines that bind a name."""
        code = self._code(name)
        return (textwrap.dedent(code) if code[:1].isspace() else code) + "\n"

    def around(self, name: str) -> str | None:
        """The text of the file, where the lines that define a name are in it as they are followed: not dedented."""
        first = self._lines[self.bindings[name].first - 1]
        return "\n".join(self._lines) if self._is_plain and not first[:1].isspace() else None

    def _code(self, name: str) -> str:
        binding = self.bindings[name]
        return "\n".join(self._lines[binding.first - 1 : binding.last])

    def followed(self, name: str) -> str:
        """The lines that bind a name, where they may say where anything is and are few enough; else nothing."""
        if name not in self._followed:
            self._followed[name] = self._to_follow(name)
        return self._followed[name]

    def _to_follow(self, name: str) -> str:
        kind, _, first, last, _ = self.bindings[name]
        if not self.names_torch or not first or last - first >= _MOST_LINES[kind]:
            return ""
        text = self.text(name)
        if kind == DEF and (_TELLS.match(name) or not _DOES.search(text)):
            return ""
        return text if _OF_DEVICES.search(text) else ""

    def has(self, name: str, members: Iterable[str]) -> list[str]:
        """Which of these attributes and methods a class has by its own code."""
        binding = self.bindings.get(name)
        if binding is None or binding.kind != CLASS:
            return []
        if name not in self._members:
            code = self._code(name)
            members = [member for member in members if member in code]
            if not members:
                return []
            module = _parsed(code if code[:1].strip() else f"if 1:\n{code}")
            found = ast.walk(module) if module is not None else ()
            cls = next((node for node in found if isinstance(node, ast.ClassDef)), None)
            self._members[name] = frozenset(_members(cls)) if cls is not None else frozenset()
        return [member for member in members if member in self._members[name]]

    @property
    def exported(self) -> list[str]:
        """What ``from this import *`` gives, but for what the file has by such an import itself."""
        if self.public is not None:
            return self.public
        return [name for name in self.bindings if not name.startswith("_")]

    def answer(self, question: str) -> str:
        """What the outline says to a question, in few characters: what findings of other files may rest on.

        ``names NAME``: where it leads. ``text NAME``: a digest of its lines, where they are to be followed.
        ``has NAME MEMBERS``: which of these members the class has. ``stars``, ``exports``: all of them.
        ``starts ROW``: what is bound from that line on. ``puts NAME``: whether its lines name devices. ``lacks
        NAME``: whether the file surely has none of that name by its own lines.
        """
        what, _, name = question.partition(" ")
        if what == "stars":
            return " ".join(self.stars)
        if what == "exports":
            return digest(" ".join(self.exported))
        if what == "starts":
            return " ".join(bound for bound, each in self.bindings.items() if each.first == int(name))
        if what == "has":
            cls, *members = name.split(" ")
            return " ".join(self.has(cls, members))
        if what == "lacks":
            return "yes" if self._lacks(name) else ""
        binding = self.bindings.get(name)
        if binding is None:
            return ""
        if what == "text":
            text = self.followed(name)
            return digest(text) if text else ""
        if what == "puts":
            return "yes" if _PUTS.search(self._code(name)) else ""
        return " ".join((binding.kind, binding.target, *binding.bases)).rstrip()

    def _lacks(self, name: str) -> bool:
        """Whether the file can be read, writes a name down nowhere, and has none that it does not write down."""
        if not (self.bindings or self.stars):
            return False
        text = "\n".join(self._lines)
        return not (name in text and re.search(rf"\b{re.escape(name)}\b", text)) and not _BINDS.search(text)

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
                    self._bind(node.name, Binding(DEF, "", _first_line(node), self._last_line(node)))
            case ast.ClassDef():
                bases = tuple(name for base in node.bases if (name := _dotted(base)))
                self._bind(node.name, Binding(CLASS, "", _first_line(node), self._last_line(node), bases))
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

    def _last_line(self, node: ast.stmt) -> int:
        return self._ends.get(node.lineno) or node.end_lineno or 0

    def _bind(self, name: str, binding: Binding) -> None:
        known = self.bindings.get(name)
        if known is None:
            self.bindings[name] = binding
        elif known.kind == IMPORT == binding.kind:
            pass  # try: import fast as f / except ImportError: import slow as f
        elif known[:1] + known[2:4] != binding[:1] + binding[2:4]:  # the same statement may bind a variable twice
            self.bindings[name] = Binding(SEVERAL)


def _parsed(text: str) -> ast.Module | None:
    """The syntax tree; ``None`` of what Python cannot read: whoever checks that file says so."""
    try:
        if nesting.too_deep(text) is not None:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _skeleton(lines: list[str]) -> tuple[str, dict[int, int]]:
    """The text without the bodies of functions and classes of the top level, every line where it was.

    And for each line that starts such a definition, the last line of it. Nothing is left out of a file with lines that
    may not be what they look like; and where a definition is told wrongly (a line at the left inside brackets), what is
    left is no Python.
    """
    text = "\n".join(lines)
    if _ODD.search(text):
        return text, {}
    strings = [match.span() for match in _STRING.finditer(text) if "\n" in match[0]]
    starts = [match for match in _AT_LEFT.finditer(text) if not _inside(strings, match.start())]
    rows = [*_rows(text, [match.start() for match in starts]), len(lines)]
    left, ends = lines.copy(), {}
    for match, first, after in zip(starts, rows, rows[1:], strict=False):
        last = after - 1
        while last > first and lines[last].lstrip()[:1] in ("", "#"):
            last -= 1
        if match[2]:
            left[first] = f"{match[1]} {match[2]}(): pass"
            body = first + 1
        elif match[3]:
            header = next((row for row in range(first, last) if _END_OF_HEADER.search(lines[row])), last)
            if header == last:
                continue
            left[header + 1] = " pass"
            body = header + 2
        else:
            continue
        left[body : last + 1] = [""] * (last + 1 - body)
        ends[first + 1] = last + 1
    return "\n".join(left), ends


def _inside(spans: list[tuple[int, int]], offset: int) -> bool:
    """Whether an offset lies in one of these spans, which are sorted."""
    place = bisect.bisect_left(spans, (offset,)) - 1
    return place >= 0 and offset < spans[place][1]


def _rows(text: str, offsets: list[int]) -> list[int]:
    """The rows, from 0, in which these offsets lie, which are sorted."""
    rows, row, before = [], 0, 0
    for offset in offsets:
        row += text.count("\n", before, offset)
        rows.append(row)
        before = offset
    return rows


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
