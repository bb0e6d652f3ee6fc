"""Placement: where a tensor lives, really or as the simulator pretends, and what is known of its memory.

Everything in the companion asks `device_of`, never ``tensor.device``. Facts are kept on the tensor's *storage*, as one
`Record`: a view, ``.data``, ``.detach()`` and a parameter whose ``.data`` was replaced all tell the same story, as they
do in torch, where the device belongs to the storage too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from devlint.runtime.site import Frame

ATTRIBUTE: Final = "_devlint"
HOST: Final = torch.device("cpu")
META: Final = torch.device("meta")
unhooked = torch._C.DisableTorchFunction  # with unhooked(): torch calls that no function mode sees


def simulator() -> Any:
    """The simulator that runs, without importing it for that; ``None``: the devices are real."""
    module = sys.modules.get("devlint.runtime.simulator")
    return module.active() if module is not None else None


class Anywhere:
    """The place of memory that torch's own C++ made for one operation: it is where its operands are."""

    def __repr__(self) -> str:
        return "anywhere"


ANYWHERE: Final = Anywhere()


class Record:
    """What is known of one storage.

    Attributes:
        place: the pretended device; ``None`` outside of the simulator and for memory on the host.
        pinned: pretended page-locked memory.
        made: the frame whose operation made the storage. by: that operation, as torch's function modes are given it.
        moved: the frame that last copied it from another device.
        source: for a copy, what was known of the storage it was copied from.
        homing: the gradient of this host scalar is brought back to the host (set by the simulator).
        lifted: values of Python's that ``x[[0, 1]]`` or ``x[0] = 1.0`` made a tensor of (set by the simulator).
        held: bytes that count as allocated on a pretended device while the storage lives, with who counts them.
    """

    # Defaults of the class, not set by the instance: one is made for every result on a pretended device.
    pinned = False
    made: Frame | None = None
    by: Any = None
    moved: Frame | None = None
    source: Record | None = None
    homing = False
    lifted = False
    held: tuple[Any, int, int] | None = None

    def __init__(self, place: torch.device | Anywhere | None = None) -> None:
        self.place = place

    def release(self) -> None:
        """Takes back what counts as allocated."""
        if self.held is not None:
            machine, index, size = self.held
            self.held = None
            machine.hold(index, -size)

    __del__ = release

    def origin(self) -> Record:
        """What a copy remembers of this storage: no longer chain than one link, however often values travel."""
        record = Record(self.place)
        record.pinned, record.made, record.by, record.moved = self.pinned, self.made, self.by, self.moved
        return record


def storage_of(tensor: torch.Tensor) -> Any:
    """The storage that carries the record; ``None`` for a tensor without one.

    That of the values for a sparse tensor; that of what is inside for the tensors of ``torch.func`` and for subclasses
    that wrap others (``__tensor_flatten__``).
    """
    with unhooked():
        return unhooked_storage_of(tensor)


def unhooked_storage_of(tensor: torch.Tensor) -> Any:
    """`storage_of`, to be called where torch calls are `unhooked` already: every operand of a program comes here."""
    if type(tensor) in _PLAIN or not hasattr(tensor, "__tensor_flatten__"):
        try:
            return tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # what a tensor without a storage raises
            inside = _inside(tensor)
    else:
        names = tensor.__tensor_flatten__()[0]
        inside = getattr(tensor, names[0]) if names else None
    return None if inside is None else unhooked_storage_of(inside)


_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})


def _inside(tensor: torch.Tensor) -> torch.Tensor | None:
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return torch._C._functorch.get_unwrapped(tensor)
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr, torch.sparse_csc, torch.sparse_bsc):
        return tensor.values()
    return None


def record_of(tensor: torch.Tensor) -> Record | None:
    """The record of the tensor's storage, if it has one."""
    return getattr(storage_of(tensor), ATTRIBUTE, None)


def record_for(tensor: torch.Tensor) -> Record:
    """The record of the tensor's storage, made on first use (a loose one for a tensor without storage)."""
    storage = storage_of(tensor)
    record = getattr(storage, ATTRIBUTE, None)
    if record is None:
        record = Record()
        if storage is not None:
            setattr(storage, ATTRIBUTE, record)
    return record


def device_of(tensor: torch.Tensor) -> torch.device | None:
    """Where the tensor lives: as pretended by the simulator, else really.

    ``None``: anywhere, wherever its operands are (memory that torch's C++ made inside an operation).
    """
    with unhooked():
        return unhooked_device_of(tensor)


def unhooked_device_of(tensor: torch.Tensor) -> torch.device | None:
    """`device_of`, to be called where torch calls are `unhooked` already."""
    record = getattr(unhooked_storage_of(tensor), ATTRIBUTE, None)
    if record is None or record.place is None:
        return tensor.device
    return None if isinstance(record.place, Anywhere) else record.place


def place_of_first(tensors: Iterable[torch.Tensor]) -> torch.device | None:
    """Where the first of `tensors` is; ``None`` where there is none."""
    first = next(iter(tensors), None)
    return None if first is None else device_of(first)


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in page-locked host memory, really or as pretended."""
    record = record_of(tensor)
    if record is not None and record.pinned:
        return True
    with unhooked():
        return tensor.device.type == "cpu" and torch.cuda.is_available() and tensor.is_pinned()


def tensors_in(values: Iterable[Any], depth: int = 3) -> Iterator[torch.Tensor]:
    """The tensors among `values` and in the lists, tuples and dicts they hold, `depth` levels down."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif depth and isinstance(value, (list, tuple)):
            yield from tensors_in(value, depth - 1)
        elif depth and isinstance(value, dict):
            yield from tensors_in(value.values(), depth - 1)
