"""Small sizes under what a person said, and inputs from what a class takes: on classes made here, without a library."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from npucompose.errors import ConfigError
from npucompose_extras.pretrained import small_configs
from npucompose_extras.pretrained.inputs_and_outputs import FIRST_ID, Outputs, SentenceEncoder, Sizes, makers
from npucompose_extras.pretrained.small_configs import CLASSES, SIZES, arguments, keys_of


class Config:
    model_type = "base"

    def __init__(self, use_cache: bool = True, tie: int = 0, **more: Any) -> None:
        self.use_cache, self.tie = use_cache, tie
        vars(self).update(more)


class Vision(Config):
    model_type = "vision"

    def __init__(self, hidden_size: int = 768, image_size: int = 224, eos_token_id: int = 49407, **more: Any) -> None:
        super().__init__(**more)
        self.hidden_size, self.image_size, self.eos_token_id = hidden_size, image_size, eos_token_id


class Text(Config):
    model_type = "text"
    attribute_map: ClassVar[dict[str, str]] = {"hidden_size": "n_embd"}

    def __init__(
        self, n_embd: int = 768, n_layer: int = 1, vocab_size: int = 50257, bos_token_id: int = 50256,
        pad_token_id: Any = None, eos_token_id: int = 50256, cls_token_id: int = 3, n_head: Any = None, **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(**more)
        self.n_embd, self.n_layer, self.vocab_size, self.n_head = n_embd, n_layer, vocab_size, n_head
        self.bos_token_id, self.pad_token_id = bos_token_id, pad_token_id
        self.eos_token_id, self.cls_token_id = eos_token_id, cls_token_id


class Both(Config):
    model_type = "both"
    sub_configs: ClassVar[dict[str, Any]] = {"text_config": Text, "vision_config": Vision, "any_config": object}

    def __init__(
        self, text_config: Any = None, vision_config: Any = None, projection_dim: int = 512, **more: Any
    ) -> None:
        super().__init__(**more)
        self.text_config, self.vision_config, self.projection_dim = text_config, vision_config, projection_dim


def test_the_small_sizes_are_those_that_were_reviewed(golden: Callable[[str, str], None]) -> None:
    lines = [f"{key}: {size}" for key, size in SIZES.items()]
    lines += [f"{name}.{key}: {size}" for name, sizes in CLASSES.items() for key, size in sizes.items()]
    golden("models/small_sizes.txt", "".join(f"{line}\n" for line in lines))


def test_what_is_larger_becomes_small_and_what_is_smaller_stays() -> None:
    assert arguments(Text, {}, small=True) == {"n_embd": 64, "vocab_size": 512, "bos_token_id": 0, "eos_token_id": 2}


def test_special_tokens_lie_in_the_vocabulary_that_was_asked_for() -> None:
    made = arguments(Text, {"vocab_size": 50257}, small=True)
    assert "bos_token_id" not in made
    assert arguments(Text, {"vocab_size": 3}, small=True)["cls_token_id"] == 0
    assert arguments(Text, {"bos_token_id": 7}, small=True)["bos_token_id"] == 7
    at_its_end = arguments(Text, {"vocab_size": 50256}, small=True)
    assert (at_its_end["bos_token_id"], arguments(Text, {"vocab_size": 4}, small=True).get("cls_token_id")) == (0, None)


def test_what_is_said_wins_under_the_class_s_own_name() -> None:
    assert arguments(Text, {"hidden_size": 32, "n_layer": 9}, small=False) == {"n_embd": 32, "n_layer": 9}
    assert arguments(Text, {"hidden_size": 320}, small=True)["n_embd"] == 320
    assert arguments(Text, {"attn_implementation": "eager"}, small=False) == {"attn_implementation": "eager"}


def test_a_configuration_inside_another_is_small_too_and_keeps_what_is_not_said() -> None:
    made = arguments(Both, {"text_config": {"hidden_size": 16}, "projection_dim": 8}, small=True)
    assert made == {
        "text_config": {"n_embd": 16, "vocab_size": 512, "bos_token_id": 0, "eos_token_id": 2},
        "vision_config": {"hidden_size": 64, "image_size": 32},
        "projection_dim": 8,
    }
    assert arguments(Both, {"text_config": None}, small=True)["text_config"] is None
    assert arguments(Both, {"text_config": {"hidden_size": 16}}, small=False) == {"text_config": {"n_embd": 16}}


def test_a_class_of_its_own_sizes_has_those(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLASSES, "Vision", {"hidden_size": 48, "depths": (1,)})
    assert arguments(Vision, {}, small=True) == {"hidden_size": 48, "image_size": 32, "depths": (1,)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"n_embdd": 1},
            r"^model\.config has 'n_embdd', which Text does not know\. Did you mean 'n_embd'\? Choices: bos_",
        ),
        ({"hidden_siz": 1}, "Did you mean 'hidden_size'"),
    ],
)
def test_a_key_that_the_class_does_not_know_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        arguments(Text, given, small=True)
    with pytest.raises(ConfigError, match=r"^model\.config\.text_config has "):
        arguments(Both, {"text_config": given}, small=False)


def test_the_keys_of_a_class_are_its_own_then_those_of_every_class() -> None:
    assert keys_of(Vision) == ("eos_token_id", "hidden_size", "image_size", "tie", "use_cache")
    private = type("Private", (Vision,), {"model_type": "p", "__init__": lambda self: setattr(self, "_hidden", 1)})
    assert keys_of(private) == ()
    assert small_configs.OF_EVERY_CLASS == ("attn_implementation", "experts_implementation")


# Inputs.

SIZED = Sizes(batch=2, tokens=5, frames=7, samples=11)


def shaped(forward: Any, main: str | None, **config: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of what is made for a module with this forward and configuration."""
    held = SimpleNamespace(**config)
    held.get_text_config = lambda: held
    module = type("Made", (nn.Module,), {"forward": forward, "config": held, "main_input_name": main})()
    return {name: tuple(make(torch.Generator()).shape) for name, make in makers(module, SIZED).items()}


