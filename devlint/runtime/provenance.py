"""Where a tensor came from and where it is kept, found out when an error is to name it.

Looked for in the running frames: their variables, the modules among these with all that is in them, and the objects
whose methods run. Nothing of this is kept; a tensor is recognized by its storage, so that ``weight.t()`` is known as
the weight that it is a view of.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Literal

import torch
from torch import nn

from devlint.runtime.placement import storage_of, tensors_in, unhooked
from devlint.runtime.site import is_torchs_own

_MODULE_CALL: Final = frozenset({nn.Module._call_impl.__code__, nn.Module._wrapped_call_impl.__code__})
_MOST_ITEMS: Final = 1000  # looked at in one list or dict
_RECURRENT_FUNCTIONS: Final = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
#: Their parameters, by whether the input is packed: torch's own table has one signature for each.
_RECURRENT: Final = {False: ["input", "hx", "params"], True: ["data", "batch_sizes", "hx", "params"]}
_OF_MODULES: Final = frozenset(vars(nn.Module()))


@dataclass(frozen=True)
class Home:
    """What holds a tensor.

    Attributes:
        path: ``model.encoder.mask``, as seen from the outermost running function that can see it.
        kind: ``unregistered``: a parameter or buffer of a module that its parent holds in a plain list or dict;
            ``attribute``: a plain attribute, or in a list that is one.
        owner: the module or object whose it is; ``None`` for a variable.
    """

    path: str
    kind: Literal["parameter", "buffer", "unregistered", "attribute", "variable"]
    owner: Any = None


def key_of(tensor: torch.Tensor) -> int | None:
    """What tells storages apart; ``None`` for a tensor without one."""
    with unhooked():
        storage = storage_of(tensor)
        return None if storage is None else storage._cdata


def homes(tensors: list[torch.Tensor], frame: FrameType | None) -> list[Home | None]:
    """What holds each of `tensors`, by the variables of `frame` and of its callers; ``None`` where nothing is found."""
    wanted = {key for tensor in tensors if (key := key_of(tensor)) is not None}
    frames = []
    while frame is not None:
        if not is_torchs_own(frame):
            frames.append(frame)
        frame = frame.f_back
    found: dict[int, Home] = {}
    with unhooked():
        search = _Search(wanted, found)
        for frame in reversed(frames):  # from outside: a model knows the longest path
            for name, value in list(frame.f_locals.items()):
                search.variable(name, value)
        for frame in frames:
            for name, value in list(frame.f_globals.items()):
                if _is(value, nn.Module):
                    search.module(name, value, registered=True)
        for frame in frames:
            for name, value in list(frame.f_locals.items()):
                search.plain(name, value, "variable", None)
    return [found.get(key) if (key := key_of(tensor)) is not None else None for tensor in tensors]


class _Search:
    def __init__(self, wanted: set[int], found: dict[int, Home]) -> None:
        self.wanted = wanted
        self.found = found
        self._seen: set[int] = set()

    def variable(self, name: str, value: Any) -> None:
        """A variable that holds a module, modules, or an object whose attributes are tensors."""
        if _is(value, nn.Module):
            self.module(name, value, registered=True)
        elif _is(value, (list, tuple, dict)):
            for key, item in _items(value):
                if _is(item, nn.Module):
                    self.module(f"{name}[{key!r}]", item, registered=True)
        elif name == "self":
            self._attributes(name, value, frozenset())

    def module(self, path: str, module: nn.Module, registered: bool) -> None:
        """A module with all that is in it."""
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        for kind, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
            for name, tensor in tensors.items():
                self.plain(f"{path}.{name}", tensor, kind if registered else "unregistered", module)
        for name, child in module._modules.items():
            if child is not None:
                self.module(f"{path}[{name}]" if name.isdigit() else f"{path}.{name}", child, registered)
        self._attributes(path, module, _OF_MODULES)

    def _attributes(self, path: str, owner: Any, leave: frozenset[str]) -> None:
        try:
            attributes = object.__getattribute__(owner, "__dict__")
        except AttributeError:  # slots
            return
        for name, value in list(attributes.items()):
            if name in leave:
                continue
            self.plain(f"{path}.{name}", value, "attribute", owner)
            if _is(owner, nn.Module) and _is(value, (list, tuple, dict)):
                for key, item in _items(value):
                    if _is(item, nn.Module):
                        self.module(f"{path}.{name}[{key!r}]", item, registered=False)
            elif _is(value, nn.Module):
                self.module(f"{path}.{name}", value, registered=True)

    def plain(self, path: str, value: Any, kind: Any, owner: Any) -> None:
        """A tensor, or those in a list or dict."""
        for key, tensor in [("", value)] if _is(value, torch.Tensor) else _items(value):
            if _is(tensor, torch.Tensor):
                storage = storage_of(tensor)
                if storage is not None and storage._cdata in self.wanted:
                    name = path if tensor is value else f"{path}[{key!r}]"
                    self.found.setdefault(storage._cdata, Home(name, kind, owner))


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if _is(value, dict):
        items: Any = value.items()
    elif _is(value, (list, tuple)):
        items = enumerate(value)
    else:
        return
    for number, item in enumerate(list(items)):
        if number == _MOST_ITEMS:
            return
        yield item


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    """As ``isinstance``, but without asking the value, which may be a proxy that has nothing to answer with."""
    return issubclass(type(value), kind)


def outermost_module(frame: FrameType | None) -> tuple[nn.Module, list[torch.Tensor]] | None:
    """The module that was called first of those that run, with the tensors it was called with."""
    called: FrameType | None = None
    while frame is not None:
        if frame.f_code in _MODULE_CALL:
            called = frame
        frame = frame.f_back
    if called is None:
        return None
    inputs = [called.f_locals.get("args", ()), called.f_locals.get("kwargs", {})]
    return called.f_locals["self"], list(tensors_in(inputs))


def arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a call, with the argument that each was passed as, by the names that the function documents."""
    parameters = _RECURRENT[_is_packed(args)] if func in _RECURRENT_FUNCTIONS else _parameters(func)
    named = [(parameters[i] if i < len(parameters) else f"argument {i + 1}", value) for i, value in enumerate(args)]
    found = []
    for name, value in [*named, *kwargs.items()]:
        if isinstance(value, torch.Tensor):
            found.append((name, value))
        found += [(f"{name}[{key!r}]", item) for key, item in _items(value) if isinstance(item, torch.Tensor)]
    return found


