"""``torch.cuda``, from the functions of ``torch._C`` that it calls.

Not faithful: names and figures are those of one device, an A100. CUDA graphs, memory pools, NVML's figures, handles of
cuBLAS and jiterator kernels are refused, memory history is not recorded, and ``set_sync_debug_mode`` sees no waits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch

from devlint.runtime.simulator import Simulator
from devlint.runtime.simulator.machine import TOTAL_MEMORY, Machine

NAME: Final = "devlint imaginary GPU"
CAPABILITY: Final = (8, 0)  # Ampere: bfloat16 and TF32 count as there
CUDA_VERSION: Final = "12.8"
CUDNN_VERSION: Final = 91002
_OF_CUDA: Final = ("_cuda_", "_nccl_", "_gds_")  # names in torch._C


@dataclass(frozen=True)
class DeviceProperties:
    """What ``torch.cuda.get_device_properties`` gives; the figures are those of an A100 with 80 GB."""

    name: str = NAME
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    total_memory: int = TOTAL_MEMORY
    multi_processor_count: int = 108
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 166912
    shared_memory_per_multiprocessor: int = 167936
    L2_cache_size: int = 41943040
    clock_rate: int = 1410000
    memory_clock_rate: int = 1512000
    memory_bus_width: int = 5120
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = NAME  # noqa: N815 - torch's name
    uuid: str = "00000000-0000-0000-0000-000000000000"
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0


class Runtime:
    """What ``torch.cuda.cudart()`` gives: the few functions of the CUDA runtime that programs call through it."""

    cudaError = SimpleNamespace(success=0)  # noqa: N815 - the runtime's name

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        """Bytes free and in all."""
        return TOTAL_MEMORY - self._machine.memory_of(device).reserved, TOTAL_MEMORY

    def cudaProfilerStart(self) -> int:
        """There is nothing to profile."""
        return self.cudaError.success

    def cudaProfilerStop(self) -> int:
        """There is nothing to profile."""
        return self.cudaError.success

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return self._machine.not_simulated(f"torch.cuda.cudart().{name}")


def statistics(machine: Machine, index: int) -> dict[str, Any]:
    """A device's memory, in the nested form of ``torch.cuda.memory_stats_as_nested_dict``."""
    memory = machine.memory_of(index)
    pools = {"all": memory.all, "small_pool": memory.small, "large_pool": memory.large}
    nothing = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    held = {
        pool: {"current": gauge.bytes, "peak": gauge.peak, "allocated": gauge.allocated, "freed": gauge.freed}
        for pool, gauge in pools.items()
    }
    blocks = {
        pool: {"current": gauge.count, "peak": gauge.peak_count, "allocated": gauge.made, "freed": gauge.released}
        for pool, gauge in pools.items()
    }
    reserved = {**nothing, "current": memory.reserved, "peak": memory.peak_reserved}
    unknown = dict.fromkeys(pools, nothing)
    return {
        **dict.fromkeys(("allocated_bytes", "active_bytes", "requested_bytes"), held),
        **dict.fromkeys(("allocation", "active"), blocks),
        "reserved_bytes": {**unknown, "all": reserved},
        **dict.fromkeys(("segment", "inactive_split", "inactive_split_bytes"), unknown),
        **dict.fromkeys(("oversize_allocations", "oversize_segments"), nothing),
        **dict.fromkeys(("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc"), 0),
        **dict.fromkeys(("num_device_free", "max_split_size"), 0),
    }


def _snapshot(machine: Machine) -> dict[str, Any]:
    segments = [
        {
            "device": index, "address": 0, "total_size": memory.reserved, "allocated_size": memory.all.bytes,
            "active_size": memory.all.bytes, "requested_size": memory.all.bytes, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": [],
        }
        for index, memory in enumerate(machine.memory)
        if memory.reserved
    ]  # fmt: skip
    return {"segments": segments, "device_traces": [[] for _ in machine.memory], "allocator_settings": {}}


def _functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    """The functions of ``torch._C`` by name, as the imaginary machine answers them."""
    debug_mode = 0
    benchmark_limit = 10  # cuDNN's, by default

    def current() -> int:
        machine.use()
        return machine.current

    def set_device(index: int) -> None:
        machine.current = index

    def exchange(index: int) -> int:
        if index < 0:
            return -1
        before = machine.current
        machine.current = index
        return before

    def set_debug_mode(mode: int) -> None:
        nonlocal debug_mode
        if mode:
            machine.step_aside("torch.cuda.set_sync_debug_mode", "sees no waits here: `devlint.guard` does")
        debug_mode = mode

    def set_benchmark_limit(limit: int) -> None:
        nonlocal benchmark_limit
        benchmark_limit = limit

    def set_fraction(fraction: float, index: int) -> None:
        machine.memory_of(index).fraction = fraction

    def record_history(*args: Any, **kwargs: Any) -> None:
        machine.step_aside("torch.cuda.memory._record_memory_history", "records nothing here")

    def nothing(*args: Any) -> None: ...

    return {
        "_cuda_init": machine.use,
        "_cuda_getDeviceCount": machine.count_devices,
        "_cuda_isInBadFork": lambda: machine.in_bad_fork,
        "_cuda_getDevice": current,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": exchange,
        "_cuda_synchronize": nothing,
        "_cuda_sleep": nothing,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_ipc_collect": nothing,
        "_cuda_clearCublasWorkspaces": nothing,  # Lightning calls it
        "_cuda_canDeviceAccessPeer": lambda one, other: one != other,
        "_cuda_getArchFlags": lambda: f"sm_{CAPABILITY[0]}{CAPABILITY[1]}",
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_enable": nothing,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": lambda index: machine.memory_of(index).fraction,
        "_cuda_emptyCache": machine.empty_cache,
        "_cuda_memoryStats": lambda index: statistics(machine, index),
        "_cuda_resetPeakMemoryStats": lambda index: machine.memory_of(index).reset_peaks(),
        "_cuda_resetAccumulatedMemoryStats": lambda index: machine.memory_of(index).reset_sums(),
        "_cuda_memorySnapshot": lambda *pool: _snapshot(machine),
        "_cuda_record_memory_history": record_history,
        "_cuda_record_memory_history_legacy": record_history,
        "_cuda_set_sync_debug_mode": set_debug_mode,
        "_cuda_get_sync_debug_mode": lambda: debug_mode,
        "_cuda_get_cudnn_benchmark_limit": lambda: benchmark_limit,
        "_cuda_set_cudnn_benchmark_limit": set_benchmark_limit,
    }


