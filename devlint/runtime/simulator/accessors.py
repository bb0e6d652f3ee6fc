"""What a tensor says of itself: its device, its type, its text, its values as NumPy's."""

from __future__ import annotations

from typing import Any

import torch

from devlint.runtime.placement import HOST, device_of, unhooked
from devlint.runtime.simulator import Simulator
from devlint.runtime.simulator.functions import getter, handles
from devlint.runtime.simulator.transfers import to

Tensor = torch.Tensor


@handles(getter("device"))
def device(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return device_of(args[0]) or simulator.machine.device(simulator.machine.kind)


@handles(getter("is_cuda"))
def is_cuda(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return (device_of(args[0]) or HOST).type == "cuda"


@handles(getter("is_mps"))
def is_mps(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return (device_of(args[0]) or HOST).type == "mps"


@handles(getter("is_cpu"))
def is_cpu(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return (device_of(args[0]) or HOST).type == "cpu"


@handles(Tensor.get_device, torch.get_device)
def get_device(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    index = (device_of(args[0]) or HOST).index
    return -1 if index is None else index


@handles(torch.device)
def device_of_index(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """``torch.device(0)`` asks torch for the accelerator it was built with: here, the imaginary one."""
    if args and isinstance(args[0], int) and not isinstance(args[0], bool):
        return torch.device(simulator.machine.kind, *args)
    return func(*args, **kwargs)


def _needs_host(simulator: Simulator, tensor: Tensor) -> torch.device | None:
    place = device_of(tensor)
    return place if simulator.machine.is_device(place) else None


@handles(Tensor.numpy, Tensor.__array__)
def numpy(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    place = _needs_host(simulator, args[0])
    if place is None:
        return func(*args, **kwargs)
    if kwargs.get("force"):
        return func(args[0].detach().clone(), **kwargs)  # a copy: no array shares memory with a device
    raise TypeError(
        f"can't convert {place} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


@handles(Tensor.apply_, Tensor.map_)
def apply_(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    if _needs_host(simulator, args[0]):
        raise TypeError(f"{func.__name__} is only implemented on CPU tensors")
    return func(*args, **kwargs)


@handles(Tensor.__dlpack_device__)
def dlpack_device(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    kind, index = func(*args, **kwargs)
    place = _needs_host(simulator, args[0])
    if place is None:
        return kind, index
    names = {"cuda": "kDLCUDA", "mps": "kDLMetal"}
    return type(kind)[names[place.type]], place.index


@handles(Tensor.__dlpack__)
def dlpack(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """Memory of the host can be shared with whoever asks; what is on a device, with torch alone (`storages`)."""
    if _needs_host(simulator, args[0]):
        raise BufferError("Unsupported device in DLTensor.")
    return func(*args, **kwargs)


@handles(Tensor.__repr__)
def text(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    if _needs_host(simulator, args[0]) is None:
        return func(*args, **kwargs)
    with simulator.visible():  # torch's printing asks for the device
        return torch._tensor_str._str(args[0], **kwargs)


@handles(Tensor.__format__)
def formatted(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """A number is formatted as one; else the text is the representation, which names the device."""
    if _needs_host(simulator, args[0]) is None or args[0].dim() == 0:
        return func(*args, **kwargs)
    with simulator.visible():
        return object.__format__(*args)


@handles(Tensor.type)
def type_(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """``x.type()`` names a type, of which ``x.type(name)`` makes a dtype and a device."""
    tensor, asked = args[0], args[1] if len(args) > 1 else kwargs.get("dtype")
    kind = simulator.machine.kind
    if asked is None:
        place = _needs_host(simulator, tensor)
        with unhooked():
            name = tensor.type()
        return name.replace("torch.", f"torch.{place.type}.", 1) if place else name
    if isinstance(asked, torch.dtype):
        return to(simulator, Tensor.to, (tensor, asked), {})
    name = asked if isinstance(asked, str) else f"{asked.__module__}.{asked.__name__}"
    wanted = name.replace(f"torch.{kind}.", "torch.", 1)
    with unhooked():
        dtype = torch.empty(0).type(wanted).dtype
    place = HOST if wanted == name else device_of(tensor)
    if wanted != name and not simulator.machine.is_device(place):
        place = simulator.machine.device(kind)
    return to(simulator, Tensor.to, (tensor, place, dtype), {})
