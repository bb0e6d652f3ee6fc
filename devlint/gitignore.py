"""Patterns as in a ``.gitignore``: which of them decides about one entry of a folder.

git asks about each entry as it walks down: a pattern speaks of an entry, never of what lies below it. pathspec, which
reads the patterns here, answers for whole paths instead, and so gets the common `*`, `!*/`, `!*.py` wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_SPECIAL = "*?[\\"
# A path with no more in it than `*`, `?`, plain sets like `[co]` and, for whole parts, `**`.
_PART = r"(?:\*\*|(?:[\w.~$+@,=-]|\*(?!\*)|\?|\[\w+\])+)"
_PLAIN = re.compile(rf"/?{_PART}(?:/{_PART})*")


@dataclass(frozen=True)
class _Pattern:
    negated: bool
    folders_only: bool


class IgnoreRules:
    """The lines of one ignore file. Raises ``ValueError`` for a line that is no pattern; with ``as_git``, it matches
    nothing, as git has it (``data\\``, ``[z-a]``)."""

    def __init__(self, lines: Iterable[str], *, as_git: bool = False) -> None:
        self._patterns: list[_Pattern] = []
        # most patterns are plain names, plain paths and endings: one look each finds those that speak of an entry
        self._by_name: dict[str, list[int]] = {}
        self._by_path: dict[str, list[int]] = {}
        self._by_ending: dict[str, list[int]] = {}
        self._others: list[tuple[int, Callable[[str, str], bool]]] = []  # of a path, and its last part
        for line in lines:
            text = line.rstrip() if not line.rstrip().endswith("\\") else line
            if not text or text.startswith("#"):
                continue
            negated, text = text.startswith("!"), text.removeprefix("!")
            folders_only, text = text.endswith("/"), text.rstrip("/")
            if not text:
                continue
            number = len(self._patterns)
            self._patterns.append(_Pattern(negated, folders_only))
            if _is_name(text):
                self._by_name.setdefault(text, []).append(number)
            elif text.startswith("*") and _is_name(text[1:]):
                self._by_ending.setdefault(text[1:], []).append(number)
            elif all(map(_is_name, text.removeprefix("/").split("/"))):
                self._by_path.setdefault(text.removeprefix("/"), []).append(number)
            else:
                try:
                    self._others.append((number, _matcher(text)))
                except ValueError:
                    if not as_git:
                        raise
        self._endings = tuple(self._by_ending)

    def verdict(self, path: str, *, is_folder: bool) -> bool | None:
        """Whether the entry is left out, by the last pattern that speaks of it; ``None`` where none does.

        ``path`` is seen from the folder of the patterns, with ``/``.
        """
        name = path.rpartition("/")[2]
        found = [*self._by_name.get(name, ()), *self._by_path.get(path, ())]
        if name.endswith(self._endings):
            found += (n for ending in self._endings if name.endswith(ending) for n in self._by_ending[ending])
        decided = max((n for n in found if is_folder or not self._patterns[n].folders_only), default=-1)
        for number, matches in reversed(self._others):
            if number < decided:
                break
            if (is_folder or not self._patterns[number].folders_only) and matches(path, name):
                decided = number
                break
        return None if decided < 0 else not self._patterns[decided].negated

    def covers(self, path: str) -> bool:
        """Whether the file, or a folder it is in, is left out."""
        parts = path.split("/")
        above = any(self.verdict("/".join(parts[:end]), is_folder=True) for end in range(1, len(parts)))
        return above or bool(self.verdict(path, is_folder=False))


def _is_name(text: str) -> bool:
    """Whether it is a name as an entry may have it, and no pattern for several."""
    return bool(text) and not any(character in text for character in _SPECIAL) and "/" not in text


def _matcher(text: str) -> Callable[[str, str], bool]:
    whole = _glob(text)
    parts = text.lstrip("/").split("/")
    if "/" not in text or text == f"**/{parts[-1]}":
        last = _glob(parts[-1])
        return lambda path, name: last(name)
    if "**" not in parts:
        # pathspec also matches what lies below: only paths of the same depth are meant
        depth = len(parts) - 1
        return lambda path, name: path.count("/") == depth and whole(path)
    if parts[-1] == "**":
        return lambda path, name: whole(path)
    last = _glob(parts[-1])
    return lambda path, name: last(name) and whole(path)


def _glob(text: str) -> Callable[[str], bool]:
    if _PLAIN.fullmatch(text):
        return _plain(text.lstrip("/").split("/"))
    from pathspec import GitIgnoreSpec  # few files need it, and it takes a while to import

    try:
        spec = GitIgnoreSpec.from_lines([text])
    except re.error as error:
        raise ValueError(str(error)) from error
    (pattern,) = spec.patterns
    return lambda path: pattern.match_file(path) is not None


def _plain(parts: list[str]) -> Callable[[str], bool]:
    code = ""
    for part in parts[:-1]:
        code += "(?:.+/)?" if part == "**" else f"{_of_part(part)}/"
    code += ".+" if parts[-1] == "**" else _of_part(parts[-1])
    pattern = re.compile(code, re.DOTALL)
    return lambda path: pattern.fullmatch(path) is not None


def _of_part(part: str) -> str:
    code = re.escape(part).replace(r"\[", "[").replace(r"\]", "]")
    return code.replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
