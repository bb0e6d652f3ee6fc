"""What is known of other files: how names are found there, what findings rest on, and when those are made anew."""

from __future__ import annotations

import os
import random
from pathlib import Path

import libcst as cst
import pytest
from ledgers import facts_of, written

from devlint import engine, outline
from devlint.cache import Cache
from devlint.config import Settings
from devlint.files import File
from devlint.finding import Finding
from devlint.flow import Flow
from devlint.index import Definition, ProjectIndex, View
from devlint.ledger import Fact, Pages
from devlint.outline import Outline
from devlint.run import Outcome, Plan, run
from devlint.source import Source

HELPER = "import torch\n\n\ndef made(n):\n    return torch.zeros(n)\n\n\ndef other(n):\n    return n\n"
USER = "import torch\nfrom helper import made\n\n\ndef main(x):\n    y = x.cuda()\n    return torch.cat([y, made(3)])\n"


def write(root: Path, **files: str) -> Path:
    """Files by dotted name, in a project; all of them old enough to be known by their state."""
    (root / "pyproject.toml").touch()
    for name, content in files.items():
        path = root / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        os.utime(path, (1e9, 1e9))
    for folder in (root, *(each for each in root.rglob("*") if each.is_dir())):
        os.utime(folder, (1e9, 1e9))
    return root


def found(view: View, name: str) -> str | None:
    """The file and name that a name leads to."""
    definition = view.find(name)
    return f"{Path(definition.path).stem}.{definition.name}" if definition is not None else None


def view(root: Path, name: str) -> View:
    return ProjectIndex().view(str(root / (name.replace(".", "/") + ".py")))


# names ----------------------------------------------------------------------------------------------


def test_relative_names_are_looked_for_from_the_file_s_package(tmp_path: Path) -> None:
    write(
        tmp_path, **{"a.__init__": "", "a.b.__init__": "", "a.b.c": "", "a.d": "def f(): ...", "a.b.e": "class C: ..."}
    )
    at = view(tmp_path, "a.b.c")
    assert found(at, "..d.f") == "d.f"
    assert found(at, ".e.C") == "e.C"
    assert found(at, ".d.f") is None
    assert found(at, "....d.f") is None


def test_absolute_names_are_looked_for_beside_scripts_in_the_root_and_in_src(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            "scripts.train": "",
            "scripts.common": "def f(): ...",
            "flat.__init__": "def g(): ...",
            "src.deep.__init__": "",
            "src.deep.inner.__init__": "from .code import h",
            "src.deep.inner.code": "def h(): ...",
            "space.part.code": "def k(): ...",
        },
    )
    at = view(tmp_path, "scripts.train")
    assert found(at, "common.f") == "common.f"
    assert found(at, "flat.g") == "__init__.g"
    assert found(at, "deep.inner.h") == "code.h"
    assert found(at, "space.part.code.k") == "code.k"
    assert found(view(tmp_path, "src.deep.inner.code"), "deep.inner.code.h") == "code.h"
    assert at.resolve("elsewhere.f") == "elsewhere.f"


def test_names_are_followed_through_re_exports_aliases_and_stars(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            "main": "",
            "p.__init__": "from .one import f as g\nfrom .two import *\nfrom torch import zeros as made",
            "p.one": "def f(): ...",
            "p.two": "from .three import *\n__all__ = ['k']",
            "p.three": "def k(): ...\ndef _hidden(): ...",
        },
    )
    at = view(tmp_path, "main")
    assert found(at, "p.g") == "one.f"
    assert found(at, "p.k") == "three.k"
    assert at.resolve("p.made") == "torch.zeros"
    assert list(at.starred("p.two")) == ["k"]
    assert set(at.starred("p.three")) == {"k"}
    assert {"g", "k", "made"} <= set(at.starred("p"))


def test_a_package_s_own_name_comes_before_a_module_of_that_name(tmp_path: Path) -> None:
    write(tmp_path, **{"main": "", "p.__init__": "from .f import f", "p.f": "def f(): ...\ndef g(): ..."})
    at = view(tmp_path, "main")
    assert found(at, "p.f") == "f.f"
    assert found(at, "p.f.g") == "f.g"


