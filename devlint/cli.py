"""The command line: options to settings, settings to a run, its outcome to text and an exit code.

Findings go to stdout, everything else to stderr. Exit codes: 0 nothing to report, 1 findings,
2 something could not be done, 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from devlint import __version__
from devlint.config import ConfigError, Configurations, Settings, suggestion
from devlint.finding import GROUPS

if TYPE_CHECKING:
    from devlint.files import File
    from devlint.finding import Finding
    from devlint.profile import Profile
    from devlint.run import Outcome, Plan

CLEAN, FINDINGS, FAILURE, INTERRUPTED = 0, 1, 2, 130

# Columns and lines of a log.
_NO_TERMINAL = (120, 24)

# How stdout and stderr treat what they cannot encode, as Python set them up: a program that is run has them so.
_ERRORS: dict[str, str] = {}

# Imaginary devices; torch's own index of a device has no more.
_MOST_DEVICES = 128

# A run shorter than about three seconds shows no progress bar.
_LONG_RUN_BYTES = 1_500_000


class Failure(click.ClickException):
    """Something that ends the run; shown on stderr, exit code 2."""

    exit_code = FAILURE

    def show(self, file: Any = None) -> None:
        _tell(f"error: {self.message}", "red")


class Main(click.Group):
    """The group of commands, with devlint's exit codes and habits at its edge."""

    def main(self, *args: Any, **extra: Any) -> Any:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed by whoever started this
                setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  for as long as the process lives
            stream = getattr(sys, name)
            if hasattr(stream, "reconfigure"):
                _ERRORS.setdefault(name, stream.errors)
                stream.reconfigure(errors="backslashreplace")  # a path may hold what the terminal cannot show
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except (KeyboardInterrupt, click.Abort):
            _tell("interrupted; what had been written is whole", "yellow")
            code = INTERRUPTED
        except BrokenPipeError:
            code = CLEAN
        except Exception as error:
            from devlint.rule import RuleError  # seldom needed

            if isinstance(error, RuleError):
                Failure(str(error)).show()
            else:
                import traceback

                traceback.print_exc()
                Failure("this is a fault of devlint's own; please report it with the lines above").show()
            code = FAILURE
        sys.exit(code if isinstance(code, int) else CLEAN)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            hint = suggestion(args[0], self.commands)
            if not hint and os.path.exists(args[0]):
                hint = f"; did you mean `devlint check {args[0]}`?"
            raise click.UsageError(f"no command `{args[0]}`{hint}", ctx)
        return super().resolve_command(ctx, args)


class OneOf(click.Choice):
    """A choice whose error suggests the nearest value."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value not in self.choices:
            listed = ", ".join(str(choice) for choice in self.choices)
            near = suggestion(value, [str(choice) for choice in self.choices])
            self.fail(f"`{value}` is none of {listed}{near}", param, ctx)
        return super().convert(value, param, ctx)


class Format(click.ParamType):
    """An output format. Its names are looked up when one is given, not at every start."""

    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from devlint.report import FORMATS

        return OneOf(FORMATS).convert(value, param, ctx)


class RunFormat(click.ParamType):
    """The same for reports of `devlint run`."""

    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from devlint.runtime.report import FORMATS

        return OneOf(FORMATS).convert(value, param, ctx)


class Devices(click.ParamType):
    """``2``, or ``mps``: how many imaginary devices, of which kind."""

    name = "devices"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if value == "mps":
            return "mps", 1
        if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= _MOST_DEVICES:
            self.fail(f"`{value}` is neither a number of devices from 1 to {_MOST_DEVICES} nor `mps`", param, ctx)
        return "cuda", int(value)


class Names(click.ParamType):
    """Names with commas between them."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        names = [name.strip() for name in value.split(",") if name.strip()]
        if not names:
            self.fail("it is empty; leave the option out, or name something", param, ctx)
        return names


