"""A callback that guards a Hugging Face training: ``Trainer(..., callbacks=[DeviceGuardCallback(max_syncs=0)])``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback

from devlint.runtime.events import Report
from devlint.runtime.guard import guard, step


class DeviceGuardCallback(TrainerCallback):
    """Guards the training, with a step for every update of the weights.

    A step ends before what the trainer logs and saves then, which belongs to the step that follows. The trainer tells
    no callback of an exception: one that ends the training leaves the guard in place, until `close` or the next
    training.

    Args:
        options: as for `devlint.guard`.

    Attributes:
        report: of the last training; empty before.

    Raises:
        BudgetExceeded: when the training ends, where a budget was not kept.
    """

    def __init__(self, **options: Any) -> None:
        self.report = Report()
        self._options = options
        self._running = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()
        self.report = self._running.enter_context(guard(**self._options))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._running.close()

    def close(self) -> None:
        """Ends the guard of a training that was broken off, which is held against no budget."""
        broken_off = RuntimeError("the training was broken off")
        self._running.__exit__(type(broken_off), broken_off, None)
