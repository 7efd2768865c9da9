"""torch's own operator samples: captured once, replayed on other values, the same bytes as eager."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from replay_tests.op_samples import BY_NAME, OK, verdict

GOLDEN = Path(__file__).parents[1] / "golden" / "op_db.txt"
FAST = [
    "abs",
    "add",
    "addmm",
    "amax",
    "argmax",
    "baddbmm",
    "bmm",
    "cat",
    "clamp",
    "clone",
    "copysign",
    "cos",
    "cumsum",
    "diagonal",
    "div",
    "exp",
    "expand",
    "flip",
    "gather",
    "index_add",
    "index_select",
    "linalg_vector_norm",
    "logsumexp",
    "masked_fill",
    "matmul",
    "mean",
    "mm",
    "mul",
    "native_dropout_backward",
    "narrow",
    "neg",
    "nn_functional_conv2d",
    "nn_functional_dropout",
    "nn_functional_embedding",
    "nn_functional_gelu",
    "nn_functional_layer_norm",
    "nn_functional_linear",
    "nn_functional_relu",
    "nn_functional_scaled_dot_product_attention",
    "nn_functional_silu",
    "permute",
    "pow",
    "rand_like",
    "scatter",
    "softmax_with_dtype",
    "sort",
    "split",
    "std",
    "sub",
    "sum",
    "topk",
    "transpose_copy",
    "tril",
    "unfold",
    "where",
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", [name for name in FAST if name in BY_NAME])
@pytest.mark.parametrize("executor", ["native", "torchscript"])
def test_a_common_operator_replays_bit_for_bit(name: str, executor: Any):
    assert verdict(name, executor) == OK


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["native", "torchscript"])
def test_every_operator_of_torchs_samples_replays_bit_for_bit_or_is_listed(executor: Any):
    verdicts = {name: verdict(name, executor) for name in sorted(BY_NAME)}
    others = [f"{name}: {text}" for name, text in verdicts.items() if text != OK]
    assert not [line for line in others if ": WRONG" in line]
    assert len(verdicts) - len(others) >= 300
    if torch.__version__.startswith("2.13."):  # another torch has other samples and other words
        assert others == GOLDEN.read_text().splitlines()
