"""What a device and a mode put up with: streams, events, operators, kernels that want all cores at once."""

from __future__ import annotations

import torch
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.effects import is_collective
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
        if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace not in NAMESPACES:
            continue
        name = node.target.name().partition("::")[2].partition(".")[0]
        if name in _TAGGED and not can.explicit_events:
            raise PlanError(
                "mode", f"'{node.name}': {name} has no meaning in mode={can.mode}, whose compiler syncs data by itself."
            )
        if control(node) in ("scope_enter", "scope_exit") and node.target.namespace != can.scope_namespace:
            raise PlanError(
                "mode",
                f"'{node.name}' is of torch.ops.{node.target.namespace}; mode={can.mode} reads scopes of "
                f"torch.ops.{can.scope_namespace}.",
            )


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
