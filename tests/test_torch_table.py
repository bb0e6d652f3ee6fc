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
import warnings
from pathlib import Path

import pytest

from devlint.flow import torch_table as table

torch = pytest.importorskip("torch", reason="the table can only be checked against an installed torch")

import torch.nn.functional as F  # noqa: E402, N812
import torchgen  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

#: A device that torch knows by name and that needs no backend. (Fake "cuda" needs a CUDA build for views.)
DEVICE = "lazy"


def resolve(name: str) -> object:
    """``torch.nn.functional.relu`` -> the function; AttributeError where there is none."""
    return functools.reduce(getattr, name.split(".")[1:], torch)


# names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    ["FACTORIES", "LIKE", "KEEPING", "WRAPPERS", "HOST_FACTORIES", "DEVICE_TYPED", "FUNCTIONS", "WAIT_FUNCTIONS"]
    + ["MODULES", "OPTIMIZERS", "DISTRIBUTIONS", "DEFAULT_DEVICE_SETTERS", "MODULE_BASES", "LOADERS", "DATASETS"]
    + ["SAMPLERS"],
)
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
    assert {op.reduces for op in ops} <= {"always", "no_dim", "no_dim_third", "loss", "maybe", "adds", "never"}
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

#: Tried in turn where SAMPLES names no arguments: the first that torch accepts is the sample.
FIRST_ONLY = [(X,), (X, 1), (X, 0, 1), (X, (3, 3)), (X, 2, 0), (X, 0, 0, 1), (NN,), (NN, 1), (IMAGE,), (IMAGE, 2)]
SEVERAL = [(X, X + 0.1), (NN, NN + 1), (X, X + 0.1, X + 0.2), (X, X + 0.1, 0.5)]
