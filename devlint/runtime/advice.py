"""What to do about what was seen, by rule: one line each, for reports and errors.

A rule that devlint also finds in code has a page of its own (`devlint explain RULE`); these lines need no page.
"""

from __future__ import annotations

from typing import Final

ADVICE: Final = {
    "blocking-copy-from-pinned": "pass `non_blocking=True`: the source is pinned, so the host need not wait",
    "cached-device-tensor": "drop the cache, or keep results on the object that they belong to",
    "constant-rebuilt-in-forward": "register the constant as a buffer",
    "copy-out-of-meta": "use `to_empty(device=...)`, then load the weights",
    "create-then-move": "pass `device=` where it is made",
    "cuda-in-worker": "keep device work out of forked workers, or start them with `spawn`",
    "data-parallel": "use `DistributedDataParallel`, one process a device",
    "debugging-left-on": "turn anomaly detection off once the fault is found",
    "generator-on-other-device": "make the generator with `torch.Generator(device=...)`",
    "global-rank-as-device": "number the device with `LOCAL_RANK`",
    "host-sync-in-forward": "keep the value on the device",
    "host-sync-in-loop": "keep the value on the device and read it after the loop, or once every n steps",
    "inference-with-grad": "ask the model under `torch.no_grad()` or `torch.inference_mode()`",
    "input-not-moved": "move the batch with `.to(device)` before the call",
    "invariant-move-in-loop": "move it once, above the loop",
    "loader-without-pin-memory": "pass `pin_memory=True` to the loader",
    "loader-without-sampler": "pass `sampler=DistributedSampler(dataset)` to the loader",
    "loss-not-moved": "move the loss module with `.to(device)`",
    "missing-set-epoch": "call `sampler.set_epoch(epoch)` where each epoch begins",
    "missing-zero-grad": "call `optimizer.zero_grad()` before `backward()`",
    "mixed-devices": "move one of them to the other's device",
    "moved-too-late": "move the operand before the operation, not the result after it",
    "non-leaf-parameter": "move the data first: `nn.Parameter(data.to(device))`",
    "numpy-on-device-tensor": "copy it to the host first: `.detach().cpu()`",
    "optimizer-before-move": "move the model before the optimizer is made",
    "pageable-non-blocking": "pin the source (`pin_memory=True` on the loader), or drop `non_blocking=True`",
    "pinned-then-copied": "drop `pin_memory()`, or let the loader pin while the host does something else",
    "rank-device-not-set": "call `torch.cuda.set_device(local_rank)` first",
    "redundant-move": "drop the move: it is there already",
    "reduced-on-host": "reduce it on the device, and copy the result",
    "retained-graph": "keep `loss.detach()`, not `loss`",
    "round-trip-copy": "leave it on the device",
    "synchronize-in-loop": "synchronize only around what is timed",
    "tensor-from-device-scalars": "use `torch.stack`, which stays on the device",
    "tensor-without-device": "pass `device=` where it is made",
    "timing-without-sync": "synchronize before the clock is read",
    "unregistered-module": "hold the modules in `nn.ModuleList` or `nn.ModuleDict`",
    "unregistered-tensor": "register it: `self.register_buffer(name, tensor, persistent=False)`",
    "unsynchronized-host-copy": "drop `non_blocking=True`, or synchronize before it is read",
    "wrapped-before-move": "move the model before it is wrapped",
}


def advice(rule: str | None) -> str:
    """What to do about a fault of that rule; empty where nothing general can be said."""
    return ADVICE.get(rule or "", "")
