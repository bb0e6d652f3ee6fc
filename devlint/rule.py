"""Rule: the base class of every rule, and how rules are found.

A rule is a file ``rules/<name_with_underscores>.py`` holding a class of the same words
(``discarded_move.py``: ``DiscardedMove``: ``discarded-move``). There is no other registration.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from devlint.finding import GROUPS, Edit, Finding, Fix, Note, Span
from devlint.testcode import is_test_file

if TYPE_CHECKING:
    import libcst as cst

    from devlint.flow import Flow
    from devlint.source import Source

FIXABLE = ("always", "sometimes", "never")


class RuleError(Exception):
    """A rule is written wrongly: a misspelt hook, an unknown group, a name that is not its file's."""


class Rule:
    """One kind of fault.

    A subclass sets ``group`` and ``fixable``, explains itself in its docstring (the only source of
    its documentation) and defines ``visit_<Node>(self, node)`` for the LibCST nodes it looks at,
    or ``check(self)`` to go through facts the flow has collected for the whole file.
    ``assumes_host_default`` where it takes it that what names no device is made on the host, and
    ``raises`` where the fault ends a run on a device: a test that stands does not have it, or never runs there.
    ``needs_device`` where it speaks of nothing but what is brought to a device: what imports a file has to do that.
    A rule keeps no state between nodes: whatever it needs to know, it asks ``self.flow``.
    """

    group: ClassVar[str]
    fixable: ClassVar[str] = "never"
    assumes_host_default: ClassVar[bool] = False
    raises: ClassVar[bool] = False
    needs_device: ClassVar[bool] = False
    name: ClassVar[str]
    hooks: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __init_subclass__(cls) -> None:
        from devlint.tree import NODE_NAMES

        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()
        if getattr(cls, "group", None) not in GROUPS:
            raise RuleError(f"{cls.__name__}: group must be one of {', '.join(GROUPS)}")
        if cls.fixable not in FIXABLE:
            raise RuleError(f"{cls.__name__}: fixable must be one of {', '.join(FIXABLE)}")
        hooks = []
        for attribute in dir(cls):
            if attribute.startswith(("visit_", "leave_")):
                node = attribute.removeprefix("visit_")
                if node not in NODE_NAMES:
                    raise RuleError(f"{cls.__name__}.{attribute} would never be called: no such hook")
                hooks.append((node, attribute))
        cls.hooks = tuple(hooks)

    def __init__(self, source: Source, flow: Flow) -> None:
        self.source, self.flow = source, flow
        self._findings: dict[Finding, None] = {}  # in the order made, each once

    def check(self) -> None:
        """Called once a file, before the hooks."""

    # what a rule says ---------------------------------------------------------------------------

    def report(
        self,
        node: cst.CSTNode,
        message: str,
        *,
        notes: Iterable[Note] = (),
        fix: Fix | None = None,
        tentative: bool = False,
        silent: bool = False,
    ) -> None:
        """Report a fault at ``node``. The message is lower case, has no full stop, and puts code in backticks.

        ``tentative`` where what is known allows the fault and does not show it: such a finding belongs to the nursery,
        whatever the rule's group, and is kept back unless somebody selects ``tentative``. ``silent`` where this one
        does not end a run, though others of a rule with ``raises`` do: a test that stands may have it.
        """
        if fix is not None and not self.source.writable:
            fix = None
        span, told = self.source.span(node), tuple(notes)
        told += self._learned_elsewhere(node, span, told)
        tentative = tentative or self._is_doubtful_here(node, silent=silent)
        group = "nursery" if tentative else self.group
        finding = Finding(self.name, group, GROUPS[group], message, span, told, fix, tentative)
        self._findings[finding] = None

    def _is_doubtful_here(self, node: cst.CSTNode, *, silent: bool) -> bool:
        """Whether the place of a file, or what the rest of the project says, makes a finding tentative."""
        from devlint.broken import fails_before
        from devlint.generated import is_generated
        from devlint.reach import brings_to_devices
        from devlint.unused import is_unused

        if (self.raises and not silent and self.in_tests) or is_generated(self.source) or fails_before(self.flow, node):
            return True
        if self.flow.project is None:
            return False
        if (self.assumes_host_default and self.flow.project.redirects()) or self.flow.project.replaces_torch():
            return True
        if self.needs_device and not (brings_to_devices(self.source.raw) or self.flow.project.is_brought_to_devices()):
            return True
        return is_unused(self.flow, node)

    @cached_property
    def in_tests(self) -> bool:
        """Whether the file is test code, by its place in the project."""
        project = self.flow.project
        return is_test_file(project.in_project() if project is not None else self.source.path)

    def _learned_elsewhere(self, node: cst.CSTNode, span: Span, notes: tuple[Note, ...]) -> tuple[Note, ...]:
        """Notes on definitions in other files without which what is reported, or noted, would not be known."""
        from devlint.flow.elsewhere import Elsewhere

        flow = self.flow
        if flow.project is None:
            return ()
        places = [span, *(note.span for note in notes)]
        found = []
        for learned, source in flow.learned.items():
            # what lies in a place that has been read has been read with it
            if self.source.is_placed(learned):
                at = self.source.span(learned)
                if any(_covers(place, at) for place in places):
                    found.append((source, "defined here"))
        function = flow.function(node)
        base = function.cls.learned_from if function is not None and function.cls is not None else None
        definition = flow.definition(base) if base is not None else None
        if function is not None and function.cls is not None and definition is not None:
            row = flow.project.row(definition)
            source = Elsewhere(definition.path, row, definition.name)
            if definition.name.rpartition(".")[2] != function.cls.name:
                found.append((source, f"a module, and so is `{function.cls.name}`"))
        return tuple(
            Note(
                f"`{source.name}` is {what}",
                Span(source.row, 1, source.row, 1),
                flow.project.shown(source.path, source.row),
            )
            for source, what in dict(found).items()
        )

    @property
    def findings(self) -> list[Finding]:
        return list(self._findings)

    def note(self, node: cst.CSTNode | None, message: str) -> Note:
        """A note at ``node``; at the start of the file where the place is not known."""
        return Note(message, self.source.span(node) if node is not None else Span(1, 1, 1, 1))

    def fix(self, title: str, *edits: Edit, safe: bool) -> Fix:
        return Fix(title, safe, tuple(sorted(edits)))

    # edits --------------------------------------------------------------------------------------

    def replace(self, node: cst.CSTNode, code: str, *, outer: bool = False) -> Edit:
        """Replace the node's own text; with ``outer``, its parentheses too."""
        return Edit(self.source.span_at(*self.source.offsets(node, outer=outer)), code)

    def replace_between(self, start: int, end: int, code: str) -> Edit:
        """Replace what lies between two offsets of ``source.text``."""
        return Edit(self.source.span_at(start, end), code)

    def delete_line(self, line: cst.SimpleStatementLine) -> Edit:
        """Delete a whole statement line, its line end included."""
        start, end = self.source.offsets(line)
        lines = self.source.lines
        row, _ = self.source.place(start)
        last, _ = self.source.place(end)
        following = lines[last] if last < len(lines) else len(self.source.text)
        return Edit(self.source.span_at(lines[row - 1], following), "")

    def delete_statement(self, line: cst.SimpleStatementLine) -> Edit:
        """Delete a statement line; a comment at its end stays, and has the line to itself."""
        comment = line.trailing_whitespace.comment
        if comment is None:
            return self.delete_line(line)
        return self.replace_between(self.source.offsets(line.body[0])[0], self.source.offsets(comment)[0], "")

    def drop_statement(self, line: cst.SimpleStatementLine) -> Edit | None:
        """Delete a statement line, where its block holds others."""
        import libcst as cst

        block = self.parent(line)
        if not isinstance(block, cst.IndentedBlock | cst.Module) or len(block.body) == 1:
            return None
        return self.delete_statement(line)

    def insert_before(self, node: cst.CSTNode, code: str) -> Edit:
        start, _ = self.source.offsets(node, outer=_is_expression(node))
        return Edit(self.source.span_at(start, start), code)

    def insert_after(self, node: cst.CSTNode, code: str) -> Edit:
        _, end = self.source.offsets(node, outer=_is_expression(node))
        return Edit(self.source.span_at(end, end), code)

    def insert_statement(self, node: cst.CSTNode, *lines: str) -> Edit | None:
        """Insert lines above the statement that holds ``node``, at its indentation and with the file's line end.

        A line that belongs into a block starts with four blanks a level; they become what the file indents with. Code
        taken from the file may span lines and goes in as it is.
        ``None`` where no line of its own stands there: after a semicolon, behind ``if x:`` on the same line, in a
        decorator or a default, in the test of an ``elif``.
        """
        import libcst as cst

        source = self.source
        statement: cst.CSTNode = node
        below: cst.CSTNode | None = None
        while not isinstance(statement, (cst.BaseCompoundStatement, cst.SimpleStatementLine)):
            parent = source.parents.get(statement)
            if parent is None or isinstance(parent, (cst.SimpleStatementSuite, cst.FunctionDef, cst.ClassDef)):
                return None
            below, statement = statement, parent
        if not isinstance(source.parents.get(statement), (cst.IndentedBlock, cst.Module)):
            return None
        if isinstance(statement, cst.SimpleStatementLine) and below not in (None, statement.body[0]):
            return None
        decorators = getattr(statement, "decorators", ())
        start, _ = source.offsets(decorators[0] if decorators else statement)
        indent = source.text[source.lines[source.place(start)[0] - 1] : start]
        newline, step = source.newline(start), source.module.default_indent
        code = "".join(f"{_with_indent(line, step)}{newline}{indent}" for line in lines)
        return self.replace_between(start, start, code)

    def add_argument(self, call: cst.Call, code: str) -> Edit | None:
        """Add a keyword argument (``"device=x.device"``) as the last one.

        ``None`` where it would not parse: the keyword is there already, or the one argument is a bare generator.
        """
        import libcst as cst

        source = self.source
        keyword = code.partition("=")[0].strip()
        if any(arg.keyword is not None and arg.keyword.value == keyword for arg in call.args):
            return None
        close = source.offsets(call)[1] - 1
        if not call.args:
            return self.replace_between(close, close, code)
        last = call.args[-1]
        if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
            return None
        _, end = source.offsets(last.value, outer=True)
        if not isinstance(last.comma, cst.Comma):
            return self.replace_between(end, end, f", {code}")
        after, _ = source.offsets(last.comma.whitespace_after)
        row, _ = source.place(after)
        if row == source.place(close)[0]:
            return self.replace_between(after, after, f" {code}")
        # a trailing comma at the end of a line: the new argument gets a line of its own, and the comma
        start, _ = source.offsets(last, outer=True)
        line = source.text[source.lines[source.place(start)[0] - 1] : start]
        if line.strip():
            return self.replace_between(after, after, f" {code},")
        line_end = source.lines[row] - len(source.newline(after))
        return self.replace_between(line_end, line_end, f"{source.newline(after)}{line}{code},")

    def remove_argument(self, call: cst.Call, keyword: str) -> Edit | None:
        """Remove the keyword argument; ``None`` where it is not there, or a comment would be lost with it."""
        import libcst as cst

        source = self.source
        for position, arg in enumerate(call.args):
            if arg.keyword is None or arg.keyword.value != keyword:
                continue
            start, _ = source.offsets(arg.keyword)
            _, end = source.offsets(arg.value, outer=True)
            if position + 1 < len(call.args):
                end, _ = source.offsets(call.args[position + 1], outer=True)
            elif position:
                _, start = source.offsets(call.args[position - 1].value, outer=True)
            elif isinstance(arg.comma, cst.Comma):
                end, _ = source.offsets(arg.comma.whitespace_after)
            if any(start <= offset < end for offset, _ in source.comments):
                return self._remove_lines(arg)
            return self.replace_between(start, end, "")
        return None

    def _remove_lines(self, arg: cst.Arg) -> Edit | None:
        """Remove an argument with its lines, where nothing else is on them."""
        source = self.source
        start, _ = source.offsets(arg, outer=True)
        _, value_end = source.offsets(arg.value, outer=True)
        first = source.lines[source.place(start)[0] - 1]
        row, _ = source.place(value_end)
        last = source.lines[row] if row < len(source.lines) else len(source.text)
        if source.text[first:start].strip() or source.text[value_end:last].strip() not in ("", ","):
            return None
        if any(first <= offset < last for offset, _ in source.comments):
            return None
        return self.replace_between(first, last, "")

    # surroundings -------------------------------------------------------------------------------

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self.source.parents.get(node)

    def enclosing(self, node: cst.CSTNode, *kinds: type) -> Any:
        """The nearest ancestor of one of these classes, or ``None``."""
        parents = self.source.parents
        current = parents.get(node)
        while current is not None and not isinstance(current, kinds):
            current = parents.get(current)
        return current

    def code(self, node: cst.CSTNode) -> str:
        return self.source.code(node)


