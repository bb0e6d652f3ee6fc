"""Training programs in many styles: the same numbers as on the host, nothing found; with one fault each, that is named.

The programs are in ``tests/programs``, each with its results in ``losses``. A fault is planted by replacing a piece of
the source; what is expected is the rule, and a piece of the line that is to be named.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import devlint
from devlint.runtime.errors import DevicePlacementError
from devlint.runtime.simulator import simulate
from proofs import without_devices

PROGRAMS = Path(__file__).parent / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))

CRASHES = [
    ("gan", "torch.randn(BATCH, LATENT, device=device)", "torch.randn(BATCH, LATENT)",
     "input-not-moved", "fake = generator(noise)"),
    ("function", 'self.register_buffer("largest", torch.zeros(width))', "self.largest = torch.zeros(width)",
     "unregistered-tensor", "self.largest = torch.maximum("),
    ("transformer", "nn.ModuleList([Block(config) for _ in range(2)])", "[Block(config) for _ in range(2)]",
     "unregistered-module", "x = x + self.attention(self.norm1(x))"),
    ("transformer", "torch.arange(ids.shape[1], device=ids.device)", "torch.arange(ids.shape[1])",
     "tensor-without-device", "self.places(positions)"),
    ("rl", "torch.tensor(rewards).to(device)", "torch.tensor(rewards)",
     "tensor-without-device", "loss = F.smooth_l1_loss("),
    ("contrastive", "dtype=torch.long, device=logits.device", "dtype=torch.long",
     "tensor-without-device", "return F.cross_entropy(logits, labels)"),
    ("accumulation", "torch.tensor([1.0, 2.0, 0.5], device=device)", "torch.tensor([1.0, 2.0, 0.5])",
     "loss-not-moved", "loss = criterion("),
    ("ema", "model.to(device)\nshadow = Shadow(model)", "shadow = Shadow(model)\nmodel.to(device)",
     "mixed-devices", "self.values[name].mul_("),
    ("two_gpus", "y.to(output.device)", "y.to(first)", "mixed-devices", "loss = criterion("),
    ("evaluation", "torch.cat(outputs).cpu().numpy()", "torch.cat(outputs).numpy()",
     "numpy-on-device-tensor", "probabilities ="),
    ("function", "torch.full_like(grad, 0.1)", "torch.full(grad.shape, 0.1)",
     "tensor-without-device", "grad * slope"),
    ("checkpointing", "x.new_zeros(8)", "torch.zeros(8)", "tensor-without-device", "x = checkpoint("),
]  # fmt: skip
COSTS = [
    ("gan", "torch.full((BATCH, 1), 1.0, device=device)", "torch.full((BATCH, 1), 1.0).to(device)",
     "create-then-move", "label = torch.full("),
    ("accumulation", 'pin_memory=device.type != "cpu"', "pin_memory=False",
     "pageable-non-blocking", "inputs, labels = inputs.to("),
    ("accumulation", "running += loss.detach()", "running += loss", "retained-graph", "running += loss"),
    ("amp", "    scaler.update()\n", "    scaler.update()\n    torch.cuda.synchronize()\n",
     "synchronize-in-loop", "torch.cuda.synchronize()"),
    ("rl", 'with devlint.allow_sync("the environment is on the host"):', "if True:",
     "host-sync-in-loop", "action = "),
    ("optimizers", "kept = []\n", "head = nn.Linear(8, 4).to(device)\nkept = []\n",
     "optimizer-before-move", "optimizer.step()"),
    ("lr_finder", "    smooth.append(", "    if torch.isnan(loss):\n        break\n    smooth.append(",
     "host-sync-in-loop", "if torch.isnan(loss):"),
]  # fmt: skip


def losses_of(path: Path) -> Any:
    return runpy.run_path(str(path), run_name="__main__")["losses"]


def planted(name: str, right: str, wrong: str, folder: Path) -> Path:
    source = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    assert source.count(right) == 1
    path = folder / f"{name}.py"
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_program_computes_what_it_computes_on_the_host_and_nothing_is_found(name: str) -> None:
    with without_devices():
        expected = losses_of(PROGRAMS / f"{name}.py")
    with simulate(2), devlint.guard(on="collect") as report:
        found = losses_of(PROGRAMS / f"{name}.py")
    assert found == expected
    assert [(line.first.rule, str(line.first.site), line.first.message) for line in report.findings] == []


@pytest.mark.parametrize(("name", "right", "wrong", "rule", "at"), CRASHES)
def test_a_crash_is_named_with_its_line(name: str, right: str, wrong: str, rule: str, at: str, tmp_path: Path) -> None:
    path = planted(name, right, wrong, tmp_path)
    with simulate(2), pytest.raises((DevicePlacementError, TypeError)) as caught, devlint.guard() as report:
        losses_of(path)
    assert f"\n  rule: {rule} (" in str(caught.value)
    site = report.findings[0].first.site
    assert site is not None and Path(site.file) == path and at in site.code


@pytest.mark.parametrize(("name", "right", "wrong", "rule", "at"), COSTS)
def test_a_cost_is_named_with_its_line(name: str, right: str, wrong: str, rule: str, at: str, tmp_path: Path) -> None:
    path = planted(name, right, wrong, tmp_path)
    with simulate(2), devlint.guard() as report:
        losses_of(path)
    assert {(line.first.rule, line.first.site and line.first.site.code.startswith(at)) for line in report.findings} == {
        (rule, True)
    }


def test_an_attribute_is_named_where_only_what_was_computed_from_it_is_in_the_wrong_place(tmp_path: Path) -> None:
    buffer = 'self.register_buffer("mask", torch.tril(torch.ones(config.length, config.length)), persistent=False)'
    attribute = "self.mask = torch.tril(torch.ones(config.length, config.length))"
    path = planted("transformer", buffer, attribute, tmp_path)
    with simulate(2), pytest.raises(DevicePlacementError, match=r"rule: mixed-devices"), devlint.guard() as report:
        losses_of(path)  # `self.mask[...] == 0` is made where it is used
    found = {line.first.site.code for line in report.findings if line.first.rule == "unregistered-tensor"}
    assert found == {attribute}


def test_a_random_state_that_was_loaded_onto_a_device_is_refused_as_by_torch(tmp_path: Path) -> None:
    path = planted("resume", 'map_location="cpu"', "map_location=device", tmp_path)
    with simulate(1), devlint.guard(), pytest.raises(TypeError, match=r"RNG state must be a torch.ByteTensor"):
        losses_of(path)
