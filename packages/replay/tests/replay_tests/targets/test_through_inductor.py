"""mode=max-autotune on cpu: the options arrive, weights are frozen, our passes see the graph before Inductor does."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config

import npucompose
from npucompose_replay.inductor import through as inductor
from npucompose_replay.products import known_forms
from npucompose_replay.products.winners import Winners

FUSED = ("mode=max-autotune", "inductor.max_autotune=null")
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
    """The graphs whose weights have become constants while this test runs."""
    seen: list[torch.fx.GraphModule] = []
    sums = known_forms.sums_in_two

    def listening(graph_module: torch.fx.GraphModule) -> int:
        seen.append(graph_module)
        return sums(graph_module)

    monkeypatch.setattr(known_forms, "sums_in_two", listening)
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
    fast, _ = compiled(model, "passes=[cse]")
    (compilation,) = fast.materialised.backend.compilations
    assert compilation.passes[0].matches == 1
    assert "aten.addmm" in compilation.before.text
    assert "mkl" not in compilation.text_after
    packed = frozen[0].graph.find_nodes(op="call_function", target=torch.ops.mkl._mkl_linear)
    assert len(packed) == 2, "and Inductor packs what the passes left"


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


def test_a_model_that_is_fused_gives_its_results_and_its_state(model: nn.Module):
    reference = copy.deepcopy(model)
    fast = npucompose.compile(model, *FUSED)
    with torch.no_grad():
        for value in (0.5, -1.0):
            x = torch.full((8, 64), value)
            torch.testing.assert_close(fast(x), reference(x))
    torch.testing.assert_close(model.get_buffer("seen"), reference.get_buffer("seen"))
    assert len(fast.materialised.backend.compilations) == 1


def test_times_are_taken_from_no_cache_of_inductors(monkeypatch: pytest.MonkeyPatch):
    asked: list[dict[str, Any]] = []

    def compile_fx(graph: Any, inputs: Any, *, inner_compile: Any, config_patches: dict[str, Any]) -> Any:
        asked.append(config_patches)
        return graph

    monkeypatch.setattr(inductor, "compile_fx", compile_fx)
    backend, graph = npucompose.backend("mode=max-autotune"), torch.fx.symbolic_trace(nn.ReLU())
    inductor.through_inductor(backend, graph, [torch.ones(2)], winners=Winners())
    assert asked[0]["autotune_local_cache"] is False


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
