"""Unified diffs on a terminal."""

from __future__ import annotations

from devlint.report.style import Style


def painted(diff: str) -> str:
    """A unified diff in colours."""
    style = Style(True)
    paints = {"---": style.bold, "+++": style.bold, "@@ ": style.note, "+": style.added, "-": style.removed}
    lines = []
    for line in diff.split("\n"):
        paint = next((paints[start] for start in paints if line.startswith(start)), str)
        lines.append(paint(line))
    return "\n".join(lines)
