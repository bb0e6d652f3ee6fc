"""Paths to files: folders are walked, what git ignores or the settings exclude is left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from devlint.config import ConfigError, Configurations, Settings, matches, relative_to, rules_of
from devlint.gitignore import IgnoreRules

CONFIG_FILES = frozenset({"pyproject.toml", "devlint.toml"})


@dataclass(frozen=True)
class File:
    """A file to check: ``path`` opens it, ``name`` is how it is shown (the same, unless it is not UTF-8)."""

    path: str
    name: str
    settings: Settings


def printable(path: str) -> str:
    """The path with bytes that are not UTF-8 written as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def find(
    paths: Iterable[str], configurations: Configurations, *, force_exclude: bool, problem: Callable[[str], None]
) -> list[File]:
    """The files to check under ``paths``, each once, sorted by name.

    A file named in ``paths`` is taken whatever it is called. What cannot be read is told to
    ``problem`` and left out, as is what has no usable settings.
    """
    found: dict[str, File] = {}
    for given in paths:
        path = _tidy(given)
        if not os.path.exists(path):
            problem(f"{printable(path)}: {_missing(path)}")
            continue
        if not os.path.isdir(path) and not os.path.isfile(path):
            problem(f"{printable(path)}: is neither a file nor a folder; `-` reads stdin")
            continue
        walk = _walk if os.path.isdir(path) else _single
        try:
            for file in walk(path, configurations, force_exclude, problem):
                found.setdefault(os.path.abspath(file.path), file)
        except ConfigError as error:
            problem(str(error))
    return sorted(found.values(), key=lambda file: file.path.split(os.sep))


def _tidy(path: str) -> str:
    path = path.rstrip(os.sep) or path
    while path.startswith("." + os.sep):
        path = path[2:].lstrip(os.sep)
    return path or "."


def _missing(path: str) -> str:
    try:
        os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            return f"is a link to `{printable(os.readlink(path))}`, which does not exist; mend or remove the link"
        return "no such file or folder; check the spelling, paths are relative to the current folder"
    except OSError as error:
        return _reason(error)
    return "is neither a file nor a folder"


def _reason(error: OSError) -> str:
    import errno

    if error.errno == errno.ELOOP:
        return "is a link that leads back to itself; remove the link or exclude it"
    if isinstance(error, PermissionError):
        return "permission denied; make it readable or exclude it"
    return f"{error.strerror or error}"


def unreadable(name: str, error: OSError) -> str:
    """The message for a file that cannot be read."""
    return f"{name}: cannot be read: {_reason(error)}"


def _single(
    path: str, configurations: Configurations, force_exclude: bool, problem: Callable[[str], None]
) -> Iterator[File]:
    absolute = os.path.abspath(path)
    settings = configurations.for_folder(os.path.dirname(absolute))
    if not (force_exclude and excluded(absolute, settings)):
        yield File(path, printable(path), settings)


def excluded(path: str, settings: Settings) -> bool:
    """Whether ``exclude`` or ``extend-exclude`` covers ``path`` (absolute) or a folder above it, up to the root."""
    return any(matches(patterns, path, settings.root) for patterns in (*settings.exclude, *settings.extend_exclude))


def left_out(path: str, settings: Settings) -> str | None:
    """Why a check of the folder around ``path`` would not come by it, or ``None``."""
    path = os.path.abspath(path)
    for key, several in (("exclude", settings.exclude), ("extend-exclude", settings.extend_exclude)):
        for patterns in several:
            for glob in patterns.globs:
                if matches(replace(patterns, globs=(glob,)), path, settings.root):
                    return f"`{glob}` in {key}"
    if settings.respect_gitignore:
        folder, name = os.path.split(path)
        own = _ignore_file(os.path.join(folder, ".gitignore"), folder)
        ignores = (*(() if own is None else (own,)), *_above(folder))
        is_folder = os.path.isdir(path)
        while True:
            if _ignored(path, name, is_folder, ignores):
                return f"git ignores {path}"
            path, is_folder = os.path.dirname(path), True
            if all(relative_to(path, scope.base) is None for scope in ignores):
                break
            name = os.path.basename(path)
    return None


