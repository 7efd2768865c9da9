"""`npucompose explain`: compile one experiment in a worker, as far as the verdicts need it, and say why it sinks.

No stage, no record, no folder: what is asked for is an answer. On targets whose compiler is ours a graph is read and
not lowered; TorchAir's is asked for its GE graph.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from airflow_free.keys import plain
from airflow_free.pool import run_in_worker
from airflow_free.stage import Notify
from npucompose.compose.check import Checked, check
from npucompose.compose.tree import Composed
from npucompose.errors import CompileError, ConfigError, NpuComposeError
from npucompose.experiment.job import LOG, worker_task
from npucompose.results.sinking import Explanation, SinkingFacts
from npucompose.table.plain import facts_of, of_facts

if TYPE_CHECKING:
    from npucompose.compose.session import Session

ENTRY = "npucompose.experiment.explain:work"


def explain(composed: Composed) -> Explanation:
    """The explanation of a composed experiment; ConfigError when it is not legal, CompileError when a worker dies."""
    return of_facts(Explanation, in_worker(composed, ENTRY), where="explanation")


def in_worker(composed: Composed, entry: str, also: Callable[[Checked], None] = lambda _: None) -> Mapping[str, Any]:
    """What `entry` answers about an experiment that is legal, compiles something, and passes `also`."""
    checked = check(composed)
    if checked.experiment.mode.name == "eager":
        raise ConfigError("mode=eager compiles nothing: there is no graph to explain. Choose mode=max-autotune.")
    also(checked)
    with tempfile.TemporaryDirectory(prefix="npucompose-explain-") as folder:
        payload = {"tree": dict(composed.tree), "provenance": dict(composed.provenance)}
        outcome = run_in_worker(worker_task(checked, entry, payload, Path(folder) / LOG))
    if outcome.status == "config_error":
        raise ConfigError(*(outcome.problems or (outcome.error or "",)))
    if outcome.result is None:
        raise CompileError(outcome.error or "the worker sent no result.")
    return outcome.result


def work(payload: Mapping[str, Any], notify: Notify) -> dict[str, Any]:
    """The worker's side."""
    return facts_of(explained(session_of(payload)))


def session_of(payload: Mapping[str, Any]) -> Session:
    """The experiment that was sent, set up in a process of its own."""
    from npucompose.compose.session import Session

    session = Session(check(Composed(tree=payload["tree"], provenance=payload["provenance"])))
    session.set_up()
    return session


def explained(session: Session) -> Explanation:
    """The explanation of a session that has compiled nothing yet, made in this process."""
    from npucompose.vendor.compiler import implied_by

    session.materialised.backend.reads_only = session.materialised.genuine is None
    facts, compile_s, diagnosis_s = _explained(session)
    return Explanation(
        asked=asked_of(session.checked),
        sinking=facts,
        compile_s=compile_s,
        diagnosis_s=diagnosis_s,
        implied=implied_by(session.experiment.compiler, session.experiment.mode.name),
        recording=tuple(_recording(session)),
        notes=tuple(found.words(graph) for graph, found in session.overwrites.items()),
    )


def _recording(session: Session) -> Iterator[str]:
    """How each graph would be cut, and what would be refused."""
    from npucompose.results.graphs import named

    backend = session.materialised.backend
    for one in backend.compilations:
        if one.planned is None or not one.planned.outside:
            continue
        if backend.partial == "refuse":
            yield f"{one.id}: compile.partial=refuse refuses this graph: {named(one.planned.outside)}"
        else:
            yield f"{one.id}: {one.planned.words}"
    yield from (found.why for found in backend.effective())


def asked_of(checked: Checked) -> dict[str, str]:
    """{group: choice} for the head of an answer."""
    experiment = checked.experiment
    chosen = {"model": experiment.model.name, "target": checked.target.name, "mode": experiment.mode.name}
    return {**chosen, "shapes": experiment.shapes.name, "tiling": str(plain(experiment.tiling)["schedule"])}


def _explained(session: Session) -> tuple[SinkingFacts, float, float]:
    """The facts, and the seconds of the compilation and of the diagnosis."""
    from torch._dynamo.exc import BackendCompilerFailed

    from npucompose.compose.sinking import sinking_after, sinking_of

    session.built  # noqa: B018  the model is no part of the compilation
    begun = perf_counter()
    error: NpuComposeError | None = None
    try:
        session.compilations  # noqa: B018  the first call compiles
        for at, call in _calls_that_need_a_graph(session):
            session.call(session.compiled, session.inputs(at, call))
    except ConfigError:
        raise
    except NpuComposeError as failure:
        refused = any(one.failure is not None for one in session.materialised.backend.compilations)
        if isinstance(failure.__cause__, BackendCompilerFailed) and not refused:
            raise
        error = failure
    compiled = perf_counter()
    facts = sinking_of(session) if error is None else sinking_after(session, error)
    if facts is None:
        raise CompileError("torch.compile made no graph: the model computes nothing that torch could compile.")
    return facts, compiled - begun, perf_counter() - compiled


def _calls_that_need_a_graph(session: Session) -> list[tuple[int, Any]]:
    """Declared calls that leave an input unmarked: whether their graph is symbolic, only its compilation shows."""
    from npucompose.compose.inputs import unmarked

    return [(at, call) for at, call in enumerate(session.calls) if unmarked(call)]
