"""Autocast for imaginary devices, by the host's own autocast.

A region for the device switches the host's autocast on as well, since real values are the host's: what the host casts
to the lower precision is nearly what a device casts (docs: amp, the lists of operations). What a device computes in
float32 and the host does not is cast here, where it is called from Python.

Not faithful: inside a region for the device, tensors of the host are cast too; operations outside of the device's
float32 list follow the host's list; inside torch's own Python code nothing is cast to float32. A device's kernels round
otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from devlint.runtime.placement import device_of, tensors_in
from devlint.runtime.simulator import Simulator
from devlint.runtime.simulator.functions import handles

# docs: amp, "CUDA Ops that can autocast to float32".
_IN_FLOAT32 = """
    __pow__ __rdiv__ __rpow__ __rtruediv__ acos asin binary_cross_entropy_with_logits cosh cosine_embedding_loss
    cdist cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss
    kl_div l1_loss layer_norm log log10 log_softmax log1p log2 margin_ranking_loss mse_loss
    multilabel_margin_loss multi_margin_loss nll_loss norm normalize pdist poisson_nll_loss pow prod reciprocal
    rsqrt sinh smooth_l1_loss soft_margin_loss softmax softmin softplus sum renorm tan triplet_margin_loss
""".split()
_LOWER = (torch.float16, torch.bfloat16)
_enabled = torch.is_autocast_enabled


def _spellings() -> list[Any]:
    owners = (torch, torch.Tensor, torch.nn.functional)
    return [getattr(owner, name) for name in _IN_FLOAT32 for owner in owners if hasattr(owner, name)]


@handles(*_spellings())
def in_float32(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """Inside a region for the device, its tensors of a lower precision come to these functions as float32."""
    machine = simulator.machine
    if _enabled(machine.kind):
        low = {
            id(tensor): tensor.to(torch.float32)
            for tensor in tensors_in([args, kwargs])
            if tensor.dtype in _LOWER and machine.is_device(device_of(tensor))
        }
        args = tuple(low.get(id(value), value) for value in args)
        kwargs = {name: low.get(id(value), value) for name, value in kwargs.items()}
    return func(*args, **kwargs)


@handles(torch.nn.functional.binary_cross_entropy)
def binary_cross_entropy(simulator: Simulator, func: Any, args: Any, kwargs: Any) -> Any:
    """torch refuses it inside a region for a device: sigmoid's results do not survive float16."""
    if _enabled(simulator.machine.kind) and any(simulator.machine.is_device(device_of(t)) for t in tensors_in([args])):
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: combine the sigmoid "
            "with the loss by torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss"
        )
    return func(*args, **kwargs)


@contextmanager
def restored() -> Iterator[None]:
    """Leaves this thread's autocast as it was, the host's above all, which regions for a device change."""
    before = [(kind, _enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda", "mps")]
    try:
        yield
    finally:
        for kind, enabled, dtype in before:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


def replacements(simulator: Simulator) -> Iterator[tuple[Any, Any, Any]]:
    """The functions that switch autocast and ask for it."""
    kind = simulator.machine.kind
    set_enabled, set_dtype = torch.set_autocast_enabled, torch.set_autocast_dtype
    is_enabled, get_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    asked = threading.local()  # what the program asked for on the host itself

    def host() -> tuple[bool, torch.dtype]:
        return getattr(asked, "enabled", False), getattr(asked, "dtype", None) or torch.bfloat16

    def settle() -> None:
        enabled, dtype = host()
        on = is_enabled(kind)
        set_enabled("cpu", enabled or on)
        set_dtype("cpu", get_dtype(kind) if on else dtype)

    def set_autocast_enabled(*args: Any, **kwargs: Any) -> None:
        device, enabled = ("cuda", *args)[-2:] if len(args) + len(kwargs) < 2 else args
        if device == "cpu":
            asked.enabled = enabled
        else:
            set_enabled(device, enabled)
        settle()

    def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
        if device_type == "cpu":
            asked.dtype = dtype
        else:
            set_dtype(device_type, dtype)
        settle()

    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return host()[0] if device_type == "cpu" else is_enabled(device_type)

    def get_autocast_dtype(device_type: str) -> torch.dtype:
        return host()[1] if device_type == "cpu" else get_dtype(device_type)

    yield torch, "set_autocast_enabled", set_autocast_enabled
    yield torch, "set_autocast_dtype", set_autocast_dtype
    yield torch, "is_autocast_enabled", is_autocast_enabled
    yield torch, "get_autocast_dtype", get_autocast_dtype
    # Deprecated spellings.
    yield torch, "set_autocast_cpu_enabled", lambda enabled: set_autocast_enabled("cpu", enabled)
    yield torch, "set_autocast_cpu_dtype", lambda dtype: set_autocast_dtype("cpu", dtype)
    yield torch, "set_autocast_gpu_dtype", lambda dtype: set_autocast_dtype("cuda", dtype)
    yield torch, "is_autocast_cpu_enabled", lambda: is_autocast_enabled("cpu")
    yield torch, "get_autocast_cpu_dtype", lambda: get_autocast_dtype("cpu")
