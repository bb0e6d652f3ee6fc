"""Trees of whole files, kept for what other files ask of them: parsing is the costliest part of a check.

A definition that is followed in a file whose own check is still to come is taken from the tree of the whole file, and
the check takes that tree over. Some trees stay after their check, as long as there is room, for those who ask later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import libcst as cst

#: As many characters of code are kept as trees; each takes some 60 bytes of memory.
_ROOM = 1_000_000


class Tree(NamedTuple):
    """The code of a file, and its tree."""

    text: str
    module: cst.Module


class Trees:
    """Trees by the paths of files; those that wait for the check of their file go before the rest."""

    def __init__(self) -> None:
        self._expected: set[str] = set()
        self._waiting: dict[str, Tree] = {}
        self._checked: dict[str, Tree] = {}  # that which was asked for last at the end
        self._room = _ROOM
        self._spare = 0  # room that trees of checked files take

    def expect(self, paths: Iterable[str]) -> None:
        """These files are going to be checked."""
        self._expected.update(paths)

    def next(self) -> str | None:
        """The file whose tree should be taken over next: the one that came last, so that few wait at a time."""
        return next(reversed(self._waiting), None)

    def take(self, path: str) -> Tree | None:
        """The tree of a file that is checked now, if there is one."""
        tree = self._take_waiting(path)
        return self._let_go(path) if tree is None and path in self._checked else tree

    def dismiss(self, path: str) -> None:
        """A file is expected no more, whether or not it could be read."""
        self._expected.discard(path)
        self._take_waiting(path)

    def keep(self, path: str, tree: Tree) -> None:
        """A file has been checked, and others may ask for parts of it."""
        if self._has_room(tree.text):
            self._checked[path] = tree
            self._spare += len(tree.text)

    def asked(self, path: str, text: str) -> cst.Module | None:
        """The tree of a file with this code, for a part of it; nothing where it would be made for that alone."""
        tree = self._waiting.get(path)
        if tree is None and path in self._checked:
            tree = self._checked[path] = self._checked.pop(path)
        if tree is None and path in self._expected and self._has_room(text):
            tree = self._parsed(path, text)
        return tree.module if tree is not None and tree.text == text else None

    def _parsed(self, path: str, text: str) -> Tree | None:
        from devlint.decoding import SourceError
        from devlint.source import parse

        try:
            tree = self._waiting[path] = Tree(text, parse(text))
        except SourceError:  # whoever checks that file says so
            self._expected.discard(path)
            self._room += len(text)
            return None
        return tree

    def _has_room(self, text: str) -> bool:
        """Takes the room for a tree, from those that nothing waits for if need be."""
        needed = len(text)
        if needed > self._room + self._spare:
            return False
        while needed > self._room:
            self._let_go(next(iter(self._checked)))
        self._room -= needed
        return True

    def _take_waiting(self, path: str) -> Tree | None:
        tree = self._waiting.pop(path, None)
        if tree is not None:
            self._room += len(tree.text)
        return tree

    def _let_go(self, path: str) -> Tree:
        """Gives back the room that the tree of a checked file takes."""
        tree = self._checked.pop(path)
        self._room += len(tree.text)
        self._spare -= len(tree.text)
        return tree
