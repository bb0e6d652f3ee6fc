"""Colours for a terminal, and characters that are safe to send to one."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

# Line and paragraph separators, and the marks that reorder text so that code reads as what it is not.
_HIDDEN = frozenset("\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")


class Style:
    """Puts text into colours, or leaves it alone."""

    def __init__(self, color: bool) -> None:
        self.color = color

    def _paint(self, codes: str, text: str) -> str:
        return f"\x1b[{codes}m{text}\x1b[0m" if self.color and text else text

    def bold(self, text: str) -> str:
        return self._paint("1", text)

    def path(self, text: str) -> str:
        return self._paint("1;36", text)

    def gutter(self, text: str) -> str:
        return self._paint("34", text)

    def note(self, text: str) -> str:
        return self._paint("1;34", text)

    def added(self, text: str) -> str:
        return self._paint("32", text)

    def removed(self, text: str) -> str:
        return self._paint("31", text)

    def good(self, text: str) -> str:
        return self._paint("1;32", text)

    def level(self, level: str, text: str) -> str:
        return self._paint("1;31" if level == "error" else "1;33", text)


def printable(text: str) -> str:
    """``text`` with every character that would move the cursor, or that cannot be encoded, written as an escape."""
    return text if text.isascii() and text.isprintable() else "".join(map(visible, text))


@lru_cache(maxsize=4096)
def visible(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte of a file name that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    if character in _HIDDEN or unicodedata.category(character) in ("Cc", "Cs"):
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return character
