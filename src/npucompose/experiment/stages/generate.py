"""The stage `generate`: greedy generation of several ways, tokens compared with eager's first, then timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, frozen

from airflow_free.stage import Facts, Stage
from npucompose.errors import ConfigError, NpuComposeError
from npucompose.experiment.stages.benchmark import as_asked
from npucompose.models.base import Generation, GreedyLoop, Step
from npucompose.results.measured import OURS, GenerateFacts, GenerationPoint, GenerationTime, Way
from npucompose.schema.experiment import GENERATE
from npucompose.table.modes import MODES
from npucompose.table.structure import facts_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from npucompose.compose.check import Checked
    from npucompose.compose.session import Session
    from npucompose.results.measured import Numerics

COMPILING = 0.6
"""Share of a point's progress that compiling and comparing are counted as."""


def check(checked: Checked, stages: Sequence[str]) -> None:
    """ConfigError where generation is asked for and not measured, or measured and not asked for."""
    asked = checked.experiment.scenario.name == GENERATE
    if asked and GenerateStage.name not in stages:
        raise ConfigError(
            "scenario=generate is compared and measured by the stage generate, which pipeline=bench brings; "
            "scenario=prefill and scenario=decode run in every pipeline."
        )
    if not asked and GenerateStage.name in stages:
        raise ConfigError("the stage generate needs a prompt and a cache: write scenario=generate.")


@frozen(eq=False)
class _Made:
    """One way, compiled: its loop, and its tokens where it could be run."""

    loop: GreedyLoop | None
    row: GenerationTime
    tokens: Tensor | None = None


class GenerateStage(Stage["Session"]):
    """Tokens per second, time to first token and time per token of eager, Inductor and this experiment's mode."""

    name: ClassVar[str] = "generate"
    needs: ClassVar[tuple[str, ...]] = ("replay",)
    reads: ClassVar[tuple[str, ...]] = ("benchmark",)
    measures: ClassVar[bool] = True

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        import torch

        from npucompose.measure.environment import peak_rss_bytes

        sizes = live.experiment.scenario.points
        points: list[GenerationPoint] = []
        verdicts: dict[str, Numerics] = {}
        for number, (batch, prompt) in enumerate(sizes):

            def report(done: float, number: int = number) -> None:
                progress((number + done) / len(sizes))

            torch._dynamo.reset()
            with torch.no_grad():
                point, found = _point(live, batch, prompt, report)
            points.append(point)
            verdicts |= found
        weights = {id(p): p.nbytes for p in live.built.module.parameters()}
        facts = GenerateFacts(
            weights_bytes=sum(weights.values()), peak_rss_bytes=peak_rss_bytes(), points=tuple(points)
        )
        return {"generate": facts_of(facts), **_verdict(verdicts)}


def _verdict(verdicts: Mapping[str, Numerics]) -> Facts:
    """One comparison of tokens; of a mode that compiles nothing there is none."""
    from npucompose.measure.numerics import combined

    return {"numerics": facts_of(combined(verdicts))} if verdicts else {}


def _point(
    live: Session, batch: int, prompt: int, progress: Callable[[float], None]
) -> tuple[GenerationPoint, Mapping[str, Numerics]]:
    """One size: every way made and compared, those with eager's tokens timed."""
    from npucompose.measure.numerics import compare

    generations, scenario = live.built.generations, live.experiment.scenario
    assert generations is not None  # the model's scenarios say so
    before, ways, cache = len(_recordings(live)), dict[str, _Made](), 0
    for name, compile_steps in _ways(live):
        generation = generations(batch, prompt, scenario.new_tokens)
        cache = generation.cache_bytes
        ways |= dict(_made(name, generation, compile_steps, live))
        progress(COMPILING * len(ways) / 4)
    wanted = ways["eager"].tokens
    assert wanted is not None  # eager raises what it cannot do
    verdicts = {
        f"{batch} x {prompt}, {name}": compare(wanted, one.tokens, exact=True)
        for name, one in ways.items()
        if name in OURS and one.tokens is not None
    }
    ways = {name: _judged(one, wanted) for name, one in ways.items()}
    right = {name: one.loop for name, one in ways.items() if one.row.passed and one.loop is not None}
    rows = _timed(live, right, {name: one.row for name, one in ways.items()}, batch, progress)
    pools: list[int | None] = [one.get("pool_bytes") for one in _recordings(live)[before:]]
    known = [nbytes for nbytes in pools if nbytes is not None]
    return GenerationPoint(
        batch=batch,
        prompt=prompt,
        new_tokens=scenario.new_tokens,
        distinct=len(wanted[0].unique()),
        cache_bytes=cache,
        pool_bytes=sum(known) if known and len(known) == len(pools) else None,
        ways=rows,
    ), verdicts


