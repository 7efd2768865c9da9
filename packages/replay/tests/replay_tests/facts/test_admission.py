"""The gate of a replay alone: one fact about its inputs that the recording rests on is made false, and it refuses.

Three inputs of different sizes lie anywhere in one buffer, some of them written: apart, overlapping, one inside of
another, and at addresses of any alignment. What is taken has eager's bits, in all of the buffer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from npucompose.errors import SignatureError
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.operands import sharing
from tests.facts.broken import EXAMPLES, limits
from tests.graph_helpers import same, traced

SHAPES = ((2,), (2, 4), (5, 4))
ROOM = 40
EXECUTORS = pytest.mark.parametrize(
    "executor",
    [
        pytest.param(
            "native", marks=pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here")
        ),
        "python",
    ],
)


@frozen
class Placed:
    """Where the inputs of one call lie in a buffer, in elements; `strides` and `dtype` as they were at capture."""

    at: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...] = ((1,), (4, 1), (4, 1))
    number: float = 0.0
    short: bool = False
    """The buffer ends where it should not: before the end of one of them."""

    def inputs(self, buffer: torch.Tensor) -> list[Any]:
        made = [torch.as_strided(buffer, *form) for form in zip(SHAPES, self.strides, self.at, strict=True)]
        if self.short:
            buffer.untyped_storage().resize_(4 * (max(self.bytes_of(i)[-1] // 4 for i in range(3))))
        return [*made, self.number]

    def bytes_of(self, index: int) -> range:
        reach = sum((n - 1) * step for n, step in zip(SHAPES[index], self.strides[index], strict=True)) + 1
        return range(4 * self.at[index], 4 * (self.at[index] + reach))

    def shared(self) -> set[int]:
        """Inputs that have a byte in common with another."""
        spans = [set(self.bytes_of(index)) for index in range(3)]
        return {i for i in range(3) for j in range(3) if i != j and spans[i] & spans[j]}

    def meets(self, written: frozenset[int]) -> bool:
        """Whether a written input has a byte in common with another."""
        spans = [set(self.bytes_of(index)) for index in range(3)]
        return any(spans[i] & spans[j] for i in written for j in range(3) if i != j)


def step(written: frozenset[int]) -> Callable[..., tuple[torch.Tensor, ...]]:
    def of(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, number: float) -> tuple[torch.Tensor, ...]:
        given = (a, b, c)
        read = a.sum() + b.sum() + c.sum()
        for index in sorted(written):
            given[index].add_(read)
        return tuple(tensor * 2 + number for tensor in given)

    return of


@cache
def captured(written: frozenset[int], executor: Any, static: frozenset[int] = frozenset()) -> CapturedGraph:
    first = Placed(at=(0, 8, 16)).inputs(torch.randn(ROOM))
    return CapturedGraph.capture(traced(step(written), *first), first, executor=executor, static=static)


def in_turn(order: Sequence[int]) -> Placed:
    """One behind the other, an element between two."""
    at, free = {}, 1
    for index in order:
        at[index] = free
        free += math.prod(SHAPES[index]) + 1
    return Placed(at=tuple(at[index] for index in range(3)))


WRITTEN = st.sets(st.sampled_from(range(3)), min_size=1).map(frozenset)
ANYWHERE = st.builds(Placed, at=st.tuples(*(st.integers(0, ROOM - 20) for _ in SHAPES)))
APART = st.permutations((0, 1, 2)).map(in_turn)


def hold(check: Callable[..., None], examples: int, **strategies: st.SearchStrategy[Any]) -> None:
    limits(examples)(given(**strategies)(check))()


def called(written: frozenset[int], executor: Any, placed: Placed) -> bool:
    """Whether the call was taken; its bits are eager's then, and nothing was touched where it was not."""
    buffer = torch.randn(ROOM)
    theirs = buffer.clone()
    before = buffer.clone()
    inputs = placed.inputs(buffer)
    with torch.no_grad():
        try:
            got = captured(written, executor).replay(*inputs)
        except SignatureError:
            if not placed.short:
                assert same([buffer], [before])
            return False
        assert same(got, step(written)(*placed.inputs(theirs)))
    assert same([buffer], [theirs])
    return True


@EXAMPLES
@EXECUTORS
def test_a_written_input_that_overlaps_another_is_refused_and_no_other_place_is(executor: str, examples: int) -> None:
    seen: Counter[bool] = Counter()

    def check(written: frozenset[int], placed: Placed) -> None:
        taken = called(written, executor, placed)
        seen[taken] += 1
        assert taken is not placed.meets(written)

    hold(check, 20 * examples, written=WRITTEN, placed=ANYWHERE | APART)
    assert min(seen[True], seen[False]) > examples, seen


def in_other_strides(placed: Placed) -> Placed:
    return evolve(placed, strides=(*placed.strides[:1], (1, 2), *placed.strides[2:]))


def of_another_number(placed: Placed) -> Placed:
    return evolve(placed, number=-0.0)


def cut_short(placed: Placed) -> Placed:
    return evolve(placed, short=True)


@EXAMPLES
@EXECUTORS
@pytest.mark.parametrize("breaks", [in_other_strides, of_another_number, cut_short])
def test_another_layout_number_or_too_little_memory_is_refused(
    breaks: Callable[[Placed], Placed], executor: str, examples: int
) -> None:
    def check(written: frozenset[int], placed: Placed) -> None:
        assert called(written, executor, placed)
        assert not called(written, executor, breaks(placed))

    hold(check, examples, written=WRITTEN, placed=APART)


@EXAMPLES
@EXECUTORS
def test_a_static_input_at_another_address_is_refused(executor: Any, examples: int) -> None:
    def check(written: frozenset[int], static: int, moved: int) -> None:
        buffer = torch.randn(2 * ROOM)
        inputs = Placed(at=(1, 4, 13)).inputs(buffer)
        graph = traced(step(written), *inputs)
        recording = CapturedGraph.capture(graph, inputs, executor=executor, static=frozenset({static}))
        with torch.no_grad():
            recording.replay(*inputs)
            moving = [*inputs]
            moving[moved] = inputs[moved].clone()
            if moved == static:
                with pytest.raises(SignatureError):
                    recording.replay(*moving)
            else:
                recording.replay(*moving)

    hold(check, examples, written=WRITTEN, static=st.integers(0, 2), moved=st.integers(0, 2))


@EXAMPLES
def test_inputs_that_share_memory_at_capture_are_all_found(examples: int) -> None:
    def check(placed: Placed) -> None:
        assert sharing(placed.inputs(torch.zeros(ROOM))) == placed.shared()

    hold(check, 20 * examples, placed=ANYWHERE | APART)
