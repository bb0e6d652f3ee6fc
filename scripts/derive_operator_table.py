"""Derives tests/data/operator_devices.json where no GPU is at hand: which mixes of devices torch would refuse.

    python scripts/derive_operator_table.py [--second-opinion]

`tests/gpu/make_operator_table.py` measures the same table on a GPU, which is better, and ``--check`` there compares the
two: `COMPARED` says when that was done last. This script knows nothing of `devlint.runtime`: it is what the simulator
is tested against. For each call it follows the ATen operations below autograd, keeps a place for every storage, and
asks of each operation whose operands are apart:

1. ``native_functions.yaml``, as shipped with torch: a CUDA kernel whose operator has ``device_check: ExactSame`` stands
   behind a generated check of its positional and output arguments (torchgen/dest/register_dispatch_key.py).
2. Structured operators without that check: torch's own C++ shape function decides, run with ``meta`` tensors as the
   device. It is the very code that CUDA runs before its kernel, ``TensorIterator`` included. Torch's Python kernels for
   ``meta`` would hide it, so a second process imports torch without them.
3. Operators that every backend shares (``CompositeExplicitAutograd``): their parts, followed in turn. ``out=`` that
   torchgen made for an operator wants to be where the result is.
4. `FACTS`, read in torch's sources, for what is left.

5. Code of torch that is made of other operators and compares devices itself, as ``FakeTensorMode`` shows it.

``--second-opinion`` prints where ``FakeTensorMode``, which has rules of its own below that code, differs. Each kind of
difference was settled by reading torch, for the table, and then by a GPU:

- Fake tensors let a zero-dimensional host tensor into any operator: the generated check does not, and ``logical_and``
  and its kind would make their result beside their first operand.
- They do not compare the operands of convolutions, ``native_dropout_backward``, custom operators and tensor ratios of
  ``linalg_pinv``, the lists of ``_foreach_`` and ``_fused_`` operators, or the outputs of ``histc``, ``vector_norm``
  and ``slice_scatter``, and they let device indices into host tensors: the generated check, the iterator of each pair
  and the shape function of ``index`` are strict.
- They refuse what torch copies from one device to another: ``src`` of ``*_scatter``, ``fill_``, the value of
  ``index_fill``, indices of ``_unsafe_masked_index``, ``bernoulli``'s ``out=``, and the scalars of
  ``_foreach_addcdiv``, which the host must hold.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchgen
from torch import Tensor
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchgen.gen import parse_native_yaml
from torchgen.model import DeviceCheckType, NativeFunction
from torchgen.model import DispatchKey as Key

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from operator_samples import Call, calls, mixed, mixes, places_of, tensors_of, write_table

HOST, DEVICE = "host", "device"
PLACE = "_place_in_table"  # set on storages; storages without it belong to no side


class RefusedError(Exception):
    """Torch would not run this operation."""


class UnknownError(Exception):
    """No source says what torch does."""


# 4. Facts -------------------------------------------------------------------------------------------------------------

Operands = list[tuple[str, Tensor, str | None]]  # argument name, tensor, place


def anywhere(operands: Operands) -> bool:
    return True


def together(operands: Operands) -> bool:
    return len({place for _, _, place in operands if place}) < 2


def elementwise(operands: Operands) -> bool:
    """TensorIterator::binary_op and comparison_op: one number of the host beside the device."""
    away = [(name, tensor) for name, tensor, place in operands if place == HOST]
    return len(away) == 1 and away[0][0] != "out" and away[0][1].dim() == 0


def together_but(*names: str) -> Callable[[Operands], bool]:
    return lambda operands: together([operand for operand in operands if operand[0] not in names])


def number_for(*names: str) -> Callable[[Operands], bool]:
    """Only these arguments may be a number of the host."""

    def may(operands: Operands) -> bool:
        return elementwise(operands) and {name for name, _, place in operands if place == HOST} <= set(names)

    return may


def of_self(operands: Operands) -> str | None:
    return next((place for name, _, place in operands if name == "self"), None)


def where(operands: Operands) -> bool:  # TensorCompare.cpp, where_self_out: numbers go to the first device
    return all(tensor.dim() == 0 and name != "out" for name, tensor, place in operands if place == HOST)


def index_put(operands: Operands) -> bool:  # TensorAdvancedIndexing.cpp, _index_put_impl_
    values = [(tensor, place) for name, tensor, place in operands if name == "values"]
    return all(place in (None, of_self(operands)) or tensor.dim() == 0 for tensor, place in values)


def masked_fill(operands: Operands) -> bool:  # cuda/Indexing.cu, masked_fill__cuda
    mask = [place for name, _, place in operands if name == "mask"]
    return of_self(operands) == DEVICE and mask != [HOST]


def device_self(operands: Operands) -> bool:
    return of_self(operands) == DEVICE


def pairs(inner: Callable[[Operands], bool]) -> Callable[[Operands], bool]:
    """Lists in two places go to the slow kernels, item by item (ForeachUtils.h, ForeachOpsKernels.cpp)."""

    def may(operands: Operands) -> bool:
        lists: dict[str, Operands] = {}
        for operand in operands:
            lists.setdefault(operand[0], []).append(operand)
        return all(together(list(items)) or inner(list(items)) for items in zip(*lists.values(), strict=True))

    return may


def scalars_on_host(operands: Operands) -> bool:  # convert_tensor_to_scalar_list
    lists = [operand for operand in operands if operand[0] != "scalars"]
    return len(lists) == len(operands) or (operands[-1][2] == HOST and pairs(together)(lists))


def read_as_number(name: str) -> Callable[[Operands], bool]:
    """Taken from the host, else wanted with the others."""
    return lambda operands: together([o for o in operands if o[0] != name or o[2] == DEVICE])


def lengths_on_host(operands: Operands) -> bool:  # PackedSequence.cpp
    return ("lengths", HOST) in {(name, place) for name, _, place in operands}


# By the operator's name without the underscore of in-place variants, or with its overload.
FACTS: dict[str, Callable[[Operands], bool]] = {
    "where": where,
    "block_diag": together,  # TensorShape.cpp compares the devices, as the next four do of their outputs
    "cholesky_solve.out": together,  # BatchLinearAlgebra.cpp
    "linalg_pinv.atol_rtol_tensor_out": together,
    "dot.out": together,  # LinearAlgebra.cpp
    "vdot.out": together,
    "_index_put_impl": index_put,
    "masked_fill": masked_fill,
    "fill.Tensor": anywhere,  # Fill.cpp: reads the value as a number
    "copy": anywhere,  # Copy.cpp
    "is_same_size": anywhere,
    "index_fill.int_Tensor": together_but("value"),  # TensorAdvancedIndexing.cpp: reads the value as a number
    "binary_cross_entropy": number_for("weight"),  # cuda/Loss.cu: input and target iterate, the weight multiplies after
    "rsub.Tensor": elementwise,  # BinaryOps.cpp: sub with its operands swapped
    "logical_and": number_for("other"),  # BinaryOps.cpp, comparison_op: the result is made where `self` is
    "logical_or": number_for("other"),
    "logical_xor": number_for("other"),
    "logical_and.out": elementwise,  # BinaryOps.cpp: comparison_op_out
    "logical_or.out": elementwise,
    "logical_xor.out": elementwise,
    "floor_divide": elementwise,  # BinaryOps.cpp: binary_op
    "bernoulli.out": anywhere,  # DistributionTemplates.h: the probabilities go where the output is
    "abs.out": together,  # UnaryOps.cpp, as the next two: TensorIterator without numbers
    "angle.out": together,
    "logical_not.out": together,
    "log_sigmoid_forward.output": together,  # cuda/ActivationLogSigmoidKernel.cu
    "max.unary_out": together,  # ReduceAllOps.cpp compares the devices
    "min.unary_out": together,
    "std.correction_out": together,  # ReduceOps.cpp: an iterator over both
    "var.correction_out": together,
    "segment_reduce": together,  # cuda/SegmentReduce.cu compares the devices of what the generated check leaves out
    "searchsorted.Tensor": together,  # BucketizationUtils.h compares the devices of the sorter too
    "_foreach_add.List": pairs(elementwise),
    "_foreach_lerp.Scalar": pairs(together),
    "_foreach_maximum.List": pairs(together),  # clamp_min of each pair, behind its generated check
    "_foreach_copy": anywhere,
    "_foreach_norm.Scalar": anywhere,  # item by item, where the items are apart
    "_foreach_add.Tensor": together,  # cuda/ForeachBinaryOpScalarTensor.cu, one dtype and one place of the list
    "_foreach_mul.Tensor": lambda operands: ("other", HOST) in {(n, p) for n, _, p in operands} or together(operands),
    "_foreach_addcdiv.Tensor": scalars_on_host,
    "_fused_adam.tensor_lr": read_as_number("lr"),  # cuda/FusedAdamKernel.cu
    "_pack_padded_sequence": lengths_on_host,
    # The scores' device is where targets and lengths are moved to (LossCTC.cpp, ctc_loss_impl).
    "_ctc_loss.Tensor": anywhere,
    "_ctc_loss": anywhere,
    # What the host runs in the stead of kernels with a generated check.
    "mkldnn_rnn_layer": together,
    "_scaled_dot_product_flash_attention_for_cpu": together,
    "slow_conv3d_forward": together,
}

# Kernels that do not take the number that the iterator would let through: Loss kernels and lerp with `gpu_kernel`
# (BinaryMiscOpsKernels.cu, Lerp.cu), addcmul with words of its own (PointwiseOpsKernel.cu).
NUMBERS: dict[str, set[str]] = {
    "mse_loss": set(),
    "smooth_l1_loss": set(),
    "lerp": {"weight"},
    "addcmul": {"tensor2"},
}


# The operations of a call ---------------------------------------------------------------------------------------------


class Places(TorchDispatchMode):
    """Gives results the place of their operands, and raises `RefusedError` where torch would refuse."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operands = list(_operands(func, args, kwargs))
        places = {place for *_, place in operands if place is not None}
        if len(places) == 2:
            parts = decide(func, args, kwargs, operands)
            if parts is not None:
                with self:
                    return parts(*args, **kwargs)
        result = func(*args, **kwargs)
        place = DEVICE if DEVICE in places else HOST if places else None
        if func._schema.name.removeprefix("aten::").rstrip("_") in FOLLOWS_FIRST:
            place = operands[0][2]
        elif func._schema.name in FACTORIES:
            place = HOST
        each = func._schema.name.startswith("aten::_foreach_")  # an operation of its own for each item
        packed = func._schema.name == "aten::_pack_padded_sequence"  # the sizes it returns second are the host's
        for i, tensor in enumerate(_tensors_in(result)):
            storage, own = _storage(tensor), _beside(operands, i) if each else HOST if packed and i else place
            if own is not None and getattr(storage, PLACE, None) is None:
                setattr(storage, PLACE, own)
        return result


