"""One core for each stream: workers leave the caller's, and torch's threads are used and left as they were."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from attrs import evolve

from npucompose.bits import same_bytes
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from replay_tests.executor.streams_by_hand import (
    MEETING_S,
    TWO,
    X,
    acts,
    current_core,
    needs_two_cores,
    on_two,
    planned,
    ran,
    replaying,
)
from tests.graph_helpers import openmp_of_torch

pytestmark = pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here")


def acting(x: torch.Tensor) -> torch.Tensor:
    act = torch.ops.npucompose_tests.act
    here = act(act(act(x, "a"), "b"), "c")
    there = act(act(act(x.neg(), "p"), "q"), "r")
    return here - there


STUBBORN = evolve(TWO, falls_back=False)
"""On a busy machine, too, no replay goes on in one stream."""
ASIDE = ("neg", "act_3", "act_4", "act_5")


@pytest.fixture
def acted() -> Iterator[CapturedGraph]:
    """A recording whose kernels act on two threads; the caller may use afterwards the cores that it could before.

    torch computes on one thread, so that the threads of streams are not torch's, which run where torch says.
    """
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    torch.set_num_threads(1)
    captured = on_two(planned(acting, X, aside=ASIDE), X, workers=STUBBORN)
    replayed(captured)
    everywhere(before)  # workers of earlier tests may still keep to fewer cores than the caller has,
    for core in before:  # and ask anew where they may run when the caller is on another one
        os.sched_setaffinity(0, {core})
        replayed(captured)
    os.sched_setaffinity(0, before)
    try:
        yield captured
    finally:
        acts.clear()
        ran.clear()
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


def everywhere(cores: set[int]) -> None:
    """As `taskset --all-tasks` does."""
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(task), cores)


def replayed(captured: CapturedGraph) -> None:
    replaying.set()
    try:
        (got,) = captured.replay(X)
    finally:
        replaying.clear()
    assert same_bytes(got, acting(X))


@needs_two_cores
def test_a_caller_that_came_to_the_core_of_a_worker_finds_it_gone(acted: CapturedGraph) -> None:
    for core in (*os.sched_getaffinity(0), *os.sched_getaffinity(0)):
        os.sched_setaffinity(0, {core})
        replayed(acted)
        assert {ran[name][0] for name in "abc"} == {core}
        assert core not in {ran[name][0] for name in "pqr"}
        assert os.sched_getaffinity(0) == {core}


@needs_two_cores
def test_a_worker_leaves_when_the_caller_is_moved_to_its_core_in_the_middle_of_a_replay(acted: CapturedGraph) -> None:
    began, published = threading.Event(), threading.Event()

    def follow() -> None:
        assert began.wait(MEETING_S)
        os.sched_setaffinity(0, {core_of_worker[0]})

    core_of_worker: list[int] = []
    acts["p"] = lambda: (core_of_worker.append(current_core()), began.set())
    acts["a"] = follow
    acts["b"] = published.set
    acts["q"] = lambda: published.wait(MEETING_S)
    replayed(acted)
    assert ran["b"][0] == core_of_worker[0]
    assert ran["r"][0] != core_of_worker[0]
    assert os.sched_getaffinity(0) == {core_of_worker[0]}


@needs_two_cores
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_with_one_core_left_starts_no_race_for_it(acted: CapturedGraph) -> None:
    cores = os.sched_getaffinity(0)

    def threads() -> int:
        replayed(acted)
        return len({thread for _, thread in ran.values()})

    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {min(cores)})
        found = [threads(), threads()]
        os.sched_setaffinity(0, cores)
        found.append(threads())
        os.sched_setaffinity(0, {min(cores)})
        threads()  # the worker is on another core, so that it sees itself moved
        everywhere({min(cores)})
        found += [threads(), threads()][1:]
        os._exit(0 if found == [1, 1, 2, 1] else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def threads_of_this_process() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.fixture
def computing_on_two() -> Iterator[CapturedGraph]:
    """A recording for two threads in a process where torch has computed on two, and may use its cores afterwards."""
    before = {task: os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")}
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    captured = on_two(planned(acting, X, aside=ASIDE), X, workers=STUBBORN)
    torch.randn(300, 300).exp()
    try:
        yield captured
    finally:
        ran.clear()
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)
        for task in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(task), before.get(task, os.sched_getaffinity(0)))


with_openmp = pytest.mark.skipif(
    "OpenMP not found" in torch.__config__.parallel_info(), reason="this torch computes without OpenMP"
)


@needs_two_cores
@with_openmp
def test_streams_run_on_the_threads_that_torch_computes_with(computing_on_two: CapturedGraph) -> None:
    before = threads_of_this_process()
    replayed(computing_on_two)
    assert len({thread for _, thread in ran.values()}) == 2
    assert threads_of_this_process() == before


@needs_two_cores
@with_openmp
def test_torch_s_threads_are_left_as_they_were(computing_on_two: CapturedGraph) -> None:
    torch.set_flush_denormal(True)
    replayed(computing_on_two)
    torch.set_flush_denormal(False)
    tiny = torch.full((1 << 20,), 1e-40)
    assert bool(((tiny * 1.0) != 0).all())


@needs_two_cores
@with_openmp
def test_where_openmp_starts_no_second_thread_a_worker_takes_the_stream(computing_on_two: CapturedGraph) -> None:
    openmp = openmp_of_torch()
    levels = openmp.omp_get_max_active_levels()
    openmp.omp_set_max_active_levels(0)  # so that a team is one thread, whatever number of them is asked for
    try:
        replayed(computing_on_two)
    finally:
        openmp.omp_set_max_active_levels(levels)
    assert len({thread for _, thread in ran.values()}) == 2


ON_ONE_CORE = """
import os, torch
from npucompose import ops
from replay_tests.executor import test_cores_of_streams as streams

ops.define()
torch.set_num_threads(2)
captured = streams.on_two(streams.planned(streams.acting, streams.X, aside=streams.ASIDE), streams.X)
torch.randn(300, 300).exp()
for task in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(task), {min(os.sched_getaffinity(0))})
for _ in range(2):
    streams.replayed(captured)
    print(len({thread for _, thread in streams.ran.values()}))
"""


@pytest.mark.slow
@needs_two_cores
@with_openmp
def test_torch_s_threads_on_one_core_take_no_streams_any_more() -> None:
    done = subprocess.run([sys.executable, "-c", ON_ONE_CORE], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2", "1"], done.stderr
