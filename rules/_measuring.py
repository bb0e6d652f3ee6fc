"""Functions that measure, wait or warm something up: what they do is done for the time it takes."""

from __future__ import annotations

import re

from devlint.flow.scope import Function


def measures_time(function: Function) -> bool:
    return bool(function.attribute_words & _CLOCKS or function.calls & _CLOCKS)


def is_named_for_measuring(function: Function) -> bool:
    """``def bench(f, x): f(x).cpu()``"""
    return _MEASURES.search(function.name) is not None


_CLOCKS = frozenset({"perf_counter", "perf_counter_ns", "monotonic", "time", "elapsed_time", "timeit", "Timer"})
_MEASURES = re.compile(r"(^|_)(bench|benchmark|profile|time[dr]?|timing|sync|warm_?up)(_|$)")
