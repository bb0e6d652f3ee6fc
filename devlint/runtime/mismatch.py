"""Operands on different devices: seen before the operation runs, and told with all that is known of each.

Only a call whose tensors are in several places is looked into. It runs under a dispatch mode that asks
`legality.refusal` about each ATen operation, so that mixes that torch takes stay silent.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from devlint.runtime.events import Event
from devlint.runtime.legality import HOST_ONLY, Operand, Refusal, is_composite, refusal
from devlint.runtime.legality_calls import call_refusal, concerns
from devlint.runtime.placement import HOST, device_of, record_of, tensors_in, unhooked
from devlint.runtime.provenance import Home, arguments, homes, key_of, name_of, outermost_module
from devlint.runtime.site import Site, here, site_of

if TYPE_CHECKING:
    from devlint.runtime.guard import Guard

_MOST_OPERANDS: Final = 4  # named on either side, of a call that takes lists
#: Factories that fill memory by themselves, and could do so on the device.
FACTORIES: Final = frozenset(
    getattr(torch, name)
    for name in """
        arange bartlett_window blackman_window empty empty_strided eye full hamming_window hann_window kaiser_window
        linspace logspace normal ones rand randint randn randperm range tril_indices triu_indices zeros
    """.split()
)
#: Those that copy values of Python's or NumPy's.
FROM_DATA: Final = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.complex})


class _Refused(Exception):  # noqa: N818 - never seen: it carries a refusal out of the operation
    def __init__(self, operands: tuple[Operand, ...], message: str) -> None:
        self.operands = operands
        self.message = message


class _Checking(TorchDispatchMode):
    """Asks about each operation. Raises `_Refused`, or only remembers it and lets torch speak."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.raises = raises
        self.refused: _Refused | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spares the wrapper that torch puts around each call otherwise, and the import of its compiler for it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if func._schema.name in HOST_ONLY or len({device_of(tensor) for tensor in tensors_in([args, kwargs])}) > 1:
            refused = refusal(func, args, kwargs, device_of)
            if refused is not None:
                self.refuse(refused)
        return func(*args, **kwargs)

    def refuse(self, refused: Refusal) -> None:
        """Torch will not run this."""
        self.refused = self.refused or _Refused(refused.operands, refused.message)
        if self.raises:
            raise self.refused


