"""ProjectIndex: summaries of other files, as plain data, that a file's flow may ask for.

A finding may depend on what another file's function returns. The index hands such summaries out by
qualified name, and each has a digest: cached findings carry the digests of all they used, and count
only as long as the index still holds every one of them. An empty index judges each file by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Summary:
    """What one function or class of the project does, without its tree.

    ``data`` is JSON-like. ``digest`` covers the qualified name and ``data``.
    """

    data: Any
    digest: str


@dataclass(frozen=True)
class ProjectIndex:
    """Qualified name -> summary."""

    summaries: Mapping[str, Summary] = field(default_factory=dict)

    def find(self, qualified_name: str) -> Summary | None:
        """The summary of a function or class; ``None`` where the index has none."""
        return self.summaries.get(qualified_name)

    @property
    def digests(self) -> frozenset[str]:
        """What cached findings may rest on."""
        return frozenset(summary.digest for summary in self.summaries.values())
