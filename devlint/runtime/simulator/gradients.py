"""Where gradients are: what autograd's engine checks, for memory whose real device is always the host."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, Function

from devlint.runtime.placement import device_of, tensors_in
from devlint.runtime.simulator import Simulator
from devlint.runtime.simulator.functions import getter, handles, setter
from devlint.runtime.simulator.moves import brought

Tensor = torch.Tensor


@handles(getter("grad"))
def gradient(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """A gradient is where its tensor is, be it one of zeros that the engine made from nothing."""
    found = func(*args, **kwargs)
    if found is not None and device_of(found) is None:
        simulator.put(found, device_of(args[0]))
    return found


@handles(setter("grad"))
def assign_gradient(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, new = args
    here, there = device_of(tensor), device_of(new) if isinstance(new, Tensor) else None
    if here is not None and there is not None and here != there:
        if here.type == there.type:
            raise RuntimeError("assigned grad has data located on a different device")
        raise RuntimeError(
            f"attempting to assign a gradient with device type '{there.type}' to a tensor with device type "
            f"'{here.type}'. Please ensure that the gradient and the tensor are on the same device"
        )
    return func(*args, **kwargs)


def replacements(simulator: Simulator) -> list[tuple[Any, str, Any]]:
    """What of autograd is replaced while the simulator runs: (owner, name, what stands there)."""
    engine = torch.autograd.graph._engine_run_backward
    apply_forward = Function.__dict__["apply"]  # a method of Python's; of C's from torch 2.14 on
    apply_backward = BackwardCFunction.__dict__["apply"]

    def run_backward(tensors: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        for i, (tensor, given) in enumerate(zip(tensors, gradients, strict=True)):
            if isinstance(tensor, Tensor) and isinstance(given, Tensor):
                _check("invalid gradient", i, given, device_of(tensor))
        with simulator.in_backward():
            return engine(tensors, gradients, *args, **kwargs)

    push_hooks = torch._C._autograd._push_saved_tensors_default_hooks

    def push_visible_hooks(pack: Any, unpack: Any) -> None:
        """Code of the program that runs inside of operations, where the function mode is hidden."""
        push_hooks(_visible(simulator, pack), _visible(simulator, unpack))

    def forward(cls: Any, *args: Any, **kwargs: Any) -> Any:
        """``Function.apply``: its node remembers where inputs and outputs were."""
        inputs = [device_of(value) if isinstance(value, Tensor) else None for value in args]
        result = apply_forward.__get__(None, cls)(*args, **kwargs)
        outputs = list(tensors_in([result], depth=1))
        node = next((tensor.grad_fn for tensor in outputs if isinstance(tensor.grad_fn, cls._backward_cls)), None)
        if node is not None:
            node._devlint_inputs = inputs
            node._devlint_outputs = [device_of(tensor) for tensor in outputs]
        return result

    def backward(node: Any, *gradients: Any) -> Any:
        """The engine's call of a custom function: gradients come from where the outputs were, go to the inputs."""
        inputs = getattr(node, "_devlint_inputs", None)
        if inputs is None:  # made before the simulator ran
            return apply_backward(node, *gradients)
        for one, place in zip(gradients, node._devlint_outputs, strict=False):
            if isinstance(one, Tensor) and device_of(one) is None:
                simulator.put(one, place)
        result = apply_backward(node, *gradients)
        several = isinstance(result, tuple)
        items = list(result) if several else [result]
        for i, (one, place) in enumerate(zip(items, inputs, strict=False)):
            if isinstance(one, Tensor) and place is not None:
                _check(f"Function {type(node).__name__} returned an invalid gradient", i, one, place)
                items[i] = brought(simulator, one, place)
        return tuple(items) if several else items[0]

    return [
        (torch.autograd, "_engine_run_backward", run_backward),
        (torch._C._autograd, "_push_saved_tensors_default_hooks", push_visible_hooks),
        (Function, "apply", classmethod(forward)),
        (BackwardCFunction, "apply", backward),
    ]


def _check(what: str, index: int, given: Tensor, place: torch.device | None) -> None:
    found = device_of(given)
    if found is not None and place is not None and found != place and given.dim() > 0:
        raise RuntimeError(f"{what} at index {index} - expected device {place} but got {found}")


def _visible(simulator: Simulator, function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with simulator.visible():
            return function(*args, **kwargs)

    return call


@handles(torch.nn.functional.triplet_margin_with_distance_loss)
def with_distance(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """The one function of the API that calls a function of the program."""
    if kwargs.get("distance_function") is not None:
        kwargs = {**kwargs, "distance_function": _visible(simulator, kwargs["distance_function"])}
    return func(*args, **kwargs)
