"""Lists of tensors, grouped by device for the kernels that take whole lists (optimizers, gradient clipping)."""

from __future__ import annotations

from typing import Any

import torch

from devlint.runtime.placement import HOST, device_of
from devlint.runtime.simulator import Simulator


def replacements(simulator: Simulator) -> list[tuple[Any, str, Any]]:
    """What is replaced while the simulator runs: (owner, name, what stands there)."""
    group = torch._C._group_tensors_by_device_and_dtype

    def group_by_place(lists: Any, with_indices: bool = False) -> Any:
        """Torch's own groups, each split by the pretended places of the first list's tensors."""
        groups: dict[Any, Any] = {}
        for (_, dtype), (columns, indices) in group(lists, True).items():
            for i, index in enumerate(indices):
                place = device_of(lists[0][index]) or HOST
                parts, kept = groups.setdefault((place, dtype), ([[] for _ in columns], []))
                for part, column in zip(parts, columns, strict=True):
                    if column:
                        part.append(column[i])
                if with_indices:
                    kept.append(index)
        return groups

    return [(torch._C, "_group_tensors_by_device_and_dtype", group_by_place)]
