"""What a function mode does not see by itself: new threads, Python called by autograd, ``synchronize``, processes.

Torch's modes belong to one thread, and are off while a call of torch runs. The functions replaced here are replaced
once, while any guard runs, and put back after the last.
"""

from __future__ import annotations

import multiprocessing.process
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import _get_current_function_mode_stack

from devlint.runtime.placement import simulator
from devlint.runtime.replacing import Replacement, new_threads_inside, replaced

if TYPE_CHECKING:
    from devlint.runtime.guard import Guard

_lock = threading.RLock()
_guards: list[Guard] = []
_replaced = ExitStack()


def enter(guard: Guard) -> None:
    """A guard begins."""
    with _lock:
        if not _guards:
            _replaced.enter_context(replaced(_replacements()))
        _guards.append(guard)


def leave(guard: Guard) -> None:
    """A guard ends."""
    with _lock:
        _guards.remove(guard)
        if not _guards:
            _replaced.close()


def running() -> list[Guard]:
    """The guards of this process, in the order in which they began."""
    return list(_guards)


def of_this_thread() -> list[Guard]:
    """The guards that look at this thread."""
    return [guard for guard in _guards if guard.calls is not None]


def _in_child() -> None:
    """A forked process is not looked at: what it did would be in no report."""
    for guard in _guards:
        guard.closed = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# What is replaced -----------------------------------------------------------------------------------------------------


def _replacements() -> Iterator[Replacement]:
    yield new_threads_inside(_looking)
    yield multiprocessing.process.BaseProcess, "start", _saying_so(multiprocessing.process.BaseProcess.start)
    yield torch.autograd, "_engine_run_backward", _visible_in(torch.autograd._engine_run_backward)
    for module in (torch.cuda, torch.mps, getattr(torch, "accelerator", None)):
        if module is not None:
            yield module, "synchronize", _waiting(module.synchronize, f"{module.__name__}.synchronize")
    yield torch.cuda.Stream, "synchronize", _waiting(torch.cuda.Stream.synchronize, "Stream.synchronize")
    yield torch.cuda.Event, "synchronize", _waiting(torch.cuda.Event.synchronize, "Event.synchronize")
    yield torch.cuda.Event, "query", _asking(torch.cuda.Event.query)


def _looking() -> AbstractContextManager[Any] | None:
    """In a new thread: the looks of those guards that look at the one that starts it."""
    guards = of_this_thread()
    return _looks(guards) if guards else None


@contextmanager
def _looks(guards: list[Guard]) -> Iterator[None]:
    with ExitStack() as stack:
        for guard in guards:
            stack.enter_context(guard.looking())
        yield


def _saying_so(start: Callable[..., Any]) -> Callable[..., Any]:
    def start_process(process: Any) -> Any:
        for guard in _guards:
            guard.step_aside("other processes", "what workers and other processes do is not seen")
        return start(process)

    return start_process


def _visible_in(engine: Callable[..., Any]) -> Callable[..., Any]:
    """Hooks, ``Function.backward`` and recomputed forwards run under the modes, which are off during ``backward()``."""

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        modes = _get_current_function_mode_stack()
        hidden = [guard.calls for guard in of_this_thread() if guard.calls is not None and guard.calls not in modes]
        machine = simulator()
        with ExitStack() as stack:
            if hidden and machine is not None:  # its mode stays below ours
                stack.enter_context(machine.visible())
            for calls in hidden:
                stack.enter_context(calls)
            return engine(*args, **kwargs)

    return run_backward


def _waiting(synchronize: Callable[..., Any], operation: str) -> Callable[..., Any]:
    def wait(*args: Any, **kwargs: Any) -> Any:
        from devlint.runtime.waits import waited

        guards = [guard for guard in of_this_thread() if not guard.is_quiet]
        with ExitStack() as stack:
            for guard in guards:
                stack.enter_context(guard.quiet())
            started = time.perf_counter()
            result = synchronize(*args, **kwargs)
            seconds = time.perf_counter() - started
        for guard in guards:
            waited(guard, operation, seconds, repeated="synchronize-in-loop")
        return result

    return wait


def _asking(query: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        done = query(*args, **kwargs)
        if done:
            for guard in of_this_thread():
                guard.arrivals.arrived()
        return done

    return ask
