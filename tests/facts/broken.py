"""Planned graphs of which one fact is made false after they were planned, and what a run of them shows.

A fact is what the safety of a plan rests on: a wait, how long memory lives, which names lie in one piece of memory.
The witness (`races`, and `uncovered` of memory) shares no code with the checkers: it runs the graph, looks at addresses
and reads the order off scopes, records and waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from attrs import frozen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.effects import control, tensors_in
from npucompose.schema.capabilities import Capabilities
from npucompose.streams import apply
from tests.sample_graphs import CAN, aten, happens_before, some_inputs
from tests.streams.random_in_place import in_place_program, random_streams

EXAMPLES = pytest.mark.parametrize("examples", [4, pytest.param(150, marks=pytest.mark.slow)])
IN_PLACE = {aten.neg.default: aten.neg_.default, aten.add.Tensor: aten.add_.Tensor}
"""Operators that make memory of their own, and what writes their operand's instead."""


class Planned:
    """A graph with a plan in it, and `chance`, which decides what of it is broken."""

    def __init__(self, module: fx.GraphModule, needed: Dependence, chance: random.Random) -> None:
        self.module, self.chance = module, chance
        self.needed = needed
        """Of the graph before it was planned."""

    def __repr__(self) -> str:
        return f"\n{self.graph}\n"

    @property
    def graph(self) -> fx.Graph:
        return self.module.graph

    def controls(self, kind: str) -> list[fx.Node]:
        return [node for node in self.graph.nodes if control(node) == kind]


@st.composite
def planned(draw: st.DrawFn, can: Capabilities | None = CAN, most: int = 16) -> Planned:
    """Several readers, views, parts of tuples, writes through any of them; its kernels dealt out to 2 to 4 streams;
    without `can` on one."""
    seed = draw(st.integers(0, 1 << 32))
    module = in_place_program(seed, size=draw(st.integers(most // 2, most)))
    needed = Dependence.from_graph(module.graph)
    if can is not None:
        apply(module.graph, random_streams(module, seed, count=draw(st.integers(2, 4))), can)
    return Planned(module, needed, random.Random(f"break {seed}"))


def hold(check: Callable[[Planned], None], examples: int, can: Capabilities | None = CAN, most: int = 16) -> None:
    """`check` holds for so many drawn plans, the same ones every time."""
    limits(examples)(given(planned(can, most))(check))()


def limits(examples: int) -> settings:
    """So many examples, the same ones every time. Many are thrown away, because there is nothing in them to break."""
    unchecked = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture]
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=unchecked
    )


# Breaking one fact; each says whether there was one to break.


def without_a_wait(plan: Planned) -> bool:
    """One event is waited for by nobody any more."""
    waits = plan.controls("wait")
    if not waits:
        return False
    wait = plan.chance.choice(waits)
    records: list[Any] = list(wait.args[0])  # type: ignore[arg-type]
    records.pop(plan.chance.randrange(len(records)))
    wait.args = (records,)
    return True


def with_an_early_record(plan: Planned) -> bool:
    """One event is recorded before the kernel that it stands for."""
    for record in plan.chance.sample(records := plan.controls("record"), k=len(records)):
        place = record.prev
        while place.op != "placeholder" and control(place) is None:
            if place in plan.needed.kernels:
                place.prepend(record)
                return True
            place = place.prev
    return False


def with_a_shorter_life(plan: Planned) -> bool:
    """One mention that keeps memory alive is gone."""
    mentions = [n for n in plan.graph.nodes if n.target is aten._assert_tensor_metadata.default]
    if mentions:
        plan.graph.erase_node(plan.chance.choice(mentions))
    return bool(mentions)


def with_another_name(plan: Planned) -> bool:
    """One operator writes its operand's memory, where it made its own when the plan was drawn: one of those of which a
    run shows it."""
    made = [n for n in plan.graph.nodes if n.target in IN_PLACE and n.args[0].op != "placeholder"]
    for node in plan.chance.sample(made, k=min(len(made), 4)):
        kept, node.target = node.target, IN_PLACE[node.target]
        try:
            revalue(plan.graph)
            if any(races(plan.module)):
                return True
        except RuntimeError:
            pass  # torch refuses a write into an expanded view
        node.target = kept
        revalue(plan.graph)
    return False


def revalue(graph: fx.Graph) -> None:
    """The fake values of a graph whose operators were changed."""
    mode = next(n.meta["val"] for n in graph.nodes if n.op == "placeholder").fake_mode
    value = lambda node: node.meta.get("val")  # noqa: E731
    with mode:
        for node in graph.nodes:
            if node.op == "call_function" and control(node) is None:
                node.meta["val"] = node.target(*fx.map_arg(node.args, value), **fx.map_arg(node.kwargs, value))


# What a run shows.


@frozen
class _Touch:
    kernel: fx.Node
    memory: int
    places: frozenset[int]
    """Its bytes."""
    writes: bool

    def meets(self, other: _Touch) -> bool:
        same = self.memory == other.memory and (self.writes or other.writes)
        return same and not self.places.isdisjoint(other.places)


def is_shown(module: fx.GraphModule) -> bool:
    """Whether two kernels race, or an event stands for no kernel at all."""
    try:
        return any(races(module))
    except KeyError:
        return True


def races(module: fx.GraphModule) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Kernels that touch one byte, one of them writing, and that nothing orders."""
    before = happens_before(module.graph)
    touches = list(_touches(module, frozenset(before)))
    for number, then in enumerate(touches):
        for first in touches[:number]:
            if first.meets(then) and first.kernel not in (then.kernel, *before[then.kernel]):
                yield first.kernel, then.kernel


def _touches(module: fx.GraphModule, kernels: frozenset[fx.Node]) -> Iterator[_Touch]:
    """In the order of the list; every value is kept, so that no address is used twice."""
    given = iter(some_inputs(module))
    interpreter = fx.Interpreter(module, garbage_collect_values=False)
    for node in module.graph.nodes:
        if node.op == "output" or control(node) is not None:
            continue
        value = interpreter.env[node] = next(given) if node.op == "placeholder" else interpreter.run_node(node)
        if node not in kernels:
            continue
        taken = list(_operands(node, interpreter.env))
        known = {tensor.untyped_storage()._cdata for _, tensor in taken}
        made = [tensor for tensor in tensors_in([value]) if tensor.untyped_storage()._cdata not in known]
        if made or any(writes for writes, _ in taken):  # a reshape that copies nothing touches nothing
            yield from (_touch(node, tensor, writes) for writes, tensor in [*taken, *((True, t) for t in made)])


def _operands(node: fx.Node, env: dict[fx.Node, Any]) -> Iterator[tuple[bool, torch.Tensor]]:
    """(whether it is written, each tensor that an operator is given), by its schema."""
    for argument, declared in zip(node.args, node.target._schema.arguments, strict=False):  # type: ignore[union-attr]
        written = declared.alias_info is not None and declared.alias_info.is_write
        for source in fx.node.map_aggregate([argument], lambda a: env[a] if isinstance(a, fx.Node) else a):  # type: ignore[attr-defined]
            yield from ((written, tensor) for tensor in tensors_in([source]))


def _touch(kernel: fx.Node, tensor: torch.Tensor, writes: bool) -> _Touch:
    size, storage = tensor.element_size(), tensor.untyped_storage()
    items = torch.arange(storage.nbytes() // size).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    places = frozenset(item * size + byte for item in items.flatten().tolist() for byte in range(size))
    return _Touch(kernel, storage._cdata, places, writes)


def refused(check: Callable[[], None]) -> bool:
    try:
        check()
    except PlanError:
        return True
    return False
