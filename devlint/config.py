"""Settings: what is in force for a file, and where each value comes from.

The nearest ``pyproject.toml`` with a ``[tool.devlint]`` table, or ``devlint.toml``, above a file
applies to it alone: nothing is inherited from one further up. Options of the command line override it.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from devlint.finding import DEFAULT_GROUPS, GROUPS, QUIET_IN_TESTS
from devlint.gitignore import IgnoreRules
from devlint.testcode import is_test_file

ALL = "ALL"

#: Names of folders that are left out unless ``exclude`` says otherwise.
DEFAULT_EXCLUDE = (
    *(".bzr", ".devlint_cache", ".direnv", ".eggs", ".git", ".hg", ".ipynb_checkpoints", ".mypy_cache", ".nox"),
    *(".pyenv", ".pytest_cache", ".pytype", ".ruff_cache", ".svn", ".tox", ".venv", ".vscode", "__pycache__"),
    *("__pypackages__", "_build", "build", "buck-out", "dist", "node_modules", "site-packages", "venv"),
)

FAIL_ON = ("error", "warning")

#: Key -> what its value is.
KEYS = {
    "select": "rules",
    "ignore": "rules",
    "extend-select": "rules",
    "exclude": "patterns",
    "extend-exclude": "patterns",
    "per-file-ignores": "rules by pattern",
    "fail-on": "level",
    "output-format": "format",
    "cache-dir": "path",
    "unsafe-fixes": "flag",
    "respect-gitignore": "flag",
    "jobs": "count",
}


class ConfigError(Exception):
    """A configuration file or option cannot be used; the message says where and what to write instead."""


@dataclass(frozen=True)
class Patterns:
    """Patterns as in a ``.gitignore`` that lies in the folder ``base``."""

    base: str
    globs: tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """Names of rules and groups, and ``ALL``; ``select`` of ``None`` keeps what was selected before."""

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """What is in force for the files under one configuration: that of ``file``, if any, in the folder ``root``.

    ``measured`` are rules that a run counted something under: they are on unless something is selected or ignored.
    ``select``, ``ignore`` and ``extend_select`` are those of the configuration file, ``command_line``
    is applied after them. ``origins`` says for each key where its value was set, if it was.
    """

    root: str = "."
    file: str | None = None
    measured: tuple[str, ...] = ()
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    command_line: Selection = Selection()
    exclude: tuple[Patterns, ...] = (Patterns(".", DEFAULT_EXCLUDE),)
    extend_exclude: tuple[Patterns, ...] = ()
    per_file_ignores: tuple[tuple[Patterns, tuple[str, ...]], ...] = ()
    fail_on: str = "warning"
    output_format: str = "text"
    cache_dir: str | None = None
    unsafe_fixes: bool = False
    respect_gitignore: bool = True
    jobs: int | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    def enabled(self, path: str) -> frozenset[str]:
        """Names of the rules in force for ``path``."""
        return _enabled(self._selections(), self.ignored_for(path), self._is_test(path))

    def reasons(self, path: str) -> dict[str, tuple[bool, str]]:
        """Rule name -> whether it is in force for ``path``, and what decided that."""
        return _resolve(self._selections(), self.ignored_for(path), self._is_test(path))

    def offers_tentative(self, path: str) -> bool:
        """Whether nobody has said that tentative findings of ``path`` are unwanted, where they are held back."""
        from devlint.finding import TENTATIVE

        unwanted = {*self.ignored_for(path), *(name for each in self._selections() for name in each.ignore)}
        return unwanted.isdisjoint((TENTATIVE, "nursery", ALL))

    def ignored_for(self, path: str) -> tuple[str, ...]:
        """The names that ``per-file-ignores`` leaves out of ``path``."""
        if not self.per_file_ignores:
            return ()
        names: list[str] = []
        for patterns, ignored in self.per_file_ignores:
            if matches(patterns, path, self.root):
                names += ignored
        return tuple(dict.fromkeys(names))

    def _is_test(self, path: str) -> bool:
        root = os.path.abspath(self.root)
        # without a configuration the root is the current folder, which may be the one that holds the tests
        inside = relative_to(os.path.abspath(path), root if self.file else os.path.dirname(root))
        return is_test_file(path if inside is None else inside)

    def fingerprint(self) -> str:
        """What of the settings decides which findings a file has."""
        return repr((self._selections(), self.per_file_ignores))

    def _selections(self) -> tuple[Selection, ...]:
        configured = Selection(self.select, self.ignore, self.extend_select)
        return Selection(extend_select=self.measured), configured, self.command_line


@lru_cache(maxsize=256)
def rules_of(globs: tuple[str, ...]) -> IgnoreRules:
    return IgnoreRules(globs)


def matches(patterns: Patterns, path: str, root: str | None = None) -> bool:
    """Whether the patterns cover ``path`` or a folder above it, up to their base or else ``root``."""
    path = os.path.abspath(path)
    for base in (patterns.base, root):
        relative = relative_to(path, os.path.abspath(base)) if base is not None else None
        if relative is not None:
            return rules_of(patterns.globs).covers(relative)
    return rules_of(patterns.globs).covers(os.path.basename(path))


def relative_to(path: str, base: str) -> str | None:
    """``path`` seen from the folder ``base``, with ``/``; ``None`` where it lies outside. Both absolute."""
    prefix = base if base.endswith(os.sep) else base + os.sep
    return path[len(prefix) :].replace(os.sep, "/") if path.startswith(prefix) else None


# which rules are in force ---------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _enabled(selections: tuple[Selection, ...], ignored: tuple[str, ...], test: bool) -> frozenset[str]:
    return frozenset(name for name, (on, _) in _resolve(selections, ignored, test).items() if on)


def _resolve(selections: tuple[Selection, ...], ignored: tuple[str, ...], test: bool) -> dict[str, tuple[bool, str]]:
    """Each rule, whether it is in force, and why; ``test`` where the file is test code.

    Later selections override earlier ones; within one, a rule beats a group beats ``ALL``, ``ignore`` beats ``select``.
    """
    from devlint import docs
    from devlint.finding import BUILT_IN, TENTATIVE

    groups = {name: info.group for name, info in docs.rules().items() if name not in BUILT_IN or name == TENTATIVE}
    state: dict[str, tuple[bool, str]] = dict.fromkeys(BUILT_IN, (True, "always on"))
    for name, group in groups.items():
        on = group in DEFAULT_GROUPS and not (test and group in QUIET_IN_TESTS)
        where = " in tests" if test and group in QUIET_IN_TESTS else ""
        state[name] = (on, f"group {group} is {'on' if on else 'off'} by default{where}")
    for selection in selections:
        if selection.select is not None:
            state.update(dict.fromkeys(groups, (False, "not selected")))
        for level in (ALL, GROUPS, groups):
            for on, key in ((True, "select"), (True, "extend_select"), (False, "ignore")):
                for chosen in getattr(selection, key) or ():
                    if (chosen == ALL and level is ALL) or (level is not ALL and chosen in level):
                        for name, group in groups.items():
                            if chosen in (ALL, group, name):
                                state[name] = (on, f"{key.replace('_', '-')} {chosen}")
        for chosen in selection.ignore:
            if chosen in BUILT_IN:
                state[chosen] = (False, f"ignore {chosen}")
    for name in state:
        for chosen in ignored:
            if chosen == name or (name in groups and chosen in (ALL, groups[name])):
                state[name] = (False, f"per-file-ignores {chosen}")
    return dict(sorted(state.items()))


@lru_cache(maxsize=1)
def selectable() -> frozenset[str]:
    """Every name that ``select`` and ``ignore`` take."""
    from devlint.finding import BUILT_IN
    from devlint.rule import rule_files

    return frozenset({ALL, *GROUPS, *BUILT_IN, *rule_files()})


def suggestion(name: str, known: Iterable[str]) -> str:
    """``"; did you mean `x`?"``, or nothing where no known name is near."""
    lowered = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower().replace("_", "-"), lowered, n=1, cutoff=0.6)
    return f"; did you mean `{lowered[near[0]]}`?" if near else ""


# reading ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """Keys and values of one place, with what an error message needs: a file's lines, or nothing for options."""

    values: Mapping[str, Any]
    base: str
    path: str | None = None
    lines: tuple[str, ...] = ()

    def row(self, key: str, name: str | None = None) -> int | None:
        """The line where a key stands, or a name in its value."""
        starts = re.compile(rf"""\s*(?:[\w."']*\.)?["']?{re.escape(key)}["']?\s*(?:[.=]|\])""")
        header = re.compile(rf"""\s*\[.*\b{re.escape(key)}["']?\s*\]""")
        inline = re.compile(rf"""\s*["']?(?:tool\.)?devlint["']?\s*=.*\b{re.escape(key)}\b""")
        own = self.path is not None and os.path.basename(self.path) != "pyproject.toml"
        inside = own
        for number, line in enumerate(self.lines, 1):
            if line.lstrip().startswith("["):
                inside = own or "devlint" in line
            dotted = line.lstrip().startswith(("tool.devlint.", "devlint."))
            if not ((inside or dotted) and (starts.match(line) or header.match(line))) and not inline.match(line):
                continue
            if name is not None:
                for further, text in enumerate(self.lines[number - 1 :], number):
                    if f'"{name}"' in text or f"'{name}'" in text:
                        return further
            return number
        return None

    def where(self, key: str, name: str | None = None) -> str:
        if self.path is None:
            return f"--{key}"
        row = self.row(key, name)
        return f"{shown(self.path)}:{row}" if row else shown(self.path)

    def error(self, key: str, message: str, name: str | None = None) -> ConfigError:
        if self.path is None:
            message = message.removeprefix(f"`{key}`: ")  # the option is named already
        return ConfigError(f"{self.where(key, name)}: {message}")


