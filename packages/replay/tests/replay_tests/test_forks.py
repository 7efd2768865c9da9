"""A process that was forked after a capture: it replays for itself, whatever its parent's threads were at."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from npucompose.bits import same_bytes
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.generated import GeneratedKernel, known
from npucompose_replay.memory.arena import Arena
from npucompose_replay.plan import Workers
from replay_tests.capturing import request
from replay_tests.executor.streams_by_hand import planned
from replay_tests.test_arena import EXECUTORS, block, block_of
from replay_tests.test_generated_code import Code
from tests.graph_helpers import one_thread, openmp_of_torch, traced

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
PATIENCE_S = 20
"""A child that waits for what never comes is ended by then."""


def in_child(work: Callable[[], bool], patience_s: int = PATIENCE_S) -> str:
    """How a child ends that does `work`: "right", "wrong", "raised", or by which signal."""
    child = os.fork()
    if child == 0:
        signal.alarm(patience_s)
        status = 2
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    if os.WIFSIGNALED(ended):
        return signal.Signals(os.WTERMSIG(ended)).name
    return ("right", "wrong", "raised")[os.WEXITSTATUS(ended)]


def same(got: Any, expected: Any) -> bool:
    return all(map(same_bytes, got, expected))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def library() -> Iterator[Any]:
    with torch.library._scoped_library("npucompose_forks", "FRAGMENT") as made:
        yield made


def large(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Kernels that torch shares among its threads."""
    return (x @ x).relu(), torch.softmax(x, -1).sum(0), (x + 1).exp()


@EXECUTORS
def test_kernels_do_not_wait_for_threads_that_the_parent_has(two_threads: None, executor: Any) -> None:
    """What is expected is made on one thread: eager itself, on two, waits for ever in a child."""
    x = block_of(384)
    captured = CapturedGraph.capture(traced(large, x), [x], executor=executor)
    before = [out.clone() for out in captured.replay(x)]

    def replays() -> bool:
        y = block_of(384, 1)
        got = captured.replay(y)
        kept = torch.get_num_threads() == 2
        torch.set_num_threads(1)
        return kept and same(got, large(y))

    assert in_child(replays) == "right"
    assert same(captured.replay(x), before)


class Stopped:
    """An operator in which a replay stands still, on whatever thread, while `held` is set."""

    def __init__(self, library: Any) -> None:
        self.held, self.inside, self.go = threading.Event(), threading.Event(), threading.Event()
        library.define("stop(Tensor x) -> Tensor")
        library.impl("stop", self, "CPU")
        library.impl("stop", torch.empty_like, "Meta")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.held.is_set():
            self.inside.set()
            self.go.wait(PATIENCE_S)
        return x + 1

    def while_inside(self, call: Callable[[], Any], work: Callable[[], bool]) -> str:
        """How a child ends that is forked while another thread is inside `call`; there nothing stands still."""
        self.held.set()
        thread = threading.Thread(target=call)
        thread.start()
        assert self.inside.wait(PATIENCE_S)
        self.held.clear()
        ended = in_child(work)
        self.go.set()
        thread.join()
        return ended


@EXECUTORS
def test_a_fork_while_another_thread_replays_leaves_nobody_waiting(library: Any, executor: Any) -> None:
    stopped, x, arena = Stopped(library), block_of(8), Arena()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = x @ x
        return (torch.ops.npucompose_forks.stop(x) @ kept,)

    captured, beside = (
        CapturedGraph.capture(traced(f, x), [x], executor=executor, arena=arena) for f in (function, block)
    )
    y = block_of(8, 1)
    expected, expected_beside = ((y + 1) @ (y @ y),), block(y)
    mine: list[Any] = []
    ended = stopped.while_inside(
        lambda: mine.extend(captured.replay(x)),
        lambda: same(beside.replay(y), expected_beside) and same(captured.replay(y), expected),
    )
    assert ended == "right"
    assert same(mine, ((x + 1) @ (x @ x),))
    assert same(captured.replay(y), expected)


