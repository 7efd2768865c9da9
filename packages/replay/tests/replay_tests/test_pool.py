"""Blocks that are live at the same time never touch; what is dead is never read again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.bits import same_bytes
from npucompose.errors import CaptureError
from npucompose.placement import ALIGNMENT, MemoryBlock, place
from npucompose_replay.capture.recorder import record
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor.portable import StraightLine
from npucompose_replay.memory.arena import Memory
from npucompose_replay.memory.results import outputs_of
from npucompose_replay.plan import Plan, PlanSlot
from replay_tests.random_programs import programs
from tests.graph_helpers import traced
from tests.searches import examples


@st.composite
def blocks(draw: Any) -> list[MemoryBlock]:
    made = []
    for _ in range(draw(st.integers(0, 30))):
        first = draw(st.integers(0, 20))
        made.append(MemoryBlock(nbytes=draw(st.integers(0, 2000)), first=first, last=first + draw(st.integers(0, 6))))
    return made


@given(blocks())
def test_no_two_live_blocks_overlap(made: list[MemoryBlock]):
    placement = place(made)
    spans = [(offset, offset + block.nbytes, block) for offset, block in zip(placement.offsets, made, strict=True)]
    for i, (low, high, block) in enumerate(spans):
        assert low % ALIGNMENT == 0
        assert high <= placement.pool_bytes
        for other_low, other_high, other in spans[:i]:
            live_together = block.first <= other.last and other.first <= block.last
            assert not (live_together and low < other_high and other_low < high)
    assert placement.live_bytes <= placement.pool_bytes <= placement.unplanned_bytes


def test_blocks_that_follow_one_another_share_their_place():
    chain = [MemoryBlock(nbytes=100, first=i, last=i + 1) for i in range(10)]
    assert place(chain).pool_bytes == 2 * 128
    assert place(chain).unplanned_bytes == 10 * 128


def test_a_block_takes_the_smallest_gap_that_fits():
    made = [
        MemoryBlock(nbytes=640, first=0, last=0),
        MemoryBlock(nbytes=576, first=0, last=9),
        MemoryBlock(nbytes=512, first=0, last=0),
        MemoryBlock(nbytes=448, first=0, last=9),
        MemoryBlock(nbytes=384, first=5, last=5),
    ]
    assert place(made).offsets[4] == 640 + 576


@settings(deadline=None, max_examples=examples(60))
@given(programs())
def test_a_replay_that_poisons_every_dead_block_gives_the_same_bits(program: Any):
    inputs = program.inputs(0)
    plan = record(traced(program, *inputs), inputs)
    memory = Memory.from_plan(plan)
    _run_poisoned(plan, memory)
    got: list[Any] = []
    for output in outputs_of(plan, memory, clone=False):
        got.append(output.make(inputs, got))
    expected = program(*program.inputs(0))
    assert all(same_bytes(a, b) for a, b in zip(got, expected, strict=True))


def _run_poisoned(plan: Plan, memory: Memory) -> None:
    """Run step by step; before each step all of the arena is 0xFF but the blocks that are live."""
    pooled = [root for root in plan.roots if root.kind == "pool"]
    runs = StraightLine(plan.steps, memory.slots, memory.tensors)
    lines = [line.strip() for line in runs.source.splitlines()[1:] if line.strip() != "pass"]
    starts = [i for i, line in enumerate(lines) if not line.endswith("= None")]
    assert len(starts) == len(plan.steps)
    with torch.inference_mode():
        contents = {id(root): torch.empty(0, dtype=torch.uint8).set_(memory.storages[id(root)]) for root in pooled}  # type: ignore[call-overload]
        for position, begin in enumerate(starts):
            live = [(contents[id(r)], contents[id(r)].clone()) for r in pooled if r.first < position <= r.last]
            for slab in memory.slabs:
                slab.tensor.fill_(0xFF)
            for place_, content in live:
                place_.copy_(content)
            for place_, content in live:
                assert torch.equal(place_, content), "two live blocks overlap"
            end = starts[position + 1] if position + 1 < len(starts) else len(lines)
            for line in lines[begin:end]:
                exec(line, runs._names)


def test_a_pool_that_does_not_fit_into_memory_is_refused_in_words():
    x = torch.randn(4, 4)
    plan = record(traced(lambda x: ((x @ x) @ x,), x), [x])
    (pooled,) = [root for root in plan.roots if root.kind == "pool"]
    pooled.nbytes = 1 << 60
    with pytest.raises(CaptureError, match="no memory for a buffer of 1152921504606847040 bytes"):
        Memory.from_plan(plan)


def test_the_last_of_a_chain_returns_to_where_its_predecessor_lay():
    """Four values, each read by the next round of a chain of four kernels: two blocks and one of the largest size."""

    def rounds(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = list(values)
        for step in range(24):
            which = step % len(kept)
            kept[which] = torch.relu(kept[which] @ kept[which] + 1) * 0.5
        return tuple(value.clone() for value in kept)

    inputs = [torch.randn(n, n) for n in (8, 16, 32)]
    facts = CapturedGraph.capture(traced(rounds, *inputs), inputs).facts()
    assert facts["pool_bytes"] == facts["live_bytes"]


def test_slots_of_one_plan_are_shared_by_layout():
    x = torch.randn(4, 4)
    captured = CapturedGraph.capture(traced(lambda x: (x.t() @ x.t() + x.t(),), x), [x])
    slots = [operand for step in captured.plan.steps for operand in step.operands if isinstance(operand, PlanSlot)]
    assert len({id(s) for s in slots if s.root.kind == "input"}) == 1
