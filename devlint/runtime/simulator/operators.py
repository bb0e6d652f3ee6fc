"""What an operation does to places: the dispatch mode under every ATen call, autograd's included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from devlint.runtime.legality import refusal
from devlint.runtime.placement import ANYWHERE, ATTRIBUTE, Anywhere, Record, device_of, storage_of, unhooked

if TYPE_CHECKING:
    from devlint.runtime.simulator import Simulator

Place = torch.device | Anywhere | None


class Operators(TorchDispatchMode):
    """Gives what an operation returns the place of what it was given, and refuses mixes as torch does."""

    def __init__(self, simulator: Simulator) -> None:
        super().__init__()
        self.simulator = simulator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with unhooked():
            place = self._place(func, args, kwargs)
        result = func(*args, **kwargs)
        if place is not None:
            with unhooked():
                self._mark(result, place)
        return result

    def _place(self, func: Any, args: Any, kwargs: Any) -> Place:
        """Where the result will be; ``None``: on the host, or where its storage says already."""
        found: list[Record | None] = []
        _records(args, found)
        if kwargs:
            _records(kwargs.values(), found)
        if not found:
            return self.simulator.factory_place()
        place: Place = None
        host = anywhere = False
        for record in found:
            if record is None or record.place is None:
                host = True
            elif record.place is ANYWHERE:
                anywhere = True
            elif place is None:
                place = record.place
            elif place != record.place:
                return self._mixed(func, args, kwargs, place)
        if place is None:
            return None if host else ANYWHERE
        if host:
            return self._mixed(func, args, kwargs, place)
        if anywhere:  # memory made inside an operation is where the operands are
            for record in found:
                if record is not None and record.place is ANYWHERE:
                    self.simulator.put(record, place)
        return place

    def _mixed(self, func: Any, args: Any, kwargs: Any, place: Place) -> Place:
        refused = refusal(func, args, kwargs, device_of)
        if refused is not None:
            raise refused.error(refused.message)
        return self._result_of_mix(func, args, place)

    def _result_of_mix(self, func: Any, args: Any, place: Place) -> Place:
        name = func._schema.name
        if name in FOLLOWS_FIRST and isinstance(args[0], torch.Tensor):
            first = device_of(args[0])
            return first if self.simulator.machine.is_device(first) else None
        return place

    def _mark(self, result: Any, place: Place) -> None:
        for tensor in _tensors(result):
            storage = storage_of(tensor)
            if storage is not None and getattr(storage, ATTRIBUTE, None) is None:
                record = Record()
                setattr(storage, ATTRIBUTE, record)
                self.simulator.put(record, place, storage)


# Operators whose result is where the first operand is, whatever the others are.
FOLLOWS_FIRST = frozenset({"aten::copy_", "aten::index", "aten::index_put_", "aten::index_put", "aten::set_"})


def _records(values: Any, found: list[Record | None]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            try:
                found.append(getattr(value.untyped_storage(), ATTRIBUTE, None))
            except (NotImplementedError, RuntimeError):
                found.append(getattr(storage_of(value), ATTRIBUTE, None))
        elif isinstance(value, (list, tuple)):
            _records(value, found)


def _tensors(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _tensors(item)
