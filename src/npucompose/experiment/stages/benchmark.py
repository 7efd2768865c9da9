"""The stage `benchmark`: steady state, candidates in turns; and several ways to compile one model in one process: each
compared with eager, those that are right timed in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, get_args

from attrs import evolve

from airflow_free.stage import Facts, Stage
from npucompose.errors import ConfigError, NpuComposeError, listed
from npucompose.results.measured import Candidate, MemoryFacts, Numerics
from npucompose.results.record import BenchmarkFacts, ProfileFacts
from npucompose.table.modes import MODES
from npucompose.table.structure import facts_of

if TYPE_CHECKING:
    from npucompose.compose.session import Session
    from npucompose.measure.timing import Samples
    from npucompose.models.inputs import Bound
    from npucompose.schema.experiment import Experiment


class BenchmarkStage(Stage["Session"]):
    """Eager, torch.compile and the detached handle, interleaved in one process, raw samples kept."""

    name: ClassVar[str] = "benchmark"
    needs: ClassVar[tuple[str, ...]] = ("replay",)
    reads: ClassVar[tuple[str, ...]] = ("benchmark",)
    measures: ClassVar[bool] = True

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        from npucompose.measure.environment import peak_rss_bytes

        samples = in_turns(live, _candidates(live), progress)
        target, backend = live.checked.target, live.materialised.backend
        times = target.stream_times(backend.compilations)
        return {
            "stream_times": {n: {"plan_us": one.plan_us, "serial_us": one.serial_us} for n, one in times.items()},
            "timelines": {name: facts_of(one.timeline) for name, one in times.items()},
            "one_stream_timelines": {n: facts_of(one.one_stream) for n, one in times.items() if one.one_stream},
            "recordings": backend.recordings(),
            "benchmark": facts_of(evolve(_benchmark_facts(samples), profile=_profile(live))),
            "memory": facts_of(MemoryFacts(peak_rss_bytes=peak_rss_bytes(), **target.device_memory())),
        }


def in_turns(
    live: Session, candidates: Mapping[str, Callable[[], Any]], progress: Callable[[float], None]
) -> Mapping[str, Samples]:
    """The candidates timed side by side as `benchmark` says, from the models' first state.

    A model whose state lies outside its buffers starts every call from there: a cache of keys would run full.
    """
    import torch

    live.steadiness  # noqa: B018  says what there is to rewind
    live.rewind()
    with torch.no_grad():
        return as_asked(live, candidates, live.rewind if live.state.outside else None, progress)


def as_asked(
    live: Session,
    candidates: Mapping[str, Callable[[], Any]],
    between: Callable[[], None] | None = None,
    progress: Callable[[float], None] | None = None,
) -> Mapping[str, Samples]:
    """The candidates in turns, for as long and as often as `benchmark` says."""
    from npucompose.measure.timing import interleaved

    settings = live.experiment.benchmark
    return interleaved(
        candidates,
        warmup=settings.warmup,
        min_calls=settings.min_calls,
        min_seconds=settings.min_seconds,
        max_calls=settings.max_calls,
        synchronize=live.checked.target.synchronize,
        between=between,
        progress=progress,
    )


def _candidates(live: Session) -> dict[str, Callable[[], Any]]:
    functions: dict[str, Callable[..., Any]] = {"eager": live.reference}
    if MODES.get(live.experiment.mode.name).compiles:
        functions["compiled"] = live.compiled
    if live.detached is not None:
        functions["replay"] = live.detached
    return {name: bound(function, live.bind(live.inputs(0))) for name, function in functions.items()}


def bound(function: Callable[..., Any], call: Bound) -> Callable[[], Any]:
    """The call without arguments, as short as it can be: what is around it is part of what is measured."""
    args, kwargs = call.args, dict(call.kwargs)
    return (lambda: function(*args, **kwargs)) if kwargs else (lambda: function(*args))


PROFILE = "profile"
"""Folder of a run for traces of profiled calls."""


def check(experiment: Experiment, stages: Sequence[str]) -> None:
    """ConfigError where a profile is asked for and nothing is measured."""
    if experiment.benchmark.profile.active and BenchmarkStage.name not in stages:
        raise ConfigError(
            "benchmark.profile.active has no effect without the stage benchmark: pipeline=bench has it, and "
            f"pipeline={experiment.pipeline.name} runs {listed(stages)}."
        )


def _profile(live: Session) -> ProfileFacts | None:
    """Profiled after everything is timed: a profiler slows calls down."""
    from npucompose.measure.timing import profiled

    asked, folder = live.experiment.benchmark.profile, live.folders.profile
    if not asked.active or folder is None:
        return None
    import torch

    target, name = live.checked.target, candidate(live)
    live.rewind()
    with torch.no_grad():
        files = profiled(
            _candidates(live)[name],
            name,
            asked,
            target.profiler(),
            folder,
            clocks=target.kernel_clocks(live.compilations) if name == "replay" else {},
            between=live.rewind if live.state.outside else None,
        )
    kept = tuple(f"{PROFILE}/{file}" for file in files)
    print(f"profile: {listed(kept)} ({asked.active} calls of {name} each; not among the timed ones)", flush=True)
    return ProfileFacts(candidate=name, calls=asked.active, files=kept)


def _benchmark_facts(samples: Mapping[str, Samples]) -> BenchmarkFacts:
    from npucompose.measure.timing import paired_ratio

    main: Candidate = next(name for name in get_args(Candidate) if name in samples)
    timing = samples[main].timing()
    compiled = samples.get("compiled")
    return BenchmarkFacts(
        candidate=main,
        samples_us=timing.samples_us,
        p50_us=timing.p50_us,
        p90_us=timing.p90_us,
        p99_us=timing.p99_us,
        mean_us=timing.mean_us,
        baselines={name: s.timing() for name, s in samples.items() if name != main},
        speedup={"eager": paired_ratio(samples["eager"], samples[main])} if main != "eager" else {},
        speedup_compiled={"eager": paired_ratio(samples["eager"], compiled)} if compiled is not None else {},
    )


class Tried(Protocol):
    """What is written down of one way; only what passed is timed."""

    @property
    def passed(self) -> bool: ...


Row = TypeVar("Row", bound=Tried)
COMPARING = 0.5
"""Share of the progress that compiling and comparing are counted as."""


def compared(session: Session) -> Numerics | str:
    """Compiled and compared with eager on every step; the error of what cannot be done, which ends nothing."""
    from npucompose.compose.comparison import every_step

    try:
        return every_step(session, lambda _: None).numerics
    except NpuComposeError as error:
        return str(error)


def candidate(session: Session) -> Candidate:
    """What of a session is timed."""
    if not MODES.get(session.experiment.mode.name).compiles:
        return "eager"
    return "compiled" if session.detached is None else "replay"


def in_one_process(
    live: Session,
    wanted: Mapping[str, Callable[[], Session]],
    tried: Callable[[str, Session], Row],
    progress: Callable[[float], None],
) -> tuple[list[Row], Mapping[str, Samples]]:
    """(`tried(name, session)` of each, samples of those that passed). All are sessions of the model of `live`, whose
    settings are followed; each is made when its turn comes.
    """
    rows: list[Row] = []
    right: dict[str, Session] = {}
    for name, make in wanted.items():
        session = make()
        rows.append(tried(name, session))
        if rows[-1].passed:
            right[name] = session
        progress(COMPARING * len(rows) / len(wanted))
    return rows, _timed(live, right, progress)


def _timed(live: Session, sessions: Mapping[str, Session], progress: Callable[[float], None]) -> Mapping[str, Samples]:
    import torch

    # no_grad also here: a change of the grad mode is a recompilation.
    with torch.no_grad(), _versions_for(sessions):
        return in_turns(live, dict(_calls(sessions)), lambda done: progress(COMPARING + (1 - COMPARING) * done))


def _calls(sessions: Mapping[str, Session]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The detached handle where there is one, else the compiled model, compiled once more where that was forgotten."""
    for name, session in sessions.items():
        session.rewind()
        call = bound(session.detached or session.compiled, session.bind(session.inputs(0)))
        call()
        yield name, call


def _versions_for(sessions: Mapping[str, Session]) -> AbstractContextManager[Any]:
    """# Note [One model, many backends]

    Dynamo forgets what it compiled when the next session is compiled from a clean start, and keeps a number of versions
    of one function: here each session is one.
    """
    from torch._dynamo import config

    return config.patch(recompile_limit=config.recompile_limit + len(sessions))