def _beside(operands: Operands, i: int) -> str | None:
    """Where the `i`-th operation of a ``_foreach_`` makes its result: on the device, if one of its operands is."""
    lists: dict[str, Operands] = {}
    for operand in operands:
        lists.setdefault(operand[0], []).append(operand)
    longest = max(map(len, lists.values()))
    places = {items[i][2] for items in lists.values() if len(items) == longest}
    return DEVICE if DEVICE in places else HOST if HOST in places else None


# The result is where the first operand is, wherever the others are.
FOLLOWS_FIRST = set(
    """copy index index_put index_fill masked_fill _unsafe_index fill bernoulli _ctc_loss slice_scatter select_scatter
    diagonal_scatter as_strided_scatter""".split()
)
FACTORIES = {"aten::linspace", "aten::logspace"}  # they read their operands as numbers


def _tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors_in(item)] if isinstance(value, (list, tuple)) else []


def _storage(tensor: Tensor) -> Any:
    if tensor.layout is torch.strided:
        return tensor.untyped_storage()
    return (tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()).untyped_storage()


def _operands(func: Any, args: Any, kwargs: Any) -> Operands:
    """Argument name, tensor and place of each tensor of the call."""
    found = []
    for i, argument in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        for tensor in _tensors_in(value):
            found.append((argument.name, tensor, getattr(_storage(tensor), PLACE, None)))
    return found


