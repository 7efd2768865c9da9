"""Calls of ATen operators that no filling of a schema fits: weights, offsets and lists that belong to one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def f(*shape: int) -> torch.Tensor:
    """Floats between 1 and 2, no two rows the same."""
    count = max(torch.Size(shape).numel(), 1)
    return (1 + torch.arange(count).reshape(shape) / count).contiguous()


def i(*shape: int) -> torch.Tensor:
    """Zeros, which are indices of anything."""
    return torch.zeros(shape, dtype=torch.int64)


def _cell(gates: int) -> tuple[torch.Tensor, ...]:
    """The weights of one layer from 3 to 4 numbers."""
    return f(4 * gates, 3), f(4 * gates, 4), f(4 * gates), f(4 * gates)


_LAYER = (True, 1, 0.0, False, False, False)
"""Biases, one layer, no dropout, no training, one direction, sequence first."""
_DATA = (True, 1, 0.0, False, False)


def _convolution(dims: int) -> tuple[Any, ...]:
    return f(1, 2, *[6] * dims), f(3, 2, *[3] * dims)


def _transposed(dims: int) -> tuple[Any, ...]:
    return f(1, 2, *[6] * dims), f(2, 3, *[3] * dims)


def _slow(dims: int) -> tuple[Any, ...]:
    return (*_convolution(dims), [3] * dims, None, [1] * dims, [0] * dims)


def _adam() -> tuple[list[torch.Tensor], ...]:
    return [f(3)], [f(3)], [f(3)], [f(3)], [], [torch.tensor(1.0)]


_ADAM = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
_CTC = (f(5, 2, 4).log_softmax(-1), torch.ones(2, 3, dtype=torch.int64))
_LENGTHS = (torch.tensor([5, 5]), torch.tensor([3, 3]))
_IMAGE = {1: f(1, 2, 6), 2: f(1, 2, 6, 6), 3: f(1, 2, 6, 6, 6)}
_SEQUENCE, _STATE = f(5, 2, 3), f(1, 2, 4)
_PACKED = (f(10, 3), torch.tensor([2, 2, 2, 2, 2]))

POSITIONAL: Mapping[str, Callable[[], tuple[Any, ...]]] = {
    "_assert_async": lambda: (torch.tensor(True),),
    "_assert_async.msg": lambda: (torch.tensor(True), "no"),
    "_functional_assert_async.msg": lambda: (torch.tensor(True), "no", f(1)),
    "_functional_sym_constrain_range": lambda: (3, 0, 5, f(1)),
    "_functional_sym_constrain_range_for_size": lambda: (3, 0, 5, f(1)),
    "_int_mm": lambda: (torch.ones(32, 32, dtype=torch.int8), torch.ones(32, 32, dtype=torch.int8)),
    "_convolution": lambda: (
        *_convolution(2), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, False, False,
    ),
    "_convolution.deprecated": lambda: (
        *_convolution(2), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, False,
    ),
    "_convolution_mode": lambda: (*_convolution(2), None, [1, 1], "same", [1, 1], 1),
    "conv_tbc": lambda: (f(5, 2, 3), f(3, 3, 4), f(4), 0),
    "conv_transpose1d": lambda: _transposed(1),
    "conv_transpose2d.input": lambda: _transposed(2),
    "conv_transpose3d.input": lambda: _transposed(3),
    "slow_conv_dilated2d": lambda: (*_slow(2), [1, 1]),
    "slow_conv_dilated3d": lambda: (*_slow(3), [1, 1, 1]),
    "slow_conv3d_forward": lambda: _slow(3),
    "_slow_conv2d_forward": lambda: _slow(2),
    "thnn_conv2d": lambda: _slow(2)[:4],
    "slow_conv_transpose2d": lambda: (*_transposed(2), [3, 3]),
    "slow_conv_transpose3d": lambda: (*_transposed(3), [3, 3, 3]),
    "col2im": lambda: (f(1, 4, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
    "affine_grid_generator": lambda: (f(1, 2, 3), [1, 1, 4, 4], False),
    "grid_sampler": lambda: (_IMAGE[2], f(1, 4, 4, 2) - 1.5, 0, 0, False),
    "_native_batch_norm_legit.no_stats": lambda: (_IMAGE[2], None, None, True, 0.1, 1e-5),
    "addbmm_": lambda: (f(3, 4), f(2, 3, 5), f(2, 5, 4)),
    "addmv_": lambda: (f(3), f(3, 4), f(4)),
    "einsum": lambda: ("ij,jk->ik", [f(2, 3), f(3, 4)]),
    "tensordot": lambda: (f(2, 3), f(3, 4), [1], [0]),
    "layer_norm": lambda: (f(2, 3), [3]),
    "rms_norm": lambda: (f(2, 3), [3]),
    "kl_div": lambda: (f(2, 3), f(2, 3)),
    "cosine_embedding_loss": lambda: (f(2, 3), f(2, 3), f(2)),
    "nll_loss2d": lambda: (f(1, 3, 4, 4), i(1, 4, 4)),
    "_ctc_loss": lambda: (*_CTC, [5, 5], [3, 3]),
    "_ctc_loss.Tensor": lambda: (*_CTC, *_LENGTHS),
    "ctc_loss.IntList": lambda: (*_CTC, [5, 5], [3, 3]),
    "ctc_loss.Tensor": lambda: (*_CTC, *_LENGTHS),
    "embedding_bag": lambda: (f(4, 3), i(5), torch.tensor([0, 2])),
    "embedding_bag.padding_idx": lambda: (f(4, 3), i(5), torch.tensor([0, 2]), False, 0, False, None, False, None),
    "float_power_.Scalar": lambda: (f(3).double(), 2),
    "float_power_.Tensor": lambda: (f(3).double(), f(3).double()),
    "gru.input": lambda: (_SEQUENCE, _STATE, list(_cell(3)), *_LAYER),
    "rnn_tanh.input": lambda: (_SEQUENCE, _STATE, list(_cell(1)), *_LAYER),
    "rnn_relu.input": lambda: (_SEQUENCE, _STATE, list(_cell(1)), *_LAYER),
    "gru.data": lambda: (*_PACKED, _STATE, list(_cell(3)), *_DATA),
    "rnn_tanh.data": lambda: (*_PACKED, _STATE, list(_cell(1)), *_DATA),
    "rnn_relu.data": lambda: (*_PACKED, _STATE, list(_cell(1)), *_DATA),
    "lstm.data": lambda: (*_PACKED, [_STATE, _STATE], list(_cell(4)), *_DATA),
    "gru_cell": lambda: (f(2, 3), f(2, 4), *_cell(3)),
    "lstm_cell": lambda: (f(2, 3), [f(2, 4), f(2, 4)], *_cell(4)),
    "index_reduce_": lambda: (f(3, 4), 0, i(2), f(2, 4), "prod"),
    "is_nonzero": lambda: (f(1),),
    "item": lambda: (f(1),),
    "linalg_norm.ord_str": lambda: (f(3, 3), "fro"),
    "linalg_cond.p_str": lambda: (f(3, 3) + torch.eye(3), "fro"),
    "linspace.Tensor_Scalar": lambda: (torch.tensor(0.0), 1, 4),
    "linspace.Scalar_Tensor": lambda: (0, torch.tensor(1.0), 4),
    "linspace.Tensor_Tensor": lambda: (torch.tensor(0.0), torch.tensor(1.0), 4),
    "logspace.Tensor_Scalar": lambda: (torch.tensor(0.0), 1, 4),
    "logspace.Scalar_Tensor": lambda: (0, torch.tensor(1.0), 4),
    "logspace.Tensor_Tensor": lambda: (torch.tensor(0.0), torch.tensor(1.0), 4),
    "lu_solve": lambda: (f(3, 2), *torch.linalg.lu_factor(f(3, 3) + torch.eye(3))),
    "moveaxis.intlist": lambda: (f(2, 3), [0], [1]),
    "movedim.intlist": lambda: (f(2, 3), [0], [1]),
    "mvlgamma_": lambda: (3 * f(2, 3), 1),
    "special_multigammaln": lambda: (3 * f(2, 3), 1),
    "nuclear_norm.dim": lambda: (f(3, 4), [0, 1]),
    "random.from": lambda: (f(3), 0, 5),
    "random_.from": lambda: (f(3), 0, 5),
    "squeeze_.dims": lambda: (f(1, 3), [0]),
    "squeeze_copy.dims": lambda: (f(1, 3), [0]),
    "view_as_complex_copy": lambda: (f(3, 2),),
    "_amp_update_scale_": lambda: (f(1), i(1).int(), 0 * f(1), 2.0, 0.5, 10),
    "_amp_update_scale": lambda: (f(1), i(1).int(), 0 * f(1), 2.0, 0.5, 10),
    "affine_grid_generator_backward": lambda: (f(1, 4, 4, 2), [1, 1, 4, 4], False),
    "trace_backward": lambda: (f(1)[0], [3, 3]),
    "index_select_backward": lambda: (f(2, 3), [4, 3], 0, i(2)),
    "histogramdd": lambda: (f(4, 2), [2, 2]),
    "norm.ScalarOpt_dtype": lambda: (f(2, 3), 2),
    "norm.ScalarOpt_dim_dtype": lambda: (f(2, 3), 2, [0], False),
    "_pack_padded_sequence": lambda: (f(5, 2, 3), torch.tensor([5, 4]), False),
    "_native_multi_head_attention": lambda: (*[f(1, 3, 4)] * 3, 4, 2, f(12, 4), f(12), f(4, 4), f(4)),
    "_transformer_encoder_layer_fwd": lambda: (
        f(1, 3, 4), 4, 2, f(12, 4), f(12), f(4, 4), f(4), False, False, 1e-5, *[f(4)] * 4, f(8, 4), f(8), f(4, 8), f(4),
    ),
    "_upsample_nearest_exact2d_backward": lambda: (f(1, 2, 12, 12), [12, 12], [1, 2, 6, 6]),
    **{
        f"{kind}3d_backward": lambda: (f(1, 2, 12, 12, 12), [12] * 3, [1, 2, 6, 6, 6])
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
    },
    **{
        f"_upsample_{kind}2d_aa_backward": lambda: (f(1, 2, 12, 12), [12, 12], [1, 2, 6, 6], False)
        for kind in ("bicubic", "lanczos")
    },
    "_transform_bias_rescale_qkv": lambda: (f(1, 4, 12), f(12), 2),
    "_foreach_addcdiv_.Tensor": lambda: ([f(3), f(3)], [f(3), f(3)], [f(3), f(3)], f(2)),
    "_foreach_addcmul_.Tensor": lambda: ([f(3), f(3)], [f(3), f(3)], [f(3), f(3)], f(2)),
    **{
        f"upsample_{kind}.vec": lambda dims=dims: (_IMAGE[dims], [12] * dims, False, None)
        for kind, dims in (("linear1d", 1), ("bilinear2d", 2), ("bicubic2d", 2), ("trilinear3d", 3))
    },
    **{
        f"{kind}{dims}d.vec": lambda dims=dims: (_IMAGE[dims], [12] * dims, None)
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for dims in (1, 2, 3)
    },
    **{
        f"_upsample_{kind}2d_aa.vec": lambda: (_IMAGE[2], [12, 12], False, None)
        for kind in ("bilinear", "bicubic", "lanczos")
    },
    **{f"_fused_{kind}{end}": _adam for kind in ("adam", "adamw") for end in ("", ".tensor_lr", "_", "_.tensor_lr")},
    **{f"scatter{end}.reduce": lambda: (f(3, 4), 0, i(3, 4), f(3, 4)) for end in ("", "_")},
    **{f"scatter{end}.value_reduce": lambda: (f(3, 4), 0, i(3, 4), 2.0) for end in ("", "_")},
}  # fmt: skip
"""{operator: its positional arguments}."""


def keywords(name: str) -> dict[str, Any]:
    """Arguments that an operator takes by name alone."""
    if name.startswith("_fused_adam"):
        return {**_ADAM, "lr": torch.tensor(0.1) if "tensor_lr" in name else 0.1}
    if name.startswith("norm."):
        return {"dtype": torch.float32}
    return {"reduce": "add"} if name.startswith("scatter") else {}
