"""What is out of place in a module: tensors away from the others, tensors and modules that a move does not reach.

Everything here is a look at a module as it stands, without hooks and without running it. What the code of the module
itself makes right (it moves its inputs, or brings a tensor over when it is used: `devlint.runtime.forward_code`) is
silent, and so is what another tool places: accelerate's and diffusers' hooks, FSDP, DeepSpeed (`placed_by`).
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from devlint.runtime.advice import advice
from devlint.runtime.events import Event
from devlint.runtime.forward_code import assigned, is_torchs_own, meets_others, moves_tensors
from devlint.runtime.placement import HOST, device_of, record_of, tensors_in, unhooked
from devlint.runtime.site import Site, here, site_of

META: Final = torch.device("meta")
NOTHING_TO_COMPARE: Final = (
    "it has no parameters and no buffers with a dimension, so there is no device to compare with"
)
_CONTAINERS: Final = (nn.ParameterList, nn.ParameterDict)
_OWN: Final = frozenset(vars(nn.Module()))
_ENTRIES: Final = 100  # looked at in a plain list or dict

# Attributes by which tools that place parameters themselves are known, and their names.
_PLACED_BY: Final = {
    "_hf_hook": "accelerate",
    "_diffusers_hook": "diffusers",
    "_is_fsdp_managed_module": "FSDP",
    "_fsdp_wrapped_module": "FSDP",
}


def placed_by(model: nn.Module) -> str | None:
    """The tool whose hooks bring parameters and inputs together in `model`, if any: then there is nothing to compare.

    accelerate's ``dispatch_model`` leaves ``_hf_hook`` on each module it moves, and ``hf_device_map`` on the model;
    FSDP marks its modules or gives them a class of its own; DeepSpeed's ZeRO-3 leaves ``ds_id`` on parameters.
    """
    mapped = vars(model).get("hf_device_map")
    if isinstance(mapped, dict) and len(set(map(str, mapped.values()))) > 1:
        return "accelerate"
    for module in model.modules():
        for attribute, tool in _PLACED_BY.items():
            if attribute in vars(module):
                return tool
        if any(base.__module__.startswith("torch.distributed.fsdp") for base in type(module).__mro__):
            return "FSDP"
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        return "DeepSpeed"
    return None


def describe(tensor: Tensor) -> str:
    """``float32 (64, 3)``: dtype and shape."""
    with unhooked():
        dtype = str(tensor.dtype).removeprefix("torch.")
        return f"{dtype} (lazy)" if is_lazy(tensor) else f"{dtype} {tuple(tensor.shape)}"


def sentence(event: Event) -> str:
    """An event as an error or a warning says it: the message, where its tensors came from, the rule and the advice."""
    notes = "".join(f"\n  {text}: {site}: {site.code}" for site, text in event.notes if site is not None)
    help_ = advice(event.rule)
    return f"{event.message}{notes}" + (f"\n  {event.rule}: {help_}" if help_ else f"\n  {event.rule}")


def made_at(tensor: Tensor) -> Site | None:
    """The user's line that made the tensor's memory, where a guard or the simulator saw it."""
    record = record_of(tensor)
    return site_of(record.made) if record is not None and record.made is not None else None


@dataclass
class Inventory:
    """The parameters and buffers of a model, and where they are.

    Attributes:
        model: what was looked at. main: where most of its tensors are, an accelerator before the host; ``None`` for a
            model without any but zero-dimensional ones on the host. tensors: by name; one with two names has the first.
        places: of each of them; what may be anywhere is left out.
    """

    model: nn.Module
    main: torch.device | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    places: dict[str, torch.device] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> Inventory:
        self = cls(model, tensors={**dict(model.named_parameters()), **dict(model.named_buffers())})
        for name, tensor in self.tensors.items():
            place = device_of(tensor)
            if place is not None:
                self.places[name] = place
        self.main = _main(Counter(place for name, place in self.places.items() if not _goes_anywhere(self, name)))
        return self

    @cached_property
    def whole(self) -> bool:
        """Everything on one device, zero-dimensional host tensors left out."""
        return all(place == self.main or _goes_anywhere(self, name) for name, place in self.places.items())

    @cached_property
    def _below(self) -> dict[str, Counter[torch.device]]:
        """How many tensors are where, below each path; those that may meet any device left out."""
        counts: defaultdict[str, Counter[torch.device]] = defaultdict(Counter)
        for name, place in self.places.items():
            if not _goes_anywhere(self, name):
                path = name
                while path:
                    path = path.rpartition(".")[0]
                    counts[path][place] += 1
        return counts

    def main_below(self, path: str) -> torch.device | None:
        """Where most of the tensors below `path` are."""
        return _main(self._below.get(path, Counter()))

    def only_below(self, path: str) -> torch.device | None:
        """Where the tensors below `path` are, if they are all on one device (and there are any)."""
        if self.whole:
            return self.main
        counts = self._below.get(path, ())
        return next(iter(counts)) if len(counts) == 1 else None

    @cached_property
    def moves(self) -> bool:
        """Whether the model's code moves tensors, or cannot be read."""
        return moves_tensors(self.model)


