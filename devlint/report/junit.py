"""``junit``: a test report in which every finding is a failed test of its file."""

from __future__ import annotations

import re
from itertools import groupby
from operator import itemgetter
from xml.etree import ElementTree as ET

from devlint.report import Report
from devlint.report.style import visible

# What XML 1.0 has no way to write, and the carriage return, which every parser turns into a line feed.
_ILLEGAL = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    root = ET.Element("testsuites", name="devlint")
    tests = max(1, len(report.findings))
    for element in (root,) if report.findings else (root, ET.SubElement(root, "testsuite", name="devlint")):
        element.attrib |= {"tests": str(tests), "failures": str(len(report.findings)), "errors": "0"}
    if not report.findings:  # some readers take a report without tests for a broken one
        ET.SubElement(root[0], "testcase", classname="devlint", name="no findings")
    for path, group in groupby(report.findings, key=itemgetter(0)):
        findings = [finding for _, finding in group]
        count = str(len(findings))
        suite = ET.SubElement(root, "testsuite", name=legal(path), tests=count, failures=count, errors="0")
        for finding in findings:
            place = f"{finding.span.row}:{finding.span.column}"
            name = f"{finding.rule} at {place}"
            case = ET.SubElement(
                suite, "testcase", classname=legal(path), name=name, file=legal(path), line=str(finding.span.row)
            )
            failure = ET.SubElement(case, "failure", type=finding.level, message=legal(finding.told))
            notes = [f"note: {note.message} ({note.path or path}:{note.span.row})" for note in finding.notes]
            failure.text = legal("\n".join([f"{path}:{place}: {finding.rule}: {finding.told}", *notes]))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def legal(text: str) -> str:
    """``text`` with every character that XML cannot hold written as an escape."""
    return _ILLEGAL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    shown = visible(match.group())
    return shown if shown != match.group() else f"\\u{ord(shown):04x}"
