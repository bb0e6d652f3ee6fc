"""Would torch refuse this mix of devices? Asked below autograd, for one ATen operation, before it runs.

Torch decides in three places, and the rules here follow them (sources: ``native_functions.yaml`` and
``torchgen/dest/register_dispatch_key.py`` for the wrappers, ``aten/src/ATen/TensorIterator.cpp``, and the kernels named
beside each table):

- The wrapper generated around a CUDA kernel compares the devices of every tensor argument, zero-dimensional ones
  included, unless the operator is declared ``device_check: NoCheck``. This is the rule for every operator of ``aten``
  that no table below names (`_all_together`).
- Elementwise operators without that check run on ``TensorIterator``: they take one zero-dimensional host tensor beside
  device ones, never the other way round, and never for what they write to (`_elementwise`).
- Some kernels look for themselves, and say so in words of their own: indexing, ``where``, ``masked_fill``, recurrent
  layers, convolutions, the ``_foreach_*`` family, fused optimizers.

Not faithful:

- Checks in C++ code that is made of other operators (``CompositeImplicitAutograd``) are not seen: ask about the parts,
  which are refused in turn, at times in other words. Under ``inference_mode`` such an operator arrives whole, and is
  answered with silence; `torch._ops.OpOverload.decompose` runs its parts.
- Wrappers name the C++ function they guard (``wrapper_CUDA__index_select``); the underscores here may differ.
- ``mps`` has no generated wrappers: its kernels refuse the same mixes later, in other words ("Placeholder storage has
  not been allocated on MPS device!"), where this speaks of devices.
- A ``meta`` tensor is really one, so torch answers for itself; only elementwise operators are refused ahead.
- Operators of other namespaces than torch's own (`NAMESPACES`) are unknown: silence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from devlint.runtime.legality_table import (
    ANYWHERE,
    ARGUMENTS_ANYWHERE,
    ARGUMENTS_ON_HOST,
    CLAMPED,
    ELEMENTWISE,
    FOLLOWS_FIRST,
    HOST_ONLY,
    NAMESPACES,
    SCALARS_AT,
)

__all__ = ["HOST_ONLY", "Operand", "Refusal", "follows_first", "refusal"]


@dataclass(frozen=True)
class Operand:
    """One tensor that an operation was given.

    Attributes:
        name: the argument's name in the operator's schema; an item of a list is ``tensors[2]``.
        tensor: the tensor itself.
        device: where it lives, really or as pretended.
    """

    name: str
    tensor: Tensor
    device: torch.device


@dataclass(frozen=True)
class Refusal:
    """What torch would raise instead of running the operation.

    Attributes:
        error: the type of the error.
        message: what torch says, as near to its own words as the rule goes.
        operands: every tensor of the call whose place is known, outputs included, in the order of the schema.
    """

    error: type[Exception]
    message: str
    operands: tuple[Operand, ...]


DeviceOf = Callable[[Tensor], torch.device | None]


def refusal(
    func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], device_of: DeviceOf
) -> Refusal | None:
    """What torch would raise for this call because of where its tensors live; ``None``: it would run it.

    To be asked when the operands are in two places or more, and for the operators of `HOST_ONLY` always.

    Args:
        func: the operator, as a ``TorchDispatchMode`` is given it.
        args: its positional arguments.
        kwargs: its keyword arguments.
        device_of: where a tensor lives; ``None`` for one that may be anywhere, which is then left out.
    """
    rule, is_generated = _rule(func), _is_generated(func)
    if rule is None and not is_generated:
        return None
    operands = list(_operands(func, args, kwargs, device_of))
    checked = operands
    if is_generated:  # an out= variant made of the operator without: that is asked first
        checked = [operand for operand in operands if not operand.written]
    on_meta = any(operand.device.type == "meta" for operand in checked)
    if on_meta and (rule is not _elementwise or any(operand.written for operand in checked)):
        return None
    message = rule(func, checked) if rule is not None else None
    if message is None and is_generated:
        message = _written_elsewhere(func, operands)
    if message is None:
        return None
    return Refusal(RuntimeError, message, tuple(Operand(o.name, o.tensor, o.device) for o in operands))


@functools.cache
def is_composite(func: torch._ops.OpOverload) -> bool:
    """Whether an operator is nothing but others, as it comes to a dispatch mode under ``inference_mode`` only.

    One that has a kernel of its own besides, such as ``silu_backward``, is not: its parts round otherwise.
    """
    keys = torch._C.DispatchKey
    return func.has_kernel_for_dispatch_key(keys.CompositeImplicitAutograd) and not any(
        func.has_kernel_for_dispatch_key(key) for key in (keys.CPU, keys.CUDA)
    )


def _is_generated(func: torch._ops.OpOverload) -> bool:
    return func.namespace in NAMESPACES and torch.Tag.generated in func.tags


def follows_first(func: torch._ops.OpOverload) -> bool:
    """Whether the result of a mix is where the first operand is; else it is on the device.

    Results that are operands (``out=``, in-place) stay where they are, and are none of this.
    """
    return _name(func) in FOLLOWS_FIRST


# The operands of a call -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """An operand with what the rules ask of its argument."""

    name: str
    argument: str
    position: int | None  # in its list
    written: bool  # an output, or the tensor that an in-place operator changes
    tensor: Tensor
    device: torch.device

    @property
    def is_host_scalar(self) -> bool:
        """Whether TensorIterator could take it as a number: zero-dimensional, on the host, only read."""
        return not self.written and self.device.type == "cpu" and self.tensor.dim() == 0


def _operands(
    func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], device_of: DeviceOf
) -> Iterator[_Seen]:
    for i, argument in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        items: Iterable[tuple[int | None, Any]] = (
            enumerate(value) if isinstance(value, (list, tuple)) else [(None, value)]
        )
        for position, item in items:
            if isinstance(item, Tensor) and (device := device_of(item)) is not None:
                name = argument.name if position is None else f"{argument.name}[{position}]"
                yield _Seen(name, argument.name, position, written, item, _indexed(device))


def _indexed(device: torch.device) -> torch.device:
    """`device` as tensors report it: ``mps`` and ``cuda`` always with an index."""
    return device if device.index is not None or device.type in ("cpu", "meta") else torch.device(device.type, 0)


# Rules: each answers with torch's words, or with ``None`` where torch goes on -----------------------------------------

_Rule = Callable[[torch._ops.OpOverload, list[_Seen]], str | None]


def _all_together(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """The check of the generated wrappers: outputs first, then the arguments in order, all where the first is."""
    ordered = [o for o in seen if o.written] + [o for o in seen if not o.written]
    for operand in ordered:
        if operand.device != ordered[0].device:
            return (
                f"Expected all tensors to be on the same device, but got {operand.argument} is on {operand.device}, "
                f"different from other tensors on {ordered[0].device} "
                f"(when checking argument in method {_wrapper(func, seen)})"
            )
    return None


def _wrapper(func: torch._ops.OpOverload, seen: list[_Seen]) -> str:
    kind = next((o.device.type for o in seen if o.device.type != "cpu"), "cpu")
    return f"wrapper_{kind.upper()}_{func._schema.name.removeprefix('aten::')}"


def _elementwise(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """TensorIterator with ``allow_cpu_scalars``: one zero-dimensional host tensor may be read beside device ones."""
    return _iterate(seen, SCALARS_AT.get(_name(func)))


def _iterate(seen: list[_Seen], scalars: frozenset[str] | None) -> str | None:
    """`scalars`: the arguments whose kernel knows what to do with a number; ``None``: any."""
    common = next((o.device for o in seen if o.device.type != "cpu"), torch.device("cpu"))
    found = 0
    for operand in seen:
        if operand.device == common:
            continue
        if not operand.is_host_scalar or (scalars is not None and operand.argument not in scalars):
            return _two_devices(common, operand.device)
        found += 1
        if found > 1:
            return "Trying to pass too many CPU scalars to non-CPU kernel!"
    return None


def _two_devices(one: torch.device, other: torch.device) -> str:
    return f"Expected all tensors to be on the same device, but found at least two devices, {one} and {other}!"


def _written_elsewhere(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """A generated ``out=`` variant copies a result that it has made, on one device (``copy_arg``)."""
    for out in (operand for operand in seen if operand.written):
        read = [o.device for o in seen if not o.written and out.position in (None, o.position)]
        if not read or out.device.type == "meta":
            continue
        made = read[0] if follows_first(func) else next((device for device in read if device.type != "cpu"), read[0])
        if out.device != made:
            return f"Expected out tensor to have device {made}, but got {out.device} instead"
    return None


def _logical(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """Without an output, the result is made where the first operand is (``comparison_op``)."""
    return _iterate(seen, None if func._overloadname == "out" else frozenset({"other"}))


def _drawn(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """Probabilities are moved between the host and the device (DistributionTemplates.h)."""
    return None if any(o.device.type == "cpu" for o in seen) else _all_together(func, seen)


def _where(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """Zero-dimensional operands go to the first device there is, from any other (``where_self_out``)."""
    device = next((o.device for o in seen if o.device.type != "cpu"), torch.device("cpu"))
    away = [o for o in seen if o.device != device and (o.written or o.tensor.dim() > 0)]
    return _two_devices(device, away[0].device) if away else None


def _index(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """Indices may be on the host (``check_indices_on_cpu_or_selfdevice``)."""
    indexed = next((o.device for o in seen if o.argument == "self"), None)
    for operand in seen:
        if indexed is None or operand.device == indexed:
            continue
        if operand.argument != "indices":
            return _two_devices(indexed, operand.device)
        if operand.device.type != "cpu":
            return f"indices should be either on cpu or on the same device as the indexed tensor ({indexed})"
    return None


def _index_put(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """Indices are moved, from anywhere, and so is one zero-dimensional value (``_index_put_impl_``)."""
    changed = next((o.device for o in seen if o.argument == "self"), None)
    for operand in seen:
        if changed is None or operand.device == changed or operand.argument == "indices":
            continue
        if operand.argument != "values" or operand.tensor.dim() > 0:
            return _two_devices(changed, operand.device)
    return None


def _masked_fill(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """The value is read as a number, but not from a device for a host tensor (``masked_fill__cuda``)."""
    places = {o.argument: o.device for o in seen}
    filled, mask, value = places.get("self"), places.get("mask"), places.get("value")
    if filled is None:
        return None
    if mask is not None and mask != filled:
        return f"expected self and mask to be on the same device, but got mask on {mask} and self on {filled}"
    if value is not None and value != filled and filled.type == "cpu":
        return "masked_fill_: Expected inputs to be on same device"
    return None


def _convolution(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """``check_input_same_type_as_parameters`` compares kinds of device; the wrapper below it their indices."""
    tensors = {o.argument: o for o in seen}
    given = tensors.get("input")
    for name in ("weight", "bias"):
        parameter = tensors.get(name)
        if given and parameter and given.device.type != parameter.device.type:
            return f"Input type ({_type_name(given)}) and {name} type ({_type_name(parameter)}) should be the same"
    return _all_together(func, seen)


def _type_name(operand: _Seen) -> str:
    """``torch.cuda.FloatTensor``, as ``Tensor.type()`` would say it."""
    kind = "" if operand.device.type == "cpu" else f"{operand.device.type}."
    return f"torch.{kind}{_TYPES.get(operand.tensor.dtype, str(operand.tensor.dtype))}Tensor"


_TYPES: Final = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble", torch.bool: "Bool", torch.uint8: "Byte",
    torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long",
}  # fmt: skip


def _recurrent(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """``check_attributes`` of RNN.cpp: parameters and hidden states are compared with the input."""
    given = next((o.device for o in seen if o.argument == "input"), None)
    for operand in seen:
        if given is not None and operand.device != given:
            what = "hidden" if operand.argument.startswith(("hx", "cx", "hidden")) else "parameter"
            return (
                f"Input and {what} tensors are not at the same device, "
                f"found input tensor at {given} and {what} tensor at {operand.device}"
            )
    return None


def _attention(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """``validate_sdpa_input`` speaks first."""
    places = {o.argument: o.device for o in seen}
    asked = [places[name] for name in ("query", "key", "value") if name in places]
    if len(set(asked)) > 1 and len(asked) == 3:
        return (
            f"Expected query, key, and value to have the same device type, but got query.device: {asked[0]} "
            f"key.device: {asked[1]} and value.device: {asked[2]} instead."
        )
    return _all_together(func, seen)


def _set(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    if len({o.device for o in seen}) < 2:
        return None
    return (
        f'Attempted to set the storage of a tensor on device "{seen[0].device}" to a storage on different device '
        f'"{seen[-1].device}".  This is no longer allowed; the devices must match.'
    )


def _packed(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """The lengths are read by the host (``_pack_padded_sequence``)."""
    lengths = next((o for o in seen if o.argument == "lengths"), None)
    if lengths is None or lengths.device.type == "cpu":
        return None
    kind = _TYPES.get(lengths.tensor.dtype, str(lengths.tensor.dtype))
    return (
        "'lengths' argument should be a 1D CPU int64 tensor, "
        f"but got {lengths.tensor.dim()}D {lengths.device} {kind} tensor"
    )


def _foreach(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """Lists in several places leave the fast kernels: each item is then an operation of its own (ForeachUtils.h)."""
    if func._overloadname == "Tensor" and (message := _foreach_scalar(func, seen)) is not None:
        return message
    name = _name(func).removeprefix("_foreach_")
    pointwise = name in ("addcmul", "addcdiv")
    for i in {o.position for o in seen}:
        pair = [o for o in seen if o.position == i or (o.position is None and not pointwise)]
        if i is None:
            continue
        if name in SCALARS_AT or (name in ELEMENTWISE and name not in CLAMPED):
            message = _iterate(pair, SCALARS_AT.get(name))
        else:
            message = _all_together(func, pair)
        if message is not None:
            return message
    return None


def _foreach_scalar(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
    """The one tensor beside the lists: on the host for ``addcmul`` and ``addcdiv``, else read where the lists are."""
    single = next((o for o in seen if o.position is None), None)
    if single is None:
        return None
    if single.argument == "scalars":
        off_host = single.device.type != "cpu"
        return f"Expected scalars to be on CPU, got {single.device} instead." if off_host else None
    items = [o for o in seen if o.position is not None]
    fast = len({(o.device, o.tensor.dtype) for o in items}) == 1 and items[0].tensor.dtype == single.tensor.dtype
    as_number = single.device.type == "cpu" and not _name(func).endswith("_add")
    if fast and single.device != items[0].device and not as_number:
        return f"scalar tensor expected to be on {items[0].device} but is on {single.device}"
    return None


# Which operator follows which rule ------------------------------------------------------------------------------------

_OWN_RULES: Final[dict[str, _Rule]] = {
    "where": _where,
    "logical_and": _logical,
    "logical_or": _logical,
    "logical_xor": _logical,
    "bernoulli": _drawn,
    "index": _index,
    "_unsafe_index": _index,
    "index_put": _index_put,
    "_index_put_impl": _index_put,
    "_unsafe_index_put": _index_put,
    "masked_fill": _masked_fill,
    "convolution": _convolution,
    "_convolution": _convolution,
    "_cudnn_rnn": _recurrent,
    "miopen_rnn": _recurrent,
    "mkldnn_rnn_layer": _recurrent,
    "_lstm_mps": _recurrent,
    "_fused_sdp_choice": _attention,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_attention_math_for_mps": _attention,
    "set": _set,
    "_pack_padded_sequence": _packed,
}


def _name(func: torch._ops.OpOverload) -> str:
    name = func._schema.name.partition("::")[2]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


@functools.cache
def _rule(func: torch._ops.OpOverload) -> _Rule | None:
    """The rule an operator follows; ``None``: it takes every mix, or its parts are asked about, or it is unknown."""
    if func.namespace not in NAMESPACES:
        return None
    # `OpOverload.has_kernel_for_dispatch_key` would count torch's Python decompositions, which nothing runs here.
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return None
    name = _name(func)
    if name in ANYWHERE:
        return None
    rule = _OWN_RULES.get(name, _all_together)
    if name.startswith("_foreach_"):
        rule = _foreach
    elif name in ELEMENTWISE or name in SCALARS_AT or f"{name}.{func._overloadname}" in ELEMENTWISE:
        rule = _elementwise
    anywhere = ARGUMENTS_ANYWHERE.get(name, frozenset())
    on_host = ARGUMENTS_ON_HOST.get(f"{name}.{func._overloadname}", ARGUMENTS_ON_HOST.get(name, frozenset()))
    return _without(rule, anywhere, on_host) if anywhere or on_host else rule


def _without(rule: _Rule, anywhere: frozenset[str], on_host: frozenset[str]) -> _Rule:
    def rest(func: torch._ops.OpOverload, seen: list[_Seen]) -> str | None:
        def counts(o: _Seen) -> bool:
            return o.argument not in anywhere and not (o.argument in on_host and o.device.type == "cpu")

        return rule(func, [o for o in seen if counts(o)])

    return rest
