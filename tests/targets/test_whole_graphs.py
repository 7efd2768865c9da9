"""A call under fullgraph=True is refused where nothing of it was compiled, whatever other threads call meanwhile."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._dynamo import eval_frame

import npucompose
from npucompose.targets import compiled_calls as whole_graphs
from npucompose.targets.compiled_calls import NAME, OUTSIDE, CountByThread, count_by_thread

X = torch.ones(3)
NO_FRAMES = "found no compiled frames"

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def torchs_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], int]]:
    """The counter as torch has it."""
    count = getattr(eval_frame, NAME, None)
    if count is None:
        pytest.skip("this torch does not count frames")
    own = count.count if isinstance(count, CountByThread) else count
    monkeypatch.setattr(eval_frame, NAME, own)
    count_by_thread.cache_clear()
    yield own
    count_by_thread.cache_clear()


class Turns:
    """Three calls that overlap as bad luck has it: `first` has ended and not said so for the second time when `second`
    begins, and `second` has run and not looked at its count when `third` begins.
    """

    def __init__(self) -> None:
        self.told: dict[str, threading.Event] = defaultdict(threading.Event)
        self.results: dict[str, Any] = {}
        self.seen: Counter[str] = Counter()

    def here(self, place: str, until: str) -> None:
        """The second time for each thread but at the beginning of a call."""
        self.seen[place] += 1
        if self.seen[place] == 1 + place.endswith(("leaves", "ran")):
            self.told[place].set()
            assert self.told[until].wait(60), until

    def passed(self, what: str, by: str) -> None:
        """Of the calls of torch's wrapper."""
        match threading.current_thread().name, what, by:
            case "first", "leaves", "compile_wrapper":
                self.here("first leaves", until="second entered")
            case "second", "entered", _:
                self.here("second entered", until="first is over")
            case "second", "switches", "compile_wrapper":
                self.here("second ran", until="third entered")
            case "third", "entered", _:
                self.here("third entered", until="second is over")

    def call(self, function: Callable[..., Any]) -> None:
        name = threading.current_thread().name
        try:
            self.results[name] = function(X)
        except RuntimeError as error:
            self.results[name] = error
        finally:
            self.told[f"{name} is over"].set()