def _is_packed(args: tuple[Any, ...]) -> bool:
    return len(args) > 3 and isinstance(args[3], (list, tuple))


def _parameters(func: Any) -> list[str]:
    """Parameter names; torch's own table has those of the functions that are written in C++."""
    documented: dict[Any, Callable[..., Any]] = torch.overrides.get_testing_overrides()
    try:
        parameters = inspect.signature(documented.get(func, func)).parameters
    except (TypeError, ValueError):  # C++ without a signature
        return []
    return [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_POSITIONAL]


def name_of(func: Any) -> str:
    """What the user calls: ``Tensor.item``, ``torch.nn.functional.linear``, ``torch.stack``."""
    name = getattr(func, "__name__", None) or str(func)
    if name in ("__get__", "__set__"):
        return f"Tensor.{getattr(getattr(func, '__self__', None), '__name__', name)}"
    for library in ("linalg", "fft", "special"):
        if name.startswith(f"{library}_"):
            return f"torch.{library}.{name.removeprefix(f'{library}_')}"
    for owner, prefix in ((torch.nn.functional, "torch.nn.functional."), (torch, "torch."), (torch.Tensor, "Tensor.")):
        if getattr(owner, name, None) is func or getattr(owner, name, None) == func:
            return prefix + name
    module = getattr(func, "__module__", None)
    return f"{module}.{name}" if module and not module.startswith("torch._") else f"torch.{name}"
