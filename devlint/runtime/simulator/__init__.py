"""A machine with no GPU, as if it had some: real values on the host, and a place for every tensor.

Two modes work together. The *function mode* sees the calls of torch's Python API: it reads device arguments, answers
``.device`` and ``.is_cuda``, and makes moves. The *dispatch mode* sees every ATen operation, those of autograd and of
C++ included: it gives results the place of their operands and refuses mixes as torch does (`devlint.runtime.legality`).
Places are kept on storages (`devlint.runtime.placement`).

Not faithful, of tensors (each module of this package names its own):

- Kernels are those of the host. They round as these do, refuse the dtypes that these refuse, and no index out of range
  ends in a device-side assertion. ``svdvals``, ``eigvalsh`` and ``lstsq`` take another way through LAPACK under any
  dispatch mode. Optimizers choose the kernels over lists that they choose on a GPU; of torch's, NAdam and ASGD then
  round otherwise than on the CPU, the others do not.
- A ``__torch_function__`` of a subclass and the Python kernel of a custom operator see their tensors on the host, and
  what they do between them is not checked. A subclass that wraps tensors without ``__tensor_flatten__`` is where its
  constructor said.
- Zeros that autograd's C++ makes are where they are used; asked in a hook before any use, on the current device.
- ``isinstance(t, torch.FloatTensor)`` holds on a device too, ``Tensor.set_`` takes any storage,
  ``UntypedStorage(n, device="cuda")`` and ``torch.cuda.FloatStorage`` cannot be made, and ``data_ptr`` is an address of
  the host; DLPack and ``__cuda_array_interface__`` give nothing on a device to other libraries.
- Memory is counted by storage as it was made: what ``resize_`` adds is not, nor the workspace of kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack

from devlint.runtime.placement import ANYWHERE, ATTRIBUTE, HOST, Anywhere, Record, storage_of, tensors_in
from devlint.runtime.replacing import replaced
from devlint.runtime.simulator.functions import Functions
from devlint.runtime.simulator.machine import Machine
from devlint.runtime.simulator.operators import Operators


class Simulator:
    """One pretended machine. Made by `simulate`.

    Attributes:
        machine: its devices. default: where memory is made that no argument places (``set_default_tensor_type``).
        observers: called with each ATen operation, its arguments and its keywords, before it runs.
        loose: memory that torch's own code made inside a call of the API, until the call returns, by thread.
    """

    def __init__(self, kind: str, count: int) -> None:
        self.machine = Machine(kind, count)
        self.default: torch.device | None = None
        self.observers: list[Callable[[Any, tuple[Any, ...], dict[str, Any]], None]] = []
        self.loose: dict[int, list[Record]] = {}
        self._thread = threading.local()

    # Where memory that no operand explains is made ------------------------------------------------------------------

    def factory_place(self) -> torch.device | Anywhere | None:
        """Where an operator without tensor operands makes its result, called now.

        Handlers of the API's factories say so (`making`). Any other call comes from inside torch: from an operation's
        own code, or from autograd's C++, which make their memory where they work.
        """
        place = getattr(self._thread, "place", None)
        if place is not None:
            return None if place == HOST else place
        if self.in_engine():
            return ANYWHERE
        inside_operation = not any(isinstance(mode, Functions) for mode in _get_current_function_mode_stack())
        return ANYWHERE if inside_operation else self.default

    @contextmanager
    def making(self, place: torch.device) -> Iterator[None]:
        """Lets factories inside make their tensors on `place`."""
        before = getattr(self._thread, "place", None)
        self._thread.place = place
        try:
            yield
        finally:
            self._thread.place = before

    def destination(self) -> torch.device | None:
        """Where the copy that is being made shall be (`sending`)."""
        return getattr(self._thread, "destination", None)

    @contextmanager
    def sending(self, place: torch.device) -> Iterator[None]:
        """Lets ``Tensor.to`` inside make its copy on `place`."""
        self._thread.destination = place
        try:
            yield
        finally:
            self._thread.destination = None

    # What is where --------------------------------------------------------------------------------------------------

    def put(self, tensor: torch.Tensor, place: torch.device | Anywhere | None) -> None:
        """Lets the tensor's storage live on `place`; ``None`` and the host are the same."""
        storage = storage_of(tensor)
        if storage is not None:
            self.put_storage(storage, None if place == HOST else place)

    def put_storage(self, storage: Any, place: torch.device | Anywhere | None) -> None:
        """Lets a storage live on `place`, and counts its bytes there until it is released."""
        record = getattr(storage, ATTRIBUTE, None)
        if record is None:
            record = Record(place)
            setattr(storage, ATTRIBUTE, record)
        else:
            record.release()
            record.place = place
        if place is ANYWHERE:
            if not self.in_engine():
                self.loose.setdefault(threading.get_ident(), []).append(record)
        elif isinstance(place, torch.device):
            size, index = storage.nbytes(), place.index
            self.machine.hold(index, size)
            record.held = (self.machine, index, size)

    def settle(self, args: Any, kwargs: Any) -> None:
        """Memory that a call of the API made and that met no operand lives where the call's tensors do."""
        mine = [one for one in self.loose.pop(threading.get_ident(), ()) if one.place is ANYWHERE]
        if mine:
            records = (getattr(storage_of(tensor), ATTRIBUTE, None) for tensor in tensors_in([args, kwargs]))
            places = (record.place for record in records if record is not None)
            place = next((place for place in places if isinstance(place, torch.device)), None)
            for record in mine:
                record.place = place

    def in_engine(self) -> bool:
        """Whether autograd's engine runs in this thread."""
        return getattr(self._thread, "backward", False)

    # Running --------------------------------------------------------------------------------------------------------

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """Marks that autograd's engine runs in this thread, and lets Python called from there see the modes."""
        before = self.in_engine()
        self._thread.backward = True
        try:
            with self.visible():
                yield
        finally:
            self._thread.backward = before

    @contextmanager
    def visible(self) -> Iterator[None]:
        """Lets code that torch calls back see the function mode, which is hidden while a call is handled."""
        if any(isinstance(mode, Functions) for mode in _get_current_function_mode_stack()):
            yield
        else:
            with Functions(self):
                yield

    @contextmanager
    def running(self) -> Iterator[None]:
        """Both modes, in this thread."""
        with Functions(self), Operators(self):
            yield


