"""devlint finds, explains and fixes device-placement bugs in PyTorch code.

The runtime companion's names are looked up on first use, because they need torch (``pip install "devlint[runtime]"``),
which the linter does not.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from devlint.runtime.audit import audit
    from devlint.runtime.guard import allow_sync, guard, guarded, step
    from devlint.runtime.simulator import simulate
    from devlint.runtime.watch import watch

__version__ = "0.1.0"
__all__ = ["__version__", "allow_sync", "audit", "guard", "guarded", "simulate", "step", "watch"]

_HOMES = {
    "allow_sync": "guard",
    "audit": "audit",
    "guard": "guard",
    "guarded": "guard",
    "simulate": "simulator",
    "step": "guard",
    "watch": "watch",
}


def __getattr__(name: str) -> Any:
    """A name of the runtime companion.

    Raises:
        AttributeError: it has no such name.
        ImportError: there is no torch, or one too old.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from devlint.runtime import require_torch

    require_torch()
    return getattr(import_module(f"devlint.runtime.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
