"""Facts of calls that were compared with eager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve

from npucompose.experiment.stages.facts.graphs import sinking_facts
from npucompose.table.plain import facts_of
from npucompose.targets.optional import device_facts

if TYPE_CHECKING:
    from npucompose.compose.comparison import Compared
    from npucompose.compose.session import Session
    from npucompose.results.measured import Numerics
    from npucompose.results.sinking import NpuFacts

UNORDERED_SHOWN = 3
"""Sentences about kernels without order that stand among the problems; the report's `npu` field has all."""


def comparison_account(live: Session, results: Mapping[str, Compared]) -> dict[str, Any]:
    """One verdict of all calls, what was compiled again for them, and what the vendor's side came to meanwhile."""
    from npucompose.measure.numerics import combined

    target, mode = live.checked.target, live.experiment.mode.name
    npu = device_facts(target, live.materialised.backend)
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
