"""What a recording owes those who call it, asked of it one by one: rounds, spans, turns, inputs that move."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import pytest
import torch

from npucompose.bits import same_bytes
from npucompose_replay.executor import build
from replay_tests.executor.contracts import added

pytestmark = [
    pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here"),
    pytest.mark.usefixtures("one_thread"),
]


# Recordings.


def counting(extension: ModuleType, steps: int) -> tuple[Any, list[torch.Tensor]]:
    """A recording whose step k adds one to counter k."""
    recording, counters = extension.Recording(), [torch.zeros(1) for _ in range(steps)]
    for counter in counters:
        assert added(extension, "add_.Tensor", [counter, torch.ones(1), 1], False, recording) == "boxed"
    return recording, counters


def test_a_recording_is_run_as_often_as_is_asked_and_each_round_has_its_time(extension: ModuleType) -> None:
    recording, counters = counting(extension, 3)
    took = recording.took(4)
    assert [counter.item() for counter in counters] == [4.0] * 3
    assert len(took) == 4
    assert all(isinstance(ns, int) and 0 < ns < 10**12 for ns in took)
    assert recording.took(0) == []


def test_the_span_of_each_step_lies_within_its_round_and_after_the_step_before(extension: ModuleType) -> None:
    recording, counters = counting(extension, 3)
    rounds = recording.spans(5)
    assert [counter.item() for counter in counters] == [5.0] * 3
    assert [len(spans) for spans in rounds] == [3] * 5
    for spans in rounds:
        instants = [instant for span in spans for instant in span]
        assert instants == sorted(instants)
        assert 0 <= instants[0] <= instants[-1] < 10**11, "counted from the begin of the round"


def test_steps_that_are_timed_run_and_no_others(extension: ModuleType) -> None:
    recording, counters = counting(extension, 3)
    times = recording.times([2, 0, 2], 4)
    assert [counter.item() for counter in counters] == [4.0, 0.0, 8.0]
    assert len(times) == 4
    assert all(0 < ns < 10**12 for ns in times)
    with pytest.raises(IndexError):
        recording.times([3], 1)


@pytest.mark.parametrize(
    ("threads", "waits", "words"),
    [
        ([[0, 1], [2]], [[], [], [1]], None),
        ([[0, 2], [1]], [[], [], [1]], None),
        ([[], [0, 1, 2]], [[], [0], [0, 1]], None),
        ([[1, 0], [2]], [[], [], []], "step 0 is out of order"),
        ([[0, 0], [1, 2]], [[], [], []], "step 0 is out of order"),
        ([[0], [1, 2]], [[], [1], []], "step 1 would wait for step 1, which comes only after it"),
        ([[0], [1, 2]], [[2], [], []], "step 0 would wait for step 2"),
    ],
)
def test_turns_of_threads_are_in_order_and_wait_for_what_came_before(
    extension: ModuleType, threads: Any, waits: Any, words: str | None
) -> None:
    recording, counters = counting(extension, 3)
    if words is not None:
        with pytest.raises(RuntimeError, match=words):
            recording.set_streams(threads, waits, [], 0, [])
        return
    recording.set_streams(threads, waits, [], 1000, [])
    for rounds in (1, 2, 3):
        recording.took(1)
        assert [counter.item() for counter in counters] == [float(rounds)] * 3


def test_a_step_waits_for_its_event_from_the_first_replay_on(extension: ModuleType) -> None:
    """The step that is waited for takes its time; without a second core all steps run one after the other."""

    def late_one(x: torch.Tensor) -> None:
        time.sleep(0.05)
        x.add_(1)

    with torch.library._scoped_library("npucompose_contracts", "FRAGMENT") as library:
        library.define("late(Tensor(a!) x) -> ()")
        library.impl("late", late_one, "CPU")
        recording, x, y = extension.Recording(), torch.zeros(1), torch.zeros(1)
        late = extension.Operator("npucompose_contracts::late", "")
        recording.add(late, [x], {}, [], [], [], [], False)
        added(extension, "add_.Tensor", [y, x, 1], False, recording)
        recording.set_streams([[0], [1]], [[], [0]], [], 1000, [])
        for total in (1.0, 3.0, 6.0):
            recording.took(1)
            assert y.item() == total


def test_an_input_that_moves_takes_its_steps_along_and_no_other_does(
    extension: ModuleType,
) -> None:
    recording = extension.Recording()
    x, out = torch.arange(8.0), torch.empty(4)
    part = torch.empty(0).set_(x.untyped_storage(), 2, (4,))  # type: ignore[call-overload]
    recording.set_input(3, part)
    added(extension, "add.out", [part, torch.ones(4), 1, out], False, recording)
    recording.took(1)
    assert out.tolist() == [3.0, 4.0, 5.0, 6.0]
    other = torch.arange(100.0, 104.0)
    recording.move(3, other.data_ptr())
    recording.took(1)
    assert out.tolist() == [101.0, 102.0, 103.0, 104.0]
    recording.move(7, x.data_ptr())
    recording.took(1)
    assert out.tolist() == [101.0, 102.0, 103.0, 104.0]
    recording.move(3, x.data_ptr())  # for the end: the tensor frees what it lies over


def test_a_list_of_results_has_as_many_as_when_it_was_captured(extension: ModuleType) -> None:
    recording = extension.Recording()
    x = torch.arange(4.0)
    split = extension.Operator("aten::split_copy", "Tensor")
    for numbers, fits in (([0, 1], True), ([0, 1, 2], False)):
        recording = extension.Recording()
        recording.add(split, [x, 2, 0], {}, [numbers], [], [], [], True)
        if fits:
            recording.took(1)
            continue
        with pytest.raises(RuntimeError, match="was captured with 3 results and now returns 2"):
            recording.took(1)


def test_a_number_where_a_tensor_is_wanted_takes_the_part_of_a_number(extension: ModuleType) -> None:
    for number, dtype in ((2, torch.float32), (2.5, torch.float32), (True, torch.float32)):
        x, out = torch.ones(3), torch.empty(3)
        recording = extension.Recording()
        added(extension, "mul.out", [x, number, out], False, recording)
        recording.took(1)
        assert same_bytes(out, (x * number).to(dtype))
