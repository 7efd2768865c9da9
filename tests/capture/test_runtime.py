"""The simulated runtime by itself: one rule after the other, and joins against another way to find them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npucompose.npu.capture.simulated.runtime import CAPTURING, CaptureRuntime
from npucompose.races import Touch

Act = tuple[str, int, int]
"""("launch", stream, 0) or ("wait", the stream that waits, the stream that it waits for)."""


def refused(act: Callable[[CaptureRuntime], object], mode: str = "global") -> list[str]:
    runtime = CaptureRuntime(mode=mode)  # type: ignore[arg-type]
    runtime.begin()
    act(runtime)
    return [one.rule for one in runtime.refusals]


def in_another_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def test_a_capture_ends_on_the_stream_on_which_it_began() -> None:
    assert refused(lambda runtime: runtime.end(2)) == ["not_capturing"]
    assert refused(lambda runtime: (joined_by(runtime, 2), runtime.end(2))) == ["unmatched_end"]
    assert refused(lambda runtime: runtime.end()) == []


def joined_by(runtime: CaptureRuntime, stream: int) -> None:
    runtime.record(-1, CAPTURING, None)
    runtime.wait(-1, stream, None)


@pytest.mark.parametrize(("mode", "rules"), [("global", ["wrong_thread"]), ("relaxed", [])])
def test_a_capture_ends_in_its_thread_unless_the_mode_is_relaxed(mode: str, rules: list[str]) -> None:
    assert refused(lambda runtime: in_another_thread(runtime.end), mode) == rules


@pytest.mark.parametrize(
    ("mode", "captured", "outside", "other"),
    [
        ("global", "sync_copy", "outside_copy", "other_thread"),
        ("thread_local", "sync_copy", "outside_copy", None),
        ("relaxed", "sync_copy", None, None),
    ],
)
def test_a_blocking_copy_is_refused_by_stream_mode_and_thread(
    mode: str, captured: str, outside: str | None, other: str | None
) -> None:
    """On the captured stream in every mode; elsewhere as the mode says whose copies are unsafe."""

    def copies(stream: int, *, by: Callable[[Callable[[], object]], object]) -> list[str]:
        def act(runtime: CaptureRuntime) -> None:
            by(lambda: runtime.copy("x.cpu()", None, stream, blocking=True, pageable=True))

        return refused(act, mode)

    def itself(act: Callable[[], object]) -> object:
        return act()

    assert copies(CAPTURING, by=itself) == copies(CAPTURING, by=in_another_thread) == [captured]
    assert copies(7, by=itself) == ([outside] if outside else [])
    assert copies(7, by=in_another_thread) == ([other] if other else [])


def test_the_strictest_of_the_open_captures_decides_for_other_threads() -> None:
    def two(runtime: CaptureRuntime) -> None:
        runtime.begin(5, mode="global")
        in_another_thread(lambda: runtime.copy("x.cpu()", None, 7, blocking=True, pageable=False))
        runtime.end(5)
        in_another_thread(lambda: runtime.copy("y.cpu()", None, 7, blocking=True, pageable=False))

    assert refused(two, "thread_local") == ["other_thread"]


def test_streams_come_from_pools_that_begin_again() -> None:
    runtime = CaptureRuntime()
    normal = [runtime.pooled_stream() for _ in range(33)]
    high = [runtime.pooled_stream(high=True) for _ in range(33)]
    assert normal[31] == CAPTURING
    assert normal[32] == normal[0]
    assert high[32] == high[0]
    assert not set(normal) & set(high)


def test_a_rule_of_another_version_does_not_hold() -> None:
    old, new = CaptureRuntime(torch_npu="2.11.0.post3"), CaptureRuntime(torch_npu="2.13.0")
    for runtime in (old, new):
        runtime.begin()
        runtime.refuse("generator_unknown", "x", None)
    assert [len(runtime.refusals) for runtime in (old, new)] == [1, 0]


def test_nothing_is_refused_outside_a_capture() -> None:
    runtime = CaptureRuntime()
    runtime.launch(0, "mm", None)
    runtime.synchronise("synchronize()", None)
    runtime.copy("x.cpu()", None, CAPTURING, blocking=True, pageable=True)
    runtime.begin()
    runtime.end()
    runtime.synchronise("synchronize()", None)
    assert runtime.refusals == []


def test_one_line_is_refused_once_however_often_it_runs() -> None:
    assert refused(lambda runtime: [runtime.launch(0, "mm", "m.py:1") for _ in range(3)]) == ["default_stream"]


acts = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 4), st.integers(1, 4)),
    ),
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(acts)
def test_a_capture_is_unjoined_exactly_where_a_last_task_reaches_no_end(program: list[Act]) -> None:
    """The runtime looks at the last record of each stream; against reachability in the graph of all tasks. A stream
    that another one waits for is not named itself: it is joined as soon as that one is."""
    runtime = CaptureRuntime()
    runtime.begin()
    for number, (kind, stream, other) in enumerate(program):
        if kind == "launch":
            runtime.launch(stream, f"task {number}", str(stream))
        else:
            runtime.record(number, other, str(other))
            runtime.wait(number, stream, str(stream))
    runtime.end()
    found = {int(one.source or 0) for one in runtime.refusals if one.rule == "unjoined_stream"}
    lost = unreached(program)
    assert found <= lost
    assert bool(found) == bool(lost)


def unreached(program: list[Act]) -> set[int]:
    """Streams whose last task, wait or record is no ancestor of what the capturing stream has last."""
    before: dict[int, frozenset[tuple[str, int]]] = {CAPTURING: frozenset()}
    last: dict[int, tuple[str, int]] = {}

    def put(stream: int, task: tuple[str, int]) -> None:
        before[stream] |= {task}
        last[stream] = task

    for number, (kind, stream, other) in enumerate(program):
        if kind == "launch" and stream in before:
            put(stream, ("launch", number))
        elif kind == "wait" and other in before:
            put(other, ("record", number))
            before[stream] = before.get(stream, frozenset()) | before[other]
            put(stream, ("wait", number))
    return {stream for stream, task in last.items() if task not in before[CAPTURING]}


def test_what_a_stream_does_behind_its_record_is_joined_by_no_wait_for_it() -> None:
    """The event stands for what the stream had done when it was recorded."""

    def act(runtime: CaptureRuntime, *, again: bool) -> None:
        joined_by(runtime, 2)
        runtime.launch(2, "add", None)
        runtime.record(7, 2, None)
        if again:
            runtime.launch(2, "mul", None)
        runtime.wait(7, CAPTURING, None)
        runtime.end()

    assert refused(lambda runtime: act(runtime, again=False)) == []
    assert refused(lambda runtime: act(runtime, again=True)) == ["unjoined_stream"]


def test_a_captured_stream_waits_for_no_event_that_processes_share() -> None:
    assert refused(lambda runtime: runtime.wait(7, CAPTURING, None, shared=True)) == ["ipc_event"]
    assert refused(lambda runtime: runtime.wait(7, 5, None, shared=True)) == []


def test_what_races_in_a_capture_that_is_given_up_is_refused_too() -> None:
    def act(runtime: CaptureRuntime) -> None:
        joined_by(runtime, 2)
        runtime.launch(CAPTURING, "mul", "m.py:1", [Touch(memory=1, writes=True)])
        runtime.launch(2, "add", "m.py:2", [Touch(memory=1, reads=True)])
        runtime.abandon()

    assert refused(act) == ["unordered_read"]


def test_a_stream_that_nothing_waits_for_is_named_with_the_wait_that_its_reader_lacks() -> None:
    """One mistake, one finding: the race is what comes of it."""
    runtime = CaptureRuntime()
    runtime.begin()
    joined_by(runtime, 2)
    runtime.launch(2, "mul", "m.py:1 in f", [Touch(memory=1, writes=True)])
    runtime.launch(CAPTURING, "add", "m.py:2 in f", [Touch(memory=1, reads=True)])
    runtime.end()
    (found,) = runtime.refusals
    assert (found.rule, found.source) == ("unjoined_stream", "m.py:1 in f")
    assert found.fix == (
        "let the capturing stream wait for stream 2 between m.py:1 and m.py:2: event.record() on stream 2, then "
        "event.wait() on the capturing stream"
    )


def test_a_race_in_a_capture_that_is_lost_is_refused_all_the_same() -> None:
    def act(runtime: CaptureRuntime) -> None:
        joined_by(runtime, 2)
        runtime.launch(2, "mul", None, [Touch(memory=1, writes=True)])
        runtime.launch(CAPTURING, "add", None, [Touch(memory=1, reads=True)])
        runtime.captures[0].lost = True
        runtime.end()

    assert refused(act) == ["unordered_read"]