def overlapping(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The results of three such calls: a tensor or an error each."""
    functions = [
        torch.compile(f, backend="eager", fullgraph=True) for f in (lambda x: x + 1, lambda x: x * 5, torch.neg)
    ]
    for function in functions:
        function(X)
    turns = Turns()

    def watched(name: str, what: str) -> None:
        torchs = getattr(eval_frame, name)

        def call(*given: Any) -> Any:
            result = torchs(*given)
            turns.passed(what, sys._getframe(1).f_code.co_name)
            return result

        monkeypatch.setattr(eval_frame, name, call)

    watched("set_eval_frame", "switches")
    watched("_callback_from_stance", "entered")
    watched("set_skip_guard_eval_unsafe", "leaves")
    names = ("first", "second", "third")
    threads = [threading.Thread(target=turns.call, args=(f,), name=n) for f, n in zip(functions, names, strict=True)]
    for thread, until in zip(threads, ("first leaves", "second ran", "third is over"), strict=True):
        thread.start()
        assert turns.told[until].wait(60)
    for thread in threads:
        thread.join()
    return [turns.results[name] for name in names]


def test_calls_that_overlap_do_not_spoil_each_other(torchs_own: object, monkeypatch: pytest.MonkeyPatch) -> None:
    count_by_thread()
    assert [result.tolist() for result in overlapping(monkeypatch)] == [[2.0] * 3, [5.0] * 3, [-1.0] * 3]


@pytest.mark.skipif(torch.__version__.split("+")[0] != "2.13.0", reason="another torch may count otherwise")
def test_in_torch_they_do(torchs_own: object, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = overlapping(monkeypatch)
    assert (first.tolist(), third.tolist()) == ([2.0] * 3, [-1.0] * 3)
    assert NO_FRAMES in str(second)


def test_a_call_in_which_nothing_is_compiled_is_still_refused(torchs_own: object) -> None:
    def left_out(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    count_by_thread()
    eval_frame.skip_code(left_out.__code__)
    with pytest.raises(RuntimeError, match=NO_FRAMES):
        torch.compile(left_out, backend="eager", fullgraph=True)(X)


def test_compiling_sees_to_it(torchs_own: Callable[[int], int]) -> None:
    shared = whole_graphs._is_shared(torchs_own)
    torch.compile(lambda x: x + 1, backend=npucompose.backend())(X)
    assert isinstance(getattr(eval_frame, NAME), CountByThread) is shared


def test_a_counter_that_is_by_thread_already_is_not_asked_during_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread's question would be taken for a call of its own that never ends."""
    counted = CountByThread(Held(shared=True))
    monkeypatch.setattr(eval_frame, NAME, counted)
    counted(0)
    count_by_thread.__wrapped__()
    assert getattr(eval_frame, NAME) is counted
    assert counted._inside == {threading.get_ident(): False}


class Held:
    """torch's, for all threads or for each."""

    def __init__(self, *, shared: bool) -> None:
        self.shared, self.held = shared, dict[int, int]()

    def __call__(self, value: int) -> int:
        place = 0 if self.shared else threading.get_ident()
        was, self.held[place] = self.held.get(place, OUTSIDE), value
        return was


@pytest.mark.parametrize("shared", [True, False])
def test_a_counter_for_each_thread_is_left_as_it_is(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Held(shared=shared)
    assert whole_graphs._is_shared(counter) is shared
    assert set(counter.held.values()) == {OUTSIDE}
    monkeypatch.setattr(eval_frame, NAME, counter, raising=False)
    count_by_thread.__wrapped__()
    assert (getattr(eval_frame, NAME) is counter) is not shared


def test_a_torch_without_a_counter_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(eval_frame, NAME, raising=False)
    count_by_thread.__wrapped__()
    assert not hasattr(eval_frame, NAME)


def elsewhere(counted: CountByThread, value: int, thread: ThreadPoolExecutor) -> int:
    return thread.submit(counted, value).result()


def test_the_count_of_a_call_on_its_own_is_torchs() -> None:
    counter = Held(shared=True)
    counted = CountByThread(counter)
    assert counted(0) == OUTSIDE
    assert counted(0) == 0, "a call within the call is none of its own"
    counter(3)
    assert counted(OUTSIDE) == 3
    assert counted(OUTSIDE) == OUTSIDE, "torch says twice that a call is over"
    assert counter.held == {0: OUTSIDE}
    assert counted(0) == OUTSIDE
    assert counted(OUTSIDE) == 0, "nothing was compiled"


def test_the_other_thread_s_answer_is_waited_for() -> None:
    counter, main = Held(shared=True), threading.current_thread()

    def slow(value: int) -> int:
        if threading.current_thread() is not main:
            threading.Event().wait(0.05)
        return counter(value)

    assert whole_graphs._is_shared(slow)


def test_one_thread_at_a_time_looks_at_the_counter() -> None:
    locked: list[bool] = []
    counted = CountByThread(lambda value: locked.append(counted._lock.locked()) or OUTSIDE)
    counted(0)
    counted(OUTSIDE)
    assert (locked, counted._lock.locked()) == ([True, True], False)


@pytest.mark.parametrize("inside", [True, False])
def test_a_child_waits_for_no_thread_that_its_parent_has(inside: bool) -> None:
    counter = Held(shared=True)
    counted = CountByThread(counter)
    with ThreadPoolExecutor(1) as thread:
        elsewhere(counted, 0, thread)
        if inside:
            counted(0)
        counted._lock.acquire()
        counted.forked()
        if inside:
            assert counted(OUTSIDE) == 1, "it began while another thread's call was under way"
        assert counted(0) == OUTSIDE
        assert counted(OUTSIDE) == 0
        assert counter.held == {0: OUTSIDE}


def test_forking_sees_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(eval_frame, NAME, Held(shared=True), raising=False)
    monkeypatch.setattr(os, "register_at_fork", lambda **given: registered.append(given))
    count_by_thread.__wrapped__()
    assert registered == [{"after_in_child": getattr(eval_frame, NAME).forked}]


def test_calls_that_overlap_are_not_asked_and_the_last_one_out_leaves_the_counter_as_it_was() -> None:
    counter = Held(shared=True)
    counted = CountByThread(counter)
    with ThreadPoolExecutor(1) as thread:
        assert counted(0) == OUTSIDE
        counter(1)
        assert elsewhere(counted, 0, thread) == OUTSIDE
        assert counter.held == {0: 0}, "what is traced first is counted from nothing"
        assert counted(OUTSIDE) == 1
        assert counter.held == {0: 0}, "the other is under way"
        assert elsewhere(counted, OUTSIDE, thread) == 1
        assert counter.held == {0: OUTSIDE}
        assert counted(0) == OUTSIDE
        assert counted(OUTSIDE) == 0, "the next is asked again"
