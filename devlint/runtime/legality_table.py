"""Which operators do not simply want all of their tensors on one device, as facts about torch (see `legality`).

Operators go by their name without ``aten::`` and without the underscore of in-place variants; an overload is named
where the others of its name differ. An operator that no table names follows the generated check of every argument.
"""

from __future__ import annotations

from typing import Final

# `torch_nn` holds losses in Python that multiply and subtract all they are given.
NAMESPACES: Final = frozenset({"aten", "torch_nn"})

# Declared NoCheck, on TensorIterator with `allow_cpu_scalars`, and with a kernel that takes a number for any operand
# (`gpu_kernel_with_scalars`, or a branch on `is_cpu_scalar`): aten/src/ATen/native/cuda/Binary*.cu, Compare*.cu,
# PowKernel.cu, StepKernel.cu, MaxMinElementwiseKernel.cu, ZetaKernel.cu, *_polynomial_*.cu. The last line is
# made of such.
ELEMENTWISE: Final = frozenset(
    """
    add sub rsub mul div floor_divide remainder fmod pow atan2 hypot copysign heaviside xlogy special_xlog1py
    special_zeta maximum minimum fmax fmin clamp_max.Tensor_out clamp_min.Tensor_out eq ne lt le gt ge bitwise_and
    bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ __ilshift__ __irshift__
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_hermite_polynomial_h
    special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p
    ldexp dist allclose
    """.split()
)

# Elementwise, but `_foreach_maximum` and `_foreach_minimum` run `clamp_min` and `clamp_max`, which are checked.
CLAMPED: Final = frozenset({"maximum", "minimum"})

# Elementwise too, but only these arguments may be a number: PointwiseOpsKernel.cu says so, Lerp.cu branches on it, and
# the losses multiply by it at the end (Loss.cpp, Loss.cu).
SCALARS_AT: Final = {
    "addcmul": frozenset({"tensor2"}),
    "lerp": frozenset({"weight", "weights"}),
    "binary_cross_entropy": frozenset({"weight"}),
    "binary_cross_entropy_with_logits": frozenset({"self", "weight", "pos_weight"}),
    "soft_margin_loss": frozenset({"target"}),
}

# Read as numbers, copied, or asked for nothing but their shape.
ANYWHERE: Final = frozenset(
    """
    copy _to_copy _copy_from _copy_from_and_resize copy_sparse_to_sparse _foreach_copy fill linspace logspace
    randint_like slice_scatter select_scatter diagonal_scatter as_strided_scatter slice_inverse is_same_size is_set_to
    _has_same_storage_numel _new_zeros_with_same_feature_meta resize_as _make_dual _use_cudnn_ctc_loss _cudnn_ctc_loss
    _use_miopen_ctc_loss miopen_ctc_loss _nested_view_from_buffer _nested_view_from_buffer_copy
    _nested_view_from_jagged _nested_view_from_jagged_copy _nested_from_padded _nested_from_padded_tensor
    """.split()
)

# Arguments that may be anywhere: `ctc_loss` moves them to the scores before it calls `_ctc_loss` (LossCTC.cpp),
# `index_fill_` reads its value as a number, a cuDNN state is made where it is needed.
ARGUMENTS_ANYWHERE: Final = {
    "_ctc_loss": frozenset({"targets", "input_lengths", "target_lengths"}),
    "_ctc_loss_backward": frozenset({"targets", "input_lengths", "target_lengths"}),
    "index_fill": frozenset({"value"}),
    "_cudnn_rnn": frozenset({"weight_buf", "dropout_state"}),
    "_unsafe_masked_index_put_accumulate": frozenset({"indices"}),
}

# Arguments that may be on the host beside device tensors, of whatever shape: a learning rate is read as a number
# (FusedAdamKernel.cu), seeds of attention stay on the host, and indices are moved to what they index
# (TensorAdvancedIndexing.cpp).
ARGUMENTS_ON_HOST: Final = {
    "_fused_adam": frozenset({"lr"}),
    "_fused_adamw": frozenset({"lr"}),
    "_fused_sgd": frozenset({"lr"}),
    "_fused_adagrad": frozenset({"lr"}),
    "_unsafe_masked_index": frozenset({"indices"}),
    "_scaled_dot_product_flash_attention_backward": frozenset({"philox_seed", "philox_offset"}),
    "_scaled_dot_product_efficient_attention_backward": frozenset({"philox_seed", "philox_offset"}),
    "_scaled_dot_product_fused_attention_overrideable_backward": frozenset({"philox_seed", "philox_offset"}),
    "_flash_attention_backward": frozenset({"rng_state", "unused"}),
    "_efficient_attention_backward": frozenset({"philox_seed", "philox_offset"}),
}

# Operators, by their full name, with an argument that the host must read wherever the others are.
HOST_ONLY: Final = frozenset(
    {
        "aten::_pack_padded_sequence",
        "aten::_foreach_addcmul",
        "aten::_foreach_addcdiv",
        "aten::_foreach_addcmul_",
        "aten::_foreach_addcdiv_",
    }
)

# Where the first operand is, there is the result, wherever the others are.
FOLLOWS_FIRST: Final = frozenset(
    """
    copy index _unsafe_index index_put _unsafe_index_put _unsafe_masked_index_put_accumulate index_fill masked_fill fill
    bernoulli _ctc_loss slice_scatter select_scatter diagonal_scatter as_strided_scatter randint_like
    """.split()
)
