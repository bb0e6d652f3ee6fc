"""``github``: workflow commands, which GitHub shows as annotations on the changed lines."""

from __future__ import annotations

from devlint.finding import Finding
from devlint.report import Report
from devlint.report.style import printable


def render(report: Report) -> str:
    return "".join(_command(path, finding) + "\n" for path, finding in report.findings)


def _command(path: str, finding: Finding) -> str:
    span = finding.span
    properties = {"file": path, "line": span.row, "col": span.column, "endLine": span.end_row}
    if span.end_row == span.row:
        properties["endColumn"] = span.end_column
    else:
        del properties["col"]  # columns are taken only where a single line is marked
    properties["title"] = f"devlint ({finding.rule})"
    listed = ",".join(f"{name}={escape_property(str(value))}" for name, value in properties.items())
    # The log shows the message alone, so that it must say the place as well.
    message = f"{path}:{span.row}:{span.column}: {finding.told}"
    return f"::{finding.level} {listed}::{escape_message(message)}"


def escape_message(text: str) -> str:
    """Text as the runner reads it back; what cannot be encoded is written as an escape."""
    kept = "".join(c if c in "\r\n" else printable(c) for c in text)
    return kept.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    return escape_message(text).replace(":", "%3A").replace(",", "%2C")
