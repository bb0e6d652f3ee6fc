"""The imaginary machine: how many devices of which kind, which is current, and what each holds.

Not faithful: what is held is what Python sees of it. Memory that C++ makes and drops inside an operation, workspaces
and fragmentation are not counted; no allocation fails; ``CUDA_VISIBLE_DEVICES`` is not read, since the number of
devices was asked for by name. The MPS allocator's own block sizes are not copied.
"""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any, Final

import torch

from devlint.runtime.site import Site, here

TOTAL_MEMORY: Final = 80 * 2**30  # bytes that each device claims to have; nothing keeps a program within them
BLOCK: Final = 512  # torch's caching allocator rounds every allocation up to this (docs: notes/cuda, memory management)
SEGMENT: Final = 2 * 2**20  # and asks the driver for multiples of this
SMALL: Final = 2**20  # allocations up to this come from the "small pool"


class SimulatorWarning(UserWarning):
    """Something that the simulator does not do as a real device would."""


class Gauge:
    """Bytes and blocks held: now, at most, and in sum."""

    __slots__ = ("allocated", "bytes", "count", "freed", "made", "peak", "peak_count", "released")

    def __init__(self) -> None:
        self.bytes = self.peak = self.allocated = self.freed = 0
        self.count = self.peak_count = self.made = self.released = 0

    def add(self, size: int) -> None:
        """One block more of `size` bytes; one less for a negative size."""
        # Plain additions, without a call between reading and writing: a release may run in the middle of anything.
        self.bytes += size
        if size > 0:
            self.allocated += size
            self.count += 1
            self.made += 1
            if self.bytes > self.peak:
                self.peak = self.bytes
            if self.count > self.peak_count:
                self.peak_count = self.count
        else:
            self.freed -= size
            self.count -= 1
            self.released += 1


class Memory:
    """What one device holds, counted as torch's caching allocator counts.

    Attributes:
        all, small, large: every block, those of the small and those of the large pool.
        reserved: bytes kept from the imaginary driver, more than what is allocated until `empty_cache`.
        fraction: what ``set_per_process_memory_fraction`` was given.
    """

    def __init__(self) -> None:
        self.all, self.small, self.large = Gauge(), Gauge(), Gauge()
        self.reserved = self.peak_reserved = 0
        self.fraction = 1.0

    def hold(self, size: int) -> None:
        """A block more (less, for a negative size)."""
        self.all.add(size)
        (self.small if -SMALL <= size <= SMALL else self.large).add(size)
        if self.all.bytes > self.reserved:
            self.reserved = -(-self.all.bytes // SEGMENT) * SEGMENT
            self.peak_reserved = max(self.peak_reserved, self.reserved)

    def empty_cache(self) -> None:
        """Gives back what is reserved and not allocated."""
        self.reserved = -(-self.all.bytes // SEGMENT) * SEGMENT

    def reset_peaks(self) -> None:
        """Lets the peaks begin again at what is held now."""
        for gauge in (self.all, self.small, self.large):
            gauge.peak, gauge.peak_count = gauge.bytes, gauge.count
        self.peak_reserved = self.reserved

    def reset_sums(self) -> None:
        """Lets the sums begin again at zero."""
        for gauge in (self.all, self.small, self.large):
            gauge.allocated = gauge.freed = gauge.made = gauge.released = 0


class Machine:
    """`count` devices of one kind (``"cuda"`` or ``"mps"``).

    Attributes:
        memory: what each device holds.
        pid: the process that used or counted its devices first; another one is a fork of it.
        initialized: a device was used. counted: the devices were asked for, which forks do not survive either.
        stepped_aside: what the program asked for and the simulator does not do, with the reason.
    """

    def __init__(self, kind: str, count: int) -> None:
        self.kind = kind
        self.count = count
        self.memory = [Memory() for _ in range(count)]
        self.pid = os.getpid()
        self.initialized = self.counted = False
        self.stepped_aside: dict[str, str] = {}
        self.local = threading.local()  # the current device and the current streams, each thread's own

    @property
    def current(self) -> int:
        """The index of this thread's current device: 0 in a new thread, as in CUDA."""
        return getattr(self.local, "index", 0)

    @current.setter
    def current(self, index: int) -> None:
        self.local.index = self.device(torch.device(self.kind, index)).index

    @property
    def in_bad_fork(self) -> bool:
        """Whether this process was forked from one that had used, or counted, its devices."""
        return self.counted and os.getpid() != self.pid

    def use(self) -> None:
        """Marks that a device is used.

        Raises:
            RuntimeError: torch's own, in a fork of a process that used CUDA (docs: notes/multiprocessing).
        """
        if self.in_bad_fork and self.kind == "cuda":
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                "'spawn' start method"
            )
        self.count_devices()
        self.initialized = True

    def count_devices(self) -> int:
        """How many devices there are; a driver that was asked survives no fork (docs: notes/multiprocessing)."""
        if not self.counted:
            self.counted, self.pid = True, os.getpid()
        return self.count

    def device(self, value: Any) -> Any:
        """The device that an argument means: ``None`` stays ``None``, a missing index is the current device's.

        Raises:
            RuntimeError: torch's own, for a device that the machine does not have or a fork that may not use it.
            AssertionError: torch's own, for CUDA where ``mps`` is simulated.
        """
        if value is None:
            return None
        device = torch.device(self.kind, value) if isinstance(value, int) else torch.device(value)
        if device.type != self.kind:
            if device.type == "cuda":
                raise AssertionError("Torch not compiled with CUDA enabled")
            if device.type == "mps":
                raise RuntimeError("PyTorch is not linked with support for mps devices")
            return device
        index = self.current if device.index is None else device.index
        if index >= self.count:
            if self.kind == "mps":
                raise RuntimeError(f"invalid device {device}: there is one MPS device")
            error = getattr(torch, "AcceleratorError", RuntimeError)  # which 2.8 brought
            raise error("CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?")
        self.use()
        return torch.device(self.kind, index)

    def is_device(self, device: torch.device | None) -> bool:
        """Whether `device` is one of the imaginary ones."""
        return device is not None and device.type == self.kind

    def hold(self, index: int, size: int) -> None:
        """Counts `size` bytes as allocated on a device (negative: released), in whole blocks."""
        if size:
            self.memory[index].hold(-(-size // BLOCK) * BLOCK if size > 0 else size // BLOCK * BLOCK)

    def memory_of(self, index: int) -> Memory:
        """What a device holds.

        Raises:
            RuntimeError: torch's own, for a device that the machine does not have.
        """
        if not 0 <= index < self.count:
            raise RuntimeError(f"Invalid device argument {index}: did you call init?")
        return self.memory[index]

    def empty_cache(self) -> None:
        """Gives back what the devices reserved and nothing uses."""
        for memory in self.memory:
            memory.empty_cache()

    def step_aside(self, name: str, why: str) -> None:
        """Says, once for each `name`, that the simulator does not do what `name` does."""
        if name not in self.stepped_aside:
            self.stepped_aside[name] = why
            site = here() or Site("<unknown>", 1, "")
            warnings.warn_explicit(f"simulator: `{name}` {why}", SimulatorWarning, site.file, site.line)

    def not_simulated(self, name: str) -> Any:
        """A stand-in for the function `name` that says, when called, that the simulator has no such thing."""

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"`{name}` is not simulated: devlint's simulator has no real device behind it")

        return refuse
