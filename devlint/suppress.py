"""Ignore comments: what they silence, which of them silence nothing, and how to add them.

``# devlint: ignore[rule, ...] reason``, where a name is a rule or a group; without brackets, every rule.

- **At the end of a line** it silences findings that start on that line or whose span crosses it. On the last line of a
  statement, or of the header of a compound statement, it silences the whole statement or header: that is where a
  formatter leaves the comment when it splits a long line, and the only place under a multi-line string.
- **On a line of its own** it silences the statement below, comments and blank lines between them notwithstanding; of a
  compound statement the header, with its decorators, and not the body. Inside a statement that spans lines it silences
  the next line that holds code.
- ``# devlint: ignore-file[rule, ...]`` on a line of its own, anywhere, silences the file.

Only real comments count, not text in strings. A comment may hold others besides (``# noqa  # devlint: ignore[...]``).
A name or a comment that silences nothing is an ``unused-ignore``, and so is one that cannot be understood. Names of
rules that are not enabled are left alone. What is said about a comment is silenced by that same comment only where it
names ``unused-ignore``; that name itself is never called unused.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from devlint.finding import GROUPS, Edit, Finding, Fix

if TYPE_CHECKING:
    from devlint.config import Settings
    from devlint.index import View
    from devlint.source import Source

_MARK = "devlint:"
_START = re.compile(r"#\s*devlint:\s*")
_NEXT_COMMENT = re.compile(r"\s+#(?!\d)|\s*$")  # `#123` in a reason is an issue number
_IGNORE = re.compile(r"(?P<kind>ignore-file|ignore)(?![\w-])(?:\s*\[(?P<names>[^\]]*)(?P<closed>\])?)?")
_EVERY = "every rule"
_NAME = re.compile(r"[^\s,]+")

_HEADERS = (
    "ClassDef", "Else", "ExceptHandler", "ExceptStarHandler", "Finally", "For", "FunctionDef", "If", "Match",
    "MatchCase", "Try", "TryStar", "While", "With",
)  # fmt: skip
_STRINGS = ("FormattedString", "SimpleString", "TemplatedString")


@dataclass(eq=False)
class _Ignore:
    """One ignore comment. Offsets are into the text of the file; no names means every rule."""

    kind: str
    names: tuple[str, ...] | None
    start: int
    end: int
    names_start: int
    names_end: int
    row: int
    rows: range
    own_line: bool
    used: set[str] = field(default_factory=set)

    @property
    def whole_file(self) -> bool:
        return self.kind == "ignore-file"

    def silences(self, finding: Finding, *, about: _Ignore | None = None) -> bool:
        """Whether it silences the finding, which then counts as its use; ``about``: the comment that is at fault."""
        first, last = finding.span.row, finding.span.end_row
        crosses = not self.own_line and first <= self.row <= last
        if not (self.whole_file or crosses or first == self.row or first in self.rows):
            return False
        fitting = [finding.rule] if about is self else [finding.rule, finding.group, _known()[finding.rule]]
        if self.names is None:
            named = None if about is self else _EVERY
        else:
            named = next((name for name in fitting if name in self.names), None)
        if named is None:
            return False
        self.used.add(named)
        return True


def apply(source: Source, findings: list[Finding], enabled: frozenset[str], *, unused: bool) -> list[Finding]:
    """The findings that no comment silences; with ``unused``, those about the comments themselves besides."""
    if _MARK not in source.text:
        return findings
    ignores, malformed = _read(source)
    # what stands closest to the line is used first, so a redundant comment for the file is the one that is unused
    ignores.sort(key=lambda i: (i.whole_file, i.start))
    by_row: dict[int, list[_Ignore]] = {}
    for ignore in ignores:
        if not ignore.whole_file:
            for row in {ignore.row, *ignore.rows}:
                by_row.setdefault(row, []).append(ignore)
    whole_file = [ignore for ignore in ignores if ignore.whole_file]

    def silenced(finding: Finding, about: _Ignore | None = None) -> bool:
        rows = range(finding.span.row, finding.span.end_row + 1)
        near = {ignore.start: ignore for row in rows for ignore in by_row.get(row, ())}
        ordered = [*(near[start] for start in sorted(near)), *whole_file]
        return any(ignore.silences(finding, about=about) for ignore in ordered)

    kept = [finding for finding in findings if not silenced(finding)]
    if not unused:
        return kept
    kept += [finding for finding in malformed if not silenced(finding)]
    known = _known()
    # comments that silence everything come last: they may find their use in a fault of another comment
    for about in sorted(ignores, key=lambda i: (i.whole_file, i.names is None)):
        for fault in _faults(source, about, enabled, known):
            if not silenced(fault, about):
                kept.append(fault)
    return kept


def add_ignores(raw: bytes, path: str, settings: Settings, project: View | None = None) -> bytes:
    """The file with a comment for every finding, so that a second check is clean.

    A comment goes on the finding's own line or into an ignore comment that is there; where that line cannot hold one
    (a multi-line string, a backslash), at the end of the statement. Files that cannot be parsed, or not be written
    without loss, come back as they are.
    """
    from devlint.engine import check
    from devlint.finding import INTERNAL_ERROR, SYNTAX_ERROR
    from devlint.source import Source

    for _ in range(3):  # a comment that now silences a line may leave another one unused
        findings = check(raw, path, settings, project)
        if not findings or any(f.rule in (SYNTAX_ERROR, INTERNAL_ERROR) for f in findings):
            return raw
        source = Source(raw, path)
        if not source.writable:
            return raw
        raw = _add_ignores(source, findings)
    return raw


def _add_ignores(source: Source, findings: list[Finding]) -> bytes:
    ignores, _ = _read(source)
    comments = {source.place(offset)[0]: (offset, text) for offset, text in source.comments}
    statements = _Statements(source)
    barred = _rows_without_room(source, comments)
    names_of: dict[int, set[str]] = {}
    for finding in findings:
        row = finding.span.row
        if row in barred:
            row = statements.around(row)[1]
        names_of.setdefault(row, set()).add(finding.rule)
    there = {i.row: i for i in reversed(ignores) if i.names and not i.whole_file}  # the first of each row
    text, done, pieces = source.text, 0, []
    for row, names in sorted(names_of.items()):
        added = ", ".join(sorted(names))
        if row in there:
            start, end = there[row].names_start, there[row].names_end
            at, added = start + len(text[start:end].rstrip(" \t,")), f", {added}"
        else:
            if row in comments:
                offset, comment = comments[row]
                at = offset + len(comment.rstrip())
            else:
                at = source.lines[row - 1] + len(_line(source, row).rstrip())
            added = f"  # devlint: ignore[{added}]"
        pieces += [text[done:at], added]
        done = at
    return source.encode("".join([*pieces, text[done:]]))


def _rows_without_room(source: Source, comments: dict[int, tuple[int, str]]) -> set[int]:
    barred = {
        row
        for row in range(1, len(source.lines) + 1)
        if row not in comments and _line(source, row).rstrip("\r\n").endswith("\\")
    }
    for kind in _STRINGS:
        for node in source.nodes_named(kind):
            start, end = source.offsets(node)
            barred.update(range(source.place(start)[0], source.place(end)[0]))
    return barred


# reading the comments -----------------------------------------------------------------------------


def _read(source: Source) -> tuple[list[_Ignore], list[Finding]]:
    """The ignore comments of a file, and what is wrong with those that are none."""
    ignores: list[_Ignore] = []
    malformed: list[Finding] = []
    statements: _Statements | None = None
    for offset, comment in source.comments:
        if _MARK not in comment:
            continue
        statements = statements or _Statements(source)
        row = source.place(offset)[0]
        own_line = not source.text[source.lines[row - 1] : offset].strip()
        for match in _START.finditer(comment):
            stop = _NEXT_COMMENT.search(comment, match.end())
            end = stop.start() if stop else len(comment)
            body = comment[match.end() : end]
            parsed = _IGNORE.match(body)
            wrong = _wrong(body, parsed, own_line)
            if parsed is None or wrong:
                malformed.append(_finding(source, offset + match.start(), offset + end, wrong))
                continue
            bracketed = parsed["names"] is not None
            names_start, names_end = (match.end() + p for p in parsed.span("names")) if bracketed else (0, 0)
            ignores.append(
                _Ignore(
                    kind=parsed["kind"],
                    names=tuple(_NAME.findall(parsed["names"])) if bracketed else None,
                    start=offset + match.start(),
                    end=offset + end,
                    names_start=offset + names_start,
                    names_end=offset + names_end,
                    row=row,
                    rows=statements.below(row, offset) if own_line else statements.ended_by(row),
                    own_line=own_line,
                )
            )
    return ignores, malformed


def _wrong(body: str, parsed: re.Match[str] | None, own_line: bool) -> str:
    """What is wrong with the text after ``# devlint:``, or nothing."""
    from difflib import get_close_matches

    if parsed is None:
        word = re.match(r"[\w-]*", body)
        close = get_close_matches(word[0].lower() if word else "", ["ignore", "ignore-file"], n=1, cutoff=0.8)
        hint = f"did you mean `{close[0]}`?" if close else "expected `ignore[...]` or `ignore-file[...]`"
        said = f"# devlint: {body.split('[')[0]}".strip()
        return f"`{said}` is not understood; {hint}"
    if parsed["names"] is not None and not parsed["closed"]:
        return f"`{parsed['kind']}[` is not closed, so it silences nothing; add `]` after the last name"
    if parsed["names"] is None:
        first = re.match(r"[\s:=(]*([\w-]+)", body[parsed.end() :])
        if first and first[1] in _known():
            return f"names go in brackets, so this silences nothing; did you mean `{parsed['kind']}[{first[1]}]`?"
    if parsed["kind"] == "ignore-file" and not own_line:
        return "`ignore-file` silences nothing at the end of a line; put it on a line of its own"
    return ""


