"""Hugging Face classes that generate: reading a prompt and going on from it, with a static cache of keys and values.

Imports torch: a model imports this inside `build`. What each class takes is read from its configuration; no class name
is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from transformers import DynamicCache, StaticCache  # pyright: ignore[reportMissingImports]
from transformers.cache_utils import EncoderDecoderCache, StaticLayer  # pyright: ignore[reportMissingImports]
from transformers.integrations.moe import (  # pyright: ignore[reportMissingImports]
    ALL_EXPERTS_FUNCTIONS,
    batched_mm_experts_forward,
)

from npucompose.errors import ConfigError
from npucompose.models.base import Built, Generation, Inputs, generator, inference
from npucompose.schema.experiment import Scenario
from npucompose_extras.pretrained.small_configs import POSITIONS

FIRST_IDS = 3
STEPS = 8
"""Tokens of a comparison of scenario=decode with eager."""


@frozen(kw_only=True, eq=False)
class Prompt:
    """What a text begins with; `read` is the input of `prefill`."""

    read: Tensor
    """Tokens [batch, length] of a decoder, or of an encoder before it; features, where the encoder reads no text."""
    begin: Tensor | None = None
    """The first tokens of the decoder behind an encoder, [batch, at least one]; None where there is no encoder."""

    @property
    def first(self) -> int:
        """Position of the first token that follows."""
        return self.read.shape[1] if self.begin is None else self.begin.shape[1]

    @property
    def length(self) -> int:
        """Positions that a text of tokens takes in the encoder, or in the decoder before the first new token."""
        return self.first if self.read.is_floating_point() else self.read.shape[1]


Prompts = Callable[[int, int], Prompt]
"""(batch, tokens of each) -> the prompt of these sizes."""


class CacheLayer(StaticLayer):
    """Transformers' static layer, told where new keys go: a call that is repeated or replayed does the same again.

    The library's own layer counts its calls in a tensor, so that a cache would run full while a call is timed.
    """

    keys: Any
    values: Any

    def __init__(self, places: int, start: Tensor) -> None:
        super().__init__(max_cache_len=places)
        self.cumulative_length = start

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        places = torch.arange(key_states.shape[-2], device=key_states.device) + self.cumulative_length
        self.keys.index_copy_(2, places, key_states)
        self.values.index_copy_(2, places, value_states)
        return self.keys, self.values


class CachedDecoder(nn.Module):
    """A decoder and its cache; every tensor of the cache is a buffer, so that a copy of the module has its own."""

    inner: Any
    start: Tensor
    """[1]: where the next keys go."""
    nowhere: Tensor
    """[1], 0: keys of the encoder's result are written from the beginning."""
    encoded: Tensor

    def __init__(self, inner: Any, batch: int, places: int, encoded: Tensor | None) -> None:
        """`places`: positions of the decoder; `encoded`: an encoder's result, None where there is no encoder."""
        super().__init__()
        self.inner = inner
        weight = next(inner.parameters())
        kept, crossed = _layer_sizes(inner, encoded)
        self.register_buffer("start", torch.zeros(1, dtype=torch.long, device=weight.device))
        self.register_buffer("nowhere", torch.zeros(1, dtype=torch.long, device=weight.device))
        made = [CacheLayer(places, self.start) for _ in kept]
        cross = [CacheLayer(encoded.shape[1], self.nowhere) for _ in crossed] if encoded is not None else []
        self.layers = [*made, *cross]
        for layer, (heads, key, value) in zip(self.layers, (*kept, *crossed), strict=True):
            layer.lazy_initialization(*(weight.new_zeros(batch, heads, 1, size) for size in (key, value)))
        self.cache = self._cache(made, cross)
        if encoded is not None:
            self.register_buffer("encoded", torch.zeros_like(encoded))
        for number, layer in enumerate(self.layers):
            self.register_buffer(f"keys_{number}", layer.keys)
            self.register_buffer(f"values_{number}", layer.values)
        self._tie()

    def _cache(self, made: list[CacheLayer], cross: list[CacheLayer]) -> Any:
        caches: list[Any] = []
        for layers in (made, cross) if cross else (made,):
            caches.append(StaticCache(config=self.inner.config, max_cache_len=1))
            caches[-1].layers = layers
        return EncoderDecoderCache(*caches) if cross else caches[0]

    def _tie(self) -> None:
        """The cache holds the module's buffers, wherever they are now."""
        for number, layer in enumerate(self.layers):
            layer.keys, layer.values = self.get_buffer(f"keys_{number}"), self.get_buffer(f"values_{number}")
            layer.device = layer.keys.device
            crosses = number >= len(self.layers) - self._crossing
            layer.cumulative_length = self.nowhere if crosses else self.start

    @property
    def _crossing(self) -> int:
        return len(self.layers) // 2 if isinstance(self.cache, EncoderDecoderCache) else 0

    def _apply(self, *args: Any, **kwargs: Any) -> CachedDecoder:
        super()._apply(*args, **kwargs)
        self._tie()
        return self

    def known(self, crossed: bool) -> None:
        """Whether the keys of the encoder's result are in the cache already."""
        for number in range(self._crossing):
            self.cache.is_updated[number] = crossed

    @property
    def cache_bytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)


