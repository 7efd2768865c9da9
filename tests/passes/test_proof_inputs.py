"""What a promise is tried on, what a difference is, and that the trial leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from npucompose.passes.base import Promise
from npucompose.passes.proof import DOES_NOT_FIT, EDGES, NARROW_EDGES, Proof, copied, prove
from tests.sample_graphs import aten, traced

X = torch.ones(3, 4)
EXACT = Promise(exact=True)
LOOSE = Promise(exact=False)


def module(function: Callable[..., Any], *inputs: Any, mode: str = "fake") -> fx.GraphModule:
    """`function` as one node, given what a graph with these inputs has for fake values."""
    like = traced(lambda *given: given, *inputs, mode=mode)
    graph = fx.Graph()
    nodes = []
    for at, known in enumerate(like.graph.find_nodes(op="placeholder")):
        nodes.append(graph.placeholder(f"x{at}"))
        nodes[-1].meta["val"] = known.meta["val"]
    graph.output(graph.call_function(function, tuple(nodes)))
    return fx.GraphModule(torch.nn.Module(), graph)


def proof(before: Any, after: Any, promise: Promise = EXACT, *inputs: Any, mode: str = "fake", **more: Any) -> Proof:
    inputs = inputs or (X,)
    return prove(module(before, *inputs, mode=mode), module(after, *inputs, mode=mode), promise, **more)


def tried(*inputs: Any, mode: str = "fake", **more: Any) -> list[tuple[Any, ...]]:
    """The inputs of every run of the graph as it was."""
    seen: list[tuple[Any, ...]] = []

    def record(*given: Any) -> Any:
        seen.append(tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in given))
        return given[0]

    found = proof(record, lambda *given: given[0], EXACT, *inputs, mode=mode, **more)
    assert (found.broken, found.inputs) == (None, len(seen))
    return seen


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(7.5), b.nan_to_num(7.5)) and torch.equal(torch.signbit(a), torch.signbit(b))


def test_floats_are_normal_edges_and_turned_in_memory() -> None:
    first, second, edges, turned = (given[0] for given in tried(X))
    assert torch.equal(first, drawn(0, 3, 4))
    assert torch.equal(second, drawn(1, 3, 4))
    wanted = drawn(5, 3, 4).double()
    wanted.view(-1)[: len(EDGES)] = torch.tensor(EDGES, dtype=torch.float64)
    assert same(edges, wanted.float())
    assert torch.equal(turned, drawn(2, 3, 4))
    assert turned.stride() == (1, 3)


def test_doubles_are_tried_with_edges_that_fit_float32_too() -> None:
    found = [given[0] for given in tried(X.double())]
    assert len(found) == 5
    assert same(found[2].view(-1)[: len(EDGES)], torch.tensor(EDGES, dtype=torch.float64))
    narrow = found[3].view(-1)[: len(NARROW_EDGES)]
    assert same(narrow, torch.tensor(NARROW_EDGES, dtype=torch.float64))
    assert len(NARROW_EDGES) == len(EDGES) - 1
    assert (narrow.float().isinf() == narrow.isinf()).all()


def test_integers_are_places_and_few_edges_fit_a_small_tensor() -> None:
    found = tried(torch.ones(2, 9, dtype=torch.int64), torch.ones(3), torch.ones(2, dtype=torch.complex64))
    for ints, floats, pairs in found:
        assert set(ints.unique().tolist()) == {0, 1}
        assert (floats.shape, pairs.shape, pairs.dtype) == ((3,), (2,), torch.complex64)
    assert found[2][1].tolist()[:2] == [float("inf"), float("-inf")]
    assert set(found[0][2].real.tolist()) - {0.0, 1.0}, "complex numbers are normal too"
    assert len(found) == 4


def test_symbols_are_tried_larger_and_empty() -> None:
    found = tried(torch.ones(5, 4), torch.ones(5), mode="symbolic")
    assert [tuple(given[0].shape) for given in found] == [(5, 4)] * 4 + [(8, 7), (0, 0)]
    assert [tuple(given[1].shape) for given in found] == [(5,)] * 4 + [(8,), (0,)]
    assert torch.equal(found[4][0], drawn(3, 8, 7))


def test_a_number_that_comes_in_follows_its_symbol() -> None:
    before = module(lambda x, n: x, torch.ones(5, 4), torch.ones(2), mode="symbolic")
    x, number = before.graph.find_nodes(op="placeholder")
    number.meta["val"] = x.meta["val"].shape[0]
    seen: list[Any] = []
    after = module(lambda x, n: seen.append((n, x.shape[0])) or x, torch.ones(5, 4), torch.ones(2))
    assert prove(before, after, EXACT).inputs == 6
    assert seen == [(5, 5)] * 4 + [(8, 8), (0, 0)]


def test_what_is_settled_is_given_as_it_is_and_never_changed() -> None:
    weight = torch.full((3, 4), 2.0)
    for _, given in tried(X, weight, given={"x1": weight.clone()}):
        assert torch.equal(given, weight)

    def spoiling(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        w.add_(1)
        return x

    assert proof(spoiling, spoiling, EXACT, X, weight, given={"x1": weight}).broken is None
    assert weight.unique().tolist() == [2.0]


def test_without_fake_values_nothing_is_tried() -> None:
    before = module(lambda x: x, X)
    next(iter(before.graph.nodes)).meta.clear()
    assert prove(before, before, EXACT) == Proof(inputs=0, max_abs_err=0.0)


def test_a_run_starts_from_one_seed_and_leaves_the_generator_and_gradients_alone() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 4))

    def noisy(x: torch.Tensor) -> torch.Tensor:
        weight.mul_(1)  # an error where gradients are recorded
        return torch.rand_like(x) * weight

    state = torch.get_rng_state()
    seeded = torch.manual_seed(0) and torch.rand(3, 4)
    torch.set_rng_state(state)
    found = proof(noisy, lambda x: torch.rand_like(x))
    assert (found.inputs, found.broken) == (4, None)
    assert torch.equal(torch.get_rng_state(), state)
    outputs: list[torch.Tensor] = []
    proof(lambda x: outputs.append(torch.rand(3, 4)) or x, lambda x: x)
    assert all(torch.equal(drawn, seeded) for drawn in outputs)


def refuses(when: Callable[[torch.Tensor], Any], words: str = "no") -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        if bool(when(x)):
            raise RuntimeError(f"{words}\nand more")
        return x

    return run


def test_inputs_that_the_graph_refused_before_prove_nothing() -> None:
    turned = refuses(lambda x: not x.is_contiguous())
    assert proof(turned, lambda x: x) == Proof(inputs=3, max_abs_err=0.0)
    assert proof(turned, turned).inputs == 3
    found = proof(lambda x: x, turned)
    assert found.inputs == 4
    assert found.broken == ("on inputs with other strides the graph raises, which it did not before: RuntimeError: no")


REFUSING = Promise(exact=True, checks_ranges=True)


@pytest.mark.parametrize(
    ("promise", "when", "words", "broken"),
    [
        (REFUSING, lambda x: x.isinf().any(), f"x: {DOES_NOT_FIT} float32", None),
        (EXACT, lambda x: x.isinf().any(), f"x: {DOES_NOT_FIT} float32", "on edge values the graph raises"),
        (REFUSING, lambda x: x.isinf().any(), "no", "on edge values the graph raises"),
        (REFUSING, lambda x: x.isfinite().all(), f"x: {DOES_NOT_FIT} float32", "on random inputs the graph raises"),
    ],
)
def test_a_range_check_may_end_the_run_on_edge_values_alone(
    promise: Promise, when: Any, words: str, broken: str | None
) -> None:
    found = proof(lambda x: x, refuses(when, words), promise)
    assert (found.broken or "").startswith(broken or "")
    assert (found.broken is None) is (broken is None)
    assert found.inputs == {None: 4, "on random inputs the graph raises": 1}.get(broken, 3)


def test_a_double_that_does_not_fit_is_compared_on_edges_that_do() -> None:
    huge = refuses(lambda x: bool((x.isfinite() & (x.abs() > 1e299)).any()), DOES_NOT_FIT)
    assert proof(lambda x: x, huge, REFUSING, X.double()) == Proof(inputs=5, max_abs_err=0.0)

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.isinf(), 0.0, huge(x))

    assert proof(lambda x: x, wrong, REFUSING, X.double()).broken == (
        "on edge values that fit float32 output 0 differs by up to inf; every bit is promised"
    )


def test_other_strides_are_asked_for_their_values_alone() -> None:
    assert proof(torch.relu, lambda x: torch.relu(x).contiguous()).broken is None
    broken = proof(torch.relu, lambda x: torch.relu(x).t().contiguous().t()).broken
    assert broken == "on random inputs output 0 has strides (1, 3) instead of (4, 1)"


ONES = [
    (lambda x: x[:1], lambda x: x[:1].clone().as_strided((1, 4), (9, 1))),
    (lambda x: x[:0], lambda x: torch.empty(0, 4).as_strided((0, 4), (9, 1))),
]


@pytest.mark.parametrize(("before", "after"), ONES)
def test_strides_that_mean_nothing_may_differ(before: Any, after: Any) -> None:
    assert proof(lambda x: before(x).clone(), after).broken is None


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        (lambda x: (x + 1, 3), lambda x: (x + 1, 4), "output 1 is 4 instead of 3"),
        (lambda x: (x + 1, 3), lambda x: (x + 1, 3.0), "output 1 is 3.0 instead of 3"),
        (lambda x: (x + 1, 3), lambda x: (x + 1,), "1 outputs instead of 2"),
        (lambda x: (x + 1, None), lambda x: (x + 1, x - 1), "output 1 is tensor("),
        (lambda x: x > 0, lambda x: x > 1, "output 0 differs by up to 1; every bit is promised"),
        (lambda x: x.long(), lambda x: x.long() + 2, "output 0 differs by up to 2; every bit is promised"),
        (lambda x: x + 1, lambda x: x + 1.5, "output 0 differs by up to 0.5; every bit is promised"),
        (lambda x: x * 0, lambda x: x * -0.0, "output 0 differs in the sign of a zero; every bit is promised"),
        (lambda x: x + 1j, lambda x: x - 1j, "output 0 differs by up to 2; every bit is promised"),
        (lambda x: (x + 1, x + 1), lambda x: (x + 1,) * 2, None),
        (lambda x: (x + 1, x.exp()), lambda x: ((y := x + 1), y), "output 1 differs by up to"),
    ],
)
def test_what_is_another_result_is_said(before: Any, after: Any, broken: str | None) -> None:
    found = proof(before, after)
    if broken is None:
        assert found.broken == "on random inputs output 0 and output 1 share memory, which they did not"
    else:
        assert (found.broken or "").startswith(f"on random inputs {broken}")
    assert found.inputs == 1


def test_memory_that_was_shared_may_be_and_what_an_input_becomes_counts() -> None:
    assert proof(lambda x: (x, x), lambda x: (x, x)).broken is None
    assert proof(lambda x: (x, x), lambda x: (x, x.clone())).broken is None
    assert proof(lambda x: x.clone(), lambda x: x).broken == (
        "on random inputs input 0 and output 0 share memory, which they did not"
    )
    assert proof(lambda x: x[:0].clone(), lambda x: x[:0]).broken is None
    assert proof(lambda x, y: x, lambda x, y: y.add_(1) * 0 + x.clone(), EXACT, X, X).broken == (
        "on random inputs input 1 afterwards differs by up to 1; every bit is promised"
    )


def scaled(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * by


@pytest.mark.parametrize(
    ("promise", "by", "kept"),
    [
        (LOOSE, 1 + 5e-5, True),
        (LOOSE, 1 + 1e-3, False),
        (Promise(exact=False, rtol=2e-3), 1 + 1e-3, True),
        (Promise(exact=True, rtol=2e-3), 1 + 5e-5, False),
        (LOOSE, float("inf"), False),
    ],
)
def test_what_is_no_exact_promise_is_held_to_the_tolerance_of_the_dtype(
    promise: Promise, by: float, kept: bool
) -> None:
    found = proof(scaled(1.0), scaled(by), promise)
    assert (found.broken is None) is kept
    if not kept and not promise.exact:
        assert "; allowed is 1e-05 + 0.0001 * |value|" in str(found.broken)


def test_the_largest_difference_is_told_edge_values_apart() -> None:
    def nearly(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs() > 1e30, x * (1 + 1e-6), x + torch.where(x == x.max(), 2.0**-10, 2.0**-14))

    found = proof(lambda x: x + 0.0, nearly, Promise(exact=False, atol=1e-2))
    assert found.broken is None
    assert 2.0**-11 < found.max_abs_err < 2.0**-9
    absolute = proof(lambda x: x + 0.0, lambda x: x + 0.5, Promise(exact=False, atol=0.1))
    assert (round(absolute.max_abs_err, 5), absolute.inputs) == (0.5, 1)
    two = proof(lambda x: (x + 0.0, x * 1.0), lambda x: (x + 2.0**-3, x * 1.0), Promise(exact=False, atol=1.0))
    assert 0.12 < two.max_abs_err < 0.13


def test_a_copy_has_the_constants_and_may_give_nothing() -> None:
    root = torch.nn.Module()
    root.register_buffer("held", torch.full((2,), 3.0))
    graph = fx.Graph()
    graph.output((graph.get_attr("held"),))
    assert copied(fx.GraphModule(root, graph).graph)()[0].tolist() == [3.0, 3.0]
    unowned = fx.Graph()
    unowned.output((unowned.call_function(aten.ones.default, ([2],)),))
    assert copied(unowned)()[0].tolist() == [1.0, 1.0]
    silent = fx.Graph()
    silent.placeholder("x")
    silent.output(None)
    assert copied(silent)(X) is None
