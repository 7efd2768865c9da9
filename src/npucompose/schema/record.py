"""report.json as frozen values: what one run asked for, did and measured. Knows no torch and no disk.

The field names are the contract of docs/report.md, which explains each one; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from attrs import field, frozen

from npucompose.errors import ConfigError, unknown
from npucompose.schema.ablation import AblationFacts
from npucompose.schema.calls import CallStatistics
from npucompose.schema.effective import Effective
from npucompose.schema.facts import facts_of, of_facts
from npucompose.schema.modes import ModeFacts
from npucompose.schema.overwrites import Overwrites
from npucompose.schema.partition import Outside, Partition
from npucompose.schema.passes import FoldFacts, MoveFacts, RuleFacts
from npucompose.schema.sinking import SinkingFacts
from npucompose.schema.streams import Verdict
from npucompose.schema.timing import Candidate, Timing

SCHEMA = 1
"""Version of the field names below: grows when a field changes its meaning or goes, not when one is added."""

Status = Literal["ok", "expect_failed", "numerics_failed", "illegal", "failed", "timeout", "memory_limit", "crashed"]
STATUSES: tuple[Status, ...] = get_args(Status)
EXIT_STATUS: Mapping[Status, int] = {
    "ok": 0,
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
    """What an NPU's compiler takes no graph for; told by targets that stand for one."""
    overwrites: Overwrites | None = None
    """Its runs in one call of the model, where each overwrites the results of the one before; else None."""


@frozen(kw_only=True)
class PassFacts:
    """One run of one pass over one graph."""

    name: str
    stage: Literal["pre", "post"]
    matches: int
    nodes_before: int
    nodes_after: int
    seconds: float
    exact: bool = True
    rules: tuple[RuleFacts, ...] = ()
    moves: MoveFacts | None = None
    folds: FoldFacts | None = None
    max_abs_err: float | None = None
    graph: str | None = None


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
    cost: Literal["none", "roofline", "measured"] | None = None
    predicted_us: float | None = None
    serial_us: float | None = None
    critical_us: float | None = None
    busy: Mapping[str, float] = field(factory=dict[str, float])
    """{stream: share of predicted_us in which it works}."""
    peak_bytes: int | None = None
    serial_peak_bytes: int | None = None
    trials: tuple[Verdict, ...] = ()
    """What was found of each recording where the plan was tried at capture: the times of the plan and of one stream."""
    threads: int | None = None
    """Threads on which the streams were executed, the calling one included; None where the target does not say."""
    why_threads: str = ""
    """Why there was but one."""
    measured_us: float | None = None
    """Of a replay on these threads, on a clock that looks at every kernel; several graphs' are added."""
    measured_serial_us: float | None = None
    """Of the same kernels on one thread."""

    prediction_error: float | None = None
    """By how much `predicted_us` is off, as a share of `measured_us`; None below a millisecond, where looking at the
    clock takes part of the time, and where not every graph was measured."""


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
    """The YAML or the change that would have avoided it, or that there is none."""


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
    """How the calls so far ran; None where the target does not tell."""


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
    """How these calls ran; None where the target does not tell."""


@frozen(kw_only=True)
class BenchmarkFacts(Timing):
    """The samples are those of `candidate`: the detached handle where there is one, else the compiled model."""

    candidate: Candidate = "replay"
    baselines: Mapping[str, Timing] = field(factory=dict[str, Timing])
    speedup: Mapping[str, float] = field(factory=dict[str, float])
    speedup_compiled: Mapping[str, float] = field(factory=dict[str, float])


@frozen(kw_only=True)
class Stages:
    """One field for each stage; None for a stage that was not wanted or not reached."""

    compile: CompileTimes | None = None
    capture: CaptureFacts | None = None
    replay: ReplayFacts | None = None
    benchmark: BenchmarkFacts | None = None
    ablation: AblationFacts | None = None
    modes: ModeFacts | None = None
    sequence: SequenceFacts | None = None


@frozen(kw_only=True)
class StageRun:
    """How a stage's facts came into this report: `reused` ones were read from the store."""

    stage: str
    key: str
    reused: bool
    seconds: float


@frozen(kw_only=True)
class Share:
    """One part of the way from eager to the results, compared by itself."""

    max_abs_err: float | None
    """None where no finite difference exists."""
    bitwise: bool
    passed: bool


Cause = Literal["model", "tracing", "passes", "replay"]


@frozen(kw_only=True)
class Numerics:
    """What a comparison with the reference found.

    Where results differ from eager, `tracing`, `passes` and `replay` say which part of the way made the difference:
    Dynamo and AOTAutograd, our passes, or what runs the graph.
    """

    reference: str
    max_abs_err: float | None
    """None where no finite difference exists: other structures, shapes, or NaN against a number."""
    bitwise: bool
    tolerance: Mapping[str, Mapping[str, float]] = field(factory=dict[str, Mapping[str, float]])
    passed: bool
    note: str | None = None
    """What the comparison does not prove."""
    compared: int = 0
    stride_mismatches: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    tracing: Share | None = None
    """The graph as it was traced, against eager."""
    passes: Share | None = None
    """The graph as the passes left it, against the traced one."""
    replay: Share | None = None
    """The results, against the graph that they should be those of."""
    cause: Cause | None = None
    """What did not pass; `model`: eager differs from itself."""
    model: str | None = None
    """What to know of the model as a reference."""