def replacements(simulator: Simulator) -> Iterator[tuple[Any, Any, Any]]:
    """The imaginary devices as CUDA's."""
    machine = simulator.machine

    def at_once(function: Callable[[], None], **kwargs: Any) -> None:
        """In place of ``torch.cuda._lazy_call``, which would let seeds wait until a device is first used.

        They would then seed the host's stream, which the imaginary devices draw from, in the middle of a run.
        """
        if not machine.in_bad_fork:
            function()

    functions = _functions(machine)
    others = [name for name in dir(torch._C) if name.startswith(_OF_CUDA) and name not in functions]
    yield from ((torch._C, name, machine.not_simulated(f"torch._C.{name}")) for name in others)
    yield from ((torch._C, name, function) for name, function in functions.items())
    yield torch._C, "__getattr__", _not_simulated(machine)
    yield torch._C, "_has_cuda", True
    yield torch._C, "_has_cudnn", True
    yield torch.version, "cuda", torch.version.cuda or CUDA_VERSION  # torchvision compares it with its own
    cudnn = getattr(torch.backends.cudnn, "m", torch.backends.cudnn)  # torch puts an object before its module
    yield cudnn, "_init", lambda: True
    yield cudnn, "version", lambda: CUDNN_VERSION
    yield torch, "_use_cudnn_rnn_flatten_weight", lambda: False  # whose kernel wants real memory of a device
    yield from everywhere(
        _lazy_init=machine.use,
        _lazy_call=at_once,
        is_initialized=lambda: machine.initialized and not machine.in_bad_fork,
        device_count=lambda: machine.count,  # torch asks NVML first, which knows real devices
    )
    yield torch.cuda, "_is_in_bad_fork", functions["_cuda_isInBadFork"]
    yield torch.cuda, "_exchange_device", functions["_cuda_exchangeDevice"]
    yield torch.cuda, "_maybe_exchange_device", functions["_cuda_maybeExchangeDevice"]
    yield torch.cuda, "_get_device_properties", lambda index: DeviceProperties(pci_bus_id=index)
    yield torch.cuda, "_cudart", Runtime(machine)
    yield torch.cuda, "_get_pynvml_handler", machine.not_simulated("torch.cuda.utilization() and its kin")
    yield torch.cuda.nccl, "is_available", lambda tensors: False
    yield from _graphs(machine)


def everywhere(**functions: Any) -> Iterator[tuple[ModuleType, str, Any]]:
    """Functions of ``torch.cuda``, replaced there and in each module below it that imported them by name."""
    old = {name: getattr(torch.cuda, name) for name in functions}
    for path, module in list(sys.modules.items()):
        if path.startswith("torch.cuda"):
            yield from ((module, name, new) for name, new in functions.items() if vars(module).get(name) is old[name])


def _not_simulated(machine: Machine) -> Callable[[str], Any]:
    def missing(name: str) -> Any:
        if name.startswith(_OF_CUDA):
            return machine.not_simulated(f"torch._C.{name}")
        raise AttributeError(f"module 'torch._C' has no attribute '{name}'")

    return missing


def _graphs(machine: Machine) -> Iterator[tuple[Any, Any, Any]]:
    """CUDA graphs are refused: a replay without a device would leave its outputs as they were."""

    def eagerly(callables: Any, *args: Any, **kwargs: Any) -> Any:
        machine.step_aside("torch.cuda.make_graphed_callables", "makes no graph here: the callables run eagerly")
        return callables

    yield torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: False
    for module in (torch.cuda, torch.cuda.graphs):
        yield module, "make_graphed_callables", eagerly
        for name in ("CUDAGraph", "graph", "graph_pool_handle"):
            yield module, name, type(name, (), {"__new__": machine.not_simulated(f"torch.cuda.{name}")})
    for name in ("MemPool", "CUDAPluggableAllocator"):
        if hasattr(torch.cuda, name):
            yield torch.cuda, name, machine.not_simulated(f"torch.cuda.{name}")
