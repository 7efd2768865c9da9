"""What the pass `stream_plan` is asked for (Streams) and what it found (Plan). Knows no graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from attrs import field, frozen

from npucompose.schema.device_model import Calibration
from npucompose.schema.names import NAME
from npucompose.schema.options import option

DEFAULT_STREAM = "default"


@frozen(kw_only=True)
class SourceMatch:
    """Lines of a source file: `{file: attn.py, lines: [40, 62]}`; the file matches by its last path parts."""

    file: str
    lines: tuple[int, int] | None = None

    def __attrs_post_init__(self) -> None:
        if self.lines is not None and not 1 <= self.lines[0] <= self.lines[1]:
            raise ValueError(f"'lines' must be [first, last], counted from 1: {list(self.lines)}")


@frozen(kw_only=True)
class Match:
    """Which nodes of an FX graph are meant; every field that is given must hold.

    `target` is an overload (`aten.mm.default`) or a packet (`aten.mm`); `name` a node name; `module` the dotted path
    in nn_module_stack. Text is an exact value, an fnmatch glob, or `re:` and a regular expression (full match).
    """

    target: str | None = None
    name: str | None = None
    module: str | None = None
    source: SourceMatch | None = None

    def __attrs_post_init__(self) -> None:
        if (self.target, self.name, self.module, self.source) == (None, None, None, None):
            raise ValueError("a match needs at least one of target, name, module, source")
        for field_name, text in (("target", self.target), ("name", self.name), ("module", self.module)):
            if text is None or not text.startswith("re:"):
                continue
            try:
                re.compile(text[3:])
            except re.error as error:
                raise ValueError(f"'{field_name}' is not a regular expression ({error}): {text!r}") from None

    def __str__(self) -> str:
        """As it stands in YAML: `target: aten.abs.default, name: abs_*`."""
        parts = {"target": self.target, "name": self.name, "module": self.module}
        words = [f"{key}: {value}" for key, value in parts.items() if value is not None]
        if self.source is not None:
            lines = f":{self.source.lines[0]}-{self.source.lines[1]}" if self.source.lines else ""
            words.append(f"source: {self.source.file}{lines}")
        return ", ".join(words)


@frozen(kw_only=True)
class Cores:
    """At most so many cores (TorchAir's limit_core_num)."""

    aicore: int = option(doc="cube cores", ge=1)
    vectorcore: int = option(doc="vector cores", ge=1)


@frozen(kw_only=True)
class PlanEntry:
    """Put what `match` finds on `stream`; entries are read in order and the first that matches a node wins.

    `cores` is the limit of that stream's kernels: `{aicore: 8, vectorcore: 16}`.
    """

    stream: str
    match: Match
    priority: int = 0
    cores: Cores | None = None

    def __attrs_post_init__(self) -> None:
        if not self.stream:
            raise ValueError("'stream' must be a name, '' is none")
        if self.stream == DEFAULT_STREAM and self.priority:
            raise ValueError(f"the stream '{DEFAULT_STREAM}' is not ours: it takes no priority")
        if self.stream == DEFAULT_STREAM and self.cores is not None:
            raise ValueError(f"the stream '{DEFAULT_STREAM}' is not ours: limit its cores with the pass core_limit")


@frozen(kw_only=True)
class ExtraEdge:
    """An order that no data asks for: everything `before` finds waits for everything `after` finds."""

    after: Match
    before: Match


Objective = Literal["makespan", "events", "streams", "ge"]
Cost = Literal["none", "roofline", "measured"]


@frozen(kw_only=True)
class Streams:
    """What a plan should look like. Users never write events for data; they are derived.

    An explicit `plan` wins over `kind: auto`; `edges` add order to either kind. Only a plan that was found is weighed
    (`min_gain`), by a trial where one can be made: what a person wrote is followed, and its predicted time reported.
    """

    name: str = option("auto", "the choice of conf/streams this is", name=NAME)
    kind: Literal["auto", "explicit", "none"] = option(
        "auto", "find chains, follow `plan`, or leave one stream", choices=("auto", "explicit", "none")
    )
    objective: Objective = option(
        "makespan",
        "what an automatic plan minimises: predicted time, events at full concurrency, streams at full concurrency; "
        "ge: as GE's own allocator would, to compare with",
        choices=("makespan", "events", "streams", "ge"),
    )
    cost: Cost = option(
        "roofline",
        "how long a kernel takes: unknown, estimated from shapes, or measured on this very graph (target=cpu)",
        choices=("none", "roofline", "measured"),
    )
    min_gain: float = option(
        0.02,
        "an automatic plan must save this share of the time, or it is not applied; 0: always, paying or not",
        ge=0,
        le=1,
    )
    trial_ms: float = option(
        50.0,
        "at capture an automatic plan and one stream are timed in turns for at most so long, and the faster is kept, "
        "where the target can; 0: the prediction decides",
        ge=0,
        le=1e9,
    )
    max_streams: int = option(2, "at most so many streams, the default one included", ge=1)
    plan: tuple[PlanEntry, ...] = option(factory=tuple, doc="explicit assignment; all else stays on the default stream")
    edges: tuple[ExtraEdge, ...] = option(factory=tuple, doc="extra order between nodes")
    on_no_match: Literal["error", "warn"] = option("error", "when an entry finds no node", choices=("error", "warn"))
    unsafe: Literal["fix", "error"] = option(
        "fix", "streams in the model's source that lack events: derive them, or refuse", choices=("fix", "error")
    )
    override: bool = option(False, "replace the streams that stand in the model's source")
    check: int = option(0, "so many random orders that the plan allows are executed on the CPU; all bits equal", ge=0)
    device: Calibration = option(factory=Calibration, doc="figures that replace those of the target's device model")

    def __attrs_post_init__(self) -> None:
        if self.kind == "none" and (self.plan or self.edges):
            raise ValueError("'kind: none' follows no plan: remove 'plan' and 'edges', or say 'kind: explicit'")
        if self.kind == "explicit" and not (self.plan or self.edges):
            raise ValueError("'kind: explicit' needs entries in 'plan' or 'edges'")


@frozen(kw_only=True)
class Event:
    """`waiter` starts only after `recorder` is done; both are node names on different streams."""

    recorder: str
    waiter: str


@frozen(kw_only=True)
class Plan:
    """Streams are chosen, events follow: `nodes` maps every planned node to its stream, in execution order."""

    nodes: Mapping[str, str] = field(factory=dict[str, str])
    events: tuple[Event, ...] = ()
    priorities: Mapping[str, int] = field(factory=dict[str, int])
    """{stream: priority} of the streams that have one other than 0."""
    cores: Mapping[str, Cores] = field(factory=dict[str, Cores])
    """{stream: limit} of the streams that have one."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams in use, the default one first when it is used, then in order of appearance."""
        seen = dict.fromkeys(self.nodes.values())
        return tuple(sorted(seen, key=lambda s: s != DEFAULT_STREAM))

    def as_dict(self) -> dict[str, Any]:
        return {"streams": len(self.streams), "events": len(self.events), "nodes": dict(self.nodes)}


@frozen(kw_only=True)
class Timeline:
    """When each kernel ran: as predicted by a simulation, or as measured. Times in microseconds, parallel tuples."""

    source: Literal["predicted", "measured"]
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


@frozen(kw_only=True)
class Prediction:
    """What a simulation says of a plan. It compares plans of one graph; it is no measurement."""

    device: str
    """Name of the device model."""
    cost: Cost
    plan_us: float
    serial_us: float
    critical_us: float
    """The heaviest path: no number of streams is faster."""
    busy: Mapping[str, float] = field(factory=dict[str, float])
    """{stream: share of plan_us in which it works}."""
    peak_bytes: int = 0
    """Most bytes of intermediate results that live at once."""
    serial_peak_bytes: int = 0

    @property
    def gain(self) -> float:
        """Share of the serial time that the plan saves."""
        return 1 - self.plan_us / self.serial_us if self.serial_us else 0.0


@frozen(kw_only=True)
class Trial:
    """What a capture is asked to find out: is the plan that stands in the graph faster here than one stream?"""

    ms: float
    """At most so long."""
    min_gain: float
    """The share of one stream's time that it has to save."""
    predicted_us: float | None = None
    """Of the plan; None where nothing is predicted."""
    predicted_serial_us: float | None = None

    @property
    def predicted_gain(self) -> float | None:
        if self.predicted_us is None or not self.predicted_serial_us:
            return None
        return 1 - self.predicted_us / self.predicted_serial_us

    @property
    def is_expected_to_pay(self) -> bool:
        """What decides where the plan cannot be tried; without a prediction a plan is applied."""
        gain = self.predicted_gain
        return gain is None or gain >= self.min_gain


@frozen(kw_only=True)
class Verdict:
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

    @property
    def gain(self) -> float | None:
        """Share of one stream's time that the plan saves."""
        if self.plan_us is None or not self.one_stream_us:
            return None
        return 1 - self.plan_us / self.one_stream_us


@frozen(kw_only=True, eq=False)
class Decision:
    """What the pass did with a graph, and why."""

    applied: bool
    why: str
    validated: bool = True
    """Every order that the kernels need was proven to be kept."""
    trial: Trial | None = None
    """Set where the capture has the last word: `applied` says only that the plan stands in the graph."""
    tell: Callable[[], tuple[Prediction, Timeline]] | None = None
    """What is predicted of the plan; worked out when somebody reads it, because nobody who compiles waits for it."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is told already: it may outlive the graph or leave the process (npugraph_ex pickles its graph)."""
        told = self.told
        return _decided, (self.applied, self.why, self.validated, self.trial, *told)

    @cached_property
    def told(self) -> tuple[Prediction | None, Timeline | None]:
        return self.tell() if self.tell is not None else (None, None)

    @property
    def prediction(self) -> Prediction | None:
        return self.told[0]

    @property
    def timeline(self) -> Timeline | None:
        return self.told[1]


def _decided(
    applied: bool,
    why: str,
    validated: bool,
    trial: Trial | None,
    prediction: Prediction | None,
    timeline: Timeline | None,
) -> Decision:
    known = None if prediction is None or timeline is None else (prediction, timeline)
    return Decision(applied=applied, why=why, validated=validated, trial=trial, tell=known and (lambda: known))
