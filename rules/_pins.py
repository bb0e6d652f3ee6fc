"""Memory that is pinned on every machine: ``torch.zeros(4).pin_memory()``, which raises where no accelerator is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from devlint.flow.value import TENSOR
from devlint.rule import Rule
from devlint.rules._meetings import calls_of
from devlint.rules._portability import SPEAKS_OF_CUDA, Surroundings
from devlint.rules._saved_places import goes_to_cuda, is_asked_for

#: A flag decides on it, or a setting. Processes may be the CPU's: `def distributed_loader(rows, device)`.
_SPEAKS_OF_PINNING = re.compile(f"{SPEAKS_OF_CUDA.pattern}|nccl|fp16|autocast|scaler|pin|non_blocking", re.IGNORECASE)
#: Makers of tensors that take `pin_memory`, of torch and of a tensor; all raise as `empty` does.
_PINS = re.compile(r"(empty|zeros|ones|rand|randn|full)(_like)?|(new_)?(empty|zeros|ones|full|tensor)|arange|randint")
#: Packages, and folders, of what runs on CUDA, or starts processes there.
_OF_CUDA = re.compile(r"deepspeed|megatron|bitsandbytes|flash_attn|offload|vllm|sglang|fbgemm|torchrec|cuda|gpu")
#: `torch.device("cuda", rank)`, whatever there is.
_FIXED = re.compile(r"""torch\.device\(\s*f?["']cuda\b(?!.* if ).*\)""", re.DOTALL)
#: What answers, or does nothing, where there is no CUDA.
_DOES_NOTHING = re.compile(r"torch\.cuda\.(is_\w+|device_count|manual_seed\w*|empty_cache|\w*memory_\w+|amp\..*)")


@dataclass(frozen=True)
class Pinned:
    """``call`` pins memory; ``chosen`` is the device that is worked on, and ``code`` its name, where one was chosen."""

    call: cst.Call
    chosen: cst.CSTNode | None
    code: str


def pinned_anyway(rule: Rule, around: Surroundings) -> Iterator[Pinned]:
    """What is pinned where nothing asks for CUDA, in code that is told its device, or in a file that needs no CUDA."""
    for call in rule.source.nodes_of(cst.Call):
        if not _pins(rule, call) or around.guard(call, _SPEAKS_OF_PINNING) is not None or around.is_for_cuda(call):
            continue
        chosen = around.chosen(call)
        if chosen is not None and chosen.is_handed_in:
            yield Pinned(call, chosen.node, chosen.code)
        elif chosen is None and _runs_elsewhere(rule, call, around):
            yield Pinned(call, None, "")


def _pins(rule: Rule, call: cst.Call) -> bool:
    """``x.pin_memory()``, ``torch.empty(4, pin_memory=True)``, which raise alike."""
    func = call.func
    if not isinstance(func, cst.Attribute):
        return False
    if func.attr.value == "pin_memory":
        return not call.args and rule.flow.value(func.value).kind == TENSOR
    made = any(
        arg.keyword and arg.keyword.value == "pin_memory" and rule.code(arg.value) == "True" for arg in call.args
    )
    # DataLoader(rows, pin_memory=True)  warns, and goes on without
    named = rule.flow.scope.qualified(func).startswith("torch.") or func.attr.value.startswith("new_")
    return made and named and _PINS.fullmatch(func.attr.value) is not None


def _runs_elsewhere(rule: Rule, call: cst.Call, around: Surroundings) -> bool:
    """Whether the file needs CUDA for nothing else, and what calls the function does not ask for it first."""
    if _OF_CUDA.search(rule.source.path):
        return False
    names = rule.flow.scope.imports.values()
    if any(_OF_CUDA.search(name) for name in names):
        return False
    # net = Net().cuda(), in any function; not where `if use_cuda:` stands above
    for move in rule.flow.facts.moves.values():
        if goes_to_cuda(rule, move) and not is_asked_for(rule, move) and around.guard(move.node) is None:
            return False
    # torch.zeros(4, device="cuda")
    for arg in rule.source.nodes_of(cst.Arg):
        told = isinstance(arg.value, cst.SimpleString) and arg.value.raw_value.startswith("cuda")
        if told and arg.keyword is not None and arg.keyword.value == "device" and around.guard(arg) is None:
            return False
    # device = torch.device("cuda", rank); torch.cuda.synchronize()
    if any(_FIXED.fullmatch(rule.code(value)) for _, value in around.assignments()):
        return False
    for other in rule.source.nodes_of(cst.Call):
        name = rule.flow.scope.qualified(other.func)
        if name.startswith("torch.cuda.") and not _DOES_NOTHING.fullmatch(name) and around.guard(other) is None:
            return False
    function = around.function(call)
    calls = calls_of(rule, function) if function is not None else []
    # if self.use_cuda: self.pin()
    return not calls or any(around.guard(each, _SPEAKS_OF_PINNING) is None for each in calls)
