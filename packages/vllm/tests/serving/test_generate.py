"""`generate(compile_config=npucompose.compile_config(…))` of transformers: the tokens of eager, by recordings."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the extra is not installed: pip install 'npucompose[transformers]'")

import torch
import transformers
from torch import Tensor

import npucompose
from npucompose.errors import ConfigError
from npucompose.results.effective import Effective
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.interface import Admission
from npucompose_vllm.recipe import KEY

HEAD = "# @package _global_\n# served\n"
RECORDED = HEAD + "defaults:\n  - override /mode: reduce-overhead\n  - override /shapes: auto\n"
NEW = 12
SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
SLIDING = {**SMALL, "sliding_window": 8}
CLASSES: dict[str, dict[str, Any]] = {
    "Llama": SMALL,
    "Qwen3": {**SMALL, "head_dim": 8},
    "Phi3": {**SMALL, "pad_token_id": 0},
    "Mistral": {**SLIDING, "head_dim": 8},
    "Gemma2": {**SLIDING, "head_dim": 8},
    "Gemma3Text": {**SLIDING, "head_dim": 8},
    "GPT2": {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
}
"""Random weights; windows shorter than the texts."""


def small(name: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**CLASSES[name])
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
def captures_take_ten_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps without a recording, and recordings, take by the account what they are said to."""
    booked, recorded = Admission.ran_eagerly, GraphCache.recorded

    def slow(cache: GraphCache, inputs: list[Any]) -> tuple[Any, list[Any]]:
        recording, outputs = recorded(cache, inputs)
        recording.seconds = 10.0
        return recording, outputs

    monkeypatch.setattr(Admission, "ran_eagerly", lambda account, signature, _: booked(account, signature, 1.0))
    monkeypatch.setattr(GraphCache, "recorded", slow)


def text(model: Any, batch: int = 2, length: int = 6, **more: Any) -> Tensor:
    prompt = torch.randint(3, 96, (batch, length), generator=torch.Generator().manual_seed(batch * 100 + length))
    how = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 0, **more}
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), **how)


def through(model: Any, config: Any, **more: Any) -> Tensor:
    return text(model, cache_implementation="static", compile_config=config, **more)


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    place = tmp_path / "recipe.yaml"
    place.write_text(RECORDED)
    return str(place)


def same_tokens(name: str, config: Any) -> None:
    """One model, three texts, the last of other sizes: all but the steps that record them are replays.

    Dynamo has a graph for a window that fills and one for a window that is full, each for one batch and for any.
    """
    model = small(name)
    expected, longer = text(model), text(model, batch=3, length=9)
    assert len(expected[:, 6:].unique()) > 2
    assert torch.equal(through(model, config), expected)
    assert torch.equal(through(model, config), expected)
    assert torch.equal(through(model, config, batch=3, length=9), longer)
    ran = config.statistics
    assert (ran.calls, ran.eager) == (3 * (NEW - 1), 0)
    assert ran.captures <= (5 if "sliding_window" in CLASSES[name] else 2)


@pytest.mark.slow
def test_tokens_are_those_of_eager_and_a_further_text_is_replayed_from_the_first_step_on(
    fresh_dynamo: None, recipe: str
) -> None:
    same_tokens("Llama", npucompose.compile_config(recipe))


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_seven_classes_have_the_tokens_of_eager_with_static_and_with_sliding_caches(
    fresh_dynamo: None, name: str, recipe: str
) -> None:
    same_tokens(name, npucompose.compile_config(recipe))


@pytest.mark.slow
@pytest.mark.parametrize("choices", [["mode=max-autotune", "inductor.max_autotune=false"], ["passes=stream_plan"]])
def test_kernels_of_inductor_and_planned_streams_too(fresh_dynamo: None, choices: list[str]) -> None:
    same_tokens("Gemma2", npucompose.compile_config(*choices))


