"""Autograd history that is kept from step to step: ``total += loss``, ``losses.append(loss)``.

A result's history lives as long as its node of the graph does, whoever holds it: the tensor, a sum it went into, a
list. Nodes cannot be referenced weakly, but each has a dictionary of its own, ``Node.metadata`` (documented with
``torch.autograd.graph.Node``), that dies with it: a small object is left there, and only that is watched, weakly.

What is followed: zero-dimensional results, which losses and their sums are, and what is handed to `made` as ``output``.
What is no fault stays silent: a result that is alive one step longer (its variable is assigned again in the next step),
one that is made once and used for long, detached values, everything under ``no_grad``. A line is reported when results
of `KEPT_STEPS` different earlier steps are alive that it made, or when its result goes into its own sum that often.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final

import torch

from devlint.runtime.events import Event
from devlint.runtime.placement import unhooked
from devlint.runtime.site import Frame, site_of

KEPT_STEPS: Final = 3
_KEY: Final = "devlint"
#: Results of one line that are followed in a step. Freeing a chain of tens of thousands of nodes overflows the stack of
#: torch 2.13 once Python has looked at each of them (``tensor.grad_fn``), which it survives when nobody has.
MOST_IN_A_STEP: Final = 500


class _Mark:
    """Left in a node's metadata: who made it, in which step, and what it went into later."""

    __slots__ = ("__weakref__", "frame", "step", "went_into")

    def __init__(self, frame: Frame, step: int) -> None:
        self.frame = frame
        self.step = step
        self.went_into: weakref.ref[_Mark] | None = None


class History:
    """Follows results over steps; `emit` gets one event for each line that keeps history.

    It holds nothing of a graph, changes nothing of it but an entry in the metadata of nodes, and computes nothing.
    """

    def __init__(self, emit: Callable[[Event], Any]) -> None:
        self._emit = emit
        self._step = 0
        self._marks: list[weakref.ref[_Mark]] = []
        self._followed: Counter[Frame] = Counter()  # marks made in this step
        self._told: set[Frame] = set()  # lines that keep history, and those whose results they keep

    def made(self, tensor: torch.Tensor, frame: Frame | None, output: bool = False) -> None:
        """A result was made at `frame`: followed if it has history and is zero-dimensional, or an `output`."""
        with unhooked():
            if frame is None or not (output or tensor.dim() == 0) or frame in self._told:
                return
            if self._followed[frame] == MOST_IN_A_STEP:
                return
            node: Any = tensor.grad_fn
            if node is None:
                return
            metadata = node.metadata
            if _KEY in metadata:
                return
            mark = metadata[_KEY] = _Mark(frame, self._step)
            for former, _ in node.next_functions:
                earlier = former.metadata.get(_KEY) if former is not None else None
                if earlier is not None:
                    earlier.went_into = weakref.ref(mark)
        self._marks.append(weakref.ref(mark))
        self._followed[frame] += 1

    def step(self, number: int) -> None:
        """A step ends; `number` is that of the one that begins."""
        marks = [mark for reference in self._marks if (mark := reference()) is not None]
        keepers: dict[int, _Mark] = {}  # what a result went into in the end, as far as that is alive
        kept: defaultdict[Frame, list[_Mark]] = defaultdict(list)
        for mark in reversed(marks):  # what it went into is younger
            later = mark.went_into() if mark.went_into is not None else None
            keepers[id(mark)] = mark if later is None else keepers.get(id(later), later)
            kept[keepers[id(mark)].frame].append(mark)
        events = []
        for frame, found in kept.items():
            count = len({mark.step for mark in found} - {self._step})
            if count >= KEPT_STEPS and frame not in self._told:
                self._told |= {frame, *(mark.frame for mark in found)}
                message = f"autograd history of {count} earlier steps is still held by what this line makes"
                events.append(Event("kept", "retained-graph", message, "grad_fn", site_of(frame), step=self._step))
        self._marks = [weakref.ref(mark) for mark in marks if mark.frame not in self._told]
        self._followed.clear()
        self._step = number
        for event in events:
            self._emit(event)
