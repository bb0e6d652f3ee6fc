"""What torch does to values, as data.

Nothing here imports torch, and nothing here decides: the flow reads these tables and interprets. What is not
listed is unknown, never wrong. ``tests/test_torch_table.py`` holds every claim against the installed torch.

Sources. Existence, signatures, results and factories: the installed torch itself. Which operands must share a
device, and whether a zero-dimensional host tensor is an exception (``strict``): ``device_check`` in torch's
``native_functions.yaml``, from which the CUDA kernels' own checks are generated, followed from each public
function to the kernels it reaches. What makes the host wait: torch's CUDA sources and
``torch.cuda.set_sync_debug_mode``.

Functions and classes are keyed by their canonical qualified name (``torch.nn.functional.linear``), methods by
their bare name (``sum``).
"""

from __future__ import annotations

from typing import NamedTuple


def _names(text: str, prefix: str = "", suffix: str = "") -> list[str]:
    return [prefix + name + suffix for name in text.split()]


#: What ``torch.float32`` and its kin are called.
DTYPES: frozenset[str] = frozenset(
    _names(
        "float float16 float32 float64 half double bfloat16 int int8 int16 int32 int64 uint8 short long bool complex64 "
        "complex128 cfloat cdouble float8_e4m3fn float8_e5m2 uint16 uint32 uint64 qint8 quint8"
    )
)

# Making tensors ---------------------------------------------------------------------------------------------


class Factory(NamedTuple):
    """A call that makes a tensor from no tensor.

    values: ``filled`` (computed where the tensor lives: a constant, a range, a window), ``random`` (drawn there,
        from the generator of that device) or ``python`` (copied from Python or numpy values).
    rank: ``sized`` (has dimensions unless the size given is empty), ``scalar_if_number`` (zero-dimensional when
        the data is a number), ``zero`` (always zero-dimensional) or ``any`` (as its data).
    """

    values: str
    rank: str


def _factories(prefix: str, names: str, values: str, rank: str) -> dict[str, Factory]:
    return dict.fromkeys(_names(names, prefix), Factory(values, rank))


#: Obey ``device=``; without it ``with torch.device(d)`` and ``torch.set_default_device(d)``, except ``IGNORE_DEFAULT``.
#: ``torch.normal`` is a factory with numbers and ``size`` only; with a tensor for mean or std it follows that.
FACTORIES: dict[str, Factory] = {
    **_factories(
        "torch.",
        "arange empty empty_permuted empty_strided eye full linspace logspace ones range tril_indices triu_indices "
        "zeros bartlett_window blackman_window hamming_window hann_window kaiser_window",
        "filled",
        "sized",
    ),
    **_factories("torch.fft.", "fftfreq rfftfreq", "filled", "sized"),
    **_factories(
        "torch.signal.windows.",
        "bartlett blackman cosine exponential gaussian general_cosine general_hamming hamming hann kaiser nuttall",
        "filled",
        "sized",
    ),
    **_factories("torch.", "rand randn randint randperm normal", "random", "sized"),
    "torch.tensor": Factory("python", "scalar_if_number"),
    "torch.scalar_tensor": Factory("python", "zero"),
    **_factories(
        "torch.",
        "sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor "
        "sparse_compressed_tensor",
        "python",
        "sized",
    ),
}

#: Where neither ``device=`` nor a default device says otherwise, these go where the tensors are that they are given as
#: these arguments (their position and name). Indices of a sparse tensor must be where its values are.
FOLLOWING: dict[str, tuple[tuple[int, str], ...]] = {
    "torch.tensor": ((0, "data"),),
    "torch.sparse_coo_tensor": ((1, "values"), (0, "indices")),
    **dict.fromkeys(
        _names("csr csc bsr bsc compressed", "torch.sparse_", "_tensor"),
        ((2, "values"), (1, "col_indices"), (1, "row_indices"), (1, "plain_indices")),
    ),
    **dict.fromkeys(_names("linspace logspace", "torch."), ((0, "start"), (1, "end"))),
    "torch.normal": ((0, "mean"), (1, "std")),
}

#: What operations take as numbers: of a tensor that is handed in so, the value is read, wherever it is.
#: https://pytorch.org/docs/stable/generated/torch.baddbmm.html
NUMBERS: frozenset[str] = frozenset({"alpha", "beta"})

#: By method, the positions of arguments that are tensors whatever they are called: ``table.gather(-1, t)``. Arrays have
#: no such methods.
TENSOR_ARGUMENTS: dict[str, tuple[int, ...]] = {
    "gather": (1,), "index_select": (1,), "index_add": (1, 2), "index_add_": (1, 2), "index_copy": (1, 2),
    "index_copy_": (1, 2), "index_fill": (1,), "index_fill_": (1,), "scatter_add": (1, 2), "scatter_add_": (1, 2),
    "masked_fill": (0,), "masked_fill_": (0,), "masked_select": (0,), "masked_scatter": (0, 1),
    "masked_scatter_": (0, 1), "expand_as": (0,), "view_as": (0,), "reshape_as": (0,), "bmm": (0,), "baddbmm": (0, 1),
}  # fmt: skip

#: Take a window as well, which has to be where the signal is: ``torch.stft(x, n_fft, hop_length, win_length, window)``.
WINDOWED: frozenset[str] = frozenset({"stft", "istft"})

#: Strict, but for two without dimensions, which are subtracted as they are: ``F.l1_loss(x.mean(), torch.tensor(0.5))``.
#: (Tried on a GPU; ``mse_loss``, ``smooth_l1_loss`` and ``huber_loss`` refuse them.)
OF_TWO_NUMBERS: frozenset[str] = frozenset({"torch.nn.functional.l1_loss", "torch.nn.L1Loss"})

