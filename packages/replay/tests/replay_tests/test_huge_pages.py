"""Weights on huge pages: which ones, when, and that nothing else changes."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
import torch

from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.executor.trial import ExecutorName
from npucompose_replay.memory import huge_pages
from npucompose_replay.memory.huge_pages import AT_ONCE, HUGE, LEAST, move_to_huge_pages, weights_of, whole_pages
from npucompose_replay.packed_weights import packed_in
from replay_tests.test_generated_code import Code
from replay_tests.test_packed_products import COLUMNS, HAS_MKL, INNER, by_mkl, by_onednn, mkl, onednn, recorded
from tests.graph_helpers import same, traced

MIB = 1 << 20
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the call")


@pytest.fixture
def collapsed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The (begin, bytes) that the system was asked for, in place of the system; all weights are large enough."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(huge_pages, "collapse_call", lambda: lambda *span: asked.append(span) or 0)
    monkeypatch.setattr(huge_pages, "LEAST", 0)
    return asked


@pytest.mark.parametrize(
    ("spans", "pages"),
    [
        ([], []),
        ([(0, 4)], [(0, 4)]),
        ([(0.25, 3.75)], [(0, 4)]),
        ([(0.75, 3.25)], [(1, 3)]),
        ([(0.75, 1.25)], []),
        ([(1, 1.375), (1.5, 2)], [(1, 2)]),
        ([(1, 2), (2.5, 3)], [(1, 3)]),
        ([(1, 2), (2.75, 4)], [(1, 2), (3, 4)]),
        ([(1, 4), (1.5, 2)], [(1, 4)]),
    ],
)
def test_pages_are_whole_and_lie_for_the_greater_part_in_weights(
    spans: list[tuple[float, float]], pages: list[tuple[int, int]]
) -> None:
    given = [(int(begin * HUGE), int(end * HUGE)) for begin, end in spans]
    assert list(whole_pages(given)) == [(begin * HUGE, end * HUGE) for begin, end in pages]


def test_few_weights_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they count: the processor remembers where so many small pages lie."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(huge_pages, "collapse_call", lambda: lambda *span: asked.append(span) or 0)
    move_to_huge_pages([(0, LEAST - 1), (5, 5)])
    move_to_huge_pages([(0, LEAST - 1), (0, LEAST - 1)])
    assert asked == []
    move_to_huge_pages([(HUGE, LEAST), (LEAST, LEAST + HUGE)])
    assert asked == [(HUGE, LEAST)]


def test_many_are_asked_for_a_part_at_a_time_and_not_for_ever(
    collapsed: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 10.5, 11.0, 11.1])
    monkeypatch.setattr("npucompose_replay.memory.huge_pages.time.monotonic", lambda: next(clock))
    move_to_huge_pages([(0, 4 * AT_ONCE)])
    assert collapsed == [(0, AT_ONCE), (AT_ONCE, AT_ONCE)]


def test_the_last_part_is_what_is_left(collapsed: list[tuple[int, int]]) -> None:
    move_to_huge_pages([(0, AT_ONCE + HUGE)])
    assert collapsed == [(0, AT_ONCE), (AT_ONCE, HUGE)]


def test_where_the_system_gives_up_the_pages_are_asked_for_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does at the first page for which there is no free memory in one piece; another page may find some."""
    asked: list[tuple[int, int]] = []

    def gives_up(begin: int, nbytes: int) -> int:
        asked.append((begin, nbytes))
        return 0 if begin >= AT_ONCE else -1

    monkeypatch.setattr(huge_pages, "collapse_call", lambda: gives_up)
    move_to_huge_pages([(0, AT_ONCE + 2 * HUGE)])
    alone = [(at, HUGE) for at in range(0, AT_ONCE, HUGE)]
    assert asked == [(0, AT_ONCE), *alone, (AT_ONCE, 2 * HUGE)]


@pytest.mark.parametrize("moves", [True, False])
def test_whether_any_weights_were_moved_is_known(monkeypatch: pytest.MonkeyPatch, moves: bool) -> None:
    monkeypatch.setattr(huge_pages, "collapse_call", lambda: lambda *_: 0 if moves else -1)
    assert not move_to_huge_pages([(0, LEAST - 1)])
    assert move_to_huge_pages([(0, LEAST)]) == moves


def test_where_the_system_has_no_such_call_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "collapse_call", lambda: None)
    assert not move_to_huge_pages([(0, LEAST)])
    monkeypatch.undo()
    huge_pages.collapse_call.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert huge_pages.collapse_call() is None
    huge_pages.collapse_call.cache_clear()


# -- which weights of a recording


