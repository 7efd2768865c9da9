"""Products in int8 and in groups, and what makes int8 of rows, as reference kernels of plain torch calls.

Meaning: Ascend/op-plugin's pages docs/zh/custom_APIs/torch_npu/torch_npu-<operator>.md. Products of int8 are exact:
they are added up in float64, which holds every sum of less than 2^39 of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from npucompose.ops.definitions import refuse_others, unsupported

GROUPED, QUANT = "npu_grouped_matmul", "npu_quant_matmul"
DTYPES = {1: torch.int8, 3: torch.int32, 5: torch.float16, 6: torch.float32, 15: torch.bfloat16}
"""{number of a type in arguments: torch's}, as the wheel's meta functions have them (torch_npu 2.13.0)."""


def rows_in_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(round(x / scale), scale of each row = its greatest absolute value / 127)."""
    wide = x.float()
    scale = wide.abs().amax(-1) / 127
    return torch.where(scale[..., None] > 0, wide / scale[..., None], 0).round().to(torch.int8), scale


def _dynamic_quant(
    input: torch.Tensor, *, smooth_scales: torch.Tensor | None = None, quant_mode: str = "pertoken", **others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    if others.get("dst_type") == 1:  # int8
        others = {**others, "dst_type": None}
    refuse_others("npu_dynamic_quant", others, "input, smooth_scales, dst_type int8")
    if quant_mode != "pertoken":
        raise unsupported("npu_dynamic_quant", "quant_mode", f"is {quant_mode!r}", "Supported: 'pertoken'.")
    return rows_in_int8(input if smooth_scales is None else input.float() * smooth_scales.float())


def _quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: int | None = None,
    **others: Any,
) -> torch.Tensor:
    refuse_others(QUANT, others, "x1, x2, scale, offset, pertoken_scale, bias, output_dtype")
    out = _type(QUANT, output_dtype, torch.int8)
    _refuse_other_than_int8(QUANT, {"x1": x1, "x2": x2})
    if scale.dtype not in (torch.float32, torch.bfloat16):
        raise unsupported(QUANT, "scale", f"is {scale.dtype}", "Supported: float32, bfloat16.")
    sums = x1.double() @ x2.double()
    return _scaled(sums, scale, pertoken_scale, bias, offset, out)


def _scaled(
    sums: torch.Tensor,
    scale: torch.Tensor,
    of_rows: torch.Tensor | None,
    bias: torch.Tensor | None,
    offset: torch.Tensor | None,
    out: torch.dtype,
) -> torch.Tensor:
    """A bias of int32 is added before the scales, any other behind them."""
    if bias is not None and bias.dtype == torch.int32:
        sums, bias = sums + bias, None
    done = sums * scale.double()
    done = done if of_rows is None else done * of_rows.double()[..., None]
    for more in (bias, offset):
        done = done if more is None else done + more.double()
    whole = not out.is_floating_point
    return (done.round().clamp(torch.iinfo(out).min, torch.iinfo(out).max) if whole else done).to(out)


def _grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: Sequence[torch.Tensor] | None = None,
    scale: Sequence[torch.Tensor] | None = None,
    per_token_scale: Sequence[torch.Tensor] | None = None,
    group_list: torch.Tensor | Sequence[int] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    output_dtype: int | torch.dtype | None = None,
    tuning_config: Sequence[int] | None = None,
    **others: Any,
) -> list[torch.Tensor]:
    """Rows of one x in groups, each times a weight of its own; or every x times its weight. One tensor, or one each."""
    _refuse_groups(x, group_type, split_item, group_list, others)
    out = x[0].dtype if output_dtype is None else _type(GROUPED, output_dtype, x[0].dtype)
    weights = list(weight[0]) if len(weight) == 1 and weight[0].dim() == 3 else list(weight)
    parts = list(x) if len(x) == len(weights) and group_list is None else _groups(x[0], group_list, group_list_type)
    if len(parts) != len(weights):
        possible = f"There are {len(weights)} weights."
        raise unsupported(GROUPED, "group_list", f"makes {len(parts)} groups", possible)
    rows = _groups(per_token_scale[0], group_list, group_list_type) if per_token_scale else [None] * len(parts)

    def of_group(given: Sequence[torch.Tensor] | None, at: int) -> torch.Tensor | None:
        if not given:
            return None
        return given[0][at] if len(given) == 1 and given[0].dim() == 2 else given[at]

    done = [
        _product(part, weights[at], of_group(bias, at), of_group(scale, at), rows[at], out)
        for at, part in enumerate(parts)
    ]
    if split_item in (0, 1):
        return done
    whole = torch.cat(done)
    behind = sum(one.shape[0] for one in x) - whole.shape[0]  # rows of no group, which a device leaves as they are
    return [torch.nn.functional.pad(whole, (0, 0, 0, behind))]


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    of_rows: torch.Tensor | None,
    out: torch.dtype,
) -> torch.Tensor:
    if x.dtype == torch.int8:
        scale = torch.ones((), device=x.device) if scale is None else scale
        return _scaled(x.double() @ weight.double(), scale, of_rows, bias, None, out)
    done = x.float() @ weight.float()
    return (done if bias is None else done + bias.float()).to(out)


