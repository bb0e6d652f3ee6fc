"""A machine with no GPU, as if it had some: real values on the host, and a place for every tensor.

Two modes work together. The *function mode* sees the calls of torch's Python API: it reads device arguments, answers
``.device`` and ``.is_cuda``, and makes moves. The *dispatch mode* sees every ATen operation, those of autograd and of
C++ included: it gives results the place of their operands and refuses mixes as torch does (`devlint.runtime.legality`).
Places are kept on storages (`devlint.runtime.placement`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import _len_torch_function_stack

from devlint.runtime.placement import ANYWHERE, Anywhere, Record
from devlint.runtime.simulator.functions import Functions
from devlint.runtime.simulator.machine import HOST, Machine
from devlint.runtime.simulator.operators import Operators


class Simulator:
    """One pretended machine with its two modes. Made by `simulate`."""

    def __init__(self, kind: str, count: int) -> None:
        self.machine = Machine(kind, count)
        self.functions = Functions(self)
        self.operators = Operators(self)
        self._thread = threading.local()

    # Where memory that no operand explains is made ------------------------------------------------------------------

    def factory_place(self) -> torch.device | Anywhere | None:
        """Where a factory without tensor operands makes its result, called now.

        Handlers of the API's factories say so (`making`). Any other call comes from inside torch: from an operation's
        own code, or from autograd's C++, which make their memory where they work.
        """
        place = getattr(self._thread, "place", ANYWHERE)
        if place is not ANYWHERE:
            return None if place == HOST else place
        inside_operation = _len_torch_function_stack() <= getattr(self._thread, "depth", 0)
        return ANYWHERE if inside_operation or getattr(self._thread, "backward", False) else None

    @contextmanager
    def making(self, place: torch.device) -> Iterator[None]:
        """Lets factories inside make their tensors on `place`."""
        before = getattr(self._thread, "place", ANYWHERE)
        self._thread.place = place
        try:
            yield
        finally:
            self._thread.place = before

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """Marks that autograd's engine runs in this thread, and lets Python called from there see the modes."""
        before = getattr(self._thread, "backward", False)
        self._thread.backward = True
        try:
            with ExitStack() as stack:
                if _len_torch_function_stack() <= getattr(self._thread, "depth", 0):
                    stack.enter_context(self.functions)
                yield
        finally:
            self._thread.backward = before

    def put(self, record: Record, place: torch.device | Anywhere | None, storage: Any = None) -> None:
        """Lets a storage live on `place`, and counts its bytes there until it is released."""
        record.place = place
        if isinstance(place, torch.device) and storage is not None and place.type == self.machine.kind:
            size, index = storage.nbytes(), place.index or 0
            self.machine.hold(index, size)
            machine = self.machine
            record.on_release = lambda: machine.hold(index, -size)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Both modes, in this thread."""
        self._thread.depth = _len_torch_function_stack()
        with self.functions, self.operators:
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
    from devlint.runtime.simulator import accessors, factories, transfers  # noqa: F401 - they register their handlers
    from devlint.runtime.simulator.surroundings import patched

    simulator = Simulator(kind, devices)
    _active = simulator
    try:
        with patched(simulator), simulator.running():
            yield simulator
    finally:
        _active = None
