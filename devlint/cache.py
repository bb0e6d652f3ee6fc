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
#: Findings as stored: on which facts they rest (places in the list of facts), and they themselves.
_Entry = list[Any]


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
        self._states, self._findings, self._facts, self._around = self._load()
        self._unchanged: dict[str, bool] = {}
        self._holding: dict[int, bool] = {}
        self._new_states: dict[str, list[Any]] = {}
        self._new_findings: dict[str, tuple[list[Fact], list[Any]]] = {}
        self._new_around: dict[str, Seen] = {}

    def key_of(self, name: str, stat: os.stat_result) -> str | None:
        """The key stored for the file, where it is surely as it was then."""
        known = self._states.get(name)
        return known[-1] if known is not None and known[:-1] == state(stat) else None

    def get(self, key: str) -> list[Finding] | None:
        """The findings stored under ``key``, where every fact they rest on still holds."""
        new = self._new_findings.get(key)
        if new is not None:
            return [Finding.from_data(data) for data in new[1]]
        entry = self._findings.get(key)
        if entry is None or not all(self._holds(number) for number in self._doubtful.intersection(entry[0])):
            return None
        return [Finding.from_data(data) for data in entry[1]]

    def put(
        self,
        key: str,
        findings: Iterable[Finding],
        facts: Iterable[Fact] = (),
        around: Mapping[str, Seen] | None = None,
    ) -> None:
        """Keep findings, with the facts they rest on, and the files that these are about as they were then."""
        self._new_findings[key] = list(facts), [finding.to_data() for finding in findings]
        self._new_around.update(around or {})

    @cached_property
    def _doubtful(self) -> frozenset[int]:
        """The facts about files that are not, or perhaps not, as they were."""
        settled = {
            path for path, (before, _) in self._around.items() if before is not None and before == state_at(path)
        }
        return frozenset(number for number, (path, _, _) in enumerate(self._facts) if path not in settled)

    def _holds(self, number: int) -> bool:
        known = self._holding.get(number)
        if known is None:
            path, question, answer = self._facts[number]
            known = self._is_unchanged(path) or (self._answer is not None and self._answer(path, question) == answer)
            self._holding[number] = known
        return known

    def _is_unchanged(self, path: str) -> bool:
        known = self._unchanged.get(path)
        if known is None:
            _, content = self._around.get(path, (None, ""))
            known = self._unchanged[path] = bool(content) and content == _content(path)
        return known

    def seen(self, name: str, stat: os.stat_result, key: str) -> None:
        """Remember that the file in this state holds the content of ``key``."""
        if is_settled(stat):
            self._new_states[name] = [*state(stat), key]

    def save(self) -> None:
        """Write what is new, together with what another process has written meanwhile."""
        if not self._new_findings and not self._new_states:
            return
        states, findings, facts, around = self._states, self._findings, self._facts, self._around
        if _identity(self._path) != self._found_at:
            states, findings, facts, around = self._load()
        numbers = {fact: number for number, fact in enumerate(facts)}
        new = {}
        for key, (used, data) in self._new_findings.items():
            new[key] = [[numbers.setdefault(fact, len(numbers)) for fact in used], data]
        states, findings = _newest(states, self._new_states), _newest(findings, new)
        # what nothing rests on any more is dropped; paths are many times as long as their numbers
        kept = {
            number: place for place, number in enumerate(sorted({n for used, _ in findings.values() for n in used}))
        }
        rest = [fact for fact, number in numbers.items() if number in kept]
        paths = {path: place for place, path in enumerate(dict.fromkeys(path for path, _, _ in rest))}
        seen = {**around, **self._new_around}
        content = [
            states,
            {key: [[kept[number] for number in used], data] for key, (used, data) in findings.items()},
            [[paths[path], question, answer] for path, question, answer in rest],
            [[path, *seen.get(path, (None, ""))] for path in paths],
        ]
        body = json.dumps(content, separators=(",", ":")).encode()
        try:
            self._prepare()
            _write(self._path, self._header(body) + body)
            self._remove_old()
        except OSError as error:
            self._note(f"the cache in {self._folder} cannot be written: {error.strerror or error}")

    def _load(self) -> tuple[dict[str, list[Any]], dict[str, _Entry], list[Fact], dict[str, Seen]]:
        """States, findings, facts, and the files these are about."""
        try:
            with open(self._path, "rb") as file:
                header, body = file.readline(), file.read()
        except FileNotFoundError:
            return {}, {}, [], {}
        except OSError as error:
            self._note(f"the cache {self._path} cannot be read: {error.strerror or error}")
            return {}, {}, [], {}
        if header != self._header(body):
            self._note(f"the cache {self._path} is damaged and is not used")
            return {}, {}, [], {}
        states, findings, facts, paths = json.loads(body)
        around = {path: (before, content) for path, before, content in paths}
        return states, findings, [(paths[place][0], question, answer) for place, question, answer in facts], around

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
