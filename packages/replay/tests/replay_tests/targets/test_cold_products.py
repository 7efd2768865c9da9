"""A product with a constant is timed with other bytes read before each call, as in a model; others as Inductor does."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._inductor.ir import Pointwise
from torch._inductor.runtime.benchmarking import Benchmarker

from npucompose.results.graphs import FEWEST_ROUNDS
from npucompose_replay.products import cold as cold_products
from npucompose_replay.products import timed_calls
from npucompose_replay.products.cold import MOST_BYTES, ColdProducts, constants_of

TORCHS = Benchmarker.__dict__["benchmark_cpu"]


def choices(*names: str) -> list[Any]:
    return [SimpleNamespace(input_nodes=[SimpleNamespace(maybe_get_name=lambda name=name: name)]) for name in names]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done, in order; reading the others' bytes is `read`."""
    words: list[str] = []
    summed = torch.Tensor.sum

    def read(tensor: torch.Tensor, *more: Any) -> torch.Tensor:
        words.append("read")
        return summed(tensor, *more)

    monkeypatch.setattr(torch.Tensor, "sum", read)
    return words


def timed(cold: ColdProducts, call: Callable[[], Any]) -> float:
    with cold.timing():
        return Benchmarker().benchmark_cpu(call, warmup=1, rep=1)


def test_before_each_counted_call_others_bytes_are_read(said: list[str]) -> None:
    cold = ColdProducts(1 << 20, limit_ms=0.001)
    cold.product(choices("x", "weight"), ["weight"])
    ms = timed(cold, lambda: said.append("call"))
    assert said == ["read", "call"] * (1 + FEWEST_ROUNDS), "the first calls do not count"
    assert 0 <= ms < 1000


def test_of_several_ways_each_has_something_done_before_each_of_its_calls() -> None:
    said: list[str] = []
    calls = {name: [lambda name=name: said.append(name)] for name in ("mkl", "aten")}
    taken, _ = timed_calls.in_turns(calls, 0.001, lambda: said.append("before"))
    assert said == ["before", "mkl", "before", "aten"] * (1 + FEWEST_ROUNDS)
    assert {name: len(us) for name, us in taken.items()} == {"mkl": FEWEST_ROUNDS, "aten": FEWEST_ROUNDS}


@pytest.mark.parametrize(("constants", "read"), [([], 1 << 20), (["another"], 1 << 20), (["weight"], 0)])
def test_a_product_without_constants_is_timed_as_inductor_does(
    said: list[str], constants: list[str], read: int
) -> None:
    cold = ColdProducts(read, limit_ms=1.0)
    cold.product(choices("x", "weight"), constants)
    timed(cold, lambda: said.append("call"))
    assert "read" not in said
    assert len(said) > 2


def test_an_operand_that_is_computed_within_the_product_is_no_constant(said: list[str]) -> None:
    among: list[Any] = [SimpleNamespace(input_nodes=[Pointwise.__new__(Pointwise)])]
    cold = ColdProducts(1 << 20, limit_ms=0.001)
    cold.product(among, ["weight"])
    timed(cold, lambda: None)
    assert said == []
    cold.product([*among, *choices("weight")], ["weight"])
    timed(cold, lambda: None)
    assert said == ["read"] * (1 + FEWEST_ROUNDS)


def test_the_next_product_is_asked_about_anew(said: list[str]) -> None:
    cold = ColdProducts(1 << 20, limit_ms=1.0)
    cold.product(choices("weight"), ["weight"])
    cold.product(choices("x"), ["weight"])
    timed(cold, lambda: None)
    assert said == []


def test_the_worst_of_a_product_s_ways_says_how_busy_the_machine_was(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.9, 0.4, 0.8, 1.2])
    monkeypatch.setattr(cold_products, "Attendance", lambda: SimpleNamespace(share=lambda: next(shares)))
    cold = ColdProducts(4096, limit_ms=0.001)
    cold.product(choices("weight"), ["weight"])
    for _ in range(3):
        timed(cold, lambda: None)
    assert cold.attended == 0.4
    cold.product(choices("x"), ["weight"])
    timed(cold, lambda: None)
    assert cold.attended == 1.0, "of another product"


def test_what_comes_in_between_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight calls two take a hundred times as long."""
    now = [0.0]
    lengths = iter([1.0, 1.0, 100.0, 1.0, 1.2, 1.0, 1.1, 100.0, 1.0, *[1.0] * 100])
    monkeypatch.setattr(timed_calls, "perf_counter_ns", lambda: now[0] * 1e9)

    def call() -> None:
        now[0] += next(lengths) / 1e3

    cold = ColdProducts(16, limit_ms=200.0)
    cold.product(choices("weight"), ["weight"])
    assert timed(cold, call) == pytest.approx(1.0)


def test_more_than_the_caches_hold_is_never_read() -> None:
    assert ColdProducts(1 << 40, limit_ms=1.0).others.nbytes == MOST_BYTES


def test_torch_is_as_it_was_behind_a_compilation() -> None:
    def fail() -> None:
        assert Benchmarker.__dict__["benchmark_cpu"] is not TORCHS
        raise ValueError("inside")

    with ColdProducts(4096, 1.0).timing(), pytest.raises(ValueError, match="inside"):
        fail()
    with pytest.raises(ValueError, match="inside"), ColdProducts(4096, 1.0).timing():
        fail()
    assert Benchmarker.__dict__["benchmark_cpu"] is TORCHS


def test_the_constants_of_a_graph_are_all_that_it_names() -> None:
    module = fx.symbolic_trace(nn.Sequential(nn.Linear(8, 16), nn.ReLU()))
    graph = fx.Graph()
    for name in ("weight", "bias"):
        graph.get_attr(name)
    root = nn.Module()
    root.register_buffer("weight", torch.zeros(10, 10))
    root.register_buffer("bias", torch.zeros(7, dtype=torch.float16))
    root.register_buffer("nobody", torch.zeros(1000))
    graph.output(None)
    assert constants_of(fx.GraphModule(root, graph)) == 400 + 14
    assert constants_of(module) == 0


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_packed_constants_count_too() -> None:
    root = nn.Module()
    root.packed = torch.ops.mkldnn._reorder_linear_weight(torch.randn(16, 8), 4)
    graph = fx.Graph()
    graph.get_attr("packed")
    graph.output(None)
    assert constants_of(fx.GraphModule(root, graph)) == 16 * 8 * 4
