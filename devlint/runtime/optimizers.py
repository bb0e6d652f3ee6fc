"""What is out of place in an optimizer: state away from its parameters, parameters that are no longer the model's.

Whether every parameter of a model is in an optimizer is not asked: several optimizers may share a model, and what is
left out may be left out on purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from devlint.runtime.events import Event
from devlint.runtime.modules import describe, made_at
from devlint.runtime.placement import HOST, device_of, tensors_in, unhooked
from devlint.runtime.site import here


def innermost(optimizer: Any) -> Optimizer:
    """torch's optimizer inside of a wrapper that hands everything on, as accelerate's does.

    Raises:
        TypeError: it is no optimizer.
    """
    seen = optimizer
    while not _is_torchs_own(seen) and isinstance(getattr(seen, "optimizer", None), Optimizer):
        seen = seen.optimizer
    if not isinstance(seen, Optimizer):
        raise TypeError(f"an optimizer of torch is needed, not a {type(optimizer).__name__}")
    return seen


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Every parameter that it updates."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def look(optimizer: Optimizer, model: nn.Module | None = None) -> Iterator[Event]:
    """Everything out of place in `optimizer`, and between it and `model` if that is given."""
    if _is_torchs_own(optimizer):  # others may keep state elsewhere on purpose, as those that offload it do
        yield from _state_away(optimizer, model)
    yield from _no_leaves(optimizer, model)
    if model is not None:
        yield from _replaced(optimizer, model)


def unlearnt(optimizer: Optimizer, models: list[nn.Module]) -> Iterator[Event]:
    """As `look` with a model, of all `models` that ran: what this optimizer updates is in none of them.

    And backward has reached the others' parameters of the same shapes alone, which a target network's and an average's
    it does not.
    """
    held = {id(parameter) for model in models for parameter in model.parameters()}
    lost = [parameter for parameter in parameters_of(optimizer) if id(parameter) not in held]
    if any(parameter.grad is None for parameter in lost):
        for model in models:
            yield from _replaced(optimizer, model, set(map(id, lost)))


def _is_torchs_own(optimizer: Any) -> bool:
    """Whether one of torch's own ``step`` methods does the work."""
    step = getattr(type(optimizer), "step", None)
    return isinstance(optimizer, Optimizer) and (getattr(step, "__module__", None) or "").startswith("torch.optim")


def _state_away(optimizer: Optimizer, model: nn.Module | None) -> Iterator[Event]:
    """State on another device than its parameter, one event for each kind of state.

    ``step`` and its like are zero-dimensional and belong on the host, unless the group is ``capturable`` or ``fused``
    (torch/optim/adam.py: "Deliberately host `step` on CPU if both capturable and fused are off").
    """
    names = _names(optimizer, model)
    found: dict[tuple[str, torch.device, torch.device], list[str]] = {}
    for group in optimizer.param_groups:
        counters_move = bool(group.get("capturable") or group.get("fused"))
        for parameter in group["params"]:
            home = device_of(parameter)
            for key, value in optimizer.state.get(parameter, {}).items():
                for tensor in tensors_in([value]):
                    place = device_of(tensor)
                    if place is None or home is None or place == home:
                        continue
                    if place == HOST and tensor.dim() == 0 and not counters_move:
                        continue
                    found.setdefault((str(key), place, home), []).append(names[id(parameter)])
    for (key, place, home), owners in found.items():
        others = f" and {len(owners) - 1} more" if len(owners) > 1 else ""
        yield _event(
            "optimizer-before-move",
            f"state `{key}` of {owners[0]}{others} is on {place}, the parameter on {home}: it was made or loaded "
            "before the move",
            f"{type(optimizer).__name__}.state.{key}",
            error=True,
        )


def _no_leaves(optimizer: Optimizer, model: nn.Module | None) -> Iterator[Event]:
    """torch refuses non-leaves when they are added, but not one that keeps its gradient (``retain_grad``)."""
    names = _names(optimizer, model)
    for parameter in parameters_of(optimizer):
        with unhooked():
            leaf = parameter.is_leaf
        if not leaf:
            yield _event(
                "non-leaf-parameter",
                f"{names[id(parameter)]}, {describe(parameter)}, is computed from another tensor: the optimizer "
                "updates the result, and what it is computed from stays as it is",
                f"{type(optimizer).__name__}.{names[id(parameter)].strip('`')}",
                parameter,
            )


def _replaced(optimizer: Optimizer, model: nn.Module, lost: set[int] | None = None) -> Iterator[Event]:
    """Parameters that are not the model's any more, where the model has others of the same shape that nobody updates.

    Both halves are needed, with the same shapes on both sides: an optimizer may update other tensors than this model's,
    and a model may have parameters that this optimizer is not to update.
    """
    held = {id(parameter) for parameter in model.parameters()}
    updated = list(parameters_of(optimizer))
    stale = [parameter for parameter in updated if id(parameter) not in held]
    known = {id(parameter) for parameter in updated}
    left_out = [parameter for parameter in model.parameters() if id(parameter) not in known and parameter.requires_grad]
    if lost is not None:
        stale = [parameter for parameter in stale if id(parameter) in lost and parameter.grad is None]
        left_out = [parameter for parameter in left_out if parameter.grad is not None]
    if not stale or _shapes(stale) != _shapes(left_out):
        return
    total = len(updated)
    yield _event(
        "optimizer-before-move",
        f"{len(stale)} of the {total} parameters that it updates are not those of `{type(model).__name__}`, which has "
        "others of the same shapes: they were replaced after the optimizer was made, and the new ones do not learn",
        type(optimizer).__name__,
        stale[0],
        error=False,
    )


def _shapes(parameters: Iterable[Tensor]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(parameter.shape) for parameter in parameters if not nn.parameter.is_lazy(parameter))


def _names(optimizer: Optimizer, model: nn.Module | None = None) -> dict[int, str]:
    """``parameter 3 of group 0``, or the model's name for it, by id."""
    names = {
        id(parameter): f"parameter {index} of group {number}"
        for number, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
    }
    for group in optimizer.param_groups:  # `named_parameters()` were given: torch >= 2.6 keeps them
        names.update(
            (id(parameter), f"`{name}`")
            for name, parameter in zip(group.get("param_names", ()), group["params"], strict=False)
        )
    if model is not None:
        names.update((id(parameter), f"`{name}`") for name, parameter in model.named_parameters())
    return names


def _event(rule: str, message: str, operation: str, tensor: Tensor | None = None, error: bool = False) -> Event:
    site = made_at(tensor) if tensor is not None else None
    notes = ((site, "the tensor was made"),) if site else ()
    return Event("optimizer", rule, message, operation, here(), notes=notes, error=error)
