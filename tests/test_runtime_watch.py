"""What is out of place in modules, optimizers and loaders; history and memory that grow; the hooks that look.

On imaginary devices, so that every machine runs all of it.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.modules.module as torch_module
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from devlint.runtime import hooks, memory_growth
from devlint.runtime.audit import audit
from devlint.runtime.errors import DevicePlacementError
from devlint.runtime.events import Event
from devlint.runtime.guard import guard
from devlint.runtime.history import KEPT_STEPS, History
from devlint.runtime.memory_growth import GROWING_STEPS, WARMUP_STEPS, Growth
from devlint.runtime.simulator import simulate
from devlint.runtime.watch import DevicePlacementWarning, watch


@pytest.fixture(autouse=True)
def two_devices() -> Iterator[None]:
    with simulate(2):
        yield


def found(model: nn.Module, **more: Any) -> list[tuple[str | None, str]]:
    """(rule, what it is about) of everything that `audit` finds."""
    return sorted((line.first.rule or "", line.first.operation) for line in audit(model, **more).lines.values())


# Models as people write them ----------------------------------------------------------------------------------------


class Normalize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.tensor([0.5, 0.5])
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x - self.mean)


class NormalizeWhereUsed(Normalize):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x - self.mean.to(x.device))


class NormalizeMovesItself(Normalize):
    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.mean = fn(self.mean)
        return self


class HostIndices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.order = torch.tensor([1, 0])
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)[:, self.order]


class HostSizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sizes = torch.tensor([1, 1])
        self.scale = torch.tensor(2.0)
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.split(self.linear(x) * self.scale, self.sizes.tolist(), dim=1)


class Masks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.masks = [torch.ones(2), torch.zeros(2)]
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for mask in self.masks:
            x = x * mask
        return self.linear(x)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.layers = [nn.Linear(2, 2) for _ in range(2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.weights = {"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(2))}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) * self.weights["a"] + self.weights["b"]


class TwoDevices(nn.Module):
    """Split over devices by hand, as it should be done."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(2, 2).to("cuda:0")
        self.two = nn.Linear(2, 2).to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x.to("cuda:0")).to("cuda:1"))


class TwoDevicesThroughAHelper(TwoDevices):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._then(self.one(x))

    def _then(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(bring(x, "cuda:1"))


def bring(x: torch.Tensor, device: str) -> torch.Tensor:
    return x.to(device)


class TwoDevicesAndNoMove(TwoDevices):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x.to(torch.float32)))


class WithTeacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(2, 2)
        self.teacher = [nn.Linear(2, 2).to("cuda")]  # not to be trained or saved

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.student(x) - self.teacher[0](x)


class Aliases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
        self.both = [self.one, self.two]
        self.weights = {"one": self.one.weight, "two": self.two.weight}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.both[0](x) + self.both[1](x)


class KeepsActivations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.last: Any = None
        self.losses: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.linear(x)
        self.losses.append(self.last.detach().sum(0).cpu())
        return self.last


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.register_buffer("window", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.window


class Parameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(3)])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(2))})
        self.heads = nn.ModuleDict({"x": nn.Linear(2, 2), "y": nn.Linear(2, 2)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads["x"](x * self.scales[0] * self.named["a"])


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    return model


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())


def transformer() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2)


def normed() -> nn.Module:
    of = nn.utils.parametrizations
    return nn.Sequential(
        of.weight_norm(nn.Linear(2, 2)), of.spectral_norm(nn.Linear(2, 2)), nn.utils.spectral_norm(nn.Linear(2, 2))
    )


def averaged() -> nn.Module:
    return torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))


def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 2)), {nn.Linear})


LEGAL = [
    NormalizeWhereUsed, NormalizeMovesItself, HostIndices, HostSizes, Aliases, KeepsActivations, Complex, Parameters,
    tied, lazy, transformer, normed, averaged, lambda: nn.LSTM(2, 2, 2), lambda: nn.BatchNorm1d(2), lambda: nn.ReLU(),
]  # fmt: skip
FAULTY = [
    (Normalize, "unregistered-tensor", ["mean"]),
    (Masks, "unregistered-tensor", ["masks[0]", "masks[1]"]),
    (Layers, "unregistered-module", ["layers"]),
    (Weights, "unregistered-module", ["weights"]),
]


@pytest.mark.parametrize("make", LEGAL)
@pytest.mark.filterwarnings("ignore")
def test_a_legal_model_is_silent_before_and_after_the_move(make: Any) -> None:
    model = make()
    assert found(model) == []
    model.to("cuda:1")
    assert found(model) == []
    assert found(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0) if [*model.parameters()] else None) == []


@pytest.mark.filterwarnings("ignore")
def test_a_quantised_model_has_no_parameters_and_is_left_alone() -> None:
    assert found(quantised()) == []


