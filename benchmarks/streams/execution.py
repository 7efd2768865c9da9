"""What plans do on this machine: `parallel_branches` on one stream and on two, and predicted against measured time.

For a machine with two cores and nothing else to do, one intra-op thread. What is timed is a call of the detached
handle, replays in turn; medians of rounds, and their spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch

from benchmarks.streams.goals import Goal, Part, table_of
from npucompose.api import checked
from npucompose.compose.session import Session

SIZES, DEPTH = (8, 16, 32, 64, 128, 256, 512), 8
SPEED_GOALS: Mapping[int, float] = {64: 1.7, 128: 1.7, 256: 1.9, 512: 1.9}
SLOWER_GOAL = 1.03
BATCH_S, TURNS = 0.02, 25
PREDICTED = (
    ("parallel_branches", ("model.size=192", "model.depth=8")),
    ("parallel_branches", ("model.size=512", "model.depth=4")),
    ("moe_shared_expert", ("model.tokens=64", "model.hidden=512", "model.ffn=1024", "model.shared_ffn=4096")),
    ("mla_prolog", ("model.tokens=64", "model.hidden=2048")),
)
LONG_US, ERROR_GOAL = 1000.0, 0.15


def session(model: str, *wanted: str) -> Session:
    """The model on the native replayer, with these overrides."""
    return Session(checked([f"model={model}", "mode=reduce-overhead", "target.executor=native", *wanted]))


def in_turn(handles: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Microseconds of a call, one figure for each batch; the handles take turns."""
    found: dict[str, list[float]] = {name: [] for name in handles}
    begun = perf_counter()
    for act in handles.values():
        act()
    calls = max(3, round(BATCH_S / (perf_counter() - begun)))
    for _ in range(TURNS):
        for name, act in handles.items():
            act()
            begun = perf_counter()
            for _ in range(calls):
                act()
            found[name].append((perf_counter() - begun) / calls * 1e6)
    return found


def executed() -> Part:
    title = f"parallel_branches, chains of {DEPTH}, one intra-op thread: µs of a replay"
    table = table_of(title, "n", "one stream", "two streams", "ratio (quartiles)", "default gate")
    goals: list[Goal] = []
    for size in SIZES:
        shape = ("parallel_branches", f"model.size={size}", f"model.depth={DEPTH}")
        lives = {
            "one": session(*shape, "passes=[]"),
            "two": session(*shape, "passes=stream_plan", "streams.min_gain=0"),
        }
        times = in_turn({name: handle(live) for name, live in lives.items()})
        (gated,) = session(*shape, "passes=stream_plan").compilations
        applied = gated.decision is not None and gated.decision.applied
        ratios = [one / two for one, two in zip(times["one"], times["two"], strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        shown = [f"{median(times[name]):.1f}" for name in ("one", "two")]
        gate = "applied" if applied else "left out"
        table.add_row(str(size), *shown, f"{middle:.2f} ({low:.2f} … {high:.2f})", gate)
        if size in SPEED_GOALS:
            least = SPEED_GOALS[size]
            goals.append(Goal(f"n = {size}: two streams {least:g} times as fast", middle >= least, f"{middle:.2f}"))
        if applied:
            what = f"n = {size}: applied, and not slower than {SLOWER_GOAL} × one stream"
            goals.append(Goal(what, middle * SLOWER_GOAL >= 1, f"{1 / middle:.2f}"))
    return Part(tables=[table], goals=goals)


def handle(live: Session) -> Callable[[], Any]:
    """A call of the recorded graph on the inputs of the model, for where gradients are off."""
    call, inputs = live.detached, live.bind(live.inputs(0)).args
    assert call is not None, live.why_attached
    return lambda: call(*inputs)


def predictions() -> Part:
    columns = ("model", "one: predicted", "measured", "plan: predicted", "measured", "error")
    table = table_of("streams.cost=measured: predicted against measured, µs", *columns)
    goals: list[Goal] = []
    for model, shape in PREDICTED:
        live = session(model, *shape, "passes=stream_plan", "streams.cost=measured", "streams.min_gain=0")
        live.compiled  # noqa: B018  the first call records
        (compilation,) = live.compilations
        decision = compilation.decision
        assert decision is not None
        assert decision.prediction is not None
        times = live.checked.target.stream_times(live.materialised.backend.compilations)[compilation.id]
        error = decision.prediction.plan_us / times.plan_us - 1
        serial, plan = decision.prediction.serial_us, decision.prediction.plan_us
        figures = (f"{us:.0f}" for us in (serial, times.serial_us, plan, times.plan_us))
        table.add_row(" ".join((model, *shape)), *figures, f"{error:+.1%}")
        if times.plan_us >= LONG_US:
            goals.append(Goal(f"{model} predicted within {ERROR_GOAL:.0%}", abs(error) <= ERROR_GOAL, f"{error:+.1%}"))
    return Part(tables=[table], goals=goals)


def one_thread(part: Callable[[], Part]) -> Part:
    """With one intra-op thread, as many as before afterwards."""
    with intra_op_threads(1), torch.no_grad():
        return part()


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