def _next(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(the likeliest token [batch, 1], the logits of the last position [batch, vocabulary])."""
    last = logits[:, -1]
    return last.argmax(-1, keepdim=True), last


class Step(nn.Module):
    """One of the two halves of generation, over the cache that both have."""

    cached: CachedDecoder

    def __init__(self, cached: CachedDecoder) -> None:
        super().__init__()
        self.cached = cached


class Prefill(Step):
    """forward(prompt) -> (the token behind it [batch, 1], its logits); the cache is written from its beginning."""

    def forward(self, prompt: Tensor) -> tuple[Tensor, Tensor]:
        self.cached.start.zero_()
        out = self.cached.inner(input_ids=prompt, past_key_values=self.cached.cache, use_cache=True, logits_to_keep=1)
        return _next(out.logits)


class Decode(Step):
    """forward(token [batch, 1], position [1]) -> (the next token [batch, 1], its logits)."""

    def forward(self, token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        self.cached.start.copy_(position)
        return _next(self.cached.inner(input_ids=token, past_key_values=self.cached.cache, use_cache=True).logits)


class EncoderPrefill(Step):
    """forward(prompt) -> (the decoder's token behind `begin`, its logits): the encoder reads the prompt, and its keys
    and values lie in the cache from then on.
    """

    begin: Tensor

    def __init__(self, cached: CachedDecoder, begin: Tensor) -> None:
        super().__init__(cached)
        self.register_buffer("begin", begin)

    def forward(self, prompt: Tensor) -> tuple[Tensor, Tensor]:
        cached = self.cached
        cached.start.zero_()
        cached.known(False)
        encoded = cached.inner.get_encoder()(prompt)[0]
        cached.encoded.copy_(encoded)
        out = cached.inner(
            decoder_input_ids=self.begin, encoder_outputs=(encoded,), past_key_values=cached.cache, use_cache=True
        )
        return _next(out.logits)


class EncoderDecode(Step):
    """forward(token [batch, 1], position [1]) -> (the next token of the decoder [batch, 1], its logits)."""

    def forward(self, token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        cached = self.cached
        cached.start.copy_(position)
        cached.known(True)
        out = cached.inner(
            decoder_input_ids=token, encoder_outputs=(cached.encoded,), past_key_values=cached.cache, use_cache=True
        )
        return _next(out.logits)


def built(inner: Any, scenario: Scenario, prompts: Prompts, seed: int) -> Built:
    """The step that `scenario` names, behind or on `prompts(batch, tokens)`, and what makes other generations."""

    def made(batch: int, tokens: int, new_tokens: int) -> Generation:
        return generation(inner, prompts(batch, tokens), new_tokens)

    for batch, tokens in scenario.points:
        _check_positions(inner, prompts(batch, tokens), scenario.new_tokens)
    one = made(*scenario.points[0], scenario.new_tokens)
    if scenario.name == "prefill":

        def others(step: int) -> Inputs:
            return {"prompt": _other(one.prompt, generator(seed, step), inner)}

        return Built(module=one.prefill, inputs=others, generations=made)
    with torch.no_grad():
        one.prefill(one.prompt)
    vocabulary = inner.config.get_text_config(decoder=True).vocab_size

    def tokens_of(step: int) -> Inputs:
        token = torch.randint(0, vocabulary, (one.batch, 1), generator=generator(seed, step))
        return {"token": token, "position": torch.tensor([one.first + step % (scenario.new_tokens - 1)])}

    steps = min(STEPS, scenario.new_tokens - 1)
    return Built(module=one.decode, inputs=tokens_of, steps=steps, generations=made)


def _other(prompt: Tensor, chance: torch.Generator, inner: Any) -> Tensor:
    """Another prompt of the same size: other tokens, or other features."""
    if prompt.is_floating_point():
        return torch.randn(prompt.shape, generator=chance).to(prompt.dtype)
    vocabulary = inner.config.get_text_config().vocab_size
    return torch.randint(min(FIRST_IDS, vocabulary - 1), vocabulary, prompt.shape, generator=chance)


def prompt_of(inner: Any, read: Tensor, begin: Tensor | None) -> Prompt:
    """A prompt for `inner`; ConfigError for a class that generates no text.

    `begin`: tokens of the decoder, which are the prompt where an encoder reads no text (speech, images); behind an
    encoder of texts the decoder begins with one token, as in the library's own generation.
    """
    if not inner.can_generate():
        raise ConfigError(
            f"model.architecture '{type(inner).__name__}' generates no text: choose a class with a language model's "
            "head."
        )
    if begin is None:
        return Prompt(read=read)
    begin = begin if read.is_floating_point() else begin[:, :1]
    begin[:, 0] = _first_of_decoder(inner)
    return Prompt(read=read, begin=begin)


def _check_positions(inner: Any, prompt: Prompt, new_tokens: int) -> None:
    """ConfigError where a text would be longer than the class has positions for."""
    most = next((size for key in POSITIONS if (size := getattr(inner.config, key, None))), None)
    last = max(prompt.length, prompt.first + new_tokens)
    if most is not None and last > most and not _relative(inner.config):
        raise ConfigError(
            f"scenario.prompt={prompt.length} with scenario.new_tokens={new_tokens} ends at position {last}, and "
            f"'{type(inner).__name__}' has {most}: set fewer, or more positions in model.config."
        )


def generation(inner: Any, prompt: Prompt, new_tokens: int) -> Generation:
    """Steps of `inner` that begin with `prompt`, with a cache of their own; ConfigError for a class that cannot."""
    device = next(inner.parameters()).device
    read = prompt.read.to(device)
    with torch.no_grad():
        encoded = inner.get_encoder()(read)[0] if prompt.begin is not None else None
    cached = CachedDecoder(inner, read.shape[0], prompt.first + new_tokens, encoded)
    if prompt.begin is None:
        steps = Prefill(cached), Decode(cached)
    else:
        steps = EncoderPrefill(cached, prompt.begin.to(device)), EncoderDecode(cached)
    prefill, decode = map(inference, steps)
    return Generation(
        prefill=prefill,
        decode=decode,
        prompt=read,
        first=prompt.first,
        batch=read.shape[0],
        new_tokens=new_tokens,
        cache_bytes=cached.cache_bytes,
    )


def _first_of_decoder(inner: Any) -> int:
    """What the library's own generation begins with: a decoder without a token for it begins with padding."""
    holders = (inner.generation_config, inner.config)
    known = [getattr(one, f"{name}_token_id", None) for name in ("decoder_start", "bos", "pad") for one in holders]
    return next((one for one in known if one is not None), 0)


def _relative(config: Any) -> bool:
    """Positions are distances, of which there is no last one."""
    return getattr(config, "relative_attention_num_buckets", None) is not None


LayerSize = tuple[int, int, int]
"""(heads, size of a key, size of a value)."""


def _layer_sizes(inner: Any, encoded: Tensor | None) -> tuple[list[LayerSize], list[LayerSize]]:
    """Of each layer of the decoder, and of what it keeps of the encoder's result, as one call has them; ConfigError
    where the class keeps anything else. No key of a configuration is asked, which has many names for them.
    """
    cache: Any = StaticCache(config=inner.config, max_cache_len=1)
    others = sorted({type(layer).__name__ for layer in cache.layers if type(layer) is not StaticLayer})
    if others:
        raise ConfigError(
            f"model.architecture '{type(inner).__name__}' keeps more than keys and values of every position "
            f"({', '.join(others)}): such a cache counts in Python, which a recording cannot. Use a class or a "
            "configuration with full attention in every layer."
        )
    token = torch.zeros(1, 1, dtype=torch.long, device=next(inner.parameters()).device)
    kept, crossed = DynamicCache(), DynamicCache()
    given: dict[str, Any] = {"input_ids": token, "past_key_values": kept}
    if encoded is not None:
        both = EncoderDecoderCache(kept, crossed)
        given = {"decoder_input_ids": token, "encoder_outputs": (encoded[:1],), "past_key_values": both}
    with torch.no_grad():
        inner(**given, use_cache=True)
    return _sizes(kept), _sizes(crossed)


def _sizes(cache: Any) -> list[LayerSize]:
    return [(layer.keys.shape[1], layer.keys.shape[-1], layer.values.shape[-1]) for layer in cache.layers]


# A mixture of experts, computed where no shape may depend on which token goes to which expert.

STATIC = "npucompose_static"


def implementation(device: str) -> str:
    """The name under which transformers has it.

    On a CPU its own default, `grouped_mm`: tokens sorted by expert, one product for each expert, where the kernel reads
    on the host how many rows each has. A device cannot do that inside a graph.
    """
    return "grouped_mm" if device == "cpu" else STATIC


def static_experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """hidden_states [tokens, hidden], top_k_index and top_k_weights [tokens, k] -> [tokens, hidden].

    `batched_mm` gathers the weights of an expert for each pair of a token and an expert: the least work for the few
    tokens of a step of decoding, and more memory than any device has for a prompt. With more pairs than experts every
    expert computes every token, and those that a token was not given to weigh 0.
    """
    if top_k_index.numel() <= self.num_experts or self._is_expert_parallel:
        return batched_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
    name = "gate_up_proj" if self.has_gate else "up_proj"
    made = _each(self, hidden_states.expand(self.num_experts, -1, -1), name)
    made = _each(self, self._apply_gate(made) if self.has_gate else self.act_fn(made), "down_proj")
    if self.has_post_expert_norm:
        made = self.post_expert_norm(made)
    shares = top_k_weights.new_zeros(hidden_states.shape[0], self.num_experts).scatter(1, top_k_index, top_k_weights)
    return (made * shares.t().unsqueeze(-1)).sum(0).to(hidden_states.dtype)


def _each(experts: Any, rows: Tensor, name: str) -> Tensor:
    """rows [experts, tokens, in] -> [experts, tokens, out], by the weights of each expert."""
    weight = getattr(experts, name)
    made = rows @ (weight if experts.is_transposed else weight.transpose(1, 2))
    return made + getattr(experts, f"{name}_bias").unsqueeze(1) if experts.has_bias else made


ALL_EXPERTS_FUNCTIONS.register(STATIC, static_experts_forward)