@pytest.mark.parametrize(("make", "rule", "about"), FAULTY)
@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: nn.Sequential(nn.Linear(2, 2), model)])
def test_what_a_move_leaves_behind_is_named(make: Any, rule: str, about: list[str], wrap: Any) -> None:
    model = wrap(make()).to("cuda")
    prefix = "1." if isinstance(model, nn.Sequential) else ""
    assert found(model) == [(rule, prefix + name) for name in about]


@pytest.mark.parametrize("make", [Normalize, Masks])
def test_nothing_is_left_behind_before_the_move(make: Any) -> None:
    assert found(make()) == []


def test_an_event_says_what_where_and_at_which_line() -> None:
    event = audit(Normalize().to("cuda")).findings[0].first
    assert event.message == "`self.mean` of `Normalize` is a plain tensor, left on cpu: the parameters are on cuda:0"
    assert event.site is not None and event.site.code == "self.mean = torch.tensor([0.5, 0.5])"
    assert event.kind == "module"


def test_an_event_notes_where_the_tensor_was_made_if_that_was_seen() -> None:
    with guard():
        event = audit(Normalize().to("cuda")).findings[0].first
    assert [text for _, text in event.notes] == ["the tensor was made"]  # reports add " here", or the other line


def test_a_tensor_that_is_assigned_in_two_places_is_shown_where_it_is_looked_at() -> None:
    class Twice(Normalize):
        def reset(self) -> None:
            self.mean = torch.zeros(2)

    event = audit(Twice().to("cuda")).findings[0].first
    assert event.site is not None and "audit(Twice()" in event.site.code


def test_a_class_whose_source_cannot_be_read_is_left_alone() -> None:
    space: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(
        "class Typed(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.mean = torch.ones(2)\n"
        "        self.linear = nn.Linear(2, 2)\n"
        "    def forward(self, x):\n"
        "        return self.linear(x - self.mean)\n",
        space,
    )
    assert found(space["Typed"]().to("cuda")) == []


def test_a_teacher_kept_out_of_the_parameters_is_meant_until_it_is_left_behind() -> None:
    assert found(WithTeacher().to("cuda")) == []
    assert found(WithTeacher().to("cuda:1")) == [("unregistered-module", "teacher")]


def test_modules_in_a_list_that_the_optimizer_was_given_by_hand_learn() -> None:
    model = Layers()
    assert found(model) == [("unregistered-module", "layers")]
    everything = [*model.parameters(), *(p for layer in model.layers for p in layer.parameters())]
    assert found(model, optimizer=torch.optim.SGD(everything, lr=1.0)) == []


def test_a_parameter_moved_into_a_plain_attribute_is_no_leaf() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.scale = nn.Parameter(torch.ones(2)).to("cuda")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.scale

    assert found(Scaled().to("cuda")) == [("non-leaf-parameter", "scale")]


# Several devices ----------------------------------------------------------------------------------------------------


def test_a_head_replaced_after_the_move_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).to("cuda")
    model[2] = nn.Linear(2, 5)
    assert found(model) == [("mixed-devices", "2")]
    report = audit(model)
    assert report.findings[0].first.message == "`2` (Linear) is on cpu, while most of `Sequential` is on cuda:0"


def test_a_buffer_replaced_after_the_move_is_an_error_in_a_module_of_torch() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2)).to("cuda")
    model[0].running_mean = torch.zeros(2)
    report = audit(model)
    assert [(line.first.operation, line.first.error) for line in report.findings] == [("0.running_mean", True)]
    assert not report.ok


def test_zero_dimensional_buffers_may_stay_on_the_host() -> None:
    model = nn.BatchNorm1d(2).to("cuda")
    model.num_batches_tracked = torch.tensor(0)
    assert found(model) == []


@pytest.mark.parametrize("model", [TwoDevices, TwoDevicesThroughAHelper])
def test_a_model_split_over_devices_by_hand_is_legal(model: Any) -> None:
    assert found(model()) == []


def test_a_model_on_two_devices_whose_code_moves_nothing_is_named() -> None:
    assert [rule for rule, _ in found(TwoDevicesAndNoMove())] == ["mixed-devices"]


def test_modules_in_a_container_that_is_never_called_may_be_anywhere() -> None:
    pair = nn.ModuleDict({"generator": nn.Linear(2, 2).to("cuda:0"), "critic": nn.Linear(2, 2).to("cuda:1")})
    assert found(pair) == []


def test_somebodys_hooks_may_bring_the_inputs() -> None:
    model = nn.Sequential(nn.Linear(2, 2).to("cuda:0"), nn.Linear(2, 2).to("cuda:1"))
    assert len(found(model)) == 1
    model[1].register_forward_pre_hook(lambda module, args: tuple(x.to("cuda:1") for x in args))
    assert found(model) == []


