"""A model whose operator only a compiled graph has: its declared calls are not tried in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from npucompose.api import checked
from npucompose.compose.session import Session
from npucompose.errors import ConfigError
from npucompose.models.base import Built


class Raising(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


def session(error: Exception) -> Any:
    made = Session(checked(["model=add", "model.sequence=[{x.0: 6}]", "shapes=dynamic"]))
    made.built = Built(module=Raising(error), inputs=lambda step: {"x": torch.ones(4)})
    return made


def test_what_is_not_implemented_in_eager_may_be_compiled() -> None:
    words = (
        "torchair.ops.npu_fused_infer_attention_score does not support in this mode, only support in max-autotune mode"
    )
    session(NotImplementedError(words))._try_calls_in_eager()


def test_a_type_that_torch_has_no_kernel_for_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"even in eager: NotImplementedError: .* not implemented for 'Bool'"):
        session(NotImplementedError("\"addmm_impl_cpu_\" not implemented for 'Bool'"))._try_calls_in_eager()


def test_what_the_model_itself_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot take these inputs, even in eager: RuntimeError: sizes"):
        session(RuntimeError("sizes"))._try_calls_in_eager()