def _groups(x: torch.Tensor, group_list: Any, kind: int | None) -> list[torch.Tensor]:
    """`group_list` has the groups' ends, or their sizes (kind 1)."""
    numbers = [int(n) for n in (group_list.tolist() if isinstance(group_list, torch.Tensor) else group_list)]
    if kind == 1:
        return list(x[: sum(numbers)].split(numbers))
    return [x[start:end] for start, end in pairwise([0, *numbers])]


def _grouped_matmul_meta(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list: Any = None,
    output_dtype: int | torch.dtype | None = None,
    **others: Any,
) -> list[torch.Tensor]:
    taken = ("bias", "scale", "per_token_scale", "group_list_type", "tuning_config")
    _refuse_groups(x, group_type, split_item, group_list, {k: v for k, v in others.items() if k not in taken})
    out = x[0].dtype if output_dtype is None else _type(GROUPED, output_dtype, x[0].dtype)
    if split_item in (0, 1):
        one = len(weight) == 1 and weight[0].dim() == 3
        return [x[i].new_empty((*x[i].shape[:-1], weight[0 if one else i].shape[-1]), dtype=out) for i in range(len(x))]
    return [x[0].new_empty((sum(one.shape[0] for one in x), weight[0].shape[-1]), dtype=out)]


def _refuse_groups(x: Sequence[torch.Tensor], kind: int | None, split: int | None, groups: Any, others: Any) -> None:
    refuse_others(GROUPED, others, "x, weight, bias, scale, per_token_scale, group_list, tuning_config, output_dtype")
    if kind not in (None, -1, 0):
        raise unsupported(GROUPED, "group_type", f"is {kind}", "Supported: -1, 0.")
    if split not in (0, 1, 2, 3) or (split in (0, 1) and groups is not None):
        raise unsupported(GROUPED, "split_item", f"is {split}", "Supported: 2, 3; 0 and 1 without group_list.")
    for one in x:
        if one.dtype not in (torch.int8, torch.float16, torch.bfloat16, torch.float32):
            raise unsupported(GROUPED, "x", f"is {one.dtype}", "Supported: float32, float16, bfloat16, int8.")


def _refuse_other_than_int8(op: str, given: dict[str, torch.Tensor]) -> None:
    for name, tensor in given.items():
        if tensor.dtype != torch.int8:
            raise unsupported(op, name, f"is {tensor.dtype}", "Supported: int8.")


def _type(op: str, given: int | torch.dtype | None, default: torch.dtype) -> torch.dtype:
    if given is None or isinstance(given, torch.dtype):
        return given or default
    if given not in DTYPES:
        possible = ", ".join(f"{number} ({dtype})" for number, dtype in DTYPES.items())
        raise unsupported(op, "output_dtype", f"is {given}", f"Supported: {possible}.")
    return DTYPES[given]


KERNELS: dict[str, Callable[..., Any]] = {
    "npu_dynamic_quant": _dynamic_quant,
    QUANT: _quant_matmul,
    GROUPED: _grouped_matmul,
    f"{GROUPED}.List": _grouped_matmul,
}
METAS: dict[str, Callable[..., Any]] = {GROUPED: _grouped_matmul_meta, f"{GROUPED}.List": _grouped_matmul_meta}
"""Where values decide which rows are multiplied, and no size."""
