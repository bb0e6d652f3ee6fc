"""Saving, loading, copying and state dictionaries keep the imaginary places."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from devlint.runtime.simulator import Simulator, simulate
from imaginary import CPU, ONE, machine
from proofs import without_devices

__all__ = ["machine"]  # the fixture


def _saved(value: Any, **arguments: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **arguments)
    file.seek(0)
    return file


@pytest.mark.parametrize("zipped", [True, False])
def test_what_is_saved_from_a_device_comes_back_to_it(zipped: bool, machine: Simulator) -> None:
    net = nn.Linear(2, 2).to(ONE)
    file = _saved({"net": net.state_dict(), "host": torch.ones(1)}, _use_new_zipfile_serialization=zipped)
    loaded = torch.load(file, weights_only=True)
    assert loaded["net"]["weight"].device == ONE
    assert loaded["host"].device == CPU
    assert torch.equal(loaded["net"]["weight"], net.weight)


MAPS: dict[str, tuple[Any, str]] = {
    "cpu": ("cpu", "cpu"),
    "device": (torch.device("cpu"), "cpu"),
    "other device": ("cuda:0", "cuda:0"),
    "current device": ("cuda", "cuda:0"),
    "function to the host": (lambda storage, location: storage, "cpu"),
    "function to a device": (lambda storage, location: storage.cuda(0), "cuda:0"),
    "function that declines": (lambda storage, location: None, "cuda:1"),
    "dict": ({"cuda:1": "cuda:0"}, "cuda:0"),
    "dict to the host": ({"cuda:1": "cpu"}, "cpu"),
    "dict of others": ({"cuda:0": "cpu"}, "cuda:1"),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("where", "expected"), MAPS.values(), ids=MAPS)
def test_every_map_location_is_obeyed(where: Any, expected: str, zipped: bool, machine: Simulator) -> None:
    file = _saved(torch.arange(3.0, device=ONE), _use_new_zipfile_serialization=zipped)
    loaded = torch.load(file, map_location=where)
    assert str(loaded.device) == expected


def test_a_file_can_be_loaded_without_its_values(machine: Simulator) -> None:
    assert torch.load(_saved(torch.arange(3.0, device=ONE)), map_location="meta").is_meta


def test_a_file_from_two_devices_is_refused_on_a_machine_with_one() -> None:
    with simulate(2):
        file = _saved(torch.ones(2, device=ONE))
    with simulate(1):
        with pytest.raises(RuntimeError, match=r"on CUDA device 1 but torch.cuda.device_count\(\) is 1"):
            torch.load(file)
        file.seek(0)
        assert torch.load(file, map_location="cuda:0").device == torch.device("cuda", 0)
    file.seek(0)
    with without_devices():
        with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
            torch.load(file)
        file.seek(0)
        assert torch.load(file, map_location="cpu").tolist() == [1.0, 1.0]


def test_files_of_the_host_stay_files_of_the_host() -> None:
    plain_file = _saved(torch.arange(3.0)).getvalue()
    with simulate(2):
        assert torch.load(io.BytesIO(plain_file)).device == CPU
        assert torch.load(io.BytesIO(plain_file), map_location="cuda:1").device == ONE
        assert _saved(torch.arange(3.0)).getvalue() == plain_file


def test_tensors_that_share_memory_share_it_after_loading_and_copying(machine: Simulator) -> None:
    whole = torch.zeros(4, device=ONE)
    for part, all_of_it in (
        torch.load(_saved([whole[1:], whole])),
        copy.deepcopy([whole[1:], whole]),
        pickle.loads(pickle.dumps([whole[1:], whole])),
    ):
        assert part.device == all_of_it.device == ONE
        part += 1
        if not isinstance(part.untyped_storage(), bytes) and part.data_ptr() - 4 == all_of_it.data_ptr():
            assert all_of_it.tolist() == [0.0, 1.0, 1.0, 1.0]
    assert whole.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "deepcopy", "pickle"]
)
def test_a_copy_is_where_its_original_is(duplicate: Callable[[Any], Any], machine: Simulator) -> None:
    tensor = torch.arange(3.0, device=ONE)
    assert duplicate(tensor).device == ONE
    assert torch.equal(duplicate(tensor), tensor)
    parameter = nn.Parameter(tensor)
    assert duplicate(parameter).device == ONE
    net = duplicate(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to(ONE))
    assert {tensor.device for tensor in net.state_dict().values()} == {ONE}
    assert duplicate(torch.ones(2)).device == CPU
    leaf = torch.ones(1, device=ONE, requires_grad=True)
    leaf.sum().backward()
    assert copy.deepcopy(leaf).grad.device == ONE


def _with_gradient() -> torch.Tensor:
    leaf = torch.ones(2, requires_grad=True)
    leaf.grad = torch.ones(2)
    return leaf


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(3.0),
        _with_gradient,
        lambda: torch.ones(2, dtype=torch.cfloat).conj(),
    ],
    ids=["plain", "with gradient", "conjugate"],
)
def test_host_tensors_deep_copied_after_device_tensors_stay_on_the_host(
    make: Callable[[], torch.Tensor], machine: Simulator
) -> None:
    original = make()
    on_device, copied, other = copy.deepcopy([torch.ones(2, device=ONE), original, torch.ones(2, device="cuda:0")])
    assert [on_device.device, copied.device, other.device] == [ONE, CPU, torch.device("cuda", 0)]
    assert original.device == CPU
    assert copied.grad is None or copied.grad.device == CPU


def test_deep_copies_of_host_tensors_that_device_tensors_and_modules_carry_stay_on_the_host(machine: Simulator) -> None:
    carrier: Any = torch.ones(2, device=ONE)
    carrier.scale = torch.ones(2)
    twin = copy.deepcopy(carrier)
    assert [twin.device, twin.scale.device, carrier.scale.device] == [ONE, CPU, CPU]
    net: Any = nn.BatchNorm1d(2).to(ONE)
    net.history = [torch.ones(2)]
    twin = copy.deepcopy(net)
    assert [twin.weight.device, twin.history[0].device, net.history[0].device] == [ONE, CPU, CPU]
    assert {tensor.device for tensor in twin.state_dict().values()} == {ONE}


def test_state_dicts_are_copied_into_modules_or_assigned(machine: Simulator) -> None:
    source, target = nn.Linear(2, 2), nn.Linear(2, 2).to(ONE)
    target.load_state_dict(source.state_dict())
    assert target.weight.device == ONE
    assert torch.equal(target.weight.cpu(), source.weight)
    target.load_state_dict(source.state_dict(), assign=True)
    assert target.weight.device == CPU
    state = OrderedDict((name, value.to(ONE)) for name, value in source.state_dict().items())
    source.load_state_dict(state)
    assert source.weight.device == CPU
    source.load_state_dict(state, assign=True)
    assert source.weight.device == ONE


def test_an_optimizer_loads_its_state_to_its_parameters(machine: Simulator) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], 0.1)
    weight.grad = torch.ones(2)
    optimizer.step()
    state = optimizer.state_dict()
    moved = nn.Parameter(weight.detach().to(ONE))
    other = torch.optim.Adam([moved], 0.1)
    other.load_state_dict(state)
    assert other.state[moved]["exp_avg"].device == ONE
    assert other.state[moved]["step"].device == CPU
    moved.grad = torch.ones(2, device=ONE)
    other.step()


def test_storages_know_their_device(machine: Simulator) -> None:
    storage = torch.arange(3.0, device=ONE).untyped_storage()
    assert storage.device == ONE
    assert storage.is_cuda
    assert storage.get_device() == 1
    assert storage.cpu().device == CPU
    assert storage.clone().device == ONE
    assert storage.cuda(0).device == torch.device("cuda", 0)
    assert storage.cuda(1) is storage
    assert torch.ones(2).untyped_storage().device == CPU
    assert not torch.ones(2).untyped_storage().is_cuda
    with pytest.warns(UserWarning, match="TypedStorage"):
        assert torch.ones(2, device=ONE).storage().device == ONE
    assert torch.ones(2, device=ONE).is_shared()
    shared = torch.ones(2, device=ONE)
    assert shared.share_memory_() is shared
    assert torch.ones(2).share_memory_().is_shared()
