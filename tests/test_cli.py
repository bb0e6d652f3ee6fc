import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from devlint import __version__, config, docs, engine, fix, report, rule
from devlint.cli import check as check_command
from devlint.cli import main
from devlint.config import KEYS

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals work otherwise there")


def devlint(*args: str, stdin: bytes | str | None = None, color: bool = False) -> Result:
    result = CliRunner().invoke(main, args, input=stdin, color=color)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def check(*args: str, stdin: bytes | str | None = None) -> Result:
    return devlint("check", *args, stdin=stdin)


def rows(result: Result) -> list[tuple[str, str]]:
    return [(item["filename"], item["rule"]) for item in json.loads(result.stdout)]


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(f"import torch\n{text}\n")


@pytest.fixture
def toys(project: Path, toy_rules: None) -> Path:
    """A project with one finding of each kind: an error, a safe fix, an unsafe fix."""
    write(project, a="fatal", b="poor", c="poorer", d="fine")
    return project


# what is checked and how it ends ------------------------------------------------------------------------


def test_findings_give_1_and_a_clean_tree_0(toys: Path) -> None:
    result = check("--output-format", "json")
    assert (result.exit_code, result.stderr) == (1, "")
    assert rows(result) == [("a.py", "fatal-name"), ("b.py", "poor-name"), ("c.py", "poor-name")]
    assert check("d.py").exit_code == 0


def test_a_failure_gives_2_and_the_others_are_checked(toys: Path) -> None:
    result = check("--output-format", "json", "nope", "a.py")
    assert (result.exit_code, rows(result)) == (2, [("a.py", "fatal-name")])
    assert result.stderr.startswith("error: nope: no such file or folder")


def test_an_exception_that_nobody_expected_is_shown_and_gives_2(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devlint.files.find", lambda *_, **__: 1 / 0)
    result = check()
    assert result.exit_code == 2
    assert "ZeroDivisionError" in result.stderr
    assert "error: this is a fault of devlint's own; please report it" in result.stderr


@posix
def test_what_is_neither_a_file_nor_a_folder_is_not_waited_for(toys: Path) -> None:
    os.mkfifo("pipe.py")
    result = check("pipe.py")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        2,
        "error: pipe.py: is neither a file nor a folder; `-` reads stdin",
    )
    assert check("d.py", ".").exit_code == 1


