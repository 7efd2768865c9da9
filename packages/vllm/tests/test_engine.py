"""Recipes in the genuine vLLM (`make test-serving`): tokens, sizes, caches, an engine without a recipe."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from npucompose_vllm.configuration import NOT_PADDED
from packages.vllm.tests.vllm_engine import Answer, answer, hugging_face, prompts
from packages.vllm.tests.vllm_events import Tokens
from packages.vllm.tests.vllm_models import BY_HUGGING_FACE, MODELS, written

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


@pytest.fixture(scope="session")
def expected(eager: Callable[[str], Answer], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokens]:
    @cache
    def of(model: str) -> Tokens:
        if model not in BY_HUGGING_FACE:
            return eager(model).tokens
        return hugging_face(written(model, tmp_path_factory.mktemp("hugging_face")), BATCHES)

    return of


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("model", MODELS)
def test_greedy_tokens_are_those_of_eager_or_of_transformers(
    model: str, kind: str, expected: Callable[[str], Tokens], tmp_path: Path
) -> None:
    served = answer(
        written(model, tmp_path),
        tmp_path,
        BATCHES,
        additional_config={"npucompose": str(recipe(tmp_path, kind))},
    )
    assert served.tokens == expected(model)
    assert f"Recorded {len(SIZES[kind])} sizes, " in served.log
    said = {n for n in BATCHES if f"A step of {n} tokens is none of the recorded sizes" in served.log}
    unpadded = kind == "piecewise" and model == "deepseek_v2"
    assert said == (LEFT_OUT["recorded"] if unpadded else LEFT_OUT[kind])
    assert (NOT_PADDED in served.log) == unpadded


def test_eager_of_vllm_is_no_yardstick_for_an_attention_with_a_latent_cache(
    eager: Callable[[str], Answer], expected: Callable[[str], Tokens]
) -> None:
    """What the documentation says of it; a vLLM for which this fails can be compared with its own eager again."""
    assert eager("deepseek_v2").tokens != expected("deepseek_v2")
    assert eager("minicpm3").tokens == expected("minicpm3")


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
    assert replaced(served.log) == NORMS


NORMS = 9
"""Of a Qwen2 with four layers: two in each, and the last."""


def replaced(log: str) -> int:
    """Places that the pass `replace` changed, as vLLM's log has them."""
    return sum(int(found) for found in re.findall(r"places changed: .*?replace (\d+)", log))


def test_a_plan_of_two_streams_for_a_mixture_of_experts_runs_on_two_threads(
    eager: Callable[[str], Answer], tmp_path: Path
) -> None:
    place = recipe(tmp_path, "recorded")
    chosen = "/shapes: auto\n  - override /passes: stream_plan"
    place.write_text(place.read_text().replace("/shapes: auto", chosen) + "streams: {min_gain: 0, trial_ms: 0}\n")
    config = {"npucompose": str(place)}
    served = answer(written("mixtral", tmp_path), tmp_path, BATCHES, during="recordings", additional_config=config)
    found = served.tokens.pop("recordings")
    assert served.tokens == eager("mixtral").tokens
    assert len(found) == len(SIZES["recorded"])
    assert {(streams, threads) for streams, threads, _ in found} == {(2, 2)}


@pytest.mark.parametrize("kind", ["fused", "recorded"])
@pytest.mark.parametrize("model", ["qwen2", "mixtral"])
def test_the_bytes_in_the_log_are_those_that_the_allocator_gave(model: str, kind: str, tmp_path: Path) -> None:
    place = recipe(tmp_path, kind)
    place.write_text(place.read_text().replace(f"sizes: {SIZES[kind]}", "sizes: [64, 128, 256, 512]"))
    served = answer(
        written(model, tmp_path),
        tmp_path,
        [1],
        tokens=4,
        during="memory",
        max_num_batched_tokens=1024,
        additional_config={"npucompose": str(place)},
    )
    ((reported, counted),) = served.tokens["bytes"]
    assert counted > 1_000_000
    assert reported == pytest.approx(counted, rel=0.01)
    assert f"{reported / 2**20:.1f} MiB beside the weights" in served.log


def test_a_trace_has_the_tokens_of_every_step_with_and_without_a_recipe(tmp_path: Path) -> None:
    model, wanted = written("qwen2", tmp_path), [[], []]
    for found, more in zip(wanted, ({}, {"npucompose": str(recipe(tmp_path, "recorded"))}), strict=True):
        trace = tmp_path / f"steps{len(more)}.csv"
        answer(model, tmp_path, [1, 3], tokens=8, additional_config={**more, "npucompose_steps": str(trace)})
        found += trace.read_text().split()
        asked = [len(prompt["prompt_token_ids"]) for batch in (1, 3) for prompt in prompts(batch)]
        tokens = [int(line) for line in trace.read_text().splitlines()[1:]]
        assert sum(tokens) == sum(asked) + 7 * len(asked), "a request's last token is in no step"
    assert wanted[0] == wanted[1]


SCARCE = {"num_gpu_blocks_override": 40, "block_size": 32, "max_num_batched_tokens": 64}
"""Memory for half of what eight requests of 256 tokens want, prompts in chunks."""


