"""Whether fixes hold on real code: ``python benchmarks/fixes.py CHECKOUTS [--unsafe-fixes]``.

Each git checkout in the folder is copied to a place of its own and fixed there. Every file that a fix changed must
still compile, and a second run must change nothing. What is printed is one row a repository; the exit code is 1 where
either failed. To see whether a project's own tests pass as before, keep the fixed copies with ``--keep FOLDER``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import click


def python_files(folder: Path) -> dict[Path, bytes]:
    return {file.relative_to(folder): file.read_bytes() for file in sorted(folder.rglob("*.py")) if file.is_file()}


def fix(folder: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "devlint", "check", "--isolated", "--fix", *options, "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise click.ClickException(f"{folder.name}: devlint exited {done.returncode}:\n{done.stderr}")


def compiles(path: Path, content: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a string of theirs
            compile(content, str(path), "exec")
    except (SyntaxError, ValueError):
        return False
    return True


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--unsafe-fixes", is_flag=True, help="Those that a person should read, too.")
@click.option("--select", help="Rules or groups; by default, those that are on by default.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Leave the fixed copies here.")
def main(folder: Path, unsafe_fixes: bool, select: str | None, keep: Path | None) -> None:
    """Fix copies of all checkouts in FOLDER, and look at what became of them."""
    options = [*(["--unsafe-fixes"] if unsafe_fixes else []), *(["--select", select] if select else [])]
    failed = False
    click.echo("| repository | files | fixed | broken by a fix | changed by a second run |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for checkout in sorted(path for path in folder.iterdir() if (path / ".git").exists()):
            place = (keep or Path(scratch)) / checkout.name
            shutil.copytree(checkout, place, symlinks=True, ignore=shutil.ignore_patterns(".git"))
            before = python_files(place)
            fix(place, options)
            once = python_files(place)
            fix(place, options)
            twice = python_files(place)
            changed = [path for path in before if before[path] != once[path]]
            broken = [path for path in changed if compiles(path, before[path]) and not compiles(path, once[path])]
            unsettled = [path for path in before if once[path] != twice[path]]
            click.echo(f"| {checkout.name} | {len(before)} | {len(changed)} | {len(broken)} | {len(unsettled)} |")
            for path in (*broken, *unsettled):
                click.echo(f"  {checkout.name}/{path}", err=True)
            failed = failed or bool(broken or unsettled)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
