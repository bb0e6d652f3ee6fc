"""Files that would take the parser down are refused with a place; what people write is read."""

from __future__ import annotations

import sys

import pytest

from devlint.decoding import SourceError
from devlint.nesting import too_deep
from devlint.source import Source

DEEP = {
    "calls": "y = x" + ".f()" * 5000,
    "calls, one a line": "y = (x" + "\n  .f(1)" * 5000 + ")",
    "calls, formatted": "y = x" + ".f(\n  1\n)" * 5000,
    "items": "y = x" + "[0]" * 5000,
    "attributes": "y = x" + ".f" * 5000,
    "a sum": "y = " + " + ".join(["x"] * 5000),
    "a sum, one a line": "y = (\n" + "  + x\n" * 5000 + ")",
    "a sum, operators last": "y = (\n" + "  x +\n" * 5000 + "x)",
    "a sum behind backslashes": "y = x" + " \\\n + x" * 5000,
    "negations": "y = " + "not " * 5000 + "x",
    "lambdas": "y = " + "lambda: " * 5000 + "x",
    "powers": "y = " + "**".join(["x"] * 5000),
    "choices": "y = " + "x if x else " * 5000 + "x",
    "branches": "if x:\n  pass\n" + "elif x:\n  pass\n" * 5000,
}


@pytest.mark.parametrize("name", DEEP)
def test_what_is_nested_too_deeply_is_refused(name: str) -> None:
    with pytest.raises(SourceError, match=r"this is nested more than 3000 levels deep") as caught:
        Source(f"import torch\n{DEEP[name]}\n".encode(), "a.py")
    assert caught.value.row in (2, 3, 4)


@pytest.mark.parametrize("brackets", ["()", "[]", "{}"])
def test_brackets_are_refused_where_python_refuses_them(brackets: str) -> None:
    with pytest.raises(SourceError, match="too many nested parentheses") as caught:
        Source(f"import torch\ny = {brackets[0] * 2000}{brackets[1] * 2000}\n".encode(), "a.py")
    assert (caught.value.row, caught.value.column) == (2, 205)


@pytest.mark.parametrize(
    "code",
    [
        "y = " + " + ".join(["x"] * 350),
        "y = x" + ".f()" * 150,
        "y = " + "[" * 100 + "]" * 100,
        "y = " + "(" * 190 + "x" + ")" * 190,
        "y = [\n" + "    (1, 'a'),\n" * 2000 + "]",
        "y = '" + "a" * 5000 + "'",
        "if x:\n  pass\n" + "elif x:\n  pass\n" * 1200,
    ],
)
def test_what_people_and_programs_write_is_read(code: str) -> None:
    assert Source(f"{code}\n".encode(), "a.py").text == f"{code}\n"


@pytest.mark.parametrize("code", ["y = (" + "[1]" * 400, "y = '\ud800'" + " + x" * 400, "\n" * 600 + "x = = 1"])
def test_what_python_cannot_read_at_all_is_left_to_the_parser(code: str) -> None:
    assert too_deep(code) is None


def test_the_limit_of_recursion_is_as_it_was() -> None:
    before = sys.getrecursionlimit()
    assert too_deep(DEEP["a sum"]) is not None
    assert sys.getrecursionlimit() == before