def shown(path: str) -> str:
    """The path as a person here would write it: relative where it lies below the current folder."""
    return relative_to(os.path.abspath(path), os.getcwd()) or path


def _strings(table: _Table, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
        raise table.error(key, f"`{key}` must be a list of strings, not {_kind(value)}")
    return tuple(value)


def _names(table: _Table, key: str, value: Any) -> tuple[str, ...]:
    return _known(table, key, _strings(table, key, value))


def _known(table: _Table, key: str, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in selectable():
            raise table.error(
                key, f"`{key}`: no rule or group is called `{name}`{suggestion(name, selectable())}"
                f" (`devlint rules` lists them)", name,
            )  # fmt: skip
    return names


def _patterns(table: _Table, key: str, value: Any) -> tuple[Patterns, ...]:
    return (_pattern(table, key, _strings(table, key, value)),)


def _pattern(table: _Table, key: str, globs: tuple[str, ...]) -> Patterns:
    for glob in globs:
        if not glob:
            raise table.error(key, f"`{key}`: a pattern is empty")
        if glob.startswith("!"):
            raise table.error(key, f"`{key}`: `{glob}` negates, which is not supported here", glob)
        try:
            rules_of((glob,))
        except ValueError as error:
            raise table.error(key, f"`{key}`: `{glob}` is not a pattern: {error}", glob) from error
    return Patterns(table.base, tuple(_as_in_gitignore(glob, table.base) for glob in globs))


def _as_in_gitignore(glob: str, base: str) -> str:
    """A pattern written as a shell completes a path, `./tests` or an absolute one, as git would have it."""
    if glob.startswith("./"):
        return glob[1:]
    inside = relative_to(glob, base)
    return glob if inside is None else f"/{inside}"


def _by_pattern(table: _Table, key: str, value: Any) -> tuple[tuple[Patterns, tuple[str, ...]], ...]:
    if not isinstance(value, Mapping):
        raise table.error(key, f"`{key}` must be a table of pattern = list of rules, not {_kind(value)}")
    found = []
    for glob, names in value.items():
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            message = f"`{key}`: `{glob}` must be a list of rules, not {_kind(names)}"
            raise table.error(key, message, glob)
        found.append((_pattern(table, key, (glob,)), _known(table, key, tuple(names))))
    return tuple(found)


def _choice(table: _Table, key: str, value: Any) -> str:
    choices: tuple[str, ...] = FAIL_ON
    if key == "output-format":
        from devlint.report import FORMATS

        choices = FORMATS
    if value not in choices:
        near = suggestion(value, choices) if isinstance(value, str) else ""
        raise table.error(key, f"`{key}` must be one of {', '.join(choices)}, not {_kind(value)}{near}")
    return value


def _flag(table: _Table, key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise table.error(key, f"`{key}` must be true or false, not {_kind(value)}")
    return value


def _count(table: _Table, key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise table.error(key, f"`{key}` must be a whole number from 1, not {_kind(value)}")
    return value


def _path(table: _Table, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise table.error(key, f"`{key}` must be a path, not {_kind(value)}")
    return os.path.join(table.base, os.path.expanduser(value))


def _kind(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        strange = [v for v in value if not isinstance(v, str)]
        return f"a list holding {_kind(strange[0])}" if strange else "a list"
    if isinstance(value, Mapping):
        return "a table"
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


_READERS = {
    "rules": _names,
    "patterns": _patterns,
    "rules by pattern": _by_pattern,
    "level": _choice,
    "format": _choice,
    "path": _path,
    "flag": _flag,
    "count": _count,
}


def _read(table: _Table) -> dict[str, Any]:
    """Values by field name of :class:`Settings`. Raises :class:`ConfigError`."""
    found = {}
    for key, value in table.values.items():
        if key == "tool" and isinstance(value, Mapping) and "devlint" in value:
            raise table.error("devlint", "the keys stand at the top of a file of devlint's own: drop `[tool.devlint]`")
        if key not in KEYS:
            raise table.error(key, f"unknown key `{key}`{suggestion(key, KEYS)} (known: {', '.join(KEYS)})")
        found[key.replace("-", "_")] = _READERS[KEYS[key]](table, key, value)
    return found


def _load(path: str) -> _Table | None:
    """The devlint table of a TOML file; ``None`` where it has none. Raises :class:`ConfigError`."""
    own = os.path.basename(path) != "pyproject.toml"
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        raise ConfigError(f"{shown(path)}: cannot be read: {error.strerror}") from error
    if not own and b"devlint" not in raw:
        return None  # parsing takes longer than looking
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        text = raw.decode("utf-8-sig" if own else "utf-8")
        data: Any = tomllib.loads(text)
    except UnicodeDecodeError as error:
        row = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{shown(path)}:{row}: is not UTF-8; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"^(.*) \(at line (\d+), column (\d+)\)$", str(error), re.S)
        if place:
            reason, row_text, column = place.groups()
            raise ConfigError(f"{shown(path)}:{row_text}:{column}: is not TOML: {reason}") from error
        raise ConfigError(f"{shown(path)}: is not TOML: {error}") from error
    if not own:
        data = data.get("tool", {})
        data = data.get("devlint") if isinstance(data, dict) else None
        if data is None:
            return None
    lines = tuple(text.splitlines())
    if not isinstance(data, dict):
        row = next(number for number, line in enumerate(lines, 1) if "devlint" in line)
        raise ConfigError(f"{shown(path)}:{row}: `tool.devlint` must be a table, not {_kind(data)}")
    return _Table(data, os.path.dirname(path), path, lines)


class Configurations:
    """Finds the settings for each folder.

    ``options`` holds what the command line set, under the keys of the configuration file. With ``file``
    that one file is used for everything, with ``isolated`` none is. ``measured``: see :class:`Settings`.
    Raises :class:`ConfigError` where an option, or ``file``, cannot be used.
    """

    def __init__(
        self,
        options: Mapping[str, Any] | None = None,
        *,
        file: str | None = None,
        isolated: bool = False,
        measured: Iterable[str] = (),
    ) -> None:
        from devlint.rule import rule_files

        options = options or {}
        self._measured = tuple(sorted(set(measured).intersection(rule_files())))
        self._options = _read(_Table(options, os.getcwd()))
        self._found: dict[str, Settings | None] = {}
        self.without_file = self._settings(None)
        self._fixed = self.without_file if isolated else None
        if file is not None:
            table = _load(os.path.abspath(file))
            if table is None:
                raise ConfigError(f"{file}: has no table [tool.devlint]")
            self._fixed = self._settings(replace(table, base=os.getcwd()))

    def for_folder(self, folder: str) -> Settings:
        """The settings for the files in ``folder`` (absolute). Raises :class:`ConfigError`."""
        if self._fixed is not None:
            return self._fixed
        walked = []
        found = None
        while True:
            if folder in self._found:
                found = self._found[folder]
                break
            walked.append(folder)
            found = self._in(folder)
            parent = os.path.dirname(folder)
            if found is not None or parent == folder:
                break
            folder = parent
        for each in walked:
            self._found[each] = found
        return found or self.without_file

    def _in(self, folder: str) -> Settings | None:
        for name in ("devlint.toml", "pyproject.toml"):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                table = _load(path)
                if table is not None:
                    return self._settings(table)
        return None

    def _settings(self, table: _Table | None) -> Settings:
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        root = os.getcwd()
        if table is not None:
            root = table.base
            values = _read(table)
            origins = {key: table.where(key) for key in table.values}
        options = dict(self._options)
        chosen = {key: options.pop(key) for key in ("select", "ignore", "extend_select") if key in options}
        if "extend_exclude" in options:
            options["extend_exclude"] = values.get("extend_exclude", ()) + options["extend_exclude"]
        for field_name in options:
            key = field_name.replace("_", "-")
            origins[key] = f"--{key}"
        path = table.path if table is not None else None
        return Settings(
            root=root,
            file=path,
            measured=self._measured,
            command_line=Selection(**chosen),
            origins=origins,
            **{**values, **options},
        )
