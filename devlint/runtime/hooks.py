"""What a guard learns of modules and optimizers: torch's global hooks, there only while `observed` is."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from devlint.runtime import modules, optimizers
from devlint.runtime.events import Event, Unsaid
from devlint.runtime.forward_code import is_torchs_own
from devlint.runtime.history import History
from devlint.runtime.placement import HOST, device_of, place_of_first, tensors_in, unhooked
from devlint.runtime.site import own_frame
from devlint.runtime.waits import is_device

Emit = Callable[[Event], Any]
Called = Callable[[nn.Module], None]


@contextmanager
def observed(emit: Emit, history: History | None = None, called: Called | None = None) -> Iterator[None]:
    """Looks at every module that is called inside, and at every optimizer that steps, in all threads.

    `emit` gets an `Event` for each thing out of place, once, before the module's forward or the optimizer's step runs;
    what `emit` raises goes through to the caller. `history` is told of what each outermost module returns, `called`
    of each that has parameters on a device, before it runs. No hook remains afterwards.
    """
    observer = Observer(emit, history, called)
    handles: list[RemovableHandle] = [
        register_module_forward_pre_hook(observer.forward),
        register_optimizer_step_pre_hook(observer.step),
    ]
    if history is not None:
        handles.append(register_module_forward_hook(observer.returned))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class Seen:
    """How a module or optimizer stood when it was last looked at.

    Attributes:
        of: it, weakly. path: its name in the model it was found in. place: of its first parameter. inputs: places of
            the tensors it was called with. calls: since it was first seen. next: the call at which to look again.
    """

    of: weakref.ref[Any]
    path: str = ""
    place: torch.device | None = None
    inputs: tuple[torch.device | None, ...] = ()
    calls: int = 0
    next: int = 1

    def due(self, place: torch.device | None, inputs: tuple[torch.device | None, ...] = ()) -> bool:
        """Whether to look at everything again: after a move, with inputs from elsewhere, and at calls 1, 2, 4, 8, ...

        The powers of two find what is replaced later at no cost to speak of.
        """
        self.calls += 1
        if self.calls < self.next and place == self.place and inputs == self.inputs:
            return False
        self.next = max(self.next, 2 * self.calls)
        self.place, self.inputs = place, inputs
        return True


class Observer:
    """The hooks of `observed`.

    The outermost module of a call is looked at in full when that is `Seen.due`. During such a call, those modules of
    torch that hold parameters compare them with their input; between such calls an inner module costs one look-up.
    """

    def __init__(self, emit: Emit, history: History | None = None, called: Called | None = None) -> None:
        self._emit = emit
        self._history = history
        self._called = called
        self._seen: dict[int, Seen] = {}  # by id: a class may compare modules as it likes
        self._inside: dict[int, Seen] = {}
        self._thread = threading.local()
        self._unsaid = Unsaid()

    def forward(self, module: nn.Module, args: Any) -> None:
        """Before any module's forward."""
        if torch.compiler.is_compiling():
            return
        inside = self._inside.get(id(module))
        if inside is not None and inside.of() is module:
            if getattr(self._thread, "closely", False):
                self._say(self._input(module, args, inside.path))
            return
        if getattr(module, "_is_replica", False):  # of DataParallel: made for one call, its parameters are no leaves
            return
        with unhooked():
            inputs = tuple(device_of(tensor) for tensor in tensors_in(args, depth=1))
            place = place_of_first(module.parameters())
            if self._called is not None and is_device(place):
                self._called(module)
            self._thread.closely = self._find(module).due(place, inputs)
            if not self._thread.closely:
                return
            for path, inner in module.named_modules():
                known = self._inside.get(id(inner))
                if inner is not module and (known is None or known.of() is not inner):
                    self._inside[id(inner)] = Seen(weakref.ref(inner, self._forget(self._inside, id(inner))), path)
            events = [*modules.look(modules.Inventory.of(module)), *self._input(module, args, "")]
        self._say(events)

    def returned(self, module: nn.Module, args: Any, output: Any) -> None:
        """After a module's forward: what the outermost one returns may be kept by the caller, history and all."""
        if torch.compiler.is_compiling() or id(module) in self._inside or getattr(module, "_is_replica", False):
            return
        found = own_frame()
        if found is not None and self._history is not None:
            for tensor in tensors_in([output], depth=1):
                self._history.made(tensor, found[0], output=True)

    def step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Before any optimizer's step."""
        if torch.compiler.is_compiling():
            return
        with unhooked():
            due = self._find(optimizer).due(place_of_first(optimizers.parameters_of(optimizer)))
            events = []
            if due:
                models = [model for seen in self._seen.values() if isinstance(model := seen.of(), nn.Module)]
                events = [*optimizers.look(optimizer), *optimizers.unlearnt(optimizer, models)]
        self._say(events)

    @staticmethod
    def _input(module: nn.Module, args: Any, path: str) -> list[Event]:
        if not is_torchs_own(module):
            return []  # its code may do anything with an input; torch's modules inside it are asked in their turn
        with unhooked():
            home = place_of_first(module.parameters(recurse=False))
            if home is None or home == HOST:  # what was not moved is named by the operation, with who holds it
                return []
            # Torch runs this global hook first: what `register_forward_pre_hook(lambda module, args: args[0].cuda())`
            # or a `forward` of the instance moves is silent here, and what these leave is named by the operation.
            return list(modules.inputs_away(module, args, {}, home, path))

    def _find(self, thing: Any) -> Seen:
        seen = self._seen.get(id(thing))
        if seen is None or seen.of() is not thing:
            seen = self._seen[id(thing)] = Seen(weakref.ref(thing, self._forget(self._seen, id(thing))))
        return seen

    def _say(self, events: list[Event]) -> None:
        for event in self._unsaid(events):
            self._emit(event)

    @staticmethod
    def _forget(seen: dict[int, Seen], number: int) -> Callable[[Any], None]:
        def forget(reference: weakref.ref[Any]) -> None:
            found = seen.get(number)
            if found is not None and found.of is reference:
                del seen[number]

        return forget
