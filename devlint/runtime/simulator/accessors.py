"""What a tensor says of itself: its device, its type, its text, its values as NumPy's."""

from __future__ import annotations

from typing import Any

import torch

from devlint.runtime.placement import HOST, device_of, pretend, unhooked
from devlint.runtime.simulator import Simulator
from devlint.runtime.simulator.functions import handles

Tensor = torch.Tensor


@handles(Tensor.device.__get__)
def device(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return device_of(args[0]) or simulator.machine.device(simulator.machine.kind)


@handles(Tensor.is_cuda.__get__)
def is_cuda(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return (device_of(args[0]) or HOST).type == "cuda"


@handles(Tensor.is_mps.__get__)
def is_mps(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return (device_of(args[0]) or HOST).type == "mps"


@handles(Tensor.is_cpu.__get__)
def is_cpu(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    return (device_of(args[0]) or HOST).type == "cpu"


@handles(Tensor.get_device)
def get_device(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    index = (device_of(args[0]) or HOST).index
    return -1 if index is None else index


@handles(Tensor.grad.__get__)
def grad(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """torch's engine brings a zero-dimensional gradient to its leaf's device; real values need no such move."""
    gradient = func(*args, **kwargs)
    if gradient is not None and gradient.dim() == 0 and device_of(gradient) != device_of(args[0]):
        pretend(gradient, None if device_of(args[0]) == HOST else device_of(args[0]))
    return gradient


@handles(Tensor.numpy, Tensor.__array__)
def numpy(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    place = device_of(args[0]) or HOST
    if simulator.machine.is_device(place) and not kwargs.get("force"):
        raise TypeError(
            f"can't convert {place} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return func(*args, **kwargs)


@handles(Tensor.__repr__)
def text(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    if not simulator.machine.is_device(device_of(args[0])):
        return func(*args, **kwargs)
    with simulator.functions:  # torch's printing asks for the device
        return torch._tensor_str._str(args[0], **kwargs)


@handles(Tensor.__deepcopy__)
def deepcopy(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    copy = func(*args, **kwargs)
    place = device_of(args[0])
    if simulator.machine.is_device(place) and not simulator.machine.is_device(device_of(copy)):
        pretend(copy, place)
    return copy


@handles(Tensor.type)
def type_(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    place = device_of(args[0]) or HOST
    if len(args) == 1 and not kwargs:
        with unhooked():
            name = func(*args)
        return name.replace("torch.", f"torch.{place.type}.") if simulator.machine.is_device(place) else name
    return func(*args, **kwargs)
