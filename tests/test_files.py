import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devlint.config import Configurations
from devlint.files import find
from devlint.gitignore import IgnoreRules

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")


def ignore(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text(text)


def found(*paths: str, force_exclude: bool = False, problems: list[str] | None = None, **options: object) -> list[str]:
    said: list[str] = []
    files = find(
        paths or (".",),
        Configurations({key.replace("_", "-"): value for key, value in options.items()}),
        force_exclude=force_exclude,
        problem=said.append,
    )
    if problems is None:
        assert said == []
    else:
        problems += said
    return [file.name.replace(os.sep, "/") for file in files]


def test_folders_are_walked_for_python_files_in_a_stable_order(project: Path) -> None:
    make(project, "b.py", "a/z.py", "a/b/c.py", "a.txt", "a/n.ipynb", "s.pyi", "a.b/x.py", "x.py/")
    assert found() == ["a/b/c.py", "a/z.py", "a.b/x.py", "b.py"]


@pytest.mark.parametrize(
    ("given", "name"), [(".", "a/b.py"), ("a", "a/b.py"), ("./a", "a/b.py"), ("a/", "a/b.py"), ("../project", None)]
)
def test_names_are_as_the_path_was_given(project: Path, given: str, name: str | None) -> None:
    make(project, "a/b.py")
    assert found(given) == [name or "../project/a/b.py"]
    assert found(str(project)) == [f"{project.as_posix()}/a/b.py"]


def test_a_file_is_found_once_however_often_it_is_named(project: Path) -> None:
    make(project, "a/b.py")
    assert found("a/b.py", ".", "a", "./a/b.py") == ["a/b.py"]


def test_usual_folders_are_left_out_unless_named(project: Path) -> None:
    make(project, ".venv/a.py", "build/b.py", "x/node_modules/c.py", "builder/d.py", "build.py")
    assert found() == ["build.py", "builder/d.py"]
    assert found("build", ".venv/a.py") == [".venv/a.py", "build/b.py"]


def test_exclude_replaces_the_usual_folders_and_extend_exclude_adds(project: Path) -> None:
    make(project, "build/b.py", "gen/a.py", "gen/deep/b.py", "x/gen/c.py", "k_pb2.py", "k.py")
    assert found(exclude=["gen"]) == ["build/b.py", "k.py", "k_pb2.py"]
    assert found(extend_exclude=["/gen/*.py", "*_pb2.py"]) == ["gen/deep/b.py", "k.py", "x/gen/c.py"]


def test_patterns_of_a_file_are_relative_to_it_and_of_the_command_line_to_the_current_folder(project: Path) -> None:
    make(project, "sub/a/x.py", "a/y.py", "sub/b/z.py")
    (project / "sub" / "devlint.toml").write_text('extend-exclude = ["a/x.py"]')
    assert found() == ["a/y.py", "sub/b/z.py"]
    assert found("sub", extend_exclude=["sub/b/z.py"]) == []


def test_a_folder_named_on_the_command_line_is_walked_though_it_is_excluded_or_ignored(project: Path) -> None:
    make(project, "gen/sub/a.py", "gen/sub/b.py", "ign/a.py", "ign/b.py")
    ignore(project, "ign/\nb.py\n")
    assert found("gen/sub", extend_exclude=["gen/sub", "b.py"]) == ["gen/sub/a.py"]
    assert found("ign") == ["ign/a.py"]


def test_a_named_file_is_always_taken_unless_exclusion_is_forced(project: Path) -> None:
    make(project, "build/a.py", "script", "gen/x.py")
    assert found("build/a.py", "script", "gen/x.py", extend_exclude=["gen/"]) == ["build/a.py", "gen/x.py", "script"]
    assert found("build/a.py", "script", "gen/x.py", extend_exclude=["gen/"], force_exclude=True) == ["script"]
    assert found("build", force_exclude=True) == []


# git ----------------------------------------------------------------------------------------------------


def test_ignore_files_hold_as_git_reads_them(project: Path) -> None:
    make(project, "a.py", "out/b.py", "x/out/c.py", "x/keep.py", "x/drop.py", "top.py", "x/top.py", "y/drop.py")
    ignore(project, "# comment\nout/\n/top.py\ndrop.py\n")
    ignore(project / "x", "!drop.py\nkeep.py\n")
    assert found() == ["a.py", "x/drop.py", "x/top.py"]
    assert found(respect_gitignore=False) == [
        *("a.py", "out/b.py", "top.py", "x/drop.py", "x/keep.py", "x/out/c.py", "x/top.py", "y/drop.py")
    ]


def test_nothing_in_an_ignored_folder_comes_back(project: Path) -> None:
    make(project, "out/b.py")
    ignore(project, "out/\n!out/b.py\n")
    assert found() == []


def test_ignore_files_above_hold_up_to_the_repository(project: Path) -> None:
    ignore(project, "*.py\n")
    make(project, "repo/.git/info/", "repo/a/x.py", "repo/a/y.py", "repo/a/z.py")
    ignore(project / "repo", "x.py\n")
    (project / "repo/.git/info/exclude").write_text("/a/y.py\n")
    assert found("repo/a") == found("repo") == ["repo/a/z.py"]


def test_outside_a_repository_ignore_files_hold_up_to_the_current_folder(project: Path) -> None:
    make(project, "src/a.py", "src/gen.py")
    ignore(project, "src/gen.py\n")
    ignore(project.parent, "*.py\n")
    assert found("src") == found() == ["src/a.py"]


def test_git_itself_agrees(project: Path) -> None:
    make(project, *(f"{a}/{b}/{c}.py" for a in ("src", "doc", "lib") for b in ("src", "x", "y z") for c in ("a", "b")))
    ignore(project, "src/x\n*/y*/a.py\n!lib/y z/a.py\n**/src/b.py\n/doc/**/b.py\n")
    ignore(project / "lib", "*\n!*/\n!x/a.py\n")  # pathspec alone gets this wrong
    try:
        subprocess.run(["git", "init", "-q"], check=True)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    listed = subprocess.run(
        ["git", "ls-files", "-zo", "--exclude-standard", "*.py"], check=True, capture_output=True, text=True
    ).stdout
    assert sorted(found()) == sorted(listed.split("\0")[:-1])


def test_what_is_no_pattern_ignores_nothing_and_the_rest_holds(project: Path) -> None:
    make(project, "a.py", "b.py", "data/c.py")
    ignore(project, "data\\\n[z-a]*.py\na.py\n")
    assert found() == ["b.py", "data/c.py"]


# what cannot be read ------------------------------------------------------------------------------------


def test_a_missing_path_is_told_and_the_others_go_on(project: Path) -> None:
    make(project, "a.py")
    problems: list[str] = []
    assert found("nope.py", "a.py", problems=problems) == ["a.py"]
    assert problems == ["nope.py: no such file or folder; check the spelling, paths are relative to the current folder"]


@needs_links
def test_links_that_lead_nowhere_or_in_a_loop(project: Path) -> None:
    make(project, "a.py", "sub/b.py")
    os.symlink("loop.py", project / "loop.py")
    os.symlink("gone.py", project / "dangling.py")
    os.symlink("..", project / "sub" / "up")
    problems: list[str] = []
    assert found(problems=problems) == ["a.py", "sub/b.py"]
    assert problems == ["loop.py: cannot be read: is a link that leads back to itself; remove the link or exclude it"]
    problems = []
    assert found("loop.py", "dangling.py", problems=problems) == []
    assert "leads back to itself" in problems[0]
    assert "dangling.py: is a link to `gone.py`, which does not exist" in problems[1]


@needs_links
def test_a_link_to_a_folder_is_followed_only_when_named(project: Path) -> None:
    make(project, "real/a.py", "tree/b.py")
    os.symlink("../real", project / "tree" / "link")
    assert found("tree") == ["tree/b.py"]
    assert found("tree/link") == ["tree/link/a.py"]


def test_broken_settings_cost_only_the_files_under_them(project: Path) -> None:
    make(project, "a.py", "sub/b.py")
    (project / "sub" / "devlint.toml").write_text("jbos = 1\n")
    problems: list[str] = []
    assert found(problems=problems) == ["a.py"]
    assert found("sub/b.py", "a.py", problems=problems) == ["a.py"]
    assert all("sub/devlint.toml:1: unknown key `jbos`; did you mean `jobs`?" in p for p in problems)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not allow such names")
def test_a_name_that_is_not_utf8_is_shown_with_escapes(project: Path) -> None:
    Path(os.fsdecode(b"n\xff.py")).write_text("")
    assert found() == ["n\\xff.py"]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="everything is readable to this user")
