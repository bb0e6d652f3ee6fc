"""What the companion raises, and how it warns."""

from __future__ import annotations


class DevicePlacementError(RuntimeError):
    """Tensors meet on different devices, or the like. Code that catches torch's ``RuntimeError`` catches it."""


class HostConversionError(DevicePlacementError, TypeError):
    """A device tensor asked for as a NumPy array. Code that catches torch's ``TypeError`` catches it."""


class BudgetExceeded(AssertionError):  # noqa: N818 - it says what happened, as TimeoutExpired does
    """A guarded run waited or copied more than it was allowed to."""


class DevicePlacementWarning(UserWarning):
    """What was found where it is to be warned of (``on="warn"``)."""
