"""What the captures of an experiment take: its graphs' counts and bytes for each size, against `target.soc`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from npucompose import recorder
from npucompose.compose.session import Session
from npucompose.npu.capture.budget import (
    BudgetQuestion,
    CaptureBudget,
    CapturedGraph,
    CommunicatorGroup,
    Interval,
    capture_budget,
)
from npucompose.npu.capture.pool import UNKNOWN, PoolRequests, pool_bytes
from npucompose.recorder import PlannedRecording
from npucompose.results.capture_budget import CaptureBudgetFacts, CaptureChange, CapturedSize, CaptureRange
from npucompose.schema.experiment import Call, dimension_of
from npucompose.targets.foretelling import ForetoldCall
from npucompose.vendor.devices import device_of

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
        graphs=tuple(_graphs(calls)),
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


def _graphs(calls: Sequence[SizedCall]) -> Iterable[CapturedGraph]:
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
