import os
from pathlib import Path
from typing import Any

import pytest

from devlint.config import DEFAULT_EXCLUDE, ConfigError, Configurations, Patterns, Selection, Settings

pytestmark = pytest.mark.usefixtures("toy_rules")

BUILT_IN = {"syntax-error", "unused-ignore", "internal-error"}


def settings(folder: Path, text: str, name: str = "devlint.toml", **options: Any) -> Settings:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return Configurations(options).for_folder(str(folder))


def error(folder: Path, text: str, name: str = "devlint.toml") -> str:
    with pytest.raises(ConfigError) as caught:
        settings(folder, text, name)
    return str(caught.value)


def rules(chosen: Settings, path: str = "a.py") -> set[str]:
    return set(chosen.enabled(path)) - BUILT_IN


# which rules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (Settings(), {"fatal-name", "poor-name"}),
        (Settings(select=("ALL",)), {"fatal-name", "poor-name", "trial-name", "tentative"}),
        (Settings(select=()), set()),
        (Settings(select=("performance",)), {"poor-name"}),
        (Settings(select=("trial-name",)), {"trial-name"}),
        (Settings(extend_select=("nursery",)), {"fatal-name", "poor-name", "trial-name", "tentative"}),
        (Settings(select=("poor-name", "tentative")), {"poor-name", "tentative"}),
        (Settings(extend_select=("nursery",), ignore=("tentative",)), {"fatal-name", "poor-name", "trial-name"}),
        (Settings(select=("performance",), extend_select=("trial-name",)), {"poor-name", "trial-name"}),
        (Settings(ignore=("performance",)), {"fatal-name"}),
        (Settings(ignore=("ALL",)), set()),
        (Settings(select=("ALL",), ignore=("poor-name",)), {"fatal-name", "trial-name", "tentative"}),
        (Settings(select=("poor-name",), ignore=("performance",)), {"poor-name"}),
        (Settings(select=("performance",), ignore=("ALL",)), {"poor-name"}),
        (Settings(select=("performance",), ignore=("performance",)), set()),
        (Settings(select=("ALL",), command_line=Selection(select=("nursery",))), {"trial-name", "tentative"}),
        (Settings(ignore=("nursery",), command_line=Selection(select=("trial-name",))), {"trial-name"}),
        (Settings(extend_select=("poor-name",), command_line=Selection(ignore=("performance",))), {"fatal-name"}),
        (
            Settings(ignore=("poor-name",), command_line=Selection(extend_select=("poor-name",))),
            {"fatal-name", "poor-name"},
        ),
    ],
)
def test_the_more_specific_name_wins_then_ignore_and_the_command_line_wins_over_all(
    chosen: Settings, expected: set[str]
) -> None:
    assert rules(chosen) == expected


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("tests/models/deep/down/in/a/tree/cases.py", True),
        ("tests_gpu/a.py", True),
        ("pkg/testing/a.py", True),
        ("pkg/test_loop.py", True),
        ("pkg/loop_test.py", True),
        ("conftest.py", True),
        ("test.py", False),  # the evaluation script of many a project
        ("contest/a.py", False),
        ("latest_/a.py", False),
    ],
)
def test_performance_rules_are_off_in_tests_unless_selected(project: Path, path: str, test: bool) -> None:
    root, file = str(project), str(project / path)
    quiet = {"fatal-name"} if test else {"fatal-name", "poor-name"}
    assert Settings(root=root).enabled(file) - BUILT_IN == quiet
    assert Settings(root=root, extend_select=("trial-name",)).enabled(file) - BUILT_IN == {*quiet, "trial-name"}
    assert "poor-name" in Settings(root=root, select=("poor-name",)).enabled(file)
    assert "poor-name" in Settings(root=root, command_line=Selection(extend_select=("performance",))).enabled(file)


def test_a_checkout_below_a_folder_called_tests_is_no_test(tmp_path: Path) -> None:
    root = tmp_path / "tests" / "a" / "project"
    assert "poor-name" in Settings(root=str(root)).enabled(str(root / "train.py"))


def test_the_current_folder_may_be_the_one_that_holds_the_tests(tmp_path: Path) -> None:
    root, file = tmp_path / "tests", str(tmp_path / "tests" / "model.py")
    assert "poor-name" not in Settings(root=str(root)).enabled(file)
    assert "poor-name" in Settings(root=str(root), file=str(root / "devlint.toml")).enabled(file)


def test_what_devlint_reports_without_a_rule_is_on_unless_ignored_by_name() -> None:
    assert Settings(select=("poor-name",)).enabled("a.py") >= BUILT_IN
    assert Settings(ignore=("ALL", "suspicious")).enabled("a.py") >= BUILT_IN
    assert "unused-ignore" not in Settings(ignore=("unused-ignore",)).enabled("a.py")


