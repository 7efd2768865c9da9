"""A plan of streams, when its kernels ran, what is predicted of it and what a trial found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from attrs import field, frozen

from npucompose.schema.streams import DEFAULT_STREAM, Cores, CostSource


@frozen(kw_only=True)
class StreamEvent:
    """`waiter` starts only after `recorder` is done; both are node names on different streams."""

    recorder: str
    waiter: str


@frozen(kw_only=True)
class StreamAssignment:
    """Streams are chosen, events follow: `nodes` maps every planned node to its stream, in execution order."""

    nodes: Mapping[str, str] = field(factory=dict[str, str])
    events: tuple[StreamEvent, ...] = ()
    priorities: Mapping[str, int] = field(factory=dict[str, int])
    """{stream: priority} of the streams that have one other than 0."""
    cores: Mapping[str, Cores] = field(factory=dict[str, Cores])
    """{node: limit} of the nodes that have one."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams in use, the default one first when it is used, then in order of appearance."""
        seen = dict.fromkeys(self.nodes.values())
        return tuple(sorted(seen, key=lambda s: s != DEFAULT_STREAM))


@frozen(kw_only=True)
class Timeline:
    """When each kernel ran: as predicted by a simulation, or as measured. Times in microseconds, parallel tuples."""

    source: Literal["predicted", "measured", "predicted on one stream", "measured on one stream"]
    nodes: tuple[str, ...]
    streams: tuple[str, ...]
    start_us: tuple[float, ...]
    end_us: tuple[float, ...]
    events: tuple[tuple[str, str], ...] = ()
    """(recorder, waiter)."""
    counters: Mapping[str, tuple[tuple[float, float], ...]] = field(factory=dict[str, tuple[tuple[float, float], ...]])
    """{name: ((time, value from then on), …)}: cores in use, bytes alive."""


Timelines = Sequence[tuple[str, Timeline]]
"""(name of a graph, timeline); a graph may come twice, predicted and measured."""


@frozen(kw_only=True)
class StreamTimes:
    """How the streams of one graph really ran: the replay of median length, and the same kernels on one thread."""

    timeline: Timeline
    plan_us: float
    serial_us: float
    one_stream: Timeline | None = None


def gain_interval(predictions: Sequence[Prediction]) -> tuple[float, float] | None:
    """(low, high) of the share of one stream's time that plans of several graphs save together; None: nobody knows.

    Where the spread is s, the plans' times may be longer by it and one stream's not, or the other way round.
    """
    known = [(one.plan_us, one.serial_us, one.spread) for one in predictions if one.spread is not None]
    serial = sum(us for _, us, _ in known)
    if len(known) < len(predictions) or not serial:
        return None
    low = 1 - sum(us * (1 + spread) for us, _, spread in known) / serial
    return low, 1 - sum(us / (1 + spread) for us, _, spread in known) / serial


def least_gain(gain: float, spread: float) -> float:
    """The lower end of a predicted gain, where the plan's times may be longer by the share `spread`, and one stream's
    need not be: `least_gain(0.2, 0.1)` is 0.12."""
    return 1 - (1 - gain) * (1 + spread)


def most_gain(gain: float, spread: float) -> float:
    """The upper end of it, where one stream's times may be longer and the plan's need not be."""
    return 1 - (1 - gain) / (1 + spread)


@frozen(kw_only=True)
class ProfileUse:
    """Rows of an NPU's profile that a prediction was made of."""

    files: tuple[str, ...]
    soc: str
    cann: str
    """Version of CANN, as it was given when the profile was imported."""
    digest: str
    """Of the table."""
    kernels: int
    """Kernels of the graph that were found in it."""
    by_shapes: int
    """All others, whose times the roofline gave."""
    rows: int
    """Rows of the profile in `entries`."""
    entries: Mapping[str, int] = field(factory=dict[str, int])
    """{`mm at 4194304 bytes`: rows of the profile}."""

    @classmethod
    def together(cls, several: Sequence[ProfileUse]) -> ProfileUse:
        """Of several graphs, with one table."""
        entries = {name: rows for one in several for name, rows in one.entries.items()}
        return cls(
            files=several[0].files,
            soc=several[0].soc,
            cann=several[0].cann,
            digest=several[0].digest,
            kernels=sum(one.kernels for one in several),
            by_shapes=sum(one.by_shapes for one in several),
            rows=sum(entries.values()),
            entries=entries,
        )

    @property
    def words(self) -> str:
        """`212 rows of kernel_details.csv (ascend910b1, CANN 8.5.0) for 14 kernels, shapes for 2`."""
        more = f", shapes for {self.by_shapes}" if self.by_shapes else ""
        files = ", ".join(self.files)
        return f"{self.rows} rows of {files} ({self.soc}, CANN {self.cann}) for {self.kernels} kernels{more}"


