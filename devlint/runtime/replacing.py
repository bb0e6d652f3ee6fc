"""What of torch's and Python's own is replaced for a while, then put back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

Replacement = tuple[Any, Any, Any]  # a module, class or dict; the name or key in it; what stands there meanwhile
_ABSENT: Final = object()


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Sets attributes and items, and puts back what was there, in the reverse order."""
    done: list[Replacement] = []
    try:
        for owner, name, new in replacements:
            done.append((owner, name, (owner if isinstance(owner, dict) else vars(owner)).get(name, _ABSENT)))
            _set(owner, name, new)
        yield
    finally:
        for owner, name, before in reversed(done):
            _set(owner, name, before)


def _set(owner: Any, name: Any, value: Any) -> None:
    if isinstance(owner, dict):
        if value is _ABSENT:
            del owner[name]
        else:
            owner[name] = value
    elif value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def new_threads_inside(surrounding: Callable[[], AbstractContextManager[Any] | None]) -> Replacement:
    """Lets each new thread run inside of what `surrounding` gives, asked in the thread that starts it; or as it is."""
    start = threading.Thread.start

    def start_thread(thread: threading.Thread) -> None:
        around, run = surrounding(), thread.run
        if around is not None:

            def run_inside() -> None:
                with around:
                    run()

            thread.run = run_inside  # type: ignore[method-assign]
        start(thread)

    return threading.Thread, "start", start_thread
