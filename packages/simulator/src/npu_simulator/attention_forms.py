"""Attention in the forms in which a capture calls it: into memory that is given, with memory to work in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from npucompose.ops import attention
from npucompose.ops.definitions import unsupported


def capture_forms() -> dict[str, Callable[..., Any]]:
    """{operator: kernel} beside the operators that compute; not every wheel has them all."""
    return {
        form: kernel
        for name in attention.KERNELS
        for form, kernel in (
            (f"{name}.out", partial(_write, name)),
            (f"_{name}_get_max_workspace", _workspace),
            (f"_{name}_infer_output", partial(_infer_output, name)),
        )
    }


def _write(
    name: str,
    *tensors: torch.Tensor,
    workspace: torch.Tensor | None = None,
    out: Sequence[torch.Tensor],
    **options: Any,
) -> Sequence[torch.Tensor]:
    """The operator's results in `out`. One that is not asked for, softmax_lse, has no size of its own: it is zero."""
    for given, made in zip(out, attention.KERNELS[name](*tensors, **options), strict=True):
        if not made.numel():
            given.zero_()
        elif given.shape != made.shape:
            possible = f"The result has {tuple(made.shape)}."
            raise unsupported(name, "out", f"holds a tensor of shape {tuple(given.shape)}", possible)
        else:
            given.copy_(made)
    return out


def _workspace(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    """Scratch memory; the reference kernel needs none, so that its size says nothing."""
    return torch.empty(16, dtype=query.dtype, device=query.device)


def _infer_output(name: str, query: torch.Tensor, value: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
    """Memory for the operator's results, of the sizes that the wheel's meta function gives."""
    shapes = getattr(torch.ops.npu, name)(query.to("meta"), value.to("meta"), value.to("meta"), **options)
    return tuple(torch.empty_like(shape, device=query.device) for shape in shapes)