class _Statements:
    """The rows of every simple statement, header and decorator: what a comment can speak for."""

    def __init__(self, source: Source) -> None:
        self.source = source
        found: list[tuple[int, int, int, int]] = []  # first row, last row, last row below a comment, column

        def add(start: int, end: int, reach: int | None = None) -> int:
            first, column = source.place(start)
            last = source.place(end)[0]
            found.append((first, last, reach or last, column))
            return last

        for node in source.nodes_named("SimpleStatementLine"):
            add(*source.offsets(node))
        for name in _HEADERS:
            for node in source.nodes_named(name):
                start, end = source.offsets(node)
                if not hasattr(getattr(node, "body", None), "leading_whitespace"):
                    colon = source.colon(node)
                    end = end if colon is None else colon + 1
                reach = add(start, end)
                for decorator in getattr(node, "decorators", ()):
                    add(*source.offsets(decorator), reach)
        self.rows = sorted(found)
        self.firsts = [first for first, *_ in self.rows]

    @cached_property
    def comments(self) -> dict[int, int]:
        """Row -> offset of its comment."""
        return {self.source.place(offset)[0]: offset for offset, _ in self.source.comments}

    def around(self, row: int) -> tuple[int, int]:
        """First and last row of the statement that holds a row; the row itself outside of any."""
        at = bisect_left(self.firsts, row + 1) - 1
        if at >= 0 and row <= self.rows[at][1]:
            return self.rows[at][:2]
        return row, row

    def ended_by(self, row: int) -> range:
        """The rows that a comment at the end of ``row`` speaks for."""
        first, last = self.around(row)
        return range(first if row == last else row, row + 1)

    def below(self, row: int, offset: int) -> range:
        """The rows that a comment on a line of its own speaks for."""
        first, last = self.around(row)
        if first < row < last:
            comments = self.comments
            for following in range(row + 1, last + 1):
                start = self.source.lines[following - 1]
                end = comments.get(following, start + len(_line(self.source, following)))
                if self.source.text[start:end].strip():
                    return range(following, following + 1)
        at = bisect_left(self.firsts, row + 1)
        column = self.source.place(offset)[1]
        # a comment indented deeper than what follows ends the block above
        if at < len(self.rows) and column <= self.rows[at][3]:
            return range(self.rows[at][0], self.rows[at][2] + 1)
        return range(0)


