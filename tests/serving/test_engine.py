"""Recipes in the genuine vLLM (`make test-serving`): the tokens of eager, sizes, caches, an engine without a recipe."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.serving.engine import Answer, answer
from tests.serving.small_models import MODELS, written

pytestmark = [
    pytest.mark.serving,
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: make test-serving"),
]
BATCHES = list(range(1, 9))
SIZES = {"fused": BATCHES, "recorded": [1, 2, 4, 8], "piecewise": [1, 2, 4, 8]}
LEFT_OUT = {"fused": set[int](), "recorded": {3, 5, 6, 7}, "piecewise": set[int]()}
"""Batches that run without a recording; vLLM pads to a captured size where it cuts a model into pieces."""


def recipe(folder: Path, kind: str) -> Path:
    mode = "max-autotune" if kind == "fused" else "reduce-overhead"
    inductor = "inductor:\n  max_autotune: false\n" if kind == "fused" else ""
    graphs = "piecewise" if kind == "piecewise" else "full"
    place = folder / f"{kind}.yaml"
    place.write_text(
        "# @package _global_\n# what a test serves with\n"
        f"defaults:\n  - override /mode: {mode}\n  - override /shapes: auto\n{inductor}"
        f"extensions:\n  vllm:\n    sizes: {SIZES[kind]}\n    graphs: {graphs}\n"
    )
    return place


@pytest.fixture(scope="session")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Answer]:
    @cache
    def of(model: str) -> Answer:
        folder = tmp_path_factory.mktemp("eager")
        return answer(written(model, folder), folder, BATCHES, enforce_eager=True)

    return of


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("model", MODELS)
def test_greedy_tokens_are_those_of_eager(
    model: str, kind: str, eager: Callable[[str], Answer], tmp_path: Path
) -> None:
    served = answer(
        written(model, tmp_path),
        tmp_path,
        BATCHES,
        additional_config={"npucompose": str(recipe(tmp_path, kind))},
    )
    assert served.tokens == eager(model).tokens
    assert f"Recorded {len(SIZES[kind])} sizes, " in served.log
    said = {n for n in BATCHES if f"A step of {n} tokens is none of the recorded sizes" in served.log}
    assert said == LEFT_OUT[kind]


@pytest.mark.parametrize("kind", ["fused", "recorded"])
def test_passes_of_a_recipe_run_inside_vllm(kind: str, eager: Callable[[str], Answer], tmp_path: Path) -> None:
    place = recipe(tmp_path, kind)
    place.write_text(
        place.read_text().replace("/shapes: auto", "/shapes: auto\n  - override /passes: [clean, replace]")
    )
    config = {"npucompose": str(place)}
    served = answer(written("qwen2", tmp_path), tmp_path, [2], additional_config=config)
    assert served.tokens == {"2": eager("qwen2").tokens["2"]}
    assert "places changed: dead_code" in served.log


SCARCE = {"num_gpu_blocks_override": 40, "block_size": 32, "max_num_batched_tokens": 64}
"""Memory for half of what eight requests of 256 tokens want, prompts in chunks."""


@pytest.mark.parametrize("kind", SIZES)
def test_256_tokens_are_those_of_eager_with_preemption_chunked_prefill_and_prefix_caching(
    kind: str, tmp_path: Path
) -> None:
    model, config = written("qwen2", tmp_path), {"npucompose": str(recipe(tmp_path, kind))}
    alone = answer(model, tmp_path, [8, 8], tokens=256, enforce_eager=True)
    served = answer(model, tmp_path, [8, 8], tokens=256, additional_config=config, **SCARCE)
    assert served.counted["preemptions"] > 0
    assert served.tokens == alone.tokens


def test_an_engine_in_processes_of_its_own_has_the_recipe_too(eager: Callable[[str], Answer], tmp_path: Path) -> None:
    config = {"npucompose": str(recipe(tmp_path, "recorded"))}
    served = answer(written("qwen2", tmp_path), tmp_path, [1, 2], processes=True, additional_config=config)
    assert served.tokens == {batch: eager("qwen2").tokens[batch] for batch in ("1", "2")}
    assert "Recorded 4 sizes, " in served.log


def test_a_second_start_takes_the_code_of_the_first(eager: Callable[[str], Answer], tmp_path: Path) -> None:
    model, config = written("qwen2", tmp_path), {"npucompose": str(recipe(tmp_path, "fused"))}
    first, second = (answer(model, tmp_path, [2], additional_config=config) for _ in range(2))
    assert first.tokens == second.tokens == {"2": eager("qwen2").tokens["2"]}
    assert first.counted["fxgraph_cache_miss"] > 0
    assert (second.counted["fxgraph_cache_miss"], second.counted["fxgraph_cache_hit"] > 0) == (0, True)


def test_without_a_recipe_vllm_compiles_as_it_does_alone(eager: Callable[[str], Answer], tmp_path: Path) -> None:
    alone = answer(written("qwen2", tmp_path), tmp_path, [1, 2])
    assert alone.counted["is_ours"] == 1
    assert "Recorded" not in alone.log
    assert alone.tokens == {batch: eager("qwen2").tokens[batch] for batch in ("1", "2")}
