"""What `streams.max_memory` costs: random graphs that write in place, take views and tuples apart, on three streams.

For each bound the share of plans that had to be repaired, what their intermediate results are predicted to need, the
predicted time they lose against the same plan without a bound, and, captured by the native replayer on three threads,
the pools that were placed. Everything is counted and nothing timed: the same table in every process.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from statistics import mean

from attrs import frozen
from torch import fx

from benchmarks.streams.goals import Goal, Part, say, table_of
from npucompose import ops
from npucompose.errors import PlanError
from npucompose.results.streams import Prediction
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.sizes import MemoryBound
from npucompose.schema.streams import Streams
from npucompose.streams import apply, decision_of
from npucompose.vendor.devices import cpu
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.plan import Workers
from tests.sample_graphs import some_inputs
from tests.streams.random_in_place import in_place_program

BOUNDS = ("1.5x", "1.2x", "1x", "0.9x")
GRAPHS, STREAMS, SIZE = 200, 3, 24
TOLD_EVERY = 20


@frozen
class Kept:
    """One graph under one bound, against the same graph without one."""

    needs: float
    """Bytes that its plan is predicted to need, as a multiple of one stream's."""
    slower: float
    """Predicted time as a multiple of that of the plan without a bound."""
    pool: float
    """The pool that was placed, as a multiple of the bound."""
    repaired: bool
    """Without the bound the plan needs more than it."""
    threads: int


Row = Mapping[str, Kept | None]
"""{bound: what it did to a graph}; None where nothing keeps to it, which the plan says."""


def planned(module: fx.GraphModule, bound: str | None) -> Prediction:
    """Of the plan that is written into the graph; PlanError where nothing keeps to the bound."""
    can = Capabilities(target="cpu", mode="reduce-overhead", device_model=cpu(STREAMS))
    apply(module.graph, Streams(min_gain=0, max_streams=STREAMS, cost="none", max_memory=bound), can)
    module.recompile()
    decision = decision_of(module)
    assert decision is not None
    assert decision.prediction is not None
    return decision.prediction


def row(seed: int) -> Row:
    module = in_place_program(seed, size=SIZE)
    free = planned(copy.deepcopy(module), None)
    return {bound: kept(copy.deepcopy(module), bound, free) for bound in BOUNDS}


def kept(module: fx.GraphModule, bound: str, free: Prediction) -> Kept | None:
    try:
        found = planned(module, bound)
    except PlanError as error:
        if error.code != "memory":
            raise
        return None
    most = MemoryBound.from_text(bound).nbytes(found.serial_peak_bytes)
    facts = CapturedGraph.capture(
        module, some_inputs(module), workers=Workers(count=STREAMS), max_memory=MemoryBound.from_text(f"{most}B")
    ).facts()
    return Kept(
        needs=found.peak_bytes / found.serial_peak_bytes,
        slower=found.plan_us / free.plan_us,
        pool=facts["pool_bytes"] / most,
        repaired=free.peak_bytes > most,
        threads=facts["threads"],
    )


def memory(graphs: int = GRAPHS) -> Part:
    """With one intra-op thread for each kernel, so that streams run side by side whatever the kernels."""
    ops.define()
    rows: list[Row] = []
    for seed in range(graphs):
        rows.append(row(seed))
        if len(rows) % TOLD_EVERY == 0:
            say(f"streams.max_memory: {len(rows)} of {graphs} graphs under {len(BOUNDS)} bounds")
    title = f"streams.max_memory on {graphs} random graphs, {STREAMS} streams; time over that without a bound"
    columns = ("bound", "refused", "repaired", "on threads", "needs, of one stream", "time, mean", "slowest")
    table = table_of(title, *columns, "largest pool ÷ bound")
    goals: list[Goal] = []
    for bound in BOUNDS:
        fits = [one for each in rows if (one := each[bound]) is not None]
        worst = max((one.pool for one in fits), default=0.0)
        table.add_row(bound, str(graphs - len(fits)), *_cells(fits), f"{worst:.2f}")
        goals.append(Goal(f"streams.max_memory={bound}: no pool above it", worst <= 1, f"{worst:.2f} of it at most"))
    repaired = sum(one.repaired for each in rows for one in each.values() if one is not None)
    goals.append(Goal("… which without it were above it", repaired > graphs, f"{repaired} plans"))
    return Part(tables=[table], goals=goals)


def _cells(fits: Sequence[Kept]) -> list[str]:
    if not fits:
        return ["0", "0", "", "", ""]
    counts = [sum(one.repaired for one in fits), sum(one.threads > 1 for one in fits)]
    slower = [one.slower for one in fits]
    needs = f"{mean(one.needs for one in fits):.2f}"
    return [*map(str, counts), needs, f"{mean(slower):.3f}", f"{max(slower):.2f}"]
