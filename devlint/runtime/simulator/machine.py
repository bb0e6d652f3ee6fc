"""The imaginary machine: how many devices of which kind, which is current, and what each holds."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import Any, Final

import torch

from devlint.runtime.placement import HOST

META: Final = torch.device("meta")


class Machine:
    """`count` devices of one kind (``"cuda"`` or ``"mps"``).

    Attributes:
        allocated: bytes held now, by device index. peak: the most ever held.
        pid: the process that made it; another one is a fork of it.
    """

    def __init__(self, kind: str, count: int) -> None:
        self.kind = kind
        self.count = count
        self.allocated: Counter[int] = Counter()
        self.peak: Counter[int] = Counter()
        self.pid = os.getpid()
        self.initialized = False
        self._current = threading.local()

    @property
    def current(self) -> int:
        """The index of this thread's current device."""
        return getattr(self._current, "index", 0)

    @current.setter
    def current(self, index: int) -> None:
        self._current.index = self.device(index).index

    def device(self, value: Any) -> torch.device | None:
        """The device that an argument means: ``None`` stays ``None``, a missing index is the current device's.

        Raises:
            RuntimeError: torch's own, for a device that the machine does not have or a fork that may not use it.
        """
        if value is None:
            return None
        device = torch.device(self.kind, value) if isinstance(value, int) else torch.device(value)
        if device.type != self.kind:
            return device
        index = self.current if device.index is None else device.index
        if index >= self.count or index < 0:
            raise (
                torch.AcceleratorError(
                    "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?"
                )
                if hasattr(torch, "AcceleratorError")
                else RuntimeError("CUDA error: invalid device ordinal")
            )
        if os.getpid() != self.pid and self.initialized:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                "'spawn' start method"
            )
        self.initialized = True
        return torch.device(self.kind, index)

    def is_device(self, device: torch.device | None) -> bool:
        """Whether `device` is one of the imaginary ones."""
        return device is not None and device.type == self.kind

    def hold(self, index: int, size: int) -> None:
        """Counts `size` bytes as allocated on a device (negative: released)."""
        self.allocated[index] += size
        self.peak[index] = max(self.peak[index], self.allocated[index])


__all__ = ["HOST", "META", "Machine"]