def test_a_failure_of_devlint_itself_gives_2(toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devlint.flow.Flow.__init__", lambda *_: 1 / 0)
    result = check("--output-format", "json", "--no-cache", "d.py")
    assert (result.exit_code, rows(result)) == (2, [("d.py", "internal-error")])


def test_a_tree_without_python_files_is_said_to_be_so(project: Path) -> None:
    result = check()
    assert (result.exit_code, result.stderr) == (0, "no Python files to check under .\n")
    assert check("-q").stderr == ""


def test_a_file_that_does_not_parse_is_an_ordinary_finding(project: Path) -> None:
    write(project, bad="x = (")
    command = ["check", "--output-format", "json", "--no-cache", "--isolated", "--select", "ALL", str(project)]
    result = devlint(*command)
    assert (result.exit_code, rows(result)) == (1, [(str(project / "bad.py"), "syntax-error")])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_in_utf16_is_no_clean_file(project: Path, encoding: str) -> None:
    (project / "bad.py").write_bytes("import torch\n".encode(encoding))
    assert rows(check("--output-format", "json")) == [("bad.py", "syntax-error")]


def test_rules_are_selected_by_name_group_and_all(toys: Path) -> None:
    def chosen(*args: str) -> set[str]:
        return {rule for _, rule in rows(check("--output-format", "json", *args))}

    write(toys, e="trial")
    assert chosen("--select", "correctness,trial-name") == {"fatal-name", "trial-name"}
    assert chosen("--select", "correctness", "--select", "trial-name") == {"fatal-name", "trial-name"}
    assert chosen("--select", "ALL", "--ignore", "performance") == {"fatal-name", "trial-name"}
    assert chosen("--extend-select", "nursery") == {"fatal-name", "poor-name", "trial-name"}
    assert chosen("--per-file-ignores", "?.py:performance,fatal-name") == set()


def test_files_are_left_out(toys: Path) -> None:
    assert rows(check("--output-format", "json", "--exclude", "a.py,b.py")) == [("c.py", "poor-name")]
    assert len(rows(check("--output-format", "json", "--extend-exclude", "/a.py"))) == 2
    assert len(rows(check("--output-format", "json", "--exclude", "a.py", "a.py"))) == 1
    assert rows(check("--output-format", "json", "--exclude", "a.py", "--force-exclude", "a.py")) == []
    (toys / ".gitignore").write_text("*.py\n")
    assert rows(check("--output-format", "json")) == []
    assert len(rows(check("--output-format", "json", "--no-respect-gitignore"))) == 3


def test_the_level_that_fails_can_be_chosen(toys: Path) -> None:
    assert check("--fail-on", "error", "b.py").exit_code == 0
    assert check("--fail-on", "error", "a.py").exit_code == 1
    assert check("--fail-on", "warning", "b.py").exit_code == 1
    (toys / "devlint.toml").write_text('fail-on = "error"')
    assert check("b.py").exit_code == 0
    assert check("--fail-on", "warning", "b.py").exit_code == 1


def test_exit_zero_hides_findings_but_not_failures(toys: Path) -> None:
    assert check("--exit-zero").exit_code == 0
    assert check("--exit-zero", "a.py", "nope").exit_code == 2


def test_settings_come_from_the_file_unless_isolated_or_another_is_named(toys: Path) -> None:
    (toys / "pyproject.toml").write_text('[tool.devlint]\nselect = ["correctness"]\noutput-format = "json"\n')
    (toys / "other.toml").write_text('select = ["performance"]\n')
    assert rows(check()) == [("a.py", "fatal-name")]
    assert len(rows(check("--isolated", "--output-format", "json"))) == 3
    assert len(rows(check("--config", "other.toml", "--output-format", "json"))) == 2
    assert check("--config", "other.toml", "--isolated").exit_code == 2


def test_an_error_in_the_settings_names_the_place_and_gives_2(toys: Path) -> None:
    (toys / "devlint.toml").write_text("jobs = 1\nselct = []\n")
    result = check()
    assert result.exit_code == 2
    assert "devlint.toml:2: unknown key `selct`; did you mean `select`?" in result.stderr
    assert result.stderr.count("selct`;") == 1


@pytest.mark.parametrize("name", [*KEYS])
def test_every_key_of_the_settings_is_an_option(name: str) -> None:
    assert any(f"--{name}" in option.opts for option in check_command.params if isinstance(option, click.Option))


# unknown names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["chek"], "no command `chek`; did you mean `check`?"),
        (["d.py"], "no command `d.py`; did you mean `devlint check d.py`?"),
        (["check", "--slect", "ALL"], "--select"),
        (["check", "--select", "poor-nam"], "no rule or group is called `poor-nam`; did you mean `poor-name`?"),
        (["check", "--ignore", "perfomance"], "did you mean `performance`?"),
        (["check", "--output-format", "jsn"], "did you mean `json`?"),
        (["check", "--fail-on", "warn"], "did you mean `warning`?"),
        (["check", "--jobs", "0"], "--jobs"),
        (["check", "--per-file-ignores", "a.py"], "is not PATTERN:RULE,RULE"),
        (["explain", "poor_nam"], "no rule is called `poor_nam`; did you mean `poor-name`?"),
        (["explain", "performance"], "`performance` is a group; `devlint rules` lists the rules in it"),
        (["explain"], "give one rule, or --all"),
        (["check", "--select", ""], "it is empty"),
        (["check", "--stdin-filename", "x.py", "a.py"], "give `-` instead of other paths"),
        (["clean", "nope"], "nope: no such folder"),
        (["rules", "--format", "jsno"], "did you mean `json`?"),
        (["check", "-", "a.py"], "cannot be combined"),
        (["check", "--fix", "--add-ignores"], "contradict"),
    ],
)
def test_what_is_not_understood_gives_2_and_a_way_out(toys: Path, args: list[str], expected: str) -> None:
    result = devlint(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in result.stderr


# output -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output_format", report.FORMATS)
def test_every_format_goes_to_stdout_and_to_a_file_alike(project: Path, output_format: str) -> None:
    write(project, bad="x = (")
    direct = check("--output-format", output_format)
    to_file = check("--output-format", output_format, "--output-file", "out.txt")
    assert direct.exit_code == to_file.exit_code == 1
    assert direct.stdout
    assert to_file.stdout == ""
    assert (project / "out.txt").read_text() == direct.stdout


def test_an_output_file_that_cannot_be_written_gives_2(toys: Path) -> None:
    result = check("--output-file", "no/such/folder")
    assert result.exit_code == 2
    assert "no/such/folder: cannot be written" in result.stderr


def test_text_shows_the_code_and_what_can_be_fixed(toys: Path) -> None:
    result = check("b.py", "c.py")
    assert "1 | import torch\n2 | poor\n  | ^^^^" in result.stdout
    assert "1 fixable with `--fix`, 1 more with `--unsafe-fixes`" in result.stdout


def test_concise_says_on_stderr_what_can_be_fixed(toys: Path) -> None:
    result = check("--output-format", "concise")
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr == "1 fixable with `--fix`, 1 more with `--unsafe-fixes`.\n"
    assert check("--output-format", "concise", "c.py").stderr == "1 fixable with `--fix --unsafe-fixes`.\n"
    assert check("--output-format", "concise", "-q").stderr == ""


def test_where_unsafe_fixes_are_taken_into_account_they_count_as_fixable(toys: Path) -> None:
    (toys / "devlint.toml").write_text("unsafe-fixes = true")
    result = check("--output-format", "concise", "b.py", "c.py")
    assert [line.endswith(" [*]") for line in result.stdout.splitlines()] == [True, True]
    assert result.stderr == "2 fixable with `--fix`.\n"
    assert check("b.py", "c.py").stdout.endswith("2 fixable with `--fix`.\n")


def test_quiet_text_is_findings_alone(toys: Path) -> None:
    assert check("-q", "d.py").stdout == ""
    found = check("-q", "a.py", "b.py").stdout
    assert check("a.py", "b.py").stdout.startswith(found + "\nFound 1 error and 1 warning")


HELD = "2 tentative findings held back; `--extend-select tentative` shows them.\n"


def test_what_is_held_back_is_counted_and_its_option_named(toys: Path) -> None:
    write(toys, e="perhaps_fatal", f="perhaps_fatal\nperhaps_trial  # of a rule that is off")
    for _ in range(2):  # checked, and from the cache
        assert check("e.py", "f.py").stdout == "All clear: 2 files checked.\n" + HELD
    assert check("--no-cache", "--output-format", "concise", "e.py", "f.py").stderr == HELD
    assert check("b.py", "e.py", "f.py").stdout.endswith("1 fixable with `--fix`.\n" + HELD)
    assert check("--fix", "b.py", "e.py", "f.py").stdout == "Fixed 1 fault. All clear: 3 files checked.\n" + HELD
    assert "held back" not in check("--extend-select", "tentative", "e.py", "f.py").stdout


def test_what_somebody_does_not_want_is_not_offered(toys: Path) -> None:
    write(toys, e="perhaps_fatal", f="perhaps_fatal")
    for args in (["--ignore", "tentative"], ["--ignore", "nursery"], ["-q"], ["--output-format", "json"]):
        assert "held back" not in check(*args, "e.py", "f.py").output
    (toys / "devlint.toml").write_text('[per-file-ignores]\n"e.py" = ["tentative"]\n')
    assert check("e.py", "f.py").stdout.endswith(
        "1 tentative finding held back; `--extend-select tentative` shows it.\n"
    )


def test_what_a_comment_silences_is_not_offered(toys: Path) -> None:
    write(toys, e="poor; perhaps_fatal  # devlint: ignore[fatal-name]")
    assert check("--fix", "e.py").stdout == "Fixed 1 fault. All clear: 1 file checked.\n"


def test_nothing_is_all_clear_where_nothing_could_be_checked(toys: Path) -> None:
    assert check("nope.py").stdout == "Nothing was checked.\n"


def test_what_cannot_be_decoded_is_shown_all_the_same(project: Path) -> None:
    (project / "a.py").write_bytes(b"import torch\nx = '\xe9'\n")
    assert "2 | x = '\ufffd'\n  |      ^" in check("a.py").stdout


def test_statistics_count_by_rule(toys: Path) -> None:
    result = check("--statistics")
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [["2", "poor-name"], ["1", "fatal-name"]]
    assert result.exit_code == 1


def test_verbose_and_timing_go_to_stderr(toys: Path) -> None:
    (toys / "devlint.toml").touch()
    result = check("--verbose", "--timing", "--output-format", "json")
    assert len(rows(result)) == 3
    assert f"settings: {toys / 'devlint.toml'}" in result.stderr
    assert "files: 4, 0 from the cache" in result.stderr
    assert "rule poor-name" in result.stderr
    assert "find files" in result.stderr
    assert "files: 4, 4 from the cache" in check("--verbose").stderr


def test_timing_lists_the_worst_first(toys: Path) -> None:
    lines = check("--timing", "--no-cache").stderr.splitlines()
    for block in "\n".join(lines).split("\n\n"):
        seconds = [float(line.split()[0]) for line in block.splitlines()[1:]]
        assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize(
    ("args", "environment", "colored"),
    [
        ([], {}, False),
        (["--color", "always"], {}, True),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colours(
    toys: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], environment: dict[str, str], colored: bool
) -> None:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    result = check(*args, "a.py", "nope")
    assert ("\x1b[" in result.stdout) == colored
    assert ("\x1b[" in result.stderr) == colored


@posix
def test_colours_appear_on_a_terminal(project: Path) -> None:
    import pty

    write(project, bad="x = (")
    outside, inside = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "devlint", "check"], stdout=inside, stderr=inside, env={**environment, "TERM": "xterm"}
    )
    os.close(inside)
    output = b""
    while True:
        try:
            piece = os.read(outside, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not piece:
            break
        output += piece
    os.close(outside)
    assert process.wait(30) == 1
    assert b"\x1b[" in output


def test_names_that_are_not_utf8_can_be_reported(project: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("other systems do not allow such names")
    Path(os.fsdecode(b"n\xff.py")).write_text("import torch\nx = (\n")
    result = check("--output-format", "json")
    assert (result.exit_code, rows(result)) == (1, [("n\\xff.py", "syntax-error")])
    assert "2 | x = (" in check().stdout


# fixing -------------------------------------------------------------------------------------------------


def text(path: Path) -> str:
    return path.read_text().removeprefix("import torch\n").rstrip("\n")


def test_fix_writes_safe_fixes_and_reports_the_rest(toys: Path) -> None:
    result = check("--fix", "--output-format", "json")
    assert (result.exit_code, rows(result)) == (1, [("a.py", "fatal-name"), ("c.py", "poor-name")])
    assert (text(toys / "b.py"), text(toys / "c.py")) == ("good", "poorer")
    assert result.stderr == "Fixed 1 fault in 1 file.\n"
    assert "Fixed 1 fault" in devlint("check", "--fix", "--unsafe-fixes", "c.py").stdout
    assert text(toys / "c.py") == "good"


def test_unsafe_fixes_alone_write_nothing(toys: Path) -> None:
    assert check("--unsafe-fixes").exit_code == 1
    assert (text(toys / "b.py"), text(toys / "c.py")) == ("poor", "poorer")


def test_diff_prints_writes_nothing_and_gives_1(toys: Path) -> None:
    result = check("--diff", "--unsafe-fixes")
    assert result.exit_code == 1
    assert "--- a/b.py\n+++ b/b.py\n@@ -1,2 +1,2 @@\n import torch\n-poor\n+good\n" in result.stdout
    assert "+++ b/c.py" in result.stdout
    assert result.stderr == "Would fix 2 faults in 2 files.\n"
    assert text(toys / "b.py") == "poor"
    nothing = check("--diff", "a.py", "d.py")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "")


def test_a_diff_has_colours_where_a_report_would(toys: Path) -> None:
    plain, colored = check("--diff", "b.py").stdout, check("--diff", "--color", "always", "b.py").stdout
    assert "\x1b[31m-poor\x1b[0m\n\x1b[32m+good\x1b[0m\n" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


def test_fix_only_reports_nothing_that_is_left(toys: Path) -> None:
    result = check("--fix-only")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "Fixed 1 fault in 1 file.\n")
    assert text(toys / "b.py") == "good"


