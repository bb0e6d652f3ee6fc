"""Fixing: rounds of check, choose, apply and verify until nothing changes; diffs; writing files.

Fixes of one round do not touch each other; what overlaps waits for the next round, where it is looked at again. After
each round the result must compile, be read back as it was written, and hold every comment it held before. Where it does
not, the fixes at fault are found and left out, and the others go in.
"""

from __future__ import annotations

import os
import re
import warnings
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from devlint.finding import Finding

if TYPE_CHECKING:
    from devlint.config import Settings
    from devlint.index import View

_ROUNDS = 10
_BARE_NEWLINE = re.compile(r"(?<!\r)\n")
_IMPORT = re.compile(r"\s*(import|from)\s")
_WHOLE_LINES = re.compile(r"[\r\n][ \t]*\Z")


@dataclass(frozen=True)
class Fixed:
    """What fixing gave.

    ``applied`` are the findings whose fixes went in, in order; ``remaining`` what a check of ``raw`` finds; ``refused``
    says of each fix that could not be written why; ``held`` is how many tentative findings of ``raw`` are held back.
    """

    raw: bytes
    applied: tuple[Finding, ...]
    remaining: tuple[Finding, ...]
    refused: tuple[str, ...]
    held: int = 0


def fix(raw: bytes, path: str, settings: Settings, *, unsafe: bool, project: View | None = None) -> Fixed:
    """Apply safe fixes, and with ``unsafe`` the others too, until nothing changes."""
    from devlint import engine

    checked = engine.inspect(raw, path, settings, project)
    applied: list[Finding] = []
    refused: list[str] = []
    history: list[tuple[bytes, int]] = []  # each round's text, and how many fixes had led there
    while True:
        offered = [f for f in checked.findings if f.fix is not None and (f.fix.safe or unsafe)]
        refused = []
        if not offered:
            break
        if len(history) == _ROUNDS:
            refused = [f"after {_ROUNDS} rounds the fixes of {_rules(offered)} had not settled; run devlint again"]
            break
        history.append((raw, len(applied)))
        attempt = _Round(raw, path)
        attempt.run(offered)
        refused = attempt.refused
        if not attempt.accepted:
            break
        order = {id(finding): number for number, finding in enumerate(offered)}
        applied += sorted((finding for finding, _ in attempt.accepted), key=lambda finding: order[id(finding)])
        raw = attempt.source.encode(attempt.text(attempt.accepted))
        before = [count for seen, count in history if seen == raw]
        if before:
            refused = [
                f"the fixes of {_rules(applied[before[0] :])} undo each other and were left out; please report it"
            ]
            applied = applied[: before[0]]
        checked = engine.inspect(raw, path, settings, project)
        if before:
            break
    return Fixed(raw, tuple(applied), tuple(checked.findings), tuple(refused), checked.held)


def _rules(findings: Iterable[Finding]) -> str:
    return ", ".join(f"`{rule}`" for rule in sorted({f.rule for f in findings}))


class _Replacement(NamedTuple):
    """An edit in offsets."""

    start: int
    end: int
    content: str


_Candidate = tuple[Finding, tuple[_Replacement, ...]]