def test_what_is_bound_more_than_once_is_not_known(tmp_path: Path) -> None:
    twice = "def f(): ...\ndef f(): ...\ntry:\n    from a import g\nexcept ImportError:\n    def g(): ...\n"
    write(tmp_path, main="", twice=twice, over="@overload\ndef f(): ...\ndef f(): ...\n")
    at = view(tmp_path, "main")
    assert found(at, "twice.f") is None
    assert found(at, "twice.g") is None
    assert found(at, "over.f") == "over.f"


@pytest.mark.parametrize(
    "files",
    [
        {"a": "from b import f", "b": "from a import f"},
        {"a": "from b import *", "b": "from a import *"},
        {"a": "import a", "b": "from . import b"},
        {"a.__init__": "from . import *", "a.f": ""},
        {"a": "def f(): ...\nf(", "b": "\0"},
        {"a": "from a.f import f", "b": "class f(f): ..."},
    ],
)
def test_rings_and_files_that_are_no_python_lead_nowhere(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, main="", **files)
    at = view(tmp_path, "main")
    for name in ("a.f", "a.f.f", ".a.f", "b.f", "a.b.c.d", "..", "."):
        at.find(name)
        at.ancestry(name)
        at.holder(name, "x")
    list(at.starred("a"))
    assert found(at, "a.f") is None


BODIES = {
    "text at the left": 'def f():\n    return """\ndef g(): ...\nclass C: ...\n"""\n\n\ndef h(): ...\n',
    "quotes in comments": "def f():  # it's \"\"\" odd\n    pass\n\n# '''\ndef h(): ...\n",
    "brackets at the left": "def f():\n    g(1,\n2)\n\ndef h(\n    x,\n):\n    pass\n",
    "a line that goes on": "def f():\n    x = \\\n2\n\ny = 1\n",
    "comments at the end": "def f():\n    return 1\n    # one\n\n# two\nclass C:  # three\n    # four\n    x = 1\n#5\n",
    "headers": "@d(\n    1\n)\nasync  def f(): return 1\nclass A(B, C[int],\n        metaclass=M):\n    x = 1\n",
    "headers on a line": "class D: y = 2\nclass E(f(lambda:\n  1)):\n    z = 3\n",
    "line ends": "def f():\r\n    return 1\r\n\r\nclass C:\r    x = 1\r",
    "under tests": "if a:\n  class C:\n    def g(self):\n      self.y = 1\nelse:\n  def f():\n    pass\n",
    "tabs and form feeds": "def f():\n\tpass\n\fclass C:\n\tx = 1\n",
    "no line end": "def f():\n    pass",
    "overloads": "@overload\ndef f(x: int): ...\n@overload\ndef f(x: str):\n    ...\ndef f(x):\n    return x\n",
    "twice": "class C:\n    x = 1\nclass C:\n    y = 1\n",
}


@pytest.mark.parametrize("code", BODIES.values(), ids=list(BODIES))
def test_an_outline_is_the_same_whether_bodies_are_left_out_or_not(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Outline(code.encode())
    monkeypatch.setattr(outline, "_skeleton", lambda lines: ("\n".join(lines), {}))
    whole = Outline(code.encode())
    assert list(quick.bindings.items()) == list(whole.bindings.items())
    for name in "ACDE":
        assert quick.has(name, "gxyz") == whole.has(name, "gxyz")


@pytest.mark.parametrize("quote", ['"', "'", '"""', "'''"])
def test_a_string_that_is_never_closed_takes_no_longer_to_read_than_others(quote: str) -> None:
    # a pattern that can part the words in several ways would still be at it tomorrow
    words = "    of many words, over and over again\n" * 400
    code = f"import torch\n\n\ndef f():\n    {quote}Gives the rows\n{words}"
    assert list(Outline(code.encode()).bindings) == ["torch", "f"]


def test_members_of_a_class_are_what_its_code_sets_and_not_what_it_names() -> None:
    code = "class C:\n    a = b\n    def c(self, d):\n        self.e = self.f\n        self.register_buffer('g', h)\n"
    for before in ("", "'''\nclass C: ...\n'''\n", "if x:\n    pass\n"):
        assert Outline(f"{before}{code}".encode()).has("C", "abcdefgh") == ["a", "c", "e", "g"]


def test_a_definition_that_is_no_python_is_found_and_not_followed(tmp_path: Path) -> None:
    write(tmp_path, main="", a="import torch\ndef f(n):\n    return torch.zeros((n)\n\nx = 1\n")
    at = view(tmp_path, "main")
    definition = at.find("a.f")
    assert definition is not None
    assert at.unit(definition) is None


def test_the_bases_of_a_class_are_followed_through_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        main="from p import Net",
        **{
            "p.__init__": "from .net import Net",
            "p.net": "from . import base as b\nclass Net(b.Base): ...",
            "p.base": "import torch.nn as n\nclass Root(n.Module): ...\nclass Base(Mix, Root): ...\nclass Mix: ...",
        },
    )
    ancestry = view(tmp_path, "main").ancestry("p.Net")
    assert ancestry.known == {"Net", "Base", "Root", "Mix"}
    assert ancestry.outside == {"torch.nn.Module"}


