"""`devlint.audit(model, optimizer, loader)`: one look at everything, before training or when something is odd."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from devlint.runtime import loaders, modules, optimizers
from devlint.runtime.events import Report
from devlint.runtime.placement import simulator, unhooked
from devlint.runtime.watch import as_device


@dataclass(repr=False)
class Audit(Report):
    """What `audit` found: a report whose text is its findings."""

    def __str__(self) -> str:
        found = [line.first for line in self.findings]
        texts = [
            f"{event.site}: {modules.sentence(event)}" if event.site else modules.sentence(event) for event in found
        ]
        texts += [f"not looked into: {what}: {why}" for what, why in self.stepped_aside.items()]
        count = f"{len(found)} finding{'' if len(found) == 1 else 's'}" if found else "nothing is out of place"
        return "\n".join([*texts, count])

    __repr__ = __str__


def audit(
    model: nn.Module,
    optimizer: Any = None,
    loader: Any = None,
    device: torch.device | str | int | None = None,
) -> Audit:
    """Looks once at a model as it stands, and at how its optimizer and its loader fit it.

    Nothing runs: no forward, no step, no batch is drawn, no random number is used, nothing is read from a device.

    Args:
        model: any module.
        optimizer: one, or several that share the model: state away from its parameters, parameters that were replaced.
        loader: a ``DataLoader``: its settings and the tensors that its dataset holds (not its samples).
        device: where all of the model should be; by default wherever most of it is.

    Returns:
        A report: ``findings`` has them, worst first, ``ok`` says that none of them is an error, ``str()`` shows them.
        What could not be looked into is in ``stepped_aside``.

    Raises:
        TypeError: `model` is no module, `optimizer` no optimizer, `loader` no ``DataLoader``.
        RuntimeError: torch's own, for a `device` it does not know.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`audit` needs a torch.nn.Module, not a {type(model).__name__}")
    if loader is not None and not isinstance(loader, DataLoader):
        raise TypeError(f"`loader` must be a torch.utils.data.DataLoader, not a {type(loader).__name__}")
    given = optimizer if isinstance(optimizer, Iterable) else [] if optimizer is None else [optimizer]
    chosen = [optimizers.innermost(one) for one in given]
    asked = as_device(device)
    report = Audit(torch=torch.__version__, simulated=simulator() is not None)
    with unhooked():
        inventory = modules.Inventory.of(model)
        if inventory.main is None:
            report.stepped_aside[type(model).__name__] = modules.NOTHING_TO_COMPARE
        tool = modules.placed_by(model)
        if tool is not None:
            report.stepped_aside[type(model).__name__] = f"{tool} places its parameters and inputs"
        trained = _trained(chosen) if chosen else None
        for event in modules.look(inventory, asked, trained):
            report.add(event)
        for one in chosen:
            for event in optimizers.look(one, model):
                report.add(event)
        if loader is not None:
            for event in loaders.look(loader, asked or inventory.main):
                report.add(event)
    return report


def _trained(chosen: list[Optimizer]) -> set[int]:
    return {id(parameter) for one in chosen for parameter in optimizers.parameters_of(one)}