BATCHES = {1: 6, 3: 20, 8: 30}
"""{batch: tokens of its prompts}; the cache of the longest text stays, which is another signature for the others."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "Gemma3Text"])
def test_batches_that_come_back_are_replayed_from_their_third_text_on(
    fresh_dynamo: None, captures_take_ten_steps: None, name: str, recipe: str
) -> None:
    model, config = small(name), npucompose.compile_config(recipe)
    came = dict.fromkeys(BATCHES, 0)
    for batch in (1, 3, 8, 3, 1, 1, 3, 8, 1, 3, 8):
        before = config.statistics
        sizes = {"batch": batch, "length": BATCHES[batch]}
        assert torch.equal(through(model, config, **sizes), text(model, **sizes))
        ran = config.statistics
        came[batch] += 1
        if came[batch] > 2:
            assert (ran.hits - before.hits) >= 0.9 * (ran.calls - before.calls), (batch, came[batch])


def test_a_text_of_which_nothing_is_compiled_is_warned_of_once(recipe: str, recwarn: pytest.WarningsRecorder) -> None:
    model, config = small("Llama"), npucompose.compile_config(recipe)
    for _ in range(2):
        text(model, compile_config=config, cache_implementation="static", num_beams=2)
    said = [str(one.message) for one in recwarn if "compile_config" in str(one.message)]
    assert len(said) == 1
    assert said[0].startswith("compile_config has no effect on beam search: ")
    assert config.statistics.calls == 0


def test_what_a_recording_gives_is_what_generate_goes_on_with(
    fresh_dynamo: None, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A negative control: a replay that leaves its results as the last one left them gives other tokens."""
    model, config = small("Llama"), npucompose.compile_config(recipe)
    expected = through(model, config)
    whole = GraphCache.__call__
    monkeypatch.setattr(GraphCache, "__call__", lambda self, inputs: [out * 0 for out in whole(self, inputs)])
    assert not torch.equal(through(model, config), expected)
    assert config.statistics.captures == 1


@pytest.mark.slow
def test_a_pipeline_takes_it(fresh_dynamo: None, recipe: str) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{i}": i for i in range(96)}
    plain = Tokenizer(models.WordLevel(words, unk_token="w0"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="w0", unk_token="w0")
    pipe = transformers.pipeline("text-generation", model=small("Llama"), tokenizer=tokenizer)
    how = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW}
    config = npucompose.compile_config(recipe)
    compiled = pipe("w5 w7 w9", cache_implementation="static", compile_config=config, **how)
    assert compiled == pipe("w5 w7 w9", **how)
    assert config.statistics.hits == NEW - 2


def test_copies_of_a_generation_config_hold_the_same_one(recipe: str) -> None:
    config = npucompose.compile_config(recipe)
    held = transformers.GenerationConfig(compile_config=config)
    assert copy.deepcopy(held).compile_config is config
    assert config.to_dict()["backend"] is config.materialised.backend
    assert config != npucompose.compile_config(recipe)


def test_weights_are_not_frozen_and_that_is_said() -> None:
    config = npucompose.compile_config("mode=max-autotune")
    assert config.dynamic is None, "shapes that nobody chose are auto"
    assert [line.option for line in config.effective] == ["inductor.freezing"]
    later = Effective(option="streams", requested=2, effective=1, why="one stream is as fast")
    config.materialised.backend.effective = lambda: [later]
    assert config.effective[1:] == (later,), "what only a compiled graph shows"
    assert config.materialised.backend.inductor.settings()["freezing"] is False


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        (["mode=npugraph_ex", "target=npu"], "target=npu needs an Ascend device with CANN"),
        (["target=npu_offline", "mode=npugraph_ex"], "target=npu_offline replaces torch_npu for the whole process"),
        (["target=cuda"], "target=cuda needs device cuda:0"),
        (["mode=eager"], "mode=eager compiles nothing"),
        (["model=add"], "the model is the caller's"),
        (["missing.yaml"], "missing.yaml"),
        (["one.yaml", "mode=reduce-overhead"], "compile_config takes one recipe, or choices"),
        ([3], "a choice is a text"),
    ],
)
def test_what_cannot_be_is_one_paragraph(choices: list[Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        npucompose.compile_config(*choices)
    assert says in str(refused.value)
    assert "\n\n" not in str(refused.value)


def test_without_transformers_one_paragraph_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'npucompose\[transformers\]'"):
        npucompose.compile_config("mode=reduce-overhead")


def test_an_old_transformers_is_named_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(__spec__=transformers.__spec__))
    with pytest.raises(ConfigError, match=rf"needs transformers 4\.56 or newer; {transformers.__version__}"):
        npucompose.compile_config("mode=reduce-overhead")


def test_a_recipe_for_vllm_is_one_for_transformers(tmp_path: Path) -> None:
    assert KEY == "npucompose"
    place = tmp_path / "both.yml"
    place.write_text(RECORDED + "extensions:\n  vllm: {sizes: [1, 2]}\n")
    assert npucompose.compile_config(str(place)).materialised.experiment.mode.name == "reduce-overhead"


@pytest.mark.parametrize(
    ("name", "text"), [("mine.yaml", RECORDED), ("mine.json", '{"defaults": [{"override /mode": "reduce-overhead"}]}')]
)
def test_a_recipe_of_the_callers_home(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / name).write_text(text)
    assert npucompose.compile_config(f"~/{name}").materialised.experiment.mode.name == "reduce-overhead"


def test_importing_npucompose_loads_no_transformers() -> None:
    import subprocess

    code = "import sys, npucompose; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
