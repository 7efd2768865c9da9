"""What a device and a mode put up with: streams, events, operators, kernels that want all cores, reuse of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.effects import is_collective, written_by
from npucompose.graphs.scopes import NAMESPACES, control
from npucompose.schema.capabilities import Capabilities
from npucompose.streams.timing import Timing

GANGS = (
    "npu_moe_distribute_dispatch",
    "npu_moe_distribute_combine",
    "npu_mm_all_reduce_base",
    "npu_all_gather_base_mm",
)
"""Kernels that communicate from inside: all cores or none (TorchAir's document on core limits, "Schem Mode=1")."""
_TAGGED = ("tagged_event_record", "tagged_event_wait", "tagged_event_on_stream", "record_tagged_stream")


def check_operators(graph: fx.Graph, can: Capabilities) -> None:
    """Tagged events exist in captured graphs only; scopes must be those of the mode's package."""
    for node in graph.nodes:
        target = node.target
        name = str(getattr(target, "__name__", target)).partition(".")[0]
        if name in _TAGGED and not can.explicit_events:
            raise PlanError(
                "mode", f"'{node.name}': {name} has no meaning in mode={can.mode}, whose compiler syncs data by itself."
            )
        if control(node) in ("scope_enter", "scope_exit") and _space(node) != can.scope_namespace:
            raise PlanError(
                "mode",
                f"'{node.name}' is of torch.ops.{_space(node)}; mode={can.mode} reads scopes of "
                f"torch.ops.{can.scope_namespace}.",
            )


def _space(node: fx.Node) -> str:
    return next((space for space in NAMESPACES if str(node.target).startswith(f"{space}.")), "")


def check_budget(timing: Timing, can: Capabilities) -> None:
    used = set(timing.streams.values())
    if len(used) > can.max_streams:
        raise PlanError(
            "too_many_streams",
            f"The graph uses {len(used)} streams ({', '.join(sorted(used))}); target={can.target} mode={can.mode} has "
            f"{can.max_streams}.",
        )
    if can.max_events is not None and len(timing.events) > can.max_events:
        last = timing.events[can.max_events]
        raise PlanError(
            "too_many_events",
            f"The graph has {len(timing.events)} events; target={can.target} mode={can.mode} has {can.max_events}. The "
            f"first beyond is recorded after '{last.recorder}' for '{last.waiter}'.",
        )


def check_gangs(timing: Timing, needed: Dependence, can: Capabilities) -> None:
    """Kernels that start with all their cores or not at all must not be free to run at once beyond what there is.

    Without a limit of its own each takes every vector core, so any two that no event orders may starve one another.
    """
    gangs = [kernel for kernel in needed.kernels if _is_gang(kernel)]
    for place, first in enumerate(gangs):
        for then in gangs[place + 1 :]:
            if not timing.orders(first, then) and not timing.orders(then, first):
                raise PlanError(
                    "gang",
                    f"'{first.name}' on stream '{timing.streams[first.name]}' and '{then.name}' on stream "
                    f"'{timing.streams[then.name]}' each take all {can.device_model.vector} vector cores at once and "
                    "no event orders them: they can starve each other for ever.",
                )


def _is_gang(kernel: fx.Node) -> bool:
    packet = getattr(getattr(kernel.target, "overloadpacket", None), "__name__", "")
    return is_collective(kernel) or packet.startswith(GANGS)


def check_lifetimes(graph: fx.Graph, timing: Timing, needed: Dependence) -> None:
    """Memory goes back to its stream where the list names it last; what that stream starts next may write over it."""
    for hazard in lifetime_hazards(graph, timing, needed):
        made, reader, reuser = hazard
        raise PlanError(
            "lifetime",
            f"'{made.name}' of stream '{timing.streams[made.name]}' is read by '{reader.name}' on stream "
            f"'{timing.streams[reader.name]}', and its memory is free for '{reuser.name}' before that is done.",
        )


def lifetime_hazards(graph: fx.Graph, timing: Timing, needed: Dependence) -> list[tuple[fx.Node, fx.Node, fx.Node]]:
    """(maker, reader on another stream, the maker's stream's next kernel after the last mention) without order."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    mentioned, readers, kept = _uses(graph, needed, place)
    own: dict[str, list[fx.Node]] = {}
    for kernel in needed.kernels:
        own.setdefault(timing.streams[kernel.name], []).append(kernel)
    for kernels in own.values():
        kernels.sort(key=place.__getitem__)
    found: list[tuple[fx.Node, fx.Node, fx.Node]] = []
    for maker, others in readers.items():
        stream = timing.streams[maker.name]
        aside = [reader for reader in others if timing.streams[reader.name] != stream]
        if not aside or maker in kept or written_by(maker):
            continue
        reuser = _next(own[stream], place, mentioned[maker])
        found += [(maker, reader, reuser) for reader in aside if reuser and not timing.orders(reader, reuser)][:1]
    return found


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


def _next(kernels: Sequence[fx.Node], place: Mapping[fx.Node, int], after: int) -> fx.Node | None:
    return next((kernel for kernel in kernels if place[kernel] > after), None)
