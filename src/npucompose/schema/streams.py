"""What the pass `stream_plan` is asked for (Streams) and what it found (Plan). Knows no graph."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from typing import Literal

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.schema.sizes import MemoryBound
from npucompose.table.options import NAME, option
from npucompose.vendor.devices import Calibration

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


Objective = Literal["makespan", "time", "events", "streams", "ge"]

GE_POLICY = re.compile(r"cv|(LoadBalance|MainStream):([1-9]|[1-5]\d|6[0-4])")
DEFAULT_GE_POLICY = "LoadBalance:8"

Cost = Literal["none", "roofline", "calibrated", "measured"]
CostSource = Literal["none", "roofline", "calibrated", "measured", "profile"]
"""Where times came from: a table may be a profile's."""


@frozen(kw_only=True)
class Streams:
    """What a plan should look like. Users never write events for data; they are derived.

    An explicit `plan` wins over `kind: auto`; `edges` add order to either kind. Only a plan that was found is weighed
    (`min_gain`), by a trial where one can be made: what a person wrote is followed, and its predicted time reported.
    """

    name: str = option("auto", "the choice of conf/streams this is", name=NAME)
    kind: Literal["auto", "explicit", "none"] = option("auto", "make a plan, follow `plan`, or use one stream")
    objective: Objective = option(
        "makespan",
        "what an automatic plan minimises: makespan: predicted time, with few events; "
        "time: predicted time alone; events, streams: their number at full concurrency; "
        "ge: nothing, it plans as GE's own allocator would, to compare with",
    )
    ge_policy: str = option(
        DEFAULT_GE_POLICY,
        "with objective=ge: a value of GE's option ge.autoMultistreamParallelMode: cv, LoadBalance:N or MainStream:N; "
        "N (1 to 64) and max_streams both limit the streams",
    )
    cost: Cost = option(
        "calibrated",
        "time of a kernel: none: unknown; roofline: estimated from shapes; calibrated: from a table, measured once on "
        "this machine (target=cpu in the modes that capture) or of an NPU (`profile`; elsewhere roofline); measured: "
        "on this graph (target=cpu)",
    )
    profile: str | None = option(
        None, "a table of an NPU's kernels, which `npucompose profile` wrote, for cost=calibrated"
    )
    min_gain: float = option(
        0.02,
        "an automatic plan must save this share of the time, or it is not applied; 0: it is always applied",
        ge=0,
        le=1,
    )
    trial_ms: float = option(
        50.0,
        "at capture an automatic plan and one stream are timed alternately for this long at most (four times that if "
        "the machine is too unsteady), if the target can, and the faster is kept; 0: the prediction decides",
        ge=0,
        le=1e9,
    )
    max_streams: int = option(2, "maximum number of streams, including the default one", ge=1)
    split_cores: bool = option(
        False,
        "an automatic plan may divide the device's cores between streams whose kernels fill it, if the mode can limit "
        "cores",
    )
    max_memory: str | None = option(
        None,
        "memory limit for the intermediate results of a graph, at the price of time: a size (512MiB) or "
        "a multiple of what one stream takes (1.2x); null: as much as the plan needs",
    )
    plan: tuple[PlanEntry, ...] = option(factory=tuple, doc="explicit assignment; all else stays on the default stream")
    edges: tuple[ExtraEdge, ...] = option(factory=tuple, doc="additional order between nodes")
    on_no_match: Literal["error", "warn"] = option("error", "when an entry matches no node")
    unsafe: Literal["fix", "error"] = option(
        "fix", "streams in the model's source that lack events: derive them, or refuse"
    )
    override: bool = option(False, "replace the streams in the model's source")
    check: int = option(
        0, "number of random orders allowed by the plan to run on the CPU; results must be bit-identical", ge=0
    )
    device: Calibration = option(factory=Calibration, doc="figures that replace those of the target's device model")

    def __attrs_post_init__(self) -> None:
        if not GE_POLICY.fullmatch(self.ge_policy):
            raise ValueError(
                f"'ge_policy' must be cv, LoadBalance:N or MainStream:N with N from 1 to 64: {self.ge_policy!r}"
            )
        if self.kind == "none" and (self.plan or self.edges):
            raise ValueError("'kind: none' follows no plan: remove 'plan' and 'edges', or say 'kind: explicit'")
        if self.kind == "none" and self.max_memory is not None:
            raise ValueError("'kind: none' plans nothing: remove 'max_memory', or say 'kind: auto'")
        if self.kind == "explicit" and not (self.plan or self.edges):
            raise ValueError("'kind: explicit' needs entries in 'plan' or 'edges'")
        if self.profile is not None and self.cost != "calibrated":
            raise ValueError(f"'profile' is a table for 'cost: calibrated', and 'cost: {self.cost}' asks for none")
        try:
            _ = self.memory_bound
        except ValueError as error:
            raise ValueError(f"'max_memory' {error}") from None

    @property
    def files(self) -> tuple[str, ...]:
        """Files whose content the plan depends on."""
        return () if self.profile is None else (os.path.abspath(self.profile),)

    @property
    def memory_bound(self) -> MemoryBound | None:
        """What `max_memory` says."""
        return None if self.max_memory is None else MemoryBound.from_text(self.max_memory)


REGEX = "re:"


def fits(pattern: str, text: str) -> bool:
    """Exact text, an fnmatch glob, or `re:` and a regular expression for the whole text; re.error where it is none."""
    if pattern.startswith(REGEX):
        return re.fullmatch(pattern.removeprefix(REGEX), text) is not None
    return pattern == text or fnmatchcase(text, pattern)


def matches(pattern: str, name: str) -> bool:
    """`fits`, with a ConfigError for a regular expression that is none."""
    try:
        return fits(pattern, name)
    except re.error as error:
        raise ConfigError(f"'{pattern}' @ shapes is not a regular expression: {error}.") from error


@frozen(kw_only=True)
class CoreRegion(Cores):
    """`{aicore: 8, vectorcore: 16, match: {module: "re:.*shared_expert.*"}}`: what matches may use so many cores."""

    match: Match


@frozen(kw_only=True)
class SuperKernelRegion:
    """`{scope: attention, match: {module: "re:.*attn"}}`: what matches becomes one kernel."""

    scope: str = option(doc="name of the super kernel; a second run of matching operators gets the name and _1")
    options: str = option("", "as GE takes them: `feed-sync-all=1:stream-fusion=1`")
    match: Match

    def __attrs_post_init__(self) -> None:
        if not self.scope:
            raise ValueError("'scope' must be a name: with an empty one GE takes operators out of a super kernel")
