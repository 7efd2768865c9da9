"""One frozen point of the design space: what a person asked for, checked, before any device is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

from attrs import field, frozen

from npucompose.schema.adapt import RuleSet
from npucompose.schema.sections import Extensions
from npucompose.schema.sizes import as_number
from npucompose.schema.streams import Streams
from npucompose.schema.sweep import Executor, Local, NoSearch, Search, Tracker
from npucompose.table.modes import MODES, ModeSpec
from npucompose.table.options import NAME, Acts, option
from npucompose.vendor.compiler import CompilerOptions
from npucompose.vendor.inductor import InductorOptions

ScenarioName = Literal["forward", "prefill", "decode", "generate"]
FORWARD, GENERATE = "forward", "generate"


@frozen(kw_only=True)
class Scenario:
    """Prompts of `batch` x `prompt` tokens, and a static cache with room for `new_tokens` more."""

    name: ScenarioName = option("forward", "one call, one half of text generation, or greedy generation")
    batch: int | tuple[int, ...] = option(1, "prompts at once; of generate also a list: each is measured")
    prompt: int | tuple[int, ...] = option(
        16, "tokens of each prompt, or a list; of a class that hears or sees, those its decoder begins with"
    )
    new_tokens: int = option(32, "tokens that generate makes, and for which the static cache has room", ge=2)

    def __attrs_post_init__(self) -> None:
        for name in ("batch", "prompt"):
            value = getattr(self, name)
            sizes = sizes_of(value)
            if not sizes or min(sizes) < 1:
                raise ValueError(f"'{name}' must be >= 1, or a list of such numbers: {value}")
            if len(set(sizes)) < len(sizes):
                raise ValueError(f"'{name}' names a size twice: {list(sizes)}")
            if isinstance(value, tuple) and self.name != GENERATE:
                raise ValueError(
                    f"'{name}' is a list, of which only scenario=generate measures each; a sweep (-m) makes runs"
                )

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """(batch, prompt) of everything that is measured, batches outermost."""
        return tuple((batch, prompt) for batch in sizes_of(self.batch) for prompt in sizes_of(self.prompt))


def sizes_of(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)


Partial = Literal["cut", "refuse"]

Word = Literal["transposed", "unmarked"]

WORDS: tuple[Word, ...] = get_args(Word)

Change: TypeAlias = int | float | bool | Word | tuple[int, ...]

Call: TypeAlias = Mapping[str, Change]
"""{input, or input.dimension: its change}."""


def dimension_of(key: str) -> tuple[str, int | None]:
    """`x.0` is ("x", 0), `x` is ("x", None); a name with another ending is a name."""
    name, _, last = key.rpartition(".")
    return (name, int(last)) if name and last.isdecimal() else (key, None)


def call_text(call: Call) -> str:
    """The call as it stands in YAML: `x.0: 6, lens: [513, 301]`; `the example inputs` where it changes nothing."""
    values = {key: list(change) if isinstance(change, tuple) else change for key, change in call.items()}
    return ", ".join(f"{key}: {value}" for key, value in values.items()) or "the example inputs"


ModeName: TypeAlias = Annotated[str, MODES]

Strict = Literal["off", "mode", "all"]

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


@frozen(kw_only=True)
class Choice:
    """One YAML file, before anyone knows its class: `Choice(name="cse", options={"stage": "pre"})`."""

    name: str
    options: Mapping[str, Any] = field(factory=dict[str, Any])


@frozen(kw_only=True)
class Mode:
    name: ModeName = option(doc="TorchAir's mode, or one of an installed package")

    @property
    def spec(self) -> ModeSpec:
        """What the mode does."""
        return MODES.get(self.name)


@frozen(kw_only=True)
class Shapes:
    """Which dimensions are fixed. Patterns are argument names, `fnmatch` globs (`cache_*`) or `re:` + a regex."""

    name: str = option("static", "the choice of conf/shapes this is", name=NAME)
    dynamic: bool | None = option(False, "torch.compile(dynamic=...): True, False, or null to let Dynamo decide")
    mark_static: tuple[str, ...] = option(factory=tuple, doc="inputs to pass to torch._dynamo.mark_static")
    mark_dynamic: Mapping[str, tuple[int, ...]] = option(
        factory=dict, doc="{input: dimensions} to pass to torch._dynamo.mark_dynamic"
    )
    gears: Mapping[str, tuple[int, ...]] = option(
        factory=dict,
        doc="{input.dimension: sizes} for torchair.inference.set_dim_gears; mode=max-autotune on an NPU",
        acts=Acts(mode="ge", can="gears", words="gears"),
    )


@frozen(kw_only=True)
class Tiling:
    schedule: Literal["host", "sink"] = option("host", "where GE computes tiling: `sink` is tiling_schedule_optimize")


@frozen(kw_only=True)
class CompileKeywords:
    fullgraph: bool = option(True, "torch.compile(fullgraph=...): a graph break is an error")
    training: bool = option(
        False,
        "with gradients: a backward graph is compiled too; compared, not measured",
        acts=Acts(mode="trains", can="trains", without_compiling=True, aside=", whose recordings are for inference"),
    )
    cache: bool = option(
        False, "TorchAir's cache_compile: a later process loads what this one compiled", acts=Acts(can="caches")
    )
    partial: Partial = option(
        "cut",
        "what cannot be recorded, and calls with gradients: cut: run unrecorded between recordings; refuse: an error",
    )


@frozen(kw_only=True)
class Logs:
    """What torch._logging.set_logs and Python's logging are told."""

    artifacts: tuple[str, ...] = option(factory=tuple, doc="for torch._logging.set_logs: graph_code, …", name=NAME)
    levels: Mapping[str, LogLevel] = option(factory=dict, doc="{logger: DEBUG, INFO, WARNING or ERROR}")


