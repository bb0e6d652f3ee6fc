"""ProjectIndex: summaries of other files, as plain data, that a file's flow may ask for.

A finding may depend on what another file's function returns. The index hands out such summaries by
qualified name and each has a digest, so that a cached finding can carry the digests of all it used
and is dropped when one of them changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Summary:
    """What one function or class of the project does, without its tree.

    ``data`` is JSON-like. ``digest`` changes exactly when ``data`` does.
    """

    data: Any
    digest: str


@dataclass(frozen=True)
class ProjectIndex:
    """Qualified name -> summary. An empty index means that each file is judged by itself."""

    summaries: Mapping[str, Summary] = field(default_factory=dict)

    def find(self, qualified_name: str) -> Summary | None:
        return self.summaries.get(qualified_name)