def _recordings(live: Session) -> Sequence[Mapping[str, Any]]:
    return live.materialised.backend.recordings()


Compile = Callable[["nn.Module"], Step]


def _ways(live: Session) -> Iterator[tuple[Way, Compile]]:
    """What compiles a step, of every way that this target has; eager last, so that its rows stand behind."""
    import torch

    target, keywords = live.checked.target, live.materialised.compile_keywords
    if MODES.get(live.experiment.mode.name).compiles:
        yield "compiled", lambda step: live.materialised.backend.torch_compile(step, **keywords)
    if any(target.support(mode).fuses for mode in target.modes):
        yield "inductor", lambda step: torch.compile(step, backend="inductor", **keywords)
    yield "eager", lambda step: step


def _made(name: Way, generation: Generation, compile_steps: Compile, live: Session) -> Iterator[tuple[str, _Made]]:
    """The way, its steps compiled by generating once; and behind `compiled` the handles of its recordings."""
    from npucompose.compose.engine import translate_torch_errors

    begun = perf_counter()
    loop = GreedyLoop.of(generation, compile_steps(generation.prefill), compile_steps(generation.decode))
    try:
        with translate_torch_errors(live.experiment.debug):
            tokens = loop.tokens()
    except NpuComposeError as error:
        if name == "eager":
            raise
        yield name, _Made(None, GenerationTime(way=name, passed=False, problem=str(error)))
        return
    row = GenerationTime(way=name, passed=True, compile_s=None if name == "eager" else perf_counter() - begun)
    if name == "compiled":
        yield from _replayed(generation, loop, live)
    yield name, _Made(loop, row, tokens)


def _replayed(generation: Generation, loop: GreedyLoop, live: Session) -> Iterator[tuple[str, _Made]]:
    """Both recordings called without the guards of torch.compile, where that can be."""
    from npucompose import recorder
    from npucompose.errors import CaptureError

    found = recorder.installed()
    if found is None or not (live.materialised.backend.records and live.checked.target.detaches):
        return
    modules = (generation.prefill, generation.decode)
    try:
        handles = [
            found.detach_call(partial(step, *args), args, {}, model=module)
            for module, (step, args) in zip(modules, loop.steps(), strict=True)
        ]
        replays = GreedyLoop.of(generation, *handles)
        yield "replay", _Made(replays, GenerationTime(way="replay", passed=True), replays.tokens())
    except CaptureError as error:
        yield "replay", _Made(None, GenerationTime(way="replay", passed=False, problem=str(error)))


def _judged(made: _Made, wanted: Tensor) -> _Made:
    """Whether its tokens are eager's, now that these are known."""
    if made.tokens is None:
        return made
    differs = (made.tokens != wanted).any(0).nonzero()
    if not len(differs):
        return made
    problem = f"other tokens than eager's, from token {int(differs[0]) + 1} of {wanted.shape[1]} on"
    return evolve(made, row=evolve(made.row, passed=False, problem=problem))


def _timed(
    live: Session,
    loops: Mapping[str, GreedyLoop],
    rows: Mapping[str, GenerationTime],
    batch: int,
    progress: Callable[[float], None],
) -> tuple[GenerationTime, ...]:
    """Reading the prompt in turns, then the tokens behind it in turns; one thread of events, no call beside another."""
    firsts = as_asked(live, {name: loop.first_token for name, loop in loops.items()})
    progress((1 + COMPILING) / 2)
    rests = as_asked(live, {name: loop.next_tokens for name, loop in loops.items()})
    progress(1.0)
    made = live.experiment.scenario.new_tokens
    speeds = {name: batch * made / (firsts[name].p50 + rests[name].p50) * 1e6 for name in loops}
    return tuple(
        evolve(
            row,
            first=firsts[name].timing(),
            rest=rests[name].timing(),
            per_token_us=rests[name].p50 / (made - 1),
            tokens_per_s=speeds[name],
            speedup=None if name == "eager" else speeds[name] / speeds["eager"],
        )
        if name in loops
        else row
        for name, row in rows.items()
    )