def decide(
    func: Any, args: Any, kwargs: Any, operands: list[tuple[str, Tensor, str | None]]
) -> Callable[..., Any] | None:
    """Raises `RefusedError`, or says how to go on: ``None`` to run it, or its parts, to be followed.

    Raises:
        UnknownError: nothing is known of the operator.
    """
    name = func._schema.name.removeprefix("aten::")
    short = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    fact = FACTS.get(f"{short}.{func._overloadname}", FACTS.get(short))
    if fact is not None:
        if not fact(operands):
            raise RefusedError(f"{func}: by fact")
        return None
    if torch.Tag.generated in func.tags:  # copy_arg, around the operator without `out`: CompositeViewCopyKernels.cpp
        outputs = {argument.name for argument in func._schema.arguments if argument.is_out}
        read = [operand for operand in operands if operand[0] not in outputs]
        if together(read) and not together(operands):
            raise RefusedError(f"{func}: Expected out tensor to have device")
    for key in (DispatchKey.CompositeImplicitAutograd, *COMPOSITE):
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key) and (
            key not in COMPOSITE or not _has_cuda_kernel(NATIVE.get(_full_name(func)))
        ):
            return lambda *a, **k: func._op_dk(key, *a, **k)
    function = NATIVE.get(_full_name(func))
    if function is None:
        raise UnknownError(str(func))
    if not _has_cuda_kernel(function):
        raise UnknownError(f"{func}: no CUDA kernel")
    if function.device_check is DeviceCheckType.ExactSame:
        checked = {a.name for a in (*function.func.arguments.out, *function.func.arguments.flat_positional)}
        if not together([operand for operand in operands if operand[0] in checked]):
            raise RefusedError(f"{func}: generated check")
        raise UnknownError(f"{func}: keyword operands, which the generated check leaves out")
    if function.structured or function.structured_delegate is not None:
        if answer := SHAPES.ask(func, args, kwargs):
            raise RefusedError(f"{func}: {answer}")
        if short in NUMBERS and not number_for(*NUMBERS[short])(operands):
            raise RefusedError(f"{func}: its kernel takes no number there")
        return None
    raise UnknownError(str(func))


