"""Memory that another stream still uses while its own stream may use it again, and how to keep it alive.

A captured graph of TorchAir runs generated Python that drops a tensor where the list mentions it last; the allocator
gives the block to the next kernel of the stream that it came from, whatever another stream still does with it.
`record_stream` would delay every such block to the end of the capture. A tensor that is mentioned once more, where its
own stream knows that the reader is done, lives until then and no longer. Blocks, not values, have lives: see
`graphs/dependence.py`, Note [Alias sets].
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterator

import torch
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Allocation, Dependence, allocations
from npucompose.graphs.effects import written_by
from npucompose.streams.timing import Timing

_Hazard = tuple[Allocation, list[fx.Node]]
"""Memory whose own stream may use it again while these kernels of other streams, in the graph's order, are not known to
be done with it."""


def keep_alive(graph: fx.Graph, needed: Dependence) -> None:
    """Mention each piece of memory that another stream uses before the kernel by which its own stream knows that done.

    before:  wait([record]);  neg = neg(abs)         after:  wait([record]);  check(exp);  neg = neg(abs)
    where the recorder read `exp`. Where its stream never learns it, the mention stands before the output. The mention
    is `aten._assert_tensor_metadata` without a claim: it starts no kernel, and no one may remove it. A tensor in a wait
    would not do: TorchAir replaces it by a record of its own.
    """
    timing = Timing.from_graph(graph, needed)
    place = {node: number for number, node in enumerate(graph.nodes)}
    kernels = sorted(needed.kernels, key=place.__getitem__)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    for memory, users in _hazards(graph, timing, needed):
        stream = timing.streams[memory.maker.name]
        knows = (
            kernel
            for kernel in kernels
            if timing.streams[kernel.name] == stream and all(timing.orders(user, kernel) for user in users)
        )
        with graph.inserting_before(next(knows, output)):
            _mention(graph, memory)


def _mention(graph: fx.Graph, memory: Allocation) -> None:
    holder = next((node for node in memory.holders if not isinstance(node.meta.get("val"), (list, tuple))), None)
    if holder is None:  # only a list of tensors holds it
        parts = memory.holders[0].meta["val"]
        number = next(i for i, part in enumerate(parts) if part.untyped_storage()._cdata == memory.storage)
        holder = graph.call_function(operator.getitem, (memory.holders[0], number))
        holder.meta["val"] = parts[number]
    graph.call_function(torch.ops.aten._assert_tensor_metadata.default, (holder,)).meta["val"] = None


def check_lifetimes(graph: fx.Graph, timing: Timing, needed: Dependence) -> None:
    """Raise PlanError("lifetime", …) for the first kernel whose memory may be used again too early."""
    for memory, (user, *_) in _hazards(graph, timing, needed):
        maker = memory.maker
        does = "written" if set(written_by(user)).intersection(memory.holders) else "read"
        raise PlanError(
            "lifetime",
            f"'{maker.name}' of stream '{timing.streams[maker.name]}' is {does} by '{user.name}' on stream "
            f"'{timing.streams[user.name]}', and its memory may be used again before that is done: the list "
            "mentions it no more.",
        )


def _hazards(graph: fx.Graph, timing: Timing, needed: Dependence) -> Iterator[_Hazard]:
    """Where the next kernel of its own stream after the last mention of some memory knows not of all its users."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    own: dict[str, list[fx.Node]] = {}
    for kernel in sorted(needed.kernels, key=place.__getitem__):
        own.setdefault(timing.streams[kernel.name], []).append(kernel)
    places = {stream: [place[kernel] for kernel in kernels] for stream, kernels in own.items()}
    for memory in allocations(graph, needed):
        stream = timing.streams[memory.maker.name]
        aside = [user for user in memory.touched_by if timing.streams[user.name] != stream]
        if not aside or memory.returned:
            continue
        at = bisect_right(places[stream], place[memory.mentioned])
        reuser = own[stream][at] if at < len(own[stream]) else None
        if reuser is not None and not all(timing.orders(user, reuser) for user in aside):
            yield memory, aside
