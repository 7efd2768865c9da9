"""report.json as frozen values: what one run asked for, did and measured. Knows no torch and no disk.

The field names are the contract of docs/report.md, which explains each one; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from attrs import field, fields, frozen

from npucompose.errors import ConfigError, unknown
from npucompose.npu.capture.records import CaptureLegality
from npucompose.npu.static_graph.records import SinkingFacts
from npucompose.npu.torchair.records import NpuFacts
from npucompose.results.effective import Effective
from npucompose.results.graphs import Outside, Partition, PassFacts, Winner
from npucompose.results.measured import (
    AblationFacts,
    CallStatistics,
    Candidate,
    GenerateFacts,
    MemoryFacts,
    ModeFacts,
    Numerics,
    Overwrites,
    PaddingFacts,
    TimeSamples,
)
from npucompose.results.streams import StreamFacts
from npucompose.table.structure import facts_of, of_facts
from npucompose.version import __version__

SCHEMA = 1
"""Version of the field names below: grows when a field changes its meaning or goes, not when one is added. 1: the
first; docs/stability.md says what changed with each."""

Status = Literal[
    "ok", "uncompiled", "expect_failed", "numerics_failed", "illegal", "failed", "timeout", "memory_limit", "crashed"
]
"""`uncompiled`: as `ok`, of a run whose calls, or some of them, ran eagerly in a mode that compiles."""

STATUSES: tuple[Status, ...] = get_args(Status)

EXIT_STATUS: Mapping[Status, int] = {
    "ok": 0,
    "uncompiled": 0,
    "expect_failed": 1,
    "numerics_failed": 1,
    "illegal": 2,
    "failed": 3,
    "timeout": 3,
    "memory_limit": 3,
    "crashed": 3,
}
"""What the command line ends with."""


@frozen(kw_only=True)
class Environment:
    """The machine and the software of a run; holds no host name and no path."""

    versions: Mapping[str, str] = field(factory=dict[str, str])
    platform: str = ""
    cpu: Mapping[str, Any] = field(factory=dict[str, Any])
    device: Mapping[str, str] = field(factory=dict[str, str])
    threads: Mapping[str, int | str] = field(factory=dict[str, int | str])
    torch_build: Mapping[str, str] = field(factory=dict[str, str])
    git_commit: str | None = None
    git_dirty: bool | None = None


@frozen(kw_only=True)
class GraphFacts:
    """One graph that Dynamo made, before and after the passes."""

    id: str
    fingerprint: str
    nodes_before: int
    nodes_after: int
    fx: Literal["static", "dynamic"]
    symbols: tuple[str, ...] = ()
    partition: Partition | None = None
    """How it was cut into recordings; None where the mode or the target records nothing of it."""
    npu_refuses: tuple[Outside, ...] = ()
    """What an NPU's compiler takes no graph for; said by targets that stand for one."""
    overwrites: Overwrites | None = None
    """Its runs in one call of the model, where each overwrites the results of the one before; else None."""
    winners: tuple[Winner, ...] = ()
    """Who computes what could be computed in several ways, and what was measured of each."""


@frozen(kw_only=True)
class Recompile:
    """A call that the compiled code did not fit: the guard that failed, and what would have spared it."""

    compile_id: str
    reason: str
    argument: str | None = None
    """The model's argument that the guard is about; None where it is about none."""
    call: str | None = None
    """In which call it happened."""
    avoid: str | None = None
    """The YAML or the change that avoids it, or that there is none."""


@frozen(kw_only=True)
class CompileTimes:
    """Seconds until the first call of the compiled model could begin, by who spent them."""

    dynamo_s: float | None = None
    aot_s: float | None = None
    passes_s: float | None = None
    backend_s: float | None = None
    total_s: float


@frozen(kw_only=True)
class CaptureFacts:
    seconds: float
    captures: int = 1
    kernels: int | None = None
    """Calls that one replay makes."""
    executor: str | None = None
    """Who replays; several recordings may have several."""
    why_executor: str | None = None
    """Why it is not the one that was asked for."""
    detached: bool = True
    why_attached: str | None = None
    """Why there is no detached handle."""
    ran: CallStatistics | None = None
    """How the calls so far ran; None where the target does not say."""


@frozen(kw_only=True)
class ReplayFacts:
    first_us: float
    replays: int = 1
    detached_ended: str | None = None
    """Why the detached handle was compared on fewer steps than the compiled model; None where it was on all."""


@frozen(kw_only=True)
class CallFacts:
    """One declared call, compared with eager."""

    call: str
    """What it changes in the inputs; `the example inputs` for the first."""
    recompiles: int
    passed: bool
    max_abs_err: float | None


@frozen(kw_only=True)
class SequenceFacts:
    """The calls of `model.sequence` after the first, and what they cost all together."""

    calls: tuple[CallFacts, ...]
    graphs: int
    """FX graphs that were compiled for all calls."""
    captures: int
    """Recordings that were made for all calls."""
    ran: CallStatistics | None = None
    """How these calls ran; None where the target does not say."""


@frozen(kw_only=True)
class ProfileFacts:
    """Calls under the device's profiler, after the timed ones; no time of theirs is in a report."""

    candidate: Candidate
    calls: int
    """In each window."""
    files: tuple[str, ...]
    """A Chrome trace for each window, in the run's folder."""


@frozen(kw_only=True)
class BenchmarkFacts(TimeSamples):
    """The samples are those of `candidate`: the detached handle where there is one, else the compiled model."""

    candidate: Candidate = "replay"
    baselines: Mapping[str, TimeSamples] = field(factory=dict[str, TimeSamples])
    speedup: Mapping[str, float] = field(factory=dict[str, float])
    speedup_compiled: Mapping[str, float] = field(factory=dict[str, float])
    profile: ProfileFacts | None = None
    """None: not asked for."""