#: Losses that are strict as modules: their functions are, too.
STRICT_LOSSES: frozenset[str] = frozenset(
    f"torch.nn.{name}Loss" for name in "CrossEntropy Huber L1 MSE MultiLabelMargin MultiMargin NLL SmoothL1".split()
)

#: Compare two tensors, have none of their own, and are as strict as their functions.
COMPARING: dict[str, str] = {
    "torch.nn.CosineSimilarity": "torch.nn.functional.cosine_similarity",
    "torch.nn.PairwiseDistance": "torch.nn.functional.pairwise_distance",
}

#: Refuse a target of another size than the input's: where one of these has dimensions, so has the other.
#: https://pytorch.org/docs/stable/generated/torch.nn.functional.binary_cross_entropy.html
OF_ONE_SIZE: frozenset[str] = frozenset(
    {
        *_names("binary_cross_entropy binary_cross_entropy_with_logits", "torch.nn.functional."),
        *_names("BCELoss BCEWithLogitsLoss", "torch.nn."),
    }
)

#: Read a bound as a number where the other one is: ``x.clamp(0.0, most)``.
BOUNDED: frozenset[str] = frozenset({"clamp", "clamp_", "clip", "clip_"})

#: Obey ``device=`` but no default device.
IGNORE_DEFAULT: frozenset[str] = frozenset({"torch.normal", "torch.range"})

#: Follow their first argument, a tensor, unless ``device=`` says otherwise; a default device does not move them.
LIKE: frozenset[str] = frozenset(
    _names("empty_like full_like ones_like rand_like randint_like randn_like zeros_like", "torch.")
)

#: Leave a tensor where it is, unless ``device=`` or a default device says otherwise: ``with torch.device("cuda")``
#: makes them move a host tensor. What is no tensor yet they treat as ``torch.tensor`` does, and share numpy memory.
KEEPING: frozenset[str] = frozenset({"torch.as_tensor", "torch.asarray"})

#: Wrap a tensor and leave it where it is; they take no ``device=``.
WRAPPERS: frozenset[str] = frozenset(
    _names("nn.Parameter nn.parameter.Parameter nn.Buffer nn.parameter.Buffer autograd.Variable", "torch.")
)

#: On the host whatever the default device. Tried: under ``with torch.device("meta")`` and after
#: ``torch.set_default_device("meta")``, ``torch.Tensor(3)``, ``torch.Tensor([1.0])``, ``torch.FloatTensor(3)``,
#: ``from_numpy`` and ``frombuffer`` are still on the host. (Only ``set_default_tensor_type`` moves ``torch.Tensor``.)
#: ``torch.Tensor(t)`` of a device tensor is an error. ``from_file`` maps a file into host memory.
HOST_FACTORIES: dict[str, Factory] = {
    "torch.from_numpy": Factory("python", "any"),
    "torch.frombuffer": Factory("python", "sized"),
    "torch.from_file": Factory("python", "sized"),
    **_factories(
        "torch.",
        "Tensor FloatTensor DoubleTensor HalfTensor BFloat16Tensor ByteTensor CharTensor ShortTensor IntTensor "
        "LongTensor BoolTensor",
        "python",
        "sized",
    ),
}

_TYPED = (
    "FloatTensor DoubleTensor HalfTensor BFloat16Tensor ByteTensor CharTensor ShortTensor IntTensor LongTensor "
    "BoolTensor"
)
#: Legacy constructors whose type names the device.
DEVICE_TYPED: frozenset[str] = frozenset(_names(_TYPED, "torch.cuda."))
#: ... and those of the host: ``x.type(torch.FloatTensor)`` brings it there.
HOST_TYPED: frozenset[str] = frozenset(_names(_TYPED, "torch."))

#: What makes a tensor on the host where nothing says otherwise, or keeps one there.
MAKERS: frozenset[str] = KEEPING.union(FACTORIES, HOST_FACTORIES, HOST_TYPED, {"torch.Tensor"})

#: Methods that follow their receiver unless ``device=`` says otherwise. ``t.new(...)`` is the legacy spelling.
NEW_METHODS: dict[str, Factory] = {
    **_factories("", "new_empty new_empty_strided new_full new_ones new_zeros", "filled", "sized"),
    "new_tensor": Factory("python", "scalar_if_number"),
    "new": Factory("python", "sized"),
}


# Moving tensors ---------------------------------------------------------------------------------------------

#: Methods of tensors and modules that move, or may: ``to`` with a dtype only does not. ``npu``, ``hpu``, ``mlu`` and
#: ``musa`` come with the vendors' own packages.
MOVES: frozenset[str] = frozenset(_names("to cuda cpu xpu ipu mtia npu hpu mlu musa"))

#: ``x.type("torch.cuda.FloatTensor")`` and ``x.type_as(y)`` move besides changing the type; ``x.type(torch.float)`` and
#: ``x.type()`` do not.
TYPE_MOVES: frozenset[str] = frozenset({"type", "type_as"})

#: What has one of these is a tensor, and gives one: numpy's arrays, and what else is called with numbers, have none.
ONLY_OF_TENSORS: frozenset[str] = frozenset(
    _names("clamp clamp_min clamp_max contiguous log_softmax masked_fill unsqueeze index_select type_as")
)

#: Error on a tensor that is on a device.
HOST_ONLY_METHODS: frozenset[str] = frozenset(_names("numpy apply_ map_ map2_ pin_memory"))


