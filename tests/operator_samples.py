"""Torch's own operator database as calls: one small sample an operator, and every way to put one operand elsewhere.

The expected table (``tests/data/operator_devices.json``), the scripts that write it and the test that reads it must
mean the same calls by the same names, so they all take them from here.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

TABLE = Path(__file__).parent / "data" / "operator_devices.json"

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float64, torch.int8, torch.float16)
SAMPLES_READ = 12  # of each operator, to choose the one with the most tensors from
MOST = 6  # tensors of a sample
LARGEST = 20_000  # elements of a sample's tensors, together

OUT = "out"  # the path of an output that is given

# Where one operand is, and the others are not. The zero-dimensional variants take its first element in its stead.
WAYS = {
    "host": "on the host, the others on the device",
    "device": "on the device, the others on the host",
    "host number": "zero-dimensional on the host, the others on the device",
    "device number": "zero-dimensional on the device, the others on the host",
}


@dataclass(frozen=True)
class Call:
    """An operator with the arguments of one sample.

    Attributes:
        name: the operator's name in the database, with its variant.
        run: calls it.
        arguments: its positional arguments.
        keywords: its keyword arguments.
        takes_out: whether it knows ``out=``.
    """

    name: str
    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    takes_out: bool = False

    @property
    def paths(self) -> list[str]:
        """Where its tensors are among the arguments: ``0``, ``1.2`` for an item of a list, ``weight`` for a keyword."""
        return [path for path, _ in _tensors(self.arguments, self.keywords)]

    def with_tensors(self, change: Callable[[str, Tensor], Tensor]) -> Call:
        """The same call, each tensor replaced by what `change` makes of its path and itself."""
        arguments = tuple(_changed(value, str(i), change) for i, value in enumerate(self.arguments))
        keywords = {name: _changed(value, name, change) for name, value in self.keywords.items()}
        return replace(self, arguments=arguments, keywords=keywords)

    def __call__(self) -> Any:
        """Runs it, its random numbers always the same."""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.run(*self.arguments, **self.keywords)


def calls() -> list[Call]:
    """One call for each operator of the database with a sample on the host, each with its own name; `_others` too.

    They are gathered in a thread: the database looks through the whole stack for each sample, and pytest's is long.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: list(_calls())).result()


def _calls() -> Iterator[Call]:
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds

    yield from _others()
    taken: set[str] = set()
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if name.startswith("jiterator"):  # compiles CUDA code
            continue
        if name not in taken and (sample := _sample(op)) is not None:
            taken.add(name)
            yield Call(name, op, *sample, takes_out=op.supports_out and "device" not in sample[1])


