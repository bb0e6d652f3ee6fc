"""Findings kept between runs, by content.

One file a generation: a generation is everything but the checked files that findings depend on
(settings, versions, devlint's own files). Inside, a file's content and name lead to its findings, and
a file's state on disk leads to its content, so that an unchanged file need not even be read. Findings
may rest on facts, questions to other files with their answers: they count while each would be answered
the same, which is certain of a file whose state or content is what it was.
A run appends what it has learned as a block that needs no other; when there are many, they are made into one.
Plain data with checksums: whatever is damaged, foreign or cannot be read is a miss.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

from devlint import __version__
from devlint.config import Settings
from devlint.finding import Finding
from devlint.ledger import Fact, Pages, Rests, Seen
from devlint.state import digest, is_settled, state, state_at

FOLDER = ".devlint_cache"
TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder holds devlint's cache and may be removed.\n"

_SUFFIX = ".json"
_KEPT_GENERATIONS = 8
_KEPT_FILES = 50_000
_MOST_BLOCKS = 12
_MANY_CHANGED = 200  # files around, of which each run would have to see whether they still say the same

_Any = TypeVar("_Any")


def folder_for(settings: Settings) -> str:
    """Where the cache of files under ``settings`` lies."""
    return settings.cache_dir or os.path.join(settings.root, FOLDER)


def generation(settings: Settings) -> str:
    return digest(repr((__version__, sys.version_info[:3], settings.fingerprint(), _own_files())).encode())


def _own_files() -> list[tuple[str, int, int]]:
    """Name, size and time of devlint's own files and of LibCST: when a rule changes, nothing here answers for it."""
    files = []
    for package in ("devlint", "devlint.flow", "devlint.rules"):
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".py"):
                        stat = entry.stat()
                        files.append((f"{package}/{entry.name}", stat.st_size, stat.st_mtime_ns))
    libcst = find_spec("libcst")
    if libcst is not None and libcst.origin is not None:
        stat = os.stat(libcst.origin)
        files.append((libcst.origin, stat.st_size, stat.st_mtime_ns))
    return sorted(files)


def key(raw: bytes, name: str, ignored: Iterable[str]) -> str:
    """The key of a file's content: its name and what is ignored under that name go into the findings too."""
    return digest(repr((name, tuple(ignored))).encode("utf-8", "surrogateescape") + b"\0" + raw)


#: Findings as stored: numbers of the facts and groups they rest on; how many were held back, and they themselves.
_Entry = list[Any]
#: A file or folder that was asked, with its state and digest then.
_Place = tuple[str, tuple[int, ...] | None, str]
#: A fact as stored: which place was asked, the question, the answer.
_Answer = tuple[int, str, str]


class _Block:
    """What one run has learned. Its ``tail``, facts and groups, is read where some file around has changed."""

    def __init__(
        self,
        states: dict[str, list[Any]],
        findings: dict[str, _Entry],
        places: list[_Place],
        tail: bytes | tuple[list[_Answer], list[list[int]]],
    ) -> None:
        self.states, self.findings, self.places, self._tail = states, findings, places, tail
        self.sure: set[int] = set()  # facts that were looked into and hold, and groups of such
        self.wrong: set[int] = set()

    @cached_property
    def _read(self) -> tuple[list[_Answer], list[list[int]]]:
        if not isinstance(self._tail, bytes):
            return self._tail
        read: tuple[list[_Answer], list[list[int]]] = json.loads(self._tail)
        return read

    @property
    def facts(self) -> list[_Answer]:
        return self._read[0]

    @property
    def groups(self) -> list[list[int]]:
        return self._read[1]

    @cached_property
    def settled(self) -> frozenset[int]:
        """The places that are surely as they were."""
        return frozenset(
            number
            for number, (path, before, _) in enumerate(self.places)
            if before is not None and before == tuple(state_at(path))
        )

    @cached_property
    def doubtful(self) -> frozenset[int]:
        """The facts about files that are not, or perhaps not, as they were, and the groups that rest on them."""
        if len(self.settled) == len(self.places):
            return frozenset()  # nothing has changed, and no fact needs to be read
        found = {number for number, (place, _, _) in enumerate(self.facts) if place not in self.settled}
        for number, members in enumerate(self.groups, len(self.facts)):
            if not found.isdisjoint(members):
                found.add(number)
        return frozenset(found)

    def place(self, number: int) -> _Place:
        """The place of a fact."""
        return self.places[self.facts[number][0]]

    def as_bytes(self, generation: str) -> bytes:
        head, tail = _as_json([self.states, self.findings, self.places]), _as_json([self.facts, self.groups])
        return f"devlint {generation} {digest(head + tail)} {len(head)} {len(tail)}\n".encode() + head + tail