def test_a_class_named_like_a_module_is_none_where_its_bases_say_so(tmp_path: Path) -> None:
    write(tmp_path, base="class BaseModule: ...\n")
    code = b"import torch\nfrom base import BaseModule\nclass Net(BaseModule): ...\n"
    flow = Flow(Source(code, "main.py"), view(tmp_path, "main"))
    assert not flow.scope.class_names["Net"].is_module
    assert Flow(Source(code, "main.py")).scope.class_names["Net"].is_module


# units ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True])
def test_what_a_definition_gives_does_not_depend_on_who_asked_first(tmp_path: Path, waits: bool) -> None:
    names = "abcdef"
    for name in names:
        others = names.replace(name, "")
        code = "import torch\n" + "".join(f"from m_{other} import {other}\n" for other in others)
        calls = "".join(f"    {other}(y)\n" for other in names)
        write(tmp_path, **{f"m_{name}": f"{code}def {name}(x: torch.Tensor):\n    y = x.cuda()\n{calls}    return y\n"})
    given = set()
    for seed in range(8):
        index = ProjectIndex()
        order = random.Random(seed).sample(names, len(names))
        units = [index.unit(Definition(str(tmp_path / f"m_{name}.py"), name, "def"), waits=waits) for name in order]
        assert all(unit is not None and unit.function is not None for unit in units)
        kept = {
            unit.definition.name: sorted(facts_of([unit.basis]))
            for unit in index._units.values()
            if unit is not None and unit.waits == waits
        }
        given.add(repr([kept[name] for name in names]))
    assert len(given) == 1


WAITING = {
    "deep": "import torch\n\n\ndef read(x: torch.Tensor):\n    return x.cuda().item()\n",
    "helper": "import torch\nfrom deep import read\n\n\ndef told(x: torch.Tensor):\n    return read(x.cuda())\n",
    "layer": "from torch import nn\nfrom helper import told\n\n\nclass Layer(nn.Module):\n    def __init__(self):\n"
    "        super().__init__()\n        self.inner = nn.Linear(2, 2)\n\n"
    "    def forward(self, x):\n        told(x)\n        return self.inner(x)\n",
    "main": "import torch\nfrom helper import told\nfrom layer import Layer\n\n\ndef main(x: torch.Tensor):\n"
    "    layer = Layer().cuda()\n    told(x)\n    layer(x)\n",
}


def test_whether_a_call_waits_is_found_out_through_files_when_it_is_asked(tmp_path: Path) -> None:
    write(tmp_path, **WAITING)
    flow = Flow(Source(WAITING["main"].encode(), "main.py"), (at := view(tmp_path, "main")))
    assert not any(waits for _, waits in at.index._units)
    before = {fact for fact in facts_of(flow.used) if fact.path.endswith("deep.py")}
    told, layer = flow.source.nodes_of(cst.Call)[-2:]
    assert flow.waits_in(told)
    assert flow.waits_in(layer)
    assert {definition.name for definition, waits in at.index._units if waits} == {"read", "told", "Layer"}
    after = {fact for fact in facts_of(flow.used) if fact.path.endswith("deep.py")}
    assert before <= after
    assert any(fact.question == "text read" for fact in after)


def test_functions_that_call_each_other_wait_where_one_of_them_does(tmp_path: Path) -> None:
    write(
        tmp_path,
        main="",
        one="import torch\nfrom two import two\n\n\ndef one(x: torch.Tensor):\n    two(x.cuda())\n    return x\n",
        two="import torch\nfrom one import one\n\n\n"
        "def two(x: torch.Tensor):\n    one(x)\n    return x.cuda().item()\n",
    )
    code = b"import torch\nfrom one import one\nfrom two import two\n\n\ndef main(x: torch.Tensor):\n    "
    for calls in (b"one(x)\n    two(x)\n", b"two(x)\n    one(x)\n"):
        flow = Flow(Source(code + calls, "main.py"), view(tmp_path, "main"))
        assert all(flow.waits_in(call) for call in flow.source.nodes_of(cst.Call)[-2:])


