"""What counts as the pattern: node by node, number by number; and where what replaces it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import fx

from npucompose.passes.replace import Pattern
from npucompose.passes.replace.rewrite import (
    AddRmsNormPattern,
    RmsNormPattern,
    RotaryMulPattern,
    SwiGluPattern,
    _fits,
    _OrderedGraph,
    facts_of,
    replace_all,
    searches,
)
from tests.sample_graphs import aten, names, node, traced

X, Y = torch.ones(2, 8), torch.zeros(2, 8)


class Scaled(Pattern):
    """x + y · s of any s, with a dim that is the pattern's own, is exp(x)."""

    name: ClassVar[str] = "scaled"
    scalars: ClassVar[Any] = {"s": 0.625}
    rtol: ClassVar[float] = 0.5
    atol: ClassVar[float] = 0.25

    def inputs(self) -> list[torch.Tensor]:
        return [X, Y]

    def finds(self) -> list[tuple[Callable[..., Any], torch.dtype]]:
        return [(lambda x, y, s: aten.cat.default([x, aten.add.Tensor(x, y * s, alpha=2)], 1), torch.float32)]

    def replace(self, x: torch.Tensor, y: torch.Tensor, s: float) -> torch.Tensor:
        return aten.cat.default([x.exp(), y.exp()], 1)


def found(function: Callable[..., Any], *inputs: torch.Tensor) -> int:
    module = traced(function, *(inputs or (X, Y)))
    count = replace_all(module.graph, [Scaled()]).matches
    module.graph.lint()
    return count


def wanted(x: Any, y: Any, s: Any = 3.0, dim: int = 1, alpha: int = 2) -> Any:
    return aten.cat.default([x, aten.add.Tensor(x, aten.mul.Tensor(y, s), alpha=alpha)], dim).neg()


CASES: list[tuple[str, Callable[..., Any], int]] = [
    ("as it is written", lambda x, y: wanted(x, y), 1),
    ("another number", lambda x, y: wanted(x, y, 7), 1),
    ("the numbers of two", lambda x, y: wanted(x, y, 7) + wanted(y, x, 8), 2),
    ("the product turned round", lambda x, y: wanted(x, y, y), 0),
    ("one tensor for both", lambda x, y: wanted(x, x), 1),
    ("another dimension", lambda x, y: aten.cat.default([x, aten.add.Tensor(x, y * 3.0, alpha=2)], 0).neg(), 0),
    ("a flag for a dimension", lambda x, y: aten.cat.default([x, aten.add.Tensor(x, y * 3.0, alpha=2)]).neg(), 0),
    ("another factor", lambda x, y: wanted(x, y, alpha=3), 0),
    ("no factor", lambda x, y: aten.cat.default([x, aten.add.Tensor(x, y * 3.0)], 1).neg(), 0),
    ("more in the list", lambda x, y: aten.cat.default([x, aten.add.Tensor(x, y * 3.0, alpha=2), x], 1).neg(), 0),
    ("two tensors for one", lambda x, y: aten.cat.default([y, aten.add.Tensor(x, y * 3.0, alpha=2)], 1).neg(), 0),
    ("the sum turned round", lambda x, y: aten.cat.default([x, aten.add.Tensor(y * 3.0, x, alpha=2)], 1).neg(), 1),
    ("another operator", lambda x, y: aten.cat.default([x, aten.sub.Tensor(x, y * 3.0, alpha=2)], 1).neg(), 0),
    ("an input instead", lambda x, y: aten.cat.default([x, y], 1).neg(), 0),
]


