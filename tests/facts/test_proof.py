"""The proof of passes alone: a pass that makes one fact false is told so.

Its facts are those of one list: which of two kernels comes first, which names lie in one piece of memory, and that an
input may lie in other strides. Streams and how long memory lives are none of them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume
from torch import fx

from npucompose.graphs import Dependence
from npucompose.passes.base import Promise
from npucompose.passes.proof import copied, prove
from tests.facts.broken import EXAMPLES, IN_PLACE, Planned, hold
from tests.sample_graphs import aten, bits, some_inputs

ANOTHER_NAME = {**IN_PLACE, aten.clone.default: aten.alias.default}


def in_another_order(plan: Planned) -> bool:
    """A kernel is moved to before one that it had to follow because of their memory: no name says so."""
    edges, place = (
        Dependence.from_graph(plan.graph).edges,
        {node: number for number, node in enumerate(plan.graph.nodes)},
    )
    expected = left_behind(plan.module, some_inputs(plan.module))
    for edge in plan.chance.sample(edges, k=len(edges)):
        if edge.why != "data" and all(place[source] < place[edge.first] for source in edge.then.all_input_nodes):
            after = edge.then.prev
            edge.first.prepend(edge.then)
            if left_behind(plan.module, some_inputs(plan.module)) != expected:
                return True
            after.append(edge.then)
    return False


def with_another_name(plan: Planned) -> bool:
    """An operator writes its operand's memory, or hands it on, where it made its own."""
    made = [n for n in plan.graph.nodes if n.target in ANOTHER_NAME]
    expected = left_behind(plan.module, some_inputs(plan.module))
    for node in plan.chance.sample(made, k=len(made)):
        kept, node.target = node.target, ANOTHER_NAME[node.target]
        with contextlib.suppress(RuntimeError):  # torch refuses a write into an expanded view
            if left_behind(plan.module, some_inputs(plan.module)) != expected:
                return True
        node.target = kept
    return False


def as_if_contiguous(plan: Planned) -> bool:
    """A kernel reads an input by strides that are those of today's inputs."""
    reading = (aten.clone.default, aten.mm.default)
    readers = [n for n in plan.graph.nodes if n.target in reading and n.args[0].op == "placeholder"]
    if not readers:
        return False
    node = plan.chance.choice(readers)
    with plan.graph.inserting_before(node):
        read = plan.graph.call_function(aten.as_strided.default, (node.args[0], [4, 4], [4, 1]))
    node.args = (read, *node.args[1:])
    return True


def left_behind(module: fx.GraphModule, inputs: list[torch.Tensor]) -> object:
    """Bits of the results and of the inputs afterwards, and which of them are one memory."""
    with torch.no_grad():
        results = fx.Interpreter(module).run(*inputs)
    every = [*results, *inputs]
    at = [tensor.untyped_storage().data_ptr() for tensor in every]
    return bits(results), bits(inputs), {(i, j) for i in range(len(at)) for j in range(i) if at[i] == at[j]}


def in_other_strides(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.t().contiguous().t() for tensor in tensors]


@EXAMPLES
@pytest.mark.parametrize("breaks", [in_another_order, with_another_name, as_if_contiguous])
def test_a_pass_that_makes_a_fact_false_does_not_keep_its_promise(
    breaks: Callable[[Planned], bool], examples: int
) -> None:
    seen: Counter[bool] = Counter()
    kind = in_other_strides if breaks is as_if_contiguous else list

    def check(plan: Planned) -> None:
        before = copied(plan.graph)
        assert prove(before, copied(plan.graph), Promise(exact=True)).broken is None
        assume(breaks(plan))
        plan.graph.lint()
        after = copied(plan.graph)
        shown = left_behind(before, kind(some_inputs(before))) != left_behind(after, kind(some_inputs(before)))
        seen[shown] += 1
        broken = prove(before, after, Promise(exact=True)).broken
        assert not shown or broken is not None

    hold(check, examples, None, most=10)
    assert seen[True] >= examples / 3, seen


@EXAMPLES
def test_a_result_that_becomes_another_name_of_one_is_told(examples: int) -> None:
    def check(plan: Planned) -> None:
        output = next(node for node in reversed(plan.graph.nodes) if node.op == "output")
        (results,) = output.args
        with plan.graph.inserting_before(output):
            copy = plan.graph.call_function(aten.clone.default, (results[0],))
        output.args = ((*results, copy),)
        before = copied(plan.graph)
        copy.target = aten.alias.default
        assert "share memory" in (prove(before, copied(plan.graph), Promise(exact=True)).broken or "")

    hold(check, examples, None, most=6)
