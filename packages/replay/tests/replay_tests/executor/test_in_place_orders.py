"""Whatever two steps on several threads do to one byte is ordered, by what threads wait for and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import fx

from npucompose.schema.streams import Streams
from npucompose.streams import apply
from npucompose_replay import plan as plan_module
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.plan import Plan, PlanSlot, Register, Threads, Workers
from tests.sample_graphs import CAN, bits, some_inputs
from tests.streams.random_in_place import in_place_program, random_streams

pytestmark = pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here")

Piece = tuple[int, int, bool]
"""(first address, the one after the last byte, written)."""


def planned(seed: int) -> fx.GraphModule:
    module = in_place_program(seed)
    apply(module.graph, random_streams(module, seed), CAN)
    module.recompile()
    return module


def touched(captured: CapturedGraph) -> list[list[Piece]]:
    """What each step touches, as addresses in the memory that was laid out; a register's memory is its root."""
    lies = {id(slot): tensor for slot, tensor in zip(captured.memory.slots, captured.memory.tensors, strict=True)}
    pieces: list[list[Piece]] = []
    for step in captured.plan.steps:
        own: list[Piece] = []
        for operand, writes in step.touched():
            if isinstance(operand, PlanSlot) and id(operand) in lies:
                low, high = operand.layout.span()
                base = lies[id(operand)].untyped_storage().data_ptr()
                own.append((base + low, base + high, writes))
            elif isinstance(operand, (PlanSlot, Register)):
                root = id(captured.plan.root_of(operand))
                own.append((-root, -root + 1, writes))
        pieces.append(own)
    return pieces


def done_before(threads: Threads) -> list[set[int]]:
    """For each step all that are certainly done when it starts: its thread's earlier ones, and whom it waits for."""
    last: dict[int, int] = {}
    before: list[set[int]] = []
    for step, thread in enumerate(threads.thread):
        direct = {*threads.waits[step], *([last[thread]] if thread in last else [])}
        before.append(direct.union(*(before[first] for first in direct)))
        last[thread] = step
    return before


def races(captured: CapturedGraph) -> Iterator[tuple[int, int]]:
    threads = captured.threads
    assert threads is not None
    before, pieces = done_before(threads), touched(captured)
    for then, own in enumerate(pieces):
        for first in range(then):
            if first not in before[then] and any(
                a[0] < b[1] and b[0] < a[1] and (a[2] or b[2]) for a in pieces[first] for b in own
            ):
                yield first, then


def captured_of(seed: int) -> CapturedGraph | None:
    module = planned(seed)
    captured = CapturedGraph.capture(module, some_inputs(module), workers=Workers(count=3, spin_us=0))
    return captured if captured.threads is not None else None


@pytest.mark.parametrize("graphs", [6, pytest.param(1500, marks=pytest.mark.slow)])
def test_no_two_steps_race_for_a_byte(graphs: int) -> None:
    several = 0
    for seed in range(graphs):
        captured = captured_of(seed)
        if captured is not None:
            several += 1
            assert not list(races(captured)), seed
            assert captured.threads is not None
            assert [set(known) for known in _known(captured.threads)] == done_before(captured.threads)
    assert several > graphs / 2


def _known(threads: Threads) -> list[list[int]]:
    steps = range(len(threads.thread))
    return [[first for first in range(then) if threads.orders(first, then)] for then in steps]


@pytest.mark.parametrize("graphs", [4, pytest.param(300, marks=pytest.mark.slow)])
def test_streams_of_graphs_that_write_in_place_give_the_bits_of_one_stream(graphs: int) -> None:
    for seed in range(graphs):
        module, alone = planned(seed), in_place_program(seed)
        given, expected_inputs = some_inputs(module, seed=3), some_inputs(module, seed=3)
        expected = list(alone(*expected_inputs))
        captured = CapturedGraph.capture(module, some_inputs(module), workers=Workers(count=3, spin_us=0))
        got = captured.replay(*given)
        assert (bits(got), bits(given)) == (bits(expected), bits(expected_inputs)), seed


def test_an_order_that_forgets_what_is_written_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: only data that are read count, as if `relu_` made a value of its own."""

    def only_first_writes(plan: Plan, sharing: frozenset[int]) -> Iterator[tuple[int, int]]:
        made: dict[int, int] = {}
        for position, step in enumerate(plan.steps):
            for operand, writes in step.touched():
                root = id(plan.root_of(operand))
                if root in made and not writes:
                    yield made[root], position
                elif writes:
                    made.setdefault(root, position)

    monkeypatch.setattr(plan_module, "_hazards", only_first_writes)
    found = [captured for seed in range(10) if (captured := captured_of(seed)) is not None]
    assert any(list(races(captured)) for captured in found)


def test_streams_that_are_left_alone_stay_one_thread() -> None:
    module = in_place_program(0)
    apply(module.graph, Streams(kind="none"), CAN)
    assert CapturedGraph.capture(module, some_inputs(module)).threads is None
