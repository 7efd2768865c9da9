"""One vLLM engine in a process of its own: `python -m packages.vllm.tests.vllm_engine '{"model": …, "engine": {…}}'`.

Prints one line of JSON behind MARK: the tokens of each batch, and what vLLM counted.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from attrs import frozen

MARK = "ENGINE: "
ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "seed": 0,
    "disable_log_stats": False,
}


@frozen
class Answer:
    tokens: dict[str, list[list[int]]]
    """{batch: the tokens of each prompt}."""
    counted: dict[str, int]
    log: str


def answer(
    model: Path,
    cache: Path,
    batches: list[int],
    tokens: int = 24,
    *,
    processes: bool = False,
    during: str = "nothing",
    shared: int = 0,
    **engine: Any,
) -> Answer:
    """Greedy tokens of an engine that is made with these arguments of `vllm.LLM`, with `processes` in one of its own,
    as `vllm serve` has it; `during` names what happens meanwhile (packages/vllm/tests/vllm_events.py), `before_…`
    before it is made. All prompts begin with the same `shared` tokens."""
    asked = {"model": str(model), "batches": batches, "tokens": tokens, "engine": engine, "during": during}
    asked["shared"] = shared
    ran = subprocess.run(
        command(asked), env=environment(cache, processes), cwd=ROOT, capture_output=True, text=True, check=False
    )
    log = ran.stdout + ran.stderr
    line = next((line for line in ran.stdout.splitlines() if line.startswith(MARK)), None)
    assert line is not None, log[-6000:]
    return Answer(**json.loads(line.removeprefix(MARK)), log=log)


def command(asked: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "packages.vllm.tests.vllm_engine", json.dumps(asked)]


def environment(cache: Path, processes: bool) -> dict[str, str]:
    own = {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(processes)), "VLLM_CACHE_ROOT": str(cache)}
    return {**os.environ, **ENVIRONMENT, **own}


def prompts(batch: int, shared: int = 0) -> list[dict[str, list[int]]]:
    drawn = random.Random(batch)
    first = [3 + place % 400 for place in range(shared)]
    drawn_tokens = ([drawn.randrange(3, 500) for _ in range(drawn.randrange(3, 20))] for _ in range(batch))
    return [{"prompt_token_ids": first + tokens} for tokens in drawn_tokens]


def hugging_face(model: Path, batches: list[int], tokens: int = 24) -> dict[str, list[list[int]]]:
    """Greedy tokens of transformers for the same prompts, each by itself."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model).eval()
    how: dict[str, Any] = {"do_sample": False, "max_new_tokens": tokens, "eos_token_id": None, "pad_token_id": 0}

    def told(prompt: list[int]) -> list[int]:
        given = torch.tensor([prompt])
        return loaded.generate(given, attention_mask=torch.ones_like(given), **how)[0, len(prompt) :].tolist()

    return {str(batch): [told(prompt["prompt_token_ids"]) for prompt in prompts(batch)] for batch in batches}


def main(asked: dict[str, Any]) -> None:
    from torch._dynamo.utils import counters
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    from packages.vllm.tests import vllm_events as events

    getattr(events, f"before_{asked['during']}", lambda: None)()
    llm = LLM(model=asked["model"], **{**ENGINE, **asked["engine"]})
    greedy = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False)
    batches = {batch: prompts(batch, asked.get("shared", 0)) for batch in asked["batches"]}
    found = getattr(events, asked["during"])(llm, greedy, batches)
    counted = {name: counters["inductor"][name] for name in ("fxgraph_cache_miss", "fxgraph_cache_hit")}
    metrics = {m.name: getattr(m, "value", None) for m in llm.get_metrics()}
    counted["preemptions"] = metrics["vllm:num_preemptions"]
    counted["prefix_cache_hits"] = metrics["vllm:prefix_cache_hits"]
    counted["is_ours"] = int(type(current_platform).__name__ == "RecipePlatform")
    print(f"\n{MARK}{json.dumps({'tokens': found, 'counted': counted})}", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
