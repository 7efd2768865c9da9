"""Recordings of one arena lie in the same memory: nobody ever reads what another left there, or waits for ever."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.bits import same_bytes
from npucompose.placement import ALIGNMENT, MemoryBlock, aligned, place
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.memory.arena import ROOMY, Arena, Slab
from replay_tests.capturing import request
from replay_tests.random_programs import programs
from tests.graph_helpers import in_threads, traced
from tests.searches import examples

EXECUTORS = pytest.mark.parametrize("executor", ["native", "torchscript", "python"])
SIZES = (24, 16, 40, 20, 32)


@pytest.fixture
def library() -> Iterator[Any]:
    with torch.library._scoped_library("npucompose_arena", "FRAGMENT") as made:
        yield made


def block(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of several lifetimes, and one that is made anew on every replay (sort)."""
    kept = torch.tanh(x @ x)
    for _ in range(3):
        x = torch.softmax(x @ kept + torch.sort(x)[0], -1) * 0.5
    return x + kept, x @ kept - x.mean(-1, keepdim=True)


def block_of(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, n, generator=torch.Generator().manual_seed(seed))


def cached(**options: Any) -> GraphCache:
    return GraphCache(request(traced(block, block_of(8))), **{"capture_limit": 8, **options})


def poison(arena: Arena) -> None:
    for slab in arena.slabs():
        slab.tensor.fill_(0xFF)


def nbytes(slabs: list[Slab]) -> int:
    return sum(slab.nbytes for slab in slabs)


def size_of(spans: list[tuple[int, int]]) -> int:
    return aligned(max((high for low, high in spans if high > low), default=0))


# -- places


@st.composite
def users(draw: Any) -> list[list[tuple[int, int]]]:
    """For each user of an arena, the blocks that it lays there, all alive at once or one after the other."""
    block = st.builds(
        lambda size, first, length: MemoryBlock(nbytes=size, first=first, last=first + length),
        st.integers(0, 3000),
        st.integers(0, 8),
        st.integers(0, 4),
    )
    made = []
    for blocks in draw(st.lists(st.lists(block, max_size=12), max_size=6)):
        offsets = place(blocks).offsets
        made.append([(at, at + b.nbytes) for at, b in zip(offsets, blocks, strict=True)])
    return made


@given(users(), st.data())
def test_blocks_that_do_not_overlap_get_memory_that_does_not_overlap(made: list[Any], data: Any):
    arena, held = Arena(), list[tuple[int, list[Slab]]]()
    for spans in made:
        if held and data.draw(st.booleans(), label="one goes"):
            del held[data.draw(st.integers(0, len(held) - 1))]
        addresses, slabs = arena.lay(spans)
        held.append((size_of(spans), slabs))
        assert nbytes(arena.slabs()) <= ROOMY * sum(size for size, _ in held)
        places = [(at, at + high - low) for at, (low, high) in zip(addresses, spans, strict=True)]
        for i, (low, high) in enumerate(places):
            if low == high:
                continue
            assert low % ALIGNMENT == 0
            assert any(slab.address <= low and high <= slab.address + slab.nbytes for slab in slabs)
            for j in range(i):
                (a, b), (c, d) = spans[i], spans[j]
                if b <= c or d <= a:
                    assert high <= places[j][0] or places[j][1] <= low


@given(users())
def test_together_they_never_take_more_than_each_on_its_own(made: list[Any]):
    arena = Arena()
    held = [arena.lay(spans)[1] for spans in made]
    alone = list(map(size_of, made))
    assert max(alone, default=0) <= nbytes(arena.slabs()) <= sum(alone)
    assert {slab.number for slabs in held for slab in slabs} == {slab.number for slab in arena.slabs()}


def test_memory_is_laid_out_for_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch):
    genuine, inside, most = Arena._laid, [0], [0]

    def slowly(self: Arena, spans: Any) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        try:
            return genuine(self, spans)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(Arena, "_laid", slowly)
    arena = Arena()
    in_threads(lambda _: arena.lay([(0, 64)]))
    assert most == [1]


def test_what_fits_into_a_slab_takes_no_memory():
    arena = Arena()
    _, (large,) = arena.lay([(0, 640)])
    _, (again,) = arena.lay([(0, 64), (64, 192)])
    assert again is large