def test_a_fix_can_be_made_to_fail(toys: Path) -> None:
    assert check("--fix", "b.py").exit_code == 0
    write(toys, b="poor")
    assert check("--fix", "--exit-non-zero-on-fix", "b.py").exit_code == 1
    assert check("--fix", "--exit-non-zero-on-fix", "b.py").exit_code == 0
    write(toys, b="poor")
    assert check("--fix-only", "--exit-non-zero-on-fix", "b.py").exit_code == 1


def test_show_fixes_lists_what_was_done(toys: Path) -> None:
    result = check("--fix", "--show-fixes", "b.py")
    assert result.stderr == "Fixed 1 fault:\n  b.py:\n    1 x poor-name: call it `good`\n"
    assert check("--show-fixes", "c.py").stderr == ""
    listed = check("--diff", "--show-fixes", "--unsafe-fixes", "c.py").stderr
    assert listed == "Would fix 1 fault:\n  c.py:\n    1 x poor-name: call it `good`\n"
    assert check("--fix", "--show-fixes", "b.py").stderr == "Fixed 0 faults.\n"


def test_a_fix_that_is_refused_is_told(toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = fix.Fixed(b"import torch\npoor\n", (), (), ("the fix of `poor-name` was left out",))
    monkeypatch.setattr(fix, "fix", lambda *_, **__: fixed)
    assert check("--fix", "b.py").stderr == "warning: b.py: the fix of `poor-name` was left out\n"


def test_ignore_comments_are_added(toys: Path) -> None:
    result = check("--add-ignores")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "Added ignore comments to 3 files.\n")
    assert text(toys / "a.py") == "fatal  # devlint: ignore[fatal-name]"
    assert check().exit_code == 0


