"""Greedy generation of six Hugging Face classes: `python -m benchmarks.generate [--only CLASS …] [--seconds 2]`.

Small configurations, random weights that say different tokens, nothing downloaded. Each class has a process of its own
with one thread, in which the stage `generate` runs: the same loop over eager, torch.compile with Inductor and
npucompose, tokens compared with eager's before anything is timed, then in turns. Prints a row for each way, class and
size, then the ratios of each class, then the goals: npucompose (handles where there are some) against both, in the
geometric mean over all sizes. Writes all of it to benchmarks/results/generate.json, of which classes that are not
measured again keep theirs. Leaves 1 where a goal is missed. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from attrs import frozen
from rich.console import Console
from rich.table import Table

from benchmarks.compact import compact
from npucompose.errors import NpuComposeError
from npucompose.measure.timing import Samples
from npucompose.report.generation import NAMES, generation_cells
from npucompose.results.measured import OURS, GenerateFacts, GenerationPoint, GenerationTime, TimeSamples, Way
from npucompose.table.structure import facts_of, of_facts

RESULTS = Path(__file__).resolve().parent / "results" / "generate.json"

VARIED = "initializer_range: 0.3, tie_word_embeddings: false"
CLASSES = {
    "Qwen2ForCausalLM": VARIED,
    "LlamaForCausalLM": VARIED,
    "MixtralForCausalLM": VARIED,
    "GPT2LMHeadModel": VARIED,
    "T5ForConditionalGeneration": "initializer_factor: 6.0, tie_word_embeddings: false, feed_forward_proj: gated-gelu",
    "WhisperForConditionalGeneration": "init_std: 1.0",
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


def measured(overrides: Sequence[str]) -> dict[str, Any]:
    """In this process: the facts of the stage `generate`, and where they were measured."""
    import torch

    from npucompose.api import checked
    from npucompose.compose.session import Session
    from npucompose.experiment.stages.generate import GenerateStage
    from npucompose.measure.environment import environment

    torch.set_num_threads(1)
    facts = GenerateStage().run(Session(checked(overrides)), lambda _: None)
    return {"generate": facts["generate"], "environment": facts_of(environment())}


def in_a_process(name: str, arguments: Sequence[str]) -> tuple[dict[str, Any], Rows]:
    """What is kept of a class, and its sizes. One thread, whatever libraries would take."""
    command = [sys.executable, "-m", "benchmarks.generate", "--measure", name, *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    load = os.getloadavg()[0]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip()[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    facts = of_facts(GenerateFacts, found["generate"], where=name)
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "load_before": round(load, 2),
        "environment": found["environment"],
        "weights_bytes": facts.weights_bytes,
        "rows": [row_of(point, one) for point in facts.points for one in point.ways],
    }, [(name, point) for point in facts.points]


def row_of(point: GenerationPoint, one: GenerationTime) -> dict[str, Any]:
    """What is kept of a way: medians and quartiles, not every sample."""
    return {
        "batch": point.batch,
        "prompt": point.prompt,
        "new_tokens": point.new_tokens,
        "distinct": point.distinct,
        "way": one.way,
        "problem": one.problem,
        "tokens_per_s": one.tokens_per_s,
        "by_eager": one.speedup,
        "first": _spread(one.first, 1),
        "per_token": _spread(one.rest, point.new_tokens - 1),
        "compile_s": one.compile_s,
    }


def _spread(times: TimeSamples | None, steps: int) -> dict[str, float] | None:
    """Microseconds of one of so many steps."""
    if times is None:
        return None
    samples = Samples(us=times.samples_us)
    quartiles = {f"p{percent}_us": round(samples.percentile(percent) / steps, 2) for percent in (25, 50, 75)}
    return {**quartiles, "samples": len(samples.us)}


def ours(point: GenerationPoint) -> GenerationTime | None:
    """None where npucompose did not generate eager's tokens in any way."""
    best = point.best
    return best if best.way in OURS else None


def over(point: GenerationPoint, way: Way, mine: GenerationTime | None) -> float:
    """Tokens per second of `mine` by those of another way; inf where the other has none, 0 where ours are wrong."""
    other = next((one for one in point.ways if one.way == way), None)
    if other is None or not other.tokens_per_s:
        return float("inf")
    return (mine.tokens_per_s or 0.0) / other.tokens_per_s if mine is not None else 0.0


def ratios(points: Sequence[GenerationPoint], way: Way) -> list[float]:
    """Ours by another way, size by size; what the other cannot do is not held against it."""
    return [ratio for point in points if (ratio := over(point, way, ours(point))) != float("inf")]


