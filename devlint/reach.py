"""Which files of a project are run, by themselves or since what is run imports them, as far as its text tells.

A file that nothing imports, and that does nothing once it is read, names things for nobody.
"""

from __future__ import annotations

import os
import re
from functools import cached_property

from devlint.mentions import CODE, IMPORT, SETUP_FILES, Mentions, found_in, imports_of, says, word_of
from devlint.testcode import is_test_file

#: What more files than these import, directly or in turn, is taken to be run: each takes a search of all files.
_MOST_IMPORTERS = 50
#: What a file imports, also in a notebook's line, and the dotted names in its strings.
_IMPORTED = re.compile(rb"\b(?:from|import)\b[^\n(]*(?:\([^)]*\))?(?:\\\n[^\n]*)*|[\"'](?:\w+\.)+\w+")
_WORDS = re.compile(rb"\w+")
#: Reads names of the file that it does not write down.
_LOOKS_UP = re.compile(rb"\b(?:globals|locals|vars|eval)\(|\bsys\.modules\b")


#: What brings things to a device: ``net.cuda()``, ``x.to(args.device)``, ``torch.ones(3, device=self.device)``,
#: ``Trainer(...)``; not what follows others there, as ``x.to(y.device)`` does.
_BRINGS = re.compile(
    rb"""\.cuda\(|["']cuda\b|\b(?:Trainer|Accelerator)\(|\b(?:Distributed)?DataParallel\b|\bset_device\(|"""
    rb"""\baccelerator=(?!["']cpu)|\bgpus?=(?!False|None|0|-1)|\bset_default_(?:device|tensor_type)\(|"""
    rb"""\.to\(\s*(?:local_)?rank\b|"""
    rb"""(?:\.to\(\s*(?:device\s*=\s*)?|\btorch\.\w+\((?:[^()]|\([^()]*\)){0,200}?\bdevice\s*=\s*)"""
    rb"""(?:(?:self|args|opts?|options|cfg|conf|config|hparams|params)\.)*\w*device\b(?![(.])"""
)


def brings_to_devices(raw: bytes) -> bool:
    """Whether a file's text has something moved to a device, or run on one."""
    return found_in(_BRINGS, raw)


def leads_to(raw: bytes, path: str, target: str) -> bool:
    """Whether what a file imports by the name of another one is that: ``from .net import Net`` is of its own folder,
    ``from nets.net import Net`` of one that is called so."""
    place = target.removesuffix(".py").removesuffix(f"{os.sep}__init__")
    home, stem = os.path.split(place)
    folder = os.path.dirname(path)
    for match in imports_of(stem.encode()).finditer(raw):
        if match["module"] is not None:
            named = match["module"].decode()
        else:
            line = raw[raw.rfind(b"\n", 0, match.start()) + 1 : match.end()]
            package = _PACKAGE.match(line)  # from nets import net
            last = _LAST_NAME.search(match[0])
            named = last[0].decode() if last is not None else stem
            if package is not None:
                inside = package[1].decode()
                named = f"{inside}{'' if inside.endswith('.') else '.'}{stem}"
        above = len(named) - len(named.lstrip("."))
        parts = [part for part in named.split(".") if part]
        if above:
            if os.path.normpath(os.path.join(folder, *[os.pardir] * (above - 1), *parts)) == place:
                return True
        elif len(parts) > 1:
            if place.endswith(os.path.join(os.sep, *parts)):
                return True
        elif folder == home or folder.startswith(f"{home}{os.sep}"):
            return True
    return False


#: ``nets`` of ``from nets import net``, and ``nets.net`` of ``import nets.net`` and of ``"nets.net``
_PACKAGE = re.compile(rb"[\s\"']*from\s+([\w.]+)\s+import\b")
_LAST_NAME = re.compile(rb"[\w.]+$")


