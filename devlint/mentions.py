"""Whether anything in a project names a definition, and whether a file of it changes where tensors are made.

What nothing names, nobody runs; what is said of it may be right and matters to nobody. The text of the project is
searched, not followed: a false "yes" keeps a finding, and a false "no" holds it back as tentative.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache

from devlint.options import is_given, is_unset
from devlint.testcode import is_test_file

#: The questions answered here; see :meth:`Mentions.answer`.
QUESTIONS = frozenset(
    "called chooses composes credits defines demands gives gpus hosts imports joins offloads places reads"
    " redirects registers resets returns runs script sets silences sweeps takes unset uses writes".split()
)
#: Added to a project's root: what is asked of all files together, and may have another answer whenever one changes.
ALL_FILES = "**"
#: The answer where the files are too many to know.
TOO_MANY = "?"

CODE = (".py", ".pyi", ".ipynb")
#: Where a name alone counts: settings and documents name what Python imports for them.
_BESIDES = (".cfg", ".conf", ".gin", ".ini", ".json", ".md", ".rst", ".sh", ".toml", ".yaml", ".yml")
#: Larger ones are data. A notebook holds its pictures.
_LARGEST = {".ipynb": 4_000_000, ".json": 100_000}
_LARGEST_OF_OTHERS = 1_000_000
#: In a tree of more files, a project's own are not told from others: everything may be named.
_MOST_FILES = 20_000
#: As many bytes of a project are kept in memory.
_KEPT = 32_000_000
_LEFT_OUT = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages"})

#: What makes tensors elsewhere from there on, or in whatever its block calls: ``set_default_device(device)``,
#: ``with torch.device("cuda"):``, ``with self.device:``, ``with fabric.init_module():``.
_REDIRECTS = re.compile(
    rb"(?:\bset_default_(?:tensor_type|device)|\bwith\b[^\n:]{0,200}[ \t]torch\.device|\benter_context\(torch\.device)"
    rb"\(\s*(?P<given>(?:[^()]|\((?:[^()]|\([^()]*\))*\)){0,300})"
    rb"|^[ \t]*with[ \t]+(?:[\w.]+\.)?(?!\w*cpu)\w*device:[ \t\r]*$"
    rb"|^[ \t]*with\b[^\n#]*\.init_module\("
    rb"|\bget_default_device\(",
    re.MULTILINE,
)
#: What one of these is written with: to search for that takes no time.
_OF_REDIRECTS = (
    b"set_default_", b" torch.device(", b"enter_context(torch.device(", b"device:\n", b"device:\r\n", b".init_module(",
    b"get_default_device(",
)  # fmt: skip
#: Types and devices of the host, and the one whose tensors are made again later.
_OF_HOST = re.compile(
    rb"""[(\s]*["']?(?:torch\.)?(?:Float|Double|Half|BFloat16)Tensor\b|[(\s]*(?:torch\.device\()?["'](?:cpu|meta)"""
)
#: ``with torch.device("cpu"):`` goes back to the host for a while, mostly from where something has set another default.
_RETURNS = re.compile(rb"""^[ \t]*with[ \t]+torch\.device\(\s*["']cpu["']\s*\)[ \t]*:""", re.MULTILINE)
#: What stands between the two sides of ``"cpu" if args.cpu else "cuda"``.
_TEST = re.compile(rb"\bif\b.*?\belse\b", re.DOTALL)
#: Folders of a root that hold scripts: what these have made elsewhere is of the packages beside them.
_OF_SCRIPTS = ("bin", "examples", "experiments", "scripts", "tools")

#: Names of what is no module: settings, what a loader gives, what an autograd function keeps.
_NO_MODULES = (
    "args batch cfg conf config ctx data flags hparams opt options opts output outputs params plt sample settings"
)
#: What is no tensor, nor moves one.
_NO_TENSOR = rb"(?:[-\d\"'\[{]|(?:None|True|False)\b)"
_MOVED = rb"\.(?:to\((?!dtype|torch\.\w+\)|[\"']cpu)|cuda\()"

#: ``value.to(device)``, ``to_device(value, device)``, ``recursive_to(value, device)``, and not ``to_list(value)``.
_BRINGS = rb"\b(?:\w{1,30}_)?(?:to|move|place|put|send|cuda|gpu)(?:_(?:to|on|all|data|tensors?|device|cuda|gpu))*\("
#: ``setattr(net, key, value.to(device))``, ``vars(net)[key] = value.cuda()``, and the like, a few lines apart. Of bare
#: ``self``, it is about that class alone; in backticks, it is a word about code. Lines are looked at for so long: some
#: files are one.
_SWEEPS = re.compile(
    rb"(?<!`)\bsetattr\(\s*(?!self\s*,)[\w.]+,\s*[^\s\"',][^\n,]{0,100},\s*[^\n;]{0,100}?%(brings)b"
    # value = value.to(device); setattr(net, key, value)
    rb"|\b(?P<value>\w+)[ \t]*=[ \t]*[^\n#]{0,100}?%(brings)b[^\n]{0,100}\n(?:[^\n]{0,100}\n){0,2}?"
    rb"[ \t]*setattr\((?!self\s*,)[\w.]+,[ \t]*[^\s\"',][^\n,]{0,100},[ \t]*(?P=value)\)"
    rb"|(?:\bvars\((?!self\))[\w.]+\)|(?<!\bself)\.__dict__)"
    rb"(?:\[[^\s\"'\]][^\]\n]{0,100}\][ \t]*=[^\n=]{0,100}?|\.update\([^\n]{0,100}?)%(brings)b"
    # for part in vars(trainer).values(): part.to(device)
    rb"|\bfor (?:\w+, )?(?P<part>\w+) in (?:list\()?(?:vars\((?!self\))[\w.]+\)|(?!self\.__)[\w.]+\.__dict__)"
    rb"\.(?:items|values)\(\)\)?:[^\n]{0,100}\n(?:[^\n]{0,100}\n){0,3}?"
    rb"[ \t]*(?P=part)(?:\.data[ \t]*=[ \t]*(?P=part)\.data)?\.(?:to|cuda)\("
    # setattr(net, key, nn.Parameter(getattr(net, key))), net.register_buffer(key, net.__dict__.pop(key))
    rb"|\bsetattr\((?P<net>[\w.]+),[ \t]*(?P<key>\w+),[ \t]*[\w.]*Parameter\([^\n]{0,100}?"
    rb"\bgetattr\((?P=net),[ \t]*(?P=key)\b"
    rb"|\.register_buffer\((?P<name>\w+),[^\n]{0,100}?(?:\.__dict__\.pop\(|getattr\([\w.]+,[ \t]*)(?P=name)\b"
    % {b"brings": _BRINGS}
)
_OF_SWEEPS = (b"setattr(", b"vars(", b".__dict__", b".register_buffer(")
#: ``setattr(model, key, checkpoint[key])``, ``for key, value in state.items(): setattr(model, key, value)``: what was
#: saved is brought where the model is.
_RESTORES = re.compile(
    rb"(?<!`)\bsetattr\(%(model)b,[ \t]*(?P<key>\w+),[ \t]*\w+\[(?P=key)\]\)"
    rb"|\bfor (?P<name>\w+), (?P<value>\w+) in \w+\.items\(\):[^\n]{0,100}\n(?:[^\n]{0,100}\n){0,2}?"
    rb"[ \t]*setattr\(%(model)b,[ \t]*(?P=name),[ \t]*(?P=value)\)"
    % {b"model": rb"(?:self\.)?(?:\w{1,30}_)?(?:model|net|network|module|policy|agent)"}
)
_OF_LOADING = (b"torch.load(", b"load_file(", b"safe_open(")
#: ``setattr(obj, key, value)``, ``net.__dict__.update(stats)``; not of settings.
_BY_VARIABLE = re.compile(
    rb"(?<!`)\bsetattr\([ \t]*%(owner)b,[ \t]*[A-Za-z_]\w*,[ \t]*(?!%(none)b)"
    rb"|(?<![\w.])%(owner)b\.__dict__\.update\([ \t]*[A-Za-z_]"
    % {b"owner": rb"(?!(?:%b)\b)[\w.]+" % "|".join(("self", *_NO_MODULES.split())).encode(), b"none": _NO_TENSOR}
)

#: What compiles a model for a processor of its own: tensors that are made on the host are constants of that.
_COMPILES = re.compile(rb"^\s*(?:import|from)\s+poptorch\b", re.MULTILINE)

#: What a trainer is told to run on, and what is the same on each machine.
_ACCELERATOR = re.compile(rb"\baccelerator\s*=\s*([^\s,)]+)")
_GPUS = frozenset({b'"gpu"', b"'gpu'", b'"cuda"', b"'cuda'"})

#: ``for key, param in state.items(): state[key] = param.cpu()``, a few lines apart.
_OFFLOADS = re.compile(
    rb"^(?P<indent>[ \t]*)for (?P<key>\w+), (?P<value>\w+) in (?P<state>\w+)\.items\(\):\r?\n"
    rb"(?:(?P=indent)[ \t]+.*\n){0,4}?"
    rb"(?P=indent)[ \t]+(?P=state)\[(?P=key)\] = (?P=value)(?:\.detach\(\))?\.cpu\(\)",
    re.MULTILINE,
)

#: ``device = torch.device("cuda")``, ``torch.cuda.LongTensor(4)``, ``assert torch.cuda.is_available()``: what raises
#: where there is no CUDA.
_DEMANDS = re.compile(
    rb"""^(?P<indent>[ \t]*)(?:\w[\w.]*[ ]*=[ ]*torch\.device\(["']cuda(?::0)?["']\)[ \t\r]*$|"""
    rb"""assert[ (]+torch\.cuda\.(?:is_available\(\)|device_count\(\)[ ]*>=?[ ]*\w+)[ )]*(?:,|\r?$)|"""
    rb"""(?![^\n]*\b(?:if|else|isinstance)\b)[^\n#]*torch\.cuda\.(?:(?:\w*Tensor|get_device_name)\())""",
    re.MULTILINE,
)

#: What a test asks that decides on the machine.
_OF_MACHINES = re.compile(rb"available|cuda|gpu|device|cpu|host", re.IGNORECASE)

#: What makes a distribution of a project.
SETUP_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
#: Where a file does something, once it is read: ``if __name__ == "__main__":``, ``main()``, ``for x in loader:``,
#: ``net = Net(4)``, but for ``log = getLogger(__name__)``.
_RUNS = re.compile(
    rb"^(?:if +__name__ *==|(?:for|while|with)\b|[A-Za-z_]\w*\(|[a-z_][\w., ]*=(?!.*getLogger)[^=\n]*\w\()",
    re.MULTILINE,
)
#: What only a script asks, and imports there by the names that things have: nothing takes them over from it.
_SCRIPT = re.compile(rb"^if +__name__ *==", re.MULTILINE)
#: Files of tests that others ask for what they import.
_SHARED = ("conftest.py", "__init__.py")
IMPORT = re.compile(
    rb"^[ \t]*from[ \t]+[\w.]+[ \t]+import[ \t]+(?![^\n]*\bas\b)(?:\([^)]*\)|[^\n#;\\(]*(?:\\\n[^\n#;\\]*)*)",
    re.MULTILINE,
)

#: The top of what is imported: ``from core.setup import prepare``.
_IMPORTED = re.compile(rb"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)

#: What no module's name holds.
_NO_NAME = re.compile(r"\W")

#: ``setup(name="my-net")``, ``name = "my-net"``
_CALLED = re.compile(rb"""\bname\s*=\s*["']?([\w.-]+)""")
_SEPARATOR = re.compile(rb"[-.]")

#: By which a file credits whom it may.
ANYBODY = "*"
_HEAD = 2_000
_COPYRIGHT = re.compile(
    r"\bcopyright[^\w\n]{1,5}(?:(?:c|by|the|present|\d{4})\b[^\w\n]*)+([a-z][\w-]+)",
    re.IGNORECASE,
)


class Mentions:
    """The files of a project, as text. Nothing is read before something is asked."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._files: list[str] | None = None
        self._contents: dict[str, bytes] = {}
        self._room = _KEPT

    def answer(self, question: str) -> str:
        """The first file of the project that says yes to a question; nothing where none does.

        ``imports MODULE NAME``: it imports the file of that dotted name, or one that is called like its last part, and
        names what that defines, or takes over all its names; without a name, it imports the file. ``runs``: it is run
        by itself: a script, a test, or no code. ``script``: it is one, and does not set up the project. ``uses NAME``:
        it has an attribute of that name. ``reads NAME``: it does more with one than set it. ``defines FILE NAME``: it
        is called that, is no test and defines that. ``redirects FOLDER``: it is in that folder of the root, in one of
        scripts beside it, or in the root itself, and has new tensors made elsewhere than on the host, or compiles them
        in; ``joins FOLDER``: it does so in a folder that a script of the root imports beside that one; ``returns
        FOLDER``: it is in that folder or the root, and has a block of its own make them on the host. ``composes
        NAME``: it is no test and calls that among the steps of a ``Compose``. ``gpus FOLDER``: it is in that folder or
        the root, and has a trainer run on GPUs; ``chooses FOLDER``: or on whatever it is told; ``offloads FOLDER``: or
        moves to the host, whatever happens, what it saves; ``demands FOLDER``: or needs CUDA, whatever happens.
        ``places NAME``: it is no test and sets an attribute of that name of something else than ``self``, moves that,
        or moves its own. ``registers CLASS NAME``: it is no test, and registers that of a class that descends from the
        first, which is another file's, or of something else than ``self``. ``resets CLASS NAME``: it sets that,
        likewise, and to no tensor for all that is seen. ``sweeps``: it is no test and moves, registers or loads
        whatever attributes something has, by their names. ``credits WORD``: its head says that it is by somebody of
        that name. ``silences NAME``: it is no test and calls that where autograd is off. ``hosts NAME``: it is no test
        and calls that with the host for a device. ``called NAME``: it sets up a distribution of that name. ``unset
        NAME``: it has a setting of that name which is off: none, zero or negative, as an option's default or in so many
        words. ``gives NAME``: it gives such a setting a number. ``sets NAME``: it does more with an attribute of that
        name than read it from ``self``. ``writes NAME``: it has that word anywhere. ``takes WORD NAME``: it has a
        method NAME with a parameter WORD.
        :data:`TOO_MANY` where that is so.
        """
        files = self.files
        if self.are_too_many:
            return TOO_MANY
        what, _, folder = question.partition(" ")
        if what == "joins":
            files = self._joined(files, folder)
        elif what in ("redirects", "returns", "gpus", "chooses", "offloads", "demands"):
            scripts = _OF_SCRIPTS if what == "redirects" and folder and folder not in _OF_SCRIPTS else ()
            folders = ("", folder, *scripts)
            files = [path for path in files if path.endswith(CODE) and folder_below(self.root, path) in folders]
        elif what in ("places", "sweeps", "registers"):
            fixtures = f"{os.sep}fixtures{os.sep}"  # what tests are made with
            files = [path for path in files if path.endswith(CODE) and fixtures not in path[len(self.root) :]]
        elif what == "defines":
            called = os.sep + folder.partition(" ")[0]
            files = [path for path in files if path.endswith(called) and not is_test_file(below(self.root, path))]
        return next((path for path in files if self.says(path, question)), "")

    def _joined(self, files: list[str], folder: str) -> list[str]:
        """The files of the folders of which a script in the root imports something, if it does of the one named:
        ``from core.setup import prepare`` beside ``from nets.net import Net``."""
        joined: set[str] = set()
        for path in files:
            if path.endswith(".py") and not folder_below(self.root, path) and not is_test_file(path):
                names = {name.decode() for name in _IMPORTED.findall(self.content(path))}
                joined |= names if not folder or folder in names else set()
        return [path for path in files if path.endswith(CODE) and folder_below(self.root, path) in joined]

    def module(self, path: str) -> str:
        """A file, or the package it opens, as an import from the folder above the project names it."""
        return dotted_path(below(os.path.dirname(self.root), path))

    def says(self, path: str, question: str) -> bool:
        return says(self.content(path), path, question)

    def content(self, path: str) -> bytes:
        """What a file holds, kept for the next question while there is room: to open it takes longer than to search."""
        raw = self._contents.get(path)
        if raw is None:
            raw = _read(path)
            if len(raw) <= self._room:
                self._room -= len(raw)
                self._contents[path] = raw
        return raw

    @property
    def are_too_many(self) -> bool:
        """Whether the project has more files than can be known."""
        return len(self.files) > _MOST_FILES

    @property
    def files(self) -> list[str]:
        if self._files is None:
            self._files = []
            for path in _walk(self.root):
                self._files.append(path)
                if len(self._files) > _MOST_FILES:
                    break
        return self._files


def _walk(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name[0] != "." and name not in _LEFT_OUT]
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        yield from (os.path.join(folder, name) for name in names if name.endswith((*CODE, *_BESIDES)))


def below(root: str, path: str) -> str:
    """A path as it is from a root."""
    return path[len(root) :].lstrip(os.sep)


def folder_below(root: str, path: str) -> str:
    """The folder right below a root that holds a file; empty for one in the root itself."""
    folder, _, rest = below(root, path).partition(os.sep)
    return folder if rest else ""


def _read(path: str) -> bytes:
    """What a file holds; nothing where it cannot be read or holds data."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return file.read() if size <= _LARGEST.get(os.path.splitext(path)[1], _LARGEST_OF_OTHERS) else b""
    except OSError:
        return b""  # who checks it says so


def says(raw: bytes, path: str, question: str) -> bool:
    """Whether a file with this content says yes to a question of :meth:`Mentions.answer`."""
    what, *names = question.split(" ")
    if what == "runs":
        return not path.endswith(".py") or is_test_file(path) or _RUNS.search(raw) is not None
    if what == "script":
        counts = path.endswith(".py") and not is_test_file(path) and os.path.basename(path) not in SETUP_FILES
        return counts and _RUNS.search(raw) is not None
    if what in ("redirects", "joins"):
        if is_test_file(path):
            return False
        if b"poptorch" in raw and _COMPILES.search(raw):
            return True
        if not any(each in raw for each in _OF_REDIRECTS):
            return False
        given = (match["given"] or b"" for match in _REDIRECTS.finditer(raw) if not _in_comment(raw, match))
        return not all(map(_is_of_host, given))
    if what == "returns":
        return b"torch.device(" in raw and not is_test_file(path) and found_in(_RETURNS, raw)
    if what == "sweeps":
        if not any(each in raw for each in _OF_SWEEPS) or is_test_file(path):
            return False
        return found_in(_SWEEPS, raw) or (any(each in raw for each in _OF_LOADING) and found_in(_RESTORES, raw))
    if what in ("gpus", "chooses"):
        asked = () if is_test_file(path) else _ACCELERATOR.finditer(raw)
        return any((match[1] in _GPUS) is (what == "gpus") for match in asked)
    if what == "offloads":
        found = _OFFLOADS.finditer(raw) if b"torch.save(" in raw and not is_test_file(path) else ()
        return any(not _is_decided(raw, match) for match in found)
    if what == "demands":
        found = _DEMANDS.finditer(raw) if b"torch.device(" in raw or b"torch.cuda." in raw else ()
        return not is_test_file(path) and any(not _is_decided(raw, match, _OF_MACHINES) for match in found)
    name = names[-1].encode()
    if what == "credits":
        return name.decode() in authors(raw[:_HEAD].decode("utf-8", "replace"))
    if what == "called":
        return any(_SEPARATOR.sub(b"_", match[1]).lower() == name for match in _CALLED.finditer(raw))
    if what == "writes":
        return name in raw
    if what == "defines":
        return name in raw and found_in(_defines(name), raw)
    if what == "takes":
        return name in raw and found_in(_takes(names[0].encode(), name), raw)
    if what == "sets":
        return name in raw and found_in(_sets(name), raw)
    if what == "uses":
        return name in raw and found_in(_uses(name), raw)
    if what == "reads":
        return name in raw and found_in(_reads(name), raw)
    if what == "places":
        if name not in raw or is_test_file(path):
            return False
        if found_in(_places(name), raw) or (b"setattr(" in raw and found_in(_puts(name), raw)):
            return True
        return _is_set_by_variable(name, raw)
    if what == "registers":
        if name not in raw or not (b".register_" in raw or b"Parameter(" in raw) or is_test_file(path):
            return False
        return _of_heirs(_registers(name), _registers_own(name), names[0].encode(), raw)
    if what == "resets":
        return name in raw and _of_heirs(_resets(name), _resets_own(name), names[0].encode(), raw)
    if what == "composes":
        return b"Compose(" in raw and name in raw and not is_test_file(path) and found_in(_composes(name), raw)
    if what == "hosts":
        return name in raw and not is_test_file(path) and found_in(_hosts(name), raw)
    if what == "silences":
        return (
            name in raw
            and (b"_grad" in raw or b"inference_mode" in raw)
            and not is_test_file(path)
            and found_in(_silences(name), raw)
        )
    if what in ("unset", "gives"):
        return not is_test_file(path) and (is_unset if what == "unset" else is_given)(name, raw)
    if not path.endswith(CODE):
        return len(names) == 2 and name in raw and found_in(word_of(name), raw)
    module = names[0].encode()
    stem = module.rpartition(b".")[2]
    if stem not in raw or _is_file_of(path, names[0]):
        return False  # what a file says of its own definitions is asked of its flow
    if len(names) == 1:
        return _leads(imports_of(stem), raw, module)
    if name in raw and _names(name, path, raw) and _leads(imports_of(stem), raw, module):
        return not found_in(_defines(name), raw) or _asks_for(name, raw)
    # from nets.masks import *; def causal(x): ...   has its own
    return b"import *" in raw and _leads(_takes_all(stem), raw, module) and not found_in(_defines(name), raw)


def _is_file_of(path: str, module: str) -> bool:
    """Whether the file at a path is what a dotted name leads to: ``/home/net/grid.py`` and ``net.grid``."""
    return f".{dotted_path(path)}".endswith(f".{module}")


def dotted_path(path: str) -> str:
    """The path of a file as an import would name it, or of the package that it opens: ``net/grid.py``, ``net.grid``."""
    parts = path.removesuffix(".py").removesuffix(f"{os.sep}__init__").split(os.sep)
    return ".".join(_NO_NAME.sub("_", part) for part in parts)


def authors(head: str) -> set[str]:
    """The first words of those whose work a file's head says that it is, in small letters; :data:`ANYBODY` besides.

    ``# Copyright (c) 2023 The Acme Team``: ``acme``.
    """
    found = {match[1].lower() for match in _COPYRIGHT.finditer(head)}
    return found | {ANYBODY} if found else found


def found_in(pattern: re.Pattern[bytes], raw: bytes) -> bool:
    return any(not _in_comment(raw, match) for match in pattern.finditer(raw))


def _names(name: bytes, path: str, raw: bytes) -> bool:
    """Whether a file names something, and is no script or test that only imports it."""
    word = word_of(name)
    if not found_in(word, raw) or found_in(_renames(name), raw):
        return False
    # what tests share (`from .rigs import small` in conftest.py) is for others to ask for
    only_runs = _SCRIPT.search(raw) is not None or (is_test_file(path) and not path.endswith(_SHARED))
    return not only_runs or found_in(word, IMPORT.sub(b"", raw))


def _asks_for(name: bytes, raw: bytes) -> bool:
    """Whether a file that defines something of a name itself imports one, or reads one of something else."""
    # from nets.masks import Other; def causal(x): ...; causal(x)   is its own
    if found_in(_uses(name), raw):
        return True
    own = [match.start() for match in _defines(name).finditer(raw)]
    word = word_of(name)
    for line in IMPORT.finditer(raw):
        if word.search(line[0]):
            after = next((at for at in own if at > line.start()), None)
            # from nets.masks import causal; def causal(x): ...   takes its place before anything reads it
            if after is None or word.search(raw, line.end(), raw.find(b":", after)):
                return True
    return False


def _leads(pattern: re.Pattern[bytes], raw: bytes, module: bytes) -> bool:
    """Whether an import found may be of a module, and is not surely of another one of the same top package."""
    # from net.left.masks import Causal   is not net.right.masks
    parts = module.split(b".")
    for match in pattern.finditer(raw):
        if not _in_comment(raw, match):
            named = (match["module"] or b"").split(b".")
            starts = [at for at, part in enumerate(parts) if part == named[0]] if len(named) > 1 else []
            if not starts or any(parts[at:] == named for at in starts):
                return True
    return False


def _in_comment(raw: bytes, match: re.Match[bytes]) -> bool:
    """Whether what was found stands behind a ``#``: a call that is commented out calls nothing."""
    start = raw.rfind(b"\n", 0, match.start()) + 1
    return b"#" in raw[start : match.start()]


def _is_decided(raw: bytes, found: re.Match[bytes], about: re.Pattern[bytes] | None = None) -> bool:
    """Whether a test in the same function, be it one about something, decides on what was found."""
    indent, otherwise = len(found["indent"]), -1
    for line in reversed(raw[: found.start()].splitlines()):
        before = len(line) - len(line.lstrip())
        if not line.strip() or not (before < indent or before == otherwise):
            continue
        word = re.split(rb"\W", line.lstrip(), maxsplit=1)[0]
        if before == otherwise and word not in (b"if", b"elif"):
            continue  # what stands between  if rows is not None:  and its  else:
        indent, otherwise = before, -1
        if word == b"def":
            return False
        if word in (b"if", b"elif", b"else"):
            if about is None or about.search(line):
                return True
            otherwise = before if word == b"else" else -1
    return False


@lru_cache(maxsize=64)
def word_of(name: bytes) -> re.Pattern[bytes]:
    """The name, but not where it is defined."""
    return re.compile(rb"(?<!\bdef )(?<!\bclass )\b" + re.escape(name) + rb"\b")


@lru_cache(maxsize=64)
def _renames(name: bytes) -> re.Pattern[bytes]:
    """``from nets.codes import Codes2 as Codes``: another one has the name there."""
    other = rb"(?!" + re.escape(name) + rb"\b)\w+"
    return re.compile(rb"\bimport\b[^\n#]*\b" + other + rb"[ \t]+as[ \t]+" + re.escape(name) + rb"\b")


@lru_cache(maxsize=64)
def _defines(name: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"^(?:async +)?(?:def|class) +" + re.escape(name) + rb"\b", re.MULTILINE)


@lru_cache(maxsize=64)
def _takes(word: bytes, name: bytes) -> re.Pattern[bytes]:
    """``    def load_state_dict(self, state, device="cpu"):``"""
    return re.compile(rb"^[ \t]+def +" + re.escape(name) + rb"\([^)]*\b" + re.escape(word) + rb"\b", re.MULTILINE)


@lru_cache(maxsize=64)
def _uses(name: bytes) -> re.Pattern[bytes]:
    """``x.name``, or the name as a string, by which it may be looked up."""
    return re.compile(rb"(?:\.\s*|[\"'`])" + re.escape(name) + rb"\b")


@lru_cache(maxsize=64)
def _reads(name: bytes) -> re.Pattern[bytes]:
    """``x.name``, but not ``x.name = 1``, or the name as a string."""
    word = re.escape(name) + rb"\b"
    return re.compile(rb"\.\s*" + word + rb"(?!\s*=(?!=))|[\"'`]" + word)


@lru_cache(maxsize=64)
def _sets(name: bytes) -> re.Pattern[bytes]:
    """``self.name = 1``, ``self.name, rest = rows``, ``other.name``, ``setattr(x, "name", 1)``, ``def name(self):``"""
    word = re.escape(name) + rb"\b"
    return re.compile(rb"(?<!\w)(?<!\bself\.)" + word + rb"|\bself\." + word + rb"\s*(?:[,:\])]|[-+*/|&@]?=(?!=))")


@lru_cache(maxsize=64)
def _places(name: bytes) -> re.Pattern[bytes]:
    """``net.eye = eye``, ``a.eye, b.eye = eyes``, ``net.crit.to(device)``, ``self.eye = self.eye.to(device)``.

    Not ``args.alpha = 0.5``, which keeps a setting, nor ``batch.mask = mask``.
    """
    word = re.escape(name)
    others = rb"(?:[ \t]*,[ \t]*[\w.]+){1,5}\)?[ \t]+"  # crop(net.eye, size=3) has no space there
    return re.compile(
        rb"%b(?:(?:\)?[ \t]*|%b)=(?![=}])(?![ \t]*%b)|%b)" % (_of_module(name), others, _NO_TENSOR, _MOVED)
        + rb"|\.%b(?<=\bself\.%b)[ \t]*=[ \t]*self\.%b%b" % (word, word, word, _MOVED)
    )


def _of_module(name: bytes) -> bytes:
    """An attribute of what may be a module, and not ``self``: what starts with a text is found much quicker than what
    starts with a look behind."""
    word, owners = re.escape(name), ("self", *_NO_MODULES.split())
    return rb"\.%b" % word + b"".join(rb"(?<!\b%b\.%b)" % (owner.encode(), word) for owner in owners)


@lru_cache(maxsize=64)
def _puts(name: bytes) -> re.Pattern[bytes]:
    """``setattr(net, "name", value)``"""
    return re.compile(rb"\bsetattr\((?!self\b)[\w.]+,[ \t]*[\"']%b[\"']" % re.escape(name))


def _is_set_by_variable(name: bytes, raw: bytes) -> bool:
    """``setattr(net, key, state[key])``, where ``for key in ("name", "other")`` goes before."""
    is_near = b"setattr(" in raw or b".__dict__.update(" in raw
    return is_near and found_in(_is_said(name), raw) and found_in(_BY_VARIABLE, raw)


@lru_cache(maxsize=64)
def _is_said(name: bytes) -> re.Pattern[bytes]:
    """``"name"``, ``dict(name=1)``"""
    word = re.escape(name)
    return re.compile(rb"[\"']%b[\"']|\bdict\((?:[^()\n]|\([^()\n]*\)){0,200}?\b%b=" % (word, word))


def _of_heirs(by_others: re.Pattern[bytes], own: re.Pattern[bytes], cls: bytes, raw: bytes) -> bool:
    """Whether a file that does not define a class does something with an object, or in a class below it does."""
    heirs = _descends(cls).finditer(raw) if cls in raw and own.search(raw) is not None else ()
    if not found_in(by_others, raw) and not any(found_in(own, heir[0]) for heir in heirs):
        return False
    return re.search(rb"^[ \t]*class[ \t]+%b\b" % re.escape(cls), raw, re.MULTILINE) is None


@lru_cache(maxsize=64)
def _descends(name: bytes) -> re.Pattern[bytes]:
    """``class Other(nets.Name, Mixin):``, to its end."""
    return re.compile(
        rb"^class[ \t]+\w+\([^)]*\b%b\b[^\n]*\n(?:[ \t)#][^\n]*\n?|\r?\n)*" % re.escape(name), re.MULTILINE
    )


@lru_cache(maxsize=64)
def _registers(name: bytes) -> re.Pattern[bytes]:
    """``net.register_buffer("name", x)``"""
    return re.compile(
        rb"\.register_(?<!\bself\.register_)(?<!\bsuper\(\)\.register_)(?:buffer|parameter)\(\s*[\"']%b[\"']"
        % re.escape(name)
    )


@lru_cache(maxsize=64)
def _registers_own(name: bytes) -> re.Pattern[bytes]:
    """``self.register_buffer("name", x)``, ``self.name = nn.Parameter(x)``"""
    word = re.escape(name)
    return re.compile(
        rb"\bself\.(?:register_(?:buffer|parameter)\(\s*[\"']%b[\"']|%b[ \t]*=[ \t]*[\w.]*Parameter\()" % (word, word)
    )


@lru_cache(maxsize=64)
def _resets(name: bytes) -> re.Pattern[bytes]:
    """``loss.name = 0.5``; what may be a tensor is for :func:`_places`."""
    return re.compile(rb"%b[ \t]*=[ \t]*(?!None\b)%b" % (_of_module(name), _NO_TENSOR))


@lru_cache(maxsize=64)
def _resets_own(name: bytes) -> re.Pattern[bytes]:
    """``self.name = 0.5``, and ``name = None`` or ``def name(self):`` in a class."""
    word = re.escape(name)
    in_body = rb"^(?: {1,4}|\t)(?:def[ \t]+%b\(|%b[ \t]*(?::[^=\n]+)?=(?!=))" % (word, word)
    # self.name = torch.ones(3), self.name = self.name.cuda()
    return re.compile(
        rb"\bself\.%b[ \t]*=(?![=}]|[ \t]*(?:torch\.|None\b|self\.%b\b|[\w.]*Parameter\())|%b" % (word, word, in_body),
        re.MULTILINE,
    )


def _is_of_host(given: bytes) -> bool:
    """Whether new tensors stay on the host under a default, on whichever side of a test."""
    return all(_OF_HOST.match(side) for side in _TEST.split(given))


@lru_cache(maxsize=64)
def _composes(name: bytes) -> re.Pattern[bytes]:
    """``transforms.Compose([ToTensor(), Noise(0.1)])``"""
    inside = rb"(?:[^()]|\((?:[^()]|\([^()]*\))*\)){0,1000}?"
    return re.compile(rb"\bCompose\(" + inside + rb"\b" + re.escape(name) + rb"\(")


@lru_cache(maxsize=64)
def _hosts(name: bytes) -> re.Pattern[bytes]:
    """``Rope("cpu", config)``, ``Rope(width(8), device=torch.device("cpu"))``, ``to_arrays(rows, cpu_device)``."""
    host = rb"(?:(?:\bdevice\()?[\"']cpu[\"']|\b(?:cpu_device|device_cpu|cpu)\b(?![ \t]*[=(]))"
    return re.compile(rb"(?<!\bclass )(?<!\bdef )\b" + re.escape(name) + rb"\((?:[^()]|\([^()]*\)){0,1000}?" + host)


@lru_cache(maxsize=64)
def _silences(name: bytes) -> re.Pattern[bytes]:
    """``with torch.no_grad():`` or ``@torch.inference_mode()``, and ``validate(net)`` in what it is about."""
    deeper = rb"(?P=indent)[ \t]+(?=\S)[^\n]*"  # no blank line: two ways to read each of many would take for ever
    return re.compile(
        rb"^(?P<indent>[ \t]*)(?:with\b[^\n]*\b(?:no_grad|inference_mode|set_grad_enabled)\(|"
        rb"@(?:torch\.)?(?:no_grad|inference_mode)\([^\n]*\n(?P=indent)def\b)[^\n]*\n"
        rb"(?:" + deeper + rb"\n|[ \t\r]*\n)*?" + deeper + rb"\b" + re.escape(name) + rb"\(",
        re.MULTILINE,
    )


@lru_cache(maxsize=64)
def imports_of(stem: bytes) -> re.Pattern[bytes]:
    """``from a.stem import``, ``import a.stem``, ``from a import b, stem``, and the like in a string."""
    word = rb"\b" + re.escape(stem) + rb"\b"
    return re.compile(
        rb"\bfrom\s+(?P<module>[\w.]*"
        + word
        + rb")\s+import\b|\bimport\s+(?:\([^)]*|[^#\n(]*)"
        + word
        + rb"|[\"'](?:\w+\.)+"
        + word
    )


@lru_cache(maxsize=64)
def _takes_all(stem: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"\bfrom\s+(?P<module>[\w.]*\b" + re.escape(stem) + rb")\s+import\s+\*")


def named_at(text: str, name: str) -> Iterator[int]:
    """The offsets at which a text names what it, or another one, defines."""
    raw = text.encode("ascii", "replace")  # a byte for each character
    for match in word_of(name.encode("ascii", "replace")).finditer(raw):
        if not _in_comment(raw, match):
            yield match.start()
