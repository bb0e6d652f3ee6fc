import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from devlint import engine, fix, run
from devlint.config import Configurations
from devlint.engine import Checked
from devlint.files import File, find
from devlint.run import Outcome, Plan

BROKEN = "import torch\nx = (\n"


def files(*paths: str) -> list[File]:
    return find(paths or (".",), Configurations(), force_exclude=False, problem=pytest.fail)


def told(outcome: Outcome) -> list[tuple[str, str]]:
    return [(file.name, finding.rule) for file, finding in outcome.findings]


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / f"{name}.py"
        path.write_text(f"import torch\n{text}\n")
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100))


def forbid_checking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "inspect", lambda *_: pytest.fail("checked instead of taken from the cache"))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_SERIAL_BYTES", 10**9)


# the cache ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toy_rules")
def test_a_second_run_gives_the_same_findings_without_checking(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, a="poor", b="fatal", c="fine")
    first = run.run(files(), Plan())
    assert told(first) == [("a.py", "poor-name"), ("b.py", "fatal-name")]
    forbid_checking(monkeypatch)
    second = run.run(files(), Plan())
    assert (second.findings, second.checked) == (first.findings, 3)


@pytest.mark.usefixtures("toy_rules")
def test_an_unchanged_file_is_not_even_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, a="poor")
    run.run(files(), Plan())
    monkeypatch.setattr(run, "_read", lambda path: pytest.fail("read"))
    assert told(run.run(files(), Plan())) == [("a.py", "poor-name")]


@pytest.mark.usefixtures("toy_rules")
def test_a_file_that_was_only_touched_is_answered_by_its_content(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, a="poor")
    run.run(files(), Plan())
    (project / "a.py").touch()
    forbid_checking(monkeypatch)
    assert told(run.run(files(), Plan())) == [("a.py", "poor-name")]


@pytest.mark.usefixtures("toy_rules")
def test_a_changed_file_is_checked_again(project: Path) -> None:
    write(project, a="poor")
    run.run(files(), Plan())
    write(project, a="fatal")
    assert told(run.run(files(), Plan())) == [("a.py", "fatal-name")]


@pytest.mark.usefixtures("toy_rules")
def test_changed_settings_are_never_answered_from_the_cache(project: Path) -> None:
    write(project, a="poor")
    run.run(files(), Plan())
    (project / "devlint.toml").write_text('[per-file-ignores]\n"a.py" = ["poor-name"]\n')
    assert told(run.run(files(), Plan())) == []
    (project / "devlint.toml").write_text('select = ["correctness"]\n')
    assert told(run.run(files(), Plan())) == []
    (project / "devlint.toml").write_text("")
    assert told(run.run(files(), Plan())) == [("a.py", "poor-name")]


@pytest.mark.usefixtures("toy_rules")
def test_without_the_cache_nothing_is_written(project: Path) -> None:
    write(project, a="poor")
    assert told(run.run(files(), Plan(use_cache=False))) == [("a.py", "poor-name")]
    assert [p.name for p in project.iterdir()] == ["a.py"]


@pytest.mark.usefixtures("toy_rules")
def test_the_cache_lies_beside_the_settings(project: Path) -> None:
    (project / "sub").mkdir()
    (project / "sub" / "devlint.toml").touch()
    write(project / "sub", a="poor")
    run.run(files(), Plan())
    assert (project / "sub" / ".devlint_cache").is_dir()
    assert not (project / ".devlint_cache").exists()


def test_a_failure_of_devlint_is_not_remembered(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, a="x = 1")
    monkeypatch.setattr("devlint.flow.Flow.__init__", lambda *_: 1 / 0)
    assert told(run.run(files(), Plan())) == [("a.py", "internal-error")]
    monkeypatch.undo()
    monkeypatch.chdir(project)
    assert told(run.run(files(), Plan())) == []


