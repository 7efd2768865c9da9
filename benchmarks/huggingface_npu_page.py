"""docs/huggingface_npu.md from the results that `huggingface_npu.py` left. Runs no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TOLERANCE = 1e-5

MODES = ("max-autotune", "npugraph_ex", "reduce-overhead")
CLASSES = (
    "LlamaForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM", "GPTNeoXForCausalLM", "Qwen3ForCausalLM",
    "MistralForCausalLM", "Gemma2ForCausalLM", "Phi3ForCausalLM", "BloomForCausalLM", "BertForSequenceClassification",
    "DistilBertForSequenceClassification", "AlbertModel", "T5ForConditionalGeneration", "ViTForImageClassification",
    "ConvNextForImageClassification", "ResNetForImageClassification", "WhisperForConditionalGeneration",
    "Wav2Vec2ForCTC", "MambaForCausalLM", "MixtralForCausalLM",
)  # fmt: skip


def problems(one: Mapping[str, Any]) -> list[str]:
    """What makes a row no answer: nothing was taken or refused, values are off, or `explain` says something else."""
    found: list[str] = []
    taken = one["outcome"] == ("converted" if one["mode"] == "max-autotune" else "captured")
    if not taken and one["outcome"] != "not taken":
        return [f"it is {one['outcome']}: {one.get('words', '')}"]
    if taken and one["difference"] > TOLERANCE:
        found.append(f"it differs from eager by {one['difference']:.3g}")
    if taken != (one["explain"]["failure"] is None):
        found.append("explain says otherwise")
    if not taken and not (one["operator"] and one["source"]):
        found.append("the operator or its line is missing")
    return found


PAGE = Path(__file__).resolve().parent.parent / "docs" / "huggingface_npu.md"
HEAD = """# Hugging Face classes through TorchAir

Written by `python benchmarks/huggingface_npu.py` from `benchmarks/results/huggingface_npu.json`; no cell is by hand.
Random weights, small configurations, every tensor that a class returns (`model=transformers model.outputs=all`), on
target=npu_offline: TorchAir's own Python up to the border of CANN. A graph is *converted* (so many nodes of GE) or
*captured* (so many kernels) and its values are compared with eager; or the operator that TorchAir does not take is
named, and below the table its line, and what would be taken instead. `npucompose explain` is asked in the same process.
"""


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The whole text."""
    wrong = sum(bool(problems(one)) for one in results)
    foot = f"{len(results)} rows; rows that are no answer, or of which `explain` says something else: {wrong}."
    return "\n".join([HEAD, *_table(results), "", "## Not taken", "", *_refused(results), "", foot]) + "\n"


def _table(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"| class | {' | '.join(MODES)} |"
    yield "|" + "---|" * (1 + len(MODES))
    by_name = {(one["class"], one["mode"]): one for one in results}
    for name in CLASSES:
        cells = [_cell(by_name[name, mode]) if (name, mode) in by_name else "-" for mode in MODES]
        yield f"| {name} | {' | '.join(cells)} |"


def _cell(one: Mapping[str, Any]) -> str:
    if one["outcome"] == "not taken":
        return f"`{one['operator']}`"
    if one["outcome"] not in ("converted", "captured"):
        return f"{one['outcome']}: {one.get('words', '')}"
    what = "nodes" if one["outcome"] == "converted" else "kernels"
    off = "" if one["difference"] == 0 else f", differs by {one['difference']:.2g}"
    return f"{one['outcome']}, {one['nodes']} {what}{off}"


def _refused(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each operator at each line of a library."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for one in results:
        if one["outcome"] == "not taken":
            key = (str(one["operator"]), str(one["source"]), str(one["fix"]))
            found.setdefault(key, []).append(f"{one['class']} {one['mode']}")
    yield "| operator | line | what would be taken | rows |"
    yield "|---|---|---|---|"
    for (operator, source, fix), rows in found.items():
        yield f"| `{operator}` | `{source}` | {fix} | {', '.join(rows)} |"
