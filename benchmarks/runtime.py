"""What the runtime companion costs, as ratios within one run: ``python benchmarks/runtime.py``.

Training steps of a ResNet and of a GPT, each plain, under ``devlint.watch``, under ``devlint.guard``, and (on the host)
on one simulated device. Rounds alternate between them; each figure is the median, over the rounds, of the ratio to the
plain steps of the same round. Where there is a CUDA device the sizes are ResNet-50's (64 pictures of 224 x 224) and
GPT-2's smallest (8 x 1024 tokens), in bfloat16 autocast, and the limits for watch and guard decide. Elsewhere smaller
ones of the same make run on the host, in one thread and by processor time, which other work on the machine hardly
touches, and only the simulator's limit decides. What ``watch`` costs is less than rounds differ, so the time spent in
its hook is measured too, within the same steps, and that decides.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import devlint
from devlint.runtime.simulator import simulate

WATCH_LIMIT, GUARD_LIMIT, SIMULATOR_LIMIT = 1.02, 1.30, 3.0


# models -------------------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inside != out:
            self.short = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.short(x))


def resnet(blocks: tuple[int, ...], width: int) -> nn.Module:
    """``resnet((3, 4, 6, 3), 64)`` is ResNet-50."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    inside = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(inside, width << stage, 2 if stage and not block else 1))
            inside = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.first, self.second = Attention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x))


class Gpt(nn.Module):
    """``Gpt(50257, 12, 768, 12)`` has the size of the smallest GPT-2."""

    def __init__(self, words: int, layers: int, width: int, heads: int, length: int = 1024) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.layers(self.tokens(tokens) + self.positions(positions))).flatten(0, 1)


