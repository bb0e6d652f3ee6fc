"""ProjectIndex: what the other files of a project hold, found and followed when the flow of a file asks.

Nothing is read ahead. An imported name is resolved as Python would, through packages, re-exports and stars, by
outlines (what a file binds at its top level, read with Python's ``ast``). Where the flow needs more than where a name
leads (a function is called, a class built, an inherited attribute read), the lines of that one definition are parsed
and followed by a :class:`devlint.flow.Flow` of their own, once a process: a *unit*. All it names around it is asked of
the index in turn, so that a unit is the same whoever asked first. Units may ask each other in a ring; what such a ring
gives depends on where it was entered, so that only the unit that was entered is kept.

Whatever a check asks is written down as a :class:`devlint.ledger.Fact`, a question to one file or folder with its
answer. Cached findings rest on their facts: they count as long as each would be answered the same.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from devlint.ledger import Basis, Fact, Ledger, Seen
from devlint.mentions import (
    ALL_FILES,
    ANYBODY,
    QUESTIONS,
    SETUP_FILES,
    TOO_MANY,
    Mentions,
    below,
    dotted_path,
    folder_below,
    says,
)
from devlint.outline import CLASS, DEF, IMPORT, VARIABLE, Outline
from devlint.reach import Reached
from devlint.state import digest, is_settled, state
from devlint.trees import Tree, Trees

if TYPE_CHECKING:
    import libcst as cst

    from devlint.flow import Flow
    from devlint.flow.scope import Class, Function

#: Methods for which a class that is no module is worth following where it is built.
_OF_MOVES = ("to", "cuda", "cpu", "device", "__call__")
#: Definitions that ask for each other beyond this depth stay unknown.
_DEEPEST = 20
#: Files that say where a project's root is.
_ROOT_FILES = (".git", *SETUP_FILES)
#: Files that say in a project's root whose work it is.
_LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "License.txt", "LICENCE", "COPYING")
#: What lies in a folder beside modules and packages and is asked for, by its whole name.
_OTHER_FILES = frozenset({".git", "pyproject.toml", "README.md", *_LICENCES})
#: Stands for any file of Python in a folder.
_ANY_CODE = "*.py"
#: Packages whose names are looked for in no project: the flow knows them, or they never hold a tensor.
_OUTSIDE = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "torchvision", "pytest", "scipy", "pandas", "tqdm"}
#: ``from package import *``
_STAR = re.compile(rb"\bimport[\s\\]*\*")
#: Re-exports that lead further than this are a ring.
_LONGEST_CHAIN = 20
# Levels of what is being found out: of none, and of one outside of all.
_NEVER_MET, _ALWAYS = 1_000_000, -1

#: In a unit, what is named around it in its file.
HERE = "<here>"


class _Known(NamedTuple):
    """An answer that is the same whoever asks, what it rests on, and how long the longest chain of names in it is."""

    answer: Any
    basis: Basis
    height: int


class Definition(NamedTuple):
    """A function, class or variable at the top level of a file of the project."""

    path: str
    name: str
    kind: str


class Ancestry(NamedTuple):
    """The classes of the project that a class descends from, itself included, and the names where that ends outside."""

    known: frozenset[str]
    outside: frozenset[str]


#: A definition to be followed, and whether to find out what of it waits.
_Wanted = tuple[Definition, bool]


class Unit:
    """One definition, followed by a flow of its own; ``basis`` is all it rests on.

    ``waits``: whether it was found out what of it waits for the device. Few are asked that, and it takes the code:
    these are followed once more.
    """

    def __init__(self, definition: Definition, flow: Flow, row: int, waits: bool, basis: Basis) -> None:
        self.definition, self.flow, self.row, self.waits, self.basis = definition, flow, row, waits, basis
        self._parts: tuple[Function | Class, ...] = (*flow.scope.functions.values(), *flow.scope.classes.values())
        flow.unit = self
        flow.drop_tree()  # it is kept as long as the process lives

    def counterpart(self, part: Function | Class, other: Unit) -> Function | Class:
        """The function or class that ``part`` of this unit is in another one of the same definition."""
        return other._parts[self._parts.index(part)]

    @property
    def function(self) -> Function | None:
        return self.flow.scope.function_names.get(self.definition.name)

    @property
    def cls(self) -> Class | None:
        return self.flow.scope.class_names.get(self.definition.name)


class ProjectIndex:
    """The files around those that are checked. ``root``: nothing above it is looked at; found if not given."""

    def __init__(self, root: str | None = None) -> None:
        self.root = os.path.abspath(root) if root is not None else None
        self._outlines: dict[str, Outline | None] = {}
        self._unread: dict[str, bytes | None] = {}
        self._seen: dict[str, Seen] = {}
        self._listings: dict[str, dict[str, str]] = {}
        self._roots: dict[str, tuple[tuple[str, ...], frozenset[Fact]]] = {}
        self._units: dict[_Wanted, Unit | None] = {}
        self._asked: dict[tuple[str, str], Fact] = {}
        self._mentions: dict[str, Mentions] = {}
        self._reached: dict[str, Reached] = {}
        self._whole: dict[str, str] = {}
        self._marked: dict[str, bool] = {}
        self.ledger = Ledger()
        self.trees = Trees()
        self.known: dict[Any, _Known] = {}  # what views have found out that is the same for all of them
        self._running: list[_Wanted] = []
        self._in_ring: dict[_Wanted, tuple[Unit | None, int]] = {}  # and the outermost one running that each needs
        self._lowest = _DEEPEST  # the outermost unit being followed that was asked for again

    def view(self, path: str, name: str | None = None) -> View:
        """The project as the file at ``path`` sees it. ``name`` is what it is called in findings."""
        return View(self, os.path.abspath(path), name if name is not None else path)

    def answer(self, path: str, question: str) -> str:
        """What a file or folder says to a question now; empty where there is no such file or name."""
        return self.ask(path, question).answer

    def ask(self, path: str, question: str) -> Fact:
        fact = self._asked.get((path, question))
        if fact is None:
            what, _, name = question.partition(" ")
            if what == "entry":
                answer = self._entry(path, name)
            elif what in QUESTIONS or what in ("brought", "reached"):
                answer = self._mention(path, question)
            elif self._cannot_say(path, what, name):
                answer = ""
            else:
                outline = self.outline(path)
                answer = outline.answer(question) if outline is not None else ""
            fact = self._asked[path, question] = Fact(path, question, answer)
        return fact

    def outline(self, path: str) -> Outline | None:
        """What the file binds; ``None`` where it cannot be read."""
        if path not in self._outlines:
            raw = self._unread.pop(path) if path in self._unread else self._read(path)
            self._outlines[path] = Outline(raw) if raw is not None else None
        return self._outlines[path]

    def _cannot_say(self, path: str, what: str, name: str) -> bool:
        """Whether a file that was not looked into yet binds no such name or takes over none, by its bytes alone.

        A package that takes over the names of hundreds of files is asked for many that most of them never mention.
        """
        if what not in ("names", "stars") or path in self._outlines:
            return False
        if path not in self._unread:
            self._unread[path] = self._read(path)
        raw = self._unread[path]
        if raw is None:
            return True
        return name.isascii() and name.encode() not in raw if what == "names" else not _STAR.search(raw)

    def _read(self, path: str) -> bytes | None:
        """What a file holds; ``None`` where it cannot be read."""
        try:
            with open(path, "rb") as file:
                found, raw = os.fstat(file.fileno()), file.read()
        except OSError:
            self._seen[path] = ([], "")
            return None
        self._seen[path] = (state(found) if is_settled(found) else None, digest(raw))
        return raw

    def seen(self, paths: Iterable[str]) -> dict[str, Seen]:
        """State and digest of files and folders, as they were when they were read."""
        return {path: self._seen[path] for path in paths}

    def roots(self, path: str) -> tuple[tuple[str, ...], frozenset[Fact]]:
        """The folders in which a file looks for packages, and the facts that say so.

        That of its own package, or its own as a script; those above, up to the project's root, which may be where it is
        run from; and ``src`` in the root.
        """
        folder = os.path.dirname(path)
        if folder not in self._roots:
            root = self.root or self._project_root(folder)
            facts = []
            above = folder
            while above != root:
                fact = self.ask(above, "entry __init__")
                facts.append(fact)
                if fact.answer != "file":
                    break
                above = os.path.dirname(above)
            found = [above]
            while above != root and len(above) > len(root):
                above = os.path.dirname(above)
                found.append(above)
            found.append(os.path.join(root, "src"))
            self._roots[folder] = tuple(found), frozenset(facts)
        return self._roots[folder]

    def _project_root(self, folder: str) -> str:
        """The nearest folder above that a project's own files mark; the topmost package's folder where none does."""
        above = folder
        while True:
            if self._marks_root(above):
                return above
            parent = os.path.dirname(above)
            if parent == above:
                break
            above = parent
        while os.path.exists(os.path.join(folder, "__init__.py")):
            parent = os.path.dirname(folder)
            if parent == folder:
                break
            folder = parent
        return folder

    def _marks_root(self, folder: str) -> bool:
        if folder not in self._marked:
            self._marked[folder] = any(os.path.exists(os.path.join(folder, name)) for name in _ROOT_FILES)
        return self._marked[folder]

    def unit(self, definition: Definition, *, waits: bool = False) -> Unit | None:
        """The definition, followed; ``None`` where it is not, or is being followed (recursion)."""
        wanted = definition, waits
        if wanted in self._units:
            return self._units[wanted]
        if wanted in self._running:
            self._lowest = min(self._lowest, self._running.index(wanted))
            return None
        if wanted in self._in_ring:
            unit, lowest = self._in_ring[wanted]
            self._lowest = min(self._lowest, lowest)
            return unit
        depth = len(self._running)
        if depth == _DEEPEST:
            self._lowest = 0
            return None
        outside, self._lowest = self._lowest, _DEEPEST
        before = set(self._in_ring)
        self._running.append(wanted)
        try:
            unit = self._follow(definition, waits)
        finally:
            self._running.pop()
        if self._lowest < depth:
            self._in_ring[wanted] = unit, self._lowest
            self._lowest = min(self._lowest, outside)
        else:  # nothing in it depends on what is around: it may be kept, not so the rest of its ring
            self._units[wanted] = unit
            self._in_ring = {each: known for each, known in self._in_ring.items() if each in before}
            self._lowest = outside
        return unit

    def _follow(self, definition: Definition, waits: bool) -> Unit | None:
        import libcst as cst

        from devlint.decoding import SourceError
        from devlint.flow import Flow
        from devlint.source import Source

        outline = self.outline(definition.path)
        text = outline.followed(definition.name) if outline is not None else ""
        if outline is None or not text:
            return None
        known = self._part(definition, outline, text)
        try:
            source = Source(text.encode("utf-8", "surrogatepass"), definition.path, known)
        except SourceError:  # dedented, a string of several lines may have lost its end
            return None
        view = self.view(definition.path)
        around = {}
        for name in sorted({node.value for node in source.nodes_of(cst.Name)} - {definition.name}):
            each = outline.bindings.get(name)
            if each is not None:
                view.facts.add(self.ask(definition.path, f"names {name}"))
                around[name] = each.target if each.kind == IMPORT else f"{HERE}.{name}"
        flow = Flow(source, view, around)
        if waits:
            flow.note_waits()
        return Unit(definition, flow, outline.bindings[definition.name].first, waits, Basis(frozenset(view.facts)))

    def _part(self, definition: Definition, outline: Outline, text: str) -> Tree | None:
        """The tree of a definition alone, out of that of its whole file, where there is one and it is the same."""
        whole = outline.around(definition.name) if definition.kind != VARIABLE else None
        module = self.trees.asked(definition.path, whole) if whole is not None else None
        if module is None:
            return None
        import libcst as cst

        found = [
            node
            for node in module.body
            if isinstance(node, cst.FunctionDef | cst.ClassDef) and node.name.value == definition.name
        ]
        if len(found) != 1:
            return None  # overloads
        # what stands above it is not followed
        node = found[0].with_changes(leading_lines=())
        return Tree(text, module.with_changes(header=(), body=(node,), footer=()))

    def all_files(self, path: str) -> str:
        """What stands, in a question, for all files of the project that the file at ``path`` belongs to.

        Nothing where no project is marked as one: around it may be anything.
        """
        folder = os.path.dirname(path)
        if folder not in self._whole:
            root = self.root or self._project_root(folder)
            self._whole[folder] = os.path.join(root, ALL_FILES) if self.root or self._marks_root(root) else ""
        return self._whole[folder]

    def _mention(self, path: str, question: str) -> str:
        """Of all files: which one says yes to a question of ``mentions``; of one of them: whether it does."""
        root, name = os.path.split(path)
        if name == ALL_FILES:
            self._seen[path] = (None, "")  # nothing in the root's own state shows a change in one of them
            if root not in self._mentions:
                self._mentions[root] = Mentions(root)
                self._reached[root] = Reached(self._mentions[root])
            if question.startswith("reached "):
                _, module, called = question.split(" ")
                return self._reached[root].by(module, called)
            if question.startswith("brought "):
                return self._reached[root].brought(os.path.join(root, question.partition(" ")[2]))
            return self._mentions[root].answer(question)
        raw = self._read(path)
        return "yes" if raw is not None and says(raw, path, question) else ""

    def _entry(self, folder: str, name: str) -> str:
        """What ``name`` is in a folder to an import: ``package`` (or may be one), ``file``, ``both`` or nothing.

        Some files and folders are no modules and known by their whole names, as ``there``.
        """
        if folder not in self._listings:
            found: dict[str, str] = {}
            self._seen[folder] = ([], "")
            try:
                before = os.stat(folder)
                self._seen[folder] = (state(before) if is_settled(before) else None, "")
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.name.endswith(".py"):
                            stem = entry.name[:-3]
                            found[stem] = "both" if stem in found else "file"
                            found[_ANY_CODE] = "there"
                        elif entry.name in _OTHER_FILES:
                            found[entry.name] = "there"
                        elif "." not in entry.name and entry.is_dir():
                            found[entry.name] = "both" if entry.name in found else "package"
                        else:
                            found[f"{entry.name.partition('.')[0]}.*"] = "there"
            except OSError:
                pass
            self._listings[folder] = found
        return self._listings[folder].get(name, "")


class View:
    """The project as one file sees it; ``facts`` collects what the answers rest on.

    What is found out on the way is kept by the index for all views, with what it rests on (see :meth:`_once`).
    """

    def __init__(self, index: ProjectIndex, path: str, name: str) -> None:
        self.index, self.path, self.name = index, path, name
        self.facts: set[Fact | Basis] = set()
        self._found: dict[str, Definition | str] = {}
        self._ancestry: dict[str, Ancestry] = {}
        self._running: dict[Any, int] = {}  # what is being found out, and how deep in
        self._in_ring: dict[Any, tuple[Any, frozenset[Fact | Basis]]] = {}
        self._lowest = _NEVER_MET  # the outermost of these that was asked for again
        self._deepest = 0  # the longest chain of names

    def tree(self) -> Tree | None:
        """The tree of the file itself, where others have asked for parts of it."""
        return self.index.trees.take(self.path)

    def keep_tree(self, text: str, module: cst.Module) -> None:
        """The file has been checked: its tree is for others now."""
        self.index.trees.keep(self.path, Tree(text, module))

    def find(self, qualified: str) -> Definition | None:
        """The definition of the project that a name imported into the file leads to, if it leads to one."""
        found = self.resolve(qualified)
        return found if isinstance(found, Definition) else None

    def resolve(self, qualified: str) -> Definition | str:
        """Where a name leads: to a definition, or to a name of an outside package, which may be another one."""
        found = self._found.get(qualified)
        if found is None:
            if qualified.partition(".")[0] in _OUTSIDE:
                self._found[qualified] = qualified
                return qualified
            # files of one folder find the same, but for that which stands for the folder, and in units
            alone = self.path.endswith("__init__.py") or qualified.startswith(HERE)
            where = self.path if alone else os.path.dirname(self.path)
            led = self._once(("resolve", where, qualified), 0, lambda: self._resolve(self.path, qualified, 0))
            found = self._found[qualified] = led or qualified
        return found

    def unit(self, definition: Definition, *, waits: bool = False) -> Unit | None:
        """The definition, followed; what that rests on, this file does too."""
        self._ask(definition.path, f"text {definition.name}")
        unit = self.index.unit(definition, waits=waits)
        if unit is not None:
            self.facts.add(unit.basis)
        return unit

    def moves_itself(self, definition: Definition) -> bool:
        """Whether a class that is no module defines how it is moved or called."""
        return bool(self._ask(definition.path, " ".join(("has", definition.name, *_OF_MOVES))))

    def ancestry(self, qualified: str) -> Ancestry:
        """What a class of the project descends from, through any depth, itself included."""
        if qualified not in self._ancestry:
            start = self.resolve(qualified)
            self._ancestry[qualified] = self._once(("ancestry", start), 0, lambda: self._ancestry_of(start))
        return self._ancestry[qualified]

    def _ancestry_of(self, start: Definition | str) -> Ancestry:
        known: list[str] = []
        outside: list[str] = []
        for found in self._line(start):
            if isinstance(found, str):
                outside.append(found)
            else:
                (known if found.kind == CLASS else outside).append(found.name)
        return Ancestry(frozenset(known), frozenset(outside))

    def classes(self, qualified: str) -> tuple[Definition, ...]:
        """The class of that name and those of the project that it descends from, through any depth."""
        start = self.resolve(qualified)
        found: tuple[Definition, ...] | None = self._once(("classes", start), 0, lambda: self._classes(start))
        return found or ()

    def _classes(self, start: Definition | str) -> tuple[Definition, ...]:
        return tuple(each for each in self._line(start) if isinstance(each, Definition) and each.kind == CLASS)

    def _line(self, start: Definition | str) -> Iterator[Definition | str]:
        """A class and all that it descends from, in no order; names where that ends outside."""
        seen: set[Definition] = set()
        todo = [start]
        while todo:
            found = todo.pop()
            if isinstance(found, str):
                yield found
            elif found not in seen:
                seen.add(found)
                yield found
                todo += self._bases(found)

    def holder(self, qualified: str, member: str) -> Definition | None:
        """The class that gives a member to the class of that name: itself, or the first of its bases that has it."""
        start = self.resolve(qualified)
        holder: Definition | None = self._once(("holder", start, member), 0, lambda: self._holder(start, member))
        return holder

    def _holder(self, start: Definition | str, member: str) -> Definition | None:
        seen: set[Definition] = set()
        todo = [start]
        while todo:
            found = todo.pop(0)
            if isinstance(found, str) or found in seen or found.kind != CLASS:
                continue
            seen.add(found)
            if self._ask(found.path, f"has {found.name} {member}"):
                return found
            todo += self._bases(found)
        return None

    def starred(self, package: str) -> Iterable[str]:
        """The names that ``from package import *`` binds, where that is a file of the project."""
        path = self._module(package, self.path)
        if path is None:
            return ()
        names: list[str] = self._once(("starred", path), 0, lambda: self._exports(path, set()))
        return names

    def speaks_of_devices(self, definition: Definition) -> bool:
        """Whether the lines of a definition name devices: it may put what it makes, or is handed, somewhere."""
        return bool(self._ask(definition.path, f"puts {definition.name}"))

    def row(self, definition: Definition) -> int:
        """The line at which a definition starts."""
        outline = self.index.outline(definition.path)
        return outline.bindings[definition.name].first if outline is not None else 1

    def shown(self, path: str, row: int) -> str:
        """How another file is called in a finding of this one, which points to what starts there at that row."""
        self._ask(path, f"starts {row}")
        relative = os.path.relpath(path, os.path.dirname(self.path))
        return os.path.normpath(os.path.join(os.path.dirname(self.name), relative))

    def file_says(self, path: str, question: str) -> bool:
        """Whether a file says yes to a question of ``mentions``."""
        return bool(self._ask(path, question))

    def some_file_says(self, question: str) -> bool | None:
        """Whether a file of the project says yes to a question of ``mentions``; ``None`` where that is not known."""
        whole = self.index.all_files(self.path)
        found = self.index.answer(whole, question) if whole else TOO_MANY
        if found == TOO_MANY:
            return None
        self._ask(found or whole, question)  # a yes rests on the one file that says so
        return bool(found)

    def some_file_runs(self, name: str) -> bool | None:
        """Whether a file imports ``MODULE NAME`` that is run, or that such a file imports in turn."""
        whole = self.index.all_files(self.path)
        found = self.index.answer(whole, f"imports {name}") if whole else TOO_MANY
        if found == TOO_MANY:
            return None
        # from losses import *   in a script that names none of them
        writes = found and self._ask(found, f"writes {name.rpartition(' ')[2]}")
        if writes and (os.path.dirname(found) == self._root or self._ask(found, "runs")):
            return bool(self._ask(found, f"imports {name}"))
        return self._ask(whole, f"reached {name}") != ""

    @property
    def _root(self) -> str:
        """The root of the file's project; nothing where no project is marked as one."""
        return os.path.dirname(self.index.all_files(self.path))

    def in_project(self) -> str:
        """The file's path as it is from the root of its project; whole where no project is marked as one."""
        return below(self._root, self.path) if self._root else self.path

    def module(self) -> str:
        """The file, or the package it opens, as an import from the folder above the project names it."""
        return dotted_path(below(os.path.dirname(self._root), self.path))

    def is_imported(self) -> bool:
        """Whether a file of the project imports this one, as far as anybody knows."""
        return self.some_file_says(f"imports {self.module()}") is not False

    def redirects(self) -> bool:
        """Whether a file of the same program, as far as its place tells, has new tensors made beside the host."""
        return self.some_file_says(f"redirects {folder_below(self._root, self.path)}") is True

    def is_redirected(self) -> bool:
        """Whether a file in a folder that the same scripts import has new tensors made beside the host, or one of the
        same program goes back to the host for a while, from what somebody who is not there must have set."""
        folder = folder_below(self._root, self.path)
        return any(self.some_file_says(f"{what} {folder}") is True for what in ("joins", "returns"))

    def is_brought_to_devices(self) -> bool:
        """Whether the file, or what imports it, directly or in turn, brings anything to a device, for all one knows."""
        whole = self.index.all_files(self.path)
        return not whole or self._ask(whole, f"brought {below(self._root, self.path)}") != ""

    def is_built_on_host(self, name: str) -> bool:
        """Whether a file of the project builds a class of that name, or calls such a function, with the host."""
        return self.some_file_says(f"hosts {name}") is True

    def credits_only_others(self, authors: Iterable[str]) -> bool:
        """Whether the packages of the file, or the project's setup or licence, say whose work they are, and none names
        these."""
        root = self._root
        folder, openings = self.path, [os.path.join(root, name) for name in _LICENCES]
        while root and folder != root:
            folder = os.path.dirname(folder)
            openings += (os.path.join(folder, "__init__.py"), os.path.join(folder, "setup.py"))
        if not root or any(self._ask(opening, f"credits {author}") for opening in openings for author in authors):
            return False
        return any(self._ask(opening, f"credits {ANYBODY}") for opening in openings)

    def packages(self) -> list[str]:
        """The names of the packages that the file is in, the outermost first."""
        folder, names = os.path.dirname(self.path), list[str]()
        while self._ask(folder, "entry __init__") in ("file", "both") and os.path.dirname(folder) != folder:
            folder, name = os.path.split(folder)
            names.insert(0, name)
        return names

    def is_called(self, name: str) -> bool:
        """Whether the project, or the folder that it lies in, has a name with that in it.

        One that is a part of a repository's tree is called as the repository is: what that holds a whole copy of is not
        its own.
        """
        root = self._repository() or self._root  # game/apex/setup.py in game/.git
        if not root or name.replace("_", "") in re.sub(r"\W|_", "", os.path.basename(root).lower()):
            return True  # without a root nobody knows
        return any(self._ask(os.path.join(root, each), f"called {name}") for each in SETUP_FILES)

    def is_of_inner_distribution(self) -> bool:
        """Whether the file is of a distribution that lies, as a whole, in a package, or with its licence beside the
        scripts of a repository that is none: somebody's work, as they have it.

        Those that a project has side by side are its own.
        """
        # net/__init__.py beside net/theirs/pyproject.toml, net/theirs/README.md and net/theirs/src/theirs/model.py
        folder, repository = os.path.dirname(self.path), self._repository()
        while folder not in (self.index.root, repository):
            above, name = os.path.split(folder)
            if above == folder:
                break
            if self._holds_any(folder, ("setup", "pyproject.toml")) and (
                # net/plugins/one-more is not imported from the package
                (name.isidentifier() and self._is_whole(folder) and self._ask(above, "entry __init__") == "file")
                # train.py beside theirs-2.1/pyproject.toml, theirs-2.1/README.md, theirs-2.1/LICENSE
                or (above == repository and self._is_program(above) and self._holds_any(folder, _LICENCES))
            ):
                return True
            folder = above
        return False

    def _is_whole(self, folder: str) -> bool:
        """Whether a distribution's folder holds more than what builds it."""
        return self._holds_any(folder, ("src", "tests", "README.md"))

    def _is_program(self, folder: str) -> bool:
        """Whether a folder holds scripts, and is no distribution."""
        return self._holds_any(folder, (_ANY_CODE,)) and not self._holds_any(folder, ("setup", "pyproject.toml"))

    def _holds_any(self, folder: str, names: Iterable[str]) -> bool:
        return any(self._ask(folder, f"entry {name}") for name in names)

    def in_repository(self) -> str:
        """The file's path as it is from the folder that git keeps; nothing where that is not known."""
        repository = self._repository()
        return below(repository, self.path) if repository else ""

    def _repository(self) -> str:
        """The nearest folder above the file that git keeps; nothing where there is none."""
        folder = os.path.dirname(self.path)
        while not self._ask(folder, "entry .git"):
            above = os.path.dirname(folder)
            if folder in (self.index.root, above):
                return ""
            folder = above
        return folder

    def replaces_torch(self) -> bool:
        """Whether the project has a package of its own called `torch`, and is not PyTorch, which has C++ too."""
        root = self._root
        folders = [os.path.join(root, "torch"), os.path.join(root, "src", "torch")] if root else []
        return any(self._holds_any(each, ("__init__",)) and not self._holds_any(each, ("csrc",)) for each in folders)

    def is_in_package(self) -> bool:
        """Whether the file is a part of a package, which others import, and not a script."""
        return self._ask(os.path.dirname(self.path), "entry __init__") == "file"

    def lacks(self, package: str) -> bool:
        """Whether a module of the file's own package is not in the project, by name or as a folder."""
        roots, facts = self.index.roots(self.path)
        name = package.lstrip(".")
        level = len(package) - len(name)
        folder = roots[0]
        if level:
            folder = _folder_of(self.path, level)
        elif name.partition(".")[0] != os.path.relpath(self.path, folder).partition(os.sep)[0]:
            return False
        self.facts |= facts
        for part in name.split(".") if name else ():
            if not self._ask(folder, f"entry {part}"):
                return True
            folder = os.path.join(folder, part)
        return False

    def has_no(self, module: str, name: str) -> bool:
        """Whether a module is a file of the project, and surely gives no such name: an import of it raises."""
        path = self._module(module, self.path)
        return path is not None and self._surely_lacks(path, name, set())

    def _surely_lacks(self, path: str, name: str, seen: set[str]) -> bool:
        if path in seen:
            return True
        seen.add(path)
        folder, file = os.path.split(path)
        if not self._ask(path, f"lacks {name}"):
            return False
        if file == "__init__.py" and self._holds_any(folder, (name, f"{name}.*")):
            return False  # from net import layers, kernels: net/layers.py, net/kernels.pyx
        return all(
            (module := self._module(package, path)) is not None and self._surely_lacks(module, name, seen)
            for package in self._ask(path, "stars").split()
        )

    # resolving ----------------------------------------------------------------------------------

    def _ask(self, path: str, question: str) -> str:
        fact = self.index.ask(path, question)
        self.facts.add(fact)
        return fact.answer

    def _once(self, key: Any, depth: int, find: Callable[[], Any]) -> Any:
        """An answer, found out once for all files; nothing while it is being found out, as in a ring.

        What is found out in a ring depends on where that was entered. Only this view keeps it, and what is made of it
        once it is kept. ``depth``: how long the chain of names is that led here.
        """
        known = self.index.known.get(key)
        if known is not None and depth + known.height <= _LONGEST_CHAIN:
            self.facts.add(known.basis)
            self._deepest = max(self._deepest, depth + known.height)
            return known.answer
        if key in self._running:
            self._lowest = min(self._lowest, self._running[key])
            return None
        if key in self._in_ring:
            answer, parts = self._in_ring[key]
            self.facts |= parts
            self._lowest = _ALWAYS
            return answer
        level = self._running[key] = len(self._running)
        outside = self.facts, self._lowest, self._deepest
        self.facts, self._lowest, self._deepest = set(), _NEVER_MET, depth
        try:
            answer = find()
            parts, lowest, deepest = frozenset(self.facts), self._lowest, self._deepest
        finally:
            del self._running[key]
            self.facts, self._lowest, self._deepest = outside
        self._deepest = max(self._deepest, deepest)
        if lowest > level:
            known = self.index.known[key] = _Known(answer, Basis(parts), deepest - depth)
            self.facts.add(known.basis)
        else:
            self._in_ring[key] = answer, parts
            self.facts |= parts
            if lowest < level:
                self._lowest = min(self._lowest, lowest)
        return answer

    def _bases(self, definition: Definition) -> list[Definition | str]:
        names = self._ask(definition.path, f"names {definition.name}").split()[1:] if definition.kind == CLASS else ()
        return [self._around(definition.path, name) for name in names]

    def _around(self, path: str, name: str) -> Definition | str:
        """What a name in another file leads to."""
        return self._in_module(path, name.split("."), 1) or name

    def _resolve(self, path: str, qualified: str, depth: int) -> Definition | str | None:
        """Where a qualified name in the file at ``path`` leads; ``None`` where that is not known."""
        self._deepest = max(self._deepest, depth)
        if depth > _LONGEST_CHAIN:
            self._lowest = _ALWAYS
            return None
        if qualified.startswith(HERE):
            return self._in_module(path, qualified.split(".")[1:], depth)
        name = qualified.lstrip(".")
        level = len(qualified) - len(name)
        parts = name.split(".")
        if level:
            folder = _folder_of(path, level)
            if not name:
                return None
            if self._ask(folder, "entry __init__") == "file":
                init = os.path.join(folder, "__init__.py")
                if init != path and (found := self._in_module(init, parts, depth + 1)):
                    return found
            return self._in_folder(folder, parts, depth)
        if parts[0] in _OUTSIDE or len(parts) < 2:
            return qualified
        roots, facts = self.index.roots(path)
        self.facts |= facts
        for folder in roots:
            if self._ask(folder, f"entry {parts[0]}") and (found := self._in_folder(folder, parts, depth)):
                return found
        return qualified

    def _in_folder(self, folder: str, parts: list[str], depth: int) -> Definition | str | None:
        """A dotted name below a folder: a module or package first, then what that holds."""
        entry = self._ask(folder, f"entry {parts[0]}")
        inner = os.path.join(folder, parts[0])
        if entry in ("package", "both"):
            is_package = self._ask(inner, "entry __init__") == "file"
            if len(parts) > 1 and is_package:
                found = self._in_module(os.path.join(inner, "__init__.py"), parts[1:], depth + 1)
                if found is not None:
                    return found
            if len(parts) > 1 and (is_package or entry == "package"):
                return self._in_folder(inner, parts[1:], depth)
        if entry in ("file", "both") and len(parts) > 1:
            return self._in_module(f"{inner}.py", parts[1:], depth + 1)
        return None

    def _in_module(self, path: str, parts: list[str], depth: int) -> Definition | str | None:
        """A name of a file, or what it leads to; ``None`` in a ring of files that take over all names of each other."""
        found: Definition | str | None = self._once((path, *parts), depth, lambda: self._look_in(path, parts, depth))
        return found

    def _look_in(self, path: str, parts: list[str], depth: int) -> Definition | str | None:
        name = parts[0]
        kind, _, target = self._ask(path, f"names {name}").partition(" ")
        if kind == IMPORT:
            return self._resolve(path, ".".join((target, *parts[1:])), depth + 1)
        if kind in (DEF, CLASS, VARIABLE):
            return Definition(path, name, kind) if len(parts) == 1 else None
        if kind:
            return None
        self._deepest = max(self._deepest, depth)
        if depth > _LONGEST_CHAIN:
            self._lowest = _ALWAYS
            return None
        folder, file = os.path.split(path)
        there = self._ask(folder, f"entry {name}") if file == "__init__.py" else ""
        if there == "package" or (there and len(parts) > 1):
            return None  # from .blocks import Block: a module of the package, whatever its hundred stars export
        for package in self._ask(path, "stars").split():
            module = self._module(package, path)
            found = self._in_module(module, parts, depth + 1) if module is not None else None
            if isinstance(found, Definition):
                return found
        return None

    def _module(self, package: str, path: str) -> str | None:
        """The file of the project that a module's name in the file at ``path`` leads to."""
        name = package.lstrip(".")
        level = len(package) - len(name)
        if level:
            folder = _folder_of(path, level)
            folders: tuple[str, ...] = (folder,)
        else:
            if name.partition(".")[0] in _OUTSIDE:
                return None
            folders, facts = self.index.roots(path)
            self.facts |= facts
        for folder in folders:
            at = os.path.join(folder, *name.split(".")) if name else folder
            above, last = os.path.split(at)
            entry = self._ask(above, f"entry {last}")
            if entry in ("package", "both") and self._ask(at, "entry __init__") == "file":
                return os.path.join(at, "__init__.py")
            if entry in ("file", "both"):
                return f"{at}.py"
        return None

    def _exports(self, path: str, seen: set[str]) -> list[str]:
        outline = self.index.outline(path)
        if outline is None or path in seen:
            return []
        seen.add(path)
        self._ask(path, "exports")
        names = list(outline.exported)
        if outline.public is None:
            there = self.index.view(path)
            for package in self._ask(path, "stars").split():
                inner = there._module(package, path)
                if inner is not None:
                    names += self._exports(inner, seen)
            self.facts |= there.facts
        return names


def _folder_of(path: str, level: int) -> str:
    """The folder in which a relative import of so many dots looks."""
    for _ in range(level):
        path = os.path.dirname(path)
    return path
