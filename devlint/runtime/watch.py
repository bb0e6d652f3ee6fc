"""`devlint.watch(model)`: a look at a model and its inputs before it runs, cheap enough to leave on."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from devlint.runtime import modules
from devlint.runtime.errors import DevicePlacementError, DevicePlacementWarning
from devlint.runtime.events import Event, Report, Unsaid
from devlint.runtime.forward_code import is_torchs_own
from devlint.runtime.hooks import Seen
from devlint.runtime.placement import device_of, place_of_first, tensors_in, unhooked

On = Literal["raise", "warn", "collect"]


def watch(model: nn.Module, device: torch.device | str | int | None = None, on: On = "warn") -> Watch:
    """Looks at `model` before it runs: at its parameters, buffers and plain attributes, and at its inputs.

    One forward pre-hook is put on `model`, and nothing is read from a device. Where inputs are on another device and
    `model` may move them itself, torch's modules inside have one too, for that call. Everything is looked at in the
    first call, after each move, when inputs come from another device than before, and in calls 2, 4, 8, 16, ...; any
    other call compares a few devices.

    Nothing is looked at in code that ``torch.compile`` compiles, in the copies that ``DataParallel`` makes, or in a
    deep copy or a pickled copy of the model. ``torch.jit.script`` takes no module with a Python hook: remove the watch
    before.

    Args:
        model: a module, as bare as it is called: the wrapped one for ``DistributedDataParallel`` and the like.
        device: where the model and its inputs should be; by default wherever most of the model is.
        on: ``"raise"`` raises `DevicePlacementError` for the first thing out of place, before `model` runs; ``"warn"``
            warns of each, once; ``"collect"`` only keeps them in the report.

    Returns:
        A handle: ``handle.report`` has what was found, ``handle.remove()`` ends it, as leaving ``with handle:`` does.

    Raises:
        TypeError: `model` is no module, or a ``ScriptModule``, which takes no hooks.
        ValueError: `on` is none of the three.
        RuntimeError: torch's own, for a `device` it does not know.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`watch` needs a torch.nn.Module, not a {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("`watch` cannot put a hook on a ScriptModule: watch the module that it is made of")
    if on not in ("raise", "warn", "collect"):
        raise ValueError(f"`on` is one of 'raise', 'warn' and 'collect', not {on!r}")
    return Watch(model, as_device(device), on)


def as_device(device: torch.device | str | int | None) -> torch.device | None:
    """What `device` names; a number is an index of the accelerator there is."""
    return None if device is None else torch.device(device)


class Watch:
    """A watched model, as `watch` returns it.

    Attributes:
        report: what was found. A model without parameters and buffers is named in ``report.stepped_aside``.
    """

    def __init__(self, model: nn.Module, device: torch.device | None, on: On) -> None:
        self.report = Report(torch=torch.__version__)
        self._device = device
        self._on = on
        self._model = weakref.ref(model)
        self._seen = Seen(self._model)
        self._unsaid = Unsaid()
        self._inner: list[RemovableHandle] = []
        self._hook = model.register_forward_pre_hook(_Hook(self), with_kwargs=True)

    def remove(self) -> None:
        """Takes the hook away; what was found stays in the report. A second call does nothing."""
        self._hook.remove()
        self._leave_inside()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The hook: looks at `module` and at what it is called with."""
        if module is not self._model():
            return  # a replica of DataParallel shares its original's hooks
        with unhooked():
            self._leave_inside()
            inputs = tuple(device_of(tensor) for tensor in tensors_in((*args, *kwargs.values()), depth=1))
            if not self._seen.due(place_of_first(module.parameters()), inputs):
                return
            events = self._look(module, args, kwargs)
        self.say(events)

    def _look(self, module: nn.Module, args: Any, kwargs: Any) -> list[Event]:
        inventory = modules.Inventory.of(module)
        if inventory.main is None and self._device is None:
            self.report.stepped_aside[type(module).__name__] = modules.NOTHING_TO_COMPARE
            return []
        events = list(modules.look(inventory, self._device))
        home = inventory.main or self._device
        if home is not None and inventory.whole:
            events += modules.inputs_away(module, args, kwargs, home, "")
            if not events and modules.has_inputs_away(args, kwargs, home) and modules.placed_by(module) is None:
                self._look_inside(module)
        return events

    def _look_inside(self, model: nn.Module) -> None:
        """For this call: its code may move the inputs that are elsewhere, or not; torch's modules inside will see."""
        for path, inner in model.named_modules():
            if not is_torchs_own(inner) or isinstance(inner, torch.jit.ScriptModule) or "forward" in vars(inner):
                continue  # `inner.forward = lambda x: plain(x.cuda())` runs after the hook, and may move its input
            home = place_of_first(inner.parameters(recurse=False))
            if home is not None:
                self._inner.append(inner.register_forward_pre_hook(_InnerHook(self, path, home)))

    def _leave_inside(self) -> None:
        while self._inner:
            self._inner.pop().remove()

    def say(self, events: Iterable[Event]) -> None:
        """Raises, warns of or keeps what was not said yet."""
        for event in self._unsaid(events):
            self.report.add(event)
            if self._on == "raise":
                raise DevicePlacementError(modules.sentence(event))
            if self._on == "warn":
                where = event.site
                warnings.warn_explicit(
                    modules.sentence(event),
                    DevicePlacementWarning,
                    where.file if where else "<unknown>",
                    where.line if where else 0,
                )


class _Silent:
    """A hook whose copy does nothing: copies and pickles of a model are not watched, and need no devlint to load."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes any arguments and returns None


class _Hook(_Silent):
    """The forward pre-hook of the watched model."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._watch.before(module, args, kwargs)


class _InnerHook(_Silent):
    """The forward pre-hook of a module of torch inside, there for a single call."""

    def __init__(self, watch: Watch, path: str, home: torch.device) -> None:
        self._watch = watch
        self._path = path
        self._home = home

    def __call__(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or getattr(module, "_is_replica", False):
            return
        with unhooked():
            events = list(modules.inputs_away(module, args, {}, self._home, self._path, moves=False))
        self._watch.say(events)
