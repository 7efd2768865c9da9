"""The public hangs are found in their public form, and what TorchAir, scripts and kits do shows none of them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from npucompose_devtools.protocol.command import page_of, summary_of, weigh_waits, without
from npucompose_devtools.protocol.explore import check
from npucompose_devtools.protocol.reading import shape, shapes

Golden = Callable[[str, str], None]
FAULTY = {
    "update_group_left_open": {"refused call", "deadlock"},
    "update_races_next_replay": {"deadlock", "stale parameters"},
    "draft_has_its_own_update_stream": {"deadlock", "stale parameters"},
    "host_overwrites_inputs": {"stale input"},
}
SOUND = ("kit", "torchair", "two_callers")
NEEDLESS = {
    "kit": ["wait replayed on update"],
    "torchair": [],
}
"""The kit synchronises after each call, so that TorchAir's own wait for the last replay finds nothing to wait for."""


def test_every_shape_of_the_package_is_judged_here() -> None:
    assert set(shapes()) == {*FAULTY, *SOUND}


@pytest.mark.parametrize("name", FAULTY)
def test_a_public_fault_is_found_within_ten_seconds(name: str, golden: Golden) -> None:
    begun = time.process_time()
    verdict = check(shape(name))
    assert time.process_time() - begun < 10
    assert {finding.kind for finding in verdict.findings} == FAULTY[name]
    pages = [summary_of(verdict), *map(page_of, verdict.findings)]
    golden(f"protocol/{name}.txt", "\n\n".join(pages) + "\n")


@pytest.mark.parametrize("name", SOUND)
def test_what_torchair_and_kits_do_neither_hangs_nor_reads_what_is_stale(name: str, golden: Golden) -> None:
    verdict = check(shape(name))
    assert verdict.holds
    assert verdict.ends == 1
    golden(f"protocol/{name}.txt", summary_of(verdict) + "\n")


def test_torchairs_protocol_is_explored_with_two_graphs_three_streams_two_threads_four_iterations() -> None:
    protocol = shape("torchair")
    assert (len(protocol.graphs), len(protocol.streams)) == (2, 3)
    assert [thread.repeat for thread in protocol.threads.values()] == [4, 4]


@pytest.mark.parametrize("name", NEEDLESS)
def test_without_one_of_its_waits_a_protocol_fails_and_a_needless_one_is_named(name: str) -> None:
    weighed = list(weigh_waits(shape(name)))
    assert len(weighed) >= 3
    assert [str(wait.step) for wait in weighed if wait.makes_no_difference] == NEEDLESS[name]
    assert all(wait.findings for wait in weighed if not wait.makes_no_difference)


@pytest.mark.parametrize("caller", ["caller_of_one", "caller_of_two"])
def test_two_callers_without_a_lock_begin_one_update_within_the_others(caller: str) -> None:
    """TorchAir has one update stream for all graphs of a process."""
    verdict = check(without(shape("two_callers"), f"threads.{caller}.steps[0]"), first=True)
    (finding,) = verdict.findings
    assert finding.kind == "refused call"
    assert "is still open on update (107033)" in finding.sentence


def test_a_deadlock_says_who_waits_where_and_why() -> None:
    deadlock = next(f for f in check(shape("update_races_next_replay")).findings if f.kind == "deadlock")
    assert deadlock.sentence == "main waits for ever at 'wait parameters_set' of iteration 1"
    assert deadlock.why == ("main: parameters_set is not set, and nobody is left who would record it.",)
    turns = [(step.process, step.text, step.iteration) for step in deadlock.trace]
    early = turns.index(("update", "record parameters_set", 1))
    assert early < turns.index(("main", "reset parameters_set", 0))


def test_what_has_nothing_to_do_with_a_stale_read_is_left_out_of_its_trace() -> None:
    (finding,) = check(shape("host_overwrites_inputs")).findings
    assert [(step.process, step.iteration) for step in finding.trace] == [
        ("host", 0), ("host", 0), ("host", 0), ("host", 1), ("main", 0),
    ]  # fmt: skip


def test_what_is_too_large_is_not_decided() -> None:
    verdict = check(shape("torchair"), most_states=100)
    assert not verdict.complete
    assert not verdict.holds
    assert summary_of(verdict).startswith("not decided: 1")
