"""Facts of the stream plans of all graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve

from npucompose.results.record import StreamFacts
from npucompose.table.structure import facts_of

if TYPE_CHECKING:
    from npucompose.targets.compilation import Compilation


def stream_facts(graphs: tuple[Compilation, ...]) -> dict[str, Any] | None:
    """The plan over all graphs, their times added; node names carry their graph's id where there are several."""
    planned = [c for c in graphs if c.plan.nodes]
    if not planned:
        return None
    several = len(planned) > 1
    nodes = {(f"{c.id}.{n}" if several else n): s for c in planned for n, s in c.plan.nodes.items()}
    decisions = [(f"{c.id}: " if several else "", c.judged) for c in planned if c.judged is not None]
    told = [decision.prediction for _, decision in decisions if decision.prediction is not None]
    facts = StreamFacts(
        streams=len(set(nodes.values())),
        events=sum(len(c.plan.events) for c in planned),
        nodes=nodes,
        validated=all(c.judged is not None and c.judged.validated for c in planned),
        applied=all(decision.applied for _, decision in decisions),
        why="; ".join(f"{graph}{decision.why}" for graph, decision in decisions),
    )
    if not told or told[0].cost == "none":
        return facts_of(facts)
    return facts_of(
        evolve(
            facts,
            device=told[0].device,
            cost=told[0].cost,
            predicted_us=sum(one.plan_us for one in told),
            serial_us=sum(one.serial_us for one in told),
            critical_us=sum(one.critical_us for one in told),
            busy=told[0].busy if len(told) == 1 else {},
            peak_bytes=max(one.peak_bytes for one in told),
            serial_peak_bytes=max(one.serial_peak_bytes for one in told),
        )
    )


def timelines(graphs: tuple[Compilation, ...]) -> dict[str, Any]:
    """{graph: its predicted timeline}, for trace.json."""
    drawn = {c.id: c.decision.timeline for c in graphs if c.decision is not None}
    return {name: facts_of(line) for name, line in drawn.items() if line is not None}
