"""Eager against replay: `python benchmarks/replay.py [model …] [--mode max-autotune] [--seconds 4] [--steps]`.

For each built-in model: eager, the detached handle and the call through torch.compile, interleaved in one process at
one thread, each on inputs of its own that stay where they are; a ratio is the median of the ratios of each round.
Replay is compared with eager before it is timed, bit for bit where the mode fuses nothing. Where the native replayer
runs, three more figures: the handle's time over the raw kernel floor (`benchmarks/floor.py` says what that is), the
front (a handle's call less the kernels in it, in pairs), and the planned pool over what is live at most. The second
table holds the goals.
`--steps` shows, for each operator, its kernel in the recording beside the same call through torch's dispatcher.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any, cast

import torch
from attrs import evolve, frozen
from floor import Floor, StepTime, by_operator
from rich.console import Console
from rich.table import Table

from npucompose.api import checked
from npucompose.compose.session import Session
from npucompose.errors import ConfigError
from npucompose.measure.numerics import compare
from npucompose.measure.timing import Samples, interleaved, paired_ratio
from npucompose.models import MODELS
from npucompose.recorder import Handle
from npucompose.table.modes import MODES as EVERY_MODE
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor.native import Native
from npucompose_replay.plan import lent_inputs

SMALL_US = 20.0
NOT_SLOWER = 1.03
ROUNDS = 9
"""Of floor against replay; each round is one estimate of both."""


@frozen(kw_only=True)
class Row:
    model: str
    eager: Samples
    detached: Samples
    compiled: Samples
    kernels: int
    executor: str
    pool: float | None
    """Planned pool over live lower bound; None without a pool."""
    over_floor: float | None = None
    front_us: float | None = None
    steps: tuple[StepTime, ...] = ()

    @property
    def share(self) -> float:
        """The detached handle's time as a share of eager's."""
        return 1 / paired_ratio(self.eager, self.detached)


@frozen(kw_only=True)
class Goal:
    """`what` of `model`, as `of` reads it from the row, is at most `limit`."""

    model: str
    what: str
    limit: float
    of: Callable[[Row], float | None]


def share(row: Row) -> float | None:
    return row.share


def over_floor(row: Row) -> float | None:
    return row.over_floor


def front(row: Row) -> float | None:
    return row.front_us


def pool(row: Row) -> float | None:
    return row.pool


MODELS_WITH_A_FLOOR = ("tiny_ops", "gpt_decode", "gpt_prefill")
GOALS = (
    *(Goal(model=m, what="replay ÷ kernel floor", limit=1.15, of=over_floor) for m in MODELS_WITH_A_FLOOR),
    Goal(model="tiny_ops", what="replay ÷ eager (6x as fast)", limit=1 / 6, of=share),
    Goal(model="gpt_decode", what="replay ÷ eager (1.8x as fast)", limit=1 / 1.8, of=share),
    Goal(model="tiny_ops", what="front, µs", limit=1.5, of=front),
    Goal(model="gpt_decode", what="front, µs", limit=8.0, of=front),
    *(Goal(model=m, what="pool ÷ live lower bound", limit=1.12, of=pool) for m in MODELS_WITH_A_FLOOR),
)


def measured(model: str, mode: str, passes: str, seconds: float, with_steps: bool) -> Row:
    """One model; RuntimeError when replay and eager differ, in a bit where the mode fuses nothing."""
    live = Session(checked([f"model={model}", f"mode={mode}", f"passes={passes}"]))
    exact = not EVERY_MODE.get(mode).fuses
    handle = live.detached
    if handle is None:
        raise RuntimeError(f"{model}: {live.why_attached}")
    live.rewind()
    for step in range(live.built.steps):
        expected, got = live.call(live.reference, live.inputs(step)), live.call(handle, live.inputs(step))
        if not compare(expected, got, exact=exact).passed:
            raise RuntimeError(f"{model}: replay differs from eager at step {step}; nothing is timed.")
    candidates: dict[str, Callable[..., Any]] = {
        "eager": live.reference,
        "detached": handle,
        "compiled": live.compiled,
    }
    arguments = live.bind(live.inputs(0)).args
    with torch.no_grad():
        samples = interleaved(
            {name: _bound(f, live.bind(live.inputs(0)).args) for name, f in candidates.items()},
            warmup=10,
            min_calls=15,
            min_seconds=seconds,
            max_calls=20_000,
        )
        captured = handle.captured
        assert isinstance(captured, CapturedGraph)
        facts = captured.facts()
        row = Row(
            model=model,
            kernels=facts["kernels"],
            executor=facts["executor"],
            pool=facts["pool_bytes"] / facts["live_bytes"] if facts["live_bytes"] else None,
            **cast("Any", samples),
        )
        return _with_native(row, captured, handle, arguments, with_steps)


def _with_native(
    row: Row, captured: CapturedGraph, handle: Handle, arguments: tuple[Any, ...], with_steps: bool
) -> Row:
    executor = captured.executor
    if not isinstance(executor, Native) or any(lent_inputs(captured.plan.steps)):
        return row  # an operator that may keep what it is given runs only in a call, which lends it the caller's inputs
    floor = Floor(captured, handle.inputs_of(*arguments))
    calls = max(5, min(500, round(20_000 / row.detached.p50)))
    ratios = [_p50(handle, arguments, calls) / floor.microseconds() for _ in range(ROUNDS)]
    return evolve(
        row,
        over_floor=median(ratios),
        front_us=_front(handle, executor, arguments, seconds=1.0),
        steps=tuple(floor.steps()) if with_steps else (),
    )


def _p50(handle: Handle, arguments: tuple[Any, ...], calls: int) -> float:
    samples: list[float] = []
    for _ in range(calls):
        begun = perf_counter_ns()
        handle(*arguments)
        samples.append((perf_counter_ns() - begun) / 1e3)
    return median(samples)


def _front(handle: Handle, executor: Native, arguments: tuple[Any, ...], seconds: float) -> float:
    """Median of (a call of the handle) - (the same kernels, right after it), in µs."""
    steps = list(range(len(executor.ways)))
    differences: list[float] = []
    end = perf_counter() + seconds
    while len(differences) < 10 or perf_counter() < end:
        begun = perf_counter_ns()
        handle(*arguments)
        whole = perf_counter_ns() - begun
        (kernels,) = executor.recording.times(steps, 1)
        differences.append((whole - kernels) / 1e3)
    return median(differences)


def _bound(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: function(*arguments)


def table_of(rows: list[Row]) -> Table:
    columns = (
        "model",
        "eager µs",
        "detached µs",
        "as fast",
        "compiled",
        "÷ floor",
        "front µs",
        "pool ÷ live",
        "kernels",
    )
    table = Table(title=f"torch {torch.__version__}, 1 thread, p50 and medians of paired ratios")
    for column in columns:
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        table.add_row(
            row.model,
            f"{row.eager.p50:.1f}",
            f"{row.detached.p50:.1f}",
            f"{1 / row.share:.2f}x",
            f"{paired_ratio(row.eager, row.compiled):.2f}x",
            _number(row.over_floor),
            _number(row.front_us),
            _number(row.pool),
            f"{row.kernels} {row.executor}",
        )
    return table


def goals_of(rows: list[Row]) -> list[tuple[Goal, float | None]]:
    """Each goal of the models that were measured, with what came out; None where there is no such figure here."""
    slow = [row for row in rows if row.eager.p50 >= SMALL_US]
    wanted = [*GOALS, *(Goal(model=r.model, what="replay ÷ eager", limit=NOT_SLOWER, of=share) for r in slow)]
    by_model = {row.model: row for row in rows}
    return [(goal, goal.of(by_model[goal.model])) for goal in wanted if goal.model in by_model]


def table_of_goals(goals: list[tuple[Goal, float | None]]) -> Table:
    table = Table(title="goals")
    for column in ("model", "what", "at most", "got", ""):
        table.add_column(column, justify="right" if column in ("at most", "got") else "left")
    for goal, got in goals:
        verdict = "no native replayer" if got is None else "met" if got <= goal.limit else "MISSED"
        table.add_row(goal.model, goal.what, f"{goal.limit:.3g}", _number(got), verdict)
    return table


def table_of_steps(row: Row) -> Table:
    table = Table(title=f"{row.model}: each operator by itself, hot, µs in all")
    for column in ("operator", "calls", "way", "in the recording", "through the dispatcher", "saved"):
        table.add_column(column, justify="left" if column in ("operator", "way") else "right")
    for operator, (calls, way, direct, boxed) in by_operator(row.steps).items():
        table.add_row(operator, str(calls), way, f"{direct:.1f}", f"{boxed:.1f}", f"{boxed - direct:.1f}")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def main() -> int:
    names = [name for name in MODELS.names() if name != "python"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=names, metavar="model", help=", ".join(names))
    parser.add_argument("--seconds", type=float, default=4.0, help="of counted calls for each model")
    parser.add_argument("--mode", default="reduce-overhead", help="a mode that records")
    parser.add_argument("--passes", default="[]", help="the pass list, as on the command line")
    parser.add_argument("--steps", action="store_true", help="also each operator by itself")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console, rows = Console(width=120), []
    for model in arguments.models:
        try:
            rows.append(measured(model, arguments.mode, arguments.passes, arguments.seconds, arguments.steps))
        except ConfigError as error:
            console.print(f"left out: {error}")
    console.print(table_of(rows))
    for row in rows if arguments.steps else []:
        console.print(table_of_steps(row))
    goals = goals_of(rows)
    console.print(table_of_goals(goals))
    return int(any(got is not None and got > goal.limit for goal, got in goals))


if __name__ == "__main__":
    sys.exit(main())