def _line(source: Source, row: int) -> str:
    end = source.lines[row] if row < len(source.lines) else len(source.text)
    return source.text[source.lines[row - 1] : end]


# what is wrong with them --------------------------------------------------------------------------


def _faults(source: Source, ignore: _Ignore, enabled: frozenset[str], known: dict[str, str]) -> Iterator[Finding]:
    if ignore.names is None:
        if not ignore.used:
            yield _unused(source, ignore, [])
        return
    unused = []
    rule = _rule()
    for name in dict.fromkeys(ignore.names):
        if name not in known:
            yield _unknown(source, ignore, name, known)
        elif name not in ignore.used and name != rule and _in_force(name, enabled, known):
            unused.append(name)
    if unused or not ignore.names:
        yield _unused(source, ignore, unused)


def _in_force(name: str, enabled: frozenset[str], known: dict[str, str]) -> bool:
    """Whether this run would have reported what the name stands for: a rule, or all rules of a group."""
    if name not in GROUPS:
        return name in enabled
    rules = [rule for rule, group in known.items() if group == name and rule != name]
    return bool(rules) and enabled.issuperset(rules)


def _unknown(source: Source, ignore: _Ignore, name: str, known: dict[str, str]) -> Finding:
    from difflib import get_close_matches

    close = get_close_matches(name.lower().replace("_", "-"), known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else "`devlint rules` lists them"
    if name.upper() == "ALL":
        hint = f"`{ignore.kind}` without brackets silences every rule"
    inside = source.text[ignore.names_start : ignore.names_end]
    start = ignore.names_start + next(m.start() for m in _NAME.finditer(inside) if m[0] == name)
    return _finding(source, start, start + len(name), f"there is no rule or group `{name}`; {hint}")


def _unused(source: Source, ignore: _Ignore, names: list[str]) -> Finding:
    where = "in this file" if ignore.whole_file else "here"
    listed = ", ".join(f"`{name}`" for name in names)
    if ignore.names is None:
        message = f"`{ignore.kind}` silences nothing: nothing is reported {where}"
    elif not names:
        message = f"`{ignore.kind}[]` names no rule"
    else:
        message = f"{listed} {'is' if len(names) == 1 else 'are'} not reported {where}, so ignoring silences nothing"
    fix = None
    if source.writable:
        kept = [name for name in ignore.names or () if name not in names]
        if kept:
            span = source.span_at(ignore.names_start, ignore.names_end)
            fix = Fix(f"no longer ignore {listed}", True, (Edit(span, ", ".join(kept)),))
        else:
            span = source.span_at(*_extent(source, ignore))
            fix = Fix("remove the comment", True, (Edit(span, ""),))
    return _finding(source, ignore.start, ignore.end, message, fix)


def _extent(source: Source, ignore: _Ignore) -> tuple[int, int]:
    """What goes when the comment goes: its line where it has one, the blanks before it, and no other comment."""
    text = source.text
    line_start, line = source.lines[ignore.row - 1], _line(source, ignore.row)
    line_end = line_start + len(line.rstrip("\r\n"))
    before, after = text[line_start : ignore.start], text[ignore.end : line_end]
    if not before.strip() and not after.strip():
        return line_start, line_start + len(line)
    if after.strip() and (not before.strip() or before.rstrip() == _code_before(source, ignore)):
        return ignore.start, ignore.end + len(after) - len(after.lstrip())
    return line_start + len(before.rstrip()), ignore.end if after.strip() else line_end


def _code_before(source: Source, ignore: _Ignore) -> str:
    """The line up to its first comment, without the blanks at its end."""
    row_start = source.lines[ignore.row - 1]
    comment = max(offset for offset, _ in source.comments if offset <= ignore.start)
    return source.text[row_start:comment].rstrip()


def _known() -> dict[str, str]:
    """Every name that may stand in brackets -> its group."""
    from devlint.finding import BUILT_IN
    from devlint.rule import discover

    rules = {name: kind.group for name, kind in discover().items()}
    return rules | {name: group for name, (group, _) in BUILT_IN.items()} | {group: group for group in GROUPS}


def _finding(source: Source, start: int, end: int, message: str, fix: Fix | None = None) -> Finding:
    from devlint.finding import BUILT_IN

    return Finding(_rule(), *BUILT_IN[_rule()], message, source.span_at(start, end), fix=fix)


def _rule() -> str:
    from devlint.finding import UNUSED_IGNORE

    return UNUSED_IGNORE
