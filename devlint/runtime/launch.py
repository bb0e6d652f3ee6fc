"""`devlint run`: a script or a module as Python itself would run it, under a guard and perhaps on imaginary devices.

The process belongs to the program: it sees its own ``sys.argv``, ``sys.path[0]`` and ``__main__``, its exit code is the
process's, its traceback is printed as Python prints it, and its threads and ``atexit`` handlers end as they would.
What differs: torch is imported before the program, so variables that torch reads when it is imported
(``OMP_NUM_THREADS``, say) are to be set outside. Processes that the program starts with ``multiprocessing`` see the
imaginary devices; what they do is not in the report.
"""

from __future__ import annotations

import atexit
import builtins
import linecache
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any, Final

from devlint import runtime
from devlint.runtime.errors import BudgetExceeded
from devlint.runtime.events import Report
from devlint.runtime.replacing import replaced
from devlint.runtime.tracebacks import replacements, without_own_frames

INTERRUPTED: Final = 130
_ON_STDIN: Final = "-"  # a program there, as for Python itself
_STDIN: Final = "<stdin>"  # how Python names it


class CannotRun(Exception):  # noqa: N818 - it says what happened
    """There is nothing to run; the message says what is missing."""


@dataclass(frozen=True)
class Program:
    """What to run: a script, or a folder or archive with a ``__main__.py``, by its path, or a `module` by its name.

    ``-`` is a script on standard input.
    """

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False


def launch(
    program: Program, machine: tuple[str, int] | None, options: dict[str, Any], deliver: Callable[[Report], None]
) -> int:
    """Runs a program under a guard, hands the report to `deliver`, and gives the exit code.

    That is the program's own; 1 where the program ended well and the guard found an error or a broken budget.
    `machine` are imaginary devices, their kind and how many; `options` are those of `devlint.guard`.

    Raises:
        CannotRun: there is no such program, or no torch that can be used. Nothing was run.
    """
    found = None if program.module else _found(program.target)
    require_torch()
    from devlint.runtime.guard import guard

    process = os.getpid()
    surroundings = ExitStack()
    if machine is not None:
        from devlint.runtime.simulator import simulate

        kind, count = machine
        surroundings.enter_context(simulate(count, kind))
    atexit.register(surroundings.close)  # handlers that the program registers run before
    report = Report()
    try:
        with replaced(replacements()), guard(**options) as report:
            code = _execute(program, found)
    except BudgetExceeded:  # raised at the end of the block; the report has it
        pass
    if os.getpid() != process:  # a fork of the program's that came to its end
        return code
    deliver(report)
    return code or int(not report.ok)


def require_torch() -> None:
    """Raises `CannotRun` where there is no torch, or one too old."""
    try:
        runtime.require_torch()
    except ImportError as error:
        raise CannotRun(str(error)) from error


# the program ------------------------------------------------------------------------------------------------


def _found(target: str) -> bytes | ModuleSpec:
    """The source of a script, or how to load what stands in a folder or archive."""
    if target == _ON_STDIN:
        return _checked(target, sys.stdin.buffer.read() if sys.stdin is not None else b"")
    path = os.path.abspath(target)
    if not os.path.exists(path):
        raise CannotRun(f"{target}: no such file")
    spec = PathFinder.find_spec("__main__", [path])
    if spec is not None:
        return spec
    if os.path.isdir(path):
        raise CannotRun(f"{target}: is a folder without a `__main__.py`")
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        raise CannotRun(f"{target}: cannot be read: {error.strerror or error}") from error
    return _checked(target, source)


def _checked(target: str, source: bytes) -> bytes:
    if b"\0" in source:
        raise CannotRun(f"{target}: is not Python source")
    return source


def _execute(program: Program, found: bytes | ModuleSpec | None) -> int:
    """Runs it as ``__main__``, waits for its threads, and gives its exit code."""
    try:
        code, namespace = _prepared(program, found)
        exec(code, namespace)
    except CannotRun:
        raise
    except SystemExit as end:
        result = _exit_code(end)
    except BaseException as error:
        result = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        _show(error)
    else:
        result = 0
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter, and multiprocessing, end a program
    return result


def _prepared(program: Program, found: bytes | ModuleSpec | None) -> tuple[CodeType, dict[str, Any]]:
    """The program's code, and the namespace of the ``__main__`` that it is to run in."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.argv = ["-m" if found is None else program.target, *program.arguments]
    path = os.path.abspath(program.target)
    if isinstance(found, bytes) and program.target == _ON_STDIN:
        _lead_path("")
        main.__file__, main.__loader__ = _STDIN, BuiltinImporter
        main.__dict__["__cached__"] = None
        lines = found.decode(errors="replace").splitlines(keepends=True)
        linecache.cache[_STDIN] = (len(found), None, lines, _STDIN)  # for the report; no file has them
        sys.modules["__main__"] = main
        return compile(found, _STDIN, "exec", dont_inherit=True), main.__dict__
    if isinstance(found, bytes):
        _lead_path(os.path.dirname(os.path.realpath(path)))
        main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
        main.__dict__["__cached__"] = None
        sys.modules["__main__"] = main
        return compile(found, path, "exec", dont_inherit=True), main.__dict__
    _lead_path(os.getcwd() if found is None else path)
    spec = found or _spec_of(program.target)
    load = getattr(spec.loader, "get_code", None)  # what is written in C has none
    code = load(spec.name) if load is not None else None
    if code is None:
        raise CannotRun(f"`{program.target}` is no module of Python code")
    main.__file__, main.__loader__, main.__spec__ = spec.origin, spec.loader, spec
    main.__package__ = spec.parent
    main.__dict__["__cached__"] = spec.cached
    if found is None:
        sys.argv[0] = spec.origin or program.target
    sys.modules["__main__"] = main
    return code, main.__dict__


def _lead_path(folder: str) -> None:
    """Puts `folder` where Python puts the program's: in place of devlint's own, or nowhere with ``python -P``."""
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[0] = folder


def _spec_of(name: str) -> ModuleSpec:
    try:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find_spec(f"{name}.__main__")
            if spec is None:
                raise CannotRun(f"`{name}` is a package without a `__main__`")
    except (ModuleNotFoundError, ValueError) as error:
        raise CannotRun(f"no module called `{name}`: {error}") from error
    if spec is None:
        raise CannotRun(f"no module called `{name}`")
    return spec


def _exit_code(end: SystemExit) -> int:
    """What Python makes of ``sys.exit(...)``: a number, or a message on stderr and 1."""
    if end.code is None or isinstance(end.code, int):
        return int(end.code or 0)
    print(end.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """Prints an exception through ``sys.excepthook``, as Python would, without devlint's frames."""
    without_own_frames(error)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as failed:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exception(failed)
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(error)
