"""Verdicts and steps of a run become its SinkingFacts; so does a model that could not be made one graph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from attrs import evolve

from npucompose.results.sinking import (
    KINDS,
    STEP_IDS,
    Blame,
    Failure,
    GraphKind,
    SinkingFacts,
    Step,
    StepId,
    StepStatus,
    Verdict,
    VerdictName,
)
from npucompose.sinking.facts import FxFacts, GeFacts, Question
from npucompose.sinking.steps import TITLES, Case, steps
from npucompose.sinking.table import OperatorTable
from npucompose.sinking.verdicts import BY_PATH, Judged, foreseen, judged, path

LEAST_STATIC: tuple[GraphKind, ...] = ("failed", "dynamic", "mixed", "unknown", "static")
assert set(LEAST_STATIC) == set(KINDS)
_DATA_DECIDE = re.compile(r"data-dependent", re.I)
"""How torch calls a branch, a size or a guard that only the values of a tensor decide."""


def diagnose(
    question: Question, graphs: Sequence[FxFacts], ge_graphs: Sequence[GeFacts], table: OperatorTable
) -> SinkingFacts:
    """The report's `sinking`: FX graphs in the order of their compilation, beside each the GE graph it became.

    A graph that was not taken became none, and beside it nothing is proven. Where the numbers differ nobody knows which
    belongs to which, and no GE graph counts.
    """
    graphs = [foreseen(graph, question, table) for graph in graphs]
    taken = [graph for graph in graphs if graph.failure is None]
    paired = dict(zip([graph.id for graph in taken], ge_graphs, strict=True)) if len(ge_graphs) == len(taken) else {}
    found = tuple(judged(graph, paired.get(graph.id), question, table) for graph in graphs)
    took = path(found, question)
    failure = next((graph.failure for graph in graphs if graph.failure is not None), None)
    fx = _least_static(found, "fx_graph")
    return SinkingFacts.from_verdicts(
        path=took,
        fx_graph=fx if failure is None else evolve(fx, certainty="derived"),
        ge_graph=_least_static(found, "ge_graph"),
        ge_build=_least_static(found, "ge_build"),
        product=question.product,
        blame=tuple(blame for one in found for blame in one.blame),
        steps=steps(Case(question=question, table=table, graphs=found, path=took)),
        failure=failure,
    )


def _least_static(graphs: Sequence[Judged], which: VerdictName) -> Verdict:
    verdicts: list[tuple[str, Verdict]] = [(one.graph.id, getattr(one, which)) for one in graphs]
    graph_id, worst = min(verdicts, key=lambda named: LEAST_STATIC.index(named[1].value))
    if len(verdicts) == 1:
        return worst
    return Verdict(
        value=worst.value, certainty=worst.certainty, evidence=tuple(f"{graph_id}: {line}" for line in worst.evidence)
    )


def with_artefacts(facts: SinkingFacts | None, told: Sequence[SinkingFacts]) -> SinkingFacts:
    """What logs and dumps prove takes the place of what was derived; None: there is nothing but them.

    Of two files that prove different things the less static one counts.
    """
    verdicts = dict((facts if facts is not None else told[0]).verdicts())
    for name in verdicts:
        proven = [one.verdicts()[name] for one in told if one.certainty[name] == "proven"]
        if proven:
            verdicts[name] = min(proven, key=lambda verdict: LEAST_STATIC.index(verdict.value))
    found = {step.id: step for step in (facts.steps if facts is not None else ())}
    for step in (step for one in told for step in one.steps):
        if step.status != "skipped" or step.id not in found:
            found[step.id] = step
    return SinkingFacts.from_verdicts(
        path=_path(facts, verdicts),
        fx_graph=verdicts["fx_graph"],
        ge_graph=verdicts["ge_graph"],
        ge_build=verdicts["ge_build"],
        product=facts.product if facts is not None else None,
        blame=(*(blame for one in told for blame in one.blame), *(facts.blame if facts is not None else ())),
        steps=tuple(found[step_id] for step_id in STEP_IDS if step_id in found),
        failure=facts.failure if facts is not None else None,
    )


def _path(facts: SinkingFacts | None, verdicts: Mapping[VerdictName, Verdict]) -> int | None:
    """A file may prove that it went another way than the rules say. To the document a mixed graph is dynamic."""
    if facts is None or facts.path is None:
        return None
    values = tuple(verdicts[name].value for name in ("fx_graph", "ge_graph", "ge_build"))
    same = tuple("dynamic" if value == "mixed" else value for value in values) == BY_PATH[facts.path]
    return facts.path if same else None


def not_compiled(question: Question, error: str) -> SinkingFacts:
    """What can be said of a model that torch.compile could not make one graph of; `error` is its paragraph."""
    data = _DATA_DECIDE.search(error) is not None
    guilty: StepId = "S3" if data else "S1"
    fix = "take what breaks the graph out of forward(); with compile.fullgraph=false each part is a graph of its own"
    if data:
        fix = "torch.where(condition, a, b) or torch.cond: what the values decide must not decide which code runs"
    unknown = Verdict(value="unknown", certainty="unknown", evidence=("torch.compile made no graph",))
    told = [_not_reached(step_id, guilty, error, fix) for step_id in TITLES]
    blame = Blame(node="forward", operator="torch.compile", reason=error)
    return SinkingFacts.from_verdicts(
        fx_graph=unknown,
        ge_graph=unknown,
        ge_build=unknown,
        product=question.product,
        blame=(blame,),
        steps=tuple(told),
        failure=Failure(graph="", what=error.rstrip("."), fix=fix),
    )


def _not_reached(step_id: StepId, guilty: StepId, error: str, fix: str) -> Step:
    status: StepStatus = "problem" if step_id == guilty else "skipped"
    found = step_id == guilty
    evidence = (error,) if found else ("there is no graph to look at",)
    return Step(id=step_id, title=TITLES[step_id], status=status, evidence=evidence, fix=fix if found else None)