# Gradients --------------------------------------------------------------------------------------------------

#: Operations whose result autograd never tracks: integers, flags, indices.
UNTRACKED: frozenset[str] = frozenset(
    _names(
        "argmax argmin argsort argwhere bincount bool bucketize byte char count_nonzero eq ge greater greater_equal gt "
        "int isclose isfinite isin isinf isnan isneginf isposinf isreal le less less_equal logical_and logical_not "
        "logical_or logical_xor long lt multinomial ne nonzero not_equal one_hot searchsorted short signbit"
    )
)


# Operations -------------------------------------------------------------------------------------------------


class Op(NamedTuple):
    """What an operation asks of its operands and what it gives.

    operands: which arguments must be on one device.
        ``all``: every tensor among the arguments, keywords too, and a method's receiver;
        ``first``: only the first (a method's receiver) counts; the others are numbers, sizes, or may be anywhere;
        ``sequence``: the tensors of a list or tuple, or given one after another;
        ``index``: as ``all``, except that indices (the second argument) may be on the host;
        ``none``: nothing has to agree; the result is where the first tensor is.
    strict: whether even a zero-dimensional host tensor is refused beside device tensors. Where it is not, the host
        tensor must not be the one written to: ``host.add_(device)`` is an error whatever the dimensions.
    result: ``tensor`` (where the operands are), ``tuple`` (a tuple or list of such), ``host`` (numbers, sizes, strings,
        flags), ``numpy``, ``self`` (the receiver itself) or ``none``.
    reduces: when the result is zero-dimensional.
        ``always``;
        ``no_dim``: when neither ``dim``/``axis`` nor a second positional argument is given (the receiver is the first).
            With result ``tuple`` that case gives one tensor where torch does so (max, min, median);
        ``no_dim_third``: likewise for a third positional argument (``norm(x, 2)``, ``quantile(x, 0.5)``). Where a
            dimension is given, a vector has none left;
        ``dim_third``: over the dimension given third, by default the second one (``cosine_similarity``);
        ``loss``: unless ``reduction="none"``;
        ``maybe``: depends on the sizes (matmul, squeeze, select);
        ``adds``: never, the result has a dimension whatever the operands have (stack, flatten, repeat);
        ``never``: the operation reduces nothing: zero-dimensional where all operands are.
    """

    operands: str = "all"
    strict: bool = False
    result: str = "tensor"
    reduces: str = "never"


_Group = tuple[str, Op]


def _ops(prefix: str, *groups: _Group) -> dict[str, Op]:
    return {prefix + name: op for names, op in groups for name in names.split()}


_UNARY = Op("first")
_BINARY = Op("all")
_STRICT = Op("all", strict=True)
_HOST = Op("first", result="host")
_IN_PLACE = Op("first", result="self")
_STRICT_IN_PLACE = Op("all", strict=True, result="self")

# Elementwise, with an in-place twin (``abs_``) as a method
_UNARY_WITH_TWIN = """
    abs absolute acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh bitwise_not ceil
    conj_physical cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 fix floor frac i0 lgamma log log10 log1p
    log2 logical_not logit mvlgamma nan_to_num neg negative rad2deg reciprocal relu round rsqrt sgn sigmoid sign sin
    sinc sinh sqrt square tan tanh trunc
"""
_BINARY_WITH_TWIN = """
    add sub subtract mul multiply div divide true_divide floor_divide fmod remainder pow float_power atan2 arctan2
    copysign hypot ldexp xlogy heaviside lerp addcmul addcdiv
    eq ne lt le gt ge less less_equal greater greater_equal not_equal
    bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift logical_and logical_or logical_xor
"""
# Elementwise too, but their kernels check the device before they look at the dimensions
_STRICT_BINARY_WITH_TWIN = "clamp clip clamp_min clamp_max gcd lcm igamma igammac nextafter"

_VIEW = Op("first", reduces="maybe")
_ADDS = Op("first", reduces="adds")
_TUPLE = Op("first", result="tuple", reduces="adds")
_REDUCTION = Op("first", reduces="no_dim")
_STRICT_ADDS = Op("all", strict=True, reduces="adds")
_STRICT_TUPLE = Op("all", strict=True, result="tuple", reduces="adds")

