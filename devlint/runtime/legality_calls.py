"""Would torch refuse this mix of devices? Asked of a call of the Python API, for what `legality` cannot see from below.

Some of torch's C++ functions are made of other operators and compare devices themselves, before the first of these
runs (``CompositeImplicitAutograd``). Where the devices are only pretended, that code finds everything on the host and
goes on, so its checks are made here, from a ``TorchFunctionMode``. On a real device torch makes them.

The functions were found by running ``op_db`` under ``FakeTensorMode``, whose pretended devices such code does see
(``scripts/derive_operator_table.py``); texts are from ``TensorShape.cpp``, ``LinearAlgebra.cpp`` and
``LinearAlgebraUtils.h`` and ``RNN.cpp`` in ``aten/src/ATen/native``.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from devlint.runtime.legality import DeviceOf, Operand, Refusal

# Functions whose `out` is judged from below, in other words, or may be anywhere; so it is with all ``*_copy``.
_OTHER_OUT: Final = frozenset({"diag", "slice_scatter", "bernoulli"})


def concerns(function: Any, kwargs: dict[str, Any] | None) -> bool:
    """Whether `call_refusal` has anything to say of such a call; meant to be cheap, for every call of a program."""
    return function in _CHECKS or (kwargs is not None and "out" in kwargs)


def call_refusal(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device_of: DeviceOf) -> Refusal | None:
    """What torch's C++ would raise for this call because of where its tensors live; ``None``: it goes on.

    Args:
        function: a torch function or method, as a ``TorchFunctionMode`` is given it.
        args: its positional arguments.
        kwargs: its keyword arguments.
        device_of: where a tensor lives; ``None`` for one that may be anywhere, which is then left out.
    """
    operands: list[Operand] = []
    for i, value in enumerate(args):
        _gather(operands, value, f"args[{i}]", device_of)
    for name, value in kwargs.items():
        _gather(operands, value, name, device_of)
    message = _CHECKS[function](operands) if function in _CHECKS else None
    if message is None:
        message = _check_out(getattr(function, "__name__", ""), operands)
    return Refusal(RuntimeError, message, tuple(operands)) if message is not None else None


def _gather(operands: list[Operand], value: Any, name: str, device_of: DeviceOf) -> None:
    if isinstance(value, Tensor):
        if (device := device_of(value)) is not None:
            operands.append(Operand(name, value, device))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _gather(operands, item, f"{name}[{i}]", device_of)


def _check_out(function: str, operands: list[Operand]) -> str | None:
    """``checkSameDevice``: the result where the inputs are."""
    given = [operand.device for operand in operands if not operand.name.startswith("out")]
    if len(set(given)) != 1 or function in _OTHER_OUT or function.endswith("_copy"):
        return None  # inputs apart are refused from below
    away = [operand.device for operand in operands if operand.name.startswith("out") and operand.device != given[0]]
    if not away:
        return None
    return (
        f"{function}: Expected result and input tensors to be on the same device, "
        f"but got result on {away[0]} and input on {given[0]}"
    )


def _check_meshgrid(operands: list[Operand]) -> str | None:
    apart = len({operand.device for operand in operands}) > 1
    return "meshgrid expects all tensors to have the same device" if apart else None


def _check_inner(operands: list[Operand]) -> str | None:
    for operand in operands:
        if operand.device.type != operands[0].device.type:
            return (
                f"Expected tensor to have {operands[0].device.type} DeviceType, but got tensor with "
                f"{operand.device.type} DeviceType (while checking arguments for inner())"
            )
    return None


def _check_recurrent(operands: list[Operand]) -> str | None:
    """``check_attributes``: the hidden states first, then the parameters, are where the input is.

    Called as ``lstm(input, states, weights, ...)``, or with the sizes of a packed batch, which the host reads, second.
    """
    packed = any(operand.name.startswith("args[3]") for operand in operands)
    given, states = operands[0], "args[2]" if packed else "args[1]"
    for what in ("hidden", "parameter"):
        for operand in operands[2 if packed else 1 :]:
            if operand.device != given.device and operand.name.startswith(states) == (what == "hidden"):
                return (
                    f"Input and {what} tensors are not at the same device, "
                    f"found input tensor at {given.device} and {what} tensor at {operand.device}"
                )
    return None


def _check_tensor_split(operands: list[Operand]) -> str | None:
    for operand in operands[1:]:
        if operand.device.type != "cpu":
            return f"tensor_split expected tensor_indices_or_sections to be on cpu, but it's on {operand.device}"
    return None


_CHECKS: Final = {
    torch.meshgrid: _check_meshgrid,
    torch.inner: _check_inner,
    Tensor.inner: _check_inner,
    torch.tensor_split: _check_tensor_split,
    Tensor.tensor_split: _check_tensor_split,
    torch.lstm: _check_recurrent,
    torch.gru: _check_recurrent,
    torch.rnn_tanh: _check_recurrent,
    torch.rnn_relu: _check_recurrent,
}
