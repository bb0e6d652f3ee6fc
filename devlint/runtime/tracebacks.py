"""Tracebacks of a program that `devlint run` runs: its own frames, and none of devlint's.

Those of processes that it starts itself, other than loaders' workers, keep them.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

from devlint.runtime.replacing import Replacement

FULL_TRACEBACK: Final = "DEVLINT_FULL_TRACEBACK"  # an environment variable: keep devlint's frames in tracebacks
_OWN: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_LAUNCH: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launch.py")
_SURELY_A_FAULT: Final = (AttributeError, NameError, KeyError, AssertionError)  # none of them comes out of torch's C++


def replacements() -> Iterator[Replacement]:
    """What shows exceptions of a program's threads, and what carries those of loaders' workers to the program."""
    from torch._utils import ExceptionWrapper

    show, keep = threading.excepthook, ExceptionWrapper.__init__

    def show_in_thread(args: Any) -> None:
        without_own_frames(args.exc_value)
        trace = args.exc_value and args.exc_value.__traceback__
        show(threading.ExceptHookArgs((args.exc_type, args.exc_value, trace, args.thread)))

    def keep_text(wrapper: Any, exc_info: Any = None, where: str = "in background") -> None:
        kind, error, _ = exc_info or sys.exc_info()
        without_own_frames(error)
        keep(wrapper, (kind, error, error and error.__traceback__), where)

    yield threading, "excepthook", show_in_thread
    yield ExceptionWrapper, "__init__", keep_text


def without_own_frames(error: BaseException | None, seen: set[int] | None = None) -> None:
    """Leaves the program's and its libraries' frames in the traceback, and in those of what led to it.

    What torch calls goes through the guard and the simulator, whose frames tell nobody anything, unless the fault is
    theirs: then all frames but those above the program's first are kept.
    """
    seen = set() if seen is None else seen
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    without_own_frames(error.__cause__, seen)
    without_own_frames(error.__context__, seen)
    entries = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    while entries and entries[0].tb_frame.f_code.co_filename == _LAUNCH:
        del entries[0]
    if not (os.environ.get(FULL_TRACEBACK) or _is_own_fault(error, entries)):
        entries = [entry for entry in entries if not entry.tb_frame.f_code.co_filename.startswith(_OWN)]
    following: TracebackType | None = None
    for entry in reversed(entries):
        following = TracebackType(following, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = following


def _is_own_fault(error: BaseException, entries: list[TracebackType]) -> bool:
    """Whether devlint failed, rather than raised, or passed on, what torch would have raised."""
    if not entries or not entries[-1].tb_frame.f_code.co_filename.startswith(_OWN):
        return False
    raised = entries[-1].tb_frame.f_code.co_code[entries[-1].tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return isinstance(error, _SURELY_A_FAULT) and not raised