# Functions of torch that are methods of tensors as well, with the same facts
_SHARED: tuple[_Group, ...] = (
    # elementwise
    (_UNARY_WITH_TWIN, _UNARY),
    ("angle bernoulli clone conj dequantize detach hardshrink int_repr isfinite isinf isnan isneginf", _UNARY),
    ("isposinf isreal positive resolve_conj resolve_neg signbit", _UNARY),
    (_BINARY_WITH_TWIN, _BINARY),
    ("fmax fmin isclose maximum minimum polygamma where", _BINARY),
    (_STRICT_BINARY_WITH_TWIN, _STRICT),
    ("logaddexp logaddexp2 prelu", _STRICT),
    # one tensor, and numbers, sizes or dimensions; the dimensions stay or are rearranged
    ("adjoint argsort cumprod cumsum flip log_softmax logcumsumexp moveaxis movedim msort permute roll", _UNARY),
    ("softmax swapaxes swapdims t transpose", _UNARY),
    # ... the result has a dimension
    ("cholesky cholesky_inverse diff fliplr flipud inverse matrix_exp matrix_power pinverse renorm rot90 tril", _ADDS),
    ("triu argwhere bincount diag diag_embed diagflat diagonal flatten histc multinomial narrow narrow_copy", _ADDS),
    ("nonzero nonzero_static ravel stft tile unflatten unique unique_consecutive unsqueeze", _ADDS),
    # a tensor of repeats becomes an index, which has to be where the rows are
    ("repeat_interleave", _STRICT_ADDS),
    # ... it may have none
    ("as_strided broadcast_to corrcoef cov istft logsumexp reshape select squeeze", _VIEW),
    # ... it is a tuple
    ("chunk dsplit hsplit split split_with_sizes tensor_split unsafe_chunk unsafe_split", _TUPLE),
    ("unsafe_split_with_sizes vsplit geqrf qr svd", _TUPLE),
    ("cummax cummin frexp sort topk", _TUPLE._replace(reduces="never")),
    ("kthvalue mode slogdet unbind", _TUPLE._replace(reduces="maybe")),
    ("aminmax", Op("first", result="tuple", reduces="no_dim")),
    # reductions
    ("all amax amin any argmax argmin count_nonzero mean nanmean nansum prod std sum var", _REDUCTION),
    ("max min", Op("all", result="tuple", reduces="no_dim")),
    ("median nanmedian", Op("first", result="tuple", reduces="no_dim")),
    ("norm", Op("first", reduces="no_dim_third")),
    ("quantile nanquantile", Op("all", strict=True, reduces="no_dim_third")),
    ("det logdet", _VIEW),
    ("trace", Op("first", reduces="always")),
    ("dist", Op("all", reduces="always")),
    # linear algebra
    ("dot vdot", Op("all", strict=True, reduces="always")),
    ("matmul inner", Op("all", strict=True, reduces="maybe")),
    ("addbmm addmm addmv addr baddbmm bmm cross mm mv orgqr ormqr", _STRICT_ADDS),
    ("ger outer", Op("all", reduces="adds")),
    ("cholesky_solve lu_solve", _STRICT_ADDS),
    ("triangular_solve", _STRICT_TUPLE),
    # what is given dimensions first is no longer zero-dimensional for the kernel
    ("kron", _STRICT),
    # by index: the index is refused on the host, whatever its dimensions
    ("index_add index_copy index_reduce index_select scatter scatter_add scatter_reduce", _STRICT),
    # ... a single index of a vector gives a number
    ("gather take", _STRICT._replace(reduces="maybe")),
    ("take_along_dim", _STRICT),
    ("masked_select", _STRICT_ADDS),
    ("masked_scatter", _STRICT),
    ("index_fill masked_fill", _BINARY),
    ("index_put", Op("index")),
    ("put", _STRICT),
    # copy_ inside, so the second tensor may come from anywhere
    ("as_strided_scatter diagonal_scatter select_scatter slice_scatter", _UNARY),
    # answers on the host
    ("equal", Op("all", strict=True, result="host")),
    ("allclose", Op("all", result="host")),
    ("get_device is_complex is_conj is_floating_point is_inference is_neg is_nonzero is_same_size is_signed", _HOST),
    ("numel", _HOST),
)

# Functions of torch written to their argument: ``torch.relu_(x)``
_TORCH_IN_PLACE = """
    abs acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh ceil conj_physical cos cosh
    deg2rad erf erfc exp exp2 expm1 fix floor frac i0 log log10 log1p log2 logit nan_to_num neg negative rad2deg
    reciprocal relu round rsqrt sigmoid sin sinc sinh sqrt square tan tanh trunc celu selu rrelu threshold dropout
    alpha_dropout feature_alpha_dropout feature_dropout zero detach as_strided fill
"""

_LOSS = Op("all", reduces="loss")
_STRICT_LOSS = Op("all", strict=True, reduces="loss")

