"""Which mode wins: the experiment in its own mode, in those of `benchmark.against` and in eager, in one process.

Each is compared with eager first; only those whose results are right are timed, all in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from attrs import evolve

from airflow_free.stage import Facts, Stage
from npucompose.compose.legality import effective_options
from npucompose.errors import ConfigError, raise_for
from npucompose.experiment.stages.benchmark import candidate, compared, in_one_process
from npucompose.results.measured import Behind, ModeFacts, ModeTime
from npucompose.schema.experiment import Mode
from npucompose.table.structure import facts_of

if TYPE_CHECKING:
    from npucompose.compose.check import Checked
    from npucompose.compose.session import Session
    from npucompose.measure.timing import Samples

ROUNDS = 20
"""Rounds without which nobody has won: of two equal modes one is ahead in three of four of so few once in 25 times."""
WHERE = "benchmark.against"


def check(checked: Checked, stages: Sequence[str]) -> None:
    """ConfigError where a mode of `benchmark.against` cannot be timed beside the experiment's own."""
    wanted, target = checked.experiment.benchmark.against, checked.target
    if not wanted:
        if ModesStage.name in stages:
            raise ConfigError(f"the stage modes needs modes to time; name some: {WHERE}=[max-autotune].")
        return
    if not target.modes_share_a_process:
        raise ConfigError(
            f"{WHERE}: on target={target.name} every mode needs a process of its own, as a compiler's options are set "
            "once in each. Run the modes one by one (-m mode=…), and `npucompose report RUN RUN` says which won."
        )
    if ModesStage.name not in stages:
        raise ConfigError(f"{WHERE} has no effect without the stage benchmark: pipeline=bench has it.")
    raise_for([f"{WHERE}[{at}]: {problem}" for at in range(len(wanted)) for problem in _problems(checked, at)])


def _problems(checked: Checked, at: int) -> Sequence[str]:
    """What is wrong with one mode of the list."""
    wanted = checked.experiment.benchmark.against
    if wanted[at] in (checked.experiment.mode.name, "eager", *wanted[:at]):
        return (f"{wanted[at]} is timed already. The experiment's own mode and eager always are.",)
    try:
        in_mode(checked, wanted[at])
    except ConfigError as error:
        return error.problems
    return ()


def in_mode(checked: Checked, mode: str) -> Checked:
    """The same experiment in another mode; options without effect there are no error. ConfigError where it cannot run.

    Equal but for the mode, so that nothing but the mode can have won.
    """
    checked.target.check(mode)
    other = evolve(checked.experiment, mode=Mode(name=mode), strict="off")
    return evolve(checked, experiment=other, effective=effective_options(other, checked.target, checked.passes))


class ModesStage(Stage["Session"]):
    """Results and times of the experiment in several modes."""

    name: ClassVar[str] = "modes"
    needs: ClassVar[tuple[str, ...]] = ("replay",)
    reads: ClassVar[tuple[str, ...]] = ("benchmark",)
    measures: ClassVar[bool] = True

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        own = live.experiment.mode.name
        modes: tuple[str, ...] = (own, *live.experiment.benchmark.against, "eager")

        def session_in(mode: str) -> Session:
            return live if mode == own else live.with_experiment(in_mode(live.checked, mode))

        wanted = {mode: partial(session_in, mode) for mode in modes}
        found, samples = in_one_process(live, wanted, lambda mode, session: _tried(mode, session, live), progress)
        return {"modes": facts_of(contest(found, samples))}


def _tried(mode: str, session: Session, live: Session) -> ModeTime:
    """What cannot be done in one mode is told in its row."""
    known = {one.option for one in live.checked.effective}
    idle = tuple(one.option for one in session.checked.effective if one.option not in known and mode != "eager")
    found = compared(session)
    if isinstance(found, str):
        return ModeTime(mode=mode, passed=False, problem=found, idle=idle)
    return ModeTime(
        mode=mode,
        candidate=candidate(session),
        compile_s=session.first_call.times.total_s,
        passed=found.passed,
        bitwise=found.bitwise,
        max_abs_err=found.max_abs_err,
        problem="; ".join(found.problems) or None,
        idle=idle,
    )


def contest(found: Sequence[ModeTime], samples: Mapping[str, Samples]) -> ModeFacts:
    """# Note [Who has won]

    The fastest by its median has won when in three rounds of four it was faster than each other mode: the quartiles of
    the ratios are the spread, and a lead within it may be gone in the next run.
    """
    from npucompose.measure.timing import paired

    fastest = min(samples, key=lambda mode: samples[mode].p50, default=None)
    rows: list[ModeTime] = []
    for one in found:
        if one.mode in samples and fastest is not None:
            ratios = paired(samples[one.mode], samples[fastest])
            behind = Behind(ratio=ratios.p50, low=ratios.percentile(25), high=ratios.percentile(75))
            one = evolve(one, timing=samples[one.mode].timing(), behind=behind if one.mode != fastest else None)
        rows.append(one)
    others = [one.behind for one in rows if one.behind is not None]
    enough = fastest is not None and len(samples[fastest].us) >= ROUNDS
    return ModeFacts(fastest=fastest, won=enough and bool(others) and all(o.low > 1 for o in others), modes=tuple(rows))
