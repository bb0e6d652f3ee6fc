"""``concise``: one line a finding; ``[*]`` marks what ``--fix`` repairs."""

from __future__ import annotations

from devlint.report import Report
from devlint.report.style import Style, printable


def render(report: Report) -> str:
    style = Style(report.color)
    lines = []
    for path, finding in report.findings:
        place = f"{style.path(printable(path))}:{finding.span.row}:{finding.span.column}:"
        rule = style.level(finding.level, f"{finding.level}[{finding.rule}]")
        mark = " [*]" if finding.fix is not None and (finding.fix.safe or report.unsafe_fixes) else ""
        lines.append(f"{place} {rule} {printable(finding.told)}{mark}\n")
    return "".join(lines)
