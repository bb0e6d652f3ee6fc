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
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from devlint.finding import GROUPS, Edit, Finding, Fix, Note, Span

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
    A rule keeps no state between nodes: whatever it needs to know, it asks ``self.flow``.
    """

    group: ClassVar[str]
    fixable: ClassVar[str] = "never"
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
        self.findings: list[Finding] = []

    def check(self) -> None:
        """Called once a file, before the hooks."""

    # what a rule says ---------------------------------------------------------------------------

    def report(self, node: cst.CSTNode, message: str, *, notes: Iterable[Note] = (), fix: Fix | None = None) -> None:
        """Report a fault at ``node``. The message is lower case, has no full stop, and puts code in backticks."""
        if fix is not None and not self.source.writable:
            fix = None
        finding = Finding(
            self.name, self.group, GROUPS[self.group], message, self.source.span(node), tuple(notes), fix
        )
        if finding not in self.findings:
            self.findings.append(finding)

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

    def insert_before(self, node: cst.CSTNode, code: str) -> Edit:
        start, _ = self.source.offsets(node, outer=_is_expression(node))
        return Edit(self.source.span_at(start, start), code)

    def insert_after(self, node: cst.CSTNode, code: str) -> Edit:
        _, end = self.source.offsets(node, outer=_is_expression(node))
        return Edit(self.source.span_at(end, end), code)

    def add_argument(self, call: cst.Call, code: str) -> Edit | None:
        """Add a keyword argument (``"device=x.device"``) as the last one; ``None`` where that would not parse."""
        import libcst as cst

        if not call.args:
            inside = self.source.offsets(call)[1] - 1  # just before the closing parenthesis
            return Edit(self.source.span_at(inside, inside), code)
        last = call.args[-1]
        if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
            return None
        _, end = self.source.offsets(last.value, outer=True)
        if isinstance(last.comma, cst.Comma):
            comma = self.source.text.index(",", end) + 1
            return Edit(self.source.span_at(comma, comma), f" {code}" if not self._trails(call) else f" {code},")
        return Edit(self.source.span_at(end, end), f", {code}")

    def _trails(self, call: cst.Call) -> bool:
        # a magic trailing comma on its own line stays one
        _, end = self.source.offsets(call.args[-1].value, outer=True)
        return "\n" in self.source.text[end : self.source.offsets(call)[1]]

    def remove_argument(self, call: cst.Call, keyword: str) -> Edit | None:
        """Remove the keyword argument; ``None`` where a comment would be lost with it."""
        for position, arg in enumerate(call.args):
            if arg.keyword is None or arg.keyword.value != keyword:
                continue
            start, _ = self.source.offsets(arg.keyword)
            _, end = self.source.offsets(arg.value, outer=True)
            if position + 1 < len(call.args):
                following = call.args[position + 1]
                end, _ = self.source.offsets(following, outer=True)
            elif position:
                before = call.args[position - 1]
                _, start = self.source.offsets(before.value, outer=True)
            if "#" in self.source.text[start:end].replace(self.source.code(arg.value), ""):
                return None
            return Edit(self.source.span_at(start, end), "")
        return None

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


def _is_expression(node: cst.CSTNode) -> bool:
    import libcst as cst

    return isinstance(node, cst.BaseExpression)


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
