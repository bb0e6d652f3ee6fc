"""Autocast for imaginary devices, by the host's own autocast.

A region for the device switches the host's autocast on as well, since real values are the host's: operations of the
host's list are cast (``torch.amp``'s documentation has both lists). What differs is said in `surroundings`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import torch

from devlint.runtime.simulator import Simulator


def replacements(simulator: Simulator) -> Iterator[tuple[Any, Any, Any]]:
    """The functions that switch autocast and ask for it."""
    kind = simulator.machine.kind
    set_enabled, set_dtype = torch.set_autocast_enabled, torch.set_autocast_dtype
    is_enabled, get_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    asked = threading.local()  # what the program asked for on the host itself

    def host() -> tuple[bool, torch.dtype]:
        return getattr(asked, "enabled", False), getattr(asked, "dtype", None) or torch.bfloat16

    def settle() -> None:
        enabled, dtype = host()
        on = is_enabled(kind)
        set_enabled("cpu", enabled or on)
        set_dtype("cpu", get_dtype(kind) if on else dtype)

    def set_autocast_enabled(*args: Any, **kwargs: Any) -> None:
        device, enabled = ("cuda", *args)[-2:] if len(args) + len(kwargs) < 2 else args
        if device == "cpu":
            asked.enabled = enabled
        else:
            set_enabled(device, enabled)
        settle()

    def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
        if device_type == "cpu":
            asked.dtype = dtype
        else:
            set_dtype(device_type, dtype)
        settle()

    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return host()[0] if device_type == "cpu" else is_enabled(device_type)

    def get_autocast_dtype(device_type: str) -> torch.dtype:
        return host()[1] if device_type == "cpu" else get_dtype(device_type)

    yield torch, "set_autocast_enabled", set_autocast_enabled
    yield torch, "set_autocast_dtype", set_autocast_dtype
    yield torch, "is_autocast_enabled", is_autocast_enabled
    yield torch, "get_autocast_dtype", get_autocast_dtype
    # Deprecated spellings.
    yield torch, "set_autocast_cpu_enabled", lambda enabled: set_autocast_enabled("cpu", enabled)
    yield torch, "set_autocast_cpu_dtype", lambda dtype: set_autocast_dtype("cpu", dtype)
    yield torch, "set_autocast_gpu_dtype", lambda dtype: set_autocast_dtype("cuda", dtype)
    yield torch, "is_autocast_cpu_enabled", lambda: is_autocast_enabled("cpu")
    yield torch, "get_autocast_cpu_dtype", lambda: get_autocast_dtype("cpu")