@frozen(kw_only=True)
class Prediction:
    """What a simulation says of a plan. It compares plans of one graph; it is no measurement."""

    device: str
    """Name of the device model."""
    cost: CostSource
    plan_us: float
    serial_us: float
    critical_us: float
    """The heaviest path: no number of streams is faster."""
    busy: Mapping[str, float] = field(factory=dict[str, float])
    """{stream: share of plan_us in which it works}."""
    peak_bytes: int = 0
    """Most bytes of intermediate results that may be alive at once, however long each kernel takes; what the graph
    reads and returns is not counted."""
    serial_peak_bytes: int = 0
    spread: float | None = None
    """By which share the times of kernels that it is made of may be longer; None: nobody knows."""
    intra_op_threads: int | None = None
    """Threads that a kernel on one stream may take in `serial_us`; None: it runs on cores, not on threads."""
    profile: ProfileUse | None = None
    """What of a profile the times are made of; None where they come from elsewhere."""

    @property
    def gain(self) -> float:
        """Share of the serial time that the plan saves."""
        return 1 - self.plan_us / self.serial_us if self.serial_us else 0.0


@frozen(kw_only=True)
class TrialRequest:
    """What a capture is asked to find out: is the plan that stands in the graph faster here than one stream?"""

    ms: float
    """At most so long."""
    min_gain: float
    """The share of one stream's time that it has to save."""
    predicted_us: float | None = None
    """Of the plan; None where nothing is predicted."""
    predicted_serial_us: float | None = None
    spread: float | None = None
    """By which share the times that the prediction is made of may be longer; None: nobody knows."""

    @property
    def predicted_gain(self) -> float | None:
        if self.predicted_us is None or not self.predicted_serial_us:
            return None
        return 1 - self.predicted_us / self.predicted_serial_us

    @property
    def is_expected_to_pay(self) -> bool:
        """What decides where the plan cannot be tried; without a prediction a plan is applied."""
        gain = self.predicted_gain
        return gain is None or least_gain(gain, self.spread or 0.0) >= self.min_gain


@frozen(kw_only=True)
class TrialVerdict:
    """What the trial of one recording found; times in microseconds, the 10th and the 90th percentile of `turns`."""

    applied: bool
    why: str = ""
    """Why the plan was not tried, or is not kept although it is faster; '' where the times say it all."""
    turns: int = 0
    """0 where it was not tried."""
    plan_us: float | None = None
    plan_p90_us: float | None = None
    one_stream_us: float | None = None
    one_stream_p90_us: float | None = None
    threads: int = 0
    """Of the plan, one for each kernel; 0 where it was not tried."""
    intra_op_threads: int = 0
    """Of a kernel on one stream: torch's."""

    @property
    def gain(self) -> float | None:
        """Share of one stream's time that the plan saves."""
        if self.plan_us is None or not self.one_stream_us:
            return None
        return 1 - self.plan_us / self.one_stream_us


@frozen(kw_only=True)
class Fallback:
    """How often the streams of a recording were left for one stream, because they took longer: the machine was busy."""

    replays: int
    alone: int
    """Of them on one stream; the few that time it count too."""
    falls: int
    """How often the streams were given up."""
    trials: int
    """How often they were tried again."""

    @classmethod
    def together(cls, several: Sequence[Fallback]) -> Fallback:
        """Those of several recordings, added."""
        return cls(
            replays=sum(one.replays for one in several),
            alone=sum(one.alone for one in several),
            falls=sum(one.falls for one in several),
            trials=sum(one.trials for one in several),
        )


