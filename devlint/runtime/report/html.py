"""``html``: one page that needs nothing else, in the reader's light or dark colours."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from devlint.runtime.advice import advice
from devlint.runtime.events import Line, Report
from devlint.runtime.report import (
    Spot,
    Tally,
    amount,
    code,
    duration,
    figures,
    headline,
    how,
    level,
    place,
    places,
    spots,
    times,
    verdict,
)
from devlint.runtime.report.timeline import STEPS, svg, window
from devlint.runtime.site import Site


def render(report: Report, color: bool, width: int) -> str:
    body = "\n".join(_body(report))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>devlint run: {escape(verdict(report))}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _body(report: Report) -> Iterator[str]:
    found = spots(report)
    status = "good" if report.ok and not report.findings else "warning" if report.ok else "error"
    yield f'<header><h1 class="{status}">{escape(verdict(report))}</h1><p>{escape(headline(report))}</p>'
    if report.simulated:
        yield '<p class="caution">The devices are imaginary: counts and bytes are real, times are not given.</p>'
    yield "</header>"
    yield _tiles(report)
    if report.failures:
        items = "".join(f"<li>{escape(failure)}</li>" for failure in report.failures)
        yield f'<section><h2>Budgets not kept</h2><ul class="failures">{items}</ul></section>'
    findings = [(spot, rule, lines) for spot in found for rule, lines in spot.findings.items()]
    if findings:
        yield "<section><h2>Findings, the worst first</h2>"
        for spot, rule, lines in findings:
            yield from _finding(report, spot, rule, lines)
        yield "</section>"
    costly = [spot for spot in found if spot.tally.waits or spot.tally.copies]
    if costly:
        yield from _table(report, costly)
    yield from _timeline(report)
    if report.stepped_aside:
        items = "".join(
            f"<li><code>{escape(what)}</code>: {escape(why)}</li>" for what, why in report.stepped_aside.items()
        )
        yield f"<section><h2>Not looked into</h2><ul>{items}</ul></section>"


def _tiles(report: Report) -> str:
    """The sums, per step where there are steps."""
    total = Tally()
    for line in report.lines.values():
        total.add(line)
    steps, each = (report.steps, " a step") if report.steps else (1, "")
    tiles = [(f"{total.waits / steps:.3g}", f"waits{each}")]
    if total.seconds is not None:
        tiles.append((duration(total.seconds / steps), f"waited{each}"))
    tiles.append((amount(total.to_device / steps), f"to the device{each}"))
    tiles.append((amount(total.to_host / steps), f"to the host{each}"))
    cells = "".join(f"<div><dd>{figure}</dd><dt>{what}</dt></div>" for figure, what in tiles)
    return f'<dl class="tiles">{cells}</dl>'


def _finding(report: Report, spot: Spot, rule: str, lines: list[Line]) -> Iterator[str]:
    severity = level(lines)
    yield f'<article class="{severity}"><h3><span class="badge">{severity}</span> <code>{escape(rule)}</code></h3>'
    yield f"<p>{_marked(lines[0].first.message)}</p>"
    yield _code(report, spot.site)
    if spot.site is not None and spot.site.inside is not None:
        yield f"<p>called from there:</p>{_code(report, spot.site.inside)}"
    copies = list(dict.fromkeys(filter(None, (how(line.first) for line in lines))))
    measured = "; ".join([times(lines, report), *copies])
    if measured != "once":
        yield f'<p class="figures">{escape(measured)}</p>'
    for site, text in dict.fromkeys(note for line in lines for note in line.first.notes):
        here = place(site, report) == place(spot.site, report)
        yield f'<p class="note">{_marked(text)}{" here" if here else ""}</p>{"" if here else _code(report, site)}'
    if advice(rule):
        yield f'<p class="advice"><strong>Advice:</strong> {_marked(advice(rule))}</p>'
    yield "</article>"


def _code(report: Report, site: Site | None) -> str:
    if site is None:
        return ""
    where = f'<span class="place">{escape(place(site, report))}</span>'
    return f"<pre>{where}<code>{escape(report.text_of(site))}</code></pre>"


def _table(report: Report, found: list[Spot]) -> Iterator[str]:
    heads, rows = figures(report, found, " per step")
    yield '<section><h2>Waits and copies, line by line</h2><div class="wide"><table><thead><tr>'
    yield "".join(f"<th>{head}</th>" for head in heads) + '<th class="text">line</th><th class="text">rules</th>'
    yield "</tr></thead><tbody>"
    for spot, cells in zip(found, rows, strict=True):
        words = [f"<code>{escape(rule)}</code>" for rule in spot.findings]
        words += [f"allowed: {escape(reason)}" for reason in spot.allowed]
        where, source = escape(places(spot.site, report)), escape(code(spot.site, report))
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells)
        yield f'<td class="text line"><span class="place">{where}</span> <code>{source}</code></td>'
        yield f'<td class="text">{"<br>".join(words)}</td></tr>'
    yield "</tbody></table></div></section>"


def _timeline(report: Report) -> Iterator[str]:
    picture, shown = svg(report), window(report)
    if not shown:
        return
    steps = len(shown.steps)
    what = f"{steps} steps" if steps > 1 else "One step" if report.steps else "The run"
    title = f"{what} in order" if shown.seconds is None else f"{what} over time"
    yield f'<section><h2>{title}</h2><div class="wide">{picture}</div>'
    hints = ["Point at a bar for what it is; outlined ones count under a rule."]
    if shown.seconds is None:
        hints.append("Imaginary devices take no time, so bars stand in the order of the events.")
    if shown.left_out:
        hints.append(f"{shown.left_out} more events of these {STEPS} steps are not drawn.")
    yield f'<p class="hint">{escape(" ".join(hints))}</p></section>'


def _marked(text: str) -> str:
    """Text with what stands between backticks as code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:  # an odd one belongs to the code itself
        return escape(text)
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