def test_what_is_much_smaller_than_a_slab_does_not_keep_it_alive():
    arena = Arena()
    large = arena.lay([(0, 6400)])
    _small = arena.lay([(0, 64)])
    assert nbytes(arena.slabs()) == 6464
    del large
    assert nbytes(arena.slabs()) == 64


def test_what_does_not_fit_takes_the_rest_beside_and_moves_nobody():
    arena = Arena()
    (first,), (small,) = arena.lay([(0, 128)])
    (below, above), slabs = arena.lay([(0, 128), (128, 640)])
    assert (below, slabs[0]) == (first, small)
    assert slabs[1].nbytes == 512
    assert above == slabs[1].address


def test_a_slab_in_which_nothing_useful_fits_is_left_alone():
    arena = Arena()
    _small = arena.lay([(0, 64)])
    _, slabs = arena.lay([(0, 640), (640, 704)])
    assert [slab.nbytes for slab in slabs] == [704]


def test_a_slab_goes_with_the_last_who_lies_in_it():
    arena = Arena()
    large = arena.lay([(0, 6400)])
    beside = arena.lay([(0, 3200)])
    del large
    assert nbytes(arena.slabs()) == 6400
    del beside
    assert arena.slabs() == []


# -- replays


@EXECUTORS
def test_signatures_in_any_order_give_eagers_bits_over_poisoned_memory(executor: Any):
    cache = cached(executor=executor)
    order = random.Random(0)
    last: dict[int, tuple[list[Any], list[Any]]] = {}
    for turn in range(60):
        n = SIZES[turn] if turn < len(SIZES) else order.choice(SIZES)
        x = block_of(n, turn)
        got, expected = cache([x.clone()]), list(block(x))
        last[n] = got, expected
        poison(cache.arena)
        for static, bits in last.values():  # outputs of all signatures stand until their own next replay
            assert all(map(same_bytes, static, bits))
    assert [c.facts()["executor"] for c in cache.captured] == [executor] * len(SIZES)
    slabs = {slab.number for c in cache.captured for slab in c.memory.slabs}  # type: ignore[attr-defined]
    assert len(slabs) < len(SIZES)
    apart = sum(c.facts()["pool_bytes"] for c in cache.captured)
    assert nbytes(cache.arena.slabs()) < 0.6 * apart


@settings(deadline=None, max_examples=examples(12))
@given(st.lists(programs(), min_size=4, max_size=5), st.sampled_from(["native", "python"]), st.randoms())
def test_random_programs_in_one_arena_give_eagers_bits_in_any_order(made: list[Any], executor: Any, order: Any):
    arena = Arena()
    recordings = [
        CapturedGraph.capture(traced(p, *p.inputs(0)), p.inputs(0), executor=executor, arena=arena) for p in made
    ]
    for turn in range(12):
        which = order.randrange(len(made))
        mine, theirs = made[which].inputs(turn), made[which].inputs(turn)
        poison(arena)
        got, expected = recordings[which].replay(*mine), made[which](*theirs)
        poison(arena)
        assert all(map(same_bytes, got, expected))
        assert all(map(same_bytes, mine, theirs))


@EXECUTORS
def test_poison_in_the_middle_of_a_replay_is_seen(executor: Any, library: Any):
    """The control of the tests above: what they poison is the memory that replays compute in."""
    arena, wanted = Arena(), [False]

    def spoil(x: torch.Tensor) -> torch.Tensor:
        if wanted[0]:
            poison(arena)
        return x.clone()

    library.define("spoil(Tensor x) -> Tensor")
    library.impl("spoil", spoil, "CPU")

    def spoilt(x: torch.Tensor) -> tuple[torch.Tensor]:
        kept = x @ x
        return (kept @ torch.ops.npucompose_arena.spoil(x),)

    x = block_of(8)
    captured = CapturedGraph.capture(traced(spoilt, x), [x], executor=executor, arena=arena)
    assert same_bytes(captured.replay(x)[0], x @ x @ x)
    wanted[0] = True
    assert captured.replay(x)[0].isnan().any()


@EXECUTORS
def test_threads_that_come_with_different_signatures_take_turns(executor: Any):
    cache = cached(executor=executor, clone_output=True)
    for n in SIZES[:2]:
        cache([block_of(n)])
    wrong: list[int] = []

    def work(seed: int) -> None:
        n = SIZES[seed % 2]
        x = block_of(n, seed)
        with torch.no_grad():
            expected = block(x)
            for _ in range(100):
                if not all(map(same_bytes, cache([x]), expected)):
                    wrong.append(seed)

    in_threads(work)
    assert not wrong
    assert len(cache.captured) == 2
    assert len(cache.arena.slabs()) == 1


