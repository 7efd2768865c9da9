"""Plans with collectives on two ranks, each a process: executed with gloo and compared with one stream, bit for bit.

Ranks meet by a file and talk over the loopback device. Times are of this machine with two processes on it; bits count.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

import torch
from attrs import frozen
from torch import distributed as dist
from torch import multiprocessing
from torch.distributed import _functional_collectives as functional

from benchmarks.streams.goals import Goal, Part, say, table_of
from npucompose.api import materialize
from npucompose.errors import CompileError, PlanError

RANKS, TOKENS, WIDTH, HEADS = 2, 32, 64, 4
TIMES = 1000
"""Executions of each plan."""
PATIENCE = timedelta(minutes=10)
Forward = Callable[[torch.Tensor], torch.Tensor]


def weight(rows: int, columns: int, seed: int) -> torch.Tensor:
    """The same on every rank."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) / rows**0.5


def world() -> Any:
    """The group of all ranks."""
    return dist.group.WORLD


def tensor_parallel_mlp(rank: int) -> Forward:
    """Columns of the first weight and rows of the second on each rank; a gate beside it that needs nobody."""
    up = weight(WIDTH, 4 * WIDTH, 0).chunk(RANKS, 1)[rank]
    down = weight(4 * WIDTH, WIDTH, 1).chunk(RANKS, 0)[rank]
    gate = weight(WIDTH, WIDTH, 2)

    def forward(x: torch.Tensor) -> torch.Tensor:
        summed = functional.all_reduce(torch.relu(x @ up) @ down, "sum", world())
        return summed * torch.sigmoid(x @ gate)

    return forward