@dataclass
class _Round:
    """One text, and the fixes that are tried on it."""

    raw: bytes
    path: str
    accepted: list[_Candidate] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        from devlint.source import Source

        self.source = Source(self.raw, self.path)
        # a file in newer syntax than the running Python is judged by LibCST alone
        self.compiles = _compile_error(self.raw, self.path) is None

    def run(self, offered: list[Finding]) -> None:
        """Accept all that can go in at once. What overlaps a refused fix gets its turn when that one is out."""
        while offered and self.source.writable:
            chosen = self.choose(offered)
            refused = len(self.refused)
            self.settle(chosen)
            if len(self.refused) == refused:
                break
            tried = {id(finding) for finding, _ in chosen}
            offered = [finding for finding in offered if id(finding) not in tried]

    def choose(self, offered: list[Finding]) -> list[_Candidate]:
        """Fixes that touch neither each other nor what is accepted, first come first served."""
        chosen: list[_Candidate] = []
        taken = _Taken(_edits(self.accepted))
        for finding in offered:
            edits = self._replacements(finding)
            new = [edit for edit in edits if not (edit in taken.all and _is_import(edit))]
            touched = any(_touch(edit, other) for edit in new for other in taken.near(edit))
            if taken.all.issuperset(edits) or not touched:
                chosen.append((finding, edits))
                taken.add(edits)
        return chosen

    def settle(self, fixes: list[_Candidate]) -> None:
        """Accept what can go in together with what is accepted; halve what cannot, down to the fixes at fault."""
        if not fixes:
            return
        flaw = self.flaw([*self.accepted, *fixes])
        if flaw is None:
            self.accepted += fixes
        elif len(fixes) == 1:
            finding = fixes[0][0]
            self.refused.append(f"the fix of `{finding.rule}` in line {finding.span.row} was left out: {flaw}")
        else:
            middle = len(fixes) // 2
            self.settle(fixes[:middle])
            self.settle(fixes[middle:])

    def text(self, fixes: list[_Candidate]) -> str:
        """The text with these fixes applied."""
        pieces, at = [], 0
        for start, end, content in sorted(_edits(fixes), key=lambda edit: edit[:2]):
            pieces += [self.source.text[at:start], content]
            at = end
        return "".join([*pieces, self.source.text[at:]])

    def flaw(self, fixes: list[_Candidate]) -> str | None:
        """What would be wrong with the result, or ``None``."""
        from devlint.decoding import SourceError
        from devlint.source import Source

        edits = sorted(_edits(fixes), key=lambda edit: edit[:2])
        if any(edit.end > following.start for edit, following in pairwise(edits)):
            return "its edits overlap"
        text = self.text(fixes)
        if text == self.source.text:
            return "it changes nothing"
        try:
            raw = self.source.encode(text)
        except UnicodeEncodeError as error:
            return f"`{text[error.start : error.end]}` cannot be written in {self.source.encoding}"
        reason = _compile_error(raw, self.path) if self.compiles else None
        if reason is not None:
            return f"the result would not compile ({reason})"
        try:
            after = Source(raw, self.path)
        except SourceError as error:
            return f"the result would not parse ({error.reason})"
        if after.text != text or not after.writable:
            return "the result would not be read back as it was written"
        lost = self._comments(fixes) - Counter(comment for _, comment in after.comments)
        return f"the comment `{next(iter(lost))}` would be lost" if lost else None

    def _comments(self, fixes: list[_Candidate]) -> Counter[str]:
        """The comments that must still be there: all but those that go because they silence nothing."""
        from devlint.finding import UNUSED_IGNORE

        going = _Taken(edit for finding, edits in fixes if finding.rule == UNUSED_IGNORE for edit in edits)
        return Counter(
            comment
            for offset, comment in self.source.comments
            if not any(
                edit.start < offset + len(comment) and offset < edit.end
                for edit in going.near(_Replacement(offset, offset + len(comment), ""))
            )
        )

    def _replacements(self, finding: Finding) -> tuple[_Replacement, ...]:
        """A finding's edits, in offsets and with the line ends of the lines they go to."""
        assert finding.fix is not None
        found = []
        for edit in finding.fix.edits:
            start = self.source.offset(edit.span.row, edit.span.column)
            end = self.source.offset(edit.span.end_row, edit.span.end_column)
            found.append(_Replacement(start, end, _BARE_NEWLINE.sub(self.source.newline(start), edit.content)))
        return tuple(found)


