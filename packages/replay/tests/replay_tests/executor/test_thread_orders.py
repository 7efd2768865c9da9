"""Random graphs on two threads: any order that streams and events allow gives eager's bits, in shared memory too."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pytest
import torch
from torch import fx

from npucompose.bits import same_bytes
from npucompose.schema.streams import Streams
from npucompose.streams import apply
from npucompose_replay.capture import recorder as capture
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.executor.portable import StraightLine
from npucompose_replay.memory.arena import Memory
from npucompose_replay.plan import Plan, Threads, Workers
from tests.sample_graphs import CAN, seeded_program

pytestmark = [
    pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here"),
    pytest.mark.usefixtures("plans_at_first_sight"),
]


TWO = Workers(count=2)
SOME_GRAPHS = pytest.mark.parametrize("graphs", [5, pytest.param(60, marks=pytest.mark.slow)])


def example_inputs(module: fx.GraphModule, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    count = sum(node.op == "placeholder" for node in module.graph.nodes)
    return [torch.randn(4, 4, generator=generator) for _ in range(count)]


def always_planned(seed: int, size: int) -> fx.GraphModule:
    module = seeded_program(seed, size)
    apply(module.graph, Streams(min_gain=0), CAN)
    module.recompile()
    return module


def bits_after(act: Callable[..., Any], inputs: Sequence[torch.Tensor], seed: int) -> list[Any]:
    """Results of `act` and its inputs afterwards, copied."""
    given = copy.deepcopy(list(inputs))
    torch.manual_seed(seed)
    with torch.no_grad():
        results = act(*given)
    listed = list(results) if isinstance(results, (tuple, list)) else [results]
    return [t.clone() if isinstance(t, torch.Tensor) else t for t in (*listed, *given)]


def same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        same_bytes(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
        for a, b in zip(ours, theirs, strict=True)
    )


def equal_on_two_threads(seed: int, size: int) -> bool:
    """Whether this random graph really had two threads; its bits must be those of the graph."""
    module = always_planned(seed, size)
    captured = CapturedGraph.capture(module, example_inputs(module, seed), workers=TWO)
    for round_ in range(3):
        inputs = example_inputs(module, seed + round_)
        assert same(bits_after(captured.replay, inputs, round_), bits_after(module, inputs, round_)), seed
    return captured.threads is not None


@pytest.mark.parametrize("graphs", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_graphs_with_views_and_writes_keep_their_bits_on_two_threads(graphs: int) -> None:
    assert sum(equal_on_two_threads(seed, size=12) for seed in range(graphs)) > 3 * graphs // 4


@pytest.mark.slow
def test_large_graphs_with_views_and_writes_keep_their_bits_on_two_threads() -> None:
    assert all(equal_on_two_threads(seed, size=80) for seed in range(1000, 1100))


def random_order(threads: Threads, chance: random.Random) -> list[int]:
    """A linear extension of what the threads keep, by chance."""
    left = [list(turns) for turns in threads.turns()]
    done: set[int] = set()
    order: list[int] = []
    while any(left):
        free = [turns for turns in left if turns and done.issuperset(threads.waits[turns[0]])]
        turns = chance.choice(free)
        for _ in range(chance.randint(1, len(turns))):
            if not done.issuperset(threads.waits[turns[0]]):
                break
            order.append(turns.pop(0))
            done.add(order[-1])
    return order


def shuffled(
    plan: Plan, threads: Threads, memory_for: Threads | None, inputs: Sequence[Any], seed: int
) -> Sequence[Any]:
    """What the plan's steps leave in its output buffers when they run in a random order that `threads` allow."""
    memory = Memory.from_plan(plan, threads=memory_for)
    steps = [plan.steps[i] for i in random_order(threads, random.Random(seed))]
    for root in plan.roots:
        if root.kind == "input":
            torch.empty(0).set_(memory.storages[id(root)], 0, (4, 4), (4, 1)).copy_(inputs[root.index])
    torch.manual_seed(0)
    with torch.inference_mode():
        try:
            StraightLine(steps, memory.slots, memory.tensors).run()
        except UnboundLocalError:
            return ["a register was read before it was filled"]
    return [bytes_at(memory, buffer.members[-1]) for buffer in memory.outputs]


