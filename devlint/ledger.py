"""Ledger: what findings rest on, each part of it written down once, so that it travels and is stored once.

In a large project nearly every file rests on the same thousands of questions, asked in long chains: a finding names
them by number. Each process that checks files has a ledger of its own and sends what is new in it, page by page.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

#: State and digest of a file that was asked, as they were then; no state where that might not show a change.
Seen = tuple[list[int] | None, str]


class Fact(NamedTuple):
    """What was asked of a file or folder, and what it answered."""

    path: str
    question: str
    answer: str


class Basis:
    """What an answer rests on: facts, and the bases of the answers that it was made of."""

    __slots__ = ("parts",)

    def __init__(self, parts: frozenset[Fact | Basis]) -> None:
        self.parts = parts


#: The numbers of what was written down before.
Group = tuple[int, ...]


class Page(NamedTuple):
    """What was written into a ledger, from the number ``first`` on, and the files it is about as they were read."""

    ledger: str
    first: int
    entries: tuple[Fact | Group, ...]
    seen: Mapping[str, Seen]


class Rests(NamedTuple):
    """What findings rest on: numbers in a ledger."""

    ledger: str
    numbers: Group


class Ledger:
    """Facts and groups of them by number, a group after its members."""

    def __init__(self) -> None:
        self.name = os.urandom(8).hex()  # unlike those of other processes
        self.entries: list[Fact | Group] = []
        self._numbers: dict[Fact | Basis, int] = {}
        self._groups: dict[Group, int] = {}
        self._sent = 0

    def rests(self, parts: Iterable[Fact | Basis]) -> Rests:
        """The numbers of facts and bases; what is new is written down."""
        parts = list(parts)
        todo = [(part, False) for part in parts]
        while todo:
            part, has_members = todo.pop()
            if part in self._numbers:
                continue
            if isinstance(part, Fact):
                self._numbers[part] = self._write(part)
            elif has_members:
                members = self._sorted(part.parts)
                if members not in self._groups:
                    self._groups[members] = self._write(members)
                self._numbers[part] = self._groups[members]
            else:
                todo.append((part, True))
                todo += [(member, False) for member in part.parts]
        return Rests(self.name, self._sorted(parts))

    def new_page(self, seen: Callable[[Iterable[str]], Mapping[str, Seen]]) -> Page:
        """What was written down since the last page. ``seen`` knows the files as they were read."""
        first, self._sent = self._sent, len(self.entries)
        entries = tuple(self.entries[first:])
        return Page(self.name, first, entries, seen({entry.path for entry in entries if isinstance(entry, Fact)}))

    def _write(self, entry: Fact | Group) -> int:
        self.entries.append(entry)
        return len(self.entries) - 1

    def _sorted(self, parts: Iterable[Fact | Basis]) -> Group:
        return tuple(sorted({self._numbers[part] for part in parts}))


class Pages:
    """What has come of the ledgers of all processes."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[int, Fact | Group]] = {}
        self._seen: dict[str, dict[str, Seen]] = {}

    def add(self, page: Page) -> None:
        self._entries.setdefault(page.ledger, {}).update(enumerate(page.entries, page.first))
        self._seen.setdefault(page.ledger, {}).update(page.seen)

    def entries(self, ledger: str) -> list[tuple[int, Fact | Group]]:
        """What is there of a ledger, members before their groups. A process that died has sent a part of it."""
        return sorted(self._entries.get(ledger, {}).items(), key=lambda entry: entry[0])

    def seen(self, ledger: str, path: str) -> Seen:
        return self._seen[ledger].get(path, (None, ""))
