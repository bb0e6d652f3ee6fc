"""The one entry point to checking: bytes in, findings out.

Files, stdin, the fix loop, tests and editors all call :func:`check`.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from devlint import suppress
from devlint.finding import BUILT_IN, INTERNAL_ERROR, SYNTAX_ERROR, TENTATIVE, UNUSED_IGNORE, Finding, Span

if TYPE_CHECKING:
    from devlint.config import Settings
    from devlint.index import View
    from devlint.ledger import Basis, Fact

#: A file whose bytes hold none of these names no framework, nor what gives models of one, and needs no parse.
FRAMEWORKS = (b"torch", b"transformers", b"diffusers")

# UTF-16 of either byte order holds these too: no Python, but that has to be said
_NAMES = (*FRAMEWORKS, *(b"\0".join(bytes([byte]) for byte in name) for name in FRAMEWORKS))


@dataclass
class Checked:
    """What one check gave: findings, the facts of other files they rest on, seconds by phase and rule, and how many
    tentative findings were held back."""

    findings: list[Finding]
    used: frozenset[Fact | Basis] = frozenset()
    seconds: dict[str, float] = field(default_factory=dict)
    held: int = 0


def check(raw: bytes, path: str, settings: Settings, project: View | None = None) -> list[Finding]:
    """The findings in ``raw``, sorted by place, with ignore comments applied.

    Never raises for what the file holds: bytes that are not Python give one ``syntax-error``, and a
    fault of devlint's own gives one ``internal-error`` that asks for a report.
    """
    return inspect(raw, path, settings, project).findings


def relevant(raw: bytes) -> bool:
    """Whether a file can hold a finding at all: it names a framework, or has a comment for devlint."""
    return any(name in raw for name in _NAMES) or b"devlint:" in raw


def inspect(raw: bytes, path: str, settings: Settings, project: View | None = None) -> Checked:
    """:func:`check`, with what the cache and ``--timing`` need besides."""
    if not relevant(raw):
        return Checked([])
    from devlint.source import deep_recursion

    with collector_off(), deep_recursion():
        try:
            return _inspect(raw, path, settings, project)
        except Exception as error:
            return Checked([_internal_error(error)])


def _inspect(raw: bytes, path: str, settings: Settings, project: View | None) -> Checked:
    from devlint.decoding import SourceError
    from devlint.flow import Flow
    from devlint.rule import discover
    from devlint.source import Source

    seconds: dict[str, float] = {}
    clock = time.perf_counter()

    def lap(phase: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        seconds[phase] = seconds.get(phase, 0.0) + now - clock
        clock = now

    enabled = settings.enabled(path)
    try:
        source = Source(raw, path, project.tree() if project is not None else None)
    except SourceError as error:
        place = Span(error.row, error.column, error.row, error.column)
        found = [Finding(SYNTAX_ERROR, *BUILT_IN[SYNTAX_ERROR], error.reason, place)]
        return Checked(found if SYNTAX_ERROR in enabled else [])
    lap("parse")
    flow = Flow(source, project)
    lap("flow")
    findings: list[Finding] = []
    for name, kind in discover().items():
        if name not in enabled:
            continue
        rule = kind(source, flow)
        rule.check()
        for node_name, attribute in kind.hooks:
            hook = getattr(rule, attribute)
            for node in source.nodes_named(node_name):
                hook(node)
        findings += rule.findings
        lap(f"rule {name}")
    findings = suppress.apply(source, findings, enabled, unused=UNUSED_IGNORE in enabled)
    held = 0
    if TENTATIVE not in enabled:  # after the comments: one that silences a tentative finding is no useless one
        held = sum(f.tentative for f in findings)
        findings = [f for f in findings if not f.tentative]
    findings.sort(key=lambda f: (f.span, f.rule, f.message))
    used = flow.used
    if project is not None:
        project.keep_tree(source.text, source.module)
    flow.let_go()
    lap("suppress")
    return Checked(findings, used, seconds, held)


def _internal_error(error: Exception) -> Finding:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{frame.filename.rsplit('devlint', 1)[-1].lstrip('/')}:{frame.lineno}"
    what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    message = f"devlint failed on this file ({what}, at {where}); please report it with the file"
    return Finding(INTERNAL_ERROR, *BUILT_IN[INTERNAL_ERROR], message, Span(1, 1, 1, 1))


@contextmanager
def collector_off() -> Iterator[None]:
    """Nothing is collected while much is made that stays."""
    # A tree is hundreds of thousands of objects, none in a cycle: collecting while it grows costs a third of the parse.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
