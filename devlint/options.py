"""Settings of a program, as the text of a file has them: which are off, and which are given a number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

#: What an option is by default, and what is off and what is a number that is not.
_DEFAULT = re.compile(rb"\bdefault\s*=\s*([^\s,)]+)")
_OFF = re.compile(rb"(?:None|null|False|false|-[\d.]+|0|0?\.0*|\"\"|'')$")
_NUMBER = re.compile(rb"(?!0*\.?0*$)[\d.]+(?:e-?\d+)?$")


def is_unset(name: bytes, raw: bytes) -> bool:
    """Whether a file has a setting that is off, as an option's default or in so many words."""
    return any(_OFF.match(value) for value in _values(name, raw))


def is_given(name: bytes, raw: bytes) -> bool:
    """Whether a file gives a setting a number above zero."""
    return any(_NUMBER.match(value) for value in _values(name, raw))


def _values(name: bytes, raw: bytes) -> Iterator[bytes]:
    if name in raw.replace(b"-", b"_"):
        yield from (match["value"] for match in _setting(name).finditer(raw))
        yield from (_default_of(match["rest"]) for match in _option(name).finditer(raw))


@lru_cache(maxsize=64)
def _option(name: bytes) -> re.Pattern[bytes]:
    """``parser.add_argument("-c", "--clip-norm", type=float, default=0.0, help="off (0) by default")``"""
    return re.compile(
        rb"\badd_(?:argument|option)\(\s*(?:[\"'][^\"']*[\"']\s*,\s*)?[\"']--?"
        + _dashed(name)
        + rb"[\"'](?P<rest>[^()]*(?:\([^()]*\)[^()]*)*)"
    )


@lru_cache(maxsize=64)
def _setting(name: bytes) -> re.Pattern[bytes]:
    """``cfg.train.clip_norm = -1.0``, ``clip_norm: 0.5``, ``"clip_norm": None``, ``--clip-norm 5``"""
    return re.compile(
        rb"(?:--|\b)" + _dashed(name) + rb"[\"']?(?:\s*:\s*(?:float|int)\s*=\s*|\s*[:=]\s*|[ \t]+)(?P<value>[^\s,)#]+)"
    )


def _dashed(name: bytes) -> bytes:
    return re.escape(name).replace(b"_", b"[-_]")


def _default_of(options: bytes) -> bytes:
    """The default that an option's arguments name; the one that it has where they name none."""
    default = _DEFAULT.search(options)
    return default[1] if default else b"True" if b"store_false" in options else b"None"
