"""Batched float32 products in max-autotune: by oneDNN where it is faster, pinned or asked for; replayed in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import fx, nn
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import FakeTensorMode

import npucompose
from npucompose.errors import CompileError
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.executor.native import Native
from npucompose_replay.products import batched, onednn
from npucompose_replay.products.batched import choose_batched
from npucompose_replay.products.winners import Winners
from replay_tests.targets.by_onednn import FUSED, computed_alike_by_the_wrapper, keeps_bits_in_other_modes
from tests.graph_helpers import traced

pytestmark = [
    pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here"),
    pytest.mark.usefixtures("one_quiet_thread"),
]
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    build.load()
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))


def graph_of(x: torch.Tensor, y: torch.Tensor) -> fx.GraphModule:
    made = traced(torch.bmm, x, y)
    for node in made.graph.nodes:
        if node.op == "call_function":
            for operand, value in zip(node.args, (x, y), strict=True):
                operand.meta["val"] = value
    return made


def operands(turned: bool = False, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.randn(4, 128, 256, dtype=dtype).transpose(1, 2) if turned else torch.randn(4, 256, 128, dtype=dtype)
    return torch.randn(4, 16, 256, dtype=dtype), y


def target_of(graph: fx.GraphModule) -> Any:
    return next(node.target for node in graph.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_is_named_by_its_sizes_and_by_whether_the_second_is_transposed(turned: bool) -> None:
    (found,) = batched.batched(graph_of(*operands(turned)))
    assert found.form == "bmm_4x16x256x128" + ("_turned" if turned else "")
    assert found.work == 2 * 4 * 16 * 256 * 128


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: operands(dtype=torch.float64), id="in double"),
        pytest.param(lambda: (torch.randn(64, 1, 256), torch.randn(64, 256, 128)), id="a row each"),
        pytest.param(lambda: (torch.randn(64, 128, 256), torch.randn(64, 256, 1)), id="a column each"),
        pytest.param(lambda: tuple(t.to("meta") for t in operands()), id="on another device"),
    ],
)
def test_of_others_none_is_a_candidate(make: Callable[[], Any]) -> None:
    assert batched.batched(graph_of(*make())) == []


def test_a_size_that_is_a_symbol_names_no_product() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    x, y = operands()
    graph = graph_of(x, y)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        symbolic = mode.from_tensor(x, static_shapes=False)
    next(node for node in graph.graph.nodes if node.op == "placeholder").meta["val"] = symbolic
    assert batched.batched(graph) == []


@pytest.mark.parametrize(
    ("templates", "pinned", "library", "moved"),
    [
        (True, {}, "auto", 0),
        (False, {}, "auto", 1),
        (True, {"bmm_4x16x256x128": "onednn"}, "auto", 1),
        (True, {}, "onednn", 1),
    ],
)
def test_constant_matrices_are_left_to_inductors_templates_where_these_are_on_and_nobody_asks_for_another(
    templates: bool,
    pinned: dict[str, str],
    library: Literal["auto", "onednn"],
    moved: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onednn, "in_turns", lambda *_: ({"aten": [10.0] * 8, "onednn": [5.0] * 8}, 1.0))
    x, weight = operands()
    graph = graph_of(x, weight)
    (product,) = batched.batched(graph)
    with graph.graph.inserting_before(product.node):
        graph.register_buffer("weight", weight)
        constant = graph.graph.get_attr("weight")
        constant.meta["val"] = weight
    product.node.args = (product.node.args[0], constant)
    with inductor_config.patch(max_autotune=templates), FakeTensorMode():
        assert choose_batched(graph, library=library, winners=Winners(pinned=pinned)) == moved


@pytest.mark.parametrize(
    ("ratio", "library", "moved"),
    [(0.5, "auto", 1), (1.0, "auto", 0), (0.5, "mkl", 0), (2.0, "onednn", 1)],
)
def test_a_product_goes_to_the_faster_library_or_to_the_one_that_is_asked_for(
    ratio: float, library: Literal["auto", "mkl", "onednn"], moved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def in_turns(calls: Any, limit_ms: float) -> Any:
        seen.append(limit_ms)
        for given in calls.values():
            assert [tuple(operand.shape) for operand in given[0].args] == [(4, 16, 256), (4, 256, 128)]
            assert [operand.stride() for operand in given[0].args] == [(4096, 256, 1), (32768, 128, 1)]
        return {"aten": [10.0] * 8, "onednn": [10.0 * ratio] * 8}, 1.0

    monkeypatch.setattr(onednn, "in_turns", in_turns)
    graph, winners = graph_of(*operands()), Winners(limit_ms=7.0)
    with FakeTensorMode():
        assert choose_batched(graph, library=library, winners=winners) == moved
    assert (target_of(graph) is torch.ops.air.onednn_bmm.default) is bool(moved)
    assert len(seen) == (library == "auto")
    if library == "auto":
        assert seen == [7.0]
        assert winners.found["bmm_4x16x256x128"].winner == ("onednn" if moved else "aten")
        x, y = operands()
        assert torch.allclose(graph(x, y), x @ y, atol=1e-3)


def test_a_contest_measures_both_on_several_operands() -> None:
    (found,) = batched.batched(graph_of(*operands()))
    winner = onednn._measured(found, 1.0)
    assert winner.key == "bmm_4x16x256x128"
    assert winner.by == "default" or set(winner.times_us) == {"aten", "onednn"}
    pairs = onednn.operands_of(found)
    assert len(pairs) == 8, "as many as fit 16 MiB, at most eight"
    assert len({x.data_ptr() for x, _ in pairs}) == 8


def test_a_contest_lays_its_operands_as_the_graph_does() -> None:
    x, y = torch.randn(16, 256).expand(4, 16, 256), operands(turned=True)[1]
    (found,) = batched.batched(graph_of(x, y))
    (a, b), *_ = onednn.operands_of(found)
    assert [(t.shape, t.stride()) for t in (a, b)] == [(t.shape, t.stride()) for t in (x, y)]
    assert 0 <= a.min() < a.max() < 1
    assert onednn._measured(found, 1.0).key == "bmm_4x16x256x128_turned"


def test_small_ones_and_those_without_a_replayer_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    small = graph_of(torch.randn(4, 8, 16), torch.randn(4, 16, 8))
    assert choose_batched(small, library="onednn") == 0

    def absent() -> Any:
        raise build.Unavailable("no compiler")

    monkeypatch.setattr(onednn.build, "load", absent)
    graph = graph_of(*operands())
    assert choose_batched(graph, library="onednn") == 0
    monkeypatch.setattr(onednn.build, "load", lambda: SimpleNamespace(has_onednn=False))
    assert choose_batched(graph, library="onednn") == 0
    assert target_of(graph) is aten.bmm.default


LAYOUTS: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "row by row": operands,
    "the second transposed": lambda: operands(turned=True),
    "the first transposed": lambda: (torch.randn(4, 256, 16).transpose(1, 2), operands()[1]),
    "heads of one tensor": lambda: (
        torch.randn(16, 4, 64).transpose(0, 1), torch.randn(16, 4, 64).permute(1, 2, 0)
    ),
    "one matrix for all": lambda: (torch.randn(16, 256).expand(4, 16, 256), operands()[1]),
    "a part of a larger one": lambda: (torch.randn(4, 16, 300)[:, :, 7:263], torch.randn(6, 256, 128)[1:5]),
    "nothing to sum": lambda: (torch.randn(4, 16, 0), torch.randn(4, 0, 128)),
    "no matrices": lambda: (torch.randn(0, 16, 256), torch.randn(0, 256, 128)),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_operator_multiplies_matrices_however_they_lie(layout: str) -> None:
    x, y = LAYOUTS[layout]()
    got, expected = torch.ops.air.onednn_bmm(x, y), torch.bmm(x, y)
    assert got.shape == expected.shape
    assert got.is_contiguous()
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-3)
    assert torch.ops.air.onednn_bmm(x.to("meta"), y.to("meta")).shape == expected.shape


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (torch.ones(2, 3, 4), torch.ones(2, 5, 3), "cannot be multiplied"),
        (torch.ones(2, 3, 4), torch.ones(3, 4, 3), "cannot be multiplied"),
        (torch.ones(3, 4), torch.ones(4, 3), "cannot be multiplied"),
        (torch.ones(2, 3, 4).double(), torch.ones(2, 4, 3).double(), "float32 matrices are multiplied"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_no_product_of_float32_matrices_is_refused(
    x: torch.Tensor, y: torch.Tensor, words: str, device: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        torch.ops.air.onednn_bmm(x.to(device), y.to(device))


@pytest.mark.parametrize("executor", ["native", "torchscript", "python"])
def test_a_replay_computes_into_the_planned_pool(executor: Any) -> None:
    def twice(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = torch.ops.air.onednn_bmm(x, y)
        return (torch.ops.air.onednn_bmm(one.relu(), y),)

    x, y = torch.randn(4, 16, 256), torch.randn(4, 256, 256)
    captured = CapturedGraph.capture(traced(twice, x, y), [x, y], executor=executor)
    for _ in range(2):
        given = [torch.randn_like(x), torch.randn_like(y)]
        expected = torch.bmm(torch.bmm(*given).relu(), given[1])
        assert torch.allclose(captured.replay(*given)[0], expected, rtol=1e-4, atol=1e-1)
    if isinstance(captured.executor, Native):
        assert captured.facts()["fresh"] == 0
        assert captured.executor.facts() == {"packed": 2, "held": 1}


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 256, 256) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(torch.bmm(x, self.weight).relu(), self.weight)


@pytest.fixture
def attends() -> Iterator[nn.Module]:
    torch._dynamo.reset()
    yield Attends().eval().requires_grad_(False)
    torch._dynamo.reset()


@pytest.mark.parametrize("override", ["target.linear=onednn", "target.kernels.bmm_4x16x256x256=onednn"])
def test_a_model_is_recorded_with_what_is_asked_for_or_pinned(attends: nn.Module, override: str) -> None:
    x = torch.randn(4, 16, 256)
    handle = npucompose.compile(attends, *FUSED, override).detach(x)
    captured: Any = handle.captured
    assert captured.executor.facts()["packed"] == 2
    assert torch.allclose(handle(x), attends(x), rtol=1e-4, atol=1e-3)
    again = torch.randn(4, 16, 256)
    assert torch.allclose(handle(again), attends(again), rtol=1e-4, atol=1e-3)


def test_by_inductor_s_wrapper_it_is_computed_alike(attends: nn.Module) -> None:
    assert computed_alike_by_the_wrapper(attends, torch.randn(4, 16, 256))


def test_what_cannot_multiply_here_is_refused_by_name(attends: nn.Module) -> None:
    fast = npucompose.compile(attends, *FUSED, "target.kernels.bmm_4x16x256x256=cutlass")
    with pytest.raises(
        CompileError, match=r"bmm_4x16x256x256: cutlass cannot compute this here\. Possible: aten, onednn"
    ):
        fast(torch.randn(4, 16, 256))


def test_in_other_modes_products_keep_their_bits(attends: nn.Module) -> None:
    assert keeps_bits_in_other_modes(attends, torch.randn(4, 16, 256))
