"""What several stages put down in the same words: of graphs, of stream plans, of a comparison with eager. A later
stage, which may know more of them, says it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve, fields

from npucompose.results.graphs import PassFacts
from npucompose.results.record import GraphFacts
from npucompose.results.streams import ProfileUse, StreamFacts, gain_interval
from npucompose.table.structure import facts_of
from npucompose.targets.vendor_compiled import device_facts, device_texts

if TYPE_CHECKING:
    from npucompose.compose.comparison import Compared
    from npucompose.compose.session import Session
    from npucompose.npu.torchair.records import NpuFacts
    from npucompose.results.measured import Numerics, Overwrites
    from npucompose.targets.compilation import Compilation


def graphs_account(live: Session) -> dict[str, Any]:
    """Every graph so far, what the passes did to it, its texts, and how it is drawn."""
    from npucompose.graphs.drawing import drawing

    graphs = live.compilations
    shared = [one.name for one in fields(PassFacts) if one.name != "graph"]
    return {
        "graphs": [facts_of(_graph_facts(c, live.overwrites.get(c.id))) for c in graphs],
        "passes": [
            facts_of(PassFacts(graph=c.id, **{name: getattr(record, name) for name in shared}))
            for c in graphs
            for record in c.passes
        ],
        "texts": {
            **{f"{c.id}.before.txt": c.before.text for c in graphs},
            **{f"{c.id}.after.txt": c.text_after for c in graphs},
            **device_texts(live.materialised.backend),
        },
        "drawings": {c.id: facts_of(drawing(c.before, c.after, c.plan)) for c in graphs},
    }


def sinking_facts(live: Session) -> dict[str, Any] | None:
    """The diagnosis of the graphs so far; a later stage's, which may know more of them, replaces an earlier one's."""
    from npucompose.npu.static_graph.session import sinking_of

    found = sinking_of(live)
    return None if found is None else facts_of(found)


def npu_facts(live: Session) -> dict[str, Any] | None:
    """What the vendor's side made and counted so far; a later stage's account replaces an earlier one's."""
    found = device_facts(live.materialised.backend)
    return None if found is None else facts_of(found)


def _graph_facts(c: Compilation, overwrites: Overwrites | None) -> GraphFacts:
    return GraphFacts(
        id=c.id,
        fingerprint=c.before.fingerprint,
        nodes_before=len(c.before.lines),
        nodes_after=c.nodes_after,
        fx="dynamic" if c.before.symbols else "static",
        symbols=c.before.symbols,
        partition=c.partition,
        npu_refuses=c.refused_on_npu,
        overwrites=overwrites,
        winners=tuple(c.winners.values()),
    )


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
            gain_interval=gain_interval(told),
            intra_op_threads=told[0].intra_op_threads,
            profile=ProfileUse.together(used) if (used := [one.profile for one in told if one.profile]) else None,
            critical_us=sum(one.critical_us for one in told),
            busy=told[0].busy if len(told) == 1 else {},
            peak_bytes=max(one.peak_bytes for one in told),
            serial_peak_bytes=max(one.serial_peak_bytes for one in told),
        )
    )


def timelines(graphs: tuple[Compilation, ...]) -> dict[str, Any]:
    """{graph: its predicted timeline}, as planned and on one stream, for trace.json and the page."""
    decided = {c.id: c.decision for c in graphs if c.decision is not None}
    return {
        "timelines": {name: facts_of(one.timeline) for name, one in decided.items() if one.timeline is not None},
        "one_stream_timelines": {n: facts_of(one.one_stream) for n, one in decided.items() if one.one_stream},
    }


UNORDERED_SHOWN = 3
"""Sentences about kernels without order that stand among the problems; the report's `npu` field has all."""


def comparison_account(live: Session, results: Mapping[str, Compared]) -> dict[str, Any]:
    """One verdict of all calls, what was compiled again for them, and what the vendor's side came to meanwhile."""
    from npucompose.measure.numerics import combined

    target, mode = live.checked.target, live.experiment.mode.name
    npu = device_facts(live.materialised.backend)
    numerics = combined({name: r.numerics for name, r in results.items()})
    return {
        "numerics": facts_of(_with_order(evolve(numerics, note=target.support(mode).numerics_note), npu)),
        "recompiles": [facts_of(again) for r in results.values() for again in r.recompiles],
        "npu": None if npu is None else facts_of(npu),
        "sinking": sinking_facts(live),
    }


def _with_order(numerics: Numerics, npu: NpuFacts | None) -> Numerics:
    """Kernels that no event orders ran in one row here and agree with eager; on a device they would race."""
    if npu is None or not npu.unordered:
        return numerics
    return evolve(numerics, passed=False, problems=(*numerics.problems, *npu.unordered[:UNORDERED_SHOWN]))
