"""``sarif``: SARIF 2.1.0, as code scanning services read it."""

from __future__ import annotations

import json
import os
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote_from_bytes

from devlint import __version__, docs
from devlint.finding import Finding, Fix, Span
from devlint.report import Report
from devlint.report.fingerprint import fingerprints

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"


def render(report: Report) -> str:
    names = sorted({finding.rule for _, finding in report.findings})
    index = {name: position for position, name in enumerate(names)}
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {"name": "devlint", "version": __version__, "rules": [described(name) for name in names]}
                },
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {ROOT: {"description": {"text": "The folder that devlint was run in."}}},
                "results": [
                    _result(path, finding, index[finding.rule], fingerprint)
                    for (path, finding), fingerprint in zip(report.findings, fingerprints(report), strict=True)
                ],
            }
        ],
    }
    return json.dumps(log, indent=2) + "\n"


def described(name: str) -> dict[str, Any]:
    """A rule with its documentation, as a SARIF ``reportingDescriptor``."""
    info = docs.rules()[name]
    page = docs.page(name)
    return {
        "id": name,
        "name": "".join(word.capitalize() for word in name.split("-")),
        "shortDescription": {"text": info.summary},
        "fullDescription": {"text": page["What it does"]},
        "help": {"text": docs.explain(name, "text"), "markdown": docs.explain(name, "markdown")},
        "defaultConfiguration": {"enabled": info.default, "level": info.level},
        "properties": {"tags": ["pytorch", info.group], "fixable": info.fixable},
    }


def _result(path: str, finding: Finding, rule_index: int, fingerprint: str) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": finding.level,
        "message": {"text": finding.told},
        "locations": [_location(path, finding.span)],
        "partialFingerprints": {"devlintFingerprint/v1": fingerprint},
    }
    if finding.notes:
        result["relatedLocations"] = [
            {"id": number, "message": {"text": note.message}, **_location(note.path or path, note.span)}
            for number, note in enumerate(finding.notes, start=1)
        ]
    if finding.measured is not None:
        result["properties"] = {"measured": dict(finding.measured.figures)}
    if finding.fix is not None:
        result["fixes"] = [_fix(path, finding.fix)]
    return result


def _fix(path: str, fix: Fix) -> dict[str, Any]:
    replacements = [
        {"deletedRegion": _region(edit.span), "insertedContent": {"text": edit.content}} for edit in fix.edits
    ]
    return {
        "description": {"text": fix.title},
        "artifactChanges": [{"artifactLocation": _artifact(path), "replacements": replacements}],
        "properties": {"safety": fix.safety},
    }


def _location(path: str, span: Span) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": _artifact(path), "region": _region(span)}}


def _artifact(path: str) -> dict[str, str]:
    location = uri(path)
    return {"uri": location} if location.startswith("file:") else {"uri": location, "uriBaseId": ROOT}


def _region(span: Span) -> dict[str, int]:
    return {
        "startLine": span.row,
        "startColumn": span.column,
        "endLine": span.end_row,
        "endColumn": span.end_column,
    }


def uri(path: str, *, windows: bool = os.name == "nt") -> str:
    """A path as a URI: absolute ones as ``file:``, others relative; bytes that are not UTF-8 are kept."""
    pure = PureWindowsPath(path) if windows else PurePosixPath(path)
    quoted = quote_from_bytes(os.fsencode(pure.as_posix()))
    if not pure.is_absolute():
        return quoted
    if windows:
        drive, colon, rest = quoted.partition("%3A")
        return f"file:///{drive}:{rest}" if colon and len(drive) == 1 else f"file:{quoted}"
    return f"file://{quoted}"
