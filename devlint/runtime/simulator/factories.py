"""Tensors made anew: where a factory's device argument, its prototype or the default device puts them."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors

from devlint.runtime.placement import HOST, META, device_of, place_of_first, record_for, tensors_in
from devlint.runtime.simulator import Simulator
from devlint.runtime.simulator.functions import handles
from devlint.runtime.simulator.moves import move

Tensor = torch.Tensor
_LIKE = (
    torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like,
    torch.rand_like, torch.randn_like, torch.randint_like,
)  # fmt: skip
_NEW = (
    Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full, Tensor.new_tensor, Tensor.new_empty_strided,
    Tensor.new,
)  # fmt: skip
_STORAGES = (torch.UntypedStorage, torch.storage.TypedStorage)
_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor)

_OF_TENSORS = {  # these follow the tensors that they are given; all others read them as numbers
    torch.normal, torch.sparse_coo_tensor, torch.sparse_compressed_tensor, torch.sparse_csr_tensor,
    torch.sparse_csc_tensor, torch.sparse_bsr_tensor, torch.sparse_bsc_tensor,
}  # fmt: skip


def default_device() -> torch.device | None:
    """What ``torch.set_default_device`` and ``with torch.device(...)`` ask for."""
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


def _made(simulator: Simulator, func: Any, args: Any, kwargs: Any, place: torch.device) -> Any:
    """The factory's result on `place`."""
    if place != HOST and not simulator.machine.is_device(place):
        return func(*args, **{**kwargs, "device": place})  # meta, or torch's own error
    pinned = kwargs.get("pin_memory")
    if pinned and place != HOST:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    with simulator.making(place):
        result = func(*args, **{**kwargs, "device": HOST, **({"pin_memory": False} if pinned else {})})
    for tensor in tensors_in([result]):
        if device_of(tensor) != place:  # made of another tensor, which it would follow
            simulator.put(tensor, place)
    if pinned:
        record_for(result).pinned = True
    return result


@handles(*(_device_constructors() - set(_FROM_DATA)), torch.normal)
def factory(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    asked = simulator.machine.device(kwargs.get("device"))
    if asked is None and func is not torch.normal:  # the one that no default device redirects
        asked = simulator.machine.device(default_device())
    if asked is None and func in _OF_TENSORS and any(True for _ in tensors_in([args, kwargs])):
        return func(*args, **kwargs)
    return _made(simulator, func, args, kwargs, asked or simulator.default or HOST)


@handles(*_LIKE, *_NEW)
def like(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    place = simulator.machine.device(kwargs.get("device")) or device_of(args[0]) or HOST
    if func is Tensor.new and (not simulator.machine.is_device(place) or isinstance(args[-1], _STORAGES)):
        return func(*args, **kwargs)
    return _made(simulator, func, args, kwargs, place)


@handles(*_FROM_DATA)
def from_data(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    data = args[0] if args else kwargs.get("data", kwargs.get("obj", kwargs.get("s")))
    asked = simulator.machine.device(kwargs.get("device")) or simulator.machine.device(default_device())
    place = device_of(data) if isinstance(data, Tensor) else None
    if place is None:
        return _made(simulator, func, args, kwargs, asked or simulator.default or HOST)
    if func is torch.tensor or asked is None or asked == place or META in (asked, place):
        return _made(simulator, func, args, kwargs, asked or place)
    moved = move(simulator, data, asked, kwargs.get("dtype") or (args[1] if len(args) > 1 else None))
    return moved.requires_grad_() if kwargs.get("requires_grad") else moved


def replacements(simulator: Simulator) -> list[tuple[Any, str, Any]]:
    """The one factory that no function mode sees: (owner, name, what stands there)."""
    from torch._C import _nested  # type: ignore[attr-defined]

    real = _nested.nested_tensor

    def nested_tensor(values: Any, **kwargs: Any) -> Any:
        asked = simulator.machine.device(kwargs.get("device"))
        return _made(simulator, real, (values,), kwargs, asked or place_of_first(tensors_in([values])) or HOST)

    return [(_nested, "nested_tensor", nested_tensor)]
