"""What tells whether a file or folder is as it was: its state on disk, and a digest of what it holds."""

from __future__ import annotations

import hashlib
import os
import time

# A file written within the clock tick in which it was read would look unchanged ever after.
_SETTLED_NS = 2_000_000_000


def state(stat: os.stat_result) -> list[int]:
    """What changes on disk whenever the file does, or the names in a folder."""
    # the change time cannot be set back, so a file put back in place with its old time is seen as changed
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def state_at(path: str) -> list[int]:
    """The state of what is at a path now; empty where there is nothing."""
    try:
        return state(os.stat(path))
    except OSError:
        return []


def is_settled(stat: os.stat_result) -> bool:
    """Whether what is written to the file from now on shows in its state."""
    return stat.st_mtime_ns + _SETTLED_NS < time.time_ns()


def digest(data: bytes) -> str:
    """A name for some bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
