"""Functions and classes of torch, by what the table says of them."""

from __future__ import annotations

import libcst as cst

from devlint.flow import copies, factories, loaders, modules, operations, optimizers
from devlint.flow import torch_table as table
from devlint.flow.arguments import Args, Operand, is_false
from devlint.flow.frame import DEFAULT_PLACE, NO_GRAD, Frame
from devlint.flow.place import HOST, SOMEWHERE, UNKNOWN_PLACE, Place
from devlint.flow.value import (
    ANY_DTYPE,
    CONTEXT,
    DEVICE,
    FILE,
    GENERATOR,
    HOST_DATA,
    INSTANCE,
    NAME,
    NONE,
    NOTHING,
    OBJECT,
    TENSOR,
    THING,
    UNKNOWN,
    Value,
    tensor,
)


def call(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    """A function or class of torch, by the tables."""
    factory = table.FACTORIES.get(name)
    if factory is not None:
        return factories.make(frame, node, name, factory, args)
    operation = table.FUNCTIONS.get(name)
    if operation is not None:
        return operations.call(frame, node, name, operation, args)
    fact = table.MODULES.get(name)
    if fact is not None:
        return modules.build(frame, node, name, fact, args)
    if name == "torch.nn.utils.skip_init" and args.positional:
        (_, made), *others = args.positional  # skip_init(nn.Linear, 8, 8)
        fact = table.MODULES.get(made.ref) if made.kind == NAME else None
        return modules.build(frame, node, made.ref, fact, args._replace(positional=others)) if fact else UNKNOWN
    if name in table.LIKE:
        return factories.like(frame, node, args)
    if name in table.KEEPING:
        return factories.keep(frame, node, args)
    if name == "torch.from_numpy" and args.keywords:
        return UNKNOWN  # torch.from_numpy(rows, dtype=torch.float)   raises
    if name in table.HOST_FACTORIES:
        return factories.make_on_host(frame, node, name, args)
    if name in table.DEVICE_TYPED:
        return tensor(Place("fixed", "cuda"), node)
    if name in table.WRAPPERS:
        return factories.wrap(node, name, args)
    if name in table.OPTIMIZERS:
        return optimizers.build(frame, node, name, args)
    if name in table.LOADERS:
        return loaders.build(frame, node, name, args)
    if name in table.DATASETS:
        # TensorDataset(x, y) only compares lengths: what it holds may lie on several devices
        held = [value for _, value in args.positional] if "TensorDataset" in name else []
        if not held or any(value.place != held[0].place for value in held):
            some_there = any(value.place.is_there and not isinstance(value.origin, cst.Param) for value in held)
            return Value(THING, UNKNOWN_PLACE, ref="dataset") if some_there else UNKNOWN
        return Value(THING, held[0].place, held[0].origin, ref="dataset")
    return _torch_rest(frame, node, name, args)


def _torch_rest(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    tail = name.rpartition(".")[2]
    if name == "torch.device":
        given = args.get(0, "type", "device")
        place = frame.device_place(given[1], given[0]) if given is not None else UNKNOWN_PLACE
        index = args.get(1, "index")
        if index is not None and place.kind == "fixed" and ":" not in place.name and index[1].kind != NONE:
            number = index[0].value if isinstance(index[0], cst.Integer) else ""
            place = Place("fixed", f"{place.name}:{number}") if number else SOMEWHERE
        return Value(DEVICE, place if place.is_known else SOMEWHERE, node, ref=OBJECT)
    if name in ("torch.no_grad", "torch.inference_mode", "torch.enable_grad"):
        return Value(CONTEXT, ref=name)
    if name == "torch.set_grad_enabled":
        given = args.get(0, "mode")
        if frame.env is not None and given is not None:  # at once, whether or not it is used in a `with`
            frame.env[NO_GRAD] = HOST_DATA if is_false(given[0]) else UNKNOWN
        return Value(CONTEXT, ref=name)
    if name.startswith("torch.distributed.") and tail in _COLLECTIVES and args.positional:
        _reach(frame, node, tail, args.positional[0])
    if name == "torch.save" and args.positional:
        copies.read(frame, node, args.positional[0][1])
    if name.endswith(".autocast") or name.startswith("torch.cuda.amp"):
        return Value(CONTEXT, ref=name)
    if name in ("torch.cuda.device", "torch.cuda.stream", "torch.cuda.device_of", "torch.profiler.profile"):
        return Value(CONTEXT, ref=name)
    if name == "torch.get_default_device":
        return Value(DEVICE, frame.default_place(), node)
    if name == "torch.set_default_device":
        given = args.get(0, "device")
        place = frame.device_place(given[1], given[0]) if given is not None else UNKNOWN_PLACE
        if frame.env is not None and not frame.dead:
            frame.env[DEFAULT_PLACE] = Value(DEVICE, place)
        return NOTHING
    if name == "torch.accelerator.current_accelerator":
        return Value(DEVICE, SOMEWHERE, node, ref=OBJECT)
    if name == "torch.Generator":
        given = args.get(0, "device")
        return Value(GENERATOR, frame.device_place(given[1], given[0]) if given is not None else HOST, node)
    if name == "torch.manual_seed":
        return Value(GENERATOR, HOST, node)
    if name in ("torch.load", "torch.hub.load_state_dict_from_url"):
        given = args.get(1 if name == "torch.load" else None, "map_location")
        if given is None:
            return UNKNOWN
        place = frame.device_place(given[1], given[0])
        return Value(THING, place, node, ref="moved", text=FILE) if place.is_known else UNKNOWN
    if name in ("torch.cuda.is_available", "torch.is_grad_enabled", "torch.get_default_dtype", "torch.get_rng_state"):
        return HOST_DATA if tail != "get_default_dtype" else ANY_DTYPE
    if name.startswith("torch.distributions.") and name in table.DISTRIBUTIONS:
        chosen = frame.meet(node, args.all, "a distribution")
        numbers = bool(args.all) and not args.starred and all(type(each) in _NUMBERS for each, _ in args.all)
        # Uniform(0, 1.0), which draws on the host
        place = chosen.place if chosen is not None else frame.default_place() if numbers else UNKNOWN_PLACE
        return Value(INSTANCE, place, node, text="distribution")
    if name in ("torch.nn.parallel.DataParallel", "torch.nn.DataParallel") or tail in (
        "DistributedDataParallel",
        "FullyShardedDataParallel",
    ):
        return modules.wrapped(args, node)
    if name in ("torch.compile", "torch.jit.script", "torch.jit.trace", "torch.quantization.QuantWrapper"):
        return args.value(0, "model") or UNKNOWN
    if name.startswith("torch.cuda."):
        return HOST_DATA if tail in ("device_count", "memory_allocated", "max_memory_allocated") else UNKNOWN
    if tail in _DTYPE_FUNCTIONS:
        return HOST_DATA
    return UNKNOWN


def _reach(frame: Frame, node: cst.Call, tail: str, operand: Operand) -> None:
    """A collective of all processes, in a file that starts NCCL, which knows the memory of GPUs and no other."""
    if any(arg.keyword is not None and arg.keyword.value == "group" for arg in node.args):
        return  # dist.broadcast(key, src=0, group=of_hosts): each group has a backend of its own
    if operand[1].kind != TENSOR or not operand[1].place.is_host:
        return
    text = frame.flow.source.text
    if "init_process_group(" in text and ('"nccl"' in text or "'nccl'" in text) and "gloo" not in text:
        group = Value(DEVICE, SOMEWHERE)
        frame.met(node, f"`{tail}` of NCCL", operand, (node.func, group))


_COLLECTIVES = frozenset("all_reduce broadcast reduce all_gather_into_tensor reduce_scatter_tensor".split())
_NUMBERS = frozenset({cst.Integer, cst.Float, cst.UnaryOperation})
_DTYPE_FUNCTIONS = frozenset({"Size", "finfo", "iinfo", "is_tensor"})
