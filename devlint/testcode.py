"""What the place of a file says about it: whether it is test code."""

from __future__ import annotations

import re

_FOLDER = re.compile(r"tests?|testing|test_utils|unit_?tests?|tests_\w+")
_FILE = re.compile(r"test_\w*\.py|\w+_test\.py|conftest\.py")


def near(path: str) -> list[str]:
    """The names of a file and of three folders above it: those further up say where the checkout is."""
    return path.replace("\\", "/").lower().split("/")[-4:]


def is_test_file(path: str) -> bool:
    """``tests/test_model.py``, ``conftest.py``; of an absolute path, only the last folders count."""
    absolute = path.startswith(("/", "\\")) or path[1:2] == ":"
    *folders, name = near(path) if absolute else path.replace("\\", "/").lower().split("/")
    return any(_FOLDER.fullmatch(folder) for folder in folders) or _FILE.fullmatch(name) is not None