def lies_in(tensor: torch.Tensor, asked: list[tuple[int, int]]) -> bool:
    """But for the half of a page at either end that may stay."""
    begin, end = tensor.data_ptr() + HUGE // 2, tensor.data_ptr() + tensor.nbytes - HUGE // 2
    return any(low <= begin and end <= low + nbytes for low, nbytes in asked)


@pytest.mark.parametrize("executor", ["native", "python"])
def test_parameters_and_constants_are_moved_and_what_comes_with_each_call_is_not(
    collapsed: list[tuple[int, int]], executor: ExecutorName
) -> None:
    x, weight, constant = (torch.randn(3 * MIB) for _ in range(3))
    graph = traced(lambda x, weight: x * weight + constant, x, weight)
    CapturedGraph.capture(graph, [x, weight], static=frozenset({1}), executor=executor)
    assert lies_in(weight, collapsed)
    assert lies_in(constant, collapsed)
    assert not lies_in(x, collapsed)


@pytest.mark.parametrize("make", [pytest.param(by_mkl, marks=mkl), pytest.param(by_onednn, marks=onednn)])
def test_a_weight_that_a_library_has_packed_is_found(make: Callable[..., Code]) -> None:
    code = make(None) if make is by_mkl else make()
    plan = recorded(code).plan
    (packed,) = packed_in(plan)
    found = set(weights_of(plan, frozenset(), build.load().address_of_packed))
    (span,) = found - set(weights_of(plan, frozenset(), None))
    assert span[1] - span[0] == torch.ops.mkldnn._nbytes(packed) >= COLUMNS * INNER * 4
    plain = code.constants["weight"] if make is by_mkl else packed.to_dense()
    lies_there = torch.frombuffer(bytearray(ctypes.string_at(span[0], span[1] - span[0])), dtype=torch.float32)
    assert {*lies_there.tolist()} >= {*plain.flatten().tolist()}


def test_where_torch_does_not_say_where_a_packed_weight_lies_it_stays() -> None:
    code = by_mkl(None) if HAS_MKL else by_onednn()
    plan = recorded(code).plan
    assert set(weights_of(plan, frozenset(), lambda _: 0)) == set(weights_of(plan, frozenset(), None))


# -- for real


def on_huge_pages(tensor: torch.Tensor) -> int:
    """Bytes of the mapping that the tensor lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= tensor.data_ptr() < int(found[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    raise AssertionError("it lies nowhere")


def test_weights_are_moved_again_as_long_as_the_recording_lives(
    monkeypatch: pytest.MonkeyPatch, collapsed: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(huge_pages, "_MOVED", WeakKeyDictionary())
    x, weights = torch.randn(8, 2048), [torch.randn(2048, 2048) for _ in range(2)]
    captured = [CapturedGraph.capture(traced(torch.matmul, x, w), [x, w], static=frozenset({1})) for w in weights]
    for weight in weights:
        assert lies_in(weight, collapsed)
    collapsed.clear()
    huge_pages.move_again()
    assert [lies_in(weight, collapsed) for weight in weights] == [True, True]
    collapsed.clear()
    del captured[0]
    gc.collect()
    huge_pages.move_again()
    assert [lies_in(weight, collapsed) for weight in weights] == [False, True]


def test_what_could_not_be_moved_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(huge_pages, "_MOVED", WeakKeyDictionary())
    monkeypatch.setattr(huge_pages, "collapse_call", lambda: lambda *span: asked.append(span) or -1)
    x, weight = torch.randn(8, 2048), torch.randn(2048, 2048)
    captured = CapturedGraph.capture(traced(torch.matmul, x, weight), [x, weight], static=frozenset({1}))
    assert asked
    asked.clear()
    huge_pages.move_again()
    assert asked == []
    assert same(captured.replay(x, weight), [x @ weight])


@linux
def test_a_recording_computes_the_same_with_its_weights_on_huge_pages() -> None:
    x, weight = torch.randn(8, 2048), torch.randn(2048, 2048)
    collapse = huge_pages.collapse_call()
    assert collapse is not None
    probe = torch.ones(8 * MIB)
    if collapse((probe.data_ptr() + HUGE) // HUGE * HUGE, HUGE) != 0:
        pytest.skip("this Linux has no MADV_COLLAPSE, or forbids it")
    before, expected = on_huge_pages(weight), [x @ weight]
    captured = CapturedGraph.capture(traced(torch.matmul, x, weight), [x, weight], static=frozenset({1}))
    assert on_huge_pages(weight) >= before + weight.nbytes - HUGE
    assert same(captured.replay(x, weight), expected)
