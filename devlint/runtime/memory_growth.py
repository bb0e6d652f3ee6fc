"""Device memory that grows in every step: something holds on to what each step makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from devlint.runtime.events import Event
from devlint.runtime.site import here

WARMUP_STEPS: Final = 3  # gradients, optimizer state, workspaces and caches are made in the first ones
GROWING_STEPS: Final = 5


class Growth:
    """Compares ``torch.cuda.memory_allocated`` from step to step, on each CUDA device that is in use.

    Reported, once for each device: more than before after each of the last `GROWING_STEPS` steps, the first
    `WARMUP_STEPS` left out. Memory that goes up and down, and a cache that fills and stays, say nothing. On other
    accelerators, and before CUDA is used, there is nothing to read.
    """

    def __init__(self, emit: Callable[[Event], Any]) -> None:
        self._emit = emit
        self._steps = 0
        self._devices: list[int] = []  # those that hold anything when the warm-up ends: a look costs 0.1 ms or so
        self._began: dict[int, tuple[int, int]] = {}  # device -> (bytes, step) where its growth began
        self._last: dict[int, int] = {}

    def step(self, number: int) -> None:
        """A step ends; `number` is that of the one that begins."""
        self._steps += 1
        if self._steps < WARMUP_STEPS or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return
        if self._steps == WARMUP_STEPS:
            self._devices = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(index)]
        for index in self._devices:
            held = torch.cuda.memory_allocated(index)
            if held <= self._last.get(index, held):
                self._began[index] = (held, self._steps)
            self._last[index] = held
            before, since = self._began[index]
            if self._steps - since >= GROWING_STEPS:
                self._devices = [other for other in self._devices if other != index]
                grown, steps = held - before, self._steps - since
                self._emit(
                    Event(
                        "grew",
                        None,
                        f"memory on cuda:{index} grew in each of {steps} steps, by {grown // steps} bytes a step",
                        "memory_allocated",
                        here(),
                        step=number,
                        bytes=grown,
                        target=f"cuda:{index}",
                    )
                )
