"""The simulator's machine: torch.cuda and its kin, autocast, random numbers, threads, processes, several devices."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader, Dataset

from devlint.runtime.simulator import Simulator, simulate
from devlint.runtime.simulator.machine import SimulatorWarning

CUDA = torch.device("cuda", 0)


@pytest.fixture
def two() -> Iterator[Simulator]:
    with simulate(2) as simulator:
        yield simulator


@pytest.fixture
def mps() -> Iterator[Simulator]:
    with simulate(1, kind="mps") as simulator:
        yield simulator


# Devices --------------------------------------------------------------------------------------------------------------


def test_the_machine_says_that_it_has_devices(two: Simulator) -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    assert torch.cuda.get_device_capability("cuda:1") == (8, 0)
    assert torch.cuda.get_device_name() == torch.cuda.get_device_properties(1).name == "devlint imaginary GPU"
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.can_device_access_peer(0, 1)
    assert torch.cuda.get_arch_list() == ["sm_80"]
    assert torch.version.cuda is not None
    assert torch.backends.cuda.is_built() and torch.backends.cudnn.is_available()
    assert isinstance(torch.backends.cudnn.version(), int)
    assert not torch.backends.mps.is_available()
    assert torch.get_device_module() is torch.cuda


def test_the_current_device_is_set_and_switched(two: Simulator) -> None:
    torch.cuda.set_device(1)
    assert torch.cuda.current_device() == 1
    assert torch.ones(1, device="cuda").device == torch.device("cuda", 1)
    with torch.cuda.device(0):
        assert torch.ones(1).cuda().device == CUDA
    with torch.cuda.device_of(torch.ones(1)):
        assert torch.cuda.current_device() == 1
    with torch.cuda.device_of(torch.ones(1, device="cuda:0")):
        assert torch.cuda.current_device() == 0
    assert torch.cuda.current_device() == 1


def test_a_device_that_is_not_there_is_refused_as_by_torch(two: Simulator) -> None:
    for use in (
        lambda: torch.cuda.set_device(5),
        lambda: torch.ones(1, device="cuda:5"),
        lambda: torch.ones(1).cuda(2),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            use()
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(5)
    with pytest.raises(RuntimeError, match="Invalid device argument 5"):
        torch.cuda.memory_allocated(5)
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.synchronize("cpu")


def test_devices_count_as_used_once_they_are(two: Simulator) -> None:
    assert torch.cuda.is_available() and not torch.cuda.is_initialized()
    torch.ones(1, device="cuda")
    assert torch.cuda.is_initialized()


USED_BY_PROGRAMS: dict[str, Callable[[], Any]] = {
    "init": torch.cuda.init,
    "synchronize": torch.cuda.synchronize,
    "synchronize(1)": lambda: torch.cuda.synchronize(1),
    "ipc_collect": torch.cuda.ipc_collect,
    "empty_cache": torch.cuda.empty_cache,
    "memory_summary": torch.cuda.memory_summary,
    "memory_summary(abbreviated)": lambda: torch.cuda.memory_summary("cuda:1", abbreviated=True),
    "memory_snapshot": torch.cuda.memory_snapshot,
    "memory._snapshot": torch.cuda.memory._snapshot,
    "list_gpu_processes": torch.cuda.list_gpu_processes,
    "set_per_process_memory_fraction": lambda: torch.cuda.set_per_process_memory_fraction(0.5),
    "get_rng_state_all": torch.cuda.get_rng_state_all,
    "get_gencode_flags": torch.cuda.get_gencode_flags,
    "is_tf32_supported": torch.cuda.is_tf32_supported,
    "get_allocator_backend": torch.cuda.get_allocator_backend,
    "is_current_stream_capturing": torch.cuda.is_current_stream_capturing,
    "profiler.start": torch.cuda.profiler.start,
    "nvtx.range_push": lambda: torch.cuda.nvtx.range_push("step"),
    "nvtx.range": lambda: torch.cuda.nvtx.range("step").__enter__(),
    "nvtx.mark": lambda: torch.cuda.nvtx.mark("step"),
    "cudart().cudaMemGetInfo": lambda: torch.cuda.cudart().cudaMemGetInfo(0),  # type: ignore[union-attr]
    "check_error": lambda: torch.cuda.check_error(0),
    "cudnn.is_acceptable": lambda: torch.backends.cudnn.is_acceptable(torch.ones(1, device="cuda")),
    "cudnn.flags": lambda: torch.backends.cudnn.flags(enabled=False).__enter__(),
    "accelerator.synchronize": torch.accelerator.synchronize,
    "accelerator.empty_cache": torch.accelerator.empty_cache,
    "accelerator.memory_stats": torch.accelerator.memory_stats,
    "accelerator.current_stream": torch.accelerator.current_stream,
    "accelerator.get_memory_info": torch.accelerator.get_memory_info,
}


@pytest.mark.parametrize("name", USED_BY_PROGRAMS)
def test_what_programs_ask_of_a_device_is_answered(two: Simulator, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.ones(1, device="cuda")
        USED_BY_PROGRAMS[name]()


NOT_SIMULATED: dict[str, Callable[[], Any]] = {
    "CUDAGraph": lambda: torch.cuda.CUDAGraph(),
    "graph": lambda: torch.cuda.graph(None),  # type: ignore[arg-type]
    "MemPool": lambda: torch.cuda.MemPool(),
    "utilization": torch.cuda.utilization,
    "current_blas_handle": torch.cuda.current_blas_handle,
    "caching_allocator_alloc": lambda: torch.cuda.caching_allocator_alloc(512),
    "nccl.version": lambda: torch.cuda.nccl.version(),
    "cudart().cudaHostRegister": lambda: torch.cuda.cudart().cudaHostRegister(0, 1, 0),  # type: ignore[union-attr]
    "export": lambda: torch.export.export(nn.Linear(1, 1).cuda(), (torch.ones(1, device="cuda"),)),
    "FakeTensorMode": lambda: FakeTensorMode().from_tensor(nn.Parameter(torch.ones(1, device="cuda"))),
}


@pytest.mark.parametrize("name", NOT_SIMULATED)
def test_what_needs_a_real_device_is_refused_by_name(two: Simulator, name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"is not simulated: devlint's simulator"):
        NOT_SIMULATED[name]()


def test_torch_accelerator_is_the_imaginary_device(two: Simulator) -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.device_count() == 2
    torch.accelerator.set_device_index(1)
    assert torch.accelerator.current_device_index() == torch.cuda.current_device() == 1
    with torch.accelerator.device_index(0):
        assert torch.cuda.current_device() == 0
    assert torch.accelerator.current_device_index() == 1


# Memory ---------------------------------------------------------------------------------------------------------------


def test_memory_is_counted_where_it_is_and_until_it_is_released(two: Simulator) -> None:
    kept = torch.zeros(1000, device="cuda:1")  # 4000 bytes, in blocks of 512
    assert (torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)) == (0, 4096)
    view, host = kept[10:], kept.cpu()
    assert torch.cuda.memory_allocated(1) == 4096
    more = torch.zeros(10, device="cuda:1")
    assert torch.cuda.memory_allocated(1) == 4096 + 512
    del kept, more
    assert torch.cuda.memory_allocated(1) == 4096
    del view
    assert torch.cuda.memory_allocated(1) == 0
    assert torch.cuda.max_memory_allocated(1) == 4096 + 512
    assert host.device.type == "cpu"


def test_peaks_sums_and_the_cache_are_reset(two: Simulator) -> None:
    small = torch.zeros(1, device="cuda")
    torch.zeros(2**20, device="cuda")
    assert torch.cuda.memory_reserved() == 6 * 2**20  # whole segments of 2 MiB
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.large_pool.allocated"] == stats["allocated_bytes.large_pool.freed"] == 4 * 2**20
    assert stats["allocation.small_pool.current"] == 1
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_reserved() == 2 * 2**20
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == 512
    free, total = torch.cuda.mem_get_info()
    assert total - free == 2 * 2**20
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
    assert small.is_cuda


# Streams and events ---------------------------------------------------------------------------------------------------


def test_streams_are_selected_and_put_back(two: Simulator) -> None:
    stream, other = torch.cuda.Stream(), torch.cuda.Stream(device=1)
    assert isinstance(stream, torch.Stream) and stream != torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        with torch.cuda.stream(other):
            assert torch.cuda.current_device() == 1 and torch.cuda.current_stream() == other
        assert torch.cuda.current_stream() == stream
        torch.ones(2, device="cuda").record_stream(stream)
    with other:
        assert torch.cuda.current_stream(1) == other
    assert torch.cuda.current_stream() == torch.cuda.default_stream() and torch.cuda.current_device() == 0
    stream.wait_stream(other)
    assert stream.query() and stream.record_event().query()
    assert torch.cuda.ExternalStream(4096).cuda_stream == 4096
    assert torch.Stream(device="cuda:1").device == torch.device("cuda", 1)


def test_events_tell_the_time_between_them(two: Simulator) -> None:
    start, end, without = torch.cuda.Event(enable_timing=True), torch.cuda.Event(True), torch.cuda.Event()
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    time.sleep(0.002)
    end.record(torch.cuda.Stream())
    end.synchronize()
    assert start.query() and start.elapsed_time(end) >= 2 and end.elapsed_time(start) <= -2
    without.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(without)
    assert torch.Event(device="cuda", enable_timing=True).device.type == "cuda"


def test_a_tensor_of_the_host_has_no_streams(two: Simulator) -> None:
    with pytest.raises(NotImplementedError, match="record_stream"):
        torch.ones(1).record_stream(torch.cuda.Stream())


# Random numbers -------------------------------------------------------------------------------------------------------


def _draws(device: str) -> list[Any]:
    torch.manual_seed(3)
    layer, x = nn.Linear(4, 4).to(device), torch.randn(8, 4, device=device)
    return [F.dropout(layer(x), 0.5).tolist(), torch.rand(2).tolist(), torch.randperm(5, device=device).tolist()]


def test_a_device_draws_what_the_host_would_draw() -> None:
    on_host = _draws("cpu")
    with simulate():
        assert _draws("cuda") == on_host


@pytest.mark.parametrize("seed", [torch.manual_seed, torch.cuda.manual_seed, torch.cuda.manual_seed_all])
def test_a_device_is_seeded(two: Simulator, seed: Callable[[int], Any]) -> None:
    seed(5)
    first = torch.rand(3, device="cuda")
    seed(5)
    assert torch.equal(first, torch.rand(3, device="cuda"))
    assert torch.cuda.initial_seed() == 5


@pytest.mark.parametrize(
    "restore",
    [
        torch.cuda.set_rng_state,
        lambda state: torch.set_rng_state(state),
        lambda state: torch.random.set_rng_state(state),
        lambda state: torch.Generator(device="cuda").set_state(state),
    ],
)
def test_a_state_that_was_loaded_onto_a_device_is_refused(two: Simulator, restore: Callable[[Any], Any]) -> None:
    state = torch.get_rng_state()
    with pytest.raises(TypeError, match=r"^RNG state must be a torch.ByteTensor$"):
        restore(state.cuda())
    restore(state)


def test_states_of_a_devices_generator_are_kept_and_restored(two: Simulator) -> None:
    states = torch.cuda.get_rng_state_all()
    first = torch.rand(3, device="cuda:1")
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(first, torch.rand(3, device="cuda:1"))
    with torch.random.fork_rng(devices=[0, 1]):
        inside = torch.rand(3, device="cuda")
    assert torch.equal(inside, torch.rand(3, device="cuda"))


def test_a_seed_given_before_the_simulation_does_not_come_back_when_a_device_is_first_used() -> None:
    torch.manual_seed(1)
    first = torch.rand(1)
    with simulate():
        torch.cuda.init()
        assert not torch.equal(first, torch.rand(1))


def test_a_generator_for_a_device_has_its_own_stream(two: Simulator) -> None:
    generator = torch.Generator(device="cuda").manual_seed(7)
    assert isinstance(generator, torch.Generator) and generator.device == CUDA
    here = torch.randn(3, device="cuda", generator=generator)
    assert here.tolist() == torch.randn(3, generator=torch.Generator().manual_seed(7)).tolist()
    weights = torch.ones(4, device="cuda")
    assert torch.multinomial(weights, 2, generator=generator).device == CUDA
    assert weights.normal_(generator=torch.cuda.default_generators[0]).device == CUDA
    assert isinstance(torch.default_generator, torch.Generator) and torch.Generator().device.type == "cpu"


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it)), lambda it: it.clone_state()]
)
def test_a_generator_for_a_device_is_copied_with_its_device(two: Simulator, again: Callable[[Any], Any]) -> None:
    generator = torch.Generator("cuda:1").manual_seed(7)
    twin = again(generator)
    assert twin.device == torch.device("cuda", 1)
    assert torch.rand(2, generator=twin, device="cuda:1").equal(torch.rand(2, generator=generator, device="cuda:1"))


def test_a_generator_of_another_kind_of_device_is_refused(two: Simulator) -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.randn(3, device="cuda", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.ones(3).normal_(generator=torch.Generator("cuda"))
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        list(DataLoader(Numbers(), shuffle=True, generator=torch.Generator("cuda")))


# Autocast -------------------------------------------------------------------------------------------------------------


def test_autocast_for_the_device_casts_and_ends(two: Simulator) -> None:
    x = torch.randn(3, 3, device="cuda")
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cuda") == torch.float16
        assert (x @ x).dtype == torch.float16
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype == torch.float32
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert nn.Linear(3, 3).cuda()(x).dtype == torch.bfloat16
        assert (x @ x).dtype == torch.float16
    assert (x @ x).dtype == torch.float32 and not torch.is_autocast_enabled()


def test_autocast_for_the_host_is_a_region_of_its_own(two: Simulator) -> None:
    x = torch.randn(3, 3)
    with torch.autocast("cpu"):
        with torch.autocast("cuda"):
            pass
        assert torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda")
        assert (x @ x).dtype == torch.bfloat16 == torch.get_autocast_dtype("cpu")
    assert (x @ x).dtype == torch.float32


def test_under_autocast_a_device_computes_some_functions_in_float32(two: Simulator) -> None:
    x = torch.randn(3, 3, device="cuda")
    with torch.autocast("cuda"):
        low = x @ x
        for result in (
            low.softmax(-1),
            F.layer_norm(low, (3,)),
            low.sum(),
            torch.exp(low),
            F.mse_loss(low, low),
            low**2,
        ):
            assert result.dtype == torch.float32
        assert (low * 300).pow(2).sum().isfinite()
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x.sigmoid(), x.sigmoid())


def test_custom_functions_cast_as_they_say(two: Simulator) -> None:
    seen: list[Any] = []

    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append((x.dtype, torch.is_autocast_enabled("cuda"), (x @ x).dtype))
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append((gradient.dtype, gradient.device))
            return gradient * 2

    x = torch.randn(3, 3, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        Double.apply(x @ x).sum().backward()
    assert seen == [(torch.float32, False, torch.float32), (torch.float32, CUDA)]


def _scaled_training(device: str, scaler: Any) -> list[float]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x, y, losses = torch.randn(16, 4), torch.randint(3, (16,)), []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def test_scaled_training_on_a_device_is_that_of_the_host() -> None:
    on_host = _scaled_training("cpu", torch.amp.GradScaler("cpu"))
    with simulate():
        assert _scaled_training("cuda", torch.amp.GradScaler("cuda")) == on_host
        assert _scaled_training("cuda", torch.amp.GradScaler()) == on_host
        with pytest.warns(FutureWarning):
            assert _scaled_training("cuda", torch.cuda.amp.GradScaler()) == on_host


def test_a_step_with_an_infinite_gradient_is_skipped(two: Simulator) -> None:
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    weight = torch.ones(2, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], 1.0)
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1.0, 1.0] and scaler.get_scale() == 512.0


# Threads, loaders and processes ---------------------------------------------------------------------------------------


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, device: str | None = None) -> None:
        self.device = device

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index), device=self.device) + torch.rand(2, device=self.device)


def test_new_threads_see_the_devices_and_begin_at_the_first(two: Simulator) -> None:
    torch.cuda.set_device(1)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append((torch.ones(2).cuda() * 2).device))
    thread.start()
    thread.join()
    assert seen == [CUDA]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda i: torch.ones(1, device=f"cuda:{i}").device.index, range(2))) == [0, 1]


def test_a_mix_is_refused_in_a_thread_as_well(two: Simulator) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="same device"):
        pool.submit(lambda: torch.ones(2) + torch.ones(2, device="cuda")).result()


def _batches(**options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return list(DataLoader(Numbers(), 2, shuffle=True, generator=torch.Generator().manual_seed(3), **options))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin", [False, True])
def test_loaders_give_the_same_batches_pinned_where_asked(workers: int, pin: bool) -> None:
    plain = _batches(num_workers=workers)
    with simulate():
        batches = _batches(num_workers=workers, pin_memory=pin)
        assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in plain]
        assert all(batch.device.type == "cpu" and batch.is_pinned() == pin for batch in batches)
        assert batches[0].to("cuda", non_blocking=True).device == CUDA


def test_workers_that_stay_give_pinned_batches_in_each_epoch(two: Simulator) -> None:
    seeds: Any = multiprocessing.get_context("fork").Queue()
    loader = DataLoader(
        Numbers(), 4, num_workers=1, pin_memory=True, persistent_workers=True,
        worker_init_fn=lambda index: seeds.put(torch.initial_seed()),
    )  # fmt: skip
    assert [[batch.is_pinned() for batch in loader] for _ in range(2)] == [[True, True]] * 2
    assert isinstance(seeds.get(timeout=60), int)


def test_a_device_is_refused_in_a_forked_worker(two: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)  # what other tests import may have set it
    assert torch.cuda.is_available()
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        list(DataLoader(Numbers("cuda"), 2, num_workers=1))
    assert next(iter(DataLoader(Numbers("cuda"), 2))).device == CUDA


def _use(queue: Any) -> None:
    try:
        queue.put(str((torch.ones(2, device="cuda") + torch.ones(2, device="cuda")).device))
    except RuntimeError as problem:
        queue.put(str(problem))


@pytest.mark.parametrize(
    ("before", "by_nvml", "refused"),
    [
        (lambda: torch.ones(1), False, False),
        (lambda: torch.manual_seed(0), False, False),
        (lambda: torch.ones(1, device="cuda"), False, True),
        (torch.cuda.is_available, False, True),
        (torch.cuda.is_available, True, False),  # docs: notes/cuda, PYTORCH_NVML_BASED_CUDA_CHECK
    ],
)
def test_a_fork_may_use_devices_that_its_parent_neither_used_nor_counted(
    two: Simulator, monkeypatch: pytest.MonkeyPatch, before: Callable[[], Any], by_nvml: bool, refused: bool
) -> None:
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", str(int(by_nvml)))
    before()
    context = multiprocessing.get_context("fork")
    queue: Any = context.Queue()
    process = context.Process(target=_use, args=(queue,))
    process.start()
    answer = queue.get(timeout=60)
    process.join()
    assert answer.startswith("Cannot re-initialize CUDA") if refused else answer == "cuda:0"


SPAWNING = """
import torch, torch.multiprocessing as multiprocessing
from devlint.runtime.simulator import simulate

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return torch.full((2,), float(index), device="cuda:1")