LONG_BATCHES = [1, 5, 8]
SHARED = 96
"""Tokens at the beginning of each prompt: three blocks of the cache."""
LONG = [
    *(("qwen2", kind) for kind in SIZES),
    *((model, "fused") for model in MODELS if model not in ("qwen2", "deepseek_v2")),
]
"""A latent cache has on a processor no chunked prefill and no prefix caching (vLLM 0.32)."""


@pytest.mark.parametrize(("model", "kind"), LONG)
def test_256_tokens_are_those_of_eager_with_preemption_chunked_prefill_and_prefix_caching(
    model: str, kind: str, tmp_path: Path
) -> None:
    """Where eager's two best tokens are a tie, kernels that are fused may choose the other, and nothing more is said of
    that request; recordings of the model's own kernels may not."""
    place, config = written(model, tmp_path), {"npucompose": str(recipe(tmp_path, kind))}
    alone = answer(place, tmp_path, LONG_BATCHES, 256, during="with_ties", shared=SHARED, enforce_eager=True).tokens
    served = answer(place, tmp_path, LONG_BATCHES, 256, shared=SHARED, additional_config=config, **SCARCE)
    assert served.counted["preemptions"] > 0
    assert served.counted["prefix_cache_hits"] >= SHARED
    compared = 0
    for batch in map(str, LONG_BATCHES):
        for mine, theirs, ties in zip(served.tokens[batch], alone[batch], alone[f"ties, {batch}"], strict=True):
            end = min(ties, default=256) if kind == "fused" else 256
            assert mine[:end] == theirs[:end]
            compared += end
    assert compared > 0.9 * 256 * sum(LONG_BATCHES)


def test_an_engine_in_processes_of_its_own_has_the_recipe_too(eager: Callable[[str], Answer], tmp_path: Path) -> None:
    config = {"npucompose": str(recipe(tmp_path, "recorded"))}
    served = answer(written("qwen2", tmp_path), tmp_path, [1, 2], processes=True, additional_config=config)
    assert served.tokens == {batch: eager("qwen2").tokens[batch] for batch in ("1", "2")}
    assert "Recorded 4 sizes, " in served.log


def kernels(folder: Path) -> dict[Path, int]:
    """When each library of a cache was written."""
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*.so")}


@pytest.mark.parametrize("model", ["qwen2", "deepseek_v2"])
def test_a_second_start_takes_the_code_of_the_first_and_compiles_no_kernel(
    model: str, expected: Callable[[str], Tokens], tmp_path: Path
) -> None:
    place, config = written(model, tmp_path), {"npucompose": str(recipe(tmp_path, "fused"))}
    first = answer(place, tmp_path, [2], additional_config=config)
    made = kernels(tmp_path)
    second = answer(place, tmp_path, [2], additional_config=config)
    assert made
    assert kernels(tmp_path) == made
    assert first.tokens == second.tokens == {"2": expected(model)["2"]}
    assert first.counted["fxgraph_cache_miss"] > 0
    assert (second.counted["fxgraph_cache_miss"], second.counted["fxgraph_cache_hit"] > 0) == (0, True)


PASS = """\
from typing import ClassVar

from attrs import frozen
from torch import fx

from npucompose.passes.base import Pass
from npucompose.schema.capabilities import Capabilities


@frozen(kw_only=True)
class Mine(Pass):
    name: ClassVar[str] = "mine"

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        return 7
"""


def test_a_pass_that_is_edited_in_one_line_is_run_and_nothing_is_taken_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass is an installed package's; an engine finds it on its path."""
    package = tmp_path / "site"
    about = package / "mine_pass-0.dist-info"
    about.mkdir(parents=True)
    (package / "mine_pass.py").write_text(PASS)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine-pass\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[npucompose.passes]\nmine = mine_pass:Mine\n")
    monkeypatch.setenv("PYTHONPATH", f"{package}:{os.environ.get('PYTHONPATH', '')}")
    place = recipe(tmp_path, "fused")
    place.write_text(place.read_text() + "passes: {mine: {}}\n")
    model, config = written("qwen2", tmp_path), {"npucompose": str(place)}
    first, again = (answer(model, tmp_path, [1], additional_config=config) for _ in range(2))
    (package / "mine_pass.py").write_text(PASS.replace("return 7", "return 8"))
    edited = answer(model, tmp_path, [1], additional_config=config)
    assert [("mine 7" in one.log, "mine 8" in one.log) for one in (first, again, edited)] == [
        (True, False), (True, False), (False, True),
    ]  # fmt: skip
    assert [one.counted["fxgraph_cache_miss"] > 0 for one in (first, again, edited)] == [True, False, True]
    assert first.tokens == again.tokens == edited.tokens


def test_without_a_recipe_vllm_compiles_as_it_does_alone(eager: Callable[[str], Answer], tmp_path: Path) -> None:
    alone = answer(written("qwen2", tmp_path), tmp_path, [1, 2])
    assert alone.counted["is_ours"] == 1
    assert "Recorded" not in alone.log
    assert alone.tokens == {batch: eager("qwen2").tokens[batch] for batch in ("1", "2")}
