"""What is out of place in a ``DataLoader``, from its settings and the tensors its dataset holds.

No batch is drawn, no sample is read and no worker is started: random streams and iterators stay where they are. A
dataset that makes its tensors when it is asked is judged by its code, and left alone where that cannot be read.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from devlint.runtime.events import Event
from devlint.runtime.forward_code import function_moves
from devlint.runtime.modules import held_in
from devlint.runtime.placement import HOST, device_of
from devlint.runtime.site import here

PINNING: Final = ("cuda", "xpu")  # accelerators whose copies from page-locked memory are faster


def look(loader: DataLoader[Any], home: torch.device | None) -> Iterator[Event]:
    """Everything out of place in `loader`; `home` is where its batches go (``None``: unknown)."""
    places = {place for dataset in _parts(loader.dataset) for place in _places(dataset)}
    there = {place for place in places if place != HOST}
    if loader.num_workers and _forks(loader):
        for place in there:
            if place.type == "cuda":
                yield Event(
                    "loader",
                    "cuda-in-worker",
                    f"the dataset holds tensors on {place}, and {loader.num_workers} forked workers will read them: a "
                    "fork cannot use CUDA",
                    "DataLoader.num_workers",
                    here(),
                    error=True,
                )
    # without workers it would pin in the loop's own thread, which wins little
    unpinned = loader.num_workers and not loader.pin_memory and not there
    if home is not None and home.type in PINNING and unpinned and not _may_move(loader):
        yield Event(
            "loader",
            "loader-without-pin-memory",
            f"its batches go to {home} from pageable memory: `pin_memory` is off",
            "DataLoader.pin_memory",
            here(),
        )


def _parts(dataset: Any) -> Iterator[Any]:
    """The datasets inside of subsets and concatenations."""
    if isinstance(dataset, Subset):
        yield from _parts(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            yield from _parts(part)
    else:
        yield dataset


def _places(dataset: Any) -> Iterator[torch.device]:
    held = {"": dataset} if isinstance(dataset, (list, tuple, dict)) else getattr(dataset, "__dict__", {})
    for _, item in held_in(held):
        for tensor in [item] if isinstance(item, torch.Tensor) else item.parameters():
            place = device_of(tensor)
            if place is not None:
                yield place


def _may_move(loader: DataLoader[Any]) -> bool:
    """Whether the dataset or the collate function may give tensors that are on a device already."""
    functions = [(loader.collate_fn, object)]
    for dataset in _parts(loader.dataset):
        cls = type(dataset)
        if not isinstance(dataset, (TensorDataset, list, tuple)):
            names = ("__getitem__", "__getitems__", "__iter__")
            functions += [(getattr(cls, name), cls) for name in names if _is_own(cls, name)]
    return any(not _is_torchs(function) and function_moves(function, cls) for function, cls in functions)


def _is_own(cls: type, name: str) -> bool:
    return hasattr(cls, name) and getattr(Dataset, name, None) is not getattr(cls, name)


def _is_torchs(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").startswith("torch.")


def _forks(loader: DataLoader[Any]) -> bool:
    context = loader.multiprocessing_context
    if context is not None:
        return bool(context.get_start_method() == "fork")
    # Asking for the default as such would fix it for the process; the first of all methods is the default.
    chosen = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return chosen == "fork"
