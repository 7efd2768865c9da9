"""The small parts of a recording: the rest of a graph run as it is, memory, forks, undone draws, who watches."""

from __future__ import annotations

import pickle
import random
import threading
from typing import Any

import pytest
import torch
from torch import fx, nn

from npucompose.errors import CaptureError
from npucompose.placement import MemoryBlock, aligned, place
from npucompose_replay.capture.kernels import Undo
from npucompose_replay.capture.recorder import go_on
from npucompose_replay.gate import Refused, refused
from npucompose_replay.interface import SeenCall, is_watched, note, watchers, watching
from npucompose_replay.memory import arena
from npucompose_replay.memory.arena import Arena, Turns
from tests.graph_helpers import built, same

aten = torch.ops.aten

# -- the rest of a graph


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.weight = nn.Parameter(torch.full((2,), 3.0))
        self.same = nn.Identity()


def whole() -> tuple[fx.GraphModule, dict[str, fx.Node]]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    weight = graph.get_attr("inner.weight")
    made = graph.call_function(torch.add, (x, weight), {"alpha": 2})
    doubled = graph.call_module("same", (made,))
    clipped = graph.call_method("clamp", (doubled,), {"max": 8.0})
    graph.output((clipped, [weight], 3))
    module = fx.GraphModule(Whole(), graph)
    return module, {node.name: node for node in module.graph.nodes}


def test_a_graph_goes_on_from_any_node_with_functions_methods_modules_and_attributes() -> None:
    module, nodes = whole()
    x = torch.tensor([1.0, 4.0])
    clipped, (weight,), three = go_on(module, nodes["inner_weight"], {nodes["x"]: x})
    assert clipped.tolist() == [7.0, 8.0]
    assert weight is module.inner.weight  # type: ignore[union-attr]
    assert three == 3
    values = {nodes["x"]: x, nodes["inner_weight"]: torch.zeros(2)}
    assert go_on(module, nodes["add"], dict(values))[0].tolist() == [1.0, 4.0]
    given = go_on(module, nodes["add"], dict(values), torch.full((2,), 9.0))
    assert given[0].tolist() == [8.0, 8.0]
    assert go_on(module, nodes["add"], dict(values), torch.zeros(2))[0].tolist() == [0.0, 0.0]


def test_a_graph_that_returns_one_value_gives_a_list_of_it() -> None:
    module = built(lambda graph, xs: graph.call_function(torch.neg, (xs[0],)), 1)
    x, neg, _ = module.graph.nodes
    assert [t.tolist() for t in go_on(module, neg, {x: torch.ones(2)})] == [[-1.0, -1.0]]


# -- a refusal


def test_a_refusal_goes_through_a_process_as_what_it_says() -> None:
    module = built(lambda graph, xs: (graph.call_function(aten.nonzero.default, (xs[0],)),), 1)
    refusal = refused(next(n for n in module.graph.nodes if n.op == "call_function"), "it may not.")
    assert isinstance(refusal, Refused)
    assert str(refusal) == "cannot capture aten.nonzero.default (node 'nonzero_default'): it may not."
    assert (refusal.reason, refusal.index, refusal.outputs) == ("it may not.", -1, None)
    again = pickle.loads(pickle.dumps(refusal))
    assert type(again) is CaptureError
    assert str(again) == str(refusal)


# -- memory


def test_memory_that_is_not_there_is_told_in_words_and_other_errors_are_left_alone() -> None:
    with pytest.raises(CaptureError, match=r"no memory for a buffer of 1152921504606846976 bytes\. Use smaller"):
        arena.zeros(1 << 60)
    with pytest.raises(RuntimeError, match="something else"), arena.memory_errors_in_words():
        raise RuntimeError("something else")
    assert arena.zeros(3).tolist() == [0, 0, 0]


def test_a_storage_lies_over_memory_that_somebody_else_keeps() -> None:
    owner = torch.arange(8, dtype=torch.uint8)
    storage = arena.over(owner.data_ptr() + 2, 4)
    assert (storage.data_ptr(), list(storage)) == (owner.data_ptr() + 2, [2, 3, 4, 5])
    assert arena.over(owner.data_ptr(), 0).nbytes() == 0
    assert arena.over(owner.data_ptr(), 0).data_ptr() == 0


def test_turns_are_mine_while_i_have_them_and_of_nobody_else() -> None:
    turns, seen = Turns(), list[bool]()
    assert turns.is_mine() is False
    with turns:
        assert turns.is_mine() is True
        thread = threading.Thread(target=lambda: seen.append(turns.is_mine()))
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="within its own replay"), turns:
            pass
        assert turns.is_mine() is True
    assert turns.is_mine() is False
    assert seen == [False]
    with turns:
        pass


def test_an_arena_is_that_of_its_first_users_turns_and_others_have_one_beside() -> None:
    arena = Arena()
    native: Any = FakeExtension()
    other: Any = FakeExtension()
    assert arena.is_mine() is False
    assert arena.joined(native) is arena
    assert isinstance(arena.turns, FakeTurns)
    assert arena.joined(native) is arena
    beside = arena.joined(None)
    assert beside is not arena
    assert isinstance(beside.turns, Turns)
    assert arena.joined(None) is beside
    third = arena.joined(other)
    assert third not in (arena, beside)
    assert arena.joined(other) is third
    with beside.turns:
        assert arena.is_mine() is True
        assert third.is_mine() is False
    assert arena.is_mine() is False
    arena.turns.mine = True
    assert arena.is_mine() is True