def test_a_fork_while_streams_replay_leaves_nobody_waiting(library: Any) -> None:
    stopped, x = Stopped(library), block_of(8)

    def both(x: torch.Tensor) -> torch.Tensor:
        return x.neg().mm(x) + torch.ops.npucompose_forks.stop(x).relu()

    module = planned(both, x, aside=("stop", "relu"))
    with one_thread():
        captured = CapturedGraph.capture(module, [x], workers=Workers(count=2, spin_us=0.0))
    assert captured.threads is not None
    y = block_of(8, 1)
    expected = [(z, (both(z),)) for z in (y, x, y)]

    def replays() -> bool:
        return all(same(captured.replay(z), out) for z, out in expected)

    assert stopped.while_inside(lambda: captured.replay(x), replays) == "right"
    assert replays()


@EXECUTORS
def test_a_fork_while_another_thread_captures_leaves_nobody_waiting(library: Any, executor: Any) -> None:
    stopped = Stopped(library)
    module = traced(lambda x: (torch.ops.npucompose_forks.stop(x) @ x,), block_of(8))
    cache = GraphCache(request(module), capture_limit=4, executor=executor)
    x, y = block_of(8), block_of(6, 1)
    expected = ((y + 1) @ y,)
    ended = stopped.while_inside(lambda: cache([x]), lambda: same(cache([y]), expected))
    assert ended == "right"
    assert same(cache([x]), ((x + 1) @ x,))


def test_a_fork_from_within_a_replay_keeps_its_turn(library: Any) -> None:
    """The child goes on with the replay, as the parent does."""
    endings: list[str] = []
    forking = threading.Event()

    def fork(x: torch.Tensor) -> torch.Tensor:
        if forking.is_set():
            endings.append(in_child(lambda: bool(inner.replay(x))))
        return x + 1

    library.define("fork(Tensor x) -> Tensor")
    library.impl("fork", fork, "CPU")
    x, arena = block_of(8), Arena()
    inner = CapturedGraph.capture(traced(block, x), [x], arena=arena)
    outer = CapturedGraph.capture(traced(lambda x: (torch.ops.npucompose_forks.fork(x) @ x,), x), [x], arena=arena)
    forking.set()
    assert same(outer.replay(x), ((x + 1) @ x,))
    assert endings == ["raised"]  # as in the parent: within a replay that shares its memory


# -- generated kernels, which ask OpenMP for a fixed number of threads


def team_of(threads: int, *, parallel: bool) -> Code:
    """Code whose one kernel has each of so many threads call `time(out)`."""
    openmp = openmp_of_torch()
    start, time = (ctypes.cast(f, ctypes.c_void_p).value for f in (openmp.GOMP_parallel, ctypes.CDLL(None).time))
    assert start is not None

    def binding(function: int, out: torch.Tensor, *numbers: int) -> None:
        openmp.GOMP_parallel(ctypes.c_void_p(function), ctypes.c_void_p(out.data_ptr()), *numbers)

    kernel = GeneratedKernel(name="time", order="nwnn", address=start, binding=binding, parallel=parallel)
    known(kernel)

    def body(inputs: list[Any], observer: Any) -> list[Any]:
        out = observer.made(torch.empty(1, dtype=torch.int64))
        observer.launch(kernel, (time, out, threads, 0))
        return [out]

    return Code(body)


@pytest.mark.parametrize(("parallel", "ended"), [(True, "right"), (False, "SIGALRM")])
def test_a_kernel_of_a_fixed_number_of_threads_runs_in_a_child(parallel: bool, ended: str) -> None:
    """Negative control: a kernel that does not say that it asks for threads waits for those of the parent."""
    code = team_of(2, parallel=parallel)
    captured, _ = CapturedGraph.capture_code(code, [], finish=True)
    assert captured.facts()["ways"] == {"generated": 1}

    def replays() -> bool:
        again, results = CapturedGraph.capture_code(code, [], finish=True)
        return all(bool(found[0] > 0) for found in (results, captured.replay(), again.replay()))

    assert in_child(replays, PATIENCE_S if parallel else 1) == ended
    assert bool(captured.replay()[0] > 0)