class PatternNames(click.ParamType):
    """``PATTERN:RULE,RULE``."""

    name = "pattern:rules"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        pattern, colon, names = value.rpartition(":")
        if not colon or not pattern or not names:
            self.fail(f"`{value}` is not PATTERN:RULE,RULE, as in `tests/*.py:host-sync-in-loop`", param, ctx)
        return pattern, [name.strip() for name in names.split(",") if name.strip()]


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", "-V", message="devlint %(version)s")
def main() -> None:
    """Find, explain and fix device-placement bugs in PyTorch code.

    \b
    Examples:
      devlint check                     check the current folder
      devlint check --fix train.py      and repair what is safe to repair
      devlint explain discarded-move    what a rule means
      devlint run --simulate 2 train.py run a script as if there were two GPUs
      devlint config train.py           what is in force for a file, and why
    """


# options ------------------------------------------------------------------------------------------------

_FLAG: dict[str, Any] = {"is_flag": True}

_SETTINGS = [
    click.option("--select", type=Names(), multiple=True, metavar="NAMES",
                 help="Rules, groups or ALL to check, instead of what is configured."),
    click.option("--ignore", type=Names(), multiple=True, metavar="NAMES", help="Rules or groups to leave out."),
    click.option("--extend-select", type=Names(), multiple=True, metavar="NAMES",
                 help="Rules or groups to check besides."),
    click.option("--per-file-ignores", type=PatternNames(), multiple=True, metavar="PATTERN:NAMES",
                 help="Rules to leave out of the files that match."),
    click.option("--exclude", type=Names(), multiple=True, metavar="PATTERNS",
                 help="Files and folders to leave out, as in .gitignore, instead of what is configured."),
    click.option("--extend-exclude", type=Names(), multiple=True, metavar="PATTERNS",
                 help="Files and folders to leave out besides."),
    click.option("--respect-gitignore/--no-respect-gitignore", default=None,
                 help="Leave out what git ignores (default: yes)."),
    click.option("--config", "config_file", metavar="FILE", help="Use this file of settings for everything."),
    click.option("--isolated", **_FLAG, help="Read no configuration file."),
]  # fmt: skip

_CHECK = [
    click.option("--fix", "fix_files", **_FLAG, help="Write the fixes that are safe, report the rest."),
    click.option("--unsafe-fixes/--no-unsafe-fixes", default=None,
                 help="Take fixes into account that may change what the code computes."),
    click.option("--diff", "show_diff", **_FLAG, help="Print what --fix would change, write nothing; exit 1 if any."),
    click.option("--fix-only", **_FLAG, help="As --fix, but report nothing that is left."),
    click.option("--exit-non-zero-on-fix", **_FLAG, help="Exit 1 where something was fixed, even if nothing is left."),
    click.option("--show-fixes", **_FLAG, help="List on stderr what is fixed."),
    click.option("--add-ignores", **_FLAG, help="Add an ignore comment to every line that has a finding."),
    click.option("--output-format", type=Format(), metavar="FORMAT",
                 help="text, concise, json, json-lines, github, gitlab, junit or sarif."),
    click.option("--output-file", metavar="FILE", help="Write the report there instead of to stdout."),
    click.option("--profile", "profile_file", metavar="FILE",
                 help="Show what a run measured, costliest first, and check the rules that it counted something "
                      "under; FILE is from `devlint run --report json`."),
    click.option("--statistics", **_FLAG, help="Count findings by rule instead of listing them."),
    click.option("--fail-on", type=OneOf(["error", "warning"]), help="The level from which findings give exit 1."),
    click.option("--exit-zero", **_FLAG, help="Exit 0 even with findings."),
    click.option("--stdin-filename", metavar="FILE", help="The name that content from stdin goes by."),
    click.option("--force-exclude", **_FLAG, help="Apply exclusions to files named on the command line too."),
    click.option("--no-cache", **_FLAG, help="Neither read nor write the cache."),
    click.option("--cache-dir", metavar="FOLDER", help="Where the cache lies (default: .devlint_cache)."),
    click.option("--jobs", "-j", type=click.IntRange(1), metavar="N", help="Worker processes (default: all cores)."),
    click.option("--timing", **_FLAG, help="Show on stderr where the time went."),
    click.option("--quiet", "-q", **_FLAG, help="Print nothing but findings and errors."),
    click.option("--verbose", "-v", **_FLAG, help="Say on stderr what is being done."),
    click.option("--color", type=OneOf(["auto", "always", "never"]), default="auto",
                 help="Colours; auto heeds NO_COLOR and FORCE_COLOR."),
]  # fmt: skip


