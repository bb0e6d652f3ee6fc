"""Calls of torch on a device's tensor, and whether the host waits in them, on CUDA.

`gpu/test_waits_gpu.py` holds a real GPU against this, by time, and what the guard counts there;
`test_runtime_waits.py` what the guard counts on a simulated one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

Call = Callable[[torch.Tensor], Any]


class Known(NamedTuple):
    call: Call
    waits: bool


def numbers() -> torch.Tensor:
    """What each call is given: (3,), ``float32``, on the current GPU."""
    return torch.tensor([1.0, 2.0, 3.0], device="cuda")


def _square(x: torch.Tensor) -> torch.Tensor:
    """(3, 3), positive definite, made on the device."""
    return torch.diag(x)


def _put(x: torch.Tensor, where: Any, value: Any) -> None:
    x[where] = value


def _clipped(x: torch.Tensor) -> Any:
    p = x.clone().requires_grad_()
    p.grad = torch.ones_like(p)
    return nn.utils.clip_grad_norm_([p], 1.0)


def _stepped(optimizer: type[torch.optim.Optimizer]) -> Call:
    def call(x: torch.Tensor) -> None:
        p = x.clone().requires_grad_()
        p.grad = torch.ones_like(p)
        optimizer([p], lr=0.1).step()  # type: ignore[call-arg]

    return call


def _scaled(x: torch.Tensor) -> None:
    torch.amp.GradScaler("cuda").scale(x.sum())


def _normal(x: torch.Tensor, checked: bool) -> Any:
    return torch.distributions.Normal(x, x, validate_args=checked).log_prob(x)


def _solved(name: str) -> Call:
    """A function of linear algebra on a matrix, with a right side where it wants one."""
    module, _, last = name.rpartition(".")
    function = getattr(torch.linalg if module else torch, last)
    return lambda x: function(_square(x), x) if last == "solve" else function(_square(x))


#: Linear algebra that looks on the host whether it succeeded.
CHECKED = tuple(
    "linalg.cholesky linalg.cond linalg.eig linalg.eigh linalg.eigvals linalg.eigvalsh linalg.inv linalg.ldl_factor "
    "linalg.lu_factor linalg.matrix_rank linalg.pinv linalg.solve linalg.svd linalg.svdvals inverse pinverse cholesky "
    "svd".split()
)

WAITING: dict[str, Call] = {
    # what Python asks for
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x[0]),
    "if": lambda x: 1 if x[0] > 0 else 2,
    "index": lambda x: range(x.long()[0]),
    "in": lambda x: 1.0 in x,
    "max of a list": lambda x: max(x),
    "repr": repr,
    "format": lambda x: f"{x.sum():.3f}",
    "a size": lambda x: torch.zeros(x.long()[0]),
    "a slice": lambda x: x[: x.long()[0]],
    "an index of the device": lambda x: x[torch.arange(1, device=x.device)[0]],
    # what is as long as the values say
    "nonzero": lambda x: x.nonzero(),
    "argwhere": torch.argwhere,
    "where, of one": lambda x: torch.where(x > 0),
    "a mask": lambda x: x[x > 0],
    "a mask, into which values go": lambda x: _put(x, x > 0, torch.ones_like(x)),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "unique_consecutive": lambda x: x.unique_consecutive(),
    "bincount": lambda x: x.long().bincount(),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "one_hot": lambda x: F.one_hot(x.long()),
    "combinations": lambda x: torch.combinations(x),
    # what is looked at
    "equal": lambda x: torch.equal(x, x.clone()),
    "allclose": lambda x: torch.allclose(x, x),
    "is_nonzero": lambda x: torch.is_nonzero(x[0]),
    "gaussian_nll_loss": lambda x: F.gaussian_nll_loss(x, x, x),
    "a checked distribution": lambda x: _normal(x, True),
    "istft": lambda x: torch.istft(
        torch.ones(5, 4, dtype=torch.complex64, device=x.device), 8, window=torch.ones(8, device=x.device)
    ),
    **{name: _solved(name) for name in CHECKED},
    # what is copied
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.cpu().numpy(),
    "tensor of numbers": lambda x: torch.tensor([0.5, 0.4], device=x.device),
    "tensor of device scalars": lambda x: torch.tensor([x[0], x[1]]),
    "tensor of device scalars, on the device": lambda x: torch.tensor([x[0], x[1]], device=x.device),
    "new_tensor": lambda x: x.new_tensor([0.5, 0.4]),
    "indices that are a list": lambda x: x[[0, 1]],
    "indices that are on the host": lambda x: x[torch.tensor([0, 1])],
    "a number into one place": lambda x: _put(x, 0, 1.0),
    "a number into one place of many dimensions": lambda x: _put(x.view(1, 3), (0, 1), 1.0),
    "a number into places that indices say": lambda x: _put(x, torch.arange(2, device=x.device), 1.0),
    "a tensor of the host into a place": lambda x: _put(x, slice(2), torch.ones(2)),
    "copy_": lambda x: x.copy_(torch.ones(3)),
}

PASSING: dict[str, Call] = {
    "arithmetic": lambda x: (x * 2 + 1) @ x,
    "comparison": lambda x: x > 2,
    "with a tensor of one number on the host": lambda x: x * torch.tensor(2.0),
    "what is known without looking": lambda x: (x.shape, x.device, len(x), x.numel(), x.is_contiguous()),
    "rows one by one": lambda x: [row + 1 for row in x],
    "a mask, into which a number goes": lambda x: _put(x, x > 0, 1.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "where, of three": lambda x: torch.where(x > 0, x, 0.0),
    "an index that is on the host": lambda x: x[torch.tensor(1)],
    "a mask that is on the host": lambda x: x[torch.tensor([True, False, True])],
    "indices": lambda x: x[torch.arange(2, device=x.device)],
    "indices that a tensor goes to": lambda x: _put(x, torch.arange(2, device=x.device), x[:2].clone()),
    "index_fill": lambda x: x.index_fill_(0, torch.arange(2, device=x.device), 1.0),
    "a number into a slice": lambda x: _put(x, slice(2), 1.0),
    "a number into a row": lambda x: _put(x.view(1, 3), 0, 1.0),
    "a number everywhere": lambda x: _put(x, ..., 1.0),
    "fill_": lambda x: x.fill_(1.0),
    "multinomial": lambda x: (x.multinomial(1), x.multinomial(2)),
    "index_select": lambda x: x.index_select(0, torch.arange(2, device=x.device)),
    "a number of an index": lambda x: x[1] + x[-1],
    "bernoulli": lambda x: torch.bernoulli(x / 3),
    "quantile": lambda x: x.quantile(0.5),
    "histc": lambda x: x.histc(4, 0, 3),
    "GradScaler": _scaled,
    "sort": lambda x: x.sort(),
    "topk": lambda x: x.topk(2),
    "max": lambda x: x.max(),
    "clamp": lambda x: x.clamp(0, 1),
    "isfinite": lambda x: x.isfinite().all(),
    "isclose": lambda x: torch.isclose(x, x),
    "repeat_interleave of a known size": lambda x: x.repeat_interleave(x.long(), output_size=6),
    "repeat_interleave of a number": lambda x: x.repeat_interleave(2),
    "one_hot of known classes": lambda x: F.one_hot(x.long(), 4),
    "multinomial, with replacement": lambda x: x.multinomial(2, replacement=True),
    "factories": lambda x: (torch.zeros(4, device=x.device), torch.arange(4, device=x.device), x.new_zeros(4)),
    "full": lambda x: torch.full((4,), 0.5, device=x.device),
    "random numbers": lambda x: (torch.rand(4, device=x.device), torch.randn_like(x)),
    "dropout": lambda x: F.dropout(x, 0.5),
    "cross_entropy": lambda x: F.cross_entropy(x[None], torch.zeros(1, dtype=torch.long, device=x.device)),
    "backward": lambda x: (x.clone().requires_grad_() * 2).sum().backward(),
    "a distribution that is not checked": lambda x: _normal(x, False),
    "linalg.inv_ex": lambda x: torch.linalg.inv_ex(_square(x)),
    "linalg.det": lambda x: torch.linalg.det(_square(x)),
    "linalg.qr": lambda x: torch.linalg.qr(_square(x)),
    "linalg.norm": lambda x: torch.linalg.norm(x),
    "clip_grad_norm_": _clipped,
    "SGD": _stepped(torch.optim.SGD),
    "AdamW": _stepped(torch.optim.AdamW),
    "a dtype": lambda x: x.to(torch.float16),
    "where it is already": lambda x: (x.cuda(), x.to("cuda")),
    "an event": lambda x: torch.cuda.Event().record(),
    "shapes": lambda x: x.view(3, 1).expand(3, 4).t().contiguous(),
    "split": lambda x: x.split(1),
    "cat": lambda x: torch.cat([x, x]),
    "cumsum": lambda x: x.cumsum(0),
    "scatter_add": lambda x: x.scatter_add(0, x.long() - 1, x),
    "nan_to_num": lambda x: x.nan_to_num(),
}

KNOWN = {
    **{name: Known(call, True) for name, call in WAITING.items()},
    **{name: Known(call, False) for name, call in PASSING.items()},
}
