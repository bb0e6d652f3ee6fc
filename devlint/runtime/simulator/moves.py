"""Moves between pretended devices: copies of real values, with a gradient that travels back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from devlint.runtime.placement import HOST, Record, device_of, record_for, record_of, unhooked

if TYPE_CHECKING:
    from devlint.runtime.simulator import Simulator


def move(
    simulator: Simulator,
    tensor: torch.Tensor,
    device: torch.device,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """``tensor.to(device, dtype, memory_format=...)`` from another device: always a copy.

    The gradient goes back to where `tensor` is, as torch's own does (``ToCopyBackward0`` knows the source's device).
    """
    home, known = device_of(tensor), record_of(tensor)
    layout: dict[str, Any] = {} if memory_format is None else {"memory_format": memory_format}
    with simulator.sending(device):
        moved = torch.Tensor.to(tensor, HOST, dtype, copy=True, **layout)
    if moved.grad_fn is not None and home is not None:
        moved.grad_fn.register_hook(_back(simulator, home))
    record_for(moved).source = Record() if known is None else known.origin()
    return moved


def brought(simulator: Simulator, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` if it is on `device`, else a copy of it there; memory that may be anywhere is there from now on."""
    place = device_of(tensor)
    if place is None:
        simulator.put(tensor, device)
        return tensor
    if place == device:
        return tensor
    with unhooked():  # called by the engine, and no move of the program's
        return move(simulator, tensor, device)


def _back(simulator: Simulator, home: torch.device) -> Any:
    def hook(gradients: Any, _: Any) -> Any:
        return tuple(None if one is None else brought(simulator, one, home) for one in gradients)

    return hook


def bring_gradient_home(simulator: Simulator, scalar: torch.Tensor) -> None:
    """Lets the gradient of a zero-dimensional host tensor that met device tensors end on the host.

    Torch's engine moves zero-dimensional gradients to the device of what they belong to (``validate_outputs`` of
    torch/csrc/autograd/engine.cpp).
    """
    record = record_for(scalar)
    if scalar.is_leaf:  # it outlives the graph: one hook is enough
        if record.homing:
            return
        record.homing = True
    handle = scalar.register_hook(lambda gradient: brought(simulator, gradient, HOST))
    hooks = scalar._backward_hooks  # by id, in the order in which they run: those of the program come after
    if hooks is not None and len(hooks) > 1:
        own = hooks.pop(handle.id)
        others = dict(hooks)
        hooks.clear()
        hooks.update({handle.id: own, **others})
