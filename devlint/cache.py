"""Findings kept between runs, by content.

One file a generation: a generation is everything but the checked files that findings depend on
(settings, versions, devlint's own files). Inside, a file's content and name lead to its findings, and
a file's state on disk leads to its content, so that an unchanged file need not even be read.
Plain data with a checksum: whatever is damaged, foreign or cannot be read is a miss.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Container, Iterable
from importlib.util import find_spec
from typing import Any

from devlint import __version__
from devlint.config import Settings
from devlint.finding import Finding

FOLDER = ".devlint_cache"
TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder holds devlint's cache and may be removed.\n"

_SUFFIX = ".json"
_KEPT_GENERATIONS = 8
_KEPT_FILES = 50_000

# A file written within the clock tick in which it was read would look unchanged ever after.
_SETTLED_NS = 2_000_000_000


def folder_for(settings: Settings) -> str:
    """Where the cache of files under ``settings`` lies."""
    return settings.cache_dir or os.path.join(settings.root, FOLDER)


def generation(settings: Settings) -> str:
    return _digest(repr((__version__, sys.version_info[:3], settings.fingerprint(), _own_files())).encode())


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


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def key(raw: bytes, name: str, ignored: Iterable[str]) -> str:
    """The key of a file's content: its name and what is ignored under that name go into the findings too."""
    return _digest(repr((name, tuple(ignored))).encode("utf-8", "surrogateescape") + b"\0" + raw)


class Cache:
    """One generation. ``note`` is told, for ``--verbose``, why nothing could be read or written."""

    def __init__(self, folder: str, generation: str, note: Callable[[str], None]) -> None:
        self._folder, self._generation, self._note = folder, generation, note
        self._path = os.path.join(folder, generation + _SUFFIX)
        self._found_at = _identity(self._path)
        self._states, self._findings = self._load()
        self._new_states: dict[str, list[Any]] = {}
        self._new_findings: dict[str, list[Any]] = {}

    def key_of(self, name: str, stat: os.stat_result) -> str | None:
        """The key stored for the file, where it is surely as it was then."""
        state = self._states.get(name)
        return state[-1] if state is not None and state[:-1] == _state(stat) else None

    def get(self, key: str, summaries: Container[str] = ()) -> list[Finding] | None:
        """The findings stored under ``key``, where every summary of another file they rest on is in ``summaries``."""
        entry = self._findings.get(key)
        if entry is None:
            return None
        used, findings = entry
        if not all(each in summaries for each in used):
            return None
        return [Finding.from_data(data) for data in findings]

    def put(self, key: str, findings: Iterable[Finding], used: Iterable[str] = ()) -> None:
        self._new_findings[key] = self._findings[key] = [list(used), [finding.to_data() for finding in findings]]

    def seen(self, name: str, stat: os.stat_result, key: str) -> None:
        """Remember that the file in this state holds the content of ``key``."""
        if stat.st_mtime_ns + _SETTLED_NS < time.time_ns():
            self._new_states[name] = [*_state(stat), key]

    def save(self) -> None:
        """Write what is new, together with what another process has written meanwhile."""
        if not self._new_findings and not self._new_states:
            return
        states, findings = self._states, self._findings
        if _identity(self._path) != self._found_at:
            states, findings = self._load()
        states, findings = _newest(states, self._new_states), _newest(findings, self._new_findings)
        body = json.dumps([states, findings], separators=(",", ":")).encode()
        try:
            self._prepare()
            _write(self._path, self._header(body) + body)
            self._remove_old()
        except OSError as error:
            self._note(f"the cache in {self._folder} cannot be written: {error.strerror or error}")

    def _load(self) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        try:
            with open(self._path, "rb") as file:
                header, body = file.readline(), file.read()
        except FileNotFoundError:
            return {}, {}
        except OSError as error:
            self._note(f"the cache {self._path} cannot be read: {error.strerror or error}")
            return {}, {}
        if header != self._header(body):
            self._note(f"the cache {self._path} is damaged and is not used")
            return {}, {}
        states, findings = json.loads(body)
        return states, findings

    def _header(self, body: bytes) -> bytes:
        return f"devlint {self._generation} {_digest(body)}\n".encode()

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


def _state(stat: os.stat_result) -> list[int]:
    # the change time cannot be set back, so a file put back in place with its old time is seen as changed
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _identity(path: str) -> list[int] | None:
    try:
        return _state(os.stat(path))
    except OSError:
        return None


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
