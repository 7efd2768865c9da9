"""Eager against replay: `python benchmarks/replay.py [model …] [--seconds 4] [--passes stream_plan]`.

For each built-in model: eager, the detached handle and the call through torch.compile, interleaved in one process at
one thread, each on inputs of its own that stay where they are; a ratio is the median of the ratios of each round.
Replay is compared with eager bit for bit before it is timed. Goals: the detached handle takes at most half of eager's
time on tiny_ops, and at most 1.03 × eager's time on every model whose eager call takes 20 µs or more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from rich.console import Console
from rich.table import Table

from npucompose.api import checked
from npucompose.compose.session import Session
from npucompose.errors import ConfigError
from npucompose.measure.numerics import compare
from npucompose.measure.timing import Samples, interleaved, paired_ratio
from npucompose.models import MODELS

SMALL_US = 20.0
NOT_SLOWER = 1.03
GOALS = {"tiny_ops": 0.5}
"""Greatest share of eager's time; NOT_SLOWER for every other model that is not small."""


@frozen(kw_only=True)
class Row:
    model: str
    eager: Samples
    detached: Samples
    compiled: Samples
    kernels: int
    executor: str

    @property
    def share(self) -> float:
        """The detached handle's time as a share of eager's."""
        return 1 / paired_ratio(self.eager, self.detached)

    @property
    def verdict(self) -> str:
        if self.eager.p50 < SMALL_US:
            return f"no goal below {SMALL_US:g} µs"
        goal = GOALS.get(self.model, NOT_SLOWER)
        return f"{'met' if self.share <= goal else 'MISSED'}: at most {goal:g}"


def measured(model: str, passes: str, seconds: float) -> Row:
    """One model; RuntimeError when replay and eager differ in a bit."""
    live = Session(checked([f"model={model}", "mode=reduce-overhead", f"passes={passes}"]))
    handle = live.detached
    if handle is None:
        raise RuntimeError(f"{model}: {live.why_attached}")
    live.rewind()
    for step in range(live.built.steps):
        expected, got = live.call(live.reference, live.inputs(step)), live.call(handle, live.inputs(step))
        if not compare(expected, got, exact=True).passed:
            raise RuntimeError(f"{model}: replay differs from eager at step {step}; nothing is timed.")
    candidates: dict[str, Callable[..., Any]] = {
        "eager": live.reference,
        "detached": handle,
        "compiled": live.compiled,
    }
    with torch.no_grad():
        samples = interleaved(
            {name: _bound(f, tuple(live.inputs(0).values())) for name, f in candidates.items()},
            warmup=10,
            min_calls=15,
            min_seconds=seconds,
            max_calls=20_000,
        )
    recording = live.materialised.backend.compilations[0].lowered
    assert recording is not None
    facts = recording.captured[0].facts()
    return Row(model=model, kernels=facts["kernels"], executor=facts["executor"], **samples)


def _bound(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: function(*arguments)


def table_of(rows: list[Row]) -> Table:
    columns = ("model", "eager µs", "detached µs", "share", "as fast", "compiled", "kernels", "goal")
    table = Table(title=f"torch {torch.__version__}, 1 thread, p50 and medians of paired ratios")
    for column in columns:
        table.add_column(column, justify="left" if column in ("model", "goal") else "right")
    for row in rows:
        table.add_row(
            row.model,
            f"{row.eager.p50:.1f}",
            f"{row.detached.p50:.1f}",
            f"{row.share:.3f}",
            f"{1 / row.share:.2f}x",
            f"{paired_ratio(row.eager, row.compiled):.2f}x",
            f"{row.kernels} {row.executor}",
            row.verdict,
        )
    return table


def main() -> int:
    names = [name for name in MODELS.names() if name != "python"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=names, metavar="model", help=", ".join(names))
    parser.add_argument("--seconds", type=float, default=4.0, help="of counted calls for each model")
    parser.add_argument("--passes", default="[]", help="the pass list, as on the command line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console, rows = Console(width=110), []
    for model in arguments.models:
        try:
            rows.append(measured(model, arguments.passes, arguments.seconds))
        except ConfigError as error:
            console.print(f"left out: {error}")
    console.print(table_of(rows))
    return int(any("MISSED" in row.verdict for row in rows))


if __name__ == "__main__":
    sys.exit(main())