#: Functions of tensors. ``out=`` must be where the result is.
#: ``where`` with one argument is ``nonzero(as_tuple=True)``: a tuple.
FUNCTIONS: dict[str, Op] = {
    **_ops("torch.", *_SHARED),
    **{f"torch.{name}_": _IN_PLACE for name in _TORCH_IN_PLACE.split()},
    "torch.ldexp_": Op("all", result="self"),
    "torch.xlogy_": Op("all", result="self"),
    "torch.index_put_": Op("index", result="self"),
    **{f"torch.{name}_": _STRICT_IN_PLACE for name in ("clamp", "clip", "clamp_max", "clamp_min", "gcd", "lcm")},
    **_ops(
        "torch.",
        # lists of tensors
        ("cat concat concatenate stack hstack vstack dstack column_stack", Op("sequence", True, "tensor", "adds")),
        ("row_stack", Op("sequence", True, "tensor", "adds")),
        ("cartesian_prod chain_matmul", Op("sequence", True, "tensor", "adds")),
        ("block_diag", Op("sequence", False, "tensor", "adds")),
        ("einsum", Op("sequence", True, "tensor", "maybe")),
        ("meshgrid", Op("sequence", True, "tuple", "adds")),
        # elementwise
        ("celu imag real rrelu selu threshold dropout alpha_dropout feature_alpha_dropout feature_dropout", _UNARY),
        ("poisson", _UNARY),
        ("rsub", _BINARY),
        ("complex polar isin", _STRICT),
        ("bucketize searchsorted", _STRICT._replace(reduces="maybe")),
        ("binomial", _BINARY),
        # one tensor
        ("atleast_1d atleast_2d atleast_3d combinations pdist vander view_as_complex view_as_real", _ADDS),
        ("constant_pad_nd channel_shuffle pixel_shuffle pixel_unshuffle affine_grid_generator", _ADDS),
        ("adaptive_avg_pool1d avg_pool1d max_pool1d max_pool2d max_pool3d", _ADDS),
        ("std_mean var_mean", Op("first", result="tuple", reduces="no_dim")),
        ("adaptive_max_pool1d lu pca_lowrank svd_lowrank", _TUPLE),
        ("unravel_index", _TUPLE._replace(reduces="maybe")),
        # several
        ("cosine_similarity", _STRICT._replace(reduces="dim_third")),
        ("pairwise_distance", _BINARY._replace(reduces="maybe")),
        ("tensordot", Op("all", strict=True, reduces="maybe")),
        ("trapezoid trapz", Op("all", reduces="maybe")),
        ("cumulative_trapezoid", Op("all", reduces="adds")),
        ("cdist embedding conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d", _STRICT_ADDS),
        ("convolution batch_norm group_norm instance_norm layer_norm gru_cell rnn_relu_cell", _STRICT_ADDS),
        ("rnn_tanh_cell grid_sampler", _STRICT_ADDS),
        ("bilinear rms_norm", Op("all", reduces="adds")),
        ("lstm_cell lstm gru rnn_relu rnn_tanh lu_unpack", _STRICT_TUPLE),
        # answers on the host
        ("is_tensor is_storage typename broadcast_shapes result_type promote_types", Op("none", result="host")),
        ("can_cast", Op("none", result="host")),
    ),
    **_ops(
        "torch.special.",
        ("bessel_j0 bessel_j1 bessel_y0 bessel_y1 digamma entr erf erfc erfcx erfinv exp2 expit expm1", _UNARY),
        ("gammaln i0 i0e i1 i1e log1p log_ndtr log_softmax logit multigammaln ndtr ndtri psi round sinc", _UNARY),
        ("softmax spherical_bessel_j0 airy_ai modified_bessel_i0 modified_bessel_i1 modified_bessel_k0", _UNARY),
        ("modified_bessel_k1", _UNARY),
        ("polygamma xlog1py xlogy zeta", _BINARY),
        ("gammainc gammaincc", _STRICT),
        ("logsumexp", _VIEW),
    ),
    **_ops(
        "torch.fft.",
        ("fft fft2 hfft hfft2 hfftn ifft ifft2 ihfft ihfft2 ihfftn irfft irfft2 irfftn rfft rfft2 rfftn", _ADDS),
        ("fftshift ifftshift", _ADDS),
        ("fftn ifftn", _UNARY),
    ),
    **_ops(
        "torch.linalg.",
        ("cholesky diagonal eigvals eigvalsh inv matrix_exp matrix_power pinv svdvals tensorinv vander", _ADDS),
        ("cond det matrix_norm matrix_rank", _VIEW),
        ("norm vector_norm", Op("first", reduces="no_dim_third")),
        ("eig eigh ldl_factor lu lu_factor qr svd", _TUPLE),
        ("cholesky_ex inv_ex ldl_factor_ex lu_factor_ex slogdet", _TUPLE._replace(reduces="maybe")),
        ("cross householder_product ldl_solve lu_solve solve solve_triangular", _STRICT_ADDS),
        ("matmul tensorsolve", _STRICT._replace(reduces="maybe")),
        ("vecdot", Op("all", reduces="maybe")),
        ("lstsq solve_ex", _STRICT._replace(result="tuple", reduces="maybe")),
        ("multi_dot", Op("sequence", True, "tensor", "maybe")),
    ),
    **_ops(
        "torch.nn.functional.",
        # activations and dropout
        ("celu dropout dropout1d dropout2d dropout3d elu feature_alpha_dropout alpha_dropout gelu glu", _UNARY),
        ("gumbel_softmax hardshrink hardsigmoid hardswish hardtanh leaky_relu log_softmax logsigmoid mish", _UNARY),
        ("relu relu6 rrelu selu sigmoid silu softmax softmin softplus softshrink softsign tanh tanhshrink", _UNARY),
        ("threshold", _UNARY),
        ("celu_ elu_ hardtanh_ leaky_relu_ relu_ rrelu_ selu_ threshold_", _IN_PLACE),
        ("prelu", _STRICT),
        # one tensor, sizes and numbers
        ("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d affine_grid avg_pool1d avg_pool2d", _ADDS),
        ("avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d channel_shuffle fold", _ADDS),
        ("interpolate local_response_norm lp_pool1d lp_pool2d lp_pool3d max_pool1d max_pool2d max_pool3d", _ADDS),
        ("fractional_max_pool2d fractional_max_pool3d normalize one_hot pad pdist pixel_shuffle", _ADDS),
        ("pixel_unshuffle unfold upsample upsample_bilinear upsample_nearest", _ADDS),
        ("max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices", _TUPLE),
        ("adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices", _TUPLE),
        # several tensors: weights, indices, grids
        ("linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc", _STRICT_ADDS),
        ("batch_norm group_norm instance_norm layer_norm embedding embedding_bag grid_sample", _STRICT_ADDS),
        ("max_unpool1d max_unpool2d max_unpool3d scaled_dot_product_attention", _STRICT_ADDS),
        ("bilinear rms_norm", Op("all", reduces="adds")),
        ("multi_head_attention_forward", _STRICT_TUPLE),
        ("cosine_similarity", _STRICT._replace(reduces="dim_third")),
        ("pairwise_distance", _BINARY._replace(reduces="maybe")),
        # losses
        ("binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss gaussian_nll_loss", _LOSS),
        ("hinge_embedding_loss kl_div margin_ranking_loss multilabel_soft_margin_loss poisson_nll_loss", _LOSS),
        ("soft_margin_loss triplet_margin_loss", _LOSS),
        # they broadcast first, so that the kernel sees no zero-dimensional tensor
        ("l1_loss mse_loss smooth_l1_loss", _STRICT_LOSS),
        ("triplet_margin_with_distance_loss", _LOSS),
        ("cross_entropy huber_loss linear_cross_entropy multi_margin_loss multilabel_margin_loss", _STRICT_LOSS),
        ("nll_loss", _STRICT_LOSS),
        # targets and lengths may be on the host: cuDNN wants them there
        ("ctc_loss", Op("first", reduces="loss")),
    ),
    **_ops(
        "torch.nn.utils.",
        # norms are brought to the first device; padding copies into a tensor made there
        ("clip_grad_norm_ get_total_norm", Op("none", reduces="always")),
        ("rnn.pad_sequence", Op("none", reduces="adds")),
        ("parameters_to_vector", Op("sequence", True, "tensor", "adds")),
    ),
    # a gradient that is given has to be where its output is; `operations.meet_gradients` sees to that
    "torch.autograd.grad": Op("first", result="tuple"),
    "torch.autograd.backward": Op("first", result="none"),
}

