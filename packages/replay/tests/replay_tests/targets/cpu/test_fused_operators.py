"""torch's own operator samples through mode=max-autotune; `python -m benchmarks.op_db` runs all of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from npucompose_replay.capture import generated
from npucompose_replay.generated import GeneratedKernel
from replay_tests.op_samples import BY_NAME
from replay_tests.targets.cpu.fused_operators import ORDER, Verdict, distance, overall, samples, verdict, verdicts

FAST = ("addmm", "diagonal", "sort", "sub", "topk")
SAMPLE = (
    "abs", "all", "amax", "argmin", "as_strided", "atan2", "bernoulli", "bitwise_and", "bmm", "cat", "cholesky",
    "clamp", "complex", "cumsum", "einsum", "fft_fft2", "fft_rfft", "fill", "gather", "histc", "index_put", "isin",
    "linalg_solve", "logsumexp", "masked_scatter", "max_reduction_with_dim", "mvlgamma_mvlgamma_p_1", "nanquantile",
    "nn_functional_conv2d", "nn_functional_embedding_bag", "nn_functional_interpolate_bilinear",
    "nn_functional_layer_norm", "nn_functional_linear", "nn_functional_max_pool2d",
    "nn_functional_scaled_dot_product_attention", "randn_like", "repeat_interleave", "scatter_reduce_sum",
    "special_zeta", "take_along_dim", "var_mean_unbiased",
)  # fmt: skip
"""Of every family; each is replayed natively."""


pytestmark = pytest.mark.usefixtures("one_quiet_thread")


@pytest.mark.parametrize("name", FAST)
def test_a_common_operator_is_replayed_natively(name: str):
    (found,) = verdicts(name, most=1)
    assert found.kind == "native", found.words


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_an_operator_of_each_family_is_replayed_natively(name: str):
    for found in verdicts(name, most=2):
        assert found.kind == "native", found.words


def test_a_replay_that_computes_something_else_is_wrong(monkeypatch: pytest.MonkeyPatch):
    """The negative control: the operator that calls kernels is given the numbers of its operands negated."""
    real = generated.arguments

    def confused(kernel: GeneratedKernel, given: Any) -> Any:
        read, *rest = real(kernel, given)
        return (read[::-1], *rest)

    monkeypatch.setattr(generated, "arguments", confused)
    (found,) = verdicts("sub", most=1)
    assert found.kind == "wrong"


def test_what_depends_on_data_is_named_with_its_operator():
    x = torch.tensor([3.0, 0.0, 1.0])
    calls = [([x], lambda x: x.nonzero())] * 2
    found = verdict(calls)
    assert (found.kind, found.words.partition(":")[0]) == ("wrapper", "aten.nonzero.default")


@pytest.mark.parametrize("name", ["addmm", "bmm"])  # whose samples have fixed numbers, and random ones
def test_samples_are_the_same_each_time_and_have_other_values_in_each_call(name: str):
    op = BY_NAME[name]
    found, again = (samples(op, torch.float32, 1) for _ in range(2))
    for calls, others in zip(found, again, strict=True):
        for (tensors, _), (same, _) in zip(calls, others, strict=True):
            assert all(map(torch.equal, tensors, same))
    ((one, _), (other, _), _) = found[0]
    assert not torch.equal(one[1], other[1])


def test_an_operator_is_what_the_worst_of_its_samples_is():
    found = [Verdict(kind=kind) for kind in reversed(ORDER)]
    assert overall(found).kind == "wrong"
    right = Verdict(kind="native", error=0.5, eager_error=0.25)
    cut = Verdict(kind="wrapper", words="aten.nonzero: why", error=0.125)
    assert overall([right, cut]) == Verdict(kind="wrapper", words="aten.nonzero: why", error=0.5, eager_error=0.25)


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        ([torch.tensor([1.0, math.nan])], [torch.tensor([1.0, math.nan])], 0.0),
        ([torch.tensor([1.0, math.inf])], [torch.tensor([1.0, 2.0])], math.inf),
        ([torch.tensor([3.0, 8.0])], [torch.tensor([1.0, 8.0])], 0.25),
        ([torch.tensor([0.25])], [torch.tensor([0.0])], 0.25),
        ([torch.tensor([1, 2])], [torch.tensor([1, 3])], math.inf),
        ([True, 2.0, None], [True, 2.5, None], 0.2),
        ([1], [2], math.inf),
        ([torch.tensor([1j])], [torch.tensor([0j])], 1.0),
    ],
)
def test_a_distance_is_a_share_of_the_largest_number(a: list[Any], b: list[Any], apart: float):
    assert distance(a, b) == apart