def _others() -> Iterator[Call]:
    """What training does and the database leaves out: indexing by tensors, optimizers' kernels, recurrent layers."""
    torch.manual_seed(0)
    rows, index, mask = torch.randn(4, 3), torch.tensor([2, 0]), torch.tensor([True, False, True, False])
    yield Call("others.index", lambda x, i: x[i], (rows, index), {})
    yield Call("others.index_by_mask", lambda x, i: x[i], (rows, mask), {})
    yield Call("others.assign_by_index", _assign, (rows, index, torch.randn(2, 3)), {})
    yield Call("others.assign_by_mask", _assign, (rows, mask, torch.randn(2, 3)), {})
    yield Call("others.assign_number_by_mask", _assign, (rows, mask, torch.tensor(1.0)), {})
    yield Call("others.assign_row", _assign, (rows, 1, torch.randn(3)), {})
    yield Call("others.copy_", torch.Tensor.copy_, (rows, torch.randn(4, 3)), {})
    yield Call("others.fill_", torch.Tensor.fill_, (rows, torch.tensor(1.0)), {})
    yield Call("others.add_", torch.Tensor.add_, (rows, torch.randn(4, 3)), {})
    yield Call("others.addcmul_", torch.Tensor.addcmul_, (rows, torch.randn(4, 3), torch.randn(4, 3)), {})

    params, grads, means, squares = ([torch.rand(3, 2), torch.rand(4)] for _ in range(4))
    yield Call("others.foreach_add", torch._foreach_add, (params, grads), {"alpha": -0.1})
    yield Call("others.foreach_add_", torch._foreach_add_, (params, grads), {"alpha": -0.1})
    yield Call(
        "others.foreach_add_steps", torch._foreach_add_, ([torch.tensor(1.0)], torch.tensor(1.0)), {"alpha": 1.0}
    )
    yield Call("others.foreach_mul_number", torch._foreach_mul_, (params, torch.tensor(0.9)), {})
    yield Call("others.foreach_lerp_", torch._foreach_lerp_, (means, grads, 0.1), {})
    yield Call(
        "others.foreach_addcdiv_", torch._foreach_addcdiv_, (params, means, squares, torch.tensor([0.1, 0.2])), {}
    )
    yield Call("others.foreach_maximum_", torch._foreach_maximum_, (params, grads), {})
    yield Call("others.foreach_copy_", torch._foreach_copy_, (params, grads), {})
    yield Call("others.foreach_norm", torch._foreach_norm, (grads,), {})
    steps = [torch.tensor(1.0), torch.tensor(1.0)]
    rates = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
    state = (params, grads, means, squares, [], steps)
    yield Call("others.fused_adam", torch._fused_adam_, state, {"lr": 0.1, **rates})
    yield Call("others.fused_adam_rate", torch._fused_adam_, state, {"lr": torch.tensor(0.1), **rates})
    unscaled = (grads, torch.zeros(1), torch.ones(1))
    yield Call("others.unscale", torch._amp_foreach_non_finite_check_and_unscale_, unscaled, {})

    sequence, hidden = torch.randn(5, 2, 3), torch.zeros(1, 2, 4)
    for name, gates, states in (("lstm", 4, (hidden, hidden)), ("gru", 3, hidden), ("rnn_tanh", 1, hidden)):
        weights = [torch.randn(size) for size in ((gates * 4, 3), (gates * 4, 4), (gates * 4,), (gates * 4,))]
        rest = (True, 1, 0.0, False, False, False)
        yield Call(f"others.{name}", getattr(torch, name), (sequence, states, weights, *rest), {})
    yield Call(
        "others.pack_padded_sequence", torch._VF._pack_padded_sequence, (sequence, torch.tensor([5, 3]), False), {}
    )


def _assign(into: Tensor, index: Any, value: Tensor) -> Tensor:
    into[index] = value
    return into