def same_guards(points: Sequence[GenerationPoint]) -> list[float]:
    """npucompose through torch.compile by Inductor through torch.compile: both behind the same guards."""
    named = [({one.way: one for one in point.ways}.get("compiled"), point) for point in points]
    return [ratio for mine, point in named if (ratio := over(point, "inductor", mine)) != float("inf")]


def _mean(values: list[float]) -> float:
    return geometric_mean(values) if values and min(values) else 0.0


def goals_of(rows: Rows) -> list[Goal]:
    """Over all rows; one that is wrong counts as 0."""
    points = [point for _, point in rows]
    eager = ratios(points, "eager")
    same = [all(one.passed for one in point.ways if one.way in OURS) for point in points]
    return [
        Goal(words="rows with eager's tokens", figure=float(sum(same)), limit=float(len(rows))),
        Goal(words="tokens/s by eager's, geometric mean", figure=_mean(eager), limit=OVER_EAGER),
        Goal(
            words="tokens/s by those of Inductor, geometric mean",
            figure=_mean(ratios(points, "inductor")),
            limit=OVER_INDUCTOR,
        ),
        Goal(words="tokens/s by eager's, the least", figure=min(eager, default=0.0), limit=LEAST),
    ]


CLASS_HEAD = ("class", "sizes", "by eager's", "the least", "by Inductor's", "through torch.compile by Inductor's")


def class_cells(rows: Rows) -> Iterator[tuple[str, ...]]:
    """Of each class and of all: geometric means over its sizes."""
    for name in (*dict.fromkeys(name for name, _ in rows), None):
        points = [point for one, point in rows if name in (one, None)]
        eager = ratios(points, "eager")
        means = (_mean(eager), min(eager, default=0.0), _mean(ratios(points, "inductor")), _mean(same_guards(points)))
        yield (name or "all", str(len(points)), *(f"{figure:.2f}x" if figure else "" for figure in means))


def _table(title: str, head: Sequence[str]) -> Table:
    table = Table(title=title)
    for name in head:
        table.add_column(name)
    return table


def show(rows: Rows, goals: Sequence[Goal], console: Console) -> None:
    heads = ("class", "batch x prompt", "run as", "tokens/s", "by eager's", "first token", "per token", "compiled", "")
    table = _table("greedy generation with a static cache, one thread; medians", heads)
    for name, point in rows:
        for number, one in enumerate(point.ways):
            table.add_row("" if number else name.removesuffix("ForCausalLM"), *generation_cells(point, one))
        table.add_section()
    console.print(table)
    means = _table(f"tokens/s, geometric means over sizes, of {NAMES['replay']}", CLASS_HEAD)
    for cells in class_cells(rows):
        means.add_row(*cells)
    console.print(means)
    verdicts = _table(f"goals, of {NAMES['replay']}", ("goal", "figure", "at least", ""))
    for goal in goals:
        verdicts.add_row(goal.words, f"{goal.figure:.2f}", f"{goal.limit:g}", "met" if goal.met else "MISSED")
    console.print(verdicts)


def write(found: Mapping[str, Any], goals: Sequence[Goal], file: Path) -> None:
    """The classes that were measured over those of earlier times, and the goals of what was measured now."""
    before = json.loads(file.read_text())["classes"] if file.is_file() else {}
    classes = {name: {**before, **found}[name] for name in CLASSES if name in {**before, **found}}
    judged = [{"goal": one.words, "figure": one.figure, "at_least": one.limit, "met": one.met} for one in goals]
    file.write_text(compact({"goals_of": list(found), "goals": judged, "classes": classes}) + "\n")


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(CLASSES), default=tuple(CLASSES), metavar="CLASS")
    parser.add_argument("--batch", default="[1,4]", help="as scenario.batch")
    parser.add_argument("--prompt", default="[16,64]", help="as scenario.prompt")
    parser.add_argument("--new-tokens", default="64", help="as scenario.new_tokens")
    parser.add_argument("--seconds", default="2", help="of all ways together, for each figure")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file that is written")
    parser.add_argument("--measure", choices=tuple(CLASSES), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    given = parsed(argv)
    if given.measure:
        try:
            print(json.dumps(measured(overrides_of(given.measure, given))))
        except NpuComposeError as error:
            raise SystemExit(str(error)) from None
        return 0
    sizes = ["--batch", given.batch, "--prompt", given.prompt, "--new-tokens", given.new_tokens]
    found: dict[str, Any] = {}
    rows: list[tuple[str, GenerationPoint]] = []
    for name in given.only:
        print(f"{name} …", file=sys.stderr, flush=True)
        found[name], measured_now = in_a_process(name, [*sizes, "--seconds", given.seconds])
        rows += measured_now
    goals = goals_of(rows)
    show(rows, goals, Console(width=160))
    write(found, goals, given.results)
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
