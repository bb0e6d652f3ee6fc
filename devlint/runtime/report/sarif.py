"""``sarif``: SARIF 2.1.0, as `devlint check` writes it, with what was measured as properties."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

from devlint import __version__, docs
from devlint.report.sarif import ROOT, SCHEMA, described, uri
from devlint.runtime.advice import advice
from devlint.runtime.events import Line, Report
from devlint.runtime.report import Spot, Tally, level, path, spots, times
from devlint.runtime.site import Site


def render(report: Report, color: bool, width: int) -> str:
    results = [(spot, rule, lines) for spot in spots(report) for rule, lines in spot.findings.items()]
    seen: Counter[tuple[str, ...]] = Counter()
    names = sorted({rule for _, rule, _ in results})
    driver = {"name": "devlint", "version": __version__, "rules": [_rule(name) for name in names]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "The folder that the program was run in."}}},
        "invocations": [_invocation(report)],
        "results": [_result(report, *result, names.index(result[1]), seen) for result in results],
        "properties": {
            "devices": report.devices,
            "simulated": report.simulated,
            "steps": report.steps,
            "torch": report.torch,
        },
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _invocation(report: Report) -> dict[str, Any]:
    """Whether the guard was content: broken budgets belong to the run, not to a line."""
    told = [{"level": "error", "message": {"text": failure}} for failure in report.failures]
    told += [
        {"level": "note", "message": {"text": f"not looked into: {what}: {why}"}}
        for what, why in report.stepped_aside.items()
    ]
    return {"executionSuccessful": not report.failures, "toolExecutionNotifications": told}


def _rule(name: str) -> dict[str, Any]:
    if name in docs.rules():
        return described(name)
    about: dict[str, Any] = {"id": name, "name": "".join(word.capitalize() for word in name.split("-"))}
    return {**about, "help": {"text": advice(name)}} if advice(name) else about


def _result(
    report: Report, spot: Spot, rule: str, lines: list[Line], index: int, seen: Counter[tuple[str, ...]]
) -> dict[str, Any]:
    tally = Tally()
    for line in lines:
        tally.add(line)
    measured: dict[str, Any] = {"waits": tally.waits, "copies": tally.copies, "steps": max(x.steps for x in lines)}
    measured |= {"bytesToDevice": tally.to_device, "bytesToHost": tally.to_host}
    if tally.seconds is not None:
        measured["seconds"] = tally.seconds
    result: dict[str, Any] = {
        "ruleId": rule,
        "ruleIndex": index,
        "level": level(lines),
        "message": {"text": f"{lines[0].first.message} ({times(lines, report)})"},
        "occurrenceCount": sum(line.count for line in lines),
        "properties": measured,
    }
    if spot.site is not None:
        code = report.text_of(spot.site)
        key = (path(spot.site, report).replace("\\", "/"), rule, code)
        data = "\0".join([*key, str(seen[key])])  # equal lines are told apart by their order
        seen[key] += 1
        fingerprint = hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        result["locations"] = [_location(spot.site, report)]
        result["partialFingerprints"] = {"devlintRunFingerprint/v1": fingerprint}
    notes = dict.fromkeys(note for line in lines for note in line.first.notes)
    related = [(site, text) for site, text in notes if site is not None]
    if spot.site is not None and spot.site.inside is not None:
        related.append((spot.site.inside, "called from there"))
    if related:
        result["relatedLocations"] = [
            {"id": number, "message": {"text": text}, **_location(site, report)}
            for number, (site, text) in enumerate(related, 1)
        ]
    return result


def _location(site: Site, report: Report) -> dict[str, Any]:
    location = uri(path(site, report))
    artifact = {"uri": location} if location.startswith("file:") else {"uri": location, "uriBaseId": ROOT}
    region: dict[str, Any] = {"startLine": site.line}
    if report.text_of(site):
        region["snippet"] = {"text": report.text_of(site)}
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}