@frozen(kw_only=True)
class Memory:
    pool_bytes: int | None = None
    """Each recording's, added up: what they would take apart."""
    shared_pool_bytes: int | None = None
    """What they take together: recordings of one model lie in the same memory."""
    unplanned_bytes: int | None = None
    live_bytes: int | None = None
    """The most that lives at one time: no plan can do with less."""
    peak_rss_bytes: int | None = None
    device_peak_bytes: int | None = None
    """The most that tensors had on the device at one time, by its allocator."""
    device_reserved_peak_bytes: int | None = None
    """The most that the allocator had taken from the device, pools of captured graphs among it."""
    device_total_bytes: int | None = None
    """Of the device."""

    @property
    def taken_bytes(self) -> int | None:
        """What the recordings do take: `shared_pool_bytes` where that is less than what they would take apart."""
        together, apart = self.shared_pool_bytes, self.pool_bytes
        return apart if apart is None or together is None else min(together, apart)


@frozen(kw_only=True)
class Expectation:
    """One `expect.x` of the experiment and what came out."""

    name: str
    wanted: Any
    got: Any
    held: bool
    evidence: tuple[str, ...] = ()
    """Where `got` comes from: the guard, the step of the diagnosis, the graph, the comparison."""


CacheUse = Literal["saved", "loaded", "not saved"]


@frozen(kw_only=True)
class GeGraph:
    """One graph as TorchAir hands it to GE, before GE does anything to it."""

    name: str
    nodes: int
    types: Mapping[str, int] = field(factory=dict[str, int])
    """{operator type: how often}."""
    data: Mapping[str, str] = field(factory=dict[str, str])
    """{Data node: `FLOAT [4, 16] NPU`}; -1 is a dimension that GE does not know."""
    shapes: Literal["static", "dynamic"]
    options: Mapping[str, str] = field(factory=dict[str, str])
    """Options of this graph (TorchAir's local ones)."""
    streams: Mapping[str, str] = field(factory=dict[str, str])
    """{node: `_user_stream_label`}."""
    cores: Mapping[str, str] = field(factory=dict[str, str])
    """{node: `8 cube, 16 vector`}: at most so many (`_op_aicore_num`, `_op_vectorcore_num`)."""
    super_kernels: Mapping[str, str] = field(factory=dict[str, str])
    """{node: `_super_kernel_scope`}."""
    control_edges: tuple[str, ...] = ()
    """`MatMul -> Abs`: the second runs after the first though it reads nothing of it."""


@frozen(kw_only=True)
class NpuFacts:
    """What the genuine TorchAir made, and what it told the device. Counts are null where nobody could count."""

    package: Literal["torchair", "npugraph_ex"]
    version: str
    platform: str
    """`device`, or `stand-in` for a machine without CANN."""
    config: Mapping[str, Any] = field(factory=dict[str, Any])
    """The genuine configuration's own as_dict()."""
    fx_graphs: int
    ge_graphs: tuple[GeGraph, ...] = ()
    global_options: Mapping[str, str] = field(factory=dict[str, str])
    """What GE is initialised with, once a process."""
    captures: int | None = None
    replays: int | None = None
    task_updates: int | None = None
    event_records: int | None = None
    event_waits: int | None = None
    streams: int | None = None
    """Streams that carry a kernel of a recording."""
    core_limits: int | None = None
    """How often a recording sets a stream's limit of cores; a region sets it and takes it back."""
    cache: CacheUse | None = None
    """What cache_compile did in this process; a loaded graph is compiled by nobody, so that `fx_graphs` is 0."""
    patched: tuple[str, ...] = ()
    """Functions of torch.distributed that patch_for_hcom replaced."""
    files: tuple[str, ...] = ()
    """What TorchAir wrote, below `torchair/` in the run directory."""
    unordered: tuple[str, ...] = ()
    """Kernels on two streams that touch the same memory with no event between them."""


@frozen(kw_only=True)
class Report:
    """One run. as_dict is plain JSON and of_dict its inverse (`experiment` and the like are plain JSON already)."""

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
    graphs: tuple[GraphFacts, ...] = ()
    passes: tuple[PassFacts, ...] = ()
    rejected: tuple[str, ...] = ()
    """A sentence for each operator that an adaptation rule rejected, which ended the compilation."""
    streams: StreamFacts | None = None
    sinking: SinkingFacts | None = None
    recompiles: tuple[Recompile, ...] = ()
    stages: Stages = field(factory=Stages)
    numerics: Numerics | None = None
    npu: NpuFacts | None = None
    memory: Memory | None = None
    expectations: tuple[Expectation, ...] = ()
    records: tuple[StageRun, ...] = ()

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.status]

    def as_dict(self) -> dict[str, Any]:
        return facts_of(self)

    @staticmethod
    def of_dict(data: Mapping[str, Any]) -> Report:
        """The report in `data`; fields that this version does not know are left out. ConfigError says what is wrong."""
        version = data.get("schema")
        if version != SCHEMA:
            raise ConfigError(f"report: 'schema' is {version!r}; this version of npucompose reads schema {SCHEMA}.")
        if data.get("status") not in STATUSES:
            raise ConfigError("report: " + unknown("status", str(data.get("status")), STATUSES))
        return of_facts(Report, data, where="report")
