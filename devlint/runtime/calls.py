"""A guard's function mode: every call of torch's Python API, looked at before it runs and after.

The handlers of `copies` and `waits` answer for the calls that copy or wait; all others come to `Calls.look`. What a
call does is never changed: it runs once, with the arguments it was given.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode

from devlint.runtime import sync_warnings
from devlint.runtime.errors import DevicePlacementError
from devlint.runtime.mismatch import checked
from devlint.runtime.placement import ATTRIBUTE, Record, unhooked, unhooked_device_of, unhooked_storage_of
from devlint.runtime.site import is_own_traceback, own_frame

if TYPE_CHECKING:
    from devlint.runtime.guard import Guard

Tensor = torch.Tensor
Handler = Callable[["Calls", Any, tuple[Any, ...], dict[str, Any]], Any]
_handlers: dict[Any, Handler | None] = {}
_MOST_RESULTS: Final = 16  # of one call: more are what an optimizer computes for itself
MIXED: Final = torch.device("meta", 127)  # no tensor's place


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Lets a handler answer for `functions`, as torch's function modes are given them."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            _handlers[function] = handler
        return handler

    return register


class Calls(TorchFunctionMode):
    """One guard's look at one thread.

    Attributes:
        fresh: what is known of tensors on the host that a factory made, as long as nothing but factories was called
            since: to move such a tensor is to have made it in the wrong place.
    """

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.guard = guard
        self.fresh: list[Record] = []
        self._simulated = guard.report.simulated
        self._place_of: Callable[[Tensor], torch.device | None] = (
            unhooked_device_of if self._simulated else attrgetter("device")
        )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True  # pytest then shows the program's line
        if torch.compiler.is_compiling():  # first, and alone: the compiler reads this line and leaves the rest out
            return func(*args, **(kwargs or {}))
        handler = _handlers.get(func, Calls.look)
        if handler is None or self.guard.closed:
            return func(*args, **kwargs) if kwargs else func(*args)
        try:
            return handler(self, func, args, kwargs or {})
        except DevicePlacementError as error:
            if is_own_traceback(error.__traceback__):  # the user's line, then this one, and no more of ours
                raise error.with_traceback(None) from error.__cause__
            raise

    def look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the call; raises instead if torch would refuse its operands' places."""
        with unhooked():
            place = self.place(args, kwargs)
        return self.look_at(place, func, args, kwargs)

    def look_at(self, place: torch.device | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As `look`, where the `place` of the call is known."""
        self.fresh.clear()
        if self.guard.arrivals.awaited:
            with unhooked():
                self.guard.arrivals.read(args, kwargs)
        result = self.run(func, args, kwargs, place is MIXED)
        self.made(result, func)
        return result

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mixed: bool) -> Any:
        """Runs the call. `waits.running_call` finds this frame, and reads what runs and since when."""
        started = time.perf_counter()
        result = checked(self.guard, func, args, kwargs) if mixed else func(*args, **kwargs)
        del started
        return result

    def place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
        """The place of all tensors of a call; ``None``: it has none. Several places are `MIXED`."""
        place = _common(args, None, self._place_of)
        if kwargs and place is not MIXED:
            place = _common(kwargs.values(), place, self._place_of)
        if not self._simulated and place is not None and (place.type == "cuda" or place is MIXED):
            sync_warnings.keep_listening()
        return place

    def made(self, result: Any, func: Any) -> None:
        """Notes where the results of a call were made."""
        if isinstance(result, Tensor):
            with unhooked():
                self._note(result, func)
        elif isinstance(result, (list, tuple)) and len(result) <= _MOST_RESULTS:
            with unhooked():
                for item in result:
                    if isinstance(item, Tensor):
                        self._note(item, func)

    def _note(self, tensor: Tensor, func: Any) -> None:
        storage = unhooked_storage_of(tensor)
        record = getattr(storage, ATTRIBUTE, None)
        if record is None:
            if storage is None:
                return
            record = Record()
            setattr(storage, ATTRIBUTE, record)
        history = tensor.requires_grad and tensor.dim() == 0
        if record.made is None or history:
            found = own_frame()
            frame = found[0] if found else None
            if record.made is None:
                record.made, record.by = frame, func
            if history:
                self.guard.history.made(tensor, frame)


def _common(
    values: Iterable[Any], place: torch.device | None, place_of: Callable[[Tensor], torch.device | None]
) -> torch.device | None:
    """The place of all tensors among `values` and in their lists, where those seen before are at `place`."""
    for value in values:
        if isinstance(value, Tensor):
            other = place_of(value)
            if place is None:
                place = other
            elif other is not None and other != place:
                return MIXED
        elif isinstance(value, (list, tuple)):
            place = _common(value, place, place_of)
            if place is MIXED:
                return MIXED
    return place


def _questions() -> set[Any]:
    """What is only asked of a tensor or torch, or noted on it: nothing runs on a device, so nobody looks."""
    described = [value for value in vars(torch._C.TensorBase).values() if isinstance(value, types.GetSetDescriptorType)]
    attributes = {value.__get__ for value in described} | {value.__set__ for value in described}
    methods = """
        dim size stride numel nelement element_size storage_offset data_ptr untyped_storage is_contiguous is_complex
        is_floating_point is_signed is_conj is_neg is_inference is_set_to is_same_size get_device is_pinned __len__
        requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook __hash__ detach __dir__
        _typed_storage storage has_names dim_order is_shared share_memory_ __reduce_ex__ __setstate__ _is_view
    """.split()
    functions = """
        is_floating_point is_complex is_grad_enabled is_inference numel is_tensor get_default_dtype _set_grad_enabled
        set_grad_enabled _has_compatible_shallow_copy_type can_cast result_type promote_types is_same_size
    """.split()
    asked = [getattr(Tensor, name, None) for name in methods] + [getattr(torch, name, None) for name in functions]
    asked += [getattr(torch._C, "_set_grad_enabled", None)]
    return attributes | {function for function in asked if function is not None}


_handlers.update(dict.fromkeys(_questions()))