_METHOD_ONLY: tuple[_Group, ...] = (
    # the same tensor otherwise seen, or copied with another type
    ("as_subclass bfloat16 bool byte cdouble cfloat chalf char contiguous double float half int long short", _UNARY),
    ("coalesce to_dense to_mkldnn", _UNARY),
    ("expand repeat unfold values indices crow_indices col_indices ccol_indices row_indices to_padded_tensor", _ADDS),
    ("to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc", _ADDS),
    ("to_sparse to_sparse_coo", _UNARY),
    ("view sum_to_size", _VIEW),
    # a second tensor gives its shape only
    ("expand_as reshape_as resize resize_as view_as", _VIEW),
    # in place, from numbers only
    ("bernoulli_ cauchy_ exponential_ fill_diagonal_ geometric_ log_normal_ normal_ random_ uniform_", _IN_PLACE),
    ("zero_ requires_grad_ detach_ share_memory_ renorm_ t_ transpose_ swapaxes_ swapdims_", _IN_PLACE),
    ("as_strided_ resize_ resize_as_ squeeze_", _IN_PLACE._replace(reduces="maybe")),
    ("unsqueeze_", _IN_PLACE._replace(reduces="adds")),
    ("tril_ triu_ cumsum_ cumprod_ polygamma_", _IN_PLACE),
    # crosses devices: nothing has to agree, and the receiver stays where it is
    ("copy_", Op("none", result="self")),
    # a zero-dimensional value is read to the host
    ("fill_", Op("none", result="self")),
    # in place, with operands
    ("index_fill_ masked_fill_", Op("all", result="self")),
    ("index_put_", Op("index", result="self")),
    ("index_add_ index_copy_ index_reduce_ scatter_ scatter_add_ scatter_reduce_ put_", _STRICT_IN_PLACE),
    ("masked_scatter_ addbmm_ addmm_ addmv_ addr_ baddbmm_", _STRICT_IN_PLACE),
    ("__getitem__", Op("index", reduces="maybe")),
    # answers on the host
    ("data_ptr dense_dim dim dim_order element_size is_coalesced is_contiguous is_pinned is_set_to is_shared", _HOST),
    ("item ndimension nelement qscheme q_scale q_zero_point size sparse_dim storage_offset stride tolist", _HOST),
    ("__len__ __bool__ __int__ __float__ __index__ __complex__ __repr__ __format__ __hash__", _HOST),
    ("__contains__", Op("all", result="host")),
    ("numpy __array__", Op("first", result="numpy")),
    ("backward retain_grad record_stream", Op("first", result="none")),
)

#: Methods of ``torch.Tensor``; ``MOVES`` and ``NEW_METHODS`` are apart.
#: ``unique`` and the pooling functions give a tuple instead where a ``return_...`` argument asks for it.
METHODS: dict[str, Op] = {
    **_ops("", *_SHARED),
    **{f"{name}_": _IN_PLACE for name in _UNARY_WITH_TWIN.split()},
    **{f"{name}_": Op("all", result="self") for name in _BINARY_WITH_TWIN.split()},
    **{f"{name}_": _STRICT_IN_PLACE for name in _STRICT_BINARY_WITH_TWIN.split()},
    **_ops("", *_METHOD_ONLY),
}

#: Attributes of a tensor: ``tensor`` (where the tensor is) or ``host``. ``data`` may be assigned across devices.
ATTRIBUTES: dict[str, str] = {
    **dict.fromkeys(_names("T mT H mH data grad real imag"), "tensor"),
    **dict.fromkeys(
        _names(
            "shape dtype device layout ndim nbytes itemsize requires_grad is_leaf is_cuda is_cpu is_mps is_xpu is_meta "
            "is_sparse is_quantized is_nested name grad_fn output_nr retains_grad _version"
        ),
        "host",
    ),
}

#: Methods, and functions of torch of that name, whose result is the same memory as their first operand.
VIEWS: frozenset[str] = frozenset(
    _names(
        "view view_as squeeze unsqueeze transpose swapaxes swapdims t permute movedim moveaxis adjoint expand "
        "expand_as broadcast_to narrow select diagonal unfold as_strided detach view_as_real view_as_complex real imag "
        "chunk split split_with_sizes tensor_split hsplit vsplit dsplit unbind"
    )
)