def _blocks(raw: bytes, generation: str) -> tuple[list[_Block], bool]:
    """The blocks of a cache file, up to the first that is damaged, and whether they are all."""
    found: list[_Block] = []
    at = 0
    while at < len(raw) or not found:
        start = raw.find(b"\n", at) + 1
        header = raw[at:start].split()
        if len(header) != 5 or header[:2] != [b"devlint", generation.encode()]:
            return found, False
        if not (header[3].isdigit() and header[4].isdigit()):
            return found, False
        middle = start + int(header[3])
        at = middle + int(header[4])
        if digest(raw[start:at]).encode() != header[2]:
            return found, False
        states, findings, places = json.loads(raw[start:middle])
        asked = [_place(path, (before, content)) for path, before, content in places]
        found.append(_Block(states, findings, asked, raw[middle:at]))
    return found, True


def _merged(blocks: Iterable[tuple[_Block, Callable[[int], _Place]]]) -> _Block:
    """Blocks as one: the newest findings, and the facts and groups that any of them rests on, each once.

    With each block goes what tells the place of its facts.
    """
    states: dict[str, list[Any]] = {}
    newest: dict[str, _Block] = {}
    parts = list(blocks)
    for block, _ in parts:
        states = _newest(states, block.states)
        newest = _newest(newest, dict.fromkeys(block.findings, block))
    places: dict[_Place, int] = {}
    facts: dict[_Answer, int] = {}
    groups: dict[tuple[int, ...], int] = {}  # of numbers of facts, and of groups as ~number
    findings: dict[str, _Entry] = {}
    for block, place in parts:
        entries = {key: entry for key, entry in block.findings.items() if newest.get(key) is block}
        first = len(block.facts)
        kept = {number for used, _ in entries.values() for number in used}
        for number in range(first + len(block.groups) - 1, first - 1, -1):
            if number in kept:
                kept.update(block.groups[number - first])
        now: dict[int, int] = {}
        for number in sorted(kept):  # members before their groups
            if number < first:
                _, question, answer = block.facts[number]
                fact = places.setdefault(place(number), len(places)), question, answer
                now[number] = facts.setdefault(fact, len(facts))
            else:
                members = tuple(sorted({now[member] for member in block.groups[number - first]}))
                now[number] = ~groups.setdefault(members, len(groups))
        findings.update({key: [[now[number] for number in used], data] for key, (used, data) in entries.items()})

    def numbered(members: Iterable[int]) -> list[int]:
        return [number if number >= 0 else len(facts) + ~number for number in members]

    return _Block(
        states,
        {key: [numbered(findings[key][0]), findings[key][1]] for key in newest},
        list(places),
        (list(facts), [numbered(members) for members in groups]),
    )


class Project(Protocol):
    """What is around the checked files, as it is now."""

    def answer(self, path: str, question: str) -> str:
        """The answer to a question."""

    def seen(self, paths: Iterable[str]) -> Mapping[str, Seen]:
        """State and digest of files and folders that were asked, as they were when they were read."""


