"""How fast devlint is, measured on public packages and against TorchFix: ``python benchmarks/speed.py``.

Makes two virtual environments (this checkout of devlint; TorchFix as pip installs it), downloads the packages below,
and keeps nothing unless ``--work`` names a folder to reuse. Both tools get the same ``.py`` files, all of their rules
and the same number of processes. Every figure is the median of ``--runs`` runs; runs of the two tools alternate. The
operating system's file cache is warm for both; "cold" means that devlint has no cache of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCHFIX = "torchfix==0.7.0"
PROCESSES = 2

#: What is checked cold; what is checked warm besides; what is copied ten times.
COLD = ("timm==1.0.20", "accelerate==1.10.1", "torchmetrics==1.8.2")
WARM = (*COLD, "diffusers==0.35.1", "transformers==4.57.1")
COPIED = ("accelerate==1.10.1",)
#: What the project index is measured on, each a project of its own; and a file that much of the last one imports.
PROJECTS = ("accelerate==1.10.1", "flair==0.15.1", "kornia==0.8.1", "timm==1.0.20", "diffusers==0.35.1")
IMPORTED = ("utils/__init__.py", "models/modeling_utils.py")
QUICK = COPIED

# Run in a process of its own, so that what it says of its children is about one command alone.
LAUNCHER = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
wall = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
peak = used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
print(json.dumps([done.returncode, wall, used.ru_utime + used.ru_stime, peak, done.stderr.decode(errors="replace")]))
"""

# A run without the project index: what other files hold is never asked. (Isolated: what lies in the current folder,
# which may be this checkout, is not imported.)
WITHOUT_INDEX = """
import sys
from devlint import cli, engine
inspect = engine.inspect
engine.inspect = lambda raw, path, settings, project=None: inspect(raw, path, settings)
sys.exit(cli.main(sys.argv[1:]))
"""

# The files that either tool parses: the rest never name torch. The garbage collector is left as Python sets it.
BARE_PARSE = """
import pathlib, sys
import libcst
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
    raw = path.read_bytes()
    if b"torch" in raw:
        try:
            libcst.parse_module(raw)
        except libcst.ParserSyntaxError:
            pass
"""


@dataclass
class Run:
    """One command: seconds on the clock, seconds of processor time of all its processes, megabytes of the largest."""

    wall: float
    cpu: float
    peak: float