#: ... whose result is the same memory where that can be, and a copy otherwise: of another type or layout.
VIEWS_OR_COPIES: frozenset[str] = frozenset(
    _names(
        "reshape reshape_as flatten unflatten ravel contiguous sum_to_size conj resolve_conj resolve_neg positive "
        "float double half bfloat16 int long short bool byte char cfloat cdouble atleast_1d atleast_2d atleast_3d"
    )
)


# Waiting for the device -------------------------------------------------------------------------------------

#: Reading a value on purpose. ``to("cpu")`` is a move and is judged there.
EXPLICIT_WAITS: frozenset[str] = frozenset(_names("item tolist cpu numpy"))

#: Waits that the code does not spell out. ``repeat_interleave`` waits only with a tensor of repeats and no
#: ``output_size``; ``cov``, ``corrcoef`` and ``istft`` check their result. ``multinomial`` is none of them: measured on
#: torch 2.11, it no longer looks at the probabilities (proposed in pull request 134818 of pytorch).
IMPLICIT_WAITS: frozenset[str] = frozenset(
    _names(
        "__bool__ __int__ __float__ __index__ __complex__ __repr__ __format__ __contains__ __array__ "
        "nonzero argwhere unique unique_consecutive masked_select equal allclose is_nonzero bincount "
        "repeat_interleave cov corrcoef istft"
    )
)

#: Methods that make the host wait when the tensor is on a device.
WAIT_METHODS: frozenset[str] = EXPLICIT_WAITS | IMPLICIT_WAITS

#: ``torch.where`` waits with one argument only, ``one_hot`` without ``num_classes``, ``repeat_interleave`` as the
#: method. ``bincount`` reads the largest value to size its result; ``gaussian_nll_loss`` looks for a negative variance.
WAIT_FUNCTIONS: frozenset[str] = frozenset(
    [
        *_names(
            "nonzero argwhere unique unique_consecutive masked_select equal allclose is_nonzero bincount where "
            "repeat_interleave combinations cov corrcoef istft",
            "torch.",
        ),
        "torch.nn.functional.one_hot",
        "torch.nn.functional.gaussian_nll_loss",
    ]
)

#: Linear algebra after which the host looks whether it succeeded: the documentation of each says that it "synchronizes
#: that device with the CPU", and so it was measured. The variants that do not (`inv_ex`), `det` and `qr` are left out.
CHECKED_FUNCTIONS: frozenset[str] = frozenset(
    [
        *_names(
            "cholesky cond eig eigh eigvals eigvalsh inv ldl_factor lu_factor matrix_rank pinv solve svd svdvals",
            "torch.linalg.",
        ),
        *_names("inverse pinverse cholesky svd", "torch."),
    ]
)


# Modules ----------------------------------------------------------------------------------------------------


class ModuleFact(NamedTuple):
    """What a class of torch.nn holds.

    tensors: whether it has parameters or buffers: ``always``; ``default`` (an argument such as ``affine=False`` turns
        them off); ``argument`` (only if an argument gives some: ``CrossEntropyLoss(weight=w)``); ``children`` (those of
        the modules put in); ``never``.
    kind: ``layer``, ``loss``, ``container`` or ``recurrent``.
    """

    tensors: str
    kind: str


def _modules(names: str, tensors: str, kind: str = "layer", dims: str = "") -> dict[str, ModuleFact]:
    suffixes = [f"{d}d" for d in dims] or [""]
    return {f"torch.nn.{name}{suffix}": ModuleFact(tensors, kind) for name in names.split() for suffix in suffixes}


MODULES: dict[str, ModuleFact] = {
    **_modules("Linear LazyLinear Bilinear Embedding EmbeddingBag PReLU MultiheadAttention", "always"),
    **_modules("AdaptiveLogSoftmaxWithLoss", "always"),
    **_modules("Transformer TransformerEncoderLayer TransformerDecoderLayer", "always"),
    **_modules("Conv ConvTranspose LazyConv LazyConvTranspose", "always", dims="123"),
    **_modules("BatchNorm LazyBatchNorm LazyInstanceNorm", "default", dims="123"),
    **_modules("SyncBatchNorm LayerNorm GroupNorm RMSNorm", "default"),
    # off by default, unlike the lazy kind: affine=True and track_running_stats=True turn them on
    **_modules("InstanceNorm", "argument", dims="123"),
    **_modules("RNN LSTM GRU RNNBase RNNCell LSTMCell GRUCell RNNCellBase", "always", "recurrent"),
    **_modules("Module Container Sequential ModuleList ModuleDict DataParallel", "children", "container"),
    **_modules("TransformerEncoder TransformerDecoder", "children"),
    **_modules("ParameterList ParameterDict", "argument", "container"),
    **_modules(
        "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish RReLU ReLU "
        "ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink Threshold "
        "AlphaDropout Dropout FeatureAlphaDropout ChannelShuffle CosineSimilarity CrossMapLRN2d Flatten Fold Identity "
        "LocalResponseNorm PairwiseDistance PixelShuffle PixelUnshuffle Unflatten Unfold Upsample UpsamplingBilinear2d "
        "UpsamplingNearest2d",
        "never",
    ),
    **_modules(
        "AdaptiveAvgPool AdaptiveMaxPool AvgPool MaxPool MaxUnpool LPPool CircularPad ConstantPad ReflectionPad "
        "ReplicationPad ZeroPad Dropout",
        "never",
        dims="123",
    ),
    **_modules("FractionalMaxPool", "never", dims="23"),
    **_modules(
        "CTCLoss CosineEmbeddingLoss GaussianNLLLoss HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss MSELoss "
        "MarginRankingLoss MultiLabelMarginLoss PoissonNLLLoss SmoothL1Loss SoftMarginLoss TripletMarginLoss",
        "never",
        "loss",
    ),
    # weight= or pos_weight= becomes a buffer; distance_function= may be a module
    **_modules(
        "BCELoss BCEWithLogitsLoss CrossEntropyLoss MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss NLLLoss2d "
        "TripletMarginWithDistanceLoss",
        "argument",
        "loss",
    ),
    "torch.nn.parallel.DistributedDataParallel": ModuleFact("children", "container"),
    # holds the weight of the last linear layer itself
    **_modules("LinearCrossEntropyLoss", "always", "loss"),
}

