"""What changes the channels of a convolution goes into its frozen weight in double precision, and nothing else does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._guards import TracingContext
from torch.fx.experimental.proxy_tensor import make_fx

import npucompose
from npucompose_replay.products import folded_scales
from npucompose_replay.products.folded_scales import fold_scales, frozen_inputs

CHANNELS = 6
FUSED = ("mode=max-autotune", "inductor.max_autotune=false")
Shape = tuple[int, ...]


def with_values(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1) -> Tensor:
    return torch.ops.aten.convolution(
        x, weight, bias, *([number] * (x.dim() - 2) for number in (1, 1, 1)), False, [0] * (x.dim() - 2), groups
    )


def of_channels(value: Tensor, like: Tensor) -> Tensor:
    return value.view(-1, *(1 for _ in range(like.dim() - 2)))


def normalised(y: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """As torch decomposes a batch norm."""
    by = 1 / torch.sqrt(variance.to(y.dtype) + 1e-5)
    return (y - of_channels(mean, y)) * of_channels(by, y) * of_channels(scale, y) + of_channels(shift, y)


def parameters(*shapes: Shape) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.rand(shape, generator=generator) + 0.5 for shape in shapes]


def folded(function: Callable[..., Any], *inputs: Tensor, changing: int = 1) -> tuple[int, fx.GraphModule]:
    """(how many convolutions had something, the graph after it); the first `changing` inputs are not frozen."""
    graph = with_values(function, *inputs)
    count = fold_scales(graph, graph.graph.find_nodes(op="placeholder")[changing:])
    graph.graph.eliminate_dead_code()
    graph.graph.lint()
    return count, graph


def behind(graph: fx.GraphModule) -> list[str]:
    """The names of the operators from the convolution on."""
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return names[names.index("aten.convolution.default") :]


@pytest.mark.parametrize("size", [(9,), (9, 7), (5, 4, 3)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_batch_norm_goes_into_weight_and_bias(size: Shape, groups: int, with_bias: bool) -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor, *norm: Tensor) -> Tensor:
        return normalised(convolved(x, weight, bias if with_bias else None, groups), *norm).relu()

    weight = (CHANNELS, 4 // groups, *(3 for _ in size))
    inputs = parameters((2, 4, *size), weight, (CHANNELS,), *[(CHANNELS,)] * 4)
    count, graph = folded(function, *inputs)
    assert count == 1
    assert behind(graph) == ["aten.convolution.default", "aten.relu.default"]
    torch.testing.assert_close(graph(*inputs), function(*inputs), rtol=1e-5, atol=1e-5)


def test_weight_and_bias_are_rounded_once() -> None:
    inputs = parameters((1, 4, 5, 5), (CHANNELS, 4, 3, 3), (CHANNELS,), *[(CHANNELS,)] * 4)
    _, graph = folded(lambda x, w, b, *norm: normalised(convolved(x, w, b), *norm), *inputs)
    given: list[Tensor] = []

    class Seen(fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if target is torch.ops.aten.convolution.default:
                given.extend(args[1:3])
            return super().call_function(target, args, kwargs)

    Seen(graph).run(*inputs)
    _, weight, bias, mean, variance, scale, shift = (value.double() for value in inputs)
    by = scale / (variance + 1e-5).sqrt()
    assert torch.equal(given[0], (weight * by.view(-1, 1, 1, 1)).float())
    assert torch.equal(given[1], ((bias - mean) * by + shift).float())


@pytest.mark.parametrize(
    "change",
    [
        lambda y, c: y * c,
        lambda y, c: c * y,
        lambda y, c: y / c,
        lambda y, c: (y + c) * c - c,
        lambda y, c: c + y / c,
        lambda y, c: y * c[None],
    ],
)
def test_each_operator_is_folded_as_it_computes(change: Callable[[Tensor, Tensor], Tensor]) -> None:
    inputs = parameters((2, 4, 6, 6), (CHANNELS, 4, 3, 3), (CHANNELS, 1, 1))
    count, graph = folded(lambda x, w, c: change(convolved(x, w), c), *inputs)
    assert (count, behind(graph)) == (1, ["aten.convolution.default"])
    x, weight, c = inputs
    torch.testing.assert_close(graph(*inputs), change(convolved(x, weight), c), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, w, c: convolved(x, w) + c, id="a sum is no scale"),
        pytest.param(lambda x, w, c: c / convolved(x, w), id="divided by the results"),
        pytest.param(lambda x, w, c: c - convolved(x, w), id="the results are taken away"),
        pytest.param(lambda x, w, c: (lambda y: y * c + y)(convolved(x, w)), id="a second reader"),
        pytest.param(lambda x, w, c: (lambda y: (y * c, y))(convolved(x, w)), id="an output"),
        pytest.param(lambda x, w, c: convolved(x, w) * c.view(1, 1, 1, CHANNELS), id="of columns"),
        pytest.param(lambda x, w, c: convolved(x, w) * c.exp(), id="by what is not worked out"),
        pytest.param(lambda x, w, c: convolved(x, w) * c.double(), id="in another dtype"),
        pytest.param(lambda x, w, c: convolved(x, w) * c.bfloat16().float(), id="rounded on purpose"),
        pytest.param(lambda x, w, c: convolved(x, w) * torch.add(c, c, alpha=2), id="with more than operands"),
        pytest.param(lambda x, w, c: torch.add(convolved(x, w), c, alpha=2) * c, id="scaled in a sum"),
        pytest.param(lambda x, w, c: convolved(x, w) * x.mean(), id="by what changes"),
        pytest.param(lambda x, w, c: convolved(x, w * x.mean()) * c, id="a weight that changes"),
        pytest.param(lambda x, w, c: convolved(x.double(), w.double()) * c, id="in double precision"),
    ],
)
def test_what_is_no_scale_of_channels_stays(function: Callable[..., Any]) -> None:
    inputs = parameters((2, 4, 6, CHANNELS), (CHANNELS, 4, 3, 3), (CHANNELS, 1, 1))
    before = with_values(function, *inputs)
    before.graph.eliminate_dead_code()
    count, graph = folded(function, *inputs)
    assert count == 0
    assert [node.target for node in graph.graph.nodes] == [node.target for node in before.graph.nodes]


def test_what_is_not_frozen_stays() -> None:
    inputs = parameters((2, 4, 6, 6), (CHANNELS, 4, 3, 3), (CHANNELS, 1, 1))
    assert folded(lambda x, w, c: convolved(x, w) * c, *inputs, changing=2)[0] == 0
    assert folded(lambda c, x, w: convolved(x, w) * c, inputs[2], *inputs[:2], changing=2)[0] == 0


def test_a_transposed_convolution_stays() -> None:
    inputs = parameters((2, 4, 6, 6), (4, CHANNELS, 3, 3), (CHANNELS, 1, 1))
    assert folded(lambda x, w, c: torch.nn.functional.conv_transpose2d(x, w) * c, *inputs)[0] == 0


def test_two_convolutions_may_share_what_changes_them() -> None:
    inputs = parameters((2, CHANNELS, 6, 6), (CHANNELS, CHANNELS, 3, 3), (CHANNELS, 1, 1))

    def function(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        return convolved(convolved(x, w) * c.sqrt(), w) * c.sqrt()

    count, graph = folded(function, *inputs)
    assert count == 2
    torch.testing.assert_close(graph(*inputs), function(*inputs), rtol=1e-5, atol=1e-4)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def trained() -> Normed:
    generator = torch.Generator().manual_seed(3)
    module = Normed().eval().requires_grad_(False)
    for value in (*module.parameters(), *module.buffers()):
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator) + 0.1)
    return module


def test_max_autotune_folds_a_batch_norm_and_is_nearer_to_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = trained(), torch.randn(4, 2, 20, 20, generator=torch.Generator().manual_seed(1))
    wanted = copy.deepcopy(module).double()(x.double())
    counted: list[int] = []
    fold = folded_scales.fold_scales

    def counting(*given: Any) -> int:
        counted.append(fold(*given))
        return counted[-1]

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(folded_scales, "fold_scales", counting)
        ours = npucompose.compile(module, *FUSED)(x)
        patch.setattr(folded_scales, "fold_scales", lambda *_: 0)
        torch.compiler.reset()
        without = npucompose.compile(copy.deepcopy(module), *FUSED)(x)
    assert counted == [1]
    errors = [(got.double() - wanted).norm() for got in (ours, without)]
    assert errors[0] < 0.8 * errors[1]


def test_a_weight_that_the_graph_writes_or_returns_is_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fx.Graph()
    kept, written, returned, x = (graph.placeholder(name) for name in ("kept", "written", "returned", "x"))
    product = graph.call_function(torch.ops.aten.mul.Tensor, (x, kept))
    graph.call_function(torch.ops.aten.copy_.default, (written, product))
    graph.output((product, returned))
    context = type("Context", (), {"params_flat": [1, 2, 3]})()
    monkeypatch.setattr(TracingContext, "try_get", lambda: context)
    assert frozen_inputs(graph) == [kept]
    context.params_flat = None
    assert frozen_inputs(graph) == []
    monkeypatch.setattr(TracingContext, "try_get", lambda: None)
    assert frozen_inputs(graph) == []
