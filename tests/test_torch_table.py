"""The table of what torch does, held against the installed torch.

Nothing here needs a GPU. Which operands must share a device is asked of ``FakeTensorMode``, which knows devices that
the machine does not have and applies torch's own rules to them. It is a model: it lets a zero-dimensional host tensor
mix in every operation, where the CUDA kernels refuse many. Those refusals are generated from ``device_check`` in
``native_functions.yaml``, so ``strict`` is read from there, for the kernels each function really reaches.
Where the table and torch disagree, torch is right.
"""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path

import pytest

from devlint.flow import torch_table as table
from devlint.rules.invalid_device_argument import takes_no_device

torch = pytest.importorskip("torch", reason="the table can only be checked against an installed torch")

import torchgen  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

from waiting_calls import CHECKED, KNOWN  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

#: A device that torch knows by name and that needs no backend. (Fake "cuda" needs a CUDA build for views.)
DEVICE = "lazy"


def resolve(name: str) -> object:
    """``torch.nn.functional.relu`` -> the function; AttributeError where there is none."""
    return functools.reduce(getattr, name.split(".")[1:], torch)


# names ------------------------------------------------------------------------------------------------------


def test_every_public_attribute_of_a_module_is_known():
    public = {name for name in dir(torch.nn.Module()) if not name.startswith("_") and name != "T_destination"}
    assert public == table.MODULE_ATTRIBUTES


QUALIFIED = """
    FACTORIES IGNORE_DEFAULT LIKE KEEPING WRAPPERS HOST_FACTORIES DEVICE_TYPED FUNCTIONS WAIT_FUNCTIONS MODULES
    MODULE_BASES OPTIMIZERS DISTRIBUTIONS LOADERS DATASETS SAMPLERS DEFAULT_DEVICE_SETTERS
    STRICT_LOSSES OF_ONE_SIZE COMPARING
"""


@pytest.mark.parametrize("names", QUALIFIED.split())
def test_every_qualified_name_of_torch_exists(names):
    missing = []
    for name in getattr(table, names):
        if name.startswith("torch."):
            try:
                resolve(name)
            except AttributeError:
                missing.append(name)
    assert not missing


@pytest.mark.parametrize("names", ["METHODS", "NEW_METHODS", "ATTRIBUTES", "WAIT_METHODS", "HOST_ONLY_METHODS"])
def test_every_method_and_attribute_exists(names):
    assert [name for name in getattr(table, names) if not hasattr(torch.Tensor, name)] == []


def test_moves_exist_except_those_of_other_packages():
    foreign = {"npu", "hpu", "mlu", "musa"}  # torch_npu, habana, torch_mlu, torch_musa add them
    assert {name for name in table.MOVES | table.TYPE_MOVES if not hasattr(torch.Tensor, name)} == foreign


def test_no_function_is_in_two_tables_that_contradict_each_other():
    makers = [set(table.FACTORIES), table.LIKE, table.KEEPING, table.WRAPPERS, set(table.HOST_FACTORIES)]
    everything = [name for group in [*makers, set(table.FUNCTIONS), table.DEVICE_TYPED] for name in group]
    assert len(everything) == len(set(everything))
    assert not set(table.METHODS) & (table.MOVES | table.TYPE_MOVES | set(table.NEW_METHODS))


def test_words_used_are_those_the_table_defines():
    ops = [*table.FUNCTIONS.values(), *table.METHODS.values()]
    assert {op.operands for op in ops} <= {"all", "first", "sequence", "index", "none"}
    assert {op.result for op in ops} <= {"tensor", "tuple", "host", "numpy", "self", "none"}
    assert {op.reduces for op in ops} <= {
        "always",
        "no_dim",
        "no_dim_third",
        "dim_third",
        "loss",
        "maybe",
        "adds",
        "never",
    }
    factories = [*table.FACTORIES.values(), *table.HOST_FACTORIES.values(), *table.NEW_METHODS.values()]
    assert {f.values for f in factories} <= {"filled", "random", "python"}
    assert {f.rank for f in factories} <= {"sized", "scalar_if_number", "zero", "any"}
    assert {m.tensors for m in table.MODULES.values()} <= {"always", "default", "argument", "children", "never"}
    assert {m.kind for m in table.MODULES.values()} <= {"layer", "loss", "container", "recurrent"}


# factories --------------------------------------------------------------------------------------------------

_SPARSE = {
    "torch.sparse_coo_tensor": ([[0, 1], [1, 0]], [1.0, 2.0], (2, 2)),
    "torch.sparse_csr_tensor": ([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2)),
    "torch.sparse_csc_tensor": ([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2)),
    "torch.sparse_bsr_tensor": ([0, 1], [0], [[[1.0]]], (1, 1)),
    "torch.sparse_bsc_tensor": ([0, 1], [0], [[[1.0]]], (1, 1)),
}
FACTORY_ARGUMENTS = {
    **_SPARSE,
    "torch.sparse_compressed_tensor": ([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2)),
    "torch.full": ((2,), 1.0),
    "torch.range": (0, 3),
    "torch.linspace": (0, 1, 3),
    "torch.logspace": (0, 1, 3),
    "torch.tril_indices": (3, 3),
    "torch.triu_indices": (3, 3),
    "torch.empty_permuted": ((2, 3), (1, 0)),
    "torch.empty_strided": ((2, 3), (3, 1)),
    "torch.randint": (5, (2,)),
    "torch.normal": (0.0, 1.0, (2,)),
    "torch.tensor": ([1.0],),
    "torch.scalar_tensor": (1.0,),
    "torch.signal.windows.general_cosine": (3,),
}
FACTORY_KEYWORDS = {
    "torch.sparse_compressed_tensor": {"layout": torch.sparse_csr},
    "torch.signal.windows.general_cosine": {"a": [0.5, 0.5]},
}


def make(name, **keywords):
    return resolve(name)(*FACTORY_ARGUMENTS.get(name, (3,)), **FACTORY_KEYWORDS.get(name, {}), **keywords)


@pytest.mark.parametrize("name", table.FACTORIES)
def test_factory_obeys_device_and_the_default_device(name):
    assert make(name, device="cpu").device.type == "cpu"
    assert make(name, device="meta").device.type == "meta"
    with torch.device("meta"):
        assert make(name, device="cpu").device.type == "cpu"
        assert make(name).device.type == ("cpu" if name in table.IGNORE_DEFAULT else "meta")