def test_an_interrupted_run_keeps_what_it_has_found(
    project: Path, monkeypatch: pytest.MonkeyPatch, in_process: None
) -> None:
    write(project, a="x = 1", b="x = 2")
    inspect = engine.inspect

    def interrupted(raw: bytes, path: str, *rest: Any) -> Checked:
        if path == "b.py":
            raise KeyboardInterrupt
        return inspect(raw, path, *rest)

    monkeypatch.setattr(engine, "inspect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.run(files(), Plan())
    forbid_checking(monkeypatch)
    assert run.run(files("a.py"), Plan()).checked == 1


# fixing -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toy_rules")
def test_fixing_writes_safe_fixes_and_reports_the_rest(project: Path) -> None:
    write(project, a="poor = poorer", b="fatal", c="fine")
    outcome = run.run(files(), Plan("fix"))
    assert (project / "a.py").read_text() == "import torch\ngood = poorer\n"
    assert told(outcome) == [("a.py", "poor-name"), ("b.py", "fatal-name")]
    assert [(file.name, finding.rule) for file, finding in outcome.applied] == [("a.py", "poor-name")]
    run.run(files(), Plan("fix", unsafe=True))
    assert (project / "a.py").read_text() == "import torch\ngood = good\n"


@pytest.mark.usefixtures("toy_rules")
def test_the_setting_allows_unsafe_fixes_and_the_option_overrides_it(project: Path) -> None:
    (project / "devlint.toml").write_text("unsafe-fixes = true")
    write(project, a="poorer")
    assert not run.run(files(), Plan("fix", unsafe=False)).changes
    assert run.run(files(), Plan("fix")).changes
    assert (project / "a.py").read_text() == "import torch\ngood\n"


@pytest.mark.usefixtures("toy_rules")
def test_what_is_cached_is_fixed_all_the_same(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, a="poor", b="fatal")
    run.run(files(), Plan())
    assert run.run(files(), Plan("fix")).changes
    assert (project / "a.py").read_text() == "import torch\ngood\n"
    run.run(files(), Plan("fix"))
    forbid_checking(monkeypatch)
    assert told(run.run(files(), Plan("fix"))) == [("b.py", "fatal-name")]


@pytest.mark.usefixtures("toy_rules")
def test_without_writing_the_files_stay(project: Path) -> None:
    write(project, a="poor")
    outcome = run.run(files(), Plan("fix", write=False))
    assert [change.after for change in outcome.changes] == [b"import torch\ngood\n"]
    assert (project / "a.py").read_text() == "import torch\npoor\n"


@pytest.mark.usefixtures("toy_rules", "in_process")
def test_a_file_that_changes_meanwhile_is_left_alone(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, a="poor")
    fixing = fix.fix

    def edited_meanwhile(*args: Any, **options: Any) -> fix.Fixed:
        (project / "a.py").write_text("import torch\npoor  # mine\n")
        return fixing(*args, **options)

    monkeypatch.setattr(fix, "fix", edited_meanwhile)
    outcome = run.run(files(), Plan("fix"))
    assert (project / "a.py").read_text() == "import torch\npoor  # mine\n"
    assert "a.py: changed while it was being fixed" in outcome.problems[0]
    assert (outcome.applied, told(outcome)) == ([], [("a.py", "poor-name")])


@pytest.mark.usefixtures("toy_rules")
def test_a_file_that_cannot_be_written_is_told_and_the_others_go_on(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, a="poor", b="poor")
    writing = fix.write

    def refused(path: str, data: bytes) -> None:
        if path == "a.py":
            raise PermissionError(13, "Permission denied")
        writing(path, data)

    monkeypatch.setattr(fix, "write", refused)
    outcome = run.run(files(), Plan("fix", use_cache=False))
    assert outcome.problems == ["a.py: cannot be written: Permission denied; nothing in it was changed"]
    assert told(outcome) == [("a.py", "poor-name")]
    assert (project / "b.py").read_text() == "import torch\ngood\n"


@pytest.mark.usefixtures("toy_rules")
@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_one_file_under_two_names_is_fixed_once(project: Path) -> None:
    write(project, a="poor")
    os.symlink("a.py", project / "link.py")
    assert run.run(files(), Plan("fix")).problems == []
    assert (project / "link.py").is_symlink()
    assert (project / "a.py").read_text() == "import torch\ngood\n"


@pytest.mark.usefixtures("toy_rules")
def test_ignore_comments_are_added(project: Path) -> None:
    write(project, a="poor", b="fine")
    outcome = run.run(files(), Plan("ignore"))
    assert [change.file.name for change in outcome.changes] == ["a.py"]
    assert "# devlint: ignore[poor-name]" in (project / "a.py").read_text()
    assert run.run(files(), Plan()).findings == []


def test_a_crash_while_fixing_costs_one_file(project: Path, monkeypatch: pytest.MonkeyPatch, toy_rules: None) -> None:
    write(project, a="poor", b="poor")
    fixing = fix.fix

    def crash(raw: bytes, path: str, *args: Any, **options: Any) -> fix.Fixed:
        if path == "a.py":
            raise IndexError("oh")
        return fixing(raw, path, *args, **options)

    monkeypatch.setattr(fix, "fix", crash)
    outcome = run.run(files(), Plan("fix"))
    assert outcome.problems == ["a.py: devlint failed on this file (IndexError: oh); please report it with the file"]
    assert (project / "b.py").read_text() == "import torch\ngood\n"


# bad input ----------------------------------------------------------------------------------------------


def test_files_that_are_not_python_are_findings_with_a_place(project: Path) -> None:
    for name, raw in {
        "broken": BROKEN.encode(),
        "null": b"import torch\0\n",
        "latin": b"import torch\nx = '\xe9'\n",
        "codec": b"# coding: klingon\nimport torch\n",
    }.items():
        (project / f"{name}.py").write_bytes(raw)
    (project / "empty.py").touch()
    outcome = run.run(files(), Plan(use_cache=False))
    assert {(file.name, f.rule, f.span.row) for file, f in outcome.findings} == {
        ("broken.py", "syntax-error", 2),
        ("null.py", "syntax-error", 1),
        ("latin.py", "syntax-error", 2),
        ("codec.py", "syntax-error", 1),
    }
    assert outcome.checked == 5


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="everything is readable to this user")
def test_an_unreadable_file_is_told_and_the_others_go_on(project: Path) -> None:
    write(project, a="x", b="y")
    (project / "a.py").chmod(0)
    outcome = run.run(files(), Plan())
    assert outcome.problems == ["a.py: cannot be read: permission denied; make it readable or exclude it"]
    assert outcome.checked == 1


