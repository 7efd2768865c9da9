"""Streams of a plan on threads of the native replayer: side by side, the same bits, nothing left running."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import pytest
import torch

from npucompose.bits import same_bytes
from npucompose.errors import ConfigError, NpuComposeError
from npucompose.schema.streams import Match, PlanEntry, Streams
from npucompose.streams import apply
from npucompose.targets.cpu import CpuTarget
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.memory.arena import Arena
from npucompose_replay.plan import Workers
from replay_tests.executor.streams_by_hand import (
    TWO,
    X,
    broken,
    needs_two_cores,
    on_two,
    planned,
    replaying,
    told,
)
from tests.graph_helpers import in_threads
from tests.sample_graphs import CAN, traced

pytestmark = pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here")


def two_chains(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    left, right = x.mm(x), y.mm(y)
    for _ in range(3):
        left, right = left.mm(x).relu(), right.mm(y).relu()
    return left + right


RIGHT = ("mm_1", "mm_3", "mm_5", "mm_7", "relu_1", "relu_3", "relu_5")


# -- side by side


@needs_two_cores
def test_two_streams_run_at_the_same_time() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.npucompose_tests.meet(x) - torch.ops.npucompose_tests.meet(x.neg())

    captured = on_two(planned(both, X, aside=("neg", "meet_1")), X)
    replaying.set()
    try:
        for _ in range(3):
            x = torch.randn(4, 4)
            assert same_bytes(captured.replay(x)[0], (x + 1) - (x.neg() + 1))
    finally:
        replaying.clear()


@needs_two_cores
def test_a_thread_of_a_stream_finds_the_callers_state_and_starts_no_threads() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        ours = torch.ops.npucompose_tests.tell(x, "ours")
        return ours + torch.ops.npucompose_tests.tell(x, "theirs")

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        captured = on_two(planned(both, X, aside=("tell_1",)), X)
        for flush in (False, True):
            torch.set_flush_denormal(flush)
            captured.replay(X)
            ours, theirs = dict(told["ours"]), dict(told["theirs"])
            assert ours.pop("thread") == threading.get_ident() != theirs.pop("thread")
            assert ours == theirs
            assert ours["kernel threads"] == 1
            assert not ours["inference"]  # as in eager: the operator is not torch's own
            assert not ours["grad"]
            assert (ours["denormal"] == 0.0) == flush
        assert torch.get_num_threads() == 2
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def test_an_error_on_another_thread_is_raised_here_and_the_next_replay_is_right() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        return x.mm(x) + torch.ops.npucompose_tests.maybe_break(x).relu()

    captured = on_two(planned(both, X, aside=("maybe_break", "relu")), X)
    expected = X.mm(X) + (X + 1).relu()
    for _ in range(3):
        broken.set()
        with pytest.raises(ValueError, match="broken on purpose"):
            captured.replay(X)
        broken.clear()
        assert same_bytes(captured.replay(X)[0], expected)


@pytest.mark.parametrize("workers", [TWO, Workers(count=2, spin_us=0.0), Workers(count=2, cores=(0,))])
def test_threads_that_sleep_or_are_bound_to_a_core_give_the_same_bits(workers: Workers) -> None:
    inputs = [torch.randn(16, 16) for _ in range(2)]
    captured = on_two(planned(two_chains, *inputs, aside=RIGHT), *inputs, workers=workers)
    for _ in range(200):
        inputs = [torch.randn(16, 16) for _ in range(2)]
        assert same_bytes(captured.replay(*inputs)[0], two_chains(*inputs))


def every_thread_gets_its_own(recordings: Sequence[CapturedGraph]) -> None:
    """Threads that replay one or the other all the time, each with inputs of its own, get eager's bits."""
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        inputs = [torch.randn(16, 16, generator=generator) for _ in range(2)]
        with torch.no_grad():
            expected = two_chains(*inputs)
            for _ in range(100):
                if not same_bytes(recordings[seed % 2].replay(*inputs)[0], expected):
                    wrong.append(seed)

    in_threads(work)
    assert not wrong


def test_replays_from_many_threads_take_turns_and_other_recordings_do_not_wait() -> None:
    """A recording that finds the threads taken runs its streams one after the other."""
    first = [torch.randn(16, 16) for _ in range(2)]
    graph = planned(two_chains, *first, aside=RIGHT)
    recordings = [CapturedGraph.capture(graph, first, workers=TWO, clone_output=True) for _ in range(2)]
    every_thread_gets_its_own(recordings)