@pytest.mark.parametrize("name", sorted(table.FOLLOWING))
def test_factory_follows_tensors_unless_device_or_a_default_device_says_otherwise(name):
    given = list(FACTORY_ARGUMENTS[name]) if name != "torch.normal" else [0.0, 1.0]
    followed = {position for position, _ in table.FOLLOWING[name]}
    sparse = name.startswith("torch.sparse")
    for alone in [followed] if sparse else [{position} for position in followed]:
        arguments = [torch.tensor(a, device="meta") if n in alone else a for n, a in enumerate(given)]
        assert resolve(name)(*arguments, **FACTORY_KEYWORDS.get(name, {})).device.type == "meta", name
    if name == "torch.normal":
        return
    arguments = [torch.tensor(a) if n in followed else a for n, a in enumerate(given)]
    with torch.device("meta"):
        assert resolve(name)(*arguments, **FACTORY_KEYWORDS.get(name, {})).device.type == "meta", name


@pytest.mark.parametrize("name", sorted(set(table.FACTORIES) - set(table.FOLLOWING)))
def test_other_factories_read_numbers_and_follow_no_tensor(name):
    try:
        given = FACTORY_ARGUMENTS.get(name, (3,))
        made = resolve(name)(*(torch.tensor(a) if isinstance(a, int | float) else a for a in given))
    except TypeError:
        return  # it takes no tensor, or other keywords, too
    assert made.device.type == "cpu"


def test_rank_of_factories():
    for name, factory in table.FACTORIES.items():
        made = make(name)
        assert made.dim() == (0 if factory.rank == "zero" else made.dim()), name
        if factory.rank == "sized":
            assert made.dim() >= 1, name
    assert torch.tensor(3.0).dim() == 0 and torch.tensor([3.0]).dim() == 1
    assert torch.Tensor([3.0]).dim() == 1 and torch.Tensor(3).dim() == 1


#: Functions of torch that take ``device=`` and are no factory, and why.
NO_FACTORY = {
    "torch.empty_quantized": "follows the quantized tensor it is given",
    "torch.from_dlpack": "keeps the device of what it is given; device= must be the same or host",
    "torch.from_file": "host only, in HOST_FACTORIES",
    "torch.nested.as_nested_tensor": "a prototype; keeps the device of its tensors",
    "torch.nested.nested_tensor": "a prototype; obeys device= but not the default device",
    "torch.get_device_module": "gives a Python module",
    "torch.set_default_device": "a setting",
}


def test_no_factory_of_torch_is_missing():
    known = set(table.FACTORIES) | table.LIKE | table.KEEPING | set(NO_FACTORY)
    missing = []
    for module in (torch, torch.fft, torch.signal.windows, torch.nested):
        for attribute in dir(module):
            value = getattr(module, attribute)
            name = f"{module.__name__}.{attribute}"
            if attribute.startswith("_") or not callable(value) or isinstance(value, type) or name in known:
                continue
            if _takes_device(value) and not _takes_tensor_first(value):
                missing.append(name)
    assert not missing


def _takes_device(function) -> bool:
    try:
        return "device" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin: its docstring holds the signature
        return re.search(r"\bdevice=", (function.__doc__ or "").split("->")[0]) is not None


def _takes_tensor_first(function) -> bool:
    return re.match(r"\s*\w+\((input|self|tensor)\b", function.__doc__ or "") is not None


@pytest.mark.parametrize("name", sorted(table.LIKE))
def test_like_follows_its_argument_unless_told_otherwise(name):
    arguments = {"torch.full_like": (1.0,), "torch.randint_like": (5,)}.get(name, ())
    there, here = torch.ones(2, device="meta"), torch.ones(2)
    assert resolve(name)(there, *arguments).device.type == "meta"
    assert resolve(name)(there, *arguments, device="cpu").device.type == "cpu"
    with torch.device("meta"):
        assert resolve(name)(here, *arguments).device.type == "cpu"


def test_no_like_function_is_missing():
    assert {f"torch.{n}" for n in dir(torch) if n.endswith("_like") and not n.startswith("_")} == table.LIKE


@pytest.mark.parametrize("name", sorted(table.KEEPING))
def test_keeping_leaves_tensors_unless_device_or_a_default_device_says_otherwise(name):
    keep, host = resolve(name), torch.ones(2)
    assert keep(torch.ones(2, device="meta")).device.type == "meta"
    assert keep(host, device="meta").device.type == "meta"
    with torch.device("meta"):
        assert keep([1.0]).device.type == "meta"
        assert keep(host).device.type == "meta"


@pytest.mark.parametrize("name", sorted(table.WRAPPERS))
def test_wrappers_leave_the_tensor_where_it_is(name):
    with torch.device("meta"):
        assert resolve(name)(torch.ones(2, device="cpu")).device.type == "cpu"
    assert resolve(name)(torch.ones(2, device="meta")).device.type == "meta"


def test_what_is_said_to_take_no_device_refuses_one():
    known = [*table.FUNCTIONS, *table.MODULES, *table.OPTIMIZERS, *table.WRAPPERS, "torch.utils.data.DataLoader"]
    said = [name for name in known if takes_no_device(name)]
    assert len(said) > 500
    for name in said:
        if name.startswith(("torch.nn.", "torch.optim.")) and isinstance(resolve(name), type):
            with pytest.raises(TypeError):  # before it asks for what it needs
                resolve(name)(device="cpu")
        operators = getattr(torch.ops.aten, name.rpartition(".")[2], None)
        for overload in operators.overloads() if operators is not None else ():
            assert "device" not in [argument.name for argument in getattr(operators, overload)._schema.arguments]