@frozen(kw_only=True)
class Stages:
    """One field for each stage; None for a stage that was not wanted or not reached."""

    compile: CompileTimes | None = None
    capture: CaptureFacts | None = None
    replay: ReplayFacts | None = None
    padding: PaddingFacts | None = None
    benchmark: BenchmarkFacts | None = None
    ablation: AblationFacts | None = None
    modes: ModeFacts | None = None
    sequence: SequenceFacts | None = None
    generate: GenerateFacts | None = None
    installed: Mapping[str, Mapping[str, Any]] = field(factory=dict[str, Mapping[str, Any]])
    """{stage of an installed package: its facts}."""


@frozen(kw_only=True)
class StageRun:
    """How a stage's facts came into this report: `reused` ones were read from the store."""

    stage: str
    key: str
    reused: bool
    seconds: float


@frozen(kw_only=True)
class Expectation:
    """One `expect.x` of the experiment and what came out."""

    name: str
    wanted: Any
    got: Any
    held: bool
    evidence: tuple[str, ...] = ()
    """Where `got` comes from: the guard, the step of the diagnosis, the graph, the comparison."""


@frozen(kw_only=True)
class Report:
    """One run. as_dict is plain JSON and from_dict its inverse (`experiment` and the like are plain JSON already)."""

    schema: int = SCHEMA
    key: str
    status: Status
    error: str | None = None
    last_lines: tuple[str, ...] = ()
    log_cut_bytes: int = 0
    """What the worker printed beyond `pipeline.log_limit_mb`, its last lines excepted: it is not kept."""
    reused: bool = False
    experiment: Mapping[str, Any]
    provenance: Mapping[str, str] = field(factory=dict[str, str])
    effective: tuple[Effective, ...] = ()
    environment: Environment | None = None
    compiled: bool | None = None
    """Every call ran what the mode makes of a graph; None where it makes nothing, or no graph came that far."""
    graphs: tuple[GraphFacts, ...] = ()
    passes: tuple[PassFacts, ...] = ()
    rejected: tuple[str, ...] = ()
    """A sentence for each operator that an adaptation rule rejected, which ended the compilation."""
    streams: StreamFacts | None = None
    sinking: SinkingFacts | None = None
    capture: CaptureLegality | None = None
    """Whether an NPU would capture the model (the stage legality)."""
    recompiles: tuple[Recompile, ...] = ()
    stages: Stages = field(factory=Stages)
    numerics: Numerics | None = None
    npu: NpuFacts | None = None
    memory: MemoryFacts | None = None
    expectations: tuple[Expectation, ...] = ()
    records: tuple[StageRun, ...] = ()

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.status]

    def as_dict(self) -> dict[str, Any]:
        return facts_of(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Report:
        """The report in `data`; fields that this version does not know are left out. ConfigError says what is wrong."""
        version = data.get("schema")
        if version != SCHEMA:
            raise ConfigError(
                f"report: 'schema' is {version!r}; this version of npucompose reads schema {SCHEMA}. "
                f"It is {__version__}."
            )
        if data.get("status") not in STATUSES:
            raise ConfigError("report: " + unknown("status", str(data.get("status")), STATUSES))
        return of_facts(Report, data, where="report")


@frozen(kw_only=True)
class Figures:
    """One run as one row of a table, read from its report.

    A figure is None where it was not measured, or where results were wrong.
    """

    model: str | None = None
    target: str | None = None
    mode: str | None = None
    shapes: str | None = None
    passes: str | None = None
    streams: str | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    speedup: float | None = None
    compile_s: float | None = None
    pool_bytes: int | None = None
    peak_rss_bytes: int | None = None
    token_rate: float | None = None
    """Tokens per second of greedy generation; of several sizes, like the two below, of the first."""
    first_token_us: float | None = None
    per_token_us: float | None = None

    @staticmethod
    def from_report(report: Report) -> Figures:
        experiment, stages, memory = report.experiment, report.stages, report.memory
        right = report.status != "numerics_failed"
        times = stages.benchmark if right else None
        text = stages.generate.points[0].best if stages.generate and right else None
        return Figures(
            model=choice_name(experiment, "model"),
            target=choice_name(experiment, "target"),
            mode=choice_name(experiment, "mode"),
            shapes=choice_name(experiment, "shapes"),
            passes=",".join(_mapping(experiment.get("passes"))),
            streams=choice_name(experiment, "streams") if report.streams is not None else None,
            p50_us=times.p50_us if times else None,
            p99_us=times.p99_us if times else None,
            speedup=times.speedup.get("eager") if times else None,
            compile_s=stages.compile.total_s if stages.compile else None,
            pool_bytes=memory.pool_bytes if memory else None,
            peak_rss_bytes=memory.peak_rss_bytes if memory else None,
            token_rate=text.tokens_per_s if text else None,
            first_token_us=text.first.p50_us if text and text.first else None,
            per_token_us=text.per_token_us if text else None,
        )


CHOICES: tuple[str, ...] = ("model", "target", "mode", "shapes", "passes", "streams")

MEASURED: tuple[str, ...] = tuple(f.name for f in fields(Figures) if f.name not in CHOICES)


def figure_stage(figure: str) -> str:
    """The stage without which there is no such figure."""
    texts = dict.fromkeys(("token_rate", "first_token_us", "per_token_us"), "generate")
    return {"compile_s": "compile", "pool_bytes": "capture", **texts}.get(figure, "benchmark")


def choice_name(experiment: Mapping[str, Any], group: str) -> str | None:
    """Of what an experiment has of a group of conf/: the label where it has one."""
    chosen = _mapping(experiment.get(group))
    name = chosen.get("label") or chosen.get("name")
    return name if isinstance(name, str) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
