"""Predicted against measured gains of plans on this machine: `python -m benchmarks.streams.predictions`.

Fifteen models on one and on two intra-op threads. The plan is forced (`streams.min_gain=0`); what
`streams.cost=calibrated` predicts of it, with its interval, is held against calls of the detached handles with and
without the plan, taken in turn. Whether the product applies the plan is asked of a session of its own, with every
option at its default.

For a machine with two cores and nothing else to do. `--models gpt_decode mlp` takes those of that name alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
from attrs import asdict, frozen
from rich.console import Console

from benchmarks.streams.execution import handle, intra_op_threads, session
from benchmarks.streams.goals import Goal, Part, say, shown, table_of
from npucompose.compose.session import Session
from npucompose.results.streams import gain_interval
from npucompose_replay.executor.calibration import calibrate

MODELS: Sequence[tuple[str, ...]] = (
    ("gpt_decode",),
    ("gpt_decode", "model.hidden=512", "model.ffn=1024"),
    ("gpt_prefill", "model.hidden=256", "model.ffn=512", "model.layers=2", "model.tokens=64"),
    ("moe_shared_expert",),
    ("moe_shared_expert", "model.tokens=64", "model.hidden=512", "model.ffn=1024", "model.shared_ffn=4096"),
    ("moe_shared_expert", "model.tokens=1", "model.experts=8"),
    ("mla_prolog",),
    ("mla_prolog", "model.tokens=64", "model.hidden=2048"),
    ("mla_prolog", "model.tokens=1"),
    ("parallel_branches", "model.size=32", "model.depth=8"),
    ("parallel_branches", "model.size=128", "model.depth=8"),
    ("parallel_branches", "model.size=512", "model.depth=4"),
    ("mm_abs_sub",),
    ("mm_abs_sub", "model.size=1024"),
    ("tiny_ops",),
)
THREADS = (1, 2)
BATCH_S, LIMIT_S, TURNS = 0.02, 4.0, (5, 25)
"""A batch of calls, all turns of one case, and how many turns at least and at most."""
CLEAR = 0.03
"""A measured gain beyond this has a sign."""
MEDIAN_GOAL, SIGN_GOAL, SLOWER_GOAL = 0.10, 0.93, 1.03


@frozen(kw_only=True)
class Case:
    """Gains are shares of the time on one stream."""

    model: str
    threads: int
    predicted: float
    low: float
    high: float
    one_us: float
    plan_us: float
    applied: bool

    @property
    def measured(self) -> float:
        return 1 - self.plan_us / self.one_us

    @property
    def error(self) -> float:
        return abs(self.predicted - self.measured)

    @property
    def sign_holds(self) -> bool | None:
        """None where the measured gain is too small to have one."""
        return None if abs(self.measured) <= CLEAR else (self.predicted > 0) == (self.measured > 0)


def case(model: Sequence[str], threads: int) -> Case | None:
    """None for a model of which nothing runs beside anything else."""
    forced = session(*model, "passes=stream_plan", "streams.min_gain=0", "target.stream_fallback=false")
    ways = {"plan": handle(forced), "one": handle(session(*model, "passes=[]"))}
    decisions = [found.decision for found in forced.compilations if found.decision is not None]
    predictions = [one.prediction for one in decisions if one.applied and one.prediction is not None]
    interval = gain_interval(predictions)
    if not predictions or interval is None:
        return None
    times = in_turn(ways)
    return Case(
        model=" ".join(model),
        threads=threads,
        predicted=1 - sum(one.plan_us for one in predictions) / sum(one.serial_us for one in predictions),
        low=interval[0],
        high=interval[1],
        one_us=median(times["one"]),
        plan_us=median(times["plan"]),
        applied=_is_applied(session(*model, "passes=stream_plan")),
    )


def _is_applied(live: Session) -> bool:
    """Whether a recording of it runs on streams, as the trial at capture left it."""
    handle(live)()
    last = [getattr(found.lowered, "last", None) for found in live.compilations]
    return any(getattr(recording, "threads", None) is not None for recording in last)


def in_turn(ways: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Microseconds of a call, one figure for each batch; the ways take turns."""
    begun = perf_counter()
    for act in ways.values():
        act()
    calls = max(1, round(BATCH_S / (perf_counter() - begun)))
    found: dict[str, list[float]] = {name: [] for name in ways}
    least, most = TURNS
    begun = perf_counter()
    for turn in range(most):
        if turn >= least and perf_counter() - begun > LIMIT_S:
            break
        for name, act in ways.items():
            act()
            start = perf_counter()
            for _ in range(calls):
                act()
            found[name].append((perf_counter() - start) / calls * 1e6)
    return found


def judged(cases: Sequence[Case]) -> tuple[Goal, ...]:
    """What the predictions of these cases have to show."""
    errors = [one.error for one in cases]
    signs = [one.sign_holds for one in cases if one.sign_holds is not None]
    slowest = max((one.plan_us / one.one_us for one in cases if one.applied), default=1.0)
    points = median(errors) if errors else 0.0
    share = sum(signs) / len(signs) if signs else 1.0
    return (
        Goal(
            f"median error at most {MEDIAN_GOAL * 100:g} points of gain", points <= MEDIAN_GOAL, f"{points * 100:.1f}"
        ),
        Goal(
            f"right sign of at least {SIGN_GOAL:.0%} beyond {CLEAR * 100:g} points",
            share >= SIGN_GOAL,
            f"{sum(signs)} of {len(signs)}",
        ),
        Goal(
            f"no applied plan slower than {SLOWER_GOAL:g} × one stream",
            slowest <= SLOWER_GOAL,
            f"{slowest:.3f}, {sum(one.applied for one in cases)} applied",
        ),
    )


def predicted_gains(names: Sequence[str] = ()) -> Part:
    """Of all models, or of those with these names."""
    columns = ("model", "threads", "predicted gain", "interval", "measured", "error", "one stream, µs", "default")
    table = table_of("streams.cost=calibrated: predicted against measured gain of forced plans", *columns)
    cases: list[Case] = []
    for threads in THREADS:  # by the table of now, not of a day on which the machine was busy
        with intra_op_threads(threads):
            calibrate()
    for model in MODELS:
        if names and model[0] not in names:
            continue
        for threads in THREADS:
            say(f"  {' '.join(model)}, {threads} intra-op …")
            with intra_op_threads(threads), torch.no_grad():
                found = case(model, threads)
            if found is None:
                table.add_row(" ".join(model), str(threads), "nothing runs beside anything else", *[""] * 5)
                continue
            cases.append(found)
            figures = (f"{share:+.0%}" for share in (found.predicted, found.measured))
            predicted, measured = figures
            interval, applied = f"{found.low:+.0%} … {found.high:+.0%}", "applied" if found.applied else "one stream"
            row = (predicted, interval, measured, f"{found.error * 100:.0f}", f"{found.one_us:.0f}", applied)
            table.add_row(found.model, str(threads), *row)
    return Part(tables=[table], goals=judged(cases), figures=[asdict(one) for one in cases])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted({model[0] for model in MODELS})
    parser.add_argument("--models", nargs="*", choices=known, default=(), metavar="MODEL", help=", ".join(known))
    return 0 if shown(predicted_gains(parser.parse_args(words).models), Console(width=160)) else 1


if __name__ == "__main__":
    sys.exit(main())
