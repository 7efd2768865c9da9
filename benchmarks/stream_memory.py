"""What a bound of memory costs a stream plan: `python benchmarks/stream_memory.py [--graphs 200]`.

Random graphs that write in place, take views and tuples apart, on three streams; for each bound the share of plans
that had to be repaired, what their intermediate results are predicted to need, the predicted time they lose against
the same plan without a bound, and, captured by the native replayer on three threads, the pools that were placed. The
exit status is 1 where any pool is above its bound. Everything here is counted, nothing is timed: the table is the same
on every machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from statistics import mean

import torch
from attrs import frozen
from rich.console import Console
from rich.table import Table
from torch import fx

from npucompose import ops
from npucompose.errors import PlanError
from npucompose.replay.captured_graph import CapturedGraph
from npucompose.replay.plan import Workers
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.sizes import MemoryBound
from npucompose.schema.streams import Streams
from npucompose.streams import apply, decision_of
from npucompose.vendor.devices import cpu
from tests.sample_graphs import some_inputs
from tests.streams.random_in_place import in_place_program

BOUNDS = ("2x", "1.5x", "1.2x", "1x", "0.9x")
STREAMS, SIZE = 3, 30


@frozen
class Kept:
    """One graph under one bound, against the same graph without one."""

    needs: float
    """Bytes that its plan is predicted to need, as a multiple of one stream's."""
    slower: float
    """Predicted time as a multiple of that of the plan without a bound."""
    pool: float
    """The pool that was placed, as a multiple of the bound."""
    threads: int


def planned(seed: int, bound: str | None) -> fx.GraphModule:
    """The random graph of that number with its plan; PlanError where nothing keeps to the bound."""
    can = Capabilities(target="cpu", mode="reduce-overhead", device_model=cpu(STREAMS))
    module = in_place_program(seed, size=SIZE)
    apply(module.graph, Streams(min_gain=0, max_streams=STREAMS, cost="none", max_memory=bound), can)
    module.recompile()
    return module


def kept(seed: int, bound: str) -> Kept | None:
    """None where nothing keeps to the bound, which says so."""
    try:
        module = planned(seed, bound)
    except PlanError:
        return None
    free, held = decision_of(planned(seed, None)), decision_of(module)
    assert free is not None
    assert held is not None
    before, after = free.prediction, held.prediction
    assert before is not None
    assert after is not None
    most = MemoryBound.from_text(bound).nbytes(after.serial_peak_bytes)
    workers = Workers(count=STREAMS)
    facts = CapturedGraph.capture(
        module, some_inputs(module), workers=workers, max_memory=MemoryBound.from_text(f"{most}B")
    ).facts()
    return Kept(
        after.peak_bytes / after.serial_peak_bytes,
        after.plan_us / before.plan_us,
        facts["pool_bytes"] / most,
        facts["threads"],
    )


def rows(graphs: int) -> Iterator[tuple[str, Sequence[Kept | None]]]:
    for bound in BOUNDS:
        yield bound, [kept(seed, bound) for seed in range(graphs)]


def table(graphs: int) -> tuple[Table, bool]:
    """The table, and whether no pool is above its bound."""
    made = Table(title=f"streams.max_memory on {graphs} random graphs, {STREAMS} streams")
    for column in ("bound", "refused", "on threads", "needs", "time", "slowest", "largest pool ÷ bound"):
        made.add_column(column)
    held = True
    for bound, found in rows(graphs):
        fits = [one for one in found if one is not None]
        worst = max((one.pool for one in fits), default=0.0)
        held &= worst <= 1
        made.add_row(
            bound,
            str(len(found) - len(fits)),
            str(sum(one.threads > 1 for one in fits)),
            f"{mean(one.needs for one in fits):.2f} of one stream",
            f"{mean(one.slower for one in fits):.3f}",
            f"{max(one.slower for one in fits):.2f}",
            f"{worst:.2f}",
        )
    return made, held


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--graphs", type=int, default=200)
    torch.set_num_threads(1)  # one intra-op thread for each kernel: streams then run side by side whatever the kernels
    ops.define()
    made, held = table(parser.parse_args().graphs)
    Console(width=120).print(made)
    print("no pool is above its bound" if held else "MISSED: a pool is above its bound")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