@dataclass
class Task:
    """A model to train, and what it is given: both made on the host, and moved."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]


def tasks(gpu: bool) -> list[Task]:
    blocks, width, pictures, size = ((3, 4, 6, 3), 64, 64, 224) if gpu else ((3, 4, 6, 3), 32, 4, 64)
    words, layers, wide, heads, texts, length = (50257, 12, 768, 12, 8, 1024) if gpu else (2000, 12, 192, 6, 2, 128)
    return [
        Task(
            f"ResNet-50{'' if gpu else ' of half width'}, {pictures} x {size} x {size}",
            lambda: resnet(blocks, width),
            lambda: (torch.randn(pictures, 3, size, size), torch.randint(1000, (pictures,))),
        ),
        Task(
            f"GPT, {layers} layers of {wide}, {texts} x {length} tokens",
            lambda: Gpt(words, layers, wide, heads),
            lambda: (torch.randint(words, (texts, length)), torch.randint(words, (texts * length,))),
        ),
    ]


# measuring ----------------------------------------------------------------------------------------------------------


def seconds_per_step(task: Task, device: str, steps: int, way: str) -> tuple[float, float]:
    """Trains a fresh model for some steps, and for `steps` more by the clock: all of their time, and that in watch."""
    torch.manual_seed(0)
    model = task.model().to(device)
    inputs, targets = (tensor.to(device) for tensor in task.batch())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kind = torch.device(device).type
    real_gpu = kind == "cuda" and way != "simulator"

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16) if real_gpu else contextlib.nullcontext():
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if way == "guard":
            devlint.step()

    clock = time.perf_counter if real_gpu else time.process_time
    watched = 0.0

    def timed(*call: Any) -> None:
        nonlocal watched
        began = clock()
        look(*call)
        watched += clock() - began

    with devlint.watch(model, on="collect") as handle:
        if way == "watch":
            look = handle.before
            handle.before = timed  # type: ignore[assignment, method-assign]
        else:
            handle.remove()
        for _ in range(3):
            step()
        wait(real_gpu)
        start, watched = clock(), 0.0
        for _ in range(steps):
            step()
        wait(real_gpu)
        return (clock() - start) / steps, watched / steps


def wait(real_gpu: bool) -> None:
    if real_gpu:
        torch.cuda.synchronize()


@contextlib.contextmanager
def simulated(guarded: bool) -> Iterator[None]:
    with simulate(1), devlint.guard(on="collect") if guarded else contextlib.nullcontext():
        yield


@dataclass
class Figure:
    """A line of the result: milliseconds a step, those held against, the ratio of the two, and the limit to keep."""

    name: str
    milliseconds: float
    plain: float
    ratio: float
    limit: float | None
    decides: bool

    @property
    def passed(self) -> bool:
        return self.limit is None or not self.decides or self.ratio <= self.limit


def figure(name: str, ours: list[float], others: list[float], limit: float | None, decides: bool) -> Figure:
    ratio = statistics.median(one / other for one, other in zip(ours, others, strict=True))
    return Figure(name, 1e3 * statistics.median(ours), 1e3 * statistics.median(others), ratio, limit, decides)


def measure(rounds: int, steps: int, gpu: bool) -> list[Figure]:
    home = "cuda" if gpu else "cpu"
    ways: list[tuple[str, str, float | None, bool]] = [
        ("watch", home, None, False),
        ("guard", home, GUARD_LIMIT, gpu),
    ]
    if not gpu:
        ways += [("simulator", "cuda", SIMULATOR_LIMIT, True), ("simulator and guard", "cuda", None, False)]
    figures = []
    for task in tasks(gpu):
        say(task.name)
        taken: dict[str, list[float]] = {"plain": [], **{way: [] for way, _, _, _ in ways}}
        without: list[float] = []  # steps under watch, less the time in its hook
        for number in range(rounds):
            taken["plain"].append(seconds_per_step(task, home, steps, "plain")[0])
            for way, device, _, _ in ways if number % 2 else reversed(ways):
                with around(way):
                    seconds, watched = seconds_per_step(task, device, steps, way.partition(" ")[0])
                taken[way].append(seconds)
                if way == "watch":
                    without.append(seconds - watched)
        figures.append(figure(f"watch's hook: {task.name}", taken["watch"], without, WATCH_LIMIT, gpu))
        for way, _, limit, decides in ways:
            figures.append(figure(f"{way}: {task.name}", taken[way], taken["plain"], limit, decides))
    return figures


def around(way: str) -> AbstractContextManager[Any]:
    if way.startswith("simulator"):
        return simulated(guarded=way.endswith("guard"))
    return devlint.guard(on="collect") if way == "guard" else contextlib.nullcontext()


# showing ------------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each measurement (default: 7)")
    parser.add_argument("--steps", type=int, help="steps by the clock in a round (default: 20 on a GPU, else 4)")
    parser.add_argument("--cpu", action="store_true", help="measure on the host although there is a GPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    gpu = torch.cuda.is_available() and not options.cpu
    torch.backends.cudnn.benchmark = gpu
    if not gpu:
        torch.set_num_threads(1)  # steadier, and no thread pool hides what the host does
    figures = measure(options.rounds, options.steps or (20 if gpu else 4), gpu)
    machine = {
        "device": torch.cuda.get_device_name() if gpu else "the host, 1 thread",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "rounds": str(options.rounds),
    }
    print_table(figures, machine)
    if options.json:
        result = {"machine": machine, "figures": [{**asdict(f), "passed": f.passed} for f in figures]}
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if all(figure.passed for figure in figures) else 1


def print_table(figures: list[Figure], machine: dict[str, str]) -> None:
    print()
    for key, value in machine.items():
        print(f"{key:<10} {value}")
    print()
    print(f"{'':<72}{'devlint':>10}{'against':>10}{'ratio':>8}  limit")
    for figure in figures:
        limit = "" if figure.limit is None else f"<= {figure.limit:g} x" + ("" if figure.decides else " on a GPU")
        verdict = "" if not figure.decides else "pass" if figure.passed else "FAIL"
        print(
            f"{figure.name:<72}{figure.milliseconds:>7.1f} ms{figure.plain:>7.1f} ms{figure.ratio:>8.3f}"
            f"  {limit:<18}{verdict}"
        )


def say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