def _goes_anywhere(inventory: Inventory, name: str) -> bool:
    """A zero-dimensional tensor on the host may meet tensors of any device, as counters do."""
    tensor = inventory.tensors[name]
    return inventory.places[name] == HOST and not is_lazy(tensor) and tensor.dim() == 0


def _main(counts: Counter[torch.device]) -> torch.device | None:
    there = Counter({place: count for place, count in counts.items() if place not in (HOST, META)})
    return (there or counts).most_common(1)[0][0] if counts else None


def look(
    inventory: Inventory, device: torch.device | None = None, trained: Container[int] | None = None
) -> Iterator[Event]:
    """Everything out of place in a model, whose parts the events name by their path.

    Args:
        inventory: of the model.
        device: where all of it should be; by default where most of it is.
        trained: ids of the parameters that an optimizer trains, if that is known.
    """
    if inventory.main is not None and (device or not inventory.whole) and placed_by(inventory.model) is None:
        yield from _split_modules(inventory)
        yield from _split_model(inventory, device)
    yield from _plain_attributes(inventory, device, trained)


# parameters and buffers ---------------------------------------------------------------------------------------------


def _split_modules(inventory: Inventory) -> Iterator[Event]:
    """Modules whose own parameters and buffers are on another device than the rest of them."""
    for path, module in inventory.model.named_modules():
        if isinstance(module, _CONTAINERS):
            continue
        names = [_join(path, name) for name in (*module._parameters, *module._buffers)]
        names = [name for name in names if name in inventory.places and not _goes_anywhere(inventory, name)]
        main = inventory.main_below(path)
        away = [name for name in names if inventory.places[name] != main]
        own = is_torchs_own(module)
        if not away or (not own and inventory.moves):
            continue
        for name in away:
            last = name.rpartition(".")[2]
            if not (own or meets_others(module, last)):
                continue
            tensor = inventory.tensors[name]
            kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
            message = (
                f"{kind} `{last}` of {_label(path, module)} is on {inventory.places[name]}, the rest of it on {main}"
            )
            yield _event("mixed-devices", message, name, tensor, error=own)


def _split_model(inventory: Inventory, device: torch.device | None) -> Iterator[Event]:
    """Parts of the model that are wholly on another device than the rest."""
    model, main = inventory.model, device or inventory.main
    wholly = {path: inventory.only_below(path) for path, _ in model.named_modules()}
    if device is not None and wholly[""] is not None and not same(wholly[""], device):
        yield _event("mixed-devices", f"{_label('', model)} is on {wholly['']}, not on {device}", _name(model))
        return
    away = [
        (path, module)
        for path, module in model.named_modules()
        if path
        and wholly[path] is not None
        and not same(wholly[path], main)
        and wholly[path.rpartition(".")[0]] is None
    ]
    # A container's forward is nobody's, and code that moves tensors may well bring these inputs where they belong.
    if not away or type(model).forward is nn.Module.forward or inventory.moves:
        return
    for path, module in away:
        yield _event(
            "mixed-devices",
            f"{_label(path, module)} is on {wholly[path]}, while most of {_label('', model)} is on {main}",
            path,
        )


