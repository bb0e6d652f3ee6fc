"""Findings may rest on summaries of other files, and say on which."""

from __future__ import annotations

from pathlib import Path

from devlint import engine
from devlint.cache import Cache
from devlint.config import Settings
from devlint.flow.index import ProjectIndex, Summary

CODE = b"""\
import torch
from project.masks import causal
import project.noise as noise


def forward(x):
    return x + causal(3) + noise.draw(3)
"""

CAUSAL = Summary({"returns": "host"}, "digest of causal")
DRAW = Summary({"returns": "host"}, "digest of draw")
OTHER = Summary({"returns": "host"}, "digest of something else")


def index(**more: Summary) -> ProjectIndex:
    return ProjectIndex({"project.masks.causal": CAUSAL, "project.noise.draw": DRAW, **more})


def test_a_check_names_the_summaries_it_asked_for_and_no_others() -> None:
    checked = engine.inspect(CODE, "a.py", Settings(), index(**{"project.other": OTHER}))
    assert checked.used == (CAUSAL.digest, DRAW.digest)


def test_a_check_without_an_index_rests_on_nothing_but_the_file() -> None:
    assert engine.inspect(CODE, "a.py", Settings()).used == ()


def test_cached_findings_count_only_while_every_summary_they_used_is_unchanged(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), "generation", note=print)
    cache.put("key", [], engine.inspect(CODE, "a.py", Settings(), index()).used)
    assert cache.get("key", index().digests) == []
    changed = index(**{"project.masks.causal": Summary({"returns": "device"}, "another digest")})
    assert cache.get("key", changed.digests) is None
