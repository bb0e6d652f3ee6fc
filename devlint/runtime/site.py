"""Sites: the user's own file and line behind a torch operation."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Final

Frame = tuple[CodeType, int]  # cheap to take on every operation; `site_of` makes a Site of it when one is shown

_PATHS = sysconfig.get_paths()
_STDLIB: Final = tuple(os.path.join(_PATHS[name], "") for name in ("stdlib", "platstdlib"))
_PACKAGES: Final = tuple(os.path.join(_PATHS[name], "") for name in ("purelib", "platlib"))
_OWN: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")

_TORCH, _LIBRARY, _USER = 0, 1, 2  # whose code a file is
_kinds: dict[str, int] = {}


@dataclass(frozen=True)
class Site:
    """A line of somebody's code.

    Attributes:
        file: as Python names it. line: from 1. function: its name, ``<module>`` at the top level.
        inside: the line of an installed library that `file` called and that did it, if any.
    """

    file: str
    line: int
    function: str
    inside: Site | None = None

    @property
    def code(self) -> str:
        """The text of the line, without indentation; empty where the source cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.line}"


def _short(file: str) -> str:
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return file if relative.startswith("..") else relative


def _kind(file: str) -> int:
    import torch

    if file.startswith((os.path.join(os.path.dirname(torch.__file__), ""), _OWN)):
        return _TORCH
    if file.startswith("<") and not file.startswith(("<stdin", "<string", "<ipython", "<cell")):
        return _TORCH  # frozen importlib, generated code
    if any(f"{os.sep}{part}{os.sep}" in file for part in ("site-packages", "dist-packages")) or file.startswith(
        _PACKAGES
    ):
        return _LIBRARY
    return _TORCH if file.startswith(_STDLIB) else _USER


def running_frame(start: FrameType | None = None) -> tuple[FrameType | None, FrameType | None]:
    """The innermost running frame of the user's project, and the library frame below it that called torch, if another.

    Either is ``None`` where there is none: the first in a loader's worker, say, both in a thread of torch's own.
    """
    frame: FrameType | None = start or sys._getframe(1)
    inner: FrameType | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        kind = _kinds.get(file)
        if kind is None:
            kind = _kinds[file] = _kind(file)
        if kind == _USER:
            return frame, inner
        if kind == _LIBRARY and inner is None:
            inner = frame
        frame = frame.f_back
    return None, inner


def own_frame(start: FrameType | None = None) -> tuple[Frame, Frame | None] | None:
    """The frames of `running_frame` as they can be kept.

    Where none is the project's, the library's own comes first. ``None`` where all is torch's.
    """
    frame, inner = running_frame(start or sys._getframe(1))
    if frame is None:
        return ((inner.f_code, inner.f_lineno), None) if inner else None
    return (frame.f_code, frame.f_lineno), (inner.f_code, inner.f_lineno) if inner else None


def site_of(frame: Frame, inside: Frame | None = None) -> Site:
    """A Site that can be shown, of frames as `own_frame` gives them."""
    code, line = frame
    return Site(code.co_filename, line, code.co_name, site_of(inside) if inside else None)


def here() -> Site | None:
    """The user's line that is running."""
    found = own_frame(sys._getframe(1))
    return site_of(*found) if found else None


def calling_frame() -> FrameType | None:
    """The frame that called torch, or was called by it: the innermost that is not devlint's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame


def is_torchs_own(frame: FrameType) -> bool:
    """Whether a frame runs code of torch's or of Python's own."""
    file = frame.f_code.co_filename
    if file not in _kinds:
        _kinds[file] = _kind(file)
    return _kinds[file] == _TORCH


def is_own_traceback(traceback: TracebackType | None) -> bool:
    """Whether all of its frames are devlint's."""
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_OWN):
            return False
        traceback = traceback.tb_next
    return True


def thread_name() -> str:
    """The running thread, as reports name it."""
    return threading.current_thread().name
