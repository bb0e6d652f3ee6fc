"""The tools of those who write rules."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from devlint import dev
from devlint.dev import Seen, compare, main

SEEN = Seen("a.py", 3, "discarded-move", "`x` is moved", "safe", "x.to(device)")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rules").mkdir()
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    return tmp_path


def test_new_writes_a_rule_and_a_fixture(checkout: Path) -> None:
    result = CliRunner().invoke(main, ["new", "lost-tensor"])
    assert result.exit_code == 0, result.output
    module = ast.parse((checkout / "rules/lost_tensor.py").read_text())
    assert [node.name for node in module.body if isinstance(node, ast.ClassDef)] == ["LostTensor"]
    assert "#~ lost-tensor" in (checkout / "fixtures/lost-tensor/basic.py").read_text()


def test_new_refuses_a_name_that_is_taken(checkout: Path) -> None:
    (checkout / "rules/lost_tensor.py").write_text("mine")
    result = CliRunner().invoke(main, ["new", "lost-tensor"])
    assert result.exit_code == 2 and "exists already" in result.output
    assert (checkout / "rules/lost_tensor.py").read_text() == "mine"
    assert not (checkout / "fixtures").exists()


@pytest.mark.parametrize("name", ["LostTensor", "3d", "lost--tensor", "../lost", ""])
def test_new_refuses_what_is_no_rule_name(checkout: Path, name: str) -> None:
    assert CliRunner().invoke(main, ["new", name]).exit_code == 2
    assert not list((checkout / "rules").iterdir())


def test_a_finding_that_moved_to_another_line_is_no_change() -> None:
    assert compare([SEEN], [dataclasses.replace(SEEN, line=30)]) == ([], [], [])


def test_a_second_finding_on_an_equal_line_is_new() -> None:
    twin = dataclasses.replace(SEEN, line=9)
    assert compare([SEEN], [SEEN, twin]) == ([twin], [], [])


@pytest.mark.parametrize("change", [{"message": "other"}, {"fix": "unsafe"}, {"text": "x .to(device)"}])
def test_another_message_fix_or_line_text_is_a_change(change: dict[str, Any]) -> None:
    after = dataclasses.replace(SEEN, **change)
    assert compare([SEEN], [after]) == ([], [], [(SEEN, after)])


def test_a_finding_of_another_rule_is_new_and_the_old_one_gone() -> None:
    other = dataclasses.replace(SEEN, rule="create-then-move")
    assert compare([SEEN], [other]) == ([other], [SEEN], [])


def test_corpus_shows_what_changed_since_the_last_time(tmp_path: Path) -> None:
    folder, kept = tmp_path / "checkouts", tmp_path / "old.json"
    (folder / "one").mkdir(parents=True)
    file = folder / "one" / "broken.py"
    file.write_text("import torch\nx = (\n")
    result = CliRunner().invoke(main, ["corpus", str(folder), "--output", str(kept)])
    assert result.exit_code == 0 and "syntax-error" in result.stdout, result.output
    file.write_text("import torch\n")
    result = CliRunner().invoke(main, ["corpus", str(folder), "--against", str(kept)])
    assert "- broken.py:" in result.stdout and "0 new, 1 gone, 0 changed" in result.stdout


def test_tree_prints_what_the_flow_knows_below_each_line(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("import torch\nx = torch.zeros(3)\n")
    result = CliRunner().invoke(main, ["tree", str(file), "--line", "2"])
    assert result.exit_code == 0, result.output
    first, *known = result.stdout.splitlines()
    assert first.endswith("x = torch.zeros(3)") and any("host" in line for line in known)


def test_tree_names_the_place_of_a_syntax_error(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("x = (\n")
    result = CliRunner().invoke(main, ["tree", str(file)])
    assert result.exit_code == 1 and "a.py:" in result.output
