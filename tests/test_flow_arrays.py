"""What numpy does with tensors that it cannot read, held against the installed numpy and torch.

The meta device stands in for an accelerator: ``Tensor.__array__`` refuses both in the same words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from devlint.flow import arrays
from devlint.flow import torch_table as table

torch = pytest.importorskip("torch", reason="the claims can only be checked against an installed torch")
np = pytest.importorskip("numpy", reason="the claims can only be checked against an installed numpy")

pytestmark = pytest.mark.filterwarnings("ignore")

#: Arguments after the tensor, where the function asks for some.
_MORE = {"swapaxes": (0, 1), "split": (3,), "array_split": (2,), "moveaxis": (0, 1), "rollaxis": (1,), "flip": (0,)}

READERS = """
    asarray array sqrt exp log abs isnan clip where argmax argsort cumsum round median percentile unique stack vstack
    linalg.norm histogram allclose zeros_like copy expand_dims concatenate dot outer pad random.permutation float32
    ascontiguousarray nan_to_num count_nonzero diag einsum searchsorted interp ravel reshape transpose
"""
_READER_MORE = {
    "clip": (0, 1),
    "where": (1, 0),
    "percentile": (5,),
    "allclose": (0,),
    "expand_dims": (0,),
    "pad": (1,),
    "reshape": (-1,),
}
_TENSOR_AT: dict[str, Callable] = {
    "stack": lambda t: np.stack([t]),
    "vstack": lambda t: np.vstack([t]),
    "concatenate": lambda t: np.concatenate([t]),
    "einsum": lambda t: np.einsum("ij->i", t),
    "dot": lambda t: np.dot(t, t),
    "outer": lambda t: np.outer(t, t),
    "searchsorted": lambda t: np.searchsorted([0, 1], t),
    "interp": lambda t: np.interp(t[0], [0, 1], [0, 1]),
}


def function(name: str) -> Callable:
    return functools.reduce(getattr, name.split("."), np)


@pytest.mark.parametrize("name", READERS.split())
def test_functions_that_read_values_refuse_a_tensor_on_a_device_and_take_one_on_the_host(name):
    assert name not in arrays.HARMLESS | arrays.NEED_ARRAYS
    read = _TENSOR_AT.get(name) or functools.partial(_call, name, _READER_MORE.get(name, ()))
    read(torch.ones(3, 3))
    with pytest.raises(TypeError, match="can't convert meta device type tensor to numpy"):
        read(torch.ones(3, 3, device="meta"))


def _call(name: str, more: tuple, tensor: object) -> object:
    return function(name)(tensor, *more)


@pytest.mark.parametrize(
    "name", ["shape", "ndim", "size", "iterable", "isscalar", "squeeze", "swapaxes", "split", "array_split", "real"]
)
def test_functions_that_read_no_values_take_a_tensor_on_a_device(name):
    assert name in arrays.HARMLESS
    function(name)(torch.ones(3, 3, device="meta"), *_MORE.get(name, ()))


class OnDevice(torch.Tensor):
    """A tensor that refuses to be an array, as one on CUDA does, and gives its number."""

    def __array__(self, *given, **options):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


@pytest.mark.parametrize("name", sorted(arrays.OF_NUMBERS - {"hsplit", "vsplit", "dsplit"}))
def test_functions_that_take_numbers_take_a_tensor_without_dimensions_from_a_device(name):
    function(name)(torch.tensor(3).as_subclass(OnDevice))


@pytest.mark.parametrize("name", ["hsplit", "vsplit", "dsplit"])
def test_functions_that_split_take_the_number_of_parts_from_a_device(name):
    function(name)(np.ones((3, 3, 3)), torch.tensor(3).as_subclass(OnDevice))


@pytest.mark.parametrize("name", ["sqrt", "float32", "random.permutation", "random.choice", "random.randint"])
def test_other_functions_read_a_tensor_without_dimensions_as_an_array(name):
    assert name not in arrays.OF_NUMBERS
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        function(name)(torch.tensor(3).as_subclass(OnDevice))


@pytest.mark.parametrize("name", sorted(arrays.NEED_ARRAYS))
def test_functions_that_hand_their_keywords_on_refuse_host_tensors_too(name):
    tensor = torch.ones(3, 3)
    with pytest.raises((TypeError, ValueError)):
        function(name)(tensor, *_MORE.get(name, ()))
    function(name)(tensor.numpy(), *_MORE.get(name, ()))


@pytest.mark.parametrize("name", sorted(arrays.WRONG_ANSWERS))
def test_comparisons_that_swallow_the_error_answer_false(name):
    compare = function(name.removeprefix("numpy."))
    assert compare(torch.ones(3), np.ones(3)) and not compare(torch.ones(3, device="meta"), np.ones(3))


def test_a_tensor_that_requires_gradients_is_refused_only_while_they_are_recorded():
    leaf = torch.nn.Parameter(torch.ones(3))
    for tensor in (leaf, leaf * 2):
        with pytest.raises(RuntimeError, match="requires grad"):
            tensor.numpy()
        with torch.no_grad():
            tensor.numpy()
        with torch.inference_mode():
            np.asarray(tensor)


@pytest.mark.parametrize("name", sorted(table.UNTRACKED))
def test_results_that_autograd_never_tracks(name):
    tensor = torch.rand(3, 3, requires_grad=True)
    index = torch.arange(3)
    calls: dict[str, Callable] = {
        "bincount": lambda: torch.bincount(index),
        "bucketize": lambda: torch.bucketize(tensor, index.float()),
        "isin": lambda: torch.isin(tensor, tensor),
        "multinomial": lambda: tensor.multinomial(1),
        "one_hot": lambda: torch.nn.functional.one_hot(index),
        "searchsorted": lambda: torch.searchsorted(index.float(), tensor),
    }
    binary = (
        "eq ge gt le lt ne greater greater_equal less less_equal not_equal isclose logical_and logical_or logical_xor"
    )
    calls |= {name: functools.partial(getattr(tensor, name), tensor) for name in binary.split()}
    result = calls[name]() if name in calls else getattr(tensor, name)()
    assert not result.requires_grad
