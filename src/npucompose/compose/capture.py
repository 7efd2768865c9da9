"""The question of capture, asked of a session: its model is called once under the simulated capture, and traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from npucompose.capture import CaptureQuestion, CaptureRuntime, Seen, judge
from npucompose.capture.breaks import Break, recorded_breaks
from npucompose.capture.devices import simulated
from npucompose.capture.reading import read
from npucompose.capture.watch import SimulatedMachine, called
from npucompose.compose.session import Session
from npucompose.errors import NpuComposeError
from npucompose.results.capture import CaptureFinding, CaptureLegality

CAPTURE_MODE = "npugraph_ex.capture_error_mode"
NOT_TRACED = "the model calls streams or collectives, which torch.compile traces on the device only"


def capture_of(session: Session) -> tuple[CaptureLegality, float, float]:
    """(the verdict, seconds of the trace, seconds of all else). The session has built and compiled nothing yet."""
    begun = perf_counter()
    machine = SimulatedMachine(CaptureRuntime(mode=session.experiment.compiler[CAPTURE_MODE]))
    with simulated(machine):
        with machine.watching():
            session.built  # noqa: B018  the model is built on the simulated machine
        machine.places.moved(session.built.module)
        ran = _run(session, machine)
    traced_at = perf_counter()
    breaks, graphs, why_not = ((), (), NOT_TRACED) if machine.used else _traced(session)
    ended = perf_counter()
    seen = Seen(
        runtime=machine.runtime,
        ran=ran,
        graphs=graphs,
        breaks=breaks,
        traced=why_not,
        streams_at=frozenset(machine.used),
    )
    facts = judge(question_of(session), seen)
    return facts, ended - traced_at, perf_counter() - ended + traced_at - begun


def question_of(session: Session) -> CaptureQuestion:
    """In whose light this experiment's capture is judged."""
    experiment = session.experiment
    return CaptureQuestion(
        mode=experiment.mode.name,
        target=session.checked.target.name,
        capture_mode=experiment.compiler[CAPTURE_MODE],
        fullgraph=experiment.compile.fullgraph,
    )


def _run(session: Session, machine: SimulatedMachine) -> str | None:
    """Call the model under the capture; why it did not come to its end, None where it did."""
    session.rewind()
    inputs = session.inputs(0)
    call = session.bind(inputs)
    try:
        return called(machine, lambda: call(session.built.module))
    finally:
        session.rewind()


def _traced(session: Session) -> tuple[tuple[Break, ...], tuple[CaptureFinding, ...], str | None]:
    """Trace with cuts allowed, so that every cut is seen: (cuts, what the graphs show, why there are none)."""
    backend = session.materialised.backend
    backend.reads_only = True
    torch._dynamo.reset()
    compiled = torch.compile(session.built.module, backend=_graphs(backend), fullgraph=False, dynamic=_dynamic(session))
    why_not = None
    with recorded_breaks() as breaks:
        try:
            session.call(compiled, session.inputs(0))
        except NpuComposeError as error:
            why_not = str(error)
    found = tuple(one for c in backend.compilations for one in read(c.graph_module.graph, c.id))
    session.rewind()
    return tuple(breaks), found, why_not


def _dynamic(session: Session) -> bool | None:
    return session.materialised.compile_keywords["dynamic"]


def _graphs(backend: Any) -> Callable[[Any, Sequence[Any]], Callable[..., Any]]:
    """The backend, as a function: each trace has a cache of its own."""
    return lambda graph_module, inputs: backend(graph_module, inputs)