_STYLE = """
:root { --ground: #ffffff; --card: #f6f7f9; --text: #1c2026; --soft: #596270; --line: #d5dae1; --code: #eceff3;
  --error: #b3261e; --warning: #8a5a00; --good: #1b6e3c;
  --wait: #d55e00; --up: #0072b2; --down: #009e73; --other: #a0568c; --band: #eef1f5; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171c; --card: #1d2128; --text: #e4e8ee; --soft: #9aa5b4; --line: #353c47; --code: #282e37;
    --error: #ff8a80; --warning: #f2b84b; --good: #7fd49b;
    --wait: #ff8f3f; --up: #56b4e9; --down: #3fcf9f; --other: #d98cc3; --band: #1f242c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; line-height: 1.3; margin: 0 0 4px; } h2 { font-size: 18px; margin: 36px 0 12px; }
h3 { font-size: 15px; margin: 0; } p { margin: 6px 0; } header p, .hint, dt { color: var(--soft); }
h1.error, .failures, article.error .badge { color: var(--error); }
h1.warning, article.warning .badge, .caution { color: var(--warning); } h1.good { color: var(--good); }
code, pre { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
p code, h3 code, li code { background: var(--code); border-radius: 4px; padding: 1px 4px; overflow-wrap: anywhere; }
pre { background: var(--code); border-radius: 6px; margin: 8px 0; padding: 8px 12px; overflow-x: auto; }
.place { color: var(--soft); margin-right: 14px; font: 13px ui-monospace, Menlo, Consolas, monospace; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin: 22px 0 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px;
  display: flex; flex-direction: column; }
dd { margin: 0; font-size: 24px; font-variant-numeric: tabular-nums; } dt { font-size: 13px; }
article { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--warning);
  border-radius: 8px; padding: 12px 16px; margin: 12px 0; } article.error { border-left-color: var(--error); }
.badge { text-transform: uppercase; font-size: 11px; letter-spacing: .06em; margin-right: 6px; }
.figures { font-variant-numeric: tabular-nums; color: var(--soft); } .note { margin-top: 10px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; } .text { text-align: left; }
td.line { white-space: normal; overflow-wrap: anywhere; min-width: 320px; }
svg { width: 100%; min-width: 720px; display: block; font: 11px system-ui, sans-serif; }
svg text { fill: var(--soft); } .step0 { fill: var(--band); } .step1 { fill: var(--card); }
.rule { stroke: var(--line); } .tick { stroke: var(--line); stroke-dasharray: 2 4; }
.wait { fill: var(--wait); } .up { fill: var(--up); } .down { fill: var(--down); } .other { fill: var(--other); }
.fault { stroke: var(--text); stroke-width: 1; }
"""