def same(one: torch.device | None, other: torch.device | None) -> bool:
    """Whether both name one device; ``cuda`` without an index is any of its kind."""
    if one is None or other is None:
        return one is other
    return one.type == other.type and (one.index == other.index or one.index is None or other.index is None)


# plain attributes ---------------------------------------------------------------------------------------------------


def _plain_attributes(
    inventory: Inventory, device: torch.device | None, trained: Container[int] | None
) -> Iterator[Event]:
    """Tensors and modules in plain attributes, lists and dicts, which a move of the module does not reach."""
    known = {id(tensor) for tensor in inventory.tensors.values()} | {id(module) for module in inventory.model.modules()}
    for path, module in inventory.model.named_modules():
        if is_torchs_own(module):
            continue
        for name, value in list(vars(module).items()):
            if name in _OWN:
                continue
            if isinstance(value, Tensor):
                yield from _plain_tensor(inventory, path, module, name, "", value, device)
            elif isinstance(value, (list, tuple, dict)):
                held = [(where, item) for where, item in held_in(value) if id(item) not in known]
                yield from _plain_modules(inventory, path, module, name, held, trained)
                for where, item in held:
                    if isinstance(item, Tensor):
                        yield from _plain_tensor(inventory, path, module, name, where, item, device)


def held_in(value: Any, depth: int = 2) -> Iterator[tuple[str, Any]]:
    """The tensors and modules in a list or dict, with the subscript that leads there (of a long one, the first)."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in islice(items, _ENTRIES):
        if isinstance(item, (Tensor, nn.Module)):
            yield f"[{key!r}]", item
        elif depth and isinstance(item, (list, tuple, dict)):
            yield from ((f"[{key!r}]{where}", found) for where, found in held_in(item, depth - 1))


def _plain_tensor(
    inventory: Inventory,
    path: str,
    module: nn.Module,
    name: str,
    where: str,
    tensor: Tensor,
    device: torch.device | None,
) -> Iterator[Event]:
    place = device_of(tensor)
    if _made_of_unregistered_parameter(inventory, tensor):
        yield _event(
            "non-leaf-parameter",
            f"`self.{name}{where}` of {_label(path, module)} is computed from a parameter that the module does not "
            "hold: it is no leaf, so it never gets a gradient",
            _join(path, name) + where,
            tensor,
            site=assigned(module, name),
        )
        return
    home = inventory.only_below(path) or device or inventory.main
    if place is None or home is None or same(place, home) or tensor.dim() == 0 or isinstance(tensor, nn.Parameter):
        return
    if type(module)._apply is not nn.Module._apply or placed_by(module) is not None:
        return  # it moves its own tensors, or is moved about
    if inventory.only_below(path) is None and inventory.moves:
        return  # the model may be spread over devices on purpose
    if not meets_others(module, name, inside=bool(where)):
        return
    yield _event(
        "unregistered-tensor",
        f"`self.{name}{where}` of {_label(path, module)} is a plain tensor, left on {place}: "
        f"the parameters are on {home}",
        _join(path, name) + where,
        tensor,
        site=assigned(module, name),
    )


def _made_of_unregistered_parameter(inventory: Inventory, tensor: Tensor) -> bool:
    """``nn.Parameter(x).to(device)``: one operation away from a parameter that no module holds."""
    with unhooked():
        if tensor.grad_fn is None:
            return False
        for node, _ in tensor.grad_fn.next_functions:
            parameter = getattr(node, "variable", None)
            if isinstance(parameter, nn.Parameter):
                return not any(parameter is held for held in inventory.tensors.values())
    return False


def _plain_modules(
    inventory: Inventory,
    path: str,
    module: nn.Module,
    name: str,
    held: list[tuple[str, Any]],
    trained: Container[int] | None,
) -> Iterator[Event]:
    """Modules and parameters in a plain list or dict that nothing else registers.

    A single module, or frozen ones, may be kept out of the parameters on purpose (a teacher, a parent): these are
    reported only where a move left them behind.
    """
    found = [(where, item) for where, item in held if isinstance(item, (nn.Module, nn.Parameter))]
    parameters = [
        parameter
        for _, item in found
        for parameter in ([item] if isinstance(item, nn.Parameter) else item.parameters())
    ]
    if not parameters:
        return
    home = inventory.only_below(path) or inventory.main
    places = {place for place in map(device_of, parameters) if place is not None}
    left = home is not None and any(not same(place, home) for place in places)
    learns = any(parameter.requires_grad for parameter in parameters)
    if trained is not None and all(id(parameter) in trained for parameter in parameters):
        learns = False  # the optimizer was given them by hand
    if not left and not (learns and len(found) > 1):
        return
    kind = "module" if isinstance(found[0][1], nn.Module) else "parameter"
    what = f"1 {kind} that is" if len(found) == 1 else f"{len(found)} {kind}s that are"
    so = f", left on {', '.join(sorted(map(str, places)))}: the parameters are on {home}" if left else ""
    yield _event(
        "unregistered-module",
        f"`self.{name}` of {_label(path, module)} holds {what} not registered{so}",
        _join(path, name),
        site=assigned(module, name),
    )


# inputs -------------------------------------------------------------------------------------------------------------


def inputs_away(
    module: nn.Module, args: Any, kwargs: Any, home: torch.device, path: str, moves: bool | None = None
) -> Iterator[Event]:
    """Inputs that are about to meet the parameters of `module` on another device than `home`, where those are.

    Zero-dimensional tensors and one-dimensional integers (indices, lengths, which may or must be on the host) are left
    alone, and so is every module whose code or hooks move tensors; `moves` says so where it is known already.
    """
    away = list(_away(args, kwargs, home))
    if not away or (moves_tensors(module) or placed_by(module) is not None if moves is None else moves):
        return
    names = _argument_names(module, args, kwargs)
    for tensor in away:
        name = names.get(id(tensor), "input")
        yield Event(
            kind="module",
            rule="input-not-moved" if device_of(tensor) == HOST else "mixed-devices",
            message=f"input `{name}` of {_label(path, module)}, {describe(tensor)}, is on {device_of(tensor)}: "
            f"the parameters are on {home}",
            operation=f"{_name(module)}.forward",
            site=here(),
            notes=_made(tensor),
            error=True,
        )


def has_inputs_away(args: Any, kwargs: Any, home: torch.device) -> bool:
    """Whether there is such an input, whoever may move it."""
    return next(_away(args, kwargs, home), None) is not None


def _away(args: Any, kwargs: Any, home: torch.device) -> Iterator[Tensor]:
    return (tensor for tensor in tensors_in((*args, *kwargs.values()), depth=2) if _is_away(tensor, home))


def _is_away(tensor: Tensor, home: torch.device) -> bool:
    place = device_of(tensor)
    if place is None or place == home or META in (place, home):
        return False
    with unhooked():
        dimensions = tensor.dim()
        counts = not (tensor.is_floating_point() or tensor.is_complex())
    return dimensions > (1 if counts else 0)


def _argument_names(module: nn.Module, args: Any, kwargs: Any) -> dict[int, str]:
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # forward itself will refuse them, or has no signature
        bound = dict(kwargs)
    return {id(tensor): name for name, value in bound.items() for tensor in tensors_in([value], depth=2)}


# words --------------------------------------------------------------------------------------------------------------


def _name(module: nn.Module) -> str:
    return type(module).__name__


def _label(path: str, module: nn.Module) -> str:
    return f"`{path}` ({_name(module)})" if path else f"`{_name(module)}`"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _made(tensor: Tensor | None) -> tuple[tuple[Site | None, str], ...]:
    site = made_at(tensor) if tensor is not None else None
    return ((site, "the tensor was made"),) if site else ()


def _event(
    rule: str,
    message: str,
    operation: str,
    tensor: Tensor | None = None,
    error: bool = False,
    site: Site | None = None,
) -> Event:
    """An event about a part of a module: at `site`, at the line that made its tensor, or at the line that runs."""
    site = site or (made_at(tensor) if tensor is not None else None) or here()
    return Event("module", rule, message, operation, site, notes=_made(tensor), error=error)
