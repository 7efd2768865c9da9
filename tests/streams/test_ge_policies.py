"""GE's automatic streams, re-stated: what each policy puts on which stream, and how its plans stand beside others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.schema.streams import Streams
from npucompose.streams import apply, assignment, plan_of
from npucompose.streams.simulate import Work
from npucompose.streams.strategies.ge import _Paths, cube_and_vector, load_balance, main_stream
from npucompose.streams.strategies.instance import Instance
from npucompose.vendor.devices import ATLAS_A2
from tests.sample_graphs import CAN, seeded_program
from tests.streams import dags
from tests.streams.dags import Dag

CUBE, VECTOR = Work(us=5.0, cube=8), Work(us=5.0, vector=8)
POLICIES = ("cv", "LoadBalance:1", "LoadBalance:3", "MainStream:1", "MainStream:3", "MainStream:64")


def chains_of(count: int, length: int) -> Dag:
    """So many chains side by side, numbered level by level."""
    return [[index + count] if index + count < count * length else [] for index in range(count * length)]


def test_load_balance_gives_each_path_a_stream_and_as_many_kernels() -> None:
    assert load_balance(chains_of(4, 3), 4) == [0, 1, 2, 3] * 3
    assert load_balance(chains_of(4, 3), 2) == [0, 1, 0, 1] * 3
    assert load_balance([[1], [2], []], 8) == [0, 0, 0]


def test_load_balance_weighs_an_event_against_a_full_stream() -> None:
    """Of a fork's two short branches one leaves: its event costs less than two kernels more on the fullest stream."""
    assert load_balance([[1, 2], [3], [4], [], []], 2) == [0, 0, 1, 0, 1]
    assert load_balance([[1, 2], [], []], 1) == [0, 0, 0]


def test_main_stream_keeps_what_nothing_can_run_beside() -> None:
    assert main_stream([[1], [2], []], 4) == [0, 0, 0]
    fork_and_join: Dag = [[1], [2, 3], [4], [5], [6], [7], [8], [8], [9], []]  # two branches of three kernels
    assert main_stream(fork_and_join, 4) == [0, 0, 0, 1, 0, 1, 0, 1, 0, 0]


def test_main_stream_keeps_a_branch_that_is_not_worth_its_two_events() -> None:
    assert main_stream([[1, 2], [3], [3], []], 4) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("then", "kinds", "streams"),
    [
        ([[1], [2], []], "cvc", [0, 0, 0]),  # between two cube kernels that it needs and feeds
        ([[2], [2], []], "cvc", [0, 1, 0]),  # it need not wait for the one before
        ([[1, 2], [], []], "cvc", [0, 1, 0]),  # the next one does not need it
        ([[1], []], "cv", [0, 0]),  # nothing comes after it, and it waits for the last one
        ([[], []], "cv", [0, 1]),
        ([[1], []], "vc", [1, 0]),  # no cube kernel is before it
        ([[], []], "vv", [1, 1]),
    ],
)
def test_cv_puts_a_vector_kernel_aside_where_a_neighbouring_cube_kernel_allows_it(
    then: Dag, kinds: str, streams: list[int]
) -> None:
    assert cube_and_vector(then, [CUBE if kind == "c" else VECTOR for kind in kinds]) == streams


@given(st.integers(0, 10_000), st.sampled_from(POLICIES), st.integers(1, 4))
@settings(deadline=None)
def test_every_kernel_has_a_stream_and_both_limits_hold(seed: int, policy: str, limit: int) -> None:
    then = dags.small_dag(seed, most=12)
    work = [CUBE if (seed >> index) % 3 == 0 else VECTOR for index in range(len(then))]
    (found,) = assignment.candidates("ge", Instance(then=then, work=work, streams=limit, model=ATLAS_A2), policy)
    most = min(limit, 2 if policy == "cv" else int(policy.partition(":")[2]))
    assert len(found.streams) == len(then)
    assert set(found.streams) <= set(range(most))
    assert list(found.ranked) == list(range(len(then)))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_graph_planned_by_a_policy_is_valid_and_stays_as_it_is(policy: str) -> None:
    wanted = Streams(objective="ge", ge_policy=policy, max_streams=3, min_gain=0)
    for seed in range(5):
        module = seeded_program(seed, size=16)
        apply(module.graph, wanted, CAN)
        plan = plan_of(module.graph)
        assert apply(module.graph, wanted, CAN) == 0
        assert plan_of(module.graph) == plan


def test_an_edge_between_two_paths_counts_once_for_each() -> None:
    paths = _Paths.from_graph([[1, 3], [4], [3], [4], []])
    edges = {(a, b): count for a, near in enumerate(paths.near) for b, count in near.items()}
    assert edges
    assert all(edges[b, a] == count for (a, b), count in edges.items())
    assert sum(edges.values()) == 2 * (5 - sum(len(path) - 1 for path in paths.paths))
