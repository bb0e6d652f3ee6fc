"""What the place of a file says about it."""

from __future__ import annotations

_TESTS = frozenset({"test", "tests", "testing"})


def near(path: str) -> list[str]:
    """The names of a file and of three folders above it: those further up say where the checkout is."""
    return path.replace("\\", "/").lower().split("/")[-4:]


def is_test_file(path: str) -> bool:
    """``tests/test_model.py``, ``conftest.py``: such files are run by those who know on what."""
    *folders, name = near(path)
    return bool(_TESTS.intersection(folders)) or name.startswith(("test_", "conftest")) or name.endswith("_test.py")
