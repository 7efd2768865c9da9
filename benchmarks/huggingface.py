"""Hugging Face classes as they come: `python benchmarks/huggingface.py` writes docs/huggingface.md.

One process for each class, two at a time, one thread each. Random weights, small configurations, every tensor that the
class returns. In float32 and bfloat16 the same module is called on six fresh inputs through aot_eager (the graph as
traced, run operator by operator) and then through the YAML (`model=transformers …`, target cpu, mode reduce-overhead),
`torch.compile(backend="npucompose")` and `npucompose.compile`: each must give aot_eager's bits. Five decoders also
generate 128 tokens into a static cache, with and without our backend under their forward.

A class that has its result in benchmarks/results/huggingface is not run again: `--again` does, `--only GPT2LMHeadModel`
runs one. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import environ
from pathlib import Path
from typing import Any

from compact import compact
from huggingface_page import DTYPES, EXACT, KINDS, PAGE, STEPS, WAYS, page, wrong

TOKENS, PROMPT = 128, 8
HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "huggingface"
CLASSES = tuple(name for names in KINDS.values() for name in names)
GENERATING = ("LlamaForCausalLM", "GPT2LMHeadModel", "Qwen3ForCausalLM", "Gemma2ForCausalLM", "Phi3ForCausalLM")


def result_of(name: str) -> dict[str, Any]:
    """Everything that is known of a class, from this process."""
    from npucompose.measure.environment import versions

    warnings.simplefilter("ignore")
    rows = {dtype: row_of(name, dtype) for dtype in DTYPES}
    generated = tokens_of(name, TOKENS) if name in GENERATING else None
    return {"class": name, "rows": rows, "generated": generated, "versions": versions(("torch", "transformers"))}


def row_of(name: str, dtype: str) -> dict[str, Any]:
    """One class in one dtype: for each way `exact` or what is wrong, and what became of its graph."""
    import torch
    from torch._dynamo.utils import counters

    import npucompose
    from npucompose.api import checked
    from npucompose.compose.session import Session

    session = Session(
        checked(["model=transformers", f"model.architecture={name}", f"model.dtype={dtype}", "model.outputs=all"])
    )
    module = session.built.module

    def called(make: Callable[[], Callable[..., Any]]) -> list[Any]:
        torch._dynamo.reset()
        counters.clear()
        function = make()
        with torch.no_grad():
            return [function(**session.inputs(step)) for step in range(STEPS)]

    eager = called(lambda: module)
    traced = called(lambda: torch.compile(module, backend="aot_eager", dynamic=False))
    graphs = counters["stats"]["unique_graphs"]
    ways: dict[str, Callable[[], Callable[..., Any]]] = {
        WAYS[0]: lambda: lambda **inputs: session.call(session.compiled, inputs),
        WAYS[1]: lambda: torch.compile(module, backend="npucompose"),
        WAYS[2]: lambda: npucompose.compile(module),
    }
    row: dict[str, Any] = {"graphs": graphs, "tracing": difference(eager, traced), "ways": {}}
    for way, make in ways.items():
        try:
            row["ways"][way] = judged(traced, called(make))
        except Exception as error:  # noqa: BLE001  whatever it is, it belongs into the table
            row["ways"][way] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
        if way == WAYS[0] and row["ways"][way] == EXACT:
            recordings = session.materialised.backend.recordings()
            row["recordings"], row["kernels"] = len(recordings), sum(one["kernels"] for one in recordings)
            cuts = [cut for one in session.compilations if (cut := one.partition) is not None]
            row["segments"] = sum(cut.segments for cut in cuts)
            row["outside"] = [one.words for cut in cuts for one in cut.outside]
    return row


def tokens_of(name: str, tokens: int, **config: Any) -> dict[str, Any]:
    """`model.generate` with a static cache, twice with our backend under forward, against eager.

    With the library's small weights, or a head that is the embedding, a random model says one token for ever.
    """
    import torch

    from npucompose.models import MODELS

    model_class: Any = MODELS.get("transformers")
    places = {"max_position_embeddings": tokens + PROMPT, "use_cache": True}
    places |= {"initializer_range": 0.3, "tie_word_embeddings": False}
    built = model_class(architecture=name, config={**places, **config}, tokens=PROMPT).build(0)
    model, ids = built.module.inner, built.inputs(0)["input_ids"]
    model.config.use_cache = True
    options: dict[str, Any] = {
        "max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "cache_implementation": "static",
        "disable_compile": True, "pad_token_id": 0,
    }  # fmt: skip
    eager = model.generate(ids, **options)
    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, backend="npucompose")
    ours = [model.generate(ids, **options) for _ in range(2)]
    made = eager.shape[1] - ids.shape[1]
    same = [torch.equal(one, eager) for one in ours]
    return {"tokens": made, "distinct": len(eager[0, PROMPT:].unique()), "same": same}


def judged(wanted: Sequence[Any], given: Sequence[Any]) -> str:
    """`exact`, or where and by how much the first step that differs does."""
    for step, (one, other) in enumerate(zip(wanted, given, strict=True)):
        if len(one) != len(other):
            return f"step {step}: {len(other)} tensors, not {len(one)}"
        for place, (a, b) in enumerate(zip(one, other, strict=True)):
            if a.dtype != b.dtype or a.shape != b.shape or not same_bits(a, b):
                return f"step {step}, output {place}: differs by {difference([[a]], [[b]]):.3g}"
    return EXACT


def same_bits(a: Any, b: Any) -> bool:
    """NaN equals NaN, and 0 is not -0."""
    import torch

    if not a.is_floating_point():
        return torch.equal(a, b)
    as_bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(as_bits), b.contiguous().view(as_bits))


def difference(wanted: Sequence[Any], given: Sequence[Any]) -> float:
    pairs = [(a, b) for one, other in zip(wanted, given, strict=True) for a, b in zip(one, other, strict=True)]
    return max((float((a.double() - b.double()).abs().max()) for a, b in pairs if a.shape == b.shape), default=0.0)


def results() -> list[dict[str, Any]]:
    """What is stored, in the order of CLASSES."""
    files = [RESULTS / f"{name}.json" for name in CLASSES]
    return [json.loads(file.read_text()) for file in files if file.is_file()]


def _in_a_process(name: str) -> None:
    """Two processes with one thread each: what is compared does not depend on it, and the machine is used."""
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", name]
    done = subprocess.run(command, env={**environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    print(f"{name}: {'done' if done.returncode == 0 else done.stderr.strip().splitlines()[-1]}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CLASSES, default=CLASSES, metavar="CLASS")
    parser.add_argument("--again", action="store_true", help="also those that have a result")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page from what is stored")
    parser.add_argument("--measure", metavar="CLASS", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    RESULTS.mkdir(parents=True, exist_ok=True)
    if arguments.measure:
        found = compact(result_of(arguments.measure))
        (RESULTS / f"{arguments.measure}.json").write_text(found + "\n")
        return 0
    if not arguments.page:
        wanted = [n for n in arguments.only if arguments.again or not (RESULTS / f"{n}.json").is_file()]
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(_in_a_process, wanted))
    stored = results()
    PAGE.write_text(page(stored))
    return 1 if wrong(stored) or len(stored) < len(CLASSES) else 0


if __name__ == "__main__":
    sys.exit(main())
