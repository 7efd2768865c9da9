"""How other systems put kernels on streams, re-stated by us from what is published of them; no code of theirs.

A system that takes as many streams as it likes is mapped on so many twice: stream number modulo their count, and each
stream where the fewest kernels are; the better of both counts. A rival whose plan knows no time is given the graph's
own order, as it would issue it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence

from benchmarks.streams.before import Shape, alternatives, fewest_syncs
from benchmarks.streams.plans import MODEL, Planner, Ranked
from npucompose.streams import dag
from npucompose.streams.strategies.ge import cube_and_vector, load_balance, main_stream
from tests.streams import dags
from tests.streams.named import NamedGraph


def before(graph: NamedGraph, streams: int) -> Sequence[Ranked]:
    return alternatives(graph.then, graph.work, streams, MODEL)


def nimble(graph: NamedGraph, streams: int) -> Sequence[Ranked]:
    """W. Kwon et al., "Nimble: lightweight and parallel GPU task scheduling for deep learning", NeurIPS 2020: the
    fewest synchronisations at full concurrency, by matching."""
    chains = fewest_syncs(Shape.from_work(graph.then, [item.us for item in graph.work]))
    number = {index: chain for chain, members in enumerate(chains) for index in members}
    own = [number[index] for index in range(len(number))]
    return [(mapped, range(len(own))) for mapped in _mapped(own, streams)]


def opara(graph: NamedGraph, streams: int) -> Sequence[Ranked]:
    """A. Chen et al., "Opara: exploiting operator parallelism for expediting DNN inference on GPUs", 2023
    (arXiv 2312.10351): a kernel follows the first of those it reads whose first reader it is, else it opens a stream;
    issued in turn from those that compute and those that move memory, the one that asks for least of the device first.
    """
    own: list[int] = []
    for index, sources in enumerate(dag.predecessors(graph.then)):
        leader = next((source for source in sources if min(graph.then[source]) == index), None)
        own.append(max(own, default=-1) + 1 if leader is None else own[leader])
    order = _issued_by_demand(graph)
    return [(mapped, order) for mapped in _mapped(own, streams)]


def _issued_by_demand(graph: NamedGraph) -> list[int]:
    missing = dag.missing_predecessors(graph.then)
    demand = [item.cube / MODEL.cube + item.vector / MODEL.vector for item in graph.work]
    ready: tuple[list[tuple[float, int]], list[tuple[float, int]]] = [], []  # on cube cores; on vector cores
    order: list[int] = []

    def add(index: int) -> None:
        heapq.heappush(ready[0 if graph.work[index].cube else 1], (demand[index], index))

    for index in range(len(graph.then)):
        if not missing[index]:
            add(index)
    turn = 0
    while any(ready):
        index = heapq.heappop(ready[turn] or ready[1 - turn])[1]
        turn = 1 - turn
        order.append(index)
        for target in graph.then[index]:
            missing[target] -= 1
            if not missing[target]:
                add(target)
    return order


def tensorrt_llm(graph: NamedGraph, streams: int) -> Sequence[Ranked]:
    """TensorRT-LLM's streams under torch.compile (`torch_compile_config.max_num_streams`, NVIDIA/TensorRT-LLM pull
    request 5847): the kernel farthest from the end next, a matrix product ten times as long as anything else; on the
    first stream that is free by the time its inputs are there, else on the one that is free first."""
    weights = [10.0 if item.cube else 1.0 for item in graph.work]
    far = dag.longest_paths(weights, graph.then)
    before_it = dag.predecessors(graph.then)
    missing = [len(sources) for sources in before_it]
    ready = [(weights[index] - far[index], index) for index, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    free, end, found, order = [0.0] * streams, [0.0] * len(far), [0] * len(far), list[int]()
    while ready:
        index = heapq.heappop(ready)[1]
        start = max([end[source] for source in before_it[index]], default=0.0)
        stream = next((one for one in range(streams) if free[one] <= start), None)
        stream = min(range(streams), key=free.__getitem__) if stream is None else stream
        found[index] = stream
        free[stream] = end[index] = max(start, free[stream]) + weights[index]
        order.append(index)
        for target in graph.then[index]:
            missing[target] -= 1
            if not missing[target]:
                heapq.heappush(ready, (weights[target] - far[target], target))
    return [(found, order)]


def torchsched(graph: NamedGraph, streams: int) -> Sequence[Ranked]:
    """Apex' graph compiler for several streams (NVIDIA/apex pull request 1886): the longest path, counted in kernels,
    on the first stream, everything else on the others in turn."""
    count = len(graph.then)
    if streams == 1:
        return [([0] * count, range(count))]
    depth = dag.longest_paths([1.0] * count, graph.then)
    at = max(range(count), key=lambda index: depth[index], default=None)
    critical: set[int] = set()
    while at is not None:
        critical.add(at)
        at = max(graph.then[at], key=lambda index: depth[index], default=None)
    aside = deque(range(1, streams))
    found = [0] * count
    for index in range(count):
        if index not in critical:
            found[index] = aside[0]
            aside.rotate(-1)
    return [(found, range(count))]


def ge_load_balance(graph: NamedGraph, streams: int) -> Sequence[Ranked]:
    return [(load_balance(graph.then, streams), range(len(graph.then)))]


def ge_main_stream(graph: NamedGraph, streams: int) -> Sequence[Ranked]:
    return [(main_stream(graph.then, streams), range(len(graph.then)))]


def ge_cv(graph: NamedGraph, streams: int) -> Sequence[Ranked]:
    return [(cube_and_vector(graph.then, graph.work), range(len(graph.then)))]


def _mapped(own: Sequence[int], streams: int) -> list[list[int]]:
    """As many streams as `own` names on so many."""
    count = max(own, default=-1) + 1
    sizes, place = [0] * streams, [0] * count
    for stream in range(count):
        place[stream] = min(range(streams), key=sizes.__getitem__)
        sizes[place[stream]] += own.count(stream)
    return [[stream % streams for stream in own], [place[stream] for stream in own]]


RIVALS: Mapping[str, Planner] = {
    "Nimble": nimble,
    "Opara": opara,
    "TensorRT-LLM": tensorrt_llm,
    "torchsched": torchsched,
    "LoadBalance": ge_load_balance,
    "MainStream": ge_main_stream,
    "cv": ge_cv,
}


def events_as_ge(graph: NamedGraph, order: Sequence[int], streams: Sequence[int]) -> int:
    """How many events GE itself would insert: one for each edge between streams, less those behind another of the same
    sender on the receiver's stream, less those before another of the same receiver on the sender's (GE's
    docs/en/design/features/stream_allocator.md, event optimisation)."""
    place = {index: position for position, index in enumerate(order)}
    first: dict[tuple[int, int], int] = {}
    for sender, receiver in sorted(dags.pairs(graph.then)):
        if streams[sender] != streams[receiver]:
            key = sender, streams[receiver]
            first[key] = min(first.get(key, receiver), receiver, key=place.__getitem__)
    return len({(receiver, streams[sender]) for (sender, _), receiver in first.items()})
