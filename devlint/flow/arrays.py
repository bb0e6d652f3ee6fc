"""What libraries that read host memory do with a tensor: numpy, matplotlib, scikit-learn, Pillow.

They read a tensor through ``Tensor.__array__``, which raises where it lives on a device, and where autograd tracks it
while gradients are recorded. Tried with numpy 2.4, with the meta device in place of an accelerator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from devlint.flow import copies
from devlint.flow.facts import ArrayUse
from devlint.flow.place import HOST
from devlint.flow.value import ARRAY, INSTANCE, LIST, NUMPY_ARRAY, TENSOR, THING, TUPLE, UNKNOWN, Value

if TYPE_CHECKING:
    from devlint.flow.arguments import Args, Operand
    from devlint.flow.frame import Frame

#: Methods of arrays, and functions of numpy, whose result is the same memory as the first argument.
VIEWS = frozenset("reshape ravel transpose swapaxes squeeze view asarray asanyarray expand_dims".split())

#: Give an array with a dimension at least.
_SIZED = frozenset("arange linspace stack vstack hstack concatenate broadcast_to eye identity tile repeat".split())

#: Read no values: they look at the shape, call the tensor's own method or its ``__getitem__``, or take sizes, for which
#: the host waits.
HARMLESS = frozenset(
    "shape ndim size iterable isscalar dtype issubdtype can_cast squeeze swapaxes split array_split real imag nonzero "
    "take_along_axis zeros ones empty full eye identity tri random.seed random.default_rng random.RandomState "
    "random.shuffle set_printoptions errstate fromiter".split()
)
#: Take numbers alone, by ``__index__`` or ``__float__``, which a tensor without dimensions answers from any device.
OF_NUMBERS = frozenset(
    "float64 hsplit vsplit dsplit random.rand random.randn random.random random.random_sample random.ranf "
    "random.sample random.bytes random.standard_normal random.standard_exponential random.standard_cauchy".split()
)
#: Where a function takes how many it is to give, a number as well.
_COUNT_AT = {"linspace": 2, "logspace": 2, "random.uniform": 2, "random.normal": 2}
#: Hand their own keywords to the tensor's method of that name, so that host tensors, too, are refused.
NEED_ARRAYS = frozenset("mean sum max min amax amin std var prod any all moveaxis rollaxis flip".split())
#: Catch the error and answer ``False``.
WRONG_ANSWERS = frozenset({"numpy.array_equal", "numpy.array_equiv"})
#: Keywords that say sizes and axes.
_SIZES = frozenset({"axis", "axes", "size", "shape", "newshape", "num"})

_PLOTS = frozenset(
    "plot scatter imshow hist hist2d bar barh fill_between matshow semilogx semilogy loglog errorbar boxplot "
    "violinplot contour contourf pcolormesh stem step pie quiver".split()
)
#: Keywords of plots that matplotlib asks for their number, by `item()` or `float()`, which any device answers
#: (`matplotlib.colors.Normalize`), or for their text. Tried with matplotlib 3.11.
_NUMBERS_OF_PLOTS = frozenset("vmin vmax lw linewidth ms markersize mew markeredgewidth label".split())
_ESTIMATOR_METHODS = frozenset(
    "fit fit_predict fit_transform partial_fit predict predict_proba predict_log_proba decision_function score "
    "score_samples transform inverse_transform kneighbors".split()
)
_FIGURE, _AXES, _ESTIMATOR = "figure", "axes", "estimator"
INSTANCES = frozenset({_FIGURE, _AXES, _ESTIMATOR})


def numpy_call(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    """A function of numpy."""
    rest = name.removeprefix("numpy.")
    first = args.value(0)
    # np.put_along_axis(x, rows[:, None], y, axis=1)   has `x` set its own items, and tensors take those of tensors
    set_by_tensor = rest == "put_along_axis" and (first is None or first.kind != ARRAY)
    if rest not in HARMLESS and not set_by_tensor:
        counted = [operand for operand, _ in args.positional[_COUNT_AT[rest] :]] if rest in _COUNT_AT else []
        for operand, value in args.but(_SIZES):
            if value.zero is True and (rest in OF_NUMBERS or operand in counted):
                continue
            use(frame, node, name, operand, value, host_too=rest in NEED_ARRAYS)
            if rest not in VIEWS:
                copies.read(frame, node, value)
    if rest in ("squeeze", "swapaxes", "real") and first is not None and first.holds_tensors:
        return first.but(zero=None, grad=False, obj=None)
    if rest in VIEWS and first is not None:
        return Value(ARRAY, HOST, first.origin, zero=first.zero)
    # np.array([1, 2]), np.arange(n); np.array(x) of what is not known may be a single number
    sized = rest in _SIZED or (rest == "array" and first is not None and first.kind in (LIST, TUPLE))
    return Value(ARRAY, HOST, zero=False) if sized else NUMPY_ARRAY


def library_call(frame: Frame, node: cst.Call, name: str, args: Args) -> Value | None:
    """A function or class of another library that reads host memory; ``None`` where it is none."""
    head, _, rest = name.partition(".")
    tail = rest.rpartition(".")[2]
    if head == "matplotlib":
        if tail in _PLOTS:
            _use_all(frame, node, name, args.but(_NUMBERS_OF_PLOTS))
        return _of_pyplot(tail)
    if head == "sklearn" and "array_api_dispatch" not in frame.scope.source.text:
        if tail[:1].isupper():
            return Value(INSTANCE, text=_ESTIMATOR)
        if rest.startswith("metrics."):
            _use_all(frame, node, name, args.all)
        return UNKNOWN
    if name == "PIL.Image.fromarray":
        _use_all(frame, node, name, args.all, host_too=True)
        return UNKNOWN
    return None


def _of_pyplot(name: str) -> Value:
    if name == "subplots":  # (figure, axes): an axes object, or an array of them
        return Value(TUPLE, items=[Value(INSTANCE, text=_FIGURE), Value(INSTANCE, text=_AXES)])
    if name in ("subplot", "gca", "axes"):
        return Value(INSTANCE, text=_AXES)
    return Value(INSTANCE, text=_FIGURE) if name in ("figure", "gcf") else UNKNOWN


def library_method(frame: Frame, node: cst.Call, receiver: Value, name: str, args: Args) -> Value:
    """A method of a figure, of axes or of an estimator."""
    if receiver.text == _AXES:
        if name in _PLOTS:
            _use_all(frame, node, f"Axes.{name}", args.but(_NUMBERS_OF_PLOTS))
        return receiver if name in ("ravel", "flatten", "reshape") else UNKNOWN
    if receiver.text == _FIGURE:
        return Value(INSTANCE, text=_AXES) if name in ("add_subplot", "gca", "subplots") else UNKNOWN
    if receiver.text == _ESTIMATOR:
        if name in _ESTIMATOR_METHODS:
            _use_all(frame, node, name, args.all)
        return receiver if name == "fit" else UNKNOWN
    return UNKNOWN


def is_axes(value: Value) -> bool:
    """An axes object of matplotlib's, or an array of them: ``axes[0, 1]`` and ``axes.flat`` are the like."""
    return value.kind == INSTANCE and value.text == _AXES


