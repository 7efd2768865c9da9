"""A recording that had to go is made again of its plan: nothing is run, and it gives what the first one gave."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from npucompose.bits import same_bytes
from npucompose_replay import cached_plans
from npucompose_replay.cached_plans import CachedPlan, PlanCache
from npucompose_replay.capture import recorder
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.memory.arena import ROOMY
from replay_tests.capturing import CapturingBackend, request
from tests.graph_helpers import same, traced

WEIGHT, TABLE = torch.randn(8, 8), torch.randn(8)


def block(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = torch.softmax(x @ WEIGHT, -1)
    return (h * x).relu(), h.sum(0)


def writes_its_input(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.mul_(2)
    return x + 1, x[1:]


def has_constants(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    count = torch.arange(8, dtype=torch.float32)
    count.add_(1)
    return x * count + TABLE, count


def draws(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.nn.functional.dropout(x, 0.5, True),)


@pytest.fixture
def nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the graph was recorded again")

    return lambda: monkeypatch.setattr(recorder, "record_call", refuse)


@pytest.mark.parametrize("executor", ["native", "torchscript", "python"])
@pytest.mark.parametrize("function", [block, writes_its_input, has_constants, draws])
def test_a_recording_made_again_gives_what_eager_gives(
    function: Any, executor: Any, nothing_is_recorded: Callable[[], None]
):
    cache = GraphCache(
        request(traced(function, torch.ones(2, 8))), capture_limit=1, when_full="replace", executor=executor
    )
    for n in (2, 3):
        cache([torch.randn(n, 8)])
    nothing_is_recorded()
    for turn in range(3):
        for n in (2, 3):
            given = torch.randn(n, 8)
            mine, theirs = given.clone(), given.clone()
            torch.manual_seed(turn)
            expected = function(theirs)
            torch.manual_seed(turn)
            assert same(cache([mine]), expected)
            assert same_bytes(mine, theirs)
    assert cache.statistics.replacements == 1 + 6


def test_two_recordings_of_one_plan_do_not_know_of_each_other():
    first, _ = CapturedGraph.capture_call(traced(block, torch.ones(2, 8)), [torch.randn(2, 8)])
    plan = CachedPlan.from_recording(first)
    assert plan is not None
    x, y = torch.randn(2, 8), torch.randn(2, 8)
    second = plan.recording([x])
    assert second is not None
    mine = second.replay(x)
    assert same(first.replay(y), block(y))
    assert same(mine, block(x))
    assert same(second.replay(y), block(y))


def test_an_input_may_lie_anywhere_in_its_storage():
    first, _ = CapturedGraph.capture_call(traced(block, torch.ones(2, 8)), [torch.randn(6, 8)[3:5]])
    plan = CachedPlan.from_recording(first)
    assert plan is not None
    for x in (torch.randn(2, 8), torch.randn(9, 8)[7:]):
        made = plan.recording([x])
        assert made is not None
        assert same(made.replay(x), block(x))


def test_a_weight_that_lies_elsewhere_makes_the_plan_useless():
    def scaled(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (w * x,)

    cache = GraphCache(
        request(traced(scaled, torch.ones(2), torch.ones(2)), frozenset({0})), capture_limit=1, when_full="replace"
    )
    one, other = torch.randn(()), torch.randn(())
    for weight, n in ((one, 2), (one, 3), (other, 2), (one, 3), (one, 2)):
        x = torch.randn(n)
        assert same_bytes(cache([weight, x])[0], weight * x)


def test_inputs_that_overlap_are_recorded_anew():
    def both(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a.add_(1)
        return (a + b,)

    cache = GraphCache(request(traced(both, torch.ones(4), torch.ones(4))), capture_limit=1, when_full="replace")
    for turn in range(3):
        memory = torch.randn(6)
        for a, b in ((memory[:4], memory[2:]), (torch.randn(4), torch.randn(4)), (torch.randn(3), torch.randn(3))):
            theirs = memory.clone() if turn >= 0 and a.data_ptr() == memory.data_ptr() else None
            expected = both(theirs[:4], theirs[2:]) if theirs is not None else both(a.clone(), b.clone())
            assert same(cache([a, b]), expected)


def test_a_recording_whose_inputs_overlapped_leaves_no_plan():
    memory = torch.randn(6)
    captured, _ = CapturedGraph.capture_call(
        traced(lambda a, b: (a + b,), torch.ones(4), torch.ones(4)), [memory[:4], memory[2:]]
    )
    assert CachedPlan.from_recording(captured) is None


def recorded(n: int) -> CapturedGraph:
    return CapturedGraph.capture_call(traced(has_constants, torch.ones(2, 8)), [torch.randn(n, 8)])[0]


def test_there_are_at_most_so_many_plans_and_so_many_bytes_of_constants(monkeypatch: pytest.MonkeyPatch):
    plans, made = PlanCache(), {n: recorded(n) for n in (2, 3, 4, 5)}
    monkeypatch.setattr(cached_plans, "MOST_STEPS", 2 * len(made[2].plan.steps))
    for n in (2, 3, 4):
        plans.keep(n, made[n])
    assert [n in plans for n in (2, 3, 4)] == [False, True, True]
    plans.keep(2, made[2], wanted=3)
    assert [n in plans for n in (2, 3, 4)] == [True, True, False]
    monkeypatch.setattr(cached_plans, "MOST_BYTES", 1)
    plans.keep(5, made[5])
    assert len(plans) == 0


def test_what_others_replace_leaves_no_buffers_behind():
    """Bytes of slabs and of output buffers after 80 recordings over 4 places: what the last four take."""
    cache = GraphCache(request(traced(block, torch.ones(2, 8))), capture_limit=4, when_full="replace")

    gone: list[Any] = []
    for _ in range(2):
        for n in range(1, 41):
            cache([torch.randn(n, 8)])
            gone += [weakref.ref(cache.captured[-1].memory), weakref.ref(cache.captured[-1].executor)]
    assert cache.statistics.replacements == 76
    assert len([one for one in gone if one() is not None]) == 2 * 4
    largest = max(recording.facts()["pool_bytes"] for recording in cache.captured)
    assert sum(slab.nbytes for slab in cache.arena.slabs()) <= ROOMY * largest


@pytest.mark.slow
def test_a_model_behind_torch_compile_keeps_its_bits_while_its_recordings_come_and_go():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval().requires_grad_(False)
    backend = CapturingBackend(capture_limit=3, when_full="replace")
    fast = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for _ in range(4):
            for n in range(2, 10):
                x = torch.randn(1, n, 16)
                assert same_bytes(fast(x), model(x))
    assert sum(cache.statistics.replacements for cache in backend.caches) > 20
