"""Greedy generation of six Hugging Face classes: `python -m benchmarks.generate [--only CLASS …] [--seconds 2]`.

Small configurations, random weights that say different tokens, nothing downloaded. Each class has a process of its own
with one thread, in which the stage `generate` runs: the same loop over eager, torch.compile with Inductor and
npucompose, tokens compared with eager's before anything is timed, then in turns. Prints a row for each class and size,
then the goals: npucompose (handles where there are some) against both, in the geometric mean over all rows. Leaves 1
where a goal is missed. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any

from attrs import frozen
from rich.console import Console
from rich.table import Table

from npucompose.report.generation import NAMES, generation_cells
from npucompose.results.generation import OURS, GenerateFacts, GenerationPoint, GenerationTime
from npucompose.table.structure import facts_of, of_facts

VARIED = "initializer_range: 0.3, tie_word_embeddings: false"
CLASSES = {
    "Qwen2ForCausalLM": VARIED,
    "LlamaForCausalLM": VARIED,
    "MixtralForCausalLM": VARIED,
    "GPT2LMHeadModel": VARIED,
    "T5ForConditionalGeneration": "initializer_factor: 3.0, tie_word_embeddings: false",
    "WhisperForConditionalGeneration": "init_std: 0.3",
}
"""{class: what of its configuration is said}."""
FOUR_LAYERS = dict.fromkeys(("Qwen2ForCausalLM", "LlamaForCausalLM", "MixtralForCausalLM"), 4)
OVER_EAGER, OVER_INDUCTOR, LEAST = 1.5, 1.1, 1.0
Rows = Sequence[tuple[str, GenerationPoint]]


@frozen(kw_only=True)
class Goal:
    words: str
    figure: float
    limit: float

    @property
    def met(self) -> bool:
        return self.figure >= self.limit


def overrides_of(name: str, given: argparse.Namespace) -> list[str]:
    layers = f", num_hidden_layers: {FOUR_LAYERS[name]}" if name in FOUR_LAYERS else ""
    return [
        "scenario=generate", f"scenario.batch={given.batch}", f"scenario.prompt={given.prompt}",
        f"scenario.new_tokens={given.new_tokens}", "model=transformers", f"model.architecture={name}",
        f"model.config={{{CLASSES[name]}{layers}}}", "mode=reduce-overhead", f"benchmark.min_seconds={given.seconds}",
    ]  # fmt: skip


def measured(overrides: Sequence[str]) -> GenerateFacts:
    """In this process."""
    import torch

    from npucompose.api import checked
    from npucompose.compose.session import Session
    from npucompose.experiment.stages.generate import GenerateStage

    torch.set_num_threads(1)
    facts = GenerateStage().run(Session(checked(overrides)), lambda _: None)
    return of_facts(GenerateFacts, facts["generate"], where="generate")


def in_a_process(name: str, arguments: Sequence[str]) -> GenerateFacts:
    """One thread, whatever libraries would take."""
    command = [sys.executable, "-m", "benchmarks.generate", "--measure", name, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip()[-2000:]}")
    return of_facts(GenerateFacts, json.loads(done.stdout.splitlines()[-1]), where=name)


def ours(point: GenerationPoint) -> GenerationTime | None:
    """None where npucompose did not generate eager's tokens in any way."""
    best = point.best
    return best if best.way in OURS else None


def over(point: GenerationPoint, way: str) -> float:
    """Our tokens per second by those of another way; 0 where ours are wrong."""
    mine, other = ours(point), next((one for one in point.ways if one.way == way), None)
    if mine is None or mine.tokens_per_s is None:
        return 0.0
    return mine.tokens_per_s / other.tokens_per_s if other is not None and other.tokens_per_s else float("inf")


def _mean(values: list[float]) -> float:
    return geometric_mean(values) if values and min(values) else 0.0


def goals_of(rows: Rows) -> list[Goal]:
    """Over all rows; one that is wrong counts as 0, and what Inductor cannot do is not held against it."""
    eager = [over(point, "eager") for _, point in rows]
    inductor = [ratio for _, point in rows if (ratio := over(point, "inductor")) != float("inf")]
    same = [all(one.passed for one in point.ways if one.way in OURS) for _, point in rows]
    return [
        Goal(words="rows with eager's tokens", figure=float(sum(same)), limit=float(len(rows))),
        Goal(words="tokens/s by eager's, geometric mean", figure=_mean(eager), limit=OVER_EAGER),
        Goal(words="tokens/s by those of Inductor, geometric mean", figure=_mean(inductor), limit=OVER_INDUCTOR),
        Goal(words="tokens/s by eager's, the least", figure=min(eager, default=0.0), limit=LEAST),
    ]


def show(rows: Rows, goals: Sequence[Goal], console: Console) -> None:
    table = Table(title="greedy generation with a static cache, one thread")
    heads = ("class", "batch x prompt", "run as", "tokens/s", "by eager's", "first token", "per token", "compiled", "")
    for head in heads:
        table.add_column(head)
    for name, point in rows:
        for number, one in enumerate(point.ways):
            table.add_row("" if number else name.removesuffix("ForCausalLM"), *generation_cells(point, one))
        table.add_section()
    console.print(table)
    verdicts = Table(title=f"goals, of {NAMES['replay']}")
    for head in ("goal", "figure", "at least", ""):
        verdicts.add_column(head)
    for goal in goals:
        verdicts.add_row(goal.words, f"{goal.figure:.2f}", f"{goal.limit:g}", "met" if goal.met else "MISSED")
    console.print(verdicts)


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(CLASSES), default=tuple(CLASSES), metavar="CLASS")
    parser.add_argument("--batch", default="[1,4]", help="as scenario.batch")
    parser.add_argument("--prompt", default="16", help="as scenario.prompt")
    parser.add_argument("--new-tokens", default="64", help="as scenario.new_tokens")
    parser.add_argument("--seconds", default="2", help="of all ways together, for each figure")
    parser.add_argument("--measure", choices=tuple(CLASSES), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    given = parsed(argv)
    if given.measure:
        print(json.dumps(facts_of(measured(overrides_of(given.measure, given)))))
        return 0
    sizes = ["--batch", given.batch, "--prompt", given.prompt, "--new-tokens", given.new_tokens]
    rows: list[tuple[str, Any]] = []
    for name in given.only:
        print(f"{name} …", file=sys.stderr, flush=True)
        rows += [(name, point) for point in in_a_process(name, [*sizes, "--seconds", given.seconds]).points]
    goals = goals_of(rows)
    show(rows, goals, Console(width=160))
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
