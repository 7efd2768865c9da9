"""model=transformers model.folder=…: the class and sizes of a folder, its weights when asked, and never any code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from npucompose.compose.check import check
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError
from npucompose_extras.pretrained.huggingface import MOST_BYTES, Folder, Transformers, _over

GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "transformers_version": "4.0.0",
    "torch_dtype": "float16",
    "_name_or_path": "somewhere/else",
    "task_specific_params": {"text-generation": {"prefix": "Once upon a time"}},
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 2,
    "n_positions": 64,
    "vocab_size": 99,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def folder(place: Path, **more: Any) -> str:
    said = {key: value for key, value in {**GPT2, **more}.items() if value is not ...}
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(said))
    return str(place)


def test_the_class_and_the_sizes_are_the_folders(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    module: Any = Transformers(folder=folder(tmp_path), tokens=4).build(0).module
    assert type(module.inner).__name__ == "GPT2LMHeadModel"
    assert (module.inner.config.n_layer, module.inner.config.vocab_size) == (3, 99)
    assert module.inner.dtype is torch.float32


def test_a_name_is_looked_up_in_the_cache_and_never_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--org--tiny-gpt"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("a" * 40)
    (model / "snapshots").mkdir()
    folder(model / "snapshots" / ("a" * 40))
    assert Folder.of("org/tiny-gpt", "model.folder").config["n_layer"] == 3
    with pytest.raises(ConfigError, match=r"Nothing is downloaded here; `hf download org/other` does"):
        Folder.of("org/other", "model.folder")
    with pytest.raises(ConfigError, match=r"there is no config.json in such a folder\.$"):
        Folder.of("../elsewhere", "model.folder")


def test_what_is_said_wins_over_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    place = folder(tmp_path)
    module: Any = Transformers(folder=place, architecture="GPT2Model", config={"num_hidden_layers": 1}).build(0).module
    assert type(module.inner).__name__ == "GPT2Model"
    assert module.inner.config.n_layer == 1


def test_weights_are_drawn_from_the_seed_or_are_the_folders(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    made: Any = Transformers(folder=folder(tmp_path / "a")).build(3).module
    made.inner.save_pretrained(tmp_path / "b")
    saved: Any = Transformers(folder=str(tmp_path / "b"), weights="folder").build(4).module
    drawn: Any = Transformers(folder=str(tmp_path / "b")).build(4).module
    weights = [one.inner.transformer.wte.weight for one in (made, saved, drawn)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    sources = str(tmp_path / "b" / "config.json"), str(tmp_path / "b" / "model.safetensors")
    assert Transformers(folder=str(tmp_path / "b"), weights="folder").source_files() == sources
    assert Transformers(folder=str(tmp_path / "b")).source_files() == sources[:1], "weights that nobody reads"


def test_a_folder_needs_no_trust_and_is_looked_at_before_anything_runs(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    chosen = ["model=transformers", f"model.folder='{folder(tmp_path)}'"]
    assert check(Composer().compose(chosen)).model == Transformers(folder=str(tmp_path))
    with pytest.raises(ConfigError, match=r"there is no \.safetensors in .*; no pickle is read"):
        check(Composer().compose([*chosen, "model.weights=folder"]))
    with pytest.raises(ConfigError, match="'weights' are those of a folder"):
        check(Composer().compose(["model=transformers", "model.weights=folder"]))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"auto_map": {"AutoModel": "evil.Model"}}, "names code of its own (auto_map), which is never imported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "'config.json.quantization_config' is no key of a model's"),
        ({"attn_implementation": "flash_attention_2"}, "'config.json.attn_implementation' must be one of eager"),
        ({"activation_function": "../../evil"}, "'config.json.activation_function' must be a plain word"),
        ({"n_embd": float("inf")}, "'config.json.n_embd' must be a finite number"),
        ({"architectures": ["os.system"]}, "'architectures' of config.json must name a class: 'os.system'"),
        ({"architectures": [3]}, "'architectures' of config.json must name a class: '3'"),
    ],
)
def test_a_folder_that_asks_for_more_than_data_is_refused(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        Folder.of(folder(tmp_path, **more), "model.folder")
    assert words in str(refused.value)
    assert str(refused.value).startswith(f"model.folder={tmp_path}: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds no mapping of keys"),
        (" " * (MOST_BYTES + 1), "is not read"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=words):
        Folder.of(str(tmp_path), "model.folder")


def test_no_folder_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no config\.json in such a folder"):
        Folder.of(str(tmp_path / "none"), "model.folder")


def test_labels_are_their_number_and_inner_configurations_are_cleaned_too(tmp_path: Path) -> None:
    place = folder(
        tmp_path, id2label={"0": "very good", "1": "bad"}, label2id={"bad": 1}, text_config={"_a": 1, "b": 2}
    )
    found = Folder.of(place, "model.folder")
    assert found.config["num_labels"] == 2
    assert found.config["text_config"] == {"b": 2}
    assert not {"id2label", "label2id", "architectures", "_name_or_path", "torch_dtype"} & set(found.config)


def test_mappings_are_put_together_and_what_is_above_wins() -> None:
    below = {"a": 1, "inner": {"b": 2, "deep": {"c": 3}}, "text": {"d": 4}}
    above = {"a": 5, "inner": {"deep": {"e": 6}, "f": 7}, "text": "plain", "new": {"g": 8}}
    assert _over(below, above) == {
        "a": 5, "inner": {"b": 2, "deep": {"c": 3, "e": 6}, "f": 7}, "text": "plain", "new": {"g": 8}
    }  # fmt: skip
    assert below["inner"] == {"b": 2, "deep": {"c": 3}}


def test_a_class_that_names_no_configuration_needs_one_and_takes_what_is_said() -> None:
    transformers = pytest.importorskip("transformers")

    class Bare:
        """Of no model."""

    with pytest.raises(ConfigError, match=r"model\.architecture 'Bare' names no configuration class: say which with"):
        Transformers()._config_class(Bare)
    said = Transformers(config_class="GPT2Config")
    assert said._config_class(Bare) is transformers.GPT2Config
    assert Transformers()._config_class(transformers.GPT2LMHeadModel) is transformers.GPT2Config
