"""Findings kept between runs, by content.

One file a generation: a generation is everything but the checked files that findings depend on
(settings, versions, devlint's own files). Inside, a file's content and name lead to its findings, and
a file's state on disk leads to its content, so that an unchanged file need not even be read. Findings
may rest on facts, questions to other files with their answers: they count while each would be answered
the same, which is certain of a file whose state or content is what it was.
Plain data with a checksum: whatever is damaged, foreign or cannot be read is a miss.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from devlint import __version__
from devlint.config import Settings
from devlint.finding import Finding
from devlint.state import digest, is_settled, state, state_at

FOLDER = ".devlint_cache"
TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder holds devlint's cache and may be removed.\n"

_SUFFIX = ".json"
_KEPT_GENERATIONS = 8
_KEPT_FILES = 50_000


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


#: What was asked of a file or folder, and what it answered: path, question, answer.
Fact = tuple[str, str, str]
#: State and digest of a file that was asked, as they were then; no state where that might not show a change.
Seen = tuple[list[int] | None, str]
#: What an answer rested on, shared by all that rest on it: numbers of facts, and of groups before it.
Group = tuple[int, ...]
#: Findings as stored: numbers of the facts and groups they rest on, and they themselves.
_Entry = list[Any]


class _Stored:
    """What a cache file holds. Its ``tail``, facts and groups, is read where some file around has changed."""

    def __init__(
        self, states: dict[str, list[Any]], findings: dict[str, _Entry], around: dict[str, Seen], tail: bytes
    ) -> None:
        self.states, self.findings, self.around, self.tail = states, findings, around, tail

    @cached_property
    def _read(self) -> tuple[list[Fact], list[list[int]]]:
        if not self.tail:
            return [], []
        paths = list(self.around)
        facts, groups = json.loads(self.tail)
        return [(paths[place], question, answer) for place, question, answer in facts], groups

    @property
    def facts(self) -> list[Fact]:
        return self._read[0]

    @property
    def groups(self) -> list[list[int]]:
        return self._read[1]


class Cache:
    """One generation. ``note`` is told, for ``--verbose``, why nothing could be read or written.

    ``answer`` gives the answer to a question as it is now.
    """

    def __init__(
        self, folder: str, generation: str, note: Callable[[str], None], answer: Callable[[str, str], str] | None = None
    ) -> None:
        self._folder, self._generation, self._note = folder, generation, note
        self._answer = answer
        self._path = os.path.join(folder, generation + _SUFFIX)
        self._found_at = _identity(self._path)
        self._stored = self._load()
        self._settled: dict[str, bool] = {}
        self._sure: set[int] = set()  # facts that were looked into and hold, and groups of such
        self._wrong: set[int] = set()
        self._new_states: dict[str, list[Any]] = {}
        self._new_findings: dict[str, tuple[tuple[Fact, ...], tuple[Group, ...], list[Any]]] = {}
        self._new_around: dict[str, Seen] = {}

    def key_of(self, name: str, stat: os.stat_result) -> str | None:
        """The key stored for the file, where it is surely as it was then."""
        known = self._stored.states.get(name)
        return known[-1] if known is not None and known[:-1] == state(stat) else None

    def get(self, key: str) -> list[Finding] | None:
        """The findings stored under ``key``, where every fact they rest on still holds."""
        new = self._new_findings.get(key)
        if new is not None:
            return [Finding.from_data(data) for data in new[2]]
        entry = self._stored.findings.get(key)
        if entry is None or not self._hold(entry[0]):
            return None
        return [Finding.from_data(data) for data in entry[1]]

    def put(
        self,
        key: str,
        findings: Iterable[Finding],
        facts: Iterable[Fact] = (),
        around: Mapping[str, Seen] | None = None,
        groups: Iterable[Group] = (),
    ) -> None:
        """Keep findings, with the facts they rest on, and the files that these are about as they were then.

        ``groups`` say which facts go together: numbers of facts, and beyond these of the groups before. The findings
        rest on the last of them.
        """
        used = tuple(facts)
        ways = tuple(groups) or (tuple(range(len(used))),)
        self._new_findings[key] = used, ways, [finding.to_data() for finding in findings]
        self._new_around.update(around or {})

    @cached_property
    def _doubtful(self) -> frozenset[int]:
        """The facts about files that are not, or perhaps not, as they were, and the groups that rest on them."""
        stored = self._stored
        settled = {
            path for path, (before, _) in stored.around.items() if before is not None and before == state_at(path)
        }
        if len(settled) == len(stored.around):
            return frozenset()  # nothing has changed, and no fact needs to be read
        found = {number for number, (path, _, _) in enumerate(stored.facts) if path not in settled}
        for number, members in enumerate(stored.groups, len(stored.facts)):
            if not found.isdisjoint(members):
                found.add(number)
        return frozenset(found)

    def _hold(self, used: Iterable[int]) -> bool:
        """Whether facts and groups hold now."""
        doubtful, stored = self._doubtful, self._stored
        todo = [number for number in used if number in doubtful]
        seen: set[int] = set()
        while todo:
            number = todo.pop()
            if number in self._sure or number in seen:
                continue
            if number in self._wrong:
                return False
            seen.add(number)
            if number >= len(stored.facts):
                todo += [member for member in stored.groups[number - len(stored.facts)] if member in doubtful]
                continue
            path, question, answer = stored.facts[number]
            if not (self._is_unchanged(path) or (self._answer is not None and self._answer(path, question) == answer)):
                self._wrong.add(number)
                return False
        self._sure |= seen  # all that is below them was looked into
        return True

    def _is_unchanged(self, path: str) -> bool:
        known = self._settled.get(path)
        if known is None:
            _, content = self._stored.around.get(path, (None, ""))
            known = self._settled[path] = bool(content) and content == _content(path)
        return known

    def seen(self, name: str, stat: os.stat_result, key: str) -> None:
        """Remember that the file in this state holds the content of ``key``."""
        if is_settled(stat):
            self._new_states[name] = [*state(stat), key]

    def save(self) -> None:
        """Write what is new, together with what another process has written meanwhile."""
        if not self._new_findings and not self._new_states:
            return
        stored = self._stored if _identity(self._path) == self._found_at else self._load()
        states = _newest(stored.states, self._new_states)
        findings, around, tail = stored.findings, stored.around, stored.tail
        if self._new_findings:
            findings, facts, groups = self._merged(stored)
            paths = {path: place for place, path in enumerate(dict.fromkeys(path for path, _, _ in facts))}
            seen = {**around, **self._new_around}
            around = {path: seen.get(path, (None, "")) for path in paths}
            tail = _as_json([[[paths[path], question, answer] for path, question, answer in facts], groups])
        body = _as_json([states, findings, [[path, *seen] for path, seen in around.items()]]) + b"\n" + tail
        try:
            self._prepare()
            _write(self._path, self._header(body) + body)
            self._remove_old()
        except OSError as error:
            self._note(f"the cache in {self._folder} cannot be written: {error.strerror or error}")

    def _merged(self, stored: _Stored) -> tuple[dict[str, _Entry], list[Fact], list[list[int]]]:
        """Old findings and new ones, and the facts and groups that any of them rests on, each once."""
        # facts and groups, members before their groups
        found: list[tuple[Any, ...]] = [*stored.facts, *map(tuple, stored.groups)]
        places: dict[tuple[Any, ...], int] = {each: number for number, each in enumerate(found)}

        def place(each: tuple[Any, ...]) -> int:
            known = places.setdefault(each, len(found))
            if known == len(found):
                found.append(each)
            return known

        def added(facts: Iterable[Fact], groups: Iterable[Iterable[int]]) -> list[int]:
            here = [place(tuple(fact)) for fact in facts]
            for members in groups:
                here.append(place(tuple(sorted([here[member] for member in members]))))
            return here

        new = {}
        for key, (facts, groups, data) in self._new_findings.items():
            here = added(facts, groups[:-1])
            new[key] = [[here[number] for number in groups[-1]], data]
        findings = _newest(stored.findings, new)
        # what nothing rests on any more is dropped
        kept = {number for used, _ in findings.values() for number in used}
        for number in range(len(found) - 1, -1, -1):
            if number in kept and not _is_fact(found[number]):
                kept.update(found[number])
        facts_kept = [number for number in sorted(kept) if _is_fact(found[number])]
        groups_kept = [number for number in sorted(kept) if not _is_fact(found[number])]
        now = {number: place for place, number in enumerate((*facts_kept, *groups_kept))}
        return (
            {key: [[now[number] for number in used], data] for key, (used, data) in findings.items()},
            [(path, question, answer) for path, question, answer in (found[number] for number in facts_kept)],
            [sorted(now[member] for member in found[number]) for number in groups_kept],
        )

    def _load(self) -> _Stored:
        nothing = _Stored({}, {}, {}, b"")
        try:
            with open(self._path, "rb") as file:
                header, body = file.readline(), file.read()
        except FileNotFoundError:
            return nothing
        except OSError as error:
            self._note(f"the cache {self._path} cannot be read: {error.strerror or error}")
            return nothing
        if header != self._header(body):
            self._note(f"the cache {self._path} is damaged and is not used")
            return nothing
        head, _, tail = body.partition(b"\n")
        states, findings, paths = json.loads(head)
        return _Stored(states, findings, {path: (before, content) for path, before, content in paths}, tail)

    def _header(self, body: bytes) -> bytes:
        return f"devlint {self._generation} {digest(body)}\n".encode()

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


def _is_fact(each: tuple[Any, ...]) -> bool:
    return bool(each) and isinstance(each[0], str)


def _as_json(data: object) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _content(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return digest(file.read())
    except OSError:
        return ""


def _newest(old: dict[str, list[Any]], new: dict[str, list[Any]]) -> dict[str, list[Any]]:
    merged = {key: value for key, value in old.items() if key not in new}
    merged.update(new)
    return dict(list(merged.items())[-_KEPT_FILES:])


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
