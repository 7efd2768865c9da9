"""Blocks have lives, not values: whatever names lie in one piece of memory, no stream gives it away too early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import attrs
import pytest
import torch
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Allocation, Dependence, allocations
from npucompose.graphs.effects import written_by
from npucompose.schema.streams import Streams
from npucompose.streams import apply, validate, validation
from npucompose.table.structure import structure
from tests.sample_graphs import CAN, Program, node, traced
from tests.streams.random_in_place import in_place_program, random_streams, uncovered

EARLY = attrs.evolve(CAN, frees_early=True)
X = torch.randn(4, 4)
aten = torch.ops.aten
GRAPHS = pytest.mark.parametrize("graphs", [8, pytest.param(1500, marks=pytest.mark.slow)])


def written_in_place(x: torch.Tensor) -> torch.Tensor:
    """The side stream makes the memory and writes it; the main one reads it under its second name."""
    first = aten.relu_(x.clone())
    product = x.mm(x)
    return first.neg().mm(product) + product.abs().neg()


def read_through_a_view(x: torch.Tensor) -> torch.Tensor:
    first = aten.relu_(x.clone()[1:3])
    product = x.mm(x)
    return first.neg().mm(product)[0] + product.abs().neg()


def one_of_a_tuple(x: torch.Tensor) -> torch.Tensor:
    values, places = x.max(0)
    product = x.mm(x)
    return values.neg().mul(product) + product.abs().neg() + places.add(1)


def aside(*targets: str) -> Streams:
    return structure(
        Streams,
        {"kind": "explicit", "plan": [{"stream": "s", "match": {"target": f"re:aten.({'|'.join(targets)}).*"}}]},
        "streams",
    )


@pytest.mark.parametrize(
    ("function", "maker", "reader"),
    [(written_in_place, "clone", "neg"), (read_through_a_view, "clone", "neg"), (one_of_a_tuple, "max_1", "neg")],
)
def test_memory_that_another_stream_reads_under_another_name_is_not_given_away(
    function: Callable[[torch.Tensor], torch.Tensor], maker: str, reader: str
) -> None:
    wanted = aside("clone", "relu_", "abs", "max")
    module = traced(function, X)
    apply(module.graph, wanted, CAN)
    with pytest.raises(PlanError, match=rf"'{maker}' of stream 's' is read by '{reader}' on stream 'default', and its"):
        validate(module.graph, can=EARLY)
    assert list(uncovered(module))
    kept = traced(function, X)
    apply(kept.graph, wanted, EARLY)
    validate(kept.graph, can=EARLY)
    assert not list(uncovered(kept))


def test_memory_that_another_stream_writes_last_is_not_given_away() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        first = x.clone()
        product = x.mm(x)
        aten.add_(first, product)
        return product.abs().neg()

    module = traced(function, X)
    apply(module.graph, aside("clone", "abs"), CAN)
    with pytest.raises(PlanError, match="'clone' of stream 's' is written by 'add_' on stream 'default'"):
        validate(module.graph, can=EARLY)


def test_a_wait_for_a_tensor_keeps_no_memory() -> None:
    """TorchAir replaces it by a record."""
    module = traced(written_in_place, X)
    apply(module.graph, aside("clone", "relu_", "abs"), CAN)
    last = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    with module.graph.inserting_before(last):
        module.graph.call_function(torch.ops.air.wait.default, ([node(module.graph, "relu_")],)).meta["val"] = None
    with pytest.raises(PlanError, match="may be used again"):
        validate(module.graph, can=EARLY)


def test_an_allocation_is_all_that_lies_in_it() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return aten.relu_(x.clone()).view(-1).neg()

    module = traced(function, X)
    made, negated = allocations(module.graph, Dependence.from_graph(module.graph))
    assert [n.name for n in made.holders] == ["clone", "relu_", "view"]
    assert [n.name for n in made.touched_by] == ["relu_", "neg"]
    assert (made.maker.name, made.mentioned.name, made.returned) == ("clone", "neg", False)
    assert (negated.maker.name, negated.returned) == ("neg", True)


def test_results_of_one_kernel_live_apart() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        values, places = x.max(0)
        return values.neg() + places.add(1)

    module = traced(function, X)
    first, second = allocations(module.graph, Dependence.from_graph(module.graph))[:2]
    assert {first.mentioned.name, second.mentioned.name} == {"neg", "add"}


def test_what_only_may_lie_in_memory_touches_it_and_does_not_hold_it() -> None:
    """A reshape of a transposed matrix copies; its schema does not say so."""
    program = Program(inputs=1)
    turned = program.call(aten.t.default, program.call(aten.neg.default, program.values[0]))
    last = program.call(aten.abs.default, program.call(aten.reshape.default, turned, [2, 8]))
    graph = program.finish([last]).graph
    made = allocations(graph, Dependence.from_graph(graph))[0]
    assert (made.maker.name, made.mentioned.name) == ("neg_default", "reshape_default")
    assert [n.name for n in made.touched_by] == ["reshape_default", "abs_default"]


def programs_that_the_validator_accepts(graphs: int) -> Counter[str]:
    """Hazards that a run shows of plans that are accepted, and how many are refused: random streams, random graphs."""
    seen: Counter[str] = Counter()
    for seed in range(graphs):
        module = in_place_program(seed)
        needed = Dependence.from_graph(module.graph)
        apply(module.graph, random_streams(module, seed), CAN)
        shown = sum(1 for _ in uncovered(module))
        try:
            validate(module.graph, needed, EARLY)
        except PlanError as error:
            seen[error.code] += 1
            seen["refused and right"] += shown > 0
        else:
            seen["uncovered"] += shown
    return seen


@GRAPHS
def test_the_validator_accepts_no_plan_whose_run_shows_a_hazard(graphs: int) -> None:
    seen = programs_that_the_validator_accepts(graphs)
    assert seen["uncovered"] == 0
    assert seen["lifetime"] > graphs / 3
    assert seen["refused and right"] > 0.9 * seen["lifetime"]  # it is strict where only the schema speaks


@GRAPHS
def test_a_plan_that_is_written_keeps_memory_alive(graphs: int) -> None:
    for seed in range(graphs):
        module = in_place_program(seed)
        apply(module.graph, random_streams(module, seed), EARLY)
        module.graph.lint()
        assert not list(uncovered(module)), seed


def values_have_lives(graph: fx.Graph, needed: Dependence) -> list[Allocation]:
    """The rule before this one: the result of a kernel lives by itself, and what is written in place was left out."""
    uses: dict[fx.Node, list[fx.Node]] = {}
    for user in graph.nodes:
        for source in user.all_input_nodes:
            for maker in needed.origins.get(source, ()):
                uses.setdefault(maker, []).append(user)
    return [
        Allocation(
            maker=maker,
            storage=None,
            holders=[maker],
            touched_by=[user for user in users if user in needed.kernels],
            mentioned=users[-1],
            returned=any(user.op == "output" for user in users),
        )
        for maker, users in uses.items()
        if not written_by(maker)
    ]


def test_lives_of_values_would_leave_hazards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "allocations", values_have_lives)
    assert programs_that_the_validator_accepts(50)["uncovered"] > 3
