"""``json``: everything, as `Report.to_dict` gives it; what `devlint check --profile` reads."""

from __future__ import annotations

import json

from devlint.runtime.events import Report


def render(report: Report, color: bool, width: int) -> str:
    return json.dumps(report.to_dict()) + "\n"
