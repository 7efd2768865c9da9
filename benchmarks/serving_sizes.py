"""Planned capture sizes on traces of vLLM's scheduler: `.vllm/bin/python -m benchmarks.serving_sizes [--again]`.

Three loads on the genuine vLLM with a small decoder of random weights, whose steps the worker writes down
(`npucompose_steps`): a chat with arrivals at random, a batch that is there from the beginning, and bursts. Arrivals are
counted in steps and not in seconds, so that a trace does not depend on the machine. For each trace: the sizes with the
least padding, no more of them than vLLM's own list has up to the trace's largest step, what both pad, and the curve.
Writes benchmarks/results/serving_sizes.json; without `--again` the traces in it are planned anew and no engine runs.
Leaves 1 where a plan saves less than 20 % of the padding.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npucompose_devtools.capture_sizes.command import vllm_sizes
from npucompose_devtools.capture_sizes.planner import SizeBudget, least_padding, plan
from npucompose_devtools.capture_sizes.trace import Trace
from packages.vllm.tests.vllm_engine import ENGINE, ENVIRONMENT
from packages.vllm.tests.vllm_models import written

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "serving_sizes.json"
LEAST = 0.2
LOADS = ("chat", "batch", "bursts")
SEQUENCES, TOKENS = 64, 256
CURVE = (1, 2, 4, 8, 12, 16, 24, 32, 48)


def arrivals(load: str) -> list[tuple[int, int, int]]:
    """(step, tokens of the prompt, tokens of the answer) of each request, by step."""
    drawn = random.Random(LOADS.index(load))
    found: list[tuple[int, int, int]] = []
    step = 0.0
    for number in range(400):
        if load == "chat":
            step += drawn.expovariate(0.35)
        elif load == "bursts":
            step += 90.0 if number % 25 == 0 else 0.0
        prompt = min(200, max(4, round(drawn.lognormvariate(3.4, 0.8))))
        found.append((round(step), prompt, min(160, max(2, round(drawn.lognormvariate(3.6, 0.7))))))
    return found


def serve(load: str, model: str, steps: str) -> None:
    """In this process: the engine takes each request at its step."""
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    asked = {"max_num_seqs": SEQUENCES, "max_num_batched_tokens": TOKENS, "enforce_eager": True}
    llm = LLM(model=model, **{**ENGINE, **asked}, additional_config={"npucompose_steps": steps})
    engine, waiting, step, drawn = llm.llm_engine, arrivals(load), 0, random.Random(7)
    while waiting or engine.has_unfinished_requests():
        while waiting and (waiting[0][0] <= step or not engine.has_unfinished_requests()):
            at, prompt, answer = waiting.pop(0)
            step = max(step, at)
            how = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, detokenize=False)
            tokens = [drawn.randrange(3, 500) for _ in range(prompt)]
            engine.add_request(f"{len(waiting)}", {"prompt_token_ids": tokens}, how)
        engine.step()
        step += 1


def recorded(load: str, folder: Path) -> Trace:
    steps, model = folder / f"{load}.csv", written("qwen2", folder)
    command = [sys.executable, "-m", "benchmarks.serving_sizes", "--serve", load, str(model), str(steps)]
    own = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CACHE_ROOT": str(folder)}
    subprocess.run(command, env={**os.environ, **ENVIRONMENT, **own}, cwd=ROOT, check=True)
    return Trace.from_csv(steps)


def row(load: str, trace: Trace) -> dict[str, Any]:
    own = vllm_sizes(max(trace.steps))
    planned = plan(trace, SizeBudget(recordings=len(own)))
    padding = trace.padding(own)
    curve = dict(least_padding(trace, max(CURVE)))
    return {
        "load": load, "steps": trace.count, "rows": trace.rows, "trace": {str(n): c for n, c in trace.steps.items()},
        "vllm": {"sizes": len(own), "padding": padding},
        "planned": {"sizes": list(planned.sizes), "padding": planned.padding},
        "less": 1 - planned.padding / padding,
        "sizes_for_vllms_padding": next((number for number, least in curve.items() if least <= padding), None),
        "curve": [[number, curve[number]] for number in CURVE if number in curve],
    }  # fmt: skip


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    for one in rows:
        yield f"{one['load']}: {one['steps']:,} steps, {one['rows']:,} tokens"
        yield f"  vLLM's list   {one['vllm']['sizes']:>3} sizes pad {one['vllm']['padding']:>8,} tokens"
        planned = one["planned"]
        sizes, less = len(planned["sizes"]), f"{one['less']:.1%} less"
        yield f"  planned       {sizes:>3} sizes pad {planned['padding']:>8,} tokens, {less}"
        yield f"  as little as vLLM's list with {one['sizes_for_vllms_padding']} sizes; the curve:"
        yield from (f"    {number:>3} sizes {least:>9,} tokens" for number, least in one["curve"])


def traces(again: bool) -> dict[str, Trace]:
    if again:
        with tempfile.TemporaryDirectory() as folder:
            return {load: recorded(load, Path(folder)) for load in LOADS}
    kept: list[Mapping[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    return {one["load"]: Trace({int(n): count for n, count in one["trace"].items()}) for one in kept}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="record the traces anew")
    parser.add_argument("--serve", nargs=3, metavar=("LOAD", "MODEL", "STEPS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(*given.serve)
        return 0
    rows = [row(load, trace) for load, trace in traces(given.again).items()]
    facts = {"vllm": "0.32.0", "sequences": SEQUENCES, "tokens": TOKENS, "at_least": LEAST, "rows": rows}
    RESULTS.write_text(json.dumps(facts, separators=(",", ":")) + "\n", encoding="utf-8")
    print("\n".join(lines(rows)))
    return 0 if all(one["less"] >= LEAST for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
