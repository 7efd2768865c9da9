"""On a GPU (`make test-cuda`): every claim; what was found goes with the environment into benchmarks/results."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_free.store import write_atomically
from npucompose.measure.environment import environment
from npucompose.results.record import facts_of
from npucompose.targets.cuda import CudaTarget
from replay_tests.targets.cuda import claims

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
Prove = Callable[..., None]


@pytest.fixture(scope="module")
def prove() -> Prove:
    """`prove(name, claim, …)` calls a claim and keeps what came of it in the file, whatever that was."""
    found: dict[str, Any] = {}
    here = _here()
    written = claims.ROOT / "benchmarks" / "results" / f"cuda-{_device()}-{datetime.now(timezone.utc):%Y-%m-%d}.json"
    written.parent.mkdir(parents=True, exist_ok=True)

    def call(name: str, claim: Callable[..., Any], *arguments: Any) -> None:
        try:
            found[name] = {"held": True, "found": claim(*arguments)}
        except BaseException:
            found[name] = {"held": False, "error": traceback.format_exc().replace(f"{claims.ROOT}/", "")}
            raise
        finally:
            write_atomically(written, json.dumps({**here, "claims": found}, indent=1) + "\n")

    return call


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


@pytest.mark.parametrize("model", claims.MODELS)
def test_a_cuda_graph_of_inductors_code_agrees(model: str, prove: Prove) -> None:
    name = f"max-autotune agrees with eager: {model}"
    untuned = "inductor.max_autotune=false"  # tuned kernels are compared before they are timed
    prove(name, claims.agrees, "cuda", model, claims.MODELS[model], "max-autotune", untuned)


RULES = {
    "results live on": claims.results_live_on,
    "every operator runs once a call": claims.operators_run_once,
    "an operator that must run on the host does": partial(claims.operators_run_once, unsafe=True),
    "random numbers go on": claims.random_numbers_go_on,
    "signatures take turns": claims.signatures_take_turns,
    "what the host holds counts": claims.what_the_host_holds_counts,
}


@pytest.mark.parametrize("mode", claims.RECORDED)
@pytest.mark.parametrize("rule", RULES)
def test_both_modes_keep_the_rules(rule: str, mode: str, prove: Prove) -> None:
    prove(f"{rule}: {mode}", RULES[rule], "cuda", mode)


def test_a_recording_holds_beside_torchs_own(prove: Prove) -> None:
    prove("torch's own CUDA graphs beside", claims.torchs_own_graphs_beside, "cuda")


def test_frozen_weights_are_followed(prove: Prove) -> None:
    prove("frozen weights are followed", claims.weights_are_followed, "cuda")


def test_the_pools_of_captures_are_foretold(prove: Prove) -> None:
    prove("pools are foretold", claims.pools_are_foretold, "cuda")


def test_times_are_kept(prove: Prove) -> None:
    prove("microseconds of small kernels", claims.small_kernels, "cuda")
    prove("microseconds of gpt_decode", claims.decoding, "cuda")


@pytest.mark.parametrize("model", claims.TIMED)
def test_ways_side_by_side(model: str, prove: Prove) -> None:
    prove(f"microseconds side by side: {model}", claims.ways_side_by_side, "cuda", model)


def test_the_command_line_says_which_mode_won(prove: Prove, tmp_path: Path) -> None:
    prove("a whole job", claims.a_whole_job, "cuda", tmp_path)