@pytest.mark.parametrize("name", table.HOST_FACTORIES)
def test_host_factories_ignore_the_default_device(name, tmp_path):
    numpy = pytest.importorskip("numpy")
    (tmp_path / "raw").write_bytes(bytes(8))
    calls = {
        "torch.from_numpy": lambda make: make(numpy.ones(2)),
        "torch.frombuffer": lambda make: make(bytearray(8), dtype=torch.uint8),
        "torch.from_file": lambda make: make(str(tmp_path / "raw"), size=8, dtype=torch.uint8),
    }
    call = calls.get(name, lambda make: make([1]))
    with torch.device("meta"):
        assert call(resolve(name)).device.type == "cpu"
    torch.set_default_device("meta")
    try:
        assert call(resolve(name)).device.type == "cpu"
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("name", table.NEW_METHODS)
def test_new_methods_follow_the_receiver_unless_told_otherwise(name):
    arguments = {
        "new_full": ((2,), 1.0),
        "new_empty_strided": ((2, 3), (3, 1)),
        "new_tensor": ([1.0],),
    }.get(name, (2,))
    there, here = torch.ones(2, device="meta"), torch.ones(2)
    with torch.device("meta"):
        assert getattr(here, name)(*arguments).device.type == "cpu"
    if name != "new":  # refuses "meta"
        assert getattr(there, name)(*arguments).device.type == "meta"
        assert getattr(there, name)(*arguments, device="cpu").device.type == "cpu"


def test_no_new_method_is_missing():
    assert {n for n in dir(torch.Tensor) if n.startswith("new_") or n == "new"} == set(table.NEW_METHODS)


def test_default_device_setters_redirect_factories():
    torch.set_default_device("meta")
    try:
        assert torch.zeros(2).device.type == "meta"
    finally:
        torch.set_default_device(None)


# modules, optimizers, distributions -------------------------------------------------------------------------

#: Constructor arguments; the other classes take none, or one of the common ones below.
MODULE_ARGUMENTS = {
    "Bilinear": (2, 2, 2),
    "AdaptiveLogSoftmaxWithLoss": (8, 10, [4]),
    "FractionalMaxPool2d": (2, 1),
    "FractionalMaxPool3d": (2, 1),
    "LPPool1d": (2, 2),
    "LPPool2d": (2, 2),
    "LPPool3d": (2, 2),
    "MultiheadAttention": (4, 2),
    "Transformer": (4, 2, 1, 1),
    "TransformerEncoderLayer": (4, 2),
    "TransformerDecoderLayer": (4, 2),
    "RNNBase": ("GRU", 2, 2),
    "RNNCellBase": (2, 2, True, 3),
    "GroupNorm": (1, 2),
    "Threshold": (1.0, 1.0),
    "Unflatten": (0, (1, 2)),
    "Fold": (2, 1),
    "Upsample": (2,),
}
COMMON_ARGUMENTS = ((), (2,), (2, 2), (2, 2, 1))
#: tensors="argument": the argument that gives some
TENSORS_BY = {
    **{f"InstanceNorm{d}d": {"affine": True} for d in (1, 2, 3)},
    "BCEWithLogitsLoss": {"pos_weight": torch.ones(2)},
    "TripletMarginWithDistanceLoss": {"distance_function": torch.nn.Linear(2, 2)},
}
#: tensors="default": the arguments that take all away
TENSORS_OFF = {
    "LayerNorm": {"elementwise_affine": False},
    "RMSNorm": {"elementwise_affine": False},
    "GroupNorm": {"affine": False},
}


def holds_tensors(module) -> bool:
    # lazy modules hold uninitialized parameters; batches counted so far are a buffer too
    return any(True for _ in module.parameters()) or any(b is not None for b in module.buffers())


def build(stem, **keywords):
    candidates = [MODULE_ARGUMENTS[stem]] if stem in MODULE_ARGUMENTS else COMMON_ARGUMENTS
    for arguments in candidates:
        try:
            return getattr(torch.nn, stem)(*arguments, **keywords)
        except TypeError:
            continue
    raise AssertionError(f"torch.nn.{stem}: no recipe builds it")


def test_every_module_class_of_torch_nn_is_listed():
    public = {n for n in dir(torch.nn) if isinstance(getattr(torch.nn, n), type) and not n.startswith("_")}
    modules = {f"torch.nn.{n}" for n in public if issubclass(getattr(torch.nn, n), torch.nn.Module)}
    assert modules - set(table.MODULES) == set()


STANDARD = sorted(n.removeprefix("torch.nn.") for n, fact in table.MODULES.items() if fact.tensors != "children")


@pytest.mark.parametrize("stem", [s for s in STANDARD if not s.startswith("Parameter")])
def test_module_holds_tensors_as_claimed(stem):
    claim = table.MODULES[f"torch.nn.{stem}"].tensors
    if claim == "argument":
        assert not holds_tensors(build(stem))
        assert holds_tensors(build(stem, **TENSORS_BY.get(stem, {"weight": torch.ones(2)})))
        return
    assert holds_tensors(build(stem)) == (claim != "never")
    if claim == "default":
        off = TENSORS_OFF.get(stem, {"affine": False, "track_running_stats": False})
        assert not holds_tensors(build(stem, **off))


def test_containers_hold_the_tensors_put_in():
    linear, nothing = torch.nn.Linear(2, 2), torch.nn.ReLU()
    for build_one in (torch.nn.Sequential, lambda m: torch.nn.ModuleList([m]), lambda m: torch.nn.ModuleDict({"a": m})):
        assert holds_tensors(build_one(linear)) and not holds_tensors(build_one(nothing))
    assert holds_tensors(torch.nn.ParameterList([torch.ones(2)])) and not holds_tensors(torch.nn.ParameterList())
    assert holds_tensors(torch.nn.ParameterDict({"a": torch.ones(2)})) and not holds_tensors(torch.nn.ParameterDict())


@pytest.mark.parametrize("stem", sorted({*STANDARD, *table.REGISTERED} - {"RNNBase", "RNN", "LSTM", "GRU"}))
def test_what_a_module_registers_itself(stem):
    if stem.startswith(("_", "Parameter")) or stem == "RNNCellBase":
        return  # cannot be built alone: the classes above are of these
    made = build(stem)
    assert {*made._buffers, *made._parameters} == table.REGISTERED.get(stem, set())


def test_what_a_module_registers_stays_registered_or_refuses_a_plain_tensor():
    for stem, names in table.REGISTERED.items():
        made = build(stem) if not stem.startswith("_") and stem != "RNNCellBase" else torch.nn.Module()
        for name in names if type(made) is not torch.nn.Module else ():
            if name in made._buffers:
                setattr(made, name, torch.ones(2))
                assert name in made._buffers and name not in vars(made)
            else:
                with pytest.raises(TypeError, match="cannot assign"):
                    setattr(made, name, torch.ones(2))


