"""What logs and dumps prove that something else wrote about a graph. Knows none of their forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from npucompose.npu.static_graph.verdicts import BY_PATH, LEAST_STATIC
from npucompose.results.sinking import STEP_IDS, SinkingFacts, SinkingVerdict, VerdictName


def with_artefacts(facts: SinkingFacts | None, read: Sequence[SinkingFacts]) -> SinkingFacts:
    """What logs and dumps prove takes the place of what was derived; None: there is nothing but them.

    Of two files that prove different things the less static one counts.
    """
    known = facts or evolve(read[0], path=None, product=None, blame=(), steps=(), failure=None)
    verdicts = dict(known.verdicts())
    for name in verdicts:
        proven = [one.verdicts()[name] for one in read if one.certainty[name] == "proven"]
        if proven:
            verdicts[name] = min(proven, key=lambda verdict: LEAST_STATIC.index(verdict.value))
    found = {step.id: step for step in known.steps}
    for step in (step for one in read for step in one.steps):
        if step.status != "skipped" or step.id not in found:
            found[step.id] = step
    return SinkingFacts.from_verdicts(
        path=_path(known.path, verdicts),
        almost=known.almost,
        fx_graph=verdicts["fx_graph"],
        ge_graph=verdicts["ge_graph"],
        ge_build=verdicts["ge_build"],
        product=known.product,
        blame=(*(blame for one in read for blame in one.blame), *known.blame),
        steps=tuple(found[step_id] for step_id in STEP_IDS if step_id in found),
        failure=known.failure,
    )


def _path(derived: int | None, verdicts: Mapping[VerdictName, SinkingVerdict]) -> int | None:
    """A file may prove that it went another way than the rules say. To the document a mixed graph is dynamic."""
    values = (verdicts[name].value for name in ("fx_graph", "ge_graph", "ge_build"))
    kinds = tuple("dynamic" if value == "mixed" else value for value in values)
    return derived if derived is not None and kinds == BY_PATH[derived] else None
