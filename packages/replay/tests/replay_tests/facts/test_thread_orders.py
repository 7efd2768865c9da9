"""What threads of a recording wait for, and where its memory lies, alone: one wait less, one life cut short, and two
steps race for memory. The witness reads addresses of the memory that was laid out, and what each step touches there.
"""

from __future__ import annotations

import random
from collections import Counter

import attrs
import pytest
import torch
from attrs import frozen
from hypothesis import assume
from torch import fx

from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.memory import arena as arena_module
from npucompose_replay.memory.arena import Memory
from npucompose_replay.memory.placement import Lifetimes
from npucompose_replay.plan import Plan, Threads, Workers
from replay_tests.executor.test_in_place_orders import done_before, races
from tests.facts.broken import EXAMPLES, Planned, hold
from tests.sample_graphs import some_inputs

pytestmark = pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here")


@frozen
class Recording:
    """What the witness asks of a recording."""

    plan: Plan
    memory: Memory
    threads: Threads


def recorded(plan: Planned) -> Recording:
    plan.module.recompile()
    captured = CapturedGraph.capture(plan.module, some_inputs(plan.module), workers=Workers(count=3, spin_us=0))
    assume(captured.threads is not None)
    assert captured.threads is not None
    return Recording(captured.plan, captured.memory, captured.threads)


def for_one_value(made: Recording, graph: fx.Graph) -> bool:
    """Whether two steps that nothing orders touch one value, be it in other bytes, and one of them writes.

    What a reshape gives is the value that it reads, though a recording may find a copy: a graph does not know.
    """
    before = done_before(made.threads)
    touched = [[(id(made.plan.root_of(part)), writes) for part, writes in step.touched()] for step in made.plan.steps]
    reshapes = {node.name for node in graph.find_nodes(op="call_function", target=torch.ops.aten.reshape.default)}
    values: dict[int, int] = {}
    for step, roots in zip(made.plan.steps, touched, strict=True):
        read = next((values.get(root, root) for root, writes in roots if not writes), None)
        if step.name in reshapes and read is not None:
            values |= {root: read for root, writes in roots if writes}
    touched = [[(values.get(root, root), writes) for root, writes in roots] for roots in touched]
    return any(
        first not in before[then]
        and any(a[0] == b[0] and (a[1] or b[1]) for a in touched[first] for b in touched[then])
        for then in range(len(touched))
        for first in range(then)
    )


@EXAMPLES
def test_every_wait_keeps_two_steps_from_racing_for_memory(examples: int) -> None:
    def check(plan: Planned) -> None:
        made = recorded(plan)
        assert not list(races(made))  # type: ignore[arg-type]
        for step, firsts in enumerate(made.threads.waits):
            for first in firsts:
                left = [f for f in firsts if f != first]
                waits = [left if then == step else others for then, others in enumerate(made.threads.waits)]
                broken = attrs.evolve(made, threads=attrs.evolve(made.threads, waits=waits))
                assert any(races(broken)) or for_one_value(broken, plan.module.graph), (first, step)  # type: ignore[arg-type]

    hold(check, 3 * examples, most=20)


@EXAMPLES
def test_memory_that_is_given_away_before_its_last_reader_is_done_shows(
    examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[bool] = Counter()

    def check(plan: Planned) -> None:
        made = recorded(plan)
        found = False
        for chance in range(8):
            with monkeypatch.context() as patch:
                patch.setattr(arena_module, "Lifetimes", _Shorter(random.Random(f"{plan.chance.random()} {chance}")))
                broken = attrs.evolve(made, memory=Memory.from_plan(made.plan, threads=made.threads))
            found = bool(list(races(broken)))  # type: ignore[arg-type]
            if found:
                break
        seen[found] += 1

    hold(check, examples, most=20)
    assert seen[True] >= examples / 3, seen


class _Shorter:
    """`Lifetimes`, but of a few values the last steps that touch them are forgotten."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def from_plan(self, plan: Plan, threads: Threads | None) -> Lifetimes:
        lives = Lifetimes.from_plan(plan, threads)
        several = [root for root, steps in lives.uses.items() if len(steps) > 1]
        cut = self.chance.sample(several, k=min(3, len(several)))
        uses = {root: steps[:1] if root in cut else steps for root, steps in lives.uses.items()}
        return attrs.evolve(lives, uses=uses)
