"""One vLLM engine, timed in a process of its own: `python -m benchmarks.serving_arm '{"model": …, "engine": {…}, …}'`.

It answers with lines of JSON behind MARK: first what its start took and the greedy tokens of each batch, then, for each
number on stdin, one round of timings. In a round it says `null` after every few steps and goes on at the next line, so
that several of them take turns on one machine, closer together than the machine's speed changes. An arm is an engine
with its arguments; benchmarks/serving.py says which there are.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

MARK = "ARM: "
PROMPT, NEW, FIRSTS = 32, 128, 16
STEPS = 8
"""Of an engine in one turn: some 40 ms."""
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
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


class Turns:
    """Steps of an engine, with a pause after every few of them."""

    def __init__(self, llm: Any) -> None:
        self.waited = 0.0
        self._taken = 0
        self._step, llm.llm_engine.step = llm.llm_engine.step, self

    def __call__(self) -> Any:
        done = self._step()
        self._taken += 1
        if self._taken % STEPS == 0:
            begun = perf_counter()
            _say(None)
            sys.stdin.readline()
            self.waited += perf_counter() - begun
        return done


class LiveEngine:
    """An engine that has given its tokens once, so that nothing is compiled in a round."""

    def __init__(self, asked: dict[str, Any]) -> None:
        from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

        spent, begun = _warm_ups(), perf_counter()
        self.llm = LLM(model=asked["model"], **{**ENGINE, **asked["engine"]})
        self.facts: dict[str, Any] = {"start_s": perf_counter() - begun, "compile_s": sum(spent)}
        greedy: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "detokenize": False}
        self.text = SamplingParams(max_tokens=NEW, **greedy)
        self.first = SamplingParams(max_tokens=1, **greedy)
        self.batches: Sequence[int] = asked["batches"]
        self.facts["tokens"] = {
            str(batch): [list(one.outputs[0].token_ids) for one in self._answers(batch, 0, self.text)]
            for batch in self.batches
        }
        self.forward, self.turns = Forward(self.llm), Turns(self.llm)

    def round(self, number: int) -> dict[str, Any]:
        """Of one text for each prompt of each batch; `number` draws the prompts."""
        self.forward.seconds.clear()
        ttft = median(self._seconds(1, FIRSTS * number + k, self.first) for k in range(FIRSTS))
        speed = {str(b): b * NEW / self._seconds(b, number, self.text) for b in self.batches}
        forward = {str(b): median(self.forward.seconds[b]) for b in self.batches}
        return {"ttft_s": ttft, "tokens_per_s": speed, "forward_s": forward}

    def _seconds(self, batch: int, salt: int, how: Any) -> float:
        begun, before = perf_counter(), self.turns.waited
        self._answers(batch, salt, how)
        return perf_counter() - begun - (self.turns.waited - before)

    def _answers(self, batch: int, salt: int, how: Any) -> Any:
        return self.llm.generate(prompts(batch, salt), how, use_tqdm=False)


def prompts(batch: int, salt: int) -> list[dict[str, list[int]]]:
    drawn = random.Random(1000 * batch + salt)
    return [{"prompt_token_ids": [drawn.randrange(3, 500) for _ in range(PROMPT)]} for _ in range(batch)]


def _warm_ups() -> list[float]:
    """The seconds in which a worker compiles and records, as it comes to them."""
    from vllm.v1.worker.cpu_worker import CPUWorker  # pyright: ignore[reportMissingImports]

    warm_up, spent = CPUWorker.determine_available_memory, list[float]()

    def timed(worker: Any) -> Any:
        begun = perf_counter()
        found = warm_up(worker)
        spent.append(perf_counter() - begun)
        return found

    CPUWorker.determine_available_memory = timed
    return spent


def _say(facts: dict[str, Any] | None) -> None:
    print(f"\n{MARK}{json.dumps(facts)}", flush=True)


def main() -> None:
    live = LiveEngine(json.loads(sys.argv[1]))
    _say(live.facts)
    while line := sys.stdin.readline():
        _say(live.round(int(line)))


if __name__ == "__main__":
    main()