class Cache:
    """One generation. ``note`` is told, for ``--verbose``, why nothing could be read or written.

    ``project`` is asked where a file around has changed. ``pages`` hold what new findings rest on.
    """

    def __init__(
        self,
        folder: str,
        generation: str,
        note: Callable[[str], None],
        project: Callable[[], Project] | None = None,
        pages: Pages | None = None,
    ) -> None:
        self._folder, self._generation, self._note = folder, generation, note
        self._project, self._pages = project, pages if pages is not None else Pages()
        self._path = os.path.join(folder, generation + _SUFFIX)
        self._found_at = _identity(self._path)
        self._blocks, self._whole = self._load()
        self._states = {name: known for block in self._blocks for name, known in block.states.items()}
        self._stored = {key: (block, *entry) for block in self._blocks for key, entry in block.findings.items()}
        self._read: dict[str, Seen] = {}
        self._new_states: dict[str, list[Any]] = {}
        self._new_findings: dict[str, tuple[Rests | None, list[Any]]] = {}

    def key_of(self, name: str, stat: os.stat_result) -> str | None:
        """The key stored for the file, where it is surely as it was then."""
        known = self._states.get(name)
        return known[-1] if known is not None and known[:-1] == state(stat) else None

    def __contains__(self, key: str) -> bool:
        """Whether something is stored under ``key``, though it may no longer hold."""
        return key in self._new_findings or key in self._stored

    def get(self, key: str) -> list[Finding] | None:
        """The findings stored under ``key``, where every fact they rest on still holds."""
        new = self._new_findings.get(key)
        if new is not None:
            return [Finding.from_data(data) for data in new[-1][1]]
        stored = self._stored.get(key)
        if stored is None:
            return None
        block, used, (_, found) = stored
        return [Finding.from_data(data) for data in found] if self._hold(block, used) else None

    def held(self, key: str) -> int:
        """How many tentative findings were held back beside those stored under ``key``. Raises ``KeyError``."""
        known = self._new_findings.get(key) or self._stored[key]
        count: int = known[-1][0]
        return count

    def put(self, key: str, findings: Iterable[Finding], rests: Rests | None = None, held: int = 0) -> None:
        """Keep findings, with what they rest on, and how many tentative ones were held back."""
        self._new_findings[key] = rests, [held, [finding.to_data() for finding in findings]]

    def _hold(self, block: _Block, used: Iterable[int]) -> bool:
        """Whether facts and groups hold now."""
        todo = [number for number in used if number in block.doubtful]
        seen: set[int] = set()
        while todo:
            number = todo.pop()
            if number in block.sure or number in seen:
                continue
            if number in block.wrong:
                return False
            seen.add(number)
            if number >= len(block.facts):
                members = block.groups[number - len(block.facts)]
                todo += [member for member in members if member in block.doubtful]
            elif not self._holds(block, number):
                block.wrong.add(number)
                return False
        block.sure |= seen  # all that is below them was looked into
        return True

    def _holds(self, block: _Block, number: int) -> bool:
        place, question, answer = block.facts[number]
        path, _, content = block.places[place]
        if content and self._seen_now(path)[1] == content:
            return True
        return self._project is not None and self._project().answer(path, question) == answer

    def _seen_now(self, path: str) -> Seen:
        if path not in self._read:
            self._read[path] = _seen_at(path)
        return self._read[path]

    def seen(self, name: str, stat: os.stat_result, key: str) -> None:
        """Remember that the file in this state holds the content of ``key``."""
        if is_settled(stat):
            self._new_states[name] = [*state(stat), key]

    def save(self) -> None:
        """Write what is new, together with what another process has written meanwhile."""
        if not self._new_findings and not self._new_states:
            return
        if _identity(self._path) != self._found_at:
            self._blocks, self._whole = self._load()
        added = self._added()
        new = _merged([(added, added.place)])
        append = self._whole and self._has_room_for(new)
        try:
            self._prepare()
            if append:
                _append(self._path, new.as_bytes(self._generation))
            else:
                old = [(block, partial(self._place_now, block)) for block in self._blocks]
                _write(self._path, _merged([*old, (new, new.place)]).as_bytes(self._generation))
            self._remove_old()
        except OSError as error:
            self._note(f"the cache in {self._folder} cannot be written: {error.strerror or error}")

    def _has_room_for(self, new: _Block) -> bool:
        """Whether one more block is better than to make one of all."""
        keys = {key for block in (*self._blocks, new) for key in block.findings}
        changed = sum(len(block.places) - len(block.settled) for block in self._blocks)
        return 0 < len(self._blocks) < _MOST_BLOCKS and len(keys) <= _KEPT_FILES and changed < _MANY_CHANGED

    def _added(self) -> _Block:
        """What is new, as a block; what two processes have asked is in it twice."""
        places: dict[_Place, int] = {}
        facts: list[_Answer] = []
        groups: list[list[int]] = []
        findings: dict[str, _Entry] = {}
        ledgers = {rests.ledger for rests, _ in self._new_findings.values() if rests is not None}
        entries = {ledger: self._pages.entries(ledger) for ledger in ledgers}
        numbers: dict[str, dict[int, int]] = {}
        for ledger, written in entries.items():
            now = numbers[ledger] = {}
            for number, entry in written:
                if isinstance(entry, Fact):
                    place = _place(entry.path, self._pages.seen(ledger, entry.path))
                    now[number] = len(facts)
                    facts.append((places.setdefault(place, len(places)), entry.question, entry.answer))
        for ledger, written in entries.items():
            now = numbers[ledger]
            for number, entry in written:
                if not isinstance(entry, Fact) and now.keys() >= set(entry):
                    now[number] = len(facts) + len(groups)
                    groups.append([now[member] for member in entry])
        for key, (rests, data) in self._new_findings.items():
            if rests is None:
                findings[key] = [[], data]
            elif (now := numbers[rests.ledger]).keys() >= set(rests.numbers):
                findings[key] = [[len(facts) + len(groups)], data]
                groups.append([now[number] for number in rests.numbers])
        return _Block(self._new_states, findings, list(places), (facts, groups))

    def _place_now(self, block: _Block, number: int) -> _Place:
        """The place of a stored fact, as it is now where the fact holds now."""
        place, question, _ = block.facts[number]
        path, _, content = block.places[place]
        if place in block.settled or self._project is None or number in block.wrong or not self._holds(block, number):
            return block.place(number)
        now = self._seen_now(path)
        if not content or now[1] != content:
            project = self._project()
            project.answer(path, question)
            now = project.seen([path])[path]
        return _place(path, now)

    def _load(self) -> tuple[list[_Block], bool]:
        """The blocks there are, and whether another one can follow."""
        try:
            with open(self._path, "rb") as file:
                raw = file.read()
        except FileNotFoundError:
            return [], True
        except OSError as error:
            self._note(f"the cache {self._path} cannot be read: {error.strerror or error}")
            return [], False
        found, whole = _blocks(raw, self._generation)
        if not whole:
            self._note(f"the cache {self._path} is damaged; what comes after the damage is not used")
        return found, whole

    def _prepare(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        for name, content in ((".gitignore", "*\n"), ("CACHEDIR.TAG", TAG)):
            path = os.path.join(self._folder, name)
            if not os.path.exists(path):
                _write(path, content.encode())

    def _remove_old(self) -> None:
        """Keep the generations written last; each change of settings or of devlint starts a new one."""
        paths = [os.path.join(self._folder, name) for name in os.listdir(self._folder) if name.endswith(_SUFFIX)]
        for path in sorted(paths, key=os.path.getmtime)[:-_KEPT_GENERATIONS]:
            os.unlink(path)


def _identity(path: str) -> list[int] | None:
    return state_at(path) or None


def _as_json(data: object) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _place(path: str, seen: Seen) -> _Place:
    before, content = seen
    return path, tuple(before) if before is not None else None, content


def _seen_at(path: str) -> Seen:
    """State and digest of a file as it is now; nothing where there is none."""
    try:
        with open(path, "rb") as file:
            stat, raw = os.fstat(file.fileno()), file.read()
    except OSError:
        return None, ""
    return state(stat) if is_settled(stat) else None, digest(raw)


def _newest(old: dict[str, _Any], new: dict[str, _Any]) -> dict[str, _Any]:
    merged = {key: value for key, value in old.items() if key not in new}
    merged.update(new)
    return dict(list(merged.items())[-_KEPT_FILES:])


def _append(path: str, data: bytes) -> None:
    """Write at the end, at once: what is cut off is a block that is damaged. Raises ``OSError``."""
    with open(path, "ab", buffering=0) as file:
        file.write(data)


def _write(path: str, data: bytes) -> None:
    """Write whole or not at all. Raises ``OSError``."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def clear(folder: str) -> bool:
    """Remove a cache folder that devlint made; false where ``folder`` is none. Raises ``OSError``.

    Only devlint's own files are removed, and the folder where nothing else is in it.
    """
    tag = os.path.join(folder, "CACHEDIR.TAG")
    try:
        with open(tag, encoding="utf-8", errors="replace") as file:
            if file.read() != TAG:
                return False
    except (FileNotFoundError, NotADirectoryError):
        return False
    for name in os.listdir(folder):
        if name.endswith((_SUFFIX, ".tmp")) or name == ".gitignore":
            os.unlink(os.path.join(folder, name))
    os.unlink(tag)
    if not os.listdir(folder):
        os.rmdir(folder)
    return True