def _sample(op: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Arguments with the most tensors, none empty, of the first of `DTYPES` that the operator takes on the host."""
    dtype = next((dtype for dtype in DTYPES if dtype in op.supported_dtypes("cpu")), None)
    if dtype is None:
        return None
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES_READ))
    best: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    most = (-1, False, -1)
    for sample in samples:
        arguments = (sample.input, *sample.args)
        found = [tensor for _, tensor in _tensors(arguments, sample.kwargs)]
        rank = len(found), all(tensor.numel() for tensor in found), sum(tensor.dim() > 0 for tensor in found)
        if most < rank and len(found) <= MOST and sum(tensor.numel() for tensor in found) <= LARGEST:
            most, best = rank, (arguments, dict(sample.kwargs))
    return best


def mixes(call: Call) -> Iterator[tuple[str, str]]:
    """Each operand's path with each way (`WAYS`) to put it elsewhere that makes sense for this call.

    A zero-dimensional way makes sense where the operand has a dimension to lose and the host alone takes it without;
    ``out``, where the result is one tensor.
    """
    paths = call.paths
    if len(paths) > 1:
        for path in paths:
            yield path, "host"
            yield path, "device"
            if _takes_number(call, path):
                yield path, "host number"
                yield path, "device number"
    if paths and call.takes_out and _with_out(call) is not None:
        yield OUT, "host"
        yield OUT, "device"


def _takes_number(call: Call, path: str) -> bool:
    tensor = dict(_tensors(call.arguments, call.keywords))[path]
    if tensor.dim() == 0 or tensor.numel() == 0 or tensor.layout is not torch.strided:
        return False
    try:
        as_number(call, path)()
    except Exception:  # whatever an operator says of a shape it does not take
        return False
    return True


def as_number(call: Call, path: str) -> Call:
    """The call with the first element of the tensor at `path` in its stead, fresh copies of the others."""
    return call.with_tensors(lambda at, tensor: _first(tensor) if at == path else tensor.clone())


def mixed(call: Call, path: str, way: str, to_device: Callable[[Tensor], Tensor]) -> Call:
    """The call with the tensor at `path` put elsewhere than the others; `to_device` copies one to the device."""
    if path == OUT:
        called = _with_out(call)
        assert called is not None, call.name
        call = called
    number, alone_on_host = way.endswith("number"), way.startswith("host")

    def place(at: str, tensor: Tensor) -> Tensor:
        own = _first(tensor) if number and at == path else tensor.clone()
        return own if (at == path) == alone_on_host else to_device(own)

    return call.with_tensors(place)


def _with_out(call: Call) -> Call | None:
    """The call with ``out=`` of the right size; ``None`` where its result is no single tensor."""
    try:
        result = call.with_tensors(_copied)()
        called = replace(call, keywords={**call.keywords, OUT: torch.empty_like(result)})
        called.with_tensors(_copied)()
    except Exception:  # whatever an operator says of a result it does not write to
        return None
    return called


def _copied(path: str, tensor: Tensor) -> Tensor:
    return tensor.clone()


def _first(tensor: Tensor) -> Tensor:
    return tensor.flatten()[0].clone()


def _tensors(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor]] = []

    def note(path: str, tensor: Tensor) -> Tensor:
        found.append((path, tensor))
        return tensor

    for i, value in enumerate(arguments):
        _changed(value, str(i), note)
    for name, value in keywords.items():
        _changed(value, name, note)
    return found


def _changed(value: Any, path: str, change: Callable[[str, Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(path, value)
    if type(value) in (list, tuple):
        return type(value)(_changed(item, f"{path}.{i}", change) for i, item in enumerate(value))
    if type(value) is dict:
        return {key: _changed(item, f"{path}.{key}", change) for key, item in value.items()}
    return value


class _Draws(TorchDispatchMode):
    """Notes whether an operation draws random numbers."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def draws(call: Call) -> bool:
    """Whether the call draws random numbers, which no two kinds of device draw alike."""
    with _Draws() as mode:
        call.with_tensors(_copied)()
    return mode.seen


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors of a result, in lists and named tuples too."""
    if isinstance(result, Tensor):
        return [result]
    return [tensor for item in result for tensor in tensors_of(item)] if isinstance(result, (list, tuple)) else []


def places_of(result: Any) -> str:
    """``host``, ``device``, both by name, or nothing for a result without tensors."""
    on = {"host" if tensor.device.type == "cpu" else "device" for tensor in tensors_of(result)}
    return " and ".join(sorted(on))


# The table: one line an operator ------------------------------------------------------------------------------------


def read_table() -> dict[str, Any]:
    """The expected table.

    ``provenance``: "measured" or "derived"; ``torch``, ``gpu``: with which; ``compared``: for a derived table, the GPU
    that was last found to take and refuse the same, and how many mixes of how many calls; ``operators``: by name, the
    mixes that pass, by where their results are (`places_of`), those that raise, by the type and the first words of the
    error, and ``same``: how a call with everything on the device compares with the host's (measured tables alone).
    """
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def verdicts(entry: dict[str, Any]) -> dict[str, str]:
    """What one operator's entry says of each mix: ``raises``, or ``passes`` and where the result is."""
    passes = {
        mix: f"passes, result on {place or 'neither'}" for place, mixes_ in entry["passes"].items() for mix in mixes_
    }
    return passes | {mix: "raises" for mixes_ in entry["raises"].values() for mix in mixes_}


def write_table(head: dict[str, Any], operators: dict[str, Any], path: Path = TABLE) -> None:
    """Writes the table with one line for each of `operators`, so that a change of one is one changed line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(operators.items())]
    body = json.dumps(head, indent=1)[:-2] + ',\n "operators": {\n' + ",\n".join(lines) + "\n }\n}\n"
    path.write_text(body, encoding="utf-8")
