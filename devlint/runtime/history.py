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
from collections.abc import Callable
from typing import Any, Final

import torch

from devlint.runtime.events import Event
from devlint.runtime.placement import unhooked
from devlint.runtime.site import Frame, site_of

KEPT_STEPS: Final = 3
_KEY: Final = "devlint"
_ROOM: Final = 1000


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
        self._enough = _ROOM  # marks that may be kept before the dead ones are taken out
        self._reported: set[Frame] = set()

    def made(self, tensor: torch.Tensor, frame: Frame | None, output: bool = False) -> None:
        """A result was made at `frame`: followed if it has history and is zero-dimensional, or an `output`."""
        with unhooked():
            if frame is None or not (output or tensor.dim() == 0):
                return
            node: Any = tensor.grad_fn
            if node is None or frame in self._reported:
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
        if len(self._marks) > self._enough:  # steps are long, or nobody marks them
            self._marks = [reference for reference in self._marks if reference() is not None]
            self._enough = 2 * len(self._marks) + _ROOM

    def step(self, number: int) -> None:
        """A step ends; `number` is that of the one that begins."""
        steps: dict[Frame, set[int]] = {}
        alive = []
        for reference in self._marks:
            mark = reference()
            if mark is None:
                continue
            keeper = _last(mark)
            if keeper.frame in self._reported:
                continue  # said already: need not be followed any longer
            alive.append(reference)
            steps.setdefault(keeper.frame, set()).add(mark.step)
        self._marks = alive
        for frame, kept in steps.items():
            kept.discard(self._step)
            if len(kept) >= KEPT_STEPS:
                self._reported.add(frame)
                self._emit(
                    Event(
                        "kept",
                        "retained-graph",
                        f"autograd history of {len(kept)} earlier steps is still held by what this line makes",
                        "grad_fn",
                        site_of(frame),
                        step=self._step,
                    )
                )
        self._step = number


def _last(mark: _Mark) -> _Mark:
    """What a result went into in the end, as far as that is alive."""
    seen = {id(mark)}
    while mark.went_into is not None:
        later = mark.went_into()
        if later is None or id(later) in seen:
            break
        seen.add(id(later))
        mark = later
    return mark