def _options(options: list[Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _configurations(given: dict[str, Any]) -> Configurations:
    """Take the options that are settings out of ``given``. Raises :class:`Failure`."""
    options: dict[str, Any] = {}
    for key in ("select", "ignore", "extend_select", "exclude", "extend_exclude"):
        lists = given.pop(key)
        if lists:
            options[key.replace("_", "-")] = [name for names in lists for name in names]
    by_pattern: dict[str, list[str]] = {}
    for pattern, names in given.pop("per_file_ignores"):
        by_pattern.setdefault(pattern, []).extend(names)
    if by_pattern:
        options["per-file-ignores"] = by_pattern
    for key in ("respect_gitignore", "unsafe_fixes", "fail_on", "output_format", "cache_dir", "jobs"):
        if given.get(key) is not None:
            options[key.replace("_", "-")] = given[key]
    file, isolated = given.pop("config_file"), given.pop("isolated")
    if file and isolated:
        raise Failure("--config and --isolated contradict each other; give one of them")
    measured = given["profile"].rules if given.get("profile") is not None else ()
    try:
        return Configurations(options, file=file, isolated=isolated, measured=measured)
    except ConfigError as error:
        raise Failure(str(error)) from error


# check --------------------------------------------------------------------------------------------------


@main.command(short_help="Check files and folders, and fix them.")
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@_options(_SETTINGS + _CHECK)
def check(paths: tuple[str, ...], **given: Any) -> int:
    """Check files and folders (default: the current one); `-` reads stdin.

    \b
    Examples:
      devlint check src tests
      devlint check --select correctness,host-sync-in-loop
      devlint check --fix --unsafe-fixes train.py
      devlint check --diff
      devlint check --output-format sarif --output-file devlint.sarif
      devlint check --profile run.json
      cat train.py | devlint check --stdin-filename train.py -

    Exit code: 0 nothing to report, 1 findings, 2 something could not be done.
    """
    started = time.perf_counter()
    given["profile"] = _profile(given["profile_file"])
    configurations = _configurations(given)
    color = _color(given["color"])
    if color is not None:
        click.get_current_context().color = color
    fixing = given["fix_files"] or given["fix_only"] or given["show_diff"]
    if fixing and given["add_ignores"]:
        raise Failure("--add-ignores and fixing contradict each other; run one after the other")
    if given["stdin_filename"] is not None:
        paths = paths or ("-",)
        if "-" not in paths:
            raise Failure("--stdin-filename is the name of what comes from stdin: give `-` instead of other paths")
    if "-" in paths and len(paths) > 1:
        raise Failure("`-` (stdin) cannot be combined with other paths")
    if paths == ("-",):
        return _check_stdin(configurations, given, fixing)
    from devlint import engine

    with engine.collector_off():
        try:
            return _check_files(paths or (".",), configurations, given, fixing, started)
        finally:
            gc.freeze()  # the process is about to end, and need not look through all it has once more


def _check_files(
    paths: tuple[str, ...], configurations: Configurations, given: dict[str, Any], fixing: bool, started: float
) -> int:
    from devlint import files, run

    problems: list[str] = []
    found = files.find(paths, configurations, force_exclude=given["force_exclude"], problem=problems.append)
    common = _common(paths[0], configurations)
    walked = time.perf_counter()
    if not found and not problems and not given["quiet"]:
        _tell(f"no Python files to check under {', '.join(map(files.printable, paths))}", "yellow")
    if given["verbose"]:
        for config_file in sorted({file.settings.file for file in found if file.settings.file is not None}):
            _tell(f"settings: {config_file}", "bright_black")
    plan = _plan(given, fixing, common)
    outcome = run.run(found, plan, None if given["quiet"] else _progress)
    outcome.problems[:0] = problems
    ran = time.perf_counter()
    opens = {file.name: file.path for file in found}
    code = _conclude(outcome, common, given, lambda name: _text(opens.get(name, name)), sys.stdout)
    if given["timing"]:
        _timing(outcome, walked - started, ran - walked, time.perf_counter() - ran)
    return code


def _check_stdin(configurations: Configurations, given: dict[str, Any], fixing: bool) -> int:
    from devlint import files, run

    name = given["stdin_filename"] or "-"
    if sys.stdin is None:
        raise Failure("stdin is closed, so there is nothing to check")
    raw = sys.stdin.buffer.read()
    absolute = os.path.abspath(name)
    try:
        settings = configurations.for_folder(os.path.dirname(absolute))
    except ConfigError as error:
        raise Failure(str(error)) from error
    action = _action(given, fixing)
    prints_text = (fixing or given["add_ignores"]) and not given["show_diff"]
    if given["force_exclude"] and files.excluded(absolute, settings):
        if prints_text:
            _print(raw, sys.stdout)
        return CLEAN
    file = files.File(name, files.printable(name), settings)
    outcome = run.run_text(raw, file, run.Plan(action, unsafe=given["unsafe_fixes"]))
    after = outcome.changes[0].after if outcome.changes else raw
    if prints_text:
        _print(after, sys.stdout)
    # stdout is taken by the new text
    report_to = sys.stderr if prints_text else sys.stdout
    shown = after if prints_text else raw
    return _conclude(outcome, settings, given, lambda _: _decoded(shown), report_to)


def _plan(given: dict[str, Any], fixing: bool, common: Settings) -> Plan:
    from devlint.run import Plan

    return Plan(
        _action(given, fixing),
        not given["show_diff"],
        unsafe=given["unsafe_fixes"],
        use_cache=not given["no_cache"],
        jobs=common.jobs,
    )


def _action(given: dict[str, Any], fixing: bool) -> str:
    return "ignore" if given["add_ignores"] else "fix" if fixing else "check"


def _common(path: str, configurations: Configurations) -> Settings:
    """The settings for what is not about one file: format, jobs. Those where the first path lies."""
    folder = os.path.abspath(path)
    try:
        return configurations.for_folder(folder if os.path.isdir(folder) else os.path.dirname(folder))
    except ConfigError:
        return configurations.without_file  # told already, while looking for files


def _conclude(
    outcome: Outcome, common: Settings, given: dict[str, Any], text: Callable[[str], str | None], stdout: Any
) -> int:
    """Say what came of it, and give the exit code."""
    from devlint.finding import INTERNAL_ERROR

    if given["verbose"]:
        for note in outcome.notes:
            _tell(note, "bright_black")
    for warning in outcome.warnings:
        _tell(f"warning: {warning}", "yellow")
    for problem in dict.fromkeys(outcome.problems):
        _tell(f"error: {problem}", "red")
    failed = bool(outcome.problems) or any(finding.rule == INTERNAL_ERROR for _, finding in outcome.findings)

    if given["add_ignores"]:
        if not given["quiet"]:
            _tell(f"Added ignore comments to {_count(len(outcome.changes), 'file')}.")
        return FAILURE if failed else CLEAN
    if given["show_diff"]:
        diff = _diff(outcome)
        if given["output_file"] is None and _colored(given, stdout):
            from devlint.report.diff import painted

            diff = painted(diff)
        _deliver(diff, given["output_file"], stdout)
        if given["show_fixes"] and outcome.applied:
            _tell(_fixes(outcome, "Would fix"))
        elif not given["quiet"] and outcome.applied:
            _tell(f"Would fix {_count(len(outcome.applied), 'fault')} in {_count(len(outcome.changes), 'file')}.")
        changed = bool(outcome.changes) and not given["exit_zero"]
        return FAILURE if failed else FINDINGS if changed else CLEAN
    summed_up = common.output_format == "text" and not given["statistics"] and not given["fix_only"]
    if given["show_fixes"] and (given["fix_files"] or given["fix_only"]):
        _tell(_fixes(outcome, "Fixed"))
    elif not given["quiet"] and (given["fix_only"] or (outcome.applied and not summed_up)):
        _tell(f"Fixed {_count(len(outcome.applied), 'fault')} in {_count(len(outcome.changes), 'file')}.")
    if not given["fix_only"]:
        _deliver(_report(outcome, common, given, text, stdout), given["output_file"], stdout)
        if common.output_format == "concise" and not given["quiet"]:
            from devlint.report import fixable, held_back

            fixes = fixable([(file.name, finding) for file, finding in outcome.findings], common.unsafe_fixes)
            for hint in (fixes, held_back(outcome.held)):
                if hint:
                    _tell(f"{hint}.")
    if failed:
        return FAILURE
    if given["exit_zero"]:
        return CLEAN
    if given["exit_non_zero_on_fix"] and outcome.applied:
        return FINDINGS
    counted = [f for file, f in outcome.findings if f.level == "error" or file.settings.fail_on == "warning"]
    return FINDINGS if counted and not given["fix_only"] else CLEAN


def _profile(file: str | None) -> Profile | None:
    if file is None:
        return None
    from devlint.profile import Profile, ProfileError

    try:
        return Profile(file)
    except ProfileError as error:
        raise Failure(str(error)) from error


def _report(
    outcome: Outcome, common: Settings, given: dict[str, Any], text: Callable[[str], str | None], stdout: Any
) -> str:
    from devlint import report

    found = outcome.findings
    if given["profile"] is not None:
        found = _beside_run(found, given["profile"], common, text)
    findings = [(file.name, finding) for file, finding in found]
    color = _colored(given, stdout)
    if given["statistics"]:
        return report.statistics(findings, common.output_format, color)
    import shutil

    return report.render(
        common.output_format,
        findings,
        sources=text,
        color=color,
        width=shutil.get_terminal_size(_NO_TERMINAL).columns,
        files_checked=outcome.checked,
        fixed=len(outcome.applied),
        unsafe_fixes=common.unsafe_fixes,
        quiet=given["quiet"],
        held=outcome.held,
    )


def _beside_run(
    found: list[tuple[File, Finding]], profile: Profile, common: Settings, text: Callable[[str], str | None]
) -> list[tuple[File, Finding]]:
    """The findings with what was measured; the costliest first where a person, not a service, puts them in order."""
    from devlint.profile import costliest_first

    found, told = profile.beside(found, text)
    for warning in told:
        _tell(f"warning: {warning}", "yellow")
    return found if common.output_format in ("gitlab", "junit", "sarif") else costliest_first(found)


def _diff(outcome: Outcome) -> str:
    from devlint import fix

    changes = sorted(outcome.changes, key=lambda change: change.file.path.split(os.sep))
    return "".join(fix.diff(change.file.name, change.before, change.after) for change in changes)


def _fixes(outcome: Outcome, done: str) -> str:
    """What is fixed, by file: how often, the rule, what is done."""
    counts: dict[str, dict[tuple[str, str], int]] = {}
    for file, finding in outcome.applied:
        title = finding.fix.title if finding.fix is not None else ""
        of_file = counts.setdefault(file.name, {})
        of_file[finding.rule, title] = of_file.get((finding.rule, title), 0) + 1
    lines = [f"{done} {_count(len(outcome.applied), 'fault')}{':' if counts else '.'}"]
    for name in sorted(counts):
        lines.append(f"  {name}:")
        lines += [f"    {number} x {rule}: {title}" for (rule, title), number in counts[name].items()]
    return "\n".join(lines)


def _timing(outcome: Outcome, walk: float, work: float, rest: float) -> None:
    phases = {**outcome.seconds}
    cache = phases.pop("cache", 0.0)
    rows = [("find files", walk), ("cache", cache), ("check, all workers together", work - cache), ("report", rest)]
    lines = ["seconds  phase"]
    lines += [f"{seconds:7.3f}  {name}" for name, seconds in sorted(rows, key=lambda row: -row[1])]
    if phases:
        lines += ["", "seconds  in the workers, summed"]
        lines += [f"{seconds:7.3f}  {name}" for name, seconds in sorted(phases.items(), key=lambda row: -row[1])]
    _tell("\n".join(lines))


# talking ------------------------------------------------------------------------------------------------


def _tell(message: str, style: str | None = None) -> None:
    """To stderr, for a person."""
    click.echo(click.style(message, fg=style) if style else message, err=True)


def _deliver(report: str, output_file: str | None, stdout: Any) -> None:
    if output_file is None:
        _print(report, stdout)
        return
    from devlint import fix

    raw = report.encode("utf-8", "backslashreplace")
    try:
        if os.path.exists(output_file) and not os.path.isfile(output_file):  # /dev/stdout, a pipe
            with open(output_file, "wb") as file:
                file.write(raw)
        else:
            fix.write(output_file, raw)
    except OSError as error:
        raise Failure(f"{output_file}: cannot be written: {error.strerror or error}") from error


def _print(content: str | bytes, stream: Any) -> None:
    try:
        (stream if isinstance(content, str) else stream.buffer).write(content)
        stream.flush()
    except OSError as error:
        # without this the interpreter would complain while it shuts down
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):  # a reader that has seen enough is no failure
            raise Failure(f"the output cannot be written: {error.strerror or error}") from error


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _color(choice: str) -> bool | None:
    """Whether to colour; ``None`` where the stream decides."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return False if os.environ.get("TERM") == "dumb" else None


def _colored(given: dict[str, Any], stdout: Any) -> bool:
    """Whether to colour the report."""
    color = _color(given["color"])
    return given["output_file"] is None and _is_terminal(stdout) if color is None else color


def _is_terminal(stream: Any) -> bool:
    return bool(stream.isatty())


@contextmanager
def _progress(files: int, size: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, on a terminal, where there is much to do."""
    if size < _LONG_RUN_BYTES or not _is_terminal(sys.stderr):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # without its own thread, so that workers may be forked
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=files)

        def step() -> None:
            bar.advance(task)
            bar.refresh()

        bar.refresh()
        yield step