def test_where_no_ignore_comment_can_be_added_that_is_said(toys: Path) -> None:
    write(toys, bad="x = (")
    result = check("--add-ignores", "bad.py", "a.py")
    assert (result.exit_code, text(toys / "bad.py")) == (2, "x = (")
    assert "error: bad.py:2:5: no ignore comment can be added: '(' was never closed" in result.stderr
    assert text(toys / "a.py").endswith("ignore[fatal-name]")


# stdin --------------------------------------------------------------------------------------------------


def test_stdin_is_checked_under_the_name_given(toys: Path) -> None:
    (toys / "devlint.toml").write_text('[per-file-ignores]\n"tests/" = ["correctness"]\n')
    source = "import torch\nfatal\n"
    result = check("--output-format", "json", "--stdin-filename", "x.py", "-", stdin=source)
    assert (result.exit_code, rows(result)) == (1, [("x.py", "fatal-name")])
    assert check("--stdin-filename", "tests/x.py", "-", stdin=source).exit_code == 0
    assert "2 | fatal" in check("-", stdin=source).stdout
    assert rows(check("--output-format", "json", "--stdin-filename", "x.py", stdin=source)) == [("x.py", "fatal-name")]


def test_fixing_stdin_gives_the_new_text_on_stdout_and_the_rest_on_stderr(toys: Path) -> None:
    result = check("--fix", "-", stdin=b"import torch\r\npoor = poorer\r\n")
    assert (result.exit_code, result.stdout_bytes) == (1, b"import torch\r\ngood = poorer\r\n")
    assert "poor-name" in result.stderr
    assert check("--fix", "-", stdin=b"x = \xff").stdout_bytes == b"x = \xff"
    diff = check("--diff", "-", stdin="import torch\npoor\n")
    assert diff.exit_code == 1
    assert "-poor\n+good\n" in diff.stdout