def child(queue, back, given, parameter):
    queue.put((torch.cuda.device_count(), given.sum().item(), str(given.device), type(parameter).__name__))
    queue.put(given * 2)
    back.get()

if __name__ == "__main__":
    with simulate(2):
        context = multiprocessing.get_context("spawn")
        queue, back = context.Queue(), context.Queue()
        given = torch.ones(3, device="cuda:1")
        process = context.Process(target=child, args=(queue, back, given, torch.nn.Parameter(given)))
        process.start()
        print(queue.get(timeout=120))
        answer = queue.get(timeout=120)
        back.put(None)
        process.join()
        print(answer.device, answer.tolist(), process.exitcode)
        loader = torch.utils.data.DataLoader(Rows(), 2, num_workers=1, multiprocessing_context="spawn")
        print([(batch.device, batch.tolist()) for batch in loader])
"""


def test_a_spawned_process_has_the_devices_and_is_given_tensors_on_them(tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING, encoding="utf-8")
    # Python's tracker of semaphores says so where a process ends between removing one and telling it
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker"}
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240, env=quiet)
    assert run.stderr == ""
    assert run.stdout.splitlines() == [
        "(2, 3.0, 'cuda:1', 'Parameter')",
        "cuda:1 [2.0, 2.0, 2.0] 0",
        "[(device(type='cuda', index=1), [[0.0, 0.0], [1.0, 1.0]])]",
    ]


# Several devices, several processes, compiled code --------------------------------------------------------------------


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def test_data_parallel_trains_on_two_devices(two: Simulator) -> None:
    net, x = nn.Linear(4, 2).cuda(), torch.randn(8, 4)
    seen: list[int | None] = []
    net.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].device.index))
    parallel = nn.DataParallel(net, device_ids=[0, 1], output_device=1)
    out = parallel(x)
    out.sum().backward()
    assert sorted(seen, key=str) == [0, 1] and out.device == torch.device("cuda", 1)
    assert net.weight.grad is not None and net.weight.grad.device == CUDA
    alone = nn.Linear(4, 2)
    alone.load_state_dict({name: tensor.cpu() for name, tensor in net.state_dict().items()})
    expected = alone(x)
    expected.sum().backward()
    assert alone.weight.grad is not None
    torch.testing.assert_close(out.cpu(), expected)
    torch.testing.assert_close(net.weight.grad.cpu(), alone.weight.grad)


def test_data_parallel_wants_its_module_on_the_first_device(two: Simulator) -> None:
    with pytest.raises(RuntimeError, match="must have its parameters and buffers on device cuda:0"):
        nn.DataParallel(nn.Linear(4, 2))(torch.ones(2, 4))


def test_tensors_are_scattered_gathered_broadcast_and_added(two: Simulator) -> None:
    from torch.nn.parallel import comm

    chunks = comm.scatter(torch.arange(5.0), [0, 1], [2, 3])
    assert [(chunk.device.index, chunk.tolist()) for chunk in chunks] == [(0, [0.0, 1.0]), (1, [2.0, 3.0, 4.0])]
    assert comm.gather(chunks, destination="cpu").tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    copies = comm.broadcast(torch.ones(2), [0, 1])
    assert [copy.device.index for copy in copies] == [0, 1]
    assert comm.reduce_add(copies).tolist() == [2.0, 2.0]
    first = torch.ones(2, device="cuda:0")
    assert comm.broadcast_coalesced([first], [0, 1])[1][0].device.index == 1
    assert comm.reduce_add_coalesced([[copies[0]], [copies[1]]])[0].device.index == 0
    out = [torch.zeros(2, device="cuda:0"), torch.zeros(3, device="cuda:1")]
    assert comm.scatter(torch.arange(5.0), out=out)[1].tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(RuntimeError, match="Gather expects all inputs to have CUDA type"):
        comm.gather([torch.ones(1)])
    with pytest.raises(RuntimeError, match="must appear as the first on devices list"):
        comm.broadcast(first, [1, 0])


@pytest.fixture
def gloo(two: Simulator, tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel_trains_over_gloo(gloo: None) -> None:
    x, plain = torch.randn(8, 4), _net()
    parallel = nn.parallel.DistributedDataParallel(_net().to("cuda:1"), device_ids=[1])
    for net in (plain, parallel):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):  # the second builds the buckets anew
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()
    for mine, theirs in zip(plain.parameters(), parallel.parameters(), strict=True):
        assert theirs.device == torch.device("cuda", 1) and torch.equal(mine, theirs.cpu())


def test_collectives_over_gloo_stay_on_the_device(gloo: None) -> None:
    value, gathered = torch.ones(2, device="cuda"), [torch.zeros(2, device="cuda")]
    torch.distributed.all_reduce(value)
    torch.distributed.all_gather(gathered, value)
    assert gathered[0].tolist() == [1.0, 1.0] and gathered[0].device == value.device == CUDA


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_nccl_is_refused_plainly(two: Simulator, backend: str) -> None:
    with pytest.raises(RuntimeError, match="the simulator has no NCCL"):
        torch.distributed.init_process_group(backend, rank=0, world_size=1)


def test_without_a_backend_gloo_is_used_and_this_is_said(two: Simulator, tmp_path: Path) -> None:
    with pytest.warns(SimulatorWarning, match="uses gloo here"):
        torch.distributed.init_process_group(init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert torch.distributed.get_backend() == "gloo"
    finally:
        torch.distributed.destroy_process_group()


def test_compiled_code_runs_eagerly_and_this_is_said_once_at_the_users_line(two: Simulator) -> None:
    net, x = _net().cuda(), torch.randn(8, 4, device="cuda")
    with pytest.warns(SimulatorWarning, match=r"`torch\.compile` compiles nothing here") as said:
        compiled = torch.compile(net)

        @torch.compile(dynamic=True)
        def add(x: torch.Tensor) -> torch.Tensor:
            return x + 1

    assert [Path(one.filename).name for one in said] == [Path(__file__).name]
    assert torch.equal(compiled(x), net(x)) and add(x).device == CUDA
    assert list(two.machine.stepped_aside) == ["torch.compile"]


def test_graphed_callables_run_eagerly(two: Simulator) -> None:
    net, x = nn.Linear(2, 2).cuda(), torch.ones(2, 2, device="cuda")
    with pytest.warns(SimulatorWarning, match="makes no graph here"):
        graphed = torch.cuda.make_graphed_callables(net, (x,))
    assert torch.equal(graphed(x), net(x))


@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_scripted_and_traced_code_keeps_to_its_operands(two: Simulator) -> None:
    net, x = _net().eval().cuda(), torch.randn(8, 4, device="cuda")
    assert torch.equal(torch.jit.trace(net, x)(x), net(x))
    scripted = torch.jit.script(net)
    scripted(x).sum().backward()
    assert {parameter.grad.device for parameter in net.parameters() if parameter.grad is not None} == {CUDA}


def test_an_operator_of_the_program_gives_its_result_where_its_operands_are(two: Simulator) -> None:
    @torch.library.custom_op("devlint_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert twice(torch.ones(2, device="cuda:1")).device == torch.device("cuda", 1)


def test_weights_of_a_recurrent_module_are_flattened_by_no_kernel_of_a_device(two: Simulator) -> None:
    lstm = nn.LSTM(2, 3).cuda()
    lstm.flatten_parameters()
    assert lstm(torch.ones(4, 1, 2, device="cuda"))[0].device == CUDA


def test_profilers_see_the_host(two: Simulator) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with pytest.warns(SimulatorWarning, match="no device"), torch.profiler.profile(activities=activities) as profile:
        torch.ones(3, device="cuda").sum()
    assert any(event.key == "aten::sum" for event in profile.key_averages())
    with torch.autograd.profiler.emit_nvtx():
        torch.ones(3, device="cuda").sum()


# MPS ------------------------------------------------------------------------------------------------------------------


def test_a_machine_with_mps_has_no_cuda(mps: Simulator) -> None:
    assert torch.backends.mps.is_available() and torch.backends.mps.is_built()
    assert torch.backends.mps.is_macos_or_newer(14, 0)
    assert not torch.cuda.is_available() and torch.cuda.device_count() == 0 and torch.version.cuda is None
    assert torch.accelerator.current_accelerator() == torch.device("mps")
    assert torch.get_device_module() is torch.mps
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        torch.ones(1, device="cuda")
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        torch.cuda.current_device()
    with pytest.raises(RuntimeError, match="one MPS device"):
        torch.ones(1, device="mps:1")
    with pytest.raises(TypeError, match="not available"):
        torch.cuda.FloatTensor([1.0])
    assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)


def test_mps_trains_and_answers(mps: Simulator) -> None:
    net = nn.Linear(3, 3).to("mps")
    optimizer = torch.optim.AdamW(net.parameters())
    with torch.autocast("mps", dtype=torch.float16):
        loss = net(torch.randn(2, 3, device="mps")).square().sum()
    loss.backward()
    optimizer.step()
    assert loss.device == torch.device("mps", 0) and loss.is_mps and not loss.is_cuda
    torch.mps.synchronize()
    assert torch.mps.current_allocated_memory() > 0
    del net, optimizer, loss
    torch.mps.manual_seed(1)
    state = torch.mps.get_rng_state()
    first = torch.rand(2, device="mps")
    torch.mps.set_rng_state(state)
    assert torch.equal(first, torch.rand(2, device="mps"))
    start, end = torch.mps.Event(enable_timing=True), torch.mps.Event(enable_timing=True)
    start.record()
    time.sleep(0.002)
    end.record()
    assert start.elapsed_time(end) >= 2 and end.query()
    with pytest.raises(NotImplementedError, match="not simulated"):
        torch.mps.compile_shader("kernel void f() {}")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, dtype=torch.float64, device="mps"),
        lambda: torch.tensor([1.0], dtype=torch.float64, device="mps"),
        lambda: torch.zeros(2, dtype=torch.float64).to("mps"),
        lambda: torch.zeros(2, device="mps").double(),
        lambda: torch.zeros(2, device="mps").sum(dtype=torch.float64),
        lambda: nn.Linear(2, 2).double().to("mps"),
    ],
)
def test_mps_has_no_float64(mps: Simulator, make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="Cannot convert a MPS Tensor to float64 dtype"):
        make()


# Beginning and end ----------------------------------------------------------------------------------------------------


def _names() -> dict[tuple[str, str], Any]:
    """All that the modules of torch, threading and multiprocessing, and their classes, define."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("torch", "threading", "multiprocessing"):
            continue
        inner = vars(module).get("m", module)  # torch.backends puts objects in place of modules
        for key, value in list(vars(inner if isinstance(inner, ModuleType) else module).items()):
            if key == "__warningregistry__":
                continue
            found[name, key] = value
            if isinstance(value, type) and value.__module__.partition(".")[0] in ("torch", "threading"):
                found.update({(name, f"{key}.{inner}"): item for inner, item in vars(value).items()})
    return found