COMPOSITE = (DispatchKey.CompositeExplicitAutograd, DispatchKey.CompositeExplicitAutogradNonFunctional)


def _full_name(func: Any) -> str:
    name = func._schema.name.removeprefix("aten::")
    return name if func._overloadname == "default" else f"{name}.{func._overloadname}"


# 1. What native_functions.yaml declares -------------------------------------------------------------------------------


def _native_functions() -> tuple[dict[str, NativeFunction], Any]:
    folder = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    on_cuda = [parsed.backend_indices[key] for key in (Key.CUDA, Key.SparseCUDA, Key.SparseCsrCUDA)]
    return {str(function.func.name): function for function in parsed.native_functions}, on_cuda


NATIVE, CUDA = _native_functions()


def _has_cuda_kernel(function: NativeFunction | None) -> bool:
    if function is None:
        return False
    return function.structured_delegate is not None or any(index.has_kernel(function) for index in CUDA)


# 2. Torch's C++ shape functions, with meta tensors as the device ------------------------------------------------------

_SHAPES = """
import pickle, sys, types
sys.modules["torch._meta_registrations"] = types.ModuleType("torch._meta_registrations")
import torch

def made(value):
    if isinstance(value, tuple) and value and value[0] == "tensor":
        return torch.empty_strided(*value[1:3], dtype=value[3], device=value[4])
    if isinstance(value, (list, tuple)):
        return [made(item) for item in value]
    return value

while True:
    try:
        name, overload, args, kwargs = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        func = getattr(getattr(torch.ops.aten, name), overload)
        func(*[made(a) for a in args], **{k: made(v) for k, v in kwargs.items()})
        answer = ""
    except Exception as error:
        answer = f"{type(error).__name__}: {error}".splitlines()[0]
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


OF_DEVICES = ("same device", "indices should be", "CPU scalars", "Expected out tensor to have device")


class Shapes:
    """The second process."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", "-c", _SHAPES]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, func: Any, args: Any, kwargs: Any) -> str:
        """What torch says to this mix; nothing where it goes on."""
        assert self.process.stdin is not None and self.process.stdout is not None
        names = func._schema.name.removeprefix("aten::"), func._overloadname
        packed = [_packed(a) for a in args], {k: _packed(v) for k, v in kwargs.items()}
        pickle.dump((*names, *packed), self.process.stdin)
        self.process.stdin.flush()
        answer = pickle.load(self.process.stdout)
        if answer and not any(words in answer for words in OF_DEVICES):
            raise UnknownError(f"{func}: {answer}")
        return answer