@frozen(kw_only=True)
class Pipeline:
    name: str = option("bench", "the choice of conf/pipeline this is", name=NAME)
    stages: tuple[str, ...] = option(
        factory=tuple, doc="requested stages; the stages that they need run too", name=NAME
    )
    time_limit_s: float = option(
        1800.0, "the worker is killed after this many seconds: status `timeout`", gt=0, le=2_000_000
    )
    log_limit_mb: float = option(
        64.0, "MiB of output kept in run.log, plus the last lines; the rest is cut", gt=0, le=2**20
    )
    memory_limit_mb: float | None = option(
        None,
        "the worker is killed when it and what it started use more MiB: status `memory_limit`; null: no limit",
        gt=0,
        le=2**30,
        optional=True,
    )


@frozen(kw_only=True)
class Profile:
    """Windows of calls under the device's profiler, after everything is timed: as torch.profiler.schedule has them."""

    active: int = option(
        0, "calls that a window records, as a Chrome trace in the run's folder `profile`; 0: none", ge=0, le=1000
    )
    wait: int = option(1, "calls before each window that the profiler leaves out", ge=0, le=100_000)
    warmup: int = option(1, "calls of each window that it sees and throws away", ge=0, le=100_000)
    repeat: int = option(1, "windows, a trace for each", ge=1, le=100)


@frozen(kw_only=True)
class Benchmark:
    warmup: int = option(5, "calls of each candidate that are not counted", ge=0)
    min_calls: int = option(30, "minimum number of counted calls of each candidate", ge=1)
    min_seconds: float = option(1.0, "minimum seconds of counted calls, all candidates together", ge=0, le=2_000_000)
    max_calls: int = option(20_000, "maximum number of calls of each candidate", ge=1)
    threads: int | None = option(
        None, "torch.set_num_threads; null leaves torch's choice", ge=1, le=4096, optional=True
    )
    against: tuple[ModeName, ...] = option(
        factory=tuple,
        doc="modes compared and timed alternately with this one and eager; the report says which won",
    )
    profile: Profile = option(factory=Profile, doc="calls under a profiler, after the timed ones")


@frozen(kw_only=True)
class Padding:
    """Which rows the stage `padding` fills with garbage."""

    inputs: tuple[str, ...] = option(
        factory=tuple, doc="inputs whose first dimension is rows; none: all with as many as the first of them"
    )
    real: int | None = option(None, "rows that hold a request; null: half of them", ge=1, optional=True)


PATHS = (1, 2, 3, 4, 5, 6)
"""1 to 4 are those of TorchAir's document on FA operators; 5: tiling sink is on, and the operator or the product
cannot; 6: a later tensor was not marked, and its next shape recompiled into a symbolic graph."""


@frozen(kw_only=True)
class Operator:
    """A row of the operator table: an operator whose tiling reads values (npu/static_graph/operators.yaml)."""

    ge: str = option(doc="the operator's type in GE's graph")
    slots: tuple[str, ...] = option(
        factory=tuple, doc="arguments whose values tiling reads: torch's name, or `torch's/GE's` where they differ"
    )
    sinks: bool | None = option(None, "is its tiling registered for the device (TILING_ON_AICPU)? null: unknown")
    products: tuple[str, ...] | None = option(
        None, "products on which that holds; null: every product with tiling sink"
    )
    host_engine: bool = option(False, "it runs on the host (engine DNN_VM_HOST_CPU), which makes a graph dynamic")
    source: str = option(doc="where that stands")

    def ge_slots(self) -> Mapping[str, str]:
        """{torch's argument: GE's input}."""
        return {slot.partition("/")[0]: slot.rpartition("/")[2] for slot in self.slots}