def bytes_at(memory: Memory, root: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(memory.storages[id(root)]).clone()  # type: ignore[call-overload]


def recorded(seed: int) -> tuple[Plan, Threads, list[torch.Tensor]]:
    module = always_planned(seed, size=14)
    inputs = example_inputs(module, seed)
    plan = capture.record(module, inputs)
    return plan, Threads.from_plan(plan, 2), inputs


def differs(plan: Plan, threads: Threads, memory_for: Threads | None, inputs: Sequence[Any]) -> bool:
    before = copy.deepcopy(list(inputs))
    expected = shuffled(plan, Threads.from_plan(plan, 1), None, before, 0)
    return any(not same(shuffled(plan, threads, memory_for, before, seed), expected) for seed in range(1, 9))


@SOME_GRAPHS
def test_any_order_that_the_threads_allow_gives_the_same_bits(graphs: int) -> None:
    for seed in range(graphs):
        plan, threads, inputs = recorded(seed)
        assert not differs(plan, threads, threads, inputs), seed


@SOME_GRAPHS
def test_an_event_that_is_left_out_shows(graphs: int) -> None:
    found = 0
    for seed in range(graphs):
        plan, threads, inputs = recorded(seed)
        waiting = [step for step, waits in enumerate(threads.waits) if waits]
        if waiting:
            waits = [[] if step == waiting[-1] else firsts for step, firsts in enumerate(threads.waits)]
            found += differs(plan, attrs.evolve(threads, waits=waits), threads, inputs)
    assert found >= graphs // 6


def test_memory_that_is_planned_for_one_thread_would_not_do_for_two() -> None:
    assert any(differs(plan, threads, None, inputs) for plan, threads, inputs in map(recorded, range(60)))


def reachable(threads: Threads) -> list[set[int]]:
    """For each step everything that is done when it starts, by closure and not by clocks."""
    before: list[set[int]] = []
    last: Mapping[int, int] = {}
    for step, thread in enumerate(threads.thread):
        firsts = [*threads.waits[step], *([last[thread]] if thread in last else [])]
        before.append({done for first in firsts for done in (first, *before[first])})
        last = {**last, thread: step}
    return before


def pairs_in_one_place(plan: Plan, memory: Memory) -> Iterator[tuple[list[int], list[int]]]:
    """The steps of every two values of the pool that share memory."""
    uses: dict[int, list[int]] = {}
    for position, step in enumerate(plan.steps):
        for operand, _ in step.touched():
            uses.setdefault(id(plan.root_of(operand)), []).append(position)
    roots = [root for root in plan.roots if root.kind in ("pool", "output") and root.nbytes]
    begin = {id(root): memory.storages[id(root)].data_ptr() for root in roots}
    for number, a in enumerate(roots):
        for b in roots[number + 1 :]:
            if begin[id(a)] < begin[id(b)] + b.nbytes and begin[id(b)] < begin[id(a)] + a.nbytes:
                yield uses[id(a)], uses[id(b)]


@SOME_GRAPHS
def test_two_values_share_memory_only_when_one_is_done_before_the_other_begins(graphs: int) -> None:
    shared = 0
    for seed in range(graphs):
        plan, threads, _ = recorded(seed)
        before = reachable(threads)
        for ours, theirs in pairs_in_one_place(plan, Memory.from_plan(plan, threads=threads)):
            shared += 1
            # The step in which one ends may be the one that writes the other in its place.
            forth = all(a in before[b] or a == b for a in ours for b in theirs)
            back = all(b in before[a] or a == b for a in ours for b in theirs)
            assert forth or back, seed
    assert shared > 100 * graphs // 60
