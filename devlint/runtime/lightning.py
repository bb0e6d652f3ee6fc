"""A callback that guards a Lightning training: ``Trainer(callbacks=[DeviceGuard(max_syncs=0, warmup_steps=3)])``."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from devlint.runtime.events import Report
from devlint.runtime.guard import guard, step

# One package under two names; each has trainers and callbacks of its own. The one in use, else the one there is.
_NAMES = ("lightning.pytorch", "pytorch_lightning")
_name = next((name for name in _NAMES if name in sys.modules), _NAMES[0] if find_spec("lightning") else _NAMES[1])
_callbacks: Any = import_module(f"{_name}.callbacks")


class DeviceGuard(_callbacks.Callback):
    """Guards the training, with a step for every batch.

    A step ends with its batch; validation in the course of an epoch belongs to the step that follows.

    Args:
        options: as for `devlint.guard`.

    Attributes:
        report: of the last training; empty before.

    Raises:
        BudgetExceeded: when the training ends, where a budget was not kept.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.report = Report()
        self._options = options
        self._running = ExitStack()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.report = self._running.enter_context(guard(**self._options))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._running.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._running.__exit__(type(exception), exception, exception.__traceback__)
