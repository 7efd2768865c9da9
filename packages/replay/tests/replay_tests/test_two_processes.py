"""Two ranks as processes, by torch.compile: a thousand executions, ranks that disagree, a rank that dies."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from time import perf_counter

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing

from benchmarks.streams import collectives
from npucompose import ops
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.plan import Workers
from replay_tests.test_replayed_collectives import MLP, planned
from tests.collectives.ranks import inputs_of, on_both, two_ranks

pytestmark = pytest.mark.slow


def test_three_plans_are_executed_a_thousand_times_with_the_bits_of_one_stream_and_disagreement_is_refused() -> None:
    for of_rank in collectives.run(1000):
        for name in collectives.MODELS:
            assert (of_rank[name].equal, of_rank[name].times) == (1000, 1000), name
            assert of_rank[name].streams >= 2, name
        for order in ("Rank 0: all_reduce", "Rank 1: all_gather_into_tensor"):
            assert order in of_rank["refused"]
        assert "[rank_order]" in of_rank["refused"]


def dies(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/ranks", 2)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=store, timeout=timedelta(seconds=120))
    with torch.no_grad():
        call, _ = collectives.compiled(collectives.tensor_parallel_mlp(rank), collectives.PLANNED)
        x = torch.randn(collectives.TOKENS, collectives.WIDTH)
        call(x)
        if rank == 1:
            os._exit(0)
        begun = perf_counter()
        with pytest.raises(RuntimeError, match=r"(?i)connection closed|timed out|reset by peer|connect"):
            call(x)
    Path(f"{folder}/seconds").write_text(str(perf_counter() - begun))
    os._exit(0)


def test_a_rank_whose_partner_dies_ends_in_an_error_within_the_group_s_time(tmp_path: Path) -> None:
    multiprocessing.spawn(dies, args=(str(tmp_path),), nprocs=2)
    assert float((tmp_path / "seconds").read_text()) < 150


def waits_alone(_: int, seconds: float) -> None:
    """Two ranks in one process; one of them replays, and what it launched stays in flight for ever."""
    ops.define()
    with two_ranks(seconds=seconds) as groups:
        captured = on_both(
            lambda rank: CapturedGraph.capture(planned(MLP, groups[rank]), inputs_of(rank, 0), workers=Workers(count=2))
        )
        with pytest.raises(RuntimeError, match=r"(?i)timed out|timeout"):
            captured[0].replay(*inputs_of(0, 0))
    os._exit(0)


def test_a_rank_whose_partner_stays_away_says_so_within_the_group_s_time() -> None:
    multiprocessing.spawn(waits_alone, args=(1.0,), nprocs=1)
