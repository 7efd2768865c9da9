"""The search for races alone: a wait or an alias is made false, and one of its orders gives other bits.

It sees what can be seen in values: memory lives as long as its names there, so of lives it knows nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import assume
from torch import fx

from npucompose.graphs.effects import control
from npucompose.streams.execute import find_races
from tests.facts.broken import EXAMPLES, Planned, hold, races, refused, with_another_name, without_a_wait
from tests.sample_graphs import bits, happens_before, some_inputs

ORDERS = 200


def differs(plan: Planned) -> bool:
    """Whether a kernel that is put before one that it raced with gives the graph other values. The sign of a NaN is
    none: a product of negated matrices has every other bit of the product."""
    before = happens_before(plan.graph)
    listed = ran(plan.module, list(before))
    for first, then in races(plan.module):
        early = [kernel for kernel in before if kernel is then or kernel in before[then]]
        if first not in early and ran(plan.module, [*early, *(k for k in before if k not in early)]) != listed:
            return True
    return False


def ran(module: fx.GraphModule, order: Sequence[fx.Node]) -> object:
    """What comes out, and the inputs afterwards, when the kernels run in this order and all else when it is needed."""
    inputs = some_inputs(module)
    given = iter(inputs)
    interpreter = fx.Interpreter(module, garbage_collect_values=False)
    env = interpreter.env
    env.update({node: next(given) for node in module.graph.nodes if node.op == "placeholder"})
    kernels = frozenset(order)

    def get(node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if source not in env:
                if source in kernels:
                    raise LookupError(source.name)
                get(source)
        if node not in env:
            env[node] = interpreter.run_node(node)

    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    torch.manual_seed(0)
    try:
        for kernel in order:
            get(kernel)
        for source in output.all_input_nodes:
            get(source)
    except LookupError:
        return "read before it was made"
    return bits(map(_one_nan, (env[source] for source in output.all_input_nodes))), bits(map(_one_nan, inputs))


def _one_nan(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.masked_fill(value.isnan(), torch.nan)
    return value


@EXAMPLES
@pytest.mark.parametrize("breaks", [without_a_wait, with_another_name])
def test_what_changes_bits_in_some_order_is_found(breaks: Callable[[Planned], bool], examples: int) -> None:
    seen: Counter[bool] = Counter()

    def check(plan: Planned) -> None:
        find_races(plan.graph, orders=3)
        assume(breaks(plan))
        seen[shown := differs(plan)] += 1
        assert not shown or refused(lambda: find_races(plan.graph, ORDERS))

    hold(check, 2 * examples, most=10)
    assert seen[True], seen


def test_the_witness_runs_everything_but_scopes_and_events() -> None:
    def check(plan: Planned) -> None:
        kernels = list(happens_before(plan.graph))
        assert not any(control(kernel) for kernel in kernels)
        assert ran(plan.module, kernels) == ran(plan.module, kernels)

    hold(check, 2)
