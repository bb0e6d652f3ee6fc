"""Fingerprints: names for findings that stay the same when lines move."""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import lru_cache

from devlint.report import Report
from devlint.report.frame import split_lines


def fingerprints(report: Report) -> list[str]:
    """One for each finding, in order, all different.

    Made of path, rule and the code of the line, so that neither lines above nor a reworded message change it; equal
    ones are told apart by their order.
    """

    @lru_cache(maxsize=1)  # findings come sorted by path
    def lines(path: str) -> list[str]:
        return split_lines(report.sources(path) or "")

    seen: Counter[tuple[str, str, str]] = Counter()
    found = []
    for path, finding in report.findings:
        row = finding.span.row
        code = lines(path)[row - 1].strip() if row <= len(lines(path)) else ""
        key = (path.replace("\\", "/"), finding.rule, code)
        data = "\0".join([*key, str(seen[key])])
        found.append(hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()[:32])
        seen[key] += 1
    return found