@pytest.mark.filterwarnings("ignore::devlint.runtime.simulator.machine.SimulatorWarning", "ignore:.*is deprecated")
@pytest.mark.parametrize("kind", ["cuda", "mps"])
@pytest.mark.parametrize("fails", [False, True])
def test_afterwards_everything_is_as_before(kind: str, fails: bool) -> None:
    def work() -> None:
        with simulate(1, kind), torch.autocast(kind):
            torch.compile(nn.Linear(2, 2).to(kind))(torch.ones(2, 2, device=kind)).sum().backward()
            torch.Generator(kind)
            torch.cuda.manual_seed_all(1)
            if kind == "cuda":
                nn.DataParallel(nn.Linear(2, 2).cuda())(torch.ones(2, 2))
            if fails:
                raise ZeroDivisionError

    def run() -> None:
        if fails:
            with pytest.raises(ZeroDivisionError):
                work()
        else:
            work()

    run()  # what is imported on first use is not the simulator's doing
    before = _names()
    there = torch.cuda.is_available(), torch.backends.mps.is_available()
    run()
    after = _names()
    assert [key for key in before | after if before.get(key) is not after.get(key)] == []
    assert (torch.cuda.is_available(), torch.backends.mps.is_available()) == there
    assert not torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert torch.overrides._get_current_function_mode_stack() == []


def test_autocast_left_on_ends_with_the_simulation() -> None:
    with simulate():
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        assert (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).dtype == torch.bfloat16
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.float16


def test_a_second_simulation_begins_anew() -> None:
    with simulate(2):
        torch.cuda.set_device(1)
        kept = torch.ones(1000, device="cuda:1")
    with simulate(1):
        assert not torch.cuda.is_initialized() and torch.cuda.device_count() == 1
        assert torch.cuda.current_device() == 0 and torch.cuda.memory_allocated() == 0
    assert kept.sum().item() == 1000


def test_simulations_do_not_nest_and_odd_machines_are_refused() -> None:
    with simulate(), pytest.raises(RuntimeError, match="do not nest"), simulate():
        pass
    for devices, kind in ((0, "cuda"), (2, "mps"), (1, "tpu")):
        with pytest.raises(ValueError, match="simulated"), simulate(devices, kind):
            pass


def test_the_environment_is_left_alone() -> None:
    before = dict(os.environ)
    with simulate():
        torch.ones(1, device="cuda")
        assert dict(os.environ) == before