@frozen(kw_only=True)
class PredictedPlan:
    """The simulation of a plan in a few figures, and as drawings: as planned, and the same kernels in a row."""

    figures: Prediction
    timeline: Timeline
    one_stream: Timeline | None = None
    """None for a plan of one stream."""


@frozen(kw_only=True, eq=False)
class Decision:
    """What the pass did with a graph, and why."""

    applied: bool
    why: str
    validated: bool = True
    """Every order that the kernels need was proven to be kept."""
    trial: TrialRequest | None = None
    """Set where the capture has the last word: `applied` says only that the plan stands in the graph."""
    max_memory: str | None = None
    """What `streams.max_memory` was; a capture that places memory keeps to it."""
    predict: Callable[[], PredictedPlan] | None = None
    """What is predicted of the plan; worked out when somebody reads it, because nobody who compiles waits for it."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has its prediction: it may outlive the graph or leave the process (npugraph_ex pickles its graph)."""
        return _decided, (self.applied, self.why, self.validated, self.trial, self.max_memory, self._predicted)

    @cached_property
    def _predicted(self) -> PredictedPlan | None:
        return self.predict() if self.predict is not None else None

    @property
    def prediction(self) -> Prediction | None:
        return self._predicted.figures if self._predicted else None

    @property
    def timeline(self) -> Timeline | None:
        return self._predicted.timeline if self._predicted else None

    @property
    def one_stream(self) -> Timeline | None:
        return self._predicted.one_stream if self._predicted else None


def _decided(
    applied: bool,
    why: str,
    validated: bool,
    trial: TrialRequest | None,
    max_memory: str | None,
    predicted: PredictedPlan | None,
) -> Decision:
    predict = (lambda: predicted) if predicted else None
    return Decision(applied=applied, why=why, validated=validated, trial=trial, max_memory=max_memory, predict=predict)


@frozen(kw_only=True)
class StreamFacts:
    """The stream plan of a run."""

    streams: int
    events: int
    nodes: Mapping[str, str] = field(factory=dict[str, str])
    validated: bool = False
    applied: bool = True
    why: str = ""
    """Why it was applied, or was not."""
    device: str | None = None
    """The device model that the prediction is for; a prediction compares plans and is no measurement."""
    cost: CostSource | None = None
    predicted_us: float | None = None
    serial_us: float | None = None
    gain_interval: tuple[float, float] | None = None
    """[low, high] of the share of `serial_us` that is predicted to be saved; None where nobody knows how far times may
    be off."""
    intra_op_threads: int | None = None
    """Threads that a kernel on one stream may take, torch's; a kernel of a stream beside others has one."""
    profile: ProfileUse | None = None
    """Rows of an NPU's profile that the prediction is made of (`streams.profile`)."""
    critical_us: float | None = None
    busy: Mapping[str, float] = field(factory=dict[str, float])
    """{stream: share of predicted_us in which it works}."""
    peak_bytes: int | None = None
    """Predicted: the most bytes of intermediate results that may be alive at once, however long each kernel takes."""
    serial_peak_bytes: int | None = None
    """The same on one stream."""
    pool_bytes: int | None = None
    """What the recordings of the plan do take for them; None where nobody places memory."""
    one_stream_pool_bytes: int | None = None
    """What the same recordings would take on one stream."""
    trials: tuple[TrialVerdict, ...] = ()
    """What was found of each recording where the plan was tried at capture: the times of the plan and of one stream."""
    threads: int | None = None
    """Threads on which the streams were executed, the calling one included; None where the target does not say."""
    why_threads: str = ""
    """Why there was but one."""
    fallback: Fallback | None = None
    """Where streams took longer than one stream and were left for it; None where that did not happen."""
    measured_us: float | None = None
    """Of a replay on these threads, on a clock that looks at every kernel; several graphs' are added."""
    measured_serial_us: float | None = None
    """Of the same kernels on one thread."""

    prediction_error: float | None = None
    """By how much `predicted_us` is off, as a share of `measured_us`; None below a millisecond, where looking at the
    clock takes part of the time, and where not every graph was measured."""
