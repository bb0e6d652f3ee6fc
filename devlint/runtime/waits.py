"""Waits: where the host stands still until a device has done what it was given.

Three sources, so that none is missed and none counted twice:

- the calls of `ALWAYS`, which wait whenever their tensor is on a device, on every kind of device;
- the waits that C++ makes inside any other call: told by torch itself on CUDA (`sync_warnings`), seen among the ATen
  operations in the simulator (`OPERATORS`), and not known elsewhere;
- ``synchronize`` of devices, streams and events, which `reach` replaces while a guard runs.

Copies that wait come from `copies`.

Not faithful: in the simulator, kernels that wait only on a GPU (some of sparse tensors and linear algebra) are known as
far as `OPERATORS` lists them; on CUDA, torch itself leaves out those of ``torch.distributed`` and ``torch.sparse``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch

from devlint.runtime.calls import Calls, handles
from devlint.runtime.events import Event
from devlint.runtime.placement import HOST, META, device_of, unhooked
from devlint.runtime.provenance import name_of
from devlint.runtime.site import calling_frame, here

if TYPE_CHECKING:
    from devlint.runtime.guard import Guard

Tensor = torch.Tensor
aten = torch.ops.aten
IN_LOOP: Final = "host-sync-in-loop"  # the rule of a wait that comes back step after step
LEFT_ON: Final = "debugging-left-on"

#: They hand values, or a result whose size depends on values, to the host.
ALWAYS: Final = (
    Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__complex__,
    Tensor.__repr__, Tensor.__format__, Tensor.__contains__, Tensor.is_nonzero, torch.is_nonzero, Tensor.equal,
    torch.equal, Tensor.allclose, torch.allclose, Tensor.nonzero, torch.nonzero, Tensor.argwhere, torch.argwhere,
    Tensor.masked_select, torch.masked_select, Tensor.unique, torch.unique, Tensor.unique_consecutive,
    torch.unique_consecutive,
)  # fmt: skip


def is_device(place: torch.device | None) -> bool:
    """Whether work there runs beside the host's."""
    return place is not None and place.type not in ("cpu", "meta")


@handles(*ALWAYS)
def waiting(calls: Calls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that waits if one of its tensors is on a device."""
    with unhooked():
        place = calls.place(args, kwargs)
    if place in (None, HOST, META):
        return calls.look_at(place, func, args, kwargs)
    with calls.guard.quiet():
        started = time.perf_counter()
        result = calls.look_at(place, func, args, kwargs)
        seconds = time.perf_counter() - started
    waited(calls.guard, name_of(func), seconds)
    return result


#: Parts of torch that wait by themselves, where the program has no say in it.
_INEVITABLE: Final = tuple(
    os.path.join(os.path.dirname(torch.__file__), *part.split("/"), "")
    for part in ("amp", "cuda/amp", "distributed", "nn/parallel", "optim", "utils/data")
)


def waited(
    guard: Guard,
    operation: str,
    seconds: float,
    *,
    rule: str | None = None,
    message: str | None = None,
    repeated: str | None = IN_LOOP,
) -> None:
    """Tells the guard that the host has waited; under `repeated` if that goes on step after step."""
    guard.arrivals.arrived()
    caller = calling_frame()
    if caller is not None and caller.f_code.co_filename.startswith(_INEVITABLE):
        repeated = None
    checks = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    if rule is None and checks and operation.endswith((".backward", ".grad")):
        rule, repeated = LEFT_ON, None
        message = f"the host waits in `{operation}` for a check of every gradient: anomaly detection is on"
    guard.emit(
        Event(
            "waited",
            rule,
            message or f"the host waits for the device in `{operation}`",
            operation,
            here(),
            seconds=None if guard.report.simulated else seconds,
        ),
        repeated,
    )


# Waits inside of C++ --------------------------------------------------------------------------------------------------


def _masks(args: tuple[Any, ...]) -> bool:
    """A mask among the indices is turned into positions first, and how many these are only the device knows."""
    return any(t is not None and t.dtype in (torch.bool, torch.uint8) and is_device(device_of(t)) for t in args[1])


def _puts_by_mask(args: tuple[Any, ...]) -> bool:
    """One value for all that a mask selects needs no positions: it is filled in."""
    one = args[2].numel() == 1 and not (len(args) > 3 and args[3])
    return is_device(device_of(args[2])) if one and _masks(args) else _masks(args)


def _checks_probabilities(args: tuple[Any, ...]) -> bool:
    """Drawing without replacement, or once, looks whether they are sound."""
    return args[1] == 1 or not (len(args) > 2 and args[2])


#: The ATen operations that read a device's values on the host, with when they do.
OPERATORS: Final[dict[Any, Callable[[tuple[Any, ...]], bool] | None]] = {
    **dict.fromkeys((
        aten._local_scalar_dense.default, aten.nonzero.default, aten.nonzero.out, aten.masked_select.default,
        aten.masked_select.out, aten._unique.default, aten._unique2.default, aten.unique_dim.default,
        aten.unique_consecutive.default, aten.unique_dim_consecutive.default, aten.repeat_interleave.Tensor,
        aten.equal.default, aten.bincount.default, aten._linalg_check_errors.default, aten._ctc_loss.Tensor,
    )),
    aten.index.Tensor: _masks,
    aten.index_put.default: _puts_by_mask,
    aten.index_put_.default: _puts_by_mask,
    aten._index_put_impl_.default: _puts_by_mask,
    aten.multinomial.default: _checks_probabilities,
}  # fmt: skip


def waits_in_simulation(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an ATen operation would make the host wait for the imaginary device."""
    if func not in OPERATORS or not isinstance(args[0], Tensor) or not is_device(device_of(args[0])):
        return False
    condition = OPERATORS[func]
    return condition is None or condition(args)


def running_call(frame: FrameType | None) -> tuple[str, float | None]:
    """The call of torch's API that runs, and since when; ``"torch"`` where none does."""
    while frame is not None:
        if frame.f_code is Calls.run.__code__:
            return name_of(frame.f_locals["func"]), frame.f_locals.get("started")
        frame = frame.f_back
    return "torch", None


def waited_inside(guard: Guard) -> None:
    """Torch's C++ has just waited, in this thread."""
    operation, started = running_call(sys._getframe(1))
    with guard.quiet():
        waited(guard, operation, time.perf_counter() - started if started is not None else 0.0)
