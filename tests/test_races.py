"""What two streams touch without an order between them is found: by streams and events, by bytes, by dead values."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.races import RaceFinder, Span, Touch

X, Y, Z = 1, 2, 3


def reads(memory: int, **more: Any) -> Touch:
    return Touch(memory=memory, reads=True, **more)


def writes(memory: int, **more: Any) -> Touch:
    return Touch(memory=memory, writes=True, **more)


def changes(memory: int, **more: Any) -> Touch:
    return Touch(memory=memory, reads=True, writes=True, **more)


def found(finder: RaceFinder) -> list[tuple[str, str, str]]:
    return [(race.kind, race.first.what, race.then.what) for race in finder.races]


def test_a_read_on_another_stream_without_an_event_races_with_the_write() -> None:
    finder = RaceFinder()
    finder.call(1, "mm", [writes(X)], "m.py:1")
    finder.call(2, "relu", [reads(X), writes(Y)], "m.py:2")
    (race,) = finder.races
    assert (race.kind, race.sure, race.writes_first) == ("read", True, True)
    assert (race.first.what, race.first.stream, race.first.source) == ("mm", 1, "m.py:1")
    assert (race.then.what, race.then.stream, race.then.source) == ("relu", 2, "m.py:2")


def test_an_event_between_them_orders_them() -> None:
    finder = RaceFinder()
    finder.call(1, "mm", [writes(X)])
    finder.record(7, 1)
    finder.wait(7, 2)
    finder.call(2, "relu", [reads(X), writes(Y)])
    assert finder.races == []


def test_an_event_that_was_recorded_too_early_orders_nothing() -> None:
    finder = RaceFinder()
    finder.record(7, 1)
    finder.call(1, "mm", [writes(X)])
    finder.wait(7, 2)
    finder.call(2, "relu", [reads(X), writes(Y)])
    assert found(finder) == [("read", "mm", "relu")]


def test_an_event_stands_for_what_its_stream_had_done_and_for_nothing_later() -> None:
    finder = RaceFinder()
    finder.call(1, "mm", [writes(X)])
    finder.record(7, 1)
    finder.call(1, "abs", [writes(Y)])
    finder.wait(7, 2)
    finder.call(2, "relu", [reads(X)])
    finder.call(2, "neg", [reads(Y)])
    assert found(finder) == [("read", "abs", "neg")]


def test_an_event_recorded_anew_stands_for_the_new_record_alone() -> None:
    finder = RaceFinder()
    finder.call(1, "mm", [writes(X)])
    finder.record(7, 1)
    finder.record(7, 3)
    finder.wait(7, 2)
    finder.call(2, "relu", [reads(X)])
    assert found(finder) == [("read", "mm", "relu")]


def test_order_passes_on_through_a_third_stream() -> None:
    finder = RaceFinder()
    finder.call(1, "mm", [writes(X)])
    finder.record(7, 1)
    finder.wait(7, 2)
    finder.record(8, 2)
    finder.wait(8, 3)
    finder.call(3, "relu", [reads(X), writes(Y)])
    assert finder.races == []


def test_writing_what_another_stream_still_reads_is_a_race() -> None:
    finder = RaceFinder()
    finder.call(1, "mm", [reads(X), writes(Y)])
    finder.call(2, "add_", [changes(X)])
    assert found(finder) == [("overwrite", "mm", "add_")]


def test_a_change_in_place_reads_what_another_stream_writes() -> None:
    finder = RaceFinder()
    finder.call(1, "mm", [writes(X)])
    finder.call(2, "add_", [changes(X)])
    assert found(finder) == [("read", "mm", "add_")]


def test_two_streams_may_read_the_same() -> None:
    finder = RaceFinder()
    finder.call(1, "mm", [reads(X), writes(Y)])
    finder.call(2, "abs", [reads(X), writes(Z)])
    assert finder.races == []


def test_waiting_for_an_older_event_forgets_nothing() -> None:
    finder = RaceFinder()
    finder.call(1, "abs", [writes(Y)])
    finder.record(6, 1)
    finder.call(1, "mm", [writes(X)])
    finder.record(7, 1)
    finder.wait(7, 2)
    finder.wait(6, 2)
    finder.call(2, "relu", [reads(X), writes(Z)])
    assert finder.races == []


def test_a_write_without_a_read_is_compared_with_what_was_written_before() -> None:
    finder = RaceFinder()
    finder.call(1, "mm", [writes(X)])
    finder.call(2, "fill", [writes(X)])
    assert found(finder) == [("write", "mm", "fill")]


def test_a_missing_wait_is_found_once_and_for_the_last_of_its_stream() -> None:
    """Behind it the stream counts as having waited, and knows what the other one knew."""
    finder = RaceFinder()
    finder.call(3, "sin", [writes(Z)])
    finder.record(5, 3)
    finder.wait(5, 1)
    finder.call(1, "abs", [writes(Y)])
    finder.call(1, "mm", [writes(X)])
    finder.call(2, "add", [reads(Y), reads(X)])
    finder.call(2, "relu", [reads(X)])
    finder.call(2, "cos", [reads(Z)])
    assert found(finder) == [("read", "mm", "add")]
    assert finder.count(2) == 3


def test_what_happens_before_what_follows_from_streams_and_events_alone() -> None:
    finder = RaceFinder()
    finder.call(1, "mm", [writes(X)])
    finder.record(7, 1)
    finder.wait(7, 2)
    finder.call(2, "relu", [reads(X), writes(Y)])
    finder.call(1, "abs")
    clocks = {task.what: dict(task.clock) for task in finder.tasks}
    assert clocks == {"mm": {1: 1}, "relu": {1: 1, 2: 1}, "abs": {1: 2}}


ROWS, COLUMNS = Span.from_items(0, (2, 4), (4, 1), 4), Span.from_items(2, (4, 1), (4, 1), 4)


def test_other_bytes_of_the_same_memory_are_no_race() -> None:
    finder = RaceFinder()
    finder.call(1, "first rows", [writes(X, span=ROWS)])
    finder.call(2, "last rows", [writes(X, span=Span.from_items(8, (2, 4), (4, 1), 4))])
    assert finder.races == []
    finder.call(2, "a column", [writes(X, span=COLUMNS)])
    assert found(finder) == [("write", "first rows", "a column")]


def test_bytes_that_the_data_name_are_a_race_perhaps() -> None:
    finder = RaceFinder()
    finder.call(1, "index_put_", [writes(X, certain=False)])
    finder.call(2, "relu", [reads(X)])
    assert [race.sure for race in finder.races] == [False]


def test_a_certain_race_is_named_before_a_possible_one() -> None:
    finder = RaceFinder()
    finder.call(1, "fill_", [writes(X)])
    finder.call(1, "index_put_", [writes(X, certain=False)])
    finder.call(2, "relu", [reads(X)])
    assert [(race.first.what, race.sure) for race in finder.races] == [("fill_", True), ("index_put_", False)]


def test_a_new_value_in_the_memory_of_a_dead_one_races_with_its_readers() -> None:
    for ordered in (False, True):
        finder = RaceFinder()
        finder.call(1, "mm", [writes(X)])
        finder.record(7, 1)
        finder.wait(7, 2)
        finder.call(2, "relu", [reads(X, value="float32[4]")])
        if ordered:
            finder.record(8, 2)
            finder.wait(8, 1)
        finder.call(1, "abs", [writes(Y, over=(X,), value="float32[2]")])
        assert found(finder) == ([] if ordered else [("reuse", "relu", "abs")])
        assert [race.value for race in finder.races] == ([] if ordered else ["float32[4]"])


def test_a_value_that_was_never_touched_passes_on_whose_memory_it_has() -> None:
    finder = RaceFinder()
    finder.call(2, "relu", [reads(X)])
    finder.call(1, "abs", [reads(Y, over=(X,))])
    assert finder.races == []
    finder.call(1, "neg", [writes(Z, over=(Y,))])
    assert found(finder) == [("reuse", "relu", "neg")]


def test_a_search_that_takes_too_long_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npucompose.races.MOST_WORK", 1)
    one = Span.from_items(0, (50, 40, 30), (7919, 1009, 101), 1)
    other = Span.from_items(5, (50, 40, 30), (6007, 907, 103), 1)
    assert one.meets(other) is None
    finder = RaceFinder()
    finder.call(1, "a", [writes(X, span=one)])
    finder.call(2, "b", [writes(X, span=other)])
    assert [race.sure for race in finder.races] == [False]


spans = st.builds(
    Span.from_items,
    st.integers(0, 12),
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
    st.tuples(st.integers(0, 6), st.integers(0, 9)),
    st.sampled_from([1, 2, 4]),
)


def bytes_of(span: Span) -> set[int]:
    places = product(*(range(count) for count in span.shape))
    starts = [span.begin + sum(at * step for at, step in zip(place, span.steps, strict=True)) for place in places]
    return {start + byte for start in starts for byte in range(span.item)}


@given(spans, spans)
def test_spans_meet_exactly_where_they_share_a_byte(one: Span, other: Span) -> None:
    assert one.meets(other) == bool(bytes_of(one) & bytes_of(other))


Act = tuple[str, int, int, tuple[int, ...]]
touch = st.builds(
    lambda memory, span, reads, writes: Touch(memory=memory, span=span, reads=reads or not writes, writes=writes),
    st.integers(1, 3), st.one_of(st.none(), spans), st.booleans(), st.booleans(),
)  # fmt: skip
acts = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(1, 4), st.lists(touch, min_size=1, max_size=2)),
        st.tuples(st.just("record"), st.integers(1, 4), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(1, 4), st.integers(1, 3)),
    ),
    max_size=16,
)


@settings(deadline=None)
@given(acts)
def test_a_program_has_a_race_exactly_where_two_tasks_meet_that_no_path_connects(program: list[Any]) -> None:
    """Against the pairs of tasks without a path of stream order and events, looked for in the whole program."""
    finder = RaceFinder()
    last: dict[int, set[int]] = {}
    events: dict[int, set[int]] = {}
    calls: list[tuple[set[int], list[Touch]]] = []
    racing = 0
    for act, stream, what in program:
        before = last.setdefault(stream, set())
        if act == "record":
            finder.record(what, stream)
            events[what] = set(before)
        elif act == "wait":
            finder.wait(what, stream)
            before |= events.get(what, set())
        else:
            finder.call(stream, str(len(calls)), what)
            racing += any(number not in before and meets(what, touched) for number, (_, touched) in enumerate(calls))
            before.add(len(calls))
            calls.append((set(before), what))
    assert bool(finder.races) == bool(racing)


def meets(mine: list[Touch], others: list[Touch]) -> bool:
    return any(
        one.memory == other.memory
        and (one.writes or other.writes)
        and (one.span is None or other.span is None or bool(bytes_of(one.span) & bytes_of(other.span)))
        for one in mine
        for other in others
    )
