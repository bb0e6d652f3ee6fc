"""Random numbers: every device draws from the host's stream, so that a script computes what it computes on the CPU.

``torch.cuda.manual_seed`` and its kin therefore seed that one stream, and ``get_rng_state`` of a device is the host's.
``torch.Generator(device="cuda")`` is a generator of the host with a stream of its own, which only tensors of a device
may draw from.

Not faithful: the numbers are not those of a GPU, a seed for one device seeds all and the host, and so does a state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

import torch

from devlint.runtime.placement import HOST, device_of
from devlint.runtime.simulator import Simulator, active

_HostGenerator = torch.Generator
_by_address: WeakValueDictionary[int, Generator] = WeakValueDictionary()


class _Kind(type(_HostGenerator)):  # type: ignore[misc]
    """Lets generators that torch made itself count as instances of what stands in place of ``torch.Generator``."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _HostGenerator) if cls is Generator else cls in type(instance).__mro__


class Generator(_HostGenerator, metaclass=_Kind):
    """In place of ``torch.Generator``: one of the host that says which device it is for."""

    _place: torch.device
    _cdata: int  # where torch's own object is: wrappers of one generator share it

    def __new__(cls, device: Any = None) -> Any:
        simulator = active()
        place = torch.device("cpu" if device is None else device)
        if simulator is None or place.type != simulator.machine.kind:
            return _HostGenerator(place)
        generator = super().__new__(cls)
        generator._place = simulator.machine.device(place)
        _by_address[generator._cdata] = generator
        return generator

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device whose tensors may draw from it."""
        return self._place

    def set_state(self, new_state: torch.Tensor) -> Generator:
        """Goes on from a state, which is on the host."""
        return super().set_state(_on_host(new_state))  # type: ignore[return-value]

    def clone_state(self) -> Generator:
        """A generator for the same device, in the same state."""
        return _in_state(self._place, self.get_state())

    def __reduce__(self) -> Any:
        return _in_state, (self._place, self.get_state())


def _on_host(state: torch.Tensor) -> torch.Tensor:
    """The state itself.

    Raises:
        TypeError: torch's own (``check_rng_state``): it is on a device, where ``torch.load(map_location=...)`` put it.
    """
    if device_of(state) != HOST:
        raise TypeError("RNG state must be a torch.ByteTensor")
    return state


def _set_rng_state(new_state: torch.Tensor) -> None:
    """In place of ``torch.set_rng_state``."""
    torch.default_generator.set_state(_on_host(new_state))


def _in_state(place: torch.device, state: torch.Tensor) -> Generator:
    generator: Generator = Generator(place)
    generator.set_state(state)
    return generator


class DefaultGenerator(Generator):
    """In place of an item of ``torch.cuda.default_generators``: another name for the host's stream."""

    def manual_seed(self, seed: int) -> DefaultGenerator:
        """Seeds the host's stream."""
        torch.default_generator.manual_seed(seed)
        return self

    def seed(self) -> int:
        """Seeds the host's stream by chance."""
        return torch.default_generator.seed()

    def initial_seed(self) -> int:
        """What the host's stream was seeded with."""
        return torch.default_generator.initial_seed()

    def get_state(self) -> torch.Tensor:
        """Where the host's stream is."""
        return torch.default_generator.get_state()

    def set_state(self, new_state: torch.Tensor) -> DefaultGenerator:
        """Moves the host's stream."""
        torch.default_generator.set_state(_on_host(new_state))
        return self


def drawn_from(generator: Any, place: torch.device) -> Any:
    """The generator to draw with in place of `generator`, for a tensor on `place`.

    Raises:
        RuntimeError: torch's own, for a generator of another kind of device.
    """
    pretended = _by_address.get(generator._cdata)
    kind = "cpu" if pretended is None else pretended.device.type
    if kind != place.type:
        raise RuntimeError(f"Expected a '{place.type}' device type for generator but found '{kind}'")
    return None if isinstance(pretended, DefaultGenerator) else generator


def replacements(simulator: Simulator) -> Iterator[tuple[Any, Any, Any]]:
    """Generators for the imaginary devices."""
    machine = simulator.machine
    generators = []
    for index in range(machine.count):
        generator = _HostGenerator.__new__(DefaultGenerator)
        generator._place = torch.device(machine.kind, index)
        _by_address[generator._cdata] = generator
        generators.append(generator)
    yield torch, "Generator", Generator
    yield torch, "set_rng_state", _set_rng_state
    yield torch.random, "set_rng_state", _set_rng_state
    if machine.kind == "cuda":
        yield torch.cuda, "default_generators", tuple(generators)
    else:
        yield torch._C, "_mps_get_default_generator", lambda: generators[0]
        yield torch.mps, "_default_mps_generator", None