def test_threads_of_streams_in_one_arena_with_another_recording_never_meet() -> None:
    first = [torch.randn(16, 16) for _ in range(2)]
    graph, arena = planned(two_chains, *first, aside=RIGHT), Arena()
    recordings = [CapturedGraph.capture(graph, first, workers=TWO, clone_output=True, arena=arena) for _ in range(2)]
    assert all(captured.threads is not None for captured in recordings)
    assert recordings[0].memory.slabs == recordings[1].memory.slabs
    every_thread_gets_its_own(recordings)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_runs_streams_on_threads_of_its_own() -> None:
    inputs = [torch.randn(16, 16) for _ in range(2)]
    captured = on_two(planned(two_chains, *inputs, aside=RIGHT), *inputs)
    captured.replay(*inputs)
    child = os.fork()
    if child == 0:
        equal = all(same_bytes(captured.replay(*inputs)[0], two_chains(*inputs)) for _ in range(5))
        os._exit(0 if equal else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert same_bytes(captured.replay(*inputs)[0], two_chains(*inputs))


def test_more_streams_than_threads_share_them() -> None:
    def three(x: torch.Tensor) -> torch.Tensor:
        return x.mm(x) + x.abs().neg() + x.sin().cos()

    module = traced(three, X)
    entries = (
        PlanEntry(stream="a", match=Match(name="re:abs|neg")),
        PlanEntry(stream="b", match=Match(name="re:sin|cos")),
    )
    apply(module.graph, Streams(kind="explicit", plan=entries, max_streams=3), CAN)
    assert len(on_two(module, X).plan.streams) == 3
    assert same_bytes(on_two(module, X).replay(X)[0], three(X))


# -- one after the other, and why


def test_one_core_or_no_native_replayer_runs_streams_one_after_the_other_and_says_so() -> None:
    inputs = [torch.randn(16, 16) for _ in range(2)]
    graph = planned(two_chains, *inputs, aside=RIGHT)
    for options, why in (
        ({"workers": Workers(count=1)}, "one thread is all"),
        ({"executor": "torchscript"}, "portable replayer"),
        ({"executor": "python"}, "portable replayer"),
    ):
        captured = CapturedGraph.capture(graph, inputs, **options)
        facts = captured.facts()
        assert (facts["streams"], facts["threads"]) == (2, 1)
        assert why in facts["why_threads"]
        assert same_bytes(captured.replay(*inputs)[0], two_chains(*inputs))


def test_a_kernel_with_other_bits_on_one_thread_keeps_the_streams_together() -> None:
    def sums(x: torch.Tensor) -> torch.Tensor:
        return x.sum() + x.abs().neg()[0]

    x = torch.randn(1 << 20)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        captured = CapturedGraph.capture(planned(sums, x, aside=("abs_1", "neg")), [x], workers=TWO)
        assert captured.threads is None
        assert "aten.sum.default gives other bits on one thread than on 2" in captured.why_threads
        assert same_bytes(captured.replay(x)[0], sums(x))
        torch.set_num_threads(1)
        assert same_bytes(on_two(planned(sums, x, aside=("abs_1", "neg")), x).replay(x)[0], sums(x))
    finally:
        torch.set_num_threads(threads)


def test_a_core_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="9999 cannot be used by this process"):
        CpuTarget(stream_cores=(0, 9999)).check("reduce-overhead")


def test_a_wait_for_what_comes_later_is_refused() -> None:
    extension = build.load()
    recording = extension.Recording()
    for _ in range(2):
        recording.add(extension.Operator("aten::relu_", ""), [torch.ones(2)], {}, [], [], [], [], False)
    with pytest.raises(RuntimeError, match="step 0 would wait for step 1, which comes only after it"):
        recording.set_streams([[0], [1]], [[1], []], [], 0, [])


def test_registers_that_two_threads_read_are_kept_and_do_not_keep_memory() -> None:
    def fresh(x: torch.Tensor) -> torch.Tensor:
        values = torch.ops.npucompose_tests.maybe_break(x)
        return values.abs() + values.neg()

    captured = on_two(planned(fresh, X, aside=("neg",)), X)
    assert captured.threads is not None
    for _ in range(3):
        assert same_bytes(captured.replay(X)[0], (X + 1).abs() + (X + 1).neg())


def test_a_graph_that_cannot_be_planned_safely_never_reaches_the_threads() -> None:
    with pytest.raises(NpuComposeError):
        planned(two_chains, X, X, aside=("no_such_node",))
