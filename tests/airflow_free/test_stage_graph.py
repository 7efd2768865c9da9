from __future__ import annotations

from typing import Any

import pytest
from bakery import BAKERY, Bake, Knead
from hypothesis import given
from hypothesis import strategies as st

from airflow_free.errors import InvalidRequest
from airflow_free.stage import Stage, StageGraph


def stage(name: str, *needs: str) -> Stage[Any]:
    members = {"name": name, "needs": needs, "run": lambda self, live, progress: {}}
    return type(name.title(), (Stage,), members)()  # pyright: ignore


def names(order: tuple[Stage[Any], ...]) -> list[str]:
    return [one.name for one in order]


def test_what_a_wanted_stage_needs_runs_before_it() -> None:
    assert names(BAKERY.order(["taste"])) == ["knead", "bake", "taste"]


def test_what_nobody_wants_does_not_run() -> None:
    assert names(BAKERY.order(["bake"])) == ["knead", "bake"]
    assert names(BAKERY.order([])) == []


def test_a_stage_wanted_twice_runs_once() -> None:
    assert names(BAKERY.order(["bake", "knead", "bake"])) == ["knead", "bake"]


def test_an_unknown_stage_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown stage 'bakee' @ pipeline.stages. Did you mean 'bake'\?"):
        BAKERY.order(["bakee"], where="pipeline.stages")


def test_two_unknown_stages_are_both_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        BAKERY.order(["x", "y"])
    assert len(caught.value.problems) == 2


def test_a_circle_is_refused_when_the_graph_is_built() -> None:
    with pytest.raises(InvalidRequest, match=r"in a circle: .*a"):
        StageGraph.from_stages([stage("a", "b"), stage("b", "c"), stage("c", "a")])


def test_an_unknown_need_is_refused_when_the_graph_is_built() -> None:
    with pytest.raises(InvalidRequest, match="unknown stage 'knead' @ needs of stage 'bake'"):
        StageGraph.from_stages([Bake()])


def test_two_stages_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="two stages are named 'knead'"):
        StageGraph.from_stages([Knead(), Knead()])


def test_a_stage_that_measures_is_refused_where_a_time_means_nothing() -> None:
    with pytest.raises(InvalidRequest, match=r"a simulator has no speed; stage taste measures @ pipeline.stages"):
        BAKERY.order(["taste"], where="pipeline.stages", cannot_measure="a simulator has no speed")
    assert names(BAKERY.order(["bake"], cannot_measure="a simulator has no speed")) == ["knead", "bake"]


@given(st.data())
def test_every_order_has_needs_first_and_nothing_unneeded(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 8))
    needs = {at: data.draw(st.sets(st.integers(0, at - 1)) if at else st.just(set())) for at in range(size)}
    shuffled = data.draw(st.permutations(range(size)))
    graph = StageGraph.from_stages([stage(str(at), *(str(need) for need in needs[at])) for at in shuffled])
    wanted = data.draw(st.sets(st.integers(0, size - 1)))
    order = [int(name) for name in names(graph.order([str(at) for at in wanted]))]
    assert len(order) == len(set(order))
    assert all(order.index(need) < order.index(at) for at in order for need in needs[at])
    reached = set(wanted)
    while more := {need for at in reached for need in needs[at]} - reached:
        reached |= more
    assert set(order) == reached
