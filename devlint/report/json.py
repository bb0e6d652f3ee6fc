"""``json``: one list of objects."""

from __future__ import annotations

import json
from typing import Any

from devlint.finding import Finding, Span
from devlint.report import Report


def render(report: Report) -> str:
    return json.dumps([as_object(path, finding) for path, finding in report.findings], indent=2) + "\n"


def as_object(path: str, finding: Finding) -> dict[str, Any]:
    """A finding as the JSON formats show it."""
    fix = finding.fix
    measured = {} if finding.measured is None else {"measured": dict(finding.measured.figures)}
    return {
        "rule": finding.rule,
        "group": finding.group,
        "level": finding.level,
        "message": finding.message,
        "filename": path,
        **_places(finding.span),
        "notes": [
            {"message": note.message, "filename": note.path or path, **_places(note.span)} for note in finding.notes
        ],
        "fix": None
        if fix is None
        else {
            "title": fix.title,
            "safety": fix.safety,
            "edits": [{**_places(edit.span), "content": edit.content} for edit in fix.edits],
        },
        **measured,
    }


def _places(span: Span) -> dict[str, dict[str, int]]:
    return {
        "location": {"row": span.row, "column": span.column},
        "end_location": {"row": span.end_row, "column": span.end_column},
    }
