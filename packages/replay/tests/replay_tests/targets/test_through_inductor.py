"""mode=max-autotune on cpu: the options arrive, weights are frozen, our passes see the graph before Inductor does."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from typing import Any, cast

import attrs
import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config

import npucompose
from npucompose_replay.inductor import through as inductor
from npucompose_replay.products import linears
from npucompose_replay.products.cold import Others
from npucompose_replay.products.winners import Winners

FUSED = ("mode=max-autotune", "inductor.max_autotune=null", "target.measuring=never")
"""Without timing kernels: these claims are not about speed."""


class Two(nn.Module):
    """Two products with frozen weights, the same sum twice for cse, something to fuse behind a product."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 96), nn.Linear(96, 64, bias=False)
        self.register_buffer("seen", torch.zeros(8, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        self.seen.add_(y)
        return (y + x) * (y + x) + self.seen


@pytest.fixture
def model() -> Iterator[nn.Module]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield Two().eval()
    torch._dynamo.reset()


def compiled(model: nn.Module, *overrides: str) -> tuple[Any, torch.Tensor]:
    """The compiled model and its first result."""
    fast = npucompose.compile(model, *FUSED, *overrides)
    with torch.no_grad():
        return fast, fast(torch.ones(8, 64))


def frozen_graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """What `linears.choose_linears` is given while this test runs."""
    seen: list[torch.fx.GraphModule] = []
    choose = linears.choose_linears

    def listening(graph_module: torch.fx.GraphModule, **how: Any) -> int:
        seen.append(graph_module)
        return choose(graph_module, **how)

    monkeypatch.setattr(linears, "choose_linears", listening)
    return seen


def test_the_options_reach_inductor_and_no_other_compilation(model: nn.Module, monkeypatch: pytest.MonkeyPatch):
    seen: list[dict[str, Any]] = []
    inner = inductor.compile_fx_inner

    def listening(*args: Any, **keywords: Any) -> Any:
        names = ("max_autotune", "freezing", "epilogue_fusion")
        seen.append({name: getattr(inductor_config, name) for name in names} | {"simd": inductor_config.cpp.simdlen})
        return inner(*args, **keywords)

    monkeypatch.setattr(inductor, "compile_fx_inner", listening)
    compiled(model, "inductor.epilogue_fusion=false", "inductor.cpp.simdlen=256")
    assert seen == [{"max_autotune": False, "freezing": True, "epilogue_fusion": False, "simd": 256}]
    assert not inductor_config.freezing
    assert inductor_config.cpp.simdlen is None


def test_passes_see_the_graph_before_weights_are_packed(model: nn.Module, monkeypatch: pytest.MonkeyPatch):
    frozen = frozen_graphs(monkeypatch)
    fast, _ = compiled(model, "passes=[cse]", "target.linear=mkl")
    (compilation,) = fast.materialised.backend.compilations
    assert compilation.passes[0].matches == 1
    assert "aten.addmm" in compilation.before.text
    assert "mkl" not in compilation.text_after
    assert len(linears.linears(frozen[0])) == 2, "and Inductor packs what the passes left"


def test_a_hook_that_is_called_twice_rewrites_its_graph_once(model: nn.Module, monkeypatch: pytest.MonkeyPatch):
    """Inductor of torch 2.9 and older calls it again, after it has folded constants."""
    hook, calls = inductor._PassesFirst.__call__, []

    def twice(self: Any, graph: torch.fx.Graph) -> None:
        for _ in range(2):
            calls.append(graph)
            hook(self, graph)

    monkeypatch.setattr(inductor._PassesFirst, "__call__", twice)
    fast, result = compiled(model, "passes=[cse]")
    assert len(calls) >= 2
    (compilation,) = fast.materialised.backend.compilations
    assert compilation.passes[0].matches == 1
    assert result.shape == (8, 64)


def test_copies_of_inductors_settings_hold_the_hook_s_name_and_no_tensor():
    """Inductor before torch 2.9 copies and pickles every setting for the key of its cache."""
    held = inductor._PassesFirst(backend=cast(Any, threading.Lock()))
    assert copy.deepcopy({"joint_custom_pre_pass": held}) == {"joint_custom_pre_pass": held.uuid()}
    assert pickle.loads(pickle.dumps(held)) == held.uuid()


def test_freezing_can_be_left_out(model: nn.Module, monkeypatch: pytest.MonkeyPatch):
    frozen = frozen_graphs(monkeypatch)
    compiled(model, "inductor.freezing=false")
    assert frozen == []


@pytest.mark.parametrize("library", ["mkl", "onednn", "auto"])
def test_either_library_gives_the_model_s_results_and_its_state(model: nn.Module, library: str):
    reference = copy.deepcopy(model)
    fast = npucompose.compile(model, *FUSED, f"target.linear={library}")
    with torch.no_grad():
        for value in (0.5, -1.0):
            x = torch.full((8, 64), value)
            torch.testing.assert_close(fast(x), reference(x))
    torch.testing.assert_close(model.get_buffer("seen"), reference.get_buffer("seen"))
    assert len(fast.materialised.backend.compilations) == 1


def test_constants_that_nobody_uses_are_let_go(model: nn.Module, monkeypatch: pytest.MonkeyPatch):
    """MKL's packed weights are as large as the model."""
    choose, moves = linears.choose_linears, []

    def counting(graph_module: torch.fx.GraphModule, **how: Any) -> int:
        moves.append(choose(graph_module, **how))
        constants = graph_module.graph.find_nodes(op="get_attr")
        assert {name for name, _ in graph_module.named_buffers()} <= {node.target for node in constants}
        assert all(node.users for node in constants)
        return moves[-1]

    monkeypatch.setattr(linears, "choose_linears", counting)
    compiled(model, "target.linear=onednn")
    assert moves == [2]


def test_times_are_taken_from_no_cache_of_inductors_nor_graphs_where_all_is_measured_anew(
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[dict[str, Any]] = []

    def compile_fx(graph: Any, inputs: Any, *, inner_compile: Any, config_patches: dict[str, Any]) -> Any:
        asked.append(config_patches)
        return graph

    monkeypatch.setattr(inductor, "compile_fx", compile_fx)
    backend, graph = npucompose.backend("mode=max-autotune"), torch.fx.symbolic_trace(nn.ReLU())
    for measuring in ("always", "once"):
        inductor.through_inductor(backend, graph, [torch.ones(2)], winners=Winners(measuring=measuring))
    always, once = ([given.get(name) for name in ("fx_graph_cache", "autotune_local_cache")] for given in asked)
    assert (always, once) == ([False, False], [None, False])


def test_a_product_by_onednn_takes_in_what_follows_it(model: nn.Module, monkeypatch: pytest.MonkeyPatch):
    """Inductor's later passes do it, which a graph out of its cache does not meet."""
    frozen = frozen_graphs(monkeypatch)
    with inductor_config.patch(fx_graph_cache=False):
        compiled(model, "target.linear=onednn")
    targets = [str(node.target) for node in frozen[0].graph.nodes]
    assert linears.linears(frozen[0]) == []
    assert any("mkldnn._linear_pointwise" in target for target in targets)
    assert not any("relu" in target for target in targets)


class OfRows(nn.Module):
    """Products of [batch, rows, size], which torch computes as one of all rows; `split` reads one in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.split = nn.Linear(64, 96), nn.Linear(96, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + self.down(nn.functional.gelu(self.up(x)))
        return y, self.split(y).view(2, 8, 4, 16).transpose(1, 2)


def test_and_of_products_of_several_rows_in_several_batches_too(monkeypatch: pytest.MonkeyPatch):
    torch._dynamo.reset()
    model, x, frozen = OfRows().eval(), torch.randn(2, 8, 64), frozen_graphs(monkeypatch)
    fast = npucompose.compile(model, *FUSED, "target.linear=onednn")
    with torch.no_grad(), inductor_config.patch(fx_graph_cache=False):
        for got, expected in zip(fast(x), model(x), strict=True):
            torch.testing.assert_close(got, expected)
    calls = [node for node in frozen[0].graph.nodes if node.op == "call_function"]
    assert [call.target.__name__ for call in calls] == ["fn", "fn", "_linear_pointwise.default", "reshape.default",
                                                        "permute.default"]  # fmt: skip
    assert calls[1].kwargs == {"other": calls[0].args[0]}
    torch._dynamo.reset()


def reshaped(sizes: tuple[int, ...], *back: tuple[int, ...], source: tuple[int, ...] = (2, 8, 64)) -> bool:
    """Whether a product of [16, 64] by 96 columns, which reads `source` reshaped and is read in these shapes, takes it
    as it is."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    rows = graph.call_function(torch.ops.aten.reshape.default, (x, list(sizes)))
    product = graph.call_function(torch.ops.aten.mm.default, (rows, x))
    read = [graph.call_function(torch.ops.aten.view.default, (product, list(shape))) for shape in back]
    shapes = zip((x, rows, product, *read), (source, sizes, (16, 96), *back), strict=True)
    for node, shape in shapes:
        node.meta["val"] = torch.empty(shape, device="meta")
    return linears._reshaped(product) is x


def test_a_reshape_is_left_out_where_every_reader_has_it_undone() -> None:
    assert reshaped((16, 64), (2, 8, 96))
    assert reshaped((16, 64), (2, 8, 96), (2, 8, 96))
    assert not reshaped((16, 64), (2, 8, 96), (2, 8, 4, 24))
    assert not reshaped((16, 64), (4, 4, 96))
    assert not reshaped((16, 64), (2, 4, 96), source=(2, 4, 128))


@pytest.mark.parametrize(
    ("us", "by"),
    [
        ({"mkl": 10.0, "onednn": 5.0, "aten": 8.0}, "onednn"),
        ({"mkl": 10.0, "onednn": 8.0, "aten": 5.0}, "aten"),
        ({"mkl": 10.0, "onednn": 10.0, "aten": 10.0}, "mkl"),
    ],
)
def test_auto_moves_what_is_faster_and_nothing_else(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, us: dict[str, float], by: str
):
    frozen = frozen_graphs(monkeypatch)
    monkeypatch.setattr(linears, "timed", lambda *_: ({name: [one] * 8 for name, one in us.items()}, 1.0))
    fast, _ = compiled(model, "target.measuring=always")
    assert len(linears.linears(frozen[0])) == (2 if by == "mkl" else 0)
    (compilation,) = fast.materialised.backend.compilations
    assert {winner.winner for winner in compilation.winners.values() if winner.key.startswith("linear")} == {by}


def test_a_trial_times_all_libraries_on_the_weights_themselves(model: nn.Module, monkeypatch: pytest.MonkeyPatch):
    frozen = frozen_graphs(monkeypatch)
    compiled(model, "target.linear=mkl")
    (first, _) = linears.linears(frozen[0])
    taken, _ = linears.timed([first], {name: [way.packed(first)] for name, way in linears.WAYS.items()}, 1.0)
    assert list(taken) == ["mkl", "onednn", "aten"]
    assert len(taken["mkl"]) == len(taken["onednn"]) == len(taken["aten"]) >= 5
    assert min(us for times in taken.values() for us in times) > 0


@pytest.mark.parametrize(("most", "timed"), [(1, 1), (64 * 64 * 4, 1), (2 * 64 * 64 * 4, 2), (1 << 30, 3)])
def test_a_trial_packs_as_many_weights_as_fit(monkeypatch: pytest.MonkeyPatch, most: int, timed: int):
    torch._dynamo.reset()
    model, seen = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).eval(), []

    def listening(alike: Any, weights: dict[str, Any], *_: Any) -> tuple[dict[str, list[float]], float]:
        seen.append({len(alike), *map(len, weights.values())})
        return {name: [10.0] * 8 for name in weights}, 1.0

    monkeypatch.setattr(linears, "timed", listening)
    monkeypatch.setattr(linears, "MOST_BYTES", most)
    compiled(model, "target.measuring=always")
    assert seen == [{timed}]
    torch._dynamo.reset()


def test_a_trial_reads_what_else_the_model_reads_before_each_library_has_its_turn(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
):
    frozen, before_each = frozen_graphs(monkeypatch), list[Any]()
    compiled(model, "target.linear=mkl")
    (first, _) = linears.linears(frozen[0])

    def in_turns(calls: dict[str, Any], _: float, before: Any) -> Any:
        before_each.append(before)
        return {name: [10.0] * 8 for name in calls}, 1.0

    monkeypatch.setattr(linears, "in_turns", in_turns)
    own = 2 * first.weight.nbytes
    for others in (Others(own), Others(own + 1)):
        winner = linears._measured(first.form, [first], ("mkl", "aten"), 1.0, others)
        assert list(winner.times_us) == ["mkl", "aten"]
    assert before_each == [None, others.read], "of the first its own weights are as much"


@pytest.mark.parametrize("bias", [True, False])
def test_every_library_computes_the_same_product(model: nn.Module, monkeypatch: pytest.MonkeyPatch, bias: bool):
    frozen = frozen_graphs(monkeypatch)
    compiled(model, "target.linear=mkl")
    (first, _) = linears.linears(frozen[0])
    linear = first if bias else attrs.evolve(first, bias=None)
    x = torch.randn(first.rows, first.weight.shape[1])
    expected = nn.functional.linear(x, linear.weight, linear.bias)
    for way in linears.WAYS.values():
        torch.testing.assert_close(way.call(x, way.packed(linear), linear), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_torchs_own_products_have_no_packed_weight_and_read_no_transposed_one(
    monkeypatch: pytest.MonkeyPatch, bias: bool
):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(64, 48, bias), nn.ReLU(), nn.Linear(48, 64, bias)).eval()
    frozen = frozen_graphs(monkeypatch)
    fast, got = compiled(model, "target.linear=aten")
    with torch.no_grad():
        torch.testing.assert_close(got, model(torch.ones(8, 64)))
        torch.testing.assert_close(fast(torch.full((8, 64), -0.5)), model(torch.full((8, 64), -0.5)))
    (graph,) = frozen
    operator = torch.ops.aten.addmm.default if bias else torch.ops.aten.mm.default
    products = graph.graph.find_nodes(op="call_function", target=operator)
    weights = [getattr(graph, node.args[-1].target) for node in products]
    assert [tuple(weight.shape) for weight in weights] == [(64, 48), (48, 64)]
    assert all(weight.is_contiguous() for weight in weights)
    assert not any(tensor.layout is torch._mkldnn for tensor in graph.buffers())
    torch._dynamo.reset()


def test_a_model_that_is_trained_keeps_its_weights(model: nn.Module, monkeypatch: pytest.MonkeyPatch):
    """Forward and backward graph, each through the passes, and no constant among the weights."""
    frozen = frozen_graphs(monkeypatch)
    fast = npucompose.compile(model, *FUSED, "passes=[cse]")
    fast(torch.ones(8, 64)).sum().backward()
    assert len(fast.materialised.backend.compilations) == 2
    assert frozen == []
    assert model.get_parameter("down.weight").grad is not None


def test_a_graph_that_torchs_freezing_cannot_take_is_fused_with_its_weights_as_inputs() -> None:
    """As of a convolution with a padding that is a symbol."""
    torch._dynamo.reset()
    weight = torch.randn(1, 1, 4)

    def convolved(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv1d(x, weight, padding=x.shape[-1] // 4).relu()

    backend = npucompose.backend(*FUSED)
    fast = torch.compile(convolved, backend=backend, dynamic=True)
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match="weights are not frozen: torch's freezing cannot take a graph"):
            fast(torch.randn(1, 1, 16))
        for size in (16, 20, 24, 20):
            x = torch.randn(1, 1, size)
            torch.testing.assert_close(fast(x), convolved(x))
    assert len({made.id for made in backend.compilations}) == len(backend.compilations)
    weight.zero_()
    with torch.no_grad():
        assert not fast(torch.randn(1, 1, 20)).any()