def _text(path: str) -> str | None:
    """A file's text for a code frame; ``None`` where it cannot be had."""
    try:
        with open(path, "rb") as file:
            return _decoded(file.read())
    except OSError:
        return None


def _decoded(raw: bytes) -> str:
    import io
    import tokenize

    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return raw.decode("utf-8", "replace")  # the finding is about what cannot be decoded


# run ----------------------------------------------------------------------------------------------------

_GUARD = [
    click.option("--simulate", type=Devices(), metavar="N|mps",
                 help="Run as if there were N CUDA devices, or an Apple GPU, whatever there is."),
    click.option("--on", type=OneOf(["raise", "warn", "collect"]), default="raise",
                 help="What to do where something is out of place (default: raise)."),
    click.option("--max-syncs", type=click.IntRange(0), metavar="N", help="How often a step may wait for a device."),
    click.option("--max-bytes-to-device", type=click.IntRange(0), metavar="N", help="What a step may copy there."),
    click.option("--max-bytes-to-host", type=click.IntRange(0), metavar="N", help="What a step may copy back."),
    click.option("--warmup-steps", type=click.IntRange(0), default=0, metavar="N",
                 help="The first steps, which no limit is for."),
]  # fmt: skip


@main.command(short_help="Run a script, and see what it does with its devices.", context_settings={
    "allow_interspersed_args": False})  # fmt: skip
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT|-m MODULE [ARGS]...")
@_options(_GUARD)
@click.option("--report", "form", type=RunFormat(), default="text", metavar="FORMAT",
              help="text, json, sarif, html or perfetto.")  # fmt: skip