def test_a_folder_that_cannot_be_read_is_told(project: Path) -> None:
    make(project, "a.py", "closed/b.py")
    (project / "closed").chmod(0)
    problems: list[str] = []
    try:
        assert found(problems=problems) == ["a.py"]
    finally:
        (project / "closed").chmod(0o755)
    assert problems == ["closed/: cannot be read: permission denied; make it readable or exclude it"]


@pytest.mark.skipif(shutil.which("git") is None, reason="asks git")
@pytest.mark.parametrize(
    "pattern",
    ["*", "*.py", "a?", "[ab]", "[ab]*.py", "*_a", ".*", "a*b", "a$*", "/*.py", "/a/*", "a/*.py", "a/?/b", "*/a", "**",
     "**/a", "**/a/b", "a/**", "a/**/b", "/a/**/*.py", "**/a/**", "a/**/[ab]/*", "**/*_a.py", "*-*", "a b*", "[!a]*",
     "[a-b]", "a**", "\\**", "a\\", "a/\\", "[z-b]", "[z-b]*.py", "a[", "\\"],
)  # fmt: skip
def test_patterns_match_what_git_says(tmp_path: Path, pattern: str) -> None:
    names = ["a", "b", "ab", ".a", "a_a.py", "b.py", "a$b", "a-b", "a b", "*"]
    paths = [*names, *(f"{x}/{y}" for x in names for y in names), *(f"a/{x}/{y}" for x in names for y in names)]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    ignore(tmp_path, f"{pattern}\n")
    asked = ["git", "-C", tmp_path, "check-ignore", "--no-index", "-z", "--stdin"]
    said = subprocess.run(asked, input="\0".join(paths), capture_output=True, text=True).stdout.split("\0")
    assert [path for path in paths if IgnoreRules([pattern], as_git=True).covers(path)] == said[:-1]