def test_excluded_stdin_passes_through_unchanged(toys: Path) -> None:
    args = ["--force-exclude", "--exclude", "gen", "--stdin-filename", "gen/x.py", "-"]
    source = "import torch\npoor\n"
    assert (check(*args, stdin=source).exit_code, check(*args, stdin=source).stdout) == (0, "")
    assert check("--fix", *args, stdin=source).stdout == source


# the cache ----------------------------------------------------------------------------------------------


def test_the_cache_lies_where_it_is_told_and_clean_removes_it(toys: Path) -> None:
    check()
    check("--cache-dir", "elsewhere")
    (toys / "sub").mkdir()
    (toys / "sub" / "devlint.toml").touch()
    write(toys / "sub", a="x")
    check("sub")
    result = devlint("clean", "--cache-dir", "elsewhere")
    assert result.exit_code == 0
    assert result.stderr.count("removed ") == 3
    assert not any(path.is_dir() and "cache" in path.name for path in toys.rglob("*"))
    assert not (toys / "elsewhere").exists()
    assert (devlint("clean").exit_code, devlint("clean").stderr) == (0, "")


def test_clean_removes_the_folder_that_is_configured(toys: Path) -> None:
    (toys / "devlint.toml").write_text('cache-dir = "kept/here"')
    check()
    assert (toys / "kept" / "here").is_dir()
    devlint("clean")
    assert not (toys / "kept" / "here").exists()


