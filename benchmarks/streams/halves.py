"""The pass dual_batch_overlap: one named case that is faster in two halves, and two ranks whose sums are overlapped.

`beside`: a chain of layers, in which nothing is independent of the rest, with one intra-op thread on two cores: its
halves run beside each other. `ranks`: a tensor-parallel network under gloo, where one half's sum over the ranks is on
the link while the other half computes; on a machine whose two cores both ranks share, equal results are what counts.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

import torch
from attrs import frozen
from torch import distributed as dist
from torch import multiprocessing
from torch.distributed import _functional_collectives as functional

from benchmarks.streams.collectives import ONE_STREAM, PATIENCE, RANKS, Forward, compiled, weight, world
from benchmarks.streams.execution import handle, in_turn, intra_op_threads, session
from benchmarks.streams.goals import Goal, Part, say, table_of
from npucompose.graphs.effects import is_collective

CASE = ("mlp", "model.batch=128", "model.hidden=512")
HALVED = "passes=[dual_batch_overlap,stream_plan]"
LEAST = 1.05
"""Time of one stream over that of the halves, lower quartile."""
ROWS, WIDTH, LAYERS, TIMES = 384, 256, 2, 50
"""Of the tensor-parallel network; no weight has as many rows."""


@frozen(kw_only=True)
class Overlapped:
    """What one rank saw."""

    close: int
    """Executions within the tolerance of float32."""
    sums: int
    """Collectives that the halved graph issues."""
    why: str
    """What the pass says of it."""
    us: float
    one_stream_us: float


def halves() -> Part:
    table = table_of("dual_batch_overlap: µs", "case", "one stream", "two halves", "ratio (quartiles)", "halved")
    with intra_op_threads(1), torch.no_grad():
        beside = _beside(table)
    return Part(tables=[table], goals=[*beside, *_ranks(table)])


def _beside(table: Any) -> list[Goal]:
    name = " ".join(CASE)
    say(f"halves: {name}")
    halved, whole = session(*CASE, HALVED), session(*CASE, "passes=[]")
    ways = {"one": handle(whole), "halves": handle(halved)}
    expected = ways["one"]().clone()
    close = torch.allclose(ways["halves"](), expected, rtol=1.3e-6, atol=1e-5)
    times = in_turn(ways)
    low, middle, high = quantiles([one / two for one, two in zip(times["one"], times["halves"], strict=True)], n=4)
    (compilation,) = halved.compilations
    record = next(one for one in compilation.passes if one.name == "dual_batch_overlap")
    cells = [f"{quantiles(times[way], n=2)[0]:.0f}" for way in ("one", "halves")]
    table.add_row(f"{name}, one thread", *cells, f"{middle:.2f} ({low:.2f} … {high:.2f})", record.why)
    return [
        Goal(f"{name}, one thread: results of the halves as close as promised", close, "equal" if close else "not"),
        Goal(f"… and {LEAST} times as fast, lower quartile", low >= LEAST and record.matches > 0, f"{low:.2f}"),
    ]


def _ranks(table: Any) -> list[Goal]:
    say(f"halves: {RANKS} ranks, {TIMES} executions")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_on_rank, args=(folder,), nprocs=RANKS)  # pyright: ignore[reportPrivateImportUsage]
        found = [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]
    goals: list[Goal] = []
    for rank, one in enumerate(found):
        cells = (f"{one.one_stream_us:.0f}", f"{one.us:.0f}", f"{one.one_stream_us / one.us:.2f} (p10 of each)")
        table.add_row(f"tensor-parallel network, rank {rank}", *cells, one.why)
        what = f"tensor-parallel network in halves, rank {rank}: {TIMES} executions as close as promised"
        goals.append(Goal(what, one.close == TIMES and one.sums == 2 * LAYERS, f"{one.close}, {one.sums} sums"))
    return goals


def _network(rank: int) -> Forward:
    """Columns of one weight of each layer, and rows of the other, on each rank."""
    ups = [weight(WIDTH, 4 * WIDTH, layer).chunk(RANKS, 1)[rank] for layer in range(LAYERS)]
    downs = [weight(4 * WIDTH, WIDTH, 10 + layer).chunk(RANKS, 0)[rank] for layer in range(LAYERS)]

    def forward(x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(ups, downs, strict=True):
            x = x + functional.all_reduce(torch.relu(x @ up) @ down, "sum", world())
        return x

    return forward


def _on_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, init_method=f"file://{folder}/ranks", timeout=PATIENCE)
    with torch.no_grad():
        torch.save(_overlapped(rank), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def _overlapped(rank: int) -> Overlapped:
    forward, generator = _network(rank), torch.Generator().manual_seed(1)
    halved, backend = compiled(forward, (*ONE_STREAM, HALVED, "streams.min_gain=0"), ROWS, WIDTH)
    calls = (halved, compiled(forward, ONE_STREAM, ROWS, WIDTH)[0])
    (compilation,) = backend.compilations
    why = next(one for one in compilation.passes if one.name == "dual_batch_overlap").why
    sums = sum(map(is_collective, compilation.graph_module.graph.nodes))
    took: tuple[list[float], list[float]] = ([], [])
    close = 0
    for _ in range(TIMES):
        x = torch.randn(ROWS, WIDTH, generator=generator)
        results: list[torch.Tensor] = []
        for times, call in zip(took, calls, strict=True):
            begun = perf_counter()
            results.append(call(x))
            times.append((perf_counter() - begun) * 1e6)
        close += torch.allclose(*results, rtol=1.3e-6, atol=1e-4)
    return Overlapped(
        close=close, sums=sums, why=why, us=quantiles(took[0], n=10)[0], one_stream_us=quantiles(took[1], n=10)[0]
    )
