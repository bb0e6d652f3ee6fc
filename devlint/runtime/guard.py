"""The guard: looks at a stretch of a running program, says what is wrong with where its tensors are, and counts.

    with devlint.guard(max_syncs=0, warmup_steps=3) as report:
        for batch in loader:
            train(batch)
            devlint.step()

Steps. `step` marks the end of one, or its beginning: what lies between two marks is a step, and so is what comes before
the first and after the last. A program that never calls it has a step for each ``step()`` of one optimizer: the first,
until another steps twice without it. Budgets hold for each single step but the first `warmup_steps`; where nothing
marks steps, for the whole.

A wait comes back where a line of the program waits in three steps on end, or in three rounds on end of a loop without
steps, as evaluation has: a round for each forward of one model on a device, the first, until another is called twice
without it.

What is held against ``max_syncs`` are all waits of the host, those of copies included; what happens under `allow_sync`
is held against no budget. Guards nest: each sees everything, and has its own report and budgets.

Where it steps aside, and says so in `Report.stepped_aside`:

- what ``torch.compile`` runs as compiled code, and other processes (DataLoader workers too);
- waits inside of C++ on devices other than CUDA, and on CUDA while the program itself uses
  ``torch.cuda.set_sync_debug_mode``.

Not seen: threads that ran before the guard began; work that C++ libraries do in threads of their own; who made the
tensors of ``torch.from_numpy`` and of constructors of old (``torch.FloatTensor(...)``); bytes that are copied by
storages (``torch.load``) or by indexing (``x[[0, 1]]``, ``x[0] = 1.0``: only the wait is); a ``synchronize`` that was
imported by name before.
Time is what the calling line took, measured on the host; a simulated machine gives none, and begins before the guard:
``with devlint.simulate(2), devlint.guard():``.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from devlint.runtime import copies, reach, sync_warnings, waits
from devlint.runtime.advice import advice
from devlint.runtime.calls import Calls
from devlint.runtime.errors import BudgetExceeded, DevicePlacementError, DevicePlacementWarning, HostConversionError
from devlint.runtime.events import Event, Line, Report
from devlint.runtime.history import History
from devlint.runtime.hooks import observed
from devlint.runtime.memory_growth import Growth
from devlint.runtime.mismatch import text_of
from devlint.runtime.placement import HOST, simulator
from devlint.runtime.site import Site, thread_name

On = Literal["raise", "warn", "collect"]
Function = TypeVar("Function", bound=Callable[..., Any])

_MOST_LINES: Final = 3  # named by a budget
_allowed: ContextVar[str | None] = ContextVar("devlint_allowed", default=None)
_current: ContextVar[Guard | None] = ContextVar("devlint_guard", default=None)


def guard(
    *,
    on: On = "raise",
    max_syncs: int | None = None,
    max_bytes_to_device: int | None = None,
    max_bytes_to_host: int | None = None,
    warmup_steps: int = 0,
) -> Guard:
    """Looks at the code inside ``with``, which gets the `Report`.

    Args:
        on: what to do with what is found. ``"raise"``: raise what cannot work, before torch does, and budgets that were
            not kept, at the end; the rest is only reported. ``"warn"``: warn of every line once, with
            `DevicePlacementWarning`. ``"collect"``: nothing.
        max_syncs: how often the host may wait for a device, in any one step.
        max_bytes_to_device: how much may be copied to devices, in any one step.
        max_bytes_to_host: how much may be copied to the host, in any one step.
        warmup_steps: how many steps at the beginning are not held against these.

    Raises:
        ValueError: an argument is out of range.
        DevicePlacementError: inside, where operands are on different devices and the like (`on`).
        BudgetExceeded: at the end, if nothing else was raised (`on`).
    """
    return Guard(on, {"max_syncs": max_syncs, "max_bytes_to_device": max_bytes_to_device,
                      "max_bytes_to_host": max_bytes_to_host}, warmup_steps)  # fmt: skip


def guarded(function: Function | None = None, /, **arguments: Any) -> Any:
    """Runs each call of a function or method under a guard of its own: ``@guarded`` or ``@guarded(max_syncs=0)``.

    The arguments are those of `guard`. The function's ``report`` is that of the call that ended last.

    Raises:
        TypeError: it is a generator or coroutine function, which other code runs in between.
    """
    if function is None:
        return functools.partial(guarded, **arguments)
    for test in (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction):
        if test(function):
            raise TypeError(f"`{function.__qualname__}` does not run in one go: guard the loop that runs it")
    guard(**arguments)  # what is wrong with them is said here

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with guard(**arguments) as report:
            try:
                return function(*args, **kwargs)
            finally:
                wrapper.report = report  # type: ignore[attr-defined]

    wrapper.report = None  # type: ignore[attr-defined]
    return wrapper


@contextmanager
def allow_sync(reason: str) -> Iterator[None]:
    """Waits and copies inside, in this thread, are meant: they are reported with the reason, and count as no fault.

    Raises:
        ValueError: there is no reason.
    """
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError("`allow_sync` wants the reason as text")
    token = _allowed.set(reason)
    try:
        yield
    finally:
        _allowed.reset(token)


def step() -> None:
    """Marks the end of a step for the innermost guard; without one, does nothing."""
    running = current()
    if running is not None:
        running.step()


def current() -> Guard | None:
    """The guard that this code runs under: the innermost of its thread, else the last that began in this process."""
    mine = _current.get()
    if mine is not None and not mine.closed:
        return mine
    return next((one for one in reversed(reach.running()) if not one.closed), None)


class Guard:
    """One guarded stretch. Made by `guard`.

    Attributes:
        on: as given. report: what was seen so far. closed: it has ended, or this process is a fork.
        arrivals, history, last_copies: what the parts that look keep (`copies`, `history`).
    """

    def __init__(self, on: On, budgets: dict[str, int | None], warmup_steps: int) -> None:
        if on not in ("raise", "warn", "collect"):
            raise ValueError(f'`on` is "raise", "warn" or "collect", not {on!r}')
        for name, value in {"warmup_steps": warmup_steps, **budgets}.items():
            if value is None and name in budgets:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"`{name}` is a number from 0, not {value!r}")
        self.on = on
        self.closed = True
        self.report = Report(torch=str(torch.__version__), warmup_steps=warmup_steps)
        self.arrivals = copies.Arrivals(self)
        self.history = History(self.emit)
        self.last_copies: dict[copies.Spot, copies.Last] = {}
        self._growth = Growth(self.emit)
        self._budgets = _Budgets(budgets)
        self._began = 0.0
        self._marked = False  # by `step`: then optimizers are not asked
        self._optimizers = _Turns()
        self._models = _Turns()
        self._rounds = 0  # of the models: a loop that nobody marks has them too
        self._warned: set[int] = set()
        self._lock = threading.RLock()
        self._local = threading.local()
        self._exits = ExitStack()

    # Beginning and end ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Report:
        if not self.closed or self._began:
            raise RuntimeError("a guard is used once: make another with `guard(...)`")
        machine = simulator()
        self.report.simulated = machine is not None
        self._began, self.closed = time.perf_counter(), False
        with ExitStack() as stack:
            reach.enter(self)
            stack.callback(reach.leave, self)
            stack.callback(setattr, self, "closed", True)
            stack.enter_context(observed(self.emit, self.history, self._called))
            stack.callback(register_optimizer_step_post_hook(self._stepped).remove)
            if machine is not None:
                machine.observers.append(self._operator)
                stack.callback(machine.observers.remove, self._operator)
            else:
                sync_warnings.listen(self._waited)
                stack.callback(sync_warnings.stop, self._waited)
            stack.enter_context(self.looking())
            self._exits = stack.pop_all()
        return self.report

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self.closed:  # in a fork
            self._exits.close()
            return
        if not self.report.simulated and sync_warnings.is_taken():
            self.step_aside("waits in C++", "the program uses `torch.cuda.set_sync_debug_mode` itself")
        machine = simulator()
        if machine is not None:
            for what, why in machine.machine.stepped_aside.items():
                self.step_aside(what, why)
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is not None and dynamo.counters["frames"]["total"] and not self.report.simulated:
            self.step_aside("torch.compile", "this process uses it: what runs as compiled code is not seen")
        self._exits.close()
        report = self.report
        report.duration = time.perf_counter() - self._began
        report.devices = _devices()
        if not report.simulated and any(not name.startswith("cuda") for name in report.devices):
            self.step_aside("waits in C++", "only CUDA tells of them")
        if kind is None:
            report.failures += self._budgets.failures(report.steps, report.warmup_steps)
            if self._budgets.limits and 0 < report.steps == report.warmup_steps:
                self.step_aside(
                    "marked steps", "all are for warming up: budgets hold for what came after the last mark"
                )
            if report.failures and self.on == "raise":
                raise BudgetExceeded("\n".join(report.failures))
            if self.on == "warn":
                for failure in report.failures:
                    warnings.warn(failure, DevicePlacementWarning, stacklevel=2)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Looks at what this thread does."""
        before = _current.get()
        _current.set(self)
        self._local.calls, self._local.quiet = Calls(self), 0
        try:
            with self._local.calls:
                yield
        finally:
            del self._local.calls
            _current.set(before)

    @property
    def calls(self) -> Calls | None:
        """This thread's function mode; ``None``: the thread is not looked at."""
        return getattr(self._local, "calls", None)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Waits inside belong to the call that is looked at already."""
        self._local.quiet = getattr(self._local, "quiet", 0) + 1
        try:
            yield
        finally:
            self._local.quiet -= 1

    @property
    def is_quiet(self) -> bool:
        """Whether this thread is inside of `quiet`."""
        return bool(getattr(self._local, "quiet", 0))

    def step_aside(self, what: str, why: str) -> None:
        """Notes what is not looked into."""
        self.report.stepped_aside[what] = why

    # What happens -----------------------------------------------------------------------------------------------------

    def emit(self, event: Event, repeated: str | None = None) -> None:
        """Counts an event, and raises or warns if the guard does so; under `repeated` if it comes step after step.

        Raises:
            DevicePlacementError: it cannot work, and the guard raises.
        """
        __tracebackhide__ = True  # pytest then shows the program's line
        if self.closed:
            return
        now = time.perf_counter() - self._began
        with self._lock:
            event = replace(
                event,
                step=self.report.steps,
                start=now - (event.seconds or 0.0),
                thread=thread_name(),
                allowed=_allowed.get() if event.kind in ("moved", "waited") else None,
            )
            own = (
                event.site is not None and event.site.inside is None
            )  # a library's loop is not the program's to change
            line = self.report.add(event, self._rounds if own and repeated == waits.IN_LOOP else 0)
            comes_back = line.run >= copies.REPEATS and line.first.rule is None and event.allowed is None
            if repeated is not None and comes_back:
                what = "step after step" if line.steps >= copies.REPEATS else "forward after forward"
                line.first = replace(line.first, rule=repeated, message=f"{line.first.message}, {what}")
            self._budgets.spend(event)
        if event.error and self.on == "raise":
            kind = HostConversionError if event.rule == "numpy-on-device-tensor" else DevicePlacementError
            raise kind(text_of(event, advice(event.rule)))
        if self.on == "warn" and line.first.rule is not None and event.allowed is None:
            self._warn(line)

    def _warn(self, line: Line) -> None:
        if id(line) in self._warned:
            return
        self._warned.add(id(line))
        event = line.first
        text = f"{event.rule}: {event.message}"
        if event.site is None:
            warnings.warn(text, DevicePlacementWarning, stacklevel=2)
        else:
            warnings.warn_explicit(text, DevicePlacementWarning, event.site.file, event.site.line)

    def step(self) -> None:
        """A step ends."""
        with self._lock:
            if not self._marked:
                self._marked = True
                self.report.restart()  # those of optimizers were none
            self._mark()

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._marked or self.calls is None:
            return
        with self._lock:
            if self._optimizers.leads(optimizer):
                self._mark()

    def _called(self, model: Any) -> None:
        """A model on a device is called."""
        if self.calls is not None:
            with self._lock:
                self._rounds += self._models.leads(model)

    def _mark(self) -> None:
        report = self.report
        self._budgets.end_step(report.steps, report.warmup_steps)
        report.steps += 1
        report.step_starts.append(time.perf_counter() - self._began)
        self.history.step(report.steps)
        self._growth.step(report.steps)

    def _waited(self) -> None:
        """C++ tells that it waits, in this thread."""
        if self.calls is not None and not self.closed and not self.is_quiet:
            waits.waited_inside(self)

    def _operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The simulator runs an ATen operation in this thread."""
        if self.calls is not None and not self.is_quiet:
            for _ in range(waits.waits_in_simulation(func, args, kwargs)):
                waits.waited_inside(self)


