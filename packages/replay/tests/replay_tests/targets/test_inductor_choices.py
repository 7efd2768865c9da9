"""Inductor's choice between a library and its template for a product: named, remembered, pinned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import select_algorithm
from torch._inductor.runtime.benchmarking import Benchmarker

import npucompose
from npucompose.results.graphs import Winner
from npucompose_replay.inductor import choices
from npucompose_replay.inductor.choices import ATTENDED, TEMPLATE, choosing
from npucompose_replay.products.winners import Winners


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from npucompose_replay.executor import build

    build.load()
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Library:
    """Stands for an ExternKernelCaller."""

    def __init__(self, name: str, *sizes: tuple[Any, ...], **kwargs: Any) -> None:
        self.name, self.kwargs = name, kwargs
        self.input_nodes = [
            SimpleNamespace(get_size=lambda s=s: s, get_dtype=lambda: torch.float32, maybe_get_name=lambda: "x")
            for s in sizes or ((8, 4), (77, 1), (4, 2))
        ]


class Template(Library):
    pass


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(choices, "ExternKernelCaller", type("Extern", (Library,), {}))
    library: Any = choices.ExternKernelCaller("mkl::_mkl_linear")  # type: ignore[call-arg]
    return [Template("cpp_1", (8, 4), (1, 4, 16)), library, Template("cpp_2")]


KEY = "mkl_linear_8x4_4x2_float32"


def test_a_product_is_called_after_the_library_and_what_is_multiplied(two: list[Any]):
    assert choices.product(two) == KEY
    assert choices.product(two[:1]) is None, "there is nothing to choose"
    assert choices.product(two[:1] + two[2:]) is None, "between templates Inductor chooses"
    symbol: Any = choices.ExternKernelCaller("aten::mm", (SimpleNamespace(), 4))  # type: ignore[call-arg]
    assert choices.product([symbol, two[0]]) is None


@pytest.mark.parametrize(
    ("passing", "words"),
    [
        ({"attr": "none", "scalars": [], "algorithm": ""}, ""),
        ({"attr": "gelu", "scalars": [], "algorithm": "tanh"}, "gelu_tanh_"),
        ({"attr": "gelu", "scalars": [], "algorithm": "none"}, "gelu_"),
        ({"attr": "add"}, "add_"),
    ],
)
def test_what_is_computed_in_passing_makes_another_product(two: list[Any], passing: dict[str, Any], words: str):
    library: Any = choices.ExternKernelCaller("mkldnn::_linear_pointwise", (8, 4), (2, 4), **passing)  # type: ignore[call-arg]
    assert choices.product([two[0], library]) == f"linear_pointwise_{words}8x4_2x4_float32"


@pytest.mark.parametrize(
    ("ms", "winner"), [((1.0, 2.0, 0.5), TEMPLATE), ((1.99, 2.0, 9.0), TEMPLATE), ((3, 2, 4), "mkl_linear")]
)
def test_what_inductor_measures_is_kept_and_the_fastest_wins(two: list[Any], ms: tuple[float, ...], winner: str):
    winners = Winners()
    with choosing(winners, "graph_1"):
        assert choices._allowed(two) == two
        timings = dict(zip(two, ms, strict=True))
        choices._measured(timings, "packed_linear")
    assert {choices._name(choice) for choice in timings} == {winner}
    found = winners.found[KEY]
    assert (found.winner, found.by) == (winner, "measured")
    assert found.times_us == {TEMPLATE: min(ms[0], ms[2]) * 1000, "mkl_linear": ms[1] * 1000}
    assert f"x as fast as {found.rival}, measured" in found.words

    again = Winners()
    with choosing(again, "graph_2"):
        assert {choices._name(choice) for choice in choices._allowed(two)} == {winner}
    assert again.found[KEY].by == "remembered"


def test_of_two_libraries_the_first_stays_unless_the_other_gains_more_than_noise(two: list[Any]):
    other: Any = choices.ExternKernelCaller("mkldnn::_linear_pointwise")  # type: ignore[call-arg]
    for ms, winner in ((1.96, "mkl_linear"), (1.9, "linear_pointwise")):
        winners = Winners()
        with choosing(winners, "graph_1"):
            choices._measured({two[1]: 2.0, other: ms, two[0]: 3.0})
        assert [one.winner for one in winners.found.values()] == [winner]


@pytest.mark.parametrize(("ms", "winner"), [(1.91, TEMPLATE), (1.89, "linear_pointwise_binary")])
def test_what_adds_up_along_one_chain_wins_over_a_template_only_if_it_is_clearly_faster(
    two: list[Any], ms: float, winner: str
):
    chained: Any = choices.ExternKernelCaller("mkldnn::_linear_pointwise.binary", (8, 4), (2, 4))  # type: ignore[call-arg]
    winners = Winners()
    with choosing(winners, "graph_1"):
        choices._measured({two[0]: 2.0, chained: ms})
    assert [one.winner for one in winners.found.values()] == [winner]


def test_where_inductor_finds_its_code_compiled_the_products_of_it_are_named_all_the_same(two: list[Any]):
    with choosing(Winners(), "graph_1"):
        choices._allowed(two)
        choices._measured(dict(zip(two, (1.0, 2.0, 3.0), strict=True)))
    later, other = Winners(), Winners()
    with choosing(later, "graph_1"):
        pass
    with choosing(other, "graph_2"):
        pass
    assert [one.winner for one in later.found.values()] == [TEMPLATE]
    assert other.found == {}


def test_code_that_inductor_kept_is_named_as_it_is_whatever_would_be_chosen_now(two: list[Any]):
    with choosing(Winners(), "graph_1"):
        choices._allowed(two)
        choices._measured(dict(zip(two, (1.0, 2.0, 3.0), strict=True)))
    later = Winners()
    with choosing(later, "graph_1"):
        pass
    assert (later.found[KEY].winner, later.found[KEY].by) == (TEMPLATE, "remembered")


@pytest.mark.parametrize(("ms", "remembered"), [((9.0, 1.0, 9.5), True), ((11.0, 1.0, 12.0), False)])
def test_figures_that_lie_tenfold_apart_are_not_remembered(two: list[Any], ms: tuple[float, ...], remembered: bool):
    with choosing(Winners(), "graph_1"):
        choices._allowed(two)
        choices._measured(dict(zip(two, ms, strict=True)))
    assert (Winners().known(KEY, ["mkl_linear", TEMPLATE]) is not None) is remembered


@pytest.mark.parametrize(("share", "remembered"), [(ATTENDED, True), (ATTENDED - 0.01, False)])
def test_figures_of_a_busy_machine_are_not_remembered(two: list[Any], share: float, remembered: bool):
    with choosing(Winners(), "graph_1"):
        choices._allowed(two)
        choices._at_work[-1].attended = share
        choices._measured(dict(zip(two, (1.0, 2.0, 3.0), strict=True)))
    assert (Winners().known(KEY, ["mkl_linear", TEMPLATE]) is not None) is remembered


def test_a_pinned_way_is_the_only_choice_and_part_of_what_inductor_keeps(two: list[Any]):
    pinned = Winners(pinned={KEY: "mkl_linear"})
    with choosing(pinned, "graph_1"):
        assert choices._allowed(two) == [two[1]]
    assert pinned.found[KEY].by == "pinned"
    assert Winners().identity() == ""
    assert pinned.identity() not in ("", Winners(pinned={KEY: TEMPLATE}).identity())


def test_of_two_graphs_that_are_compiled_one_within_the_other_the_inner_one_asks(two: list[Any]):
    outer, inner = Winners(), Winners(pinned={KEY: "mkl_linear"})
    with choosing(outer, "graph_1"):
        with choosing(inner, "graph_2"):
            assert choices._allowed(two) == [two[1]]
        assert (outer.asked, inner.asked) == (set(), {KEY})
        assert choices._allowed(two) == two


def test_other_compilations_are_left_alone(two: list[Any]):
    assert choices._allowed(two) == two
    timings = dict(zip(two, (1.0, 2.0, 3.0), strict=True))
    choices._measured(timings)
    assert len(timings) == 3


def test_of_a_product_s_ways_the_one_with_the_least_of_a_processor_counts(
    two: list[Any], monkeypatch: pytest.MonkeyPatch
):
    shares = iter((0.5, 1.0))
    monkeypatch.setattr(choices, "Attendance", lambda: SimpleNamespace(share=lambda: next(shares)))
    monkeypatch.setattr(Benchmarker, "benchmark_cpu", lambda *_, **__: 2.0)
    with choosing(Winners(), "graph_1"):
        assert [Benchmarker().benchmark_cpu(len), Benchmarker().benchmark_cpu(len)] == [2.0, 2.0]
        assert choices._at_work[-1].attended == 0.5
        choices._allowed(two)
        assert choices._at_work[-1].attended == 1.0, "the next product begins anew"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(select_algorithm, "add_preprocessing_fn"), reason="this torch asks nobody")
@pytest.mark.parametrize("way", [TEMPLATE, "mkl_linear"])
def test_the_torch_that_is_installed_computes_a_product_as_it_is_told(way: str, monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []
    told = choices.product

    def product(given: Any) -> str | None:
        key = told(given)
        seen.extend([key] if key else [])
        return key

    monkeypatch.setattr(choices, "product", product)
    fixed = ("mode=max-autotune", "inductor.fx_graph_cache=false")
    model = nn.Linear(32, 48).eval()
    x = torch.randn(16, 32)
    kernels = f"target.kernels={{mkl_linear_16x32_48x32_float32: {way}}}"
    fast = npucompose.compile(model, *fixed, kernels)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    (compilation,) = fast.materialised.backend.compilations
    (found,) = [one for key, one in compilation.winners.items() if key in seen]
    assert isinstance(found, Winner)
    assert (found.winner, found.by) == (way, "pinned")
    (one,) = compilation.lowered.captured
    products = [step.op for step in one.plan.steps if "linear" in str(step.op)]
    assert bool(products) is (way != TEMPLATE)