class FakeTurns:
    mine = False

    def is_mine(self) -> bool:
        return self.mine


class FakeExtension:
    Turns = FakeTurns


@pytest.mark.parametrize("scale", [1, 40, 100])
def test_blocks_of_many_steps_do_not_overlap_either(scale: int) -> None:
    """Blocks are looked up by windows of steps: some live in one, some in a few, some in many."""
    draw = random.Random(scale)
    for _ in range(20):
        made = []
        for _ in range(30):
            first = draw.randrange(20 * scale)
            made.append(MemoryBlock(nbytes=draw.randrange(2000), first=first, last=first + draw.randrange(6 * scale)))
        found = place(made)
        spans = [(at, at + aligned(b.nbytes), b) for at, b in zip(found.offsets, made, strict=True) if b.nbytes]
        for i, (low, high, block) in enumerate(spans):
            for other_low, other_high, other in spans[:i]:
                if block.first <= other.last and other.first <= block.last:
                    assert high <= other_low or other_high <= low
        live = max(
            sum(aligned(b.nbytes) for b in made if b.first <= step <= b.last) for step in {b.first for b in made}
        )
        assert found.live_bytes == live <= found.pool_bytes
        assert found.pool_bytes == max(high for _, high, _ in spans)
        assert found.pool_bytes < 1.5 * live
        assert found.unplanned_bytes == sum(aligned(b.nbytes) for b in made)


def test_what_the_blocks_took_before_they_were_put_together_is_told() -> None:
    assert place([MemoryBlock(nbytes=1, first=0, last=0)], [1, 65, 0]).unplanned_bytes == 64 + 128
    assert place([], []).unplanned_bytes == place([]).pool_bytes == 0


# -- forks


def test_locks_of_other_threads_are_open_in_a_child_and_ones_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, mine = arena.fork_safe_lock(), arena.fork_safe_lock()
    thread = threading.Thread(target=theirs.acquire)
    thread.start()
    thread.join()
    before = arena.forks_so_far()
    monkeypatch.setattr(arena, "_locks", {theirs, mine})
    try:
        with mine:
            arena._in_child()
            assert mine._is_owned()
            assert theirs.acquire(blocking=False)
            theirs.release()
        assert arena.forks_so_far() == before + 1
    finally:
        arena._forks = before


# -- what is undone


def test_a_generator_draws_the_same_numbers_after_an_undo() -> None:
    generator, undo = torch.Generator().manual_seed(3), Undo()
    undo.about_to_draw(generator)
    first = torch.rand(3, generator=generator)
    undo.about_to_draw(generator)
    torch.rand(3, generator=generator)
    undo.restore()
    assert same([torch.rand(3, generator=generator)], [first])
    undo.restore()  # nothing is left to undo
    assert not same([torch.rand(3, generator=generator)], [first])


@pytest.mark.parametrize("kept", ["named", "whole"])
def test_only_named_elements_are_kept_where_they_are_few(kept: str) -> None:
    x = torch.zeros(16, 4) if kept == "named" else torch.zeros(15, 4)
    undo = Undo()
    undo.about_to_write(x, aten.index_fill_.int_Scalar, (x, 0, torch.tensor([1, 3]), 7.0))
    x.fill_(7.0)
    undo.restore()
    assert x.eq(0).sum().item() == (8 if kept == "named" else 60)


def test_another_place_than_the_first_argument_is_kept_as_a_whole() -> None:
    x, y = torch.zeros(64, 4), torch.zeros(64, 4)
    undo = Undo()
    undo.about_to_write(y, aten.index_fill_.int_Scalar, (x, 0, torch.tensor([1]), 7.0))
    undo.about_to_write(x, aten.index_fill_.int_Scalar, (x,))
    for t in (x, y):
        t.fill_(7.0)
    undo.restore()
    assert not x.any()
    assert not y.any()


def test_lazily_signed_places_are_kept_as_a_whole() -> None:
    for lazy in (torch.zeros(64, dtype=torch.complex64).conj(), torch.zeros(64)._neg_view()):
        undo = Undo()
        undo.about_to_write(lazy, aten.index_fill_.int_Scalar, (lazy, 0, torch.tensor([1]), 7.0))
        lazy.fill_(7.0)
        undo.restore()
        assert not lazy.any()


# -- who watches


def test_calls_are_told_to_those_who_watch_on_their_thread() -> None:
    call = SeenCall(None, [], [], 0)
    assert not is_watched()
    with watching() as outer:
        note(call)
        with watching() as inner:
            assert is_watched()
            assert len(watchers) == 2
            elsewhere: list[bool] = []
            thread = threading.Thread(target=lambda: (elsewhere.append(is_watched()), note(SeenCall(None, [], [], 0))))
            thread.start()
            thread.join()
            assert elsewhere == [False]
            note(call)
    assert (outer, inner) == ([call, call], [call])
    assert not watchers
