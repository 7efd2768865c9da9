"""docs/huggingface.md from the results that `huggingface.py` left. Runs no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

KINDS: dict[str, tuple[str, ...]] = {
    "decoder": (
        "LlamaForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM", "GPTNeoXForCausalLM", "Qwen3ForCausalLM",
        "MistralForCausalLM", "Gemma2ForCausalLM", "Phi3ForCausalLM", "BloomForCausalLM", "FalconForCausalLM",
    ),
    "encoder": (
        "BertForSequenceClassification", "RobertaForMaskedLM", "DistilBertForSequenceClassification",
        "ElectraForTokenClassification", "AlbertModel", "ModernBertForMaskedLM",
    ),
    "encoder–decoder": ("T5ForConditionalGeneration", "BartForConditionalGeneration", "MarianMTModel"),
    "vision": (
        "ViTForImageClassification", "SwinForImageClassification", "ConvNextForImageClassification",
        "ResNetForImageClassification", "SegformerForSemanticSegmentation",
    ),
    "text and vision": ("CLIPModel",),
    "speech": ("WhisperForConditionalGeneration", "Wav2Vec2ForCTC", "ASTForAudioClassification"),
    "state space": ("MambaForCausalLM", "Mamba2ForCausalLM"),
    "mixture of experts": ("MixtralForCausalLM", "Qwen2MoeForCausalLM", "DeepseekV3ForCausalLM"),
}  # fmt: skip
DTYPES = ("float32", "bfloat16")
WAYS = ("YAML", 'backend="npucompose"', "npucompose.compile")
STEPS = 6
EXACT = "exact"


PAGE = Path(__file__).resolve().parent.parent / "docs" / "huggingface.md"
HEAD = f"""# Hugging Face classes

Written by `python benchmarks/huggingface.py` (`make huggingface`) from `benchmarks/results/huggingface/`; no figure is
by hand. Random weights, small configurations, the library's default attention, every tensor that a class returns, one
thread; {STEPS} fresh inputs in each dtype through the YAML (`python run.py model=transformers model.architecture=…`),
`torch.compile(backend="npucompose")` and `npucompose.compile`. *exact* is bit for bit the traced graph, which is what
`aot_eager` runs; *tracing* is by how much that graph differs from eager, before anything of ours. *Graphs* are those of
Dynamo, *segments* the pieces in which they were recorded, *kernels* the recorded calls of a replay, *outside* the
operators that run as they are between segments.
"""
GENERATED = """
## Tokens

`model.generate(cache_implementation="static")`, greedy, with `model.forward = torch.compile(model.forward,
backend="npucompose")`, twice in one process, against eager.

| class | tokens | distinct | first time | second time |
|---|---|---|---|---|
"""


def page(results: Sequence[dict[str, Any]]) -> str:
    """The whole text."""
    lines = (HEAD, *_table(results), GENERATED.rstrip("\n"), *_tokens(results), _foot(results))
    return "\n".join(lines)


def wrong(results: Sequence[dict[str, Any]]) -> list[str]:
    """What is not exact, one sentence each."""
    found = []
    for result in results:
        for dtype, row in result["rows"].items():
            found += [f"{result['class']} {dtype}, {w}: {s}" for w, s in row["ways"].items() if s != EXACT]
        if result["generated"] and not all(result["generated"]["same"]):
            found.append(f"{result['class']}: other tokens than eager")
    return found


def _table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    by_class = {result["class"]: result["rows"] for result in results}
    ways = " | ".join(f"`{way}`" if "=" in way else way for way in WAYS)
    yield f"| class | kind | dtype | {ways} | tracing | graphs | segments | kernels | outside |"
    yield "|" + "---|" * (8 + len(WAYS))
    for kind, names in KINDS.items():
        for name in names:
            for dtype in DTYPES if name in by_class else ():
                row = by_class[name][dtype]
                ways = " | ".join(row["ways"][way] for way in WAYS)
                tracing = f"{row['tracing']:.2g}" if row["tracing"] else "0"
                rest = " | ".join(str(row.get(key, "-")) for key in ("graphs", "segments", "kernels"))
                rest += f" | {', '.join(row.get('outside', ())) or 'none'}"
                yield f"| {name} | {kind} | {dtype} | {ways} | {tracing} | {rest} |"
    problems = wrong(results)
    yield ""
    calls = len(by_class) * len(DTYPES) * len(WAYS) * STEPS
    yield f"{len(by_class)} classes, {calls} calls compared; ways that are not exact: {len(problems)}."


def _tokens(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        if made := result["generated"]:
            words = " | ".join("the same" if same else "others" for same in made["same"])
            yield f"| {result['class']} | {made['tokens']} | {made['distinct']} | {words} |"


def _foot(results: Sequence[dict[str, Any]]) -> str:
    seen = {", ".join(f"{n} {v}" for n, v in r["versions"].items() if n in ("torch", "transformers")) for r in results}
    return f"\n{'; '.join(sorted(seen))}\n"
