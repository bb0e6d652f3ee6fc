"""The guard: what it raises, counts, warns of, and leaves alone. On imaginary devices: every machine runs it."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import devlint
from devlint.runtime import guard as guards
from devlint.runtime import reach, sync_warnings
from devlint.runtime.errors import BudgetExceeded, DevicePlacementError, DevicePlacementWarning, HostConversionError
from devlint.runtime.events import Report
from devlint.runtime.simulator import simulate

GPU = torch.device("cuda", 0)
OTHER = torch.device("cuda", 1)


@pytest.fixture
def machine() -> Iterator[None]:
    """Two imaginary devices."""
    with simulate(2):
        yield


simulated = pytest.mark.usefixtures("machine")


def line_of(marker: str) -> int:
    """The line of this file that ends with a comment."""
    text = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(text, start=1) if line.endswith(f"# {marker}"))


def seen(report: Report) -> list[tuple[str, str | None, str, int]]:
    """What a report has: kind, rule, operation, how often."""
    return [(line.first.kind, line.first.rule, line.first.operation, line.count) for line in report.lines.values()]


def waits(report: Report) -> dict[str, int]:
    """Operation -> how often the host waited in it."""
    counted: dict[str, int] = {}
    for line in report.of("waited"):
        counted[line.first.operation] = counted.get(line.first.operation, 0) + line.count
    return counted


def rules(report: Report) -> set[str | None]:
    return {line.first.rule for line in report.findings}


def on_gpu(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device=GPU)


# Operands on different devices ----------------------------------------------------------------------------------------


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.mask = torch.ones(3)  # the mask is made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.mask


class Positioned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[0])  # the positions are made
        return x + positions


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.layers = [nn.Linear(3, 3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.first(x), self.layers[0].weight)


def error_of(call: Callable[[], Any], kind: type[Exception] = DevicePlacementError) -> Any:
    with pytest.raises(kind) as caught, devlint.guard():
        call()
    return caught.value


@simulated
def test_an_error_names_argument_shape_dtype_device_lines_path_and_rule() -> None:
    model = Masked().to(GPU)  # the model is moved
    x = torch.randn(2, 3)
    with devlint.guard() as report, pytest.raises(RuntimeError) as caught:
        model.mask = model.mask.clone()  # known to this guard
        model(x.to(GPU))
    text = str(caught.value)
    here = f"{os.path.relpath(__file__)}:{line_of('known to this guard')}"
    for part in (
        "`Tensor.mul` is given tensors on cpu and cuda:0: `model.mask` is on cpu",
        "`other` (`model.mask`) is a float32 tensor of shape [3] on cpu",
        f"`other` was made by `Tensor.clone`: {here}: model.mask = model.mask.clone()",
        "`input` is a float32 tensor of shape [2, 3] on cuda:0",
        "Expected all tensors to be on the same device",
        "rule: unregistered-tensor",
        "register_buffer",
    ):
        assert part in text, (part, text)
    (finding,) = [line.first for line in report.findings if line.first.error]
    assert (finding.kind, finding.rule, finding.error) == ("met", "unregistered-tensor", True)
    assert finding.site is not None and finding.site.code == "return self.linear(x) * self.mask"
    assert not report.ok


@simulated
def test_an_error_names_the_line_that_last_moved_a_tensor() -> None:
    def meet() -> None:
        x = torch.ones(3).mul(2)  # x is made
        y = x.to(GPU)  # y is moved
        y + torch.ones(3)

    text, here = str(error_of(meet)), os.path.relpath(__file__)
    assert f"`input` was made by `Tensor.mul`: {here}:{line_of('x is made')}" in text
    assert f"`input` was moved last: {here}:{line_of('y is moved')}" in text


def loss_weights() -> None:
    criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
    criterion(on_gpu(2, 3), torch.zeros(2, dtype=torch.long, device=GPU))


def batch_of_a_loader() -> None:
    model = nn.Sequential(nn.Linear(3, 3)).to(GPU)
    for (x,) in DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2):
        model(x)


@simulated
@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: Positioned()(on_gpu(3)), "tensor-without-device"),
        (lambda: Masked().to(GPU)(on_gpu(2, 3)), "unregistered-tensor"),
        (lambda: Listed().to(GPU)(on_gpu(2, 3)), "unregistered-module"),
        (loss_weights, "loss-not-moved"),
        (batch_of_a_loader, "input-not-moved"),
        (lambda: on_gpu(3) + torch.ones(3, device=OTHER), "mixed-devices"),
        (lambda: on_gpu(3) + torch.from_numpy(np.ones(3)), "mixed-devices"),
        (lambda: torch.cat([on_gpu(3), torch.zeros(3)]), "tensor-without-device"),
        (lambda: torch.stack([on_gpu(3), torch.zeros(3)]), "tensor-without-device"),
        (lambda: on_gpu(3, 3) @ torch.tensor([1.0, 2.0, 3.0]), "tensor-without-device"),
        (lambda: torch.arange(3)[torch.tensor([0], device=GPU)], "tensor-without-device"),
        (lambda: F.cross_entropy(on_gpu(2, 3), torch.tensor([0, 1])), "tensor-without-device"),
        (lambda: on_gpu(3).add_(torch.ones(3)), "tensor-without-device"),
        (lambda: torch.add(on_gpu(3), on_gpu(3), out=torch.empty(3)), "tensor-without-device"),
        (lambda: 1 - on_gpu(3) - torch.ones(3), "tensor-without-device"),
    ],
)
def test_the_rule_follows_from_what_the_tensor_is(call: Callable[[], Any], rule: str) -> None:
    error = error_of(call)
    assert isinstance(error, RuntimeError)
    assert f"rule: {rule}" in str(error), str(error)


@simulated
def test_the_traceback_is_the_users_with_one_frame_of_the_guard_at_most() -> None:
    error = error_of(lambda: on_gpu(3) + torch.ones(3))
    files = [Path(frame.f_code.co_filename).name for frame in _frames(error)]
    assert files[:2] == [Path(__file__).name] * 2
    assert files[2:] in ([], ["calls.py"])
    assert error.__cause__ is None


@simulated
def test_operands_that_meet_in_backward_are_named_too() -> None:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient * torch.full((3,), 2.0)

    x = on_gpu(3).requires_grad_()
    error = error_of(lambda: Scale.apply(x).sum().backward())
    assert "`other` was made by `torch.full`" in str(error)
    assert "backward" in {frame.f_code.co_name for frame in _frames(error)}


def _frames(error: BaseException) -> Iterator[Any]:
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame
        step = step.tb_next


@simulated
@pytest.mark.parametrize("call", [lambda x: x.numpy(), np.asarray, lambda x: np.add(x, 1)])
def test_numpy_on_a_device_tensor_is_named_and_still_a_type_error(call: Callable[[Any], Any]) -> None:
    x = on_gpu(3)
    error = error_of(lambda: call(x), HostConversionError)
    assert isinstance(error, TypeError) and isinstance(error, RuntimeError)
    assert "numpy-on-device-tensor" in str(error) and "`x`" in str(error)


@simulated
@pytest.mark.parametrize("on", ["warn", "collect"])
def test_without_raising_torch_says_it_in_its_own_words(on: Any) -> None:
    with warnings.catch_warnings(), devlint.guard(on=on) as report:
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="Expected all tensors") as caught:
            on_gpu(3) + torch.ones(3)
        with pytest.raises(TypeError, match="can't convert cuda:0"):
            on_gpu(3).numpy()
    assert not isinstance(caught.value, DevicePlacementError)
    assert rules(report) == {"tensor-without-device", "numpy-on-device-tensor"}


@simulated
def test_a_tensor_is_looked_for_in_attributes_past_objects_that_answer_nothing() -> None:
    class Proxy:
        def __getattribute__(self, name: str) -> Any:
            raise LookupError("outside of any request")

    class Holder:
        def __init__(self) -> None:
            self.proxy, self.tables = Proxy(), {"first": torch.ones(3)}

        def meet(self) -> torch.Tensor:
            proxy = self.proxy
            return on_gpu(3) + self.tables["first"] if proxy is not None else on_gpu(3)

    assert "`other` (`self.tables['first']`) is a float32 tensor" in str(error_of(Holder().meet))


@simulated
def test_code_that_catches_the_error_goes_on_as_before() -> None:
    with devlint.guard() as report:
        try:
            total = on_gpu(3) + torch.ones(3)
        except RuntimeError:
            total = on_gpu(3) + torch.ones(3, device=GPU)
    assert total.tolist() == [2, 2, 2]
    assert len(report.findings) == 1


def test_without_a_simulator_the_devices_are_those_that_torch_tells() -> None:
    with FakeTensorMode():  # tensors without values, which say that they are on a real device
        x, y = torch.ones(3, device="cuda"), torch.zeros(3)
        with devlint.guard() as report:
            assert (x * torch.tensor(2.0)).device == GPU
            with pytest.raises(DevicePlacementError, match=r"`torch\.cat` is given tensors on cpu and cuda:0"):
                torch.cat([x, y])
            with pytest.raises(HostConversionError, match="`x` is on cuda:0"):
                x.numpy()
    assert not report.simulated


def legal_elementwise() -> None:
    x = on_gpu(3)
    x * torch.tensor(2.0), torch.tensor(2.0) - x, x.add_(torch.tensor(1.0)), torch.where(x > 0, x, torch.tensor(0.0))
    x.masked_fill(x > 0, torch.tensor(0.0))


def legal_indexing() -> None:
    x = on_gpu(4)
    x[torch.tensor([0, 1])], x[torch.tensor([True, False, True, False])]
    x[torch.tensor([0])] = torch.tensor(5.0)
    x[0] = torch.tensor(1.0)


def legal_copies() -> None:
    x = on_gpu(3)
    x.copy_(torch.ones(3))
    torch.ones(3).copy_(x)
    x.data = torch.zeros(3, device=GPU)


def legal_optimizers() -> None:
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop):
        layer = nn.Linear(3, 3).to(GPU)
        optimizer = make(layer.parameters())
        for _ in range(3):
            layer(on_gpu(2, 3)).sum().backward()
            optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())


def legal_states() -> None:
    torch.set_rng_state(torch.get_rng_state())
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())


def legal_packing() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(on_gpu(2, 4, 3), torch.tensor([4, 2]), batch_first=True)
    nn.LSTM(3, 2, batch_first=True).to(GPU)(packed)


def legal_sparse() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.tensor([1.0, 2.0]), (3,)).to(GPU)
    sparse.to_dense() + on_gpu(3)


@simulated
@pytest.mark.parametrize(
    "legal",
    [legal_elementwise, legal_indexing, legal_copies, legal_optimizers, legal_states, legal_packing, legal_sparse],
)
def test_legal_mixes_are_silent(legal: Callable[[], None]) -> None:
    with devlint.guard() as report:
        legal()
    assert report.findings == []
    assert report.ok


# Waits ----------------------------------------------------------------------------------------------------------------

WAITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "Tensor.item": lambda x: x.sum().item(),
    "Tensor.tolist": lambda x: x.tolist(),
    "Tensor.cpu": lambda x: x.cpu(),
    "Tensor.__bool__": lambda x: "yes" if x[0] > 0 else "no",
    "Tensor.__int__": lambda x: int(x[0]),
    "Tensor.__float__": lambda x: float(x[0]),
    "Tensor.__index__": lambda x: list(range(x.long()[0])),
    "Tensor.__repr__": lambda x: print(x),
    "Tensor.__format__": lambda x: f"{x[0]:.2f}",
    "Tensor.__contains__": lambda x: 1.0 in x,
    "Tensor.__getitem__": lambda x: x[x > 0],
    "Tensor.__setitem__": lambda x: x.__setitem__(x > 0, on_gpu(3)),
    "Tensor.nonzero": lambda x: x.nonzero(),
    "torch.where": lambda x: torch.where(x > 0),
    "torch.argwhere": lambda x: torch.argwhere(x),
    "Tensor.unique": lambda x: x.unique(),
    "torch.masked_select": lambda x: torch.masked_select(x, x > 0),
    "torch.repeat_interleave": lambda x: torch.repeat_interleave(x, x.long()),
    "torch.equal": lambda x: torch.equal(x, x),
    "torch.allclose": lambda x: torch.allclose(x, x),
    "torch.bincount": lambda x: torch.bincount(x.long()),
    "torch.linalg.inv": lambda x: torch.linalg.inv(torch.eye(3, device=GPU)),
    "torch.cuda.synchronize": lambda x: torch.cuda.synchronize(),
    "Event.synchronize": lambda x: torch.cuda.Event().synchronize(),
    "Stream.synchronize": lambda x: torch.cuda.current_stream().synchronize(),
}


@simulated
@pytest.mark.parametrize("operation", WAITS)
def test_a_wait_is_counted_once_where_it_happens(operation: str) -> None:
    x = on_gpu(3)
    with devlint.guard() as report:
        WAITS[operation](x)
    assert waits(report) == {operation: 1}
    (line,) = report.of("waited")
    assert line.first.site is not None and line.first.site.file == __file__
    assert line.first.seconds is None  # imaginary devices take no time
    assert line.first.rule is None


@simulated
@pytest.mark.parametrize(
    "silent",
    [
        lambda x: torch.ones(3).sum().item(),
        lambda x: torch.arange(3)[torch.arange(3) > 1].tolist(),
        lambda x: x.__setitem__(x > 0, 1.0),
        lambda x: torch.where(x > 0, x, x),
        lambda x: (x.shape, x.device, x.dtype, len(x), x.numel(), x.is_cuda, x.data_ptr()),
        lambda x: x.detach().clone().view(3, 1).to(torch.float16),
        lambda x: (x.untyped_storage().clone(), copy.deepcopy([x, x.untyped_storage()])),
        lambda x: (torch.multinomial(x, 1), torch.multinomial(x, 2, replacement=True)),
        lambda x: F.dropout(x, 0.5),
        lambda x: torch.cuda.Event().record(),
        lambda x: torch.sort(x),
        lambda x: isinstance(x, torch.Tensor) and x is not None,
    ],
)
def test_what_does_not_wait_is_not_counted(silent: Callable[[torch.Tensor], Any]) -> None:
    x = on_gpu(3)
    with devlint.guard() as report:
        silent(x)
    assert waits(report) == {}


INDEXED: dict[str, tuple[int, Callable[[torch.Tensor], Any]]] = {
    "a list": (1, lambda x: x[[0, 1]]),
    "lists": (2, lambda x: x[[0, 1], [0, 1]]),
    "an array": (1, lambda x: x[np.array([0, 1])]),
    "indices of the host beside a mask of the device": (2, lambda x: x[x[:, 0] > 0, torch.arange(3)]),
    "a number into positions": (2, lambda x: x.__setitem__([0, 1], 1.0)),
    "a number into two masks": (3, lambda x: x.__setitem__((x[:, 0] > 0, x[0] > 0), 1.0)),
    "a number into a mask of the host": (1, lambda x: x.__setitem__(torch.ones(3, dtype=torch.bool), 1.0)),
    "a tensor of the host into one place": (1, lambda x: x.__setitem__((0, 0), torch.tensor(1.0))),
    "what the device has into the host's": (1, lambda x: torch.zeros(3).__setitem__(slice(3), x[0])),
    "one value of the device into positions of the host": (1, lambda x: torch.zeros(3).__setitem__([0, 1], x[0, 0])),
    "a number into a mask and a column": (0, lambda x: x.__setitem__((x[:, 0] > 0, 0), 1.0)),
    "one value of the host into a mask": (0, lambda x: x.__setitem__(x > 0, torch.tensor(1.0))),
    "one value of the host into a row": (0, lambda x: x.__setitem__(0, torch.tensor(1.0))),
    "lists, all on the host": (0, lambda x: torch.ones(3, 3)[[0, 1], [0, 1]]),
    "numbers, all on the host": (0, lambda x: torch.ones(3).__setitem__(0, 1.0)),
}


@simulated
@pytest.mark.parametrize(("count", "index"), INDEXED.values(), ids=INDEXED.keys())
def test_each_copy_that_indexing_makes_is_waited_for(count: int, index: Callable[[torch.Tensor], Any]) -> None:
    x = on_gpu(3, 3)
    with devlint.guard() as report:
        index(x)
    assert sum(waits(report).values()) == count


@simulated
def test_waits_of_composite_functions_are_those_of_the_call() -> None:
    with devlint.guard() as report:
        F.one_hot(torch.zeros(2, dtype=torch.long, device=GPU))
    assert waits(report) == {"torch.nn.functional.one_hot": 1}


@simulated
def test_a_wait_in_backward_has_the_line_of_the_hook() -> None:
    x = on_gpu(3).requires_grad_()
    x.register_hook(lambda gradient: print(gradient.sum().item()))  # the hook waits
    with devlint.guard() as report:
        (x * 2).sum().backward()
    (line,) = report.of("waited")
    assert line.first.site is not None
    assert (line.first.operation, line.first.site.line) == ("Tensor.item", line_of("the hook waits"))


@simulated
def test_device_scalars_in_a_list_are_waited_for() -> None:
    losses = [on_gpu(2).sum(), on_gpu(2).sum()]
    with devlint.guard() as report:
        torch.tensor(losses)
    assert rules(report) == {"tensor-from-device-scalars"}


def train(steps: int, each: Callable[[int, torch.Tensor], Any], mark: bool = True) -> None:
    """A loop that drives device work; `each` gets the number and the loss."""
    layer = nn.Linear(3, 1, device=GPU)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = on_gpu(2, 3)
    for number in range(steps):
        loss = layer(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        each(number, loss)
        if mark:
            devlint.step()


@simulated
@pytest.mark.parametrize("mark", [True, False], ids=["marked", "by optimizer"])
def test_a_wait_that_comes_step_after_step_counts_under_its_rule(mark: bool) -> None:
    with devlint.guard() as report:
        train(6, lambda number, loss: loss.item(), mark)
    (line,) = report.of("waited")
    assert (line.first.rule, line.count, line.steps) == ("host-sync-in-loop", 6, 6)
    assert report.steps == 6


def evaluate(batches: int, each: Callable[[int, torch.Tensor], Any]) -> None:
    """A loop that no optimizer steps in; `each` gets the number of the batch and what the model says of it."""
    layer, criterion = nn.Linear(3, 1, device=GPU), nn.MSELoss()
    with torch.no_grad():
        for number in range(batches):
            each(number, criterion(layer(on_gpu(2, 3)), on_gpu(2, 1)))


@simulated
def test_a_wait_that_comes_forward_after_forward_counts_under_its_rule() -> None:
    with devlint.guard() as report:
        evaluate(5, lambda number, loss: loss.item())
    (line,) = report.findings
    assert (line.first.rule, line.count, report.steps) == ("host-sync-in-loop", 5, 0)
    assert line.first.message.endswith("`Tensor.item`, forward after forward")


@simulated
def test_a_wait_in_an_evaluation_between_steps_counts_too() -> None:
    with devlint.guard() as report:
        train(2, lambda number, loss: None, mark=False)
        evaluate(4, lambda number, loss: loss.item())
        train(2, lambda number, loss: None, mark=False)
    assert rules(report) == {"host-sync-in-loop"}


@simulated
@pytest.mark.parametrize(
    "run",
    [
        lambda wait: evaluate(1, lambda number, loss: wait(loss)),
        lambda wait: evaluate(5, lambda number, loss: wait(loss) if number == 4 else None),
        lambda wait: evaluate(9, lambda number, loss: wait(loss) if number % 3 == 0 else None),
        lambda wait: [evaluate(4, lambda number, loss: wait(loss) if number == 3 else None) for _ in range(4)],
        lambda wait: evaluate(1, lambda number, loss: [wait(loss) for _ in range(9)]),
        lambda wait: [wait(on_gpu(2).sum()) for _ in range(9)],
    ],
    ids=["after one forward", "after the loop", "every third", "once in each of four", "many after one", "no model"],
)
def test_a_wait_that_does_not_come_with_each_forward_counts_under_none(run: Callable[[Any], Any]) -> None:
    with devlint.guard() as report:
        run(lambda loss: loss.item())
    assert next(report.of("waited")).count
    assert report.findings == []


@simulated
def test_models_in_turn_make_one_round_and_a_model_on_the_host_none() -> None:
    first, second = nn.Linear(3, 3, device=GPU), nn.Linear(3, 1, device=GPU)
    scale = nn.Linear(3, 3)
    with devlint.guard() as report:
        for _ in range(4):
            for _ in range(5):
                x = scale(torch.ones(2, 3))
            second(first(x.to(GPU))).sum().item()
    assert rules(report) == {"host-sync-in-loop"}


@simulated
def test_synchronizing_forward_after_forward_may_be_a_measurement() -> None:
    with devlint.guard() as report:
        evaluate(5, lambda number, loss: torch.cuda.synchronize())
    assert report.findings == []


@simulated
def test_synchronizing_step_after_step_has_a_rule_of_its_own() -> None:
    with devlint.guard() as report:
        train(6, lambda number, loss: torch.cuda.synchronize())
    assert rules(report) == {"synchronize-in-loop"}


@simulated
@pytest.mark.parametrize(
    "each",
    [
        lambda number, loss: loss.item() if number % 3 == 0 else None,
        lambda number, loss: loss.item() if number > 3 else None,
        lambda number, loss: loss.detach(),
    ],
    ids=["every third step", "the last two steps", "no wait"],
)
def test_a_wait_now_and_then_counts_under_none(each: Callable[[int, torch.Tensor], Any]) -> None:
    with devlint.guard() as report:
        train(6, each)
    assert report.findings == []


@simulated
def test_waits_of_gradient_scaling_are_counted_but_no_fault() -> None:
    layer = nn.Linear(3, 1).to(GPU)
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    with devlint.guard() as report:
        for _ in range(6):
            scaler.scale(layer(on_gpu(2, 3)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            devlint.step()
    assert sum(waits(report).values()) >= 6
    assert report.findings == []


@simulated
def test_what_is_allowed_is_reported_with_its_reason_and_no_fault() -> None:
    def each(number: int, loss: torch.Tensor) -> None:
        with devlint.allow_sync("the progress bar"):
            loss.item()

    with devlint.guard(max_syncs=0) as report:
        train(6, each)
    (line,) = report.of("waited")
    assert (line.first.allowed, line.count) == ("the progress bar", 6)
    assert report.findings == []


def test_allow_sync_wants_a_reason() -> None:
    for reason in ("", "  ", None):
        with pytest.raises(ValueError, match="reason"), devlint.allow_sync(reason):  # type: ignore[arg-type]
            pass


# Copies ---------------------------------------------------------------------------------------------------------------


@simulated
def test_copies_have_direction_bytes_memory_and_whether_the_host_waits() -> None:
    x, pinned = torch.from_numpy(np.ones((2, 3), dtype=np.float32)), torch.ones(5).add(1).pin_memory()
    with devlint.guard() as report:
        y = x.to(GPU)
        pinned.sum()
        pinned.to(GPU, non_blocking=True)
        y.cpu()
        y.to("cpu", non_blocking=True)
        y.to(OTHER)
        x.to(GPU, torch.float16)
    copies = [
        (e.source, e.target, line.bytes, e.pinned, e.blocking) for line in report.of("moved") for e in [line.first]
    ]
    assert copies == [
        ("cpu", "cuda:0", 24, False, True),
        ("cpu", "cuda:0", 20, True, False),
        ("cuda:0", "cpu", 24, False, True),
        ("cuda:0", "cpu", 24, True, False),
        ("cuda:0", "cuda:1", 24, None, False),
        ("cpu", "cuda:0", 12, False, True),
    ]
    assert waits(report) == {"Tensor.to": 2, "Tensor.cpu": 1}
    assert report.findings == []


@simulated
def test_spellings_of_a_copy_are_all_counted() -> None:
    x = torch.from_numpy(np.ones(3, dtype=np.float32))
    y = on_gpu(3)
    with devlint.guard() as report:
        x.cuda(), x.cuda(0, True), x.to("cuda", non_blocking=False), x.to(y), x.type_as(y), x.to(device=GPU)
        x.type("torch.cuda.FloatTensor"), y.copy_(x), torch.as_tensor(x, device=GPU), torch.tensor([1.0], device=GPU)
        y.new_tensor([1.0, 2.0])
    assert sum(line.count for line in report.of("moved")) == 11


@simulated
def test_moves_that_copy_nothing_are_not_counted() -> None:
    x, y = torch.ones(3), on_gpu(3)
    with devlint.guard() as report:
        x.to("cpu"), x.cpu(), y.to(GPU), y.cuda(), x.to(torch.float64), y.half(), y.to(y), x.clone(), x.to("meta")
        nn.Linear(3, 3).to("cpu")
    assert seen(report) == []


@simulated
def test_a_module_that_is_moved_counts_as_one_line() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with devlint.guard() as report:
        model.to(GPU)
    (line,) = report.of("moved")
    assert (line.first.operation, line.count, line.bytes) == ("Module.to", 4, 4 * (12 + 4 + 8 + 2))
    assert report.findings == []


def move_at_once() -> None:
    torch.zeros(3).to(GPU)


def move_next() -> None:
    noise, mask = torch.randn(3), torch.arange(3)
    noise = noise.to(GPU)
    mask = mask.to(noise.device)


def pinned_at_once() -> None:
    torch.from_numpy(np.ones(3)).pin_memory().to(GPU, non_blocking=True)


def pageable_asynchronous() -> None:
    torch.from_numpy(np.ones(3)).to(GPU, non_blocking=True)


def pinned_blocking() -> None:
    loader = DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2, pin_memory=True)
    for (x,) in loader:
        x.to(GPU)


def round_trip() -> None:
    x = on_gpu(3)
    host = x.cpu()
    host.to(GPU)


def invariant() -> None:
    weights = torch.from_numpy(np.ones(3))
    for _ in range(4):
        weights.to(GPU)


@simulated
@pytest.mark.parametrize(
    ("copies", "rule"),
    [
        (move_at_once, "create-then-move"),
        (move_next, "create-then-move"),
        (pinned_at_once, "pinned-then-copied"),
        (pageable_asynchronous, "pageable-non-blocking"),
        (pinned_blocking, "blocking-copy-from-pinned"),
        (round_trip, "round-trip-copy"),
        (invariant, "invariant-move-in-loop"),
    ],
)
def test_a_copy_for_nothing_counts_under_its_rule(copies: Callable[[], None], rule: str) -> None:
    with devlint.guard() as report:
        copies()
    assert rules(report) == {rule}
    assert report.ok  # none of these is an error


def values_of_python() -> None:
    torch.tensor([1.0, 2.0]).to(GPU)
    torch.as_tensor(np.ones(3)).to(GPU)


def worked_on_before() -> None:
    x = torch.zeros(3)
    x[0] = 1
    x.to(GPU)


def changed_each_time() -> None:
    x = torch.from_numpy(np.ones(3))
    for _ in range(4):
        x += 1
        x.to(GPU)


def filled_by_numpy() -> None:
    buffer = np.zeros(3)
    x = torch.from_numpy(buffer)
    for number in range(6):
        buffer[:] = number
        x.to(GPU)


def brought_back_changed_by_numpy() -> None:
    x = on_gpu(3)
    host = x.cpu()
    host.numpy()[:] = 5
    host.to(GPU)


def restored_parameter() -> None:
    layer = nn.Linear(3, 3).to(GPU)
    kept = layer.weight.detach().cpu(), layer.bias.cpu()
    for parameter in layer.parameters():
        parameter.data.add_(1)
    with torch.no_grad():
        layer.weight.copy_(kept[0])
        layer.bias.copy_(kept[1])


def cached_batches() -> None:
    batches = [torch.from_numpy(np.ones(3)), torch.from_numpy(np.zeros(3))]
    for _ in range(4):
        for x in batches:
            x.to(GPU)


def brought_back_changed() -> None:
    x = on_gpu(3)
    host = x.cpu()
    host += 1
    host.to(GPU)


def brought_back_after_release() -> None:
    host = on_gpu(3).cpu()
    host.to(GPU)


def loaded_pageable() -> None:
    for (x,) in DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2):
        x.to(GPU)


def loaded_pinned() -> None:
    for (x,) in DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2, pin_memory=True):
        x.to(GPU, non_blocking=True)


def initialized_in_place() -> None:
    layer = nn.Linear(3, 3).to(GPU)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3))


@simulated
@pytest.mark.parametrize(
    "copies",
    [
        values_of_python,
        worked_on_before,
        changed_each_time,
        filled_by_numpy,
        brought_back_changed_by_numpy,
        restored_parameter,
        cached_batches,
        brought_back_changed,
        brought_back_after_release,
        loaded_pageable,
        loaded_pinned,
        initialized_in_place,
    ],
)
def test_a_copy_that_need_be_is_no_fault(copies: Callable[[], None]) -> None:
    with devlint.guard() as report:
        copies()
    assert list(report.of("moved"))
    assert report.findings == []


@simulated
def test_under_inference_mode_nothing_is_said_of_what_may_have_changed() -> None:
    with devlint.guard() as report, torch.inference_mode():
        x = on_gpu(3)
        host = x.cpu()
        host += 1
        host.to(GPU)
    assert report.findings == []


@simulated
@pytest.mark.parametrize(
    "read", [lambda x: x.sum(), lambda x: x.tolist(), lambda x: x.numpy(), lambda x: print(x), lambda x: x + 1]
)
def test_a_copy_read_before_it_arrived_is_an_error(read: Callable[[torch.Tensor], Any]) -> None:
    x = on_gpu(3)
    with devlint.guard(on="collect") as report:
        read(x.to("cpu", non_blocking=True))
    (line,) = report.of("read")
    assert (line.first.rule, line.first.error) == ("unsynchronized-host-copy", True)
    error = error_of(lambda: read(x.to("cpu", non_blocking=True)))
    assert "unsynchronized-host-copy" in str(error)


@simulated
@pytest.mark.parametrize(
    "wait",
    [
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.cuda.current_stream().synchronize(),
        lambda x: torch.cuda.Event().synchronize(),
        lambda x: torch.cuda.Event().query(),
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
    ],
)
def test_a_copy_read_after_a_wait_is_fine(wait: Callable[[torch.Tensor], Any]) -> None:
    x = on_gpu(3)
    with devlint.guard() as report:
        host = x.to("cpu", non_blocking=True)
        wait(x)
        host.sum()
    assert report.findings == []


@simulated
def test_a_copy_into_pageable_memory_waits_and_into_pinned_memory_does_not() -> None:
    x, pageable, pinned = on_gpu(3), torch.ones(3), torch.ones(3, pin_memory=True)
    with devlint.guard(on="collect") as report:
        pageable.copy_(x, non_blocking=True)
        pageable.sum()
        pinned.copy_(x, non_blocking=True)
        pinned.sum()
    assert [(line.first.pinned, line.first.blocking) for line in report.of("moved")] == [(False, True), (True, False)]
    assert rules(report) == {"unsynchronized-host-copy"}


@simulated
def test_a_copy_that_goes_on_to_a_device_is_not_read_by_the_host() -> None:
    with devlint.guard() as report:
        on_gpu(3).to("cpu", non_blocking=True).to(OTHER, non_blocking=True)
    assert "unsynchronized-host-copy" not in rules(report)
    assert report.ok


# Steps and budgets ----------------------------------------------------------------------------------------------------


@simulated
def test_a_budget_that_is_kept_passes() -> None:
    with devlint.guard(max_syncs=1, max_bytes_to_host=4, max_bytes_to_device=0) as report:
        x = on_gpu(2)
        for _ in range(3):
            x.sum().cpu()
            devlint.step()
    assert report.failures == []
    assert report.ok


@simulated
def test_a_broken_budget_names_the_step_and_the_worst_lines() -> None:
    x = on_gpu(2)
    with pytest.raises(BudgetExceeded) as caught, devlint.guard(max_syncs=1) as report:
        for number in range(4):
            for _ in range(number):
                x.sum().item()  # the worst line
            x.tolist()
            devlint.step()
    text = str(caught.value)
    assert "`max_syncs=1`: the host waited 4 times for a device in step 4, too many in 3 of 5 steps" in text
    assert f":{line_of('the worst line')} `x.sum().item()  # the worst line` 3 times" in text
    assert report.failures == [text]
    assert not report.ok


@simulated
@pytest.mark.parametrize(
    ("budget", "copies"),
    [("max_bytes_to_device", lambda: torch.zeros(8).to(GPU)), ("max_bytes_to_host", lambda: on_gpu(8).cpu())],
)
def test_budgets_of_bytes_are_for_each_direction(budget: str, copies: Callable[[], Any]) -> None:
    other = ({"max_bytes_to_device", "max_bytes_to_host"} - {budget}).pop()
    with devlint.guard(**{budget: 32, other: 0}):
        copies()
    with pytest.raises(BudgetExceeded, match=rf"`{budget}=31`: 32 bytes"), devlint.guard(**{budget: 31}):
        copies()


@simulated
def test_steps_for_warming_up_are_not_held_against_budgets() -> None:
    def run(waiting: set[int]) -> None:
        with devlint.guard(max_syncs=0, warmup_steps=3):
            train(6, lambda number, loss: loss.item() if number in waiting else None)

    run({0, 1, 2})
    with pytest.raises(BudgetExceeded, match="in step 4"):
        run({0, 3})


@simulated
def test_a_step_marked_at_its_beginning_works_as_well() -> None:
    with pytest.raises(BudgetExceeded, match="in step 4"), devlint.guard(max_syncs=0, warmup_steps=1):
        x = on_gpu(3)
        x.tolist()  # before the first mark
        for number in range(3):
            devlint.step()
            if number == 2:
                x.tolist()


@simulated
def test_budgets_without_steps_hold_for_the_whole() -> None:
    x = on_gpu(2)
    with (
        pytest.raises(BudgetExceeded, match="waited 2 times for a device in all"),
        devlint.guard(max_syncs=1, warmup_steps=5),
    ):
        x.tolist()
        x.tolist()


@simulated
def test_a_budget_that_nothing_was_held_against_fails() -> None:
    with pytest.raises(BudgetExceeded, match="nothing was held against"), devlint.guard(max_syncs=0, warmup_steps=9):
        train(3, lambda number, loss: None)


@simulated
@pytest.mark.parametrize("warmup_steps", [2, 3])
def test_where_only_the_end_was_held_against_budgets_that_is_said(warmup_steps: int) -> None:
    with devlint.guard(max_syncs=0, warmup_steps=warmup_steps) as report:
        train(3, lambda number, loss: None)
    assert ("marked steps" in report.stepped_aside) == (warmup_steps == 3)
    with devlint.guard(warmup_steps=3) as report:
        train(3, lambda number, loss: None)
    assert report.stepped_aside == {}


@simulated
def test_what_comes_after_the_last_step_counts() -> None:
    with pytest.raises(BudgetExceeded, match="waited once for a device"), devlint.guard(max_syncs=0):
        train(1, lambda number, loss: loss.item(), mark=False)  # the optimizer steps before the wait


@simulated
def test_steps_of_optimizers_count_only_where_none_is_marked_and_only_of_one() -> None:
    first, second = nn.Linear(3, 1).to(GPU), nn.Linear(3, 1).to(GPU)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (first, second)]

    def one_step() -> None:
        (first(on_gpu(2, 3)) + second(on_gpu(2, 3))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()

    with devlint.guard() as report:
        for _ in range(3):
            one_step()
    assert report.steps == 3
    with devlint.guard() as report:
        for optimizer in (optimizers[0], *optimizers[1:] * 4):  # one model after the other
            (first(on_gpu(2, 3)) + second(on_gpu(2, 3))).sum().backward()
            optimizer.step()
    assert report.steps == 1 + 3
    with devlint.guard() as report:
        for _ in range(2):
            for _ in range(4):
                one_step()
            devlint.step()
    assert report.steps == 2
    assert len(report.step_starts) == 2


def test_a_step_without_a_guard_does_nothing() -> None:
    assert devlint.step() is None


@pytest.mark.parametrize(
    "wrong",
    [{"on": "shout"}, {"max_syncs": -1}, {"max_syncs": 1.5}, {"max_syncs": True}, {"warmup_steps": -1},
     {"max_bytes_to_host": "1 GB"}, {"warmup_steps": None}],
)  # fmt: skip
def test_arguments_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        devlint.guard(**wrong)


# Raising, warning, collecting -----------------------------------------------------------------------------------------


@simulated
def test_warnings_are_of_a_category_of_their_own_at_the_users_line_and_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with devlint.guard(on="warn"):
            for _ in range(4):
                torch.zeros(3).to(GPU)  # warned of
    (one,) = caught
    assert one.category is DevicePlacementWarning
    assert (one.filename, one.lineno) == (__file__, line_of("warned of"))
    assert str(one.message).startswith("create-then-move: ")


@simulated
def test_a_broken_budget_is_a_warning_or_only_in_the_report() -> None:
    with pytest.warns(DevicePlacementWarning, match="max_syncs"), devlint.guard(on="warn", max_syncs=0):
        on_gpu(1).item()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with devlint.guard(on="collect", max_syncs=0) as report:
            on_gpu(1).item()
    assert len(report.failures) == 1


@simulated
def test_an_exception_inside_passes_unchanged_and_the_report_is_whole() -> None:
    class OwnError(Exception):
        pass

    error = OwnError("mine")
    with pytest.raises(OwnError) as caught, devlint.guard(max_syncs=0) as report:
        on_gpu(1).item()
        raise error
    assert caught.value is error and error.__cause__ is None and error.__context__ is None
    assert report.duration > 0 and report.devices == {"cuda:0": "imaginary", "cuda:1": "imaginary"}
    assert waits(report) == {"Tensor.item": 1}


@simulated
def test_the_report_survives_being_written_and_read() -> None:
    with devlint.guard() as report:
        train(4, lambda number, loss: loss.item())
    again = Report.from_dict(report.to_dict())
    assert seen(again) == seen(report)
    assert again.simulated


# Nesting, decorating, threads, processes ------------------------------------------------------------------------------


@simulated
def test_nested_guards_see_the_same_each_with_its_own_budget() -> None:
    with devlint.guard(max_syncs=3) as outer:
        on_gpu(1).item()
        with pytest.raises(BudgetExceeded), devlint.guard(max_syncs=1) as inner:
            on_gpu(1).item()
            torch.where(on_gpu(1) > 0)
            devlint.step()
    assert waits(inner) == {"Tensor.item": 1, "torch.where": 1}
    assert waits(outer) == {"Tensor.item": 2, "torch.where": 1}
    assert (inner.steps, outer.steps) == (1, 0)


@simulated
def test_a_guard_is_used_once() -> None:
    once = devlint.guard()
    with once:
        pass
    with pytest.raises(RuntimeError, match="used once"), once:
        pass


@simulated
def test_guarded_functions_and_methods_have_a_guard_for_each_call() -> None:
    class Trainer:
        @devlint.guarded(max_syncs=1)
        def run(self, times: int) -> str:
            """Runs."""
            for _ in range(times):
                on_gpu(1).item()
            return "done"

    trainer = Trainer()
    assert trainer.run(1) == trainer.run(1) == "done"
    assert waits(Trainer.run.report) == {"Tensor.item": 1}
    with pytest.raises(BudgetExceeded):
        trainer.run(2)
    assert waits(Trainer.run.report) == {"Tensor.item": 2}
    assert (Trainer.run.__name__, Trainer.run.__doc__) == ("run", "Runs.")
    assert devlint.guarded(lambda: "bare")() == "bare"


def test_what_does_not_run_in_one_go_cannot_be_guarded() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def coroutine() -> None: ...

    for function in (generator, coroutine):
        with pytest.raises(TypeError, match="guard the loop"):
            devlint.guarded(function)
    with pytest.raises(ValueError, match="max_syncs"):
        devlint.guarded(max_syncs=-1)(lambda: None)


@simulated
def test_threads_started_inside_are_looked_at_and_step_the_same_guard() -> None:
    def work() -> None:
        on_gpu(1).item()
        devlint.step()

    with devlint.guard() as report:
        thread = threading.Thread(target=work, name="worker")
        thread.start()
        thread.join()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: on_gpu(1).item(), range(3)))
    assert waits(report) == {"Tensor.item": 4}
    assert report.steps == 1
    assert "worker" in {event.thread for event in report.timeline}


@simulated
def test_threads_of_two_guards_do_not_mix() -> None:
    reports: dict[int, Report] = {}

    def work(times: int) -> None:
        with devlint.guard() as reports[times]:
            for _ in range(times):
                on_gpu(1).item()

    threads = [threading.Thread(target=work, args=(times,)) for times in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {times: waits(report) for times, report in reports.items()} == {n: {"Tensor.item": n} for n in (1, 2, 3)}


@simulated
def test_a_thread_that_outlives_the_guard_is_left_alone_then() -> None:
    ready, over = threading.Event(), threading.Event()
    results: list[Any] = []

    def work() -> None:
        ready.set()
        over.wait(10)
        results.append((on_gpu(2) * 2).tolist())

    with devlint.guard() as report:
        thread = threading.Thread(target=work)
        thread.start()
        ready.wait(10)
    over.set()
    thread.join()
    assert results == [[2, 2]]
    assert seen(report) == []


@simulated
def test_workers_of_a_loader_run_and_the_report_says_they_are_not_seen() -> None:
    with devlint.guard() as report:
        loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=1)
        total = sum(x.to(GPU).sum().item() for (x,) in loader)
    assert total == 28
    assert "other processes" in report.stepped_aside


def state_of_the_process() -> list[Any]:
    """What a guard replaces or adds to."""
    hooks, optimizers = torch.nn.modules.module._global_forward_pre_hooks, sys.modules["torch.optim.optimizer"]
    return [
        threading.Thread.start, torch.autograd._engine_run_backward, torch.cuda.synchronize, torch.mps.synchronize,
        torch.cuda.Stream.synchronize, torch.cuda.Event.synchronize, torch.cuda.Event.query,
        "synchronize" in vars(torch.cuda.Event), warnings.showwarning, list(warnings.filters), list(hooks),
        list(optimizers._global_optimizer_post_hooks), list(optimizers._global_optimizer_pre_hooks),
        torch.overrides._get_current_function_mode_stack(), guards.current(), reach.running(),
        sync_warnings._listeners[:],
    ]  # fmt: skip


@pytest.mark.parametrize("raising", [False, True])
def test_everything_is_put_back_at_the_end(raising: bool) -> None:
    for surroundings in (nullcontext(), simulate(1)):
        with surroundings:
            before = state_of_the_process()
            with pytest.raises(KeyError) if raising else nullcontext(), devlint.guard(on="collect"):
                torch.ones(3).sum().item()
                if raising:
                    raise KeyError
            assert state_of_the_process() == before


def test_guards_that_end_in_another_order_than_they_began_put_everything_back() -> None:
    before = state_of_the_process()
    began, may_end = threading.Event(), threading.Event()

    def longer() -> None:
        with devlint.guard(on="collect"):
            began.set()
            may_end.wait(10)

    with devlint.guard(on="collect"):
        thread = threading.Thread(target=longer)
        thread.start()
        began.wait(10)
    may_end.set()
    thread.join()
    assert state_of_the_process() == before


# Nothing changes ------------------------------------------------------------------------------------------------------


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(4 * 36, 5)
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 6, batch_first=True, dropout=0.1, num_layers=2), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x[:, 0])[0][:, -1])


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.layer, x[:, 0], use_reentrant=False).mean(1))


def trained(make: Callable[[], nn.Module], optimizer: Any, device: torch.device | str) -> list[bytes]:
    """Losses, parameters and the random state after a few steps, bit by bit."""
    torch.manual_seed(0)
    model = make().to(device)
    chosen = optimizer(model.parameters(), lr=0.01)
    x, y = torch.randn(12, 1, 8, 8), torch.randint(5, (12,))
    kept = []
    for a, b in DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True):
        chosen.zero_grad()
        loss = F.cross_entropy(model(a.to(device)), b.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        chosen.step()
        kept.append(np.float64(loss.item()).tobytes())
    kept += [p.detach().cpu().numpy().tobytes() for p in model.parameters()]
    return [*kept, torch.get_rng_state().numpy().tobytes()]


@pytest.mark.parametrize("make", [convolutional, Recurrent, Attentive])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_training_is_the_same_bit_by_bit_with_and_without(make: Callable[[], nn.Module], optimizer: Any) -> None:
    plain = trained(make, optimizer, "cpu")
    with devlint.guard():
        assert trained(make, optimizer, "cpu") == plain
    with simulate(1), devlint.guard(on="collect") as report:
        assert trained(make, optimizer, GPU) == plain
    assert report.steps == 3


def test_what_torch_does_with_tensors_goes_on_under_a_guard() -> None:
    class Marked(torch.Tensor):
        pass

    with devlint.guard() as report:
        x = torch.ones(3)
        assert type(x.as_subclass(Marked) + 1) is Marked
        assert torch.func.vmap(lambda a: (a * 2).sum())(torch.ones(2, 3)).tolist() == [6, 6]
        assert torch.func.grad(lambda a: (a * a).sum())(x).tolist() == [2, 2, 2]
        assert torch.jit.trace(lambda a: a * 2, x)(x).tolist() == [2, 2, 2]
        assert torch.fx.symbolic_trace(nn.ReLU())(x).tolist() == [1, 1, 1]
        assert copy.deepcopy(x).equal(x) and pickle.loads(pickle.dumps(x)).equal(x)
        buffer = io.BytesIO()
        torch.save({"x": x}, buffer)
        buffer.seek(0)
        assert torch.load(buffer)["x"].equal(x)
        with torch.device("meta"):
            assert torch.ones(2).is_meta
        leaf = torch.tensor(2.0, requires_grad=True)
        (first,) = torch.autograd.grad(leaf**3, leaf, create_graph=True)
        assert torch.autograd.grad(first, leaf)[0].item() == 12
    assert report.findings == []


def test_compiled_code_is_left_alone_and_the_report_says_so() -> None:
    twice = torch.compile(lambda x: (x * 2).sum(), backend="eager")
    with devlint.guard() as report:
        assert twice(torch.ones(3)).item() == 6
    assert twice(torch.ones(3)).item() == 6
    assert "torch.compile" in report.stepped_aside


@simulated
def test_a_model_on_two_devices_works() -> None:
    model = nn.DataParallel(nn.Linear(3, 2).to(GPU))
    with devlint.guard():
        assert model(on_gpu(4, 3)).device == GPU


@simulated
def test_history_that_is_kept_is_told_by_the_guard() -> None:
    losses: list[torch.Tensor] = []
    with devlint.guard(on="collect") as report:
        train(6, lambda number, loss: losses.append(loss))
    assert rules(report) == {"retained-graph"}


# CUDA's own warnings --------------------------------------------------------------------------------------------------


class FakeCuda:
    """The parts of ``torch.cuda`` that `sync_warnings` talks to; `wait` warns as torch's C++ does."""

    def __init__(self, mode: int = 0) -> None:
        self.mode = mode
        self.said = False

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "get_sync_debug_mode", lambda: self.mode)
        patch.setattr(torch.cuda, "set_sync_debug_mode", self.set)

    def set(self, mode: int) -> None:
        first, self.mode, self.said = not self.said, mode, True
        if first:
            warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=2)

    def wait(self) -> None:
        if self.mode:
            warnings.warn("called a synchronizing CUDA operation (Triggered internally at x.cpp:1.)", stacklevel=2)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The waits that a listener hears."""
    calls: list[str] = []

    def listener() -> None:
        calls.append("wait")

    sync_warnings.listen(listener)
    try:
        yield calls
    finally:
        if listener in sync_warnings._listeners:
            sync_warnings.stop(listener)


def test_waits_told_as_warnings_are_heard_each_time_and_shown_to_nobody(
    heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        sync_warnings.keep_listening()
        for _ in range(3):
            cuda.wait()
        warnings.warn("the program's own", stacklevel=1)
    assert heard == ["wait"] * 3
    assert [str(one.message) for one in caught] == ["the program's own"]


def test_waits_are_heard_while_the_program_turns_warnings_into_errors_or_records_them(
    heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    sync_warnings.keep_listening()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sync_warnings.keep_listening()
        cuda.wait()
        with pytest.raises(UserWarning, match="own"):
            warnings.warn("the program's own", stacklevel=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sync_warnings.keep_listening()
        cuda.wait()
        warnings.warn("another", stacklevel=1)
    sync_warnings.keep_listening()
    cuda.wait()
    assert heard == ["wait"] * 3
    assert [str(one.message) for one in caught] == ["another"]


def test_the_mode_and_the_warnings_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    before = warnings.showwarning, list(warnings.filters)

    def listener() -> None: ...

    sync_warnings.listen(listener)
    sync_warnings.keep_listening()
    assert cuda.mode == 1
    sync_warnings.stop(listener)
    assert cuda.mode == 0
    assert (warnings.showwarning, list(warnings.filters)) == before


def test_a_program_that_uses_the_mode_itself_keeps_it(heard: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(mode=2)
    cuda.install(monkeypatch)
    sync_warnings.keep_listening()
    assert cuda.mode == 2
    assert sync_warnings.is_taken()


def test_cuda_is_not_initialized_for_listening(heard: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    sync_warnings.keep_listening()
    assert cuda.mode == 0


def test_cuda_is_listened_to_in_a_call_that_has_tensors_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    with devlint.guard(on="collect"):
        torch.ones(3).sum()
        assert cuda.mode == 0
        torch.ones(3, device="meta").mul(torch.tensor(2.0))
        assert cuda.mode == 1
        monkeypatch.undo()
        sync_warnings._before = None  # the fake has no mode to put back


def test_a_wait_told_by_cuda_has_the_line_the_call_and_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)

    code = "import warnings\ndef sort(x):\n    warnings.warn('called a synchronizing CUDA operation')\n    return x"
    namespace: dict[str, Any] = {}
    exec(compile(code, "<torch>", "exec"), namespace)
    with devlint.guard(on="collect") as report:
        sync_warnings.keep_listening()
        calls = guards.current().calls  # type: ignore[union-attr]
        assert calls is not None
        calls.look(namespace["sort"], (torch.ones(3),), {})  # torch waits
        monkeypatch.undo()
        sync_warnings._before = None  # the fake has no mode to put back
    (line,) = report.of("waited")
    assert line.first.operation.endswith("sort")
    assert line.first.site is not None and line.first.site.line == line_of("torch waits")
    assert line.first.seconds is not None and 0 <= line.first.seconds < 5


# The package's own names ----------------------------------------------------------------------------------------------


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_importing_devlint_and_its_linter_imports_no_torch() -> None:
    done = run_python("import sys, devlint, devlint.cli, devlint.runtime.events; print('torch' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("name", ["guard", "guarded", "watch", "audit", "allow_sync", "step", "simulate"])
def test_without_torch_each_name_says_how_to_get_it(name: str) -> None:
    done = run_python(f"import sys; sys.modules['torch'] = None\nimport devlint\ndevlint.{name}")
    assert done.returncode == 1
    assert 'ImportError: torch is not installed: `pip install "devlint[runtime]"`' in done.stderr


def test_a_torch_too_old_is_named_with_its_version() -> None:
    code = (
        "import sys, types\ntorch = sys.modules['torch'] = types.ModuleType('torch')\ntorch.__version__ = '2.3.1+cu118'"
    )
    done = run_python(f"{code}\nimport devlint\ndevlint.guard")
    assert "ImportError: torch 2.3.1+cu118 is too old: the runtime companion needs 2.4 or later" in done.stderr


def test_a_name_that_devlint_does_not_have_is_an_attribute_error() -> None:
    assert not hasattr(devlint, "gaurd")
    assert {"guard", "watch", "__version__"} <= set(dir(devlint))


def test_what_the_simulator_does_not_do_is_in_the_report() -> None:
    with simulate(1), devlint.guard() as report, pytest.warns(UserWarning):
        torch.compile(lambda tensor: tensor + 1)(torch.ones(2, device="cuda"))
    assert report.stepped_aside["torch.compile"] == "compiles nothing here: the code runs eagerly"


@simulated
def test_a_plain_list_of_modules_is_named_by_the_error_and_not_the_input_it_meets() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.others = nn.Linear(3, 3), [nn.Linear(3, 3)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.others[0](self.first(x))  # type: ignore[no-any-return]

    model = Stack().to(GPU)
    with pytest.raises(DevicePlacementError, match=r"rule: unregistered-module") as caught, devlint.guard():
        model(on_gpu(1, 3))
    assert "`model.others[0].bias` is on cpu" in str(caught.value)
    with pytest.raises(RuntimeError), devlint.guard(on="collect") as report:
        model(on_gpu(1, 3))
    assert any("`self.others` of `Stack` holds 1 module that is not registered" in line.first.message
               for line in report.findings)  # fmt: skip


@simulated
@pytest.mark.parametrize("packed", [False, True])
def test_hidden_states_are_named_as_the_recurrent_function_names_them(packed: bool) -> None:
    x, other = on_gpu(2, 1, 3), torch.zeros(1, 1, 4)
    weights = list(nn.LSTM(3, 4).to(GPU).parameters())
    flags = (True, 1, 0.0, False, False)
    with pytest.raises(DevicePlacementError, match=r"`hx\[0\]` \(`other`\)") as caught, devlint.guard():
        if packed:
            torch.lstm(x.flatten(0, 1), torch.tensor([1, 1]), (other, on_gpu(1, 1, 4)), weights, *flags)
        else:
            torch.lstm(x, (other, on_gpu(1, 1, 4)), weights, *flags, False)
    assert "`params[0]` (`weights[0]`)" in str(caught.value)


@simulated
def test_a_tensor_without_a_name_is_called_that_of_its_call() -> None:
    with pytest.raises(HostConversionError, match=r"^the tensor of `Tensor.numpy` is on cuda:0"), devlint.guard():
        (on_gpu(2) * 2).numpy()