@click.option("--output-file", metavar="FILE", help="Write the report there instead of to stderr.")
@click.option("--module", "-m", **_FLAG, help="Run a module, as `python -m` does.")
@click.option("--color", type=OneOf(["auto", "always", "never"]), default="auto",
              help="Colours; auto heeds NO_COLOR and FORCE_COLOR.")  # fmt: skip
def run(command: tuple[str, ...], **given: Any) -> int:
    """Run a script or a module as Python does, and report where it waits and copies, and what is out of place.

    What stands after SCRIPT or MODULE is for the program. Its output is left alone: the report goes to stderr.
    A SCRIPT called `-` is read from stdin.

    \b
    Examples:
      devlint run train.py --epochs 1
      devlint run --simulate 2 -m my.training
      devlint run --max-syncs 0 --warmup-steps 3 train.py
      devlint run --report html --output-file run.html train.py
      devlint run --report json --output-file run.json train.py && devlint check --profile run.json

    Exit code: the program's own; 1 where that is 0 and something was out of place or over a limit;
    2 where there is nothing to run.
    """
    if not command:
        raise click.UsageError("give a script to run, or -m and a module")
    import shutil

    from devlint.runtime import report as reports
    from devlint.runtime.launch import CannotRun, Program, launch

    reports.load(given["form"])  # now: the program's folder may have a `json.py`, and comes first then
    output_file = given["output_file"] and os.path.abspath(given["output_file"])
    if output_file is not None:
        _can_write(output_file)
    limits = ("on", "max_syncs", "max_bytes_to_device", "max_bytes_to_host", "warmup_steps")
    stderr = sys.stderr  # the program may put another in its place

    def deliver(report: Any) -> None:
        columns = shutil.get_terminal_size(_NO_TERMINAL).columns
        text = reports.render(report, given["form"], color=_colored(given, stderr), width=columns)
        _deliver(text, output_file, stderr)
        if output_file is not None:
            _tell(f"{reports.verdict(report)} The report is in {given['output_file']}")

    for name, errors in _ERRORS.items():
        getattr(sys, name).reconfigure(errors=errors)
    try:
        return launch(
            Program(command[0], command[1:], given["module"]),
            given["simulate"],
            {name: given[name] for name in limits},
            deliver,
        )
    except CannotRun as error:
        raise Failure(str(error)) from error