@pytest.mark.parametrize("attribute", ["_hf_hook", "_diffusers_hook"])
def test_what_another_tool_places_is_its_own(attribute: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2).to("cuda:0"), nn.Linear(2, 2))
    setattr(model[1], attribute, object())
    report = audit(model)
    assert not report.lines
    assert "places its parameters" in report.stepped_aside["Sequential"]


def test_a_device_map_over_one_device_places_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2).to("cuda:0"), nn.Linear(2, 2))
    model.hf_device_map = {"": 0}
    assert found(model) == [("mixed-devices", "1")]
    model.hf_device_map = {"0": 0, "1": "cpu"}
    assert found(model) == []


def test_a_device_that_is_asked_for_is_compared_with() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert found(model, device="cpu") == []
    assert found(model, device="cuda") == [("mixed-devices", "Sequential")]
    model.to("cuda:1")
    assert found(model, device="cuda") == []
    assert found(model, device="cuda:1") == found(model, device=1) == []
    assert found(model, device="cuda:0") == [("mixed-devices", "Sequential")]


def test_a_model_with_some_weights_still_on_meta_is_named() -> None:
    with torch.device("meta"):
        head = nn.Linear(2, 2)
    assert found(nn.Sequential(nn.Linear(2, 2), head)) == [("mixed-devices", "1")]


# Arguments ----------------------------------------------------------------------------------------------------------


def test_a_model_without_parameters_is_said_to_have_none() -> None:
    report = audit(nn.Sequential(nn.ReLU()))
    assert report.ok
    assert "no parameters and no buffers" in report.stepped_aside["Sequential"]
    assert "no parameters and no buffers" in str(report)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([nn.Linear(2, 2)],), "`audit` needs a torch.nn.Module, not a list"),
        ((nn.Linear(2, 2), "adam"), "an optimizer of torch is needed"),
        ((nn.Linear(2, 2), None, [1, 2]), "`loader` must be a torch.utils.data.DataLoader, not a list"),
    ],
)
def test_audit_says_what_it_needs(arguments: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        audit(*arguments)


def test_the_text_of_an_audit_names_line_message_and_advice() -> None:
    text = str(audit(Normalize().to("cuda")))
    assert "`self.mean` of `Normalize` is a plain tensor" in text
    assert "register_buffer" in text
    assert text.endswith("1 finding")
    assert str(audit(nn.Linear(2, 2))) == "nothing is out of place"


def test_an_audit_changes_nothing() -> None:
    model, data = Layers().to("cuda"), TensorDataset(torch.ones(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(data, shuffle=True)
    before = (torch.get_rng_state(), random.getstate(), dict(vars(model)), dict(optimizer.state))
    audit(model, optimizer, loader)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), dict(vars(model)), dict(optimizer.state))


# Optimizers ---------------------------------------------------------------------------------------------------------


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    place = next(model.parameters()).device
    model(torch.ones(3, 2, device=place)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    "name", ["Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "Adadelta", "NAdam", "RAdam", "ASGD", "Rprop", "Adamax"]
)
def test_optimizers_keep_their_counters_on_the_host(name: str) -> None:
    model = nn.Linear(2, 2).to("cuda")
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    trained(model, optimizer)
    assert found(model, optimizer=optimizer) == []


def test_state_made_before_the_move_is_an_error() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adagrad(model.parameters())
    model.to("cuda")
    report = audit(model, optimizer)
    (line,) = report.findings
    assert (line.first.rule, line.first.operation, line.first.error) == (
        "optimizer-before-move", "Adagrad.state.sum", True
    )  # fmt: skip
    assert "`weight` and 1 more" in line.first.message


def test_an_optimizer_without_state_may_be_built_before_the_move() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model.to("cuda")
    assert found(model, optimizer=optimizer) == []
    trained(model, optimizer)
    assert found(model, optimizer=optimizer) == []


def test_counters_of_a_capturable_optimizer_belong_on_the_device() -> None:
    model = nn.Linear(2, 2).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    trained(model, optimizer)
    optimizer.param_groups[0]["capturable"] = True
    assert found(model, optimizer=optimizer) == [("optimizer-before-move", "Adam.state.step")]


def test_an_optimizer_that_keeps_its_state_elsewhere_on_purpose_is_left_alone() -> None:
    class Offloading(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["momentum"] = torch.zeros(2, 2)

    model = nn.Linear(2, 2).to("cuda")
    optimizer = Offloading(model.parameters())
    trained(model, optimizer)
    assert found(model, optimizer=optimizer) == []


def test_a_scheduler_does_not_hide_whose_optimizer_it_is() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adagrad(model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model.to("cuda")
    assert len(found(model, optimizer=optimizer)) == 1


def test_parameters_replaced_after_the_optimizer_was_made_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model[1] = nn.Linear(2, 2)
    assert found(model, optimizer=optimizer) == [("optimizer-before-move", "SGD")]
    assert "2 of the 4 parameters" in audit(model, optimizer).findings[0].first.message


def test_moves_that_replace_parameters_are_named() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.to("cuda")
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert found(model, optimizer=optimizer) == [("optimizer-before-move", "SGD")]


def test_several_optimizers_and_several_models_are_legal() -> None:
    model, loss = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), nn.Linear(5, 7)
    one = torch.optim.SGD([*model[0].parameters(), *loss.parameters()], lr=1.0)
    two = torch.optim.SGD(model[1].parameters(), lr=1.0)
    assert found(model, optimizer=one) == []
    assert found(model, optimizer=[one, two]) == []


def test_an_optimizer_over_a_tensor_that_is_no_leaf_is_named() -> None:
    weight = torch.ones(2, requires_grad=True)
    moved = weight.to("cuda")
    moved.retain_grad()  # torch takes it then
    optimizer = torch.optim.SGD([moved], lr=1.0)
    assert found(nn.Linear(2, 2), optimizer=optimizer) == [("non-leaf-parameter", "SGD.parameter 0 of group 0")]


def test_a_wrapper_that_hands_everything_on_is_looked_through() -> None:
    class Accelerated(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        def step(self, closure: Any = None) -> None:
            self.optimizer.step(closure)

    model = nn.Linear(2, 2)
    optimizer = Accelerated(torch.optim.Adagrad(model.parameters()))
    model.to("cuda")
    assert len(found(model, optimizer=optimizer)) == 1


# Loaders ------------------------------------------------------------------------------------------------------------


class Squares(Dataset[Any]):
    def __init__(self) -> None:
        self.data = torch.arange(4.0)
        self.asked = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        return self.data[index] ** 2


class SquaresOnDevice(Squares):
    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index).to("cuda")


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.ones(1)])


def loaded(dataset: Any, home: str = "cuda", **settings: Any) -> list[tuple[str | None, str]]:
    return found(nn.Linear(1, 1).to(home), loader=DataLoader(dataset, **settings))


UNPINNED = [("loader-without-pin-memory", "DataLoader.pin_memory")]
IN_WORKER = [("cuda-in-worker", "DataLoader.num_workers")]


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(torch.ones(4, 1)), Subset(TensorDataset(torch.ones(4, 1)), [0]), Squares(), Stream(),
        ConcatDataset([Squares(), Squares()]), [torch.ones(1)],
    ],
)  # fmt: skip
def test_a_loader_whose_workers_do_not_pin_is_named(dataset: Any) -> None:
    assert loaded(dataset, num_workers=1) == UNPINNED
    assert loaded(dataset, num_workers=1, pin_memory=True) == []
    assert loaded(dataset, num_workers=1, home="cpu") == []
    assert loaded(dataset) == []