def test_a_file_that_disappears_is_told(project: Path) -> None:
    write(project, a="x")
    found = files()
    (project / "a.py").unlink()
    assert "a.py: cannot be read: No such file" in run.run(found, Plan()).problems[0]


def test_files_that_name_no_framework_are_not_parsed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "a.py").write_text("x = (")
    forbid_checking(monkeypatch)
    assert run.run(files(), Plan()).checked == 1


# workers ------------------------------------------------------------------------------------------------


def test_workers_find_what_one_process_finds_in_the_same_order(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        (project / f"m{number}.py").write_text("import torch\n" * (number + 1) + "x = (\n")
    serial = run.run(files(), Plan(use_cache=False, jobs=1))
    monkeypatch.setattr(run, "_SERIAL_BYTES", 0)
    monkeypatch.setattr(run, "_CHUNK_BYTES", 40)
    pooled = run.run(files(), Plan(use_cache=False, jobs=2))
    assert pooled.findings == serial.findings
    assert [file.name for file, _ in pooled.findings] == [f"m{number}.py" for number in range(6)]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A run with one stored file is one with many; the processes that are started ahead."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork")
    started: list[int] = []
    fork = os.fork

    def noted() -> int:
        started.append(fork())
        return started[-1]

    monkeypatch.setattr(os, "fork", noted)
    monkeypatch.setattr(run, "_MANY_STORED", 1)
    monkeypatch.setattr(run, "_start_method", lambda: "fork")
    return started


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.usefixtures("toy_rules")
def test_a_changed_file_is_checked_while_the_others_are_looked_up(
    project: Path, monkeypatch: pytest.MonkeyPatch, processes: list[int]
) -> None:
    write(project, a="poor", b="good")
    run.run(files(), Plan(jobs=2))
    assert not processes
    write(project, b="fatal")
    with monkeypatch.context() as patch:
        patch.setattr(run, "_process_all", lambda _, plan, ahead: ahead.finish([]))
        assert told(run.run(files(), Plan(jobs=2))) == [("a.py", "poor-name"), ("b.py", "fatal-name")]
    assert len(processes) == 1
    assert is_gone(processes[0])
    forbid_checking(monkeypatch)
    assert told(run.run(files(), Plan(jobs=2))) == [("a.py", "poor-name"), ("b.py", "fatal-name")]


