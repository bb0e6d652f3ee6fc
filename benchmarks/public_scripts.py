"""Unchanged public training scripts on an imaginary GPU: ``python benchmarks/public_scripts.py --examples DIR``.

Runs scripts of checkouts of github.com/pytorch/examples and github.com/karpathy/nanoGPT, and a training step of timm
models, twice: on the plain CPU, and under ``devlint run --simulate 1`` with the device they choose on a GPU. Every loss
that they print must be the same, to the last printed digit. The data are made up, torchvision is replaced by a stand-in
of three classes, and nothing is downloaded. timm runs where it is installed.

So that both runs take the same branches, the plain run is told that its accelerator is the CPU. Both use one thread:
how many threads the kernels of the host use otherwise depends on which of torch's threads first runs one, and with it
the last digit of a sum.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ANYTHING = """
class Named(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name

class Stage(metaclass=Named):
    def __init__(self, *arguments, **options):
        pass

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Stage
"""

#: Stands in for torchvision: pictures from a fixed seed, what the scripts do to them, and names that timm imports.
TORCHVISION = {
    "__init__.py": "from torchvision import datasets, transforms, utils\n",
    "ops/__init__.py": ANYTHING,
    "ops/misc.py": ANYTHING,
    "transforms/__init__.py": ANYTHING,
    "transforms/functional.py": ANYTHING,
    "models/__init__.py": ANYTHING,
    "models/feature_extraction.py": ANYTHING,
    "datasets.py": """
import torch

class FakeData(torch.utils.data.Dataset):
    def __init__(self, size=256, image_size=(3, 64, 64), num_classes=10, transform=None):
        self.size, self.image_size, self.num_classes = size, image_size, num_classes

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index >= self.size:
            raise IndexError(index)
        source = torch.Generator().manual_seed(index)
        return torch.rand(self.image_size, generator=source), index % self.num_classes

class MNIST(FakeData):
    def __init__(self, root, train=True, download=False, transform=None):
        super().__init__(512 if train else 128, (1, 28, 28))

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return FakeData
""",
    "utils.py": """
def save_image(tensor, path, **options):
    assert tensor.device.type == "cpu" or not path.startswith("-"), path
    tensor.detach().cpu().numpy()
""",
}

#: The plain run: its accelerator is the CPU, which pins nothing.
PLAIN = """
import os, runpy, sys
import torch
torch.accelerator.is_available = lambda: True
torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cpu")
torch.accelerator.set_device_index = lambda index: None
torch.accelerator.current_device_index = lambda: 0
torch.Tensor.pin_memory = lambda tensor, device=None: tensor
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""

TIMM = """
import sys
import timm, torch
name, device = sys.argv[1:]
torch.manual_seed(0)
model = timm.create_model(name, num_classes=10).to(device).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    images = torch.randn(4, 3, 96, 96).to(device, non_blocking=True)
    labels = torch.randint(10, (4,)).to(device)
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
"""

LOSS = re.compile(r"(?:loss|loss_[dg]|ppl|d\(x\)|d\(g\(z\)\))[:\s]+(?:=\s*)?(-?\d+\.\d+(?:e-?\d+)?)", re.IGNORECASE)


@dataclass(frozen=True)
class Script:
    """A script with its arguments; ``{device}`` among them stands for the device it is told to use.

    ``same``: it computes the same on both; mixed precision is another computation on a GPU.
    """

    name: str
    folder: Path
    file: str
    arguments: tuple[str, ...]
    same: bool = True


def scripts(examples: Path | None, nanogpt: Path | None, work: Path) -> list[Script]:
    """What can be run with the checkouts at hand."""
    found = []
    if examples:
        corpus = work / "corpus"
        corpus.mkdir()
        words = " ".join(f"word{(i * i) % 53}" for i in range(1200))
        for part in ("train", "valid", "test"):
            (corpus / f"{part}.txt").write_text("\n".join([words] * 3) + "\n")
        small = ("--data", str(corpus), "--epochs", "1", "--emsize", "32", "--nhid", "32", "--batch_size", "4",
                 "--bptt", "16", "--log-interval", "20", "--accel", "--save", str(work / "model.pt"))  # fmt: skip
        found += [
            Script("mnist", examples / "mnist", "main.py", ("--epochs", "1", "--log-interval", "1")),
            Script("vae", examples / "vae", "main.py", ("--epochs", "1", "--log-interval", "1")),
            Script("word language model, LSTM", examples / "word_language_model", "main.py", small),
            Script("word language model, Transformer", examples / "word_language_model", "main.py",
                   (*small, "--model", "Transformer", "--lr", "1")),
            Script("dcgan", examples / "dcgan", "main.py",
                   ("--dataset", "fake", "--niter", "1", "--batchSize", "16", "--ngf", "8", "--ndf", "8",
                    "--manualSeed", "1", "--accel", "--workers", "1", "--outf", str(work))),
        ]  # fmt: skip
    if nanogpt:
        data = work / "text"
        data.mkdir()
        tokens = b"".join(((i * i + 7 * i) % 60).to_bytes(2, "little") for i in range(4000))
        for part in ("train", "val"):
            (data / f"{part}.bin").write_bytes(tokens)
        found += [
            Script(f"nanoGPT, {dtype}", nanogpt, "train.py",
                   ("--device={device}", f"--dataset={data}", f"--out_dir={work / 'gpt'}", "--compile=False",
                    f"--dtype={dtype}", "--max_iters=8", "--eval_interval=4", "--eval_iters=2", "--batch_size=4",
                    "--block_size=32", "--n_layer=2", "--n_head=2", "--n_embd=32", "--gradient_accumulation_steps=2",
                    "--dropout=0.1"),
                   same=dtype == "float32")
            for dtype in ("float32", "bfloat16", "float16")
        ]  # fmt: skip
    if find_spec("timm"):
        (work / "step.py").write_text(TIMM)
        found += [
            Script(f"timm {name}", work, "step.py", (name, "{device}"))
            for name in ("resnet18", "convnext_atto", "efficientnet_b0")
        ]
    return found


def run(command: list[str], folder: Path, stand_in: Path) -> tuple[int, str, str, float]:
    """Exit code, standard output, standard error, seconds."""
    path = os.pathsep.join([str(stand_in), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr, time.perf_counter() - start


def main() -> int:
    """Prints a line a script; 1 where a run failed or a loss differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=Path, help="a checkout of github.com/pytorch/examples")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of github.com/karpathy/nanoGPT")
    parser.add_argument("--only", default="", help="scripts whose name holds this")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        stand_in = work / "stand-in"
        for file, text in TORCHVISION.items():
            place = stand_in / "torchvision" / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        (work / "plain.py").write_text(PLAIN)
        print(f"{'script':36} {'losses':>6} {'equal':>6} {'CPU':>8} {'simulated':>10} {'ratio':>6}")
        for script in scripts(options.examples, options.nanogpt, work):
            if options.only not in script.name:
                continue
            plain = [part.format(device="cpu") for part in script.arguments]
            imaginary = [part.format(device="cuda") for part in script.arguments]
            code, out, err, seconds = run(
                [sys.executable, str(work / "plain.py"), script.file, *plain], script.folder, stand_in
            )
            devlint = [sys.executable, "-m", "devlint", "run", "--simulate", "1", "--on", "collect"]
            code_2, out_2, err_2, seconds_2 = run([*devlint, script.file, *imaginary], script.folder, stand_in)
            losses, losses_2 = LOSS.findall(out), LOSS.findall(out_2)
            same = bool(losses) and (losses == losses_2 if script.same else len(losses) == len(losses_2))
            shown = ("yes" if script.same else "-") if same else "NO"
            print(f"{script.name:36} {len(losses):6} {shown:>6} {seconds:7.1f}s {seconds_2:9.1f}s "
                  f"{seconds_2 / seconds:6.2f}", flush=True)  # fmt: skip
            if code or code_2 or not same:
                failed += 1
                print(
                    f"  exit codes: {code} on the CPU, {code_2} simulated", (err if code else err_2)[-3000:], sep="\n"
                )
                print(f"  losses: {losses[:8]} on the CPU, {losses_2[:8]} simulated")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