def _covers(outer: Span, inner: Span) -> bool:
    start, end = (outer.row, outer.column), (outer.end_row, outer.end_column)
    return start <= (inner.row, inner.column) and (inner.end_row, inner.end_column) <= end


def _is_expression(node: cst.CSTNode) -> bool:
    import libcst as cst

    return isinstance(node, cst.BaseExpression)


def _with_indent(line: str, step: str) -> str:
    """A line written with four blanks a level, in the file's own indentation."""
    body = line.lstrip(" ")
    return step * ((len(line) - len(body)) // 4) + body


def rule_files() -> dict[str, str]:
    """Rule name -> file, without importing a rule.

    Raises :class:`RuleError` where the package ``devlint.rules`` is not installed: a checkout maps it from
    ``rules/`` at installation.
    """
    spec = importlib.util.find_spec("devlint.rules")
    if spec is None or not spec.submodule_search_locations:
        raise RuleError("devlint is not installed here: its rules are missing; run `pip install -e .` in the checkout")
    found = {}
    for module in pkgutil.iter_modules(spec.submodule_search_locations):
        if not module.name.startswith("_"):
            directory = getattr(module.module_finder, "path", "")
            found[module.name.replace("_", "-")] = f"{directory}/{module.name}.py"
    return dict(sorted(found.items()))


@lru_cache(maxsize=1)
def discover() -> dict[str, type[Rule]]:
    """Rule name -> class, for every rule installed. Imports all of them, and LibCST."""
    import devlint.nodes  # noqa: F401  LibCST is imported in less time where this comes first

    found: dict[str, type[Rule]] = {}
    for name in rule_files():
        stem = name.replace("-", "_")
        module = importlib.import_module(f"devlint.rules.{stem}")
        class_name = "".join(word.capitalize() for word in stem.split("_"))
        rule = getattr(module, class_name, None)
        if not (isinstance(rule, type) and issubclass(rule, Rule)):
            raise RuleError(f"rules/{stem}.py must define a class {class_name}(Rule)")
        found[name] = rule
    return found
