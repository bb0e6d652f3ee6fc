"""Trees of whole files: parsed once for a file and for what others ask of it, and never to the harm of findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from devlint import source, trees
from devlint.config import Settings
from devlint.files import File
from devlint.run import Outcome, Plan, run
from devlint.source import parse
from devlint.trees import Tree, Trees

HELPER = '''import torch


# above
@torch.no_grad()
def made(n):
    """Text
    of several lines"""
    return torch.zeros(n, device="cuda")
    # below


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.ones(3)

    def forward(self, x):
        return x.to("cuda") * self.scale


if True:
    def inner(n):
        return torch.ones_like(n, device="cuda")
'''
USER = """import torch
from helper import Layer, inner, made


class Own(Layer):
    def more(self, x):
        return self(x) + made(3)


def main(x):
    return made(3) + torch.zeros(3) + inner(x)
"""


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The code that was parsed."""
    texts: list[str] = []

    def noted(text: str) -> object:
        texts.append(text)
        return parse(text)

    monkeypatch.setattr(source, "parse", noted)
    return texts


def checked(root: Path, *names: str) -> Outcome:
    files = [File(str(root / name), name, Settings(select=("ALL",))) for name in names]
    return run(files, Plan(use_cache=False, jobs=1))


def project(root: Path, helper: str = HELPER) -> Path:
    (root / "pyproject.toml").touch()
    (root / "helper.py").write_bytes(helper.encode())
    (root / "user.py").write_text(USER)
    return root


@pytest.mark.parametrize("order", [("user.py", "helper.py"), ("helper.py", "user.py")])
def test_a_file_that_is_checked_too_is_parsed_once(tmp_path: Path, parsed: list[str], order: tuple[str, ...]) -> None:
    checked(project(tmp_path), *order)
    assert sorted(text for text in parsed if "def made" in text) == [HELPER]
    assert any(text.startswith("def inner") for text in parsed)  # dedented, it is other code


def test_of_a_file_that_is_not_checked_only_the_definitions_are_parsed(tmp_path: Path, parsed: list[str]) -> None:
    checked(project(tmp_path), "user.py")
    assert HELPER not in parsed


@pytest.mark.parametrize("helper", [HELPER, HELPER.replace("\n", "\r\n"), HELPER + "def f(:\n", HELPER + "\x00"])
def test_findings_do_not_depend_on_trees_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helper: str
) -> None:
    project(tmp_path, helper)
    kept = [set(checked(tmp_path, *order).findings) for order in (("user.py", "helper.py"), ("helper.py", "user.py"))]
    monkeypatch.setattr(trees, "_ROOM", 0)
    alone = set(checked(tmp_path, "user.py", "helper.py").findings)
    assert kept == [alone, alone]
    told = any(file.name == "user.py" and "zeros" in finding.message for file, finding in alone)
    assert told == ("\x00" not in helper)  # a definition can be read where its whole file cannot


def test_a_file_that_is_gone_before_its_check_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(tmp_path)
    real = Trees.asked

    def asked(self: Trees, path: str, text: str) -> object:
        found = real(self, path, text)
        Path(path).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Trees, "asked", asked)
    outcome = checked(tmp_path, "user.py", "helper.py")
    assert [problem.split(":")[0] for problem in outcome.problems] == ["helper.py"]


def test_a_tree_is_not_taken_for_other_code(tmp_path: Path) -> None:
    kept = Trees()
    kept.expect(["a.py"])
    assert kept.asked("a.py", "x = 1\n") is not None
    assert kept.asked("a.py", "x = 2\n") is None
    made = source.Source(b"x = 3\n", "a.py", kept.take("a.py"))
    assert made.module.code == "x = 3\n"


def test_the_file_that_was_asked_for_last_is_checked_next() -> None:
    kept = Trees()
    kept.expect(["a.py", "b.py"])
    assert kept.next() is None
    kept.asked("a.py", "x = 1\n")
    kept.asked("b.py", "y = 1\n")
    assert kept.next() == "b.py"
    kept.take("b.py")
    assert kept.next() == "a.py"


def test_trees_take_no_more_than_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_ROOM", 12)
    kept = Trees()
    kept.expect(["a.py", "b.py", "c.py", "d.py"])
    for path in ("a.py", "b.py"):
        kept.keep(path, Tree("x = 1\n", parse("x = 1\n")))
    assert kept.asked("a.py", "x = 1\n") is not None  # b.py is the one that goes
    assert kept.asked("c.py", "z = 1\n") is not None
    kept.dismiss("b.py")
    assert kept.take("b.py") is None
    assert kept.asked("d.py", "z = 1\n") is not None  # what waits goes before what has been checked
    assert kept.take("a.py") is None
    kept.expect(["e.py"])
    assert kept.asked("e.py", "z = 1\n") is None
    kept.dismiss("c.py")
    assert kept.asked("e.py", "z = 1\n") is not None


def test_the_room_of_a_checked_tree_that_is_taken_over_again_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_ROOM", 12)
    kept = Trees()
    kept.expect(["b.py"])
    for _ in range(3):  # as often as a file is fixed
        kept.keep("a.py", Tree("x = 1\n", parse("x = 1\n")))
        assert kept.take("a.py") is not None
    assert kept.asked("b.py", "x = 1111111\n") is not None  # all the room there is
    assert kept.asked("c.py", "z = 1\n") is None
