"""Which mixes of devices torch refuses: `legality` rule by rule, and the simulator against the table of all op_db."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from devlint.runtime.legality import HOST_ONLY, Refusal, refusal
from devlint.runtime.legality_calls import call_refusal, concerns

if TYPE_CHECKING:
    from operator_samples import Call

aten = torch.ops.aten

# Pretended places -----------------------------------------------------------------------------------------------------


class Board:
    """Tensors of the host with a place for each, as the simulator keeps them."""

    def __init__(self) -> None:
        self.places: dict[int, tuple[Tensor, torch.device | None]] = {}

    def __call__(self, place: str | None, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        tensor = torch.ones(shape, dtype=dtype)
        self.places[id(tensor)] = tensor, None if place is None else torch.device(place)
        return tensor

    def of(self, tensor: Tensor) -> torch.device | None:
        return self.places[id(tensor)][1]

    def ask(self, operator: Any, *args: Any, **kwargs: Any) -> Refusal | None:
        return refusal(operator, args, kwargs, self.of)

    def text(self, operator: Any, *args: Any, **kwargs: Any) -> str:
        refused = self.ask(operator, *args, **kwargs)
        return "" if refused is None else refused.message


@pytest.fixture
def on() -> Board:
    return Board()


def long(on: Board, place: str, *shape: int) -> Tensor:
    return on(place, *shape, dtype=torch.int64)


def test_a_refusal_names_every_operand_by_the_schema_and_torch_s_error(on: Board) -> None:
    images, weight = on("cpu", 2, 3), on("cuda:0", 3, 4)
    refused = on.ask(aten.mm.default, images, weight)
    assert refused is not None and refused.error is RuntimeError
    assert refused.message == (
        "Expected all tensors to be on the same device, but got mat2 is on cuda:0, different from other tensors on cpu "
        "(when checking argument in method wrapper_CUDA_mm)"
    )
    assert [
        (o.name, o.tensor is t, str(o.device)) for o, t in zip(refused.operands, (images, weight), strict=True)
    ] == [
        ("self", True, "cpu"),
        ("mat2", True, "cuda:0"),
    ]


def test_items_of_a_list_are_counted(on: Board) -> None:
    refused = on.ask(aten.cat.default, [on("cuda:0", 2), on("cuda:0", 2), on("cpu", 2)])
    assert refused is not None and [o.name for o in refused.operands] == ["tensors[0]", "tensors[1]", "tensors[2]"]
    assert "but got tensors is on cpu, different from other tensors on cuda:0" in refused.message


def test_an_output_counts_as_an_operand(on: Board) -> None:
    refused = on.ask(aten.mm.out, on("cuda:0", 2, 2), on("cuda:0", 2, 2), out=on("cpu", 2, 2))
    assert refused is not None and [o.name for o in refused.operands] == ["self", "mat2", "out"]


# Each line: an operator, and operands as place and shape. `h` is the host, `d` and `e` are two devices, `0` has no
# dimension, `i` holds integers, `o` is the output.
PASSES = """
add.Tensor          d h0
add.Tensor          h0 d
add_.Tensor         d h0
sub.out             d h0 od
eq.Tensor           h0 d
pow.Tensor_Tensor   d h0
lerp.Tensor         d d h0
addcmul             d d h0
where.self          d h0 h0
where.self          h0 d e0
copy_               h d
copy_               d e
index.Tensor        d [hi]
index.Tensor        d [di]
index_put_          d [hi] h0
index_put_          h [di] d0
masked_fill.Scalar  d d *0
masked_fill.Tensor  d d h0
masked_fill.Tensor  d d e0
index_fill.int_Tensor h *0 hi d0
slice_scatter       d h
is_same_size        d h
_foreach_add.List   [d,h] [d,h]
_foreach_add.List   [d,h] [h0,h]
_foreach_mul.Tensor [d,d] h0
_foreach_copy_      [d] [h]
_foreach_addcmul.Tensor [d] [d] [d] h
_foreach_lerp.List  [d] [d] [h0]
bernoulli_.Tensor   d h
bernoulli_.Tensor   h d
bernoulli.out       d oh
bernoulli.out       h od
logical_and         d h0
logical_and.out     h0 d od
_ctc_loss.Tensor    d h hi hi
mul.Tensor          d ?
mm                  d ?
binary_cross_entropy_with_logits d d h0
view_copy.out       d *[2] od
slice_scatter.out   d h od
slice_scatter.out   h d oh
"""
RAISES = """
add.Tensor          d h        found at least two devices, cuda:0 and cpu!
add.Tensor          h d0       found at least two devices, cuda:0 and cpu!
add.Tensor          d e        found at least two devices, cuda:0 and cuda:1!
add.Tensor          d e0       found at least two devices, cuda:0 and cuda:1!
add_.Tensor         h0 d0      found at least two devices, cuda:0 and cpu!
add.out             d d oh     found at least two devices, cuda:0 and cpu!
add.Tensor          m h        found at least two devices, meta and cpu!
mm                  d h        got mat2 is on cpu, different from other tensors on cuda:0
addmm               h0 d d     got mat1 is on cuda:0, different from other tensors on cpu
clamp.Tensor        d h0       got min is on cpu
nextafter           d h0       got other is on cpu
addcdiv             d d h0     same device
addcmul             d h0 d     found at least two devices
lerp.Scalar         d h0       found at least two devices
mse_loss            d h0       same device
smooth_l1_loss      d h0       same device
huber_loss          d h0       same device
where.self          d h h0     found at least two devices
where.self          h d0 h0    found at least two devices
index.Tensor        h [di]     indices should be either on cpu or on the same device as the indexed tensor (cpu)
index.Tensor        d [ei]     indices should be either on cpu or on the same device as the indexed tensor (cuda:0)
index_put_          d [hi] h   found at least two devices, cuda:0 and cpu!
masked_fill.Scalar  d h *0     expected self and mask to be on the same device, but got mask on cpu and self on cuda:0
masked_fill.Tensor  h h d0     Expected inputs to be on same device
gather              d *0 hi    got index is on cpu
embedding           d hi       got indices is on cpu
stack               [d,h]      got tensors is on cpu
equal               d h        got other is on cpu
_foreach_add.List   [d,h] [d,d]  found at least two devices, cuda:0 and cpu!
_foreach_add_.List  [h0] [d0]  found at least two devices, cuda:0 and cpu!
_foreach_add_.Tensor [d] h0    scalar tensor expected to be on cuda:0 but is on cpu
_foreach_mul_.Tensor [h] d0    scalar tensor expected to be on cpu but is on cuda:0
_foreach_maximum.List [d] [h0] got other is on cpu
_foreach_addcdiv.Tensor [d] [d] [d] d  Expected scalars to be on CPU, got cuda:0 instead.
_amp_foreach_non_finite_check_and_unscale_ [d] h d  got found_inf is on cpu
set_.source_Tensor  h d        Attempted to set the storage of a tensor on device "cpu" to a storage on different device
bernoulli_.Tensor   d e        got p is on cuda:1
logical_and         h0 d       found at least two devices, cuda:0 and cpu!
logical_xor_        h0 d0      found at least two devices, cuda:0 and cpu!
view_copy.out       d *[2] oh  Expected out tensor to have device cuda:0, but got cpu instead
view_copy.out       h *[2] od  Expected out tensor to have device cpu, but got cuda:0 instead
slice_scatter.out   d h oh     Expected out tensor to have device cuda:0, but got cpu instead
slice_scatter.out   h d od     Expected out tensor to have device cpu, but got cuda:0 instead
mul.Scalar_out      d *2 oh    Expected out tensor to have device cuda:0, but got cpu instead
native_layer_norm   d *[1] h h *1e-5  got weight is on cpu
block_diag          [d,h]      got tensors is on cpu
sum.IntList_out     d *[0] oh0 got self is on cuda:0, different from other tensors on cpu
add.Tensor          p h        found at least two devices, mps:0 and cpu!
"""
PLACES = {"h": "cpu", "d": "cuda:0", "e": "cuda:1", "m": "meta", "p": "mps:0", "?": None}


def called(on: Board, words: list[str]) -> tuple[Any, list[Any], dict[str, Any]]:
    """The operator and the arguments that the first words of a line stand for; the words are used up."""
    name, _, overload = words.pop(0).partition(".")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}

    def tensor(word: str) -> Tensor:
        dtype = torch.int64 if "i" in word else torch.float32
        return on(PLACES[word[0]], *(() if "0" in word else (2,)), dtype=dtype)

    while words and (words[0][0] in "[*" or words[0].rstrip("0i").lstrip("o") in PLACES):
        word = words.pop(0)
        if word[0] == "*":
            args.append(eval(word[1:], {}))
        elif word[0] == "[":
            args.append([tensor(item) for item in word.strip("[]").split(",")])
        elif word[0] == "o":
            kwargs["out"] = tensor(word[1:])
        else:
            args.append(tensor(word))
    return getattr(getattr(aten, name), overload or "default"), args, kwargs


@pytest.mark.parametrize("line", [" ".join(line.split()) for line in PASSES.strip().splitlines()])
def test_torch_takes_this_mix(line: str, on: Board) -> None:
    operator, args, kwargs = called(on, words := line.split())
    assert not words
    assert on.text(operator, *args, **kwargs) == ""


@pytest.mark.parametrize("line", [" ".join(line.split()) for line in RAISES.strip().splitlines()])
def test_torch_refuses_this_mix(line: str, on: Board) -> None:
    operator, args, kwargs = called(on, words := line.split())
    text = " ".join(words)
    assert text and text in on.text(operator, *args, **kwargs)


def test_two_host_numbers_are_too_many(on: Board) -> None:
    assert on.text(aten.add.Tensor, on("cpu"), on("cuda:0", 2)) == ""
    assert "same device" in on.text(aten.binary_cross_entropy.default, on("cpu"), on("cuda:0", 2), on("cpu"))
    weight, pos_weight = on("cpu"), on("cpu")
    losses = aten.binary_cross_entropy_with_logits.default
    assert "too many CPU scalars" in on.text(losses, on("cuda:0", 2), on("cuda:0", 2), weight, pos_weight)


def test_a_convolution_speaks_of_types(on: Board) -> None:
    rest = ([1], [0], [1], False, [0], 1)
    host, device = on("cpu", 1, 1, 5), on("cuda:0", 1, 1, 5)
    assert on.text(aten.convolution.default, host, on("cuda:0", 1, 1, 2), None, *rest) == (
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same"
    )
    half = on("cpu", 1, dtype=torch.float16)
    assert on.text(aten.convolution.default, device, on("cuda:0", 1, 1, 2), half, *rest) == (
        "Input type (torch.cuda.FloatTensor) and bias type (torch.HalfTensor) should be the same"
    )
    assert "got weight is on cuda:1" in on.text(aten.convolution.default, device, on("cuda:1", 1, 1, 2), None, *rest)


def test_attention_compares_query_key_and_value_first(on: Board) -> None:
    query, key = on("cpu", 1, 1, 2, 4), on("cuda:0", 1, 1, 2, 4)
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert on.text(attention, query, key, key) == (
        "Expected query, key, and value to have the same device type, but got query.device: cpu key.device: cuda:0 "
        "and value.device: cuda:0 instead."
    )
    assert "got attn_mask is on cpu" in on.text(attention, key, key, key, attn_mask=on("cpu", 2, 2))


def test_the_lengths_of_a_packed_batch_are_the_host_s_even_where_all_is_on_one_device(on: Board) -> None:
    pack = aten._pack_padded_sequence.default
    assert pack._schema.name in HOST_ONLY
    assert on.text(pack, on("cuda:0", 3, 2, 1), long(on, "cpu", 2), False) == ""
    assert on.text(pack, on("cuda:0", 3, 2, 1), long(on, "cuda:0", 2), False) == (
        "'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor"
    )


def test_a_fused_optimizer_takes_its_rate_from_the_host_but_not_its_steps(on: Board) -> None:
    lists = [[on("cuda:0", 2)] for _ in range(4)]
    rates = {"beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 0.0, "amsgrad": False, "maximize": False}
    adam = aten._fused_adam_.tensor_lr
    assert on.text(adam, *lists, [], [on("cuda:0")], lr=on("cpu"), **rates) == ""
    assert "got state_steps is on cpu" in on.text(adam, *lists, [], [on("cpu")], lr=on("cpu"), **rates)
    assert "got lr is on cuda:1" in on.text(adam, *lists, [], [on("cuda:0")], lr=on("cuda:1"), **rates)


def test_composite_operators_and_unknown_namespaces_are_answered_with_silence(on: Board) -> None:
    assert on.ask(aten.linear.default, on("cuda:0", 2, 2), on("cpu", 2, 2)) is None  # its parts are asked about
    library = torch.library.Library("devlint_test", "DEF")
    library.define("mix(Tensor a, Tensor b) -> Tensor")
    assert on.ask(torch.ops.devlint_test.mix.default, on("cuda:0", 2), on("cpu", 2)) is None
    assert on.ask(torch.ops.higher_order.cond, on("cuda:0", 2), on("cpu", 2)) is None


def test_what_torch_decomposes_in_python_is_no_composite_operator(on: Board) -> None:
    import torch._decomp  # registers decompositions that are no kernels

    rows, ones = on("cuda:0", 2, 3), on("cpu", 3)
    assert "got weight is on cpu" in on.text(
        aten.native_batch_norm.default, rows, ones, None, None, None, True, 0.1, 1e-5
    )
    assert torch._decomp.decomposition_table


# Calls of the Python API ----------------------------------------------------------------------------------------------


def test_c_code_that_compares_devices_itself_is_asked_above(on: Board) -> None:
    host, device = on("cpu", 2), on("cuda:0", 2)

    def text(function: Any, *args: Any, **kwargs: Any) -> str:
        assert concerns(function, kwargs)
        refused = call_refusal(function, args, kwargs, on.of)
        return "" if refused is None else refused.message

    assert text(torch.meshgrid, host, device) == "meshgrid expects all tensors to have the same device"
    assert text(torch.inner, host, device).startswith(
        "Expected tensor to have cpu DeviceType, but got tensor with cuda"
    )
    assert text(Tensor.tensor_split, device, host) == ""
    assert "to be on cpu, but it's on cuda:0" in text(torch.tensor_split, host, long(on, "cuda:0", 1))
    assert "linalg_norm: Expected result and input tensors to be on the same device" in text(
        torch.linalg.norm, device, out=host
    )
    assert text(torch.diag, device, out=host) == ""
    assert text(torch.add, device, host, out=host) == ""  # refused below, by the operator
    weights = [on("cuda:0", 4, 3), on("cuda:0", 4, 4)]
    rest = (False, 1, 0.0, False, False, False)
    assert text(torch.rnn_tanh, host, on("cuda:0", 1, 2, 4), weights, *rest) == (
        "Input and hidden tensors are not at the same device, found input tensor at cpu and hidden tensor at cuda:0"
    )
    assert "parameter tensor at cuda:0" in text(torch.lstm, host, (host, host), weights, *rest)
    assert text(torch.gru, device, long(on, "cpu", 2), device, weights, False, 1, 0.0, False, False) == ""


def test_most_calls_are_none_of_its_concern() -> None:
    assert not concerns(torch.add, {}) and not concerns(Tensor.to, {"device": "cuda"})


# The simulator and the table ------------------------------------------------------------------------------------------

UNINITIALISED = ("empty", "new_empty")
WANT_A_HOST_OPERAND = ("others.foreach_addcdiv_", "others.pack_padded_sequence", "tensor_split")
STAY_ON_THE_HOST = ("linspace.tensor_overload", "logspace.tensor_overload", "to")  # called with a device of their own

# Torch computes vectors beside these values as soon as a dispatch mode is on, whichever (`isTensorSubclassLike` in
# BatchLinearAlgebra.cpp), by another routine of LAPACK.
VECTORS_TOO = ("linalg.cond", "linalg.eigvalsh", "linalg.svdvals")


@pytest.fixture(scope="module")
def database() -> Iterator[list[Call]]:
    from operator_samples import calls

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the samples are small: threads would only wait for each other
    yield calls()
    torch.set_num_threads(threads)


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def to_device(tensor: Tensor) -> Tensor:
    return tensor.to("cuda")


def outcome(run: Callable[[], Any]) -> str:
    from operator_samples import places_of

    try:
        result = run()
    except RuntimeError as error:
        named = any(word in str(error).lower() for word in ("device", "cuda", "cpu"))
        return "raises" if named else f"raises for another reason: {error}"
    return f"passes, result on {places_of(result) or 'neither'}"


def test_the_table_has_enough_operators() -> None:
    from operator_samples import read_table

    table = read_table()
    mixed = [entry for entry in table["operators"].values() if entry["passes"] or entry["raises"]]
    assert len(mixed) >= 300
    assert table["provenance"] == "derived" or table["gpu"]
    assert table["torch"].split("+")[0] == torch.__version__.split("+")[0]


@pytest.mark.slow
@pytest.mark.xdist_group("op_db")
def test_the_simulator_refuses_and_takes_what_the_table_says(database: list[Call], quiet: None) -> None:
    from operator_samples import mixed, read_table, verdicts

    from devlint.runtime.simulator import simulate

    operators = read_table()["operators"]
    wrong, asked = [], 0
    with simulate(devices=1):
        for call in database:
            for mix, expected in verdicts(operators[call.name]).items():
                path, _, way = mix.partition(" ")
                found = outcome(lambda: mixed(call, path, way, to_device)())  # noqa: B023 - run at once
                asked += 1
                if found != expected:
                    wrong.append(f"{call.name}, {path} {way}: {found}; the table: {expected}")
    assert asked > 2000
    assert not wrong, "\n".join([f"{len(wrong)} of {asked}:", *wrong])


@pytest.mark.slow
@pytest.mark.xdist_group("op_db")
def test_calls_on_one_simulated_device_compute_what_the_host_computes(database: list[Call], quiet: None) -> None:
    from operator_samples import draws, tensors_of

    from devlint.runtime.simulator import simulate

    compared = [call for call in database if not call.name.startswith(UNINITIALISED + WANT_A_HOST_OPERAND)]
    expected = {}
    for call in compared:
        with Inert() if call.name in VECTORS_TOO else nullcontext():
            expected[call.name] = tensors_of(call.with_tensors(lambda _, tensor: tensor.clone())())
    wrong = []
    with simulate(devices=1):
        for call in compared:
            found = tensors_of(call.with_tensors(lambda _, tensor: to_device(tensor.clone()))())
            on = {tensor.device.type for tensor in found}
            if call.paths and found and on != {"cpu" if call.name in STAY_ON_THE_HOST else "cuda"}:
                wrong.append(f"{call.name}: results on {on}")
            host = [tensor.cpu() for tensor in found]
            same = len(host) == len(expected[call.name]) and all(map(identical, host, expected[call.name]))
            if not same and not draws(call):
                wrong.append(f"{call.name}: other values")
    assert len(compared) >= 300
    assert not wrong, "\n".join([f"{len(wrong)} of {len(compared)}:", *wrong])


class Inert(TorchDispatchMode):
    """Passes every operation on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def identical(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same to the bit, in type, shape and layout too; one NaN is as good as another."""
    try:
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    except AssertionError:
        return False
    return True


def test_an_operator_with_a_kernel_of_its_own_is_not_taken_apart() -> None:
    """`silu_backward` can be composed of others too, which round otherwise."""
    from devlint.runtime.simulator import simulate

    x, gradient = torch.linspace(-3, 3, 1000), torch.linspace(0, 1, 1000)
    plain = torch.ops.aten.silu_backward(gradient, x)
    with simulate(1):
        simulated = torch.ops.aten.silu_backward(gradient.to("cuda"), x.to("cuda")).cpu()
    assert torch.equal(simulated, plain)
