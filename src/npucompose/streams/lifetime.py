"""Memory that another stream still reads while its own stream may use it again, and how to keep it alive.

A captured graph of TorchAir runs generated Python that drops a tensor where the list mentions it last; the allocator
gives the block to the next kernel of the stream that it came from, whatever another stream still does with it.
`record_stream` would delay every such block to the end of the capture. A tensor that is mentioned once more, where its
own stream knows that the reader is done, lives until then and no longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.effects import written_by
from npucompose.streams.timing import Timing


def keep_alive(graph: fx.Graph, needed: Dependence) -> None:
    """Mention each tensor that another stream reads before the kernel by which its own stream knows the reader done.

    before:  wait([record]);  neg = neg(abs)         after:  wait([record]);  check(exp);  neg = neg(abs)
    where the recorder read `exp`. Where its stream never learns it, the mention stands before the output. The mention
    is `aten._assert_tensor_metadata` without a claim: it starts no kernel, and no one may remove it. A tensor in a wait
    would not do: TorchAir replaces it by a record of its own.
    """
    timing = Timing.of(graph, needed)
    place = {node: number for number, node in enumerate(graph.nodes)}
    kernels = sorted(needed.kernels, key=place.__getitem__)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    for maker, readers in _hazards(graph, timing, needed):
        stream = timing.streams[maker.name]
        after = max(place[reader] for reader in readers)
        knows = (
            kernel
            for kernel in kernels
            if place[kernel] > after
            and timing.streams[kernel.name] == stream
            and all(timing.orders(reader, kernel) for reader in readers)
        )
        value = next(source for source in readers[0].all_input_nodes if maker in needed.origins.get(source, ()))
        with graph.inserting_before(next(knows, output)):
            graph.call_function(torch.ops.aten._assert_tensor_metadata.default, (value,)).meta["val"] = None


def check_lifetimes(graph: fx.Graph, timing: Timing, needed: Dependence) -> None:
    """Raise PlanError("lifetime", …) for the first kernel whose memory may be used again too early."""
    for maker, readers in _hazards(graph, timing, needed):
        raise PlanError(
            "lifetime",
            f"'{maker.name}' of stream '{timing.streams[maker.name]}' is read by '{readers[0].name}' on stream "
            f"'{timing.streams[readers[0].name]}', and its memory may be used again before that is done: the list "
            "mentions it no more.",
        )


def _hazards(graph: fx.Graph, timing: Timing, needed: Dependence) -> Iterator[tuple[fx.Node, list[fx.Node]]]:
    """(kernel, its readers on other streams) where its stream's next kernel after the last mention knows not of all."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    mentioned, readers, kept = _uses(graph, needed, place)
    own: dict[str, list[fx.Node]] = {}
    for kernel in sorted(needed.kernels, key=place.__getitem__):
        own.setdefault(timing.streams[kernel.name], []).append(kernel)
    for maker, others in readers.items():
        stream = timing.streams[maker.name]
        aside = [reader for reader in others if timing.streams[reader.name] != stream]
        if not aside or maker in kept or written_by(maker):
            continue
        reuser = next((kernel for kernel in own[stream] if place[kernel] > mentioned[maker]), None)
        if reuser is not None and not all(timing.orders(reader, reuser) for reader in aside):
            yield maker, aside


def _uses(
    graph: fx.Graph, needed: Dependence, place: Mapping[fx.Node, int]
) -> tuple[dict[fx.Node, int], dict[fx.Node, list[fx.Node]], set[fx.Node]]:
    """Where each kernel's result is mentioned last, which kernels read it, and which results the graph returns."""
    mentioned: dict[fx.Node, int] = {}
    readers: dict[fx.Node, list[fx.Node]] = {}
    kept: set[fx.Node] = set()
    kernels = frozenset(needed.kernels)
    for node in graph.nodes:
        for source in node.all_input_nodes:
            for maker in needed.origins.get(source, ()):
                mentioned[maker] = place[node]
                if node in kernels:
                    readers.setdefault(maker, []).append(node)
                elif node.op == "output":
                    kept.add(maker)
    return mentioned, readers, kept