def test_the_flow_never_hands_out_nodes_of_another_file(tmp_path: Path) -> None:
    fixture = Path(__file__).parent.parent / "fixtures/flow/imported/scripts/train.py"
    source = Source(fixture.read_bytes(), str(fixture))
    flow = Flow(source, ProjectIndex(str(fixture.parents[1])).view(str(fixture)))
    assert flow.learned
    for value in flow.values.values():
        assert value.origin is None or value.origin in source.parents


# findings -------------------------------------------------------------------------------------------


def check(root: Path, **options: bool) -> Outcome:
    settings = Settings(extend_select=("unregistered-tensor",), root=str(root))
    files = [File(str(path), path.relative_to(root).as_posix(), settings) for path in sorted(root.rglob("*.py"))]
    return run(files, Plan(jobs=1, **options))


def findings(outcome: Outcome) -> list[tuple[str, Finding]]:
    return [(file.name, finding) for file, finding in outcome.findings]


def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are checked from now on."""
    seen: list[str] = []
    inspect = engine.inspect

    def spy(raw: bytes, path: str, *rest: object) -> engine.Checked:
        seen.append(path)
        return inspect(raw, path, *rest)

    monkeypatch.setattr(engine, "inspect", spy)
    return seen


def test_a_finding_that_needed_another_file_says_so(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            "pkg.net": "import torch\nfrom pkg.base import Base\n\n\nclass Net(Base):\n    def __init__(self):\n"
            "        super().__init__()\n        self.mean = torch.zeros(3)\n\n"
            "    def forward(self, x):\n        return x - self.mean\n",
            "pkg.base": "from torch import nn\n\n\nclass Base(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.lin = nn.Linear(3, 3)\n",
        },
    )
    ((name, finding),) = findings(check(tmp_path))
    assert (name, finding.rule) == ("pkg/net.py", "unregistered-tensor")
    (note,) = [note for note in finding.notes if note.path is not None]
    assert (note.path, note.span.row) == (os.path.join("pkg", "base.py"), 4)
    assert note.message == "`Base` is a module, and so is `Net`"


def test_a_file_is_checked_again_only_if_what_it_used_of_another_one_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, helper=HELPER, user=USER, third="import torch\nfrom helper import other\nx = other(3)\n")
    before = findings(check(tmp_path))
    seen = checked(monkeypatch)
    assert findings(check(tmp_path)) == before
    assert seen == []
    # not by what it used
    write(tmp_path, helper=HELPER.replace("return n", "return n + torch.ones(1)"))
    check(tmp_path)
    assert seen == ["helper.py", "third.py"]
    seen.clear()
    write(tmp_path, helper=HELPER.replace("torch.zeros(n)", "torch.zeros(n).cuda()"))
    after = findings(check(tmp_path))
    assert {"helper.py", "user.py"} <= set(seen)
    assert after == findings(check(tmp_path, use_cache=False))


LONG_BASE = "import torch\n\n\nclass Base(torch.nn.Module):\n    def f(self, x):\n" + "        x = x + 1\n" * 200
HEIR = "import torch\nfrom base import Base\n\n\nclass Net(Base):\n    def f(self, x):\n        return self.scale * x\n"


def test_what_is_not_followed_may_change_and_nobody_is_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, base=LONG_BASE, heir=HEIR)
    check(tmp_path)
    seen = checked(monkeypatch)
    write(tmp_path, base=LONG_BASE.replace("x + 1", "x + 2"))
    check(tmp_path)
    assert seen == ["base.py"]
    seen.clear()
    write(tmp_path, base=f"{LONG_BASE}        self.nobody_reads_it = x\n")
    check(tmp_path)
    assert seen == ["base.py"]


def test_a_class_is_checked_again_when_its_base_gets_a_member_that_it_reads_or_another_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, base=LONG_BASE, heir=HEIR)
    check(tmp_path)
    seen = checked(monkeypatch)
    write(tmp_path, base=f"{LONG_BASE}        self.scale = x\n")
    check(tmp_path)
    assert seen == ["base.py", "heir.py"]
    seen.clear()
    write(tmp_path, base=f"{LONG_BASE}        self.scale = x\n".replace("torch.nn.Module", "Other"))
    check(tmp_path)
    assert seen == ["base.py", "heir.py"]


def test_a_file_left_out_of_the_run_after_a_change_is_checked_again_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, helper=HELPER, one=USER, two=USER)
    check(tmp_path)
    write(tmp_path, helper=HELPER.replace("torch.zeros(n)", "torch.zeros(n).cuda()"))
    settings = Settings(extend_select=("unregistered-tensor",), root=str(tmp_path))
    run([File(str(tmp_path / f"{name}.py"), f"{name}.py", settings) for name in ("helper", "one")], Plan(jobs=1))
    seen = checked(monkeypatch)
    check(tmp_path)
    assert seen == ["two.py"]


def test_findings_follow_a_file_that_appears_and_one_that_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, user=USER)
    check(tmp_path)
    seen = checked(monkeypatch)
    write(tmp_path, helper=HELPER)
    check(tmp_path)
    assert set(seen) == {"helper.py", "user.py"}
    seen.clear()
    (tmp_path / "helper.py").unlink()
    check(tmp_path)
    assert seen == ["user.py"]


def test_one_file_alone_knows_its_project(tmp_path: Path) -> None:
    write(tmp_path, helper=HELPER, user=USER)
    everything = [finding for name, finding in findings(check(tmp_path, use_cache=False)) if name == "user.py"]
    alone = run([File(str(tmp_path / "user.py"), "user.py", Settings(root=str(tmp_path)))], Plan(use_cache=False))
    assert [finding for _, finding in alone.findings] == everything


def test_workers_find_what_one_process_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, helper=HELPER, **{f"user_{number}": USER for number in range(6)})
    serial = findings(check(tmp_path, use_cache=False))
    monkeypatch.setattr("devlint.run._SERIAL_BYTES", 0)
    monkeypatch.setattr("devlint.run._CHUNK_BYTES", 1)
    settings = Settings(root=str(tmp_path))
    files = [File(str(path), path.name, settings) for path in sorted(tmp_path.glob("*.py"))]
    assert findings(run(files, Plan(jobs=2, use_cache=False))) == serial


@pytest.mark.parametrize("content", ["def made(:\n", "", "\0", "# -*- coding: nonsense -*-\n"])
def test_an_imported_file_that_is_broken_is_no_fault_of_the_one_that_imports_it(tmp_path: Path, content: str) -> None:
    write(tmp_path, helper=content, user=USER)
    assert [name for name, finding in findings(check(tmp_path)) if finding.rule == "internal-error"] == []


def test_a_file_that_vanishes_while_it_is_read_is_no_fault(tmp_path: Path) -> None:
    write(tmp_path, helper=HELPER, user=USER)
    index = ProjectIndex()
    at = index.view(str(tmp_path / "user.py"))
    assert at.find("helper.made") is not None
    (tmp_path / "helper.py").unlink()
    assert engine.inspect(USER.encode(), "user.py", Settings(), at).used


def test_a_cached_fact_of_a_file_that_cannot_be_told_is_asked_again(tmp_path: Path) -> None:
    asked = []

    class Index(ProjectIndex):
        def answer(self, path: str, question: str) -> str:
            asked.append((path, question))
            return "yes"

    first = Cache(str(tmp_path), "generation", print, Index, pages := Pages())
    seen = {"gone.py": (None, "")}
    both = [Fact("gone.py", "names f", "yes"), Fact("gone.py", "names g", "yes")]
    first.put("key", [], written(pages, both, seen))
    first.put("other", [], written(pages, [Fact("gone.py", "names f", "no")], seen))
    first.save()
    again = Cache(str(tmp_path), "generation", print, Index)
    assert again.get("key") == []
    assert again.get("other") is None
    assert sorted(set(asked)) == [("gone.py", "names f"), ("gone.py", "names g")]


def test_a_module_of_a_package_is_not_looked_for_through_the_stars_of_that_package(tmp_path: Path) -> None:
    # packages that re-export hundreds of others: each import of one of their modules would go through them all
    write(tmp_path, **{
        "pkg.__init__": "from .many import *\nfrom .more import *\n",
        "pkg.many": "import torch\nblocks = 3\n",
        "pkg.more": "def other(x): return x\n",
        "pkg.blocks": "import torch\ndef made(n): return torch.zeros(n)\n",
        "pkg.inner.__init__": "",
        "pkg.inner.user": "",
    })  # fmt: skip
    at = view(tmp_path, "pkg.inner.user")
    assert at.find("..blocks.made") == Definition(str(tmp_path / "pkg" / "blocks.py"), "made", "def")
    assert at.find("pkg.blocks.made") == Definition(str(tmp_path / "pkg" / "blocks.py"), "made", "def")
    assert {os.path.basename(fact.path) for fact in facts_of(at.facts)} & {"many.py", "more.py"} == set()
    assert at.find("pkg.other") == Definition(str(tmp_path / "pkg" / "more.py"), "other", "def")


PARTS = {
    "a": ["def a(x): return x.cuda()", "def a(x): return x.cpu()", "def a(x):\n    from b import b\n    return b(x)"],
    "b": ["from a import a\ndef b(x): return a(x)", "def b(x): return torch.zeros(3)", "from a import *", ""],
    "c": ["from b import *\nfrom a import a as d", "from a import *", "from d import *\nfrom b import b"],
    "d": ["from c import *", "from a import a as b\nfrom c import d", "class a(torch.nn.Module): ..."],
    "e": [
        "from c import *\ndef e(x):\n    y = x.cuda()\n    return torch.cat([y, b(torch.ones(3)), a(torch.ones(3))])",
        "from d import a, b\ndef e(x: torch.Tensor, model):\n    model.cuda()\n    return model(b(x.cuda()))",
        "import c\nclass E(c.a):\n    def __init__(self):\n        self.t = torch.zeros(3)\n"
        "    def forward(self, x): return x + self.t",
    ],
    "f": ["from c import b\nz = torch.cat([torch.ones(3).cuda(), b(torch.ones(3))])", "from e import *\ny = e(1)"],
}


@pytest.mark.parametrize("seed", range(12))
def test_after_each_edit_a_warm_run_finds_what_a_cold_one_finds(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    write(tmp_path, **{name: "import torch\n" + chance.choice(kinds) for name, kinds in PARTS.items()})
    check(tmp_path)
    for number in range(6):
        name = chance.choice(list(PARTS))
        path = tmp_path / f"{name}.py"
        if chance.random() < 0.15:
            path.unlink(missing_ok=True)
        else:
            above = "# moved down\n" * chance.randrange(2)
            path.write_text(f"{above}import torch\n{chance.choice(PARTS[name])}\n")
            os.utime(path, (1e9 + number, 1e9 + number))
        os.utime(tmp_path, (1e9 + number, 1e9 + number))
        assert findings(check(tmp_path)) == findings(check(tmp_path, use_cache=False))


def test_an_answer_does_not_depend_on_what_was_asked_before(tmp_path: Path) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        root = tmp_path / str(seed)
        root.mkdir()
        write(root, **{name: chance.choice(kinds) for name, kinds in PARTS.items()})
        asked = [(at, f"{module}.{name}") for at in "abcdef" for module in "abcdef" for name in "abcde"]
        alone = {}
        for at, name in asked:
            alone[at, name] = ProjectIndex().view(str(root / f"{at}.py")).find(name)
        index = ProjectIndex()
        chance.shuffle(asked)
        for at, name in asked:
            assert index.view(str(root / f"{at}.py")).find(name) == alone[at, name]


def test_methods_that_another_file_defines_are_called_by_name_alone(tmp_path: Path) -> None:
    base = "import torch\n\n\nclass Buffer:\n    def parts(self, batch):\n        return torch.stack(batch), batch\n"
    user = (
        "import numpy as np\nimport torch\nfrom base import Buffer\n\n\nclass Balanced(Buffer):\n"
        "    def __init__(self, device):\n        self.device = device\n\n"
        "    def sample(self, net, batch):\n        states, rest = self.parts(batch)\n        return np.array(states)\n"
    )
    write(tmp_path, base=base, user=user)
    settings = Settings(select=("ALL",), root=str(tmp_path))
    path = str(tmp_path / "user.py")
    outcome = run([File(path, path, settings)], Plan(use_cache=False, jobs=1))
    assert [finding.rule for _, finding in outcome.findings if finding.rule == "internal-error"] == []
