"""A recording has to be earned, and whose place it takes: what captures cost against what calls take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from npucompose_replay import interface
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.interface import AT_ONCE, SHARE, Admission, watching
from replay_tests.capturing import request
from tests.graph_helpers import traced

CALL_S, CAPTURE_S = 0.001, 0.010


class Simulated:
    """A cache of signatures that are numbers: nothing runs, the clock is made up."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.admission = Admission()
        self.recorded: dict[int, int] = {}
        """{signature: the call that used it last}, the one used longest ago first."""
        self.seconds = 0.0
        self.hits = self.captures = 0

    def call(self, signature: int) -> None:
        number = self.admission.call()
        self.seconds += CALL_S
        if signature in self.recorded:
            del self.recorded[signature]
            self.recorded[signature] = number
            self.admission.calls_s += CALL_S
            self.hits += 1
            return
        full = len(self.recorded) == self.limit
        used_last = next(iter(self.recorded.values())) if full else None
        if not self.admission.admits(signature, CAPTURE_S, used_last):
            self.admission.ran_eagerly(signature, CALL_S)
            return
        if full:
            del self.recorded[next(iter(self.recorded))]
        self.admission.captured(signature, CAPTURE_S)
        self.recorded[signature] = number
        self.seconds += CAPTURE_S
        self.captures += 1

    def calls(self, signatures: Iterable[int]) -> None:
        for signature in signatures:
            self.call(signature)


def rounds(signatures: range, count: int) -> Iterator[int]:
    for _ in range(count):
        yield from signatures


def test_the_first_two_signatures_are_recorded_when_they_come():
    cache = Simulated(limit=8)
    cache.calls((1, 2, 3))
    assert list(cache.recorded) == [1, 2]
    assert AT_ONCE == 2


@pytest.mark.parametrize("limit", [8, 64, 256])
def test_two_hundred_shapes_that_come_twice_cost_what_calls_cost_and_a_few_hundredths(limit: int):
    cache = Simulated(limit)
    cache.calls(rounds(range(200), 2))
    assert cache.seconds <= 400 * CALL_S * (1 + SHARE) + AT_ONCE * CAPTURE_S


def test_a_signature_that_recurs_is_recorded_once_its_calls_have_taken_as_long_as_that():
    cache = Simulated(limit=8)
    cache.calls((1, 2, *[3] * 10))
    assert list(cache.recorded) == [1, 2]
    cache.calls([3])
    assert list(cache.recorded) == [1, 2, 3]


def test_a_signature_that_recurs_between_many_others_is_recorded():
    """Every eighth call, as the batches of a server."""
    cache = Simulated(limit=64)
    cache.calls((1, 2))
    cache.calls(3 if n % 8 == 0 else 1000 + n for n in range(100))
    assert 3 in cache.recorded
    assert cache.captures == 3


def test_signatures_that_never_come_again_once_they_are_recorded_cost_twice_what_their_calls_cost():
    cache = Simulated(limit=256)
    cache.calls(signature for signature in range(200) for _ in range(11))
    assert cache.captures > 100
    assert cache.seconds <= 2 * (200 * 11 * CALL_S) + AT_ONCE * CAPTURE_S


def test_a_recording_that_made_place_has_to_be_earned_again():
    account = Admission(captures=AT_ONCE)
    for _ in range(10):
        account.ran_eagerly("a", CALL_S)
    assert account.admits("a", CAPTURE_S, used_last=None)
    account.captured("a", CAPTURE_S)
    account.ran_eagerly("a", CALL_S)
    assert not account.admits("a", CAPTURE_S, used_last=None)


def test_what_keeps_coming_is_recorded_in_the_end():
    cache = Simulated(limit=64)
    cache.calls(rounds(range(20), 500))
    assert len(cache.recorded) == 20
    assert cache.seconds <= 10_000 * CALL_S * (1 + SHARE) + AT_ONCE * CAPTURE_S


def test_shapes_in_turns_over_too_few_places_leave_the_recordings_where_they_are():
    cache = Simulated(limit=8)
    cache.calls(rounds(range(8), 1000))
    before = set(cache.recorded)
    cache.calls(rounds(range(20), 50))
    assert set(cache.recorded) == before
    assert cache.captures == 8


def test_shapes_that_others_follow_make_place_when_the_others_come_again():
    cache = Simulated(limit=8)
    cache.calls(rounds(range(8), 1000))
    cache.calls(range(100, 108))
    assert set(cache.recorded) == set(range(8))
    cache.calls(range(100, 108))
    assert set(cache.recorded) == set(range(100, 108))


def test_a_signature_forgotten_counts_as_new(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(interface, "_REMEMBERED", 2)
    account = Admission()
    for signature in (1, 2, 3):
        account.call()
        account.ran_eagerly(signature, 1.0)
    account.captures = AT_ONCE
    assert not account.admits(1, 0.0, used_last=0)
    assert account.admits(2, 0.0, used_last=0)


def plus_one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x + 1,)


def cache_of(**options: Any) -> GraphCache:
    return GraphCache(request(traced(plus_one, torch.ones(2))), **{"capture_limit": 8, "when_new": "earned", **options})


def called(cache: GraphCache, *sizes: int) -> None:
    for n in sizes:
        assert cache([torch.ones(n)])[0].tolist() == [2.0] * n


def test_a_cache_counts_what_became_of_each_call():
    cache = cache_of()
    called(cache, 2, 2, 2, 3, 4, 2, 3)
    told = cache.statistics
    assert (told.hits, told.captures, told.replacements, told.eager, told.calls) == (4, 2, 0, 1, 7)


def test_a_call_that_is_watched_is_recorded_at_once_and_takes_the_place_of_another():
    cache = cache_of(capture_limit=2, when_full="replace")
    called(cache, 2, 3, 4)
    assert cache.statistics.eager == 1
    with watching() as seen:
        called(cache, 4)
    assert seen[0].recording is cache.captured[-1]
    assert cache.statistics.replacements == 1


def test_time_spent_in_replays_earns_recordings_too():
    cache = cache_of()
    called(cache, 2, 2, 3, 4)
    assert len(cache.captured) == 2
    cache.admission.calls_s = 0.0
    called(cache, *[3] * 400)
    cache.recordings.newest.replay_s = 1.0  # as if they had been slow
    called(cache, 4)
    assert len(cache.captured) == 3


def test_signatures_that_take_turns_do_not_ask_the_wrong_recording_first(monkeypatch: pytest.MonkeyPatch):
    cache = cache_of()
    called(cache, 2, 3, 2, 3)
    asked: list[Any] = []
    for recording in cache.captured:
        replay = recording.try_replay
        monkeypatch.setattr(recording, "try_replay", lambda x, r=recording, f=replay: asked.append(r) or f(x))
    called(cache, 2, 3, 2, 3)
    assert len(asked) == 4


def test_no_size_that_only_watched_calls_record_earns_a_recording() -> None:
    assert Admission().admits("a size", 0.0, None)
    assert not Admission(only_watched=True).admits("a size", 0.0, None)
