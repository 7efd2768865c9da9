"""One vLLM engine, timed in a process of its own: `python -m benchmarks.serving_arm '{"model": …, "engine": {…}, …}'`.

Prints one line of JSON behind MARK. An arm is an engine with its arguments; benchmarks/serving.py says which there are.
"""

from __future__ import annotations

import json
import random
import sys
from statistics import median
from time import perf_counter
from typing import Any

MARK = "ARM: "
PROMPT, NEW = 32, 128
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "load_format": "dummy",
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "enable_prefix_caching": False,
    "seed": 0,
}


class Forward:
    """Seconds of the model's forward in steps where every request decodes, by number of requests."""

    def __init__(self, llm: Any) -> None:
        self.seconds: dict[int, list[float]] = {}
        runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        self._forward, runner._model_forward = runner._model_forward, self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from vllm.forward_context import get_forward_context  # pyright: ignore[reportMissingImports]

        metadata = next(iter(get_forward_context().attn_metadata.values()))
        begun = perf_counter()
        result = self._forward(*args, **kwargs)
        took = perf_counter() - begun
        if metadata.max_query_len == 1:
            self.seconds.setdefault(metadata.num_actual_tokens, []).append(took)
        return result


def prompts(batch: int, salt: int) -> list[dict[str, list[int]]]:
    drawn = random.Random(1000 * batch + salt)
    return [{"prompt_token_ids": [drawn.randrange(3, 500) for _ in range(PROMPT)]} for _ in range(batch)]


def measured(asked: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.v1.worker.cpu_worker import CPUWorker  # pyright: ignore[reportMissingImports]

    warm_up, spent = CPUWorker.determine_available_memory, list[float]()

    def timed(worker: Any) -> Any:
        begun = perf_counter()
        found = warm_up(worker)
        spent.append(perf_counter() - begun)
        return found

    CPUWorker.determine_available_memory = timed
    begun = perf_counter()
    llm = LLM(model=asked["model"], **{**ENGINE, **asked["engine"]})
    facts: dict[str, Any] = {"start_s": perf_counter() - begun, "compile_s": sum(spent)}
    greedy = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False)
    first = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    facts["tokens"] = {
        str(batch): [list(one.outputs[0].token_ids) for one in llm.generate(prompts(batch, 0), greedy, use_tqdm=False)]
        for batch in asked["batches"]
    }
    if asked["only_start"]:
        return facts
    facts["ttft_s"] = median(_timed(llm, prompts(1, salt), first) for salt in range(1, 22))
    forward, facts["tokens_per_s"] = Forward(llm), {}
    for batch in asked["batches"]:
        took = median(_timed(llm, prompts(batch, salt), greedy) for salt in range(1, 1 + asked["calls"]))
        facts["tokens_per_s"][str(batch)] = batch * NEW / took
    facts["forward_s"] = {str(batch): median(forward.seconds[batch]) for batch in asked["batches"]}
    return facts


def _timed(llm: Any, some: Any, how: Any) -> float:
    begun = perf_counter()
    llm.generate(some, how, use_tqdm=False)
    return perf_counter() - begun


if __name__ == "__main__":
    print(f"\n{MARK}{json.dumps(measured(json.loads(sys.argv[1])))}", flush=True)
