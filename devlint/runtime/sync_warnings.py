"""The waits that torch's C++ makes on a CUDA device, which torch tells as warnings when it is asked to.

``torch.cuda.set_sync_debug_mode("warn")`` is process-wide, a prototype, and tells of most waits on a stream, not of
``torch.cuda.synchronize`` nor of events (its documentation: not of ``torch.distributed`` and ``torch.sparse`` either).
Each warning is given to the listeners in the thread that made the call, and then dropped. All others go the way they
would have gone: a filter for this text alone, and a ``warnings.showwarning`` that passes on what it does not know.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

_TEXT: Final = "called a synchronizing CUDA operation"
_PROTOTYPE: Final = "Synchronization debug mode is a prototype feature"
_OFF, _WARN = 0, 1

_listeners: list[Callable[[], None]] = []
_before: int | None = None  # the debug mode that was set when the first listener was heard; None: not set by us
_filters: list[Any] = []
_show: Any = None  # what stands in `warnings.showwarning`, and what stood there
_shown_by: Any = None


def listen(listener: Callable[[], None]) -> None:
    """Lets `listener` be called for each wait, once CUDA is in use (`keep_listening`)."""
    _listeners.append(listener)


def stop(listener: Callable[[], None]) -> None:
    """Ends what `listen` began, and puts everything back after the last."""
    global _before, _show
    _listeners.remove(listener)
    if not _listeners and _before is not None:
        if _before == _OFF:
            torch.cuda.set_sync_debug_mode(_OFF)
        _before = None
        if warnings.showwarning is _show:
            warnings.showwarning = _shown_by
        _show = None
        for entry in _filters:
            if entry in warnings.filters:
                warnings.filters.remove(entry)  # type: ignore[attr-defined]
        _filters.clear()


def is_taken() -> bool:
    """Whether the program itself has set the debug mode: then its warnings and errors stay its own, unheard."""
    return _before not in (None, _OFF)


def keep_listening() -> None:
    """To be called before work on a device: the program may have changed the filters or the hook since."""
    if _before is None:
        _start()
    elif _show is not None and (warnings.showwarning is not _show or warnings.filters[0] is not _filters[0]):
        _hook()


def _start() -> None:
    """CUDA is initialized by now: asking for the mode any earlier would initialize it."""
    global _before
    if not (_listeners and torch.cuda.is_available() and torch.cuda.is_initialized()):
        return
    _before = torch.cuda.get_sync_debug_mode()
    if _before == _OFF:
        _hook()
        torch.cuda.set_sync_debug_mode(_WARN)


def _hook() -> None:
    global _show, _shown_by
    _filters.clear()
    for text in (_PROTOTYPE, _TEXT):
        warnings.filterwarnings("always", message=text, category=UserWarning)
        _filters.insert(0, warnings.filters[0])
    if warnings.showwarning is _show:
        return
    before = _shown_by = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        text = str(message)
        if text.startswith(_TEXT):
            for listener in list(_listeners):
                listener()
        elif not text.startswith(_PROTOTYPE):
            before(message, category, *args, **kwargs)

    _show = warnings.showwarning = show
