"""Moves between pretended devices: copies of real values, with a gradient that travels back."""

from __future__ import annotations

from typing import Any

import torch

from devlint.runtime.placement import HOST, device_of, pretend, record_for, unhooked


def place_copy(tensor: torch.Tensor, device: torch.device, **kwargs: Any) -> torch.Tensor:
    """A copy of `tensor` on `device`; `kwargs` are those of ``Tensor.to`` (dtype, memory_format). No history."""
    with unhooked():
        copy = tensor.detach().to(copy=True, **kwargs)
    pretend(copy, None if device == HOST else device)
    return copy


class Move(torch.autograd.Function):
    """``x.to(device)``: the gradient goes back to where `x` was, as torch's own ``ToCopyBackward0`` sends it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: torch.device, kwargs: dict[str, Any]) -> torch.Tensor:  # type: ignore[override]
        ctx.source, ctx.dtype = device_of(tensor), tensor.dtype
        return place_copy(tensor, device, **kwargs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        return Move.apply(gradient, ctx.source or HOST, {"dtype": ctx.dtype}), None, None


def move(tensor: torch.Tensor, device: torch.device, **kwargs: Any) -> torch.Tensor:
    """``tensor.to(device, **kwargs)`` between pretended devices; always a copy."""
    with unhooked():
        tracked = torch.is_grad_enabled() and tensor.requires_grad
    moved = Move.apply(tensor, device, kwargs) if tracked else place_copy(tensor, device, **kwargs)
    record_for(moved).source = record_for(tensor)
    return moved