def test_per_file_ignores_hold_for_the_files_that_match(project: Path) -> None:
    chosen = settings(
        project, '[per-file-ignores]\n"tests/" = ["performance"]\n"*_old.py" = ["ALL"]\n"a/b.py" = ["fatal-name"]\n'
    )
    assert rules(chosen, "tests/deep/x.py") == {"fatal-name"}
    assert rules(chosen, "any/x_old.py") == set()
    assert rules(chosen, str(project / "a" / "b.py")) == {"poor-name"}
    assert rules(chosen, "c/a/b.py") == rules(chosen, "x.py") == {"fatal-name", "poor-name"}


def test_reasons_name_what_decided() -> None:
    chosen = Settings(ignore=("performance",), command_line=Selection(extend_select=("trial-name",)))
    reasons = chosen.reasons("a.py")
    assert reasons["poor-name"] == (False, "ignore performance")
    assert reasons["trial-name"] == (True, "extend-select trial-name")
    assert reasons["fatal-name"] == (True, "group correctness is on by default")


# which file ---------------------------------------------------------------------------------------------


def test_the_nearest_file_applies_alone(project: Path) -> None:
    settings(project, 'fail-on = "error"\njobs = 3\n')
    near = settings(project / "near", "[tool.devlint]\njobs = 5\n", "pyproject.toml")
    assert (near.jobs, near.fail_on, near.root) == (5, "warning", str(project / "near"))
    (project / "near" / "below").mkdir()
    assert Configurations().for_folder(str(project / "near" / "below")) == near


def test_a_pyproject_without_a_devlint_table_is_passed_over(project: Path) -> None:
    settings(project, "jobs = 3\n")
    assert settings(project / "sub", '[project]\nname = "devlint-user"\n', "pyproject.toml").jobs == 3


def test_devlint_toml_comes_before_pyproject(project: Path) -> None:
    settings(project, "[tool.devlint]\njobs = 2\n", "pyproject.toml")
    assert settings(project, "jobs = 3\n").jobs == 3


def test_without_any_file_the_defaults_hold(project: Path) -> None:
    chosen = Configurations().for_folder(str(project))
    assert chosen == Settings(root=str(project))
    assert chosen.exclude[0].globs == DEFAULT_EXCLUDE


def test_isolated_reads_no_file_not_even_a_broken_one(project: Path) -> None:
    (project / "devlint.toml").write_text("nonsense")
    assert Configurations(isolated=True).for_folder(str(project)).jobs is None


def test_a_file_that_is_named_applies_everywhere_with_patterns_from_the_current_folder(project: Path) -> None:
    settings(project / "sub", "jobs = 2\n")
    (project / "sub" / "other.toml").write_text('exclude = ["gen/*"]\n')
    chosen = Configurations(file="sub/other.toml").for_folder(str(project / "sub"))
    assert chosen.jobs is None
    assert chosen.exclude == (Patterns(str(project), ("gen/*",)),)


def test_options_override_the_file_and_extend_exclude_adds(project: Path) -> None:
    text = 'jobs = 2\nfail-on = "error"\nexclude = ["a"]\nextend-exclude = ["b"]\n'
    options: dict[str, Any] = {"fail-on": "warning", "extend-exclude": ["c"]}
    chosen = settings(project, text, **options)
    assert (chosen.jobs, chosen.fail_on) == (2, "warning")
    assert [p.globs for p in chosen.exclude] == [("a",)]
    assert [p.globs for p in chosen.extend_exclude] == [("b",), ("c",)]
    assert chosen.origins == {
        "jobs": "devlint.toml:1",
        "fail-on": "--fail-on",
        "exclude": "devlint.toml:3",
        "extend-exclude": "--extend-exclude",
    }


def test_the_cache_folder_is_relative_to_the_file_that_names_it(project: Path) -> None:
    assert settings(project / "sub", 'cache-dir = "c"\n').cache_dir == os.path.join(project, "sub", "c")
    option = {"cache-dir": "c"}
    assert settings(project / "sub", "", **option).cache_dir == os.path.join(project, "c")


# errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jobs = 1\nselct = []\n", "devlint.toml:2: unknown key `selct`; did you mean `select`?"),
        ("[nonsense]\na = 1\n", "devlint.toml:1: unknown key `nonsense`"),
        (
            'select = [\n  "ALL",\n  "poor-nam",\n]\n',
            "devlint.toml:3: `select`: no rule or group is called `poor-nam`; did you mean `poor-name`?",
        ),
        ('ignore = ["all"]\n', "devlint.toml:1: `ignore`: no rule or group is called `all`; did you mean `ALL`?"),
        ('select = "ALL"\n', 'devlint.toml:1: `select` must be a list of strings, not "ALL"'),
        ("select = [1]\n", "devlint.toml:1: `select` must be a list of strings, not a list holding 1"),
        ("\nunsafe-fixes = 1\n", "devlint.toml:2: `unsafe-fixes` must be true or false, not 1"),
        ('fail-on = "eror"\n', 'must be one of error, warning, not "eror"; did you mean `error`?'),
        ("fail-on = true\n", "must be one of error, warning, not true"),
        ('output-format = "sarf"\n', "did you mean `sarif`?"),
        ("jobs = 0\n", "devlint.toml:1: `jobs` must be a whole number from 1, not 0"),
        ("jobs = true\n", "devlint.toml:1: `jobs` must be a whole number from 1, not true"),
        ("cache-dir = {}\n", "devlint.toml:1: `cache-dir` must be a path, not a table"),
        ('exclude = ["!a"]\n', "devlint.toml:1: `exclude`: `!a` negates"),
        ("per-file-ignores = []\n", "devlint.toml:1: `per-file-ignores` must be a table"),
        (
            '[per-file-ignores]\n"a.py" = ["ALL"]\n"b.py" = ["poor"]\n',
            "devlint.toml:3: `per-file-ignores`: no rule or group is called `poor`; did you mean `poor-name`?",
        ),
        (
            '[per-file-ignores]\n"a.py" = ["ALL"]\n"b.py" = "ALL"\n',
            'devlint.toml:3: `per-file-ignores`: `b.py` must be a list of rules, not "ALL"',
        ),
        ("exclude = ['[z-a]']\n", "devlint.toml:1: `exclude`: `[z-a]` is not a pattern: bad character range"),
        ("exclude = ['a\\']\n", "devlint.toml:1: `exclude`: `a\\` is not a pattern: Invalid git pattern"),
        ('exclude = [""]\n', "devlint.toml:1: `exclude`: a pattern is empty"),
        ("[tool.devlint]\njobs = 1\n", "devlint.toml:1: the keys stand at the top of a file of devlint's own"),
        ("jobs = \n", "devlint.toml:1:8: is not TOML: "),
        ("jobs = 1\njobs = 2\n", "devlint.toml:2:"),
    ],
)
def test_an_error_names_the_line_and_the_way_out(project: Path, text: str, expected: str) -> None:
    assert expected in error(project, text)


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("[tool.devlint]\nselct = 1\n", 2),
        ("\ntool.devlint.selct = 1\n", 2),
        ("[tool]\ndevlint.selct = 1\n", 2),
        ("[tool]\n\ndevlint = { jobs = 1, selct = 2 }\n", 3),
        ("[tool.devlint.selct]\na = 1\n", 1),
        ("[tool]\ndevlint = 3\n", 2),
        ("\n[[tool.devlint]]\n", 2),
    ],
)
def test_an_error_in_pyproject_names_the_line_however_the_table_is_written(project: Path, text: str, row: int) -> None:
    assert error(project, text, "pyproject.toml").startswith(f"pyproject.toml:{row}: ")


def test_a_byte_order_mark_does_no_harm(project: Path) -> None:
    assert settings(project, "\ufeffjobs = 3\n").jobs == 3


@pytest.mark.parametrize("glob", ["./tests", "/tests", "{folder}/tests", "tests/"])
def test_a_pattern_may_be_a_path_as_a_shell_completes_it(project: Path, glob: str) -> None:
    chosen = settings(project, f"exclude = ['{glob.format(folder=project)}']")
    rest = Settings(root=str(project), per_file_ignores=((chosen.exclude[0], ("ALL",)),))
    assert (rules(rest, "tests/a.py"), rules(rest, "src/a.py")) == (set(), {"fatal-name", "poor-name"})


def test_a_key_of_the_same_name_in_another_table_is_not_mistaken_for_it(project: Path) -> None:
    text = '[tool.other]\nselect = ["x"]\n\n[tool.devlint]\nselect = ["x"]\n'
    assert error(project, text, "pyproject.toml").startswith("pyproject.toml:5: ")


def test_bytes_that_are_not_text_are_an_error_with_a_line(project: Path) -> None:
    (project / "devlint.toml").write_bytes(b"jobs = 1\n# \xff\n")
    with pytest.raises(ConfigError, match=r"^devlint\.toml:2: is not UTF-8"):
        Configurations().for_folder(str(project))


def test_an_option_that_cannot_be_used_is_named_as_typed(project: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^--select: no rule or group is called `poor_name`; did you mean `poor-name`"
    ):
        Configurations({"select": ["poor_name"]})


def test_a_named_file_must_exist_and_hold_settings(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        Configurations(file="none.toml")
    (project / "pyproject.toml").write_text("")
    with pytest.raises(ConfigError, match=r"pyproject\.toml: has no table \[tool\.devlint\]"):
        Configurations(file="pyproject.toml")
