"""``gitlab``: a Code Quality report."""

from __future__ import annotations

import json
import os

from devlint.report import Report
from devlint.report.fingerprint import fingerprints

_SEVERITIES = {"error": "major", "warning": "minor"}


def render(report: Report) -> str:
    issues = [
        {
            "description": finding.told,
            "check_name": finding.rule,
            "fingerprint": fingerprint,
            "severity": _SEVERITIES[finding.level],
            "location": {
                "path": relative(path),
                "lines": {"begin": finding.span.row, "end": finding.span.end_row},
            },
        }
        for (path, finding), fingerprint in zip(report.findings, fingerprints(report), strict=True)
    ]
    return json.dumps(issues, indent=2) + "\n"


def relative(path: str) -> str:
    """The path from the folder of the project, which GitLab wants; one that lies elsewhere stays as it is."""
    if os.path.isabs(path):
        project = os.environ.get("CI_PROJECT_DIR") or os.getcwd()
        if os.path.splitdrive(path)[0] == os.path.splitdrive(project)[0]:
            inside = os.path.relpath(path, project)
            path = path if inside.startswith(os.pardir) else inside
    else:
        path = os.path.normpath(path)
    return path.replace(os.sep, "/")