def test_kinds_of_modules():
    for name, fact in table.MODULES.items():
        kind = resolve(name)
        is_loss = issubclass(kind, torch.nn.modules.loss._Loss) or kind.__name__ == "TripletMarginWithDistanceLoss"
        assert (fact.kind == "loss") == is_loss, name
        is_recurrent = issubclass(kind, (torch.nn.RNNBase, torch.nn.modules.rnn.RNNCellBase))
        assert (fact.kind == "recurrent") == is_recurrent, name


def test_optimizers_are_complete_and_eager_state_is_true():
    optim = {f"torch.optim.{n}" for n in dir(torch.optim) if isinstance(getattr(torch.optim, n), type)}
    assert optim - {"torch.optim.Optimizer"} == table.OPTIMIZERS
    eager = set()
    for name in table.OPTIMIZERS:
        optimizer = resolve(name)([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1)
        if any(isinstance(v, torch.Tensor) for state in optimizer.state.values() for v in state.values()):
            eager.add(name)
    assert eager == table.EAGER_STATE


def test_distributions_are_complete():
    base = torch.distributions.Distribution
    kinds = {n for n in torch.distributions.__all__ if isinstance(getattr(torch.distributions, n), type)}
    found = {f"torch.distributions.{n}" for n in kinds if issubclass(getattr(torch.distributions, n), base)}
    assert found - {"torch.distributions.Distribution", "torch.distributions.ExponentialFamily"} == table.DISTRIBUTIONS


def test_samples_live_where_the_parameters_do():
    mean = torch.zeros(2, device="meta")
    normal = torch.distributions.Normal(mean, 1.0, validate_args=False)
    assert normal.sample().device.type == normal.log_prob(mean).device.type == "meta"
    assert torch.distributions.Normal(0.0, 1.0).sample().device.type == "cpu"


# operations -------------------------------------------------------------------------------------------------

# A small positive definite matrix of numbers between 0 and 1, so that every function is defined there
X = torch.tensor([[0.75, 0.12, 0.05], [0.12, 0.5, 0.02], [0.05, 0.02, 0.4]])
V = torch.tensor([0.25, 0.5, 0.75])
N = torch.tensor([1, 2, 1])
NN = torch.tensor([[0, 1, 2], [1, 1, 0], [2, 0, 1]])
MASK = NN > 0
B = X.expand(2, 3, 3).contiguous()
IMAGE = torch.linspace(0.1, 0.9, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)
SIGNAL, VOLUME = IMAGE.flatten(2), IMAGE[..., None].expand(2, 3, 4, 4, 4).contiguous()
NUMBER = torch.tensor(0.5)

#: Arguments, by qualified name, by method (".where"), or by last name; an in-place name falls back on its plain twin.
SAMPLES = {
    "addbmm": (X, B, B),
    "addmv": (V, X, V),
    "addr": (X, V, V),
    "affine_grid": (IMAGE[:, 0, :2, :3], (2, 3, 4, 4)),
    "affine_grid_generator": (IMAGE[:, 0, :2, :3], (2, 3, 4, 4), False),
    "alpha_dropout": (X, 0.5, True),
    "as_strided": (X, (2, 2), (3, 1)),
    "as_strided_scatter": (X, X[:2, :2], (2, 2), (3, 1)),
    "baddbmm": (B, B, B),
    "batch_norm": (X, V, V, V, V, True),
    "torch.batch_norm": (X, V, V, V, V, True, 0.1, 1e-5, False),
    "bilinear": (X, X, B[:1], V[:1]),
    "bincount": (N,),
    "block_diag": (X, X),
    "bmm": (B, B),
    "broadcast_shapes": ((2, 1), (1, 3)),
    "bucketize": (X, V),
    "can_cast": (torch.float, torch.int),
    "cartesian_prod": (V, V),
    "chain_matmul": (X, X),
    "channel_shuffle": (IMAGE, 1),
    "combinations": (V,),
    "complex": (X, X),
    "conv1d": (SIGNAL, SIGNAL[..., :2], V[:2]),
    "conv2d": (IMAGE, IMAGE[..., :2, :2], V[:2]),
    "conv3d": (VOLUME, VOLUME[..., :2, :2, :2], V[:2]),
    "conv_tbc": (B, B, V),
    "conv_transpose1d": (SIGNAL, SIGNAL[0][:, None], V[:1]),
    "conv_transpose2d": (IMAGE, IMAGE[0][:, None], V[:1]),
    "conv_transpose3d": (VOLUME, VOLUME[0][:, None], V[:1]),
    "convolution": (IMAGE, IMAGE, V[:2], [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "cosine_embedding_loss": (X, X + 0.1, N),
    "ctc_loss": (torch.zeros(4, 2, 3), torch.ones(2, 2, dtype=torch.long), torch.tensor([4, 4]), torch.tensor([2, 2])),
    "diagonal_scatter": (X, V),
    "dot": (V, V),
    "dropout": (X, 0.5, True),
    "einsum": ("ij,jk->ik", X, X),
    "embedding": (X, N),
    "torch.nn.functional.embedding": (N, X),
    "embedding_bag": (NN, X),
    "expand_as": (V, X),
    "feature_alpha_dropout": (X, 0.5, True),
    "feature_dropout": (X, 0.5, True),
    "flip": (X, (0,)),
    "float_power_": (X.double(), X.double() + 0.1),
    "fold": (SIGNAL[:, :, :1].expand(2, 3, 16), (4, 4), 1),
    "fractional_max_pool2d": (IMAGE, 2, 3),
    "fractional_max_pool3d": (VOLUME, 2, 2),
    "gather": (X, 0, NN),
    "geometric_": (X, 0.5),
    "ger": (V, V),
    "glu": (SIGNAL,),
    "grid_sample": (IMAGE, IMAGE.permute(0, 2, 3, 1)[..., :2]),
    "grid_sampler": (IMAGE, IMAGE.permute(0, 2, 3, 1)[..., :2], 0, 0, False),
    "group_norm": (X, 1, V, V),
    "gru": (B, B[:1], [B[0, 0].repeat(9, 1)] * 2 + [V.repeat(3)] * 2, True, 1, 0.0, False, False, False),
    "gru_cell": (X, X, V.repeat(9, 1).reshape(9, 3), V.repeat(9, 1).reshape(9, 3)),
    "histogram": (X, V),
    "householder_product": (X, V),
    "imag": (torch.complex(X, X),),
    "index_add": (X, 0, N, X),
    "index_copy": (X, 0, torch.tensor([0, 1, 2]), X),
    "index_fill": (X, 0, N, NUMBER),
    "index_put": (X, (N,), X),
    "__getitem__": (X, N),
    "__contains__": (X, NUMBER),
    "index_reduce": (X, 0, N, X, "amax"),
    "index_select": (X, 0, N),
    "instance_norm": (SIGNAL, V, V, V, V),
    "torch.instance_norm": (SIGNAL, V, V, V, V, True, 0.1, 1e-5, False),
    **dict.fromkeys(["is_nonzero", "item", "__bool__", "__int__", "__float__", "__complex__"], (NUMBER,)),
    "__index__": (N[0],),
    "__format__": (NUMBER, ""),
    "istft": (torch.complex(torch.ones(3, 5), torch.ones(3, 5)), 4),
    "layer_norm": (X, (3,), V, V),
    "ldl_solve": (X, torch.tensor([1, 2, 3], dtype=torch.int32), X),
    "lp_pool1d": (SIGNAL, 2, 2),
    "lp_pool2d": (IMAGE, 2, 2),
    "lp_pool3d": (VOLUME, 2, 2),
    "lstm": (B, (B[:1], B[:1]), [V.repeat(12, 1)] * 2 + [V.repeat(4)] * 2, True, 1, 0.0, False, False, False),
    "lstm_cell": (X, (X, X), V.repeat(12, 1), V.repeat(12, 1)),
    "lu_solve": (X, X, torch.tensor([1, 2, 3], dtype=torch.int32)),
    "torch.linalg.lu_solve": (X, torch.tensor([1, 2, 3], dtype=torch.int32), X),
    "lu_unpack": (X, torch.tensor([1, 2, 3], dtype=torch.int32)),
    "masked_fill": (X, MASK, NUMBER),
    "masked_scatter": (X, MASK, X),
    "masked_select": (X, MASK),
    "max_unpool1d": (SIGNAL[..., :2].contiguous(), torch.arange(2).expand(2, 3, 2).contiguous(), 2),
    "max_unpool2d": (IMAGE[..., :2, :2].contiguous(), torch.arange(4).reshape(2, 2).expand(2, 3, 2, 2).contiguous(), 2),
    "max_unpool3d": (
        VOLUME[..., :2, :2, :2].contiguous(),
        torch.arange(8).reshape(2, 2, 2).expand(2, 3, 2, 2, 2).contiguous(),
        2,
    ),
    "meshgrid": (V, V),
    "multi_head_attention_forward": (B, B, B, 3, 1, V.repeat(9, 1), V.repeat(3), None, None, False, 0.0, X, V),
    "multi_margin_loss": (X, N),
    "multilabel_margin_loss": (X, NN),
    "mv": (X, V),
    "nll_loss": (X, N, V),
    "cross_entropy": (X, N, V),
    "linear_cross_entropy": (X, X, N),
    "nonzero_static": (X,),
    "outer": (V, V),
    "ormqr": (X, V, X),
    "orgqr": (X, V),
    "pad_sequence": ([V, V[:2]],),
    "permute": (X, (1, 0)),
    "pixel_shuffle": (VOLUME[:, :1].expand(2, 4, 4, 4, 4)[..., 0], 2),
    "polygamma": (1, X),
    ".polygamma": (X, 1),
    "prelu": (X, V[:1]),
    "promote_types": (torch.float, torch.int),
    "put": (X, N, V),
    "quantile": (X, V),
    "renorm": (X, 2, 0, 1.0),
    "reshape_as": (X, X),
    "resize_as_": (X, X),
    "rms_norm": (X, (3,), V),
    **dict.fromkeys(["rnn_relu", "rnn_tanh"], (B, B[:1], [X, X, V, V], True, 1, 0.0, False, False, False)),
    **dict.fromkeys(["rnn_relu_cell", "rnn_tanh_cell"], (X, X, X, X)),
    "scatter": (X, 0, NN, X),
    "scatter_add": (X, 0, NN, X),
    "scatter_reduce": (X, 0, NN, X, "sum"),
    "select_scatter": (X, V, 0, 1),
    "slice_scatter": (X, X[:2], 0, 0, 2),
    "solve_triangular": (X, X),
    **dict.fromkeys(["split_with_sizes", "unsafe_split_with_sizes"], (X, (1, 2))),
    "stft": (V.repeat(8), 4),
    "take": (X, NN),
    "take_along_dim": (X, NN, 0),
    "tensorsolve": (X.reshape(3, 3), V),
    "tensordot": (X, X, 1),
    "unflatten": (X, 0, (3, 1)),
    "vander": (V,),
    "vdot": (V, V),
    "view_as": (X, X),
    "view_as_complex": (X[:, :2],),
    "view_as_real": (torch.complex(X, X),),
    "where": (MASK, X, X),
    ".where": (X, MASK, X),
}
KEYWORDS = {
    "nonzero_static": {"size": 4},
    "solve_triangular": {"upper": True},
    "stft": {"return_complex": True},
}
#: Listed, but not run here, and why.
NOT_RUN = {
    **dict.fromkeys(["int_repr", "qscheme", "q_scale", "q_zero_point"], "quantized tensors only"),
    **dict.fromkeys(["values", "indices", "coalesce", "is_coalesced"], "sparse tensors only"),
    **dict.fromkeys(["crow_indices", "col_indices", "ccol_indices", "row_indices"], "sparse tensors only"),
    "to_padded_tensor": "nested tensors only",
    "as_subclass": "wants a class",
    "resize": "deprecated, removed from autograd",
    "record_stream": "wants a stream",
    **dict.fromkeys(
        ["backward", "retain_grad", "grad", "clip_grad_norm_", "get_total_norm"], "want a graph; tried below"
    ),
}

#: Tried in turn where SAMPLES names no arguments: the first that torch accepts is the sample.
SEQUENCE = [((X, X + 0.1),), ((V, V + 0.1),)]
FIRST_ONLY = [(X,), (X, 1), (X, 0, 1), (X, (3, 3)), (X, 2, 0), (X, 0, 0, 1), (NN,), (NN, 1), (IMAGE,), (IMAGE, 2)]
SEVERAL = [(X, X + 0.1), (NN, NN + 1), (X, X + 0.1, X + 0.2), (X, X + 0.1, 0.5)]

OPERATIONS = [(name, resolve(name), op) for name, op in table.FUNCTIONS.items()]
OPERATIONS += [(f".{name}", getattr(torch.Tensor, name), op) for name, op in table.METHODS.items()]
OPERATIONS = [operation for operation in OPERATIONS if operation[0].rpartition(".")[2] not in NOT_RUN]


def copied(tree):
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


@functools.cache
def sample(name):
    """Arguments and keywords that the operation accepts."""
    last = name.rpartition(".")[2]
    op = table.METHODS[last] if name.startswith(".") else table.FUNCTIONS[name]
    keywords = KEYWORDS.get(last, {})
    for key in (name, last, "." * name.startswith(".") + last.rstrip("_"), last.rstrip("_")):
        if key in SAMPLES:
            return SAMPLES[key], keywords
    function = getattr(torch.Tensor, last) if name.startswith(".") else resolve(name)
    kinds = {"sequence": SEQUENCE, "all": SEVERAL + FIRST_ONLY, "index": SEVERAL}
    for arguments in kinds.get(op.operands, FIRST_ONLY + SEVERAL):
        try:
            function(*copied(arguments), **keywords)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError, AttributeError):
            continue
        return arguments, keywords
    raise AssertionError(f"{name}: no sample runs; add one to SAMPLES")


def call(name, function, arguments=None):
    default, keywords = sample(name)
    torch.manual_seed(0)
    return function(*copied(default if arguments is None else arguments), **keywords)


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def complain(found):
    """One assertion for a whole table, so that a new torch shows everything that changed at once."""
    assert not found, "\n".join(found)


def test_result_of_each_operation():
    wrong = []
    for name, function, op in OPERATIONS:
        arguments = copied(sample(name)[0])
        result = function(*arguments, **sample(name)[1])
        # max, min and median give one tensor where no dimension is named
        kinds = {
            "tensor": isinstance(result, torch.Tensor),
            "tuple": isinstance(result, (tuple, list)) and bool(tensors(result)),
            "host": not tensors(result),
            "numpy": type(result).__module__ == "numpy",
            "self": result is tree_leaves(arguments)[0],
            "none": result is None,
        }
        if op.result == "tuple" and op.reduces == "no_dim" and kinds["tensor"]:
            result = function(arguments[0], 0)
            kinds["tuple"] = isinstance(result, tuple)
        if not kinds[op.result]:
            wrong.append(f"{name}: {op.result}, but torch gives {type(result).__name__}")
    complain(wrong)


def test_when_each_operation_gives_a_zero_dimensional_tensor():
    wrong = []
    for name, function, op in OPERATIONS:
        if op.result not in ("tensor", "tuple", "self"):
            continue
        arguments = sample(name)[0]
        if op.reduces in ("no_dim", "no_dim_third"):
            flat = (X, 0.5) if "quantile" in name else (X,)
            ranks = [t.dim() for t in tensors(call(name, function, flat))]
            expected = all(rank == 0 for rank in ranks)
            if op.reduces == "no_dim_third":
                third = (X, 0.5, 0) if "quantile" in name else (X, 2, 0)
                expected = expected and call(name, function, (X, third[1])).dim() == 0
                expected = expected and call(name, function, third).dim() == 1
            else:
                expected = expected and all(t.dim() == 1 for t in tensors(function(X, dim=0)))
                expected = expected and all(t.dim() == 0 for t in tensors(function(X.flatten(), dim=0)))
        elif op.reduces == "dim_third":
            ranks = [function(X, X).dim(), function(X, X, dim=0).dim(), function(X[0], X[0], dim=0).dim()]
            expected = ranks == [1, 1, 0]
        elif op.reduces == "loss":
            none = function(*copied(arguments), reduction="none")
            ranks = [call(name, function).dim(), none.dim()]
            expected = ranks[0] == 0 and ranks[1] > 0
        else:
            ranks = [t.dim() for t in tensors(call(name, function))]
            expected = {
                "always": all(rank == 0 for rank in ranks),
                "adds": all(rank > 0 for rank in ranks),
                "never": all(rank > 0 for rank in ranks),
                "maybe": True,
            }[op.reduces]
            if op.reduces == "always":
                with pytest.raises(TypeError):
                    function(*copied(arguments), dim=0)
            shrunk = tree_map(lambda leaf: leaf.flatten()[0] if isinstance(leaf, torch.Tensor) else leaf, arguments)
            try:
                ranks = [t.dim() for t in tensors(call(name, function, shrunk))]
            except (RuntimeError, IndexError, ValueError, TypeError, AssertionError, NotImplementedError):
                pass  # takes no zero-dimensional tensor
            else:
                expected = (
                    expected
                    and {
                        "always": all(rank == 0 for rank in ranks),
                        "adds": all(rank > 0 for rank in ranks),
                        "never": all(rank == 0 for rank in ranks),
                        "maybe": True,
                    }[op.reduces]
                )
        if not expected:
            wrong.append(f"{name}: {op.reduces}, but torch gives {ranks}")
    complain(wrong)


# devices ----------------------------------------------------------------------------------------------------

#: What FakeTensor cannot run here, by last name, and why.
NOT_FAKE = {
    **dict.fromkeys(["argwhere", "bincount", "combinations", "masked_select", "nonzero", "unique"], "sizes are values"),
    **dict.fromkeys(["unique_consecutive", "lstsq", "ctc_loss"], "sizes are values"),
    **dict.fromkeys(["corrcoef", "cov", "gaussian_nll_loss", "istft", "one_hot"], "branch on a value"),
    **dict.fromkeys(["dequantize", "geqrf", "binomial", "to_mkldnn"], "no kernel for DEVICE"),
    **dict.fromkeys(
        [f"to_sparse{kind}" for kind in ("", "_coo", "_csr", "_csc", "_bsr", "_bsc")], "no kernel for DEVICE"
    ),
    "share_memory_": "host only in a fake; real device tensors are left as they are",
    "unravel_index": "takes DEVICE and DEVICE:0 for two devices",
}

#: Where FakeTensor lets operands mix and a real device does not, or the other way round.
CONVOLUTIONS = {"convolution", *(f"conv{t}{d}d" for t in ("", "_transpose") for d in (1, 2, 3))}
FAKE_IS_LAX = dict.fromkeys(CONVOLUTIONS, "the convolution kernels check, FakeTensor does not")
FAKE_IS_LAX["__getitem__"] = "indices on a device are refused for a host tensor, not by FakeTensor"
FAKE_IS_STRICT = dict.fromkeys(
    ["as_strided_scatter", "diagonal_scatter", "select_scatter", "slice_scatter"],
    "they copy into a part of the result, which crosses devices",
)

MISMATCH = re.compile(r"same device|Expected tensor to have \w+ Device|Mismatching .* device")


def run_fake(name, function, places, zero_dimensional=None):
    """The devices of the result, with each tensor argument at its place; raises what FakeTensor raises."""
    arguments, keywords = sample(name)
    leaves = [leaf.flatten()[0] if i == zero_dimensional else leaf for i, leaf in enumerate(tensors(arguments))]
    leaves = copied(leaves)  # views of one tensor would share their fake storage
    with FakeTensorMode() as mode:
        fakes = iter([mode.from_tensor(leaf).to(place) for leaf, place in zip(leaves, places, strict=True)])
        arguments = tree_map(lambda leaf: next(fakes) if isinstance(leaf, torch.Tensor) else leaf, arguments)
        return {t.device.type for t in tensors(function(*arguments, **keywords))}


def agrees(name, function, places, zero_dimensional=None):
    """Whether FakeTensor lets the operation run with its arguments there. Any other error fails the test."""
    try:
        run_fake(name, function, places, zero_dimensional)
    except RuntimeError as error:
        if not MISMATCH.search(str(error)):
            raise
        return False
    return True


PLACED = [
    operation
    for operation in OPERATIONS
    if operation[2].result in ("tensor", "tuple", "self") and operation[0].rpartition(".")[2] not in NOT_FAKE
]


def test_results_are_where_the_operands_are():
    wrong = []
    for name, function, _ in PLACED:
        found = run_fake(name, function, [DEVICE] * len(tensors(sample(name)[0])))
        if found != {DEVICE}:
            wrong.append(f"{name}: result on {found}")
    complain(wrong)


def test_which_operands_must_share_a_device():
    wrong = []
    for name, function, op in PLACED:
        last = name.rpartition(".")[2]
        leaves = tensors(sample(name)[0])
        if len(leaves) < 2 or last in FAKE_IS_LAX or last in FAKE_IS_STRICT:
            continue
        for position, leaf in enumerate(leaves):
            if leaf.dim() == 0:
                continue
            places = [DEVICE] * len(leaves)
            places[position] = "cpu"
            free = op.operands in ("first", "none") or (op.operands == "index" and position == 1)
            if agrees(name, function, places) != free:
                wrong.append(
                    f"{name}: {op.operands}, but argument {position} on the host is {'refused' if free else 'accepted'}"
                )
    complain(wrong)


def test_a_zero_dimensional_host_tensor_mixes_where_the_table_is_not_strict():
    wrong = []
    for name, function, op in PLACED:
        leaves = tensors(sample(name)[0])
        if op.strict or op.operands != "all" or len(leaves) < 2:
            continue
        shapes = {tuple(leaf.shape) for leaf in leaves}
        if len(shapes) > 1 or op.reduces == "adds":
            continue  # not elementwise: a zero-dimensional argument would be refused for its shape
        for position in range(1, len(leaves)):
            places = [DEVICE] * len(leaves)
            places[position] = "cpu"
            try:
                fine = agrees(name, function, places, zero_dimensional=position)
            except (RuntimeError, ValueError, IndexError):
                continue  # refused for its shape
            if not fine:
                wrong.append(f"{name}: argument {position} may not be a zero-dimensional host tensor")
    complain(wrong)


def test_a_host_tensor_may_not_be_written_from_a_device_whatever_its_dimensions():
    with FakeTensorMode():
        host, there = torch.ones(()), torch.ones((), device=DEVICE)
        with pytest.raises(RuntimeError):
            host.add_(torch.ones(2, device=DEVICE))
        assert there.add_(host).device.type == DEVICE


#: Operations that reach their CUDA kernel by a way not taken on the host: the kernel that checks.
BY_ANOTHER_WAY = {
    "addr_": "addr",
    "mv": "addmv",
    "cholesky_solve": "_cholesky_solve_helper",
    "convolution": "cudnn_convolution",
    "conv_tbc": "addmm",
    "embedding": "index_select",
    "masked_scatter": "masked_scatter_",
    "mkldnn_rnn_layer": "_cudnn_rnn",
    "put": "put_",
    "stack": "cat",
}
#: Strictness that no kernel decides.
DECIDED_ELSEWHERE = {
    "meshgrid": "checks the devices itself",
    **dict.fromkeys(["cosine_similarity", "l1_loss", "mse_loss", "smooth_l1_loss"], "expand their arguments first"),
    "kron": "gives its arguments dimensions first",
    "lstm": "cuDNN's wrapper checks",
}


@functools.cache
def kernels():
    """Name of each native function -> its declaration."""
    text = (Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml").read_text()
    return {m[1]: block for block in re.split(r"\n(?=- func:)", text) if (m := re.match(r"- func: ([\w.]+)\(", block))}


def checks_devices(kernel):
    """Whether the generated CUDA kernel compares the devices of all its tensors; None where there is no such kernel."""
    kernel = BY_ANOTHER_WAY.get(kernel, kernel)
    for name in (kernel, f"{kernel}.out", f"{kernel.partition('.')[0]}.out"):
        block = kernels().get(name, "")
        if "device_check: NoCheck" in block:
            return False
        if "structured_delegate:" in block or re.search(r"^\s+[\w, ]*\bCUDA\b[\w, ]*:", block, re.M):
            return True
    return None


class Kernels(TorchDispatchMode):
    """Records the kernels called with more than one tensor."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if len(tensors((args, kwargs))) > 1:
            self.seen.add(func.name().removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def test_strict_is_what_the_cuda_kernels_check():
    wrong = []
    for name, function, op in OPERATIONS:
        arguments, keywords = sample(name)
        if op.operands in ("first", "none") or len(tensors(arguments)) < 2:
            continue
        if name.rpartition(".")[2] in DECIDED_ELSEWHERE:
            continue
        with Kernels() as recorded:
            function(*copied(arguments), **keywords)
        found = {kernel: checks_devices(kernel) for kernel in recorded.seen}
        if any(found.values()) != op.strict:
            wrong.append(f"{name}: strict={op.strict}, but its kernels check: {found}")
    complain(wrong)


# waiting ----------------------------------------------------------------------------------------------------

#: FakeTensor has no values: an operation that must read one, or whose result's size is one, says so.
NEEDS_A_VALUE = ("DynamicOutputShapeException", "DataDependentOutputException")
#: ... and need none on CUDA, as far as torch's sources tell
NO_WAIT = {"lstsq": "its size is known", "ctc_loss": "lengths are host data by habit"}


def test_operations_that_need_a_value_on_the_host_are_waits():
    found, listed = set(), table.WAIT_FUNCTIONS | {f".{name}" for name in table.WAIT_METHODS}
    for name, function, _ in OPERATIONS:
        if name.rpartition(".")[2] in NO_WAIT or name.rpartition(".")[2] in ("tolist", "numpy", "__array__"):
            continue
        try:
            run_fake(name, function, [DEVICE] * len(tensors(sample(name)[0])))
        except Exception as error:
            if type(error).__name__ in NEEDS_A_VALUE:
                found.add(name)
    assert found - listed == set()


#: Listed, and no call of that name was timed on a GPU.
NOT_TIMED = {"cov", "corrcoef", "where"}  # `where` under another name: "where, of one"


def test_waits_are_those_that_a_gpu_was_seen_to_make():
    listed = {name.rpartition(".")[2] for name in table.WAIT_METHODS | table.WAIT_FUNCTIONS}
    timed = {name for name in listed if not name.startswith("__")} - NOT_TIMED
    assert {name for name in timed if name not in KNOWN} == set()
    assert {name for name in listed if name in KNOWN and not KNOWN[name].waits} == set()
    assert {f"torch.{name}" for name in CHECKED} == table.CHECKED_FUNCTIONS


def test_waits_that_depend_on_their_arguments():
    with FakeTensorMode():
        x = torch.ones(3, device=DEVICE)
        torch.where(x > 0, x, x)
        torch.nn.functional.one_hot(x.long(), 4)
        x.repeat_interleave(2)
        for call_one in (
            lambda: torch.where(x > 0),
            lambda: torch.nn.functional.one_hot(x.long()),
            lambda: x.repeat_interleave(x.long()),
            lambda: x[x > 0],
            lambda: bool(x.sum()),
            lambda: x.sum().item(),
        ):
            with pytest.raises(Exception) as raised:
                call_one()
            assert type(raised.value).__name__ in NEEDS_A_VALUE


def test_operations_that_want_a_graph():
    weight = torch.nn.Parameter(torch.ones(2))
    (gradient,) = torch.autograd.grad(weight.sum(), [weight])
    assert gradient.shape == (2,)
    assert weight.sum().backward() is None and weight.sum().retain_grad() is None
    assert (
        torch.nn.utils.clip_grad_norm_([weight], 1.0).dim() == torch.nn.utils.get_total_norm([weight.grad]).dim() == 0
    )


def test_host_only_methods_refuse_a_device_tensor():
    # apply_, map_ and map2_ say so in their documentation; "meta" lets them pass
    for name in table.HOST_ONLY_METHODS - {"apply_", "map_", "map2_"}:
        with pytest.raises((RuntimeError, TypeError)):
            getattr(torch.ones(2, device="meta"), name)()


# memory -----------------------------------------------------------------------------------------------------

_VIEW_ARGUMENTS: dict[str, tuple] = {
    "view": (4, 2),
    "view_as": (torch.zeros(8),),
    "unsqueeze": (0,),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "movedim", "moveaxis"), (0, 1)),
    "permute": (1, 0),
    **dict.fromkeys(("expand", "broadcast_to"), ((3, 2, 4),)),
    "expand_as": (torch.zeros(3, 2, 4),),
    "narrow": (0, 0, 1),
    "select": (0, 1),
    "unfold": (0, 1, 1),
    "as_strided": ((2,), (1,)),
    **dict.fromkeys(("chunk", "tensor_split", "hsplit", "vsplit", "dsplit", "split"), (2,)),
    "split_with_sizes": ([1, 1],),
    "reshape": (8,),
    "reshape_as": (torch.zeros(8),),
    "unflatten": (0, (1, 2)),
    "sum_to_size": (2, 4),
}


def _same_memory(name: str, tensor: torch.Tensor) -> bool:
    function = getattr(tensor, name, None)
    arguments = _VIEW_ARGUMENTS.get(name, ())
    result = function(*arguments) if callable(function) else getattr(torch, name)(tensor, *arguments)
    leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    assert leaves
    return all(leaf.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for leaf in leaves)


def _to_view(name: str) -> torch.Tensor:
    if name == "dsplit":
        return torch.zeros(2, 2, 4)
    kind = {"view_as_real": torch.complex64, "real": torch.complex64, "imag": torch.complex64}.get(name, torch.float32)
    return torch.zeros(2, 4 if name != "view_as_complex" else 2, dtype=kind)


@pytest.mark.parametrize("name", sorted(table.VIEWS))
def test_views_share_the_memory_of_their_operand(name):
    assert _same_memory(name, _to_view(name))


@pytest.mark.parametrize("name", sorted(table.VIEWS_OR_COPIES))
def test_views_or_copies_may_do_either(name):
    types = {"cfloat": "complex64", "cdouble": "complex128", "byte": "uint8", "char": "int8", "short": "int16"}
    types |= {"half": "float16", "double": "float64", "int": "int32", "long": "int64", "bool": "bool"}
    kind = getattr(torch, types.get(name, name if name == "bfloat16" else "float32"))
    assert _same_memory(name, torch.zeros(2, 4, dtype=kind))
    if name in types or name in ("float", "bfloat16"):
        assert not _same_memory(name, torch.zeros(2, 4, dtype=torch.int16 if name != "short" else torch.int32))