def _devices() -> dict[str, str]:
    """The devices there are, with what they are. CUDA that is not in use is not waked for it."""
    machine = simulator()
    if machine is not None:
        return {f"{machine.machine.kind}:{index}": "imaginary" for index in range(machine.machine.count)}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return {f"cuda:{index}": torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    return {"mps:0": "Apple GPU"} if torch.backends.mps.is_available() else {}


class _Turns:
    """Whose turns count, among several that take part in a loop: the first's, until another has two without it."""

    def __init__(self) -> None:
        self._leader: weakref.ref[Any] | None = None
        self._others: set[int] = set()  # those that had a turn since the leader had

    def leads(self, one: Any) -> bool:
        """Whether this turn of `one` counts."""
        leader = self._leader() if self._leader is not None else None
        if leader is None or leader is one or id(one) in self._others:
            self._leader = weakref.ref(one)
            self._others.clear()
            return True
        self._others.add(id(one))
        return False


class _Budgets:
    """What may be spent in a step, what was, and the worst step for each budget that was not kept."""

    _WORDS: Final = {
        "max_syncs": ("the host waited {} for a device", "{}"),
        "max_bytes_to_device": ("{} bytes were copied to devices", "{} bytes"),
        "max_bytes_to_host": ("{} bytes were copied to the host", "{} bytes"),
    }

    def __init__(self, limits: dict[str, int | None]) -> None:
        self.limits = {name: limit for name, limit in limits.items() if limit is not None}
        self._spent: dict[str, Counter[tuple[Site | None, str]]] = {name: Counter() for name in self.limits}
        self._worst: dict[str, tuple[int, int, Counter[tuple[Site | None, str]]]] = {}
        self._broken: Counter[str] = Counter()

    def spend(self, event: Event) -> None:
        if not self.limits or event.allowed is not None or event.kind not in ("waited", "moved"):
            return
        to_host = event.target == str(HOST)
        name = "max_syncs" if event.kind == "waited" else "max_bytes_to_host" if to_host else "max_bytes_to_device"
        if name in self._spent:
            self._spent[name][event.site, event.operation] += 1 if event.kind == "waited" else event.bytes

    def end_step(self, step: int, warmup_steps: int) -> None:
        for name, spent in self._spent.items():
            total = sum(spent.values())
            if step >= warmup_steps and total > self.limits[name]:
                self._broken[name] += 1
                if name not in self._worst or total > self._worst[name][0]:
                    self._worst[name] = (total, step, spent)
            self._spent[name] = Counter()

    def failures(self, steps: int, warmup_steps: int) -> list[str]:
        """A sentence for each budget that was not kept, and one if none was looked at."""
        if not self.limits:
            return []
        self.end_step(steps, warmup_steps if steps else 0)
        if 0 < steps < warmup_steps:
            return [
                f"nothing was held against the budgets: {warmup_steps} steps are for warming up, and {steps} were made"
            ]
        found = []
        for name, (total, step, spent) in self._worst.items():
            what, each = self._WORDS[name]
            count = _times if name == "max_syncs" else str
            where = f"in step {step + 1}" if steps else "in all"
            others = f", too many in {self._broken[name]} of {steps + 1 - warmup_steps} steps" if steps else ""
            lines = "; ".join(
                f"{site or 'inside torch'} `{(site and site.code) or operation}` {each.format(count(number))}"
                for (site, operation), number in spent.most_common(_MOST_LINES)
            )
            found.append(f"`{name}={self.limits[name]}`: {what.format(count(total))} {where}{others}: {lines}")
        return found


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
