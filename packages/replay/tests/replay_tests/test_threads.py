"""Which thread runs which step, who waits for whom, and what is known to be done; what the first call returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from npucompose.errors import CaptureError
from npucompose.schema.streams import DEFAULT_STREAM
from npucompose_replay.capture.recorder import record, record_call
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.memory.placement import Lifetimes
from npucompose_replay.operands import layout_of
from npucompose_replay.plan import Plan, PlanSlot, Register, Root, Step, Threads, dying_registers
from tests.graph_helpers import built, same, traced

aten = torch.ops.aten
LIBRARY = torch.library.Library("npucompose_threads", "FRAGMENT")
LIBRARY.define("count(Tensor x) -> int")
LIBRARY.define("plus(Tensor x) -> Tensor")
LIBRARY.impl("plus", lambda x: x + 1, "CPU")
LIBRARY.impl("count", lambda x: int(x.sum()), "CPU")


def root(kind: Any = "pool", tensor: torch.Tensor | None = None, index: int = -1) -> Root:
    return Root(kind=kind, nbytes=64, tensor=tensor, index=index)


def slot(of: Root) -> PlanSlot:
    return PlanSlot(of, layout_of(torch.ones(2)))


def plan_of(*steps: Step, roots: tuple[Root, ...] = ()) -> Plan:
    registers = {operand.number: root("fresh") for s in steps for operand in s.made if isinstance(operand, Register)}
    return Plan(
        steps=steps, outputs=(), roots=roots, pinned=frozenset(), from_zero=frozenset(), register_roots=registers,
        views_resolved=0, constants=0,
    )  # fmt: skip


def copying(source: Root, target: Root, stream: str = DEFAULT_STREAM, after: tuple[Step, ...] = ()) -> Step:
    return Step(op=aten.neg.out, args=(slot(source), slot(target)), stream=stream, after=after)


def crossing() -> tuple[Plan, tuple[Root, ...]]:
    """Step 1 runs beside step 2, and step 3 needs both."""
    given, p, q, r, out = root("input", torch.ones(2), 0), *(root() for _ in range(4))
    steps = (
        copying(given, p),
        copying(p, q, "1"),
        copying(p, r),
        Step(op=aten.add.out, args=(slot(q), slot(r), 1, slot(out))),
    )
    return plan_of(*steps, roots=(given, p, q, r, out)), (p, q, r, out)


def test_a_step_waits_for_what_it_reads_on_another_thread_and_knows_what_is_done() -> None:
    plan, _ = crossing()
    threads = Threads.from_plan(plan, 2)
    assert (threads.count, list(threads.thread)) == (2, [0, 1, 0, 0])
    assert [list(waits) for waits in threads.waits] == [[], [0], [], [1]]
    assert [tuple(known) for known in threads.known] == [(-1, -1), (0, -1), (0, -1), (2, 1)]
    assert threads.events == 2
    assert threads.turns() == [[0, 2, 3], [1]]
    order = {(a, b) for a in range(4) for b in range(4) if a != b and threads.orders(a, b)}
    assert order == {(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)}
    alone = Threads.from_plan(plan, 1)
    assert (alone.count, alone.events, alone.turns()) == (1, 0, [[0, 1, 2, 3]])


def test_memory_is_free_for_another_when_its_last_reader_is_known_to_be_done() -> None:
    plan, (p, q, r, out) = crossing()
    lives = Lifetimes.from_plan(plan, Threads.from_plan(plan, 2))
    interferes = lives.interferes([[p], [q], [r], [out]])
    assert interferes is not None
    assert [[bool(meet) for meet in interferes(block)] for block in range(4)] == [
        [True, True, True, False],
        [True, True, True, True],
        [True, True, True, True],
        [False, True, True, True],
    ]
    assert [lives.is_last(p, step) for step in range(4)] == [False, False, False, True]
    assert lives.is_last(q, 3)
    assert not lives.is_last(q, 1)
    in_a_row = Lifetimes.from_plan(plan, None)
    assert in_a_row.interferes([[p]]) is None
    assert in_a_row.is_last(p, p.last)
    assert not in_a_row.is_last(p, p.last + 1)


@pytest.mark.parametrize(
    ("kinds", "sharing", "waits"),
    [
        (("input", "input"), {0, 1}, [[], [0]]),
        (("input", "input"), set(), [[], [0]]),
        (("attribute", "input"), set(), [[], [0]]),
        (("pool", "pool"), set(), [[], []]),
    ],
)
def test_memory_of_the_caller_that_overlaps_is_one_piece(kinds: Any, sharing: set[int], waits: Any) -> None:
    memory = torch.ones(8)
    a, b = (root(kind, memory[i : i + 4], i) for i, kind in enumerate(kinds))
    plan = plan_of(copying(root(), a), copying(b, root(), "1"), roots=(a, b))
    assert [list(found) for found in Threads.from_plan(plan, 2, frozenset(sharing)).waits] == waits


def test_memory_of_the_caller_that_lies_apart_is_not() -> None:
    memory = torch.ones(8)
    a, b = root("input", memory[:4], 0), root("input", memory[4:], 1)
    plan = plan_of(copying(root(), a), copying(b, root(), "1"), roots=(a, b))
    assert [list(found) for found in Threads.from_plan(plan, 2).waits] == [[], []]
    assert [list(found) for found in Threads.from_plan(plan, 2, frozenset({0, 1})).waits] == [[], [0]]


def test_what_is_overwritten_waits_for_all_who_read_it_and_what_the_graph_asks_for_is_kept() -> None:
    p, q, r, s = (root() for _ in range(4))
    first, second = copying(p, q), copying(p, r, "1")
    writes = copying(s, p)
    asked = copying(s, root(), "1", after=(first,))
    threads = Threads.from_plan(plan_of(first, second, writes, asked), 2)
    assert [list(found) for found in threads.waits] == [[], [], [1], [0]]


def test_a_register_goes_with_its_last_reader_where_that_is_known_to_be_the_last() -> None:
    a, b, c = Register(0), Register(1), Register(2)

    def makes(register: Register, stream: str = DEFAULT_STREAM) -> Step:
        return Step(op=aten.ones.default, args=([2],), results=(register,), stream=stream)

    def reads(register: Register, stream: str = DEFAULT_STREAM) -> Step:
        return Step(op=aten.neg.out, args=(register, slot(root())), stream=stream)

    plan = plan_of(makes(a), reads(a), makes(b), reads(b, "1"), reads(b), makes(c), reads(c, "1"))
    dying, lasting = dying_registers(plan.steps, Threads.from_plan(plan, 2))
    assert dying == [[], [0], [], [], [], [], [2]]
    assert lasting == [1]


# -- the run that is recorded


@pytest.mark.parametrize("inference", [False, True])
def test_results_of_the_first_call_are_such_as_the_caller_wants(inference: bool) -> None:
    x = torch.ones(2)
    module = traced(lambda x: (x + 1, torch.sort(x)[0]), x)
    with torch.inference_mode(inference):
        _, results = record_call(module, [x])
    assert [result.is_inference() for result in results] == [inference] * 2
    assert same(results, [x + 1, x])


def test_a_number_out_of_data_is_refused_and_one_out_of_a_form_is_not() -> None:
    def counted(graph: fx.Graph, xs: list[fx.Node]) -> Any:
        return (graph.call_function(torch.ops.npucompose_threads.count.default, (xs[0],)),)

    with pytest.raises(CaptureError, match="turns data into a Python value"):
        record(built(counted, 1), [torch.ones(2)])

    def sized(graph: fx.Graph, xs: list[fx.Node]) -> Any:
        return (graph.call_function(aten.sym_size.int, (xs[0], 0)), graph.call_function(aten.numel.default, (xs[0],)))

    assert [output.value for output in record(built(sized, 1), [torch.ones(2, 3)]).outputs] == [2, 6]  # type: ignore[union-attr]


@pytest.mark.parametrize(("size", "stride"), [([2, 2], [1, 1]), ([2, 2], [2, 1]), ([3, 2], [0, 1])])
def test_a_result_whose_elements_overlap_is_recorded_as_any_other(size: list[int], stride: list[int]) -> None:
    def strided(size: list[int], stride: list[int]) -> Any:
        def make(graph: fx.Graph, xs: list[fx.Node]) -> Any:
            made = graph.call_function(torch.ops.npucompose_threads.plus.default, (xs[0],))
            return (graph.call_function(aten.as_strided.default, (made, size, stride)),)

        return built(make, 1)

    captured = CapturedGraph.capture(strided(size, stride), [torch.ones(4)])
    x = torch.arange(4.0)
    (got,) = captured.replay(x)
    assert torch.equal(got, (x + 1).as_strided(size, stride))
    assert got.stride() == tuple(stride)