def _can_write(path: str) -> None:
    """Raises :class:`Failure` where a report could not be written: better before a long run than after it."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise Failure(f"{path}: cannot be written: there is no folder {folder}")
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise Failure(f"{path}: cannot be written")


# the other commands -------------------------------------------------------------------------------------


@main.command()
@click.argument("rule", required=False)
@click.option("--all", "every", is_flag=True, help="All rules.")
@click.option("--format", "form", type=OneOf(["text", "json", "markdown"]), default="text", help="How to print.")
def explain(rule: str | None, every: bool, form: str) -> int:
    """Say what a rule finds, why it matters, and what to write instead.

    \b
    Examples:
      devlint explain discarded-move
      devlint explain --all --format json
    """
    from devlint import docs

    if every == (rule is not None):
        raise click.UsageError("give one rule, or --all")
    known = docs.rules()
    if rule is not None and rule not in known:
        if rule in GROUPS:
            raise click.UsageError(f"`{rule}` is a group; `devlint rules` lists the rules in it")
        raise click.UsageError(f"no rule is called `{rule}`{suggestion(rule, known)} (`devlint rules` lists them)")
    _print(docs.explain_all(form) if rule is None else docs.explain(rule, form), sys.stdout)
    return CLEAN


@main.command()
@click.option("--format", "form", type=OneOf(["text", "json"]), default="text", help="How to print.")
def rules(form: str) -> int:
    """List all rules with their groups and what they fix."""
    from devlint import docs

    _print(docs.table(form), sys.stdout)
    return CLEAN


@main.command(short_help="Show the settings in force for a file, and why.")
@click.argument("path", default=".", metavar="[PATH]")
@_options(_SETTINGS)
def config(path: str, **given: Any) -> int:
    """Show what is in force for a file or folder, and where each value was set.

    \b
    Examples:
      devlint config
      devlint config tests/test_model.py --select ALL
    """
    configurations = _configurations(given)
    absolute = os.path.abspath(path)
    try:
        settings = configurations.for_folder(absolute if os.path.isdir(absolute) else os.path.dirname(absolute))
        _print("\n".join([*_described(settings, path), ""]), sys.stdout)
    except ConfigError as error:
        raise Failure(str(error)) from error
    return CLEAN


def _described(settings: Settings, path: str) -> Iterator[str]:
    import json

    from devlint.cache import folder_for
    from devlint.config import KEYS, shown
    from devlint.files import left_out

    source = shown(settings.file) if settings.file is not None else "no configuration file"
    yield f"Settings for {path}: {source}, patterns relative to {settings.root}"
    reason = left_out(path, settings)
    if reason is not None:
        yield f"Left out, unless named on the command line: {reason}"
    yield ""
    for key in KEYS:
        field = key.replace("-", "_")
        value = getattr(settings, field)
        origin = settings.origins.get(key, "default")
        if key in ("select", "ignore", "extend-select"):
            override = getattr(settings.command_line, field)
            if value is None:
                yield f"{key}: the groups that are on by default  # default"
            else:
                yield f"{key} = {json.dumps(value)}  # {origin}"
            if override:
                yield f"{key} = {json.dumps(override)}  # --{key}"
            continue
        if key in ("exclude", "extend-exclude"):
            value = [glob for patterns in value for glob in patterns.globs]
        elif key == "per-file-ignores":
            value = {patterns.globs[0]: names for patterns, names in value}
        elif key == "cache-dir":
            value = shown(folder_for(settings))
        elif key == "jobs" and value is None:
            from devlint.run import available_cpus

            value = available_cpus()
        yield f"{key} = {json.dumps(value)}  # {origin}"
    reasons = settings.reasons(path)
    for title, wanted in (("In force", True), ("Off", False)):
        names = [name for name, (on, _) in reasons.items() if on == wanted]
        if not names:
            continue
        yield ""
        yield f"{title} ({_count(len(names), 'rule')}):"
        yield from (f"  {name:<32} {reasons[name][1]}" for name in names)


@main.command(short_help="Remove the cache.")
@click.argument("folders", nargs=-1, metavar="[FOLDERS]...")
@click.option("--cache-dir", metavar="FOLDER", help="A cache that lies elsewhere.")
@click.option("--quiet", "-q", is_flag=True, help="Do not say what was removed.")
def clean(folders: tuple[str, ...], cache_dir: str | None, quiet: bool) -> int:
    """Remove the caches in and below the folders (default: the current one)."""
    from devlint import cache

    problems = 0
    for folder in folders:
        if not os.path.isdir(folder):
            raise Failure(f"{folder}: no such folder")
    for folder in _cache_folders(folders or (".",), cache_dir):
        try:
            removed = cache.clear(folder)
            if not quiet and removed:
                _tell(f"removed {folder}")
            elif not quiet and folder == cache_dir:
                _tell(f"{folder}: there is no cache of devlint's in it")
        except OSError as error:
            problems += 1
            _tell(f"error: {folder}: cannot be removed: {error.strerror or error}", "red")
    return FAILURE if problems else CLEAN


def _cache_folders(folders: Iterable[str], cache_dir: str | None) -> Iterator[str]:
    from devlint import cache

    if cache_dir is not None:
        yield cache_dir
    for folder in folders:
        try:
            yield cache.folder_for(Configurations().for_folder(os.path.abspath(folder)))
        except ConfigError as error:
            _tell(f"warning: {error}", "yellow")
        for parent, names, _ in os.walk(folder):
            if cache.FOLDER in names:
                names.remove(cache.FOLDER)
                yield os.path.join(parent, cache.FOLDER)
