"""What a sure finding says of the rest that is on the host around it."""

from __future__ import annotations

import textwrap

from devlint import engine
from harness import only

OF_TENSORS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, marks=None):
        steps = torch.arange(8)
        shift = torch.ones(8).to(x.device)
        half = torch.tensor(0.5)
        marked = torch.zeros(8) if marks is None else marks
        return self.mix(self.layer(x) + steps + shift * half, marked)
"""

OF_ATTRIBUTES = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.scale = torch.ones(8)
        self.spare = torch.ones(8)
        self.bounds = [torch.zeros(8), torch.ones(8)]
        self.moved = torch.ones(8)
        self.register_buffer("kept", torch.ones(8))

    def forward(self, x):
        self.moved = self.moved.to(x.device)
        y = self.layer(x) * self.scale + self.kept + self.moved
        return self.clip(y, self.bounds)
"""


def beside(code: str, rule: str) -> list[tuple[int, str]]:
    (finding,) = (each for each in engine.check(code.encode(), "net.py", only({rule})) if not each.tentative)
    lines = code.splitlines()
    return [
        (note.span.row, lines[note.span.row - 1].strip()) for note in finding.notes if note.message.startswith("look")
    ]


def test_another_tensor_that_the_function_makes_on_the_host_is_named() -> None:
    assert beside(OF_TENSORS, "tensor-without-device") == [(15, "marked = torch.zeros(8) if marks is None else marks")]


def test_what_has_a_finding_of_its_own_is_not_named() -> None:
    code = OF_TENSORS.replace("marked = torch.zeros(8) if marks is None else marks", "marked = None")
    assert beside(code, "tensor-without-device") == []


def test_another_attribute_on_the_host_that_a_method_reads_is_named() -> None:
    assert beside(OF_ATTRIBUTES, "unregistered-tensor") == [(12, "self.bounds = [torch.zeros(8), torch.ones(8)]")]


def test_no_more_than_three_are_named() -> None:
    more = textwrap.indent("".join(f"self.more{i} = torch.ones(8)\n" for i in range(6)), " " * 8)
    used = "".join(f", self.more{i}" for i in range(6))
    code = OF_ATTRIBUTES.replace("        self.moved = torch.ones(8)\n", f"        self.moved = torch.ones(8)\n{more}")
    assert len(beside(code.replace("(y, self.bounds)", f"(y{used})"), "unregistered-tensor")) == 3


OF_HELPERS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def shrink(self, x):
        return torch.max(torch.abs(x), 0.1 * torch.ones(x.shape))

    def forward(self, y):
        start = torch.zeros(3, 8)
        return self.shrink(self.layer(start) - y)

    def show(self):
        return self.shrink(torch.zeros(3))
"""


def test_what_a_method_that_is_called_makes_on_the_host_is_named() -> None:
    assert beside(OF_HELPERS, "tensor-without-device") == [
        (12, "return torch.max(torch.abs(x), 0.1 * torch.ones(x.shape))")
    ]