def test_no_cache_writes_none(toys: Path) -> None:
    check("--no-cache")
    assert not (toys / ".devlint_cache").exists()


# the other commands -------------------------------------------------------------------------------------


def test_config_says_what_is_in_force_and_why(toys: Path) -> None:
    (toys / "devlint.toml").write_text('jobs = 3\n\nignore = ["performance"]\n')
    output = devlint("config", "a.py", "--select", "ALL", "--extend-exclude", "gen").stdout
    assert "Settings for a.py: devlint.toml" in output
    assert "jobs = 3  # devlint.toml:1\n" in output
    assert 'ignore = ["performance"]  # devlint.toml:3\n' in output
    assert 'select = ["ALL"]  # --select\n' in output
    assert 'extend-exclude = ["gen"]  # --extend-exclude\n' in output
    assert 'fail-on = "warning"  # default\n' in output
    assert [line.split(None, 1) for line in output.splitlines() if "-name " in line] == [
        ["fatal-name", "select ALL"],
        ["poor-name", "select ALL"],
        ["trial-name", "select ALL"],
    ]
    assert "poor-name" in devlint("config").stdout.split("Off (")[1]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("build/x.py", "`build` in exclude"),
        ("gen/x.py", "`gen` in extend-exclude"),
        ("out/deep/x.py", "git ignores {}/out"),
        ("a.py", None),
    ],
)
def test_config_says_why_a_file_would_be_left_out(project: Path, path: str, reason: str | None) -> None:
    (project / ".git").mkdir()
    (project / ".gitignore").write_text("out\n")
    (project / "devlint.toml").write_text('extend-exclude = ["gen"]')
    second = devlint("config", path).stdout.splitlines()[1]
    expected = f"Left out, unless named on the command line: {reason.format(project)}" if reason else ""
    assert second == expected


def test_config_with_an_error_gives_2(toys: Path) -> None:
    (toys / "devlint.toml").write_text("jobs = 0\n")
    result = devlint("config")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "devlint.toml:1: `jobs`" in result.stderr


def test_explain_and_rules_print_the_documentation(project: Path) -> None:
    assert "unused-ignore" in devlint("rules").stdout
    assert {item["name"] for item in json.loads(devlint("rules", "--format", "json").stdout)} >= set(engine.BUILT_IN)
    assert "syntax-error" in devlint("explain", "syntax-error").stdout
    assert json.loads(devlint("explain", "syntax-error", "--format", "json").stdout)["name"] == "syntax-error"
    assert len(json.loads(devlint("explain", "--all", "--format", "json").stdout)) >= 3
    assert devlint("explain", "--all", "--format", "markdown").stdout.startswith("# ")


@pytest.mark.parametrize(
    "args", [["check", "a.py"], ["check", "--select", "ALL"], ["rules"], ["config"], ["explain", "x"]]
)
def test_an_installation_without_rules_is_said_to_be_so(
    project: Path, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    def missing() -> None:
        raise rule.RuleError("devlint is not installed here")

    write(project, a="x = 1")
    monkeypatch.setattr(rule, "rule_files", missing)
    for cached in (rule.discover, docs.rules, config.selectable, config._enabled):
        cached.cache_clear()
    result = devlint(*args)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "error: devlint is not installed here\n")


