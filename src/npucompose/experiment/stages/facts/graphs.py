"""Facts of the graphs that were compiled so far; a later stage, which may know more of them, tells them anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import fields

from npucompose.results.graphs import PassFacts
from npucompose.results.record import GraphFacts
from npucompose.table.plain import facts_of
from npucompose.targets.optional import device_facts, device_texts

if TYPE_CHECKING:
    from npucompose.compose.session import Session
    from npucompose.results.measured import Overwrites
    from npucompose.targets.compilation import Compilation


def graphs_account(live: Session) -> dict[str, Any]:
    """Every graph so far, what the passes did to it, and its texts."""
    graphs = live.compilations
    return {
        "graphs": [facts_of(_graph_facts(c, live.overwrites.get(c.id))) for c in graphs],
        "passes": [facts_of(p) for c in graphs for p in _pass_facts(c)],
        "texts": {
            **{f"{c.id}.{when}.txt": text for c in graphs for when, text in _texts(c).items()},
            **device_texts(live.checked.target, live.materialised.backend),
        },
    }


def sinking_facts(live: Session) -> dict[str, Any] | None:
    """The diagnosis of the graphs so far; a later stage's, which may know more of them, replaces an earlier one's."""
    from npucompose.compose.sinking import sinking_of

    found = sinking_of(live)
    return None if found is None else facts_of(found)


def npu_facts(live: Session) -> dict[str, Any] | None:
    """What the vendor's side made and counted so far; a later stage's account replaces an earlier one's."""
    found = device_facts(live.checked.target, live.materialised.backend)
    return None if found is None else facts_of(found)


def _graph_facts(c: Compilation, overwrites: Overwrites | None) -> GraphFacts:
    return GraphFacts(
        id=c.id,
        fingerprint=c.fingerprint,
        nodes_before=c.nodes_before,
        nodes_after=c.nodes_after,
        fx="dynamic" if c.symbols else "static",
        symbols=c.symbols,
        partition=c.partition,
        npu_refuses=c.refused_on_npu,
        overwrites=overwrites,
    )


def _pass_facts(c: Compilation) -> list[PassFacts]:
    shared = [field.name for field in fields(PassFacts) if field.name != "graph"]
    return [PassFacts(graph=c.id, **{name: getattr(record, name) for name in shared}) for record in c.passes]


def _texts(c: Compilation) -> dict[str, str]:
    return {"before": c.text_before, "after": c.text_after}