@dataclass
class Figure:
    """A line of the result: devlint's figure, what it is held against, their ratio, and the limit to keep."""

    name: str
    devlint: float
    unit: str
    limit: float
    limit_text: str
    measured: float
    other: float | None = None
    at_least: bool = False

    @property
    def passed(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def main() -> int:
    options = _options()
    work = options.work or Path(tempfile.mkdtemp(prefix="devlint-benchmark-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        figures, machine = measure(work.resolve(), options.runs, options.quick)
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    print_table(figures, machine)
    if options.json:
        result = {"machine": machine, "figures": [{**asdict(f), "passed": f.passed} for f in figures]}
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if options.quick or all(figure.passed for figure in figures) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="runs of each measurement (default: 3)")
    parser.add_argument("--quick", action="store_true", help="one small package alone; the limits decide nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--work", type=Path, metavar="FOLDER", help="keep environments and packages there, or reuse them"
    )
    return parser.parse_args()


# setting up -----------------------------------------------------------------------------------------


def _environment(folder: Path, *packages: str) -> Path:
    """A virtual environment's folder of programs, with the packages installed as they are now."""
    programs = folder / "bin"
    if not programs.exists():
        venv.create(folder, with_pip=True)
    say(f"installing {' '.join(packages)}")
    pip = [str(programs / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *packages], check=True)
    return programs


def _checkout(work: Path) -> Path:
    """A copy of the package's sources; an installation from the checkout itself could take up an old build."""
    copy = work / "checkout"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for name in ("devlint", "rules"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def _tree(work: Path, name: str, packages: tuple[str, ...], python: Path, copies: int = 1) -> Path:
    """A folder with the ``.py`` files of the packages' wheels, and nothing else."""
    tree, wheels = work / name, work / "wheels"
    shutil.rmtree(tree, ignore_errors=True)
    wheels.mkdir(exist_ok=True)
    say(f"unpacking {' '.join(packages)}" + (f" {copies} times" if copies > 1 else ""))
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    subprocess.run(
        [*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(wheels), "--find-links", str(wheels), *packages],
        check=True,
    )
    for package in packages:
        stem = package.replace("==", "-")
        (wheel,) = wheels.glob(f"{stem}-*.whl")
        for copy in range(copies):
            with zipfile.ZipFile(wheel) as archive:
                members = [member for member in archive.namelist() if member.endswith(".py")]
                archive.extractall(tree / f"copy{copy}", members)
    return tree


# measuring ------------------------------------------------------------------------------------------


def measure(work: Path, runs: int, quick: bool) -> tuple[list[Figure], dict[str, str]]:
    # the version number stays while the code changes, and pip would keep what it has
    programs = _environment(work / "devlint", str(_checkout(work)), "--force-reinstall")
    torchfix = _environment(work / "torchfix", TORCHFIX) / "torchfix"
    python, devlint = programs / "python", programs / "devlint"
    cold_tree = _tree(work, "cold", QUICK if quick else COLD, python)
    warm_tree = _tree(work, "warm", QUICK if quick else WARM, python)
    one_copy = _tree(work, "once", COPIED, python)
    ten_copies = _tree(work, "tenfold", COPIED, python, copies=10)

    def check(tree: Path, *options: str) -> list[str]:
        command = [str(devlint), "check", "--isolated", "--select", "ALL", "--output-format", "concise"]
        return [*command, "--no-respect-gitignore", *options, str(tree)]

    def check_with_torchfix(tree: Path) -> list[str]:
        return [str(torchfix), "--select", "ALL", "--jobs", str(PROCESSES), str(tree)]

    figures = []

    say(f"cold, against TorchFix, {runs} runs each")
    ours, theirs = alternate(
        runs,
        lambda: launch(check(cold_tree, "--no-cache", "--jobs", str(PROCESSES))),
        lambda: launch(check_with_torchfix(cold_tree)),
    )
    wall, other = median(ours, "wall"), median(theirs, "wall")
    figures.append(
        Figure(
            f"cold, {PROCESSES} processes, against TorchFix", wall, "s", 12, ">= 12 x faster", other / wall, other, True
        )
    )
    peak = max(run.peak for run in ours)
    figures.append(Figure("peak memory of the largest process", peak, "MB", 250, "< 250 MB", peak))

    say("processor time, against LibCST's parser")
    single, bare = alternate(
        runs,
        lambda: launch(check(cold_tree, "--no-cache", "--jobs", "1")),
        lambda: launch([str(python), "-c", BARE_PARSE, str(cold_tree)]),
    )
    cpu, other = median(single, "cpu"), median(bare, "cpu")
    figures.append(Figure("processor time, against the bare parse", cpu, "s", 1.8, "<= 1.8 x", cpu / other, other))

    say("warm")
    cache = work / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    warm_command = check(warm_tree, "--cache-dir", str(cache), "--jobs", str(PROCESSES))
    launch(warm_command)
    warm = median([launch(warm_command) for _ in range(max(runs, 3))], "wall")
    figures.append(Figure(f"warm, {count(warm_tree)} files", warm, "s", 0.6, "<= 0.6 s", warm))

    say("the project index")
    for package in QUICK if quick else PROJECTS:
        tree = _tree(work, "project", (package,), python)
        options = check(tree, "--no-cache", "--jobs", "1")[1:]
        on, off = alternate(
            runs,
            lambda options=options: launch([str(devlint), *options]),  # type: ignore[misc]
            lambda options=options: launch([str(python), "-I", "-c", WITHOUT_INDEX, *options]),  # type: ignore[misc]
        )
        cpu, other = median(on, "cpu"), median(off, "cpu")
        title = f"processor time of {package}, against no index"
        figures.append(Figure(title, cpu, "s", 1.25, "<= 1.25 x", cpu / other, other))

    say("a changed file that others import")
    whole = check(tree, "--cache-dir", str(cache), "--jobs", str(PROCESSES))
    launch(whole)
    for name in IMPORTED:
        for imported in sorted(tree.rglob(name))[:1]:
            walls = []
            for number in range(max(runs, 3)):
                with imported.open("a", encoding="utf-8") as file:
                    file.write(f"\n# {number}\n")
                walls.append(launch(whole))
            wall = median(walls, "wall")
            title = f"warm, {count(tree)} files, {name} changed"
            figures.append(Figure(title, wall, "s", 1, "<= 1 s", wall))

    say("one changed file")
    changed, lines = _file_of(cold_tree, 500)
    walls = []
    for number in range(max(runs, 3)):
        changed.write_text(changed.read_text(encoding="utf-8") + f"\n# {number}\n", encoding="utf-8")
        walls.append(launch(check(changed, "--cache-dir", str(cache), "--jobs", str(PROCESSES))))
    wall = median(walls, "wall")
    title = f"one changed file ({changed.name}, {lines} lines), start-up included"
    figures.append(Figure(title, wall, "s", 0.45, "<= 0.45 s", wall))

    say("growth")
    once, tenfold = alternate(
        runs,
        lambda: launch(check(one_copy, "--no-cache", "--jobs", "1")),
        lambda: launch(check(ten_copies, "--no-cache", "--jobs", "1")),
    )
    almost_nothing = work / "almost_nothing.py"
    almost_nothing.write_text("import torch\n", encoding="utf-8")
    start_up = median([launch(check(almost_nothing, "--no-cache", "--jobs", "1")) for _ in range(3)], "cpu")
    small, large = median(once, "cpu") - start_up, median(tenfold, "cpu") - start_up
    figures.append(
        Figure(
            "processor time of 10 copies against 1, start-up left out", large, "s", 11, "<= 11 x", large / small, small
        )
    )

    return figures, _machine(programs, work, cold_tree, runs)


def launch(command: list[str]) -> Run:
    """Run the command; exit codes 0 and 1 (findings) are its success."""
    done = subprocess.run([sys.executable, "-c", LAUNCHER, *command], capture_output=True, text=True, check=True)
    code, wall, cpu, peak, errors = json.loads(done.stdout)
    if code not in (0, 1):
        raise SystemExit(f"exit code {code} of {' '.join(command)}\n{errors}")
    return Run(wall, cpu, peak)


def alternate(runs: int, one: Callable[[], Run], other: Callable[[], Run]) -> tuple[list[Run], list[Run]]:
    pairs = [(one(), other()) for _ in range(runs)]
    return [first for first, _ in pairs], [second for _, second in pairs]


def median(runs: list[Run], what: str) -> float:
    return statistics.median(getattr(run, what) for run in runs)


def count(tree: Path) -> int:
    return sum(1 for _ in tree.rglob("*.py"))


def _file_of(tree: Path, wanted: int) -> tuple[Path, int]:
    """The file that uses torch and is nearest to the wanted number of lines."""
    sizes = [(len(raw.splitlines()), path) for path in tree.rglob("*.py") if b"torch" in (raw := path.read_bytes())]
    lines, path = min(sizes, key=lambda size: (abs(size[0] - wanted), size[1]))
    return path, lines


# what it was measured on ----------------------------------------------------------------------------


def _machine(programs: Path, work: Path, cold_tree: Path, runs: int) -> dict[str, str]:
    version = "from importlib.metadata import version as v; print(v('libcst'))"

    def libcst(python: Path) -> str:
        return subprocess.run([str(python), "-c", version], capture_output=True, text=True, check=True).stdout.strip()

    naming = sum(b"torch" in path.read_bytes() for path in cold_tree.rglob("*.py"))
    size = sum(path.stat().st_size for path in cold_tree.rglob("*.py")) / 1e6
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "libcst": f"{libcst(programs / 'python')} (devlint), {libcst(work / 'torchfix' / 'bin' / 'python')} (TorchFix)",
        "cold tree": f"{count(cold_tree)} files, {size:.1f} MB, {naming} of them name torch",
        "runs": str(runs),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def print_table(figures: list[Figure], machine: dict[str, str]) -> None:
    print()
    for key, value in machine.items():
        print(f"{key:<10} {value}")
    print()
    print(f"{'':<66}{'devlint':>10}{'against':>10}{'ratio':>8}  {'limit':<16}")
    for figure in figures:
        against = f"{figure.other:.2f} {figure.unit}" if figure.other is not None else ""
        ratio = f"{figure.measured:.2f}" if figure.other is not None else ""
        ours = f"{figure.devlint:.2f} {figure.unit}"
        verdict = "pass" if figure.passed else "FAIL"
        print(f"{figure.name:<66}{ours:>10}{against:>10}{ratio:>8}  {figure.limit_text:<16}{verdict}")


def say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