def tensor_parallel_attention(rank: int) -> Forward:
    """Half of the heads on each rank; a gate beside them that needs nobody."""
    q, k, v = (weight(WIDTH, WIDTH, seed).chunk(RANKS, 1)[rank] for seed in (3, 4, 5))
    out, gate = weight(WIDTH, WIDTH, 6).chunk(RANKS, 0)[rank], weight(WIDTH, WIDTH, 7)

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.view(TOKENS, HEADS // RANKS, -1).transpose(0, 1)

    def forward(x: torch.Tensor) -> torch.Tensor:
        query, key, value = heads(x @ q), heads(x @ k), heads(x @ v)
        weights = torch.softmax(query @ key.transpose(1, 2) / (WIDTH // HEADS) ** 0.5, -1)
        mixed = (weights @ value).transpose(0, 1).reshape(TOKENS, WIDTH // RANKS)
        summed = functional.all_reduce(mixed @ out, "sum", world())
        return x + summed * torch.sigmoid(x @ gate)

    return forward


def expert_parallel_moe(rank: int) -> Forward:
    """An expert on each rank, tokens sent there and back, and a shared expert that needs nobody."""
    up, down = weight(WIDTH, 2 * WIDTH, 8 + rank), weight(2 * WIDTH, WIDTH, 10 + rank)
    shared_up, shared_down = weight(WIDTH, 2 * WIDTH, 12), weight(2 * WIDTH, WIDTH, 13)
    splits = [TOKENS // RANKS] * RANKS

    def forward(x: torch.Tensor) -> torch.Tensor:
        sent = functional.all_to_all_single(x, splits, splits, world())
        back = functional.all_to_all_single(torch.relu(sent @ up) @ down, splits, splits, world())
        return back + torch.relu(x @ shared_up) @ shared_down

    return forward


def ranks_that_disagree(rank: int) -> Forward:
    """Rank 1 gathers first and reduces then."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        if rank == 0:
            summed = functional.all_reduce(x, "sum", world())
            return functional.all_gather_tensor(summed, 0, world())
        gathered = functional.all_gather_tensor(x, 0, world())
        return functional.all_reduce(gathered, "sum", world())

    return forward


MODELS: Mapping[str, Callable[[int], Forward]] = {
    "tensor-parallel MLP": tensor_parallel_mlp,
    "tensor-parallel attention": tensor_parallel_attention,
    "expert-parallel MoE": expert_parallel_moe,
}
ONE_STREAM = ("mode=reduce-overhead",)
PLANNED = ("mode=reduce-overhead", "passes=stream_plan", "streams.min_gain=0")


@frozen(kw_only=True)
class Executed:
    """What one rank saw of one plan."""

    times: int
    equal: int
    """Executions with the bits of one stream."""
    streams: int
    events: int
    plan_us: float
    """The 10th percentile of its calls; `one_stream_us` the same."""
    one_stream_us: float


def executed(forward: Forward, rank: int, times: int) -> Executed:
    planned, alone = compiled(forward, PLANNED), compiled(forward, ONE_STREAM)
    generator = torch.Generator().manual_seed(100 + rank)
    took: tuple[list[float], list[float]] = ([], [])
    equal = 0
    for _ in range(times):
        x = torch.randn(TOKENS, WIDTH, generator=generator)
        results: list[torch.Tensor] = []
        for times_of, (call, _backend) in zip(took, (planned, alone), strict=True):
            begun = perf_counter()
            results.append(call(x))
            times_of.append((perf_counter() - begun) * 1e6)
        equal += torch.equal(*results)
    plan = planned[1].compilations[0].plan
    return Executed(
        times=times,
        equal=equal,
        streams=len(plan.streams),
        events=len(plan.events),
        plan_us=quantiles(took[0], n=10)[0],
        one_stream_us=quantiles(took[1], n=10)[0],
    )


def compiled(
    forward: Forward, overrides: tuple[str, ...], rows: int = TOKENS, width: int = WIDTH
) -> tuple[Forward, Any]:
    """(the compiled function, called once with so many rows, and its backend)."""
    torch._dynamo.reset()
    made = materialize(*overrides)
    call = torch.compile(forward, backend=made.backend, **made.compile_keywords)
    call(torch.randn(rows, width))
    return call, made.backend


def refusal(forward: Forward) -> str:
    """How the compilation of ranks that disagree ends; '' where it goes through."""
    try:
        compiled(forward, PLANNED)
    except Exception as error:  # noqa: BLE001 - torch.compile wraps what a backend raises
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, (PlanError, CompileError)):
            cause = cause.__cause__
        return str(cause or error)
    return ""


def on_rank(rank: int, store: str, times: int, into: str) -> None:
    """What each of the processes does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, init_method=f"file://{store}/ranks", timeout=PATIENCE)
    with torch.no_grad():
        found: dict[str, Any] = {name: executed(make(rank), rank, times) for name, make in MODELS.items()}
        found["refused"] = refusal(ranks_that_disagree(rank))
    torch.save(found, f"{into}/{rank}.pt")
    dist.destroy_process_group()


def run(times: int) -> list[dict[str, Any]]:
    """What each rank found, by model; and how the ranks that disagree were refused."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(on_rank, args=(folder, times, folder), nprocs=RANKS)  # pyright: ignore[reportPrivateImportUsage]
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


def collectives() -> Part:
    say(f"collectives: {len(MODELS)} plans on {RANKS} ranks, {TIMES} executions each")
    found = run(TIMES)
    columns = ("plan", "rank", "executions", "bit-equal", "streams", "events", "plan µs, p10", "one stream µs, p10")
    table = table_of(f"{RANKS} ranks under gloo, each a process", *columns)
    goals: list[Goal] = []
    for name in MODELS:
        for rank, of_rank in enumerate(found):
            one: Executed = of_rank[name]
            cells = (one.times, one.equal, one.streams, one.events, f"{one.plan_us:.0f}", f"{one.one_stream_us:.0f}")
            table.add_row(name, str(rank), *map(str, cells))
            what = f"{name}, rank {rank}: {TIMES} executions of several streams with the bits of one"
            goals.append(Goal(what, one.equal == TIMES and one.streams > 1, f"{one.equal} on {one.streams} streams"))
    return Part(tables=[table], goals=[*goals, *(_refused(rank, one["refused"]) for rank, one in enumerate(found))])


def _refused(rank: int, why: str) -> Goal:
    orders = ("Rank 0: all_reduce", "Rank 1: all_gather_into_tensor")
    named = "[rank_order]" in why and all(order in why for order in orders)
    return Goal(f"ranks that disagree are refused with both orders named, rank {rank}", named, why or "not refused")