@pytest.mark.usefixtures("toy_rules")
def test_one_job_is_one_process(project: Path, processes: list[int]) -> None:
    write(project, a="poor", b="good")
    run.run(files(), Plan(jobs=1))
    write(project, b="fatal")
    assert told(run.run(files(), Plan(jobs=1))) == [("a.py", "poor-name"), ("b.py", "fatal-name")]
    assert not processes


def test_what_rests_on_a_changed_file_is_checked_as_well(project: Path, processes: list[int]) -> None:
    write(
        project,
        a="from b import make\nx = make()\nx.cuda()\nprint(x * x.cuda())",
        b="def make():\n    return torch.zeros(3)",
        c="",
    )
    before = run.run(files(), Plan(jobs=2)).findings
    write(project, b="def make():\n    return open('zeros')")
    after = run.run(files(), Plan(jobs=2)).findings
    assert len(processes) == 1
    assert after != before
    assert after == run.run(files(), Plan(jobs=1, use_cache=False)).findings


@pytest.mark.usefixtures("toy_rules")
def test_where_the_process_ahead_dies_its_files_are_checked_all_the_same(
    project: Path, monkeypatch: pytest.MonkeyPatch, processes: list[int]
) -> None:
    write(project, a="poor", b="good")
    run.run(files(), Plan(jobs=2))
    write(project, b="fatal")
    monkeypatch.setattr(run._Ahead, "_work", lambda *_: os._exit(9))
    assert told(run.run(files(), Plan(jobs=2))) == [("a.py", "poor-name"), ("b.py", "fatal-name")]
    assert processes


@pytest.mark.usefixtures("toy_rules")
def test_an_interrupted_run_leaves_no_process(
    project: Path, monkeypatch: pytest.MonkeyPatch, processes: list[int]
) -> None:
    write(project, a="poor", b="good")
    run.run(files(), Plan(jobs=2))
    write(project, b="fatal")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run.Cache, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.run(files(), Plan(jobs=2))
    assert len(processes) == 1
    assert is_gone(processes[0])


def test_the_largest_files_go_first_and_small_ones_together(project: Path) -> None:
    write(project, a="", b="", c="")
    a, b, c = files()
    assert run._chunks([(a, 10), (b, run._CHUNK_BYTES), (c, 20)]) == [[b], [c, a]]


def test_a_worker_that_dies_names_its_file_and_the_others_are_checked(project: Path) -> None:
    for number in range(4):
        (project / f"m{number}.py").write_text(BROKEN)
    (project / "deadly.py").write_text("import torch  # deadly\n")
    script = """
        import os
        from devlint import engine, run
        from devlint.cli import main

        inspect = engine.inspect

        def deadly(raw, *rest):
            if b"deadly" in raw:
                os._exit(9)
            return inspect(raw, *rest)

        engine.inspect, run._SERIAL_BYTES, run._CHUNK_BYTES = deadly, 0, 1
        run._start_method = lambda: "fork"
        main(["check", "--jobs", "2", "--output-format", "concise"])
    """
    if sys.platform == "win32":
        pytest.skip("no fork")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "deadly.py: the process checking it died" in done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [f"m{number}.py" for number in range(4)]