def test_inputs_are_what_the_class_begins_with_and_what_it_needs() -> None:
    def text(self: Any, attention_mask: Any = None, input_ids: Any = None, decoder_input_ids: Any = None) -> None: ...
    def speech(self: Any, input_features: Any, **more: Any) -> None: ...

    assert shaped(text, "input_ids", vocab_size=9) == {"input_ids": (2, 5)}
    both = shaped(text, "input_ids", vocab_size=9, is_encoder_decoder=True)
    assert both == {"input_ids": (2, 5), "decoder_input_ids": (2, 5)}
    assert shaped(speech, "input_features", is_encoder_decoder=True) == {"input_features": (2, 7, 80)}


def test_a_class_with_eyes_sees_beside_the_text_where_no_token_stands_for_an_image() -> None:
    def both(self: Any, input_ids: Any = None, pixel_values: Any = None) -> None: ...

    vision = SimpleNamespace(image_size=(4, 6), num_channels=1)
    seen = {"input_ids": (2, 5), "pixel_values": (2, 1, 4, 6)}
    assert shaped(both, "input_ids", vocab_size=9, vision_config=vision) == seen
    for token in ("image_token_id", "image_token_index"):
        assert list(shaped(both, "input_ids", vocab_size=9, vision_config=vision, **{token: 0})) == ["input_ids"]
        assert shaped(both, "input_ids", vocab_size=9, vision_config=vision, **{token: None}) == seen
    assert list(shaped(both, "input_ids", vocab_size=9)) == ["input_ids"]
    assert shaped(both, "pixel_values", image_size=8) == {"pixel_values": (2, 3, 8, 8)}
    assert shaped(both, "pixel_values") == {"pixel_values": (2, 3, 32, 32)}