class _Scope:
    """Patterns, and the folder they are relative to."""

    def __init__(self, base: str, rules: IgnoreRules) -> None:
        self.base, self.rules = base, rules

    def verdict(self, path: str, name: str, is_folder: bool) -> bool | None:
        relative = relative_to(path, self.base)
        # what lies outside of the base goes by its name
        return self.rules.verdict(name if relative is None else relative, is_folder=is_folder)


def _ignore_file(path: str, base: str) -> _Scope | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return None  # as git: an ignore file that cannot be read ignores nothing
    return _Scope(base, IgnoreRules(lines, as_git=True))


@lru_cache(maxsize=256)
def _exclusion(settings: Settings) -> tuple[_Scope, ...]:
    return tuple(
        _Scope(os.path.abspath(patterns.base), rules_of(patterns.globs))
        for patterns in (*settings.exclude, *settings.extend_exclude)
    )


def _walk(
    top: str, configurations: Configurations, force_exclude: bool, problem: Callable[[str], None]
) -> Iterator[File]:
    start = os.path.abspath(top)
    settings = configurations.for_folder(start)
    if force_exclude and excluded(start, settings):
        return
    ignores = _above(start) if settings.respect_gitignore else ()
    exclusion = _exclusion(settings)
    prefix = "" if top == "." else top if top.endswith(os.sep) else top + os.sep
    pending = [(prefix, start, settings, exclusion, ignores)]
    while pending:
        prefix, folder, settings, exclusion, ignores = pending.pop()
        try:
            with os.scandir(folder) as listing:
                entries = list(listing)
        except OSError as error:
            problem(unreadable(printable(prefix or "."), error))
            continue
        names = {entry.name for entry in entries}
        if folder != start and names & CONFIG_FILES:
            try:
                settings = configurations.for_folder(folder)
            except ConfigError as error:
                problem(str(error))
                continue
            exclusion = _exclusion(settings)
        if settings.respect_gitignore and ".gitignore" in names:
            scope = _ignore_file(os.path.join(folder, ".gitignore"), folder)
            ignores = (scope, *ignores) if scope is not None else ignores
        for entry in entries:
            name = entry.name
            is_source = name.endswith(".py")
            try:
                # a link to a folder is not followed: where it leads is walked anyway, or is none of this tree
                is_folder = entry.is_dir(follow_symlinks=False)
                if not is_folder and not (is_source and entry.is_file()):
                    continue
            except OSError as error:
                problem(unreadable(printable(prefix + name), error))
                continue
            path = os.path.join(folder, name)
            if any(scope.verdict(path, name, is_folder) for scope in exclusion):
                continue
            if _ignored(path, name, is_folder, ignores):
                continue
            if is_folder:
                pending.append((prefix + name + os.sep, path, settings, exclusion, ignores))
            else:
                yield File(prefix + name, printable(prefix + name), settings)


def _ignored(path: str, name: str, is_folder: bool, ignores: tuple[_Scope, ...]) -> bool:
    for scope in ignores:  # the nearest file that speaks of it decides
        verdict = scope.verdict(path, name, is_folder)
        if verdict is not None:
            return verdict
    return False


def _above(folder: str) -> tuple[_Scope, ...]:
    """What the ignore files above ``folder`` say, nearest first, up to its repository.

    Outside any repository they are read up to the current folder, so that `devlint check src` and
    `devlint check .` agree.
    """
    top = folder
    while not os.path.exists(os.path.join(top, ".git")):
        parent = os.path.dirname(top)
        if parent == top:
            here = os.getcwd()
            top = here if relative_to(folder, here) is not None else folder
            break
        top = parent
    scopes = []
    while folder != top:
        folder = os.path.dirname(folder)
        scopes.append(_ignore_file(os.path.join(folder, ".gitignore"), folder))
    scopes.append(_ignore_file(os.path.join(top, ".git", "info", "exclude"), top))
    return tuple(scope for scope in scopes if scope is not None)
