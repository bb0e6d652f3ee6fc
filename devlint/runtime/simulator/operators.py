"""What an operation does to places: the dispatch mode under every ATen call, autograd's included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import _len_torch_function_stack
from torch.utils._python_dispatch import TorchDispatchMode

from devlint.runtime.legality import HOST_ONLY, follows_first, is_composite, refusal
from devlint.runtime.placement import (
    ANYWHERE,
    ATTRIBUTE,
    HOST,
    Record,
    device_of,
    record_for,
    tensors_in,
    unhooked,
    unhooked_storage_of,
)
from devlint.runtime.simulator.moves import bring_gradient_home

if TYPE_CHECKING:
    from devlint.runtime.simulator import Simulator

# What an operator is, beyond an operation on its operands.
_PLAIN, _COMPOSITE, _FRESH, _COPY, _READ_BY_HOST = range(5)

_NO_DISPATCH: Final = torch.Tensor.__torch_dispatch__


class Operators(TorchDispatchMode):
    """Gives what an operation returns the place of what it was given, and refuses mixes as torch does."""

    def __init__(self, simulator: Simulator) -> None:
        super().__init__()
        self.simulator = simulator

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spares the wrapper that torch otherwise puts around every call."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(cls.__torch_dispatch__ is not _NO_DISPATCH for cls in types):
            return NotImplemented  # a subclass with a dispatch of its own: what it does inside comes here again
        if _len_torch_function_stack():  # called by autograd's engine, not through the function mode
            with unhooked():
                return self._run(func, args, kwargs or {})
        return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        kind = _kinds.get(func)
        if kind is None:
            kind = _kinds[func] = _kind(func)
        if kind == _COMPOSITE:
            with self:  # its parts come here one by one
                return func.decompose(*args, **kwargs)
        for observe in self.simulator.observers:
            observe(func, args, kwargs)
        place = self._place(func, args, kwargs, kind)
        if kwargs and (generator := kwargs.get("generator")) is not None and place is not ANYWHERE:
            from devlint.runtime.simulator.generators import drawn_from  # late: it needs the simulator

            kwargs = {**kwargs, "generator": drawn_from(generator, place or HOST)}
        result = func(*args, **kwargs)
        if place is not None:
            self._mark(result, place)
            if kind == _FRESH and place is ANYWHERE:
                record_for(result).lifted = True
        return result

    def _place(self, func: Any, args: Any, kwargs: Any, kind: int) -> Any:
        """Where the result will be; ``None``: on the host, or where it is already; a list: by item of the result."""
        found: list[Record | None] = []
        _records(args, found)
        if kwargs:
            _records(kwargs.values(), found)
        if not found:
            return self.simulator.factory_place()
        place: Any = None
        host = anywhere = mixed = False
        for record in found:
            if record is None or record.place is None:
                host = True
            elif record.place is ANYWHERE:
                anywhere = True
            elif place is None:
                place = record.place
            elif place is not record.place and place != record.place:
                mixed = True
        if kind != _PLAIN:
            if kind == _FRESH and place is None and not anywhere:
                return self.simulator.factory_place()
            if kind == _COPY and (destination := self.simulator.destination()) is not None:
                return None if destination == HOST else destination
            mixed |= kind == _READ_BY_HOST
        if place is None:
            return None if host else ANYWHERE
        if host or mixed:
            return self._of_mixed(func, args, kwargs, place)
        if anywhere:  # memory made inside an operation is where the operands are
            for record in found:
                if record is not None and record.place is ANYWHERE:
                    record.place = place
        return place

    def _of_mixed(self, func: Any, args: Any, kwargs: Any, place: torch.device) -> Any:
        refused = refusal(func, args, kwargs, device_of)
        operands = list(tensors_in([args, kwargs]))
        if refused is not None:
            if self.simulator.in_engine() and all(tensor.dim() == 0 for tensor in operands):
                return None  # two gradients of one host scalar: the engine brings each of them there
            raise refused.error(refused.message)
        name = func._schema.name
        result: Any = place
        if func._schema.is_mutable:
            result = None  # what was written to is where it was
        elif follows_first(func):
            result = self._pretended(args[0])
        elif name == "aten::_pack_padded_sequence":
            result = [self._pretended(args[0]), None]  # the batch sizes are the host's
        elif name.startswith("aten::_foreach_"):
            result = [self._pretended_beside(args, i) for i in range(len(args[0]))]
        if torch.is_grad_enabled():
            for tensor in operands:
                if tensor.requires_grad and tensor.dim() == 0 and device_of(tensor) == HOST:
                    bring_gradient_home(self.simulator, tensor)
        return result

    def _pretended(self, tensor: torch.Tensor) -> torch.device | None:
        place = device_of(tensor)
        return place if self.simulator.machine.is_device(place) else None

    def _pretended_beside(self, args: Any, i: int) -> torch.device | None:
        """Where the i-th operation of a ``_foreach_`` makes its result: on the device, if one of its operands is."""
        lists = [value for value in args if isinstance(value, (list, tuple)) and len(value) == len(args[0])]
        places = [self._pretended(value[i]) for value in lists if isinstance(value[i], torch.Tensor)]
        return next((place for place in places if place is not None), None)

    def _mark(self, result: Any, place: Any) -> None:
        if isinstance(place, list):
            for one, where in zip(result, place, strict=True):
                if where is not None:
                    self._mark(one, where)
        elif isinstance(result, (list, tuple)):
            for one in result:
                self._mark(one, place)
        elif isinstance(result, torch.Tensor):
            storage = unhooked_storage_of(result)
            record = getattr(storage, ATTRIBUTE, None)
            if storage is None or (record is not None and record.place is not None) or result.is_meta:
                return
            if place is not ANYWHERE and place.type == "mps" and result.dtype is torch.float64:
                raise TypeError(
                    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
                    "Please use float32 instead."
                )
            self.simulator.put_storage(storage, place)


def _records(values: Any, found: list[Record | None]) -> None:
    """The records of the tensors among `values` and in their lists; ``None`` for one on the host without a record."""
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(getattr(unhooked_storage_of(value), ATTRIBUTE, None))
        elif isinstance(value, (list, tuple)):
            _records(value, found)


_kinds: dict[Any, int] = {
    torch.ops.aten.lift_fresh.default: _FRESH,
    torch.ops.aten._to_copy.default: _COPY,
}


def _kind(func: Any) -> int:
    if is_composite(func):
        return _COMPOSITE
    return _READ_BY_HOST if func._schema.name in HOST_ONLY else _PLAIN