class _Taken:
    """Edits that do not overlap, by place."""

    def __init__(self, edits: Iterable[_Replacement]) -> None:
        self.all: set[_Replacement] = set()
        self._sorted: list[_Replacement] = []
        self.add(edits)

    def add(self, edits: Iterable[_Replacement]) -> None:
        for edit in edits:
            if edit not in self.all:
                self.all.add(edit)
                insort(self._sorted, edit)

    def near(self, edit: _Replacement) -> Iterator[_Replacement]:
        """The edits that touch this one, and perhaps one more on each side."""
        at = bisect_left(self._sorted, edit)
        for number in range(at - 1, -1, -1):
            yield self._sorted[number]
            if self._sorted[number].end < edit.start:
                break
        for number in range(at, len(self._sorted)):
            yield self._sorted[number]
            if self._sorted[number].start > edit.end:
                break


def _edits(fixes: list[_Candidate]) -> list[_Replacement]:
    # one import that several fixes need goes in once; within a fix, equal insertions are two
    found: list[_Replacement] = []
    known: set[_Replacement] = set()
    for _, edits in fixes:
        new = [edit for edit in edits if edit not in known]
        found += new
        known.update(new)
    return found


def _touch(one: _Replacement, other: _Replacement) -> bool:
    if one.start > other.end or other.start > one.end:
        return False
    # different statements put above the same line stand one below the other
    return one == other or not (_adds_lines(one) and _adds_lines(other))


def _adds_lines(edit: _Replacement) -> bool:
    return edit.start == edit.end and _WHOLE_LINES.search(edit.content) is not None


def _is_import(edit: _Replacement) -> bool:
    return edit.start == edit.end and _IMPORT.match(edit.content) is not None


def _compile_error(raw: bytes, path: str) -> str | None:
    """Why the running Python does not compile the bytes, or ``None``. Nothing is run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(raw, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{error.msg}, line {error.lineno}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return None


# showing and writing ------------------------------------------------------------------------------


def diff(path: str, before: bytes, after: bytes) -> str:
    """A unified diff, as ``patch -p1`` and ``git apply`` read it; empty where nothing changed."""
    from difflib import unified_diff

    name = path.replace(os.sep, "/").lstrip("/")
    end = "\t" if " " in name else ""  # or a reader of the diff takes the name to end there
    old, new = (_lines(raw) for raw in (before, after))
    shown = []
    for line in unified_diff(old, new, f"a/{name}{end}", f"b/{name}{end}"):
        shown.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(shown)


def _lines(raw: bytes) -> list[str]:
    from devlint.decoding import SourceError, decode

    try:
        bom, encoding, text = decode(raw)
        text = bom.decode(encoding) + text
    except SourceError:
        text = raw.decode("latin-1")
    # only what patch and git take for a line: a lone carriage return or a form feed ends none
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def write(path: str, data: bytes) -> None:
    """Replace a file's content in one step, keeping its mode and, where allowed, its owner; or make the file.

    Symbolic links are followed. Raises :class:`OSError`, with the old content in place, where the file or its folder
    is read-only, or the path is not a regular file.
    """
    import errno
    import secrets
    import stat

    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    try:
        old = os.stat(target)
    except FileNotFoundError:
        old = None
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    if old is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only", path)
    if not os.access(folder, os.W_OK | os.X_OK):
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", folder)
        reason = "its folder is read-only" + ("" if old is None else ", so it cannot be replaced in one step")
        raise PermissionError(errno.EACCES, reason, path)
    temporary = os.path.join(folder, f".devlint-{secrets.token_hex(8)}.tmp")
    try:
        mode = 0o666 if old is None else 0o600  # nobody else's to read before it has the old file's mode
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
        if old is not None:
            _keep_owner(temporary, old)
            os.chmod(temporary, stat.S_IMODE(old.st_mode))
        os.replace(temporary, target)
    except BaseException:  # Ctrl-C too must leave nothing behind
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise


def _keep_owner(path: str, old: os.stat_result) -> None:
    if not hasattr(os, "chown"):
        return
    made = os.stat(path)
    if (made.st_uid, made.st_gid) == (old.st_uid, old.st_gid):
        return
    with suppress(PermissionError):  # only root may give files away: then it is ours, as after any editor's save
        os.chown(path, old.st_uid, old.st_gid)
