"""``json-lines``: one JSON object a line."""

from __future__ import annotations

import json

from devlint.report import Report
from devlint.report.json import as_object


def render(report: Report) -> str:
    return "".join(json.dumps(as_object(path, finding)) + "\n" for path, finding in report.findings)
