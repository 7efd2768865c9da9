"""What the reduction leaves out makes no difference: plain exhaustive search comes to the same ends and problems."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from npucompose_devtools.protocol import explore
from npucompose_devtools.protocol.explore import _Search, check
from npucompose_devtools.protocol.machine import Machine
from npucompose_devtools.protocol.model import HostThread, Protocol, Step
from npucompose_devtools.protocol.reading import shape
from npucompose_devtools.protocol.reduction import Reduction, Touch

MOST = 60_000
HOST = (
    "write x", "read y", "acquire s", "release s", "synchronise a", "synchronise b", "synchronise done",
    "run copy on a reads x writes y", "run copy on b reads y writes x", "record done on a", "record done on b",
    "wait done on a", "wait done on b", "record go on a", "record go on b", "wait go on b", "reset go on a",
    "replay g on a", "replay g on b", "begin update g.k on b", "update g.k on b", "end update on b",
)  # fmt: skip
CAPTURED = ("wait go", "reset go", "record go", "run k reads x writes y")


def protocols() -> st.SearchStrategy[Protocol]:
    threads = st.lists(st.lists(st.sampled_from(HOST), min_size=1, max_size=5), min_size=1, max_size=2)
    graph = st.lists(st.sampled_from(CAPTURED), max_size=2)
    made = st.tuples(threads, graph, st.integers(1, 2), st.integers(0, 1), st.sampled_from([{}, {"a": 1}, {"b": 2}]))
    return made.map(lambda parts: protocol(*parts))


def protocol(
    threads: list[list[str]], graph: list[str], repeat: int = 1, count: int = 0, depth: dict[str, int] | None = None
) -> Protocol:
    return Protocol(
        streams=("a", "b"),
        depth=depth or {},
        events={"done": "ordinary", "go": "external"},
        semaphores={"s": count},
        graphs={"g": tuple(map(Step.from_text, (*graph, "run k reads x")))},
        threads={
            f"host{n}": HostThread(steps=tuple(map(Step.from_text, steps)), repeat=repeat)
            for n, steps in enumerate(threads)
        },
    )


def explored(asked: Protocol, *, reduced: bool) -> tuple[bool, set[object], set[tuple[str, ...]]]:
    """(all of it, the states in which nobody can move, the places of problems)."""
    search = _Search(machine=Machine(asked), reduced=reduced, first=False, most_states=MOST)
    search.run()
    tasks = search.machine.tasks
    ends = {
        state._replace(queues=tuple(tuple(map(tasks.__getitem__, queue)) for queue in state.queues))
        for state in search.ends
    }
    return not search.given_up, ends, set(search.problems)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(protocols())
@example(protocol([["record go on a", "reset go on a"], ["wait go on b"]], []))
@example(protocol([["acquire s", "release s"], ["acquire s"]], [], count=1))
@example(protocol([["replay g on a", "record go on b"]], ["wait go", "reset go"], repeat=2))
def test_reduced_and_plain_search_agree(asked: Protocol) -> None:
    whole, ends, problems = explored(asked, reduced=False)
    if not whole:
        return
    assert explored(asked, reduced=True) == (True, ends, problems)
    assert len(check(asked).findings) == len(check(asked, reduced=False).findings)


def test_the_reduction_leaves_out_much_of_torchairs_protocol() -> None:
    plain, reduced = check(shape("torchair"), reduced=False), check(shape("torchair"))
    assert plain.holds
    assert reduced.holds
    assert plain.states > 10 * reduced.states


def test_a_reduction_that_takes_dependent_turns_for_independent_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the comparison above fails where a dependence is not seen."""
    asked = protocol([["write x", "run copy on a reads x writes y"], ["write x"]], [])
    monkeypatch.setattr(Touch, "depends", lambda self, other: False)
    assert explored(asked, reduced=True) != explored(asked, reduced=False)


def test_of_independent_turns_one_is_enough() -> None:
    machine = Machine(protocol([["write x"], ["run copy on a reads y writes y"]], []))
    assert Reduction(machine).enough(machine.start(), [0, 1]) == [0]


def test_of_dependent_turns_each_is_taken() -> None:
    machine = Machine(protocol([["write x"], ["write x"]], []))
    assert Reduction(machine).enough(machine.start(), [0, 1]) == [0, 1]
    assert explore.check(machine.protocol).states == 5
