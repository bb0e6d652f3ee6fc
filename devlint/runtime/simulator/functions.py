"""The function mode: every call of torch's Python API, handed to the handler that knows what a device means to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from devlint.runtime.legality_calls import call_refusal, concerns
from devlint.runtime.placement import device_of, unhooked

if TYPE_CHECKING:
    from devlint.runtime.simulator import Simulator

Handler = Callable[["Simulator", Any, tuple[Any, ...], dict[str, Any]], Any]
_handlers: dict[Any, Handler] = {}


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Lets a handler answer for `functions`: torch callables, or what `getter` and `setter` give."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            _handlers[function] = handler
        return handler

    return register


def getter(name: str) -> Any:
    """What the function mode is given when an attribute of a tensor is read."""
    return getattr(torch.Tensor, name).__get__


def setter(name: str) -> Any:
    """What the function mode is given when an attribute of a tensor is assigned."""
    return getattr(torch.Tensor, name).__set__


class Functions(TorchFunctionMode):
    """Passes each call to its handler, or straight on."""

    def __init__(self, simulator: Simulator) -> None:
        super().__init__()
        self.simulator = simulator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if concerns(func, kwargs):
            with unhooked():
                refused = call_refusal(func, args, kwargs or {}, device_of)
            if refused is not None:
                raise refused.error(refused.message)
        handler = _handlers.get(func)
        if handler is not None:
            result = handler(self.simulator, func, args, kwargs or {})
        elif kwargs:
            result = func(*args, **kwargs)
        else:
            result = func(*args)
        if self.simulator.loose:
            self.simulator.settle(args, kwargs)
        return result
