"""From the bytes of a file to its text, without LibCST, which runs that parse nothing do not import."""

from __future__ import annotations

import codecs
import io
import re
import tokenize

NEWLINE = re.compile(r"\r\n|\r|\n")

_TWO_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)?[^\r\n]*")


class SourceError(Exception):
    """The bytes are not Python source: the reason, and the place where they stop being it."""

    def __init__(self, reason: str, row: int, column: int) -> None:
        super().__init__(reason)
        self.reason, self.row, self.column = reason, row, column


def decode(raw: bytes) -> tuple[bytes, str, str]:
    """Byte-order mark, encoding and text of a Python file.

    Raises :class:`SourceError` for an unknown encoding, undecodable bytes and null bytes.
    """
    bom = codecs.BOM_UTF8 if raw.startswith(codecs.BOM_UTF8) else b""
    body = raw[len(bom) :]
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise SourceError("the file is UTF-16, which Python does not read; save it as UTF-8", 1, 1)
    # a lone carriage return ends a line too, which detect_encoding does not know
    head = _TWO_LINES.match(raw)[0]  # type: ignore[index]  # it matches anything
    encoding = "utf-8"
    if b"coding" in head:
        lines = io.BytesIO(head.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        try:
            encoding, _ = tokenize.detect_encoding(lines.readline)
        except SyntaxError as error:
            # detect_encoding reads two lines only: a bad byte there is located below
            if "invalid or missing encoding declaration" not in str(error):
                raise SourceError(str(error), 1, 1) from error
    if encoding == "utf-8-sig":
        encoding = "utf-8"
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as error:
        before = body[: error.start].decode(encoding, "replace")
        raise SourceError(
            f"byte 0x{body[error.start]:02x} is not valid {encoding}; save the file as UTF-8 or declare its encoding",
            *place(before, len(before)),
        ) from error
    except (LookupError, UnicodeError) as error:  # "rot13" is no text encoding, "undefined" refuses all
        raise SourceError(f"cannot decode the file as {encoding}: {error}", 1, 1) from error
    null = text.find("\0")
    if null >= 0:
        raise SourceError("source code cannot contain null bytes", *place(text, null))
    return bom, encoding, text


def line_starts(text: str) -> list[int]:
    """Offsets at which the lines of ``text`` start (``\\n``, ``\\r\\n`` and a lone ``\\r`` end one)."""
    return [0, *(m.end() for m in NEWLINE.finditer(text))]


def place(text: str, offset: int) -> tuple[int, int]:
    starts = line_starts(text[:offset])
    return len(starts), offset - starts[-1] + 1
