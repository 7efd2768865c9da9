"""Two ranks of gloo in one process, a thread each; and random programs that both of them run."""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st
from torch import distributed as dist
from torch import fx
from torch.distributed import _functional_collectives

from tests.sample_graphs import Program, aten

assert _functional_collectives  # defines the operators

T = TypeVar("T")
RANKS = (0, 1)
_NUMBERS = itertools.count()


def on_both(work: Callable[[int], T]) -> list[T]:
    """`work(rank)` on both ranks at the same time; the error of the first that has one."""
    with ThreadPoolExecutor(len(RANKS)) as threads:
        return [future.result() for future in [threads.submit(work, rank) for rank in RANKS]]


_GONE: deque[Sequence[dist.ProcessGroup]] = deque(maxlen=8)
"""Groups that nobody uses any more. Gloo ends the process now and then where a rank is destroyed at once after its last
collective, while the other one's threads still read its answer."""


@contextmanager
def two_ranks(seconds: float = 30.0) -> Iterator[Sequence[str]]:
    """The name by which each of two ranks knows their process group; a collective fails after so many seconds."""
    store, number = dist.HashStore(), next(_NUMBERS)

    def connected(rank: int) -> dist.ProcessGroup:
        group = dist.ProcessGroup(store, rank, len(RANKS))
        backend = dist.ProcessGroupGloo(store, rank, len(RANKS), timedelta(seconds=seconds))
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
        group._set_group_name(f"tests {number}, rank {rank}")
        return group

    groups = on_both(connected)
    for group in groups:
        torch._C._distributed_c10d._register_process_group(group.group_name, group)
    try:
        yield [group.group_name for group in groups]
    finally:
        for group in groups:
            torch._C._distributed_c10d._unregister_process_group(group.group_name)
        _GONE.append(groups)


Steps = list[tuple[str, int, int]]
"""(what, number of one value, number of another); numbers count modulo what there is."""
COMPUTED = ("add", "mm", "tanh", "write")
LAUNCHED = ("all_reduce", "all_reduce_", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "coalesced")
STEPS = st.lists(
    st.tuples(st.sampled_from((*COMPUTED, *LAUNCHED, "wait")), st.integers(0, 9), st.integers(0, 9)),
    min_size=4,
    max_size=16,
)


def program(steps: Steps, group: str) -> fx.GraphModule:
    """What a rank runs, on 4 x 4 matrices with two inputs; what was launched is waited for in the end."""
    made = Program(inputs=2)
    values, flying = list(made.values), list[fx.Node]()
    for what, first, second in steps:
        a, b = values[first % len(values)], values[second % len(values)]
        if what in LAUNCHED:
            flying += _launched(made, what, a, b, group)
        elif what == "wait" and flying:
            values.append(_landed(made, flying.pop(first % len(flying))))
        elif what == "write":
            values.append(made.call(aten.add_.Tensor, made.call(aten.neg.default, a), b))
        elif what in COMPUTED:
            values.append(_computed(made, what, a, b))
    values += [_landed(made, node) for node in flying]
    return made.finish(values[-3:])


def _computed(made: Program, what: str, a: fx.Node, b: fx.Node) -> fx.Node:
    if what == "tanh":
        return made.call(aten.tanh.default, a)
    return made.call(aten.tanh.default, made.call(aten.mm.default if what == "mm" else aten.add.Tensor, a, b))


def _launched(made: Program, what: str, a: fx.Node, b: fx.Node, group: str) -> list[fx.Node]:
    ops: Any = torch.ops._c10d_functional
    if what == "all_reduce":
        return [made.call(ops.all_reduce.default, a, "sum", group)]
    if what == "all_reduce_":
        return [made.call(ops.all_reduce_.default, made.call(aten.neg.default, a), "max", group)]
    if what == "all_gather":
        return [made.call(ops.all_gather_into_tensor.default, a, 2, group)]
    if what == "reduce_scatter":
        return [made.call(ops.reduce_scatter_tensor.default, made.call(aten.cat.default, [a, b]), "sum", 2, group)]
    if what == "all_to_all":
        return [made.call(ops.all_to_all_single.default, a, [2, 2], [2, 2], group)]
    if what == "broadcast":
        return [made.call(ops.broadcast.default, a, 1, group)]
    both = made.call(ops.all_reduce_coalesced.default, [a, b], "sum", group)
    return [made.call(operator.getitem, both, number) for number in (0, 1)]


def _landed(made: Program, node: fx.Node) -> fx.Node:
    done = made.call(torch.ops._c10d_functional.wait_tensor.default, node)
    if done.meta["val"].shape[0] == 4:
        return done
    halves = [made.call(aten.slice.Tensor, done, 0, begin, begin + 4) for begin in (0, 4)]
    return made.call(aten.sub.Tensor, *halves)


def inputs_of(rank: int, seed: int) -> list[torch.Tensor]:
    """Other numbers on each rank."""
    generator = torch.Generator().manual_seed(2 * seed + rank)
    return [torch.randn(4, 4, generator=generator) for _ in range(2)]
