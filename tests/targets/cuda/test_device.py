"""On a GPU (`make test-cuda`): every claim; what was found goes with the environment into benchmarks/results."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_free.store import write_atomically
from npucompose.measure.environment import environment
from npucompose.results.record import facts_of
from npucompose.targets.cuda import CudaTarget
from tests.targets.cuda import claims

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
Prove = Callable[..., None]


@pytest.fixture(scope="module")
def prove() -> Iterator[Prove]:
    """`prove(name, claim, …)` calls a claim and keeps what came of it; the file is written whatever failed."""
    found: dict[str, Any] = {}

    def call(name: str, claim: Callable[..., Any], *arguments: Any) -> None:
        try:
            found[name] = {"held": True, "found": claim(*arguments)}
        except BaseException:
            found[name] = {"held": False, "error": traceback.format_exc()}
            raise

    yield call
    written = claims.ROOT / "benchmarks" / "results" / f"cuda-{_device()}-{datetime.now(timezone.utc):%Y-%m-%d}.json"
    written.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(written, json.dumps({**_here(), "claims": found}, indent=1) + "\n")


def _device() -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", torch.cuda.get_device_name())


def _here() -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "cuda": torch.version.cuda,
        "environment": facts_of(environment(CudaTarget().identity())),
    }


@pytest.mark.parametrize("model", claims.MODELS)
def test_a_cuda_graph_gives_eagers_bits(model: str, prove: Prove) -> None:
    prove(f"reduce-overhead equals eager: {model}", claims.agrees, "cuda", model, claims.MODELS[model])


def test_inductor_agrees(prove: Prove) -> None:
    prove("max-autotune agrees with eager: mlp", claims.agrees, "cuda", "mlp", "[]", "max-autotune")


def test_results_live_on(prove: Prove) -> None:
    prove("results live on", claims.results_live_on, "cuda")


def test_operators_run_once(prove: Prove) -> None:
    prove("every operator runs once a call", claims.operators_run_once, "cuda")


def test_random_numbers_go_on(prove: Prove) -> None:
    prove("random numbers go on", claims.random_numbers_go_on, "cuda")


def test_two_signatures_take_turns(prove: Prove) -> None:
    prove("signatures take turns", claims.signatures_take_turns, "cuda")


def test_the_pools_of_captures_are_foretold(prove: Prove) -> None:
    prove("pools are foretold", claims.pools_are_foretold, "cuda")


def test_times_are_kept(prove: Prove) -> None:
    prove("microseconds of small kernels", claims.small_kernels, "cuda")
    prove("microseconds of gpt_decode", claims.decoding, "cuda")


def test_the_command_line_says_which_mode_won(prove: Prove, tmp_path: Path) -> None:
    prove("a whole job", claims.a_whole_job, "cuda", tmp_path)
