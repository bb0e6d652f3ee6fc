"""Waits: where the host stands still until a device has done what it was given.

Three sources, so that none is missed and none counted twice:

- the calls of `ALWAYS`, which wait whenever their tensor is on a device, on every kind of device;
- the waits that C++ makes inside any other call: told by torch itself on CUDA (`sync_warnings`), seen among the ATen
  operations in the simulator (`OPERATORS`), and not known elsewhere;
- ``synchronize`` of devices, streams and events, which `reach` replaces while a guard runs.

Copies that wait come from `copies`.

Not faithful: in the simulator, kernels that wait only on a GPU (some of sparse tensors) are known as far as `OPERATORS`
lists them; on CUDA, torch itself leaves out those of ``torch.distributed`` and ``torch.sparse``.
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
from devlint.runtime.placement import HOST, META, device_of, record_of, unhooked
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


@handles(torch.nn.functional.one_hot)
def sized_by_values(calls: Calls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``one_hot(x)`` reads the largest class; the host's kernels, which the simulator runs, check given ones too."""
    with unhooked():
        place = calls.place(args, kwargs)
    if not calls.guard.report.simulated or not is_device(place):
        return calls.look_at(place, func, args, kwargs)
    with calls.guard.quiet():
        result = calls.look_at(place, func, args, kwargs)
    if (args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) == -1:
        waited(calls.guard, name_of(func), 0.0)
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


Count = Callable[[tuple[Any, ...], dict[str, Any]], int]


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _comes_from_host(tensor: Tensor) -> bool:
    """On the host, or made there of numbers that Python's ``[...]`` was given, on its way to the device."""
    place = device_of(tensor)
    if place is not None:
        return place == HOST
    record = record_of(tensor)
    return record is not None and record.lifted


def _is_there(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return is_device(device_of(args[0]))


def _index(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many masks only the device can turn into positions, and how many positions are copied there.

    Masks on the host become positions in pinned memory, which nobody waits for (measured on torch 2.11).
    """
    given = [index for index in args[1] if index is not None and is_device(device_of(args[0]))]
    return sum(is_device(device_of(index)) if _is_mask(index) else _comes_from_host(index) for index in given)


def _index_put(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """As for `_index`, and the one value that is copied from the other side: a single mask has it filled in instead."""
    target, value, given = args[0], args[2], [index for index in args[1] if index is not None]
    if device_of(target) == HOST:
        return value.dim() == 0 and is_device(device_of(value))
    one = value.numel() == 1 and not is_device(device_of(value))
    accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if one and not accumulates and len(given) == 1 and _is_mask(given[0]) and is_device(device_of(given[0])):
        return 0
    return _index(args, kwargs) + (one and _comes_from_host(value))


def _copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """``x[0] = 1.0`` and ``x[:2] = y`` end here, where `x` is on the device or `y` is, and the other on the host."""
    if args[2] if len(args) > 2 else kwargs.get("non_blocking", False):
        return 0
    target, source = args[:2]
    there, back = is_device(device_of(target)), device_of(target) == HOST and is_device(device_of(source))
    return back or (there and _comes_from_host(source))


def _repeats(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return _is_there(args, kwargs) and kwargs.get("output_size") is None


#: The ATen operations that read a device's values on the host or copy between the two, with how often they wait for it.
#: ``multinomial`` is none of them: it no longer looks whether the probabilities are sound (measured on torch 2.11).
OPERATORS: Final[dict[Any, Count]] = {
    **dict.fromkeys((
        aten._local_scalar_dense.default, aten.nonzero.default, aten.nonzero.out, aten.masked_select.default,
        aten.masked_select.out, aten._unique.default, aten._unique2.default, aten.unique_dim.default,
        aten.unique_consecutive.default, aten.unique_dim_consecutive.default, aten.equal.default,
        aten.bincount.default, aten._ctc_loss.Tensor,
        # ... whether they succeeded
        aten._linalg_check_errors.default, aten._linalg_svd.default, aten._linalg_svd.U, aten._linalg_eigh.default,
        aten._linalg_eigh.eigenvalues, aten.linalg_eig.default, aten.linalg_eig.out,
        aten.linalg_pinv.atol_rtol_tensor, aten.linalg_pinv.atol_rtol_tensor_out, aten.cholesky.default,
        aten.cholesky.out,
    ), _is_there),
    aten.repeat_interleave.Tensor: _repeats,
    aten.index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
    aten._index_put_impl_.default: _index_put,
    aten.copy_.default: _copy,
}  # fmt: skip


def waits_in_simulation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How often an ATen operation would make the host wait for the imaginary device."""
    count = OPERATORS.get(func)
    return 0 if count is None else count(args, kwargs)


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
