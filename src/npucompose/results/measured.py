"""What was counted, timed and compared: parts of report.json. Knows no torch and no clock.

How far a result may be from the reference: |got - reference| <= atol + rtol * |reference| for every element.

    dtype              rtol     atol
    float64            1e-9     1e-9
    float32            1e-4     1e-5
    float16            1e-2     1e-3
    bfloat16           3e-2     1e-2
    float8_*           2e-1     1e-1
    complex: as their parts; integers, bool: exact

They leave room for another order of summation over some thousand terms, which is what a fusing compiler changes; they
are wider than torch.testing's, which are made for single operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

Candidate = Literal["replay", "compiled", "eager"]
"""The detached handle of a recording, the call through torch.compile, the model itself."""


@frozen(kw_only=True)
class TimeSamples:
    """Samples of one candidate and what is read from them; made by `npucompose.measure.timing.Samples`."""

    samples_us: tuple[float, ...]
    p50_us: float
    p90_us: float
    p99_us: float
    mean_us: float


ALL = "all passes"
"""The name of the experiment's own list, with which the others are compared."""


@frozen(kw_only=True)
class Variant:
    """The experiment with some of its passes."""

    name: str
    """`all passes`, `without cse`, `up to cse`, `no pass`."""
    passes: tuple[str, ...]
    nodes: int | None = None
    """Of all graphs after their passes."""
    kernels: int | None = None
    """Calls of one replay; None where nothing is recorded."""
    passes_s: float | None = None
    passed: bool
    """Results equal eager's as the contracts of these passes promise. What does not pass is not timed."""
    bitwise: bool = False
    max_abs_err: float | None = None
    problem: str | None = None
    """Why it could not be compiled, or what differs."""
    timing: TimeSamples | None = None
    ratio: float | None = None
    """Its time by that of all passes, round by round: above 1 it takes longer."""


@frozen(kw_only=True)
class AblationFacts:
    variants: tuple[Variant, ...]
    """All passes first."""


@frozen(kw_only=True)
class Behind:
    """Times of one mode by those of the fastest, round by round: above 1 it takes longer."""

    ratio: float
    """The median."""
    low: float
    """The quartiles: a quarter of the rounds lies below `low`, a quarter above `high`."""
    high: float


@frozen(kw_only=True)
class ModeTime:
    """The experiment in one mode, everything else as it is."""

    mode: str
    candidate: Candidate | None = None
    """Whose samples these are: `replay` where there is a detached handle."""
    compile_s: float | None = None
    """What the first call compiled for."""
    passed: bool
    """Results equal eager's as far as the mode promises. What does not pass is not timed and cannot win."""
    bitwise: bool = False
    max_abs_err: float | None = None
    problem: str | None = None
    """Why it could not be compiled, or what differs."""
    idle: tuple[str, ...] = ()
    """Options of the experiment that have no effect in this mode."""
    timing: TimeSamples | None = None
    behind: Behind | None = None
    """None for the fastest, and for what was not timed."""


@frozen(kw_only=True)
class ModeFacts:
    fastest: str | None
    """The mode with the least time; None where nothing was timed."""
    won: bool
    """The fastest is faster than every other by more than the spread: in three rounds of four, of 20 or more."""
    modes: tuple[ModeTime, ...]
    """The experiment's own mode first, eager last."""


@frozen(kw_only=True)
class CallStatistics:
    """Calls of recorded graphs, by how they ran; calls of detached handles are not among them."""

    hits: int = 0
    """Replays of a recording that was there."""
    captures: int = 0
    """Calls that made a recording."""
    replacements: int = 0
    """Captures for which another recording went."""
    eager: int = 0
    """Calls without a recording: beyond the capture limit, not yet worth a capture, or beyond torch's versions."""

    @property
    def calls(self) -> int:
        return self.hits + self.captures + self.eager

    def if_any(self) -> CallStatistics | None:
        """None where nothing was counted."""
        return self if self.calls else None

    def since(self, before: CallStatistics) -> CallStatistics:
        """What has been added to `before`."""
        return CallStatistics(
            hits=self.hits - before.hits,
            captures=self.captures - before.captures,
            replacements=self.replacements - before.replacements,
            eager=self.eager - before.eager,
        )

    def __add__(self, other: CallStatistics) -> CallStatistics:
        return CallStatistics(
            hits=self.hits + other.hits,
            captures=self.captures + other.captures,
            replacements=self.replacements + other.replacements,
            eager=self.eager + other.eager,
        )


@frozen(kw_only=True)
class Overwrites:
    """`Overwrites(runs=3, option="compiler.debug.aclgraph.enable_output_clone")`."""

    runs: int
    """Runs on inputs of the same form, in the first call of the model."""
    option: str
    """What makes copies of the results when it is true: dotted path in the experiment."""

    def words(self, graph: str) -> str:
        return (
            f"{graph} runs {self.runs} times in one call of the model, and TorchAir returns each run's results in the "
            f"same memory: {self.option}=true makes copies"
        )


@frozen
class NumericTolerance:
    rtol: float
    atol: float

    def widened(self, other: NumericTolerance) -> NumericTolerance:
        """Whichever allows more; what must be exact (integers) stays so."""
        if self == EXACT:
            return self
        return NumericTolerance(max(self.rtol, other.rtol), max(self.atol, other.atol))