_active: Simulator | None = None


def active() -> Simulator | None:
    """The simulator that runs now, in any thread of this process."""
    return _active


@contextmanager
def simulate(devices: int = 1, kind: str = "cuda") -> Iterator[Simulator]:
    """Lets code inside see `devices` imaginary devices of `kind` (``"cuda"`` or ``"mps"``).

    Raises:
        ValueError: no device, an unknown kind, or more than one ``mps`` device.
        RuntimeError: a simulator runs already.
    """
    global _active
    if kind not in ("cuda", "mps"):
        raise ValueError(f"`{kind}` cannot be simulated: `cuda` and `mps` can")
    if devices < 1 or (kind == "mps" and devices != 1):
        raise ValueError(f"a machine with {devices} devices of kind `{kind}` cannot be simulated")
    if _active is not None:
        raise RuntimeError("a simulated machine is in use already: simulators do not nest")
    # Late: they register their handlers, and need what this module defines.
    from devlint.runtime.simulator import (  # noqa: F401
        accessors,
        factories,
        foreach,
        gradients,
        legacy,
        serialization,
        storages,
        transfers,
    )
    from devlint.runtime.simulator.surroundings import patched

    simulator = Simulator(kind, devices)
    _active = simulator
    try:
        with ExitStack() as stack:
            for part in (factories, foreach, gradients, legacy, storages):
                stack.enter_context(replaced(part.replacements(simulator)))
            stack.enter_context(serialization.registered(simulator))
            stack.enter_context(patched(simulator))
            stack.enter_context(simulator.running())
            yield simulator
    finally:
        _active = None
