"""The question of capture, asked of a session: its model is called once under the simulated capture, and traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import torch
from attrs import frozen

from npucompose.compose.budget import SizedCall, budget_of, sizes_of
from npucompose.compose.session import Session
from npucompose.errors import ConfigError, NpuComposeError
from npucompose.npu.capture import CaptureQuestion, CaptureRuntime, Seen, judge
from npucompose.npu.capture.breaks import Break, recorded_breaks
from npucompose.npu.capture.devices import simulated
from npucompose.npu.capture.in_place import without_kernel
from npucompose.npu.capture.machine import SimulatedMachine
from npucompose.npu.capture.reading import read
from npucompose.npu.capture.watch import called, raised, watching
from npucompose.npu.torchair.config import MODES
from npucompose.ops.forms import FormCheck
from npucompose.ops.npu import forms_for_values
from npucompose.results.capture import CaptureFinding, CaptureLegality
from npucompose.results.capture_budget import CaptureBudgetFacts
from npucompose.targets.foretelling import Foretelling

CAPTURE_MODE = "npugraph_ex.capture_error_mode"
NOT_TRACED = (
    "the model names the device, or calls torch.npu or collectives: torch.compile traces that on the device only"
)


def capture_of(session: Session) -> tuple[CaptureLegality, float, float]:
    """(the verdict, seconds of the trace, seconds of all else). The session has built and compiled nothing yet."""
    with forms_for_values():
        return _capture_of(session)


def _capture_of(session: Session) -> tuple[CaptureLegality, float, float]:
    begun = perf_counter()
    runtime = CaptureRuntime(
        mode=session.experiment.compiler[CAPTURE_MODE], torch_npu=session.checked.torch_npu.version
    )
    machine = SimulatedMachine(runtime)
    session.materialised  # noqa: B018  a target may bring torch_npu, which must find torch as it is
    with simulated(machine):
        with watching(machine):
            session.built  # noqa: B018  the model is built on the simulated machine
        machine.places.moved(session.built.module)
        ran = _run(session, machine)
    traced_at = perf_counter()
    traced = Traced(why_not=NOT_TRACED) if machine.used else _traced(session)
    ended = perf_counter() - traced.looked_s
    budget, no_budget = _budget(session, traced)
    seen = Seen(
        runtime=machine.runtime,
        ran=ran,
        graphs=traced.graphs,
        breaks=traced.breaks,
        traced=traced.why_not,
        doubt=traced.doubt,
        draws=tuple(machine.draws),
        streams_at=frozenset(machine.used),
        budget=budget,
        no_budget=no_budget,
    )
    return judge(question_of(session), seen), ended - traced_at, perf_counter() - ended + traced_at - begun


def question_of(session: Session) -> CaptureQuestion:
    """In whose light this experiment's capture is judged."""
    experiment = session.experiment
    return CaptureQuestion(
        mode=experiment.mode.name,
        target=session.checked.target.name,
        torch_npu=session.checked.torch_npu.version,
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


@frozen(kw_only=True)
class Traced:
    """What torch.compile's traces of the declared calls showed."""

    breaks: tuple[Break, ...] = ()
    graphs: tuple[CaptureFinding, ...] = ()
    why_not: str | None = None
    """Why there is no graph."""
    lost: str | None = None
    """Why a later call was not made."""
    doubt: str | None = None
    """Why the graphs are not to be believed."""
    calls: tuple[SizedCall, ...] = ()
    sizes_are: str = ""
    looked_s: float = 0.0
    """Seconds that went into what captures take."""


def _traced(session: Session) -> Traced:
    """Trace with cuts allowed, so that every cut is seen."""
    backend = session.materialised.backend
    backend.reads_only = True
    backend.foretelling = foretelling = Foretelling()
    backend.forms = forms = FormCheck()
    torch._dynamo.reset()
    compiled = torch.compile(session.built.module, backend=_graphs(backend), fullgraph=False, dynamic=_dynamic(session))
    why_not, lost, calls = None, None, list[SizedCall]()
    sizes_are, sizes = sizes_of(session.calls, session.inputs(0))
    with recorded_breaks() as breaks:
        for at, (size, call) in enumerate(zip(sizes, session.calls, strict=True)):
            known = len(foretelling.calls)
            try:
                session.call(compiled, session.inputs(at, call))
            except NpuComposeError as error:
                why_not, lost = (str(error), None) if at == 0 else (None, f"model.sequence[{at - 1}]: {error}")
                break
            except Exception as error:  # noqa: BLE001  a model may raise anything
                why_not, lost = (
                    (raised(error), None) if at == 0 else (None, f"model.sequence[{at - 1}]: {raised(error)}")
                )
                break
            calls.append(SizedCall(size=size, made=tuple(foretelling.calls[known:])))
    version = session.checked.torch_npu.version
    found = tuple(
        one
        for c in backend.compilations
        for one in (*read(c.graph_module.graph, c.id, version), *_in_place(session, c, version))
    )
    session.rewind()
    return Traced(
        breaks=tuple(breaks),
        graphs=found,
        why_not=why_not if not forms.contradictions else None,
        lost=lost,
        doubt=next(iter(forms.contradictions.values()), None),
        calls=tuple(calls),
        sizes_are=sizes_are,
        looked_s=foretelling.seconds,
    )


def _in_place(session: Session, compilation: Any, version: str) -> Iterator[CaptureFinding]:
    """What TorchAir's in-place pass would do to the graph, unless the experiment leaves it out."""
    mode = MODES.get(session.experiment.mode.name)
    if mode is not None and mode.without_in_place is not None:
        option, left_out = mode.without_in_place
        if session.experiment.compiler[option] != left_out:
            yield from without_kernel(
                compilation.graph_module, compilation.id, version, f"{option}={str(left_out).lower()}"
            )


def _budget(session: Session, traced: Traced) -> tuple[CaptureBudgetFacts | None, str | None]:
    """What the captures take, or why that is not foretold."""
    why_none = traced.why_not or traced.lost or traced.doubt
    if why_none is not None or not any(call.made for call in traced.calls):
        return None, why_none or "torch.compile made no graph."
    try:
        return budget_of(session, traced.sizes_are, traced.calls), None
    except ConfigError as error:
        return None, str(error)


def _dynamic(session: Session) -> bool | None:
    return session.materialised.compile_keywords["dynamic"]


def _graphs(backend: Any) -> Callable[[Any, Sequence[Any]], Callable[..., Any]]:
    """The backend, as a function: each trace has a cache of its own."""
    return lambda graph_module, inputs: backend(graph_module, inputs)