class Reached:
    """What is reached of the files of a project. Whatever lies in its root may be run, and so may tests be."""

    def __init__(self, mentions: Mentions) -> None:
        self._mentions = mentions
        self._reached: dict[str, bool] = {}
        self._imports: dict[str, frozenset[bytes]] = {}

    def by(self, module: str, name: str, asked: frozenset[str] = frozenset()) -> str:
        """The first file that imports a name from a module, and is run or imported by what is; nothing if none."""
        for path in self._mentions.files:
            if self._mentions.says(path, f"imports {module} {name}"):
                if self._only_hands_on(path, name):
                    # from .masks import Causal   for those who ask the package for it
                    taken_from = self._mentions.module(path)
                    if taken_from not in asked and self.by(taken_from, name, asked | {module}):
                        return path
                elif self._is_reached(path):
                    return path
        return ""

    def brought(self, path: str) -> str:
        """The first file that brings things to a device, of a file and those that import it, directly or in turn.

        Nothing if none does; the file itself if too many import it, or there are too many files, to tell.
        """
        around = [path]
        for each in around:
            if brings_to_devices(self._mentions.content(each)):
                return each
            if len(around) > _MOST_IMPORTERS or self._mentions.are_too_many:
                return path
            module = self._mentions.module(each)
            around += [
                other
                for other in self._mentions.files
                if other.endswith(CODE)
                and other not in around
                and self._brings(other, module)
                and leads_to(self._mentions.content(other), other, each)
            ]
        return ""

    def _only_hands_on(self, path: str, name: str) -> bool:
        """Whether a file imports a name and makes nothing of it, and only others of the project may ask it for that."""
        raw = self._mentions.content(path)
        if not path.endswith(".py"):
            return False
        if self._is_at_root(path) or is_test_file(path):
            if name.encode() in raw:
                return False
            # from losses import *   in a script that names none of them
        elif self._is_distributed:
            return False
        rest = IMPORT.sub(b"", raw)
        return _LOOKS_UP.search(rest) is None and all(
            rest[match.start() - 1 : match.start()] in (b"'", b'"') for match in word_of(name.encode()).finditer(rest)
        )

    def _is_reached(self, path: str) -> bool:
        """Whether a file is run by itself, or imported by one that is reached."""
        if path not in self._reached:
            self._reached[path] = self._runs(path) or self._is_brought(path)
        return self._reached[path]

    def _is_brought(self, path: str) -> bool:
        """Whether what imports a file, or imports what does, is run."""
        around = [path]
        for each in around:
            module = self._mentions.module(each)
            for other in self._mentions.files:
                if other not in around and self._brings(other, module):
                    if self._runs(other) or len(around) > _MOST_IMPORTERS:
                        return True
                    around.append(other)
        self._reached.update(dict.fromkeys(around, False))
        return False

    def _runs(self, path: str) -> bool:
        """Whether a file is known to be reached, by itself or by whoever installs its package."""
        opens = self._is_distributed and os.path.basename(path) == "__init__.py"
        known = self._reached.get(path, False) or self._is_at_root(path)
        return known or opens or self._mentions.says(path, "runs")

    def _is_at_root(self, path: str) -> bool:
        return os.path.dirname(path) == self._mentions.root

    def _brings(self, path: str, module: str) -> bool:
        """Whether a file imports a module, or names it to somebody who does, by its name or by its folder's."""
        raw = self._mentions.content(path)
        *_, folder, stem = ("", *module.split("."))
        if not path.endswith(CODE):
            return stem.encode() in raw and found_in(word_of(stem.encode()), raw)
        if stem.encode() in self._imported(path) and says(raw, path, f"imports {module}"):
            return True
        return (b"import_module" in raw or b"__import__(" in raw) and found_in(word_of((folder or stem).encode()), raw)

    def _imported(self, path: str) -> frozenset[bytes]:
        """All words in what a file imports, or may name to somebody who does: few files are searched for more."""
        if path not in self._imports:
            found = b" ".join(_IMPORTED.findall(self._mentions.content(path)))
            self._imports[path] = frozenset(_WORDS.findall(found))
        return self._imports[path]

    @cached_property
    def _is_distributed(self) -> bool:
        """Whether others may install the project: they may ask its packages for whatever these hand on."""
        return any(os.path.exists(os.path.join(self._mentions.root, name)) for name in SETUP_FILES)
