"""Operators in the forms that Inductor's patterns for oneDNN know: which are rewritten, and that the values stay."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import npucompose
from npucompose.bits import same_bytes
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.products import known_forms
from npucompose_replay.products.known_forms import in_known_forms, sums_in_two, without_tanh

onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
FUSED = ("mode=max-autotune", "inductor.max_autotune=false")


def with_values(function: Any, *inputs: Any) -> fx.GraphModule:
    """The aten graph with what Inductor's hooks find in it."""
    return make_fx(function, tracing_mode="fake")(*inputs)


def names(graph_module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph_module.graph.nodes if node.op == "call_function"]


def off(got: Tensor, exact: Tensor) -> float:
    return float((got - exact).norm() / exact.norm())


def counting(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """How many operators a rewriting of `known_forms` rewrites in each graph, as they come."""
    counted: list[int] = []
    rewriting = getattr(known_forms, name)

    def rewrites(graph: fx.GraphModule) -> int:
        counted.append(rewriting(graph))
        return counted[-1]

    monkeypatch.setattr(known_forms, name, rewrites)
    return counted


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None, **how: Any) -> Tensor:
    return torch.nn.functional.conv1d(x, weight, bias, **how)


@onednn
@pytest.mark.parametrize(
    ("groups", "how"),
    [
        (1, {}),
        (1, {"stride": 2, "padding": 1}),
        (1, {"padding": 3, "dilation": 2}),
        (2, {"stride": 3, "padding": 2, "dilation": 2}),
    ],
)
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_convolution_of_a_sequence_gets_a_dimension_and_keeps_its_values(
    groups: int, how: dict[str, Any], with_bias: bool
) -> None:
    given = [torch.randn(3, 8, 31), torch.randn(6, 8 // groups, 5), *([torch.randn(6)] if with_bias else [])]
    graph = with_values(lambda *given: convolution(*given, groups=groups, **how), *given)
    before = next(node for node in graph.graph.nodes if "convolution" in str(node.target)).meta
    assert in_known_forms(graph) == 1
    (made,) = (node for node in graph.graph.nodes if "convolution" in str(node.target))
    assert made.args[0].meta["val"].shape == (3, 8, 1, 31)
    assert made.args[1].meta["val"].shape == (6, 8 // groups, 1, 5)
    narrow = next(iter(made.users))
    assert narrow.meta["val"].shape == before["val"].shape
    assert narrow.meta.get("stack_trace") == before.get("stack_trace")
    torch.testing.assert_close(graph(*given), convolution(*given, groups=groups, **how))


@onednn
@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: torch.nn.functional.conv_transpose1d(x, w), [(2, 4, 9), (4, 3, 3)]),
        (lambda x, w: torch.nn.functional.conv2d(x, w), [(2, 4, 9, 9), (3, 4, 3, 3)]),
        (lambda x, w: convolution(x.double(), w.double()), [(2, 4, 9), (3, 4, 3)]),
        (lambda x, w: (x + w) ** 2, [(2, 4), (2, 4)]),
        (lambda x, w: (x + w).double() ** 3, [(2, 4), (2, 4)]),
        (lambda x, w: torch.pow(x, w), [(2, 4), (2, 4)]),
    ],
)
def test_what_has_another_form_stays(function: Any, inputs: list[tuple[int, ...]]) -> None:
    graph = with_values(function, *(torch.randn(shape) for shape in inputs))
    before = names(graph)
    assert in_known_forms(graph) == 0
    assert names(graph) == before


@onednn
def test_a_cube_is_two_products_with_the_same_bits() -> None:
    x = torch.randn(1000)
    graph = with_values(lambda x: torch.pow(x, 3.0) + 1, x)
    assert in_known_forms(graph) == 1
    assert names(graph) == ["aten.mul.Tensor", "aten.mul.Tensor", "aten.add.Tensor"]
    assert same_bytes(graph(x), x**3 + 1)


def test_without_onednn_nothing_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = with_values(lambda x: x**3, torch.randn(4))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert in_known_forms(graph) == 0
    assert names(graph) == ["aten.pow.Tensor_Scalar"]


def gelu(y: Tensor) -> Tensor:
    return 0.5 * y * (1.0 + torch.tanh(0.7978845608028654 * (y + 0.044715 * y * y * y)))


def test_one_and_a_tanh_are_twice_a_sigmoid() -> None:
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, 100.0, -100.0, 1e-30])])
    graph = with_values(lambda x: torch.tanh(x) + 1.0, x)
    assert without_tanh(graph) == 1
    assert names(graph) == ["aten.mul.Tensor", "aten.sigmoid.default", "aten.mul.Tensor"]
    torch.testing.assert_close(graph(x).double(), torch.tanh(x.double()) + 1, rtol=1e-6, atol=1e-38)


def test_a_gelu_with_a_sigmoid_is_as_near_to_the_one_in_double_precision() -> None:
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    graph = with_values(gelu, x)
    assert without_tanh(graph) == 1
    assert off(graph(x), gelu(x.double())) < 1e-7


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.tanh(x) + 2.0,
        lambda x: torch.tanh(x),
        lambda x: torch.tanh(x.double()) + 1,
        lambda x: torch.add(torch.tanh(x), 1.0, alpha=2),
        lambda x: torch.sin(x) + 1.0,
        lambda x: x + 1.0,
    ],
)
def test_any_other_tanh_stays(function: Any) -> None:
    graph = with_values(function, torch.randn(4))
    before = names(graph)
    assert without_tanh(graph) == 0
    assert names(graph) == before