@frozen(kw_only=True)
class Sinking:
    """What a person adds to the project's own knowledge of operators."""

    operators: Mapping[str, Operator] = option(factory=dict, doc="{namespace.operator: row}, added to the table")


@frozen(kw_only=True)
class Expect:
    """What must come out; an expectation that fails is status `expect_failed`, exit 1. None asks nothing."""

    compiled: bool | None = option(
        None, "every call ran what the mode makes of a graph; a file that expects anything else expects `true` too"
    )
    fx_graph: Literal["static", "dynamic"] | None = option(None, "the FX graph has symbols or has none", optional=True)
    ge_graph: Literal["static", "dynamic"] | None = option(
        None, "the GE graph as TorchAir hands it over", optional=True
    )
    ge_build: Literal["static", "mixed", "dynamic"] | None = option(None, "the graph as GE builds it", optional=True)
    path: int | None = option(None, "the compile path of docs/sinking.md", choices=PATHS, optional=True)
    recompiles: int | None = option(None, "at most this many recompilations", ge=0, optional=True)
    captures: int | None = option(None, "exactly this many captures", ge=0, optional=True)
    segments: int | None = option(
        None,
        "exactly this many recorded segments of the graph that is cut the most; 1: nothing was cut",
        ge=0,
        optional=True,
    )
    streams: int | None = option(None, "exactly this many streams in the plan", ge=0, optional=True)
    events: int | None = option(None, "exactly this many events in the plan", ge=0, optional=True)
    rules: Mapping[str, int] | None = option(None, "{adaptation rule: exactly how often it was applied}")
    permutes: int | None = option(None, "exactly this many permutes after the pass cancel_moves", ge=0, optional=True)
    capture_legal: bool | None = option(
        None, "an NPU would capture the model, or would not; unknown fulfils neither (pipeline=legality)"
    )
    capture_streams_max: int | None = option(
        None,
        "captures of all sizes take at most this many streams, whatever is unknown (pipeline=legality)",
        ge=1,
        optional=True,
    )
    capture_bytes_max: str | None = option(
        None,
        "memory of the captures of all sizes is at most this (512MiB), whatever is unknown (pipeline=legality)",
    )
    bitwise: bool | None = option(None, "replay equals eager bit for bit")
    speedup: float | None = option(None, "speedup.eager is at least this", gt=0, optional=True)
    padding_ignored: bool | None = option(None, "no real row depends on what padding holds")

    def __attrs_post_init__(self) -> None:
        if self.capture_bytes_max is not None and as_number(self.capture_bytes_max) is None:
            raise ValueError(f"'capture_bytes_max' must be a size such as 512MiB: {self.capture_bytes_max!r}")


@frozen(kw_only=True)
class Experiment:
    """Everything that a run depends on. Equal experiments are the same point of the design space."""

    mode: Mode
    shapes: Shapes = option(factory=Shapes)
    tiling: Tiling = option(factory=Tiling)
    passes: Mapping[str, Choice] = option(factory=dict, doc="label -> pass, in the order written")
    streams: Streams = option(factory=Streams)
    adapt: RuleSet = option(factory=RuleSet, doc="adaptation rules that the pass `adapt` follows")
    compiler: CompilerOptions = option(factory=CompilerOptions)
    inductor: InductorOptions = option(factory=InductorOptions, doc="Inductor's options, where the mode uses Inductor")
    target: Choice = option(factory=lambda: Choice(name="cpu"))
    model: Choice = option(factory=lambda: Choice(name="gpt_decode"))
    scenario: Scenario = option(factory=Scenario)
    pipeline: Pipeline = option(factory=Pipeline)
    benchmark: Benchmark = option(factory=Benchmark)
    padding: Padding = option(factory=Padding)
    compile: CompileKeywords = option(factory=CompileKeywords)
    logs: Logs = option(factory=Logs)
    seed: int = option(0, "seed of the model, its inputs and every run", ge=0)
    check: Literal["none", "per_pass"] = option(
        "none", "per_pass runs each graph before and after each pass on made-up inputs"
    )
    strict: Strict = option("mode", "what is refused: off, mode, all")
    expect: Expect = option(factory=Expect)
    sinking: Sinking = option(factory=Sinking)
    search: Search = option(factory=NoSearch)
    executor: Executor = option(factory=Local)
    retry: Literal["none", "failed"] = option("none", "which finished jobs of a sweep are run again")
    tracker: Tracker = option(factory=Tracker)
    extensions: Extensions = option(factory=Extensions, doc="{section: options} of installed packages")
    trust: bool = option(False, "allow importing code that YAML names; accepted only on the command line")
    debug: bool = option(False, "tracebacks instead of paragraphs")
