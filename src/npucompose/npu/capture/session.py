"""The question of capture, asked of a session: its model is called once under the simulated capture, and traced."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from attrs import frozen

from npucompose import recorder
from npucompose.compose.session import Session
from npucompose.errors import ConfigError, NpuComposeError
from npucompose.npu.capture.budget import (
    BudgetQuestion,
    CaptureBudget,
    CapturedGraph,
    CommunicatorGroup,
    Interval,
    capture_budget,
)
from npucompose.npu.capture.legality import CaptureQuestion, Seen, judge
from npucompose.npu.capture.pool import UNKNOWN, PoolRequests, pool_bytes
from npucompose.npu.capture.reading import Break, read, recorded_breaks, without_kernel
from npucompose.npu.capture.records import (
    CaptureBudgetFacts,
    CaptureChange,
    CapturedSize,
    CaptureFinding,
    CaptureLegality,
    CaptureRange,
)
from npucompose.npu.capture.simulated.devices import simulated
from npucompose.npu.capture.simulated.machine import SimulatedMachine
from npucompose.npu.capture.simulated.runtime import CaptureRuntime
from npucompose.npu.capture.simulated.watch import called, raised, watching
from npucompose.npu.torchair.config import MODES
from npucompose.ops.forms import FormCheck
from npucompose.ops.npu import forms_for_values
from npucompose.recorder import PlannedRecording
from npucompose.schema.experiment import Call, dimension_of
from npucompose.targets.foretelling import Foretelling, ForetoldCall
from npucompose.vendor.devices import device_of

# What the captures of an experiment take: its graphs' counts and bytes for each size, against `target.soc`.

MOST_RANKS = 16
"""Of a group whose ranks this process does not know: HCCL takes no more streams for larger ones."""


@frozen(kw_only=True)
class SizedCall:
    """The graphs that a call of this size made, each a capture of its own."""

    size: int
    made: tuple[ForetoldCall, ...]


def sizes_of(calls: Sequence[Call], examples: Mapping[str, object]) -> tuple[str, list[int]]:
    """(what the sizes are sizes of, that of each call): of declared calls that change one dimension, its numbers.

    `[{}, {"x.0": 6}, {"x.0": 8}]` with an example of 4 rows: ("x.0", [4, 6, 8]); of other calls ("calls", [1, 2, 3]).
    """
    changed = {key for call in calls for key in call}
    key = next(iter(changed)) if len(changed) == 1 else ""
    name, dimension = dimension_of(key)
    shape = getattr(examples.get(name), "shape", None)
    if shape is None or dimension is None or dimension >= len(shape):
        return "calls", list(range(1, len(calls) + 1))
    numbers = [call.get(key, int(shape[dimension])) for call in calls]
    sizes = [number for number in numbers if type(number) is int and number > 0]
    if len(set(sizes)) != len(calls):
        return "calls", list(range(1, len(calls) + 1))
    return key, sizes


def budget_of(session: Session, sizes_are: str, calls: Sequence[SizedCall]) -> CaptureBudgetFacts:
    """ConfigError where the SoC captures nothing."""
    calls = [call for call in calls if call.made]
    nbytes = _bytes_by_size(calls)
    sizes = sorted(nbytes)
    if asked := _asked_of_extensions(session):
        (sizes_are, sizes), nbytes = asked, {size: nbytes[size] for size in asked[1] if size in nbytes}
    known = nbytes if set(sizes) <= set(nbytes) else {}
    soc = device_of(session.checked.target.soc)
    weights = sum(value.nbytes for value in session.built.module.state_dict().values())
    question = BudgetQuestion(
        soc=soc.name,
        graphs=tuple(_captured_graphs(calls)),
        sizes=tuple(sizes),
        communicators=tuple(
            CommunicatorGroup(name=name, ranks=MOST_RANKS)
            for name in sorted({name for call in calls for one in call.made for name in one.communicators})
        ),
        nbytes=known,
        memory=max(0, soc.memory - weights) if soc.memory is not None and known else None,
    )
    return _facts(question, sizes_are, calls, capture_budget(question))


def _asked_of_extensions(session: Session) -> tuple[str, list[int]] | None:
    for name, section in session.experiment.extensions.named.items():
        if section.capture_sizes:
            return f"extensions.{name}", sorted(set(section.capture_sizes))
    return None


def _captured_graphs(calls: Sequence[SizedCall]) -> Iterable[CapturedGraph]:
    """One for each graph of a call; of calls that differ, the most of each."""
    count = max(len(call.made) for call in calls)
    for at in range(count):
        alike = [call.made[at] for call in calls if at < len(call.made)]
        tasks = [one.counts.tasks for one in alike]
        yield CapturedGraph(
            name="main" if count == 1 else f"graph_{at}",
            layers=1,
            streams=max(one.counts.streams for one in alike),
            tasks=Interval(min(tasks), max(tasks)),
            events=max(one.counts.records for one in alike),
            joins=0,
            collectives=max(one.collectives for one in alike),
            communicators=tuple(sorted({name for one in alike for name in one.communicators})),
        )


def _bytes_by_size(calls: Sequence[SizedCall]) -> dict[int, Interval]:
    """What each size adds to one pool, the largest captured first."""
    found: dict[int, Interval] = {}
    before = (0, 0)
    captures: list[PoolRequests] = []
    for call in sorted(calls, key=lambda call: call.size, reverse=True):
        captures += [one.requests for one in call.made]
        low, high = pool_bytes(captures, shared=True)
        found[call.size] = Interval(low - before[0], high - before[1])
        before = low, high
    return found


def _facts(
    question: BudgetQuestion, sizes_are: str, calls: Sequence[SizedCall], found: CaptureBudget
) -> CaptureBudgetFacts:
    made = [one for call in calls for one in call.made]  # a run records in this order
    recordings = [one.recording for one in made if one.recording is not None]
    traced = set(question.sizes) == {call.size for call in calls}
    whole = traced and len(recordings) == len(made)
    why_not = None if traced else f"sizes of {sizes_are} are no calls of this model"
    kernels = [sum(one.counts.kernels for one in call.made) for call in calls]
    return CaptureBudgetFacts(
        soc=question.soc,
        sizes_of=sizes_are,
        sizes=tuple(
            CapturedSize(
                size=size,
                streams=_range(use.streams),
                tasks=_range(use.tasks),
                events=_range(use.events),
                nbytes=_range(use.nbytes) if question.nbytes else None,
            )
            for size, use in found.each.items()
        ),
        graphs=len(question.graphs),
        kernels=CaptureRange(low=min(kernels), high=max(kernels)),
        streams=_range(found.total.streams),
        tasks=_range(found.total.tasks),
        events=_range(found.total.events),
        nbytes=_range(found.total.nbytes) if question.nbytes else None,
        available=_range(found.available),
        certain=found.certain,
        possible=found.possible,
        recorded_bytes=_held(recordings, shared=True) if whole else None,
        recorded_apart_bytes=_held(recordings, shared=False) if whole else None,
        why_not_recorded=why_not or next((one.why_none for one in made if one.why_none), None),
        unknown=(*found.unknown, *(UNKNOWN if question.nbytes else ())),
        changes=tuple(
            CaptureChange(
                what=change.what,
                streams=_range(change.freed),
                events=_range(change.events),
                sizes=_range(change.sizes),
            )
            for change in found.changes
        ),
    )


def _held(recordings: Sequence[PlannedRecording], *, shared: bool) -> int:
    return recorder.needed("memory is not foretold").held_bytes(recordings, shared=shared)


def _range(interval: Interval) -> CaptureRange:
    return CaptureRange(low=int(interval.low), high=int(interval.high) if math.isfinite(interval.high) else None)


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