def test_a_tanh_that_others_read_is_computed_too() -> None:
    x = torch.randn(64)
    graph = with_values(lambda x: (torch.tanh(x) + 1.0, torch.tanh(x) * 2), x)
    assert without_tanh(graph) == 1
    assert names(graph).count("aten.tanh.default") == 1
    torch.testing.assert_close(graph(x), (torch.tanh(x) + 1, torch.tanh(x) * 2))


@onednn
def test_a_gelu_behind_a_product_is_computed_without_a_tanh(
    fresh_dynamo: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = counting(monkeypatch, "without_tanh")
    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, 16, 40)
    with torch.no_grad():
        fast = npucompose.compile(copy.deepcopy(model), *FUSED)
        torch.testing.assert_close(fast(x), model(x))
    assert counted == [1]


class Model(nn.Module):
    """A convolution of a sequence, and GPT-2's GELU behind a product, as transformers write it."""

    def __init__(self) -> None:
        super().__init__()
        self.over = nn.Conv1d(16, 32, 3, padding=1)
        self.inner = nn.Linear(40, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(self.over(x))
        return 0.5 * y * (1.0 + torch.tanh(0.7978845608028654 * (y + 0.044715 * torch.pow(y, 3.0))))


@onednn
@pytest.mark.parametrize("freezing", [True, False])
def test_packed_and_fused_where_the_weights_are_frozen_and_left_alone_elsewhere(
    fresh_dynamo: None, freezing: bool
) -> None:
    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, 16, 40)
    choices = (*FUSED, f"inductor.freezing={str(freezing).lower()}")
    with torch.no_grad():
        fast = npucompose.compile(copy.deepcopy(model), *choices)
        got = [fast(x) for _ in range(3)][-1]
        torch.testing.assert_close(got, model(x))
    (made,) = fast.materialised.backend.compilations
    assert isinstance(made.lowered, GraphCache)
    captured = made.lowered.last
    assert isinstance(captured, CapturedGraph)
    called = [step.op._schema.name for step in captured.plan.steps]
    assert ("mkldnn::_convolution_pointwise" in called) == freezing
    assert ("aten::convolution" in called) == (not freezing)
    assert ("mkl::_mkl_linear" in called) == freezing


@pytest.mark.parametrize("dimension", [1, -2])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("function", [torch.sum, torch.mean])
def test_rows_are_added_up_in_parts_and_sums_keep_their_values_and_shapes(
    function: Any, keepdim: bool, dimension: int
) -> None:
    x = torch.randn(3, 200, 17)
    graph = with_values(lambda x: function(x, dimension, keepdim=keepdim), x)
    assert sums_in_two(graph) == 1
    assert names(graph)[:3] == ["aten.view.default", "aten.sum.dim_IntList", "aten.sum.dim_IntList"]
    torch.testing.assert_close(graph(x), function(x, dimension, keepdim=keepdim))
    (result,) = (node.args[0] for node in graph.graph.nodes if node.op == "output")
    assert result.meta["val"].shape == graph(x).shape


@pytest.mark.parametrize(
    ("shape", "dimension"),
    [
        ((2, 63, 8), 1),  # few rows
        ((2, 97, 8), 1),  # a prime number of them
        ((2, 194, 8), 1),  # twice a prime number
        ((2, 8, 200), 2),  # the innermost
        ((200,), 0),
        ((), 0),
        ((2, 64, 8), (1, 0)),
    ],
)
def test_any_other_sum_stays(shape: tuple[int, ...], dimension: Any) -> None:
    graph = with_values(lambda x: (x.sum(dimension), x.mean(dimension)), torch.randn(shape))
    assert sums_in_two(graph) == 0
    assert names(graph) == ["aten.sum.dim_IntList", "aten.mean.dim"]


@pytest.mark.parametrize("function", [lambda x: x.double().mean(1), lambda x: x.mean(1, dtype=torch.float64)])
def test_sums_in_double_precision_stay(function: Any) -> None:
    graph = with_values(function, torch.randn(2, 200, 8))
    assert sums_in_two(graph) == 0


def test_rows_that_lie_innermost_in_memory_are_added_as_they_are() -> None:
    graph = with_values(lambda x: x.mean(1), torch.randn(2, 8, 200).transpose(1, 2))
    assert sums_in_two(graph) == 0


def test_a_mean_over_rows_is_as_near_to_the_one_in_double_precision_as_eagers(
    fresh_dynamo: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = counting(monkeypatch, "sums_in_two")
    x = torch.randn(4, 200, 256, generator=torch.Generator().manual_seed(0)) + 1
    with torch.no_grad():
        fast = npucompose.compile(lambda x: x.mean(1), *FUSED)
        near = off(fast(x), x.double().mean(1))
    assert counted == [1]
    assert near < 1.5 * off(x.mean(1), x.double().mean(1))  # 2.8 times in one sum