def test_a_class_that_needs_something_else_is_refused_with_its_names() -> None:
    def other(self: Any, past: Any, input_ids: Any, also: Any, *, key: Any, free: Any = None) -> None: ...
    def plain(self: Any, input_ids: Any = None) -> None: ...

    with pytest.raises(ConfigError, match=r"'Made' needs other inputs than are made here \(also, past\); use"):
        shaped(other, "input_ids", vocab_size=9)
    with pytest.raises(ConfigError, match=r"\(a main input\)"):
        shaped(plain, None)


@pytest.mark.parametrize(("vocabulary", "least", "most"), [(9, 3, 8), (4, 3, 3), (3, 0, 2), (None, 3, 3)])
def test_ids_are_words_of_the_vocabulary_and_not_special_ones(vocabulary: Any, least: int, most: int) -> None:
    def text(self: Any, input_ids: Any) -> None: ...

    held = SimpleNamespace(vocab_size=vocabulary)
    held.get_text_config = lambda: held
    module = type("Made", (nn.Module,), {"forward": text, "config": held, "main_input_name": "input_ids"})()
    make = makers(module, Sizes(batch=20, tokens=30, frames=1, samples=1))["input_ids"]
    ids = make(torch.Generator().manual_seed(0))
    assert (ids.min().item(), ids.max().item()) == (least, most)
    assert torch.equal(ids, make(torch.Generator().manual_seed(0)))
    assert FIRST_ID == 3


@pytest.mark.parametrize(
    ("config", "features", "wave"),
    [
        ({}, (2, 7, 80), (2, 11)),
        ({"num_mel_bins": 16, "max_source_positions": 9}, (2, 16, 18), None),
        ({"num_mel_bins": 16, "max_length": 6}, (2, 7, 16), (2, 6, 16)),
        ({"input_feat_per_channel": 4, "num_mel_bins": None, "input_size": 8}, (2, 7, 4), (2, 11)),
        ({"feature_projection_input_dim": 6, "input_size": 8}, (2, 7, 6), (2, 11)),
        ({"input_size": 8}, (2, 7, 8), (2, 11)),
    ],
)
def test_speech_has_the_bins_and_frames_of_its_class(config: Any, features: Any, wave: Any) -> None:
    def by_features(self: Any, input_features: Any) -> None: ...
    def by_wave(self: Any, input_values: Any) -> None: ...

    assert shaped(by_features, "input_features", **config) == {"input_features": features}
    if wave is not None:
        assert shaped(by_wave, "input_values", **config) == {"input_values": wave}


# Wrappers.


class Inner(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor | None = None, *, c: int = 1) -> Any:
        return (a, {"b": b, "c": c}, [a + 1])


def test_a_wrapper_gives_the_first_tensor_or_every_one_and_takes_names_in_order() -> None:
    a, b = torch.ones(2), torch.zeros(2)
    first, every = (Outputs(Inner(), ("b", "a"), first=first) for first in (True, False))
    assert list(first.__signature__.parameters) == ["b", "a"]
    assert {p.kind for p in first.__signature__.parameters.values()} == {Parameter.POSITIONAL_OR_KEYWORD}
    assert first(b, a) is a
    assert first(b=b, a=a) is a
    found = every(b, a=a, c=2)
    assert [one.tolist() for one in found] == [[1, 1], [0, 0], [2, 2]]


class Tokens(nn.Module):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return (input_ids.unsqueeze(-1) * torch.tensor([1.0, 2.0]),)


def test_a_sentence_is_the_mean_of_its_tokens_at_length_one() -> None:
    ids, mask = torch.tensor([[1, 3, 100], [-2, 5, 5]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    embeddings, similarities = SentenceEncoder(Tokens())(ids, mask)
    one = torch.tensor([1.0, 2.0]) / 5**0.5
    torch.testing.assert_close(embeddings, torch.stack((one, -one)))
    torch.testing.assert_close(similarities, torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    assert SentenceEncoder(Tokens())(ids, torch.zeros_like(mask))[0].isfinite().all()
