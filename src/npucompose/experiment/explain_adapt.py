"""`npucompose explain --adapt`: what adaptation rules would do to the model's graphs, as a diff; nothing is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve

from airflow_free.stage import Notify
from npucompose.compose.check import Checked
from npucompose.compose.tree import Composed
from npucompose.errors import ConfigError, NpuComposeError
from npucompose.experiment.explain import asked_of, in_worker, session_of
from npucompose.results.graphs import DryRun
from npucompose.table.structure import facts_of, of_facts

if TYPE_CHECKING:
    from npucompose.passes.adapt import Written

ENTRY = "npucompose.experiment.explain_adapt:work"


def dry_run(composed: Composed) -> DryRun:
    """What the rules of a composed experiment would do; ConfigError where it is not legal or has no rules."""
    return of_facts(DryRun, in_worker(composed, ENTRY, _check), where="dry run")


def _check(checked: Checked) -> None:
    if not checked.experiment.adapt.rules:
        raise ConfigError("explain --adapt: adapt=none has no rules; choose a rule set: adapt=ascend.")


def work(payload: Mapping[str, Any], notify: Notify) -> dict[str, Any]:
    """The worker's side."""
    from npucompose.passes.adapt import DryAdapt, Written

    session = session_of(payload)
    written = Written()
    stage = next(one.stage for _, one in session.checked.passes if one.name == "adapt")
    passes: list[Any] = []
    for label, one in session.checked.passes:
        if one.stage != stage:
            continue
        if one.name == "adapt":
            passes.append((label, DryAdapt(rules=session.experiment.adapt, stage=one.stage, written=written)))
            break
        passes.append((label, one))
    return facts_of(_seen(type(session)(evolve(session.checked, passes=tuple(passes))), written))


def _seen(session: Any, written: Written) -> DryRun:
    """Compile with the dry run in the pass's place. A compiler that is not ours may refuse what comes after it."""
    backend = session.materialised.backend
    backend.reads_only = session.materialised.genuine is None
    refused: str | None = None
    try:
        session.compilations  # noqa: B018  the first call compiles
    except NpuComposeError as error:
        if isinstance(error, ConfigError) or not written.graphs:
            raise
        refused = str(error)
    return DryRun(
        asked={**asked_of(session.checked), "adapt": session.experiment.adapt.name},
        graphs=len(written.graphs),
        adaptations=tuple(written.adaptations),
        untouched=tuple(written.untouched),
        compiler=refused,
    )
