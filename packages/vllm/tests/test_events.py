"""Recipes in the genuine vLLM (`make test-serving`): weights, cancelled requests, padding, engines that are killed."""

from __future__ import annotations

import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from packages.vllm.tests.test_engine import recipe
from packages.vllm.tests.vllm_engine import ROOT, Answer, answer, command, environment
from packages.vllm.tests.vllm_models import written

pytestmark = [
    pytest.mark.serving,
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: make test-serving"),
]
KINDS = ("fused", "recorded", "piecewise")


def both(folder: Path, batches: list[int], during: str, kind: str) -> tuple[Answer, Answer]:
    """Eager's and a recipe's."""
    model = written("qwen2", folder)
    eager = answer(model, folder, batches, during=during, enforce_eager=True)
    config = {"npucompose": str(recipe(folder, kind))}
    return eager, answer(model, folder, batches, during=during, additional_config=config)


@pytest.mark.parametrize("during", ["new_weights", "reloaded"])
@pytest.mark.parametrize("kind", KINDS)
def test_new_weights_give_new_tokens_and_those_of_eager(during: str, kind: str, tmp_path: Path) -> None:
    eager, served = both(tmp_path, [1, 2], during, kind)
    assert served.tokens == eager.tokens
    assert len({str(tokens) for name, tokens in eager.tokens.items() if name.endswith(", 2")}) == len(eager.tokens) / 2


def test_sleep_mode_which_a_processor_ignores_leaves_recordings_as_they_are(tmp_path: Path) -> None:
    eager, served = both(tmp_path, [2], "slept", "fused")
    assert served.tokens == eager.tokens
    assert "sleep mode is not supported on CPU, ignore it" in served.log


def test_a_cache_that_lies_elsewhere_is_followed_by_the_attention_of_a_recipe_and_eager_has_vllms(
    tmp_path: Path,
) -> None:
    eager, served = both(tmp_path, [1, 3], "moved_cache", "fused")
    assert served.tokens == eager.tokens
    assert "attention: {'LeanAttention'}" in served.log
    assert "attention: {'CPUAttentionBackendImpl'}" in eager.log


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_request_leaves_the_others_as_they_are(kind: str, tmp_path: Path) -> None:
    eager, served = both(tmp_path, [4], "one_cancelled", kind)
    assert served.tokens == eager.tokens
    assert len(served.tokens["the others, 4"]) == 3


def test_garbage_in_padded_rows_changes_no_token(tmp_path: Path) -> None:
    model, config = written("qwen2", tmp_path), {"npucompose": str(recipe(tmp_path, "piecewise"))}
    eager = answer(model, tmp_path, [3, 5], enforce_eager=True)
    served = answer(model, tmp_path, [3, 5], during="garbage_in_padding", additional_config=config)
    ((padded,),) = served.tokens.pop("padded rows")
    assert served.tokens == eager.tokens
    assert padded > 20


def test_an_engine_that_was_killed_while_it_compiled_starts_again(tmp_path: Path) -> None:
    model, config = written("qwen2", tmp_path), {"npucompose": str(recipe(tmp_path, "fused"))}
    eager = answer(model, tmp_path, [2], enforce_eager=True)
    asked: dict[str, Any] = {"model": str(model), "batches": [2], "tokens": 24, "during": "nothing"}
    asked["engine"] = {"additional_config": config}
    started = subprocess.Popen(
        command(asked), env=environment(tmp_path, False), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    ended = time.monotonic() + 300
    while not list(tmp_path.rglob("inductor_cache/**/*.cpp")) and time.monotonic() < ended:
        time.sleep(0.05)
    started.kill()
    started.wait()
    assert list(tmp_path.rglob("inductor_cache/**/*.cpp")), "it was not killed while it compiled"
    served = answer(model, tmp_path, [2], additional_config=config)
    assert served.tokens == eager.tokens