def _use_all(frame: Frame, node: cst.Call, name: str, operands: list[Operand], host_too: bool = False) -> None:
    for operand, value in operands:
        use(frame, node, name, operand, value, host_too)


def use(
    frame: Frame, node: cst.Call, what: str, operand: cst.BaseExpression, value: Value, host_too: bool = False
) -> None:
    """A value is read as an array by ``what``; ``host_too``: which refuses tensors on the host as well."""
    if frame.dead:
        return
    if value.kind == LIST and value.items is not None and value.items.kind == TENSOR:
        if type(operand) is cst.ListComp or type(operand) is cst.GeneratorExp:
            operand = operand.elt
            _note(frame, node, what, operand, value.items, host_too=False)
        elif type(operand) is cst.List and isinstance(value.ref, tuple):
            for item, each in zip(operand.elements, value.ref, strict=True):
                if type(item) is cst.Element:
                    _note(frame, node, what, item.value, each, host_too=False)
        else:
            _note(frame, node, what, operand, value.items, host_too=False)
    else:
        _note(frame, node, what, operand, value, host_too)


def _note(frame: Frame, node: cst.Call, what: str, operand: cst.BaseExpression, value: Value, host_too: bool) -> None:
    if value.kind not in (TENSOR, THING) or value.ref == "moved":
        return  # what `.to()` of something unknown gives may have a `.numpy()` of its own
    if type(value.origin) is cst.Param and not (frame.function is not None and frame.function.is_step):
        return  # lengths.numpy(), np.zeros_like(img): handed in as an array, or on the host, on purpose
    recording = frame.recording
    tracked = value.tracked if recording is not False else False
    if value.place.is_there or (tracked and recording):
        frame.facts.array_uses[operand] = ArrayUse(node, what, operand, value, tracked, host_too)
