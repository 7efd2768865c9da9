"""The ranks' orders are compared and proven: agreement passes, every swap and every circle is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import distributed as dist

from npucompose.errors import PlanError
from npucompose.graphs.effects import is_collective
from npucompose.schema.streams import Streams
from npucompose.streams import apply
from npucompose.streams.ranks import CollectiveCall, RankOrder, check
from npucompose.targets.process_groups import exchange, told
from tests.collectives.ranks import STEPS, Steps, on_both, program
from tests.sample_graphs import CAN
from tests.searches import examples

THREE: Steps = [
    ("all_reduce", 0, 0), ("mm", 0, 1), ("all_gather", 1, 0), ("wait", 0, 0), ("all_reduce", 2, 0), ("wait", 0, 0),
]  # fmt: skip


def order_of(steps: Steps, streams: int) -> RankOrder:
    """Of a rank that plans so many streams for the program of all."""
    graph = program(steps, "tp").graph
    collectives = [node for node in graph.nodes if is_collective(node)]
    wanted = Streams(objective="streams", cost="none", max_streams=streams, min_gain=0)
    apply(graph, wanted, CAN)
    return RankOrder.from_graph(graph, collectives)


def refused(orders: dict[int, RankOrder]) -> str:
    with pytest.raises(PlanError) as error:
        check(orders)
    return str(error.value)


@settings(max_examples=examples(25), deadline=None)
@given(STEPS, st.integers(1, 3), st.integers(1, 3))
def test_whatever_streams_each_rank_plans_their_collectives_meet(steps: Steps, one: int, other: int) -> None:
    orders = {0: order_of(steps, one), 1: order_of(steps, other)}
    check(orders)
    assert {rank: RankOrder.from_text(order.text) for rank, order in orders.items()} == orders


def swapped(order: RankOrder, first: int, second: int) -> RankOrder:
    """Two collectives of one rank, each issued where the other was."""
    calls = list(order.calls)
    sent = [place for place, call in enumerate(calls) if call.group]
    a, b = sent[first], sent[second]
    calls[a], calls[b] = (attrs.evolve(calls[place], after=calls[at].after) for place, at in ((b, a), (a, b)))
    return RankOrder(calls=tuple(calls))


@settings(max_examples=examples(25), deadline=None)
@given(STEPS, st.integers(0, 20), st.integers(1, 20))
def test_two_collectives_that_one_rank_issues_the_other_way_round_are_refused(steps: Steps, at: int, by: int) -> None:
    order = order_of(steps, 2)
    count = len(order.groups.get("tp", ()))
    assume(count >= 2)
    first = at % (count - 1)
    second = first + 1 + by % (count - 1 - first)
    found = refused({0: order, 1: swapped(order, first, second)})
    assert f"from number {first + 1} on" in found
    assert "[rank_order]" in found


def test_both_orders_are_named_from_the_last_that_agrees() -> None:
    order = order_of(THREE, 1)
    found = refused({0: order, 3: swapped(order, 1, 2)})
    first = "all_reduce_default = all_reduce sum float32 (1 of the program)"
    second = "all_gather_into_tensor_default = all_gather_into_tensor 2 float32 (2 of the program)"
    third = "all_reduce_default_1 = all_reduce sum float32 (3 of the program)"
    assert found == (
        "Ranks 0 and 3 do not issue the same collectives in the same order to process group 'tp': the wrong ones would "
        f"meet, from number 2 on. Rank 0: {first}, {second}, {third}. Rank 3: {first}, {third}, {second}. [rank_order]"
    )


def test_a_collective_that_one_rank_issues_beyond_the_others_is_refused() -> None:
    order = order_of(THREE, 1)
    fewer = RankOrder(calls=tuple(call for call in order.calls if call.name != "all_reduce_default_1"))
    assert "from number 3 on" in refused({0: order, 1: fewer})


def test_equal_collectives_are_told_apart_by_their_place_in_the_program() -> None:
    twice: Steps = [("all_reduce", 0, 0), ("all_reduce", 0, 0)]
    order = order_of(twice, 1)
    assert "1 of the program" in refused({0: order, 1: swapped(order, 0, 1)})


def sent(name: str, group: str, *after: str) -> CollectiveCall:
    return CollectiveCall(name=name, group=group, what=group, after=after)


def waited(name: str, awaits: str, *after: str) -> CollectiveCall:
    return CollectiveCall(name=name, awaits=(awaits,), after=after)


def test_ranks_that_wait_for_one_group_before_they_issue_to_another_are_refused_with_the_circle() -> None:
    a_first = (sent("a", "x"), waited("wa", "a", "a"), sent("b", "y", "wa"), waited("wb", "b", "b"))
    b_first = (sent("b", "y"), waited("wb", "b", "b"), sent("a", "x", "wb"), waited("wa", "a", "a"))
    check({0: RankOrder(calls=a_first), 1: RankOrder(calls=a_first)})
    found = refused({0: RankOrder(calls=a_first), 1: RankOrder(calls=b_first)})
    assert "[rank_deadlock]" in found
    assert "b of rank 0" in found
    assert "a of rank 1" in found
    assert "process group 'x', collective 1" in found


def test_two_groups_that_nobody_waits_for_in_between_may_be_issued_in_any_order() -> None:
    one = RankOrder(calls=(sent("a", "x"), sent("b", "y", "a"), waited("wa", "a", "b")))
    other = RankOrder(calls=(sent("b", "y"), sent("a", "x", "b"), waited("wa", "a", "a")))
    check({0: one, 1: other})


def planned_with(ranks: Callable[..., Any], steps: Steps = THREE) -> None:
    apply(program(steps, "tp").graph, Streams(cost="none", min_gain=0), attrs.evolve(CAN, ranks=ranks))


def test_planning_shows_its_order_to_the_other_ranks_and_is_refused_where_they_differ() -> None:
    asked: list[tuple[str, Any]] = []

    def alike(text: str, groups: Any) -> dict[int, str]:
        asked.append((text, groups))
        return {0: text, 1: text}

    planned_with(alike)
    ((text, groups),) = asked
    assert groups == ("tp",)
    order = RankOrder.from_text(text)
    assert [call.name for call in order.groups["tp"]] == [call.name for call in order_of(THREE, 1).groups["tp"]]
    with pytest.raises(PlanError, match="rank_order"):
        planned_with(lambda text, _: {0: text, 1: swapped(order, 0, 1).text})


def test_a_graph_without_collectives_asks_no_rank() -> None:
    planned_with(lambda *_: pytest.fail("asked"), [("mm", 0, 1), ("tanh", 0, 0)])


def test_what_ranks_say_comes_to_all_of_them() -> None:
    store = dist.HashStore()
    said = on_both(lambda rank: told(store, "turn", rank, (0, 1), f"of {rank}"))
    assert said == [{0: "of 0", 1: "of 1"}] * 2


def test_a_rank_that_does_not_come_is_named() -> None:
    from datetime import timedelta

    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(PlanError, match=r"Rank 1 compiles no graph with collectives where.*rank_missing"):
        told(store, "turn", 0, (0, 1), "mine")


def test_a_process_without_ranks_hears_itself() -> None:
    assert not dist.is_initialized()
    assert exchange("mine", ("tp",)) == {0: "mine"}