@pytest.mark.parametrize(("function", "count"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_place_is_the_pattern_or_it_is_not(function: Callable[..., Any], count: int) -> None:
    assert found(function) == count


def test_a_number_stands_for_itself_wherever_it_is_found() -> None:
    class Twice(Scaled):
        name: ClassVar[str] = "twice"

        def finds(self) -> Any:
            return [(lambda x, y, s: x * s + y * s, torch.float32)]

        def replace(self, x: torch.Tensor, y: torch.Tensor, s: float) -> torch.Tensor:
            return (x + y) * s

    for function, count in (
        (lambda x, y: (x * 3.0 + y * 3.0).neg(), 1),
        (lambda x, y: (x * 3.0 + y * 4.0).neg(), 0),
        (lambda x, y: (x * 3 + y * 3).neg(), 1),
    ):
        module = traced(function, X, Y)
        expected = module(X * 2, X * 5)
        assert replace_all(module.graph, [Twice()]).matches == count
        module.recompile()
        assert torch.equal(module(X * 2, X * 5), expected)


def test_what_replaces_stands_between_what_was_there() -> None:
    module = traced(lambda x: (x.exp().neg(), x.abs()), X)
    whole = _OrderedGraph.from_graph(module.graph)
    assert [whole.order[made] for made in module.graph.nodes] == [0.0, 1.0, 2.0, 3.0, 4.0]
    neg = node(module.graph, "neg")
    with module.graph.inserting_before(neg):
        new = [module.graph.call_function(aten.sin.default, (node(module.graph, "exp"),)) for _ in range(3)]
    whole.put_in(new, neg)
    order = [whole.order[made] for made in module.graph.nodes]
    assert order == sorted(set(order))
    whole.put_in([], neg)
    first = next(iter(module.graph.nodes))
    with module.graph.inserting_before(first):
        begin = module.graph.placeholder("begin")
    whole.put_in([begin], first)
    assert whole.order[begin] < whole.order[first]
    assert whole.written == frozenset()


def test_one_pattern_s_place_may_lie_in_what_another_put_in() -> None:
    class First(Scaled):
        name: ClassVar[str] = "first"
        scalars: ClassVar[Any] = {}

        def inputs(self) -> list[torch.Tensor]:
            return [X]

        def finds(self) -> Any:
            return [(lambda x: x.sin().cos(), torch.float32)]

        def replace(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return x.exp().abs()

    class Then(First):
        name: ClassVar[str] = "then"

        def finds(self) -> Any:
            return [(lambda x: x.exp().abs(), torch.float32)]

        def replace(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return x.tanh()

    module = traced(lambda x: x.sin().cos().neg(), X)
    outcome = replace_all(module.graph, [First(), Then()])
    assert [(fact.rule, fact.matches) for fact in outcome.rules] == [("first", 1), ("then", 1)]
    assert [str(made.target) for made in module.graph.nodes if made.op == "call_function"] == [
        "aten.tanh.default", "aten.neg.default"
    ]  # fmt: skip


def test_a_tensor_that_comes_after_the_first_result_leaves_the_place_alone() -> None:
    class Pair(Scaled):
        name: ClassVar[str] = "pair"
        scalars: ClassVar[Any] = {}

        def finds(self) -> Any:
            return [(lambda x, y: ((e := x.exp()) * y, e), torch.float32)]

        def replace(self, x: torch.Tensor, y: torch.Tensor) -> Any:  # type: ignore[override]
            return x.exp2() * y, x.exp2()

    late = traced(lambda x, y: ((e := x.exp()).neg(), e * y.abs()), X, Y)
    before = names(late.graph)
    assert replace_all(late.graph, [Pair()]).matches == 0
    assert names(late.graph) == before
    early = traced(lambda x, y: ((b := y.abs()), (e := x.exp()).neg(), e * b), X, Y)
    assert replace_all(early.graph, [Pair()]).matches == 1
    early.graph.lint()


def test_facts_are_those_of_the_patterns_that_were_found() -> None:
    outcome = facts_of({"scaled": 2, "swiglu": 0}, [Scaled(), SwiGluPattern()], errors={"scaled": 0.125}, way="own")
    assert (outcome.matches, outcome.exact, outcome.rtol, outcome.atol) == (2, False, 0.5, 0.25)
    (fact,) = outcome.rules
    assert (fact.rule, fact.kind, fact.op, fact.matches, fact.rtol, fact.atol, fact.max_abs_err, fact.way) == (
        "scaled", "replace", "scaled", 2, 0.5, 0.25, 0.125, "own"
    )  # fmt: skip
    quiet = facts_of({"scaled": 0}, [Scaled()])
    assert (quiet.matches, quiet.exact, quiet.rtol, quiet.atol, quiet.rules) == (0, True, 0.0, 0.0, ())
    assert facts_of({"scaled": 1}, [Scaled()]).rules[0].max_abs_err is None


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


HALF = torch.float16
FITS: list[tuple[Pattern, list[torch.Tensor], dict[str, float], bool]] = [
    (RmsNormPattern(), [empty(2, 8), empty(8)], {}, True),
    (RmsNormPattern(), [empty(8), empty(8)], {}, False),
    (RmsNormPattern(), [empty(2, 8), empty(1, 8)], {}, False),
    (RmsNormPattern(), [empty(2, 8), empty(1)], {}, False),
    (RmsNormPattern(), [empty(8, 2), empty(8)], {}, False),
    (RmsNormPattern(), [empty(2, 8), empty(8, dtype=HALF)], {}, False),
    (AddRmsNormPattern(), [empty(2, 8), empty(2, 8), empty(8)], {}, True),
    (AddRmsNormPattern(), [empty(2, 8), empty(1, 8), empty(8)], {}, False),
    (AddRmsNormPattern(), [empty(2, 8), empty(2, 8, dtype=HALF), empty(8)], {}, False),
    (AddRmsNormPattern(), [empty(2, 8), empty(2, 8), empty(1)], {}, False),
    (SwiGluPattern(), [empty(2, 8), empty(2, 8)], {}, True),
    (SwiGluPattern(), [empty(8), empty(8)], {}, False),
    (SwiGluPattern(), [empty(2, 8), empty(2, 1)], {}, False),
    (SwiGluPattern(), [empty(2, 8), empty(2, 8, dtype=HALF)], {}, False),
    (RotaryMulPattern(), [empty(1, 2, 3, 8), empty(1, 1, 3, 8), empty(1, 1, 3, 8)], {"half": 4}, True),
    (RotaryMulPattern(), [empty(1, 2, 3, 8), empty(1, 1, 3, 8), empty(1, 1, 3, 8)], {"half": 3}, False),
    (RotaryMulPattern(), [empty(2, 3, 8), empty(1, 3, 8), empty(1, 3, 8)], {"half": 4}, False),
    (RotaryMulPattern(), [empty(1, 2, 3, 8), empty(1, 1, 3, 8), empty(1, 1, 1, 8)], {"half": 4}, False),
    (RotaryMulPattern(), [empty(1, 2, 3, 8), empty(1, 1, 3, 1), empty(1, 1, 3, 1)], {"half": 4}, False),
    (RotaryMulPattern(), [empty(1, 2, 3, 8), *2 * (empty(1, 1, 3, 8, dtype=HALF),)], {"half": 4}, False),
    (Scaled(), [], {}, True),
]


@pytest.mark.parametrize(("pattern", "values", "numbers", "fits"), FITS)
def test_a_pattern_takes_the_forms_that_its_operator_takes(
    pattern: Pattern, values: list[torch.Tensor], numbers: dict[str, float], fits: bool
) -> None:
    assert pattern.fits(values, numbers) is fits


def test_a_search_is_traced_once_and_starts_at_the_first_result() -> None:
    (only,) = searches(Scaled)
    assert searches(Scaled)[0] is only
    assert [made.op for made in only.tensors] == ["placeholder"] * 2
    assert only.anchor is only.outputs[0]
    assert {str(made.target) for made in only.inner} == {"aten.mul.Tensor", "aten.add.Tensor"}
    module = traced(lambda x, y: wanted(x, y), X, Y)
    got = only.at(node(module.graph, "cat"))
    assert got is not None
    assert _fits(Scaled(), only, got)
    assert got.numbers == {"s": 3.0}
    assert set(got.nodes.values()) == {made for made in module.graph.nodes if made.name not in ("neg", "output")}
    bare: fx.Node = node(module.graph, "mul")
    assert only.at(bare) is None
    for made in module.graph.find_nodes(op="placeholder"):
        made.meta["val"] = 3
    again = only.at(node(module.graph, "cat"))
    assert again is not None
    assert not _fits(Scaled(), only, again)