@EXECUTORS
def test_a_replay_from_within_one_of_the_same_arena_is_refused(executor: Any, library: Any):
    inner: list[CapturedGraph] = []

    def within(x: torch.Tensor) -> torch.Tensor:
        return inner[0].replay(x)[0].clone() if inner else x + 1

    library.define("within(Tensor x) -> Tensor")
    library.impl("within", within, "CPU")
    x, arena = block_of(4), Arena()

    def capture(function: Any, arena: Arena) -> CapturedGraph:
        return CapturedGraph.capture(traced(function, x), [x], executor=executor, arena=arena)

    outer = capture(lambda x: (torch.ops.npucompose_arena.within(x) * 2,), arena)
    inner[:] = [capture(lambda x: (x + 1,), arena)]
    with pytest.raises(RuntimeError, match="from within its own replay, or one that shares its memory"):
        outer.replay(x)
    inner[:] = [capture(lambda x: (x + 1,), Arena())]
    assert same_bytes(outer.replay(x)[0], (x + 1) * 2)


def test_a_recording_that_the_native_replayer_refused_shares_with_one_that_it_runs(monkeypatch: pytest.MonkeyPatch):
    from npucompose_replay.executor import native as executor

    cache = cached()
    cache([block_of(8)])
    with monkeypatch.context() as patched:
        patched.setattr(executor.Native, "_add", _refusing)
        cache([block_of(6)])
    assert [c.facts()["executor"] for c in cache.captured] == ["native", "torchscript"]
    assert len(cache.arena.slabs()) == 1
    for n in (8, 6, 8, 6):
        poison(cache.arena)
        assert all(map(same_bytes, cache([block_of(n, 1)]), block(block_of(n, 1))))


def _refusing(*_: Any) -> str:
    from npucompose_replay.plan import UnsupportedStep

    raise UnsupportedStep("for a test")


def test_portable_and_native_recordings_do_not_share():
    """They would take turns in different ways."""
    x, arena = block_of(8), Arena()
    made = [CapturedGraph.capture(traced(block, x), [x], executor=e, arena=arena) for e in ("python", "native")]
    assert not {s.number for s in made[0].memory.slabs} & {s.number for s in made[1].memory.slabs}


# -- the end


def test_a_recording_that_is_replaced_gives_its_memory_back():
    cache = cached(capture_limit=2, when_full="replace")
    for n in (64, 8):
        cache([block_of(n)])
    with_large = nbytes(cache.arena.slabs())
    for n in (16, 24):
        cache([block_of(n)])
    assert nbytes(cache.arena.slabs()) < 0.3 * with_large
    for n in (16, 24):
        poison(cache.arena)
        assert all(map(same_bytes, cache([block_of(n, 2)]), block(block_of(n, 2))))
    cache.clear()
    assert cache.arena.slabs() == []


def test_a_handle_of_a_recording_that_was_replaced_stays_good():
    cache = cached(capture_limit=1, when_full="replace")
    cache([block_of(16)])
    replaced = cache.captured[0]
    cache([block_of(12)])
    assert len(cache.arena.slabs()) == 1
    for _ in range(3):
        poison(cache.arena)
        assert all(map(same_bytes, cache([block_of(12, 3)]), block(block_of(12, 3))))
        assert all(map(same_bytes, replaced.replay(block_of(16, 3)), block(block_of(16, 3))))


def test_the_report_can_tell_what_signatures_take_together():
    cache = cached()
    for n in SIZES:
        cache([block_of(n)])
    slabs = dict(pair for c in cache.captured for pair in c.facts()["slabs"])
    assert sum(slabs.values()) == nbytes(cache.arena.slabs())


@pytest.mark.parametrize("use", [lambda arena: arena.joined(None), lambda arena: arena.lay([])])
def test_who_joins_or_lays_waits_for_who_does(use: Any) -> None:
    """Graphs of one model may be captured on several threads."""
    arena, done = Arena(), threading.Event()
    with arena._lock:
        user = threading.Thread(target=lambda: (use(arena), done.set()))
        user.start()
        assert not done.wait(0.02)
    user.join()
    assert done.is_set()
