"""The simulated runtime by itself: one rule after the other, and joins against another way to find them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npucompose.capture import CaptureRuntime
from npucompose.capture.runtime import CAPTURING

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


def test_a_capture_that_ends_on_another_stream_is_unmatched() -> None:
    assert refused(lambda runtime: runtime.end(2)) == ["unmatched_end"]
    assert refused(lambda runtime: runtime.end()) == []


@pytest.mark.parametrize(("mode", "rules"), [("global", ["wrong_thread"]), ("relaxed", [])])
def test_a_capture_ends_in_its_thread_unless_the_mode_is_relaxed(mode: str, rules: list[str]) -> None:
    assert refused(lambda runtime: in_another_thread(runtime.end), mode) == rules


@pytest.mark.parametrize(
    ("mode", "own", "other"),
    [
        ("global", [("sync_copy", True)], [("other_thread", True)]),
        ("thread_local", [("sync_copy", True)], []),
        ("relaxed", [("sync_copy", False)], [("sync_copy", False)]),
    ],
)
def test_the_mode_says_whose_unsafe_calls_are_refused(
    mode: str, own: list[tuple[str, bool]], other: list[tuple[str, bool]]
) -> None:
    for call, wanted in ((lambda act: act(), own), (in_another_thread, other)):
        runtime = CaptureRuntime(mode=mode)  # type: ignore[arg-type]
        runtime.begin()
        call(lambda: runtime.unsafe("sync_copy", "x.cpu()", None))  # noqa: B023
        assert [(one.rule, one.sure) for one in runtime.refusals] == wanted


def test_nothing_is_refused_outside_a_capture() -> None:
    runtime = CaptureRuntime()
    runtime.launch(0, "mm", None)
    runtime.synchronise("synchronize()", None)
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
def test_a_stream_is_unjoined_exactly_where_its_last_task_reaches_no_end(program: list[Act]) -> None:
    """Against reachability in the graph of tasks, which knows no clocks."""
    runtime = CaptureRuntime()
    runtime.begin()
    for number, (kind, stream, other) in enumerate(program):
        if kind == "launch":
            runtime.launch(stream, f"task {number}", str(stream))
        else:
            runtime.record(number, other, None)
            runtime.wait(number, stream, None)
    runtime.end()
    found = {int(one.source or 0) for one in runtime.refusals if one.rule == "unjoined_stream"}
    assert found == unreached(program)


def unreached(program: list[Act]) -> set[int]:
    """Streams whose last captured task is no ancestor of what the capturing stream has last."""
    before: dict[int, frozenset[int]] = {CAPTURING: frozenset()}
    last: dict[int, int] = {}
    for number, (kind, stream, other) in enumerate(program):
        if kind == "launch" and stream in before:
            before[stream] |= {number}
            last[stream] = number
        elif kind == "wait" and other in before:
            before[stream] = before.get(stream, frozenset()) | before[other]
    return {stream for stream, task in last.items() if task not in before[CAPTURING]}