def checked(guard: Guard, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a call whose tensors are in several places.

    Raises:
        DevicePlacementError: torch would refuse it, and the guard raises. Else torch raises by itself.
    """
    checking = _Checking(raises=guard.on == "raise")
    try:
        if concerns(func, kwargs) and (before := call_refusal(func, args, kwargs, device_of)) is not None:
            checking.refuse(before)
        with checking:
            return func(*args, **kwargs)
    except _Refused as refused:
        event = _event(func, args, kwargs, refused)
    except Exception:
        if checking.refused is not None:
            guard.emit(_event(func, args, kwargs, checking.refused))
        raise
    guard.emit(event)  # raises
    return None


def refuse_numpy(guard: Guard, tensor: Tensor, operation: str) -> None:
    """A device tensor is asked for as an array: torch will refuse.

    Raises:
        HostConversionError: the guard raises.
    """
    place = device_of(tensor)
    operand = _described([Operand("self", tensor, place or HOST)], sys._getframe(1))[0]
    who = f"`{operand.home.path}`" if operand.home else f"the tensor of `{operation}`"
    guard.emit(
        Event(
            "met",
            "numpy-on-device-tensor",
            f"{who} is on {place}: NumPy cannot read it there",
            operation,
            here(),
            source=str(place),
            target=str(HOST),
            notes=tuple(operand.notes()),
            error=True,
        )
    )


@dataclass
class _Described:
    """One operand, with what is known of it."""

    name: str
    tensor: Tensor
    device: torch.device
    home: Home | None

    def notes(self) -> list[tuple[Site | None, str]]:
        """What it is, and each place that has to do with it."""
        record = record_of(self.tensor)
        with unhooked():
            shape, dtype = list(self.tensor.shape), str(self.tensor.dtype).removeprefix("torch.")
        who = f"`{self.name}` (`{self.home.path}`)" if self.home else f"`{self.name}`"
        notes: list[tuple[Site | None, str]] = [(None, f"{who} is a {dtype} tensor of shape {shape} on {self.device}")]
        if record is not None and record.made is not None:
            by = f" by `{name_of(record.by)}`" if record.by is not None else ""
            moved = " and moved" if record.made == record.moved else ""
            notes.append((site_of(record.made), f"`{self.name}` was made{by}{moved}"))
        if record is not None and record.moved not in (None, record.made):
            notes.append((site_of(record.moved), f"`{self.name}` was moved last"))
        return notes


def _described(operands: list[Operand], frame: FrameType) -> list[_Described]:
    found = homes([operand.tensor for operand in operands], frame)
    return [_Described(o.name, o.tensor, o.device, home) for o, home in zip(operands, found, strict=True)]


def _event(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], refused: _Refused) -> Event:
    frame = sys._getframe(1)
    passed = [
        Operand(name, tensor, device)
        for name, tensor in arguments(func, args, kwargs)
        if (device := device_of(tensor)) is not None
    ]
    names = {key_of(operand.tensor): operand.name for operand in reversed(passed)}
    parts = [Operand(names.get(key_of(o.tensor), o.name), o.tensor, o.device) for o in refused.operands]
    culprit, rule = _judge(_described(parts, frame), frame)
    shown = [operand for operand in passed if operand.device == culprit.device][:_MOST_OPERANDS]
    shown += [operand for operand in passed if operand.device != culprit.device][:_MOST_OPERANDS]
    operands = _described([operand for operand in passed if operand in shown], frame)
    if key_of(culprit.tensor) not in names:  # made inside of the call
        operands.append(culprit)
    places = sorted({str(operand.device) for operand in operands})
    operation = name_of(func)
    who = culprit.home.path if culprit.home else culprit.name
    return Event(
        "met",
        rule,
        f"`{operation}` is given tensors on {' and '.join(places)}: `{who}` is on {culprit.device}",
        operation,
        here(),
        source=str(culprit.device),
        notes=(*(note for operand in operands for note in operand.notes()), (None, f"torch says: {refused.message}")),
        error=True,
    )


def _judge(operands: list[_Described], frame: FrameType) -> tuple[_Described, str]:
    """The operand that is out of place, and the rule that says why."""
    on_host = [operand for operand in operands if operand.device == HOST]
    if not on_host or len(on_host) == len(operands):
        return next(o for o in operands if o.device != operands[0].device), "mixed-devices"
    worst = max(on_host, key=lambda operand: operand.tensor.dim() > 0)
    called = outermost_module(frame)
    home = worst.home
    if home is not None and isinstance(home.owner, nn.Module):
        if home.kind == "attribute":
            return worst, "unregistered-tensor"
        if home.kind == "unregistered":
            return worst, "unregistered-module"
        if _is_loss(home.owner):
            return worst, "loss-not-moved"
        return worst, "mixed-devices"
    if called is not None and key_of(worst.tensor) in {key_of(tensor) for tensor in called[1]}:
        return worst, "input-not-moved"
    record = record_of(worst.tensor)
    if record is not None and record.moved is None and record.by in FACTORIES | FROM_DATA:
        return worst, "tensor-without-device"
    return worst, "mixed-devices"


def _is_loss(module: nn.Module) -> bool:
    """A loss of torch's or one called so, or a metric of torchmetrics (``add_state`` is its way to hold tensors)."""
    named = type(module).__name__
    return (
        isinstance(module, nn.modules.loss._Loss)
        or named.endswith(("Loss", "Criterion"))
        or hasattr(module, "add_state")
    )


def text_of(event: Event, advice: str) -> str:
    """What an error says of an event: each place on a line of its own, then the rule and what to do."""
    lines = [event.message]
    for site, text in event.notes:
        lines.append(f"  {text}: {_shown(site)}" if site else f"  {text}")
    lines.append(f"  rule: {event.rule}" + (f" ({advice})" if advice else ""))
    return "\n".join(lines)


def _shown(site: Site) -> str:
    return f"{site}: {site.code}" if site.code else str(site)