def test_version_and_help() -> None:
    assert devlint("--version").stdout == f"devlint {__version__}\n"
    for command in ("check", "config", "explain"):
        assert "Examples:" in devlint(command, "--help").stdout
    assert "Examples:" in devlint("-h").stdout


# processes ----------------------------------------------------------------------------------------------

_FRESH = """
    import sys
    from devlint.cli import main
    try:
        main(["check", "--quiet", *sys.argv[1:]])
    finally:
        print(*sorted(sys.modules), file=sys.stderr)
"""


def modules(*args: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_FRESH), *args], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return set(done.stderr.split())


def test_a_warm_run_imports_nothing_that_is_slow(project: Path) -> None:
    write(project, a="x = 1", bad="x = (")
    modules()
    for args in ([], ["--output-format", "concise"], ["--fix"]):
        loaded = modules(*args)
        slow = {"libcst", "rich", "multiprocessing", "concurrent.futures", "jsonschema", "pathspec", "torch"}
        assert not loaded & slow
        assert not [name for name in loaded if name.startswith("devlint.rules.")]


def test_a_changed_file_that_names_no_torch_is_asked_without_libcst(project: Path) -> None:
    (project / "names.py").write_text('device = "cpu"\n')
    (project / "uses.py").write_text("import torch\nfrom names import device\nx = torch.ones(1, device=device)\n")
    assert "libcst" in modules()
    (project / "names.py").write_text("from where import device\n")
    assert "libcst" in modules()  # the name leads elsewhere
    (project / "names.py").write_text("from where import device  # as before\n# and a comment\n")
    assert "libcst" not in modules()


@posix
def test_a_closed_pipe_is_no_traceback(project: Path) -> None:
    (project / "bad.py").write_text("import torch\n" + "# devlint: ignore[nonsense]\n" * 1000)
    process = subprocess.Popen(
        [sys.executable, "-m", "devlint", "check"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 1


@posix
@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">&-", 1, ""),
        ("2>&-", 1, ""),
        ("<&-", 1, ""),
        ("- <&-", 2, "error: stdin is closed, so there is nothing to check\n"),
        pytest.param(
            ">/dev/full",
            2,
            "error: the output cannot be written: No space left on device\n",
            marks=pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device"),
        ),
    ],
)
def test_streams_that_are_closed_or_full_are_no_traceback(
    project: Path, redirection: str, code: int, said: str
) -> None:
    (project / "bad.py").write_text("import torch\nx = (\n")
    command = f"'{sys.executable}' -m devlint check {redirection}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, said)


@posix
def test_a_pipe_closed_before_anything_is_read_changes_no_exit_code(project: Path) -> None:
    command = [sys.executable, "-m", "devlint", "rules"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == (b"", 0)


@posix
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_at_once_leaves_no_worker_and_gives_130(project: Path, jobs: str) -> None:
    for number in range(8):
        write(project, **{f"m{number}": "x = 1"})
    script = """
        import os, signal, sys, time
        from devlint import engine, run
        from devlint.cli import main

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

        def slow(*_):
            os.write(1, b"%d\\n" % os.getpid())
            time.sleep(600)

        engine.inspect, run._SERIAL_BYTES = slow, 0
        run._start_method = lambda: "fork"
        main(["check", "--jobs", sys.argv[1]])
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), jobs],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    worker = int(process.stdout.readline())
    os.killpg(process.pid, signal.SIGINT)
    said = process.stderr.read()
    assert process.wait(30) == 130
    assert said.strip() == b"interrupted; what had been written is whole"  # click ends the line that shows ^C
    for _ in range(100):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("a worker lives on")


@posix
def test_a_long_run_shows_a_bar_on_a_terminal_only(project: Path) -> None:
    import pty

    write(project, a="x = 1")
    script = """
        from devlint import cli
        cli._LONG_RUN_BYTES = 0
        cli.main(["check"])
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    assert b"checking" not in subprocess.run(command, capture_output=True, check=True).stderr
    (project / "a.py").write_text("import torch\ny = 1\n")
    outside, inside = pty.openpty()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=inside, check=True)
    os.close(inside)
    assert b"checking" in os.read(outside, 65536)
    os.close(outside)
    assert done.stdout == b"All clear: 1 file checked.\n"
