"""The hooks, run by the real pre-commit, which installs devlint and its dependencies from the registry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness import ROOT

# one worker of pytest-xdist, for one installation
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pre-commit")]

FAULTY = """\
import torch


def step(x: torch.Tensor, device):
    x.to(device)
    return x
"""
FIXED = FAULTY.replace("    x.to", "    x = x.to")

HOOKS = ("devlint", "rules", "pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml")


def _git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=devlint", "-c", "user.email=devlint@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@dataclass
class Project:
    """A repository that uses the hooks."""

    folder: Path
    environment: dict[str, str] = field(repr=False)  # not for a log

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        _git(self.folder, "add", name)
        return file

    def run(self, hook: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pre_commit", "run", hook, "--all-files", "--color", "never"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    """A repository with this checkout's files as they are now, its revision, and pre-commit's store."""
    folder = tmp_path_factory.mktemp("hooks")
    for name in HOOKS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    _git(folder, "init", "--quiet")
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", "hooks")
    return folder, _git(folder, "rev-parse", "HEAD"), tmp_path_factory.mktemp("store")


@pytest.fixture
def project(hooks: tuple[Path, str, Path], tmp_path: Path) -> Project:
    repository, revision, store = hooks
    _git(tmp_path, "init", "--quiet")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PRE_COMMIT", "PYTEST"))}
    project = Project(tmp_path, {**kept, "PRE_COMMIT_HOME": str(store)})
    config = f"repos:\n- repo: {repository}\n  rev: {revision}\n  hooks:\n  - id: devlint\n  - id: devlint-fix\n"
    project.write(".pre-commit-config.yaml", config)
    return project


def test_the_hook_reports_faults_and_leaves_files_alone(project: Project) -> None:
    file = project.write("train.py", FAULTY)
    code, output = project.run("devlint")
    assert code == 1 and "discarded-move" in output, output
    assert file.read_text() == FAULTY


def test_the_fixing_hook_fails_once_and_passes_on_what_it_fixed(project: Project) -> None:
    file = project.write("train.py", FAULTY)
    code, output = project.run("devlint-fix")
    assert code == 1, output
    assert file.read_text() == FIXED
    assert project.run("devlint-fix")[0] == 0
    assert project.run("devlint")[0] == 0


def test_the_hook_leaves_out_excluded_files_although_they_are_named(project: Project) -> None:
    project.write("legacy/train.py", FAULTY)
    project.write("pyproject.toml", '[tool.devlint]\nextend-exclude = ["legacy"]\n')
    code, output = project.run("devlint")
    assert code == 0, output