_NORMS = "bias num_batches_tracked running_mean running_var weight"


def _registered(classes: str, names: str, dims: str = "") -> dict[str, frozenset[str]]:
    suffixes = [f"{d}d" for d in dims] or [""]
    return {cls + suffix: frozenset(names.split()) for cls in classes.split() for suffix in suffixes}


#: What the constructors of torch's modules register as buffers and parameters of their own, if only as ``None``, by the
#: last word of the class: what a subclass assigns to these names is registered, or refused.
REGISTERED: dict[str, frozenset[str]] = {
    **_registered("BatchNorm InstanceNorm LazyBatchNorm LazyInstanceNorm", _NORMS, dims="123"),
    **_registered("SyncBatchNorm _BatchNorm _InstanceNorm _LazyNormBase _NormBase", _NORMS),
    **_registered("BCELoss CrossEntropyLoss MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss NLLLoss2d", "weight"),
    **_registered("BCEWithLogitsLoss", "pos_weight weight"),
    **_registered("LinearCrossEntropyLoss _WeightedLoss", "weight"),
    **_registered("Conv ConvTranspose LazyConv LazyConvTranspose", "bias weight", dims="123"),
    **_registered("Linear LazyLinear Bilinear GroupNorm LayerNorm _ConvNd _ConvTransposeNd", "bias weight"),
    **_registered("Embedding EmbeddingBag PReLU RMSNorm", "weight"),
    **_registered("FractionalMaxPool", "_random_samples", dims="23"),
    **_registered("GRUCell LSTMCell RNNCell RNNCellBase", "bias_hh bias_ih weight_hh weight_ih"),
    **_registered("MultiheadAttention", "in_proj_bias in_proj_weight k_proj_weight q_proj_weight v_proj_weight"),
}

#: Base classes whose subclasses are modules, besides those of torch.nn.
MODULE_BASES: frozenset[str] = frozenset(
    {
        "torch.nn.Module",
        "torch.nn.modules.Module",
        "torch.nn.modules.module.Module",
        "torch.jit.ScriptModule",
        "torch.fx.GraphModule",
    }
)


#: What every module has.
MODULE_ATTRIBUTES: frozenset[str] = frozenset(
    "add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches eval extra_repr "
    "float forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict modules mtia "
    "named_buffers named_children named_modules named_parameters parameters register_backward_hook register_buffer "
    "register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook "
    "register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter "
    "register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule "
    "share_memory state_dict to to_empty train training type xpu zero_grad".split()
)


# Optimizers, distributions, data ----------------------------------------------------------------------------

OPTIMIZERS: frozenset[str] = frozenset(
    _names(
        "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD SparseAdam",
        "torch.optim.",
    )
)

#: Optimizers that make their state in the constructor, where the parameters are then.
EAGER_STATE: frozenset[str] = frozenset({"torch.optim.Adagrad"})

#: Samples, log_prob and moments live where the parameters given to the constructor live; numbers give host tensors
#: (or the default device's).
DISTRIBUTIONS: frozenset[str] = frozenset(
    _names(
        "Bernoulli Beta Binomial Categorical Cauchy Chi2 ContinuousBernoulli Dirichlet Exponential FisherSnedecor "
        "Gamma GeneralizedPareto Geometric Gumbel HalfCauchy HalfNormal Independent InverseGamma Kumaraswamy "
        "LKJCholesky Laplace LogNormal LogisticNormal LowRankMultivariateNormal MixtureSameFamily Multinomial "
        "MultivariateNormal NegativeBinomial Normal OneHotCategorical OneHotCategoricalStraightThrough Pareto "
        "Poisson RelaxedBernoulli RelaxedOneHotCategorical StudentT TransformedDistribution Uniform VonMises "
        "Weibull Wishart",
        "torch.distributions.",
    )
)

#: Iterating one gives batches on the host.
LOADERS: frozenset[str] = frozenset(
    {
        "torch.utils.data.DataLoader",
        "torch.utils.data.dataloader.DataLoader",
    }
)

DATASETS: frozenset[str] = frozenset(
    [
        *_names(
            "Dataset IterableDataset TensorDataset ConcatDataset ChainDataset StackDataset Subset", "torch.utils.data."
        ),
        *_names("dataset.Dataset dataset.IterableDataset", "torch.utils.data."),
        *_names("VisionDataset ImageFolder DatasetFolder", "torchvision.datasets."),
    ]
)

SAMPLERS: frozenset[str] = frozenset(
    _names(
        "Sampler SequentialSampler RandomSampler SubsetRandomSampler WeightedRandomSampler BatchSampler "
        "distributed.DistributedSampler",
        "torch.utils.data.",
    )
)

#: Redirect factories for the whole process; the first by its argument, the second by a type that names a device.
DEFAULT_DEVICE_SETTERS: frozenset[str] = frozenset({"torch.set_default_device", "torch.set_default_tensor_type"})