EXACT = NumericTolerance(0.0, 0.0)

TOLERANCES: Mapping[str, NumericTolerance] = {
    "float64": NumericTolerance(1e-9, 1e-9),
    "float32": NumericTolerance(1e-4, 1e-5),
    "float16": NumericTolerance(1e-2, 1e-3),
    "bfloat16": NumericTolerance(3e-2, 1e-2),
    "float8": NumericTolerance(2e-1, 1e-1),
    "complex128": NumericTolerance(1e-9, 1e-9),
    "complex64": NumericTolerance(1e-4, 1e-5),
    "complex32": NumericTolerance(1e-2, 1e-3),
}


def tolerance_of(dtype: str) -> NumericTolerance:
    """The row of the table for `float32` or `torch.float32`; EXACT for integers and bool."""
    name = dtype.removeprefix("torch.")
    return TOLERANCES.get("float8" if name.startswith("float8") else name, EXACT)


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
class MemoryFacts:
    weights_bytes: int | None = None
    """Parameters of the model, each once."""
    buffers_bytes: int | None = None
    """Its buffers; of scenario=prefill and decode the cache of keys and values is among them."""
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


Way = Literal["replay", "compiled", "inductor", "eager"]
"""Handles of the recordings, calls through torch.compile with npucompose, torch.compile with Inductor, the model."""
OURS: tuple[Way, ...] = ("replay", "compiled")


@frozen(kw_only=True)
class GenerationTime:
    """One way to run the steps, in the same greedy loop as the others."""

    way: Way
    passed: bool
    """Its tokens are eager's. What has others is not timed."""
    problem: str | None = None
    """What could not be done, or where the tokens differ."""
    compile_s: float | None = None
    """Until the first tokens were there, all compiling included."""
    first: TimeSamples | None = None
    """Time to the first token: the prompt is read."""
    rest: TimeSamples | None = None
    """Time of all tokens after the first, of one generation each."""
    per_token_us: float | None = None
    """The median of `rest`, by its number of steps."""
    tokens_per_s: float | None = None
    """Tokens of all prompts by the medians of `first` and `rest` together."""
    speedup: float | None = None
    """Its tokens per second by eager's."""


@frozen(kw_only=True)
class GenerationPoint:
    """One size: prompts and their length."""

    batch: int
    prompt: int
    new_tokens: int
    distinct: int
    """Different tokens among those of the first prompt: of one token said again and again little is proven."""
    cache_bytes: int
    """Keys and values of one way; each has a cache of its own."""
    pool_bytes: int | None = None
    """What the recordings of prefill and decode take for intermediate results; None where nothing is recorded."""
    ways: tuple[GenerationTime, ...]
    """Eager last."""

    @property
    def best(self) -> GenerationTime:
        """Ours: handles where there are some, else through torch.compile; eager where nothing is compiled."""
        timed = {one.way: one for one in self.ways if one.first is not None}
        return next((timed[way] for way in (*OURS, "eager") if way in timed), self.ways[-1])


@frozen(kw_only=True)
class GenerateFacts:
    weights_bytes: int
    peak_rss_bytes: int
    """Of the process, all ways together."""
    points: tuple[GenerationPoint, ...]


Garbage = Literal["noise", "nan", "huge"]
"""What the rows beyond the real ones hold: other values of the same input; NaN, and the largest finite numbers of the
type with either sign, where the input holds floating-point numbers (noise elsewhere)."""


@frozen(kw_only=True)
class PaddingCheck:
    """One way of calling the model with one kind of garbage, compared bit for bit in the real rows."""

    way: Literal["eager", "compiled"]
    garbage: Garbage
    changed: tuple[str, ...] = ()
    """Results whose real rows changed: `result[0]: 3 of 8 rows`."""

    @property
    def passed(self) -> bool:
        return not self.changed


@frozen(kw_only=True)
class PaddingReader:
    """The operator by which padding first gets into real rows: with those as they were, results are right."""

    operator: str
    """`aten.mean.dim`."""
    source: str | None = None
    """The line of the model that called it."""
    garbage: Garbage

    @property
    def words(self) -> str:
        return f"{self.operator}{f' at {self.source}' if self.source else ''} ({self.garbage})"


@frozen(kw_only=True)
class PaddingFacts:
    rows: int
    """Of the inputs that were padded, in their first dimension."""
    real: int
    inputs: tuple[str, ...]
    checks: tuple[PaddingCheck, ...]
    readers: tuple[PaddingReader, ...] = ()
    """In the model's own code, eager; empty where only the compiled model reads padding."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def words(self) -> str:
        """`padding of 4 of 8 rows is not read (eager, compiled; noise, nan, huge)`, or who reads it."""
        if self.passed:
            ways = ", ".join(dict.fromkeys(check.way for check in self.checks))
            kinds = ", ".join(dict.fromkeys(check.garbage for check in self.checks))
            return f"padding of {self.rows - self.real} of {self.rows} rows is not read ({ways}; {kinds})"
        failed = [check for check in self.checks if not check.passed]
        if self.readers:
            return f"padding is read by {', '.join(one.words for one in self.readers)}"
        return "padding is read: " + "; ".join(f"{c.way}, {c.garbage}: {c.changed[0]}" for c in failed)
