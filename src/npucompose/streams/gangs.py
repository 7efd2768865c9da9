"""Kernels that start with all their cores or not at all: beside one another they can starve each other for ever.

Those that communicate from inside are such (TorchAir's document on core limits, "Schem Mode=1"), and collectives where
the device model gives them cores (`streams.device.collective_cores`). A collective goes on by itself after it was
issued: it is through where it was waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.effects import core_limits, is_collective
from npucompose.streams import dag
from npucompose.streams.timing import Timing
from npucompose.vendor.devices import DeviceModel

GANGS = (
    "npu_moe_distribute_dispatch",
    "npu_moe_distribute_combine",
    "npu_mm_all_reduce_base",
    "npu_all_gather_base_mm",
)


def gangs_of(needed: Dependence, model: DeviceModel) -> list[fx.Node]:
    """In the order of the program."""
    return [kernel for kernel in needed.kernels if _is_gang(kernel, model)]


def _is_gang(kernel: fx.Node, model: DeviceModel) -> bool:
    if is_collective(kernel):
        return model.collective_cores > 0
    packet = getattr(getattr(kernel.target, "overloadpacket", None), "__name__", "")
    return packet.startswith(GANGS)


def turns(needed: Dependence, model: DeviceModel, limited: Collection[fx.Node]) -> list[tuple[fx.Node, fx.Node]]:
    """(first, then): order by which every gang is through before the next one of the program begins.

    None where all of them are `limited`: whether they fit beside each other is for `check_gangs` to say. Collectives
    have an order already. A wait that needs the gang before which it should stand stays behind it, which `check_gangs`
    refuses.
    """
    gangs = gangs_of(needed, model)
    if all(gang in limited or is_collective(gang) for gang in gangs):
        return []
    waits = _waits(needed)
    found: list[tuple[fx.Node, fx.Node]] = []
    last: fx.Node | None = None
    flying: list[fx.Node] = []
    for gang in gangs:
        if is_collective(gang):
            flying += waits.get(gang, ())[:1]
        else:
            found += [(wait, gang) for wait in flying]
            flying = []
        if last is not None:
            found.append((last, gang))
        if not is_collective(gang):
            last = gang
    return _possible(needed, found)


def _possible(needed: Dependence, pairs: Sequence[tuple[fx.Node, fx.Node]]) -> list[tuple[fx.Node, fx.Node]]:
    """Those that contradict neither the data nor those before them."""
    number = {kernel: index for index, kernel in enumerate(needed.kernels)}
    edges = [(number[edge.first], number[edge.then]) for edge in needed.edges]
    kept: list[tuple[fx.Node, fx.Node]] = []
    for first, then in pairs:
        new = (number[first], number[then])
        if new[0] > new[1] and dag.topological(dag.successors(len(number), [*edges, new]))[1]:
            continue
        edges.append(new)
        kept.append((first, then))
    return kept


def _waits(needed: Dependence) -> dict[fx.Node, list[fx.Node]]:
    """{collective: those that wait for it}, the first first."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for wait, collectives in needed.awaited.items():
        for collective in collectives:
            found.setdefault(collective, []).append(wait)
    return found


def check_gangs(graph: fx.Graph, timing: Timing, needed: Dependence, model: DeviceModel) -> None:
    """Raise PlanError("gang", …) where gangs that nothing orders want more vector cores together than there are.

    Without a limit of its own a kernel takes every vector core, a collective those of the device model.
    """
    limits, there = core_limits(graph), model.vector
    gangs = gangs_of(needed, model)
    wants = {gang: min(model.collective_cores, there) if is_collective(gang) else there for gang in gangs}
    wants.update({gang: limits[gang].vectorcore for gang in gangs if gang in limits})
    beside = _beside(gangs, timing, _waits(needed))
    if starving := _beyond(gangs, beside, wants, there):
        each = (f"'{gang.name}' ({wants[gang]} on stream '{timing.streams[gang.name]}')" for gang in starving)
        waited = "" if not any(map(is_collective, starving)) else " (a collective is through where it was waited for)"
        raise PlanError(
            "gang",
            f"{' and '.join(each)} each take their vector cores all at once and no event orders them{waited}; together "
            f"they want {sum(wants[gang] for gang in starving)} of {there}: they can starve each other for ever.",
        )


def _beside(
    gangs: Sequence[fx.Node], timing: Timing, waits: Mapping[fx.Node, Sequence[fx.Node]]
) -> Mapping[fx.Node, frozenset[fx.Node]]:
    """{gang: the later ones that may run at the same time}. Two collectives never do: the link takes them in a row."""

    def through(first: fx.Node, then: fx.Node) -> bool:
        if is_collective(first) and not is_collective(then):
            return any(timing.orders(wait, then) for wait in waits.get(first, ()))
        return timing.orders(first, then)

    return {
        gang: frozenset(other for other in gangs[place + 1 :] if not (through(gang, other) or through(other, gang)))
        for place, gang in enumerate(gangs)
    }


def _beyond(
    gangs: Sequence[fx.Node],
    beside: Mapping[fx.Node, frozenset[fx.Node]],
    wants: Mapping[fx.Node, int],
    there: int,
) -> tuple[fx.Node, ...]:
    """Kernels that may all run at once and want more than there is; () where no such set exists.

    Depth first over sets in which no event orders any two; a set that fits with all that could still join it is left.
    """
    todo: list[tuple[tuple[fx.Node, ...], Sequence[fx.Node]]] = [((), gangs)]
    while todo:
        chosen, rest = todo.pop()
        taken = sum(wants[gang] for gang in chosen)
        if taken > there:
            return chosen
        if taken + sum(wants[gang] for gang in rest) <= there:
            continue
        for place, gang in enumerate(rest):
            todo.append(((*chosen, gang), [other for other in rest[place + 1 :] if other in beside[gang]]))
    return ()