def test_no_sample_is_read() -> None:
    dataset = Squares()
    loaded(dataset, batch_size=2)
    assert dataset.asked == 0


def test_data_that_is_on_the_device_already_needs_no_pinning() -> None:
    spawned = {"num_workers": 1, "multiprocessing_context": "spawn"}
    assert loaded(SquaresOnDevice(), **spawned) == []
    assert loaded(TensorDataset(torch.ones(4, 1, device="cuda")), **spawned) == []
    assert loaded(Squares(), collate_fn=lambda items: torch.stack(items).to("cuda"), **spawned) == []


def test_device_data_in_forked_workers_is_an_error() -> None:
    dataset = TensorDataset(torch.ones(4, 1, device="cuda"))
    assert loaded(dataset, num_workers=2, multiprocessing_context="fork") == IN_WORKER
    assert loaded(Subset(dataset, [0]), num_workers=2, multiprocessing_context="fork") == IN_WORKER
    assert loaded(dataset, num_workers=2, multiprocessing_context="spawn") == []
    assert loaded(dataset) == []


# History ------------------------------------------------------------------------------------------------------------


class Run:
    """A training loop that tells a `History` of its results."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.history = History(self.events.append)
        self.model = nn.Linear(2, 2)
        self.number = 0

    def made(self, tensor: torch.Tensor, output: bool = False) -> torch.Tensor:
        caller = sys._getframe(1)
        self.history.made(tensor, (caller.f_code, caller.f_lineno), output)
        return tensor

    def step(self) -> None:
        self.number += 1
        self.history.step(self.number)

    @property
    def lines(self) -> list[str]:
        assert all(event.rule == "retained-graph" and event.kind == "kept" for event in self.events)
        return [event.site.code.partition("  #")[0] for event in self.events if event.site]

    def loss(self) -> torch.Tensor:
        return self.model(torch.ones(1, 2)).square().mean()


@pytest.mark.parametrize("backward", [True, False])
def test_losses_in_a_list_are_kept_history(backward: bool) -> None:
    run, losses = Run(), []
    for _ in range(KEPT_STEPS + 3):
        loss = run.made(run.loss())
        if backward:
            loss.backward()
        losses.append(loss)
        run.step()
    assert run.lines == ["loss = run.made(run.loss())"]


@pytest.mark.parametrize("start", [0.0, torch.zeros(())])
def test_a_running_sum_is_kept_history_at_the_line_of_the_sum(start: Any) -> None:
    run, total = Run(), start
    for _ in range(KEPT_STEPS + 3):
        loss = run.made(run.loss())
        total = run.made(total + loss)
        run.step()
    assert run.lines == ["total = run.made(total + loss)"]


def test_outputs_of_a_model_in_a_list_are_kept_history() -> None:
    run, outputs = Run(), []
    for _ in range(KEPT_STEPS + 3):
        outputs.append(run.made(run.model(torch.ones(3, 2)), output=True))
        run.step()
    assert len(run.lines) == 1


def detached(run: Run, kept: list[Any]) -> None:
    kept.append(run.made(run.loss()).detach())


def read(run: Run, kept: list[Any]) -> None:
    kept.append(run.made(run.loss()).item())


def last_one(run: Run, kept: list[Any]) -> None:
    kept[:] = [run.made(run.loss())]


def last_two(run: Run, kept: list[Any]) -> None:
    kept[:] = [*kept[-1:], run.made(run.loss())]


def without_history(run: Run, kept: list[Any]) -> None:
    with torch.no_grad():
        kept.append(run.made(run.loss()))


def moving_average(run: Run, kept: list[Any]) -> None:
    with torch.no_grad():
        kept[:] = [run.made(0.9 * kept[0] + 0.1 * run.loss()) if kept else run.loss().detach()]


def made_once(run: Run, kept: list[Any]) -> None:
    if not kept:
        kept.append(run.made(run.model.weight.norm()))
    run.made(run.loss() + kept[0]).backward(retain_graph=True)


def truncated(run: Run, kept: list[Any]) -> None:
    state = kept[0].detach() if kept else torch.zeros(2, 2)
    state = run.made(run.model(state), output=True)
    run.made(state.sum()).backward()
    kept[:] = [state]


@pytest.mark.parametrize(
    "step", [detached, read, last_one, last_two, without_history, moving_average, made_once, truncated]
)
def test_history_that_ends_is_silent(step: Any) -> None:
    run, kept = Run(), []
    for _ in range(4 * KEPT_STEPS):
        step(run, kept)
        run.step()
    assert run.lines == []


def test_a_state_that_is_never_detached_is_kept_history() -> None:
    run, state = Run(), torch.zeros(2, 2)
    for _ in range(KEPT_STEPS + 3):
        state = run.made(run.model(state), output=True)
        run.step()
    assert len(run.lines) == 1


def test_many_losses_in_one_step_are_one_step() -> None:
    run = Run()
    for _ in range(3):
        total = sum(run.made(run.loss()) for _ in range(10))
        assert isinstance(total, torch.Tensor)
        total.backward()
        run.step()
    assert run.lines == []


def test_followed_history_is_let_go() -> None:
    run = Run()
    loss = run.made(run.loss())
    probe = Probe()
    loss.grad_fn.metadata["probe"] = probe  # type: ignore[union-attr]
    gone = weakref.ref(probe)
    del probe, loss
    assert gone() is None


class Probe:
    pass


def test_long_chains_are_not_followed_to_their_end() -> None:
    run = Run()
    total = run.model.weight.sum()
    for _ in range(40_000):  # torch overflows the stack where Python has looked at each node
        total = run.made(total + 1)
    total.backward()
    del total
    assert run.lines == []


def test_a_sum_that_is_told_of_blames_nothing_else_later() -> None:
    run, total = Run(), torch.zeros(())
    for _ in range(5 * KEPT_STEPS):
        loss = run.made(run.loss())
        total += loss
        run.made(total)
        run.step()
    assert run.lines == ["run.made(total)"]


# Memory -------------------------------------------------------------------------------------------------------------


def grown(bytes_after_each_step: list[int], monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    events: list[Event] = []
    growth = Growth(events.append)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for number, held in enumerate(bytes_after_each_step, 1):
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None, held=held: held if not device else 0)
        growth.step(number)
    return events


def test_memory_that_grows_in_every_step_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = WARMUP_STEPS + GROWING_STEPS
    (event,) = grown([100 + 10 * step for step in range(steps + 4)], monkeypatch)
    assert event.message == f"memory on cuda:0 grew in each of {GROWING_STEPS} steps, by 10 bytes a step"
    assert (event.kind, event.step, event.bytes) == ("grew", steps, 10 * GROWING_STEPS)


@pytest.mark.parametrize(
    "held",
    [
        [1, 2, 3, *[3] * 30],
        [5, *[1, 2, 3, 4] * 8],
        [0] * 30,
        list(range(WARMUP_STEPS + GROWING_STEPS - 1)),
    ],
)
def test_memory_that_settles_or_swings_is_silent(held: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert grown(held, monkeypatch) == []


def test_growth_is_seen_on_imaginary_devices() -> None:
    events: list[Event] = []
    growth, kept = Growth(events.append), []
    torch.ones(1, device="cuda:1")
    for number in range(WARMUP_STEPS + GROWING_STEPS + 1):
        kept.append(torch.ones(256, device="cuda:1"))
        growth.step(number + 1)
    assert [event.target for event in events] == ["cuda:1"]


def test_no_accelerator_is_asked_where_none_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: pytest.fail("asked"))
    growth = memory_growth.Growth(lambda event: None)
    for number in range(10):
        growth.step(number)


# Watch --------------------------------------------------------------------------------------------------------------


def test_watch_raises_before_the_model_runs() -> None:
    model = Normalize().to("cuda")
    with watch(model, on="raise"), pytest.raises(DevicePlacementError, match=r"self.mean(.|\n)*register_buffer"):
        model(torch.ones(3, 2, device="cuda"))


def test_watch_warns_once_at_the_users_line_and_lets_torch_speak() -> None:
    model = nn.Linear(2, 2).to("cuda")
    with watch(model), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with pytest.raises(RuntimeError, match="same device"):
                model(torch.ones(3, 2))
    (warning,) = caught
    assert warning.category is DevicePlacementWarning
    assert "input `input` of `Linear`, float32 (3, 2), is on cpu: the parameters are on cuda:0" in str(warning.message)
    assert warning.filename == __file__


def test_watch_collects_in_its_report() -> None:
    model = Normalize().to("cuda")
    handle = watch(model, on="collect")
    with pytest.raises(RuntimeError):
        model(torch.ones(3, 2))
    assert sorted(line.first.rule or "" for line in handle.report.findings) == [
        "input-not-moved", "unregistered-tensor"
    ]  # fmt: skip
    handle.remove()
    handle.remove()
    assert not model._forward_pre_hooks


def test_watch_is_silent_and_changes_nothing_where_all_is_well() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(), nn.Linear(8, 1)).to("cuda")
    twin = copy.deepcopy(model)
    handle = watch(model, on="raise")
    for step in range(5):
        results = []
        for one in (model, twin):
            torch.manual_seed(step)
            results.append(one(torch.ones(4, 2, device="cuda")).sum())
        assert torch.equal(*results)
    assert not handle.report.lines


@pytest.mark.parametrize(
    ("make", "call"),
    [
        (TwoDevices, lambda model: model(torch.ones(3, 2))),
        (lambda: nn.Linear(2, 2).to("cuda"), lambda model: model(torch.ones(3, 2, device="cuda"))),
        (lambda: HostSizes().to("cuda"), lambda model: model(torch.ones(3, 2, device="cuda"))),
    ],
)
def test_watch_is_silent_about_legal_inputs(make: Any, call: Any) -> None:
    model = make()
    with watch(model, on="raise"):
        call(model)


def test_lengths_and_scalars_may_be_on_the_host() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(2, 2, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor, scale: torch.Tensor) -> Any:
            return self.lstm(nn.utils.rnn.pack_padded_sequence(x * scale, lengths, batch_first=True))

    model = Packed().to("cuda")
    with watch(model, on="raise"):
        model(torch.ones(2, 3, 2, device="cuda"), torch.tensor([3, 2]), scale=torch.tensor(2.0))


def test_an_input_is_named_as_forward_names_it() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, batch: dict[str, torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
            return self.linear(batch["x"]) * mask

    model = Named().to("cuda")
    handle = watch(model, on="collect")
    with pytest.raises(RuntimeError):
        model({"x": torch.ones(3, 2)}, mask=torch.ones(2, device="cuda"))
    (line,) = handle.report.findings
    assert "input `batch` of `Named`" in line.first.message


class MovesMasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * mask.to(x.device)


def test_where_a_model_moves_inputs_itself_the_modules_inside_tell_which_it_forgot() -> None:
    model = MovesMasks().to("cuda")
    handle = watch(model, on="collect")
    for _ in range(3):
        model(torch.ones(3, 2, device="cuda"), torch.ones(2))
    assert not handle.report.lines
    with pytest.raises(RuntimeError):
        model(torch.ones(3, 2), torch.ones(2))
    (line,) = handle.report.findings
    assert "input `input` of `linear` (Linear)" in line.first.message
    handle.remove()
    assert not model.linear._forward_pre_hooks


def test_modules_inside_are_watched_for_one_call_only() -> None:
    model = MovesMasks().to("cuda")
    with watch(model, on="collect"):
        model(torch.ones(3, 2, device="cuda"), torch.ones(2))
        assert b"devlint" not in pickle.dumps(copy.deepcopy(model).cpu())
        model(torch.ones(3, 2, device="cuda"), torch.ones(2, device="cuda"))
        assert not model.linear._forward_pre_hooks


def test_a_move_is_looked_at_again() -> None:
    model = Normalize()
    handle = watch(model, on="collect")
    for _ in range(3):
        model(torch.ones(3, 2))
    assert not handle.report.lines
    model.to("cuda")
    with pytest.raises(RuntimeError):
        model(torch.ones(3, 2, device="cuda"))
    assert [line.first.rule for line in handle.report.findings] == ["unregistered-tensor"]


def test_what_is_replaced_later_is_found_by_the_next_power_of_two() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    model = Unused().to("cuda")
    handle = watch(model, on="collect")
    for call in range(1, 9):
        if call == 6:
            model.head = nn.Linear(2, 2)
        model(torch.ones(1, 2, device="cuda"))
        assert bool(handle.report.lines) == (call == 8)


def test_a_watched_model_can_be_copied_pickled_and_saved() -> None:
    model = nn.Linear(2, 2).to("cuda")
    with watch(model, on="raise"):
        twin = copy.deepcopy(model)
        with pytest.raises(RuntimeError) as caught:
            twin(torch.ones(1, 2))
        assert not isinstance(caught.value, DevicePlacementError)  # the copy is not watched
        assert b"devlint" not in pickle.dumps(model.cpu())
        pickle.loads(pickle.dumps(model))(torch.ones(1, 2))
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        torch.load(file, weights_only=False)(torch.ones(1, 2))
        assert list(model.state_dict()) == ["weight", "bias"]


def test_a_watch_does_not_keep_its_model_alive() -> None:
    model = nn.Linear(2, 2)
    handle = watch(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    handle.remove()


def test_data_parallel_replicas_are_left_alone() -> None:
    model = nn.DataParallel(nn.Sequential(nn.Linear(2, 2)).to("cuda:0"), device_ids=[0, 1])
    with watch(model, on="raise"), watch(model.module, on="raise"), warnings.catch_warnings():
        warnings.simplefilter("error", DevicePlacementWarning)
        assert model(torch.ones(4, 2, device="cuda:0")).shape == (4, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("model",), TypeError, "`watch` needs a torch.nn.Module, not a str"),
        ((nn.Linear(2, 2), None, "ignore"), ValueError, "`on` is one of 'raise', 'warn' and 'collect', not 'ignore'"),
        ((nn.Linear(2, 2), "gpu"), RuntimeError, "gpu"),
    ],
)
def test_watch_says_what_it_needs(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        watch(*arguments)


def test_watching_a_model_without_parameters_needs_a_device() -> None:
    model = nn.ReLU()
    with watch(model, on="raise") as handle:
        model(torch.ones(2))
    assert "no parameters" in handle.report.stepped_aside["ReLU"]
    with watch(model, device="cuda", on="raise"), pytest.raises(DevicePlacementError, match="input"):
        model(torch.ones(2))


# Global hooks -------------------------------------------------------------------------------------------------------


def hooked() -> list[int]:
    return [len(hooks_) for hooks_ in (torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks)]


def test_no_global_hook_remains() -> None:
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    before = hooked(), len(_global_optimizer_pre_hooks)
    with pytest.raises(KeyError), hooks.observed(lambda event: None):
        assert (hooked(), len(_global_optimizer_pre_hooks)) != before
        raise KeyError
    assert (hooked(), len(_global_optimizer_pre_hooks)) == before


def test_hooks_name_the_inner_module_that_an_input_reaches() -> None:
    events: list[Event] = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2)).to("cuda")
    with hooks.observed(events.append), pytest.raises(RuntimeError):
        model(torch.ones(3, 2))
    assert [event.message for event in events] == [
        "input `input` of `1` (Linear), float32 (3, 2), is on cpu: the parameters are on cuda:0"
    ]


def _moving_hook(layer: nn.Module) -> None:
    layer.register_forward_pre_hook(lambda module, args: tuple(x.to("cuda") for x in args))


def _moving_hook_with_keywords(layer: nn.Module) -> None:
    def move(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return tuple(x.to("cuda") for x in args), kwargs

    layer.register_forward_pre_hook(move, with_kwargs=True)


def _moving_forward(layer: nn.Module) -> None:
    plain = layer.forward

    def forward(x: torch.Tensor) -> Any:
        return plain(x.to("cuda"))

    layer.forward = forward  # type: ignore[method-assign]


MOVING = [_moving_hook, _moving_hook_with_keywords, _moving_forward]


@pytest.mark.parametrize("make_it_move", MOVING)
def test_inputs_that_a_layers_own_hook_or_forward_moves_are_legal(make_it_move: Callable[[nn.Module], None]) -> None:
    alone, inside, bare = (nn.Linear(2, 2).to("cuda") for _ in range(3))
    make_it_move(alone)
    make_it_move(inside)
    model = nn.Sequential(nn.Flatten(), inside)
    with guard(on="raise"):
        assert alone(torch.ones(3, 2)).device == model(torch.ones(3, 2)).device == torch.device("cuda", 0)
        with pytest.raises(DevicePlacementError, match="input-not-moved"):
            bare(torch.ones(3, 2))
    with watch(model, on="raise"):
        model(torch.ones(3, 2))


def test_inputs_that_a_hook_of_all_modules_moves_are_legal() -> None:
    layer = nn.Linear(2, 2).to("cuda")
    with guard(on="raise"):
        handle = torch_module.register_module_forward_pre_hook(lambda module, args: tuple(x.to("cuda") for x in args))
        try:
            layer(torch.ones(3, 2))
        finally:
            handle.remove()


def test_inputs_that_a_hook_only_looks_at_are_named_by_the_operation() -> None:
    shapes: list[torch.Size] = []
    layer = nn.Linear(2, 2).to("cuda")
    layer.register_forward_pre_hook(lambda module, args: shapes.append(args[0].shape))
    with guard(on="raise"), pytest.raises(DevicePlacementError, match=r"functional.linear(.|\n)*input-not-moved"):
        layer(torch.ones(3, 2))
    assert shapes == [(3, 2)]


def test_hooks_say_each_thing_once_and_look_again_after_a_move() -> None:
    events: list[Event] = []
    model = Normalize()
    with hooks.observed(events.append):
        for _ in range(4):
            model(torch.ones(3, 2))
        assert events == []
        model.to("cuda")
        for _ in range(4):
            with pytest.raises(RuntimeError):
                model(torch.ones(3, 2, device="cuda"))
    assert [(event.rule, event.operation) for event in events] == [("unregistered-tensor", "mean")]


def test_hooks_look_at_optimizers_before_they_step() -> None:
    events: list[Event] = []
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adagrad(model.parameters())
    model.to("cuda")
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    with hooks.observed(events.append), pytest.raises(RuntimeError):
        optimizer.step()
    assert [event.operation for event in events] == ["Adagrad.state.sum"]


def test_what_emit_raises_stops_the_model() -> None:
    def refuse(event: Event) -> None:
        raise DevicePlacementError(event.message)

    model = Normalize().to("cuda")
    with hooks.observed(refuse), pytest.raises(DevicePlacementError):
        model(torch.ones(1, 2, device="cuda"))


def test_hooks_see_models_in_other_threads() -> None:
    events: list[Event] = []
    models = [nn.Sequential(nn.Linear(2, 2)).to("cuda") for _ in range(4)]
    for model in models[:2]:
        model.append(nn.Linear(2, 2))

    def work(model: nn.Module) -> None:
        try:
            for _ in range(20):
                model(torch.ones(1, 2, device="cuda"))
        except RuntimeError:
            pass

    with hooks.observed(events.append):
        threads = [threading.Thread(target=work, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {event.rule for event in events} == {"mixed-devices"}
    assert {event.operation for event in events} == {"1"}


def test_hooks_tell_history_of_what_outermost_modules_return() -> None:
    events: list[Event] = []
    history = History(events.append)
    model, outputs = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), []
    with hooks.observed(events.append, history):
        for number in range(KEPT_STEPS + 3):
            outputs.append(model(torch.ones(3, 2)))
            history.step(number)
    assert [(event.rule, event.site.code) for event in events if event.site] == [
        ("retained-graph", "outputs.append(model(torch.ones(3, 2)))")
    ]


def test_hooks_find_no_kept_history_in_a_training_loop() -> None:
    events: list[Event] = []
    history = History(events.append)
    model, losses = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), []
    with hooks.observed(events.append, history):
        for number in range(4 * KEPT_STEPS):
            output = model(torch.ones(3, 2))
            output.sum().backward()
            losses.append(output.detach())
            history.step(number)
    assert events == []


@pytest.mark.parametrize("case", ["replaced", "target network", "another's turn"])
def test_a_guard_sees_that_an_optimizer_updates_what_was_replaced(case: str) -> None:
    first, second, x = nn.Linear(2, 2).cuda(), nn.Linear(2, 2).cuda(), torch.ones(1, 2, device="cuda")
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    with guard() as report:
        for _ in range(2):
            if case == "replaced":
                second(x).sum().backward()
            elif case == "target network":
                (first(x) - second(x).detach()).sum().backward()
            else:
                (first(x).detach() - second(x)).sum().backward()
            optimizer.step()
    found = [line.first.message for line in report.findings]
    assert len(found) == (case == "replaced")
    assert all("2 of the 2 parameters that it updates are not those of `Linear`" in message for message in found)