def _packed(value: Any) -> Any:
    if isinstance(value, Tensor):
        place = getattr(_storage(value), PLACE, None)
        on = "cpu" if place == HOST else "meta"
        return ("tensor", tuple(value.shape), value.stride(), value.dtype, on)
    if isinstance(value, (list, tuple)):
        return [_packed(item) for item in value]
    return value


SHAPES = Shapes()


# 5. Torch's C++ code that is made of other operators, and compares devices itself -------------------------------------

WORDS = (
    "to be on the same device",
    "not at the same device",
    "to have the same device",
    "must be on the same device",
    "DeviceType",
    "to be on cpu",
    "expected device ",
)


# Fake tensors have no values, and this build no device to make them on.
NO_OPINION = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "AssertionError: Torch not compiled",
    "NotImplementedError",
    "RuntimeError: PyTorch is not linked",
    "RuntimeError: The tensor has a non-zero number of elements",
)


def pretended(call: Call, path: str, way: str) -> str:
    """What ``FakeTensorMode`` says to this mix, or ``passes:`` and where the result is."""
    mode = FakeTensorMode()

    def place(at: str, tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided:
            raise NotImplementedError("only strided tensors are made fake ones")  # one of `NO_OPINION`
        on_host = (at == path) == way.startswith(HOST)
        shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(mode, shape, torch.device("cpu" if on_host else "cuda:0"))

    try:
        placed = mixed(call, path, way, lambda tensor: tensor).with_tensors(place)
        with mode:
            result = placed()
    except Exception as error:  # fake tensors refuse much that has nothing to do with devices
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return f"passes: {places_of(result)}"


# The table ------------------------------------------------------------------------------------------------------------

#: The last comparison with a GPU, in which all was as here: of mixes that both torches know.
COMPARED = {"torch": "2.11.0+cu130", "gpu": "NVIDIA H200", "calls": 712, "mixes": 2828}


def followed(call: Call, path: str, way: str) -> tuple[str, str]:
    """Which operation of this mix torch would refuse, and why, or nothing; and where the result is.

    Raises:
        UnknownError: one that nothing is known of.
    """

    def place(at: str, tensor: Tensor) -> Tensor:
        setattr(_storage(tensor), PLACE, HOST if (at == path) == way.startswith(HOST) else DEVICE)
        return tensor

    placed = mixed(call, path, way, lambda tensor: tensor).with_tensors(place)
    try:
        with Places():
            result = placed()
    except RefusedError as refused:
        return str(refused), ""
    places = {getattr(_storage(tensor), PLACE, None) or HOST for tensor in tensors_of(result)}
    return "", " and ".join(sorted(places))


def main() -> None:
    parser = argparse.ArgumentParser(description="Derives tests/data/operator_devices.json.")
    parser.add_argument(
        "--second-opinion", action="store_true", help="print where FakeTensorMode differs; write nothing"
    )
    second_opinion = parser.parse_args().second_opinion
    operators: dict[str, Any] = {}
    for call in calls():
        entry: dict[str, Any] = {"passes": {}, "raises": {}}
        for path, way in mixes(call):
            try:
                refused, where = followed(call, path, way)
            except UnknownError as unknown:
                entry["unknown"] = str(unknown)
                continue
            fake = pretended(call, path, way) if second_opinion or not refused else ""
            if not refused and fake.startswith("RuntimeError") and any(words in fake for words in WORDS):
                refused = f"{call.name}: {fake}"
            verdict = "" if refused else f"passes: {where}"
            if second_opinion and fake.startswith("passes: ") != bool(verdict) and not fake.startswith(NO_OPINION):
                print(f"{call.name}, {path} {way}: {verdict or refused}; fake: {fake}")
            if refused:
                why = "RuntimeError: " + refused.partition(": ")[2].removeprefix("RuntimeError: ").partition(",")[0]
                entry["raises"].setdefault(why, []).append(f"{path} {way}")
            else:
                entry["passes"].setdefault(where, []).append(f"{path} {way}")
        operators[call.name] = entry
    if not second_opinion:
        head = {"provenance": "derived", "torch": torch.__version__, "gpu": None, "compared": COMPARED}
        write_table(head, operators)


if __name__ == "__main__":
    main()
